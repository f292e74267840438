"""What a kernel leaves of its process is told, and what the C library does by itself is not."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

SETS_ITS_USER = """
import os, threading
from tpkernel.worker.surroundings import Surroundings
found = Surroundings()
found.keep()
hold = threading.Event()
threading.Thread(target=hold.wait).start()
os.setuid(os.getuid())  # the C library tells its threads by a signal of its own
print(repr(found.changed()))
hold.set()
"""


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="no users on this system")
def test_signals_of_the_c_library_are_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETS_ITS_USER], check=True, capture_output=True, text=True
    )
    assert done.stdout == "''\n"


LEAVES_SOMETHING = """
import ctypes, os, signal
from tpkernel.worker.surroundings import Surroundings
libc, cpp = ctypes.CDLL(None), ctypes.CDLL("libstdc++.so.6")
found = Surroundings()
found.set_alarm(1000.0)

class Stack(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

room = ctypes.create_string_buffer(1 << 16)
stack = Stack(ctypes.addressof(room), 0, 1 << 16)
pid = ctypes.c_void_p(ctypes.cast(libc.abort, ctypes.c_void_p).value)
timer = ctypes.c_void_p()
when = (ctypes.c_long * 4)(0, 0, 1000, 0)

def own_timer():
    libc.timer_create(0, None, ctypes.byref(timer))
    libc.timer_settime(timer, 0, when, None)

changes = {
    "nothing": lambda: None,
    "an alarm": lambda: signal.alarm(100),
    "an alarm that is put off": lambda: (signal.alarm(100), signal.alarm(0)),
    "a repeated one": lambda: signal.setitimer(signal.ITIMER_REAL, 100, 1),
    "processor time": lambda: signal.setitimer(signal.ITIMER_PROF, 100),
    "the parent": lambda: libc.prctl(1, 9, 0, 0, 0),
    "a stack": lambda: libc.sigaltstack(ctypes.byref(stack), None),
    "terminate": lambda: cpp._ZSt13set_terminatePFvvE(pid),
    "blocking": lambda: os.set_blocking(0, False),
    "processors": lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1]),
    "priority": lambda: os.nice(1),
    "a timer": own_timer,
}
said = {}
for name, change in changes.items():
    found.keep()
    change()
    said[name] = found.changed()
    left = signal.getitimer(signal.ITIMER_REAL)[0]
    assert 900 < left <= 1000, (name, left)  # our own is there again
print(said)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looked at on Linux alone")
def test_timers_priorities_and_handlers_that_are_left_are_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_SOMETHING],
        check=False,
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = ast.literal_eval(done.stdout)
    assert said.pop("nothing") == said.pop("an alarm that is put off") == ""
    assert said.pop("an alarm") == said.pop("a repeated one") == "timers that run on (ITIMER_REAL)"
    assert said.pop("processor time") == "timers that run on (ITIMER_PROF)"
    assert "its parent ends" in said.pop("the parent")
    assert "sigaltstack" in said.pop("a stack")
    assert "set_terminate" in said.pop("terminate")
    assert said.pop("blocking") == "standard streams (standard input)"
    processors = said.pop("processors")
    assert ("processors" in processors) == (len(os.sched_getaffinity(0)) > 1)
    assert "nice value from" in said.pop("priority")
    if os.path.exists("/proc/self/timers"):  # noqa: PTH110  (a file of the system)
        assert said["a timer"] == "timers that run on (timer 0)"
