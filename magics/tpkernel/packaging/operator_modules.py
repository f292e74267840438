"""From declarations and C++ files to one library of operators that loads without a compiler."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from tensorplay.library.modules.artifact import Description, Made, embedded, seal, this_platform
from tensorplay.library.modules.spec import CellSpec
from tensorplay.utils import cpp_jit
from tpkernel.building.codegen import export_source, preamble
from tpkernel.building.cuda_cells import is_cuda
from tpkernel.cells.declarations import Document, ModuleCell, read_documents, read_module
from tpkernel.cells.flags import split_flags
from tpkernel.cells.hints import hints
from tpkernel.cells.reading import Options
from tpkernel.cpp.braces import unclosed_brace

__all__ = ["build_module"]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def build_module(
    declarations: str | os.PathLike[str] | None,
    sources: Paths,
    *,
    output: str | os.PathLike[str],
    flags: str | Sequence[str] = (),
    contiguous: str = "error",
    allow_alias: bool = False,
    debug: bool = False,
) -> Path:
    """Build a library of operators; `tensorplay.library.build_module` says how.

    Raises
    ------
    CellError
        A declaration or a signature that cannot become an operator.
    tensorplay.utils.cpp_jit.BuildError
        The compiler refuses a source.
    """
    if contiguous not in ("error", "copy"):
        message = f"[build] contiguous must be 'error' or 'copy', got {contiguous!r}"
        raise ValueError(message)
    target = Path(output)
    if not target.absolute().parent.is_dir():
        message = f"[build] there is no folder {target.parent} for {target.name}; make it first"
        raise FileNotFoundError(message)
    paths = [Path(p) for p in _listed(sources)]
    _check_target(target, [*paths, *([] if declarations is None else [Path(declarations)])])
    texts = (flags,) if isinstance(flags, str) else tuple(flags)
    try:
        given = split_flags(texts)
    except ValueError as problem:
        message = f"[build] {problem}"
        raise ValueError(message) from None
    cell = read_documents(
        None if declarations is None else _document(Path(declarations)), [*map(_document, paths)]
    )
    for document in cell.documents:
        if is_cuda(document.text):
            message = (
                f"[build] {document.name}: expected C++, got CUDA (__global__), which an operator "
                "module cannot hold. Build it by cpp_jit.build_inline(cuda_sources=…), and launch "
                "it from Python"
            )
            raise ValueError(message)
    spec = read_module(cell, Options(copy=contiguous == "copy", alias_ok=allow_alias))
    for hint in hints(cell, spec, (*split_flags(cell.flags).cflags, *given.cflags)):
        if hint.level == "warning":
            warnings.warn(f"[{hint.operator or 'build'}] {hint.message}", stacklevel=3)
    description = _described(cell, spec, target, (*cell.flags, *texts))
    try:
        constant = embedded(description)
    except TypeError as problem:
        message = f"a sample cannot be kept: {problem}. Write dates and the like as text"
        raise cell.error(message, line=_first_sample(cell)) from None
    build = _compile(description.name, cell, spec, paths, constant, texts, debug=debug)
    content = seal(build.library.read_bytes())
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.chmod(0o755)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def _check_target(target: Path, inputs: Sequence[Path]) -> None:
    """See that the library can be written to `target`, and that nothing is lost by it.

    Raises
    ------
    ValueError
        It is one of the inputs, or a folder.
    """
    if target.is_dir():
        message = (
            f"[build] argument 'output': expected a file, got the folder {target}. Write "
            f"{target / 'libops.so'}."
        )
        raise ValueError(message)
    for path in inputs:
        if path.exists() and target.exists() and path.samefile(target):
            message = (
                f"[build] argument 'output': {target} is an input and would be overwritten. Name "
                "another file, such as libops.so."
            )
            raise ValueError(message)


def _listed(paths: Paths) -> Sequence[str | os.PathLike[str]]:
    return [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)


def _document(path: Path) -> Document:
    if not path.is_file():
        message = f"[build] there is no file {path}"
        raise FileNotFoundError(message)
    try:
        return Document(str(path), path.read_text("utf-8-sig"))
    except UnicodeDecodeError as problem:
        message = f"[build] {path}: expected UTF-8 text, got {problem.reason} at {problem.start}"
        raise ValueError(message) from None


def _first_sample(cell: ModuleCell) -> int:
    return next(e.line_of("samples") for e in cell.entries if "samples" in e.values)


def _described(cell: ModuleCell, spec: CellSpec, target: Path, flags: Sequence[str]) -> Description:
    digests = {
        Path(d.name).name: hashlib.sha256(d.text.encode()).hexdigest() for d in cell.documents
    }
    return Description(
        name=target.name.split(".")[0].removeprefix("lib"),
        operators=tuple(cell.placed(o) for o in spec.operators),
        declarations=spec.declarations,
        made=Made(
            platform=this_platform(),
            tensorplay=importlib.metadata.version("tensorplay-workbench"),
            engine=importlib.metadata.version("apache-tvm-ffi"),
            flags=tuple(flags),
            sources=digests,
        ),
    )


def _compile(
    name: str,
    cell: ModuleCell,
    spec: CellSpec,
    paths: Sequence[Path],
    constant: str,
    texts: Sequence[str],
    *,
    debug: bool,
) -> cpp_jit.Build:
    """Compile all sources as one text, in their order."""
    try:
        flags = split_flags((*cell.flags, *texts))
    except ValueError as problem:
        raise cell.error(str(problem)) from None
    sources = [d for d in cell.documents if d.name in {str(p) for p in paths}]
    first, *rest = sources or [Document("none.cc", "")]
    joined = [first.text, *(f'#line 1 "{_escaped(d.name)}"\n{d.text}' for d in rest)]
    try:
        return cpp_jit.build_source(
            name,
            cpp_jit.Source("\n".join(joined), first.name),
            preamble=preamble(spec, flags.macros),
            generated=f"{export_source(spec, flags.macros)}\n{constant}",
            extra_cflags=[*(["-O0", "-g", "-DTP_DEBUG=1"] if debug else []), *flags.cflags],
            extra_ldflags=flags.ldflags,
            extra_include_paths=list(dict.fromkeys(p.absolute().parent for p in paths)),
        )
    except cpp_jit.BuildError:
        for document in sources:
            brace = unclosed_brace(document.text)
            if brace is not None:
                line = document.text.count("\n", 0, brace)
                message = f"unbalanced brace: the one opened at line {line + 1} is never closed"
                raise cell.error(message, line=document.first + line) from None
        raise


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')
