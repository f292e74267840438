"""Python numbers among the arguments that are new in each call.

A capture gets a `TracedNumber` for them. As an operand of a tensor it is an input of the graph, a
0-d tensor of the type that the number would be converted to; what Python computes of it is
computed again in each call, and what Python decides by it is a condition. Whatever else looks at
the number ends the capture, and the function is captured for each of its values instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tensorplay import _dtype
from tensorplay._dtype import dtype
from tensorplay._quiet import restore, silence
from tensorplay._tensor import Tensor, spec_of, wrap
from tensorplay.compiler.sources import user_line
from tensorplay.ops.elementwise import cast, result_type
from tensorplay.ops.operator import OPERATORS

if TYPE_CHECKING:
    from tensorplay.compiler.recorder import Recorder

__all__ = ["ANY_NUMBER", "Make", "NumberCondition", "Numbers", "TracedNumber", "number_tensor"]

#: How a number follows from the arguments of a call.
Make = Callable[[Sequence[Any]], Any]

#: Whole numbers beyond the first are not held by float64, beyond the second by no type with a sign.
_EXACT: Final = 1 << 53
_LARGEST: Final = (1 << 63) - 1
#: Operators whose formulas compute the same with a number and with a 0-d tensor, of integers too.
_WHOLE: Final = frozenset({"add", "sub", "mul"})
#: The same of floating numbers.
_OPERANDS: Final = _WHOLE | {
    *("div", "maximum", "minimum", "where", "eq", "ne", "lt", "le", "gt", "ge"),
}


class _AnyNumber:
    """Stands for the number in what tells calls apart."""

    def __str__(self) -> str:
        return "any number"


ANY_NUMBER: Final = _AnyNumber()

#: What Python decided by numbers: a function of the arguments, what it gave, and in which line.
NumberCondition = tuple[Make, Any, "str | None"]


class Numbers:
    """The numbers of one capture.

    Attributes
    ----------
    inputs
        By the identity of the tensors that the graph takes: how they are made in a call.
    conditions
        What Python decided by numbers.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lifted: dict[tuple[int, dtype], Tensor] = {}
        self._kept: list[TracedNumber] = []  # so that identities stay what they are
        self.inputs: dict[int, tuple[Make, type, dtype]] = {}
        self.conditions: list[NumberCondition] = []

    def refuse(self, what: str) -> Exception:
        """Return the error for something that needs to know the number."""
        return self._recorder.refuse(f"{what} a number that is new in each call")

    def refuse_in(self, values: Any) -> None:
        """Refuse numbers among values that would become part of the graph."""
        if holds_number(values):
            raise self.refuse("hands on")

    def as_tensors(self, primitive: Any, values: list[Any]) -> tuple[Any, list[Any]]:
        """Return a call with tensors in place of numbers, of which it has perhaps none."""
        if not any(type(v) is TracedNumber or v.__class__ in {list, tuple} for v in values):
            return primitive, values
        given = dict(zip(primitive.names, values, strict=True))
        name = primitive.name
        scale = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}.get(name)
        if scale is not None and type(given[scale]) is TracedNumber:
            term, factor = given.get("other"), given[scale]
            if name.startswith("addc"):
                part = "mul" if name == "addcmul" else "div"
                rounding = (None,) if part == "div" else ()
                term = OPERATORS[part].apply((given["tensor1"], given["tensor2"], *rounding))
            if not isinstance(term, Tensor) or term._dtype is not given["input"].dtype:
                raise self.refuse(f"scales by {name}() with")
            scaled = OPERATORS["mul"].apply((term, factor))
            primitive = OPERATORS["sub" if name == "sub" else "add"]
            values = [given["input"], scaled, 1]
            given = dict(zip(primitive.names, values, strict=True))
        if not holds_number(values):
            return primitive, values
        if primitive.name not in _OPERANDS or given.get("rounding_mode") is not None:
            raise self.refuse(f"calls {primitive.name.strip('_')}() with")
        operands = [given["input"], given["other"]]
        others = [v for k, v in given.items() if k not in {"input", "other"}]
        if not any(isinstance(v, Tensor) for v in operands) or holds_number(others):
            raise self.refuse(f"calls {primitive.name}() with nothing but")
        kind = result_type(*[
            spec_of(v) if isinstance(v, Tensor) else v._value if type(v) is TracedNumber else v
            for v in operands
        ])  # fmt: skip
        whole = kind.category == _dtype.INTEGER and primitive.name in _WHOLE
        if kind not in {_dtype.float32, _dtype.float64} and not whole:
            raise self.refuse(f"calls {primitive.name}() in {kind.name} with")
        return primitive, [self._tensor(v, kind) if type(v) is TracedNumber else v for v in values]

    def _tensor(self, number: TracedNumber, kind: dtype) -> Tensor:
        """Return what stands for a number as an operand of a type."""
        found = self._lifted.get((id(number), kind))
        if found is None:
            tensor = number_tensor(number._value, type(number._value), kind)
            if tensor is None:
                raise self.refuse(f"computes in {kind.name} with")
            found = self._recorder.add_input(tensor, "number")
            self._lifted[id(number), kind] = found
            self._kept.append(number)
            self.inputs[id(tensor)] = number._make, type(number._value), kind
        return found


def number_tensor(value: Any, usual: type[Any], kind: dtype) -> Tensor | None:
    """Return a number as a 0-d tensor; None if it is of another type than usual, or too large."""
    if type(value) is not usual:
        return None
    if type(value) is int and abs(value) > (_EXACT if kind.is_floating_point else _LARGEST):
        return None
    token = silence()
    try:
        return wrap(cast(value, kind), kind)
    except OverflowError:
        return None
    finally:
        restore(token)


def holds_number(value: Any) -> bool:
    """Tell whether a `TracedNumber` is among arguments."""
    kind = type(value)
    if kind is TracedNumber:
        return True
    if kind is dict:
        return any(map(holds_number, value.values()))
    if kind is slice:
        return holds_number((value.start, value.stop, value.step))
    return isinstance(value, (list, tuple)) and any(map(holds_number, value))


class TracedNumber:
    """A number of a captured function; type checks take it for the ``int`` or ``float`` it is."""

    __slots__ = ("_make", "_numbers", "_value")

    __array_ufunc__ = None

    def __init__(self, numbers: Numbers, value: Any, make: Make) -> None:
        object.__setattr__(self, "_numbers", numbers)
        object.__setattr__(self, "_value", value)
        object.__setattr__(self, "_make", make)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # which an int or float lacks too, or it is defined here
        raise self._numbers.refuse(f"reads .{name} of")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)

    def _compute(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Return what a function of numbers gives, which each call computes anew."""
        values: list[Any] = []
        makes: list[Make | None] = []
        for x in operands:
            if type(x) is TracedNumber:
                values.append(x._value)
                makes.append(x._make)
            elif type(x) in {int, float, bool}:
                values.append(x)
                makes.append(None)
            else:
                return NotImplemented  # a tensor answers
        found = function(*values)

        def make(leaves: Sequence[Any]) -> Any:
            pairs = zip(values, makes, strict=True)
            return function(*[v if m is None else m(leaves) for v, m in pairs])

        if type(found) is bool:
            self._numbers.conditions.append((make, found, user_line()))
            return found
        if type(found) not in {int, float}:
            raise self._numbers.refuse("makes a complex number of")
        return TracedNumber(self._numbers, found, make)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._numbers.refuse("looks at")

    __hash__ = __index__ = __int__ = __float__ = __complex__ = _refuse
    __str__ = __repr__ = __format__ = _refuse
    __round__ = __trunc__ = __floor__ = __ceil__ = __divmod__ = __rdivmod__ = _refuse
    __array__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse


def _forward(function: Callable[..., Any]) -> Any:
    def special(self: TracedNumber, *others: Any) -> Any:
        return self._compute(function, (self, *others))

    return special


def _backward(function: Callable[..., Any]) -> Any:
    def special(self: TracedNumber, other: Any) -> Any:
        return self._compute(function, (other, self))

    return special


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(TracedNumber, f"__{_name}__", _forward(getattr(operator, _name)))
    setattr(TracedNumber, f"__r{_name}__", _backward(getattr(operator, _name)))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs"):
    setattr(TracedNumber, f"__{_name}__", _forward(getattr(operator, _name)))
TracedNumber.__bool__ = _forward(operator.truth)  # type: ignore[attr-defined]
