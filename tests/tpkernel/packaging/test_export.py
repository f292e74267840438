"""An exported cell is a package that builds, installs and passes its own tests."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import tensorplay as tp
import tpkernel
from tests.library.modules.environments import (
    BUILDING,
    LOADING,
    make_environment,
    pip,
    project_wheel,
    run,
)
from tests.library.modules.test_documentation import documented_files
from tests.tpkernel.shell import ABOVE_KERNEL, ADD1, SOFTPLUS, Shell
from tpkernel import Report
from tpkernel.packaging import export

VIEWS = """\
template <typename T>
void multiply(tp::In<T> x, tp::In<T> w, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] * w[i];
}
template <typename T>
void multiply_backward(tp::In<T> grad, tp::In<T> x, tp::In<T> w,
                       tp::Out<T> grad_x, tp::Out<T> grad_w) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    grad_x[i] = grad[i] * w[i];
    grad_w[i] = grad[i] * x[i];
  }
}
"""

MANY = """\
// tpkernel: flags = -DTWO=2
/*---
ops:
  - op: exported::sincos(Tensor x) -> (Tensor, Tensor)
    doc: 'Sine and cosine: both.'
    derivatives: {x: grad_s * c - grad_c * s}
  - op: exported::scale_(Tensor(a!) x, float by=2.0) -> ()
  - op: exported::root(Tensor x) -> Tensor
    derivatives: {x: grad / (TWO * result)}
    samples: [{x: [-1.0, 4.0]}, {x: 'rand(3) + 0.5'}]
  - op: exported::positive(Tensor x) -> Tensor
---*/
#include "halves.h"
template <typename T>
void sincos(tp::In<T> x, tp::Out<T> s, tp::Out<T> c) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    s[i] = std::sin(x[i]);
    c[i] = std::cos(x[i]);
  }
}
template <typename T>
void scale_(tp::InOut<T> x, double by) {
  for (int64_t i = 0; i < x.numel(); ++i) x[i] *= T(by) * halve(T(TWO));
}
template <typename T>
void root(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = std::sqrt(x[i]);
}
template <typename T>
void positive(tp::In<T> x, tp::Out<bool> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = x[i] > 0;
}
""".replace("(TWO * result)", "(2 * result)")


# An operator of each kind that is declared: what may be absent, lists, sizes that a kernel finds,
# gradients that are no derivatives, and arguments that are no tensors.
KINDS = (
    """\
/*---
ops:
  - op: kinds::rows(Tensor[] xs, Tensor? bias=None) -> Tensor
    shape: {xs: [_, m], bias: [m], out: ['sum(t.shape[0] for t in xs)', m]}
    derivatives:
      xs: split(grad, [t.shape[0] for t in xs])
      bias: grad.sum(0)
  - op: kinds::doubled(Tensor[] xs) -> Tensor[]
    derivatives: {xs: '[2 * g for g in grad]'}
  - op: kinds::step_(Tensor(a!)[] ps, Tensor[] gs, Tensor(b!)? calls=None, *, float lr=0.5) -> ()
    shape: {ps: ps, gs: ps, calls: [1]}
  - op: kinds::above(Tensor x) -> (Tensor values, Tensor indices)
    derivatives: {x: 'zeros_like(x).index_add(0, indices, grad_values)'}
  - op: kinds::scaled(Tensor x, Tensor scale) -> (Tensor y, Tensor largest)
    shape: {x: [n], scale: [n], y: [n], largest: []}
    derivatives: {x: grad_y * scale, scale: non_differentiable}
    output_differentiability: [True, False]
  - op: kinds::signed(Tensor x, Tensor w) -> Tensor
    derivatives: {x: grad * w, w: grad * sign(x)}
    kernel: signed_
    surrogate_gradient: {x: straight-through estimator}
  - op: kinds::bits(Tensor x, *, ScalarType d, Device where, int[] ks=[1], int? k=None) -> Tensor
    dtypes: [bfloat16]
---*/
template <typename T>
void rows(tp::List<tp::In<T, 2>> xs, tp::Optional<tp::In<T, 1>> bias, tp::Out<T, 2> out) {
  int64_t row = 0;
  for (auto x : xs)
    for (int64_t i = 0; i < x.size(0); ++i, ++row)
      for (int64_t j = 0; j < x.size(1); ++j)
        out(row, j) = x[i * x.size(1) + j] + (bias ? (*bias)[j] : T(0));
}
template <typename T>
void doubled(tp::List<tp::In<T>> xs, tp::List<tp::Out<T>> out) {
  for (int64_t k = 0; k < xs.size(); ++k)
    for (int64_t i = 0; i < xs[k].numel(); ++i) out[k][i] = 2 * xs[k][i];
}
template <typename T>
void step_(tp::List<tp::InOut<T>> ps, tp::List<tp::In<T>> gs,
           tp::Optional<tp::InOut<int64_t>> calls, double lr) {
  if (calls) (*calls)[0] += 1;
  for (int64_t k = 0; k < ps.size(); ++k)
    for (int64_t i = 0; i < ps[k].numel(); ++i) ps[k][i] -= T(lr) * gs[k][i];
}
"""
    + ABOVE_KERNEL
    + """\
template <typename T>
void scaled(tp::In<T> x, tp::In<T> scale, tp::Out<T> y, tp::Out<T, 0> largest) {
  T most = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    y[i] = x[i] * scale[i];
    most = std::max(most, std::abs(y[i]));
  }
  largest[0] = most;
}
template <typename T>
void signed_(tp::In<T> x, tp::In<T> w, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = ((x[i] > 0) - (x[i] < 0)) * w[i];
}
template <typename T>
void bits(tp::In<T> x, DLDataType d, DLDevice where, tvm::ffi::Array<int64_t> ks,
          tvm::ffi::Optional<int64_t> k, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i)
    out[i] = x[i] * T(d.bits) + T(ks[0] + where.device_id + (k.has_value() ? *k : 0));
}
"""
)

# What is asked of the operators where nothing but the runtime is: values, gradients, names.
ASKED = """\
import sys
import numpy as np
import tensorplay as tp
import kinds

x = tp.tensor([-1.0, 2.0, 3.0], requires_grad=True)
found = kinds.above(x)
(3 * found.values).sum().backward()
scaled = kinds.scaled(x, tp.full((3,), 2.0, requires_grad=True))
p, b = np.ones(2, np.float32), tp.ones(2, requires_grad=True)
calls = np.zeros(1, np.int64)
kinds.step_([p], [tp.ones(2)], calls)
rows = kinds.rows([np.ones((1, 2), np.float32), tp.zeros(2, 2)], b)
rows.sum().backward()
s = tp.tensor([-0.5, 4.0], requires_grad=True)
kinds.signed(s, tp.full((2,), 7.0)).sum().backward()
print(found.values.tolist(), found.indices.tolist(), x.grad.tolist(), scaled.largest.item())
print(scaled.largest.requires_grad, p.tolist(), calls, rows.tolist())
print(b.grad.tolist(), s.grad.tolist())
print([t.tolist() for t in kinds.doubled([tp.ones(2), np.ones(2, np.float32)])])
print(sorted({"tpkernel", "yaml", "tree_sitter", "IPython"} & set(sys.modules)))
"""
ANSWERED = """\
[2.0, 3.0] [1, 2] [0.0, 3.0, 3.0] 6.0
False [0.5, 0.5] [1] [[2.0, 2.0], [1.0, 1.0], [1.0, 1.0]]
[3.0, 3.0] [7.0, 7.0]
[[2.0, 2.0], [2.0, 2.0]]
[]
"""


def try_package(folder: Path, package: str) -> subprocess.CompletedProcess[str]:
    """Build an exported package's library in place and run its tests."""
    source = folder / "src" / package
    tp.library.build_module(
        source / "ops.yaml", source / "kernels.cc", output=source / f"lib{package}.so"
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), *sys.path])},
    )


@pytest.fixture(scope="module")
def softplus() -> Report:
    return tpkernel.build(SOFTPLUS)


def test_the_front_matter_and_the_kernels_are_the_cells_own(softplus, tmp_path) -> None:
    folder = softplus.export(tmp_path / "my-ops")
    assert folder == tmp_path / "my-ops"
    files = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert set(files) == {
        ".gitignore",
        "README.md",
        "pyproject.toml",
        "src/my_ops/__init__.py",
        "src/my_ops/kernels.cc",
        "src/my_ops/ops.yaml",
        "tests/recorded.json",
        "tests/test_my_ops.py",
    }
    front, _, kernels = SOFTPLUS.removeprefix("/*---\n").partition("---*/\n")
    assert files["src/my_ops/ops.yaml"] == front
    assert files["src/my_ops/kernels.cc"] == kernels
    assert "softplus = _operators.softplus" in files["src/my_ops/__init__.py"]
    assert "mylib::softplus(Tensor x, float beta=1.0) -> Tensor" in files["README.md"]
    assert "pip install --find-links wheels ." in files["README.md"]
    for text in files.values():
        assert str(tmp_path) not in text


def test_a_package_of_typed_views_is_in_its_own_namespace(tmp_path) -> None:
    tpkernel.build(VIEWS).export(tmp_path / "views")
    assert "- op: views::multiply(" in (tmp_path / "views/src/views/ops.yaml").read_text()
    done = try_package(tmp_path / "views", "views")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout  # 3 shapes in 2 dtypes, 3 gradients, the registration


@pytest.mark.slow
def test_results_in_place_several_and_not_finite_are_recorded(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "halves.h").write_text("template <typename T> T halve(T x) { return x / 2; }\n")
    report = tpkernel.build(MANY)
    assert report.export(tmp_path / "out", name="many") == tmp_path / "out"
    assert (tmp_path / "out/src/many/halves.h").is_file()
    recorded = (tmp_path / "out/tests/recorded.json").read_text()
    for part in ("NaN", '"written": {\n    "x"', '"dtype": "bool"'):
        assert part in recorded
    done = try_package(tmp_path / "out", "many")
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = tmp_path / "out/src/many/kernels.cc"
    kernels.write_text(kernels.read_text().replace("std::sin(", "0.9 * std::sin("))
    done = try_package(tmp_path / "out", "many")
    assert done.returncode == 1
    assert "test_values[sincos" in done.stdout
    assert "test_gradients[sincos" in done.stdout


@pytest.fixture(scope="module")
def kinds(tmp_path_factory) -> Path:
    report = tpkernel.build(KINDS)
    assert not [f for f in report.findings if f.level == "error"], report.to_text()
    return report.export(tmp_path_factory.mktemp("kinds") / "kinds")


@pytest.mark.slow
def test_each_kind_of_operator_passes_the_tests_of_its_package(kinds: Path) -> None:
    cases = json.loads((kinds / "tests/recorded.json").read_text())
    for key in ("values", "gradients"):
        assert {c["operator"] for c in cases[key]} >= {"rows", "doubled", "above", "signed"}
    inputs = {n for c in cases["gradients"] if c["operator"] == "rows" for n in c["inputs"]}
    assert {"xs[0]", "xs[2]", "bias"} <= inputs
    (sign, *_) = [c for c in cases["gradients"] if c["operator"] == "signed"]
    assert (sign["inputs"], list(sign["deliberate"])) == (["w"], ["x"])
    assert all("scale" not in c["inputs"] for c in cases["gradients"])
    done = try_package(kinds, "kinds")
    assert done.returncode == 0, done.stdout + done.stderr
    declared = kinds / "src/kinds/ops.yaml"
    before = declared.read_text()
    declared.write_text(before.replace("grad * w, w", "2 * grad * w, w"))
    try:
        done = try_package(kinds, "kinds")
    finally:
        declared.write_text(before)
    assert done.returncode == 1
    assert "test_gradients_that_are_no_derivatives[signed" in done.stdout


@pytest.mark.slow
def test_each_kind_of_operator_runs_from_a_wheel_without_the_workbench(
    kinds: Path, builder: Path, wheel: Path, tmp_path: Path
) -> None:
    pip(builder, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(kinds))
    (made,) = tmp_path.glob("kinds-*.whl")
    bare = make_environment(tmp_path / "bare", LOADING)
    pip(bare, "install", "--no-deps", str(wheel), str(made))
    done = run(bare, "-c", ASKED, cwd=tmp_path, PATH="", CXX="")
    assert done.stdout == ANSWERED, done.stderr
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(kinds / "tests")]
    done = run(bare, *tests, cwd=tmp_path, PATH="", CXX="")
    assert done.returncode == 0, done.stdout + done.stderr


def test_options_of_the_cell_are_the_packages(tmp_path) -> None:
    text = SOFTPLUS.replace("mylib::", "flagged::").replace("/ beta", "/ beta * ONE")
    report = tpkernel.build(
        text, flags=["-DONE=1", "-O1"], contiguous="copy", allow_alias=True, checks=False
    )
    project = (report.export(tmp_path / "flagged") / "pyproject.toml").read_text()
    assert 'flags = ["-DONE=1", "-O1"]' in project
    assert 'contiguous = "copy"' in project
    assert "allow_alias = true" in project


def test_an_export_again_asks_before_it_overwrites(softplus, tmp_path) -> None:
    softplus.export(tmp_path / "pkg")
    readme = tmp_path / "pkg" / "README.md"
    readme.write_text("mine")
    with pytest.raises(FileExistsError, match=r"has .*README\.md.* already.*overwrite=True"):
        softplus.export(tmp_path / "pkg")
    assert readme.read_text() == "mine"
    softplus.export(tmp_path / "pkg", overwrite=True)
    assert readme.read_text() != "mine"


def test_what_cannot_be_exported_says_why(softplus, tmp_path) -> None:
    plain = tpkernel.build(ADD1, checks=False)
    wrong = tpkernel.build(SOFTPLUS.replace("grad * sig", "grad * 2 * sig").replace("mylib", "wr"))
    unchecked = tpkernel.build(
        SOFTPLUS.replace("grad * sig", "grad * 3 * sig").replace("mylib", "wr"), checks=False
    )
    fails = tpkernel.build(
        SOFTPLUS.replace("---*/", "samples: [{x: [1.0], beta: 0.0}]\n---*/")
        .replace("mylib", "wr")
        .replace("{\n", '{\n  if (beta == 0) TVM_FFI_THROW(ValueError) << "no beta";\n'),
        checks=False,
    )
    for report, kind, words, options in (
        (plain, ValueError, "plain kernels", {}),
        (wrong, RuntimeError, "the checks found", {}),
        (unchecked, RuntimeError, "the gradient of wr::softplus", {}),
        (unchecked, RuntimeError, r"(?s)^(?!.*tensors\[0\]).*Run the cell with its", {}),
        (fails, RuntimeError, "fails on its sample", {}),
        (softplus, ValueError, "'1x' cannot name a package", {"name": "1x"}),
        (dataclasses.replace(softplus, origin=None), RuntimeError, "run the cell again", {}),
    ):
        with pytest.raises(kind, match=words):
            report.export(tmp_path / "pkg", **options)
    assert not (tmp_path / "pkg").exists()


def test_the_last_report_of_a_notebook_is_exported(shell: Shell, tmp_path) -> None:
    shell.ok("%%tpkernel\n" + SOFTPLUS.replace("mylib", "notebook"))
    folder = tpkernel.last_report().export(tmp_path / "pkg")
    assert "notebook::softplus" in (folder / "src/pkg/ops.yaml").read_text()
    shell.run("%%tpkernel\n" + SOFTPLUS.replace("mylib", "notebook").replace("x[i]", "y[i]"))
    with pytest.raises(RuntimeError, match="did not build"):
        tpkernel.last_report().export(tmp_path / "again")


def test_the_report_as_data_has_no_part_for_the_export(softplus) -> None:
    assert "origin" not in softplus.to_dict()


@pytest.fixture(scope="module")
def wheel(cache_folder) -> Path:
    return project_wheel(cache_folder)


@pytest.fixture(scope="module")
def builder(wheel, tmp_path_factory) -> Path:
    """Return a Python that has what building a package needs, and no IPython."""
    made = make_environment(tmp_path_factory.mktemp("builder"), (*LOADING, *BUILDING))
    pip(made, "install", "--no-deps", str(wheel))
    return made


@pytest.mark.slow
def test_the_package_installs_into_fresh_environments(softplus, builder, wheel, tmp_path) -> None:
    folder = softplus.export(tmp_path / "fresh_softplus")
    pip(builder, "install", "--no-deps", "--no-build-isolation", str(folder))
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests")]
    done = run(builder, *tests, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

    out = tmp_path / "out"
    pip(builder, "wheel", "--no-deps", "--no-build-isolation", "-w", str(out), str(folder))
    (made,) = out.glob("*.whl")
    assert made.name.startswith("fresh_softplus-0.1.0-py3-none-")
    assert not list(folder.rglob("*.so"))  # nothing is left in the sources
    bare = make_environment(tmp_path / "bare", LOADING)
    pip(bare, "install", "--no-deps", str(wheel), str(made))
    done = run(bare, *tests, cwd=tmp_path, PATH="", CXX="")
    assert done.returncode == 0, done.stdout + done.stderr
    missing = "import yaml, tree_sitter, IPython"
    assert "No module named" in run(bare, "-c", missing, cwd=tmp_path).stderr

    pip(builder, "install", "--no-deps", "--no-build-isolation", "--editable", str(folder))
    done = run(builder, *tests, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_wrong_settings_of_the_hook_are_named(softplus, builder, tmp_path) -> None:
    folder = softplus.export(tmp_path / "pkg")
    project = folder / "pyproject.toml"
    text = project.read_text()
    code = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    for old, new, said in (
        ("declarations =", "declaration =", "unknown key 'declaration'"),
        ('sources = ["src/pkg/kernels.cc"]', 'sources = "a.cc"', "sources must be a list"),
        ('library = "src/pkg/libpkg.so"', "library = 3", "needs library ="),
        ("ops.yaml", "nope.yaml", "there is no file"),
    ):
        project.write_text(text.replace(old, new))
        done = run(builder, "-c", code, str(tmp_path), cwd=folder)
        assert done.returncode != 0
        assert said in done.stderr, done.stderr


@pytest.mark.slow
def test_the_project_file_of_the_documentation_builds(builder, tmp_path) -> None:
    for name, text in documented_files().items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    pip(builder, "install", "--no-deps", "--no-build-isolation", str(tmp_path))
    code = "import tensorplay as tp, myops; print(myops.softplus(tp.zeros(1), 2.0).item())"
    done = run(builder, "-c", code, cwd=tmp_path.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0.3465")


@pytest.mark.parametrize("default", ["'it''s'", '"it\'s"', "'a: b'", "'#1'", "'{x}'", "3"])
def test_declarations_of_typed_views_are_read_as_they_are(default: str) -> None:
    schema = f"t::f(Tensor x, *, str note={default}) -> Tensor"
    operator = SimpleNamespace(origin="typed view", schema=schema, namespace="t")
    origin = SimpleNamespace(request=SimpleNamespace(text="void f();\n"))
    written = export._declarations(origin, [operator], "pkg")  # type: ignore[arg-type,list-item]
    assert yaml.safe_load(written) == [{"op": schema.replace("t::", "pkg::")}]
