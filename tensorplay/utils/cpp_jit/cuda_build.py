"""Libraries with CUDA sources: nvcc for the CUDA text, the C++ compiler for everything else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import cuda, support, toolchain
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
from tensorplay.utils.cpp_jit.diagnostics import Diagnostic, Texts, parse, render
from tensorplay.utils.cpp_jit.errors import BuildError
from tensorplay.utils.cpp_jit.exports import check_exports
from tensorplay.utils.cpp_jit.flags import Options
from tensorplay.utils.cpp_jit.resources import jobs
from tensorplay.utils.cpp_jit.source import implied_headers, needs_full_headers, scan
from tensorplay.utils.cpp_jit.store import (
    FORMAT,
    Cache,
    digest,
    parse_dependencies,
)

#: Linked in, so that a library can be loaded, and can say what it lacks, without the toolkit.
CUDA_LIBRARIES = ("-lcudart_static", "-ldl", "-lrt", "-lpthread")

_WATCHED = ("-Wl,--wrap=__cudaLaunchKernel", "-Wl,--wrap=cudaLaunchKernel")


@dataclass(frozen=True)
class CudaUnit:
    """A library of up to one C++ and one CUDA unit and of binaries to embed.

    The exports belong to the C++ unit if there is one, as the engine has it.
    """

    cpp: Unit | None
    cuda: Unit | None
    cubins: Mapping[str, bytes]

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
    target = cuda.target()
    cubins = {name: hashlib.sha256(content).hexdigest() for name, content in unit.cubins.items()}
    options = request_of(unit.first.options)
    parts = [p and dataclasses.replace(p, options=Options()) for p in (unit.cpp, unit.cuda)]
    described = [dataclasses.asdict(part) if part else None for part in parts]
    name = unit.first.name
    request = digest(
        f"cuda {FORMAT}",
        json.dumps([described, options, cubins, target.flags]),
        str(Path.cwd()),
        toolchain.environment_key(),
        support.engine_state(),
        support.own_state(),
        sys.platform,
    )

    def produce(work: Path, compiler: toolchain.Compiler, cache: Cache) -> Product:
        return _compile(unit, target, work, compiler, cache)

    def facts() -> dict[str, Any]:
        found = facts_of(unit.first)
        inputs = {
            **found["inputs"],
            "the CUDA source": digest(unit.cuda.source.text) if unit.cuda else "",
            "the CUDA flags": unit.first.options.cuda_cflags,
            "the embedded binaries": cubins,
            "the architectures": target.architectures,
            **common_inputs(),
        }
        return {**found, "stateful": True, "unloadable": False, "inputs": inputs}

    cache = chosen_cache(unit.first.options)
    return find_or_build(name, request, cache, produce, facts, cuda.find_nvcc)


def _compile(
    unit: CudaUnit, target: cuda.Target, work: Path, compiler: toolchain.Compiler, cache: Cache
) -> Product:
    toolkit = cuda.find_toolkit()
    includes = tuple(flag for path in toolkit.include_paths for flag in ("-isystem", path))
    parts: list[Callable[[], Product]] = []
    if unit.cpp:
        cpp = unit.cpp
        if unit.cubins:
            generated = cpp.generated + cuda.embedded(unit.cubins, work)
            cpp = dataclasses.replace(cpp, generated=generated)
        macro = "TP_EXPORT_LAUNCHING" if unit.cuda else "TP_EXPORT"
        options = dataclasses.replace(
            cpp.options, cflags=(*cpp.options.cflags, *includes), output=""
        )
        cpp = dataclasses.replace(cpp, options=options, export_macro=macro)
        parts.append(lambda: compile_unit(cpp, work, compiler, cache, link=False))
    if unit.cuda:
        text = unit.cuda
        parts.append(lambda: _compile_cuda(unit, text, target, toolkit, work))
    common = support.common(cache, compiler, full=True)
    with ThreadPoolExecutor(jobs(len(parts))) as pool:
        products = [future.result() for future in [pool.submit(part) for part in parts]]
    commands = [command for product in products for command in product.commands]
    first = unit.first
    watched = () if unit.cuda is None else _WATCHED  # see cuda_export.h
    folders = (f"-L{path}" for path in toolkit.library_paths)
    ldflags = (*watched, *folders, *CUDA_LIBRARIES, *first.options.ldflags)
    engine = str(toolchain.find_engine().library)
    link = link_arguments(common.traits, Link(common.objects, engine, ldflags))
    if first.options.is_object:
        link = ("-r", "-nostdlib", *common.objects)
    done = toolchain.run(compiler, (*(p.library for p in products), *link, "-o", "library"), work)
    commands.append(done.command)
    log = "\n".join(filter(None, (*(product.log for product in products), done.output)))
    if done.returncode:
        texts = [texts_of(part) for part in (unit.cpp, unit.cuda) if part]
        lines = {name: found for text in texts for name, found in text.lines.items()}
        found = parse(done.output, Texts(first.shown_name, lines))
        raise BuildError(render(found, done.output), diagnostics=found, log=log, commands=commands)
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
        cuda={
            "toolkit": toolkit.version,
            "targets": list(target.architectures),
            "reason": target.reason,
            "kernels": cuda.kernels(products[-1].log) if unit.cuda else [],
        },
    )


def _compile_cuda(
    unit: CudaUnit, text: Unit, target: cuda.Target, toolkit: cuda.Toolkit, work: Path
) -> Product:
    """Compile the CUDA text to an object file, with the light headers if they are enough."""
    texts = texts_of(text)
    scans = (scan(text.preamble), scan(text.source.text))
    _refuse_kernels(text, texts)
    check_exports(text.exports, scans[1], scans[0], texts)
    rung = "full" if needs_full_headers(scans) else "light"
    flags = (
        *("-std=c++17", "-O2", "-Xcompiler=-fPIC", "-Xptxas=-v"),
        *target.flags,
        *(("--threads", str(jobs(len(target.flags)))) if len(target.flags) > 1 else ()),
        *text.options.cuda_cflags,
        *(f"-I{path}" for path in text.options.include_paths),
        *(("-I", str(Path.cwd())) if scans[1].local_includes else ()),
        *(word for folder in support.include_paths() for word in ("-isystem", folder)),
        *("-MD", "-MF", "cuda.d", "-c", "cuda.cu", "-o", "cuda.o"),
    )
    commands: list[tuple[str, ...]] = []
    logs: list[str] = []
    while True:
        implied = implied_headers(scans) if rung == "light" else ()
        (work / "cuda.cu").write_text(_cuda_text(text, target, rung, implied), "utf-8", newline="")
        done = cuda.run_nvcc(toolkit, flags, work)
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
    """Raise for a `__global__` function among the exports: it has no grid to run on."""
    for function in scan(text.source.text).functions:
        if function.name in text.exports and re.search(r"\b__global__\b", function.result):
            line = text.source.first_line + function.line - 1
            message = (
                f"`{function.name}` is a kernel (__global__), which cannot be called from Python; "
                "export a function that launches it"
            )
            error = Diagnostic(
                line,
                None,
                "error",
                message,
                file=texts.own,
                source_line=texts.line(texts.own, line),
            )
            raise BuildError(str(error), diagnostics=(error,))


def _cuda_text(text: Unit, target: cuda.Target, rung: str, implied: Sequence[str]) -> str:
    lines = [f"#include <tensorplay/ffi_{rung}.h>", "#include <tensorplay/cuda_export.h>"]
    lines += [f"#include <{name}>" for name in implied]
    lines += [f"#line {text.source.first_line} {c_string(text.shown_name)}", text.source.text]
    lines.append('#line 1 "<exports>"')
    lines.append(f"TP_CUDA_AFTER_LAUNCH({c_string(target.text)})")
    parameters = {f.name: [p.name for p in f.parameters] for f in scan(text.source.text).functions}
    for name, doc in text.exports.items():
        known = c_string(",".join(parameters.get(name, ())))
        lines.append(f"TP_EXPORT_CUDA({name}, {name}, {known}, {c_string(target.text)})")
        if doc:
            lines.append(f"TP_EXPORT_DOC({name}, {c_string(doc)})")
    return "\n".join(lines) + "\n"
