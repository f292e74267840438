"""The API reference builds without a warning, and no public name is missing from it."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Those whose ``__all__`` is what users may rely on. A name that two of them show stands in one.
MODULES = (
    *("tensorplay", "tensorplay.autograd", "tensorplay.autograd.functional"),
    *("tensorplay.autograd.forward_ad", "tensorplay.autograd.graph"),
    *("tensorplay.autograd.gradcheck", "tensorplay.compiler", "tensorplay.fft", "tensorplay.func"),
    *("tensorplay.graph", "tensorplay.library", "tensorplay.linalg", "tensorplay.nn"),
    *("tensorplay.nn.functional", "tensorplay.nn.init", "tensorplay.nn.utils", "tensorplay.optim"),
    *("tensorplay.optim.lr_scheduler", "tensorplay.overrides", "tensorplay.random"),
    *("tensorplay.serialization", "tensorplay.testing", "tensorplay.utils.cpp_jit"),
    *("tensorplay.utils.data", "tensorplay.utils.dlpack", "tpkernel"),
)
# Names that stand in the reference as those of another module, where the object is the same.
ELSEWHERE = {
    "tensorplay.autograd": "tensorplay",
    "tensorplay.autograd.gradcheck": "tensorplay.autograd",
    "tensorplay.compiler": "tensorplay.graph",
}


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    if any(importlib.util.find_spec(name) is None for name in ("sphinx", "numpydoc", "furo")):
        pytest.skip("needs the extra docs: pip install --editable '.[docs]'")
    from sphinx.util.inventory import InventoryFile

    folder = tmp_path_factory.mktemp("reference")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs/reference", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with (folder / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: path)
    return {name for kind, items in inventory.items() if kind[:3] == "py:" for name in items}


@pytest.mark.long
@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_entry(module: str, documented: set[str]) -> None:
    names = importlib.import_module(module).__all__
    other = ELSEWHERE.get(module, module)
    missing = {n for n in names if not {f"{module}.{n}", f"{other}.{n}"} & documented}
    assert missing == set()


@pytest.mark.long
def test_every_public_method_of_tensors_has_an_entry(documented: set[str]) -> None:
    import tensorplay

    methods = {name for name in dir(tensorplay.Tensor) if not name.startswith("_")}
    assert {n for n in methods if f"tensorplay.Tensor.{n}" not in documented} == set()


def test_each_name_said_to_be_elsewhere_is_the_same_object() -> None:
    for module, other in ELSEWHERE.items():
        here, there = importlib.import_module(module), importlib.import_module(other)
        shared = {
            name
            for name in set(here.__all__) & set(there.__all__)
            if not isinstance(getattr(here, name), ModuleType)
        }
        assert shared
        assert all(getattr(here, name) is getattr(there, name) for name in shared)
