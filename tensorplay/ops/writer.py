"""Primitives that write part of a tensor: in place they touch no other element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _dtype
from tensorplay._detours import detours, watching
from tensorplay._quiet import restore, silence
from tensorplay._tensor import Tensor
from tensorplay.autograd import grad_mode
from tensorplay.autograd.inplace import check_writable, rebase_history
from tensorplay.ops.node import bare_spec
from tensorplay.ops.primitive import Primitive

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Writer"]


class Writer(Primitive):
    """A primitive whose in-place form needs no second array of the size of the tensor.

    Parameters
    ----------
    write
        ``write(*arrays)`` writes into the first; it raises before it writes anything.
    """

    def __init__(self, *args: Any, write: Callable[..., None], **options: Any) -> None:
        self.write = write
        super().__init__(*args, **options)

    def apply_inplace(self, args: tuple[Any, ...]) -> Tensor:
        """Write into the first argument; forward mode, vmap and device meta go the usual way."""
        target = args[0]
        where = f"{self.name}_"
        if not isinstance(target, Tensor) or type(target._array) is not np.ndarray:
            return super().apply_inplace(args)
        if detours and watching.recorder is not None:
            return super().apply_inplace(args)
        values, arrays, record, dual, meta = self._prepare(args)
        if dual or meta:
            return super().apply_inplace(args)
        spec = self.rule(*self.specs(values))
        if spec.shape != target._array.shape or not _dtype.can_cast(spec.dtype, target._dtype):
            return super().apply_inplace(args)  # which words the error
        check_writable(target, where)
        record = record and grad_mode.state.enabled and target._dtype.is_differentiable
        wanted: tuple[bool, ...] = ()
        node = None
        if record:
            node, wanted = self._node(values, target)
        token = silence()
        try:
            self.write(*map(_apart, arrays, [arrays[0]] * len(arrays)))
        except (ValueError, OverflowError, MemoryError) as error:
            self._explain(error)
            raise
        finally:
            restore(token)
        target._bump_version()
        if node is not None:
            node.outputs = (bare_spec(target),)
            node.save_results((target,), wanted)
            rebase_history(target, node)
        return target


def _apart(value: Any, target: Any) -> Any:
    """Return what is read as a copy if it lies in the memory that is written."""
    if value is target or value is None:
        return value
    if isinstance(value, list):
        return [_apart(v, target) for v in value]
    shared = isinstance(value, np.ndarray) and np.may_share_memory(value, target)
    return value.copy() if shared else value
