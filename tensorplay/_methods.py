"""The class that the layers above fill with methods.

``Tensor`` inherits from `TensorMethods`. The operator layer attaches one method per operator and
the autograd layer attaches ``backward`` and the hooks, so that ``_tensor`` knows neither. The stub
file beside this one is generated (``python -m tensorplay.ops.stubs``) and shows what is attached.
"""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["TensorMethods", "attach"]


class TensorMethods:
    """Namespace of the attached methods."""

    __slots__ = ()


def attach(name: str, member: Any) -> None:
    """Make `member` (a function or property) an attribute of every tensor.

    A function with a private name is called what people see.
    """
    if inspect.isfunction(member) and member.__name__.startswith("_"):
        member.__name__, member.__qualname__ = name, f"Tensor.{name}"
    setattr(TensorMethods, name, member)
