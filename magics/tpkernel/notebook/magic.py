"""``%%tpkernel``: a cell of C++ becomes operators and functions of the notebook.

The class parses the line, calls the pipeline, binds names and displays one report. What has to
outlive a cell, per shell, is in :class:`Session`.
"""

# IPython's decorators and displays carry no annotations.
# mypy: allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import argparse
import builtins
import dataclasses
import difflib
import faulthandler
import functools
import keyword
import re
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

import tensorplay as tp
from tensorplay.library.modules.spec import CellSpec
from tensorplay.utils import cpp_jit
from tpkernel.building.compiling import expand_request
from tpkernel.building.pipeline import build_cell
from tpkernel.building.request import BuiltCell, Request
from tpkernel.cells.cell import KEYS, Cell
from tpkernel.cells.flags import chosen_sanitizers
from tpkernel.cells.line import AT_LINE, REFUSE, hoist_magic, nearest_option, split_line
from tpkernel.checks.jobs import TimingJob, run_job, with_job
from tpkernel.checks.kept import programs_version
from tpkernel.checks.running import check, checking_worker, with_records
from tpkernel.checks.suite import CHECKS
from tpkernel.cpp.functions import parse_source
from tpkernel.cpp.includes import SharedText
from tpkernel.errors import CellError, KernelCrash, first_line
from tpkernel.notebook import completion
from tpkernel.notebook.commands import COMMANDS, Held, run_command
from tpkernel.notebook.editor import report_diagnostics
from tpkernel.notebook.interrupts import hear_interrupts
from tpkernel.notebook.kernels import BlockedName, Function, KernelModule, Operator
from tpkernel.notebook.option_completion import register_options, unregister_options
from tpkernel.notebook.output import CellOutput, CellWatch
from tpkernel.notebook.tracebacks import CellErrors, hide_own_frames, show_own_frames
from tpkernel.report.markup import code_html
from tpkernel.report.render import error_html
from tpkernel.report.report import Report
from tpkernel.report.widget import ReportWidget
from tpkernel.worker.crash_record import CrashRecord, RecordedKernel, last_calls, session_key
from tpkernel.worker.isolation import IsolatedKernel
from tpkernel.worker.process import DEFAULT_BUDGET
from tpkernel.worker.streams import PrintingKernel

__all__ = ["TpKernelMagics", "last_report", "load_ipython_extension", "unload_ipython_extension"]

_ABSENT = object()
_OURS = (Operator, Function, KernelModule, BlockedName, cpp_jit.Kernel)
_FAILURES = (CellError, KernelCrash, cpp_jit.BuildError, cpp_jit.MissingToolError)
#: What IPython itself finds under these names.
_SHELL_NAMES = frozenset({"get_ipython", "In", "Out", "exit", "quit", "display"})


@dataclass
class Slot:
    """What one cell made at its last run: names, operators and the widget that shows them.

    `blocked` holds the names that a failed run took away, with the values they had before; they
    come back once the cell builds. `stopped` are the operators whose kernels it took away.
    `shared` is what other cells get where they include this one, `includes` what this one got.
    `device` is where its operators run.
    """

    cell: str
    names: tuple[str, ...]
    operators: tuple[str, ...] = ()
    definitions: tuple[Any, ...] = ()
    widget: ReportWidget | None = None
    blocked: dict[str, Any] = field(default_factory=dict)
    stopped: tuple[Any, ...] = ()
    shared: SharedText | None = None
    includes: tuple[SharedText, ...] = ()
    device: str = "cpu"


@dataclass
class Session:
    """The state of one shell: what each cell made, so that it can be replaced."""

    slots: dict[str, Slot] = field(default_factory=dict)
    _record: CrashRecord | None = None

    def crash_record(self, shell: Any) -> CrashRecord:
        """Return the file that tells the next session what this one ended in."""
        if self._record is None:
            kernel = getattr(shell, "kernel", None)
            catch = kernel is not None or not faulthandler.is_enabled()
            self._record = CrashRecord(session_key(shell), catch_faults=catch)
        return self._record


_SESSIONS: weakref.WeakKeyDictionary[InteractiveShell, Session] = weakref.WeakKeyDictionary()
_LAST: list[Report] = []


def last_report() -> Report:
    """Return the report of the last cell that built.

    Raises
    ------
    RuntimeError
        No cell has been built in this session.
    """
    if not _LAST:
        message = "no %%tpkernel cell has been built in this session"
        raise RuntimeError(message)
    return _LAST[-1]


def _document(magic: Any) -> None:
    """Finish the text of ``%%tpkernel?``: a cell magic's two signs, and the front matter's keys."""
    keys = "\n".join(f"  {key:<12} {text}" for key, text in KEYS.items())
    magic.__doc__ = (
        magic.__doc__.replace("  %tpkernel", "  %%tpkernel")
        + "\nkeys of the front matter, a first comment /*--- … ---*/ that holds YAML:\n"
        + keys
        + "\n\ncommands on a line of their own:\n"
        + "\n".join(f"  %tpkernel {c.usage:<19} {c.help}" for c in COMMANDS.values())
        + "\n\neach with an example: docs/cells.md of the project\n"
    )


def _cell_number(shell: InteractiveShell) -> int:
    """Return the running cell's number.

    Some releases of IPython count up before a cell runs and some after; its history holds the
    running cell in both.
    """
    history = getattr(shell.history_manager, "input_hist_parsed", None)
    return len(history) - 1 if history and len(history) > 1 else shell.execution_count


@magics_class
class TpKernelMagics(Magics):
    """The cell magic."""

    shell: InteractiveShell  # never None: a magic runs in one

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.session = _SESSIONS.setdefault(shell, Session())

    @no_var_expand
    @magic_arguments()
    @argument("--name", "-n", help="bind a module of this name instead of the single functions")
    @argument(
        "--functions", nargs="+", metavar="F", help="export only these functions (default: all)"
    )
    @argument(
        "--flags", "-f", action="append", default=[], metavar="FLAGS",
        help="compiler and linker flags, unchanged; may be repeated. Also: everything after --, or "
        "a line '// tpkernel: flags = …' at the top of the cell",
    )  # fmt: skip
    @argument(
        "--contiguous", choices=("error", "copy"), default="error",
        help="what happens to strided inputs of a kernel that indexes flat (default: error)",
    )  # fmt: skip
    @argument(
        "--debug", action="store_true",
        help="check every index of typed views, compile with -O0 -g",
    )  # fmt: skip
    @argument(
        "--sanitize", metavar="NAMES",
        help="build with address, undefined, or both (address,undefined), and check and call in a "
        "process of its own; the report shows the cell's line",
    )  # fmt: skip
    @argument(
        "--isolate", action="store_true",
        help="calls go to a process of their own: a crash there raises KernelCrash here",
    )  # fmt: skip
    @argument("--allow-alias", action="store_true", help="outputs may share memory with inputs")
    @argument("--no-check", action="store_true", help="run neither gradcheck nor validation")
    @argument(
        "--recheck", action="store_true",
        help="run the checks though the build cache holds what they found for the same library",
    )  # fmt: skip
    @argument(
        "--budget", type=float, default=DEFAULT_BUDGET, metavar="S",
        help="seconds that the checks may take (default: %(default)s)",
    )  # fmt: skip
    @argument(
        "--time", action="store_true",
        help="say how long each step of the build takes, and a call of each operator",
    )  # fmt: skip
    @argument(
        "--jobs", "-j", type=int, metavar="N",
        help="compilers that may run at once (default: as many as the machine has room for)",
    )  # fmt: skip
    @argument(
        "--keep-old", action="store_true",
        help="when the cell does not build, keep what its last good run bound",
    )  # fmt: skip
    @argument(
        "--replace", action="store_true",
        help="take over an operator that another cell defined",
    )  # fmt: skip
    @argument(
        "--expect-error", metavar="REGEX",
        help="the cell must fail with an error that matches; then it counts as success",
    )  # fmt: skip
    @argument(AT_LINE, type=int, default=1, help=argparse.SUPPRESS)
    @argument(REFUSE, help=argparse.SUPPRESS)
    @line_cell_magic
    def tpkernel(self, line: str, cell: str | None = None) -> Any:
        """Build a C++ cell, bind its operators and functions, check them, and show a report."""
        if cell is None:
            return run_command(line, self.held())
        options = self._options(line)
        shell = self.shell
        request = Request(
            text=cell,
            name=options.name,
            functions=tuple(options.functions) if options.functions else None,
            flags=tuple(options.flags),
            contiguous=options.contiguous,
            debug=options.debug,
            alias_ok=options.allow_alias,
            checks=() if options.no_check else CHECKS,
            recheck=options.recheck,
            budget=options.budget,
            isolate=options.isolate,
            sanitize=options.sanitize,
            jobs=options.jobs,
            shared=self._shared_texts(),
            cell_name=f"In[{_cell_number(shell)}]",
            first_line=options.at_line + 1,
            option_line=options.at_line,
        )
        output = CellOutput(shell, self._cell_id(), request.cell_name)
        hear_interrupts(shell)
        try:
            built = self._build(request, output, replace=options.replace)
        except _FAILURES as problem:
            output.failed(problem)
            self._failed(request, problem, keep_old=options.keep_old)
            if options.expect_error is not None and re.search(options.expect_error, str(problem)):
                self._show_expected(problem)
                return None
            raise _short(problem, unexpected=options.expect_error) from None
        except BaseException as problem:  # an interrupt too: the old kernel is not what was asked
            output.stopped("the build was stopped")
            self._failed(request, problem, keep_old=options.keep_old)
            raise
        finally:
            output.messages.close()
        if options.expect_error is not None:
            output.stopped("the cell built")
            message = f"expected an error that matches {options.expect_error!r}, and the cell built"
            wrong = CellError(message)
            self._failed(request, wrong, keep_old=False)
            raise _short(wrong)
        try:
            self._succeeded(built, output, timed=options.time)
        finally:
            output.messages.close()
        return None

    def _shared_texts(self) -> tuple[SharedText, ...]:
        """Return the cells that this one may include: all others that have built."""
        own = self._key(())
        return tuple(
            slot.shared
            for key, slot in self.session.slots.items()
            if slot.shared is not None and key != own
        )

    def held(self) -> dict[str, Held]:
        """Return the names that cells have bound, and what is known of each."""
        found = {}
        for slot in self.session.slots.values():
            widget = slot.widget
            operators = {name.split("::")[-1] for name in slot.operators}
            for name in slot.names:
                found[name] = Held(
                    name=name,
                    kind="operator" if name in operators else "function",
                    cell=slot.cell,
                    report=None if widget is None else widget.report,
                    show=functools.partial(display, widget),
                )
        return found

    def _options(self, line: str) -> Any:
        parser = self.tpkernel.parser
        options, rest = parser.parse_known_args(split_line(line))
        if rest:
            known = [o for o in parser._option_string_actions if o.startswith("--")]
            if rest[0].startswith("-"):
                message = f"%%tpkernel: unknown option {rest[0]}{nearest_option(rest[0], known)}"
            elif difflib.get_close_matches(rest[0], list(COMMANDS), cutoff=0.8):
                message = (
                    f"%%tpkernel: '{rest[0]}' belongs to no option. Commands stand on a line of "
                    f"their own and have one percent sign: %tpkernel {line.strip()}"
                )
            else:
                message = (
                    f"%%tpkernel: '{rest[0]}' belongs to no option; flags go after --flags or --"
                )
            raise UsageError(message)
        if options.refuse is not None:
            raise UsageError(options.refuse)
        if options.name is not None:
            self._check_name(options.name)
        if not 0 < options.budget < float("inf"):
            message = f"%%tpkernel: --budget {options.budget:g} must be a number of seconds above 0"
            raise UsageError(message)
        if options.jobs is not None and options.jobs < 1:
            message = f"%%tpkernel: --jobs {options.jobs} must be 1 or more"
            raise UsageError(message)
        try:
            options.sanitize = chosen_sanitizers(options.sanitize or ())
        except ValueError as problem:
            message = f"%%tpkernel: --sanitize: {problem}"
            raise UsageError(message) from None
        if options.expect_error is not None:
            try:
                re.compile(options.expect_error)
            except re.error as problem:
                message = (
                    f"%%tpkernel: --expect-error {options.expect_error!r} is no regular "
                    f"expression: {problem}"
                )
                raise UsageError(message) from None
        return options

    def _check_name(self, name: str) -> None:
        """Refuse what Python cannot bind, and what it or IPython needs for itself."""
        if not name.isidentifier() or keyword.iskeyword(name):
            message = f"%%tpkernel: --name {name} cannot be bound; it is no Python name"
        elif name in _SHELL_NAMES or name.startswith("__") or hasattr(builtins, name):
            message = f"%%tpkernel: --name {name} cannot be bound; Python or IPython needs it"
        else:
            return
        raise UsageError(message)

    # -- building -----------------------------------------------------------------------------

    def _build(self, request: Request, output: CellOutput, *, replace: bool) -> BuiltCell:
        checked = False

        def on_read(cell: Cell, spec: CellSpec) -> None:
            for name in () if request.name else spec.bound_names:
                if name in _SHELL_NAMES:
                    message = f"'{name}' cannot be bound; IPython needs that name. Use --name m"
                    raise cell.error(message)
            if not replace:
                self._refuse_foreign(cell, spec)
            nonlocal checked
            checked = bool(request.checks) and bool(spec.own_operators())

        def meanwhile() -> None:
            if checked and not request.sanitize:
                checking_worker(request).start()  # its imports run beside the compiler

        return build_cell(request, on_read, CellWatch(output, meanwhile))

    def _refuse_foreign(self, cell: Cell, spec: CellSpec) -> None:
        """Refuse an operator that another cell of the notebook defines."""
        own = self._cell_id()
        if own is None:
            return  # without cell ids a cell run again cannot be told from another one
        for operator in spec.operators:
            for key, slot in self.session.slots.items():
                is_other = key.startswith("id:") and key != f"id:{own}"
                same_device = operator.kernel.device == slot.device
                if is_other and same_device and operator.name in slot.operators:
                    message = (
                        f"is defined by the cell that ran as {slot.cell}, and this one "
                        f"({cell.name}) defines it too. Give one of them another name, or run "
                        "this one with --replace."
                    )
                    raise cell.error(message, line=operator.line, subject=operator.name)

    def _cell_id(self) -> str | None:
        """Return the front end's id of the running cell, where there is one."""
        kernel = getattr(self.shell, "kernel", None)
        if kernel is None:
            return None
        metadata = kernel.get_parent("shell").get("metadata", {})
        found = metadata.get("cellId")
        return str(found) if found else None

    def _key(self, names: Iterable[str]) -> str:
        own = self._cell_id()
        return f"id:{own}" if own is not None else f"names:{', '.join(sorted(names))}"

    # -- after a build ------------------------------------------------------------------------

    def _succeeded(self, built: BuiltCell, output: CellOutput, *, timed: bool) -> None:
        shell = self.shell
        report = built.report
        key = self._key(report.bound)
        previous = self.session.slots.pop(key, None)
        if previous is not None:
            if previous.widget is not None:
                previous.widget.close()
            for name in previous.names:
                if name not in report.bound and isinstance(shell.user_ns.get(name), _OURS):
                    del shell.user_ns[name]
        self._release(key, previous, built)
        device = "cpu" if report.build.cuda is None else "cuda"
        if previous is not None:
            defined = {o.name for o in built.spec.operators} if device == previous.device else set()
            self._drop(previous, defined)
        for other in self.session.slots.values():  # a name has one owner
            other.names = tuple(n for n in other.names if n not in report.bound)
            if other.device != device:  # an operator has a kernel for each
                continue
            taken = {s.name for s in built.spec.operators}
            other.operators = tuple(o for o in other.operators if o not in taken)
            other.definitions = tuple(d for d in other.definitions if d.name not in taken)
        if built.request.name:
            shell.user_ns[built.request.name] = report.module
        else:
            shell.user_ns.update(built.members)
        own = built.spec.own_operators()
        shared = SharedText(report.cell, built.request.text, built.request.first_line, report.bound)
        slot = Slot(
            report.cell,
            report.bound,
            tuple(o.name for o in own),
            tuple(built.definitions[o.opname] for o in own),
            shared=shared,
            includes=expand_request(built.request),
            device=device,
        )
        report = self._with_stale(shared, report)
        self.session.slots[key] = slot
        _remember(report)
        output.messages.tell(report_diagnostics(report))  # the checks come before the report
        widget = slot.widget = ReportWidget(report)
        wanted = built.request.checks

        def wait(during: str) -> None:
            output.wait(widget, during)

        def checked(shown_now: Report) -> Report:
            found = with_records(shown_now, check(built, on_wait=wait), wanted)
            return self._timed(built, found, wait) if timed else found

        self._place_errors(built)
        self._record_calls(built)
        report = widget.update(checked)
        if wanted and report.ok:
            self._trust(built)
        _remember(report)
        output.finished(widget)

    def _timed(self, built: BuiltCell, report: Report, on_wait: Callable[[str], None]) -> Report:
        """Add what a call of each operator takes."""
        if not built.spec.own_operators():
            return report
        job, worker = TimingJob(), checking_worker(built.request)
        records = run_job(report, job, budget=built.request.budget, on_wait=on_wait, worker=worker)
        return with_job(report, job, records)

    def _place_errors(self, built: BuiltCell) -> None:
        """Let errors of the kernels show the cell's line and no frames of ours."""
        shell = self.shell
        request, number = built.request, _cell_number(shell)
        above = "%%tpkernel".ljust(len("%%tpkernel") + request.first_line - 1, "\n")

        def file() -> str:  # as IPython names a cell, so that it shows it as one
            return str(shell.compile.cache(above + request.text, number))

        for kernel in built.spec.kernels:
            called = getattr(built.kernels, kernel.export)
            if isinstance(called, PrintingKernel):
                called = called.call
            if isinstance(called, (cpp_jit.Kernel, IsolatedKernel)):
                called.on_error = CellErrors(kernel, request.text, request.first_line, file)

    def _record_calls(self, built: BuiltCell) -> None:
        """Let a crash of a kernel be told by the next session."""
        if built.request.isolated or built.report.build.cuda is not None:
            return  # what goes wrong on a GPU ends no process
        record = self.session.crash_record(self.shell)
        for kernel in built.spec.kernels:
            recorded = RecordedKernel(
                getattr(built.kernels, kernel.export),
                record,
                built.report.cell,
                kernel.title,
                [a.name for a in kernel.arguments],
            )
            setattr(built.kernels, kernel.export, recorded)
            function = built.members.get(kernel.name)
            if isinstance(function, Function):
                function.call_through(recorded)

    def _trust(self, built: BuiltCell) -> None:
        """Call the kernels of checked operators as they are."""
        for operator in built.spec.operators:
            kernel = getattr(built.kernels, operator.kernel.export)
            if isinstance(kernel, RecordedKernel):
                setattr(built.kernels, operator.kernel.export, kernel.call)

    def _with_stale(self, changed: SharedText, report: Report) -> Report:
        """Say which later cells were built with an earlier text of this one."""
        names, text = set(changed.names), changed.text
        stale = [
            slot.cell
            for slot in self.session.slots.values()
            if any(names & set(s.names) and s.text != text for s in slot.includes)
        ]
        if not stale:
            return report
        note = (
            f"{' and '.join(stale)} include this cell as it was before; run "
            f"{'it' if len(stale) == 1 else 'them'} again to build with this text."
        )
        return dataclasses.replace(report, notes=(*report.notes, note))

    def _release(self, key: str, previous: Slot | None, built: BuiltCell) -> None:
        """Give back the names that failed runs of this cell have blocked.

        Without cell ids, the failed runs of this cell are those that blocked a name that it binds.
        """
        shell = self.shell
        slots, bound = self.session.slots, built.report.bound
        failed = [previous] if previous is not None else []
        if not key.startswith("id:"):
            failed += [slot for slot in slots.values() if not set(bound).isdisjoint(slot.blocked)]
        for slot in failed:
            for name, value in slot.blocked.items():
                if name in bound or not isinstance(shell.user_ns.get(name), BlockedName):
                    continue
                if value is _ABSENT or (previous is not None and name in previous.names):
                    del shell.user_ns[name]
                else:
                    shell.user_ns[name] = value
            slot.blocked = {}
            for operator in slot.stopped:
                if operator.name not in {o.name for o in built.spec.operators}:
                    reason = f"its cell ran again as {built.report.cell} and defines it no more."
                    _block(operator, slot.device, reason)
        for empty in [
            k for k, slot in slots.items() if not (slot.names or slot.blocked or slot.operators)
        ]:
            del slots[empty]

    def _drop(self, previous: Slot, defined: set[str]) -> None:
        """Take away the kernels that a cell no longer has for operators that another cell defines.

        What no other cell defines stays callable under `tp.ops`, as what a cell defined does.
        """
        others = {o for slot in self.session.slots.values() for o in slot.operators}
        for operator in previous.definitions:
            if operator.name not in defined and operator.name in others:
                carrier = getattr(getattr(tp.ops, operator.namespace), operator.opname, operator)
                carrier.operator_kernels.drop(previous.device)

    # -- after a failure ----------------------------------------------------------------------

    def _failed(self, request: Request, problem: BaseException, *, keep_old: bool) -> None:
        """Block the names that the cell defines, unless they are someone else's."""
        if keep_old:
            return
        shell = self.shell
        names = _defined_names(request)
        key = self._key(names)
        previous = self.session.slots.get(key)
        blocked = {*names, *(previous.names if previous is not None else ())}
        blocked -= self._foreign_names(key)
        if key.startswith("id:"):  # else a cell run again cannot be told from another one
            others = [slot for k, slot in self.session.slots.items() if k != key]
            blocked -= {name for slot in others for name in slot.names}
        why = first_line(str(problem) or type(problem).__name__)
        reason = f"{request.cell_name} did not build: {why}"
        slot = self.session.slots.setdefault(key, Slot(request.cell_name, ()))
        for name in blocked:
            value = shell.user_ns.get(name, _ABSENT)
            if value is _ABSENT or isinstance(value, _OURS):
                if not isinstance(value, BlockedName):
                    slot.blocked[name] = value
                shell.user_ns[name] = BlockedName(name, reason)
        for operator in previous.definitions if previous is not None else ():
            _block(operator, slot.device, reason)
            slot.stopped = (*slot.stopped, operator)

    def _foreign_names(self, key: str) -> set[str]:
        """Return the names that other cells own; without cell ids nobody knows."""
        slots = self.session.slots.items() if key.startswith("id:") else ()
        return {
            name
            for other, slot in slots
            if other.startswith("id:") and other != key
            for name in slot.names
        }

    def _show_expected(self, problem: Exception) -> None:
        text = f"{type(problem).__name__}: {problem}"
        title = "The cell failed, as --expect-error says it must."
        display({"text/plain": f"{title}\n{text}", "text/html": error_html(title, text)}, raw=True)


_document(TpKernelMagics.tpkernel)


def _block(operator: Any, device: str, reason: str) -> None:
    """Take away the kernel that an operator has from a cell, also where another cell carries it."""
    carrier = getattr(getattr(tp.ops, operator.namespace), operator.opname, operator)
    for definition in {id(d): d for d in (operator, carrier)}.values():
        for key in ("cuda",) if device == "cuda" else (None, "cpu"):
            definition.register_kernel(key, BlockedName(operator.name, reason))


def _remember(report: Report) -> None:
    _LAST[:] = [report]


def _short(problem: Exception, unexpected: str | None = None) -> Exception:
    """Show the person's text alone: no frames of ours, no command line.

    With `unexpected`, say that the error is not the one that ``--expect-error`` describes.
    """
    text = f"{type(problem).__name__}: {problem}"
    if unexpected is not None:
        text += f"\nThis is not the error that --expect-error {unexpected!r} describes."

    def render() -> list[str]:
        return text.splitlines()

    problem._render_traceback_ = render  # type: ignore[attr-defined]  # IPython's own hook
    return problem


def _defined_names(request: Request) -> list[str]:
    """Return the names that a cell means to bind, though it may not even parse."""
    if request.name:
        return [request.name]
    declared = re.findall(r"^[ \t-]*op:[ \t]*[\"']?\w+::(\w+)", request.text, re.MULTILINE)
    if declared:
        return declared
    found = parse_source(request.text).functions
    functions = [f for f in found if not f.internal and f.return_type != "__device__"]
    if request.functions is not None:
        return list(request.functions)
    return [f.name for f in functions if not f.name.endswith("_backward")]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magic and its input step; loading again changes nothing."""
    magics = TpKernelMagics(shell)
    shell.register_magics(magics)
    register_options(shell, TpKernelMagics.tpkernel.parser, COMMANDS, magics.held)
    for call in last_calls(session_key(shell)):
        html = error_html("The session ended in a kernel", str(call))
        display({"text/plain": str(call), "text/html": html}, raw=True)
    steps = shell.input_transformers_cleanup
    if hoist_magic not in steps:
        steps.insert(0, hoist_magic)  # before IPython's, which take blank lines away
    completion.register(shell)
    hide_own_frames(shell)
    # What the first cell would wait for: a tenth of a second here, where a second is imported.
    cpp_jit.is_available()
    parse_source("")
    code_html("pass", "python")
    programs_version()


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Remove the magic and its input step; what cells have bound stays."""
    steps = shell.input_transformers_cleanup
    while hoist_magic in steps:
        steps.remove(hoist_magic)
    completion.unregister(shell)
    show_own_frames(shell)
    unregister_options(shell)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("tpkernel", None)
    shell.magics_manager.registry.pop("TpKernelMagics", None)
