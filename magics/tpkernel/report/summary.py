"""What a report says first: how the cell stands in a few words, and every failure in a sentence.

Text, static HTML and the widget draw the same sentences, so they are made here once, out of the
report's plain data. Numbers are spelled by :func:`number_text` in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpkernel.checks.verdicts import is_bad, verdict_text

if TYPE_CHECKING:
    from tpkernel.report.facts import (
        CompileFacts,
        Finding,
        GradcheckFacts,
        OpcheckFacts,
        PairFacts,
        StepCurve,
        TimingRow,
        ValidationRow,
    )
    from tpkernel.report.report import Report

__all__ = [
    "SECTIONS",
    "TIMING_HEADS",
    "Problem",
    "admitted_first",
    "admitted_lines",
    "compile_text",
    "curve_rows",
    "curve_text",
    "finding_text",
    "gravest_first",
    "headlines",
    "jacobian_text",
    "number_text",
    "opcheck_text",
    "opening",
    "problems",
    "steps_text",
    "time_text",
    "timing_words",
    "tolerance_text",
    "validation_lines",
    "validation_title",
    "worst_text",
]

#: Sections of a report, as tabs of the widget.
SECTIONS = ("Operator", "Gradcheck", "Validation", "Compile", "Timing", "Findings", "Build")

# What the title says of a finding, by its code.
_HEADLINES = {
    "crash": "crashed",
    "hang": "gave no answer in time",
    "out_of_memory": "runs out of memory",
    "crash_at_exit": "fails as the process ends",
    "hang_at_exit": "keeps the process from ending",
    "writes_outside": "writes outside its memory",
    "writes_input": "writes its input",
    "not_written": "output not fully written",
    "reads_output": "output depends on old memory",
    "reads_outside": "reads outside its memory",
    "gradient_at_zero": "gradient wrong at 0 or 1",
    "keeps_state": "keeps state between calls",
    "non_deterministic": "not deterministic",
    "ignores_strides": "ignores strides",
}
_PAIR_CODES = {"gradient_shape": "gradient of wrong shape"}
# What the title says of a gradcheck, by its verdict: the check is right and the gradient is not.
_GRADCHECK_WORDS = {
    "wrong": "gradient wrong",
    "missing": "gradient missing",
    "non_deterministic": "not deterministic",
}
_EXAMPLES = ("int64", "float64", "float32")
_LIMIT = 6


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, or that a person should know before anything else.

    Attributes
    ----------
    section
        Where the details are: one of :data:`SECTIONS`.
    level
        ``"error"`` or ``"warning"``.
    text
        One sentence or a few.
    """

    section: str
    level: str
    text: str


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings as every form lists them: errors, warnings, notes, each as they came."""
    return sorted(findings, key=lambda f: ("error", "warning", "note").index(f.level))


def headlines(report: Report) -> list[str]:
    """Return a few words per kind of failure, for the title; empty when all is well."""
    words: dict[str, None] = {}
    for finding in report.findings:
        if finding.level != "error":
            continue
        if finding.code in _HEADLINES:
            signal = f" ({finding.signal})" if finding.signal else ""
            words[_HEADLINES[finding.code] + signal] = None
        elif finding.check != "validation" or report.validation_verdict in ("", "ok"):
            words[f"{finding.check} failed"] = None
    verdict = report.gradcheck_verdict
    if is_bad(verdict):
        code = next((p.code for g in report.gradcheck for p in g.pairs if p.verdict == verdict), "")
        plain = _GRADCHECK_WORDS.get(verdict, f"gradcheck {verdict}")
        words[_PAIR_CODES.get(code or "", plain)] = None
    if is_bad(report.opcheck_verdict):
        words["opcheck failed"] = None
    if is_bad(report.compiled_verdict):
        words["compiled call differs"] = None
    if is_bad(report.validation_verdict):
        words[f"validation {report.validation_verdict}"] = None
    return list(words)


def opening(report: Report) -> str:
    """Return the section to show first: what failed, what was asked for, else the operator."""
    failed = (p.section for p in problems(report) if p.level == "error")
    return next(failed, "Timing" if report.timing else "Operator")


def steps_text(report: Report) -> str:
    """Return what each step of the build took."""
    return ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in report.steps.items())


def problems(report: Report, limit: int = _LIMIT) -> list[Problem]:
    """Return what is wrong: errors of findings, the gradcheck, validation, opcheck; warnings.

    Parameters
    ----------
    limit
        How many to say; one more says how many are left out.
    """
    found = [
        Problem("Findings", "error", f"✘ {finding_text(f)}")
        for f in report.findings
        if f.level == "error" and f.check != "validation"
    ]
    found += _gradcheck_problems(report.gradcheck)
    rows = [r for r in report.validation if r.verdict != "ok"]
    said = [f for f in report.findings if f.level == "error" and f.check == "validation"]
    section = "Validation" if rows else "Findings"
    found += [Problem(section, "error", f"✘ {finding_text(f)}") for f in said]
    if rows and not said:
        found += [Problem("Validation", "error", f"{_row_head(r)}: {r.answer}") for r in rows]
    found += [
        Problem("Operator", "error", f"{verdict_text('wrong')}: {opcheck_text(o)}")
        for o in report.opcheck
        if o.failures
    ]
    found += [
        Problem("Compile", "error", f"{verdict_text('wrong')}: {compile_text(c)}")
        for c in report.compiled
        if is_bad(c.verdict)
    ]
    found += [
        Problem("Findings", "warning", f"! {finding_text(f)}")
        for f in report.findings
        if f.level == "warning"
    ]
    if len(found) > limit:
        more = len(found) - limit
        found = [*found[:limit], Problem("Findings", "error", f"and {more} more below")]
    return found


def _gradcheck_problems(checks: Sequence[GradcheckFacts]) -> list[Problem]:
    """Say each kind of failure once, however many samples show it."""
    groups: dict[tuple[str, ...], list[tuple[GradcheckFacts, PairFacts | None]]] = {}
    for check in checks:
        bad = [p for p in check.pairs if is_bad(p.verdict)]
        for p in bad:
            key = (
                check.operator,
                str(check.order),
                str(p.output),
                p.input,
                p.verdict,
                p.code or "",
            )
            groups.setdefault(key, []).append((check, p))
        if not bad and is_bad(check.verdict):
            groups.setdefault((check.operator, str(check.order), check.verdict), []).append(
                (check, None)
            )
    made = []
    for members in groups.values():
        check, pair = members[0]
        where = f"{check.operator} on {check.sample}"
        if check.order == 2:
            where = f"second order of {where}"
        if len(members) > 1:
            others = len(members) - 1
            where += f" and {others} more sample{'s' if others > 1 else ''}"
        if pair is None:
            text = f"{verdict_text(check.verdict)}: {where}. {check.message}"
        else:
            text = f"{_pair_head(pair)}: {where}, output {pair.output} by {pair.input}."
            if pair.worst is None and pair.message:
                text += f" {pair.message}"
            if pair.cause:
                text += f" Likely: {pair.cause.rstrip('.')}."
            if pair.worst is not None:
                worst = worst_text(pair)
                text += f" {worst[0].upper()}{worst[1:]}."
        made.append(Problem("Gradcheck", "error", text))
    return made


def _pair_head(pair: PairFacts) -> str:
    return verdict_text(pair.verdict) + (f" ({pair.code})" if pair.code else "")


def finding_text(finding: Finding) -> str:
    """Return a finding in a line: check, operator, message."""
    where = f"{finding.check} of {finding.operator}" if finding.operator else finding.check
    return f"{where}: {finding.message}"


# -- numbers --------------------------------------------------------------------------------------


def number_text(value: complex | str | None) -> str:
    """Spell a number with six digits at most; text stays as it is."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else f"{value:.6g}"


def tolerance_text(pair: PairFacts) -> str:
    """Return step and tolerances of a pair, or nothing where it got no step."""
    if pair.step is None:
        return ""
    return (
        f"step {number_text(pair.step)}, atol {number_text(pair.atol)}, "
        f"rtol {number_text(pair.rtol)}"
    )


def worst_text(pair: PairFacts) -> str:
    """Return the worst element of a pair in words, or nothing."""
    if pair.worst is None:
        return ""
    worst = pair.worst
    at_in = ", ".join(map(str, worst.input_index))
    at_out = ", ".join(map(str, worst.output_index))
    return (
        f"worst at {pair.input}[{at_in}] → output[{at_out}]: "
        f"analytical {number_text(worst.analytical)}, "
        f"numerical {number_text(worst.numerical)}, "
        f"difference {number_text(worst.difference)}, "
        f"tolerance {number_text(worst.tolerance)}"
    )


def jacobian_text(pair: PairFacts) -> str:
    """Say in a sentence what the heat map of a pair shows, or nothing."""
    facts = pair.jacobian
    if facts is None:
        return ""
    size = f"{math.prod(facts.input_shape)} × {math.prod(facts.output_shape) * facts.parts}"
    over = sum(not d <= a for d, a in zip(facts.difference, facts.allowed, strict=True))
    finite = [d for d in facts.difference if math.isfinite(d)]
    largest = number_text(max(finite)) if len(finite) == len(facts.difference) else "not finite"
    text = f"Jacobian {size}, input by output: largest error {largest}, "
    if facts.places:
        text += f"in {over} of {len(facts.difference)} blocks above what is allowed"
    else:
        text += f"{over} of {len(facts.difference)} elements above what is allowed"
    return text


def curve_text(curve: StepCurve) -> str:
    """Say in a sentence where rounding ends and truncation begins."""
    gaps = [g for g in curve.reference_gap if math.isfinite(g)]
    if not gaps:
        return "the differences are not finite at any step"
    lowest = min(gaps)
    best = curve.steps[curve.reference_gap.index(lowest)]
    text = f"smallest error {number_text(lowest)} at step {number_text(best)}; "
    if curve.meeting is None:
        text += "rounding and truncation do not both show"
    else:
        text += f"rounding and truncation meet at step {number_text(curve.meeting)}"
    if curve.used is not None:
        text += f"; the check used {number_text(curve.used)}"
    return text


def curve_rows(curve: StepCurve) -> list[tuple[str, str, str]]:
    """Return step and both gaps, as the cells of a table."""
    columns = (curve.steps, curve.formula_gap, curve.reference_gap)
    return [
        (number_text(a), number_text(b), number_text(c)) for a, b, c in zip(*columns, strict=True)
    ]


# -- opcheck, timing ------------------------------------------------------------------------------


def opcheck_text(facts: OpcheckFacts) -> str:
    """Say in a line what opcheck found."""
    where = f"opcheck of {facts.operator} on {facts.sample}"
    if not facts.failures:
        return f"{where}: the operator does what it declares"
    said = "; ".join(
        f"{f.test} [{f.code}]"
        + (f" on the {f.variant} call" if f.variant else "")
        + f": {f.message}"
        for f in facts.failures
    )
    return f"{where}: {said}"


def compile_text(facts: CompileFacts) -> str:
    """Say in a line whether a compiled call agrees with an eager one."""
    where = f"compile of {facts.operator} on {facts.sample}"
    if facts.breaks or not facts.graph:
        return f"{where}: not captured: {'; '.join(facts.breaks) or 'no graph'}"
    text = f"{where}: results differ by {number_text(facts.difference)} from eager ones"
    if facts.gradient_difference is not None:
        text += f", gradients by {number_text(facts.gradient_difference)}"
    return f"{text}; allowed {number_text(facts.allowed)}"


#: Columns of the table of times.
TIMING_HEADS = (
    "sizes", "time", "median", "bandwidth", "copying as much", "of the limit", "reference",
    "speed-up", "largest difference",
)  # fmt: skip


def timing_words(row: TimingRow) -> tuple[str, ...]:
    """Return a row of times as the cells of a table, in the order of :data:`TIMING_HEADS`."""
    other = row.reference
    return (
        row.sizes,
        time_text(row.seconds),
        time_text(row.median),
        f"{row.bandwidth / 1e9:.3g} GB/s",
        time_text(row.limit),
        f"{100 * row.limit / row.seconds:.0f} %",
        "" if other is None else time_text(other),
        "" if other is None else f"{other / row.seconds:.2f} ×",
        "" if row.gap is None else number_text(row.gap),
    )


def time_text(seconds: float) -> str:
    """Spell a time in the unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


# -- validation -----------------------------------------------------------------------------------


def _row_head(row: ValidationRow) -> str:
    return f"{row.operator} {row.argument} {row.dtype} {row.device} {row.layout}"


def validation_lines(rows: Sequence[ValidationRow]) -> list[str]:
    """Say in a few lines what each argument admits, and one exact error for the rest."""
    lines = []
    groups: dict[tuple[str, str], list[ValidationRow]] = {}
    for row in rows:
        groups.setdefault((row.operator, row.argument), []).append(row)
    for (operator, argument), members in groups.items():
        plain = [r for r in members if r.layout == "contiguous"]
        if plain:
            lines += _dtype_lines(f"{operator}, {argument}", plain)
        lines += [
            f"{operator}, {argument}, {r.layout}: {r.answer}"
            for r in members
            if r.layout != "contiguous"
        ]
    return lines


def validation_title(report: Report) -> str:
    """Return how the validation stands, and how much of it is admitted."""
    rows = report.validation
    admitted = sum(r.admitted for r in rows)
    verdict = verdict_text(report.validation_verdict)
    return f"validation: {verdict}, {admitted} of {len(rows)} combinations admitted"


def admitted_lines(rows: Sequence[ValidationRow]) -> list[str]:
    """Say what the arguments admit, those that admit the same in one line."""
    groups: dict[tuple[str, str], list[ValidationRow]] = {}
    for row in rows:
        groups.setdefault((row.operator, row.argument), []).append(row)
    several = len({operator for operator, _ in groups}) > 1
    same: dict[tuple[str, str], list[str]] = {}
    for (operator, argument), members in groups.items():
        plain = [r for r in members if r.layout == "contiguous"]
        parts = [_admitted(plain)] if plain else []
        parts += [f"{r.layout} too" for r in members if r.layout != "contiguous" and r.admitted]
        if not parts:  # only another layout was tried, and the kernel refuses it
            layouts = dict.fromkeys(r.layout for r in members)
            parts = [f"{layout} is refused" for layout in layouts]
        said = "; ".join(parts)
        same.setdefault((operator if several else "", said), []).append(argument)
    return [
        f"{operator + ', ' if operator else ''}{', '.join(arguments)}: {said}"
        for (operator, said), arguments in same.items()
    ]


def _admitted(rows: Sequence[ValidationRow]) -> str:
    by_devices: dict[tuple[str, ...], list[str]] = {}
    for dtype in dict.fromkeys(r.dtype for r in rows):
        devices = tuple(r.device for r in rows if r.dtype == dtype and r.admitted)
        by_devices.setdefault(devices, []).append(dtype)
    admitted = [
        f"{', '.join(dtypes)} on {', '.join(devices)}"
        for devices, dtypes in by_devices.items()
        if devices
    ]
    return "; ".join(admitted) or "nothing"


def _dtype_lines(head: str, rows: Sequence[ValidationRow]) -> list[str]:
    lines = [f"{head}: admitted: {_admitted(rows)}"]
    refused = [r for r in rows if not r.admitted]
    if refused:
        dtypes = list(dict.fromkeys(r.dtype for r in refused))
        example = next((r for name in _EXAMPLES for r in refused if r.dtype == name), refused[0])
        count = f"{len(dtypes)} dtype{'s' if len(dtypes) > 1 else ''}"
        lines.append(f"{head}: refused: {count}, e.g. {example.message}")
    return lines


def admitted_first(rows: Iterable[ValidationRow]) -> list[ValidationRow]:
    """Return rows that are wrong, then those that are admitted, then the refused ones."""
    return sorted(rows, key=lambda r: (r.verdict == "ok", not r.admitted))
