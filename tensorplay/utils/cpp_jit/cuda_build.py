"""Libraries with CUDA or HIP text: a device compiler for that, the C++ compiler for the rest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import cuda, cuda_kernels, support, toolchain
from tensorplay.utils.cpp_jit.build import (
    Build,
    chosen_cache,
    common_inputs,
    facts_of,
    find_or_build,
    request_of,
)
from tensorplay.utils.cpp_jit.commands import Link, link_arguments
from tensorplay.utils.cpp_jit.compile import (
    Product,
    Unit,
    c_string,
    compile_unit,
    next_rung,
    texts_of,
)
from tensorplay.utils.cpp_jit.diagnostics import Texts, parse, render
from tensorplay.utils.cpp_jit.errors import BuildError, MissingToolError
from tensorplay.utils.cpp_jit.exports import check_exports
from tensorplay.utils.cpp_jit.flags import Options
from tensorplay.utils.cpp_jit.gpu import CUDA, Backend
from tensorplay.utils.cpp_jit.resources import jobs
from tensorplay.utils.cpp_jit.source import implied_headers, names, needs_full_headers, scan
from tensorplay.utils.cpp_jit.store import (
    FORMAT,
    Cache,
    digest,
    parse_dependencies,
)


@dataclass(frozen=True)
class CudaUnit:
    """A library of up to one C++ and one CUDA or HIP unit and of binaries to embed.

    The exports belong to the C++ unit if there is one, as the engine has it. It launches kernels
    of the CUDA unit by the names of `launched`.
    """

    cpp: Unit | None
    cuda: Unit | None
    cubins: Mapping[str, bytes]
    backend: Backend = CUDA
    launched: tuple[cuda_kernels.Entry, ...] = ()

    @property
    def first(self) -> Unit:
        """Return the unit that exports."""
        unit = self.cpp or self.cuda
        if unit is None:
            raise ValueError("[cpp_jit] expected C++ or CUDA text, got none")
        return unit


def build_cuda(unit: CudaUnit) -> Build:
    """Build a library with CUDA code, or find it in the cache.

    Raises
    ------
    BuildError
        A source does not compile.
    MissingToolError
        It is not in the cache, and a compiler is missing.
    """
    unit = _with_exported_kernels(unit)
    backend = unit.backend
    target = backend.target()
    cubins = {name: hashlib.sha256(content).hexdigest() for name, content in unit.cubins.items()}
    options = request_of(unit.first.options)
    parts = [p and dataclasses.replace(p, options=Options()) for p in (unit.cpp, unit.cuda)]
    described = [dataclasses.asdict(part) if part else None for part in parts]
    name = unit.first.name
    request = digest(
        f"{backend.name} {FORMAT}",
        json.dumps([described, options, cubins, target.flags, *map(str, unit.launched)]),
        toolchain.working_folder(),
        toolchain.environment_key(),
        support.engine_state(),
        support.own_state(),
        sys.platform,
    )

    only_kernels = backend is CUDA and cuda_kernels.takes(unit.cpp, unit.cuda)
    if unit.cuda and not only_kernels:
        _refuse_kernels(unit.cuda, texts_of(unit.cuda))

    def produce(work: Path, compiler: toolchain.Compiler, cache: Cache) -> Product:
        build = _compile_kernels if only_kernels else _compile
        return build(unit, target, work, compiler, cache)

    def facts() -> dict[str, Any]:
        found = facts_of(unit.first)
        if unit.cuda and unit.cuda is not unit.first:  # kernels that are exported beside functions
            more = facts_of(unit.cuda)
            known = {n: p for n, p in more["signatures"].items() if n in unit.cuda.exports}
            found["signatures"] |= known
            found["results"] |= {n: r for n, r in more["results"].items() if n in known}
            found["docs"] |= more["docs"]
        inputs = {
            **found["inputs"],
            "the CUDA source": digest(unit.cuda.source.text) if unit.cuda else "",
            "the CUDA flags": unit.first.options.cuda_cflags,
            "the embedded binaries": cubins,
            "the architectures": target.architectures,
            **common_inputs(),
        }
        return {**found, "stateful": True, "unloadable": False, "inputs": inputs}

    second: Callable[[], toolchain.Compiler] | None = backend.find
    if only_kernels:
        second = cuda_kernels.device_compiler
    elif unit.cuda is None and backend is CUDA:
        second = None  # binaries in C++ text: nothing is compiled for the device
    cache = chosen_cache(unit.first.options)
    return find_or_build(name, request, cache, produce, facts, second)


def _with_exported_kernels(unit: CudaUnit) -> CudaUnit:
    """Give the exports of the C++ text that only the CUDA text has, as kernels, to that."""
    if unit.cpp is None or unit.cuda is None:
        return unit
    kernels = cuda_kernels.kernels_of(scan(unit.cuda.source.text))
    words = names(scan(unit.cpp.source.text).code)
    moved = {
        name: doc for name, doc in unit.cpp.exports.items() if name in kernels and name not in words
    }
    kept = {name: doc for name, doc in unit.cpp.exports.items() if name not in moved}
    return dataclasses.replace(
        unit,
        cpp=dataclasses.replace(unit.cpp, exports=kept),
        cuda=dataclasses.replace(unit.cuda, exports={**unit.cuda.exports, **moved}),
    )


def _compile_kernels(
    unit: CudaUnit, target: cuda.Target, work: Path, compiler: toolchain.Compiler, cache: Cache
) -> Product:
    """Build a library whose CUDA text holds only kernels; see `cuda_kernels`."""
    if unit.cuda is None:
        raise ValueError("[cpp_jit] expected CUDA text, got none")
    text = unit.cuda
    cuda_kernels.check(text, cuda_kernels.kernels_of(scan(text.source.text)))
    with ThreadPoolExecutor(2) as pool:
        making = pool.submit(cuda_kernels.compile_binaries, text, target, work, cache)
        cpp = _cpp_part(unit.cpp, (), "TP_EXPORT")
        host = compile_unit(cpp, work, compiler, cache, link=False) if cpp else None
        full = host is not None and host.rung != "light"
        common = support.common(cache, compiler, full=full)
        start = time.perf_counter()
        launch = support.launcher_objects(cache, compiler, common.traits)
        shared_seconds = common.seconds + time.perf_counter() - start
        made = making.result()
    launcher = cuda_kernels.launcher_text(text, target, made, unit.launched)
    (work / cuda_kernels.LAUNCHER).write_text(launcher, "utf-8", newline="")
    parts = (cuda_kernels.LAUNCHER, *((host.library,) if host else ()))
    engine = str(toolchain.find_engine().library)
    objects = (*map(str, launch), *common.objects)
    options = unit.first.options
    link = link_arguments(common.traits, Link(objects, engine, ("-ldl", *options.ldflags)))
    if options.is_object:
        link = (*_MERGED, *objects)
    flags = cuda_kernels.launcher_flags(common.traits.kind, text)
    words = (*flags, *parts, *_embedded(unit, work), *link, "-o", "library")
    done = toolchain.run(compiler, words, work)
    log = "\n".join(filter(None, (made.log, host.log if host else "", done.output)))
    commands = (made.command, *(host.commands if host else ()), done.command)
    if done.returncode:
        found = parse(done.output, texts_of(unit.first))
        raise BuildError(render(found, done.output), diagnostics=found, log=log, commands=commands)
    if options.is_object:
        _hide_run_time(work)
    return Product(
        library="library",
        commands=commands,
        diagnostics=(*(host.diagnostics if host else ()), *made.diagnostics),
        dependencies=(*(host.dependencies if host else ()), *made.dependencies),
        precompiled=host.precompiled if host else None,
        rung=host.rung if host else "light",
        log=log,
        shared_seconds=shared_seconds + (host.shared_seconds if host else 0.0),
        output=options.output,
        system_paths=common.traits.include_paths,
        cuda={
            "route": made.route,
            "toolkit": made.version,
            "targets": list(target.architectures),
            "reason": target.reason,
            "kernels": cuda.kernels(made.log),
            "launch": list(cuda_kernels.exported(text)),
        },
    )


def _embedded(unit: CudaUnit, work: Path) -> tuple[str, ...]:
    """Write the binaries to embed, and return the file that the link takes them from."""
    if not unit.cubins:
        return ()
    (work / "embedded.cpp").write_text(cuda.embedded(unit.cubins, work), "utf-8")
    return ("-fPIC", "embedded.cpp")


def _cpp_part(cpp: Unit | None, flags: Sequence[str], macro: str) -> Unit | None:
    """Return the C++ unit with what the library's other part asks of it, or None."""
    if cpp is None:
        return None
    options = dataclasses.replace(cpp.options, cflags=(*cpp.options.cflags, *flags), output="")
    return dataclasses.replace(cpp, options=options, export_macro=macro)


def _compile(
    unit: CudaUnit, target: cuda.Target, work: Path, compiler: toolchain.Compiler, cache: Cache
) -> Product:
    backend = unit.backend
    host_only = unit.cuda is None and backend is CUDA
    toolkit = cuda.host_toolkit() if host_only else backend.toolkit()
    includes = tuple(flag for path in toolkit.include_paths for flag in ("-isystem", path))
    parts: list[Callable[[], Product]] = []
    macro = "TP_EXPORT_LAUNCHING" if unit.cuda else "TP_EXPORT"
    if cpp := _cpp_part(unit.cpp, includes, macro):
        parts.append(lambda: compile_unit(cpp, work, compiler, cache, link=False))
    if unit.cuda:
        text = unit.cuda
        parts.append(lambda: _compile_cuda(unit, text, target, toolkit, work))
    common = support.common(cache, compiler, full=True)
    with ThreadPoolExecutor(jobs(len(parts))) as pool:
        futures = [pool.submit(part) for part in parts]
    try:
        products = [future.result() for future in futures]
    except BuildError as error:
        header = cuda.lacks_headers(error.log) if host_only else None
        if header is None:
            raise
        raise MissingToolError(
            f"the C++ text of {unit.first.name!r} includes {header}, and there is no CUDA toolkit "
            "with headers.\nInstall one and run the cell again:\n"
            "  pip:   pip install nvidia-cuda-runtime\n"
            "  conda: conda install -c nvidia cuda-cudart-dev\n"
            "  apt:   sudo apt-get install nvidia-cuda-toolkit\n"
            "or include <tensorplay/cuda_launch.h>, which needs none."
        ) from error
    commands = [command for product in products for command in product.commands]
    first = unit.first
    watched = () if unit.cuda is None else backend.watched  # see cuda_export.h
    ldflags = (*watched, *backend.link_flags(toolkit), *first.options.ldflags)
    engine = str(toolchain.find_engine().library)
    link = link_arguments(common.traits, Link(common.objects, engine, ldflags))
    if first.options.is_object:
        link = (*_MERGED, *common.objects)
    words = (*(p.library for p in products), *_embedded(unit, work), *link, "-o", "library")
    done = toolchain.run(compiler, words, work)
    commands.append(done.command)
    log = "\n".join(filter(None, (*(product.log for product in products), done.output)))
    if done.returncode:
        texts = [texts_of(part) for part in (unit.cpp, unit.cuda) if part]
        lines = {name: found for text in texts for name, found in text.lines.items()}
        found = parse(done.output, Texts(first.shown_name, lines))
        raise BuildError(render(found, done.output), diagnostics=found, log=log, commands=commands)
    if first.options.is_object:
        _hide_run_time(work)
    return Product(
        library="library",
        commands=tuple(commands),
        diagnostics=tuple(d for product in products for d in product.diagnostics),
        dependencies=tuple(d for product in products for d in product.dependencies),
        precompiled=next((p.precompiled for p in products if p.precompiled), None),
        rung="full" if any(p.rung == "full" for p in products) else products[-1].rung,
        log=log,
        output=first.options.output,
        shared_seconds=common.seconds,
        system_paths=(*common.traits.include_paths, *toolkit.include_paths),
        cuda=described(backend, toolkit, target, products[-1].log if unit.cuda else ""),
    )


#: One object file that holds the run-time library too; groups would be merged with those of others.
_MERGED = ("-r", "-nostdlib", "-Wl,--force-group-allocation")


def _hide_run_time(work: Path) -> None:
    """Make the run-time library in a merged object file its own, wherever that is linked."""
    program = shutil.which("objcopy")
    if program is None:
        raise MissingToolError(
            "an object file of CUDA text needs objcopy, which is not on PATH. It belongs to GNU "
            "binutils: sudo apt-get install binutils, or conda install -c conda-forge binutils."
        )
    done = toolchain.run(toolchain.Compiler((program,), ""), ("--localize-hidden", "library"), work)
    if done.returncode:
        raise BuildError(f"objcopy failed: {done.output.strip()}", log=done.output)


def described(
    backend: Backend, toolkit: cuda.Toolkit, target: cuda.Target, log: str
) -> dict[str, Any]:
    """Return what `Build.cuda` holds."""
    return {
        "route": backend.route,
        "toolkit": toolkit.version,
        "targets": list(target.architectures),
        "reason": target.reason,
        "kernels": backend.kernels(log),
        "launch": [],
    }


def _compile_cuda(
    unit: CudaUnit, text: Unit, target: cuda.Target, toolkit: cuda.Toolkit, work: Path
) -> Product:
    """Compile the CUDA text to an object file, with the light headers if they are enough."""
    texts = texts_of(text)
    scans = (scan(text.preamble), scan(text.source.text))
    check_exports(text.exports, scans[1], scans[0], texts)
    rung = "full" if needs_full_headers(scans) else "light"
    flags = (
        *unit.backend.compile_flags(target),
        *text.options.cuda_cflags,
        *(f"-I{path}" for path in text.options.include_paths),
        *(("-I", toolchain.working_folder() or ".") if scans[1].local_includes else ()),
        *(word for folder in support.include_paths() for word in ("-isystem", folder)),
        *("-MD", "-MF", "cuda.d", "-c", *unit.backend.language, "cuda.cu", "-o", "cuda.o"),
    )
    commands: list[tuple[str, ...]] = []
    logs: list[str] = []
    while True:
        implied = implied_headers(scans) if rung == "light" else ()
        (work / "cuda.cu").write_text(_cuda_text(text, target, rung, implied), "utf-8", newline="")
        done = unit.backend.run(toolkit, flags, work)
        commands.append(done.command)
        logs.append(done.output)
        found = parse(done.output, texts)
        if done.returncode == 0:
            break
        errors = [d for d in found if d.level == "error"]
        if next_rung(rung, errors, done.output) != "full":
            raise BuildError(
                render(found, done.output),
                diagnostics=found,
                log="\n".join(logs),
                commands=commands,
            )
        rung = "full"
    return Product(
        library="cuda.o",
        commands=tuple(commands),
        diagnostics=found,
        dependencies=tuple(parse_dependencies((work / "cuda.d").read_text("utf-8", "replace"))),
        precompiled=None,
        rung=rung,
        log=logs[-1],
    )


def _refuse_kernels(text: Unit, texts: Texts) -> None:
    """Raise for kernels that are exported with host code around: they have no grid to run on."""
    kernels = cuda_kernels.kernels_of(scan(text.source.text))
    found = []
    for name in text.exports:
        if name in kernels:
            message = (
                f"`{name}` is a kernel (__global__), which cannot be called here; export a "
                "function that launches it, or give CUDA kernels a library without other exports"
            )
            line = text.source.first_line + kernels[name].line - 1
            found.append(cuda_kernels.error_at(line, message, texts))
        elif re.search(rf"\btemplate\s*<[^;{{]*__global__[^;{{]*\b{name}\s*\(",
                       scan(text.source.text).code):  # fmt: skip
            message = (
                f"`{name}` is a template; write a kernel for each type, such as "
                f"__global__ void {name}_float(…), and let them share a __device__ template"
            )
            place = texts.find(name) or (text.source.first_line, None)
            found.append(cuda_kernels.error_at(place[0], message, texts))
    if found:
        raise BuildError("\n".join(map(str, found)), diagnostics=found)


def _cuda_text(text: Unit, target: cuda.Target, rung: str, implied: Sequence[str]) -> str:
    lines = [f"#include <tensorplay/ffi_{rung}.h>", "#include <tensorplay/cuda_export.h>"]
    lines += [f"#include <{name}>" for name in implied]
    lines += [f"#line {text.source.first_line} {c_string(text.shown_name)}", text.source.text]
    lines.append('#line 1 "<exports>"')
    lines.append(f"TP_CUDA_LAUNCHES({c_string(target.text)})")
    parameters = {f.name: [p.name for p in f.parameters] for f in scan(text.source.text).functions}
    for name, doc in text.exports.items():
        known = c_string(",".join(parameters.get(name, ())))
        lines.append(f"TP_EXPORT_CUDA({name}, {name}, {known}, {c_string(target.text)})")
        if doc:
            lines.append(f"TP_EXPORT_DOC({name}, {c_string(doc)})")
    return "\n".join(lines) + "\n"
