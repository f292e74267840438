"""What a report says first: how the cell stands in a few words, and every failure in a sentence.

Text, static HTML and the widget draw the same sentences, so they are made here once, out of the
report's plain data. Numbers are spelled by :func:`number_text` in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpkernel.verdicts import is_bad, verdict_text

if TYPE_CHECKING:
    from tpkernel.report import Finding, GradcheckFacts, PairFacts, Report, ValidationRow

__all__ = [
    "SECTIONS",
    "Problem",
    "admitted_first",
    "finding_text",
    "headlines",
    "number_text",
    "opening",
    "problems",
    "tolerance_text",
    "validation_lines",
    "worst_text",
]

#: Sections of a report, as tabs of the widget.
SECTIONS = ("Operator", "Gradcheck", "Validation", "Findings", "Build")

# What the title says of a finding, by its code.
_HEADLINES = {
    "crash": "crashed",
    "hang": "gave no answer in time",
    "writes_outside": "writes outside its memory",
    "writes_input": "writes its input",
    "not_written": "output not fully written",
    "reads_output": "output depends on old memory",
    "reads_outside": "reads outside its memory",
}
_PAIR_CODES = {"gradient_shape": "gradient of wrong shape"}
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
        plain = f"gradcheck {verdict.replace('_', ' ')}"
        words[_PAIR_CODES.get(code or "", plain)] = None
    if is_bad(report.validation_verdict):
        words[f"validation {report.validation_verdict}"] = None
    return list(words)


def opening(report: Report) -> str:
    """Return the section to show first: the one that failed, else the operator's."""
    return next((p.section for p in problems(report) if p.level == "error"), "Operator")


def problems(report: Report) -> list[Problem]:
    """Return what is wrong: errors of findings, pairs of the gradcheck, validation, warnings."""
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
        Problem("Findings", "warning", f"! {finding_text(f)}")
        for f in report.findings
        if f.level == "warning"
    ]
    if len(found) > _LIMIT:
        more = len(found) - _LIMIT
        found = [*found[:_LIMIT], Problem("Findings", "error", f"and {more} more below")]
    return found


def _gradcheck_problems(checks: Sequence[GradcheckFacts]) -> list[Problem]:
    """Say each kind of failure once, however many samples show it."""
    groups: dict[tuple[str, ...], list[tuple[GradcheckFacts, PairFacts | None]]] = {}
    for check in checks:
        bad = [p for p in check.pairs if is_bad(p.verdict)]
        for p in bad:
            key = (check.operator, str(p.output), p.input, p.verdict, p.code or "")
            groups.setdefault(key, []).append((check, p))
        if not bad and is_bad(check.verdict):
            groups.setdefault((check.operator, check.verdict), []).append((check, None))
    made = []
    for members in groups.values():
        check, pair = members[0]
        where = f"{check.operator} on {check.sample}"
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


def number_text(value: float | str | None) -> str:
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
    at_in = ", ".join(map(str, worst["input_index"]))
    at_out = ", ".join(map(str, worst["output_index"]))
    return (
        f"worst at {pair.input}[{at_in}] → output[{at_out}]: "
        f"analytical {number_text(worst['analytical'])}, "
        f"numerical {number_text(worst['numerical'])}, "
        f"difference {number_text(worst['difference'])}, "
        f"tolerance {number_text(worst['tolerance'])}"
    )


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


def _dtype_lines(head: str, rows: Sequence[ValidationRow]) -> list[str]:
    by_devices: dict[tuple[str, ...], list[str]] = {}
    for dtype in dict.fromkeys(r.dtype for r in rows):
        devices = tuple(r.device for r in rows if r.dtype == dtype and r.admitted)
        by_devices.setdefault(devices, []).append(dtype)
    admitted = [
        f"{', '.join(dtypes)} on {', '.join(devices)}"
        for devices, dtypes in by_devices.items()
        if devices
    ]
    lines = [f"{head}: admitted: {'; '.join(admitted) or 'nothing'}"]
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
