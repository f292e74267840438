"""From a cell's text to callable kernels and a report: what the magic and `build` share."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
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
from tensorplay.utils.cpp_jit.watch import BuildWatch
from tpkernel.building.compiling import (
    STABLE_NAME,
    compile_cell,
    flags_of,
    refuse_open_brace,
    renamed_error,
    unit_name,
)
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
from tpkernel.building.request import BuiltCell, Request
from tpkernel.cells.cell import Cell, parse_cell
from tpkernel.cells.flags import chosen_sanitizers
from tpkernel.cells.hints import hints, with_hint, without_gradient
from tpkernel.cells.reading import Options as ReadingOptions, read_cell
from tpkernel.checks.running import check, with_records
from tpkernel.checks.suite import CHECKS
from tpkernel.cpp.includes import Included, expand
from tpkernel.errors import CellError, KernelCrash
from tpkernel.notebook.kernels import Function, KernelModule, Operator
from tpkernel.packaging.export import Origin
from tpkernel.report.facts import (
    BuildFacts,
    DiagnosticFacts,
    Finding,
    FunctionFacts,
    OperatorFacts,
)
from tpkernel.report.report import Report
from tpkernel.worker.findings import LEAVES_PROCESSES, LOWERS_LIMITS
from tpkernel.worker.isolation import isolated_kernels, isolating_worker
from tpkernel.worker.process import DEFAULT_BUDGET, shared_worker
from tpkernel.worker.streams import PrintingKernel, may_print

__all__ = ["build", "build_cell"]


def build_cell(
    request: Request,
    on_read: Callable[[Cell, CellSpec], None] = lambda cell, spec: None,
    watch: BuildWatch | None = None,
) -> BuiltCell:
    """Build and load a cell; no checks yet.

    Parameters
    ----------
    request
        What to build.
    on_read
        Called before the compiler with what the cell declares; may refuse it by an exception.
    watch
        Told what the compiler does and says while it runs.

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
    cuda = is_cuda(cell.text)
    if cuda:
        refuse_options(request, cell)
    try:
        spec = read_cuda(cell, options) if cuda else read_cell(cell, options)
    except CellError as problem:
        raise with_hint(cell, problem) from None
    if request.isolated and not spec.bound_names:
        _refuse_isolated_registrations(request, cell)
    on_read(cell, spec)
    included = None if cuda else _included(request, cell)
    parsed = time.perf_counter()
    if included is None:
        found = _compiled_cuda(request, cell, spec)
    else:
        found = compile_cell(request, cell, spec, included, watch)
    built = time.perf_counter()
    once = found.shared_seconds if found.shared_seconds >= _WORTH_SAYING else 0.0
    kernels, registered = _loaded(request, cell, spec, found)
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
        o.opname: Operator(definitions[o.opname], o) for o in spec.own_operators()
    }
    for function in spec.functions:
        call = getattr(kernels, function.name)  # of CUDA text as it is: called on a grid
        members[function.name] = call if cuda else Function(call, function, copies=copies)
    whole = request if included is None else dataclasses.replace(request, text=included.whole)
    origin = Origin(whole, spec, definitions)
    for member in members.values():
        if isinstance(member, Operator):
            member.origin, member.library = origin, str(found.library)
    ready = time.perf_counter()
    module = KernelModule(unit_name(request, spec), members, str(found.library))
    report = Report(
        cell=cell.name,
        bound=(request.name,) if request.name else tuple(members),
        build=dataclasses.replace(_build_facts(found, cell, ready - start), once_seconds=once),
        operators=tuple(_operator_facts(o) for o in spec.operators),
        functions=tuple(
            function_facts(f)
            if cuda
            else FunctionFacts(f.name, f.doc, tuple(f.guard_text(copies=copies)), f.line)
            for f in spec.functions
        ),
        registered=registered,
        steps={
            "parse": parsed - start,
            "compile": built - parsed,
            "load": ready - built,
            "ready": ready - start,
        },
        findings=()
        if included is None
        else hints(cell, spec, flags_of(request, cell, included).cflags),
        notes=_notes(spec, once, cuda=cuda),
        module=module,
        origin=origin,
    )
    return BuiltCell(request, spec, str(found.library), members, definitions, kernels, report)


def _refuse_isolated_registrations(request: Request, cell: Cell) -> None:
    """Refuse to load what a cell only registers into a process in which nobody can ask for it."""
    option = "--sanitize" if request.sanitize else "--isolate"
    message = (
        f"{option} is for functions that are called, and this cell only registers: in a process of "
        "its own, Python would not get what it registers. Leave the option out, or add a function"
    )
    raise cell.error(message, line=request.option_line)


def _included(request: Request, cell: Cell) -> Included:
    """Return the text of a C++ cell with the cells that it includes."""
    included = expand(cell, request.shared)
    for other in included.cells:
        if is_cuda(other.text):
            message = (
                f"{other.cell} is a CUDA cell (__global__), which a C++ cell cannot include. Call "
                "its functions from Python"
            )
            raise cell.error(message)
    return included


def _compiled_cuda(request: Request, cell: Cell, spec: CellSpec) -> cpp_jit.Build:
    """Compile a cell of CUDA text; it takes no GPU, and calls say what they need."""
    try:
        return compile_cuda(request, cell, spec, STABLE_NAME)
    except cpp_jit.BuildError as problem:
        refuse_open_brace(cell)
        raise renamed_error(problem, ((STABLE_NAME, cell.name),)) from None


def _loaded(
    request: Request, cell: Cell, spec: CellSpec, found: cpp_jit.Build
) -> tuple[SimpleNamespace, tuple[tuple[str, str], ...]]:
    """Load the library, here or in a process of its own; return its functions and registrations."""
    if request.isolated:
        worker = isolating_worker(request.sanitize)
        return isolated_kernels(spec, str(found.library), worker, request.excerpt), ()
    if cell.source.runs_on_load and not request.in_process:
        _try_initialisers(spec, found, request.budget)
    library = found.load()
    kernels = kernels_of(spec.kernels, library)
    if found.cuda is None and may_print(cell.text):
        for name, call in list(vars(kernels).items()):
            setattr(kernels, name, PrintingKernel(call))
    return kernels, library.registers


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
            LOWERS_LIMITS,
        ):
            message = (
                "a global object of the cell ends the process when the library is loaded: "
                f"{record.message.replace(' during starting', '')}"
            )
            raise KernelCrash(
                message,
                signal=record.signal,
                during="loading the library",
                ended=record.code == "crash",
            )
    _tried.add(library)


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
        cuda=cuda_facts(build),
    )


_LANGUAGES = {"cpu": "C++ function", "cuda": "CUDA kernel"}


def _operator_facts(spec: OperatorSpec) -> OperatorFacts:
    source = operator_source(spec)
    launch = spec.kernel.launch
    derivatives = []
    for derivative in spec.derivatives:
        if derivative.formula is not None:
            text = derivative.formula.text
        elif spec.backward is not None and not derivative.none:
            text = f"{_LANGUAGES[spec.kernel.device]} {spec.backward.operator}"
        else:
            text = "none, as declared"
        if derivative.surrogate:
            text += f" (deliberately not the derivative: {derivative.surrogate})"
        derivatives.append((derivative.input, text))
    derivatives += [(name, "missing; asking for it raises") for name in without_gradient(spec)]
    derivatives += [
        (f"output {o.name}", "none, as declared") for o in spec.outputs if not o.differentiable
    ]
    return OperatorFacts(
        name=spec.name,
        schema=spec.schema,
        kernel=spec.kernel.doc + (f", launched with {launch.text}" if launch else ""),
        origin=spec.origin,
        doc=spec.doc,
        guards=tuple(spec.kernel.guard_text(copies=spec.copies)),
        wrapper=source.wrapper,
        fake=source.fake,
        gradient=source.gradient,
        derivatives=tuple(derivatives),
        helper=spec.helper,
    )


def _notes(spec: CellSpec, once: float, *, cuda: bool) -> tuple[str, ...]:
    first = (
        f"This was the first build of its kind with this compiler: besides it, {once:.1f} s went "
        "into what later cells share."
    )
    notes = [first] if once else []
    if not spec.bound_names:
        notes.append(
            "Nothing is bound: what the cell registers is there for the whole process. "
            "Of tensorplay.utils, cpp_jit.get_global_func(name) returns a function, and "
            "@cpp_jit.register_object(name) makes a Python class of a C++ one."
        )
    notes += [f"{name} is not bound: {reason}." for name, reason in spec.skipped]
    if cuda and not spec.operators:
        notes.append(CUDA_NOTE)
    elif spec.functions and not spec.operators:
        notes.append(
            "Bound as plain functions. For an operator with a gradient, declare it in front "
            "matter: /*--- op: mylib::name(Tensor x) -> Tensor ---*/, each key on its own line."
        )
    return tuple(notes)


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
    recheck: bool = False,
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
    recheck
        Run the checks though the build cache holds what they found for the same library.
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
    ValueError
        `contiguous` or one of `checks` is none of those above.
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
        recheck=recheck,
        in_process=in_process,
        budget=budget,
        isolate=isolate,
        sanitize=chosen_sanitizers(sanitize),
        jobs=jobs,
    )
    cell = build_cell(request)
    return with_records(cell.report, check(cell), wanted)
