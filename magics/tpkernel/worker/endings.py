"""The end of a process that has loaded a cell's library, tried before a notebook comes to it.

Destructors of static and ``thread_local`` objects and ``atexit`` handlers run when a process ends:
in a notebook when its kernel stops or restarts. So a copy of the worker ends after the checks of a
library that may have such, and the report says how that went. Where the library's threads still
run, which a copy would not have, the worker itself ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = [
    "ENDING",
    "END_LIMIT",
    "FINISHED",
    "LAST_WORDS",
    "may_act_at_exit",
    "try_end",
    "wait_for_end",
]

#: Seconds that a process may take to end.
END_LIMIT = 2.0
#: Exit status of a process in which everything of the library has run.
FINISHED = 90
#: Seconds that a process which did not end gets to say where it is.
LAST_WORDS = 0.5
#: Times the limit that a process gets which waits for a processor.
_PATIENCE = 4
#: Bytes that are kept of what it writes: its start and, where it crashes, its end.
_KEPT = 1 << 16

#: C++ of the worker's own library, behind the handler of crashes. Functions for the end run in
#: turn, the newest first, so that one registered before a cell's library is loaded runs when all of
#: that library's are done.
ENDING = r"""
#include <link.h>
#include <string.h>

namespace {
bool leaving = false;
char ending[512];

struct Destructors {
  void (**first)();
  size_t count;
};
Destructors found[16];
int count_found = 0;

bool is_ending(const char* file) {
  const char* slash = strrchr(file, '/');
  const char* name = slash == nullptr ? file : slash + 1;
  const size_t size = strlen(name), wanted = strlen(ending);
  if (wanted == 0 || size < wanted || strcmp(name + size - wanted, ending) != 0) return false;
  return size == wanted || (strncmp(name, "load-", 5) == 0 && name[size - wanted - 1] == '-');
}

int note_destructors(dl_phdr_info* info, size_t, void*) {
  if (info->dlpi_name == nullptr || !is_ending(info->dlpi_name)) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    Destructors own = {nullptr, 0};
    const auto place = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(place);
    for (; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_FINI_ARRAY)
        own.first = reinterpret_cast<void (**)()>(info->dlpi_addr + entry->d_un.d_ptr);
      if (entry->d_tag == DT_FINI_ARRAYSZ) own.count = entry->d_un.d_val / sizeof(void (*)());
    }
    if (own.first != nullptr && count_found < 16) found[count_found++] = own;
  }
  return 0;
}

void finish() {
  if (!leaving) return;
  leaving = false;
  dl_iterate_phdr(note_destructors, nullptr);
  for (int i = 0; i < count_found; ++i)
    for (size_t n = found[i].count; n > 0; --n) found[i].first[n - 1]();
  _exit(90);
}
}  // namespace

int64_t mark() { return atexit(finish); }

// Runs what the library `name` has registered since the last mark, and ends the process.
// An exception of a destructor ends the process here, and is not one of this function: so it is
// `noexcept`, and does not let the compiler see a call that cannot throw.
void leave(std::string name) noexcept {
  note_threads();  // of this process, should it be a copy
  snprintf(ending, sizeof ending, "%s", name.c_str());
  leaving = true;
  void (*volatile end)(int) = exit;
  end(0);
}
"""

#: Names in a library's symbol table of what has something run at the end. `__cxa_atexit` is none:
#: what a kernel is linked with imports it.
_REGISTER = (
    b"\0atexit\0",
    b"\0at_quick_exit\0",
    b"\0on_exit",
    b"\0__cxa_guard_acquire",
    b"\0__cxa_thread_atexit",
)
_INITIALISERS = b"\0_GLOBAL__sub_I_"
#: Texts of the run-time library that is linked into each cell's.
_OWN_INITIALISERS = (b"errors.cpp\0",)
_FINI_ARRAY_SIZE, _NULL = 28, 0


def may_act_at_exit(library: str) -> bool:
    """Return whether a library has destructors or handlers that run when its process ends.

    True also where it cannot be told, as of a library without a symbol table.
    """
    code = Path(library).read_bytes()
    if any(name in code for name in _REGISTER) or b"\0.symtab\0" not in code:
        return True
    start = code.find(_INITIALISERS)
    while start >= 0:
        if not code.startswith(_OWN_INITIALISERS, start + len(_INITIALISERS)):
            return True
        start = code.find(_INITIALISERS, start + 1)
    return _destructors(code) > 1  # the compiler's own is in each


def _destructors(code: bytes) -> int:
    """Return how many functions an ELF file of 64 bits asks to have called at the end."""
    if not code.startswith(b"\x7fELF\x02\x01"):
        return 0
    (table,) = struct.unpack_from("<Q", code, 0x20)
    size, count = struct.unpack_from("<HH", code, 0x36)
    for number in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", code, table + number * size)
        if kind != 2:  # PT_DYNAMIC
            continue
        for place in range(offset, offset + length, 16):
            tag, value = struct.unpack_from("<QQ", code, place)
            if tag == _FINI_ARRAY_SIZE:
                return int(value) // 8
            if tag == _NULL:
                break
    return 0


def try_end(leave: Callable[[str], Any], library: str) -> tuple[int | None, str]:
    """End a copy of this process.

    Parameters
    ----------
    leave
        What ends a process and runs what the library has registered.
    library
        Path of the library.

    Returns
    -------
    tuple
        The copy's status, as `subprocess` has it, or None where it did not end in time; and what
        it has written to its error stream.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the copy lacks threads is known
        copy = os.fork()
    if copy == 0:
        with contextlib.suppress(BaseException):
            os.dup2(writer, 2)
            os.close(reader)
            signal.setitimer(signal.ITIMER_REAL, END_LIMIT + 5)  # if nobody is left to end it
            leave(Path(library).name)
        os._exit(1)
    os.close(writer)
    said = bytearray()
    status: int | None = None
    asked = 0.0
    started = time.monotonic()
    deadline = started + END_LIMIT
    readable = select.poll()  # not select(): a kernel may have left many descriptors open
    readable.register(reader, select.POLLIN)
    while True:
        status = _status_of(copy)
        while readable.poll(0 if status is not None else 10):
            text = os.read(reader, _KEPT)
            if not text:
                break
            said += text
            del said[_KEPT:-_KEPT]
            if time.monotonic() > deadline:
                break
        if status is not None:
            break
        now = time.monotonic()
        if not asked and now > deadline and _may_still_end(copy, started):
            continue
        if now > deadline:
            if asked:
                os.kill(copy, signal.SIGKILL)
                os.waitpid(copy, 0)
                break
            # Its handler says where it is.
            os.kill(copy, signal.SIGABRT)
            asked = now
            deadline = asked + LAST_WORDS
    os.close(reader)
    return (None if asked else status), said.decode(errors="replace")


def _status_of(copy: int) -> int | None:
    ended, status = os.waitpid(copy, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def wait_for_end(pid: int, has_ended: Callable[[], bool]) -> bool:
    """Wait for a process that is about to end; return whether it came to it in time.

    Parameters
    ----------
    pid
        The process.
    has_ended
        Tells whether it has.
    """
    started = time.monotonic()
    before = _processor_time(pid)
    while not has_ended():
        late = time.monotonic() > started + END_LIMIT
        if late and not _may_still_end(pid, started, before):
            return False
        time.sleep(0.01)
    return True


def _may_still_end(pid: int, started: float, before: float = 0.0) -> bool:
    """Return whether a process that is late could go on and gets no processor."""
    if time.monotonic() > started + _PATIENCE * END_LIMIT:
        return False
    return _state(pid)[:1] == ["R"] and _processor_time(pid) - before < END_LIMIT / 2


def _processor_time(pid: int) -> float:
    """Return how many seconds of a processor a process has had; 0 where nothing tells."""
    times = _state(pid)[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK") if times else 0.0


def _state(pid: int) -> list[str]:
    """Return what the system says of a process, its state first; nothing where it does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
