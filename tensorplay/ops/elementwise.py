"""What elementwise operators share, and arithmetic.

All operands are promoted to one type, as `tensorplay.result_type` says, and broadcast together.
Integers and bools become the default floating type where the result cannot be an integer.
The derivative of a complex function f is taken as for a holomorphic one: vjp(g) = g * conj(f').
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Spec
from tensorplay.ops.arguments import LIMITS, check_held
from tensorplay.ops.primitive import Primitive, Sample, Vjp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tensorplay._dtype import dtype

__all__ = [
    "binary",
    "broadcast_shapes",
    "conj_of",
    "log_of",
    "no_bool",
    "no_gradient",
    "result_type",
    "unary",
]


# --- promotion and broadcasting -------------------------------------------------------------------


def result_type(*operands: Any) -> dtype:
    """Return the type that arithmetic on arrays, specs and numbers gives.

    Parameters
    ----------
    *operands
        Tensors and Python numbers.

    Returns
    -------
    dtype
        By category and then by what has dimensions: tensor, 0-d tensor, number.

    Examples
    --------
    >>> import tensorplay as tp
    >>> tp.result_type(tp.ones(2, dtype=tp.int32), 1.5)
    tensorplay.float32
    """
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
    result = shapes[0] if shapes else ()
    for shape in shapes[1:]:
        if shape == result or not shape:
            continue
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
    if isinstance(x, int) and d.category == _dtype.INTEGER:
        bits = 8 * d.itemsize
        x &= (1 << bits) - 1
        if d.is_signed and x >> (bits - 1):
            x -= 1 << bits
    if isinstance(x, int) and d.is_differentiable:
        x = float(x)  # the types that NumPy does not know take no large integers
    if isinstance(x, float) and d.category == _dtype.INTEGER:
        return np.asarray(x).astype(d.numpy)  # as arrays are cast, which NaN does not stop
    return np.asarray(x, d.numpy)


def _floating(d: dtype) -> dtype:
    return d if d.is_differentiable else _dtype.get_default_dtype()


# --- families ------------------------------------------------------------------------------------


def _output(out: dtype | Callable[[dtype], dtype] | None, compute: dtype) -> dtype:
    return compute if out is None else out if isinstance(out, _dtype.dtype) else out(compute)


def unary(
    schema: str,
    doc: str,
    function: Callable[..., Any],
    *,
    vjp: Vjp | None = None,
    to_float: bool = True,
    out: dtype | Callable[[dtype], dtype] | None = None,
    real_only: bool = False,
    low: float = -2.0,
    high: float = 2.0,
    kinks: Sequence[float] = (),
    check: Callable[[str, dtype], None] | None = None,
    **options: Any,
) -> Primitive:
    """Define an elementwise function of one tensor and numbers.

    Parameters
    ----------
    function
        ``function(array, *numbers)`` on an array of the computing type.
    vjp
        The rule; its formula is also the forward rule unless ``jvp`` is given.
    to_float
        Whether integers are computed in the default floating type.
    out
        Type of the result, or a function of the computing type, where it is not that type.
    real_only
        Whether complex tensors are refused.
    low, high
        Interval for the samples.
    kinks
        Points where the function is not differentiable; the samples keep away from them.
    check
        Refuses types, by raising.
    """
    name = schema.partition("(")[0]
    plans: dict[Any, tuple[Any, Any]] = {}

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
        return compute, _output(out, compute)

    def impl(x: Any, *rest: Any) -> Any:
        plan = plans.get(x.dtype)
        if plan is None:
            d = _dtype.from_numpy_dtype(x.dtype)
            compute, result = types(d)
            plan = compute.numpy, result.numpy
            if d.is_differentiable or not to_float:  # else it depends on the default type
                plans[x.dtype] = plan
        y = function(x if x.dtype is plan[0] else x.astype(plan[0]), *rest)
        return y if y.dtype is plan[1] else y.astype(plan[1])

    def rule(x: Any, *rest: Any) -> Spec:
        return Spec(x.shape, types(x.dtype)[1])

    def samples(make: Any) -> Iterable[Sample]:
        between = {"low": low, "high": high, "avoid": kinks}
        for shape in ((), (3,), (2, 3), (0, 2)):
            yield Sample((make(*shape, **between),), name=f"shape{list(shape)}")
        yield Sample((make(3, 4, **between).t(),), name="transposed")

    options.setdefault("samples", samples)
    options.setdefault("inplace", True)
    options.setdefault("out", True)
    options.setdefault("jvp", "elementwise")
    if out is None and "," not in schema:
        options.setdefault("ufunc", function)
    return Primitive(
        schema,
        doc,
        impl,
        rule=rule,
        vjp=None if vjp is None else {"input": vjp},
        check_first=False,
        **options,
    )


def _operand_samples(count: int, low: float, high: float) -> Callable[[Any], Iterable[Sample]]:
    def samples(make: Any) -> Iterable[Sample]:
        for shapes in (((), ()), ((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((0, 2), (2,))):
            yield Sample(
                tuple(make(*shapes[i % 2], low=low, high=high) for i in range(count)),
                name=f"shapes{[list(s) for s in shapes]}",
            )
        yield Sample((make(3, low=low, high=high), 1.5, *[0.3] * (count - 2)), name="number")
        if count == 2:
            yield Sample((1.25, make(3, low=low, high=high)), name="number first")

    return samples


def _known_plan(plans: dict[Any, Any], x: Any, y: Any) -> tuple[Any, Any]:
    """Return the plan of two operands of one type, or None; and `y`, an array if there is one."""
    plan = plans.get(x.dtype)
    other = type(y)
    if other is np.ndarray:
        return (plan if x.dtype is y.dtype else None), y
    if plan is not None and (other is float or other is int):
        if plan[0].is_differentiable:
            return plan, np.asarray(float(y), plan[1])
        limits = LIMITS.get(plan[0])
        if other is int and limits is not None and limits[0] <= y <= limits[1]:
            return plan, np.asarray(y, plan[1])
    return None, y  # a number that may raise the kind


def binary(
    schema: str,
    doc: str,
    function: Callable[..., Any],
    *,
    vjp: dict[str, Vjp] | None = None,
    to_float: bool | Callable[..., bool] = False,
    out: dtype | None = None,
    real_only: bool = False,
    check: Callable[..., None] | None = None,
    wraps: bool = False,
    low: float = -2.0,
    high: float = 2.0,
    **options: Any,
) -> Primitive:
    """Define an elementwise function of two (or three) tensors or numbers, then numbers.

    The parameters are those of `unary`; `check` sees the promoted type and all arguments, and
    `to_float` may be a function of all arguments. With `wraps`, integers beyond the range of the
    type count modulo 2**n; else they are refused.
    """
    name = schema.partition("(")[0]
    operands = schema.partition("->")[0].count("Tensor")
    plans: dict[Any, tuple[dtype, Any, Any]] = {}
    quick = operands == 2 and not callable(to_float)

    def types(args: tuple[Any, ...]) -> tuple[dtype, dtype, dtype]:
        promoted = result_type(*args[:operands])
        if real_only and promoted.is_complex:
            message = (
                f"[{name}] argument 'input': expected real operands, got {promoted!r}: not "
                "supported for complex."
            )
            raise TypeError(message)
        floats = to_float(*args) if callable(to_float) else to_float
        compute = _floating(promoted) if floats else promoted
        if compute.category == _dtype.INTEGER:
            for x in args[:operands]:
                check_held(name, x, compute, wraps=wraps)
        return promoted, compute, _output(out, compute)

    def impl(*args: Any) -> Any:
        x, y = args[0], args[1]
        plan = None
        if quick and type(x) is np.ndarray:
            plan, y = _known_plan(plans, x, y)
        if plan is None:
            promoted, compute_type, result_type_ = types(args)
            plan = promoted, compute_type.numpy, result_type_.numpy
            values = [cast(v, compute_type) for v in args[:operands]]
            if quick:
                x, y = values
                if promoted is compute_type:
                    # What two operands of this type do, however it was come by.
                    plans.setdefault(promoted.numpy, plan)
        if check is not None:
            check(name, plan[0], *args)
        result = function(x, y, *args[2:]) if quick else function(*values, *args[operands:])
        return result if result.dtype is plan[2] else result.astype(plan[2])

    def rule(*args: Any) -> Spec:
        promoted, _, result = types(args)
        shape = broadcast_shapes(name, *[_shape(x) for x in args[:operands]])
        if check is not None:
            check(name, promoted, *args)
        return Spec(shape, result)

    options.setdefault("samples", _operand_samples(operands, low, high))
    if isinstance(function, np.ufunc) and out is None and operands == 2:
        options.setdefault("ufunc", function)
    options.setdefault("inplace", True)
    options.setdefault("out", True)
    options.setdefault("jvp", "elementwise")
    return Primitive(
        schema, doc, impl, rule=rule, vjp=vjp, scalars=True, check_first=False, **options
    )


def no_bool(name: str, d: dtype, *args: Any) -> None:
    """Refuse bools, as the `check` of a family."""
    if d is _dtype.bool_:
        message = f"[{name}] argument 'input': expected numbers, got a bool tensor."
        raise TypeError(message)


# --- pieces of formulas ---------------------------------------------------------------------------


def conj_of(x: Any) -> Any:
    """Conjugate of a tensor or number, without an operation for real ones."""
    if isinstance(x, complex):
        return x.conjugate()
    return x.conj() if hasattr(x, "dtype") and x.dtype.is_complex else x


def log_of(x: Any) -> Any:
    """Logarithm of a tensor or number."""
    if hasattr(x, "dtype"):
        return x.log()
    with np.errstate(all="ignore"):
        return np.log(x).item()


# Of operators that are constant between their jumps: the gradient is zero, not missing.
no_gradient = Vjp(lambda g, s: g.new_zeros(g.shape))


# --- arithmetic ----------------------------------------------------------------------------------


def _check_scaled(name: str, d: dtype, *args: Any) -> None:
    alpha = args[2]
    if d.category <= _dtype.INTEGER and isinstance(alpha, (float, complex)):
        message = (
            f"[{name}] argument 'alpha': expected an integer for tensors of {d!r}, got {alpha!r}: "
            "for integral input tensors it must not be a floating point number."
        )
        raise RuntimeError(message)


def _check_subtraction(name: str, d: dtype, *args: Any) -> None:
    if d is _dtype.bool_:
        message = (
            f"[{name}] subtraction of bool tensors is not supported. Use the `^` or "
            "`logical_xor()` operator instead."
        )
        raise RuntimeError(message)
    _check_scaled(name, d, *args)


def _scaled(x: Any, alpha: Any) -> Any:
    return x if alpha == 1 else x * np.asarray(alpha).astype(x.dtype)


add = binary(
    "add(Tensor input, Tensor other, *, Scalar alpha=1) -> Tensor",
    "Sum ``input + alpha * other``.",
    lambda x, y, alpha: np.add(x, y if alpha == 1 else _scaled(y, alpha)),
    vjp={
        "input": Vjp(lambda g, s: g),
        "other": Vjp(lambda g, s: g if s.alpha == 1 else g * conj_of(s.alpha)),
    },
    jvp="linear",
    ufunc=np.add,
    wraps=True,
    check=_check_scaled,
    dunders=("__add__", "__radd__", "__iadd__"),
)

sub = binary(
    "sub(Tensor input, Tensor other, *, Scalar alpha=1) -> Tensor",
    "Difference ``input - alpha * other``.",
    lambda x, y, alpha: np.subtract(x, y if alpha == 1 else _scaled(y, alpha)),
    vjp={
        "input": Vjp(lambda g, s: g),
        "other": Vjp(lambda g, s: -g if s.alpha == 1 else g * -conj_of(s.alpha)),
    },
    jvp="linear",
    ufunc=np.subtract,
    wraps=True,
    check=_check_subtraction,
    dunders=("__sub__", "__rsub__", "__isub__"),
    aliases=("subtract",),
)

mul = binary(
    "mul(Tensor input, Tensor other) -> Tensor",
    "Product ``input * other``.",
    np.multiply,
    wraps=True,
    vjp={
        "input": Vjp(lambda g, s: g * conj_of(s.other), "other"),
        "other": Vjp(lambda g, s: g * conj_of(s.input), "input"),
    },
    dunders=("__mul__", "__rmul__", "__imul__"),
    aliases=("multiply",),
)


def _check_negative(name: str, d: dtype) -> None:
    if d is _dtype.bool_:
        message = (
            f"[{name}] argument 'input': expected numbers, got a bool tensor. To invert a mask "
            "use the `~` or `logical_not()` operator."
        )
        raise RuntimeError(message)


neg = unary(
    "neg(Tensor input) -> Tensor",
    "Negative ``-input``.",
    np.negative,
    vjp=Vjp(lambda g, s: -g),
    jvp="linear",
    to_float=False,
    check=_check_negative,
    dunders=("__neg__",),
    aliases=("negative",),
)

# --- division -------------------------------------------------------------------------------------


def _check_divisor(name: str, d: dtype, *args: Any) -> None:
    divisor = args[1]
    if d.category <= _dtype.INTEGER and not isinstance(divisor, Spec) and not np.all(divisor):
        message = f"[{name}] ZeroDivisionError: an element of the integer divisor is zero."
        raise RuntimeError(message)


def _check_division(name: str, d: dtype, *args: Any) -> None:
    mode = args[2]
    if mode is None:
        return
    if mode not in ("trunc", "floor"):
        message = (
            f"[{name}] argument 'rounding_mode': expected None, 'trunc' or 'floor', got {mode!r}."
        )
        raise RuntimeError(message)
    _check_divisor(name, d, *args)


def _divide(x: Any, y: Any, rounding_mode: str | None) -> Any:
    if rounding_mode is None:
        return np.true_divide(x, y)
    if rounding_mode == "floor":
        return np.floor_divide(x, y)
    if x.dtype.kind not in "iu":
        return np.trunc(np.true_divide(x, y))
    floor = np.floor_divide(x, y)
    # Truncation differs from the floor where there is a remainder and the signs differ.
    return floor + ((floor * y != x) & ((x < 0) != (y < 0)))


div = binary(
    "div(Tensor input, Tensor other, *, str? rounding_mode=None) -> Tensor",
    "Quotient ``input / other``; integers give the default floating type unless rounded.",
    _divide,
    vjp={
        "input": Vjp(
            lambda g, s: (
                g / conj_of(s.other) if s.rounding_mode is None else no_gradient.formula(g, s)
            ),
            "other",
        ),
        "other": Vjp(
            lambda g, s: (
                -g * conj_of(s.input / (s.other * s.other))
                if s.rounding_mode is None
                else no_gradient.formula(g, s)
            ),
            "input",
            "other",
        ),
    },
    check=_check_division,
    raises="integers",
    to_float=lambda x, y, rounding_mode: rounding_mode is None,
    ufunc=np.true_divide,
    low=0.5,
    dunders=("__truediv__", "__rtruediv__", "__itruediv__"),
    aliases=("divide", "true_divide"),
)

floor_divide = binary(
    "floor_divide(Tensor input, Tensor other) -> Tensor",
    "Quotient rounded down.",
    np.floor_divide,
    vjp={"input": no_gradient, "other": no_gradient},
    real_only=True,
    check=_check_divisor,
    raises="integers",
    low=0.55,
    dunders=("__floordiv__", "__rfloordiv__", "__ifloordiv__"),
)

remainder = binary(
    "remainder(Tensor input, Tensor other) -> Tensor",
    "``input - other * floor(input / other)``: the remainder with the sign of `other`.",
    np.remainder,
    vjp={
        "input": Vjp(lambda g, s: g),
        "other": Vjp(lambda g, s: -g * div.apply((s.input, s.other, "floor")), "input", "other"),
    },
    real_only=True,
    check=_check_divisor,
    raises="integers",
    low=0.55,
    dunders=("__mod__", "__rmod__", "__imod__"),
)

fmod = binary(
    "fmod(Tensor input, Tensor other) -> Tensor",
    "``input - other * trunc(input / other)``: the remainder with the sign of `input`.",
    np.fmod,
    vjp={
        "input": Vjp(lambda g, s: g),
        "other": Vjp(lambda g, s: -g * div.apply((s.input, s.other, "trunc")), "input", "other"),
    },
    real_only=True,
    check=_check_divisor,
    raises="integers",
    low=0.55,
)

reciprocal = unary(
    "reciprocal(Tensor input) -> Tensor",
    "``1 / input``.",
    np.reciprocal,
    vjp=Vjp(lambda g, s: -g * conj_of(s.out * s.out), "out"),
    low=0.5,
)

# --- powers ---------------------------------------------------------------------------------------


def _check_power(name: str, d: dtype, *args: Any) -> None:
    exponent = args[1]
    if (
        d.category <= _dtype.INTEGER
        and not isinstance(exponent, Spec)
        and np.any(np.less(exponent, 0))
    ):
        message = (
            f"[{name}] argument 'exponent': integers to negative integer powers are not allowed. "
            "Write x.float() first."
        )
        raise RuntimeError(message)


def _power_grad_base(g: Any, s: Any) -> Any:
    n = s.exponent
    if not hasattr(n, "dtype"):  # a number: the usual powers without a power
        if n == 0:
            return no_gradient.formula(g, s)
        return g * conj_of(s.input * 2 if n == 2 else s.input ** (n - 1) * n)
    # Where the exponent is 0 the power is 1 for every base, and 0 * base ** -1 may be NaN.
    return (g * conj_of(n * s.input ** (n - 1))).masked_fill(n == 0, 0)


def _power_grad_base_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    base, n = args
    if not isinstance(n, (int, float)) or n == 0:
        return None
    return g * (base * 2 if n == 2 else np.power(base, n - 1) * n)


def _power_grad_exponent(g: Any, s: Any) -> Any:
    base = s.input
    slope = g * conj_of(s.out * log_of(base))
    if not hasattr(base, "dtype") and base != 0:
        return slope
    # 0 ** n is constant for n > 0, where log(0) would make it NaN.
    return slope.masked_fill((s.exponent.real >= 0) & (base == 0), 0)


pow_ = binary(
    "pow(Tensor input, Tensor exponent) -> Tensor",
    "Power ``input ** exponent``; ``0 ** 0`` is 1.",
    np.power,
    vjp={
        "input": Vjp(_power_grad_base, "input", "exponent", arrays=_power_grad_base_array),
        "exponent": Vjp(_power_grad_exponent, "input", "exponent", "out"),
    },
    check=_check_power,
    raises="integers",
    low=0.3,
    dunders=("__pow__", "__rpow__", "__ipow__"),
)

square = unary(
    "square(Tensor input) -> Tensor",
    "Square ``input * input``.",
    np.square,
    vjp=Vjp(lambda g, s: g * conj_of(s.input * 2), "input"),
    to_float=False,
)

sqrt = unary(
    "sqrt(Tensor input) -> Tensor",
    "Square root; NaN for negative real numbers.",
    np.sqrt,
    vjp=Vjp(lambda g, s: g / conj_of(s.out * 2), "out"),
    low=0.2,
)

rsqrt = unary(
    "rsqrt(Tensor input) -> Tensor",
    "``1 / sqrt(input)``.",
    lambda x: np.reciprocal(np.sqrt(x)),
    vjp=Vjp(lambda g, s: g * conj_of(s.out**3 * -0.5), "out"),
    low=0.3,
)

# --- three operands -------------------------------------------------------------------------------

lerp = binary(
    "lerp(Tensor input, Tensor end, Tensor weight) -> Tensor",
    "Linear interpolation ``input + weight * (end - input)``.",
    lambda x, y, w: x + w * (y - x),
    vjp={
        "input": Vjp(lambda g, s: g * conj_of(1 - s.weight), "weight"),
        "end": Vjp(lambda g, s: g * conj_of(s.weight), "weight"),
        "weight": Vjp(lambda g, s: g * conj_of(s.end - s.input), "input", "end"),
    },
    check=no_bool,
)

addcmul = binary(
    "addcmul(Tensor input, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
    "``input + value * tensor1 * tensor2``.",
    lambda x, y, z, value: x + _scaled(y * z, value),
    vjp={
        "input": Vjp(lambda g, s: g),
        "tensor1": Vjp(lambda g, s: g * conj_of(s.tensor2 * s.value), "tensor2"),
        "tensor2": Vjp(lambda g, s: g * conj_of(s.tensor1 * s.value), "tensor1"),
    },
    check=lambda name, d, x, y, z, value: _check_scaled(name, d, x, y, value),
)

addcdiv = binary(
    "addcdiv(Tensor input, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
    "``input + value * tensor1 / tensor2``.",
    lambda x, y, z, value: x + _scaled(y / z, value),
    vjp={
        "input": Vjp(lambda g, s: g),
        "tensor1": Vjp(lambda g, s: g * conj_of(s.value / s.tensor2), "tensor2"),
        "tensor2": Vjp(
            lambda g, s: -g * conj_of(s.tensor1 * s.value / (s.tensor2 * s.tensor2)),
            "tensor1",
            "tensor2",
        ),
    },
    to_float=True,
    low=0.5,
)
