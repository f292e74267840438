"""Flags that a person gives: which give no library, and what they make the linker read."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

__all__ = ["Options", "checked", "link_inputs"]

# The compiler stops before a library is there, or writes it elsewhere, or builds no library.
_STOPS = frozenset({"-c", "-E", "-S", "-M", "-MM", "-fsyntax-only", "--help", "--version", "-###"})
_NO_LIBRARY = frozenset({"-o", "-static", "-r", "-no-pie", "-pie"})
# Their run-time must be in the process before everything else; loaded later it ends the process.
_PRELOADED = ("address", "thread", "memory", "leak", "hwaddress", "realtime")


# A file or folder follows, as a part of the word or as the next one.
_NAMES_PATH = re.compile(r"(-I|-L|-F|-isystem|-iquote|-idirafter|-include|-imacros)(.*)", re.DOTALL)
# Files for the linker are words of their own.
_IS_LINKED = re.compile(r"[^-].*\.(?:o|obj|a|lib|so(?:\.\d+)*|dylib)")

# The launcher and the report have to know which architectures code is for: no flag chooses them.
_ARCHITECTURE = re.compile(
    r"(?:-arch|-code|-gencode|--gpu-architecture|--gpu-code|--generate-code)(?:=.*)?"
)


@dataclass(frozen=True)
class Options:
    """What a person gives the tools, checked; it is the same for every entry point.

    Parameters
    ----------
    cflags, cuda_cflags, ldflags
        Passed to the compilers and the linker unchanged, but for the files and folders in them,
        which are absolute: the tools run in a folder of their own.
    include_paths
        Absolute folders.
    build_directory
        Folder that replaces the build cache, or empty.
    output
        Name of the file to make, or empty.
    """

    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    include_paths: tuple[str, ...] = ()
    build_directory: str = ""
    output: str = ""

    @classmethod
    def of(
        cls,
        *,
        cflags: Sequence[str] | None = None,
        cuda_cflags: Sequence[str] | None = None,
        ldflags: Sequence[str] | None = None,
        include_paths: Sequence[str | os.PathLike[str]] | None = None,
        build_directory: str | os.PathLike[str] | None = None,
        output: str | None = None,
    ) -> Options:
        """Return the options after a look at each.

        Raises
        ------
        TypeError
            Flags or paths are no sequence of strings.
        ValueError
            One of them cannot lead to a library that this process can load.
        """
        if isinstance(include_paths, (str, os.PathLike)):
            raise TypeError(
                "[cpp_jit] argument 'extra_include_paths': expected a sequence of folders, got "
                f"one. Write extra_include_paths=[{os.fspath(include_paths)!r}]."
            )
        return cls(
            checked("extra_cflags", cflags),
            checked("extra_cuda_cflags", cuda_cflags, device=True),
            checked("extra_ldflags", ldflags),
            tuple(str(Path(path).absolute()) for path in include_paths or ()),
            str(Path(build_directory).absolute()) if build_directory is not None else "",
            PurePath(output).name if output else "",
        )

    @property
    def is_object(self) -> bool:
        """Return whether an object file is to be made instead of a library."""
        return PurePath(self.output).suffix.lower() in {".o", ".obj"}


def checked(argument: str, flags: Sequence[str] | None, *, device: bool = False) -> tuple[str, ...]:
    """Return flags as a tuple, in which files and folders of the working folder are absolute.

    Parameters
    ----------
    argument
        What the caller named them.
    flags
        The flags.
    device
        They are for CUDA text.

    Raises
    ------
    TypeError
        They are no sequence of strings.
    ValueError
        One of them cannot lead to a library that this process can load, or chooses the GPU.
    """
    if flags is None:
        return ()
    if isinstance(flags, (str, bytes)) or not all(isinstance(flag, str) for flag in flags):
        shown = f"the text {flags!r}" if isinstance(flags, str) else type(flags).__name__
        raise TypeError(
            f"[cpp_jit] argument {argument!r}: expected a sequence of strings, one per flag, "
            f"got {shown}. Write {argument}=['-O3', '-lm']."
        )
    for flag in flags:
        if flag in _STOPS or flag in _NO_LIBRARY or flag.startswith("-Wl,--version,"):
            raise ValueError(
                f"[cpp_jit] argument {argument!r}: expected flags for building a library, "
                f"got {flag!r}, with which none comes out. Leave it out."
            )
        if flag.startswith("-fsanitize=") and any(
            name in _PRELOADED for name in flag.partition("=")[2].split(",")
        ):
            raise ValueError(
                f"[cpp_jit] argument {argument!r}: got {flag!r}, whose run-time must be in the "
                "process from its start; loading the library would end this one. Leave it out, or "
                "use -fsanitize=undefined with -fno-sanitize-recover."
            )
        if device and _ARCHITECTURE.fullmatch(flag):
            raise ValueError(
                f"[cpp_jit] argument {argument!r}: got {flag!r}, and architectures are those of "
                "the GPU here, or what the variable TVM_FFI_CUDA_ARCH_LIST lists. Leave it out, "
                "and set TVM_FFI_CUDA_ARCH_LIST='8.0 9.0' for others."
            )
    return _placed(flags)


def _placed(flags: Sequence[str]) -> tuple[str, ...]:
    """Return flags in which files and folders of the working folder have absolute paths.

    A path that is not there stays as it is: it may be one of the compiler's own.
    """
    made: list[str] = []
    waiting = False
    for flag in flags:
        named = None if waiting else _NAMES_PATH.fullmatch(flag)
        if named is not None:
            made.append(named[1] + _absolute(named[2]))
            waiting = not named[2]
        else:
            made.append(_absolute(flag) if waiting or _IS_LINKED.fullmatch(flag) else flag)
            waiting = False
    return tuple(made)


def _absolute(path: str) -> str:
    try:
        return str(Path(path).absolute()) if path and Path(path).exists() else path
    except OSError:  # the working folder was removed, or no file can have such a name
        return path


def link_inputs(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the files that flags make the linker read, which no dependency file lists.

    Those are objects, archives, libraries and scripts given by their paths, also within
    ``-Wl,…``, and libraries given by name that a folder of the flags holds.

    Parameters
    ----------
    flags
        Compiler and linker flags, in order.
    """
    folders: list[Path] = []
    libraries: list[str] = []
    found: list[Path] = []
    words = iter(flags)
    for word in words:
        if word in {"-L", "-l"}:
            word += next(words, "")  # noqa: PLW2901 - the two spellings are one flag
        if word.startswith("-L"):
            folders.append(Path(word[2:]))
        elif word.startswith("-l"):
            libraries.append(word[2:])
        elif word.startswith("-Wl,"):
            parts = [part.rpartition("=")[2] for part in word.split(",")[1:]]
            found.extend(Path(part) for part in parts if part and not part.startswith("-"))
        elif not word.startswith("-"):
            found.append(Path(word))
    for name in libraries:
        files = (
            [name[1:]]
            if name.startswith(":")
            else [f"lib{name}.so", f"lib{name}.dylib", f"lib{name}.a"]
        )
        candidates = (folder / file for folder in folders for file in files)
        found.extend(path for path in candidates if path.is_file())
    return tuple(str(path) for path in found if path.is_absolute() and path.is_file())
