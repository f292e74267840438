"""A first cell on machines that lack something: it works, or one sentence says what to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplay.utils.cpp_jit import toolchain

pytest.importorskip("IPython")

ROOT = Path(__file__).resolve().parents[1]
CELL = '''
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # None: as if they were not installed
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
else:
    print("BLOCKED", shell.run_cell("twice(1)").error_in_exec)
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
    said, printed = first_cell(tmp_path, path=f"{tmp_path}:{tmp_path}")
    assert said.startswith("MissingToolError: no C++ compiler: expected one of g++, clang++")
    assert said.splitlines()[0].count(str(tmp_path)) == 1
    assert re.search(
        r"^BLOCKED 'twice' is .*\. Fix that cell and run it again\.$", printed, re.MULTILINE
    )
    assert "apt-get install g++" in said
    assert len(said.splitlines()) < 6


@pytest.fixture
def old_compiler(tmp_path: Path) -> str:
    """Return a PATH on which g++ is one that knows no C++17 and says that it is 4.8.5."""
    program = tmp_path / "old" / "g++"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f"real={shutil.which('g++')}\n"
        'case "$*" in\n'
        '  *c++17*) echo "unrecognized option -std=c++17" >&2; exit 1 ;;\n'
        "  -dumpversion) echo 4.8.5; exit 0 ;;\n"
        '  *-dM*) "$real" "$@" 2>&1 |\n'
        """    sed 's/__VERSION__ ".*"/__VERSION__ "4.8.5"/'; exit 0 ;;\n"""
        "esac\n"
        'exec "$real" "$@"\n'
    )
    program.chmod(0o755)
    return f"{program.parent}:{os.defpath}"


@needs_compiler
def test_an_old_compiler_is_named_with_the_command_that_brings_another(
    tmp_path: Path, old_compiler: str
) -> None:
    said, printed = first_cell(tmp_path, "ziglang", path=old_compiler)
    sentence, command = said.splitlines()
    assert re.match(
        r"BuildError: \S+/g\+\+ \(gcc 4\.8\.5\) is too old for kernels: they need g\+\+ 9 or clang "
        r"10, or newer\. Install one that is found by itself and run the cell again:$",
        sentence,
    )
    assert command.strip().startswith("pip install ziglang")
    assert "or newer. Fix that cell and run it again." in printed


@needs_compiler
def test_an_old_compiler_that_cxx_names_is_told_with_the_variable(
    tmp_path: Path, old_compiler: str
) -> None:
    said, _ = first_cell(tmp_path, path=old_compiler, CXX="g++")
    assert said.endswith(
        "which CXX names, is too old for kernels: they need g++ 9 or clang 10, "
        "or newer. Set CXX to one of those, or unset it."
    )
    assert said.count("\n") == 0


@needs_compiler
def test_the_command_for_an_old_compiler_is_enough(
    old_compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = toolchain.Compiler((sys.executable, "-m", "ziglang", "c++"), "ziglang")
    real = toolchain.compiler_of((str(shutil.which("g++")),))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain, "_zig", lambda: bundled)
    assert toolchain.find_compiler() == real  # one that is young enough is not replaced
    monkeypatch.setenv("PATH", old_compiler)
    assert toolchain.find_compiler() == bundled
    monkeypatch.setenv("CXX", "g++")
    assert toolchain.find_compiler() != bundled


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


@needs_compiler
@pytest.mark.slow
def test_without_any_network(tmp_path: Path) -> None:
    start = ("unshare", "--net", "--map-root-user")
    if subprocess.run([*start, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare --net, to run without a network")
    assert first_cell(tmp_path, start=start)[0] == WORKS
