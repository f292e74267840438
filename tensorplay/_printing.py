"""How a tensor is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _dtype

if TYPE_CHECKING:
    from tensorplay._tensor import Tensor

__all__ = ["describe"]

PREFIX = "tensor("
# The types that a literal of the shown text would get by itself are not named.
_OBVIOUS = {"bool", "int64"}


def _body(array: Any) -> str:
    if array.dtype.kind == "V":  # ml_dtypes' types print as their float32 values
        array = array.astype(np.float32)
    options: dict[str, Any] = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80}
    with np.printoptions(**options, suppress=False):
        return np.array2string(array, separator=", ", prefix=PREFIX, floatmode="maxprec_equal")


def describe(tensor: Tensor) -> str:
    """Return the text of `tensor`: elements, and whatever is not the default."""
    notes: list[str] = []
    if tensor.is_meta:
        body = "..."
        notes += ["device='meta'", f"size={tuple(tensor.shape)}"]
    else:
        body = _body(tensor._array)
        if tensor.numel() == 0 and tensor.ndim > 1:
            notes.append(f"size={tuple(tensor.shape)}")
    d = tensor.dtype
    if tensor.is_meta or d is not _dtype.get_default_dtype() and d.name not in _OBVIOUS:
        notes.append(f"dtype={d!r}")
    node = tensor.grad_fn
    if node is not None:
        notes.append(f"grad_fn=<{node.name()}>")
    elif tensor.requires_grad:
        notes.append("requires_grad=True")
    return PREFIX + ", ".join([body, *notes]) + ")"
