"""The engine's own entry points, over our builds."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from tensorplay.utils.cpp_jit import gpu
from tensorplay.utils.cpp_jit.build import Build, build_text
from tensorplay.utils.cpp_jit.compile import Source, Unit
from tensorplay.utils.cpp_jit.cuda_build import CudaUnit, build_cuda
from tensorplay.utils.cpp_jit.files import build_files
from tensorplay.utils.cpp_jit.flags import Options
from tensorplay.utils.cpp_jit.load import Module

if TYPE_CHECKING:
    from typing_extensions import Unpack

    StrPath = str | os.PathLike[str]


class _Common(TypedDict, total=False):
    extra_cflags: Sequence[str] | None
    extra_cuda_cflags: Sequence[str] | None
    extra_ldflags: Sequence[str] | None
    extra_include_paths: Sequence[StrPath] | None
    build_directory: StrPath | None
    backend: str | None


class _Inline(_Common, total=False):
    cpp_sources: Sequence[str] | str | None
    cuda_sources: Sequence[str] | str | None
    functions: Mapping[str, str] | Sequence[str] | str | None
    embed_cubin: Mapping[str, bytes] | None


class _Files(_Common, total=False):
    sources: Sequence[StrPath] | StrPath | None
    cpp_files: Sequence[StrPath] | StrPath | None
    cuda_files: Sequence[StrPath] | StrPath | None


class LoadInlineOptions(_Inline, total=False):
    """Keywords of `load_inline`."""

    keep_module_alive: bool | None


class BuildInlineOptions(_Inline, total=False):
    """Keywords of `build_inline`."""

    output: str | None


class LoadOptions(_Files, total=False):
    """Keywords of `load`."""

    keep_module_alive: bool | None


class BuildOptions(_Files, total=False):
    """Keywords of `build`."""

    output: str | None


F = TypeVar("F", bound=Callable[..., Any])


def _shows(keywords: type) -> Callable[[F], F]:
    """Give an entry point the signature that its keywords say, and refuse any other."""

    def decorate(function: F) -> F:
        common = _Common.__annotations__
        names = sorted(keywords.__annotations__, key=lambda n: n in common)  # own ones first
        name = inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="str")
        shown = [
            inspect.Parameter(
                n,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=getattr(hint := keywords.__annotations__[n], "__forward_arg__", hint),
            )
            for n in names
        ]
        returned = function.__annotations__["return"]
        signature = inspect.Signature([name, *shown], return_annotation=returned)
        vars(function)["__signature__"] = signature
        return function

    return decorate


@_shows(LoadInlineOptions)
def load_inline(name: str, **options: Unpack[LoadInlineOptions]) -> Module:
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
    backend
        ``"cuda"``, ``"hip"``, or None: the one that is installed.
    embed_cubin
        Compiled CUDA kernels by the names that ``TVM_FFI_EMBED_CUBIN`` finds them by.
    keep_module_alive
        Whether the library stays loaded until the process ends; None: where its code may be called
        after the last reference to it is gone.

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
    keep = options.pop("keep_module_alive", None)
    return _inline(name, load_inline, options).load(keep_module_alive=keep)


@_shows(BuildInlineOptions)
def build_inline(name: str, **options: Unpack[BuildInlineOptions]) -> str:
    """Compile C++ or CUDA given as text without loading it.

    Parameters
    ----------
    name, cpp_sources, cuda_sources, functions, embed_cubin, backend, build_directory
        As for `load_inline`.
    output
        Name of the file; with the suffix ``.o`` the result is an object file, with the engine's own
        headers and export macro.
    extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths
        As for `load_inline`.

    Returns
    -------
    str
        Path of the library. It needs only the engine to be loaded elsewhere.
    """
    return str(_inline(name, build_inline, options).library)


@_shows(LoadOptions)
def load(name: str, **options: Unpack[LoadOptions]) -> Module:
    """Compile source files as they are and load the result.

    Nothing is put around them: they include the engine's headers themselves and export with
    ``TVM_FFI_DLL_EXPORT_TYPED_FUNC``.

    Parameters
    ----------
    name
        Name of the library.
    sources, cpp_files, cuda_files
        Paths of C, C++, CUDA (``.cu``) and object files: a path, or paths.
    extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths, build_directory
        As for `load_inline`.
    backend, keep_module_alive
        As for `load_inline`.

    Returns
    -------
    Module
        Its functions are attributes.
    """
    keep = options.pop("keep_module_alive", None)
    return _files(name, load, options).load(keep_module_alive=keep)


@_shows(BuildOptions)
def build(name: str, **options: Unpack[BuildOptions]) -> str:
    """Compile source files as they are without loading the result.

    Parameters
    ----------
    name, sources, cpp_files, cuda_files, backend, build_directory
        As for `load`.
    output
        Name of the file; with the suffix ``.o`` the sources are only merged into one object file.
    extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths
        As for `load`.

    Returns
    -------
    str
        Path of the library.
    """
    return str(_files(name, build, options).library)


def _inline(name: str, entry: Callable[..., Any], given: Mapping[str, Any]) -> Build:
    options = _checked(name, entry, given)
    cubins: Mapping[str, bytes] = given.get("embed_cubin") or {}
    texts, cuda_texts = _texts(given, "cpp_sources"), _texts(given, "cuda_sources")
    functions = given.get("functions")
    exports = (
        functions
        if isinstance(functions, Mapping)
        else dict.fromkeys(_texts(given, "functions"), "")
    )
    if not texts and not cuda_texts:
        raise ValueError(
            f"[cpp_jit] library {name!r}: expected C++ text in cpp_sources or CUDA text in "
            "cuda_sources, got none. Write load for source files."
        )
    if not cuda_texts and not cubins:
        unit = Unit(name, Source("\n".join(texts)), dict(exports), options=options)
        return build_text(unit)
    cpp = Unit(name, Source("\n".join(texts), f"{name}.cpp"), dict(exports), options=options)
    source = Source("\n".join(cuda_texts), f"{name}.cu")
    cuda_unit = Unit(name, source, {} if texts else dict(exports), options=options)
    return build_cuda(
        CudaUnit(
            cpp if texts else None,
            cuda_unit if cuda_texts else None,
            dict(cubins),
            gpu.resolve(name, given.get("backend")),
        )
    )


def _files(name: str, entry: Callable[..., Any], given: Mapping[str, Any]) -> Build:
    options = _checked(name, entry, given)
    groups = [given.get(group) for group in ("sources", "cpp_files", "cuda_files")]
    paths = [path for group in groups for path in _listed(group)]
    if not paths:
        raise ValueError(
            f"[cpp_jit] library {name!r}: expected source files, got none. Write "
            "cpp_files=['a.cc'], or load_inline for text."
        )
    return build_files(name, paths, options, given.get("backend"))


def _checked(name: str, entry: Callable[..., Any], given: Mapping[str, Any]) -> Options:
    """Return what is for the tools, after a look at all keywords."""
    names = inspect.signature(entry).parameters.keys() - {"name"}
    unknown = sorted(set(given) - names)
    if unknown:
        known = ", ".join(sorted(names))
        raise TypeError(
            f"[cpp_jit] library {name!r}: unexpected argument {unknown[0]!r}. Arguments: {known}."
        )
    if given.get("backend") is not None:
        gpu.resolve(name, given["backend"])
    return Options.of(
        cflags=given.get("extra_cflags"),
        cuda_cflags=given.get("extra_cuda_cflags"),
        ldflags=given.get("extra_ldflags"),
        include_paths=given.get("extra_include_paths"),
        build_directory=given.get("build_directory"),
        output=given.get("output"),
    )


def _texts(given: Mapping[str, Any], argument: str) -> list[str]:
    """Return one text or several as a list."""
    value = given.get(argument)
    listed = _listed(value) if value is None or isinstance(value, Iterable) else [value]
    for text in listed:
        if not isinstance(text, str):
            raise TypeError(
                f"[cpp_jit] argument {argument!r}: expected text or a sequence of texts, got "
                f"{type(text).__name__}. Write {argument}=['…']."
            )
    return listed


def _listed(given: Any) -> list[Any]:
    """Return one thing or several as a list."""
    return [given] if isinstance(given, (str, Path, os.PathLike)) else list(given or ())
