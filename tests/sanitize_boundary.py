"""The boundary under valgrind: `python -m tests.sanitize_boundary [memcheck | helgrind]`.

Runs kernels that allocate, return, hold, throw and call back, on eight threads, in a process of its
own under valgrind, and shows what it finds in our code: the compiled extension and the kernels'.
Says so and stops where valgrind is not installed. The suppressions are below, each with its reason.
A second argument says how often each thread calls, a third (`planted`) has the kernels make one
fault of each kind, which must be found: a race, a write beyond the end, memory that is lost.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: What valgrind says of others, by the object that the innermost frames are in.
SUPPRESSIONS = """
{
   Python reads memory that it has freed: its own allocator, of which valgrind knows nothing
   Memcheck:Addr4
   obj:*python*
}
{
   as above, where it decides
   Memcheck:Cond
   obj:*python*
}
{
   as above, eight bytes
   Memcheck:Value8
   obj:*python*
}
{
   NumPy looks at words beyond a text's end, aligned and never used
   Memcheck:Cond
   obj:*numpy*
}
{
   the interpreter's lock is a condition that helgrind does not follow
   Helgrind:Race
   obj:*python*
}
{
   data that the interpreter's lock guards, in extensions
   Helgrind:Race
   obj:*_multiarray_umath*
}
{
   the engine's own data that the interpreter's lock guards
   Helgrind:Race
   obj:*core.cpython*
}
{
   reference counts of the engine are atomic, which helgrind cannot tell from a race
   Helgrind:Race
   obj:*libtvm_ffi*
}
{
   the interpreter's lock: signalled without its mutex, which POSIX allows
   Helgrind:Misc
   obj:*vgpreload_helgrind*
   ...
   fun:take_gil
}
{
   the flags of a parallel loop are atomic, which helgrind cannot tell from a race
   Helgrind:Race
   fun:tp_rt_parallel_for
}
{
   as above, in the threads of the loop
   Helgrind:Race
   fun:*_M_run*
}
{
   threads that the C library keeps
   Helgrind:Race
   obj:*ld-linux*
}
"""

#: Memory to which nothing points any more, of which each place is told.
LEAKS = ["--leak-check=full", "--show-leak-kinds=definite", "--leak-resolution=high"]

WORKLOAD = r"""
import gc, sys, threading
import numpy as np
import tensorplay as tp
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import allocator

SOURCE = '''
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tensorplay/parallel.h>
using namespace tvm::ffi;
Tensor make(int64_t n) {
  return Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, Shape({n}), DLDataType{kDLFloat, 32, 1},
                              DLDevice{kDLCPU, 0});
}
Any call(Function f, Any x) { return f(x); }
Any echo(Any x) { return x; }
int64_t loop(TensorView x) {
  float* data = static_cast<float*>(x.data_ptr());
  tp::parallel_for(0, x.size(0), [=](int64_t i) { data[i] = static_cast<float>(i); }, {16, 3});
  return x.size(0);
}
static volatile int64_t counted = 0;
void race() { for (int i = 0; i < 100; ++i) counted = counted + 1; }
static int64_t* volatile memory = nullptr;
void overrun() { memory = new int64_t[4]; memory[4] = 1; delete[] memory; memory = nullptr; }
void lose() { memory = new int64_t[100]; memory = nullptr; }
void fails() { tp::parallel_for(0, 100, [](int64_t i) { if (i == 50) throw i; }, {1, 3}); }
'''
NAMES = ["make", "call", "echo", "loop", "fails", "race", "overrun", "lose"]
m = cpp_jit.load_inline("sanitized", cpp_sources=SOURCE, functions=NAMES)
if sys.argv[1] == "build":
    sys.exit()
planted = sys.argv[2] == "planted"

def run(times):
    x = tp.ones(64)
    for i in range(times):
        made = m.make(i % 7)
        assert made.shape == (i % 7,)
        assert m.echo(x).shape == (64,)
        assert m.call(lambda t: [t, 1], x)[1] == 1
        assert m.loop(x) == 64
        try:
            m.call(lambda t: 1 // 0, x)
        except ZeroDivisionError:
            pass
        try:
            m.fails()
        except RuntimeError:
            pass
        if planted:
            m.race()
            m.overrun()
            m.lose()

threads = [threading.Thread(target=run, args=(int(sys.argv[1]),)) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
gc.collect()
assert allocator.live_allocations() == 0, allocator.live_allocations()
"""


def reports(text: str) -> list[str]:
    """Return the findings whose frames are in our code, by the file or the library of a frame."""
    findings = re.split(r"\n==\d+== \n", text)
    ours = re.compile(r"tensorplay::|_core\.cpython|sanitized|tp_rt_|parallel\.cpp|load-\d+")
    return [
        finding
        for finding in findings
        if re.search(r"==\d+==    (at|by) 0x", finding)
        and ours.search(finding)
        and " was created\n" not in finding  # which thread it is that another finding names
    ]


def main(tool: str = "memcheck", times: str = "20", faults: str = "none") -> int:
    """Run the workload under a tool of valgrind; return how many findings there are."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        sys.stdout.write("valgrind is not installed: apt-get install valgrind\n")
        return 0
    environment = {
        **os.environ,
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OPENBLAS_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        suppressions = Path(folder, "suppressions")
        suppressions.write_text(SUPPRESSIONS, "utf-8")
        script = Path(folder, "workload.py")
        script.write_text(WORKLOAD, "utf-8")
        subprocess.run([sys.executable, str(script), "build"], check=True, env=environment)
        log = Path(folder, "log")
        done = subprocess.run(
            [
                *(valgrind, f"--tool={tool}", f"--suppressions={suppressions}"),
                *(f"--log-file={log}", "--num-callers=20", "--error-limit=no"),
                *(LEAKS if tool == "memcheck" else ["--history-level=approx"]),
                *(sys.executable, str(script), times, faults),
            ],
            check=False,
            env=environment,
        )
        text = log.read_text("utf-8", "replace")
    found = reports(text)
    for finding in found:
        sys.stdout.write(finding + "\n\n")
    sys.stdout.write(
        f"{tool}: {len(found)} findings in our code, exit status {done.returncode}\n"
        f"{text.strip().splitlines()[-1]}\n"
    )
    return len(found) + (done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
