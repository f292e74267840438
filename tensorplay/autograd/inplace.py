"""Histories of tensors that are written in place, and of the views of such tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorplay._tensor import Spec, Tensor, spec_of, wrap
from tensorplay.autograd import grad_mode
from tensorplay.autograd.engine import check_gradient, run_backward
from tensorplay.autograd.function_context import zeros_of
from tensorplay.autograd.graph import FREED, Node, edge_of
from tensorplay.autograd.saved_tensors import before_write

__all__ = ["ViewOfInput", "check_writable", "rebase_history"]


def check_writable(
    tensor: Tensor, operator: str, *, argument: str = "input", written: bool = False
) -> None:
    """Refuse an in-place write that would destroy the value of a leaf, or hit memory twice.

    Parameters
    ----------
    tensor
        What will be written.
    operator
        Who writes, for the error.
    argument
        Which argument of it the tensor is; empty where it has no name.
    written
        Whether the write has happened already, so that it is too late to copy what was saved.

    Raises
    ------
    RuntimeError
        Recording is on and the tensor is a leaf that requires grad or a view of one; or several
        elements of the tensor share one place in memory.
    """
    if tensor._inference and not grad_mode.state.inference:
        message = (
            f"[{operator}] in-place update of an inference tensor outside of inference_mode() is "
            "not allowed. Write x.clone() first."
        )
        raise RuntimeError(message)
    if grad_mode.state.enabled:
        _check_recordable(tensor, operator)
    if _meets_itself(tensor._array):
        where = f" argument '{argument}':" if argument else ""
        message = (
            f"[{operator}]{where} expected a tensor whose elements have a place of "
            f"their own, got strides {tensor.stride()} for size {list(tensor.shape)}: more than "
            "one element of the written-to tensor refers to a single memory location. "
            "Write x.clone() first."
        )
        raise RuntimeError(message)
    if not written:
        before_write(tensor)


def _meets_itself(array: Any) -> bool:
    """Tell whether two elements may lie at one place, as in broadcast views and sliding windows.

    Sorted by stride, every dimension must step over all that the smaller ones reach. Layouts that
    break this and yet keep their elements apart come from no view but `as_strided`.
    """
    if not array.size:  # NumPy gives arrays without elements strides of zero
        return False
    reach = array.itemsize
    for stride, size in sorted(
        (abs(s), n) for s, n in zip(array.strides, array.shape, strict=True)
    ):
        if size == 1:
            continue
        if stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def _check_recordable(tensor: Tensor, operator: str) -> None:
    base = tensor._base
    if base is not None and isinstance(tensor._replay, ViewOfInput):
        tensor._replay(base)
    if not tensor.requires_grad:
        if base is not None and base.requires_grad:
            message = (
                f"[{operator}] argument 'input': a view was created in no_grad mode and is being "
                "modified inplace with grad mode enabled, so that its base would not know. Make "
                "the view again where the write is, or write inside of no_grad() too."
            )
            raise RuntimeError(message)
        return
    if tensor._grad_fn is None:
        what = "a leaf Variable"
    elif base is not None and base.is_leaf and base.requires_grad:
        what = "a view of a leaf Variable"
    else:
        return
    message = (
        f"[{operator}] {what} that requires grad is being used in an in-place operation. "
        "Write `with tensorplay.no_grad():` around it, or use the out-of-place form."
    )
    raise RuntimeError(message)


class ViewOfInput:
    """Stands where a view says how to make it again, for a view that must not be written.

    An output of a `Function` that is a view of an input has the history that the Function's
    formula gives it; a write through the view, or to the base, would bypass the formula.
    """

    def __init__(self, function: str) -> None:
        self.function = function

    def __call__(self, base: Tensor) -> Tensor:
        """Refuse."""
        message = (
            f"[{self.function}] an output of this Function is a view of its input of size "
            f"{list(base.shape)}, and one of them is being modified in place, which hides the "
            "gradient formula. Return a clone from forward."
        )
        raise RuntimeError(message)


class CopySlices(Node):
    """History of a base after a write through one of its views.

    Outside of the view the gradient passes; inside it goes through the node of the write.

    Parameters
    ----------
    base
        The tensor, with its history from before the write.
    inner
        Node of the write, with the view as its input `input_nr`.
    input_nr
        Which edge of `inner` leads to the history of the view.
    replay
        Makes the view from a base.
    """

    __slots__ = ("base", "inner", "input_nr", "replay", "takes_real_part")

    def __init__(
        self, base: Tensor, inner: Node, input_nr: int, replay: Callable[[Tensor], Tensor]
    ) -> None:
        edges = list(inner.edges)
        edges[input_nr] = edge_of(base)
        self.base = spec_of(base)
        super().__init__(edges, (self.base,))
        self.inner: Node | None = inner
        self.takes_real_part = inner.takes_real_part
        self.input_nr = input_nr
        self.replay = replay

    def apply(self, grads: list[Tensor | None], needed: Sequence[bool]) -> Sequence[Tensor | None]:
        """Split the gradient between what the write kept and what it replaced."""
        grad = grads[0]
        if grad is None:
            return [None] * len(self.edges)
        if self.inner is None:
            raise RuntimeError(FREED)
        inside = self.replay(grad)
        results = list(self.inner.apply([inside], needed))
        if len(results) != len(self.edges):
            return results  # the engine says what is wrong with that
        position = self.input_nr
        if needed[position]:
            replaced = results[position]
            if replaced is not None:
                where = (
                    f"{self.inner.place(position)}Function {self.inner.name()} returned an "
                    "invalid gradient at index"
                )
                spec = Spec(inside._array.shape, inside._dtype)
                replaced = check_gradient(
                    replaced,
                    spec,
                    f"{where} {position}",
                    device=grad.device,
                    takes_real_part=self.inner.takes_real_part,
                )
                replaced = self._adjoint(replaced)
            results[position] = self._merge(grad, inside, replaced)
        return results

    def _merge(self, grad: Tensor, inside: Tensor, replaced: Tensor | None) -> Tensor:
        """Return `grad` outside of the view and `replaced`, or zero, inside of it."""
        if inside._dtype is not grad._dtype:
            # A view of the real parts: a mask of whole elements would take the imaginary ones too.
            kept: Tensor = grad - self._adjoint(inside)
            return kept if replaced is None else kept + replaced
        ones = wrap(np.ones(inside._array.shape, inside._dtype.numpy))
        covered = self._adjoint(ones).ne(0)
        result: Tensor = (
            grad.masked_fill(covered, 0) if replaced is None else replaced.where(covered, grad)
        )
        return result

    def _adjoint(self, value: Tensor) -> Tensor:
        """Put `value`, shaped like the view, into zeros shaped like the base."""
        recording = grad_mode.state.enabled
        with grad_mode.enable_grad():
            base = wrap(np.zeros(self.base.shape, self.base.dtype.numpy), self.base.dtype)
            base._requires_grad = True
            source, target = edge_of(self.replay(base)), edge_of(base)
        if source is None or target is None:
            message = f"[{self.name()}] the view cannot be made again from its base."
            raise RuntimeError(message)
        (result,) = run_backward(
            [(source, value)],
            retain_graph=False,
            create_graph=recording,
            inputs=[target],
            accumulate=False,
        )
        return zeros_of(self.base) if result is None else result

    def name(self) -> str:
        """Return the name shown to people."""
        return "CopySlices"

    def set_view_tangent(self, tangent: Tensor) -> None:
        """Attach `tangent` to what the node of the write saved of its result."""
        if self.inner is not None:
            self.inner.set_tangent(0, tangent)

    def release(self) -> None:
        """Free what the node of the write saved.

        A node that saved its own result takes part in second derivatives by itself, later in the
        same pass: it is let go, not emptied.
        """
        if self.inner is not None and self.inner.saves_result():
            self.inner = None
        elif self.inner is not None:
            self.inner.release()


def rebase_history(tensor: Tensor, node: Node, *, output_nr: int = 0, input_nr: int = 0) -> None:
    """Make `node`, which recorded an in-place write to `tensor`, its history.

    If the tensor is a view, the base gets a history that contains the write, and all views follow.

    Parameters
    ----------
    tensor
        What was written.
    node
        Node of the write.
    output_nr
        Which output of the node the tensor is; 0 if it is a view.
    input_nr
        Which edge of the node leads to the old history of the tensor.
    """
    base, replay = tensor._base, tensor._replay
    if base is None or replay is None:
        _move_history(tensor, node, output_nr)
        tensor._shared_counter().history += 1
        return
    _move_history(base, CopySlices(base, node, input_nr, replay), 0)
    tensor._shared_counter().history += 1
    retained = tensor._grad_fn is not None and tensor._grad_fn.stop_retaining(tensor)
    tensor._synchronise()
    if retained:
        tensor._grad_fn.retain(tensor)


def _move_history(tensor: Tensor, node: Node, output_nr: int) -> None:
    """Give `tensor` a new node; a retained gradient is from now on that of the new value."""
    retained = tensor._grad_fn is not None and tensor._grad_fn.stop_retaining(tensor)
    tensor._grad_fn, tensor._output_nr, tensor._requires_grad = node, output_nr, True
    if retained:
        node.retain(tensor)
