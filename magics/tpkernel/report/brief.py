"""A report in a page: how the cell stands, failures in full, a line per check that passed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tpkernel.checks.verdicts import is_bad, verdict_text
from tpkernel.report.summary import (
    TIMING_HEADS,
    admitted_lines,
    compile_text,
    number_text,
    problems,
    steps_text,
    timing_words,
    validation_title,
)

if TYPE_CHECKING:
    from tpkernel.report.facts import GradcheckFacts, OperatorFacts, TimingFacts
    from tpkernel.report.report import Report

__all__ = ["brief_text"]

_MOST_PROBLEMS = 40
_MOST_OPERATORS = 2  # with guards and gradients; of more, only the schemas
_MOST_LINES = 8
_WIDTH = 12
#: Characters of a documentation's first line.
_LONGEST = 300
#: By which C++ type a guard was found: the whole report says so.
_ORIGIN = re.compile(r" \(from tp::[^()]*\)")


def brief_text(report: Report) -> str:
    """Return the summary of a report: 10 to 25 lines where all is well, failures in full."""
    lines = [f"{report.cell}: {report.title}"]
    for problem in problems(report, limit=_MOST_PROBLEMS):
        first, *others = problem.text.splitlines() or [""]
        lines += [f"  {first}", *(f"    {line}" for line in others)]
    lines.append("")
    own = [o for o in report.operators if not o.helper]
    for operator in own[:_MOST_LINES]:
        lines += _operator_lines(operator, whole=len(own) <= _MOST_OPERATORS)
    if len(own) > _MOST_LINES:
        lines.append(_line("", f"and {len(own) - _MOST_LINES} more operators"))
    for function in report.functions[:_MOST_LINES]:
        lines.append(_line("function", function.signature))
        lines += _guard_lines(function.guards)
    if len(report.functions) > _MOST_LINES:
        lines.append(_line("", f"and {len(report.functions) - _MOST_LINES} more functions"))
    registered = [_line("registers", f"{kind} {name}") for kind, name in report.registered]
    lines += _cut(registered, "registrations")
    lines += _check_lines(report)
    lines += _build_lines(report)
    lines += [f"note: {note}" for note in report.notes]
    lines.append("Everything: to_text(full=True).")
    return "\n".join(lines)


def _line(head: str, text: str) -> str:
    return f"{head:<{_WIDTH}}{text}".rstrip()


def _indented(head: str, text: str) -> str:
    return _line(f"  {head} " if len(head) + 3 > _WIDTH else f"  {head}", text)


def _cut(lines: Sequence[str], what: str) -> Iterator[str]:
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield _line("", f"and {len(lines) - _MOST_LINES} more {what}")


def _operator_lines(facts: OperatorFacts, *, whole: bool) -> Iterator[str]:
    yield _line("operator", facts.schema)
    if not whole:
        return
    if facts.doc:
        first = facts.doc.splitlines()[0]
        yield _line("", first if len(first) <= _LONGEST else f"{first[:_LONGEST]} …")
    yield from _guard_lines(facts.guards)
    gradients = [_indented("gradient", f"{name}: {text}") for name, text in facts.derivatives]
    yield from (
        _cut(gradients, "gradients")
        if gradients
        else (_indented("gradient", "none declared; backward raises"),)
    )


def _guard_lines(guards: Iterable[tuple[str, str]]) -> Iterator[str]:
    return _cut([_indented(name, _ORIGIN.sub("", text)) for name, text in guards], "arguments")


def _check_lines(report: Report) -> Iterator[str]:
    if report.gradcheck:
        yield _line("gradcheck", _gradcheck_words(report.gradcheck_verdict, report.gradcheck))
    if report.opcheck:
        failed = sum(bool(o.failures) for o in report.opcheck)
        samples = _count(len(report.opcheck), "sample")
        said = f"{failed} of {samples} failed" if failed else f"does as declared on {samples}"
        yield _line("opcheck", f"{verdict_text(report.opcheck_verdict)}: {said}")
    if report.validation:
        yield _line("validation", validation_title(report).removeprefix("validation: "))
        lines = [_indented("admits", line) for line in admitted_lines(report.validation)]
        yield from _cut(lines, "arguments")
    for compiled in report.compiled:
        words = compile_text(compiled).removeprefix("compile of ")
        yield _line("compile", f"{verdict_text(compiled.verdict)}: {words}")
    for times in report.timing:
        yield from _timing_lines(times)
    notes = [
        f"{f.check} of {f.operator}: {f.message}" for f in report.findings if f.level == "note"
    ]
    for number, line in enumerate(_cut(notes, "notes")):
        yield _line("" if number else "notes", line.strip())


def _gradcheck_words(verdict: str, checks: Sequence[GradcheckFacts]) -> str:
    pairs = [pair for check in checks for pair in check.pairs]
    bad = sum(is_bad(pair.verdict) for pair in pairs)
    text = f"{verdict_text(verdict)}: {f'{bad:,} of ' if bad else ''}"
    text += f"{_count(len(pairs), 'pair')} of output and input"
    text += f" on {_count(len(checks), 'sample')}"
    gaps = [p.worst.difference for p in pairs if p.worst is not None]
    if gaps:
        largest = max(gaps, key=lambda gap: math.inf if math.isnan(gap) else gap)
        text += f", largest error {number_text(largest)}"
    return text


def _timing_lines(facts: TimingFacts) -> Iterator[str]:
    beside = f", beside {facts.reference}" if facts.reference else ""
    yield _line("timing", f"{facts.operator}, {facts.dtype}{beside}")
    for row in facts.rows:
        words = dict(zip(TIMING_HEADS, timing_words(row), strict=True))
        parts = [words["time"], words["bandwidth"], f"{words['of the limit']} of the limit"]
        if words["speed-up"]:
            parts.append(f"{words['speed-up']} as fast")
        yield _line("", f"{row.sizes}: {', '.join(parts)}")
    yield from (_line("", f"note: {note}") for note in facts.notes)


def _build_lines(report: Report) -> Iterator[str]:
    build = report.build
    yield _line("build", f"{build.how}, ready after {build.ready_seconds:.2f} s")
    if report.timing and report.steps:
        yield _line("", steps_text(report))
    if build.cuda is not None:
        yield _line("", f"for {build.cuda.text}")
    said = [
        _line("", f"{d.level} at line {d.line}: {d.message}" + (f" ({d.fix})" if d.fix else ""))
        for d in build.diagnostics
    ]
    yield from _cut(said, "compiler messages")
    if report.listing is not None:
        remarks = _count(len(report.listing.remarks), "remark")
        count = _count(len(report.listing.instructions), "instruction")
        yield _line("listing", f"{remarks}, {count}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
