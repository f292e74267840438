"""TensorPlay: tensors, autograd and a workbench for numerical kernels.

The runtime needs NumPy and ml_dtypes only. In a notebook, ``%load_ext tensorplay`` adds the
``%%tpkernel`` cell magic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorplay import (
    autograd,
    fft,
    func as func,
    library as library,
    linalg,
    ops,
    random,
    testing,
)
from tensorplay._config import show_config
from tensorplay._creation import (
    arange,
    as_tensor,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)
from tensorplay._device import device, get_default_device, set_default_device
from tensorplay._dlpack import from_dlpack, from_numpy, to_dlpack
from tensorplay._dtype import (
    bfloat16,
    bool_ as bool,
    can_cast,
    complex64,
    complex64 as cfloat,
    complex128,
    complex128 as cdouble,
    dtype,
    finfo,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float16,
    float16 as half,
    float32,
    float32 as float,
    float64,
    float64 as double,
    get_default_dtype,
    iinfo,
    int8,
    int16,
    int16 as short,
    int32,
    int32 as int,
    int64,
    int64 as long,
    promote_types,
    set_default_dtype,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tensorplay._functions import *  # noqa: F403 - listed in the stub
from tensorplay._functions import __all__ as _operator_names
from tensorplay._grids import (
    frombuffer,
    logspace,
    meshgrid,
    scalar_tensor,
    tril_indices,
    triu_indices,
)
from tensorplay._printing import set_printoptions
from tensorplay._tensor import Size, Tensor
from tensorplay.autograd import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from tensorplay.ops.elementwise import result_type
from tensorplay.ops.indexing import repeat_interleave
from tensorplay.ops.linalg import einsum, tensordot
from tensorplay.ops.masks import nonzero
from tensorplay.ops.movement import broadcast_tensors
from tensorplay.ops.parts import split
from tensorplay.ops.sampling import normal
from tensorplay.ops.sorting import unique
from tensorplay.ops.strided import empty_strided
from tensorplay.random import (
    Generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
    seed,
    set_rng_state,
)

if TYPE_CHECKING:
    from tensorplay import (
        compiler as compiler,
        graph as graph,
        nn as nn,
        optim as optim,
        serialization as serialization,
    )
    from tensorplay.compiler import compile
    from tensorplay.serialization import load, save

__version__ = "0.1.0"

__all__ = [
    "Generator",
    "Size",
    "Tensor",
    "arange",
    "as_tensor",
    "asarray",
    "autograd",
    "bfloat16",
    "bool",
    "broadcast_tensors",
    "can_cast",
    "cdouble",
    "cfloat",
    "compile",
    "compiler",
    "complex64",
    "complex128",
    "device",
    "double",
    "dtype",
    "einsum",
    "empty",
    "empty_like",
    "empty_strided",
    "enable_grad",
    "eye",
    "fft",
    "finfo",
    "float",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "from_numpy",
    "frombuffer",
    "full",
    "full_like",
    "get_default_device",
    "get_default_dtype",
    "get_rng_state",
    "graph",
    "half",
    "iinfo",
    "inference_mode",
    "initial_seed",
    "int",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "library",
    "linalg",
    "linspace",
    "load",
    "logspace",
    "long",
    "manual_seed",
    "meshgrid",
    "no_grad",
    "nonzero",
    "normal",
    "ones",
    "ones_like",
    "ops",
    "overrides",  # noqa: F405 - imported when asked for
    "promote_types",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random",
    "randperm",
    "repeat_interleave",
    "result_type",
    "save",
    "scalar_tensor",
    "seed",
    "set_default_device",
    "set_default_dtype",
    "set_grad_enabled",
    "set_printoptions",
    "set_rng_state",
    "short",
    "show_config",
    "split",
    "tensor",
    "tensordot",
    "testing",
    "to_dlpack",
    "tril_indices",
    "triu_indices",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unique",
    "zeros",
    "zeros_like",
]  # fmt: skip
__all__ += _operator_names  # noqa: PLE0605 - names of operators

# What NumPy and the array API standard ask of tensors attaches itself to them.
from tensorplay import _numpy_protocol as _numpy_protocol  # noqa: E402 - after the names

__all__ += ["array_api", "nn", "optim"]  # noqa: F405 - imported when asked for

# Module and name in it, if that is no module itself.
_LATE = {
    "array_api": ("array_api", None),
    "compile": ("compiler", "compile"),
    "compiler": ("compiler", None),
    "graph": ("graph", None),
    "load": ("serialization", "load"),
    "nn": ("nn", None),
    "optim": ("optim", None),
    "overrides": ("overrides", None),
    "save": ("serialization", "save"),
    "serialization": ("serialization", None),
}


def __getattr__(name: str) -> Any:
    """Import what few programs need, and what takes long to load, when it is asked for."""
    if name not in _LATE:
        message = f"module 'tensorplay' has no attribute {name!r}"
        raise AttributeError(message)
    place, attribute = _LATE[name]
    module = importlib.import_module(f"tensorplay.{place}")
    found = module if attribute is None else getattr(module, attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})


def load_ipython_extension(shell: Any) -> None:
    """Add the workbench to an IPython shell: ``%load_ext tensorplay``.

    Raises
    ------
    RuntimeError
        The packages of the notebook extra are missing.
    """
    try:
        import tpkernel
    except ImportError as error:
        message = (
            "[load_ext] the workbench needs the notebook extra. Write "
            f"`pip install 'tensorplay-workbench[notebook]'` ({error})."
        )
        raise RuntimeError(message) from error
    tpkernel.load_ipython_extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Take the workbench out of an IPython shell."""
    import tpkernel

    tpkernel.unload_ipython_extension(shell)
