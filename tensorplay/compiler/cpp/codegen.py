"""From a `Loop` to C++: one plain function per kernel, over pointers and the length of a row.

A kernel is ``void name(char* const* data, int64_t n, const double* number, char* scratch,
int64_t past)``.
`data` has the inputs, then the outputs: the start of a row, or the one element that belongs to it.
Rows are contiguous, and padded to whole vectors if they are not whole, by whoever calls; padding
never counts in a reduction. `scratch` keeps what a later sweep would have to compute again; `past`
says that results along rows go past the caches, aligned to vectors. A fence is the caller's.

A kernel whose rows are pieces of one long row writes partial results, of 8 bytes each, and has a
second function ``name_finish(data, parts, count, number)`` that combines them.

Sums of floating numbers add BLOCK elements in LANES sums of their own type, and those sums in
float64: the error of a sum of n float32 is below (BLOCK / LANES + 4) units of the last place of the
sum of magnitudes, whatever n is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorplay.compiler.cpp.ir import TYPES, ElementType, Loop, Operand, Value

__all__ = ["BLOCK", "PIECE", "Kernel", "generate", "translation_unit"]

BLOCK: Final = 4096
#: Values of a sweep with reductions that is written out four times.
MOST_UNROLLED: Final = 12
#: Arrays of a sweep that processors read ahead well by themselves.
MOST_FOLLOWED: Final = 3
#: Elements in each piece of a row that is reduced as a whole, by several threads.
PIECE: Final = 16384


@dataclass(frozen=True)
class Kernel:
    """One function of a library, and how it is called.

    Parameters
    ----------
    name
        Of the function.
    source
        Its C++.
    inputs, outputs
        The operands, in the order of `data`.
    numbers
        What `number` points at.
    widest
        Size of the widest type, which decides the number of lanes.
    scratch
        Bytes of scratch memory for each element of a row.
    partial
        Whether the outputs per row are partial results, for ``name_finish``.
    finished
        Types of the results of ``name_finish``.
    """

    name: str
    source: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    numbers: tuple[float, ...]
    widest: int
    scratch: int
    partial: bool
    finished: tuple[ElementType, ...] = ()


def translation_unit(kernels: tuple[Kernel, ...]) -> str:
    """Return the source of a library with these kernels, which have one number of lanes."""
    return "\n".join(
        (
            f"#define WIDEST {kernels[0].widest}",
            '#include "vector.h"',
            *(('#include "vector_math.h"',) if kernels[0].widest >= 4 else ()),
            "using namespace tp;",
            'extern "C" const int64_t lanes = LANES;',
            *(f"\n{kernel.source}" for kernel in kernels),
        )
    )


def generate(name: str, loop: Loop, *, whole: bool = False) -> Kernel:
    """Return the kernel of a loop.

    Parameters
    ----------
    name
        Of the function.
    loop
        What it computes.
    whole
        Whether a row is everything, so that it is cut into pieces where that can be done.
    """
    return _Writer(name, loop, whole).kernel()


class _Writer:
    def __init__(self, name: str, loop: Loop, whole: bool) -> None:
        self.name = name
        self.whole = whole
        self.loop = loop
        self.needed = _needed([value for value, _ in loop.outputs])
        values = [v for v in loop.values if v in self.needed]
        self.values = values
        self.widest = max(v.type.size for v in values)
        self.reductions = [v for v in values if v.is_reduction]
        stored = [v.level for v, o in loop.outputs if not o.per_row]
        self.last = max([*stored, *(v.args[0].level for v in self.reductions)], default=0)
        self.kept = self._kept()
        self.lines: list[str] = []
        self.at = "i"  # the place in the row that is being written about
        self.known: set[Value] = set()
        self.fetched: dict[Value, int] = {}  # inputs, with the first sweep that reads them

    def _kept(self) -> dict[Value, int]:
        """Return the values that one sweep leaves for later ones, with their places."""
        uses: dict[Value, set[int]] = {}
        for level in range(self.last + 1):
            for value in _needed(self._targets(level), cut_reductions=True):
                if value.varies and value.heavy:
                    uses.setdefault(value, set()).add(level)
        return {v: i for i, v in enumerate(v for v in self.values if len(uses.get(v, ())) > 1)}

    def _targets(self, level: int) -> list[Value]:
        """Return what a sweep computes: arguments of reductions, and what it stores."""
        targets = [v.args[0] for v in self.reductions if v.args[0].level == level]
        if level == self.last:
            targets += [v for v, o in self.loop.outputs if not o.per_row]
        return targets

    # --- the kernel -------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        partial = self._is_partial()
        loop = self.loop
        parameters = (
            "char* const* data, int64_t n, const double* number, char* scratch, int64_t past"
        )
        self.lines = [f'extern "C" void {self.name}({parameters}) {{']
        self._pointers()
        self._line("int64_t i;")
        for level in range(self.last + 1):
            self._sweep(level)
        outputs = tuple(operand for _, operand in loop.outputs)
        if partial:
            self._store_partials()
            outputs = (
                *(o for o in outputs if not o.per_row),
                *(Operand(_partial_type(r), per_row=True) for r in self.reductions),
            )
        else:
            self._store_per_row()
        self.lines.append("}")
        finished: tuple[ElementType, ...] = ()
        if partial:
            finished = tuple(o.type for _, o in loop.outputs if o.per_row)
            self._finish()
        return Kernel(
            self.name,
            "\n".join(self.lines) + "\n",
            tuple(loop.inputs),
            outputs,
            tuple(loop.numbers),
            self.widest,
            sum(v.type.size if not v.type.is_bool else self.widest for v in self.kept),
            partial,
            finished,
        )

    def _is_partial(self) -> bool:
        """Tell whether rows may be cut: one level of reductions, and nothing stored needs them."""
        return (
            self.whole
            and bool(self.reductions)
            and self.last == 0
            and all(v.level == 0 for v, o in self.loop.outputs if not o.per_row)
            and not any(v.kind == "count" for v in _needed(self._targets(0)))
        )

    def _streams(self, value: Value) -> bool:
        """Tell whether a value can be stored past the caches: in whole vectors."""
        return value.type.size == self.widest and not value.type.is_bool

    def _pointers(self) -> None:
        loop = self.loop
        for v in self.values:
            if v.kind == "input":
                self._line(
                    f"const {v.type.memory}* p_{v.name} = (const {v.type.memory}*)data[{v.index}];"
                )
        for number, (value, _) in enumerate(self._row_outputs()):
            at = len(loop.inputs) + number
            self._line(f"{value.type.memory}* out_{number} = ({value.type.memory}*)data[{at}];")
        if self.kept:
            self._line("const int64_t room = (n + LANES - 1) / LANES * LANES;")
        offset = 0
        for value, place in self.kept.items():
            memory = self._kept_memory(value)
            self._line(f"{memory}* kept_{place} = ({memory}*)(scratch + {offset} * room);")
            offset += value.type.size if not value.type.is_bool else self.widest

    def _row_outputs(self) -> list[tuple[Value, Operand]]:
        """Return the outputs in the order of `data`, those with one element per row last."""
        outputs = self.loop.outputs
        if self._is_partial():
            return [(v, o) for v, o in outputs if not o.per_row]
        return list(outputs)

    def _kept_memory(self, value: Value) -> str:
        if value.type.is_bool:
            return f"int{8 * self.widest}_t"
        return value.type.memory

    def _line(self, text: str, depth: int = 1) -> None:
        self.lines.append("  " * depth + text)

    # --- sweeps -----------------------------------------------------------------------------------

    def _sweep(self, level: int) -> None:
        reductions = [v for v in self.reductions if v.args[0].level == level]
        stores = [
            (number, value)
            for number, (value, operand) in enumerate(self._row_outputs())
            if not operand.per_row
        ]
        stores = stores if level == self.last else []
        if not reductions and not stores:
            return
        order = _in_order(self.values, self._targets(level))
        for value in order:  # what is the same along the row
            if not value.varies:
                self._define(value, 1)
        self._line(f"// sweep {level + 1} over the row")
        for value in reductions:
            if value.kind == "sum" and value.type.is_floating:
                self._line(f"double total_{value.name} = 0;")
            else:
                self._line(f"{value.type.vector} all_{value.name} = {_neutral(value)};")
        depth = 1
        sums = [v for v in reductions if v.kind == "sum" and v.type.is_floating]
        if sums:
            self._line(f"for (int64_t from = 0; from < n; from += {BLOCK}) {{")
            self._line(f"  const int64_t to = from + {BLOCK} < n ? from + {BLOCK} : n;")
            depth = 2
            for value in sums:
                self._line(f"{value.type.vector} all_{value.name} = {{}};", depth)
        self._line(f"i = {'from' if sums else '0'};", depth)
        end = "to" if sums else "n"
        if reductions and not any(v.heavy for v in order) and len(order) <= MOST_UNROLLED:
            # Several results at a time: the next addition does not wait for the last one.
            for value in reductions:
                self._line(f"{value.type.vector} part_{value.name}[3];", depth)
                neutral = _neutral(value)
                self._line(
                    f"for ({value.type.vector}& x : part_{value.name}) x = {neutral};", depth
                )
            self._line(f"for (; i + 4 * LANES <= {end}; i += 4 * LANES) {{", depth)
            for part in range(4):
                self._line("{", depth + 1)
                self._body(order, reductions, stores, depth + 2, level, part)
                self._line("}", depth + 1)
            self._line("}", depth)
            for value in reductions:
                for part in range(3):
                    combined = self._combine(value, f"part_{value.name}[{part}]")
                    self._line(f"all_{value.name} = {combined};", depth)
        self._line(f"for (; i < {end}; i += LANES) {{", depth)
        self._body(order, reductions, stores, depth + 1, level, None)
        self._line("}", depth)
        if sums:
            for value in sums:
                self._line(f"total_{value.name} += sum_across(all_{value.name});", depth)
            self._line("}")

    def _body(
        self,
        order: list[Value],
        reductions: list[Value],
        stores: list[tuple[int, Value]],
        depth: int,
        level: int,
        part: int | None,
    ) -> None:
        """Write one step of a sweep: the last of a row, or one of four whole ones."""
        self.at = f"i + {part} * LANES" if part else "i"
        before = set(self.known)
        # Processors read ahead themselves, more slowly if they are told to as well, but for where
        # so much is computed that they come to the next page too late, or so many arrays are read.
        streams = sum(v.kind == "input" and v.varies for v in order)
        far = streams > MOST_FOLLOWED or any(v.heavy for v in order)
        for value in order:
            wide = value.varies and value.type.size == self.widest
            if value.kind != "input" or self.loop.inputs[value.index].repeats:
                continue
            first = self.fetched.setdefault(value, level) == level
            if far and wide and first:
                self._line(f"prefetch(p_{value.name} + {self.at});", depth)
        for value in order:
            if value.varies:
                self._define(value, depth, level)
        for value in reductions:
            arg = value.args[0].name
            inside = f"inside({arg}, i, n, {_neutral(value)})" if part is None else arg
            whole = f"part_{value.name}[{part - 1}]" if part else f"all_{value.name}"
            self._line(f"{whole} = {self._combine(value, inside, whole)};", depth)
        for number, value in stores:
            to = f"(out_{number} + {self.at}, {value.name});"
            vector = value.type.vector
            if value.type.is_bool:
                self._line(f"store_mask{to}", depth)
            elif self._streams(value):
                self._line(f"if (past) stream<{vector}>{to}", depth)
                self._line(f"else store<{vector}>{to}", depth)
            else:
                self._line(f"store<{vector}>{to}", depth)
        self.known = before

    @staticmethod
    def _combine(value: Value, other: str, whole: str = "") -> str:
        whole = whole or f"all_{value.name}"
        return {
            "sum": f"{whole} + {other}", "prod": f"{whole} * {other}",
            "amax": f"maximum({whole}, {other})", "amin": f"minimum({whole}, {other})",
            "any": f"{whole} | {other}", "all": f"{whole} & {other}",
        }[value.kind]  # fmt: skip

    def _define(self, value: Value, depth: int, level: int = 0) -> None:
        """Write the definition of a value whose arguments are defined."""
        if value in self.known:
            return
        self.known.add(value)
        vector = value.type.vector
        if value in self.kept and value.level < level:
            text = f"load<{vector}>(kept_{self.kept[value]} + {self.at})"
            self._line(f"const {vector} {value.name} = {text};", depth)
            return
        self._line(f"const {vector} {value.name} = {self._text(value)};", depth)
        if value in self.kept:
            self._line(
                f"store<{vector}>(kept_{self.kept[value]} + {self.at}, {value.name});", depth
            )

    def _text(self, value: Value) -> str:
        vector = value.type.vector
        if value.kind == "input":
            bools = value.type.is_bool
            if value.varies:
                at = f"p_{value.name} + {self.at}"
                return f"load_mask({at})" if bools else f"load<{vector}>({at})"
            return f"splat_mask(*p_{value.name})" if bools else f"splat<{vector}>(*p_{value.name})"
        if value.kind == "number":
            whole = "" if value.type.is_floating else "(int64_t)"  # a sign wraps, as in NumPy
            return f"splat<{vector}>(({value.type.memory}){whole}number[{value.index}])"
        if value.kind == "count":
            return f"splat<{vector}>(({value.type.memory})n)"
        if value.is_reduction:
            return _spread(value, _across(value))
        return value.text.format(*(a.name for a in value.args))

    # --- results per row --------------------------------------------------------------------------

    def _store_per_row(self) -> None:
        targets = [v for v, o in self.loop.outputs if o.per_row]
        for value in _in_order(self.values, targets):
            self._define(value, 1)
        for number, (value, operand) in enumerate(self._row_outputs()):
            if operand.per_row:
                last = " & 1" if value.type.is_bool else ""
                self._line(f"*out_{number} = ({value.type.memory})({value.name}[0]{last});")

    def _store_partials(self) -> None:
        at = len(self.loop.inputs) + len(self._row_outputs())
        for number, value in enumerate(self.reductions):
            memory = _partial_type(value).memory
            self._line(f"*({memory}*)data[{at + number}] = {_across(value)};")

    def _finish(self) -> None:
        """Write the function that combines partial results, in the order of the pieces."""
        self.known = set()
        self.lines.append("")
        self.lines.append(
            f'extern "C" void {self.name}_finish(char* const* data, int64_t parts, int64_t n, '
            "const double* number) {"
        )
        results = [v for v, o in self.loop.outputs if o.per_row]
        order = _in_order(self.values, results)
        for value in order:
            if value.kind == "input":
                self._line(
                    f"const {value.type.memory}* p_{value.name} = "
                    f"(const {value.type.memory}*)data[{value.index}];"
                )
        at = len(self.loop.inputs) + len(self._row_outputs())
        for number, value in enumerate(self.reductions):
            memory = _partial_type(value).memory
            self._line(f"const {memory}* part_{value.name} = (const {memory}*)data[{at + number}];")
            how = {"any": "max", "all": "min"}.get(value.kind, value.kind)
            how = how.removeprefix("a") if how in {"amax", "amin"} else how
            self._line(
                f"const {memory} whole_{value.name} = {how}_of_parts(part_{value.name}, parts);"
            )
        for value in order:
            if value.is_reduction:
                self.known.add(value)
                text = _spread(value, f"whole_{value.name}")
                self._line(f"const {value.type.vector} {value.name} = {text};")
            elif not value.varies:
                self._define(value, 1)
        at += len(self.reductions)
        for number, value in enumerate(results):
            last = " & 1" if value.type.is_bool else ""
            self._line(
                f"*({value.type.memory}*)data[{at + number}] = "
                f"({value.type.memory})({value.name}[0]{last});"
            )
        self.lines.append("}")


def _needed(values: list[Value], *, cut_reductions: bool = False) -> set[Value]:
    """Return the values and all that they are computed from, within their sweep if cut."""
    found: set[Value] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            if not (cut_reductions and value.is_reduction):
                stack.extend(value.args)
    return found


def _in_order(values: list[Value], targets: list[Value]) -> list[Value]:
    needed = _needed(targets, cut_reductions=True)
    return [v for v in values if v in needed]


def _neutral(value: Value) -> str:
    vector, memory = value.type.vector, value.type.memory
    if value.kind in {"sum", "any"}:
        return f"{vector}{{}}"
    if value.kind in {"prod", "all"}:
        return f"({vector}{{}} + 1)" if value.kind == "prod" else "~mask{}"
    sign = "-" if value.kind == "amax" else ""
    if value.type.is_floating:
        return f"splat<{vector}>({sign}({memory})__builtin_inf())"
    bits = 8 * value.type.size
    if memory.startswith("u"):
        return f"{vector}{{}}" if value.kind == "amax" else f"~{vector}{{}}"
    lowest = f"({memory})(1ull << {bits - 1})"
    return f"splat<{vector}>({lowest if value.kind == 'amax' else f'~{lowest}'})"


def _across(value: Value) -> str:
    """Return the C++ of the result over the lanes."""
    whole = f"all_{value.name}"
    if value.kind == "sum":
        return f"total_{value.name}" if value.type.is_floating else f"sum_across({whole})"
    if value.kind in {"any", "all"}:
        return f"any_across({whole})" if value.kind == "any" else f"!any_across(~{whole})"
    name = {"prod": "product", "amax": "max", "amin": "min"}[value.kind]
    return f"{name}_across({whole})"


def _spread(value: Value, text: str) -> str:
    if value.type.is_bool:
        return f"splat_mask({text})"
    cast = f"({value.type.memory})" if value.kind == "sum" else ""
    return f"splat<{value.type.vector}>({cast}{text})"


def _partial_type(value: Value) -> ElementType:
    if value.kind == "sum" and value.type.is_floating:
        return TYPES["float64"]
    return TYPES["uint8"] if value.type.is_bool else value.type
