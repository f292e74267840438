"""What the operators compute, as values of a kernel.

`lower` turns one call into values of a `Loop`; it raises `NotFusable` with the reason where the
kernel could not give what the operator gives, which then runs by itself. Operands are converted to
the type of the result first, those of comparisons to what `tensorplay.result_type` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from tensorplay import _dtype
from tensorplay._tensor import Spec, contiguous_strides
from tensorplay.compiler.cpp.ir import TYPES, ElementType, Loop, Value
from tensorplay.ops.elementwise import result_type

__all__ = ["ALONG_ROW", "REDUCING", "NotFusable", "element_type", "is_elementwise", "lower"]


class NotFusable(Exception):  # noqa: N818 - a reason, not an error
    """Why a call is not part of a kernel."""


def element_type(d: Any) -> ElementType:
    """Return a type of the runtime as kernels know it."""
    found = TYPES.get(d.name)
    if found is None:
        reason = f"type {d.name} is not one that kernels compute with"
        raise NotFusable(reason)
    return found


# --- elementwise functions ------------------------------------------------------------------------

#: Functions of floating numbers whose arguments are tensors or numbers.
_FLOATING: Final = {
    "reciprocal": "1 / {0}", "sqrt": "sqrt({0})", "rsqrt": "1 / sqrt({0})",
    "floor": "floor({0})", "ceil": "ceil({0})", "trunc": "trunc({0})",
    "frac": "{0} - trunc({0})", "sign": "sign({0})",
    "exp": "exp({0})", "exp2": "exp2({0})", "expm1": "expm1({0})", "log": "log({0})",
    "log2": "log2({0})", "log10": "log10({0})", "log1p": "log1p({0})",
    "sin": "sin({0})", "cos": "cos({0})", "tan": "tan({0})", "asin": "asin({0})",
    "acos": "acos({0})", "atan": "atan({0})", "sinh": "sinh({0})", "cosh": "cosh({0})",
    "tanh": "tanh({0})", "asinh": "asinh({0})", "acosh": "acosh({0})", "atanh": "atanh({0})",
    "erf": "erf({0})", "erfc": "erfc({0})", "sigmoid": "sigmoid({0})",
    "atan2": "atan2({0}, {1})", "hypot": "hypot({0}, {1})",
    "copysign": "copysign({0}, {1})", "fmax": "fmax({0}, {1})", "fmin": "fmin({0}, {1})",
    "lerp": "{0} + {2} * ({1} - {0})",
}  # fmt: skip
_CHEAP: Final = frozenset(
    ("reciprocal", "sqrt", "rsqrt", "floor", "ceil", "trunc", "frac", "sign", "copysign", "fmax",
     "fmin", "lerp")
)  # fmt: skip
#: Functions of floating numbers and integers.
_NUMBERS: Final = {
    "mul": "{0} * {1}", "neg": "-{0}",
    "maximum": "maximum({0}, {1})", "minimum": "minimum({0}, {1})", "abs": "absolute({0})",
}  # fmt: skip
_BITS: Final = {
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}",
    "bitwise_not": "~{0}",
}  # fmt: skip
_COMPARISONS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC: Final = {
    "logical_and": "{0} & {1}", "logical_or": "{0} | {1}", "logical_xor": "{0} ^ {1}",
    "logical_not": "~{0}",
}  # fmt: skip
_CLASSES: Final = {
    "isnan": "is({0} != {0})", "isfinite": "isfinite({0})",
    "isinf": "~isfinite({0}) & is({0} == {0})",
}  # fmt: skip

#: Reductions with the arguments `input`, `dim`, `keepdim`.
REDUCING: Final = frozenset({"sum", "mean", "amax", "amin", "prod", "any", "all", "var", "std",
                             "logsumexp"})  # fmt: skip
#: Functions of all elements along one dimension that keep the shape.
ALONG_ROW: Final = frozenset({"softmax", "log_softmax"})


class _Call:
    """One call: its operator's name, arguments by name, and the specs of tensors."""

    def __init__(
        self, loop: Loop, name: str, args: dict[str, Any], specs: dict[str, Spec], result: Spec
    ) -> None:
        self.loop, self.name, self.args, self.specs, self.result = loop, name, args, specs, result

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def at(self, name: str, kind: ElementType) -> Value:
        """Return an argument, a value or a number, as a value of type `kind`."""
        value = self.args[name]
        if isinstance(value, Value):
            return convert(self.loop, value, kind)
        if not isinstance(value, (int, float)):
            reason = f"argument {name!r} is {type(value).__name__}"
            raise NotFusable(reason)
        if isinstance(value, float) and not kind.is_floating:
            reason = f"argument {name!r} is a floating number beside integers"
            raise NotFusable(reason)
        return self.loop.number(value, kind)

    def number(self, name: str, kind: ElementType) -> Value:
        return self.loop.number(float(self.args[name]), kind)

    def make(self, text: str, kind: ElementType, *args: Value, heavy: bool = False) -> Value:
        return self.loop.expression(text, kind, *args, name=self.name.strip("_"), heavy=heavy)

    @property
    def kind(self) -> ElementType:
        return element_type(self.result.dtype)

    def operand_kind(self, *names: str) -> ElementType:
        """Return the type that operands are promoted to."""
        operands = [self.specs.get(name, self.args[name]) for name in names]
        d = result_type(*operands)
        if d.category == _dtype.INTEGER:
            for operand in operands:
                if isinstance(operand, int) and not _held(operand, d):
                    reason = f"the number {operand} is beyond {d.name}"
                    raise NotFusable(reason)
        return element_type(d)


def _held(number: int, d: Any) -> bool:
    info = _dtype.iinfo(d)
    return bool(info.min <= number <= info.max)


def convert(loop: Loop, value: Value, kind: ElementType) -> Value:
    """Return a value in another type."""
    if value.type is kind:
        return value
    if kind.is_bool:
        return loop.expression("to_mask({0})", kind, value, name="truth")
    if value.type.is_bool:
        return loop.expression(f"from_mask<{kind.vector}>({{0}})", kind, value, name="number")
    if value.type.is_floating and not kind.is_floating and kind.vector not in {"i32", "i64"}:
        reason = f"the conversion from {value.type.name} to {kind.name} is the C library's"
        raise NotFusable(reason)
    return loop.expression(f"cast<{kind.vector}>({{0}})", kind, value, name="as")


def is_elementwise(name: str) -> bool:
    """Tell whether an operator acts on each element."""
    return name in _SIMPLE or name in _RULES


def lower(
    loop: Loop, name: str, args: dict[str, Any], specs: dict[str, Spec], result: Spec
) -> Value:
    """Return the value of a call of the operator `name`.

    Parameters
    ----------
    loop
        The kernel.
    name
        Of the operator.
    args
        All arguments by name, a `Value` for each tensor.
    specs
        Shape and type of the tensors among them.
    result
        Shape and type of the result.

    Raises
    ------
    NotFusable
        The kernel would not give what the operator gives.
    """
    call = _Call(loop, name, args, specs, result)
    if name in _SIMPLE:
        return _simple(call)
    rule = _RULES.get(name) or _ROW_RULES.get(name)
    if rule is None:
        reason = f"no C++ is known for {name}"
        raise NotFusable(reason)
    return rule(call)


def _floats_only(call: _Call) -> ElementType:
    kind = call.kind
    if not kind.is_floating:
        reason = f"{call.name} gives {kind.name} here; kernels do it for float32 and float64"
        raise NotFusable(reason)
    return kind


def _simple(call: _Call) -> Value:
    name = call.name
    names = _SIMPLE[name]
    if name in _COMPARISONS:
        return _comparison(call)
    if name in _CLASSES:
        kind = call.operand_kind("input")
        if not kind.is_floating:
            reason = f"{name} of {kind.name}"
            raise NotFusable(reason)
        return call.make(_CLASSES[name], TYPES["bool"], call.at("input", kind))
    if name in _LOGIC:
        return call.make(_LOGIC[name], TYPES["bool"], *(_truth(call, n) for n in names))
    kind = call.kind
    if name in _BITS:
        call.operand_kind(*names)
        return call.make(_BITS[name], kind, *(call.at(n, kind) for n in names))
    if name in _FLOATING:
        _floats_only(call)
        text = _FLOATING[name]
    else:
        if kind.is_bool:
            reason = f"{name} of truth values"
            raise NotFusable(reason)
        if not kind.is_floating and name in {"maximum", "minimum"}:
            call.operand_kind(*names)
        text = _NUMBERS[name]
    heavy = name in _FLOATING and name not in _CHEAP
    return call.make(text, kind, *(call.at(n, kind) for n in names), heavy=heavy)


def _truth(call: _Call, name: str) -> Value:
    value = call[name]
    if isinstance(value, Value):
        return convert(call.loop, value, TYPES["bool"])
    return call.loop.number(float(value != 0), TYPES["bool"])


def _comparison(call: _Call) -> Value:
    kind = call.operand_kind("input", "other")
    truth = TYPES["bool"]
    operands = call.at("input", kind), call.at("other", kind)
    if not kind.is_bool:
        return call.make(f"is({{0}} {_COMPARISONS[call.name]} {{1}})", truth, *operands)
    if call.name not in {"eq", "ne"}:
        reason = f"{call.name} of truth values"
        raise NotFusable(reason)
    return call.make("~({0} ^ {1})" if call.name == "eq" else "{0} ^ {1}", truth, *operands)


# --- elementwise functions with options -----------------------------------------------------------


def _add(call: _Call) -> Value:
    kind, sign = call.kind, "+" if call.name == "add" else "-"
    if kind.is_bool:
        reason = f"{call.name} of truth values"
        raise NotFusable(reason)
    x, y = call.at("input", kind), call.at("other", kind)
    alpha = call["alpha"]
    if alpha != 1:
        y = call.make("{0} * {1}", kind, y, call.at("alpha", kind))
    return call.make(f"{{0}} {sign} {{1}}", kind, x, y)


def _scaled(call: _Call, kind: ElementType, text: str) -> Value:
    product = call.make(text, kind, call.at("tensor1", kind), call.at("tensor2", kind))
    if call["value"] != 1:
        product = call.make("{0} * {1}", kind, product, call.at("value", kind))
    return call.make("{0} + {1}", kind, call.at("input", kind), product)


def _addcmul(call: _Call) -> Value:
    if call.kind.is_bool:
        reason = "addcmul of truth values"
        raise NotFusable(reason)
    return _scaled(call, call.kind, "{0} * {1}")


def _addcdiv(call: _Call) -> Value:
    return _scaled(call, _floats_only(call), "{0} / {1}")


def _div(call: _Call) -> Value:
    kind = _floats_only(call)
    mode = call["rounding_mode"]
    if mode not in (None, "trunc"):
        reason = f"division rounded by {mode!r}"
        raise NotFusable(reason)
    quotient = call.make("{0} / {1}", kind, call.at("input", kind), call.at("other", kind))
    return quotient if mode is None else call.make("trunc({0})", kind, quotient)


def _pow(call: _Call) -> Value:
    kind = _floats_only(call)
    x, n = call.at("input", kind), call["exponent"]
    if isinstance(n, (int, float)) and n in _POWERS:
        return call.make(_POWERS[n], kind, x)
    return call.make("pow({0}, {1})", kind, x, call.at("exponent", kind), heavy=True)


_POWERS: Final[dict[float, str]] = {1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}", -1: "1 / {0}"}


def _cast(call: _Call) -> Value:
    return convert(call.loop, call["input"], call.kind)


def _same(call: _Call) -> Value:
    value: Value = call["input"]
    return value


def _row_major(call: _Call) -> Value:
    spec = call.specs["input"]
    usual = contiguous_strides(spec.shape)
    strides = usual if spec.strides is None else spec.strides
    if any(n > 1 and s != u for n, s, u in zip(spec.shape, strides, usual, strict=True)):
        reason = "results of kernels are laid out as their arguments are"
        raise NotFusable(reason)
    return _same(call)


def _where(call: _Call) -> Value:
    if call["input"] is None or call["other"] is None:
        reason = "where of a condition alone"
        raise NotFusable(reason)
    kind = call.kind
    call.operand_kind("input", "other")
    return _choice(call, call["condition"], call.at("input", kind), call.at("other", kind))


def _choice(call: _Call, condition: Any, x: Value, y: Value) -> Value:
    if not isinstance(condition, Value) or not condition.type.is_bool:
        reason = "the condition is no tensor of truth values"
        raise NotFusable(reason)
    choose = "select_mask" if x.type.is_bool else "select"
    return call.make(f"{choose}({{0}}, {{1}}, {{2}})", x.type, condition, x, y)


def _masked_fill(call: _Call) -> Value:
    kind = call.kind
    value = call["value"]
    if isinstance(value, int) and call.result.dtype.category == _dtype.INTEGER:
        call.operand_kind("input", "value")
    filled = call.at("value", kind)
    return _choice(call, call["mask"], filled, call.at("input", kind))


def _clamp(call: _Call) -> Value:
    kind = call.kind
    names = [n for n in ("min", "max") if call[n] is not None]
    call.operand_kind("input", *names)
    value = call.at("input", kind)
    if kind.is_bool:
        reason = "clamp of truth values"
        raise NotFusable(reason)
    for name, text in (("min", "maximum({0}, {1})"), ("max", "minimum({0}, {1})")):
        if call[name] is not None:
            value = call.make(text, kind, value, call.at(name, kind))
    return value


def _relu(call: _Call) -> Value:
    kind = call.kind
    return call.make("maximum({0}, {1})", kind, call.at("input", kind), call.loop.number(0, kind))


def _gelu(call: _Call) -> Value:
    kind = _floats_only(call)
    x = call.at("input", kind)

    def times(a: Value, b: Value) -> Value:
        return call.make("{0} * {1}", kind, a, b)

    def number(n: float) -> Value:
        return call.loop.number(n, kind)

    if call["approximate"] == "none":
        scaled = times(x, number(-math.sqrt(0.5)))
        normal = times(call.make("erfc({0})", kind, scaled, heavy=True), number(0.5))
        return times(x, normal)
    # In the steps of its derivative, which compute the same hyperbolic tangent.
    scale = math.sqrt(2 / math.pi)
    cubic = times(times(x, x), number(scale * 0.044715))
    inner = times(call.make("{0} + {1}", kind, cubic, number(scale)), x)
    t = call.make("tanh({0})", kind, inner, heavy=True)
    return times(times(x, number(0.5)), call.make("{0} + {1}", kind, t, number(1.0)))


def _square(call: _Call) -> Value:
    kind = call.kind
    if kind.is_bool:
        reason = "square of truth values"
        raise NotFusable(reason)
    x = call.at("input", kind)
    return call.make("{0} * {1}", kind, x, x)


def _silu(call: _Call) -> Value:
    kind = _floats_only(call)
    x = call.at("input", kind)
    return call.make("{0} * {1}", kind, x, call.make("sigmoid({0})", kind, x, heavy=True))


def _softplus(call: _Call) -> Value:
    kind = _floats_only(call)
    x, beta = call.at("input", kind), call.number("beta", kind)
    scaled = call.make("{0} * {1}", kind, x, beta)
    large = call.make("is({0} > {1})", TYPES["bool"], scaled, call.number("threshold", kind))
    soft = call.make(
        "(maximum({0}, {2}) + log1p(exp(-absolute({0})))) / {1}",
        kind, scaled, beta, call.loop.number(0, kind), heavy=True,
    )  # fmt: skip
    return _choice(call, large, x, soft)


def _leaky_relu(call: _Call) -> Value:
    kind = call.kind
    x = call.at("input", _floats_only(call))
    slope = call.number("negative_slope", kind)
    return call.make("select(is({0} > 0), {0}, {0} * {1})", kind, x, slope)


def _elu(call: _Call) -> Value:
    kind = _floats_only(call)
    x, alpha = call.at("input", kind), call.number("alpha", kind)
    zero = call.loop.number(0, kind)
    return call.make(
        "select(is({0} > 0), {0}, expm1(minimum({0}, {2})) * {1})", kind, x, alpha, zero, heavy=True
    )


def _hardtanh(call: _Call) -> Value:
    kind = _floats_only(call)
    if call["min_val"] > call["max_val"]:
        reason = "limits that hardtanh refuses"
        raise NotFusable(reason)
    low, high = call.number("min_val", kind), call.number("max_val", kind)
    return call.make("minimum(maximum({0}, {1}), {2})", kind, call.at("input", kind), low, high)


def _round(call: _Call) -> Value:
    kind = _floats_only(call)
    if call["decimals"]:
        reason = "round to digits after the point"
        raise NotFusable(reason)
    return call.make("round_even({0})", kind, call.at("input", kind))


def _xlogy(call: _Call) -> Value:
    kind = _floats_only(call)
    x, y = call.at("input", kind), call.at("other", kind)
    return call.make(
        "select(is({0} == 0) & is({1} == {1}), {2}, {0} * log({1}))", kind, x, y,
        call.loop.number(0, kind), heavy=True,
    )  # fmt: skip


def _logits_loss(call: _Call) -> Value:
    kind = _floats_only(call)
    x, y, zero = call.at("input", kind), call.at("target", kind), call.loop.number(0, kind)
    return call.make(
        "maximum({0}, {2}) - {0} * {1} + log1p(exp(-absolute({0})))", kind, x, y, zero, heavy=True
    )


# --- rows -----------------------------------------------------------------------------------------


def _working(call: _Call) -> ElementType:
    """Return the type that a reduction is computed in, that of its result."""
    return call.kind


def _sum(call: _Call) -> Value:
    kind = _working(call)
    if kind.is_bool:
        reason = f"{call.name} in truth values"
        raise NotFusable(reason)
    return call.loop.reduce(call.name, convert(call.loop, call["input"], kind), call.name)


def _mean(call: _Call) -> Value:
    kind = _floats_only(call)
    total = call.loop.reduce("sum", convert(call.loop, call["input"], kind), "sum")
    return call.make("{0} / {1}", kind, total, call.loop.count(kind))


def _extreme(call: _Call) -> Value:
    kind = call.kind
    if kind.is_bool:
        reason = f"{call.name} of truth values"
        raise NotFusable(reason)
    return call.loop.reduce(call.name, call["input"], call.name)


def _truths(call: _Call) -> Value:
    return call.loop.reduce(call.name, convert(call.loop, call["input"], TYPES["bool"]), call.name)


def _var(call: _Call) -> Value:
    kind = _floats_only(call)
    loop = call.loop
    x, count = convert(loop, call["input"], kind), loop.count(kind)
    centre = call.make("{0} / {1}", kind, loop.reduce("sum", x, "sum"), count)
    distance = call.make("{0} - {1}", kind, x, centre)
    squares = loop.reduce("sum", call.make("{0} * {0}", kind, distance), "sum")
    correction = loop.number(float(call["correction"]), kind)
    variance = call.make("{0} / maximum({1} - {2}, {1} * 0)", kind, squares, count, correction)
    return variance if call.name == "var" else call.make("sqrt({0})", kind, variance)


def _logsumexp(call: _Call) -> Value:
    kind = _floats_only(call)
    loop = call.loop
    x = convert(loop, call["input"], kind)
    top = loop.reduce("amax", x, "amax")
    top = call.make("select(isfinite({0}), {0}, {1})", kind, top, loop.number(0, kind))
    e = call.make("exp({0} - {1})", kind, x, top, heavy=True)
    return call.make("log({0}) + {1}", kind, loop.reduce("sum", e, "sum"), top)


def _softmax(call: _Call) -> Value:
    kind = _floats_only(call)
    loop = call.loop
    x = convert(loop, call["input"], kind)
    top = loop.reduce("amax", x, "amax")
    if call.name == "log_softmax":
        y = call.make("{0} - {1}", kind, x, top)
        e = call.make("exp({0})", kind, y)
        return call.make("{0} - {1}", kind, y, call.make("log({0})", kind,
                                                        loop.reduce("sum", e, "sum")))  # fmt: skip
    e = call.make("exp({0} - {1})", kind, x, top, heavy=True)
    # The sum is at least 1, that of the largest element: its reciprocal neither overflows nor is
    # it lost, and one multiplication per element is cheaper than a division.
    return call.make("{0} * {1}", kind, e, call.make("1 / {0}", kind, loop.reduce("sum", e, "sum")))


_Rule = Callable[[_Call], Value]
_RULES: Final[dict[str, _Rule]] = {
    "add": _add, "sub": _add, "addcmul": _addcmul, "addcdiv": _addcdiv, "div": _div, "pow": _pow,
    "_cast": _cast, "clone": _same, "_contiguous": _row_major, "where": _where,
    "masked_fill": _masked_fill, "clamp": _clamp, "relu": _relu, "gelu": _gelu,
    "softplus": _softplus, "square": _square, "silu": _silu, "leaky_relu": _leaky_relu,
    "elu": _elu, "hardtanh": _hardtanh,
    "round": _round, "xlogy": _xlogy, "_logits_loss": _logits_loss,
}  # fmt: skip
_ROW_RULES: Final[dict[str, _Rule]] = {
    "sum": _sum, "prod": _sum, "mean": _mean, "amax": _extreme, "amin": _extreme, "any": _truths,
    "all": _truths, "var": _var, "std": _var, "logsumexp": _logsumexp, "softmax": _softmax,
    "log_softmax": _softmax,
}  # fmt: skip


def _operands() -> dict[str, Sequence[str]]:
    two = ("input", "other")
    names: dict[str, Sequence[str]] = dict.fromkeys((*_FLOATING, *_NUMBERS), ("input",))
    names |= dict.fromkeys((*_COMPARISONS, *_LOGIC, *_BITS, *_CLASSES), two)
    names |= dict.fromkeys((*_CLASSES, "logical_not", "bitwise_not"), ("input",))
    names |= dict.fromkeys(
        ("mul", "maximum", "minimum", "atan2", "hypot", "copysign", "fmax", "fmin"), two
    )
    names["lerp"] = ("input", "end", "weight")
    return {name: n for name, n in names.items() if name not in _RULES}


#: The operators whose arguments are all operands, and the names of these.
_SIMPLE: Final = _operands()
