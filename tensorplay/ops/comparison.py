"""Comparisons, logic, and the classes of floating numbers.

The results are bools. In place they are written as 0 and 1 of the tensor's type, and the gradient
of what was overwritten is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._dtype import dtype
from tensorplay._tensor import Spec, Tensor, wrap
from tensorplay.ops.elementwise import (
    binary,
    broadcast_shapes,
    cast,
    no_gradient,
    result_type,
    unary,
)
from tensorplay.ops.primitive import Composite, Primitive, Sample

__all__ = ["allclose", "eq", "equal", "isclose"]

_BOTH = {"input": no_gradient, "other": no_gradient}


def _integer_sample(*values: Any, d: dtype = _dtype.int64) -> Tensor:
    return wrap(np.array(values, d.numpy), d)


# --- comparisons ----------------------------------------------------------------------------------


def _comparison(
    name: str,
    doc: str,
    function: Callable[..., Any],
    dunder: str,
    *,
    ordered: bool = True,
    aliases: Sequence[str] = (),
) -> Primitive:
    """Define a comparison; `ordered` ones refuse complex numbers."""

    def types(x: Any, y: Any) -> dtype:
        d = result_type(x, y)
        if ordered and d.is_complex:
            message = f"[{name}] argument 'input': expected real operands, got {d!r}."
            raise TypeError(message)
        return d

    def impl(x: Any, y: Any) -> Any:
        if type(x) is np.ndarray and x.dtype.kind == "f":
            other = type(y)
            # A Python number takes the type of the array, as it does in NumPy.
            if other is float or other is int or (other is np.ndarray and x.dtype is y.dtype):
                return function(x, y)
        d = types(x, y)
        if d.category != _dtype.INTEGER:
            return function(cast(x, d), cast(y, d))
        # An integer out of the range of the type is larger or smaller, where a cast would wrap.
        x, y = (cast(v, d) if isinstance(v, np.ndarray) else v for v in (x, y))
        return np.asarray(function(x, y))

    def rule(x: Any, y: Any) -> Spec:
        types(x, y)
        shapes = [v.shape if isinstance(v, Spec) else () for v in (x, y)]
        return Spec(broadcast_shapes(name, *shapes), _dtype.bool_)

    def samples(make: Any) -> Iterable[Sample]:
        yield Sample((make(2, 3), make(3)), name="broadcast")
        yield Sample((make(3), 0.5), name="number")
        yield Sample((_integer_sample(1, 2, 3), _integer_sample(3, 2, 1)), name="integers")

    return Primitive(
        f"{name}(Tensor input, Tensor other) -> Tensor",
        doc,
        impl,
        rule=rule,
        vjp=_BOTH,
        jvp="elementwise",
        scalars=True,
        check_first=False,
        inplace=True,
        out=True,
        dunders=(dunder,),
        aliases=aliases,
        samples=samples,
    )


eq = _comparison("eq", "``input == other``.", np.equal, "__eq__", ordered=False)
ne = _comparison(
    "ne", "``input != other``.", np.not_equal, "__ne__", ordered=False, aliases=("not_equal",)
)
lt = _comparison("lt", "``input < other``.", np.less, "__lt__", aliases=("less",))
le = _comparison("le", "``input <= other``.", np.less_equal, "__le__", aliases=("less_equal",))
gt = _comparison("gt", "``input > other``.", np.greater, "__gt__", aliases=("greater",))
ge = _comparison(
    "ge", "``input >= other``.", np.greater_equal, "__ge__", aliases=("greater_equal",)
)

# --- closeness ------------------------------------------------------------------------------------


def _isclose(x: Any, y: Any, rtol: float, atol: float, equal_nan: bool) -> Any:
    if x.dtype.kind in "biu":
        return (x == y) | _integers_near(x, y, atol + rtol * np.abs(y.astype(np.float64)))
    near = (np.abs(x - y) <= atol + rtol * np.abs(y)) & np.isfinite(y)
    near |= x == y
    return near | (np.isnan(x) & np.isnan(y)) if equal_nan else near


def _integers_near(x: Any, y: Any, allowed: Any) -> Any:
    """Return where integers of one type lie within `allowed`, without rounding their distance."""
    # Modulo 2**64 the difference of the larger and the smaller is their distance.
    x, y = (np.maximum(x, y).astype(np.uint64), np.minimum(x, y).astype(np.uint64))
    distance = x - y
    below = np.nextafter(2.0**64, 0)
    whole = np.floor(np.clip(np.nan_to_num(allowed), 0, below)).astype(np.uint64)
    return (allowed >= 0) & ((distance <= whole) | (allowed > below))


isclose = binary(
    "isclose(Tensor input, Tensor other, float rtol=1e-05, float atol=1e-08, "
    "bool equal_nan=False) -> Tensor",
    "``abs(input - other) <= atol + rtol * abs(other)``, or equal.",
    _isclose,
    vjp=_BOTH,
    out=_dtype.bool_,
    inplace=False,
)


def _equal_samples(make: Any) -> Iterable[Sample]:
    x = make(2, 3)
    yield Sample((x, x), name="same")
    yield Sample((x, make(2, 3)), name="different")


def _verdict(where: str, result: Tensor) -> bool:
    if result.is_meta:
        raise NotImplementedError(
            f"[{where}] a tensor on device meta has no elements to compare. Compare shapes."
        )
    return bool(result)


allclose = Composite(
    "allclose(Tensor input, Tensor other, float rtol=1e-05, float atol=1e-08, "
    "bool equal_nan=False) -> bool",
    "Whether `isclose` holds everywhere.",
    lambda x, y, rtol, atol, equal_nan: _verdict(
        "allclose", isclose(x, y, rtol, atol, equal_nan).all()
    ),
    samples=_equal_samples,
)

equal = Composite(
    "equal(Tensor input, Tensor other) -> bool",
    "Whether shapes and all elements are equal.",
    lambda x, y: x.shape == y.shape and _verdict("equal", eq(x, y).all()),
    samples=_equal_samples,
)

# --- classes of floating numbers ------------------------------------------------------------------


def _class(name: str, doc: str, function: Callable[..., Any]) -> Primitive:
    def samples(make: Any) -> Iterable[Sample]:
        special = np.array([0.0, -1.5, np.inf, -np.inf, np.nan])
        yield Sample((wrap(special),), name="special")
        yield Sample((make(2, 3),), name="finite")
        yield Sample((_integer_sample(1, 2),), name="integers")

    return unary(
        f"{name}(Tensor input) -> Tensor",
        doc,
        lambda x: function(x) if x.dtype.kind in "fcV" else function(x.astype(np.float64)),
        vjp=no_gradient,
        to_float=False,
        out=_dtype.bool_,
        inplace=False,
        samples=samples,
    )


isnan = _class("isnan", "Whether the element is not a number.", np.isnan)
isfinite = _class("isfinite", "Whether the element is neither NaN nor infinite.", np.isfinite)
isinf = _class("isinf", "Whether the element is infinite.", np.isinf)

signbit = _class(
    "signbit", "Whether the sign is negative, also that of a zero.", lambda x: np.signbit(x.real)
)

# --- logic ----------------------------------------------------------------------------------------


def _logical(name: str, doc: str, function: Callable[..., Any]) -> Primitive:
    def impl(x: Any, y: Any) -> Any:
        return function(_truth(x), _truth(y))

    def rule(x: Any, y: Any) -> Spec:
        shapes = [v.shape if isinstance(v, Spec) else () for v in (x, y)]
        return Spec(broadcast_shapes(name, *shapes), _dtype.bool_)

    return Primitive(
        f"{name}(Tensor input, Tensor other) -> Tensor",
        doc,
        impl,
        rule=rule,
        vjp=_BOTH,
        jvp="elementwise",
        scalars=True,
        check_first=False,
        inplace=True,
        out=True,
        samples=lambda make: [
            Sample((_integer_sample(0, 2, 0, 3), _integer_sample(0, 0, 1, 5)), name="integers"),
            Sample((make(2, 3), make(3)), name="broadcast"),
        ],
    )


def _truth(x: Any) -> Any:
    return np.not_equal(x, 0)


logical_and = _logical("logical_and", "Whether both are nonzero.", np.logical_and)
logical_or = _logical("logical_or", "Whether one or both are nonzero.", np.logical_or)
logical_xor = _logical("logical_xor", "Whether exactly one is nonzero.", np.logical_xor)

logical_not = unary(
    "logical_not(Tensor input) -> Tensor",
    "Whether the element is zero.",
    lambda x: np.equal(x, 0),
    vjp=no_gradient,
    to_float=False,
    out=_dtype.bool_,
)

# --- bits -----------------------------------------------------------------------------------------


def _check_bits(name: str, d: dtype, *args: Any) -> None:
    if d.category > _dtype.INTEGER:
        message = f"[{name}] argument 'input': expected integer or bool operands, got {d!r}."
        raise TypeError(message)


def _check_shift(name: str, d: dtype, *args: Any) -> None:
    if d.category != _dtype.INTEGER:
        message = f"[{name}] argument 'input': expected integer operands, got {d!r}."
        raise TypeError(message)
    bits = args[1]
    if not isinstance(bits, Spec) and np.any(np.less(bits, 0)):
        message = f"[{name}] argument 'other': expected a number of bits, got a negative one."
        raise ValueError(message)


def _bits(
    name: str,
    doc: str,
    function: Callable[..., Any],
    *dunders: str,
    check: Callable[..., None] = _check_bits,
) -> Primitive:
    def samples(make: Any) -> Iterable[Sample]:
        yield Sample((_integer_sample(0, 2, 5, 12), _integer_sample(3, 0, 1, 5)), name="integers")
        yield Sample((_integer_sample(0, 2, d=_dtype.uint8), 3), name="number")

    return binary(
        f"{name}(Tensor input, Tensor other) -> Tensor",
        doc,
        function,
        check=check,
        wraps=check is _check_bits,
        raises="integers" if check is _check_shift else "",
        dunders=dunders,
        samples=samples,
    )


bitwise_and = _bits(
    "bitwise_and", "Bits set in both.", np.bitwise_and, "__and__", "__rand__", "__iand__"
)
bitwise_or = _bits(
    "bitwise_or", "Bits set in one or both.", np.bitwise_or, "__or__", "__ror__", "__ior__"
)
bitwise_xor = _bits(
    "bitwise_xor", "Bits set in exactly one.", np.bitwise_xor, "__xor__", "__rxor__", "__ixor__"
)
bitwise_left_shift = _bits(
    "bitwise_left_shift",
    "Bits moved up, ``input * 2 ** other``.",
    np.left_shift,
    "__lshift__",
    "__rlshift__",
    "__ilshift__",
    check=_check_shift,
)
bitwise_right_shift = _bits(
    "bitwise_right_shift",
    "Bits moved down, ``input // 2 ** other``.",
    np.right_shift,
    "__rshift__",
    "__rrshift__",
    "__irshift__",
    check=_check_shift,
)

bitwise_not = unary(
    "bitwise_not(Tensor input) -> Tensor",
    "All bits inverted; for bools, the negation.",
    np.invert,
    to_float=False,
    check=_check_bits,
    dunders=("__invert__",),
    samples=lambda make: [
        Sample((_integer_sample(0, 5, -3),), name="integers"),
        Sample((_integer_sample(0, 1, d=_dtype.bool_),), name="bools"),
    ],
)
