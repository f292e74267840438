"""The wheel has all that a cell needs: used from a folder of its own, away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.library.modules.environments import BUILD_WHEEL, project_wheel

ROOT = Path(__file__).resolve().parents[1]

USE = '''
import sys
# An editable install puts a finder before PYTHONPATH.
sys.meta_path[:] = [f for f in sys.meta_path if "_editable_" not in type(f).__module__]
import tensorplay as tp, tpkernel
folder = sys.argv[1]
assert tp.__file__.startswith(folder), tp.__file__
assert tpkernel.__file__.startswith(folder), tpkernel.__file__
report = tpkernel.build("""/*---
op: wheel::triple(Tensor x) -> Tensor
derivatives:
  x: 3 * grad
---*/
template <typename T>
void triple(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = 3 * x[i];
}
""")
triple = tp.library.get_op("wheel::triple")
print(triple(tp.tensor([1.0, 2.0])).numpy().tolist())
'''


@pytest.fixture(scope="module")
def unpacked(cache_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(project_wheel(cache_folder)) as archive:
        archive.extractall(folder)
    return folder


def test_wheel_holds_every_file_of_the_packages(unpacked: Path) -> None:
    for folder in (ROOT / "tensorplay", ROOT / "magics" / "tpkernel"):
        kept = {
            path.relative_to(folder.parent)
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert {path for path in kept if not (unpacked / path).is_file()} == set()


def test_wheel_without_a_compiler_holds_no_extension(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUILD_WHEEL, str(tmp_path)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "CXX": "/bin/false"},
    )
    assert done.returncode == 0, done.stderr
    assert "was not built" in done.stdout
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "tensorplay/_native/__init__.py" in names
    assert [n for n in names if n.endswith("labextensions/tpkernel/package.json")]
    assert not [n for n in names if n.endswith((".so", ".dylib", ".pyd"))]


def test_wheel_with_a_compiler_holds_the_extension(unpacked: Path) -> None:
    assert list(unpacked.glob("tensorplay/_native/_core*"))


def test_wheel_puts_the_extension_where_jupyterlab_looks(unpacked: Path) -> None:
    (data,) = unpacked.glob("*.data/data/share/jupyter/labextensions/tpkernel")
    source = ROOT / "magics" / "tpkernel" / "labextension"
    for file in (f for f in source.rglob("*") if f.is_file()):
        assert (data / file.relative_to(source)).read_bytes() == file.read_bytes()


def test_wheel_holds_what_is_no_python(unpacked: Path) -> None:
    for pattern in (
        *("tensorplay/py.typed", "tpkernel/py.typed"),
        *("tensorplay/include/tensorplay/kernel.h", "tensorplay/utils/cpp_jit/runtime/*.cpp"),
        "tensorplay/utils/cpp_jit/runtime/*.h",
        *("tpkernel/**/*.js", "tpkernel/**/*.css"),
        *("*.dist-info/licenses/LICENSE",),
    ):
        assert list(unpacked.glob(pattern)), pattern


@pytest.mark.slow
def test_cell_builds_from_the_wheel_alone(unpacked: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", USE, str(unpacked)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("[3.0, 6.0]")
