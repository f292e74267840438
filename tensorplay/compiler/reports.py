"""What a compiled function did, as plain data, text and HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorplay.compiler.binding import Binding
    from tensorplay.compiler.program import Program

__all__ = [
    "CompileReport",
    "Event",
    "Explanation",
    "KeptReport",
    "ProgramReport",
    "RegionReport",
]


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes
    ----------
    kind
        ``"compile"``, ``"recompile"``, ``"break"`` (not captured), ``"eager"`` or ``"limit"``.
    reason
        Why.
    seconds
        How long it took.
    """

    kind: str
    reason: str
    seconds: float


@dataclass(frozen=True)
class RegionReport:
    """Steps of a graph that run as one: their kind, the nodes, and why they are not fused."""

    kind: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class KeptReport:
    """A value that the forward pass keeps for the backward pass.

    Attributes
    ----------
    name
        That of the step which computes it, or of the input.
    kind
        ``"input"``, ``"result"`` or ``"value"``.
    type
        Element type and shape in the first call.
    reason
        Why it is kept, and not something that it is computed from or for.
    """

    name: str
    kind: str
    type: str
    reason: str


@dataclass(frozen=True)
class ProgramReport:
    """One program.

    Attributes
    ----------
    number
        Its number, in the order in which programs were made.
    shapes
        How many sets of shapes it serves.
    hits
        Calls that it answered.
    graph, backward_graph
        The graphs as Python text; the second None without gradients.
    guards
        What must hold besides the arguments.
    conditions
        Values that Python saw.
    regions
        What runs together.
    source
        What the backend generated, empty if nothing.
    kept
        What the forward pass keeps for the backward pass.
    kept_bytes, eager_bytes
        The memory that is held until then, at the sizes of the first call, and what eager execution
        would hold. Leaves count where that keeps them; other inputs always, as second derivatives
        need them.
    """

    number: int
    shapes: int
    hits: int
    graph: str
    backward_graph: str | None
    guards: tuple[str, ...]
    conditions: tuple[str, ...]
    regions: tuple[RegionReport, ...]
    source: str
    kept: tuple[KeptReport, ...] = ()
    kept_bytes: int = 0
    eager_bytes: int = 0

    @classmethod
    def of(cls, number: int, program: Program, bindings: Iterable[Binding]) -> ProgramReport:
        """Return the report of a program and of the sets of shapes that it serves."""
        found = list(bindings)
        report = getattr(program.call, "report", None)
        first = found[0] if found else None
        return cls(
            number,
            len(found),
            sum(b.hits for b in found),
            program.forward.code,
            None if program.backward is None else program.backward.code,
            () if first is None else tuple(g.text for g in first.guards),
            () if first is None else tuple(
                f"{construct}() at {line} gave {value.tolist()!r}"
                for (construct, line), value in zip(
                    first.condition_texts, first.conditions, strict=True
                )
            ),
            _regions(report),
            "\n".join(getattr(report, "sources", ())),
            tuple(
                KeptReport(k.node.name, "result" if k.kind == "root" else k.kind, k.type, k.reason)
                for k in program.choice.kept
            ),
            program.choice.held,
            program.choice.held_eagerly,
        )  # fmt: skip


def _regions(report: Any) -> tuple[RegionReport, ...]:
    return tuple(
        RegionReport(str(r.kind), tuple(str(n) for n in getattr(r, "nodes", ())),
                     str(getattr(r, "reason", "") or ""))
        for r in getattr(report, "regions", ()) or ()
    )  # fmt: skip


@dataclass(frozen=True, repr=False)
class CompileReport:
    """What one compiled function did so far.

    Attributes
    ----------
    name
        Its name.
    programs
        How many were made.
    shapes
        Sets of shapes and guards that they serve.
    hits
        Calls that they answered.
    eager_calls
        Calls that ran eagerly; `events` says why.
    shape_seconds
        What the captures took for which a known program was found.
    details
        The programs.
    events
        What happened, in order.
    """

    name: str
    programs: int
    shapes: int
    hits: int
    eager_calls: int
    shape_seconds: float
    details: tuple[ProgramReport, ...]
    events: tuple[Event, ...]

    @property
    def breaks(self) -> tuple[str, ...]:
        """Why calls were not captured."""
        return tuple(e.reason for e in self.events if e.kind == "break")

    @property
    def recompiles(self) -> tuple[str, ...]:
        """Why further programs were made."""
        return tuple(e.reason for e in self.events if e.kind == "recompile")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dictionaries, lists and plain values, without the result."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "result"}

    def to_text(self) -> str:
        """Return the report as text."""
        lines = [
            (
                f"{self.name}: {self.programs} programs for {self.shapes} sets of shapes, "
                f"{self.hits} calls compiled, {self.eager_calls} eager"
            )
        ]
        lines += [
            f"  {e.kind}: {e.reason}" + (f" ({e.seconds * 1e3:.1f} ms)" if e.seconds else "")
            for e in self.events
        ]
        for p in self.details:
            lines += ["", *_program_lines(p)]
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the report as HTML, which needs no script."""
        rows = "".join(
            f"<tr><td>{html.escape(e.kind)}</td><td>{html.escape(e.reason)}</td>"
            f"<td>{e.seconds * 1e3:.1f} ms</td></tr>"
            for e in self.events
        )
        parts = "".join(_program_html(p) for p in self.details)
        head = html.escape(self.to_text().splitlines()[0])
        return (
            f"<section><h4>{head}</h4><table><thead><tr><th>event</th><th>reason</th>"
            f"<th>time</th></tr></thead><tbody>{rows}</tbody></table>{parts}</section>"
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        return self.to_text()


def _program_lines(p: ProgramReport) -> list[str]:
    lines = [f"program {p.number}: {p.shapes} sets of shapes, {p.hits} calls"]
    lines += [f"  guard: {g}" for g in p.guards]
    lines += [f"  condition: {c}" for c in p.conditions]
    lines += [f"  keeps: {text}" for text in _kept_texts(p)]
    for r in p.regions:
        why = f": {r.reason}" if r.reason else ""
        lines.append(f"  {r.kind}: {', '.join(r.nodes)}{why}")
    for title, text in _texts(p):
        if text:
            lines += [f"  {title}:", *(f"    {line}" for line in text.splitlines())]
    return lines


def _kept_texts(p: ProgramReport) -> list[str]:
    if p.backward_graph is None:
        return []
    total = f"{p.kept_bytes} bytes for the backward pass, eager execution {p.eager_bytes}"
    return [*(f"{k.kind} {k.name}, {k.type}: {k.reason}" for k in p.kept), total]


def _texts(p: ProgramReport) -> tuple[tuple[str, str | None], ...]:
    return ("graph", p.graph), ("backward graph", p.backward_graph), ("source", p.source)


def _program_html(p: ProgramReport) -> str:
    texts = "".join(
        f"<details><summary>{title}</summary><pre>{html.escape(text)}</pre></details>"
        for title, text in _texts(p)
        if text
    )
    items = "".join(
        f"<li>{html.escape(t)}</li>"
        for t in (
            *(f"guard: {g}" for g in p.guards),
            *(f"condition: {c}" for c in p.conditions),
            *(f"keeps: {text}" for text in _kept_texts(p)),
            *(f"{r.kind}: {', '.join(r.nodes)} {r.reason}" for r in p.regions),
        )
    )
    return (
        f"<details open><summary>program {p.number}: {p.shapes} sets of shapes, {p.hits} calls"
        f"</summary><ul>{items}</ul>{texts}</details>"
    )


def _plain(value: Any) -> Any:
    return [asdict(v) for v in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, repr=False)
class Explanation(CompileReport):
    """The report of one call, made for `compiler.explain`.

    Attributes
    ----------
    result
        What the call gave.
    seconds, eager_seconds
        The shortest of a few further calls, compiled and not; None where a call might do more
        than compute.
    slower_because
        Why the compiled call is slower, empty if it is not.
    """

    result: Any = None
    seconds: float | None = None
    eager_seconds: float | None = None
    slower_because: str = ""

    def to_text(self) -> str:
        """Return the report as text."""
        text = super().to_text()
        if self.seconds is None or self.eager_seconds is None:
            return text
        times = f"compiled {self.seconds * 1e6:.1f} µs, eager {self.eager_seconds * 1e6:.1f} µs"
        why = f": slower because {self.slower_because}" if self.slower_because else ""
        head, _, rest = text.partition("\n")
        return f"{head}\n  a call: {times}{why}\n{rest}"

    @property
    def graph_count(self) -> int:
        """Number of graphs."""
        return self.programs

    @property
    def graph_break_count(self) -> int:
        """Number of reasons why the call was not captured."""
        return len(self.breaks)
