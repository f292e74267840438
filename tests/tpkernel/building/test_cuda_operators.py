"""Operators of CUDA cells: read, guarded, launched on the tests' own driver, checked there too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import tensorplay as tp
import tpkernel
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import cuda, cuda_kernels
from tests.cuda_driver import build_driver
from tests.gpu_arrays import GpuArray
from tests.tpkernel.notebook.test_owners import in_cell
from tests.tpkernel.shell import Shell


def _compiles() -> bool:
    try:
        cuda_kernels.device_compiler()
    except cpp_jit.MissingToolError:
        return False
    return True


needs_compiler = pytest.mark.skipif(
    not _compiles(), reason="no compiler for CUDA kernels (pip install nvidia-cuda-nvrtc)"
)
needs_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the driver is made for Linux"
)

SQUARE = """\
template <typename T> __device__ T squared(T x) { return x * x; }
template <typename T>
__global__ void square(tp::In<T> x, T plus, tp::Out<T> out) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < out.numel()) out[i] = squared(x[i]) + plus;
}
template <typename T>
__global__ void square_backward(tp::In<T> grad, tp::In<T> x, tp::Out<T> grad_x) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < grad_x.numel()) grad_x[i] = 2 * x[i] * grad[i];
}
"""
SCALE = """\
/*---
op: cudaops::scale(Tensor x, float by=2.0) -> Tensor
launch: {block: 64, grid: "ceil_div(numel, 64)", n: numel}
doc: Multiplies.
---*/
__global__ __launch_bounds__(64)
void scale(const float* __restrict__ x, float* out, int n, float by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * by;
}
__global__ void scale_backward(const float* grad, float* grad_x, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) grad_x[i] = grad[i] * by;
}
"""
MATMUL = """\
/*---
op: cudaops::mm(Tensor x, Tensor w) -> Tensor
shape: {x: [n, k], w: [k, m], out: [n, m]}
launch:
  grid: [ceil_div(m, 16), ceil_div(n, 4)]
  block: [16, min(n, 4)]
  shared: 4 * x.shape[-1] + w.numel() % 5 - w.ndim // 2
---*/
__global__ void mm(tp::In<float, 2> x, tp::In<float, 2> w, tp::Out<float, 2> out) {
  int64_t i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= out.size(0) || j >= out.size(1)) return;
  float sum = 0;
  for (int64_t k = 0; k < x.size(1); ++k) sum += x(i, k) * w(k, j);
  out(i, j) = sum;
}
"""
INPLACE = """\
/*---
op: cudaops::bump_(Tensor(a!) x) -> ()
launch: {n: x.numel()}
---*/
__global__ void bump_(float* x, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) x[i] += 1;
}
"""
#: The kernels above once more, for the driver.
RUN = r"""
struct View { void* data; int64_t numel, ndim, shape[8], strides[8]; };
template <class T> static void square(const char* name, void** args) {
  const View& x = *static_cast<View*>(args[strstr(name, "backward") ? 1 : 0]);
  View& out = *static_cast<View*>(args[2]);
  for (int64_t i = 0; i < out.numel; ++i) {
    T value = static_cast<T*>(x.data)[i];
    static_cast<T*>(out.data)[i] = strstr(name, "backward")
        ? 2 * value * static_cast<T*>(static_cast<View*>(args[0])->data)[i]
        : value * value + *static_cast<T*>(args[1]);
  }
}
static void run(const char* name, void** args) {
  if (strstr(name, "square")) {
    strstr(name, "IfE") ? square<float>(name, args) : square<double>(name, args);
  } else if (strstr(name, "scale")) {
    bool gradient = strstr(name, "backward");
    int n = *static_cast<int*>(args[gradient ? 3 : 2]);
    float by = *static_cast<float*>(args[gradient ? 2 : 3]);
    for (int i = 0; i < n; ++i)
      (*static_cast<float**>(args[1]))[i] = (*static_cast<float**>(args[0]))[i] * by;
  } else if (strstr(name, "bump")) {
    float* x = *static_cast<float**>(args[0]);
    for (int64_t i = 0; i < *static_cast<int64_t*>(args[1]); ++i) ++x[i];
  } else if (strstr(name, "mm")) {
    const View &x = *static_cast<View*>(args[0]), &w = *static_cast<View*>(args[1]);
    const View& out = *static_cast<View*>(args[2]);
    for (int64_t i = 0; i < out.shape[0]; ++i)
      for (int64_t j = 0; j < out.shape[1]; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < x.shape[1]; ++k)
          sum += static_cast<float*>(x.data)[i * x.strides[0] + k * x.strides[1]] *
                 static_cast<float*>(w.data)[k * w.strides[0] + j * w.strides[1]];
        static_cast<float*>(out.data)[i * out.strides[0] + j * out.strides[1]] = sum;
      }
  }
}
"""
#: It brings the driver along, which the processes of the compilers must not find.
CUPY = """\
import ctypes, pathlib
from tests import gpu_arrays
ctypes.CDLL(str(pathlib.Path(__file__).parent / "libcuda.so.1"))
globals().update({k: v for k, v in vars(gpu_arrays.cupy()).items() if k[0] != "_"})
"""
PRELUDE = """
import json, os
import cupy
import numpy as np
import tensorplay as tp
import tpkernel
from tests.gpu_arrays import GpuArray

answers = {}

def gpu(values, index=0):
    return tp.from_dlpack(GpuArray(np.asarray(values, np.float32), index))

def said(function, *args, **kwargs):
    try:
        return repr(function(*args, **kwargs))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def log():
    if not os.path.exists(os.environ["FAKE_LOG"]):
        return []
    with open(os.environ["FAKE_LOG"]) as file:
        lines = file.read().splitlines()
    os.remove(os.environ["FAKE_LOG"])
    return [line.split()[1:] for line in lines if line.startswith("launch")]
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], NoReturn]) -> Path:
    """Return a folder with the driver, a CuPy, and a program that says that there is a GPU."""
    folder = build_driver(tmp_path_factory.mktemp("machine"), RUN, missing)
    (folder / "cupy.py").write_text(CUPY)
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 9.0\n")
    program.chmod(0o755)
    return folder


def run(code: str, machine: Path, log: Path, **variables: str) -> dict[str, Any]:
    root = Path(__file__).parents[3]
    paths = [str(machine), str(root), str(root / "magics"), *filter(None, sys.path)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": f"{machine}{os.pathsep}{os.environ['PATH']}",
        "FAKE_LOG": str(log / "log"),
        **variables,
    }
    text = f"{PRELUDE}\n{code}\nprint(json.dumps(answers))"
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.slow
@needs_linux
@needs_compiler
def test_forward_and_backward_kernels_are_launched(machine: Path, tmp_path: Path) -> None:
    code = f"""
module = tpkernel.build({SCALE!r}, checks=False).module
scale = tp.ops.cudaops.scale
x = gpu(np.arange(130), 1).requires_grad_()
y = scale(x, 3.0)
answers["made"] = [str(y.device), y.detach().cpu()[-1].item(), str(y.grad_fn is not None)]
answers["forward"] = log()
y.backward(gpu(np.full(130, 5), 1))
answers["grad"] = [str(x.grad.device), x.grad.cpu().tolist() == [15.0] * 130]
answers["backward"] = log()
(scale(x) * x).backward(gpu(np.ones(130), 1))
answers["sum"] = x.grad.cpu()[:3].tolist()
log()
empty = scale(gpu([]))
answers["empty"] = [list(empty.shape), str(empty.device), log()]
array = GpuArray(np.ones(2, np.float32))
answers["array"] = [said(lambda: op(array).cpu()) for op in (module.scale, tp.ops.cudaops.scale)]
"""
    got = run(code, machine, tmp_path)
    assert got["made"] == ["cuda:1", 387.0, "True"]
    ((name, *sizes),) = got["forward"]
    assert "scale" in name
    assert "backward" not in name
    assert sizes == ["3", "1", "1", "64", "1", "1", "0", "0", "on", "1"]
    assert got["grad"] == ["cuda:1", True]
    ((name, *sizes),) = got["backward"]
    assert "scale_backward" in name
    assert sizes == ["3", "1", "1", "64", "1", "1", "0", "0", "on", "1"]
    # 15 from before, and of 2 x * x: 4 x.
    assert got["sum"] == [15.0, 19.0, 23.0]
    assert got["empty"] == [[0], "cuda:0", []]
    assert got["array"] == ["tensor([2., 2.])"] * 2


@pytest.mark.slow
@needs_linux
@needs_compiler
def test_templates_views_shapes_and_writes(machine: Path, tmp_path: Path) -> None:
    code = f"""
for text in ({SQUARE!r}, {MATMUL!r}, {INPLACE!r}):
    tpkernel.build(text, checks=False)
square, mm, bump_ = tp.ops.cell.square, tp.ops.cudaops.mm, tp.ops.cudaops.bump_
wide = tp.from_dlpack(GpuArray(np.arange(3.0)))
answers["float64"] = square(wide, 0.5).cpu().tolist()
answers["float32"] = square(gpu([1, 2, 3]), 1).cpu().tolist()
answers["instances"] = [line[0] for line in log()]
x, w = np.arange(30.0).reshape(5, 6), np.arange(120.0).reshape(20, 6).T
out = mm(gpu(x), gpu(w))
answers["mm"] = out.cpu().tolist() == (x @ w).astype(np.float32).tolist()
answers["sizes"] = log()[0][1:]
t = gpu([1, 2])
before = t._version
answers["bump"] = [said(bump_, t), t.cpu().tolist(), t._version > before]
answers["both"] = said(mm, gpu(x), gpu(w, 1))
answers["shape"] = said(mm, gpu(x), gpu(x))
answers["deep"] = said(square, gpu(np.zeros([1] * 9)), 0)
answers["nothing"] = log()[1:]
"""
    got = run(code, machine, tmp_path)
    assert got["float64"] == [0.5, 1.5, 4.5]
    assert got["float32"] == [2.0, 5.0, 10.0]
    assert ["IdE" in name for name in got["instances"]] == [True, False]
    assert got["mm"] is True
    assert got["sizes"] == ["2", "2", "1", "16", "4", "1", "23", "0", "on", "0"]
    assert got["bump"] == ["None", [2.0, 3.0], True]
    assert (
        "argument 'w': expected a tensor on cuda:0 as argument 'x', got one on cuda:1"
        in got["both"]
    )
    assert "[cudaops::mm] argument 'w': expected size 6 in dimension 0" in got["shape"]
    assert "argument 'x': expected at most 8 dimensions" in got["deep"]
    assert got["nothing"] == []


@pytest.mark.slow
@needs_linux
@needs_compiler
def test_wrong_arguments_are_refused_before_a_launch(machine: Path, tmp_path: Path) -> None:
    code = f"""
tpkernel.build({SCALE!r}, checks=False)
tpkernel.build({MATMUL.replace("ceil_div(m, 16)", "m - 20")!r}, checks=False)
scale, mm = tp.ops.cudaops.scale, tp.ops.cudaops.mm
answers["cpu"] = said(scale, tp.ones(3))
answers["dtype"] = said(scale, tp.from_dlpack(GpuArray(np.ones(3))))
answers["strided"] = said(scale, tp.from_dlpack(GpuArray(np.ones(6, np.float32)[::2])))
answers["grid"] = said(mm, gpu(np.ones((2, 3))), gpu(np.ones((3, 10))))
answers["none"] = said(mm, gpu(np.ones((2, 3))), gpu(np.ones((3, 20))))
answers["meta dtype"] = said(scale, tp.ones(3, dtype=tp.int64, device="meta"))
answers["log"] = log()
import sys
sys.modules["cupy"] = None
answers["no cupy"] = said(scale, gpu([1.0]))
"""
    got = run(code, machine, tmp_path)
    assert got["cpu"].startswith(
        "NotImplementedError: [cudaops::scale] no kernel for device cpu; registered: cuda. Pass "
        "tensors on a GPU, tensorplay.from_dlpack(cupy.asarray(x)), or write @"
    )
    assert got["dtype"].startswith(
        "TypeError: [cudaops::scale] argument 'x': expected float32 on cuda, got float64 on cuda:0."
    )
    assert "argument 'x': expected float32 in contiguous memory" in got["strided"]
    assert got["strided"].endswith(
        "Write x.contiguous(), or cupy.ascontiguousarray(x) for an array of CuPy."
    )
    assert "[cudaops::mm] launch: expected a grid of 0 to 2147483647 blocks" in got["grid"]
    assert "got -10" in got["grid"]
    assert "which is 'm - 20', where m = 10. Change launch:" in got["grid"]
    assert got["none"] == (
        "ValueError: [cudaops::mm] launch: expected a grid that writes the 40 elements of the "
        "result, got 0 blocks in dimension 0, which is 'm - 20', where m = 20. Change launch: in "
        "the front matter."
    )
    assert got["meta dtype"].startswith(
        "TypeError: [cudaops::scale] argument 'x': expected float32"
    )
    assert "on cuda" in got["meta dtype"]
    assert got["log"] == []
    assert "outputs on a GPU are allocated by CuPy, which is not installed" in got["no cupy"]


@pytest.mark.slow
@needs_linux
@needs_compiler
def test_strided_inputs_are_copied_there_where_the_cell_says_so(
    machine: Path, tmp_path: Path
) -> None:
    copies = SCALE.replace("doc:", "layout: copy\ndoc:")
    mm, bump_ = (
        text.replace("launch:", f"layout: {layout}\nlaunch:")
        for text, layout in ((MATMUL, "contiguous"), (INPLACE, "copy"))
    )
    code = f"""
import sys
values = np.arange(12, dtype=np.float32).reshape(3, 4)
views = {{"turned": values.T, "stepped": values[:, ::2], "reversed": values[::-1], "rows": values}}
def try_all(label):
    for name, view in views.items():
        x = gpu(view, 1).requires_grad_()
        y = tp.ops.cudaops.scale(x, 3.0)
        y.backward(gpu(np.full(view.shape[::-1], 5).T, 1))
        answers[f"{{label}} {{name}}"] = [
            y.detach().cpu().tolist() == (3 * view).tolist(), x.grad.cpu().tolist()[0][0],
            str(y.device), len(log()),
        ]
for option in ({copies!r}, {{}}), ({SCALE!r}, {{"contiguous": "copy"}}):
    tpkernel.build(option[0], checks=False, **option[1])
    try_all(option[0].count("layout"))
x = gpu(values.T)
y = x.contiguous()
answers["same"] = [y.is_contiguous(), y.cpu().tolist() == values.T.tolist(), y.contiguous() is y]
tpkernel.build({SCALE!r}, checks=False)
answers["refused"] = said(tp.ops.cudaops.scale, x)
tpkernel.build({MATMUL!r}, checks=False)
answers["views"] = tp.ops.cudaops.mm(x, gpu(values[:, ::-1])).cpu().tolist() == (
    values.T @ values[:, ::-1]).tolist()
tpkernel.build({mm!r}, checks=False)
answers["contiguous"] = said(tp.ops.cudaops.mm, x, gpu(values))
tpkernel.build({bump_!r}, checks=False)
answers["written"] = said(tp.ops.cudaops.bump_, x)
tpkernel.build({copies!r}, checks=False)
sys.modules["cupy"] = None
answers["no cupy"] = said(x.contiguous)
"""
    got = run(code, machine, tmp_path)
    for label in ("1", "0"):
        for name in ("turned", "stepped", "reversed", "rows"):
            assert got[f"{label} {name}"] == [True, 15.0, "cuda:1", 2]
    assert got["same"] == [True, True, True]
    assert "expected float32 in contiguous memory, got float32 with strides" in got["refused"]
    assert got["views"] is True
    assert "[cudaops::mm] argument 'x': expected float32 in contiguous memory" in got["contiguous"]
    assert "It is written, so pass contiguous memory" in got["written"]
    assert "[contiguous] row-major copies on a GPU are allocated by CuPy" in got["no cupy"]


NUMBERS = """\
/*---
op: cudaops::numbers(Tensor x, int k, int j) -> Tensor
launch:
  grid: k // j + 50
  block: [k % j + 50, "max(1, min(j, 17))"]
  shared: ceil_div(k, j) + 50
  n: k * 2 - -j
---*/
__global__ void numbers(tp::In<float> x, int k, long long j, unsigned n, tp::Out<float> out) {}
"""


@pytest.mark.slow
@needs_linux
@needs_compiler
def test_sizes_are_computed_as_in_python_or_say_why_not(machine: Path, tmp_path: Path) -> None:
    code = f"""
tpkernel.build({NUMBERS!r}, checks=False)
f = tp.ops.cudaops.numbers
pairs = [(k, j) for k in (0, 1, 7, 20) for j in (-7, -3, 1, 3, 20) if 2 * k + j >= 0]
for k, j in pairs:
    f(gpu([1.0]), k, j)
answers["pairs"] = pairs
answers["sizes"] = [line[1:8] for line in log()]
for name, values in {{
    "zero": (7, 0), "grid": (-2**31, 1), "wide": (-2**31, -1), "block": (30, 2**40),
    "threads": (39, 40), "negative": (1, -7), "wider": (3, 2**63 - 1),
}}.items():
    answers[name] = said(f, gpu([1.0]), *values)
answers["empty"] = [list(f(gpu([]), -50, 1).shape), list(f(gpu([]), -50, -60).shape)]
answers["log"] = log()
"""
    got = run(code, machine, tmp_path)
    assert got["sizes"] == [
        [str(size) for size in (
            k // j + 50, 1, 1, k % j + 50, max(1, min(j, 17)), 1, -(-k // j) + 50,
        )]
        for k, j in got["pairs"]
    ]  # fmt: skip
    start, given = (
        "ValueError: [cudaops::numbers] launch: ",
        "where argument 'k' = {}, argument 'j' = {}",
    )
    change = "Change launch: in the front matter."
    assert got["zero"] == (
        f"{start}grid divides by zero, which is 'k // j + 50', {given.format(7, 0)}. Pass other "
        "values, or change launch: in the front matter."
    )
    assert got["grid"] == (
        f"{start}expected a grid of 0 to 2147483647 blocks in dimension 0, got -2147483598, which "
        f"is 'k // j + 50', {given.format(-(2**31), 1)}. {change}"
    )
    assert "Write min(…, 2147483647) under launch:" in got["wide"]
    block = (
        f"{start}expected a block of at most 1024 threads, got {{}} x 17 x 1; dimension 1 has 17, "
    )
    block += f"which is 'max(1, min(j, 17))', where argument 'j' = {{}}. {change}"
    assert got["block"] == block.format(80, 2**40)
    assert got["threads"] == block.format(89, 40)
    assert got["negative"] == (
        f"{start}expected a size that unsigned holds for n, got -5, which is 'k * 2 - -j', "
        f"{given.format(1, -7)}. Declare the kernel's parameter int64_t."
    )
    assert "n needs a number of more than 64 bits, which is 'k * 2 - -j'" in got["wider"]
    assert got["empty"] == [[0], [0]]
    assert got["log"] == []


@pytest.mark.slow
@needs_linux
@needs_compiler
def test_checks_run_on_copies_where_there_is_a_gpu(machine: Path, tmp_path: Path) -> None:
    code = f"""
report = tpkernel.build({SQUARE!r})
answers["verdicts"] = [report.gradcheck_verdict, report.validation_verdict, report.opcheck_verdict]
answers["rows"] = sorted({{(r.device, r.dtype) for r in report.validation if r.admitted}})
answers["findings"] = [(f.check, f.level, f.message) for f in report.findings]
answers["ok"] = report.ok
wrong = tpkernel.build({SQUARE.replace("square", "cube")!r})
answers["wrong"] = [wrong.ok, wrong.gradcheck_verdict]
answers["timing"] = [f.message for f in report.with_timing().findings if f.check == "timing"]
answers["again"] = report.with_gradcheck(dtype="float64").gradcheck_verdict
here = tpkernel.build({SQUARE!r}, in_process=True)
answers["in process"] = here.gradcheck_verdict
answers["after"] = said(tp.ops.cell.square, tp.ones(2), 1.0)
"""
    # What the driver computes for a kernel of another name is nothing: its gradient is wrong.
    got = run(code, machine, tmp_path)
    assert got["verdicts"][0] == "ok"
    assert got["verdicts"][1:] == ["ok", "ok"]
    assert got["rows"] == [[d, t] for d in ("cuda", "meta") for t in ("float32", "float64")]
    assert got["findings"] == [
        ["memory", "warning",
         "not run: the memory of a GPU is not watched here; compute-sanitizer watches it"]
    ]  # fmt: skip
    assert got["ok"] is True
    assert got["wrong"][0] is False
    assert "not run: times here are those of the CPU" in got["timing"][0]
    assert got["again"] == "ok"
    assert got["in process"] == "ok"
    assert got["after"].startswith("NotImplementedError: [cell::square] no kernel for device cpu")


@needs_compiler
def test_a_report_without_a_gpu_says_what_was_not_run(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_present", lambda: ())
    monkeypatch.setattr("tpkernel.checks.devices.has_gpu", lambda: False)
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "9.0")
    shell.ok(f"%%tpkernel\n{SCALE}")
    report = tpkernel.last_report()
    assert report is not None
    assert report.bound == ("scale",)
    assert {(f.check, f.level, f.message) for f in report.findings} == {
        (check, "warning", "not run: no GPU here")
        for check in ("memory", "gradcheck", "validation", "opcheck")
    }
    assert (report.gradcheck, report.validation, report.opcheck) == ((), (), ())
    text, html = report.to_text(full=True), report.to_html()
    for words in (
        "operator cudaops::scale(Tensor x, float by=2.0) -> Tensor",
        "__global__ void scale(const float* x, float* out, int n, float by), launched with",
        "launched with grid ceil_div(numel, 64), block 64, n numel",
        "float32, on cuda, contiguous, read only",
        "gradient x: CUDA kernel scale_backward",
        "gradcheck of cudaops::scale: not run: no GPU here",
        "for sm_90",
    ):
        assert words in text
    for words in ("not run: no GPU here", "CUDA kernels", "launched with grid"):
        assert words in html
    timed = report.with_timing()
    assert [f.message for f in timed.findings if f.check == "timing"] == ["not run: no GPU here"]
    error = shell.run("import numpy as np; scale(np.ones(3, 'float32'))").error
    assert "[cudaops::scale] no kernel for device cpu; registered: cuda" in str(error)
    shell.ok("assert scale.schema == 'cudaops::scale(Tensor x, float by=2.0) -> Tensor'")
    shell.ok("assert 'Multiplies.' in scale.__doc__")


@needs_compiler
def test_a_cell_that_runs_again_replaces_its_operator(shell: Shell) -> None:
    shell.ok(f"%%tpkernel --no-check\n{SCALE}")
    first = tp.ops.cudaops.scale
    shell.ok("%%tpkernel --no-check\n" + SCALE.replace("float by=2.0", "float by=4.0"))
    assert tp.ops.cudaops.scale is not first
    assert "by=4.0" in str(tp.ops.cudaops.scale.schema)
    shell.run("%%tpkernel --no-check\n" + SCALE.replace("x[i] * by;", "x[i] * bz;"))
    x = tp.from_dlpack(GpuArray(np.ones(3, np.float32)))
    with pytest.raises(tpkernel.StaleKernelError, match='identifier "bz" is undefined'):
        tp.ops.cudaops.scale(x)
    assert isinstance(shell.run("scale(1)").error, tpkernel.StaleKernelError)
    shell.ok(f"%%tpkernel --no-check\n{SCALE}")
    with pytest.raises(RuntimeError, match="CuPy"):
        tp.ops.cudaops.scale(x)


CPU_SCALE = """\
/*---
op: cudaops::scale(Tensor x, float by=2.0) -> Tensor
derivatives: {x: grad * by}
---*/
void scale(tp::In<float> x, double by, tp::Out<float> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * float(by);
}
"""


@pytest.mark.slow
@needs_linux
@needs_compiler
def test_an_operator_has_a_kernel_for_each_device(machine: Path, tmp_path: Path) -> None:
    code = f"""
def both(label):
    y = gpu([1.0, 2.0]).requires_grad_()
    tp.ops.cudaops.scale(y).backward(gpu([1.0, 1.0]))
    z = tp.tensor([3.0], requires_grad=True)
    tp.ops.cudaops.scale(z).backward()
    answers[label] = [y.grad.cpu().tolist(), z.grad.tolist(), len(log())]

tpkernel.build({CPU_SCALE!r}, checks=False)
tpkernel.build({SCALE!r}, checks=False)
y = gpu([1.0]).requires_grad_()
tp.ops.cudaops.scale(y).backward(gpu([1.0]))
z = tp.ones(1).requires_grad_()
answers["cuda last"] = [y.grad.cpu().tolist(), tp.ops.cudaops.scale(z).tolist(), len(log())]
answers["cpu gradient"] = said(lambda: tp.ops.cudaops.scale(z).backward())
tpkernel.build({CPU_SCALE!r}, checks=False)
both("cpu last")
tpkernel.build({CPU_SCALE.replace("=2.0", "=3.0")!r}, checks=False)
answers["other schema"] = said(tp.ops.cudaops.scale, gpu([1.0]))
"""
    got = run(code, machine, tmp_path)
    assert got["cuda last"] == [[2.0], [2.0], 2]
    assert "[cudaops::scale_backward] no kernel for device cpu" in got["cpu gradient"]
    # The formula of the cell that ran last: its product is the arrays' library's, so one launch.
    assert got["cpu last"] == [[2.0, 2.0], [2.0], 1]
    assert got["other schema"] == (
        "NotImplementedError: [cudaops::scale] no kernel for device cuda; registered: cpu. "
        "Argument 'x': expected a tensor on cpu, got one on cuda:0. Write x.detach().cpu(), or "
        "@tensorplay.library.register_kernel('cudaops::scale', 'cuda')."
    )


@needs_compiler
def test_graphs_keep_an_opaque_node_and_shapes_are_known(shell: Shell) -> None:
    shell.ok(f"%%tpkernel --no-check\n{SCALE}")
    shell.ok(f"%%tpkernel --no-check\n{MATMUL}")
    scale, mm = tp.ops.cudaops.scale, tp.ops.cudaops.mm
    meta = tp.ones(3, device="meta", requires_grad=True)
    out = scale(meta * 2) + 1
    assert (out.is_meta, tuple(out.shape), out.requires_grad) == (True, (3,), True)
    assert tuple(mm(tp.ones(2, 3, device="meta"), tp.ones(3, 5, device="meta")).shape) == (2, 5)
    with pytest.raises(ValueError, match=r"argument 'w': expected size 3 in dimension 0"):
        mm(tp.ones(2, 3, device="meta"), tp.ones(4, 5, device="meta"))
    traced = tp.graph.symbolic_trace(lambda x: scale(x * 2) + 1)
    calls = [str(n.target) for n in traced.graph.nodes if n.op == "call_function"]
    assert any("scale" in call for call in calls), calls
    assert len(calls) == 3


@pytest.mark.slow
@needs_linux
@needs_compiler
def test_compiled_functions_launch_the_operator(machine: Path, tmp_path: Path) -> None:
    code = f"""
tpkernel.build({SCALE!r}, checks=False)
scale = tp.ops.cudaops.scale
f = tp.compile(lambda x: scale(x, 3.0) + scale(x))
x = gpu([1.0, 2.0]).requires_grad_()
answers["out"] = [f(x).detach().cpu().tolist(), len(log())]
f(x).backward(gpu([1.0, 1.0]))
answers["grad"] = x.grad.cpu().tolist()
answers["launches"] = len(log())
"""
    got = run(code, machine, tmp_path)
    assert got["out"] == [[5.0, 10.0], 2]
    assert got["grad"] == [5.0, 5.0]
    assert got["launches"] == 4


@pytest.mark.slow
@needs_linux
@needs_compiler
def test_a_package_builds_a_cell_where_it_is_imported(machine: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "cuda.md").read_text("utf-8")
    (block,) = (b for b in re.findall(r"```py\n(.*?)```", page, re.DOTALL) if "mypkg" in b)
    package = tmp_path / "mypkg"
    package.mkdir()
    (package / "__init__.py").write_text(block)
    (package / "scale.cu").write_text(SCALE)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import mypkg
x = gpu([1.0, 2.0]).requires_grad_()
y = mypkg.scale(x, 3.0)
y.backward(gpu([1.0, 1.0]))
answers["values"] = [y.detach().cpu().tolist(), x.grad.cpu().tolist(), len(log())]
"""
    assert run(code, machine, tmp_path)["values"] == [[3.0, 6.0], [3.0, 3.0], 2]


@needs_compiler
def test_cuda_operators_are_neither_exported_nor_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpkernel.checks.devices.has_gpu", lambda: False)
    report = tpkernel.build(SCALE, checks=False)
    with pytest.raises(ValueError, match=r"\[export\] cudaops::scale runs on cuda, .* build"):
        report.export(tmp_path / "package")
    assert not (tmp_path / "package").exists()
    with pytest.raises(ValueError, match=r"\[sweep\] cudaops::scale runs on cuda"):
        tpkernel.sweep(report, {"x": [(3,)]})


@needs_compiler
def test_a_cell_that_drops_an_operator_takes_its_kernel_along(shell: Shell) -> None:
    kernels = {"cpu": CPU_SCALE, "cuda": SCALE}
    x = {"cpu": tp.ones(1), "cuda": tp.from_dlpack(GpuArray(np.ones(1, np.float32)))}
    for dropped, kept in (("cpu", "cuda"), ("cuda", "cpu")):
        for device in (kept, dropped):
            in_cell(shell, device)
            shell.ok(f"%%tpkernel --no-check\n{kernels[device]}")
        assert {"cpu", "cuda"} <= set(tp.ops.cudaops.scale.operator_kernels.by_key)
        shell.ok("%%tpkernel --no-check\nint64_t other() { return 1; }")
        words = rf"no kernel for device {dropped}; registered: {kept}\."
        with pytest.raises(NotImplementedError, match=words):
            tp.ops.cudaops.scale(x[dropped])
        assert kept in tp.ops.cudaops.scale.operator_kernels.by_key
    in_cell(shell, None)
