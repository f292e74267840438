"""Operators of the user's own: definition, kernels, fake kernels, gradients, checks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tensorplay.library.custom_op import custom_op
from tensorplay.library.definitions import CustomOpDef
from tensorplay.library.infer_schema import infer_schema
from tensorplay.library.libraries import Library, check_library, define, get_kernel, impl
from tensorplay.library.opcheck import OpCheckError, OpCheckFailure, opcheck
from tensorplay.library.registry import OverloadPacket, find, remove
from tensorplay.library.tags import EffectType, Tag

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tensorplay.library.modules.loading import OperatorModule

__all__ = [
    "CustomOpDef",
    "EffectType",
    "Library",
    "OpCheckError",
    "OpCheckFailure",
    "OverloadPacket",
    "Tag",
    "build_module",
    "custom_op",
    "define",
    "get_kernel",
    "get_op",
    "has_op",
    "impl",
    "impl_abstract",
    "infer_schema",
    "load",
    "opcheck",
    "register_autograd",
    "register_effectful",
    "register_fake",
    "register_kernel",
    "register_vmap",
    "remove",
]


def _found(where: str, op: Any, lib: Library | None) -> CustomOpDef:
    definition = find(where, op)
    if lib is not None:
        check_library(where, lib, definition)
    return definition


def register_kernel(
    op: Any, device_types: Any = None, func: Any = None, /, *, lib: Library | None = None
) -> Any:
    """Add, or replace, the kernel of `op` for some device types; also a decorator.

    Parameters
    ----------
    op
        The operator, or its name ``"ns::op"``.
    device_types
        Device types; None for all.
    func
        The function; a decorator is returned without it.
    lib
        The `Library` that the registration lives as long as; for good without it.

    Returns
    -------
    callable
        `func`, or a decorator.

    Raises
    ------
    RuntimeError
        `op` names no operator.
    """
    return _found("register_kernel", op, lib).register_kernel(device_types, func)


def register_fake(
    op: Any, func: Any = None, /, *, lib: Library | None = None, allow_override: bool = True
) -> Any:
    """Set the function that gives the results of `op` without data; also a decorator.

    Parameters
    ----------
    op
        The operator, or its name ``"ns::op"``.
    func
        The function; a decorator is returned without it.
    lib
        The `Library` that the registration lives as long as; for good without it.
    allow_override
        Whether one that is there is replaced; otherwise that raises.

    Returns
    -------
    callable
        `func`, or a decorator.

    Raises
    ------
    RuntimeError
        `op` names no operator; or it has a fake kernel already and `allow_override` is False.
    """
    definition = _found("register_fake", op, lib)
    if not allow_override and definition.operator_kernels.fake is not None:
        message = (
            f"[register_fake] {definition.name} has a fake kernel already, and allow_override is "
            "False."
        )
        raise RuntimeError(message)
    return definition.register_fake(func)


impl_abstract = register_fake


def register_autograd(
    op: Any, backward: Any, /, *, setup_context: Any = None, lib: Library | None = None
) -> None:
    """Set the gradient of `op`; see `CustomOpDef.register_autograd`.

    Parameters
    ----------
    op
        The operator, or its name ``"ns::op"``.
    backward
        ``backward(ctx, *grads)``, one gradient for each argument.
    setup_context
        ``setup_context(ctx, inputs, output)``, which saves what `backward` needs.
    lib
        The `Library` that the registration lives as long as; for good without it.

    Raises
    ------
    RuntimeError
        `op` names no operator, or one that writes to its arguments.
    """
    _found("register_autograd", op, lib).register_autograd(backward, setup_context=setup_context)


def register_vmap(op: Any, func: Any = None, /, *, lib: Library | None = None) -> Any:
    """Set how `op` runs inside of `func.vmap`; see `CustomOpDef.register_vmap`.

    Parameters
    ----------
    op
        The operator, or its name ``"ns::op"``.
    func
        ``func(info, in_dims, *args)``, which returns results and their batch dimensions.
    lib
        The `Library` that the registration lives as long as; for good without it.

    Returns
    -------
    callable
        `func`, or a decorator.

    Raises
    ------
    RuntimeError
        `op` names no operator.
    """
    return _found("register_vmap", op, lib).register_vmap(func)


def register_effectful(op: Any, effect: EffectType | None) -> None:
    """Declare a side effect of `op` that a compiler has to respect.

    Parameters
    ----------
    op
        The operator, or its name ``"ns::op"``.
    effect
        An `EffectType`; None takes it back.

    Raises
    ------
    RuntimeError
        `op` names no operator.
    TypeError
        `effect` is neither an `EffectType` nor None.
    """
    find("register_effectful", op).register_effect(effect)


def get_op(name: str) -> CustomOpDef:
    """Return the operator called `name`.

    Parameters
    ----------
    name
        ``"ns::op"``, with ``.overload`` where there are several.

    Returns
    -------
    CustomOpDef
        The operator.

    Raises
    ------
    RuntimeError
        There is none.
    """
    return find("get_op", name)


def has_op(name: str) -> bool:
    """Tell whether an operator is called `name`.

    Parameters
    ----------
    name
        ``"ns::op"``.

    Returns
    -------
    bool
        Whether one is.
    """
    try:
        find("has_op", name)
    except RuntimeError:
        return False
    return True


def load(path: str | os.PathLike[str]) -> OperatorModule:
    """Register the operators of a library file that `build_module` made.

    Kernels, schemas, fake kernels, gradients and docs come from the file; nothing is declared
    again, and no compiler is needed. Loading a file again returns what is there; a file that was
    built again under the same path replaces what it registered, and operators held from before
    keep working.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    OperatorModule
        Its attributes are the operators. They are also in ``tensorplay.ops``.

    Raises
    ------
    OSError
        There is no such file, or it cannot be read.
    RuntimeError
        The file is no library of operators, is damaged, of a newer format or for another platform;
        or an operator is defined already. Nothing is registered then. A file is not given to the
        system's loader before its checksum has been compared.
    """
    from tensorplay.library.modules.loading import load_module

    return load_module(path)


def build_module(
    declarations: str | os.PathLike[str] | None = None,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    output: str | os.PathLike[str],
    flags: str | Sequence[str] = (),
    contiguous: str = "error",
    allow_alias: bool = False,
    debug: bool = False,
) -> Path:
    """Build operators and all that belongs to them into one library file for `load`.

    Parameters
    ----------
    declarations
        YAML file of entries, each as the front matter of a ``%%tpkernel`` cell; None where the
        sources hold front matter.
    sources
        C++ files with the kernels.
    output
        The library to write, such as ``libmyops.so``.
    flags
        Compiler and linker flags, as one string or several.
    contiguous
        ``"error"``: strided inputs of a kernel that indexes flat are refused; ``"copy"``: copied.
    allow_alias
        Outputs may share memory with inputs.
    debug
        Bounds-checked views, no optimisation, debug symbols.

    Returns
    -------
    Path
        The library.

    Raises
    ------
    ValueError
        A declaration or a signature that cannot become an operator; the text begins with file and
        line.
    tensorplay.utils.cpp_jit.BuildError
        The compiler refuses a source.
    tensorplay.utils.cpp_jit.MissingToolError
        There is no compiler, or the packages that read declarations are not installed.
    """
    from tensorplay.library.modules.building import builder

    return builder()(
        declarations,
        sources,
        output=output,
        flags=flags,
        contiguous=contiguous,
        allow_alias=allow_alias,
        debug=debug,
    )
