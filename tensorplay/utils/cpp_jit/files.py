"""Source trees: files compiled as they are, one after the other, and linked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import support, toolchain
from tensorplay.utils.cpp_jit.build import Build, common_inputs, find_or_build
from tensorplay.utils.cpp_jit.compile import Product, diagnostic_flags, link_arguments
from tensorplay.utils.cpp_jit.diagnostics import Diagnostic, Texts, parse, render
from tensorplay.utils.cpp_jit.errors import BuildError
from tensorplay.utils.cpp_jit.store import (
    FORMAT,
    Cache,
    cache_at,
    default_cache,
    digest,
    parse_dependencies,
)

_OBJECTS = frozenset({".o", ".obj", ".a"})


@dataclass(frozen=True)
class _Tree:
    name: str
    files: tuple[str, ...]
    cflags: tuple[str, ...]
    ldflags: tuple[str, ...]
    include_paths: tuple[str, ...]


def build_files(
    name: str,
    files: Sequence[str | os.PathLike[str]],
    *,
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str | os.PathLike[str]] | None = None,
    build_directory: str | os.PathLike[str] | None = None,
) -> Build:
    """Build C, C++ and object files into one library, or find it in the cache.

    Raises
    ------
    FileNotFoundError
        One of the files does not exist.
    BuildError
        One of them does not compile, or they do not link.
    """
    paths = tuple(str(Path(path).absolute()) for path in files)
    for path in paths:
        if not Path(path).is_file():
            raise FileNotFoundError(f"[cpp_jit] library {name!r}: there is no file {path}")
    tree = _Tree(
        name,
        paths,
        tuple(extra_cflags or ()),
        tuple(extra_ldflags or ()),
        tuple(str(Path(path).absolute()) for path in extra_include_paths or ()),
    )
    native = any("native" in flag for flag in tree.cflags)
    request = digest(
        f"files {FORMAT}",
        name,
        json.dumps([tree.files, tree.cflags, tree.ldflags, tree.include_paths]),
        toolchain.processor() if native else "",
        toolchain.environment_key(),
        support.engine_state(),
        support.own_state(),
        sys.platform,
    )
    cache = cache_at(build_directory) if build_directory is not None else default_cache()

    def produce(work: Path, compiler: toolchain.Compiler, cache: Cache) -> Product:
        return _compile_tree(tree, work, compiler, cache)

    def facts() -> dict[str, Any]:
        inputs = {
            "the list of files": tree.files,
            "the compiler flags": tree.cflags,
            "the linker flags": tree.ldflags,
            "the include paths": tree.include_paths,
            **common_inputs(),
        }
        states = {"stateful": True, "unloadable": False}
        return {"signatures": {}, "docs": {}, "inputs": inputs, **states}

    return find_or_build(name, request, cache, produce, facts)


def _compile_tree(tree: _Tree, work: Path, compiler: toolchain.Compiler, cache: Cache) -> Product:
    traits = toolchain.traits(compiler, cache.root)
    commands: list[tuple[str, ...]] = []
    logs: list[str] = []
    warnings: list[Diagnostic] = []
    dependencies: list[str] = []
    objects: list[str] = []
    for number, path in enumerate(tree.files):
        dependencies.append(path)
        suffix = Path(path).suffix.lower()
        if suffix in _OBJECTS:
            objects.append(path)
            continue
        target = f"{number}.o"
        language = ("-x", "c") if suffix == ".c" else ("-std=c++17",)
        arguments = (
            *language,
            *(flag for flag in support.BASE_FLAGS if not flag.startswith("-std")),
            *(("-fno-gnu-unique",) if traits.kind == "gcc" else ()),
            *tree.cflags,
            *(f"-I{folder}" for folder in tree.include_paths),
            *support.include_flags(),
            *diagnostic_flags(traits.kind),
            *("-MD", "-MF", f"{number}.d"),
            *("-c", path, "-o", target),
        )
        done = toolchain.run(compiler, arguments, work)
        commands.append(done.command)
        logs.append(done.output)
        found = parse(done.output, Texts(path, {}))
        if done.returncode:
            raise BuildError(
                render(found, done.output),
                diagnostics=found,
                log="\n".join(logs),
                commands=commands,
            )
        warnings += found
        dependencies += parse_dependencies((work / f"{number}.d").read_text("utf-8", "replace"))
        objects.append(target)
    runtime = support.runtime_objects(cache, compiler)
    link = link_arguments(traits, runtime, tree.ldflags)
    done = toolchain.run(compiler, (*tree.cflags, *objects, *link, "-o", "library"), work)
    commands.append(done.command)
    logs.append(done.output)
    if done.returncode:
        found = parse(done.output, Texts("", {}))
        raise BuildError(
            render(found, done.output), diagnostics=found, log="\n".join(logs), commands=commands
        )
    return Product(
        library="library",
        commands=tuple(commands),
        diagnostics=tuple(warnings),
        dependencies=tuple(dependencies),
        precompiled=None,
        rung="files",
        log="\n".join(filter(None, logs)),
    )
