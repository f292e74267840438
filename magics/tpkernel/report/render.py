"""A report as text and as static HTML: the same facts, readable anywhere.

The HTML has no script, style sheet, image or identifier, and stands on one line: it must survive
JupyterLab's sanitizer, a notebook converter without network, and front ends that do not rejoin
lines. Sections open and close by themselves (``details``). Words and signs carry the meaning, never
colour alone. Everything that a person typed is escaped.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from tpkernel.checks.verdicts import is_bad, verdict_text
from tpkernel.report.bounds import HTML_LIMIT, bounded
from tpkernel.report.brief import brief_text
from tpkernel.report.facts import (
    CUDA_HEADS,
    BuildFacts,
    CompileFacts,
    CudaKernelFacts,
    DiagnosticFacts,
    Finding,
    FunctionFacts,
    GradcheckFacts,
    InstructionFacts,
    JacobianFacts,
    ListingFacts,
    OpcheckFacts,
    OperatorFacts,
    PairFacts,
    TimingFacts,
    ValidationRow,
)
from tpkernel.report.markup import (
    code_html,
    details,
    escaped,
    heat_map,
    one_line,
    paragraph,
    pre,
    table,
)
from tpkernel.report.report import Report
from tpkernel.report.summary import (
    TIMING_HEADS,
    admitted_first,
    compile_text,
    curve_rows,
    curve_text,
    finding_text,
    gravest_first,
    jacobian_text,
    opcheck_text,
    opening,
    problems,
    steps_text,
    timing_words,
    tolerance_text,
    validation_lines,
    validation_title,
    worst_text,
)

__all__ = ["error_html", "report_html", "report_text"]

# -- text -----------------------------------------------------------------------------------------


def report_text(report: Report) -> str:
    """Return a report as text."""
    lines = [f"{report.cell}: {report.title}", *(f"  {p.text}" for p in problems(report))]
    for operator in report.operators:
        if not operator.helper:
            lines += ["", *_operator_text(operator)]
    for function in report.functions:
        lines += ["", f"function {function.signature}", *_guards_text(function.guards)]
    if report.registered:
        lines += ["", *(f"registers {kind} {name}" for kind, name in report.registered)]
    if report.gradcheck:
        lines += ["", f"gradcheck: {verdict_text(report.gradcheck_verdict)}"]
        for check in report.gradcheck:
            lines += _gradcheck_text(check)
    if report.opcheck:
        lines += ["", f"opcheck: {verdict_text(report.opcheck_verdict)}"]
        for opcheck in report.opcheck:
            lines += _opcheck_text(opcheck)
    for compiled in report.compiled:
        lines += ["", *_compile_text(compiled)]
    for times in report.timing:
        lines += ["", *_timing_text(times)]
    if report.validation:
        lines += ["", validation_title(report)]
        lines += [f"  {line}" for line in validation_lines(report.validation)]
    if report.findings:
        lines += ["", "findings"]
        lines += [f"  {f.level}: {finding_text(f)}" for f in gravest_first(report.findings)]
    lines += ["", *_build_text(report.build), f"  steps   {steps_text(report)}"]
    if report.listing is not None:
        lines += ["", *_listing_text(report.listing)]
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
    lines = [f"  {_check_title(check)}"]
    for pair in check.pairs:
        lines.append(f"    output {pair.output} by {pair.input}: {_pair_text(pair)}")
        if pair.jacobian is not None:
            lines.append(f"      {jacobian_text(pair)}")
        if pair.curve is not None:
            lines.append(f"      error against step: {curve_text(pair.curve)}")
            for step, formula, reference in curve_rows(pair.curve):
                lines.append(f"        step {step}: formula {formula}, extrapolation {reference}")
    if check.message and not check.pairs:
        lines += ["    " + line for line in check.message.splitlines()]
    lines += [f"    note: {note}" for note in check.notes]
    return lines


def _check_title(check: GradcheckFacts) -> str:
    order = "second order of " if check.order == 2 else ""
    chosen = f" ({check.settings})" if check.settings else ""
    return f"{verdict_text(check.verdict)}: {order}{check.operator} on {check.sample}{chosen}"


def _opcheck_text(facts: OpcheckFacts) -> list[str]:
    lines = [f"  {verdict_text(facts.verdict)}: {opcheck_text(facts)}"]
    lines.append(f"    tests: {', '.join(facts.tests)}")
    return [*lines, *(f"    note: {note}" for note in facts.notes)]


def _compile_text(facts: CompileFacts) -> list[str]:
    lines = [f"{verdict_text(facts.verdict)}: {compile_text(facts)}"]
    for region in facts.regions:
        why = f" ({region.reason})" if region.reason else ""
        lines.append(f"  {region.kind}: {region.nodes}{why}")
    for title, text in (("graph", facts.graph), ("backward graph", facts.backward_graph)):
        if text:
            lines += [f"  {title}:", *(f"    {line}" for line in text.rstrip().splitlines())]
    return lines


def _timing_title(facts: TimingFacts) -> str:
    title = f"timing of {facts.operator}, {facts.dtype}"
    return f"{title}, beside {facts.reference}" if facts.reference else title


def _timing_text(facts: TimingFacts) -> list[str]:
    lines = [_timing_title(facts)]
    for row in facts.rows:
        words = zip(TIMING_HEADS[1:], timing_words(row)[1:], strict=True)
        lines.append(f"  {row.sizes}: " + ", ".join(f"{h} {w}" for h, w in words if w))
    return [*lines, *(f"  note: {note}" for note in facts.notes)]


def _by_function(facts: ListingFacts) -> list[tuple[str, list[InstructionFacts]]]:
    return [(name, list(part)) for name, part in groupby(facts.instructions, lambda i: i.function)]


def _instruction_text(facts: InstructionFacts) -> str:
    line = "" if facts.line is None else f"  ; line {facts.line}"
    return f"{facts.address}: {facts.text}{line}"


def _listing_text(facts: ListingFacts) -> list[str]:
    lines = ["listing"]
    lines += [f"  remark at line {d.line}: {_diagnostic(d)}" for d in facts.remarks]
    for function, part in _by_function(facts):
        lines += [f"  {function}", *(f"    {_instruction_text(i)}" for i in part)]
    if facts.command:
        lines.append(f"  command {facts.command}")
    return [*lines, *(f"  note: {note}" for note in facts.notes)]


def _pair_text(pair: PairFacts) -> str:
    text = ", ".join(
        part
        for part in (verdict_text(pair.verdict), tolerance_text(pair), worst_text(pair))
        if part
    )
    if pair.cause:
        text += f". Likely: {pair.cause}"
    return text


def _validation_text(rows: Sequence[ValidationRow]) -> list[str]:
    """Return each combination, those that were refused last."""
    lines = ["validation, each combination"]
    for row in admitted_first(rows):
        head = f"  {row.argument} {row.dtype} {row.device} {row.layout}: "
        lines.append(head + row.answer)
    return lines


def _build_text(build: BuildFacts) -> list[str]:
    how = "found in the cache" if build.cached else "built"
    times = f"{build.seconds:.3f} s to build, ready after {build.ready_seconds:.3f} s"
    lines = [
        f"build: {how}, {times}, {build.rung} headers",
        f"  library {build.library}",
        f"  key     {build.key}",
    ]
    lines += [f"    of {name}: {value}" for name, value in build.inputs]
    if build.cuda is not None:
        lines.append(f"  CUDA    for {build.cuda.text}")
        lines += [f"    {_cuda_kernel_text(kernel)}" for kernel in build.cuda.kernels]
    lines += [f"  command {shlex.join(command)}" for command in build.commands]
    lines += [f"  {d.level} at line {d.line}: {_diagnostic(d)}" for d in build.diagnostics]
    return lines


def _cuda_kernel_text(facts: CudaKernelFacts) -> str:
    name, target, *sizes = facts.row
    said = ", ".join(f"{size} {head}" for size, head in zip(sizes, CUDA_HEADS[2:], strict=True))
    return f"{name} on {target}: {said}"


def _diagnostic(facts: DiagnosticFacts) -> str:
    return f"{facts.message} ({facts.fix})" if facts.fix else facts.message


# -- HTML -----------------------------------------------------------------------------------------


def report_html(report: Report) -> str:
    """Return a report as one line of HTML without script or style sheet, below `HTML_LIMIT`."""
    whole, report = report, bounded(report)
    first = opening(whole)
    sections = {
        "Operator": "".join(
            [
                *(
                    _operator_html(o, opened=first == "Operator" and len(report.operators) < 3)
                    for o in report.operators
                    if not o.helper
                ),
                *(_function_html(f) for f in report.functions),
                _registered_html(report) if report.registered else "",
                _opcheck_html(report) if report.opcheck else "",
            ]
        ),
        "Gradcheck": _gradcheck_html(report) if report.gradcheck else "",
        "Validation": _validation_html(report, whole) if report.validation else "",
        "Compile": "".join(map(_compile_html, report.compiled)),
        "Timing": "".join(map(_timing_html, report.timing)),
        "Findings": _findings_html(report.findings) if report.findings else "",
        "Build": _build_html(report),
    }
    parts = [
        f"<p><strong>{escaped(report.cell)}</strong>: {escaped(whole.title)}</p>",
        *(f"<p>{escaped(problem.text)}</p>" for problem in problems(report)),
        sections.pop(first),
        *sections.values(),
        *(f"<p>Note: {escaped(note)}</p>" for note in report.notes),
    ]
    page = one_line(f"<div>{''.join(parts)}</div>")
    if len(page.encode()) < HTML_LIMIT:
        return page
    # Texts that are mostly signs to be escaped: the summary, which is plain text, has to do.
    return one_line(f"<div>{pre(brief_text(report)[: HTML_LIMIT // 8])}</div>")


def error_html(title: str, text: str) -> str:
    """Return an error as one line of HTML."""
    return one_line(f"<div><p><strong>{escaped(title)}</strong></p>{pre(text)}</div>")


def _operator_html(facts: OperatorFacts, *, opened: bool) -> str:
    gradient = [(name, formula) for name, formula in facts.derivatives]
    body = f"<p><code>{escaped(facts.schema)}</code></p>"
    if facts.doc:
        body += f"<p>{escaped(facts.doc)}</p>"
    body += (
        f"<p>Kernel <code>{escaped(facts.kernel)}</code>, declared by {escaped(facts.origin)}.</p>"
    )
    body += table("Guards before the kernel", ("argument", "guard"), facts.guards)
    if gradient:
        body += table("Gradients", ("input", "formula"), gradient)
    else:
        body += "<p>Gradient: none declared; backward raises.</p>"
    for title, source in (
        ("Generated wrapper", facts.wrapper),
        ("Fake kernel", facts.fake),
        ("Gradient", facts.gradient),
    ):
        if source:
            body += details(title, code_html(source, "python"), opened=False)
    return details(f"Operator {facts.name}", body, opened=opened)


def _function_html(facts: FunctionFacts) -> str:
    body = f"<p><code>{escaped(facts.signature)}</code></p>"
    if facts.guards:
        body += table("Guards before the kernel", ("argument", "guard"), facts.guards)
    return details(f"Function {facts.name}", body)


def _registered_html(report: Report) -> str:
    body = table("Registered for the whole process", ("kind", "name"), report.registered)
    return details("Registrations", body)


#: Columns of the gradcheck's table: what matters stands where a narrow page still shows it.
_PAIR_HEADS = (
    "verdict", "likely cause", "pair", "sample", "worst element", "step and tolerance", "operator",
)  # fmt: skip


def _pair_row(check: GradcheckFacts, pair: PairFacts) -> tuple[str, ...]:
    chosen = f" ({check.settings})" if check.settings else ""
    order = "second order: " if check.order == 2 else ""
    return (
        verdict_text(pair.verdict) + (f" ({pair.code})" if pair.code else ""),
        pair.cause or "",
        f"{order}output {pair.output} by {pair.input}",
        check.sample + chosen,
        worst_text(pair),
        tolerance_text(pair),
        check.operator,
    )


def _gradcheck_messages(check: GradcheckFacts) -> str:
    """Return what the table of pairs does not say."""
    text = ""
    if not check.pairs:
        text += paragraph(f"{_check_title(check)}. {check.message}")
    for pair in check.pairs:
        head = f"{check.operator} on {check.sample}, output {pair.output} by {pair.input}"
        if pair.jacobian is not None:
            said = jacobian_text(pair)
            picture = heat_map(_ratios(pair.jacobian), f"{said}. {_SCALE}")
            body = paragraph(f"{said}. {_SCALE}") + picture
            text += details(f"Jacobian error: {head}", body, opened=is_bad(pair.verdict))
        if pair.curve is not None:
            rows = curve_rows(pair.curve)
            heads = ("step", "gap to the formula", "gap to the extrapolation")
            body = paragraph(curve_text(pair.curve)) + table("Error against step", heads, rows)
            text += details(f"Error against step: {head}", body)
    return text


_SCALE = (
    "Rows are elements of the input, columns those of the output; white is no error, blue up to "
    "what is allowed, orange to red beyond it"
)


def _ratios(facts: JacobianFacts) -> npt.NDArray[np.float64]:
    with np.errstate(all="ignore"):
        ratios = np.asarray(facts.difference, float) / np.asarray(facts.allowed, float)
    return np.asarray(ratios.reshape(facts.rows, facts.columns))


def _gradcheck_html(report: Report) -> str:
    checks = report.gradcheck
    rows = [_pair_row(check, pair) for check in checks for pair in check.pairs]
    messages = "".join(_gradcheck_messages(check) for check in checks)
    notes = dict.fromkeys(note for check in checks for note in check.notes)
    messages += "".join(f"<p>Note: {escaped(note)}</p>" for note in notes)
    worst = verdict_text(report.gradcheck_verdict)
    pairs = table("Gradcheck", _PAIR_HEADS, rows) if rows else ""
    return details(f"Gradcheck: {worst}", pairs + messages)


def _validation_html(report: Report, whole: Report) -> str:
    rows = table(
        "Validation",
        ("argument", "dtype", "device", "layout", "answer", "operator"),
        (
            (r.argument, r.dtype, r.device, r.layout, r.answer, r.operator)
            for r in admitted_first(report.validation)
        ),
    )
    lines = "".join(f"<p>{escaped(line)}</p>" for line in validation_lines(report.validation))
    body = lines + details("Each combination", rows, opened=False)
    return details(validation_title(whole).capitalize(), body)


def _opcheck_html(report: Report) -> str:
    parts = []
    for facts in report.opcheck:
        parts.append(paragraph(opcheck_text(facts)))
        if facts.failures:
            rows = [(f.test, f.code, f.variant, f.message) for f in facts.failures]
            parts.append(table("What opcheck found", ("test", "code", "call", "message"), rows))
        parts.append(paragraph(f"Tests: {', '.join(facts.tests)}"))
        parts += [paragraph(f"Note: {note}") for note in facts.notes]
    verdict = report.opcheck_verdict
    title = f"Operator check (opcheck): {verdict_text(verdict)}"
    return details(title, "".join(parts), opened=is_bad(verdict))


def _compile_html(facts: CompileFacts) -> str:
    body = paragraph(compile_text(facts))
    if facts.regions:
        rows = [(r.kind, r.nodes, r.reason) for r in facts.regions]
        body += table("What runs together", ("as", "nodes", "reason"), rows)
    for title, text in (("Graph", facts.graph), ("Backward graph", facts.backward_graph)):
        if text:
            body += details(title, code_html(text, "python"), opened=False)
    return details(f"Compile of {facts.operator}: {verdict_text(facts.verdict)}", body)


def _timing_html(facts: TimingFacts) -> str:
    body = table("Times", TIMING_HEADS, [timing_words(row) for row in facts.rows])
    body += "".join(paragraph(f"Note: {note}") for note in facts.notes)
    return details(_timing_title(facts).capitalize(), body)


def _findings_html(findings: Sequence[Finding]) -> str:
    rows = [(f.level, f.message, f.check, f.operator) for f in findings]
    return details("Findings", table("Findings", ("level", "message", "check", "operator"), rows))


def _build_html(report: Report) -> str:
    build = report.build
    how = "found in the cache" if build.cached else "built"
    rows = [
        ("result", how),
        ("time to build", f"{build.seconds:.3f} s"),
        ("ready after", f"{build.ready_seconds:.3f} s"),
        ("steps", steps_text(report)),
        ("headers", build.rung),
        ("library", build.library),
        ("key", build.key),
    ]
    if build.cuda is not None:
        rows.insert(1, ("CUDA", f"for {build.cuda.text}"))
    body = table("Build", ("fact", "value"), rows)
    if build.cuda is not None:
        body += table("CUDA kernels", CUDA_HEADS, [k.row for k in build.cuda.kernels])
    if build.diagnostics:
        body += table(
            "Compiler messages",
            ("level", "line", "message"),
            [(d.level, str(d.line), _diagnostic(d)) for d in build.diagnostics],
        )
    if build.inputs:
        clear = table("What the key is made of", ("part", "value"), build.inputs)
        body += details("Cache key in clear", clear, opened=False)
    body += details("Commands", pre("\n".join(shlex.join(c) for c in build.commands)), opened=False)
    if build.log.strip():
        body += details("Compiler output", pre(build.log), opened=False)
    if report.listing is not None:
        body += _listing_html(report.listing)
    opened = report.listing is not None or build.cuda is not None
    return details(f"Build: {how}", body, opened=opened)


def _listing_html(facts: ListingFacts) -> str:
    body = ""
    if facts.remarks:
        rows = [(str(d.line), _diagnostic(d), (d.source_line or "").strip()) for d in facts.remarks]
        body += table("Remarks of the optimiser", ("line", "remark", "source"), rows)
    for function, part in _by_function(facts):
        text = "\n".join(map(_instruction_text, part))
        body += details(f"Machine code of {function}", pre(text), opened=False)
    if facts.command:
        body += f"<p>Command <code>{escaped(facts.command)}</code></p>"
    return body + "".join(paragraph(f"Note: {note}") for note in facts.notes)
