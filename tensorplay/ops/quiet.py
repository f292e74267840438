"""Silence for NumPy's floating-point warnings inside an implementation, at little cost.

``np.errstate(all="ignore")`` makes its state anew each time, which costs more than a small
addition. Here the state is made once: ``token = silence()``, then ``restore(token)``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["restore", "silence"]

silence: Callable[[], Any]
restore: Callable[[Any], Any]

try:
    from numpy._core.umath import _extobj_contextvar, _make_extobj
except ImportError:  # a NumPy that keeps its state elsewhere: its public, slower way

    def silence() -> Any:
        """Stop the warnings and return what `restore` needs."""
        return np.seterr(all="ignore")

    def restore(token: Any) -> None:
        """Put the state back that `silence` replaced."""
        np.seterr(**token)

else:
    silence = functools.partial(_extobj_contextvar.set, _make_extobj(all="ignore"))
    restore = _extobj_contextvar.reset
