"""The engine's own entry points, over our builds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorplay.utils.cpp_jit import cuda
from tensorplay.utils.cpp_jit.build import Build, build_source
from tensorplay.utils.cpp_jit.compile import Source, Unit
from tensorplay.utils.cpp_jit.cuda_build import CudaUnit, build_cuda
from tensorplay.utils.cpp_jit.files import build_files
from tensorplay.utils.cpp_jit.flags import checked
from tensorplay.utils.cpp_jit.load import Module

Sources = Sequence[str] | str | None
Functions = Mapping[str, str] | Sequence[str] | str | None
Flags = Sequence[str] | None
Paths = Sequence[str | os.PathLike[str]] | None


def load_inline(
    name: str,
    *,
    cpp_sources: Sources = None,
    cuda_sources: Sources = None,
    functions: Functions = None,
    extra_cflags: Flags = None,
    extra_cuda_cflags: Flags = None,
    extra_ldflags: Flags = None,
    extra_include_paths: Paths = None,
    build_directory: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Module:
    """Compile C++ or CUDA given as text and load it.

    CUDA needs no GPU to be built: `build_source`'s result and the errors of calls say for what it
    was. Functions of a CUDA text take tensors on a GPU only.

    Parameters
    ----------
    name
        Name of the library.
    cpp_sources, cuda_sources
        Text, or texts that are joined.
    functions
        What to export: a name, names, or names with documentation.
    extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths
        Passed to the compilers and the linker unchanged.
    build_directory
        Folder that replaces the build cache.
    **kwargs
        The engine's ``backend``, ``embed_cubin`` and ``keep_module_alive``.

    Returns
    -------
    Module

    Raises
    ------
    BuildError
        The source does not compile.
    MissingToolError
        It is not in the cache and there is no compiler.
    ValueError
        No source is given.
    """
    keep = kwargs.pop("keep_module_alive", None)
    return _inline(
        name,
        cpp_sources,
        cuda_sources,
        functions,
        extra_cflags,
        extra_cuda_cflags,
        extra_ldflags,
        extra_include_paths,
        build_directory,
        kwargs,
    ).load(keep_module_alive=keep)


def build_inline(
    name: str,
    *,
    cpp_sources: Sources = None,
    cuda_sources: Sources = None,
    functions: Functions = None,
    extra_cflags: Flags = None,
    extra_cuda_cflags: Flags = None,
    extra_ldflags: Flags = None,
    extra_include_paths: Paths = None,
    build_directory: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> str:
    """Compile C++ given as text without loading it.

    Parameters are those of `load_inline`.

    Returns
    -------
    str
        Path of the library. It needs only the engine to be loaded elsewhere.
    """
    return str(
        _inline(
            name,
            cpp_sources,
            cuda_sources,
            functions,
            extra_cflags,
            extra_cuda_cflags,
            extra_ldflags,
            extra_include_paths,
            build_directory,
            kwargs,
        ).library
    )


def load(
    name: str,
    *,
    sources: Paths | str = None,
    cpp_files: Paths | str = None,
    cuda_files: Paths | str = None,
    extra_cflags: Flags = None,
    extra_cuda_cflags: Flags = None,
    extra_ldflags: Flags = None,
    extra_include_paths: Paths = None,
    build_directory: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Module:
    """Compile source files as they are and load the result.

    Nothing is put around them: they include the engine's headers themselves and export with
    ``TVM_FFI_DLL_EXPORT_TYPED_FUNC``.

    Parameters
    ----------
    name
        Name of the library.
    sources, cpp_files, cuda_files
        Paths of C, C++, CUDA (``.cu``) and object files.
    extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths, build_directory
        As for `load_inline`.
    **kwargs
        The engine's ``backend``, ``output`` and ``keep_module_alive``.
    """
    keep = kwargs.pop("keep_module_alive", None)
    return _files(
        name,
        (sources, cpp_files),
        cuda_files,
        extra_cflags,
        extra_cuda_cflags,
        extra_ldflags,
        extra_include_paths,
        build_directory,
        kwargs,
    ).load(keep_module_alive=keep)


def build(
    name: str,
    *,
    sources: Paths | str = None,
    cpp_files: Paths | str = None,
    cuda_files: Paths | str = None,
    extra_cflags: Flags = None,
    extra_cuda_cflags: Flags = None,
    extra_ldflags: Flags = None,
    extra_include_paths: Paths = None,
    build_directory: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> str:
    """Compile source files as they are without loading the result.

    Parameters are those of `load`. ``output`` names the file; with the suffix ``.o`` the sources
    are only merged into one object file.

    Returns
    -------
    str
        Path of the library.
    """
    return str(
        _files(
            name,
            (sources, cpp_files),
            cuda_files,
            extra_cflags,
            extra_cuda_cflags,
            extra_ldflags,
            extra_include_paths,
            build_directory,
            kwargs,
        ).library
    )


def _inline(
    name: str,
    cpp_sources: Sources,
    cuda_sources: Sources,
    functions: Functions,
    extra_cflags: Flags,
    extra_cuda_cflags: Flags,
    extra_ldflags: Flags,
    extra_include_paths: Paths,
    build_directory: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
) -> Build:
    cubins: Mapping[str, bytes] = _options(name, options, "embed_cubin") or {}
    texts, cuda_texts = _texts(cpp_sources), _texts(cuda_sources)
    if not texts and not cuda_texts:
        raise ValueError(
            f"[cpp_jit] library {name!r}: expected C++ text in cpp_sources or CUDA text in "
            "cuda_sources, got none"
        )
    if not cuda_texts and not cubins:
        return build_source(
            name,
            Source("\n".join(texts)),
            exports=functions or (),
            extra_cflags=extra_cflags,
            extra_ldflags=extra_ldflags,
            extra_include_paths=extra_include_paths,
            build_directory=build_directory,
        )
    if cubins and not texts:
        raise ValueError(
            f"[cpp_jit] library {name!r}: embed_cubin needs C++ text in cpp_sources that uses it"
        )
    exports = dict.fromkeys(_texts(functions), "")
    if isinstance(functions, Mapping):
        exports = dict(functions)

    def unit(text: str, suffix: str, exports: Mapping[str, str]) -> Unit:
        return Unit(
            name=name,
            source=Source(text, f"{name}{suffix}"),
            exports=exports,
            generated="",
            preamble="",
            cflags=checked("extra_cflags", extra_cflags),
            ldflags=checked("extra_ldflags", extra_ldflags),
            include_paths=tuple(str(Path(path).absolute()) for path in extra_include_paths or ()),
        )

    both = CudaUnit(
        cpp=unit("\n".join(texts), ".cpp", exports) if texts else None,
        cuda=unit("\n".join(cuda_texts), ".cu", {} if texts else exports) if cuda_texts else None,
        cuda_cflags=checked("extra_cuda_cflags", extra_cuda_cflags),
        cubins=dict(cubins),
    )
    return build_cuda(both, Path(build_directory) if build_directory is not None else None)


def _texts(given: Sources | Functions) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


def _files(
    name: str,
    groups: Sequence[Paths | str],
    cuda_files: Paths | str,
    extra_cflags: Flags,
    extra_cuda_cflags: Flags,
    extra_ldflags: Flags,
    extra_include_paths: Paths,
    build_directory: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
) -> Build:
    output = _options(name, options, "output")
    paths = [
        path
        for group in (*groups, cuda_files)
        for path in ([group] if isinstance(group, (str, os.PathLike)) else group or ())
    ]
    if not paths:
        raise ValueError(f"[cpp_jit] library {name!r}: expected source files, got none")
    return build_files(
        name,
        paths,
        extra_cflags=extra_cflags,
        extra_cuda_cflags=extra_cuda_cflags,
        extra_ldflags=extra_ldflags,
        extra_include_paths=extra_include_paths,
        build_directory=build_directory,
        output=output,
    )


def _options(name: str, options: Mapping[str, Any], allowed: str) -> Any:
    """Return the value of the option that this entry point has besides ``backend``."""
    unknown = sorted(set(options) - {"backend", allowed})
    if unknown:
        raise TypeError(f"[cpp_jit] library {name!r}: unexpected argument {unknown[0]!r}")
    cuda.refuse_hip(name, options.get("backend"))
    return options.get(allowed)
