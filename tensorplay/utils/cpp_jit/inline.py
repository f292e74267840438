"""The engine's own entry points, over our builds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tensorplay.utils.cpp_jit.build import Build, build_source
from tensorplay.utils.cpp_jit.compile import Source
from tensorplay.utils.cpp_jit.files import build_files
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
    """Compile C++ given as text and load it.

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
        Paths of C, C++ and object files.
    extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths, build_directory
        As for `load_inline`.
    """
    keep = kwargs.pop("keep_module_alive", None)
    return _files(
        name,
        (sources, cpp_files),
        cuda_files,
        extra_cflags,
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

    Parameters are those of `load`.

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
    extra_ldflags: Flags,
    extra_include_paths: Paths,
    build_directory: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
) -> Build:
    _refuse_cuda(name, cuda_sources, options)
    texts = [cpp_sources] if isinstance(cpp_sources, str) else list(cpp_sources or ())
    if not texts:
        raise ValueError(f"[cpp_jit] library {name!r}: expected C++ text in cpp_sources, got none")
    return build_source(
        name,
        Source("\n".join(texts)),
        exports=functions or (),
        extra_cflags=extra_cflags,
        extra_ldflags=extra_ldflags,
        extra_include_paths=extra_include_paths,
        build_directory=build_directory,
    )


def _files(
    name: str,
    groups: Sequence[Paths | str],
    cuda_files: Paths | str,
    extra_cflags: Flags,
    extra_ldflags: Flags,
    extra_include_paths: Paths,
    build_directory: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
) -> Build:
    _refuse_cuda(name, cuda_files, options)
    paths = [
        path
        for group in groups
        for path in ([group] if isinstance(group, (str, os.PathLike)) else group or ())
    ]
    if not paths:
        raise ValueError(f"[cpp_jit] library {name!r}: expected source files, got none")
    return build_files(
        name,
        paths,
        extra_cflags=extra_cflags,
        extra_ldflags=extra_ldflags,
        extra_include_paths=extra_include_paths,
        build_directory=build_directory,
    )


def _refuse_cuda(name: str, sources: object, options: Mapping[str, Any]) -> None:
    unknown = sorted(set(options) - {"backend", "embed_cubin", "output"})
    if unknown:
        raise TypeError(f"[cpp_jit] library {name!r}: unexpected argument {unknown[0]!r}")
    asked = next((key for key in ("embed_cubin", "output") if options.get(key) is not None), None)
    if sources:
        asked = "CUDA sources"
    if asked:
        raise NotImplementedError(
            f"[cpp_jit] library {name!r}: {asked} are not built yet, only C and C++ sources. "
            "Use tvm_ffi.cpp for them."
        )
