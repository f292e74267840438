"""What NumPy and the array API standard ask of tensors.

``np.exp(x)``, ``np.sum(x)`` and ``array + x`` give tensors.
Where there is an operator, it answers, and is recorded. Everything else is computed by NumPy on the
memory of the tensors, and refused where a gradient would be lost. Calls that say how NumPy is to
compute (``out=``, ``where=``, ``dtype=``, ``casting=``) follow NumPy's rules for types.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorplay import _dtype
from tensorplay._creation import as_tensor
from tensorplay._methods import attach
from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd import grad_mode
from tensorplay.autograd.inplace import check_writable
from tensorplay.ops import OPERATORS
from tensorplay.ops.arguments import SCALARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__: list[str] = []

# NumPy's name of each function of one result, and the operator that answers it.
UFUNCS: Final[dict[str, str]] = {
    **{name: name for name in (
        *("add", "ceil", "copysign", "cos", "cosh", "exp", "exp2", "expm1", "floor"),
        *("floor_divide", "fmax", "fmin", "fmod", "hypot", "isfinite", "isinf", "isnan", "log"),
        *("log10", "log1p", "log2", "logaddexp", "logical_and", "logical_not", "logical_or"),
        *("logical_xor", "matmul", "maximum", "minimum", "nextafter", "reciprocal", "remainder"),
        *("signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "bitwise_and"),
        *("bitwise_or", "bitwise_xor"),
    )},
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "conjugate": "conj", "divide": "div",
    "equal": "eq", "fabs": "abs", "greater": "gt", "greater_equal": "ge", "invert": "bitwise_not",
    "left_shift": "bitwise_left_shift", "less": "lt", "less_equal": "le", "multiply": "mul",
    "negative": "neg", "not_equal": "ne", "positive": "clone", "power": "pow", "rint": "round",
    "right_shift": "bitwise_right_shift", "sign": "sgn", "subtract": "sub",
}  # fmt: skip

# Of ufunc.reduce and ufunc.accumulate.
REDUCTIONS: Final = {
    "add": "sum", "multiply": "prod", "maximum": "amax", "minimum": "amin", "logical_and": "all",
    "logical_or": "any",
}  # fmt: skip
# Of complex numbers, the operators of these have no rule, or one of their own: NumPy answers.
REAL_ONLY: Final = frozenset({
    np.maximum, np.minimum, np.fmax, np.fmin, np.rint, np.fabs, np.signbit,
})  # fmt: skip
SCANS: Final = {"add": "cumsum", "multiply": "cumprod"}


def array_of(where: str, value: Any) -> Any:
    """Return the memory of a tensor, and anything else as it is.

    Raises
    ------
    RuntimeError
        A gradient or a tangent would be lost.
    """
    if not isinstance(value, Tensor):
        return value.numpy if isinstance(value, _dtype.dtype) else value
    if value._tangent is not None or (value.requires_grad and grad_mode.is_grad_enabled()):
        message = (
            f"[{where}] NumPy computes this outside of the graph, but an argument requires grad "
            "(or has a tangent). Write x.detach(), or use operators of tensorplay."
        )
        raise RuntimeError(message)
    return value.detach().numpy()


def arrays_of(where: str, value: Any) -> Any:
    """Do that to all tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, dict):
        return {k: arrays_of(where, v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(arrays_of(where, v) for v in value)
    return array_of(where, value)


def tensors_of(value: Any, sources: list[Tensor]) -> Any:
    """Return results of NumPy as tensors; numbers as tensors without dimensions.

    Those on the memory of one of `sources` count changes with it.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in "biufc" and value.dtype not in KINDS:
            return value  # of objects, dates or text
        result = wrap(np.asarray(value))
        for source in sources:
            if np.may_share_memory(result._array, source._array):
                result._counter = source._shared_counter()
        return result
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[tensors_of(v, sources) for v in value])
    if type(value) in (list, tuple):
        return type(value)(tensors_of(v, sources) for v in value)
    return value


KINDS: Final = frozenset(d.numpy for d in _dtype.DTYPES)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors_in(v)
    elif isinstance(value, dict):
        yield from _tensors_in(list(value.values()))


def _is_known(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray, *SCALARS, list, tuple))


# --- ufuncs ---------------------------------------------------------------------------------------

ANSWERS: Final = {getattr(np, name): OPERATORS[found] for name, found in UFUNCS.items()}


def _array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Answer NumPy's elementwise functions; see the module's text."""
    if method == "__call__" and not kwargs:
        found = ANSWERS.get(ufunc)
        if found is not None and _OPERANDS[ufunc].issuperset(map(type, inputs)):
            try:
                return found.function(*inputs)  # the commonest calls: ``array + x``
            except TypeError:
                if ufunc not in REAL_ONLY or not any(map(_is_complex, inputs)):
                    raise
    outs = kwargs.get("out", ())
    if not all(_is_known(x) for x in (*inputs, *[o for o in outs if o is not None])):
        return NotImplemented
    answer = None
    if method == "__call__" and not kwargs:
        answer = _by_operator(ufunc, inputs)
    elif method == "outer" and not kwargs and len(inputs) == 2:
        answer = _outer(ufunc, inputs)
    elif method == "reduce" and kwargs.keys() <= {"axis", "keepdims", "dtype"}:
        answer = _reduce(ufunc.__name__, *inputs, **kwargs)
    elif method == "accumulate" and kwargs.keys() <= {"axis", "dtype"} and ufunc.__name__ in SCANS:
        (x,) = inputs
        axis, d = kwargs.get("axis", 0), _our_dtype(kwargs.get("dtype"))
        answer = OPERATORS[SCANS[ufunc.__name__]].function(x, axis, dtype=d)
    if answer is not None:
        return answer
    where = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    return _by_numpy(where, getattr(ufunc, method), inputs, kwargs, at=method == "at")


# What the operators take as it is.
_ARITHMETIC: Final = frozenset({Tensor, np.ndarray, np.float64, np.float32, np.int64, int, float})
_OPERANDS: Final = {
    ufunc: _ARITHMETIC if getattr(found, "scalars", False) else frozenset({Tensor})
    for ufunc, found in ANSWERS.items()
} | {ufunc: frozenset() for ufunc in (np.fabs, np.signbit)}  # not as the operators do it


def _is_complex(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dtype.is_complex
    return isinstance(value, complex) or np.asarray(value).dtype.kind == "c"


def _operand(value: Any, *, number: bool) -> Any:
    if isinstance(value, Tensor) or (number and isinstance(value, SCALARS)):
        return value
    return as_tensor(np.asarray(value))  # lists have the types that NumPy gives them


def _by_operator(ufunc: Any, inputs: tuple[Any, ...]) -> Any:
    if ufunc is np.divmod:
        return tuple(_by_operator(f, inputs) for f in (np.floor_divide, np.remainder))
    found = ANSWERS.get(ufunc)
    if found is None or (ufunc in REAL_ONLY and any(map(_is_complex, inputs))):
        return None
    if ufunc is np.fabs:
        x = _operand(inputs[0], number=False)
        return found.function(x if x.dtype.is_floating_point else x * 1.0)
    number = len(inputs) > 1 and bool(getattr(found, "scalars", False))
    return found.function(*[_operand(x, number=number) for x in inputs])


def _outer(ufunc: Any, inputs: tuple[Any, ...]) -> Any:
    left, right = (_operand(x, number=False) for x in inputs)
    return _by_operator(ufunc, (left.reshape((*left.shape, *[1] * right.ndim)), right))


def _reduce(name: str, x: Any, axis: Any = 0, keepdims: bool = False, dtype: Any = None) -> Any:
    found = REDUCTIONS.get(name)
    if found is None:
        return None
    if found in {"amax", "amin"} and _is_complex(x):
        return None
    options: dict[str, Any] = {}
    if dtype is not None:
        if found not in {"sum", "prod"}:
            return None
        options["dtype"] = _our_dtype(dtype)
    from tensorplay._numpy_functions import reduced

    return reduced(found, x, axis, keepdims=keepdims, **options)


def _our_dtype(d: Any) -> Any:
    return d if d is None or isinstance(d, _dtype.dtype) else _dtype.from_numpy_dtype(np.dtype(d))


def _by_numpy(
    where: str, function: Callable[..., Any], args: Any, kwargs: dict[str, Any], *, at: bool = False
) -> Any:
    """Compute with NumPy; results are tensors, and those of ``out=`` what was given there."""
    outs = kwargs.get("out")
    outs = outs if isinstance(outs, tuple) else (outs,)
    targets = [x for x in (*outs, *(args[:1] if at else ())) if isinstance(x, Tensor)]
    for target in targets:
        check_writable(target, where, argument="" if at else "out")
    result = function(*arrays_of(where, args), **arrays_of(where, kwargs))
    for target in targets:
        target._bump_version()
    sources = list(_tensors_in([args, kwargs]))
    if all(o is None for o in outs):
        return tensors_of(result, sources)
    if len(outs) == 1:
        return outs[0]
    pairs = zip(outs, result, strict=True)
    return tuple(tensors_of(r, sources) if o is None else o for o, r in pairs)


# --- functions ------------------------------------------------------------------------------------

_signature: Final = functools.lru_cache(maxsize=None)(inspect.signature)


def _array_function(
    self: Tensor, func: Any, types: Iterable[type], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Answer NumPy's other functions; see the module's text."""
    if not all(issubclass(t, (Tensor, np.ndarray)) for t in types):
        return NotImplemented
    from tensorplay import _numpy_functions as known

    name = func.__name__
    ours = known.FUNCTIONS.get(func)
    if func in known.REAL_ONLY and any(map(_is_complex, _tensors_in([args, kwargs]))):
        ours = None
    if ours is not None:
        try:
            _signature(ours).bind(*args, **kwargs)
        except TypeError:  # an option of NumPy's own
            pass
        else:
            return ours(*args, **kwargs)
    if func in known.INFORMATION:
        # Not about elements, so that nothing can be lost.
        return func(*_bare(args), **_bare(kwargs))
    args, kwargs = _named_out(func, args, kwargs)
    writes = func in known.WRITERS
    if func is np.nan_to_num:
        writes = not _signature(func).bind(*args, **kwargs).arguments.get("copy", True)
    return _by_numpy(name, func, args, kwargs, at=writes)


def _named_out(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the arguments with an ``out`` that stands among the positional ones by its name."""
    names = list(_signature(func).parameters)
    if "out" not in names or len(args) <= names.index("out"):
        return args, kwargs
    named = dict(zip(names, args, strict=False))
    return args[: names.index("out")], {**kwargs, **dict(list(named.items())[names.index("out") :])}


def _bare(value: Any) -> Any:
    """Return nested arguments with the memory of tensors, whether or not they require grad."""
    if isinstance(value, dict):
        return {k: _bare(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_bare, value))
    return value.detach().numpy() if isinstance(value, Tensor) else value


# --- the array API standard -----------------------------------------------------------------------


def _array_namespace(self: Tensor, /, *, api_version: str | None = None) -> Any:
    """Return the namespace of the array API standard that works on tensors.

    Raises
    ------
    ValueError
        It is another version of the standard.
    """
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise ValueError(
            f"[__array_namespace__] argument 'api_version': expected '2024.12' or an older one, "
            f"got {api_version!r}."
        )
    from tensorplay import array_api

    return array_api


def _to_device(self: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """Return this tensor on another device.

    Raises
    ------
    ValueError
        A stream is given: there are none.
    """
    if stream is not None:
        raise ValueError("[to_device] argument 'stream': expected None, got a stream.")
    return self.to(device)


for _name, _function in {
    "__array_ufunc__": _array_ufunc, "__array_function__": _array_function,
    "__array_namespace__": _array_namespace, "to_device": _to_device,
}.items():  # fmt: skip
    attach(_name, _function)
