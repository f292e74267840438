"""What building and loading kernels raises and warns."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorplay.utils.cpp_jit.diagnostics import Diagnostic


class MissingToolError(RuntimeError):
    """A program that a build needs is not on this machine."""


class BuildCacheWarning(UserWarning):
    """Something about the build cache that a person may want to know; the result is right."""


class BuildError(RuntimeError):
    """A library could not be built from the given source.

    Parameters
    ----------
    text
        What a person reads: the diagnostics at their own lines, without command lines.
    diagnostics
        The compiler's messages, the one that matters first.
    log
        The complete output of every command.
    commands
        The command lines that were run.
    """

    def __init__(
        self,
        text: str,
        *,
        diagnostics: Sequence[Diagnostic] = (),
        log: str = "",
        commands: Sequence[Sequence[str]] = (),
    ) -> None:
        super().__init__(text)
        self.diagnostics = tuple(diagnostics)
        self.log = log
        self.commands = tuple(tuple(command) for command in commands)


_BY_PIP = "pip install ziglang (its first build takes a few minutes)"


def no_compiler(
    looked_for: Sequence[str], where: Sequence[str], *, variable: str = "", name: str = "CXX"
) -> Exception:
    """Return the error for a machine without a C++ compiler.

    Parameters
    ----------
    looked_for
        Names of the programs that were tried.
    where
        Folders that were searched.
    variable
        The value of the variable `name` if that named the compiler.
    name
        ``"CXX"``, or ``"CC"`` for C.
    """
    names = ", ".join(looked_for)
    folders = ", ".join(dict.fromkeys(where)) if where else "no folder: PATH is empty"
    asked = f" ({name}={variable})" if variable else ""
    language = "C" if name == "CC" else "C++"
    commands = ["  conda: conda install -c conda-forge cxx-compiler", f"  pip:   {_BY_PIP}"]
    system = {
        "darwin": "  Xcode: xcode-select --install",
        "win32": "  Build Tools: winget install Microsoft.VisualStudio.2022.BuildTools",
    }.get(sys.platform, "  apt:   sudo apt-get install g++")
    return MissingToolError(
        f"no {language} compiler: expected one of {names}{asked}, found none in {folders}.\n"
        "Install one and run the cell again:\n" + "\n".join([system, *commands])
    )


def old_compiler(command: Sequence[str], version: str) -> str:
    """Return what to say of a compiler that does not know the language that kernels need.

    Parameters
    ----------
    command
        Words that start it.
    version
        What it says of itself.
    """
    if os.environ.get("CXX", "").strip():
        return (
            f"{' '.join(command)} ({version}), which CXX names, is too old for kernels: they need "
            "g++ 9 or clang 10, or newer. Set CXX to one of those, or unset it."
        )
    return (
        f"{' '.join(command)} ({version}) is too old for kernels: they need g++ 9 or clang 10, or "
        f"newer. Install one that is found by itself and run the cell again:\n  {_BY_PIP}"
    )
