"""One small kernel through each way to write one: what README's table of alternatives says.

``python -m tests.benchmarks.alternatives`` prints the table. Every entry is an answer of a run:
the kernel doubles float32 numbers, walking through memory, and is then given float64, a strided
view, an index too many, and a wrong gradient. Alternatives that are not installed are left out.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

README = Path(__file__).resolve().parents[2] / "README.md"

Kernel = Callable[[Any], Any]

CELL = """\
/*---
op: {name}::twice(Tensor x) -> Tensor
dtypes: [float32]
derivatives:
  x: {factor} * grad
samples:
  - {{x: [1.0, 2.0, 3.0]}}
---*/
void twice(tp::In<float> x, tp::Out<float> out) {{
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = 2 * x[i + {shift}];
}}
"""
ENGINE = """\
void twice(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {{
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2 * from[i + {shift}];
}}
"""
TORCH = """\
torch::Tensor twice(torch::Tensor x) {{
  torch::Tensor out = torch::empty(x.sizes(), x.options());
  const float* from = x.data_ptr<float>();
  float* to = out.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2 * from[i + {shift}];
  return out;
}}
"""
PYTHON = """\
def twice(x):
    out = np.empty(x.shape, x.dtype)
    for i in range(x.size):
        out[i] = 2 * x[i + {shift}]
    return out
"""


class Alternative:
    """A way to write a kernel; `build` makes it of its text."""

    name: str
    package: str
    text: str
    language = "C++"

    def __init__(self) -> None:
        self.version = importlib.metadata.version(self.package)

    def build(self, name: str, *, shift: int = 0) -> Kernel:
        """Return the kernel, of an array or tensor of its own and with a result of that kind."""
        raise NotImplementedError

    def array(self, values: np.ndarray[Any, Any]) -> Any:
        """Return what the kernel takes for an array, on the same memory."""
        return values

    def library(self, folder: Path) -> tuple[Path, str]:
        """Return a file that holds the kernel, and lines that load it as `twice`."""
        raise NotImplementedError

    def gradient(self, twice: Kernel) -> str:
        """Say what gradient a call has."""
        return "none"

    def wrong_gradient(self) -> str:
        """Say who notices a gradient that is off by a factor."""
        return "—"

    def past_the_end(self) -> str:
        """Say who notices a read of one element beyond the input."""
        self.build("past", shift=1)(self.array(np.ones(3, np.float32)))
        return "not noticed"


class Ours(Alternative):
    """A cell."""

    name, package, text = "TensorPlay", "tensorplay-workbench", CELL

    def report(self, name: str, *, shift: int = 0, factor: int = 2) -> Any:
        """Return a cell's report."""
        import tpkernel

        text = CELL.format(name=name, shift=shift, factor=factor)
        return tpkernel.build(text)

    def build(self, name: str, *, shift: int = 0) -> Kernel:
        kernel: Kernel = self.report(name, shift=shift).module.twice
        return kernel

    def array(self, values: np.ndarray[Any, Any]) -> Any:
        import tensorplay as tp

        return tp.from_numpy(values)

    def library(self, folder: Path) -> tuple[Path, str]:
        import tensorplay as tp

        project = self.report("carried").export(folder / "carried") / "src" / "carried"
        file = folder / "libcarried.so"
        tp.library.build_module(project / "ops.yaml", [project / "kernels.cc"], output=file)
        return file, "import tensorplay as tp\ntwice = tp.library.load(file).twice\nx = tp.ones(3)"

    def gradient(self, twice: Kernel) -> str:
        import tensorplay as tp

        x = tp.ones(3, requires_grad=True)
        twice(x).sum().backward()
        return "of a formula or a second kernel" if x.grad.tolist() == [2.0] * 3 else "wrong"

    def wrong_gradient(self) -> str:
        report = self.report("wrong", factor=3)
        return "found when the cell runs" if not report.ok else "not noticed"

    def past_the_end(self) -> str:
        codes = {finding.code for finding in self.report("past", shift=1).findings}
        return "found when the cell runs" if "reads_outside" in codes else "not noticed"


class Engine(Alternative):
    """The engine by itself."""

    name, package, text = "`tvm_ffi.cpp.load_inline`", "apache-tvm-ffi", ENGINE

    def build(self, name: str, *, shift: int = 0) -> Kernel:
        import tvm_ffi.cpp

        source = ENGINE.format(shift=shift)
        module = tvm_ffi.cpp.load_inline(name, cpp_sources=source, functions="twice")

        def twice(x: Any) -> Any:
            out = np.empty(x.shape, x.dtype)
            module.twice(tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(out))
            return out

        return twice

    def library(self, folder: Path) -> tuple[Path, str]:
        import tvm_ffi.cpp

        source = ENGINE.format(shift=0)
        file = tvm_ffi.cpp.build_inline(
            "carried", cpp_sources=source, functions="twice", build_directory=str(folder)
        )
        return Path(file), (
            "import numpy as np, tvm_ffi\nmodule = tvm_ffi.load_module(file)\n"
            "x = np.ones(3, np.float32)\n"
            "def twice(x):\n    out = np.empty_like(x)\n"
            "    module.twice(tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(out))\n    return out"
        )


class Torch(Alternative):
    """PyTorch's extensions."""

    name, package, text = "`torch.utils.cpp_extension`", "torch", TORCH

    def build(self, name: str, *, shift: int = 0) -> Kernel:
        from torch.utils import cpp_extension

        source = TORCH.format(shift=shift)
        module = cpp_extension.load_inline(name, cpp_sources=source, functions=["twice"])
        kernel: Kernel = module.twice
        return kernel

    def array(self, values: np.ndarray[Any, Any]) -> Any:
        import torch

        return torch.from_numpy(values)

    def library(self, folder: Path) -> tuple[Path, str]:
        from torch.utils import cpp_extension

        source = TORCH.format(shift=0)
        cpp_extension.load_inline(
            "carried", cpp_sources=source, functions=["twice"], build_directory=str(folder)
        )
        return folder / "carried.so", _IMPORT.format(before="import torch", ones="torch.ones(3)")

    def gradient(self, twice: Kernel) -> str:
        import torch

        x = torch.ones(3, requires_grad=True)
        return "of itself" if twice(x).requires_grad else "an `autograd.Function` by hand"

    def wrong_gradient(self) -> str:
        import torch

        class Wrong(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.factor = 3
                return 2 * x

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                return ctx.factor * grad

        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        try:
            torch.autograd.gradcheck(Wrong.apply, (x,))
        except RuntimeError:
            return "on request (`gradcheck`)"
        return "not noticed"


class Numba(Alternative):
    """Numba's compiler for Python."""

    name, package, text = "Numba", "numba", PYTHON
    language = "Python"

    def build(self, name: str, *, shift: int = 0, boundscheck: bool = False) -> Kernel:
        import numba

        scope: dict[str, Any] = {"np": np}
        exec(PYTHON.format(shift=shift), scope)
        kernel: Kernel = numba.njit(boundscheck=boundscheck)(scope["twice"])
        return kernel

    def library(self, folder: Path) -> tuple[Path, str]:
        import numba
        from numba.pycc import CC

        scope: dict[str, Any] = {"np": np}
        exec(PYTHON.format(shift=0), scope)
        compiler = CC("carried")
        compiler.output_dir = str(folder)
        compiler.export("twice", numba.float32[:](numba.float32[:]))(scope["twice"])
        compiler.compile()
        before, ones = "import numpy as np", "np.ones(3, np.float32)"
        return next(folder.glob("*.so")), _IMPORT.format(before=before, ones=ones)

    def past_the_end(self) -> str:
        if super().past_the_end() != "not noticed":
            return "found"
        try:
            self.build("past", shift=1, boundscheck=True)(np.ones(3, np.float32))
        except IndexError:
            return "on request (`boundscheck`)"
        return "not noticed"


_IMPORT = """\
{before}
import importlib.util
spec = importlib.util.spec_from_file_location("carried", file)
carried = importlib.util.module_from_spec(spec)
spec.loader.exec_module(carried)
twice, x = carried.twice, {ones}"""


def answer(call: Callable[[], Any], right: Any) -> str:
    """Say whether a call is refused, right, or wrong without a word."""
    try:
        result = call()
    except (TypeError, ValueError, RuntimeError):
        return "refused"
    return "right" if np.array_equal(np.asarray(result), right) else "wrong numbers"


def carried(kind: Alternative, folder: Path) -> str:
    """Say whether the kernel loads from a file where no compiler is."""
    folder.mkdir()
    file, load = kind.library(folder)
    code = f"file = {str(file)!r}\n{load}\nassert [float(v) for v in twice(x)] == [2.0] * 3\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PATH": str(folder), "CXX": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return f"no: {done.stderr.strip().splitlines()[-1]}"
    symbols = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", file],
        capture_output=True,
        text=True,
        check=True,
    )
    of_python = any(
        line.split()[-1].startswith(("Py", "_Py")) for line in symbols.stdout.split("\n") if line
    )
    return "for one version of Python" if of_python else "for any version of Python"


def row_of(kind: Alternative, folder: Path) -> dict[str, str]:
    """Return all answers of one alternative."""
    twice = kind.build("twice")
    double = kind.array(np.ones(3))
    every_second = np.arange(6, dtype=np.float32)[::2]
    return {
        "version": kind.version,
        "written in": kind.language,
        "float64 in a float32 kernel": answer(lambda: twice(double), np.full(3, 2.0)),
        "every second element of an array": answer(
            lambda: twice(kind.array(every_second)), 2 * every_second
        ),
        "gradient": kind.gradient(twice),
        "a wrong gradient": kind.wrong_gradient(),
        "a read past the end": kind.past_the_end(),
        "a file that loads without a compiler": carried(kind, folder / type(kind).__name__),
    }


def alternatives() -> list[Alternative]:
    """Return those that are installed."""
    found: list[Alternative] = []
    for kind in (Ours, Engine, Torch, Numba):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(kind())
    return found


def columns(folder: Path) -> dict[str, dict[str, str]]:
    """Return the answers of each alternative by its name, built in a folder."""
    return {kind.name: row_of(kind, folder) for kind in alternatives()}


CACHES = ("TENSORPLAY_CACHE_DIR", "TVM_FFI_CACHE_DIR", "TORCH_EXTENSIONS_DIR")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of the others
def test_the_table_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed answers as README.md says."""
    for variable in CACHES:
        monkeypatch.setenv(variable, str(tmp_path / variable))
    section = README.read_text("utf-8").partition("## Beside other ways")[2].partition("\n## ")[0]
    head, _, *table = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    )
    written = {name: {row[0]: row[i] for row in table} for i, name in enumerate(head) if name}
    answered = columns(tmp_path)
    assert Ours.name in answered
    for name, answers in answered.items():
        # Versions are those of README's run.
        assert {**written[name], "version": ""} == {**answers, "version": ""}, name


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for variable in CACHES:
            os.environ[variable] = str(folder / variable)
        found = columns(folder)
    kinds, rows = list(found), list(found.values())
    sys.stdout.write(f"| | {' | '.join(kinds)} |\n")
    sys.stdout.write(f"|{'---|' * (len(kinds) + 1)}\n")
    for label in rows[0]:
        sys.stdout.write(f"| {label} | {' | '.join(row[label] for row in rows)} |\n")


if __name__ == "__main__":
    main()
