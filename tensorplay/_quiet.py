"""Silence for NumPy's floating-point warnings inside an implementation, at little cost.

``np.errstate(all="ignore")`` makes its state anew each time, which costs more than a small
addition. Here the state is made once: ``token = silence()``, then ``restore(token)``. Cheaper still
is ``quietly(function, *args)``, which enters a context made for this purpose, for functions that
call no code of people, who would miss their own context variables. It raises RuntimeError while
another thread is inside.
"""

from __future__ import annotations

import contextvars
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["quietly", "restore", "silence"]

silence: Callable[[], Any]
restore: Callable[[Any], Any]
quietly: Callable[..., Any]

try:
    from numpy._core.umath import _extobj_contextvar, _make_extobj
except ImportError:  # a NumPy that keeps its state elsewhere: its public, slower way

    def silence() -> Any:
        """Stop the warnings and return what `restore` needs."""
        return np.seterr(all="ignore")

    def restore(token: Any) -> None:
        """Put the state back that `silence` replaced."""
        np.seterr(**token)

    def quietly(function: Callable[..., Any], *args: Any) -> Any:
        """Return ``function(*args)``, without warnings."""
        with np.errstate(all="ignore"):
            return function(*args)

else:
    silence = functools.partial(_extobj_contextvar.set, _make_extobj(all="ignore"))
    restore = _extobj_contextvar.reset
    _context = contextvars.Context()
    _context.run(silence)
    quietly = _context.run
