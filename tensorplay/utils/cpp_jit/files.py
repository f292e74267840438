"""Source trees: files compiled as they are, as many at once as fit, and linked."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import cuda, gpu, support, toolchain
from tensorplay.utils.cpp_jit.build import (
    Build,
    chosen_cache,
    common_inputs,
    find_or_build,
    request_of,
)
from tensorplay.utils.cpp_jit.commands import (
    Job,
    Link,
    Traits,
    arguments,
    link_arguments,
    object_suffix,
)
from tensorplay.utils.cpp_jit.compile import Product, read_dependencies
from tensorplay.utils.cpp_jit.cuda_build import described
from tensorplay.utils.cpp_jit.diagnostics import Texts, parse, render
from tensorplay.utils.cpp_jit.errors import BuildError
from tensorplay.utils.cpp_jit.flags import Options, link_inputs
from tensorplay.utils.cpp_jit.resources import jobs
from tensorplay.utils.cpp_jit.store import (
    FORMAT,
    Cache,
    digest,
)

_OBJECTS = frozenset({".o", ".obj", ".a"})
_REGISTRATION = "tensorplay/registration.h"
_ENGINE = re.compile(rb"\btvm/ffi|\bTVM_FFI")


def _is_cpp(path: str) -> bool:
    suffix = Path(path).suffix.lower()
    return suffix not in {*_OBJECTS, *gpu.SUFFIXES, ".c"}


@dataclass(frozen=True)
class _Tree:
    name: str
    files: tuple[str, ...]
    options: Options
    backend: gpu.Backend | None

    def registers(self, traits: Traits) -> bool:
        """Return whether the files may register names, which has to wait for the loading to end.

        All files with the engine in them get the header for it or none does: they share functions
        that say which type a class is.
        """
        if self.options.is_object or traits.kind == "msvc":
            return False
        return any(_ENGINE.search(Path(path).read_bytes()) for path in self.files if _is_cpp(path))

    def others(self) -> Callable[[], toolchain.Compiler] | None:
        """Return what finds the compilers that are needed besides that for C++."""
        finders = [self.backend.find] if self.backend else []
        if os.environ.get("CC") and any(Path(path).suffix.lower() == ".c" for path in self.files):
            finders.append(toolchain.compiler_of_cc)
        if not finders:
            return None

        def find() -> toolchain.Compiler:
            found = [finder() for finder in finders]
            return toolchain.Compiler(
                found[0].command, "\n".join(compiler.identity for compiler in found)
            )

        return find


def build_files(
    name: str,
    files: Sequence[str | os.PathLike[str]],
    options: Options,
    backend: str | None = None,
) -> Build:
    """Build C, C++, CUDA, HIP and object files into one library, or find it in the cache.

    Where the output has the suffix ``.o`` the result is one object file.

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
            raise FileNotFoundError(
                f"[cpp_jit] library {name!r}: there is no file {path}. Paths are from the folder "
                f"{Path.cwd()}."
            )
    tree = _Tree(
        name,
        paths,
        options,
        gpu.resolve(name, backend) if any(map(_for_device, paths)) else None,
    )
    target = tree.backend.target() if tree.backend else None
    native = any("native" in flag for flag in tree.options.cflags)
    request = digest(
        f"files {FORMAT}",
        name,
        json.dumps([tree.files, *request_of(options), target.flags if target else ()]),
        tree.backend.name if tree.backend else "",
        toolchain.processor() if native else "",
        toolchain.environment_key(),
        support.engine_state(),
        support.own_state(),
        sys.platform,
    )

    def produce(work: Path, compiler: toolchain.Compiler, cache: Cache) -> Product:
        return _compile_tree(tree, target, work, compiler, cache)

    def facts() -> dict[str, Any]:
        inputs = {
            "the list of files": tree.files,
            "the compiler flags": tree.options.cflags,
            "the CUDA flags": tree.options.cuda_cflags,
            "the linker flags": tree.options.ldflags,
            "the name of the output": tree.options.output,
            "the include paths": tree.options.include_paths,
            **common_inputs(),
        }
        states = {"stateful": True, "unloadable": False}
        return {"signatures": {}, "results": {}, "docs": {}, "inputs": inputs, **states}

    return find_or_build(name, request, chosen_cache(options), produce, facts, tree.others())


def _for_device(path: str) -> bool:
    return Path(path).suffix.lower() in gpu.SUFFIXES


@dataclass(frozen=True)
class _Object:
    """One file of a tree after its compilation."""

    path: str
    command: tuple[str, ...] | None
    output: str
    dependencies: tuple[str, ...]


@dataclass(frozen=True)
class _Tools:
    """What compiles the files of a tree."""

    compiler: toolchain.Compiler
    traits: Traits
    toolkit: cuda.Toolkit | None
    cache: Cache
    registers: bool


def _compile_tree(
    tree: _Tree,
    target: cuda.Target | None,
    work: Path,
    compiler: toolchain.Compiler,
    cache: Cache,
) -> Product:
    common = support.common(cache, compiler)
    registers = tree.registers(common.traits)
    toolkit = tree.backend.toolkit() if tree.backend else None
    tools = _Tools(compiler, common.traits, toolkit, cache, registers)
    with ThreadPoolExecutor(jobs(len(tree.files))) as pool:
        parts = pool.map(
            lambda item: _compile_file(tree, item[0], item[1], target, tools, work),
            enumerate(tree.files),
        )
        objects = list(parts)
    words = [part.path for part in objects]
    ldflags = tree.options.ldflags
    if toolkit and tree.backend:
        ldflags = (*tree.backend.link_flags(toolkit), *ldflags)
    runtime = common.objects
    if registers:
        full = support.runtime_objects(cache, compiler, common.traits, full=True)
        runtime = (*runtime, *(str(path) for path in full if path.stem == "registration"))
    link = Link(runtime, str(toolchain.find_engine().library), ldflags)
    if tree.options.is_object and common.traits.kind == "msvc":
        raise NotImplementedError(
            f"[cpp_jit] library {tree.name!r}: cl does not merge object files; build a library"
        )
    shared = ("-r", "-nostdlib") if tree.options.is_object else link_arguments(common.traits, link)
    made = ("-o", "library") if common.traits.kind != "msvc" else ("/Fe:library.dll", "/nologo")
    done = toolchain.run(compiler, (*made, *tree.options.cflags, *words, *shared), work)
    commands = [*(part.command for part in objects if part.command), done.command]
    log = "\n".join(filter(None, (*(part.output for part in objects), done.output)))
    if done.returncode:
        found = parse(done.output, Texts("", {}))
        raise BuildError(render(found, done.output), diagnostics=found, log=log, commands=commands)
    pairs = zip(tree.files, objects, strict=True)
    return Product(
        library="library" if common.traits.kind != "msvc" else "library.dll",
        commands=tuple(commands),
        diagnostics=tuple(d for path, o in pairs for d in parse(o.output, Texts(path, {}))),
        dependencies=(
            *(d for part in objects for d in part.dependencies),
            *link_inputs((*tree.options.cflags, *tree.options.ldflags)),
        ),
        precompiled=None,
        rung="files",
        log=log,
        cuda=described(tree.backend, toolkit, target, "\n".join(part.output for part in objects))
        if tree.backend and toolkit and target
        else None,
        output=tree.options.output,
        shared_seconds=common.seconds,
        system_paths=(*common.traits.include_paths, *(toolkit.include_paths if toolkit else ())),
    )


def _compile_file(
    tree: _Tree, number: int, path: str, target: cuda.Target | None, tools: _Tools, work: Path
) -> _Object:
    suffix = Path(path).suffix.lower()
    if suffix in _OBJECTS:
        return _Object(path, None, "", (path,))
    name = f"{number}{object_suffix()}"
    dependencies = work / f"{number}.d"
    if suffix in gpu.SUFFIXES and tree.backend and target and tools.toolkit:
        system = (w for folder in support.include_paths() for w in ("-isystem", folder))
        words = (
            *(*tree.backend.compile_flags(target), *tree.options.cuda_cflags),
            *(*(f"-I{folder}" for folder in tree.options.include_paths), *system),
            *("-MD", "-MF", dependencies.name, "-c", *tree.backend.language, path, "-o", name),
        )
        done = tree.backend.run(tools.toolkit, words, work)
    else:
        job = Job(
            source=path,
            output=name,
            language="c" if suffix == ".c" else "c++",
            flags=tree.options.cflags,
            include_paths=tree.options.include_paths,
            system_paths=support.include_paths(),
            headers=(_REGISTRATION,) if tools.registers and _is_cpp(path) else (),
            dependencies=dependencies.name,
        )
        compiler, traits = tools.compiler, tools.traits
        if suffix == ".c" and os.environ.get("CC", "").strip():
            compiler = toolchain.compiler_of_cc()
            traits = toolchain.traits(compiler, tools.cache.root, links=False)
        done = toolchain.run(compiler, arguments(traits, job), work)
    if done.returncode:
        found = parse(done.output, Texts(path, {}))
        raise BuildError(
            render(found, done.output),
            diagnostics=found,
            log=done.output,
            commands=(done.command,),
        )
    read = read_dependencies(dependencies, tools.traits)
    return _Object(name, done.command, done.output, (path, *read))
