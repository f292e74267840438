"""From a cell's text to callable kernels and a report: what the magic and `build` share."""

from __future__ import annotations

import dataclasses
import pickle
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tensorplay.library.modules.source import (
    OperatorError,
    define_operators,
    kernels_of,
    operator_source,
)
from tensorplay.library.modules.spec import CellSpec, OperatorSpec
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit.build import build_text
from tensorplay.utils.cpp_jit.compile import Unit
from tensorplay.utils.cpp_jit.flags import Options, checked
from tpkernel.building.codegen import export_source, preamble
from tpkernel.building.cuda_cells import (
    CUDA_NOTE,
    compile_cuda,
    cuda_facts,
    function_facts,
    is_cuda,
    read_cuda,
    refuse_options,
)
from tpkernel.building.keys import key_inputs
from tpkernel.building.sanitizers import sanitizer_flags
from tpkernel.cells.cell import Cell, parse_cell
from tpkernel.cells.flags import chosen_sanitizers, limited_compilers, split_flags
from tpkernel.cells.hints import hints, with_hint
from tpkernel.cells.reading import Options as ReadingOptions, read_cell
from tpkernel.checks.suite import CHECKS, run_checks
from tpkernel.cpp.braces import unclosed_brace
from tpkernel.cpp.includes import Included, SharedText, expand
from tpkernel.errors import CellError, KernelCrash
from tpkernel.notebook.kernels import Function, KernelModule, Operator
from tpkernel.packaging.export import Origin
from tpkernel.report.facts import (
    BuildFacts,
    DiagnosticFacts,
    Finding,
    FunctionFacts,
    GradcheckFacts,
    OpcheckFacts,
    OperatorFacts,
    ValidationRow,
)
from tpkernel.report.report import Report
from tpkernel.worker.isolation import isolated_kernels, isolating_worker
from tpkernel.worker.process import DEFAULT_BUDGET, LEAVES_PROCESSES, Worker, shared_worker
from tpkernel.worker.streams import PrintingKernel, may_print

__all__ = [
    "STABLE_NAME",
    "BuiltCell",
    "Request",
    "build",
    "build_cell",
    "check",
    "compile_cell",
    "with_records",
]

# The build's key holds the source's name, and a cell is In[5] in one run and In[6] in the next.
# So the compiler sees a name that stays, and messages get the cell's own.
STABLE_NAME = "<tpkernel cell>"


@dataclass(frozen=True)
class Request:
    """What is asked of one run of a cell.

    Attributes
    ----------
    text
        The cell's text without the magic's line.
    name
        ``--name``: the module to bind, and the library's name.
    functions
        Functions to export; None for all that can be.
    flags
        Strings of compiler flags, each split as a shell would.
    contiguous
        ``"error"`` or ``"copy"`` for strided inputs.
    debug
        Bounds-checked views, no optimisation, debug symbols; every call of an operator compares
        the inputs that it may not write.
    alias_ok
        Outputs may share memory with inputs.
    checks
        Checks to run.
    in_process
        Run the checks in this process instead of the worker.
    budget
        Seconds for the checks.
    isolate
        Calls go to a process of their own; the library is not loaded here.
    sanitize
        Sanitizers to build with, as in ``("address", "undefined")``; implies `isolate`.
    jobs
        How many compilers may run at once; None for what the machine has.
    shared
        Cells that the text may include by ``#include "cell:NAME"``.
    cell_name, first_line
        How messages name the text and its first line.
    option_line
        Line of the magic, where a wrong option is reported; None without a magic.
    """

    text: str
    name: str | None = None
    functions: tuple[str, ...] | None = None
    flags: tuple[str, ...] = ()
    contiguous: str = "error"
    debug: bool = False
    alias_ok: bool = False
    checks: tuple[str, ...] = CHECKS
    in_process: bool = False
    budget: float = DEFAULT_BUDGET
    isolate: bool = False
    sanitize: tuple[str, ...] = ()
    jobs: int | None = None
    shared: tuple[SharedText, ...] = ()
    cell_name: str = "cell"
    first_line: int = 1
    option_line: int | None = None

    @property
    def isolated(self) -> bool:
        """Whether the library stays out of this process."""
        return self.isolate or bool(self.sanitize)


@dataclass(frozen=True)
class BuiltCell:
    """A cell that can be called.

    Attributes
    ----------
    members
        Name to operator or function, as bound in a notebook.
    definitions
        Name to the registered operator, helpers included.
    kernels
        The C++ functions that the operators call, as attributes.
    """

    request: Request
    spec: CellSpec
    library: str
    members: Mapping[str, Any]
    definitions: Mapping[str, Any]
    kernels: SimpleNamespace
    report: Report


def build_cell(
    request: Request, on_read: Callable[[Cell, CellSpec], None] = lambda cell, spec: None
) -> BuiltCell:
    """Build and load a cell; no checks yet.

    Parameters
    ----------
    request
        What to build.
    on_read
        Called before the compiler with what the cell declares; may refuse it by an exception.

    Raises
    ------
    CellError
        The text cannot become kernels.
    BuildError
        The compiler refuses it; diagnostics stand at the cell's own lines.
    MissingToolError
        There is no compiler.
    KernelCrash
        Global objects of the cell end the process that loads it.
    """
    start = time.perf_counter()
    cell = parse_cell(request.text, name=request.cell_name, first_line=request.first_line)
    options = ReadingOptions(
        functions=request.functions,
        namespace=request.name or "cell",
        copy=request.contiguous == "copy",
        alias_ok=request.alias_ok,
        option_line=request.option_line,
    )
    if is_cuda(cell.text):
        return _build_cuda_cell(request, cell, options, on_read)
    try:
        spec = read_cell(cell, options)
    except CellError as problem:
        raise with_hint(cell, problem) from None
    on_read(cell, spec)
    included = expand(cell, request.shared)
    for other in included.cells:
        if is_cuda(other.text):
            message = (
                f"{other.cell} is a CUDA cell (__global__), which a C++ cell cannot include. Call "
                "its functions from Python"
            )
            raise cell.error(message)
    parsed = time.perf_counter()
    found = compile_cell(request, cell, spec, included)
    built = time.perf_counter()
    once = found.shared_seconds if found.shared_seconds >= _WORTH_SAYING else 0.0
    kernels = _kernels(request, cell, spec, found)
    try:
        definitions = define_operators(spec.operators, kernels)
    except OperatorError as problem:
        made = problem.operator
        message = f"the operator cannot be made: {problem}"
        raise cell.error(message, line=made.line, subject=made.name) from problem.__cause__
    for definition in definitions.values():
        definition.checks_writes = request.debug
    copies = request.contiguous == "copy"
    members: dict[str, Any] = {
        o.opname: Operator(definitions[o.opname], o) for o in spec.operators if not o.helper
    }
    for function in spec.functions:
        members[function.name] = Function(getattr(kernels, function.name), function, copies=copies)
    origin = Origin(dataclasses.replace(request, text=included.whole), spec, definitions)
    for member in members.values():
        if isinstance(member, Operator):
            member.origin, member.library = origin, str(found.library)
    ready = time.perf_counter()
    module = KernelModule(request.name or _title(spec), members, str(found.library))
    report = Report(
        cell=cell.name,
        bound=(request.name,) if request.name else tuple(members),
        build=dataclasses.replace(_build_facts(found, cell, ready - start), once_seconds=once),
        operators=tuple(_operator_facts(o) for o in spec.operators),
        functions=tuple(
            FunctionFacts(f.name, f.doc, tuple(f.guard_text()), f.line) for f in spec.functions
        ),
        steps={
            "parse": parsed - start,
            "compile": built - parsed,
            "load": ready - built,
            "ready": ready - start,
        },
        findings=hints(cell, spec),
        notes=_notes(spec, once),
        module=module,
        origin=origin,
    )
    return BuiltCell(request, spec, str(found.library), members, definitions, kernels, report)


def _build_cuda_cell(
    request: Request,
    cell: Cell,
    options: ReadingOptions,
    on_read: Callable[[Cell, CellSpec], None],
) -> BuiltCell:
    """Build and load a cell of CUDA text; it takes no GPU, and calls say what they need."""
    start = time.perf_counter()
    refuse_options(request, cell)
    spec = read_cuda(cell, options)
    on_read(cell, spec)
    parsed = time.perf_counter()
    try:
        found = compile_cuda(request, cell, spec, STABLE_NAME)
    except cpp_jit.BuildError as problem:
        _refuse_open_brace(cell)
        raise _as_shown(problem, ((STABLE_NAME, cell.name),)) from None
    built = time.perf_counter()
    library = found.load()
    members: dict[str, Any] = {f.name: library[f.name] for f in spec.functions}
    ready = time.perf_counter()
    made = _build_facts(found, cell, ready - start)
    report = Report(
        cell=cell.name,
        bound=(request.name,) if request.name else tuple(members),
        build=dataclasses.replace(made, cuda=cuda_facts(found)),
        functions=tuple(map(function_facts, spec.functions)),
        steps={
            "parse": parsed - start,
            "compile": built - parsed,
            "load": ready - built,
            "ready": ready - start,
        },
        notes=(*(f"{name} is not bound: {reason}." for name, reason in spec.skipped), CUDA_NOTE),
        module=KernelModule(request.name or _title(spec), members, str(found.library)),
        origin=Origin(request, spec, {}),
    )
    kernels = SimpleNamespace(**members)
    return BuiltCell(request, spec, str(found.library), members, {}, kernels, report)


def _kernels(request: Request, cell: Cell, spec: CellSpec, found: cpp_jit.Build) -> SimpleNamespace:
    """Load the library, here or in a process of its own, and return its functions."""
    if request.isolated:
        worker = isolating_worker(request.sanitize)
        return isolated_kernels(
            spec, str(found.library), worker, lambda message: excerpt(request, message)
        )
    if cell.source.runs_on_load and not request.in_process:
        _try_initialisers(spec, found, request.budget)
    kernels = kernels_of(spec.kernels, found.load())
    if may_print(cell.text):
        for name, call in list(vars(kernels).items()):
            setattr(kernels, name, PrintingKernel(call))
    return kernels


_tried: set[str] = set()
#: Seconds for what all cells share from which on the report names them.
_WORTH_SAYING = 0.1


def _try_initialisers(spec: CellSpec, found: cpp_jit.Build, budget: float) -> None:
    """Load a library with global objects in the worker first: what they do, they do on loading.

    Raises
    ------
    KernelCrash
        A constructor threw or crashed, which would have ended this process.
    """
    library = str(found.library)
    if library in _tried:
        return
    for record in shared_worker().run(spec, library, checks=(), budget=budget):
        if isinstance(record, Finding) and record.code in (
            "crash",
            "hang",
            LEAVES_PROCESSES,
        ):
            message = (
                "a global object of the cell ends the process when the library is loaded: "
                f"{record.message.removeprefix('KernelCrash: ').replace(' during starting', '')}"
            )
            raise KernelCrash(
                message,
                signal=record.signal,
                during="loading the library",
                ended=record.code == "crash",
            )
    _tried.add(library)


def _title(spec: CellSpec) -> str:
    return spec.bound_names[0]


def compile_cell(
    request: Request, cell: Cell, spec: CellSpec, included: Included | None = None
) -> cpp_jit.Build:
    """Compile a cell that was read, or find its library.

    Raises
    ------
    CellError
        Flags that cannot be split, or a brace that is never closed.
    BuildError
        The compiler refuses it; diagnostics stand at the cell's own lines.
    """
    if included is None:
        included = expand(cell, request.shared)
    try:
        flags = split_flags((*included.flags, *cell.flags, *request.flags))
    except ValueError as problem:
        raise cell.error(str(problem)) from None
    debug = ["-O0", "-g", "-DTP_DEBUG=1"] if request.debug else []
    sanitizing = sanitizer_flags(request.sanitize)
    try:
        with limited_compilers(request.jobs):
            unit = Unit(
                request.name or _title(spec),
                cpp_jit.Source(included.text, STABLE_NAME, cell.first_line),
                {},
                export_source(spec, flags.macros),
                preamble(spec, flags.macros) + included.preamble,
                Options(
                    # Those of --sanitize are for a process that loads their run-time first.
                    cflags=(*sanitizing, *checked("--flags", [*debug, *flags.cflags])),
                    ldflags=(*sanitizing[:1], *checked("--flags", flags.ldflags)),
                ),
            )
            return build_text(unit)
    except cpp_jit.BuildError as problem:
        _refuse_open_brace(cell)
        names = ((STABLE_NAME, cell.name), *included.files)
        raise _as_shown(problem, names, _written_input(problem)) from None


def _refuse_open_brace(cell: Cell) -> None:
    """Raise for a brace that is never closed, of which compilers speak at the text's end."""
    brace = unclosed_brace(cell.text)
    if brace is not None:
        before = cell.text[:brace]
        line = cell.first_line + before.count("\n")
        message = f"unbalanced brace: the one opened at line {line} is never closed"
        column = brace - (before.rfind("\n") + 1) + 1
        raise cell.error(message, line=line, column=column) from None


def _as_shown(
    problem: cpp_jit.BuildError, names: Iterable[tuple[str, str]], more: str = ""
) -> cpp_jit.BuildError:
    """Return a build's error with the person's names of texts, and what there is to add."""
    names = tuple(names)
    return cpp_jit.BuildError(
        _named(str(problem), names) + more,
        diagnostics=[_renamed(d, names) for d in problem.diagnostics],
        log=_named(problem.log, names),
        commands=problem.commands,
    )


def expand_request(request: Request) -> tuple[SharedText, ...]:
    """Return the cells that a request's text includes, those that they include among them."""
    cell = parse_cell(request.text, name=request.cell_name, first_line=request.first_line)
    return expand(cell, request.shared).cells


def _written_input(problem: cpp_jit.BuildError) -> str:
    """Say what to write where a kernel stores through a view that is an input."""
    for diagnostic in problem.diagnostics:
        found = re.search(r"read-only location '(\w+)\.tp::In<", diagnostic.message)
        if found is not None:
            return (
                f"\n'{found[1]}' is tp::In, an input that is only read. Write tp::InOut to change "
                "it in place, or tp::Out for a result."
            )
    return ""


def _named(text: str, names: Iterable[tuple[str, str]]) -> str:
    for file, name in names:
        text = text.replace(file, name)
    return text


def _renamed(
    diagnostic: cpp_jit.Diagnostic, names: Iterable[tuple[str, str]]
) -> cpp_jit.Diagnostic:
    return dataclasses.replace(diagnostic, file=_named(diagnostic.file, names))


def _build_facts(build: cpp_jit.Build, cell: Cell, ready: float) -> BuildFacts:
    return BuildFacts(
        key=build.key,
        folder=str(build.folder),
        library=str(build.library),
        cached=build.cached,
        seconds=build.seconds,
        ready_seconds=ready,
        rung=build.rung,
        commands=build.commands,
        diagnostics=tuple(
            DiagnosticFacts(d.line, d.column, d.level, d.message, d.source_line, d.fix)
            for d in build.diagnostics
        ),
        log=build.log.replace(STABLE_NAME, cell.name),
        inputs=key_inputs(build),
    )


def _operator_facts(spec: OperatorSpec) -> OperatorFacts:
    source = operator_source(spec)
    derivatives = []
    for derivative in spec.derivatives:
        if derivative.formula is not None:
            derivatives.append((derivative.input, derivative.formula.text))
        elif spec.backward is not None:
            derivatives.append((derivative.input, f"C++ function {spec.backward.operator}"))
    return OperatorFacts(
        name=spec.name,
        schema=spec.schema,
        kernel=spec.kernel.doc,
        origin=spec.origin,
        doc=spec.doc,
        guards=tuple(spec.kernel.guard_text()),
        wrapper=source.wrapper,
        fake=source.fake,
        gradient=source.gradient,
        derivatives=tuple(derivatives),
        helper=spec.helper,
    )


def _notes(spec: CellSpec, once: float) -> tuple[str, ...]:
    first = (
        f"This was the first build of its kind with this compiler: besides it, {once:.1f} s went "
        "into what later cells share."
    )
    notes = [first] if once else []
    notes += [f"{name} is not bound: {reason}." for name, reason in spec.skipped]
    if spec.functions and not spec.operators:
        notes.append(
            "Bound as plain functions. For an operator with a gradient, declare it in front "
            "matter: /*--- op: mylib::name(Tensor x) -> Tensor ---*/, each key on its own line."
        )
    return tuple(notes)


def check(
    cell: BuiltCell,
    *,
    checks: tuple[str, ...] | None = None,
    seed: int = 0,
    on_wait: Callable[[str], None] = lambda during: None,
) -> list[Any]:
    """Run a cell's checks, in the worker unless the request says otherwise.

    Parameters
    ----------
    cell
        The built cell.
    checks
        Which; None for those of the request.
    seed
        Seed of made samples.
    on_wait
        Called a few times a second with what is running.

    Returns
    -------
    list
        Records of :mod:`tpkernel.checks.suite`; crashes and hangs are findings among them.
    """
    wanted = cell.request.checks if checks is None else checks
    if not wanted or all(o.helper for o in cell.spec.operators):
        return []
    if cell.request.in_process:
        return list(
            run_checks(
                cell.spec,
                cell.definitions,
                cell.kernels,
                checks=wanted,
                seed=seed,
                library=cell.library,
            )
        )
    # A cell that runs again unchanged shows what its checks found in this session.
    key = None
    if checks is None and seed == 0:
        spec = dataclasses.replace(cell.spec, cell="")  # In[5] in one run and In[6] in the next
        key = (cell.library, wanted, cell.request.sanitize, pickle.dumps(spec))
        if key in _checked:
            return list(_checked[key])
    records = checking_worker(cell.request).run(
        cell.spec,
        cell.library,
        checks=wanted,
        seed=seed,
        budget=cell.request.budget,
        on_wait=on_wait,
    )
    found = [_with_excerpt(cell.request, r) if isinstance(r, Finding) else r for r in records]
    # What a busy machine ends is tried again, and so is what left the worker in ruins.
    codes = {r.code for r in found if isinstance(r, Finding)}
    if key is not None and codes.isdisjoint(_TRIED_AGAIN):
        _checked[key] = tuple(found)
        while len(_checked) > _MOST_CHECKED:
            del _checked[next(iter(_checked))]
    return found


_checked: dict[tuple[Any, ...], tuple[Any, ...]] = {}
_MOST_CHECKED = 256
_TRIED_AGAIN = frozenset({"crash", "hang", "sanitizer", "non_deterministic", LEAVES_PROCESSES})


def checking_worker(request: Request) -> Worker:
    """Return the worker that a cell's checks run in."""
    return isolating_worker(request.sanitize) if request.sanitize else shared_worker()


def _with_excerpt(request: Request, finding: Finding) -> Finding:
    """Add the cell's line to what a sanitizer says of it."""
    if finding.code != "sanitizer":
        return finding
    return dataclasses.replace(finding, message=finding.message + excerpt(request, finding.message))


def excerpt(request: Request, message: str) -> str:
    """Return the line of the cell that a message names, under the message, or nothing."""
    found = re.search(r"\bline (\d+)(?:, column (\d+))?", message)
    lines = request.text.split("\n")
    at = int(found[1]) - request.first_line if found is not None else -1
    if found is None or not 0 <= at < len(lines):
        return ""
    gutter = f"{found[1]:>5} | "
    text = f"\n{gutter}{lines[at]}"
    if found[2]:
        text += "\n" + " " * (len(gutter) - 2) + "| " + " " * (int(found[2]) - 1) + "^"
    return text


def with_records(report: Report, records: Sequence[Any], checks: Sequence[str]) -> Report:
    """Return the report with the results of `checks` replaced by `records`."""
    kept = tuple(f for f in report.findings if f.check not in checks)
    return dataclasses.replace(
        report,
        gradcheck=tuple(r for r in records if isinstance(r, GradcheckFacts))
        if "gradcheck" in checks
        else report.gradcheck,
        validation=tuple(r for r in records if isinstance(r, ValidationRow))
        if "validation" in checks
        else report.validation,
        opcheck=tuple(r for r in records if isinstance(r, OpcheckFacts))
        if "opcheck" in checks
        else report.opcheck,
        findings=(*kept, *(r for r in records if isinstance(r, Finding))),
    )


def build(
    text: str,
    name: str | None = None,
    *,
    functions: Sequence[str] | None = None,
    flags: str | Sequence[str] = (),
    contiguous: str = "error",
    debug: bool = False,
    allow_alias: bool = False,
    checks: bool | Sequence[str] = True,
    in_process: bool = False,
    budget: float = DEFAULT_BUDGET,
    isolate: bool = False,
    sanitize: str | Sequence[str] = (),
    jobs: int | None = None,
) -> Report:
    """Build a cell's text without a notebook.

    Parameters
    ----------
    text
        What would stand below ``%%tpkernel``.
    name
        Name of the library, and namespace of operators that the text does not declare.
    functions
        Functions to export; None for all that can be.
    flags
        Compiler flags, as one string or several.
    contiguous
        ``"error"``: strided inputs are refused; ``"copy"``: they are copied.
    debug
        Bounds-checked views, no optimisation, debug symbols; every call of an operator compares
        the inputs that it may not write.
    allow_alias
        Outputs may share memory with inputs.
    checks
        True for all, False for none, or names: ``"memory"``, ``"gradcheck"``,
        ``"validation"``, ``"opcheck"``.
    in_process
        Run the checks here; a kernel that crashes then ends this process.
    budget
        Seconds that the checks may take.
    isolate
        Calls go to a process of their own: a crash there raises `KernelCrash` here.
    sanitize
        Sanitizers to build with, as in ``"address,undefined"``; implies `isolate`.
    jobs
        How many compilers may run at once; None for what the machine has.

    Returns
    -------
    Report
        Its ``module`` holds the functions and operators.

    Raises
    ------
    CellError
        The text cannot become kernels.
    tensorplay.utils.cpp_jit.BuildError
        The compiler refuses it.
    """
    if contiguous not in ("error", "copy"):
        message = f"contiguous must be 'error' or 'copy', got {contiguous!r}"
        raise ValueError(message)
    wanted = CHECKS if checks is True else () if checks is False else tuple(checks)
    unknown = [c for c in wanted if c not in CHECKS]
    if unknown:
        message = f"unknown check {unknown[0]!r}; checks: {', '.join(CHECKS)}"
        raise ValueError(message)
    request = Request(
        text=text,
        name=name,
        functions=None if functions is None else tuple(functions),
        flags=(flags,) if isinstance(flags, str) else tuple(flags),
        contiguous=contiguous,
        debug=debug,
        alias_ok=allow_alias,
        checks=wanted,
        in_process=in_process,
        budget=budget,
        isolate=isolate,
        sanitize=chosen_sanitizers(sanitize),
        jobs=jobs,
    )
    cell = build_cell(request)
    return with_records(cell.report, check(cell), wanted)
