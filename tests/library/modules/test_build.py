"""What can be built into a library of operators, and what the errors of the rest say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tensorplay as tp
from tensorplay.utils import cpp_jit
from tests.library.modules.texts import KERNELS, OPS
from tpkernel import CellError

UNARY = "template <typename T> void {}(tp::In<T> x, tp::Out<T> out) {{\n{}\n}}\n"
LOOP = "  for (int64_t i = 0; i < x.numel(); ++i) out[i] = {};"

#: As the engine's own types have it: a function that returns its result, one that writes.
CONTRACT = """\
- func: omod::scale_add(Tensor self, float factor, Scalar bias=0) -> Tensor
  dispatch: {CPU: scale_add_cpu}
- func: omod::scale_add_(Tensor(a!) self, float factor) -> Tensor(a!)
  dispatch: {CPU: scale_add__cpu}
- func: omod::same(Tensor self, float factor, Scalar bias=1) -> Tensor
  dispatch: {CPU: scale_add_cpu}
- func: omod::waiting(Tensor x) -> Tensor
  dispatch: {}
- func: omod::made(int n) -> Tensor
  dispatch: {CPU: made_cpu}
"""
LISTS = """\
- func: omod::total(Tensor x, int[] factors) -> Tensor
  dispatch: {CPU: total_cpu}
"""
CONTRACT_KERNELS = """\
tvm::ffi::Tensor like(tvm::ffi::TensorView x) {
  return tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), x.device());
}
tvm::ffi::Tensor scale_add_cpu(tvm::ffi::TensorView self, double factor, double bias) {
  tvm::ffi::Tensor out = like(self);
  auto* a = static_cast<const float*>(self.data_ptr());
  auto* b = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < self.numel(); ++i) b[i] = a[i] * factor + bias;
  return out;
}
void scale_add__cpu(tvm::ffi::TensorView self, double factor) {
  auto* a = static_cast<float*>(self.data_ptr());
  for (int64_t i = 0; i < self.numel(); ++i) a[i] *= factor;
}
"""
LISTS_KERNELS = """\
tvm::ffi::Tensor total_cpu(tvm::ffi::TensorView x, tvm::ffi::Array<int64_t> factors) {
  tvm::ffi::Tensor out = like(x);
  int64_t sum = 0;
  for (int64_t f : factors) sum += f;
  auto* a = static_cast<const float*>(x.data_ptr());
  auto* b = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) b[i] = a[i] * sum;
  return out;
}
"""


class Folder:
    """Files of a module, and what building them gives."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def build(self, ops: str | None, *sources: str, **options: object) -> Path:
        """Write the texts and build them."""
        files = []
        for number, text in enumerate(sources):
            files.append(self.path / f"{'abc'[number]}.cc")
            files[-1].write_text(text)
        declarations = None
        if ops is not None:
            declarations = self.path / "ops.yaml"
            declarations.write_text(ops)
        output = self.path / "libmade.so"
        return tp.library.build_module(declarations, files, output=output, **options)

    def load(self, ops: str | None, *sources: str, **options: object):
        """Build and load."""
        return tp.library.load(self.build(ops, *sources, **options))

    def error(self, ops: str | None, *sources: str, kind: type[Exception] = CellError) -> str:
        """Return the error without the folder's path."""
        with pytest.raises(kind) as caught:
            self.build(ops, *sources)
        assert not (self.path / "libmade.so").exists()
        return str(caught.value).replace(f"{self.path}/", "")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def unary(name: str, value: str) -> str:
    return UNARY.format(name, LOOP.format(value))


def test_a_document_with_ops_a_list_and_front_matter_say_the_same(folder: Folder) -> None:
    entry = "op: omod::up(Tensor x) -> Tensor\n{0}derivatives: {{x: grad}}\n"
    listed = "- " + entry.format("  ")
    source = unary("up", "x[i] + 1")
    schemas = set()
    for ops, text in (
        (listed, source),
        ("ops:\n" + listed, source),
        (entry.format(""), source),
        (None, f"/*---\n{entry.format('')}---*/\n{source}"),
    ):
        module = folder.load(ops, text)
        schemas.add(str(module.up.schema))
        assert module.up(tp.zeros(1)).tolist() == [1.0]
    assert schemas == {"omod::up(Tensor x) -> Tensor"}


def test_several_sources_share_headers_and_declarations(folder: Folder) -> None:
    (folder.path / "halves.h").write_text("template <typename T> T halve(T x) { return x / 2; }\n")
    ops = "- op: omod::half(Tensor x) -> Tensor\n- op: omod::up(Tensor x) -> Tensor\n"
    front = "/*---\nop: omod::down(Tensor x) -> Tensor\n---*/\n" + unary("down", "x[i] - 1")
    include = '#include "halves.h"\n'
    module = folder.load(
        ops, include + unary("half", "halve(x[i])"), unary("up", "x[i] + 1"), front
    )
    assert list(module) == ["half", "up", "down"]
    assert [module[n](tp.ones(1)).item() for n in module] == [0.5, 2.0, 0.0]


def test_flags_and_options_are_those_of_a_cell(folder: Folder) -> None:
    ops = "- op: omod::up(Tensor x) -> Tensor\n"
    source = "// tpkernel: flags = -DONE=1\n" + unary("up", "x[i] + ONE * TWO")
    module = folder.load(ops, source, flags="-DTWO=2", contiguous="copy")
    assert module.up(tp.zeros(2, 3).T).shape == (3, 2)
    assert module.up(tp.zeros(1)).tolist() == [2.0]
    past = folder.load(ops, unary("up", "x[i + 1]"), debug=True)
    with pytest.raises(IndexError, match=r"\[omod::up\] argument 'x'"):
        past.up(tp.zeros(2))
    with pytest.raises(ValueError, match="contiguous must be"):
        folder.build(ops, source, contiguous="maybe")
    with pytest.raises(ValueError, match="cannot be split"):
        folder.build(ops, source, flags="'")


# -- declarations as the contract has them --------------------------------------------------------


def test_func_and_dispatch(folder: Folder) -> None:
    module = folder.load(CONTRACT, CONTRACT_KERNELS)
    assert module.scale_add(tp.ones(2), 2.0).tolist() == [2.0, 2.0]
    assert module.scale_add(tp.ones(2), factor=2.0, bias=1).tolist() == [3.0, 3.0]
    assert module.same(tp.ones(2), 2.0).tolist() == [3.0, 3.0]  # another default, the same function
    x = tp.ones(2)
    version = x._version
    assert module.scale_add_(x, 3.0) is x
    assert x.tolist() == [3.0, 3.0]
    assert x._version > version
    assert isinstance(module.same(factor=2, self=tp.ones(1)), tp.Tensor)
    assert tp.library.opcheck(module.scale_add_, (tp.ones(3), 2.0)) == {}
    with pytest.raises(TypeError, match=r"\[omod::scale_add\] argument 'self': expected Tensor"):
        module.scale_add("x", 2.0)
    with pytest.raises(TypeError, match=r"argument 'self': expected float32 on cpu, got float64"):
        module.scale_add(tp.ones(2, dtype=tp.float64), 2.0)
    with pytest.raises(NotImplementedError, match=r"\[omod::waiting\] no kernel for device cpu"):
        module.waiting(tp.ones(1))
    module.waiting.register_kernel("cpu")(lambda x: x + 1)
    assert module.waiting(tp.ones(1)).tolist() == [2.0]
    with pytest.raises(RuntimeError, match=r"\[omod::made\] no Tensor argument"):
        module.made(3)


@pytest.mark.slow
def test_lists_and_python_functions(folder: Folder, monkeypatch) -> None:
    functions = """
import tensorplay as tp
def fake(x, factors): return tp.empty(x.shape, dtype=x.dtype, device=x.device)
def backward(ctx, grad): return grad * sum(ctx.factors), None
def keep(ctx, inputs, output): ctx.factors = [2 * f for f in inputs[1]]
not_callable = 3
"""
    (folder.path / "omod_functions.py").write_text(functions)
    monkeypatch.syspath_prepend(str(folder.path))
    kernels = CONTRACT_KERNELS + LISTS_KERNELS
    own = "  fake: omod_functions:fake\n  autograd: omod_functions:backward\n"
    module = folder.load(LISTS + own, kernels)
    x = tp.ones(2, requires_grad=True)
    module.total(x, [1, 2]).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    assert module.total(tp.ones(1), (1, 2, 3)).tolist() == [6.0]
    assert module.total(tp.ones(2, device="meta"), [1]).is_meta
    own = "  autograd: {backward: omod_functions.backward, setup_context: omod_functions:keep}\n"
    module = folder.load(LISTS + own, kernels)
    x.grad = None
    module.total(x, [1, 2]).sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]
    for name, kind in (("omod_nowhere:f", RuntimeError), ("omod_functions:g", RuntimeError),
                       ("omod_functions:not_callable", TypeError)):  # fmt: skip
        file = folder.build(f"{LISTS}  fake: {name}\n", kernels)
        with pytest.raises(kind, match="'fake' of omod::total"):
            tp.library.load(file)
        assert tp.ops.omod.total is module.total


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("Tensor x, float", "tensor x, float", "ops.yaml:1", ["unknown type specifier"]),
        ("  doc:", "  docs:", "ops.yaml:2:3", ["unknown key 'docs'", "did you mean 'doc'"]),
        ("  doc:", "  kernel: softplis #", "ops.yaml:2", ["no C++ function", "'softplus'"]),
        ("  doc:", "  dtypes: [flot64] #", "ops.yaml:2", ["unknown dtype 'flot64'", "'float64'"]),
        ("beta * x)\n", "beta * y)\n", "ops.yaml:4", ["unknown name 'y'"]),
        ("{x: [n, k],", "{x: [n],", "ops.yaml:9", ["make them agree"]),
        ("omod::mm(Tensor x,", "omod::mm(Tensor x, int n,", "a.cc:19:6", ["4 parameters"]),
        ("omod::square", "omod::softplus", "a.cc:2:6", ["2 parameters", "got 3"]),
        ("softplus(", "softplus.out(", "ops.yaml:1", ["an overload", "omod::softplus_out"]),
        ("  doc:", " doc:", "ops.yaml:2:2", ["not valid YAML"]),
        ("- op: omod::multiply", "- 5\n- op: omod::multiply", "ops.yaml:1", ["list of entries"]),
        ("omod::multiply", "multiply", "ops.yaml:7", ["no namespace", "mylib::multiply"]),
        ("  doc:", "  dispatch: {CUDA: f} #", "ops.yaml:2", ["device 'CUDA'", "run on CPU"]),
        ("  doc:", "  dispatch: cpu #", "ops.yaml:2", ["must map a device"]),
        ("  doc:", "  autograd: m:f #", "ops.yaml:2", ["autograd, and by derivatives"]),
        ("  doc:", "  fake: no function #", "ops.yaml:2", ["package.module:function"]),
        ("  doc:", "  func: omod::f() -> () #", "ops.yaml:2", ["'func' and 'op' say the same"]),
        ("beta: 0.5}", "beta: 2020-01-01}", "ops.yaml:6", ["sample 0", "expected float"]),
    ],
)  # fmt: skip
def test_errors_stand_at_the_line_of_the_file(folder, old, new, place, words) -> None:
    assert old in OPS
    text = folder.error(OPS.replace(old, new, 1), KERNELS)
    assert text.startswith(f"{place}: error: "), text
    for word in words:
        assert word in text, text


def test_errors_in_sources_name_the_source(folder: Folder) -> None:
    ops = "- op: omod::up(Tensor x) -> Tensor\n- op: omod::down(Tensor x) -> Tensor\n"
    up, down = unary("up", "x[i] + 1"), unary("down", "x[j] - 1")
    text = folder.error(ops, up, down, kind=cpp_jit.BuildError)
    assert text.startswith("b.cc:2:")
    assert "'j' was not declared" in text
    text = folder.error(ops, up, down[:-2])
    assert text.startswith("b.cc:1: error: unbalanced brace")
    text = folder.error(ops, up, down.replace("tp::Out<T> out", "std::map<int, int> out"))
    assert text.startswith("b.cc:1:")
    assert "std::map<int, int>" in text
    text = folder.error(ops, up, "/*---\nopp: x\n---*/\n")
    assert text.startswith("b.cc:2:1: error: unknown front-matter key 'opp'")
    text = folder.error(ops, up, "/*---\nop: omod::down(Tensor y) -> Tensor\n" + "---*/\n" + down)
    assert "declared twice" in text


def test_types_that_cannot_pass_list_those_that_can(folder: Folder) -> None:
    kernel = "void f(tvm::ffi::TensorView x, std::map<int, int> n) {}"
    for kind in ("int", "int[]", "str"):
        text = folder.error(f"- op: omod::f(Tensor(a!) x, {kind} n) -> ()\n", kernel)
        for word in ("a.cc:1:", "argument 'n'", "std::map<int, int>", "int64_t", "Array<int64_t>"):
            assert word in text, text


def test_nothing_declared_and_files_that_are_not_there(folder: Folder, tmp_path: Path) -> None:
    assert "no operator is declared" in folder.error(None, KERNELS)
    assert "no operator is declared" in folder.error("", KERNELS)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nope\.cc"):
        tp.library.build_module(None, "nope.cc", output=tmp_path / "x.so")
    (tmp_path / "a.cc").write_text(KERNELS)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        tp.library.build_module(None, tmp_path / "a.cc", output=tmp_path / "no" / "x.so")
    (tmp_path / "a.cc").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="expected UTF-8"):
        tp.library.build_module(None, tmp_path / "a.cc", output=tmp_path / "x.so")


def test_what_nothing_guards_is_warned_of(folder: Folder) -> None:
    kernel = "void f(tvm::ffi::TensorView x) { ((char*)(void*)x.data_ptr())[0] = 1; }"
    with pytest.warns(UserWarning, match=r"\[omod::f\] no dtype guard on 'x'"):
        folder.build("- op: omod::f(Tensor(a!) x) -> ()\n", kernel)


def test_a_failed_build_leaves_the_old_library(folder: Folder) -> None:
    ops = "- op: omod::up(Tensor x) -> Tensor\n"
    file = folder.build(ops, unary("up", "x[i] + 1"))
    before = file.read_bytes()
    with pytest.raises(cpp_jit.BuildError):
        folder.build(ops, unary("up", "y"))
    assert file.read_bytes() == before
    assert sorted(p.name for p in folder.path.iterdir()) == ["a.cc", "libmade.so", "ops.yaml"]


def test_the_same_build_is_the_same_file(folder: Folder) -> None:
    ops = "- op: omod::up(Tensor x) -> Tensor\n"
    first = folder.build(ops, unary("up", "x[i] + 1")).read_bytes()
    assert folder.build(ops, unary("up", "x[i] + 1")).read_bytes() == first


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Blocked())
from tensorplay.library.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("missing", "status", "said"), [("yaml", 1, "needs the package yaml"), ("IPython", 0, "")]
)
def test_the_command_without_a_package(folder: Folder, missing, status, said) -> None:
    folder.build("- op: omod::up(Tensor x) -> Tensor\n", unary("up", "x[i] + 1"))
    words = ["build", "ops.yaml", "a.cc", "-o", "x.so"]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, missing, *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder.path,
    )
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_says_what_is_wrong_in_a_line(folder: Folder) -> None:
    folder.build("- op: omod::up(Tensor x) -> Tensor\n", unary("up", "x[i] + 1"))
    (folder.path / "ops.yaml").write_text("- op: omod::op(Tensor x) -> Tensor\n")
    for words, said in (
        (["ops.yaml", "a.cc"], "ops.yaml:1: error: [omod::op] no C++ function 'op'"),
        (["ops.yaml", "ops.yaml"], "expected one file of declarations"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "tensorplay.library", "build", *words, "-o", "x.so"],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder.path,
        )
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_an_output_never_overwrites_an_input(tmp_path: Path) -> None:
    declarations, kernels = tmp_path / "o.yaml", tmp_path / "k.cc"
    declarations.write_text(OPS)
    kernels.write_text(KERNELS)
    for output in (kernels, declarations, tmp_path / "." / "k.cc"):
        with pytest.raises(ValueError, match="is an input and would be overwritten"):
            tp.library.build_module(declarations, kernels, output=output)
    with pytest.raises(ValueError, match="expected a file, got the folder"):
        tp.library.build_module(declarations, kernels, output=tmp_path)
    assert kernels.read_text() == KERNELS
    assert declarations.read_text() == OPS
