"""Histories of tensors that are written in place, and of the views of such tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorplay._tensor import Tensor, spec_of
from tensorplay.autograd import grad_mode
from tensorplay.autograd.engine import run_backward
from tensorplay.autograd.graph import FREED, Node, edge_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["check_writable", "rebase_history"]


def check_writable(tensor: Tensor, operator: str) -> None:
    """Refuse an in-place write that would destroy the value of a leaf, or hit memory twice.

    Raises
    ------
    RuntimeError
        Recording is on and the tensor is a leaf that requires grad or a view of one; or several
        elements of the tensor share one place in memory.
    """
    base = tensor._base
    if grad_mode.state.enabled and base is not None and base.requires_grad and not tensor.requires_grad:
        raise RuntimeError(
            f"[{operator}] argument 'input': a view was created in no_grad mode and is being "
            "modified inplace with grad mode enabled, so that its base would not know. Make the "
            "view again where the write is, or write inside of no_grad() too."
        )
    if tensor.requires_grad and grad_mode.state.enabled:
        leaf = (
            "a leaf Variable" if tensor._grad_fn is None
            else "a view of a leaf Variable" if base is not None and base.is_leaf and base.requires_grad
            else None
        )  # fmt: skip
        if leaf is not None:
            message = (
                f"[{operator}] {leaf} that requires grad is being used in an in-place operation. "
                "Write `with tensorplay.no_grad():` around it, or use the out-of-place form: "
                "leaf Variable that requires grad is being used in an in-place operation."
            )
            raise RuntimeError(message)
    array = tensor._array
    # NumPy gives tensors without elements strides of zero.
    if array.size and any(
        step == 0 and size > 1 for step, size in zip(array.strides, array.shape, strict=True)
    ):
        message = (
            f"[{operator}] argument 'input': expected a tensor whose elements have a place of "
            f"their own, got strides {tensor.stride()} for size {list(tensor.shape)}: more than "
            "one element of the written-to tensor refers to a single memory location. "
            "Write x.clone() first."
        )
        raise RuntimeError(message)


class CopySlices(Node):
    """History of a base after a write through one of its views.

    Outside of the view the gradient passes; inside it goes through the node of the write.
    """

    __slots__ = ("base", "inner", "replay")

    def __init__(self, base: Tensor, inner: Node, replay: Callable[[Tensor], Tensor]) -> None:
        super().__init__((edge_of(base), *inner.edges[1:]), (spec_of(base),))
        self.base = self.outputs[0]
        self.inner: Node | None = inner
        self.replay = replay

    def apply(
        self, grads: list[Tensor | None], needed: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """Split the gradient between what the write kept and what it replaced."""
        grad = grads[0]
        if grad is None:
            return [None] * len(self.edges)
        if self.inner is None:
            raise RuntimeError(FREED)
        inside = self.replay(grad.contiguous())
        first, *others = self.inner.apply([inside], [needed[0], *needed[1:]])
        if not needed[0]:
            return [None, *others]
        covered = self._adjoint(inside.new_ones(inside.shape).detach()).ne(0)
        if first is None:
            return [grad.masked_fill(covered, 0), *others]
        return [self._adjoint(first).where(covered, grad), *others]

    def _adjoint(self, value: Tensor) -> Tensor:
        """Put `value`, shaped like the view, into zeros shaped like the base."""
        recording = grad_mode.state.enabled
        with grad_mode.enable_grad():
            base = value.new_zeros(self.base.shape).requires_grad_()
            view = self.replay(base)
        source, target = edge_of(view), edge_of(base)
        assert source is not None
        assert target is not None
        (result,) = run_backward(
            [(source, value)],
            retain_graph=False,
            create_graph=recording,
            inputs=[target],
            accumulate=False,
        )
        assert result is not None
        return result

    def release(self) -> None:
        """Free what the node of the write saved.

        That node is itself part of a second derivative if it saved its result. It is then still
        to run, and holds what it saved until then.
        """
        if self.inner is not None and self.inner.holds_values():
            self.inner = None


def rebase_history(tensor: Tensor, node: Node) -> None:
    """Make `node`, which recorded an in-place write to `tensor`, its history.

    The first edge of `node` must lead to the old history of `tensor`. If the tensor is a view, the
    base gets a history that contains the write, and all views follow.
    """
    base, replay = tensor._base, tensor._replay
    if base is None or replay is None:
        tensor._grad_fn, tensor._output_nr, tensor._requires_grad = node, 0, True
        tensor._shared_counter().history += 1
        return
    base._grad_fn, base._output_nr = CopySlices(base, node, replay), 0
    base._requires_grad = True
    tensor._shared_counter().history += 1
    tensor._synchronise()
