"""CUDA text that holds only kernels: compiled to binaries and embedded beside a light launcher.

No host code has to go through nvcc, so NVRTC takes the text where it is installed, and nvcc makes
the same binaries where it is not, or where NVRTC lacks a header. The launcher is the same on both
ways: it is compiled by the C++ compiler, and opens the driver when a kernel is first launched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorplay.utils.cpp_jit import cuda, nvrtc, support, toolchain
from tensorplay.utils.cpp_jit.commands import base_flags
from tensorplay.utils.cpp_jit.compile import Unit, c_string, texts_of
from tensorplay.utils.cpp_jit.diagnostics import Diagnostic, Texts, last_name, parse, render
from tensorplay.utils.cpp_jit.errors import BuildError, MissingToolError
from tensorplay.utils.cpp_jit.source import Function, Parameter, Scan, scan
from tensorplay.utils.cpp_jit.store import Cache, parse_dependencies

LAUNCHER = "launcher.cpp"

_KERNEL = re.compile(r"\b__global__\b")
_DEVICE_CODE = re.compile(r"\b__(?:global|device)__\b")
_HOST_WORDS = re.compile(r"<<<|\bTensorView\b|\btvm\s*::\s*ffi\b|\bTVM_FFI_|\bcuda[A-Z]\w*\s*\(")
_MACRO_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]+[A-Za-z_]", re.MULTILINE)
_QUALIFIERS = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|restrict|struct)\b|\bstd::")

# Kinds of tp_cuda_parameter_kind, and codes of DLDataTypeCode.
_TENSOR, _BOOL, _INT, _UINT, _FLOAT = range(5)
_DL_INT, _DL_UINT, _DL_FLOAT, _DL_BFLOAT, _DL_COMPLEX, _DL_BOOL = 0, 1, 2, 4, 5, 6

_INTEGERS = {
    **dict.fromkeys(("char", "signed char", "int8_t"), (8, True)),
    **dict.fromkeys(("unsigned char", "uint8_t"), (8, False)),
    **dict.fromkeys(("short", "short int", "int16_t"), (16, True)),
    **dict.fromkeys(("unsigned short", "ushort", "uint16_t"), (16, False)),
    **dict.fromkeys(("int", "signed", "signed int", "int32_t"), (32, True)),
    **dict.fromkeys(("unsigned", "unsigned int", "uint", "uint32_t"), (32, False)),
    **dict.fromkeys(
        ("long", "long int", "long long", "long long int", "int64_t", "ptrdiff_t", "ssize_t"),
        (64, True),
    ),
    **dict.fromkeys(
        ("unsigned long", "unsigned long long", "unsigned long int", "uint64_t", "size_t"),
        (64, False),
    ),
    "intptr_t": (64, True),
    "uintptr_t": (64, False),
}
_SCALARS = {
    "bool": (_BOOL, 8, 0),
    "float": (_FLOAT, 32, 0),
    "double": (_FLOAT, 64, 0),
    **{name: (_INT if s else _UINT, bits, 0) for name, (bits, s) in _INTEGERS.items()},
}
_ELEMENTS = {
    "bool": (8, _DL_BOOL),
    "float": (32, _DL_FLOAT),
    "double": (64, _DL_FLOAT),
    **{name: (bits, _DL_INT if s else _DL_UINT) for name, (bits, s) in _INTEGERS.items()},
    **dict.fromkeys(("__half", "half"), (16, _DL_FLOAT)),
    **dict.fromkeys(("__nv_bfloat16", "nv_bfloat16"), (16, _DL_BFLOAT)),
    **dict.fromkeys(("cuFloatComplex", "cuComplex"), (64, _DL_COMPLEX)),
    "cuDoubleComplex": (128, _DL_COMPLEX),
}
_TYPES = "a pointer, bool, an integer, float or double"


@dataclass(frozen=True)
class Image:
    """Code in a file: its kind, its architecture such as ``90a`` and what embeds it."""

    kind: str
    number: str
    file: str


@dataclass(frozen=True)
class Binaries:
    """What a device compiler made of a text."""

    images: tuple[Image, ...]
    symbols: Mapping[str, str]
    command: tuple[str, ...]
    route: str
    version: str
    log: str
    diagnostics: tuple[Diagnostic, ...]
    dependencies: tuple[str, ...]


def kernels_of(scanned: Scan) -> dict[str, Function]:
    """Return the kernels of a text by name, without templates and overloads."""
    found = [f for f in scanned.functions if _KERNEL.search(f.result)]
    names = [function.name for function in found]
    return {function.name: function for function in found if names.count(function.name) == 1}


def takes(cpp: Unit | None, text: Unit | None) -> bool:
    """Return whether a library's CUDA text goes this way.

    It does if it holds kernels and no host code, or if all that is exported are kernels.
    """
    if text is None:
        return False
    scanned = scan(text.source.text)
    kernels = kernels_of(scanned)
    if cpp is None and text.exports:
        return all(name in kernels for name in text.exports)
    return bool(_KERNEL.search(scanned.code)) and not has_host_code(scanned)


def has_host_code(scanned: Scan) -> bool:
    """Return whether a text seems to have code for the host, in functions or in launches."""
    return _HOST_WORDS.search(scanned.code) is not None or any(
        not _DEVICE_CODE.search(function.result) for function in scanned.functions
    )


def device_compiler() -> toolchain.Compiler:
    """Return what compiles kernels: NVRTC, and nvcc, which may have to take over.

    Raises
    ------
    MissingToolError
        There is neither.
    """
    library = nvrtc.find_nvrtc()
    try:
        nvcc = cuda.find_nvcc()
    except MissingToolError as error:
        if library is None:
            raise MissingToolError(
                "no compiler for CUDA kernels: neither NVRTC (pip install nvidia-cuda-nvrtc) nor "
                f"nvcc is here. {error}"
            ) from None
        return toolchain.compiler_of((str(library),))
    if library is None:
        return nvcc
    found = toolchain.compiler_of((str(library),))
    return toolchain.Compiler(found.command, f"{found.identity}\n{nvcc.identity}")


def compile_binaries(text: Unit, target: cuda.Target, work: Path, cache: Cache) -> Binaries:
    """Compile a text to one binary per architecture, and PTX for later ones.

    Raises
    ------
    BuildError
        It does not compile.
    MissingToolError
        It needs nvcc, which is not here.
    """
    scanned = scan(text.preamble + text.source.text)
    texts = texts_of(text)
    flags = text.options.cuda_cflags
    library = nvrtc.find_nvrtc()
    host = has_host_code(scanned) or _MACRO_INCLUDE.search(scanned.code) is not None
    if library is None or host:
        reason = "it has host code besides its kernels" if library else ""
        return _through_nvcc(text, texts, target, flags, work, reason)
    folders = [
        *text.options.include_paths,
        *((toolchain.working_folder(),) if scanned.local_includes else ()),
    ]
    options = (*flags, *(f"-I{folder}" for folder in folders))
    outputs, images = _outputs(target, work)
    whole = _whole(text)
    (work / nvrtc.SOURCE).write_text(whole, "utf-8", newline="")  # kept beside the library
    done = nvrtc.run_nvrtc(library, whole, scanned, outputs, options, cache)
    found = parse(done.output, texts)
    if done.returncode:
        if nvrtc.needs_host(done.output):
            first = next((d.message for d in found if d.level == "error"), done.output.strip())
            if "--gpu-architecture" in done.output and not _nvcc_is_here():
                message = f"NVRTC {nvrtc.version(library)} does not build for {target.text}"
                raise BuildError(message, log=done.output, commands=(done.command,))
            return _through_nvcc(text, texts, target, flags, work, first, done)
        raise BuildError(
            render(found, done.output),
            diagnostics=found,
            log=done.output,
            commands=(done.command,),
        )
    read = nvrtc.read_files(scanned, [Path(folder) for folder in folders])
    return Binaries(
        images,
        symbols(done.output),
        done.command,
        "nvrtc",
        nvrtc.version(library),
        done.output,
        found,
        tuple(map(str, read)),
    )


def _whole(text: Unit) -> str:
    return nvrtc.framed(
        text.source.text, text.shown_name, text.source.first_line, text.preamble, text.generated
    )


def _nvcc_is_here() -> bool:
    try:
        cuda.find_nvcc()
    except MissingToolError:
        return False
    return True


def _outputs(target: cuda.Target, work: Path) -> tuple[list[nvrtc.Output], tuple[Image, ...]]:
    outputs = []
    images = []
    for name in target.architectures:
        number = name.partition("_")[2]
        if name.startswith("sm_"):
            images.append(Image("cubin", number, f"{name}.cubin"))
            ptx = f"compute_{number}" in target.architectures
            outputs.append(
                nvrtc.Output(
                    number,
                    str(work / f"{name}.cubin"),
                    str(work / f"{number}.ptx") if ptx else "",
                )
            )
        else:
            images.append(Image("ptx", number, f"{number}.ptx"))
    return outputs, tuple(images)


def _through_nvcc(
    text: Unit,
    texts: Texts,
    target: cuda.Target,
    flags: Sequence[str],
    work: Path,
    reason: str,
    before: toolchain.ToolResult | None = None,
) -> Binaries:
    try:
        toolkit = cuda.find_toolkit()
    except MissingToolError as error:
        why = f": {reason}" if reason else ""
        raise MissingToolError(
            f"the CUDA text of {text.name!r} needs nvcc{why}. NVRTC compiles kernels without host "
            f"code and without host headers only. There is {error}"
        ) from None
    local = scan(text.source.text).local_includes
    options = (
        *target.flags,
        *flags,
        *(f"-I{folder}" for folder in text.options.include_paths),
        *(("-I", toolchain.working_folder() or ".") if local else ()),
    )
    whole = _whole(text)
    done = nvrtc.run_nvcc(toolkit, whole, options, work, "fatbin")
    found = parse(done.output, texts)
    if done.returncode:
        raise BuildError(
            render(found, done.output),
            diagnostics=found,
            log=done.output,
            commands=(*((before.command,) if before else ()), done.command),
        )
    (work / "fatbin").rename(work / "kernels.cubin")
    return Binaries(
        (Image("fatbin", "0", "kernels.cubin"),),
        symbols(done.output),
        done.command,
        "nvcc",
        toolkit.version,
        done.output,
        found,
        tuple(parse_dependencies((work / "kernels.d").read_text("utf-8", "replace"))),
    )


def symbols(log: str) -> dict[str, str]:
    """Return the symbols of kernels by the names in the text, from what ptxas writes.

    Instances of a template have one name, and stand under their symbols besides.
    """
    found: dict[str, set[str]] = {}
    for symbol in re.findall(r"Compiling entry function '([^']+)'", log):
        found.setdefault(last_name(symbol), set()).add(symbol)
        found.setdefault(symbol, set()).add(symbol)
    return {name: next(iter(all_)) for name, all_ in found.items() if len(all_) == 1}


@dataclass(frozen=True)
class Entry:
    """A kernel that code of the host launches through `tp_cuda_run`.

    Parameters
    ----------
    name
        What it is called there.
    function
        The kernel's name in the text.
    arguments
        Template arguments, as C++ types of numbers; empty for what is no template.
    """

    name: str
    function: str
    arguments: tuple[str, ...] = ()

    def symbol(self, known: Mapping[str, str]) -> str | None:
        """Return its symbol among those of `symbols`; None where the binaries lack it."""
        if not self.arguments:
            return known.get(self.function)
        start = f"{len(self.function)}{self.function}I{_mangled(self.arguments)}E"
        found = (s for s in known if s.startswith((f"_Z{start}", f"_ZL{start}")))
        return next(found, None)


_LETTERS = {
    "bool": "b", "float": "f", "double": "d", "int8_t": "a", "uint8_t": "h", "int16_t": "s",
    "uint16_t": "t", "int32_t": "i", "uint32_t": "j", "int64_t": "l", "uint64_t": "m",
}  # fmt: skip


def _mangled(arguments: Sequence[str]) -> str:
    """Spell template arguments as symbols do: a class that was named before by its number."""
    parts: list[str] = []
    seen: list[str] = []
    for argument in arguments:
        if argument in _LETTERS:
            parts.append(_LETTERS[argument])
        elif argument in seen:
            parts.append(f"S{seen.index(argument)}_")  # the template itself is S_
        else:
            seen.append(argument)
            parts.append(f"{len(argument)}{argument}")
    return "".join(parts)


def check(text: Unit, kernels: Mapping[str, Function]) -> None:
    """Raise BuildError for exported kernels with parameters that cannot come from Python."""
    texts = texts_of(text)
    aliases = _aliases(scan(text.source.text).code)
    found = []
    for name in text.exports:
        if name not in kernels:
            continue
        function = kernels[name]
        line = text.source.first_line + function.line - 1
        for position, parameter in enumerate(function.parameters):
            if _described(parameter, aliases) is None:
                shown = f"`{parameter.name}`" if parameter.name else f"#{position}"
                message = (
                    f"`{name}`: parameter {shown} has type `{parameter.type}`, which cannot come "
                    f"from Python; use {_TYPES}"
                )
                found.append(error_at(line, message, texts))
    if found:
        raise BuildError("\n".join(map(str, found)), diagnostics=found)


def error_at(line: int, message: str, texts: Texts) -> Diagnostic:
    """Return an error about a line of the person's text."""
    source_line = texts.line(texts.own, line)
    return Diagnostic(line, None, "error", message, file=texts.own, source_line=source_line)


def _aliases(code: str) -> dict[str, str]:
    """Return the names that a text gives to types by ``using`` and ``typedef``."""
    found = dict(re.findall(r"\busing\s+(\w+)\s*=\s*([\w:\s]+?)\s*;", code))
    defined = re.findall(r"\btypedef\s+([\w:\s]+?)\s+(\w+)\s*;", code)
    return found | {name: type_ for type_, name in defined}


def _described(parameter: Parameter, aliases: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Return kind, bits and code of `tp_cuda_parameter`, or None for what it cannot hold."""
    type_ = parameter.type
    for _ in range(4):
        words = re.findall(r"\w+", type_)
        known = next((word for word in words if word in aliases), None)
        if known is None:
            break
        type_ = re.sub(rf"\b{known}\b", aliases[known], type_)
    type_ = " ".join(_QUALIFIERS.sub(" ", type_).split()).replace(" *", "*")
    if type_.endswith("*"):
        element = type_[:-1].strip()
        if element.endswith("*"):
            return None
        bits, code = _ELEMENTS.get(element, (0, 0))
        return _TENSOR, bits, code
    return _SCALARS.get(type_)


def launcher_text(
    text: Unit, target: cuda.Target, made: Binaries, launched: Sequence[Entry] = ()
) -> str:
    """Return C++ that embeds the binaries, describes the kernels and exports those asked for.

    Those `launched` by other code of the library are described by their names there.

    Raises
    ------
    BuildError
        A kernel that is to be exported or launched is not in the binaries.
    """
    scanned = scan(text.source.text)
    aliases = _aliases(scanned.code)
    kernels = kernels_of(scanned)
    texts = texts_of(text)
    missing = [n for n in text.exports if n in kernels and n not in made.symbols]
    missing += [e.function for e in launched if e.symbol(made.symbols) is None]
    for name in missing:
        at = kernels[name].line if name in kernels else (texts.find(name) or (1, None))[0]
        line = text.source.first_line + at - 1 if name in kernels else at
        message = f"`{name}` is not in the binary: a kernel that is called from outside must "
        error = error_at(line, message + "not be `static`", texts)
        raise BuildError(str(error), diagnostics=(error,), log=made.log)
    lines = ["#include <tensorplay/cuda_launch.h>"]
    entries = []
    for number, image in enumerate(made.images):
        symbol = f"tp_cuda_image_{number}"
        lines += [cuda.incbin(symbol, image.file), f'extern "C" const char {symbol}[];']
        digits = image.number.rstrip("af")
        variant = image.number[len(digits) :]
        shown = f"'{variant}'" if variant else "0"
        entries.append(f"{{TP_CUDA_{image.kind.upper()}, {digits}, {shown}, {symbol}}}")
    lines.append(f"static const tp_cuda_image images[] = {{{', '.join(entries)}}};")
    rows: list[str] = []
    exports = []
    for name, function in kernels.items():
        described = [(p, _described(p, aliases)) for p in function.parameters]
        if name not in made.symbols or any(what is None for _, what in described):
            continue
        if name in text.exports:
            exports.append((name, len(rows)))
        items = [
            f"{{{c_string(p.name)}, {c_string(p.type)}, {', '.join(map(str, what or ()))}}}"
            for p, what in described
        ]
        items.append('{"", "", 0, 0, 0}')  # no array is empty
        array = f"parameters_{len(rows)}"
        lines.append(f"static const tp_cuda_parameter {array}[] = {{{', '.join(items)}}};")
        symbol = c_string(made.symbols[name])
        rows.append(f"{{{c_string(name)}, {symbol}, {array}, {len(described)}}}")
    rows += [
        f"{{{c_string(e.name)}, {c_string(e.symbol(made.symbols) or '')}, nullptr, 0}}"
        for e in launched
    ]
    rows.append('{"", "", nullptr, 0}')
    lines += [
        f"static const tp_cuda_kernel kernels[] = {{{', '.join(rows)}}};",
        "tp_cuda_program tp_cuda_own_program = {",
        f"images, {len(entries)}, kernels, {len(rows) - 1},",
        f"{c_string(target.text)}, {_number(made.version)}, nullptr}};",
    ]
    for name, number in exports:
        lines.append(f"TP_CUDA_EXPORT({name}, {number})")
        if text.exports[name]:
            lines.append(f"TP_CUDA_EXPORT_DOC({name}, {c_string(text.exports[name])})")
    return "\n".join(lines) + "\n"


def _number(version: str) -> int:
    """Return a version as the driver counts: 13050 for 13.5; 0 where it is unknown."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return 1000 * int(found[1]) + 10 * int(found[2]) if found else 0


def launcher_flags(kind: str, text: Unit) -> tuple[str, ...]:
    """Return the flags that the launcher is compiled with.

    The person's folders are among them, though the launcher includes nothing from there: the cache
    reads in the last command where a new file could hide one that was read.
    """
    return (
        *base_flags(kind),
        *(f"-I{folder}" for folder in text.options.include_paths),
        *(word for folder in support.include_paths() for word in ("-isystem", folder)),
    )


def exported(text: Unit) -> tuple[str, ...]:
    """Return the kernels that are called from Python, with a grid."""
    kernels = kernels_of(scan(text.source.text))
    return tuple(name for name in text.exports if name in kernels)
