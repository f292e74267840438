"""Source trees: files compiled as they are, as many at once as fit, and linked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import cuda, support, toolchain
from tensorplay.utils.cpp_jit.build import Build, common_inputs, find_or_build
from tensorplay.utils.cpp_jit.compile import (
    Product,
    diagnostic_flags,
    link_arguments,
)
from tensorplay.utils.cpp_jit.cuda_build import CUDA_LIBRARIES
from tensorplay.utils.cpp_jit.diagnostics import Texts, parse, render
from tensorplay.utils.cpp_jit.errors import BuildError
from tensorplay.utils.cpp_jit.flags import checked, link_inputs
from tensorplay.utils.cpp_jit.resources import jobs
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
    cuda_cflags: tuple[str, ...]
    output: str

    @property
    def has_cuda(self) -> bool:
        return any(Path(path).suffix == ".cu" for path in self.files)

    @property
    def is_object(self) -> bool:
        return Path(self.output).suffix.lower() in {".o", ".obj"}


def build_files(
    name: str,
    files: Sequence[str | os.PathLike[str]],
    *,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str | os.PathLike[str]] | None = None,
    build_directory: str | os.PathLike[str] | None = None,
    output: str | None = None,
) -> Build:
    """Build C, C++, CUDA and object files into one library, or find it in the cache.

    ``output`` names the file; with the suffix ``.o`` the result is one object file.

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
        checked("extra_cflags", extra_cflags),
        checked("extra_ldflags", extra_ldflags),
        tuple(str(Path(path).absolute()) for path in extra_include_paths or ()),
        checked("extra_cuda_cflags", extra_cuda_cflags),
        Path(output).name if output else "",
    )
    target = cuda.target() if tree.has_cuda else None
    native = any("native" in flag for flag in tree.cflags)
    request = digest(
        f"files {FORMAT}",
        name,
        json.dumps([tree.files, tree.cflags, tree.ldflags, tree.include_paths, tree.output]),
        json.dumps([tree.cuda_cflags, target.flags if target else ()]),
        toolchain.processor() if native else "",
        toolchain.environment_key(),
        support.engine_state(),
        support.own_state(),
        sys.platform,
    )
    cache = cache_at(build_directory) if build_directory is not None else default_cache()

    def produce(work: Path, compiler: toolchain.Compiler, cache: Cache) -> Product:
        return _compile_tree(tree, target, work, compiler, cache)

    def facts() -> dict[str, Any]:
        inputs = {
            "the list of files": tree.files,
            "the compiler flags": tree.cflags,
            "the CUDA flags": tree.cuda_cflags,
            "the linker flags": tree.ldflags,
            "the name of the output": tree.output,
            "the include paths": tree.include_paths,
            **common_inputs(),
        }
        states = {"stateful": True, "unloadable": False}
        return {"signatures": {}, "docs": {}, "inputs": inputs, **states}

    second = cuda.find_nvcc if target else None
    return find_or_build(name, request, cache, produce, facts, second)


@dataclass(frozen=True)
class _Object:
    """One file of a tree after its compilation."""

    path: str
    command: tuple[str, ...] | None
    output: str
    dependencies: tuple[str, ...]


def _compile_tree(
    tree: _Tree,
    target: cuda.Target | None,
    work: Path,
    compiler: toolchain.Compiler,
    cache: Cache,
) -> Product:
    traits = toolchain.traits(compiler, cache.root)
    toolkit = cuda.find_toolkit() if target else None
    with ThreadPoolExecutor(jobs(len(tree.files))) as pool:
        parts = pool.map(
            lambda item: _compile_file(
                tree, item[0], item[1], target, toolkit, work, compiler, traits
            ),
            enumerate(tree.files),
        )
        objects = list(parts)
    runtime = support.runtime_objects(cache, compiler)
    words = [part.path for part in objects]
    if tree.is_object:
        link: tuple[str, ...] = ("-r", "-nostdlib")
    else:
        ldflags = tree.ldflags
        if toolkit:
            ldflags = (*(f"-L{path}" for path in toolkit.library_paths), *CUDA_LIBRARIES, *ldflags)
        link = link_arguments(traits, runtime, ldflags)
    done = toolchain.run(compiler, (*tree.cflags, *words, *link, "-o", "library"), work)
    commands = [*(part.command for part in objects if part.command), done.command]
    log = "\n".join(filter(None, (*(part.output for part in objects), done.output)))
    if done.returncode:
        found = parse(done.output, Texts("", {}))
        raise BuildError(render(found, done.output), diagnostics=found, log=log, commands=commands)
    described = None
    if target and toolkit:
        kernels = [kernel for part in objects for kernel in cuda.kernels(part.output)]
        described = {
            "toolkit": toolkit.version,
            "targets": list(target.architectures),
            "reason": target.reason,
            "kernels": kernels,
        }
    pairs = zip(tree.files, objects, strict=True)
    return Product(
        library="library",
        commands=tuple(commands),
        diagnostics=tuple(d for path, o in pairs for d in parse(o.output, Texts(path, {}))),
        dependencies=(
            *(d for part in objects for d in part.dependencies),
            *link_inputs((*tree.cflags, *tree.ldflags)),
        ),
        precompiled=None,
        rung="files",
        log=log,
        cuda=described,
        output=tree.output,
    )


def _compile_file(
    tree: _Tree,
    number: int,
    path: str,
    target: cuda.Target | None,
    toolkit: cuda.Toolkit | None,
    work: Path,
    compiler: toolchain.Compiler,
    traits: toolchain.Traits,
) -> _Object:
    suffix = Path(path).suffix.lower()
    if suffix in _OBJECTS:
        return _Object(path, None, "", (path,))
    name = f"{number}.o"
    includes = tuple(f"-I{folder}" for folder in tree.include_paths)
    rest = (*support.include_flags(), "-MD", "-MF", f"{number}.d", "-c", path, "-o", name)
    if suffix == ".cu" and target and toolkit:
        own = ("-std=c++17", "-O2", "-Xcompiler=-fPIC", "-Xptxas=-v", *target.flags)
        done = cuda.run_nvcc(toolkit, (*own, *tree.cuda_cflags, *includes, *rest), work)
    else:
        language = ("-x", "c") if suffix == ".c" else ("-std=c++17",)
        own = (
            *language,
            *(flag for flag in support.BASE_FLAGS if not flag.startswith("-std")),
            *(("-fno-gnu-unique",) if traits.kind == "gcc" else ()),
        )
        arguments = (*own, *tree.cflags, *includes, *diagnostic_flags(traits.kind), *rest)
        done = toolchain.run(compiler, arguments, work)
    if done.returncode:
        found = parse(done.output, Texts(path, {}))
        raise BuildError(
            render(found, done.output),
            diagnostics=found,
            log=done.output,
            commands=(done.command,),
        )
    read = parse_dependencies((work / f"{number}.d").read_text("utf-8", "replace"))
    return _Object(name, done.command, done.output, (path, *read))
