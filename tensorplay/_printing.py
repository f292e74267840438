"""How a tensor is shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _dtype

if TYPE_CHECKING:
    from tensorplay._tensor import Tensor

__all__ = ["describe", "set_printoptions"]

PREFIX = "tensor("
# The types that a literal of the shown text would get by itself are not named.
_OBVIOUS = {"bool", "int64"}


@dataclass(frozen=True)
class _Options:
    precision: int = 4
    threshold: int = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_options = _Options()


def set_printoptions(
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how tensors are shown; numbers left out stay as they are.

    Parameters
    ----------
    precision
        Digits after the point, 4 at first.
    threshold
        Number of elements from which the middle is left out, 1000 at first.
    edgeitems
        Elements shown on each side of what is left out, 3 at first.
    linewidth
        Characters in a line, 80 at first.
    sci_mode
        True for exponents always, False for never; None, also if left out, for exponents where
        the numbers differ too much in size.

    Raises
    ------
    ValueError
        A number is negative.
    """
    global _options  # noqa: PLW0603 - one process-wide setting, as in the field
    numbers = {
        "precision": precision, "threshold": threshold, "edgeitems": edgeitems,
        "linewidth": linewidth,
    }  # fmt: skip
    given = {name: value for name, value in numbers.items() if value is not None}
    for name, value in given.items():
        if value < 0:
            message = f"[set_printoptions] argument '{name}': expected 0 or more, got {value}."
            raise ValueError(message)
    _options = replace(_options, **given, sci_mode=sci_mode)


def _body(array: Any) -> str:
    if array.dtype in _dtype.NARROW and array.dtype != np.float16:  # as their float32 values
        array = array.astype(np.float32)
    shown = _options
    formatter: Any = None
    if shown.sci_mode is not None and array.dtype.kind in "fc":
        kind = "e" if shown.sci_mode else "f"

        def number(value: Any) -> str:
            return f"{value:.{shown.precision}{kind}}"

        formatter = {
            "float_kind": number,
            "complex_kind": lambda z: f"{number(z.real)}{z.imag:+.{shown.precision}{kind}}j",
        }
    return np.array2string(
        array,
        max_line_width=shown.linewidth,
        precision=shown.precision,
        separator=", ",
        prefix=PREFIX,
        floatmode="maxprec_equal",
        formatter=formatter,
        threshold=shown.threshold,
        edgeitems=shown.edgeitems,
        sign="-",
    )


def _is_obvious(tensor: Tensor) -> bool:
    """Tell whether the shown numbers say the type."""
    d, default = tensor.dtype, _dtype.get_default_dtype()
    if d is default or tensor.is_meta or tensor.is_cuda:
        return d is default
    return tensor.numel() > 0 and (d.name in _OBVIOUS or d is default.to_complex())


def describe(tensor: Tensor) -> str:
    """Return the text of `tensor`: elements, and whatever is not the default."""
    notes: list[str] = []
    if tensor.is_meta or tensor.is_cuda:
        body = "..."
        notes += [f"device='{tensor.device}'", f"size={tuple(tensor.shape)}"]
    else:
        body = _body(tensor._array)
        if tensor.numel() == 0 and tensor.ndim != 1:
            notes.append(f"size={tuple(tensor.shape)}")
    if not _is_obvious(tensor):
        notes.append(f"dtype={tensor.dtype!r}")
    node = tensor.grad_fn
    if node is not None:
        notes.append(f"grad_fn=<{node.name()}>")
    elif tensor.requires_grad:
        notes.append("requires_grad=True")
    text = PREFIX + ", ".join([body, *notes]) + ")"
    # As a list of parameters is read, one below the other.
    return f"Parameter containing:\n{text}" if tensor._role == "parameter" else text
