"""Elementwise operators: arithmetic and the functions of one variable.

All operands are promoted to one type, as `tensorplay.result_type` says, and broadcast together.
Integers and bools become the default floating type where the result cannot be an integer.
The derivative of a complex function f is taken as for a holomorphic one: vjp(g) = g * conj(f').
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Spec
from tensorplay.ops.primitive import Primitive, Sample, Vjp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tensorplay._dtype import dtype

__all__ = ["binary", "broadcast_shapes", "result_type", "unary"]


# --- promotion and broadcasting -------------------------------------------------------------------


def result_type(*operands: Any) -> dtype:
    """Return the type that arithmetic on arrays, specs and numbers gives."""
    first = operands[0]
    kind = first.dtype if hasattr(first, "dtype") else None
    if kind is not None and first.ndim and all(getattr(x, "dtype", None) == kind for x in operands):
        return kind if isinstance(kind, _dtype.dtype) else _dtype.from_numpy_dtype(kind)
    groups: tuple[list[dtype], list[dtype], list[dtype]] = ([], [], [])
    for x in operands:
        if hasattr(x, "dtype"):
            d = x.dtype if isinstance(x.dtype, _dtype.dtype) else _dtype.from_numpy_dtype(x.dtype)
            groups[0 if x.ndim else 1].append(d)
        else:
            groups[2].append(_dtype.scalar_dtype(x))
    return _dtype.combine(*groups)


def broadcast_shapes(where: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that `shapes` broadcast to.

    Raises
    ------
    RuntimeError
        Two sizes of one dimension differ and neither is 1.
    """
    result = shapes[0]
    for shape in shapes[1:]:
        ndim = max(len(result), len(shape))
        a, b = ((1,) * (ndim - len(s)) + s for s in (result, shape))
        for dim in range(ndim - 1, -1, -1):
            if a[dim] != b[dim] and 1 not in (a[dim], b[dim]):
                message = (
                    f"[{where}] The size of tensor a ({a[dim]}) must match the size of tensor b "
                    f"({b[dim]}) at non-singleton dimension {dim}."
                )
                raise RuntimeError(message)
        result = tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))
    return result


def _shape(x: Any) -> tuple[int, ...]:
    return x.shape if isinstance(x, Spec) else ()


def cast(x: Any, d: dtype) -> Any:
    """Return the array or number `x` as an array of type `d`; numbers wrap as integers do in C."""
    if isinstance(x, np.ndarray):
        return x if x.dtype == d.numpy else x.astype(d.numpy)
    if isinstance(x, int) and d.kind == _dtype.INTEGER:
        bits = 8 * d.itemsize
        x &= (1 << bits) - 1
        if d.is_signed and x >> (bits - 1):
            x -= 1 << bits
    return np.asarray(x, d.numpy)


def _floating(d: dtype) -> dtype:
    return d if d.is_differentiable else _dtype.get_default_dtype()


# --- families ------------------------------------------------------------------------------------


def unary(
    schema: str,
    doc: str,
    function: Callable[..., Any],
    *,
    vjp: Vjp | None = None,
    to_float: bool = True,
    out: dtype | None = None,
    real_only: bool = False,
    low: float = -2.0,
    high: float = 2.0,
    check: Callable[[str, dtype], None] | None = None,
    **options: Any,
) -> Primitive:
    """Define an elementwise function of one tensor and numbers.

    Parameters
    ----------
    function
        ``function(array, *numbers)`` on an array of the computing type.
    vjp
        The rule; its formula is also the forward rule.
    to_float
        Whether integers are computed in the default floating type.
    out
        Type of the result where it is not that of the computation.
    real_only
        Whether complex tensors are refused.
    low, high
        Interval for the samples.
    check
        Refuses types, by raising.
    """
    name = schema.partition("(")[0]

    def types(d: dtype) -> tuple[dtype, dtype]:
        if real_only and d.is_complex:
            message = (
                f"[{name}] argument 'input': expected a real tensor, got {d!r}: not supported "
                "for complex."
            )
            raise TypeError(message)
        if check is not None:
            check(name, d)
        compute = _floating(d) if to_float else d
        return compute, compute if out is None else out

    def impl(x: Any, *rest: Any) -> Any:
        compute, result = types(result_type(x))
        y = function(cast(x, compute), *rest)
        return y if y.dtype == result.numpy else y.astype(result.numpy)

    def rule(x: Any, *rest: Any) -> Spec:  # noqa: ARG001 - numbers do not change the shape
        return Spec(_shape(x), types(result_type(x))[1])

    def samples(make: Any) -> Iterable[Sample]:
        for shape in ((), (3,), (2, 3), (0, 2)):
            yield Sample((make(*shape, low=low, high=high),), name=f"shape{list(shape)}")
        yield Sample((make(3, 4, low=low, high=high).t(),), name="transposed")

    options.setdefault("samples", samples)
    options.setdefault("inplace", True)
    return Primitive(
        schema,
        doc,
        impl,
        rule=rule,
        vjp=None if vjp is None else {"input": vjp},
        jvp=options.pop("jvp", "elementwise"),
        scalars=False,
        check_first=False,
        **options,
    )


def binary(
    schema: str,
    doc: str,
    function: Callable[..., Any],
    *,
    vjp: dict[str, Vjp] | None = None,
    to_float: bool | Callable[..., bool] = False,
    out: dtype | None = None,
    check: Callable[..., None] | None = None,
    low: float = -2.0,
    high: float = 2.0,
    **options: Any,
) -> Primitive:
    """Define an elementwise function of two (or more) tensors or numbers, then numbers.

    The parameters are those of `unary`; `check` sees the promoted type and all arguments, and
    `to_float` may be a function of all arguments.
    """
    name = schema.partition("(")[0]
    operands = schema.partition("->")[0].count("Tensor")

    def types(args: tuple[Any, ...]) -> tuple[dtype, dtype]:
        promoted = result_type(*args[:operands])
        if check is not None:
            check(name, promoted, *args)
        floats = to_float(*args) if callable(to_float) else to_float
        compute = _floating(promoted) if floats else promoted
        return compute, compute if out is None else out

    def impl(*args: Any) -> Any:
        compute, result = types(args)
        y = function(*[cast(x, compute) for x in args[:operands]], *args[operands:])
        return y if y.dtype == result.numpy else y.astype(result.numpy)

    def rule(*args: Any) -> Spec:
        shape = broadcast_shapes(name, *[_shape(x) for x in args[:operands]])
        return Spec(shape, types(args)[1])

    def samples(make: Any) -> Iterable[Sample]:
        for shapes in (((), ()), ((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((0, 2), (2,))):
            yield Sample(
                tuple(make(*shapes[i % 2], low=low, high=high) for i in range(operands)),
                name=f"shapes{[list(s) for s in shapes]}",
            )
        if operands == 2:  # noqa: PLR2004 - the common case
            yield Sample((make(3, low=low, high=high), 1.5), name="number")

    options.setdefault("samples", samples)
    options.setdefault("inplace", True)
    options.setdefault("jvp", "elementwise")
    return Primitive(
        schema, doc, impl, rule=rule, vjp=vjp, scalars=True, check_first=False, **options
    )


# --- arithmetic ----------------------------------------------------------------------------------


def _no_bool_subtraction(name: str, d: dtype, *args: Any) -> None:  # noqa: ARG001
    if d is _dtype.bool_:
        message = (
            f"[{name}] subtraction of bool tensors is not supported. Use the `^` or "
            "`logical_xor()` operator instead."
        )
        raise RuntimeError(message)


def _scaled(x: Any, alpha: Any) -> Any:
    return x if alpha == 1 else x * np.asarray(alpha).astype(x.dtype)


add = binary(
    "add(Tensor input, Tensor other, *, Scalar alpha=1) -> Tensor",
    "Sum ``input + alpha * other``.",
    lambda x, y, alpha: np.add(x, _scaled(y, alpha)),
    vjp={"input": Vjp(lambda g, s: g), "other": Vjp(lambda g, s: g if s.alpha == 1 else g * s.alpha)},
    jvp="linear",
    dunders=("__add__", "__radd__", "__iadd__"),
)

sub = binary(
    "sub(Tensor input, Tensor other, *, Scalar alpha=1) -> Tensor",
    "Difference ``input - alpha * other``.",
    lambda x, y, alpha: np.subtract(x, _scaled(y, alpha)),
    vjp={"input": Vjp(lambda g, s: g), "other": Vjp(lambda g, s: g * -s.alpha)},
    jvp="linear",
    check=_no_bool_subtraction,
    dunders=("__sub__", "__rsub__", "__isub__"),
)

mul = binary(
    "mul(Tensor input, Tensor other) -> Tensor",
    "Product ``input * other``.",
    np.multiply,
    vjp={
        "input": Vjp(lambda g, s: g * _conj(s.other), "other"),
        "other": Vjp(lambda g, s: g * _conj(s.input), "input"),
    },
    dunders=("__mul__", "__rmul__", "__imul__"),
)


def _conj(x: Any) -> Any:
    """Conjugate of a tensor or number, without an operation for real ones."""
    if isinstance(x, complex):
        return x.conjugate()
    return x.conj() if hasattr(x, "dtype") and x.dtype.is_complex else x


_ROUNDING = {"trunc": np.trunc, "floor": np.floor}


def _divide(x: Any, y: Any, rounding_mode: str | None) -> Any:
    if rounding_mode is None:
        return np.true_divide(x, y)
    if x.dtype.kind not in "iu":
        return _ROUNDING[rounding_mode](np.true_divide(x, y))
    floor = np.floor_divide(x, y)
    # Truncation differs from the floor where there is a remainder and the signs differ.
    return floor if rounding_mode == "floor" else floor + ((floor * y != x) & ((x < 0) != (y < 0)))


def _check_division(name: str, d: dtype, *args: Any) -> None:
    mode = args[2] if len(args) > 2 else None  # noqa: PLR2004
    if mode not in (None, *_ROUNDING):
        message = (
            f"[{name}] argument 'rounding_mode': expected None, 'trunc' or 'floor', got {mode!r}."
        )
        raise RuntimeError(message)
    if mode is not None:
        _no_integer_zero(name, d, *args)


def _no_integer_zero(name: str, d: dtype, *args: Any) -> None:
    divisor = args[1]
    if d.kind <= _dtype.INTEGER and not isinstance(divisor, Spec) and not np.all(divisor):
        message = f"[{name}] ZeroDivisionError: an element of the integer divisor is zero."
        raise RuntimeError(message)


div = binary(
    'div(Tensor input, Tensor other, *, str? rounding_mode=None) -> Tensor',
    "Quotient ``input / other``; integers give the default floating type unless rounded.",
    _divide,
    vjp={
        "input": Vjp(
            lambda g, s: g / _conj(s.other) if s.rounding_mode is None else g * 0, "other"
        ),
        "other": Vjp(
            lambda g, s: -g * _conj(s.input / (s.other * s.other))
            if s.rounding_mode is None
            else g * 0,
            "input",
            "other",
        ),
    },
    check=_check_division,
    to_float=lambda x, y, rounding_mode: rounding_mode is None,
    low=0.5,
    dunders=("__truediv__", "__rtruediv__", "__itruediv__"),
    aliases=("divide", "true_divide"),
)

neg = unary(
    "neg(Tensor input) -> Tensor",
    "Negative ``-input``.",
    np.negative,
    vjp=Vjp(lambda g, s: -g),
    jvp="linear",
    to_float=False,
    dunders=("__neg__",),
)

exp = unary(
    "exp(Tensor input) -> Tensor",
    "Exponential ``e ** input``.",
    np.exp,
    vjp=Vjp(lambda g, s: g * _conj(s.out), "out"),
)

log = unary(
    "log(Tensor input) -> Tensor",
    "Natural logarithm.",
    np.log,
    vjp=Vjp(lambda g, s: g / _conj(s.input), "input"),
    low=0.2,
)

sigmoid = unary(
    "sigmoid(Tensor input) -> Tensor",
    "Logistic function ``1 / (1 + exp(-input))``.",
    lambda x: _sigmoid(x),
    vjp=Vjp(lambda g, s: g * _conj(s.out * (1 - s.out)), "out"),
)


def _sigmoid(x: Any) -> Any:
    # exp of a negative number cannot overflow; both branches share it.
    e = np.exp(-np.abs(x)) if x.dtype.kind != "c" else np.exp(-x)
    one = x.dtype.type(1)
    return one / (one + e) if x.dtype.kind == "c" else np.where(x >= 0, one, e) / (one + e)

