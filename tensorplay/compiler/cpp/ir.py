"""What a fused kernel computes: values over the elements of a row, and reductions over it.

A `Loop` is one kernel. Its space has outer dimensions, one row for each of their elements, and
inner ones, the row; a kernel without reductions may take all dimensions as the row. A value either
varies along the row (`varies`) or is one number per row. `level` counts the reductions that must be
done before it is known: values of level 0 need one sweep over the row, those of level 1 a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

__all__ = ["TYPES", "ElementType", "Loop", "Operand", "Value"]


@dataclass(frozen=True)
class ElementType:
    """An element type in C++.

    Parameters
    ----------
    name
        Of the runtime's type, such as ``float32``.
    vector
        Type of LANES of them in registers.
    memory
        Type of one in memory.
    size
        In bytes.
    """

    name: str
    vector: str
    memory: str
    size: int

    @property
    def is_floating(self) -> bool:
        """True for float32 and float64."""
        return self.vector in {"f32", "f64"}

    @property
    def is_bool(self) -> bool:
        """True for truth values."""
        return self.vector == "mask"


#: The types that kernels compute with, by the runtime's names.
TYPES: Final = {
    t.name: t
    for t in (
        ElementType("float32", "f32", "float", 4),
        ElementType("float64", "f64", "double", 8),
        ElementType("int8", "i8", "int8_t", 1),
        ElementType("int16", "i16", "int16_t", 2),
        ElementType("int32", "i32", "int32_t", 4),
        ElementType("int64", "i64", "int64_t", 8),
        ElementType("uint8", "u8", "uint8_t", 1),
        ElementType("uint16", "u16", "uint16_t", 2),
        ElementType("uint32", "u32", "uint32_t", 4),
        ElementType("uint64", "u64", "uint64_t", 8),
        ElementType("bool", "mask", "uint8_t", 1),
    )
}


@dataclass(eq=False)
class Value:
    """One value of a kernel.

    Parameters
    ----------
    kind
        ``"input"``, ``"number"``, ``"count"`` (elements of a row), ``"expression"`` or a reduction:
        ``"sum"``, ``"prod"``, ``"amax"``, ``"amin"``, ``"any"``, ``"all"``.
    type
        Its element type.
    args
        What it is computed from.
    text
        C++ of an expression, with ``{0}``, ``{1}``, … for the arguments.
    name
        What it is called in the source.
    varies
        Whether it differs between the elements of a row.
    level
        Number of sweeps that must be over before it can be computed.
    heavy
        Whether computing it again costs more than keeping it.
    index
        Position among the inputs or numbers.
    order
        Position among the values of its loop.
    """

    kind: str
    type: ElementType
    args: tuple[Value, ...] = ()
    text: str = ""
    name: str = ""
    varies: bool = False
    level: int = 0
    heavy: bool = False
    index: int = -1
    order: int = -1

    @property
    def is_reduction(self) -> bool:
        """True for what is computed over a whole row."""
        return self.kind in REDUCTIONS


#: Whole numbers up to here are held by a double, in which numbers are passed.
_EXACT: Final = 1 << 53
REDUCTIONS: Final = frozenset({"sum", "prod", "amax", "amin", "any", "all"})


@dataclass(frozen=True)
class Operand:
    """One array of a kernel's call.

    Parameters
    ----------
    type
        Its element type.
    per_row
        Whether it has one element per row.
    repeats
        Whether all rows read the same elements, which are in the caches then.
    """

    type: ElementType
    per_row: bool
    repeats: bool = False


@dataclass
class Loop:
    """A kernel under construction: equal values exist once."""

    inputs: list[Operand] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    outputs: list[tuple[Value, Operand]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    _known: dict[tuple[object, ...], Value] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)

    def _add(self, key: tuple[object, ...], value: Value, name: str) -> Value:
        found = self._known.get(key)
        if found is not None:
            return found
        count = self._names[name] = self._names.get(name, 0) + 1
        value.name = f"{name}_{count}"  # with a number, so that no function is hidden
        self._known[key] = value
        value.order = len(self.values)
        self.values.append(value)
        return value

    def input(self, operand: Operand) -> Value:
        """Return a value that is read from a new operand."""
        index = len(self.inputs)
        self.inputs.append(operand)
        value = Value("input", operand.type, varies=not operand.per_row, index=index)
        return self._add(("input", index), value, "x")

    def number(self, number: float, kind: ElementType) -> Value:
        """Return a number, which is passed to the kernel: it may follow the sizes of a call."""
        if kind.is_bool:
            text = f"splat_mask({int(bool(number))})"
        elif not kind.is_floating and abs(number) > _EXACT:
            text = f"splat<{kind.vector}>({_integer(int(number), kind)})"
        else:
            key = ("number", repr(float(number)), kind.name)  # zeros have signs
            found = self._known.get(key)
            if found is not None:
                return found
            self.numbers.append(float(number))
            value = Value("number", kind, index=len(self.numbers) - 1)
            return self._add(key, value, "c")
        return self.expression(text, kind, name="c")

    def count(self, kind: ElementType) -> Value:
        """Return how many elements a row has, as a floating number."""
        return self._add(("count", kind.name), Value("count", kind), "count")

    def expression(
        self,
        text: str,
        kind: ElementType,
        *args: Value,
        name: str = "t",
        heavy: bool = False,
    ) -> Value:
        """Return the value of a C++ expression of others."""
        if text in {"{0} * {1}", "{0} + {1}"}:  # one value, whoever comes first
            args = tuple(sorted(args, key=lambda a: a.order))
        key = (text, kind.name, *map(id, args))
        value = Value(
            "expression",
            kind,
            args,
            text,
            varies=any(a.varies for a in args),
            level=max((a.level for a in args), default=0),
            heavy=heavy,
        )
        return self._add(key, value, name)

    def reduce(self, kind: str, value: Value, name: str) -> Value:
        """Return the sum, product, … of a value over the row."""
        made = Value(kind, value.type, (value,), level=value.level + 1)
        return self._add((kind, id(value)), made, name)

    def output(self, value: Value, *, per_row: bool) -> int:
        """Store a value in a new operand and return its number among the outputs."""
        self.outputs.append((value, Operand(value.type, per_row)))
        return len(self.outputs) - 1


def _integer(number: int, kind: ElementType) -> str:
    bits = 8 * kind.size
    number &= (1 << bits) - 1
    if kind.vector.startswith("u"):
        return f"{number}u" if bits < 64 else f"{number}ull"
    if number >> (bits - 1):
        number -= 1 << bits
    if number == -(1 << 63):
        return "(-9223372036854775807 - 1)"  # the literal itself would be beyond the type
    return f"{number}"
