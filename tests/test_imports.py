"""Imports point one way. Read from the source, so that imports inside functions count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"tensorplay": ROOT / "tensorplay", "tpkernel": ROOT / "magics" / "tpkernel"}

# What each part may import, most specific first; pyproject.toml has the same by extra.
RUNTIME = {"numpy", "ml_dtypes"}
ENGINE = RUNTIME | {"tvm_ffi", "filelock", "platformdirs", "ninja"}
NOTEBOOK = ENGINE | {
    *("IPython", "anywidget", "ipykernel", "ipywidgets", "traitlets"),
    # The first two come with ipywidgets and ipykernel; the others are asked for by their users.
    *("comm", "jupyter_core", "matplotlib", "nbconvert", "pandas"),
    *("pygments", "tree_sitter", "tree_sitter_cpp", "yaml"),
    "hatchling",  # which loads the hook that builds a package's operators
}
THIRD_PARTY = (
    # Unpack came to typing with 3.11; only type checkers read the import.
    ("tensorplay.utils.cpp_jit.inline", ENGINE | {"typing_extensions"}),
    ("tensorplay.utils", ENGINE),
    ("tensorplay._safetensors", RUNTIME | {"safetensors"}),
    # Memory of GPUs, where operators with CUDA kernels run.
    ("tensorplay.ops.elsewhere", RUNTIME | {"cupy"}),
    ("tpkernel.checks.devices", NOTEBOOK | {"cupy"}),
    ("tensorplay", RUNTIME | {"tvm_ffi"}),
    ("tpkernel", NOTEBOOK),
)


class Import(NamedTuple):
    """One imported module or name, in full."""

    importer: str
    target: str
    line: int
    function: str | None

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def module_name(package: str, file: Path) -> str:
    parts = (package, *file.relative_to(SOURCES[package]).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(name: str, source: str, *, is_package: bool = False) -> list[Import]:
    """Return every import of a module, relative ones resolved."""
    found: list[Import] = []

    def visit(node: ast.AST, function: str | None) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        elif isinstance(node, ast.Import):
            found.extend(Import(name, alias.name, node.lineno, function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = name.split(".")
            if node.level:
                base = base[: len(base) - node.level + is_package]
                prefix = ".".join([*base, node.module] if node.module else base)
            else:
                prefix = node.module or ""
            found.extend(
                Import(name, f"{prefix}.{alias.name}", node.lineno, function)
                for alias in node.names
            )
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(source), None)
    return found


def all_modules() -> dict[str, Path]:
    return {
        module_name(package, file): file
        for package, folder in SOURCES.items()
        for file in sorted(folder.rglob("*.py"))
    }


MODULES = all_modules()


def all_imports() -> Iterator[Import]:
    for name, file in MODULES.items():
        yield from imports_of(name, file.read_text(), is_package=file.name == "__init__.py")


def imported_module(target: str) -> str:
    """Return the module of ours that an import names: the target, or what holds it."""
    return target if target in MODULES else target.rpartition(".")[0]


def is_within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def test_both_packages_are_read() -> None:
    assert {"tensorplay", "tensorplay._tensor", "tpkernel", "tpkernel.lab"} <= MODULES.keys()
    assert sum(1 for _ in all_imports()) > len(MODULES)


def test_reader_resolves_relative_imports() -> None:
    source = "from . import b\nfrom ..c import d\ndef f():\n    import e.g\n"
    assert [(i.target, i.function) for i in imports_of("p.q.a", source)] == [
        ("p.q.b", None),
        ("p.c.d", None),
        ("e.g", "f"),
    ]
    assert [i.target for i in imports_of("p.q", "from . import b", is_package=True)] == ["p.q.b"]


# From the bottom up. The first entry that holds a module counts, so that a family is what is left
# of ops; a package's name stands for what is left of it. Each module must have its place.
LAYERS: tuple[dict[str, set[str]], ...] = (
    {
        "tensorplay": {
            "_dtype",
            "_detours",
            "_draws",
            "_device",
            "_layout",
            "_methods",
            "_native",
            "_quiet",
        }
    },
    {"tensorplay": {"_config"}},
    {"tensorplay": {"_memory", "_tensor", "_printing"}},
    {
        "tensorplay.autograd": {
            "anomaly_mode",
            "batched",
            "engine",
            "forward_ad",
            "function",
            "function_batching",
            "function_context",
            "grad_mode",
            "graph",
            "inplace",
            "saved_tensors",
        }
    },
    {
        "tensorplay": {"_dlpack"},
        "tensorplay.ops": {
            "primitive",
            "node",
            "quick",
            "operator",
            "dispatch",
            "special",
            "writer",
            "schema",
            "arguments",
            "tangents",
            "array_rules",
            "late",
            "dims",
            "documentation",
            "elsewhere",
            "nesting",
        },
    },
    {"tensorplay.utils": {"cpp_jit", "dlpack"}},
    {"tensorplay": {"_conversion"}},
    {"tensorplay": {"_creation", "random"}},
    {"tensorplay": {"testing"}},
    {"tensorplay": {"ops"}},
    {"tensorplay.autograd": {"backward"}},
    {"tensorplay.autograd": {"functional", "gradcheck"}},
    {"tensorplay": {"library", "func", "fft", "linalg", "_functions", "_grids", "overrides"}},
    {"tensorplay": {"serialization", "_safetensors", "_numpy_functions", "_array_api_fft"}},
    {"tensorplay": {"_numpy_protocol"}},
    {"tensorplay.utils": {"data"}},
    {"tensorplay.nn": {"parameter", "members"}},
    {"tensorplay.nn": {"hooks", "state", "module"}},
    {"tensorplay.nn": {"activations", "losses"}},
    {"tensorplay.nn": {"functional", "init", "utils"}},
    {"tensorplay": {"nn"}},
    {"tensorplay": {"graph"}},
    {"tensorplay": {"compiler"}},
    {"tensorplay": {"optim"}},
)
# The packages' faces: they import what they show.
FACES = {"tensorplay", "tensorplay.autograd", "tensorplay.array_api", "tensorplay.utils"}
# Imports upwards that run when a function is called, each with its reason.
UPWARDS = {
    ("tensorplay.ops.primitive", "tensorplay.ops.batching"): "a call for the samples of vmap",
    ("tensorplay.random", "tensorplay.ops.batching"): "draws inside of vmap are stacked",
    ("tensorplay.library.opcheck.tracing", "tensorplay.compiler"): "an operator is compiled",
}


def layer(name: str) -> int | None:
    """Return the height of a module: the first layer that holds it, or what it lies in."""
    for height, members in enumerate(LAYERS):
        for package, modules in members.items():
            if is_within(name, *(f"{package}.{module}" for module in modules)):
                return height
    return None


def test_no_module_has_two_layers() -> None:
    named = [f"{p}.{m}" for members in LAYERS for p, modules in members.items() for m in modules]
    assert len(named) == len(set(named))


def test_every_layer_that_exists_is_named_right() -> None:
    future = {"graph", "compiler"}
    named = {
        f"{package}.{module}"
        for members in LAYERS
        for package, modules in members.items()
        for module in modules - future
    }
    assert named - MODULES.keys() == set()


def test_every_module_of_the_runtime_has_its_layer() -> None:
    placed = {name for name in MODULES if layer(name) is not None}
    assert {name for name in MODULES if is_within(name, "tensorplay")} - placed == FACES


def test_arrows_of_the_runtime_point_downwards() -> None:
    wrong, excused = [], set()
    for found in all_imports():
        target = imported_module(found.target)
        above, below = layer(found.importer), layer(target)
        if above is None or below is None or above >= below:
            continue
        if found.function is not None and (found.importer, target) in UPWARDS:
            excused.add((found.importer, target))
        else:
            wrong.append(str(found))
    assert wrong == []
    assert excused == UPWARDS.keys()


def test_engine_needs_only_dlpack_of_the_runtime() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if is_within(found.importer, "tensorplay.utils.cpp_jit", "tensorplay.utils.dlpack")
        and is_within(found.target, "tensorplay")
        and not is_within(
            found.target, "tensorplay.utils", "tensorplay._dlpack", "tensorplay._native"
        )
    ]
    assert wrong == []


def test_runtime_imports_the_workbench_only_to_load_the_extension_and_to_build_modules() -> None:
    from_runtime = [
        found
        for found in all_imports()
        if is_within(found.importer, "tensorplay") and is_within(found.target, "tpkernel")
    ]
    assert {(found.importer, found.function) for found in from_runtime} <= {
        ("tensorplay", "load_ipython_extension"),
        ("tensorplay", "unload_ipython_extension"),
        ("tensorplay.library.modules.building", "builder"),
    }


def test_workbench_uses_public_names_only() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if is_within(found.importer, "tpkernel")
        and is_within(found.target, "tensorplay")
        and any(part.startswith("_") for part in found.target.split("."))
    ]
    assert wrong == []


def test_third_party_imports_are_those_of_the_extra() -> None:
    wrong = []
    for found in all_imports():
        top = found.target.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in SOURCES:
            # The engine's own binary interface is imported where a kernel is called, too.
            admitted = next(names for part, names in THIRD_PARTY if is_within(found.importer, part))
            if top not in admitted:
                wrong.append(str(found))
    assert wrong == []


def test_no_module_imports_at_top_what_the_bare_runtime_lacks() -> None:
    """``import tensorplay`` works where only NumPy and ml_dtypes are installed."""
    code = (
        "import sys, tensorplay; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    loaded = set(done.stdout.split())
    assert "tensorplay" in loaded
    unwanted = {
        *("tpkernel", "tvm_ffi", "IPython", "ipywidgets", "anywidget", "tree_sitter", "yaml"),
        *("scipy", "torch", "zipfile", "concurrent"),  # what is not needed takes its time, too
    }
    assert loaded & unwanted == set()
