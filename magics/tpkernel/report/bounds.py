"""A report small enough to be shown: what failed first, and a note of all that is left out.

An operator may have ten thousand pairs, an error text a megabyte. Text, plain data and the checks
keep all of it; the static HTML and the widget's state, which a notebook saves, show what this
module leaves: :data:`HTML_LIMIT` holds for the HTML of any report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tpkernel.checks.verdicts import is_bad
from tpkernel.report.summary import admitted_first, gravest_first

if TYPE_CHECKING:
    from tpkernel.report.facts import GradcheckFacts, PairFacts
    from tpkernel.report.report import Report

__all__ = ["HTML_LIMIT", "bounded"]

#: Bytes that the static HTML of a report stays below.
HTML_LIMIT = 4_000_000

_PAIRS = 200
_ELEMENTS = 4 * 256 * 256  # of all matrices together: 8 MB for the widget, 1 MB of pictures
_CURVES = 20
_ROWS = 400
_FINDINGS = 60
_PARTS = 30  # operators, functions, samples of opcheck, compiled graphs, tables of times
_INSTRUCTIONS = 2_000
_INSTRUCTION = 200  # characters of one
_TEXT = 500  # characters of a message; the first ones say what it is
_SOURCE = 20_000  # of one generated source, graph or log
_ALL_SOURCES = 150_000  # of all of them: colours make HTML eight times as long
_SOURCES = frozenset({"wrapper", "fake", "gradient", "graph", "backward_graph", "log"})
#: What a person reads to its end: of few facts, or of those that failed.
_LONG = 4_000
_LONG_TEXTS = frozenset(
    {
        *("Finding.message", "GradcheckFacts.message", "OpcheckFailureFacts.message"),
        *("OperatorFacts.schema", "OperatorFacts.doc", "FunctionFacts.signature"),
        "DiagnosticFacts.message",
    }
)

_Facts = TypeVar("_Facts")


def bounded(report: Report) -> Report:
    """Return a report without what would be too much to show; its notes say what is missing.

    The most serious facts stay, so verdicts, title and problems are those of the whole report.
    """
    left: list[str] = []
    checks = _bounded_checks(report.gradcheck, left)
    listing = report.listing
    if listing is not None:
        kept = _first(listing.instructions, _INSTRUCTIONS, "instructions", left)
        remarks = _first(listing.remarks, _ROWS, "remarks of the optimiser", left)
        listing = replace(listing, instructions=kept, remarks=remarks)
    rows = report.validation
    if len(rows) > _ROWS:
        rows = tuple(admitted_first(rows))
    timing = tuple(
        replace(t, rows=_first(t.rows, _ROWS, "sizes", left))
        for t in _first(report.timing, _PARTS, "tables of times", left)
    )
    build = report.build
    messages = _first(build.diagnostics, _ROWS, "compiler messages", left)
    made = replace(
        report,
        gradcheck=checks,
        listing=listing,
        timing=timing,
        build=replace(build, diagnostics=messages),
        validation=_first(rows, _ROWS, "combinations of the validation", left),
        findings=_first(gravest_first(report.findings), _FINDINGS, "findings", left),
        operators=_first(report.operators, _PARTS, "operators", left),
        functions=_first(report.functions, _PARTS, "functions", left),
        registered=_first(report.registered, _ROWS, "registrations", left),
        opcheck=_first(
            sorted(report.opcheck, key=lambda o: not o.failures), _PARTS, "samples of opcheck", left
        ),
        compiled=_first(report.compiled, _PARTS, "compiled calls", left),
        notes=_first(report.notes, _PARTS, "notes", left),
    )
    made = cast("Report", _Shortener()(made))
    if left:
        made = replace(
            made, notes=(*made.notes, f"Left out here: {'; '.join(left)}. to_dict() has all.")
        )
    return made


def _first(facts: Sequence[_Facts], count: int, what: str, left: list[str]) -> tuple[_Facts, ...]:
    if len(facts) > count:
        left.append(f"{len(facts) - count:,} of {len(facts):,} {what}")
    return tuple(facts[:count])


def _bounded_checks(
    checks: Sequence[GradcheckFacts], left: list[str]
) -> tuple[GradcheckFacts, ...]:
    """Keep the pairs that failed before those that passed, and matrices in the same order."""
    places = [
        (not is_bad(check.verdict if pair is None else pair.verdict), i, j)
        for i, check in enumerate(checks)
        for j, pair in (enumerate(check.pairs) if check.pairs else [(0, None)])
    ]
    places.sort()
    if len(places) > _PAIRS:
        left.append(f"{len(places) - _PAIRS:,} of {len(places):,} pairs of the gradcheck")
    kept: dict[int, dict[int, PairFacts | None]] = {}
    elements, curves, maps = _ELEMENTS, _CURVES, 0
    for _, i, j in places[:_PAIRS]:
        pair = checks[i].pairs[j] if checks[i].pairs else None
        if pair is not None and pair.jacobian is not None:
            elements -= (size := pair.jacobian.rows * pair.jacobian.columns)
            if elements < 0:
                pair, maps, elements = replace(pair, jacobian=None), maps + 1, elements + size
        if pair is not None and pair.curve is not None:
            curves -= 1
            pair = pair if curves >= 0 else replace(pair, curve=None)
        kept.setdefault(i, {})[j] = pair
    if maps:
        left.append(f"{maps:,} heat maps")
    if curves < 0:
        left.append(f"{-curves:,} plots of error against step")
    return tuple(
        replace(checks[i], pairs=tuple(p for _, p in sorted(kept[i].items()) if p is not None))
        for i in sorted(kept)
    )


class _Shortener:
    """Shortens texts wherever they stand; facts with none too long stay themselves."""

    def __init__(self) -> None:
        self.source = _ALL_SOURCES

    def __call__(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str):
            return self._text(value, name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changed = {}
            for field in dataclasses.fields(value):
                if field.metadata.get("plain", True):
                    before = getattr(value, field.name)
                    after = self(before, f"{type(value).__name__}.{field.name}")
                    if after is not before:
                        changed[field.name] = after
            return replace(value, **changed) if changed else value
        if isinstance(value, tuple) and value and not isinstance(value[0], (int, float, complex)):
            made = tuple(self(item, name) for item in value)
            return made if any(a is not b for a, b in zip(made, value, strict=True)) else value
        return value

    def _text(self, value: str, name: str) -> str:
        limit = _LONG if name in _LONG_TEXTS else _TEXT
        if name == "InstructionFacts.text":
            limit = _INSTRUCTION
        if name.rpartition(".")[2] in _SOURCES:
            limit = min(_SOURCE, self.source)
            self.source -= min(limit, len(value))
        if len(value) <= limit:
            return value
        return f"{value[:limit]} … ({len(value) - limit:,} more characters)"
