"""A first cell on machines that lack something: it works, or one sentence says what to do."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tensorplay.utils.cpp_jit import toolchain
from tpkernel import launch

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


def python_path(*before: Path) -> str:
    """Return a PYTHONPATH with the packages, after what the tests themselves were started with."""
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(map(str, (*before, *inherited, ROOT, ROOT / "magics")))


def first_cell(
    cwd: Path, *missing: str, path: str = os.defpath, start: tuple[str, ...] = (), **variables: str
) -> tuple[str, str]:
    """Run a cell with no variables but these; return what it says and all that was printed."""
    env = {"PATH": path, "LANG": "C.UTF-8", "NO_COLOR": "1"}
    env["PYTHONPATH"] = python_path()
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


def as_plain_user() -> tuple[str, ...]:
    """Return the words before a command that make root a user like others."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, to run without the powers of root")
    return ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


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
    said, printed = first_cell(tmp_path, start=as_plain_user(), HOME=str(home))
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


STANDS_IN = """
import json, os, sys
print(json.dumps({"arguments": sys.argv[1:], "variables": dict(os.environ)}))
"""


@pytest.fixture
def instead_of_jupyterlab(tmp_path: Path) -> str:
    """Return a PYTHONPATH on which JupyterLab is a program that says how it was started."""
    program = tmp_path / "site" / "jupyterlab" / "__main__.py"
    program.parent.mkdir(parents=True)
    program.write_text(STANDS_IN)
    (program.parent / "__init__.py").touch()
    return python_path(program.parents[1])


def launched(
    *arguments: str, start: tuple[str, ...] = (), **variables: str
) -> tuple[dict[str, Any], str]:
    """Run ``tpkernel-lab``; return what stands in for JupyterLab says, and what was written."""
    done = subprocess.run(
        [*start, sys.executable, "-m", "tpkernel.launch", *arguments],
        env={"PATH": os.defpath, "LANG": "C.UTF-8"} | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout), done.stderr


@needs_compiler
def test_the_start_command_is_jupyterlab_where_nothing_is_in_the_way(
    tmp_path: Path, instead_of_jupyterlab: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    variables = {"HOME": str(home), "PYTHONPATH": instead_of_jupyterlab}
    answer, said = launched("a b.ipynb", "--no-browser", "--allow-root", **variables)
    assert answer["arguments"] == ["a b.ipynb", "--no-browser", "--allow-root"]
    assert answer["variables"].items() >= variables.items()
    assert "JUPYTER_CONFIG_DIR" not in answer["variables"]
    assert said == ""
    assert list(home.iterdir()) == []
    answer, said = launched(**variables)
    is_root = os.geteuid() == 0
    assert answer["arguments"] == ["--allow-root"] * is_root
    assert said == "tpkernel-lab: started as root, so Jupyter gets --allow-root.\n" * is_root


@needs_compiler
@pytest.mark.parametrize("name", ["home", "none/at/all"])
def test_what_jupyter_writes_goes_elsewhere_where_home_cannot_be_written_to(
    tmp_path: Path, instead_of_jupyterlab: str, name: str
) -> None:
    closed = tmp_path / "closed"
    (closed / "home").mkdir(parents=True)
    for folder in (closed / "home", closed):
        folder.chmod(0o555)
    own = tmp_path / "own"
    answer, said = launched(
        "--allow-root",
        start=as_plain_user(),
        HOME=str(closed / name),
        TMPDIR=str(tmp_path),
        IPYTHONDIR=str(own),
        PYTHONPATH=instead_of_jupyterlab,
    )
    (fresh,) = tmp_path.glob("tpkernel-lab-*")
    moved = {key for key, value in answer["variables"].items() if value.startswith(str(fresh))}
    assert moved == {
        *("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"),
        *("MPLCONFIGDIR", "XDG_CACHE_HOME"),
    }
    assert answer["variables"]["IPYTHONDIR"] == str(own)
    assert said == (
        f"tpkernel-lab: {closed / name / '.jupyter'} cannot be written to, so settings, history "
        f"and builds go to {fresh}. To keep them, set HOME to a folder of yours.\n"
    )


def test_jupyterlab_starts_without_a_compiler_and_the_command_is_said(
    tmp_path: Path, instead_of_jupyterlab: str
) -> None:
    nowhere = {"PATH": str(tmp_path), "PYTHONPATH": instead_of_jupyterlab, "HOME": str(tmp_path)}
    if (Path(sys.executable).parent / "g++").exists():
        pytest.skip("this environment brings its own compiler, which is found without PATH")
    answer, said = launched("--allow-root", **nowhere)
    assert answer["arguments"] == ["--allow-root"]
    install = shlex.join([sys.executable, "-m", "pip", "install", "ziglang"])
    assert said == (
        "tpkernel-lab: no C++ compiler: expected one of g++, clang++, c++. JupyterLab starts all "
        f"the same; for cells of C++ write sudo apt-get install g++, or {install}.\n"
    )


def test_without_jupyterlab_the_start_command_ends_in_the_command_that_brings_it() -> None:
    code = "import sys; sys.modules['jupyterlab'] = None; from tpkernel import launch; "
    done = subprocess.run(
        [sys.executable, "-c", code + "launch.main(['a.ipynb'])"],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    install = [sys.executable, "-m", "pip", "install", "tensorplay-workbench[notebook]"]
    assert done.returncode == 1
    assert done.stderr == (
        f"tpkernel-lab: this Python lacks jupyterlab. Write {shlex.join(install)}\n"
    )


def test_the_start_command_looks_for_each_package_of_its_extra() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = [
        re.search(rf"^{extra} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
        for extra in ("notebook", "build", "jit")
    ]
    named = [name for extra in extras if extra for name in re.findall(r'"([\w-]+)>=', extra[1])]
    modules = {"apache-tvm-ffi": "tvm_ffi", "PyYAML": "yaml", "ipython": "IPython"}
    assert {modules.get(name, name.lower().replace("-", "_")) for name in named} == set(
        launch._NEEDED
    )


@pytest.mark.slow
def test_jupyterlab_itself_answers_where_home_cannot_be_written_to(tmp_path: Path) -> None:
    pytest.importorskip("jupyterlab")
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    (tmp_path / "a.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4}')
    env = {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": str(home), "TMPDIR": str(tmp_path)}
    env["PYTHONPATH"] = python_path()
    log = tmp_path / "log"
    with log.open("wb") as written:
        server = subprocess.Popen(
            [*as_plain_user(), sys.executable, "-m", "tpkernel.launch", "--no-browser", "a.ipynb"],
            cwd=tmp_path,
            env=env,
            stdout=written,
            stderr=written,
        )
    try:
        end = time.monotonic() + 90
        found: list[Path] = []
        while not found and server.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
            found = list(tmp_path.glob("tpkernel-lab-*/jupyter_runtime_dir/jpserver-*.json"))
        assert found, log.read_text(errors="replace")
    finally:
        server.terminate()
        server.wait(timeout=30)
    assert list(home.iterdir()) == []
