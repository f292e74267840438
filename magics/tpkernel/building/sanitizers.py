"""Cells built with a compiler's sanitizers: flags, the process they run in, and their reports.

The run-time of AddressSanitizer has to be in a process from its start, so such a cell is never
loaded into the session: its checks and its calls go to a worker that was started with it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import toolchain
from tpkernel.worker.crash_stack import resolved

__all__ = [
    "SANITIZERS",
    "SanitizerReport",
    "sanitizer_environment",
    "sanitizer_flags",
    "sanitizer_report",
]

#: What ``--sanitize`` takes.
SANITIZERS = ("address", "undefined")

_ERROR = re.compile(r"ERROR: (?P<tool>\w+Sanitizer): (?P<what>[\w-]+)(?P<rest>[^\n]*)")
_ACCESS = re.compile(r"^(?P<access>READ|WRITE) of size (?P<size>\d+)", re.MULTILINE)
_SIGNAL = re.compile(r"caused by a (?P<access>READ|WRITE) memory access")
_FRAME = re.compile(
    r"^\s*#\d+ 0x[0-9a-f]+ [^\n]*\((?P<file>[^()\n]+)\+(?P<offset>0x[0-9a-f]+)\)", re.MULTILINE
)
_PLACE = re.compile(
    r"is located (?P<bytes>\d+ bytes) "
    r"(?P<where>to the right of|to the left of|inside of|after|before) (?P<region>\d+-byte region)"
)
_WHERE = {
    "to the right of": "after",
    "to the left of": "before",
    "inside of": "inside",
    "after": "after",
    "before": "before",
}
_UNDEFINED = re.compile(
    r"^<tpkernel cell>:(?P<line>\d+):(?P<column>\d+): runtime error: (?P<what>[^\n]*)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class SanitizerReport:
    """What a sanitizer found.

    Attributes
    ----------
    text
        Tool, kind of mistake and place, in one line.
    line, column
        Place in the cell; None where the report names none.
    """

    text: str
    line: int | None
    column: int | None


def sanitizer_flags(names: Sequence[str]) -> list[str]:
    """Return the compiler flags of some sanitizers.

    Raises
    ------
    MissingToolError
        There is no compiler, or it comes without them.
    """
    if not names:
        return []
    compiler = toolchain.find_compiler()
    flags = [
        f"-fsanitize={','.join(names)}",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
        "-g",
        "-O1",
    ]
    if "address" in names:
        _runtime(compiler.command)
        if _is_clang(compiler.command):
            flags.append("-shared-libasan")
    return flags


def sanitizer_environment(names: Sequence[str]) -> Mapping[str, str]:
    """Return the variables of a process that runs such a cell."""
    made = {"UBSAN_OPTIONS": "halt_on_error=1:abort_on_error=1:print_stacktrace=1:color=never"}
    if "address" in names:
        libraries = _runtime(toolchain.find_compiler().command)
        inherited = os.environ.get("LD_PRELOAD", "")
        made["LD_PRELOAD"] = " ".join(filter(None, [*libraries, inherited]))
        made["ASAN_OPTIONS"] = (
            "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:color=never:"
            "detect_stack_use_after_return=1"
        )
    return made


def sanitizer_report(said: str, library: str = "") -> SanitizerReport | None:
    """Read what a sanitizer wrote before it ended a process; None where it wrote nothing.

    Parameters
    ----------
    said
        The process's error stream.
    library
        Path of the cell's library, to find the line where the report names an address.
    """
    undefined = _UNDEFINED.search(said)
    found = _ERROR.search(said)
    if undefined is not None and (found is None or undefined.start() < found.start()):
        row, column = int(undefined["line"]), int(undefined["column"])
        text = f"line {row}, column {column}: UndefinedBehaviorSanitizer: {undefined['what']}"
        return SanitizerReport(text, row, column)
    if found is None:
        return None
    after = said[found.end() :]
    parts = [f"{found['tool']}: {found['what']}"]
    access = _ACCESS.search(after) or _SIGNAL.search(after)
    if access is not None:
        size = access.groupdict().get("size")
        parts.append(access["access"].lower() + (f" of {size} bytes" if size else ""))
    place = _PLACE.search(after)
    if place is not None:
        parts.append(f"{place['bytes']} {_WHERE[place['where']]} a {place['region']}")
    text = ", ".join(parts)
    # The library is loaded from a copy that is gone by now, so the report has offsets only.
    stack = after[: found_end.start()] if (found_end := re.search(r"\n\s*\n", after)) else after
    offsets = [m["offset"] for m in _FRAME.finditer(stack) if _is_copy(m["file"], library)]
    for function, line in resolved(library, offsets):
        if line is not None:
            return SanitizerReport(f"line {line}: {text}, in {function}", line, None)
    return SanitizerReport(text, None, None)


def _is_copy(file: str, library: str) -> bool:
    return Path(file).name.startswith("load-") or Path(file).name == Path(library).name


def _is_clang(command: Sequence[str]) -> bool:
    return "clang" in Path(command[0]).name


def _runtime(command: Sequence[str]) -> tuple[str, ...]:
    """Return the libraries that must be in the process from its start."""
    machine = os.uname().machine
    wanted = f"libclang_rt.asan-{machine}.so" if _is_clang(command) else "libasan.so"
    found = []
    for name in (wanted, "libstdc++.so.6"):  # the second, or its exceptions are not found
        done = subprocess.run(
            [*command, f"-print-file-name={name}"], check=False, capture_output=True, text=True
        )
        path = Path(done.stdout.strip())
        if path.is_absolute() and path.exists():
            found.append(str(path.resolve()))
        elif name == wanted:
            message = (
                f"the compiler {command[0]} comes without {wanted}, which --sanitize address "
                "needs. Install it: apt-get install libasan8, or libclang-rt-dev for clang"
            )
            raise cpp_jit.MissingToolError(message)
    return tuple(found)
