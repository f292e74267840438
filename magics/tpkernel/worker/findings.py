"""What a session says of a worker that has ended, or that a kernel has changed."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Collection, Sequence
from typing import Literal

from tpkernel.checks.memory import DAMAGE
from tpkernel.report.facts import Finding
from tpkernel.worker.crash_stack import (
    MARK,
    RAISED,
    THREAD,
    frames_of,
    is_of,
    named_frames,
    raised_in,
    thread_of,
)
from tpkernel.worker.endings import END_LIMIT, FINISHED

__all__ = [
    "AT_EXIT",
    "CHANGES",
    "EARLIER_DAMAGE",
    "EARLIER_THREAD",
    "LEAVES_PROCESSES",
    "LOWERS_LIMITS",
    "NOT_AGAIN",
    "Blame",
    "blame_of",
    "crash_text",
    "damage_finding",
    "ending_finding",
    "finding",
    "how_it_ended",
    "late_finding",
    "own_line",
    "with_doubt",
    "without_repetition",
]

#: Code of the finding that processes were started and not waited for.
LEAVES_PROCESSES = "leaves_processes"
#: Code of the finding that the process was left with less than it may use.
LOWERS_LIMITS = "lowers_limits"
#: Code of the finding that threads go on when the kernel has returned.
LEAVES_THREADS = "leaves_threads"
#: Code of the finding that something of the process, not of the kernel, is another afterwards.
CHANGES_PROCESS = "changes_process"
#: Codes of findings about the end of the process: it crashes, or does not come.
CRASHES_AT_EXIT, HANGS_AT_EXIT = "crash_at_exit", "hang_at_exit"
AT_EXIT = frozenset({CRASHES_AT_EXIT, HANGS_AT_EXIT})
#: Code of the finding that a thread of another cell has ended the worker.
EARLIER_THREAD = "earlier_thread"
#: Code of the finding that a crash came where other cells had run, and not in a fresh worker.
EARLIER_DAMAGE = "earlier_damage"
#: Codes of findings after which a child serves no other request.
NOT_AGAIN = DAMAGE | AT_EXIT | {LEAVES_PROCESSES, LOWERS_LIMITS, LEAVES_THREADS, CHANGES_PROCESS}
#: What a child says that a kernel has done to it: code, level and text of the finding.
CHANGES: dict[str, tuple[str, Literal["error", "warning"], str]] = {
    "left": (
        LEAVES_PROCESSES,
        "error",
        (
            "the kernel starts processes and does not wait for them (they were ended). A copy made "
            "by fork() comes back into the notebook a second time; use threads"
        ),
    ),
    "lowered": (
        LOWERS_LIMITS,
        "error",
        (
            "the kernel lowers limits of its process during {during} and does not put them back: "
            "{what}. A notebook could not go on with that. Set what getrlimit() said before, or "
            "leave the limits alone"
        ),
    ),
    "changed": (
        CHANGES_PROCESS,
        "warning",
        (
            "the kernel changes its process during {during} and does not put it back: {what}. In a "
            "notebook that holds from then on for all other code too. Put it back before the "
            "kernel returns"
        ),
    ),
    "threads": (
        LEAVES_THREADS,
        "warning",
        (
            "the kernel leaves {what} running when it has returned. No check sees what they do "
            "then, and a crash there ends the notebook. Join them before the kernel returns, or "
            "use tp::parallel_for"
        ),
    ),
}
#: Signals of what the code of a kernel did.
_FAULTS = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"})
#: What the C library says where it meets damage of the memory that it hands out.
_HEAP = re.compile(
    r"^(?:(?:free|malloc|realloc|calloc|munmap_chunk|mremap_chunk|malloc_consolidate)\(\)|"
    r"corrupted |double free|unaligned |invalid fastbin|Fatal glibc error: malloc)",
    re.MULTILINE,
)
#: Frames of a crash that are the handler's and the system's that called it.
_HANDLERS = 2
#: Cells that a finding names of those that ran before.
_NAMED = 3


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"


_NOT_SAID = (
    "Fatal Python error",
    "  File",
    "Thread",
    "Current thread",
    "Extension modules",
    "Stack",
    "Python runtime state",
    "!!!!!!!",  # the engine's banner, which says no more than the signal
    MARK,
    THREAD,
    RAISED,
)


def own_line(said: str) -> str:
    """Return the first line that a C library wrote before the end, without Python's stack."""
    own = [n for n in said.splitlines() if n.strip() and not n.startswith(_NOT_SAID)]
    if own and own[0].startswith("Traceback"):
        return own[-1].strip()[:300]  # an exception of Python: its type and text end it
    return own[0].strip()[:300] if own else ""


_MEANING = {
    "SIGSEGV": "memory that is not the kernel's own",
    "SIGBUS": "memory that is not there",
    "SIGABRT": "abort",
    "SIGFPE": "integer division by zero or overflow",
    "SIGILL": "an instruction this processor does not have",
    "SIGKILL": "killed, perhaps for memory",
    "SIGALRM": "a timer that the kernel has set",
    "SIGVTALRM": "a timer that the kernel has set",
    "SIGPROF": "a timer that the kernel has set",
    "SIGXCPU": "more processor time than the process may take",
    "SIGXFSZ": "a larger file than the process may write",
    "SIGTRAP": "a breakpoint",
    "SIGSYS": "a system call that is refused, as a signal to the notebook is under check",
}


def how_it_ended(code: int | None, said: str = "") -> tuple[str, str | None]:
    """Return in words how a process ended, and the name of the signal.

    Parameters
    ----------
    code
        Its status, as `subprocess` has it; None where another part of the session has taken it.
    said
        What it wrote to its error stream.
    """
    if code is None:
        return "an end that is not known, since the session ignores or collects its children", None
    if code >= 0:
        return f"exit status {code}", None
    raised = raised_in(said)
    number = -code if raised is None else raised  # it could not end by that one: it was refused
    name = _signal_name(number)
    meaning = _MEANING.get(name, "ended from outside")
    if raised is not None and name != "SIGABRT":
        meaning = "sent by the process to itself"
    return f"signal {number} ({name}: {meaning})", name


def crash_text(how: str, said: str, stack: Sequence[str]) -> str:
    """Return a crash in words: how, where, and what was written before it."""
    text = how + (f", in {', called by '.join(stack)}" if stack else "")
    line = own_line(said)
    return f"{text}. {line}" if line else text


@dataclasses.dataclass(frozen=True)
class Blame:
    """What a crash is of.

    Attributes
    ----------
    kind
        ``"own"``: the request's library. ``"thread"``: code that an earlier request has left.
        ``"damage"``: nothing tells whether the request's library or memory that others damaged.
    library
        Path of the library whose code it was, where it is another's; empty if that is not known.
    """

    kind: Literal["own", "thread", "damage"]
    library: str = ""


def blame_of(
    said: str, signal_name: str | None, library: str, known: Collection[str], *, beside: bool
) -> Blame:
    """Return what a crash is of.

    Parameters
    ----------
    said
        What the process wrote to its error stream.
    signal_name
        The signal that ended it.
    library
        Path of the library of the request.
    known
        Paths of the libraries that the process had loaded.
    beside
        Whether the process had threads that other requests have left.
    """
    files = [file for _, file in frames_of(said)]
    if not files:
        # Such as a thread that calls _exit(): nothing tells whose it was.
        return Blame("thread" if beside else "own")

    def owner(file: str) -> str:
        return next((path for path in (library, *known) if is_of(file, path)), "")

    owners = [owner(file) for file in files]
    is_own = library in owners
    if not is_own:
        if other := next(filter(None, owners), ""):
            return Blame("thread", other)
        if thread_of(said) == "earlier":
            return Blame("thread")
    alone = all(path == library for path in known)
    if alone or thread_of(said) != "main" or signal_name not in _FAULTS:
        return Blame("own")
    if signal_name == "SIGABRT":
        unclear = not is_own or _HEAP.search(said) is not None
    else:
        unclear = raised_in(said) is None and not any(owners[: _HANDLERS + 1])
    return Blame("damage" if unclear else "own")


def late_finding(names: str, how: str, during: str, *, thread: bool = True) -> Finding:
    """Return what is said of a crash of code that another cell than the one under check has left.

    Parameters
    ----------
    names
        Operators of that cell; empty where it is not known.
    how
        The crash in words.
    during
        What the worker was about to do, or did, for the cell under check.
    thread
        It was in a thread of that cell; else in code of it that was called once more, as for an
        object that went.
    """
    who = "it" if names else "an earlier cell"
    what = f"a thread that {who} left running" if thread else f"code of what {who} left behind"
    message = (
        f"{what} crashed: {how.rstrip('.')}. That ended the worker during {during}; the results "
        "here are of a fresh one. In a notebook it ends the session"
    )
    if thread:
        message += ". Join threads before the kernel returns"
    return Finding("memory", names, "warning", message, code=EARLIER_THREAD)


def with_doubt(crash: str, names: Collection[str]) -> str:
    """Return a crash in words, which cells that ran in the process before may be the reason of."""
    before = _ran_before(names)
    return (
        f"{crash.rstrip('.')}. {before} ran in this process before and may have damaged its memory"
    )


def _ran_before(names: Collection[str]) -> str:
    """Return the operators of cells that ran in a process before a crash: the newest first."""
    known = list(dict.fromkeys(names))  # versions of one cell have the same
    shown = known[-_NAMED:]
    more = len(known) - len(shown)
    return " and ".join(shown[::-1]) + (f" and {more} more" if more else "")


def damage_finding(names: Collection[str], crash: str) -> Finding:
    """Return what is said of a crash that does not come where no other cell has run before.

    Parameters
    ----------
    names
        Operators of each cell that ran in that process before, the newest last.
    crash
        The crash in words.
    """
    message = (
        f"the worker crashed: {crash.rstrip('.')}. A fresh one, which the results here are of, "
        f"does not: a kernel that ran before ({_ran_before(names)}) has damaged memory, or it is "
        "chance. Run those cells, and this one, with --sanitize address"
    )
    return Finding("memory", "", "warning", message, code=EARLIER_DAMAGE)


def ending_finding(
    operators: Sequence[str], library: str, status: int | None, said: str
) -> Finding | None:
    """Return what the end of a process with a cell's library in it has shown; None: it went well.

    Parameters
    ----------
    operators, library
        Names of the cell's operators, and its library.
    status
        Status of the process, or None where it did not end in time.
    said
        What it wrote to its error stream.
    """
    if status == FINISHED:
        return None
    stack = named_frames(said, library)
    name = None
    if status is None:
        code = HANGS_AT_EXIT
        # It was asked where it is by a signal, which is not its own.
        text = crash_text(f"the process does not end within {END_LIMIT:g} s", "", stack)
    else:
        code = CRASHES_AT_EXIT
        how, name = how_it_ended(status, said)
        verb = "crashes as it ends" if name else "is cut short as it ends"
        text = crash_text(f"the process {verb}: {how}", said, stack)
    message = (
        f"{text.rstrip('.')}. Destructors of static and thread_local objects and atexit handlers "
        "run then, in a notebook when its kernel stops or restarts"
    )
    return Finding("memory", ", ".join(operators), "error", message, name, code)


def without_repetition(found: Finding) -> Finding:
    """Return the finding of a crash without what its head says, and with what to do."""
    # A report puts "call of mylib::f" before a message of "during call of mylib::f on x (4,)".
    head = rf" during (?:\w+ )+of {re.escape(found.operator)}(?= on | with )"
    message = found.message
    if found.operator and found.signal:
        message = re.sub(head, "", message)
    if found.code == "crash" and found.signal in _FAULTS:
        message += (
            ". The checks after it were not run. Run the cell with --sanitize address,undefined, "
            "which shows the line"
        )
    return dataclasses.replace(found, message=message)


def _says(text: str, name: str) -> bool:
    """Return whether a text has a name, and not only as a part of another."""
    return re.search(rf"(?<![\w:.]){re.escape(name)}(?!\w|::|\.\w)", text) is not None


def finding(
    operators: Sequence[str],
    during: str,
    message: str,
    *,
    code: str,
    level: Literal["error", "warning"] = "error",
    ended_by: str | None = None,
) -> Finding:
    """Return what a kernel did to the worker as a finding of the check that was running."""
    operator = next((name for name in operators if _says(during, name)), "")
    return Finding(during.split(maxsplit=1)[0], operator, level, message, ended_by, code)
