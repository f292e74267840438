"""Libraries of operators register completely, or not at all."""

from __future__ import annotations

import ctypes.util
import importlib
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import tensorplay as tp
from tensorplay.library import registry
from tensorplay.library.modules import artifact
from tensorplay.ops import NAMESPACES
from tensorplay.utils import cpp_jit
from tests.library.modules.texts import KERNELS, OPS, SCALE

NEWCOMER = """
import os, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"IPython", "ipywidgets", "yaml", "tree_sitter", "tpkernel"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import tensorplay as tp
m = tp.library.load(sys.argv[1])
x = tp.randn(3, 4, dtype=tp.float64, requires_grad=True)
w = tp.randn(3, 4, dtype=tp.float64, requires_grad=True)
m.softplus(x, beta=2.0).sum().backward()
tp.testing.assert_close(x.grad, tp.sigmoid(2.0 * x.detach()))
tp.testing.assert_close(tp.ops.omod.softplus(x), tp.log1p(tp.exp(x)))
for call, inputs in ((m.softplus, (x,)), (m.multiply, (x, w)), (m.mm, (x, w.detach().T)),
                     (m.square, (x,))):
    assert tp.autograd.gradcheck(call, inputs)
meta = m.mm(x.detach().to("meta"), tp.ones(4, 5, dtype=tp.float64, device="meta"))
assert meta.is_meta and tuple(meta.shape) == (3, 5) and meta.dtype == tp.float64
assert m.softplus.__doc__ == "log(1 + exp(beta * x)) / beta"
assert str(m.softplus.__signature__) == "(x, beta=1.0)"
for shown in ("softplus", "float32 or float64", "grad @ w.T", "multiply_backward"):
    assert shown in m.__doc__, shown
"""


def names() -> set[str]:
    """Return what is registered."""
    return set(registry._REGISTRY)


def scale(folder: Path, factor: int, name: str = "libscale.so") -> Path:
    """Build an operator that multiplies by a factor."""
    source = folder / "scale.cc"
    source.write_text(SCALE.replace("FACTOR", str(factor)))
    return tp.library.build_module(None, source, output=folder / name)


def refused(file: Path, *words: str, kind: type[Exception] = RuntimeError) -> str:
    """Load a file that cannot be, and see that nothing was registered."""
    before = names(), set(NAMESPACES)
    with pytest.raises(kind) as caught:
        tp.library.load(file)
    assert (names(), set(NAMESPACES)) == before
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return str(caught.value)


def test_a_newcomer_without_a_compiler_has_complete_operators(built: Path, tmp_path: Path) -> None:
    copy = shutil.copy(built, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", NEWCOMER, str(copy)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PATH": "", "CXX": "", "HOME": str(tmp_path / "nowhere")},
    )
    assert done.returncode == 0, done.stderr


def test_the_object_shows_its_operators(built: Path) -> None:
    module = tp.library.load(built)
    assert list(module) == ["softplus", "multiply", "mm", "square"]
    assert len(module) == 4
    assert {"softplus", "mm"} <= set(dir(module))
    assert module["mm"] is module.mm is tp.ops.omod.mm is tp.library.get_op("omod::mm")
    assert module.__file__ == str(built)
    assert repr(module) == "<operator module 'myops': softplus, multiply, mm, square>"
    with pytest.raises(AttributeError, match="did you mean 'softplus'"):
        module.sofplus  # noqa: B018  (the access is what is tested)
    with pytest.raises(KeyError):
        module["twice"]  # a helper of the gradient
    assert inspect.signature(module.softplus).parameters["beta"].default == 1.0


def test_guards_stand_before_kernels(built: Path) -> None:
    module = tp.library.load(built)
    with pytest.raises(TypeError, match=r"\[omod::softplus\] argument 'x': expected float32 or"):
        module.softplus(tp.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"\[omod::mm\] argument 'w'"):
        module.mm(tp.ones(2, 3), tp.ones(4, 5))
    with pytest.raises(TypeError, match="argument 'x': expected Tensor, got int"):
        module.softplus(3)
    x = tp.ones(2, dtype=tp.float64, requires_grad=True)
    (grad,) = tp.autograd.grad(module.multiply(x, x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="multiply_backward"):
        tp.autograd.grad(grad.sum(), x)


def test_loading_twice_gives_the_same_and_another_path_is_another_owner(
    built: Path, tmp_path: Path
) -> None:
    module = tp.library.load(built)
    assert tp.library.load(str(built)) is module
    link = tmp_path / "link.so"
    link.symlink_to(built)
    assert tp.library.load(link) is module
    copy = Path(shutil.copy(built, tmp_path / "copy.so"))
    refused(copy, "omod::softplus is already defined", str(built), "remove(")
    assert tp.ops.omod.softplus is module.softplus
    tp.library.remove("omod::softplus")
    refused(copy, "omod::multiply is already defined")
    assert not tp.library.has_op("omod::softplus")
    assert tp.library.load(built).softplus(tp.zeros(1)).tolist() == pytest.approx([0.6931472])


def test_an_operator_of_the_session_is_not_replaced(tmp_path: Path) -> None:
    @tp.library.custom_op("omod::scale", mutates_args=())
    def scale_here(x: tp.Tensor) -> tp.Tensor:
        return x + 0

    file = scale(tmp_path, 2)
    refused(file, "nothing was registered", "omod::scale is already defined", "scale_here")
    assert tp.ops.omod.scale is scale_here


def test_a_rebuilt_file_replaces_and_old_handles_keep_working(tmp_path: Path) -> None:
    file = scale(tmp_path, 2)
    first = tp.library.load(file)
    x = tp.ones(2, requires_grad=True)
    waiting = first.scale(x)
    assert scale(tmp_path, 3) == file
    second = tp.library.load(file)
    assert tp.ops.omod.scale is second.scale is not first.scale
    assert first.scale(tp.ones(2)).tolist() == [2.0, 2.0]
    assert second.scale(tp.ones(2)).tolist() == [3.0, 3.0]
    waiting.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    source = tmp_path / "scale.cc"
    source.write_text(source.read_text().replace("scale", "renamed"))
    tp.library.build_module(None, source, output=file)
    assert tp.library.load(file).renamed(tp.ones(1)).tolist() == [3.0]
    assert not tp.library.has_op("omod::scale")
    assert second.scale(tp.ones(1)).tolist() == [3.0]


def test_a_damaged_rebuild_leaves_what_was_loaded(tmp_path: Path) -> None:
    file = scale(tmp_path, 2)
    module = tp.library.load(file)
    file.write_bytes(file.read_bytes()[:-100])
    refused(file, "is damaged")
    assert tp.ops.omod.scale is module.scale
    assert module.scale(tp.ones(1)).tolist() == [2.0]


def test_a_failure_halfway_registers_nothing(tmp_path: Path, monkeypatch) -> None:
    entry = "- func: {}(Tensor x) -> Tensor\n  dispatch: {{}}\n"
    (tmp_path / "two.yaml").write_text(entry.format("omod::a") + entry.format("omodb::b"))
    file = tp.library.build_module(tmp_path / "two.yaml", output=tmp_path / "two.so")
    module = importlib.import_module("tensorplay.library.custom_op")
    real, made = registry.install, []

    def second_fails(*args, **kwargs):
        if made:
            message = "full"
            raise MemoryError(message)
        made.append(real(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(module, "install", second_fails)
    refused(file, "full", kind=MemoryError)
    assert made
    monkeypatch.setattr(module, "install", real)
    assert list(tp.library.load(file)) == ["a", "b"]


# -- damage ---------------------------------------------------------------------------------------


@pytest.fixture
def never_opened(monkeypatch) -> None:
    def opened(*args: object, **kwargs: object) -> None:
        pytest.fail("a damaged file reached the system's loader")

    monkeypatch.setattr(cpp_jit, "load_module", opened)


SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.usefixtures("never_opened")
@SETTINGS
@given(st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(built: Path, tmp_path: Path, share: float) -> None:
    content = built.read_bytes()
    file = tmp_path / "cut.so"
    file.write_bytes(content[: int(share * len(content))])
    assert "damaged" in refused(file)


@pytest.mark.usefixtures("never_opened")
@pytest.mark.parametrize("offset", [0, 8, 16, 20, 24, 32, 40, 71, 72, 100])
def test_a_file_that_ends_in_its_description_is_refused(
    built: Path, tmp_path: Path, offset: int
) -> None:
    content = built.read_bytes()
    file = tmp_path / "cut.so"
    file.write_bytes(content[: content.index(artifact.MAGIC) + offset])
    assert "damaged" in refused(file)


@pytest.mark.usefixtures("never_opened")
@SETTINGS
@given(st.data())
def test_a_flipped_bit_is_found(built: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(built.read_bytes())
    start = content.index(artifact.MAGIC)
    anywhere = st.integers(0, len(content) - 1)
    at = data.draw(anywhere | st.integers(start, start + 200))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    file = tmp_path / "flipped.so"
    file.write_bytes(content)
    refused(file, str(file))


@pytest.mark.usefixtures("never_opened")
def test_bytes_after_the_end_are_found(built: Path, tmp_path: Path) -> None:
    file = tmp_path / "long.so"
    file.write_bytes(built.read_bytes() + b"x")
    refused(file, "is damaged", "bytes")


@pytest.mark.usefixtures("never_opened")
def test_a_newer_format_says_what_to_install(built: Path, tmp_path: Path) -> None:
    content = bytearray(built.read_bytes())
    content[content.index(artifact.MAGIC) + 16] = artifact.FORMAT + 1
    file = tmp_path / "newer.so"
    file.write_bytes(artifact.seal(bytes(content)))
    refused(file, f"got format {artifact.FORMAT + 1}", "pip install --upgrade")


@pytest.mark.usefixtures("never_opened")
def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    found = ctypes.util.find_library("m")
    paths = [p for p in map(Path, ("/lib", "/usr/lib")) for p in p.glob(f"**/{found}")]
    if not paths:
        pytest.skip("there is no libm.so to try")
    refused(paths[0], "a library without a description")
    text = tmp_path / "text.so"
    text.write_text("not a library")
    refused(text, "a file without a description")
    text.write_bytes(b"")
    refused(text, "a file without a description")
    with pytest.raises(FileNotFoundError):
        tp.library.load(tmp_path / "nowhere.so")
    with pytest.raises(IsADirectoryError):
        tp.library.load(tmp_path)


def resealed(built: Path, file: Path, old: bytes, new: bytes) -> Path:
    """Change the description to one of the same length, with a checksum that fits."""
    content = built.read_bytes()
    assert len(old) == len(new)
    assert old in content
    file.write_bytes(artifact.seal(content.replace(old, new)))
    return file


@pytest.mark.usefixtures("never_opened")
def test_a_library_for_another_platform_names_both(built: Path, tmp_path: Path) -> None:
    here = artifact.this_platform().encode()
    other = here[:-1] + b"?"
    file = resealed(built, tmp_path / "other.so", here, other)
    refused(file, f"for {here.decode()}", f"for {other.decode()}", "wheel")


@pytest.mark.usefixtures("never_opened")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"copies":false', b'"copies":"yes"'),
        (b'"helper":false', b'"helpex":false'),
        (b'"rank":null', b'"rank":"-9"'),
        (b'"kind":"tensor"', b'"kind":"sensor"'),
        (b'"operators":[', b'"operatorz":['),
    ],
)
def test_a_description_of_wrong_types_is_refused(
    built: Path, tmp_path: Path, old: bytes, new: bytes
) -> None:
    refused(resealed(built, tmp_path / "odd.so", old, new), "description cannot be used")


def test_a_function_of_a_formula_that_this_version_lacks(built: Path, tmp_path: Path) -> None:
    file = resealed(built, tmp_path / "new.so", b"tp.sigmoid(", b"tp.sigmoix(")
    refused(file, "needs tensorplay.sigmoix")


def test_a_missing_symbol_is_found_before_anything_is_registered(
    built: Path, tmp_path: Path
) -> None:
    old, new = b'"name":"square","results":[],"returns"', b'"name":"squarx","results":[],"returns"'
    file = resealed(built, tmp_path / "symbol.so", old, new)
    refused(file, "has no function 'squarx'")


def test_what_the_loader_of_the_system_refuses_is_explained(built: Path, tmp_path: Path) -> None:
    content = bytearray(built.read_bytes())
    content[4] ^= 3  # 32 bits instead of 64
    file = tmp_path / "class.so"
    file.write_bytes(artifact.seal(bytes(content)))
    refused(file, "loader refuses it", artifact.this_platform())


def test_seal_renews_the_checksum_after_a_tool(built: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(built, tmp_path / "libstripped.so"))
    if shutil.which("strip") is None:
        pytest.skip("there is no strip")
    subprocess.run(["strip", "--strip-debug", str(file)], check=True)
    file.write_bytes(file.read_bytes() + b"\0")
    refused(file, "damaged")
    command = [sys.executable, "-m", "tensorplay.library"]
    subprocess.run([*command, "seal", str(file)], check=True)
    assert tp.library.load(file).square(tp.ones(1) * 3).tolist() == [9.0]
    shown = subprocess.run(
        [*command, "show", str(file)], check=True, capture_output=True, text=True
    )
    assert "omod::mm(Tensor x, Tensor w) -> Tensor" in shown.stdout
    failed = subprocess.run(
        [*command, "show", __file__], check=False, capture_output=True, text=True
    )
    assert failed.returncode == 1
    assert "without a description" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_two_threads_load_one_file(built: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: tp.library.load(built), range(8)))
    x = tp.ones(2)
    assert len({id(m) for m in loaded}) == 1
    assert tp.ops.omod.square is loaded[0].square
    assert loaded[0].square(x).tolist() == [1.0, 1.0]


def other_python() -> str | None:
    """Return a Python of another minor version that has the engine, if one is at hand."""
    named = os.environ.get("TENSORPLAY_OTHER_PYTHON")
    versions = [f"python3.{n}" for n in range(10, 16) if n != sys.version_info.minor]
    for found in [named] if named else filter(None, map(shutil.which, versions)):
        code = "import sys, numpy, ml_dtypes, tvm_ffi; print(sys.version_info.minor)"
        done = subprocess.run([found, "-c", code], check=False, capture_output=True, text=True)
        if done.stdout.strip() not in ("", str(sys.version_info.minor)):
            return found
    return None


def test_another_python_version_loads_the_same_file(built: Path, tmp_path: Path) -> None:
    python = other_python()
    if python is None:
        pytest.skip("no Python of another minor version with the engine is at hand")
    root = str(Path(tp.__file__).parents[1])
    done = subprocess.run(
        [python, "-c", NEWCOMER, str(built)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": root, "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr


def test_the_texts_are_those_of_the_library(built: Path) -> None:
    content = built.read_bytes()
    description = artifact.parse(content, built)
    assert [o.opname for o in description.operators if not o.helper] == list(tp.library.load(built))
    assert len(description.made.sources) == 2
    assert b'"guards":{' in content  # for whoever reads the JSON
    assert OPS.count("- op:") == 4
    assert KERNELS.count("template") == 6
