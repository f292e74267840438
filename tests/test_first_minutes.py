"""A first cell on machines that lack something: it works, or one sentence says what to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("IPython")

ROOT = Path(__file__).resolve().parents[1]
CELL = '''
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "tensorplay")
result = shell.run_cell("""%%tpkernel
/*---
op: minutes::twice(Tensor x) -> Tensor
---*/
template <typename T>
void twice(tp::In<T> x, tp::Out<T> out) {
  for (int64_t i = 0; i < x.numel(); ++i) out[i] = 2 * x[i];
}
""")
error = result.error_before_exec or result.error_in_exec
if error is None:
    result = shell.run_cell("import tensorplay as tp; twice(tp.ones(2)).tolist()")
print("\\nSAID", result.result if error is None else f"{type(error).__name__}: {error}")
'''
WORKS = "[2.0, 2.0]"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ to hide")


def first_cell(
    cwd: Path, *missing: str, path: str = os.defpath, start: tuple[str, ...] = (), **variables: str
) -> tuple[str, str]:
    """Run a cell with no variables but these; return what it says and all that was printed."""
    env = {"PATH": path, "LANG": "C.UTF-8", "NO_COLOR": "1"}
    env["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'magics'}"
    done = subprocess.run(
        [*start, sys.executable, "-c", CELL, *missing],
        cwd=cwd,
        env=env | {"HOME": str(cwd)} | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.rpartition("\nSAID ")[2].strip(), done.stdout + done.stderr


def test_without_a_compiler_the_command_that_brings_one(tmp_path: Path) -> None:
    if (Path(sys.executable).parent / "g++").exists():
        pytest.skip("this environment brings its own compiler, which is found without PATH")
    said, _ = first_cell(tmp_path, path=str(tmp_path))
    assert said.startswith("MissingToolError: no C++ compiler: expected one of g++, clang++")
    assert "apt-get install g++" in said
    assert len(said.splitlines()) < 6


@needs_compiler
def test_an_old_compiler_is_named_with_what_is_needed(tmp_path: Path) -> None:
    old = tmp_path / "g++"
    old.write_text(
        "#!/bin/sh\n"
        'case "$*" in *c++17*) echo "unrecognized option -std=c++17" >&2; exit 1;; esac\n'
        "case \"$1\" in --version) echo 'g++ (GCC) 4.8.5'; exit 0;; esac\n"
        f'exec {shutil.which("g++")} "$@"\n'
    )
    old.chmod(0o755)
    said, _ = first_cell(tmp_path, path=f"{tmp_path}:{os.defpath}")
    assert re.match(r"\w+Error: .*/g\+\+ ", said)
    assert said.count("\n") == 0
    assert "Set CXX to another compiler (g++ 9 or clang 10, or newer)" in said


@needs_compiler
@pytest.mark.slow
def test_a_folder_with_a_space_and_an_accent(tmp_path: Path) -> None:
    folder = tmp_path / "un dossier é"
    folder.mkdir()
    assert first_cell(folder)[0] == WORKS


@needs_compiler
@pytest.mark.slow
def test_without_jupyterlab_and_with_a_proxy_that_leads_nowhere(tmp_path: Path) -> None:
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    said, _ = first_cell(tmp_path, "jupyterlab", "jupyter_server", "notebook", **nowhere)
    assert said == WORKS


@needs_compiler
@pytest.mark.slow
def test_a_home_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    start: tuple[str, ...] = ()
    if os.geteuid() == 0:  # root without its powers is a user like others
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv, to run without the powers of root")
        start = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    said, printed = first_cell(tmp_path, start=start, HOME=str(home))
    assert said == WORKS
    assert "cannot be written to" in printed
    assert "Set TENSORPLAY_CACHE_DIR to another folder." in printed
    assert list(home.iterdir()) == []
