"""Derivative formulas on NumPy arrays, made of those on tensors.

A formula in arithmetic and elementwise functions, such as ``g * (1 - s.out * s.out)``, does the
same to arrays without the cost of a tensor for every step. It is run once on symbols that write
down what happens to them, and what they wrote becomes a program of the extension (`ArrayProgram`),
or Python where there is none. A formula that asks for a shape, compares, or calls something else
gives no rule, and goes on running on tensors.
"""

from __future__ import annotations

import linecache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from tensorplay import _dtype, _native
from tensorplay.ops.node import FIRST_IS_NUMBER, SECOND_IS_NUMBER, TENSOR
from tensorplay.ops.operator import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorplay.ops.node import Vjp
    from tensorplay.ops.primitive import Primitive

__all__ = ["array_rules"]


class _UntraceableError(Exception):
    """The formula does something that symbols do not know."""


# What NumPy calls the signs, and the kinds of operands as the extension has them.
_SIGNS: Final = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide}
_GRADIENT, _OUT, _ARGUMENT, _CONSTANT, _STEP = range(5)


# Makes a rule of steps in the extension, None where it is not there.
_program: Final[Any] = None if _native.core is None else _native.core.ArrayProgram


class _Trace:
    """What symbols wrote down: one assignment per step, and the functions that these call.

    `steps` is the same for the extension: NumPy's function, and its operands by kind and number.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.functions: dict[str, Any] = {}
        self.constants: list[Any] = []
        self.steps: list[tuple[Any, tuple[tuple[int, int], ...]]] = []
        self.of_numbers = False  # whether a step has numbers only, which NumPy gives a type

    def constant(self, number: Any) -> str:
        """Return the name of a number, which the rule has as an array: NumPy is faster with it."""
        self.constants.append(number)
        return f"c{len(self.constants) - 1}"

    def step(self, text: str, function: Any, *names: str) -> _Symbol:
        name = f"t{len(self.lines)}"
        self.lines.append(f"    {name} = {text}\n")
        self.steps.append((function, tuple(_numbered(n) for n in names)))
        return _Symbol(self, name)

    def call(self, operator: str, *operands: Any) -> _Symbol:
        found: Any = OPERATORS.get(operator)
        ufunc = getattr(found, "ufunc", None)
        if ufunc is None:
            raise _UntraceableError(operator)
        self.functions[operator] = ufunc
        names = [_text(self, x) for x in operands]
        return self.step(f"{operator}({', '.join(names)})", ufunc, *names)


def _numbered(name: str) -> tuple[int, int]:
    """Return an operand, which is known by its name, as the extension has it."""
    if name == "g":
        return _GRADIENT, 0
    if name == "out":
        return _OUT, 0
    if name.startswith("args["):
        return _ARGUMENT, int(name[5:-1])
    return _CONSTANT if name[0] == "c" else _STEP, int(name[1:])


def _text(trace: _Trace, operand: Any) -> str:
    if isinstance(operand, _Number):
        return operand.name
    if type(operand) is int or type(operand) is float:
        return trace.constant(operand)
    raise _UntraceableError(type(operand).__name__)


def _refuse(*_: Any) -> NoReturn:
    raise _UntraceableError


class _Number:
    """Stands for a number among the operands."""

    __array_ufunc__ = None

    def __init__(self, trace: _Trace, name: str) -> None:
        self.trace = trace
        self.name = name

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __index__ = __float__ = __int__ = _refuse

    def _infix(self, sign: str, left: Any, right: Any) -> Any:
        first, second = _text(self.trace, left), _text(self.trace, right)
        step = self.trace.step(f"{first} {sign} {second}", _SIGNS[sign], first, second)
        if isinstance(left, _Symbol) or isinstance(right, _Symbol):
            return step
        self.trace.of_numbers = True
        return _Number(self.trace, step.name)

    def __add__(self, other: Any) -> Any:
        return self._infix("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._infix("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._infix("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._infix("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._infix("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._infix("*", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._infix("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._infix("/", other, self)


class _Symbol(_Number):
    """Stands for an array of floats."""

    dtype = _dtype.float64  # formulas ask whether it is complex

    def __neg__(self) -> _Symbol:
        return self.trace.step(f"-{self.name}", np.negative, self.name)

    def __pow__(self, other: Any) -> _Symbol:
        return self.trace.call("pow", self, other)

    def __rpow__(self, other: Any) -> _Symbol:
        return self.trace.call("pow", other, self)

    def __getattr__(self, name: str) -> Callable[..., _Symbol]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *operands: self.trace.call(name, self, *operands)


def _is_short(trace: _Trace) -> bool:
    """Tell whether the extension takes all steps: NumPy's own functions of one or two operands."""
    return not trace.of_numbers and all(
        isinstance(f, np.ufunc) and f.nin == len(x) <= 2 for f, x in trace.steps
    )


def _traced(
    primitive: Primitive, argument: str, rule: Vjp, number: int | None, d: _dtype.dtype
) -> Any:
    """Return the rule that a formula makes for arrays of type `d`, None if it makes none.

    `number` is the position of the argument that is a number.
    """
    trace = _Trace()
    saved = SimpleNamespace(out=_Symbol(trace, "out"))
    for position, kind, _ in primitive.plan:
        name = primitive.names[position]
        if kind == TENSOR:
            stands = _Number if position == number else _Symbol
            value: Any = stands(trace, f"args[{position}]")
        else:
            value = primitive._defaults[name]
        setattr(saved, name, value)
    try:
        result = rule.formula(_Symbol(trace, "g"), saved)
    except (_UntraceableError, TypeError, AttributeError):
        return None
    if not isinstance(result, _Symbol):
        return None
    constants = {f"c{n}": np.asarray(c, d.numpy) for n, c in enumerate(trace.constants)}
    if _program is not None and _is_short(trace):
        return _program(tuple(trace.steps), tuple(constants.values()), _numbered(result.name))
    source = f"def rule(g, args, shapes, out):\n{''.join(trace.lines)}    return {result.name}\n"
    filename = f"<tensorplay gradient of {argument} of {primitive.name}, number at {number}>"
    names: dict[str, Any] = {**trace.functions, **constants}
    exec(compile(source, filename, "exec"), names)  # noqa: S102 - text that symbols wrote
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return names["rule"]


def array_rules(primitive: Primitive, d: _dtype.dtype) -> list[list[Any]]:
    """Return rules for arrays of type `d`: a list for each way to pass numbers.

    The ways are: no operand is one, the first, the second. A list has a rule, or None, for every
    tensor argument.
    """
    rules = primitive.vjp or {}
    tensors = [primitive.names[i] for i, kind, _ in primitive.plan if kind == TENSOR]
    found: list[list[Any]] = []
    for pattern in (0, FIRST_IS_NUMBER, SECOND_IS_NUMBER):
        row = []
        for name in tensors:
            rule = rules.get(name)
            if rule is None or rule.arrays is not None:
                row.append(None if rule is None else rule.arrays)
            elif primitive.ufunc is None:
                row.append(None)
            else:
                row.append(_traced(primitive, name, rule, pattern - 1 if pattern else None, d))
        found.append(row)
    return found
