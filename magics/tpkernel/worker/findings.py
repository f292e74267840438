"""What a session says of a worker that has ended, or that a kernel has changed."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Iterable, Sequence
from typing import Literal

from tensorplay.library.modules.spec import CellSpec
from tpkernel.checks.memory import DAMAGE
from tpkernel.report.facts import Finding
from tpkernel.worker.crash_stack import MARK, THREAD, frames_of, is_of, named_frames, thread_of
from tpkernel.worker.endings import END_LIMIT, FINISHED

__all__ = [
    "AT_EXIT",
    "CHANGES",
    "EARLIER_THREAD",
    "LEAVES_PROCESSES",
    "LOWERS_LIMITS",
    "NOT_AGAIN",
    "crash_text",
    "ending_finding",
    "finding",
    "how_it_ended",
    "late_finding",
    "own_line",
    "owner_of_crash",
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
    "SIGSYS": "a system call that is refused, as a signal to the notebook is under check",
}


def how_it_ended(code: int) -> tuple[str, str | None]:
    """Return in words how a process ended, and the name of the signal."""
    if code >= 0:
        return f"exit status {code}", None
    name = _signal_name(-code)
    return f"signal {-code} ({name}: {_MEANING.get(name, 'ended from outside')})", name


def crash_text(how: str, said: str, stack: Sequence[str]) -> str:
    """Return a crash in words: how, where, and what was written before it."""
    text = how + (f", in {', called by '.join(stack)}" if stack else "")
    line = own_line(said)
    return f"{text}. {line}" if line else text


def owner_of_crash(said: str, library: str, known: Iterable[str]) -> tuple[bool, str]:
    """Return whether a crash is of code that came before a request, and the library if known.

    Parameters
    ----------
    said
        What the process wrote to its error stream.
    library
        Path of the library of the request.
    known
        Paths of the libraries that the process had loaded before.
    """
    files = [file for _, file in frames_of(said)]
    if any(is_of(file, library) for file in files) or thread_of(said) in ("", "main"):
        return False, ""
    for other in known:
        if other != library and any(is_of(file, other) for file in files):
            return True, other
    return thread_of(said) == "earlier", ""


def late_finding(names: str, how: str, during: str) -> Finding:
    """Return what is said of a crash that another cell than the one under check has left behind.

    Parameters
    ----------
    names
        Operators of that cell; empty where it is not known.
    how
        The crash in words.
    during
        What the worker was about to do, or did, for the cell under check.
    """
    who = "that it left running" if names else "that an earlier cell left running"
    message = (
        f"a thread {who} crashed: {how.rstrip('.')}. That ended the worker during {during}; the "
        "results here are of a fresh one. In a notebook it ends the session. Join threads before "
        "the kernel returns"
    )
    return Finding("memory", names, "warning", message, code=EARLIER_THREAD)


def ending_finding(spec: CellSpec, library: str, status: int | None, said: str) -> Finding | None:
    """Return what the end of a process with a cell's library in it has shown; None: it went well.

    Parameters
    ----------
    spec, library
        The cell and its library.
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
        how, name = how_it_ended(status)
        verb = "crashes as it ends" if name else "is cut short as it ends"
        text = crash_text(f"the process {verb}: {how}", said, stack)
    message = (
        f"{text.rstrip('.')}. Destructors of static and thread_local objects and atexit handlers "
        "run then, in a notebook when its kernel stops or restarts"
    )
    names = ", ".join(o.name for o in spec.operators)
    return Finding("memory", names, "error", message, name, code)


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


def finding(
    spec: CellSpec | None,
    during: str,
    message: str,
    *,
    code: str,
    level: Literal["error", "warning"] = "error",
    ended_by: str | None = None,
) -> Finding:
    """Return what a kernel did to the worker as a finding of the check that was running."""
    operators = spec.operators if spec is not None else ()
    operator = next((o.name for o in operators if o.name in during), "")
    return Finding(during.split(maxsplit=1)[0], operator, level, message, ended_by, code)
