"""A report as text and as static HTML: the same facts, readable anywhere.

The HTML has no script, style sheet, image or identifier, and stands on one line: it must survive
JupyterLab's sanitizer, a notebook converter without network, and front ends that do not rejoin
lines. Sections open and close by themselves (``details``). Words and signs carry the meaning, never
colour alone. Everything that a person typed is escaped.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Iterable, Sequence

from tpkernel.report import (
    BuildFacts,
    DiagnosticFacts,
    Finding,
    FunctionFacts,
    GradcheckFacts,
    OperatorFacts,
    PairFacts,
    Report,
    ValidationRow,
)
from tpkernel.summary import (
    admitted_first,
    finding_text,
    opening,
    problems,
    tolerance_text,
    validation_lines,
    worst_text,
)
from tpkernel.verdicts import verdict_text

__all__ = ["code_html", "error_html", "report_html", "report_text"]

# Text of its own on a ground of its own, so that it can be read on light and dark pages.
_PRE = (
    "background:#f6f8fa;color:#1f2328;padding:6px 8px;border:1px solid #d0d7de;overflow-x:auto;"
    "line-height:1.4;white-space:pre-wrap;word-break:normal;overflow-wrap:break-word"
)
_TABLE = "border-collapse:collapse;margin:4px 0"
_CELL = "border:1px solid #8c959f;padding:2px 8px;text-align:left;vertical-align:top"


# -- text -----------------------------------------------------------------------------------------


def report_text(report: Report) -> str:
    """Return a report as text."""
    lines = [f"{report.cell}: {report.title}", *(f"  {p.text}" for p in problems(report))]
    for operator in report.operators:
        if not operator.helper:
            lines += ["", *_operator_text(operator)]
    for function in report.functions:
        lines += ["", f"function {function.signature}", *_guards_text(function.guards)]
    if report.gradcheck:
        lines += ["", f"gradcheck: {verdict_text(report.gradcheck_verdict)}"]
        for check in report.gradcheck:
            lines += _gradcheck_text(check)
    if report.validation:
        lines += ["", _validation_title(report)]
        lines += [f"  {line}" for line in validation_lines(report.validation)]
    if report.findings:
        lines += ["", "findings"]
        lines += [f"  {f.level}: {finding_text(f)}" for f in report.findings]
    lines += ["", *_build_text(report.build), f"  steps   {_steps(report)}"]
    lines += [f"note: {note}" for note in report.notes]
    if report.validation:
        lines += ["", *_validation_text(report.validation)]
    return "\n".join(lines)


def _operator_text(facts: OperatorFacts) -> list[str]:
    lines = [f"operator {facts.schema}", f"  kernel   {facts.kernel} (from {facts.origin})"]
    if facts.doc:
        lines.append(f"  doc      {facts.doc}")
    lines += _guards_text(facts.guards)
    for name, formula in facts.derivatives:
        lines.append(f"  gradient {name}: {formula}")
    if not facts.derivatives:
        lines.append("  gradient none declared; backward raises")
    for title, source in (
        ("wrapper", facts.wrapper),
        ("fake", facts.fake),
        ("autograd", facts.gradient),
    ):
        if source:
            lines.append(f"  {title}:")
            lines += ["    " + line for line in source.rstrip().splitlines()]
    return lines


def _guards_text(guards: Iterable[tuple[str, str]]) -> list[str]:
    return [f"  guard    {name}: {text}" for name, text in guards]


def _gradcheck_text(check: GradcheckFacts) -> list[str]:
    lines = [f"  {verdict_text(check.verdict)}: {check.operator} on {check.sample}"]
    lines += [f"    output {p.output} by {p.input}: {_pair_text(p)}" for p in check.pairs]
    if check.message and not check.pairs:
        lines += ["    " + line for line in check.message.splitlines()]
    lines += [f"    note: {note}" for note in check.notes]
    return lines


def _pair_text(pair: PairFacts) -> str:
    text = ", ".join(
        part
        for part in (verdict_text(pair.verdict), tolerance_text(pair), worst_text(pair))
        if part
    )
    if pair.cause:
        text += f". Likely: {pair.cause}"
    return text


def _validation_title(report: Report) -> str:
    rows = report.validation
    admitted = sum(r.admitted for r in rows)
    verdict = verdict_text(report.validation_verdict)
    return f"validation: {verdict}, {admitted} of {len(rows)} combinations admitted"


def _validation_text(rows: Sequence[ValidationRow]) -> list[str]:
    """Return each combination, those that were refused last."""
    lines = ["validation, each combination"]
    for row in admitted_first(rows):
        head = f"  {row.argument} {row.dtype} {row.device} {row.layout}: "
        lines.append(head + row.answer)
    return lines


def _steps(report: Report) -> str:
    return ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in report.timing.items())


def _build_text(build: BuildFacts) -> list[str]:
    how = "found in the cache" if build.cached else "built"
    times = f"{build.seconds:.3f} s to build, ready after {build.ready_seconds:.3f} s"
    lines = [
        f"build: {how}, {times}, {build.rung} headers",
        f"  library {build.library}",
        f"  key     {build.key}",
    ]
    lines += [f"  command {shlex.join(command)}" for command in build.commands]
    lines += [f"  {d.level} at line {d.line}: {_diagnostic(d)}" for d in build.diagnostics]
    return lines


def _diagnostic(facts: DiagnosticFacts) -> str:
    return f"{facts.message} ({facts.fix})" if facts.fix else facts.message


# -- HTML -----------------------------------------------------------------------------------------


def report_html(report: Report) -> str:
    """Return a report as one line of HTML without script or style sheet."""
    first = opening(report)
    sections = {
        "Operator": "".join(
            [
                *(
                    _operator_html(o, opened=first == "Operator" and len(report.operators) < 3)
                    for o in report.operators
                    if not o.helper
                ),
                *(_function_html(f) for f in report.functions),
            ]
        ),
        "Gradcheck": _gradcheck_html(report) if report.gradcheck else "",
        "Validation": _validation_html(report) if report.validation else "",
        "Findings": _findings_html(report.findings) if report.findings else "",
        "Build": _build_html(report.build, _steps(report)),
    }
    parts = [
        f"<p><strong>{_e(report.cell)}</strong>: {_e(report.title)}</p>",
        *(f"<p>{_e(problem.text)}</p>" for problem in problems(report)),
        sections.pop(first),
        *sections.values(),
        *(f"<p>Note: {_e(note)}</p>" for note in report.notes),
    ]
    return _one_line(f"<div>{''.join(parts)}</div>")


def error_html(title: str, text: str) -> str:
    """Return an error as one line of HTML."""
    return _one_line(f"<div><p><strong>{_e(title)}</strong></p>{_pre(text)}</div>")


def code_html(source: str, language: str) -> str:
    """Return coloured source in a block with a ground of its own."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    formatter = HtmlFormatter(noclasses=True, nowrap=True, style="friendly")
    coloured = highlight(source.rstrip("\n"), get_lexer_by_name(language), formatter)
    return f'<pre style="{_PRE}">{coloured.rstrip()}</pre>'


def _e(text: object) -> str:
    return html.escape(str(text), quote=True)


def _one_line(text: str) -> str:
    return text.replace("\r", "").replace("\n", "&#10;")


def _pre(text: str) -> str:
    return f'<pre style="{_PRE}">{_e(text)}</pre>'


def _details(title: str, body: str, *, opened: bool = True) -> str:
    return f"<details{' open' if opened else ''}><summary>{_e(title)}</summary>{body}</details>"


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col" style="{_CELL}">{_e(h)}</th>' for h in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{_e(c)}</td>' for c in row) + "</tr>" for row in rows
    )
    return (
        f'<table style="{_TABLE}"><caption>{_e(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _operator_html(facts: OperatorFacts, *, opened: bool) -> str:
    gradient = [(name, formula) for name, formula in facts.derivatives]
    body = f"<p><code>{_e(facts.schema)}</code></p>"
    if facts.doc:
        body += f"<p>{_e(facts.doc)}</p>"
    body += f"<p>Kernel <code>{_e(facts.kernel)}</code>, declared by {_e(facts.origin)}.</p>"
    body += _table("Guards before the kernel", ("argument", "guard"), facts.guards)
    if gradient:
        body += _table("Gradients", ("input", "formula"), gradient)
    else:
        body += "<p>Gradient: none declared; backward raises.</p>"
    for title, source in (
        ("Generated wrapper", facts.wrapper),
        ("Fake kernel", facts.fake),
        ("Gradient", facts.gradient),
    ):
        if source:
            body += _details(title, code_html(source, "python"), opened=False)
    return _details(f"Operator {facts.name}", body, opened=opened)


def _function_html(facts: FunctionFacts) -> str:
    body = f"<p><code>{_e(facts.signature)}</code></p>"
    if facts.guards:
        body += _table("Guards before the kernel", ("argument", "guard"), facts.guards)
    return _details(f"Function {facts.name}", body)


#: Columns of the gradcheck's table: what matters stands where a narrow page still shows it.
_PAIR_HEADS = (
    "verdict", "likely cause", "pair", "sample", "worst element", "step and tolerance", "operator",
)  # fmt: skip


def _pair_row(check: GradcheckFacts, pair: PairFacts) -> tuple[str, ...]:
    return (
        verdict_text(pair.verdict) + (f" ({pair.code})" if pair.code else ""),
        pair.cause or "",
        f"output {pair.output} by {pair.input}",
        check.sample,
        worst_text(pair),
        tolerance_text(pair),
        check.operator,
    )


def _gradcheck_messages(check: GradcheckFacts) -> str:
    """Return what the table of pairs does not say."""
    text = ""
    if not check.pairs:
        verdict = verdict_text(check.verdict)
        text += f"<p>{_e(verdict)}: {_e(check.operator)} on {_e(check.sample)}. "
        text += f"{_e(check.message)}</p>"
    return text


def _gradcheck_html(report: Report) -> str:
    checks = report.gradcheck
    rows = [_pair_row(check, pair) for check in checks for pair in check.pairs]
    messages = "".join(_gradcheck_messages(check) for check in checks)
    notes = dict.fromkeys(note for check in checks for note in check.notes)
    messages += "".join(f"<p>Note: {_e(note)}</p>" for note in notes)
    worst = verdict_text(report.gradcheck_verdict)
    table = _table("Gradcheck", _PAIR_HEADS, rows) if rows else ""
    return _details(f"Gradcheck: {worst}", table + messages)


def _validation_html(report: Report) -> str:
    table = _table(
        "Validation",
        ("argument", "dtype", "device", "layout", "answer", "operator"),
        (
            (r.argument, r.dtype, r.device, r.layout, r.answer, r.operator)
            for r in admitted_first(report.validation)
        ),
    )
    lines = "".join(f"<p>{_e(line)}</p>" for line in validation_lines(report.validation))
    body = lines + _details("Each combination", table, opened=False)
    return _details(_validation_title(report).capitalize(), body)


def _findings_html(findings: Sequence[Finding]) -> str:
    rows = [(f.level, f.message, f.check, f.operator) for f in findings]
    return _details("Findings", _table("Findings", ("level", "message", "check", "operator"), rows))


def _build_html(build: BuildFacts, steps: str) -> str:
    how = "found in the cache" if build.cached else "built"
    rows = [
        ("result", how),
        ("time to build", f"{build.seconds:.3f} s"),
        ("ready after", f"{build.ready_seconds:.3f} s"),
        ("steps", steps),
        ("headers", build.rung),
        ("library", build.library),
        ("key", build.key),
    ]
    body = _table("Build", ("fact", "value"), rows)
    if build.diagnostics:
        body += _table(
            "Compiler messages",
            ("level", "line", "message"),
            [(d.level, str(d.line), _diagnostic(d)) for d in build.diagnostics],
        )
    body += _details(
        "Commands", _pre("\n".join(shlex.join(c) for c in build.commands)), opened=False
    )
    if build.log.strip():
        body += _details("Compiler output", _pre(build.log), opened=False)
    return _details(f"Build: {how}", body, opened=False)
