"""The boundary under checkers: `python -m tests.sanitize_boundary [memcheck | helgrind | tsan]`.

Eight threads call kernels that allocate, return, hold, throw and call back, from threads of their
own too, and free what other threads have made, in a process under valgrind (memcheck, helgrind) or
with the compiled extension, the kernels and their run time built by `-fsanitize=thread` (tsan). It
shows what is found in our code and ends with status 1 where anything is, with status 2 where a
checker is missing or the program did not come to its end: then nothing is said of what it did not
reach. What is suppressed is below, each with its reason; nothing is for tsan, which looks at what
it has compiled: Python, NumPy and the engine are as they are installed. It names the library of a
kernel, `load-…`, whose file is gone by then, and not the function.

A second argument says how often each thread does its round, of 13 allocations. Names after it are
faults that each round makes, which must be found: `race`, `overrun`, `lose`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Seconds after which the program is ended.
LIMIT = 1500

#: What valgrind says of others, by the object that the innermost frame is in.
SUPPRESSIONS = """
{
   Python's own data: what helgrind calls a race there are its atomic flags, read without a lock
   Helgrind:Race
   obj:*/libpython3*
}
{
   as above, where the interpreter is one file
   Helgrind:Race
   obj:*/bin/python3*
}
{
   reference counts of the engine are atomic, which helgrind cannot tell from a race
   Helgrind:Race
   obj:*/libtvm_ffi.so
}
{
   the interpreter's lock: signalled without its mutex, which POSIX allows
   Helgrind:Misc
   obj:*vgpreload_helgrind*
   ...
   fun:take_gil
}
"""

#: Memory to which nothing points any more, of which each place is told; and where a value was made.
MEMCHECK = [
    *("--leak-check=full", "--show-leak-kinds=definite", "--leak-resolution=high"),
    "--track-origins=yes",
]
#: `int("0")` is no times a digit that Python leaves unset: to memcheck, so is what is looked up by
#: it. The engine reads lines of tracebacks so.
UNSET_DIGIT = re.compile(
    r"value was created by .*\n.* malloc .*\n.* _PyLong_New .*\n.* PyLong_From"
)

KERNELS = r"""
#include <tensorplay/parallel.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <thread>
#include <vector>
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
Array<Tensor> many() {  // allocated on three threads at once
  std::vector<Optional<Tensor>> made(12);
  tp::parallel_for(0, 12, [&](int64_t i) { made[i] = make(i); }, {1, 3});
  Array<Tensor> result;
  for (const Optional<Tensor>& each : made) result.push_back(each.value());
  return result;
}
int64_t calls(Function f) {  // Python is called from three threads at once
  int64_t from[12];
  tp::parallel_for(0, 12, [&](int64_t i) { from[i] = f(i).cast<int64_t>(); }, {1, 3});
  int64_t sum = 0;
  for (int64_t each : from) sum += each;
  return sum;
}
void fails() { tp::parallel_for(0, 100, [](int64_t i) { if (i == 50) throw i; }, {1, 3}); }
static volatile int64_t counted = 0;
__attribute__((noinline)) static void unordered() {
  for (int i = 0; i < 100; ++i) counted = counted + 1;
}
void race() {
  std::thread one(unordered), two(unordered);
  one.join();
  two.join();
}
void overrun() {
  volatile int64_t* volatile memory = new int64_t[4];  // else the write before `delete` is dropped
  memory[4] = 1;
  delete[] memory;
}
void lose() { int64_t* volatile memory = new int64_t[100]; memory = nullptr; }
"""
FUNCTIONS = ["make", "call", "echo", "loop", "many", "calls", "fails", "race", "overrun", "lose"]

BUILD = f"""
from tensorplay.utils import cpp_jit
print(cpp_jit.build_inline("sanitized", cpp_sources={KERNELS!r}, functions={FUNCTIONS!r}))
"""

WORKLOAD = r"""
import gc, queue, sys, threading
# The tree that PYTHONPATH names, whatever an editable install says.
sys.meta_path[:] = [finder for finder in sys.meta_path if isinstance(finder, type)]
import tensorplay as tp
from tensorplay._native import _core
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import allocator

tree, library, times, *planted = sys.argv[1:]
assert _core.__file__.startswith(tree), _core.__file__
m = cpp_jit.load_module(library)
passed, failures = queue.SimpleQueue(), []

def wrong(kind, call, *arguments):
    try:
        call(*arguments)
    except kind:
        return
    raise AssertionError("no error")

def run():
    x = tp.ones(64)
    for i in range(int(times)):
        made = m.make(i % 7)
        assert made.shape == (i % 7,)
        for each in [made, *m.many()]:
            passed.put(each)
        del made, each
        for _ in range(13):  # most are another thread's
            passed.get()
        assert m.echo(x).shape == (64,)
        assert m.call(lambda t: [t, 1], x)[1] == 1
        assert m.loop(x) == 64
        assert m.calls(lambda number: number) == 66
        wrong(ZeroDivisionError, m.call, lambda t: 1 // 0, x)
        wrong(RuntimeError, m.fails)
        for name in planted:
            getattr(m, name)()

def noted():
    try:
        run()
    except BaseException as problem:
        failures.append(problem)

threads = [threading.Thread(target=noted) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
gc.collect()
assert not failures, failures
assert allocator.live_allocations() == 0, allocator.live_allocations()
"""


class NotRunError(Exception):
    """A checker is not there; what it says is shown."""


def reports(text: str) -> tuple[list[str], int]:
    """Return valgrind's findings with a frame in our code, and the number of all others."""
    ours = re.compile(r"tensorplay::|_core\.cpython|sanitized|tp_rt_|parallel\.cpp|load-\d+")
    findings = [
        finding
        for finding in re.split(r"\n==\d+== \n", text)
        if re.search(r"==\d+==    (at|by) 0x", finding)
        and " was created\n" not in finding  # which thread it is that another finding names
    ]
    found = [f for f in findings if ours.search(f) and not UNSET_DIGIT.search(f)]
    return found, len(findings) - len(found)


def races(text: str) -> list[str]:
    """Return the findings of ThreadSanitizer."""
    return [part for part in text.split("=" * 18) if "WARNING: ThreadSanitizer" in part]


def run(command: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    """Run the program to its end or to the limit; return why it did not come to its end, or ""."""
    try:
        done = subprocess.run([*map(str, command)], check=False, env=environment, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"did not finish in {LIMIT} s"
    return f"ended with status {done.returncode}" if done.returncode else ""


def built(environment: Mapping[str, str]) -> str:
    """Return the library of the kernels, built."""
    command = [sys.executable, "-c", BUILD]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def under_valgrind(
    tool: str, folder: Path, environment: dict[str, str], arguments: Sequence[str]
) -> tuple[list[str], str, str]:
    """Return what is found, in one line what else there was, and why there was no end."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise NotRunError("valgrind is not installed: apt-get install valgrind")
    environment |= {
        "PYTHONMALLOC": "malloc",
        # The C library gives the stack of a thread that has ended to the next one, unseen.
        "GLIBC_TUNABLES": "glibc.pthread.stack_cache_size=0",
    }
    (folder / "suppressions").write_text(SUPPRESSIONS, "utf-8")
    log = folder / "log"
    command = [
        *(valgrind, f"--tool={tool}", f"--suppressions={folder / 'suppressions'}"),
        *(f"--log-file={log}", "--num-callers=20", "--error-limit=no", "--fair-sched=try"),
        *(MEMCHECK if tool == "memcheck" else ["--history-level=approx", "--check-stack-refs=no"]),
        *(sys.executable, folder / "workload.py", ROOT, built(environment), *arguments),
    ]
    stopped = run(command, environment)
    text = log.read_text("utf-8", "replace") if log.exists() else ""
    found, others = reports(text)
    return found, f"{others} in other code, not shown", stopped


def under_threadsanitizer(
    folder: Path, environment: dict[str, str], arguments: Sequence[str]
) -> tuple[list[str], str, str]:
    """As `under_valgrind`, of a build of our own; everything that is found counts."""
    compiler, cmake = shutil.which("g++"), shutil.which("cmake")
    if compiler is None or cmake is None:
        raise NotRunError("g++ or cmake is not installed")
    asked = [compiler, "-print-file-name=libtsan.so"]
    named = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    if not Path(named).is_absolute():
        raise NotRunError("g++ has no libtsan")
    tree, extension = folder / "tree", folder / "extension"
    wrapper = folder / "g++"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(compiler)} -fsanitize=thread "$@"\n', "utf-8")
    wrapper.chmod(0o755)
    environment |= {"CXX": str(wrapper), "XDG_CACHE_HOME": str(folder / "cache")}
    configure = [
        *(cmake, "-S", str(ROOT), "-B", str(extension), "-DCMAKE_BUILD_TYPE=RelWithDebInfo"),
        *(f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_CXX_COMPILER={wrapper}"),
    ]
    for command in (configure, [cmake, "--build", str(extension), "--parallel"]):
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    shutil.copytree(
        *(ROOT / "tensorplay", tree / "tensorplay"), ignore=shutil.ignore_patterns("_core.*")
    )
    for file in extension.glob("_core.*"):
        shutil.copy(file, tree / "tensorplay" / "_native")
    library = built(environment)
    environment |= {
        "LD_PRELOAD": str(Path(named).resolve()),
        "TSAN_OPTIONS": f"halt_on_error=0 exitcode=0 log_path={folder / 'races'}",
        "PYTHONPATH": os.pathsep.join([str(tree), environment["PYTHONPATH"]]),
    }
    # Its shadow memory has no place where addresses are spread widely.
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    workload = folder / "workload.py"
    stopped = run([*fixed, sys.executable, workload, tree, library, *arguments], environment)
    text = "".join(log.read_text("utf-8", "replace") for log in sorted(folder.glob("races.*")))
    return races(text), "nothing suppressed", stopped


def main(tool: str = "memcheck", times: str = "20", *planted: str) -> int:
    """Run the workload under a checker: 0 if it found nothing, 1 if it did, 2 if it broke off."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OPENBLAS_NUM_THREADS": "1",  # its threads spin while they wait
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "workload.py").write_text(WORKLOAD, "utf-8")
        try:
            if tool == "tsan":
                checked = under_threadsanitizer(folder, environment, [times, *planted])
            else:
                checked = under_valgrind(tool, folder, environment, [times, *planted])
        except NotRunError as missing:
            sys.stdout.write(f"{tool}: not run, nothing is checked; {missing}\n")
            return 2
    found, besides, stopped = checked
    for finding in found:
        sys.stdout.write(finding.strip("\n") + "\n\n")
    size = f"8 threads of {times} rounds, 13 allocations each"
    if stopped:
        sys.stdout.write(
            f"{tool}: the program {stopped} ({size}); {len(found)} findings in our code up to "
            "there, nothing is known of the rest\n"
        )
        return 2
    sys.stdout.write(f"{tool}: {len(found)} findings in our code, {besides}; {size}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
