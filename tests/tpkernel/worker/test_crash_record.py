"""After a crash in the session, the next one says which cell, function and arguments it was."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import tensorplay as tp
from tests.tpkernel.shell import ADD1, SOFTPLUS, Shell
from tpkernel.worker.crash_record import CrashRecord, RecordedKernel, last_calls

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")

ROOT = Path(__file__).resolve().parents[3]

SESSION = """
import faulthandler
faulthandler.disable()
from tests.tpkernel.shell import Shell
from IPython.core.interactiveshell import InteractiveShell
shell = Shell(InteractiveShell.instance())
loaded = shell.ok("%load_ext tensorplay")
CODE
"""
CRASH = """
shell.kernel('''void poke(tvm::ffi::TensorView x, int64_t n) {
  auto* p = static_cast<float*>(x.data_ptr());
  for (int64_t i = 0; i < n; ++i) p[i * 1000000] = 1;
}''')
shell.run("import numpy as np; poke(np.zeros((3, 4), 'float32'), 10_000_000)")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start sessions in a folder of the test's own.

    Without a terminal and a kernel that is what a session knows the one before it by, and shells of
    other tests, in another process, may start in between.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


def session(code: str) -> subprocess.CompletedProcess[str]:
    text = SESSION.replace("CODE", textwrap.dedent(code))
    return subprocess.run(
        [sys.executable, "-c", text], check=False, capture_output=True, text=True, stdin=-3
    )


def test_the_next_session_names_cell_function_arguments_and_signal():
    assert session(CRASH).returncode == -11
    done = session("import sys; sys.stdout.write(loaded.text)")
    assert done.returncode == 0, done.stderr
    told = "ended in a kernel: poke(x float32 (3, 4), n=10000000) of In[2]"
    assert told in done.stdout
    assert "(Segmentation fault)" in done.stdout
    assert "--isolate" in done.stdout
    assert session("import sys; sys.stdout.write(loaded.text)").stdout == ""  # it is told once


def test_a_session_that_ends_as_it_should_leaves_nothing():
    call = "add1(np.zeros(2, 'float32'), np.zeros(2, 'float32'))"
    done = session(f"shell.kernel({ADD1!r}); shell.ok('import numpy as np'); shell.ok({call!r})")
    assert done.returncode == 0, done.stderr
    assert session("import sys; sys.stdout.write(loaded.text)").stdout == ""


def test_a_session_that_is_killed_in_a_kernel_is_told_apart():
    code = """
    import os, signal, threading
    shell.kernel('void turn() { volatile int64_t a = 0; for (;;) a = a + 1; }')
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    shell.run("turn()")
    """
    assert session(code).returncode == -9
    told = session("import sys; sys.stdout.write(loaded.text)").stdout
    assert "turn(no arguments)" in told
    assert "restarted, or killed for memory" in told


def test_kernels_that_passed_their_checks_are_called_as_they_are(shell: Shell):
    shell.kernel(SOFTPLUS)
    kernels = shell["softplus"].definition
    assert shell.ok("softplus(tp.ones(2))").error is None
    record = shell.ip.magics_manager.registry["TpKernelMagics"].session._record
    assert record is not None
    assert record.last is None  # nothing was noted
    shell.kernel(SOFTPLUS, "--no-check")
    shell.ok("softplus(tp.ones(2))")
    assert record.last is not None
    assert record.memory[0] == 0
    assert kernels is not None


def test_a_note_is_written_once_per_kind_of_call(cache_folder):
    record = CrashRecord("0123456789abcdef", catch_faults=False)
    seen = []
    kernel = RecordedKernel(
        lambda *args: seen.append(record.memory[0]), record, "In[1]", "f", ["x", "n"]
    )
    x = np.zeros(3)
    kernel(x, 1)
    first = bytes(record.memory)
    kernel(x + 1, 1)
    assert bytes(record.memory) == first
    kernel(x[:2], 1)
    kernel(tp.ones(2), [1, 2])
    assert bytes(record.memory) != first
    assert seen == [1, 1, 1, 1]
    assert "x float32 (2,), n=[1, 2]" in bytes(record.memory).decode()
    kernel(x, "é" * 5000)  # longer than the file
    assert len(bytes(record.memory)) == 4096
    with pytest.raises(ZeroDivisionError):
        RecordedKernel(lambda: 1 / 0, record, "In[1]", "g", [])()
    assert record.memory[0] == 0
    record.close()
    assert last_calls("0123456789abcdef") == []
    assert not list((cache_folder / "sessions").glob("0123456789abcdef*"))


def test_a_note_that_is_cut_short_is_forgotten(cache_folder):
    note = cache_folder / "sessions" / "0123456789abcdef-999999999.call"
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_bytes(b'\x01["In[1]", "f')
    assert last_calls("0123456789abcdef") == []
    assert not note.exists()
