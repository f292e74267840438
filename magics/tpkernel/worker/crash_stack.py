"""The C++ stack of a kernel that crashed in the worker.

A handler on a stack of its own writes the addresses of the frames to the error stream and passes
the signal on. The session names those that lie in the cell's library, by ``addr2line`` where that
is installed: functions always, lines where the cell was built with ``-g``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorplay.utils import cpp_jit

__all__ = ["MARK", "crash_stack_library", "install_crash_stack", "named_frames", "resolved"]

_HANDLER = r"""
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

namespace {
constexpr int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
struct sigaction before[NSIG];

void handle(int signal, siginfo_t*, void*) {
  void* frames[48];
  const int count = backtrace(frames, 48);
  for (int i = 0; i < count; ++i) {
    Dl_info info;
    if (dladdr(frames[i], &info) == 0 || info.dli_fname == nullptr) continue;
    char line[4400];
    const auto offset = static_cast<char*>(frames[i]) - static_cast<char*>(info.dli_fbase);
    const int size = snprintf(line, sizeof line, "\n@frame %lx %s", static_cast<long>(offset),
                              info.dli_fname);
    if (write(2, line, static_cast<size_t>(size)) < 0) break;
  }
  if (write(2, "\n", 1) < 0) abort();
  sigaction(signal, &before[signal], nullptr);
  raise(signal);
}
}  // namespace

int64_t install() {
  static char stack[1 << 16];
  stack_t own = {};
  own.ss_sp = stack;
  own.ss_size = sizeof stack;
  if (sigaltstack(&own, nullptr) != 0) return -1;
  void* first[1];
  backtrace(first, 1);  // loads what it needs before anything is wrong
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int signal : signals) {
    struct sigaction old = {};
    sigaction(signal, &action, &old);
    if (old.sa_sigaction != handle) before[signal] = old;
  }
  return 0;
}
"""

#: What a line of the handler begins with.
MARK = "@frame "
_FRAMES = 12


def crash_stack_library() -> str | None:
    """Return the library with the handler; None where none can be built.

    The session builds it, not the process that is to have it: a compiler there would look like a
    process that a kernel has started.
    """
    try:
        built = cpp_jit.build_source(
            "tpkernel_crash_stack", cpp_jit.Source(_HANDLER), exports=["install"]
        )
    except (cpp_jit.BuildError, cpp_jit.MissingToolError, OSError):
        return None  # a crash is told without its stack then
    return str(built.library)


def install_crash_stack(library: str) -> Callable[[], Any]:
    """Let a crash of this process write its stack; return what does it again.

    A kernel may set handlers of its own, and the next one is not to run without this.
    """
    install: Callable[[], Any] = cpp_jit.load_module(library).install
    install()
    return install


def named_frames(said: str, library: str) -> list[str]:
    """Return the frames inside a library, the innermost first, in words.

    Parameters
    ----------
    said
        What the process wrote to its error stream.
    library
        Path of the library.
    """
    frames = [
        line.removeprefix(MARK).partition(" ")[::2]
        for line in said.splitlines()
        if line.startswith(MARK)
    ]
    # The first is the handler's own. A library may be loaded from a copy of another name.
    own = next(
        (
            file
            for _, file in frames
            if file != frames[0][1]
            and (Path(file).name.startswith("load-") or Path(file).name == Path(library).name)
        ),
        None,
    )
    # What is left on the stack is where a call returns to; the call stands before.
    addresses = [int(offset, 16) for offset, file in frames if file == own]
    offsets = [hex(max(0, a - (i > 0))) for i, a in enumerate(addresses)]
    named = [
        f"{name} at line {line}" if line else name
        for name, line in resolved(library, offsets[:_FRAMES])
    ]
    return list(dict.fromkeys(named))


def resolved(library: str, offsets: Sequence[str]) -> list[tuple[str, int | None]]:
    """Return function and line of offsets in a library, inlined callers included.

    Parameters
    ----------
    library
        Path of the library.
    offsets
        Hexadecimal numbers, the innermost frame first; the list ends where the cell's code does.
    """
    tool = shutil.which("addr2line")
    if tool is None or not offsets:
        return []
    try:
        done = subprocess.run(
            [tool, "-C", "-f", "-i", "-e", library, *offsets],
            check=False,
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.splitlines()
    found: list[tuple[str, int | None]] = []
    for function, place in zip(lines[::2], lines[1::2], strict=False):
        if function.startswith("__tvm_ffi_"):
            break  # the export: what called it is not the cell's
        if function.startswith(("tp_rt_", "tensorplay::jit::")):
            continue  # of the run-time library, which is linked into the cell's, or of the export
        name = re.sub(r"\(.*", "", function.removeprefix("void "))
        if thread := re.match(r"std::thread::_State_impl<.*?std::tuple<(?:([\w:]+)\()?", function):
            name = f"a thread of {thread[1]}" if thread[1] else "a thread"
        line = re.search(r"(?:tpkernel cell>|/source\.cpp):(\d+)", place)
        if name not in ("??", ""):
            found.append((name, int(line[1]) if line else None))
    return found
