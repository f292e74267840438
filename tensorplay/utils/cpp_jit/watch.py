"""What a caller is told while a library is built."""

from __future__ import annotations

from tensorplay.utils.cpp_jit.diagnostics import Diagnostic

__all__ = ["BuildWatch"]


class BuildWatch:
    """What a build tells its caller, in the thread that builds; what a method raises ends it.

    A library that is found in the cache tells nothing. The methods here do nothing.
    """

    def waiting(self, for_whom: str) -> None:
        """Hear twice a second who holds the lock that this build waits for."""

    def started(self) -> None:
        """Use the time while the compiler runs, for work that does not need its answer."""

    def compiling(self, seconds: float) -> None:
        """Hear a few times a second how long the compiler has run."""

    def said(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """Hear all that the compiler has said so far.

        What it says with one set of headers is taken back, by an empty tuple, where another set
        is tried.
        """
