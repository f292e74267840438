"""The C++ stack of a kernel that crashed in the worker.

A handler on a stack of its own writes the addresses of the frames to the error stream, says whether
the thread was there before the request and whether the process sent the signal to itself, and lets
the signal end the process. The session names the
frames that lie in the cell's library, by ``addr2line`` where that is installed: functions always,
lines where the cell was built with ``-g``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tensorplay.utils import cpp_jit
from tpkernel.worker.endings import ENDING
from tpkernel.worker.session_guard import GUARD

__all__ = [
    "MARK",
    "RAISED",
    "THREAD",
    "crash_stack_library",
    "frames_of",
    "is_of",
    "named_frames",
    "raised_in",
    "resolved",
    "thread_of",
]

_HANDLER = r"""
#include <algorithm>
#include <atomic>
#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#if defined(__linux__)
#include <link.h>
#endif
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {
// What ends a process by default: faults, and signals that somebody sends.
constexpr int signals[] = {SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGABRT,   SIGSYS,
                           SIGTRAP, SIGHUP,  SIGINT,  SIGQUIT, SIGTERM,   SIGUSR1,
                           SIGUSR2, SIGALRM, SIGPROF, SIGXCPU, SIGVTALRM, SIGIO};

pid_t worker = 0;  // a copy of it by fork() has nothing to say on its error stream

// The threads that were there before a kernel of this request ran.
constexpr int most = 4096;
long earlier[most];
int count_earlier = 0;

void note_threads() {
  worker = getpid();
  count_earlier = 0;
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    const long id = atol(entry->d_name);
    if (id > 0 && count_earlier < most) earlier[count_earlier++] = id;
  }
  closedir(folder);
}

long own_thread() {
#ifdef SYS_gettid
  return syscall(SYS_gettid);
#else
  return getpid();
#endif
}

const char* thread_kind() {
  const long own = own_thread();
  if (own == getpid()) return "main";
  for (int i = 0; i < count_earlier; ++i)
    if (earlier[i] == own) return "earlier";
  return "new";
}

// Where the C library has it, without the lock that a thread which loads a library holds.
long place_of(void* address, const char** file) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 35)
  dl_find_object found;
  if (_dl_find_object(address, &found) != 0) return 0;
  *file = found.dlfo_link_map->l_name;
  return static_cast<long>(reinterpret_cast<uintptr_t>(address) - found.dlfo_link_map->l_addr);
#else
  Dl_info info;
  if (dladdr(address, &info) == 0) return 0;
  *file = info.dli_fname;
  return static_cast<char*>(address) - static_cast<char*>(info.dli_fbase);
#endif
}

std::atomic<long> crashing{0};  // the thread whose stack is being written
volatile sig_atomic_t came = 0;  // and the signal

void admit(int signal) {
  sigset_t alone;
  sigemptyset(&alone);
  sigaddset(&alone, signal);
  sigprocmask(SIG_UNBLOCK, &alone, nullptr);
}

[[noreturn]] void end_by(int signal) {
  // Not to the handlers before: the engine's reads debug information for seconds on a busy machine.
  ::signal(signal, SIG_DFL);
  admit(signal);
  raise(signal);
  _exit(128 + signal);
}

void give_up(int) { end_by(came); }

// A stack that a kernel has overwritten may have no end, or lead where nothing is; and what holds a
// lock may have crashed, too.
void limit_unwinding(int signal) {
  long none = 0;
  const long own = own_thread();
  if (!crashing.compare_exchange_strong(none, own)) {
    if (none == own) end_by(came);
    for (;;) pause();  // another thread is about to end the process, and says why
  }
  came = signal;
  for (int limit : {SIGVTALRM, SIGALRM}) {
    ::signal(limit, give_up);
    admit(limit);
  }
  itimerval time = {};
  time.it_value.tv_usec = 300000;  // of a processor's, which a busy machine may not give
  setitimer(ITIMER_VIRTUAL, &time, nullptr);
  time.it_value = {3, 0};
  setitimer(ITIMER_REAL, &time, nullptr);
}

void write_line(const char* form, ...) {
  char line[4400];
  va_list rest;
  va_start(rest, form);
  const int size = vsnprintf(line, sizeof line, form, rest);
  va_end(rest);
  if (write(2, line, std::min(static_cast<size_t>(size), sizeof line - 1)) < 0) end_by(came);
}

bool is_from_here(const siginfo_t& info) {
  const int code = info.si_code;
  bool sent = code == SI_USER || code == SI_QUEUE;
#if defined(SI_TKILL)
  sent = sent || code == SI_TKILL;
#endif
  return sent && info.si_pid == getpid();
}

void handle(int signal, siginfo_t* info, void* context) {
  int raised = is_from_here(*info) ? signal : 0;
#if defined(__linux__)
  if (signal == SIGSYS && is_answered(*info, context, raised)) return;
#else
  (void)context;
#endif
  if (getpid() != worker) end_by(signal);
  limit_unwinding(signal);
  write_line("\n@thread %s", thread_kind());
  if (raised != 0) write_line("\n@raised %d", raised);
  void* frames[48];
  const int count = backtrace(frames, 48);
  for (int i = 0; i < count; ++i) {
    const char* file = nullptr;
    const long offset = place_of(frames[i], &file);
    if (file != nullptr) write_line("\n@frame %lx %s", offset, file);
  }
  write_line("\n");
  end_by(signal);
}
}  // namespace

int64_t install() {
  note_threads();
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
  for (int signal : signals) sigaction(signal, &action, nullptr);
#if defined(SIGRTMIN)
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) sigaction(signal, &action, nullptr);
#endif
  return 0;
}
"""

#: What lines of the handler begin with: a frame, the thread that crashed, and the signal that the
#: process has sent to itself.
MARK, THREAD, RAISED = "@frame ", "@thread ", "@raised "
_FRAME = re.compile(rf"^{MARK}([0-9a-f]+) (.+)$", re.MULTILINE)
_FRAMES = 12


def crash_stack_library() -> str | None:
    """Return the library with the handler; None where none can be built.

    The session builds it, not the process that is to have it: a compiler there would look like a
    process that a kernel has started.
    """
    text, exports = _HANDLER, ["install"]
    if sys.platform == "linux":
        text, exports = GUARD + text + ENDING, [*exports, "mark", "leave", "guard_session"]
    try:
        built = cpp_jit.build_source("tpkernel_crash_stack", cpp_jit.Source(text), exports=exports)
    except (cpp_jit.BuildError, cpp_jit.MissingToolError, OSError):
        return None  # a crash is told without its stack then
    return str(built.library)


def is_of(file: str, library: str) -> bool:
    """Return whether a loaded file is a library, or the copy that it was loaded from."""
    name, wanted = Path(file).name, Path(library).name
    return name == wanted or (name.startswith("load-") and name.endswith(f"-{wanted}"))


def frames_of(said: str) -> list[tuple[str, str]]:
    """Return offset and file of each frame of a crash, the innermost first.

    Parameters
    ----------
    said
        What the process wrote to its error stream.
    """
    return _FRAME.findall(said)


def thread_of(said: str) -> str:
    """Return which thread crashed: main, earlier (than the request) or new; empty if unknown."""
    found = re.search(rf"^{THREAD}(\w+)", said, re.MULTILINE)
    return found[1] if found is not None else ""


def raised_in(said: str) -> int | None:
    """Return the signal that a process has sent to itself before it ended, or None."""
    found = re.search(rf"^{RAISED}(\d{{1,2}})$", said, re.MULTILINE)
    return int(found[1]) if found is not None else None


def named_frames(said: str, library: str) -> list[str]:
    """Return the frames inside a library, the innermost first, in words.

    Parameters
    ----------
    said
        What the process wrote to its error stream.
    library
        Path of the library.
    """
    # What is left on the stack is where a call returns to; the call stands before. The first frames
    # are the handler's, the system's that called it, and where the signal came.
    offsets = [
        hex(max(0, int(offset, 16) - (i > 2)))
        for i, (offset, file) in enumerate(frames_of(said))
        if is_of(file, library)
    ]
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
