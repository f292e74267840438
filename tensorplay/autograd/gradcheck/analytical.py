"""Jacobian matrices from the gradient formulas, row by row, and what the formulas must keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd import forward_ad
from tensorplay.autograd.batched import Level, batch, expose
from tensorplay.autograd.engine import run_backward
from tensorplay.autograd.gradcheck.numerical import Layout, tensors_in
from tensorplay.autograd.graph import (
    AccumulateGrad,
    Edge,
    Node,
    RemovableHandle,
    edge_of,
)

# Elements that the gradients of a batch of passes may have at most, in the widest place.
_MOST_TOGETHER = 250_000

__all__ = [
    "Reverse",
    "ReverseJacobian",
    "fill_tangents",
    "forward_jacobian",
    "raw_gradient_types",
    "run_forward",
    "zero_tangent",
]

Matrix = npt.NDArray[Any]


@dataclass(frozen=True)
class ReverseJacobian:
    """Jacobian matrices of all outputs for each input, and which gradients arrived at all."""

    matrices: list[Matrix]  # per input: elements of the input × elements of the vector
    defined: list[list[bool]]  # per input and output


def _edges(tensors: Sequence[Tensor]) -> list[Edge]:
    found = [edge_of(tensor) for tensor in tensors]
    return [edge for edge in found if edge is not None]


class Reverse:
    """Vector-Jacobian products of one recorded run of the function.

    Parameters
    ----------
    outputs
        Those of the outputs that `layout` describes.
    inputs
        The checked inputs, all of which require grad.
    layout
        Where the outputs lie in one vector.
    """

    def __init__(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], layout: Layout) -> None:
        self.outputs = outputs
        self.inputs = inputs
        self.layout = layout
        self.fills = False  # whether zeros stand for gradients that are not given
        self._roots = _edges(outputs)
        self._inputs = _edges(inputs)

    def vjp(
        self, cotangents: Sequence[Tensor | None], *, undefined: Sequence[int] = ()
    ) -> list[Tensor | None]:
        """Return the gradient of each input.

        Parameters
        ----------
        cotangents
            One per output; None: nothing starts there.
        undefined
            Outputs at which the formula is called without a gradient.
        """
        if self.fills:
            cotangents = [
                self.zeros(n) if c is None and n not in undefined else c
                for n, c in enumerate(cotangents)
            ]
        roots = [
            (edge, cotangent)
            for number, (edge, cotangent) in enumerate(zip(self._roots, cotangents, strict=True))
            if cotangent is not None or number in undefined
        ]
        return run_backward(
            roots, retain_graph=True, create_graph=False, inputs=self._inputs, accumulate=False
        )

    def runs_on_zeros(self) -> bool:
        """Tell whether the formulas run where all outputs have a gradient."""
        try:
            self.vjp([self.zeros(n) for n in range(len(self.outputs))])
        except Exception:  # noqa: BLE001 - a formula raises what it likes
            return False
        return True

    def jacobian(self, rows: Sequence[Matrix], columns: Sequence[Matrix]) -> ReverseJacobian:
        """Return the Jacobian matrices by one pass per element of the outputs.

        Parameters
        ----------
        rows
            Per input, the elements looked at.
        columns
            Per output, the elements looked at.
        """
        matrices = [
            np.zeros((len(r), sum(map(len, columns))), self._matrix_type(x))
            for r, x in zip(rows, self.inputs, strict=True)
        ]
        defined = [[False] * len(self.outputs) for _ in self.inputs]
        start = 0
        for output, wanted in enumerate(columns):
            first = 0
            while first < len(wanted):
                chosen = wanted[first : first + self.together]
                place = slice(start + first, start + first + len(chosen))
                try:
                    blocks = self._columns(output, chosen)
                except Exception:
                    if self.together == 1:
                        raise
                    self.together = 1  # a formula looks at the values of its gradient
                    continue
                first += len(chosen)
                for number, block in enumerate(blocks):
                    if block is not None:
                        if len(rows[number]) != block.shape[1]:
                            block = block[:, rows[number]]  # noqa: PLW2901 - a sample of it
                        matrices[number][:, place] = block.T
                        defined[number][output] = True
            start += len(wanted)
        return ReverseJacobian(matrices, defined)

    @cached_property
    def is_own(self) -> bool:
        """Whether all formulas are those of the product's operators, without code of people.

        These take batches of gradients, and keep nothing between two runs.
        """
        return all(_is_own(node) for node in _reachable(self._roots))

    @cached_property
    def together(self) -> int:
        """How many passes are run as one, on a batch of gradients.

        Formulas of people are run as they will be used, for one gradient at a time.
        """
        if not self.is_own:
            return 1
        nodes = _reachable(self._roots)
        widest = max((s.numel for n in nodes for s in n.outputs if s is not None), default=1)
        return max(1, min(256, _MOST_TOGETHER // max(widest, 1)))

    def _columns(self, output: int, chosen: Matrix) -> list[Matrix | None]:
        """Return, per input, the gradients for some elements of an output, one per row."""
        count = len(chosen)
        cotangents: list[Tensor | None] = [None] * len(self.outputs)
        if self.together == 1:
            cotangents[output] = self._one_hot(output, int(chosen[0]))
            grads = self.vjp(cotangents)
            return [None if g is None else g._array.reshape(1, -1) for g in grads]

        spec = self.layout.specs[output]
        array = np.zeros((count, spec.numel), spec.dtype.numpy)
        part, flat = np.divmod(chosen, spec.numel)
        array[np.arange(count), flat] = np.where(part, 1j, 1) if spec.dtype.is_complex else 1
        level = Level(count)
        cotangents[output] = batch(wrap(array.reshape(count, *spec.shape), spec.dtype), (level,))
        grads = self.vjp(cotangents)
        return [None if g is None else expose(g, (level,))._array.reshape(count, -1) for g in grads]

    @staticmethod
    def _matrix_type(tensor: Tensor) -> Any:
        return np.complex128 if tensor.dtype.is_complex else np.float64

    def _one_hot(self, output: int, column: int) -> Tensor:
        spec = self.layout.specs[output]
        part, flat = divmod(column, spec.numel)
        array = np.zeros(spec.numel, spec.dtype.numpy)
        array[flat] = 1j if part else 1
        return wrap(array.reshape(spec.shape), spec.dtype)

    def cotangent(self, output: int, vector: Matrix) -> Tensor:
        """Return the part `vector` of the flat vector as a gradient of `output`."""
        spec = self.layout.specs[output]
        if spec.dtype.is_complex:
            vector = vector[: spec.numel] + 1j * vector[spec.numel :]
        return wrap(vector.astype(spec.dtype.numpy).reshape(spec.shape), spec.dtype)

    def zeros(self, output: int) -> Tensor:
        """Return a gradient of zeros for `output`."""
        spec = self.layout.specs[output]
        return wrap(np.zeros(spec.shape, spec.dtype.numpy), spec.dtype)


def _reachable(roots: Sequence[Edge]) -> list[Node]:
    nodes = list({id(edge.node): edge.node for edge in roots}.values())
    seen = {id(node) for node in nodes}
    for node in nodes:  # grows while it is walked
        for edge in node.edges:
            if edge is not None and id(edge.node) not in seen:
                seen.add(id(edge.node))
                nodes.append(edge.node)
    return nodes


def _is_own(node: Node) -> bool:
    """Tell whether a node belongs to the product's own operators, and nobody has hooks on it."""
    if node.has_hooks():
        return False
    if isinstance(node, AccumulateGrad):
        hooks = node.variable._hooks
        return hooks is None or not hooks.grad
    primitive = getattr(node, "primitive", None)
    return primitive is not None and primitive.schema.namespace is None and not node.saves_packed()


def raw_gradient_types(
    reverse: Reverse, cotangents: Sequence[Tensor]
) -> list[list[tuple[str, Any]]]:
    """Return, per input, the maker and the type of the gradients as the formulas returned them.

    The engine casts a gradient of another type, so the types are read on the way, by hooks.
    """
    slots = {(id(edge.node), edge.output_nr): n for n, edge in enumerate(reverse._inputs)}
    found: list[list[tuple[str, Any]]] = [[] for _ in reverse.inputs]
    handles: list[RemovableHandle] = []

    def watch(node: Node) -> Callable[..., None]:
        def hook(grads: Sequence[Any], grad_outputs: Sequence[Any]) -> None:
            for edge, grad in zip(node.edges, grads, strict=True):
                if edge is None or not isinstance(grad, Tensor):
                    continue
                number = slots.get((id(edge.node), edge.output_nr))
                if number is not None:
                    found[number].append((node.name(), grad.dtype))

        return hook

    try:
        handles.extend(node.register_hook(watch(node)) for node in _reachable(reverse._roots))
        reverse.vjp(cotangents)
    finally:
        for handle in handles:
            handle.remove()
    return found


def run_forward(
    call: Callable[[Callable[[Tensor], Any]], Any],
    tangents: dict[int, Tensor],
    layout: Layout,
    level: Level | None = None,
) -> list[Matrix | None]:
    """Return the tangents of the outputs.

    Parameters
    ----------
    call
        ``call(change)`` runs the function with each tensor replaced by ``change(tensor)``.
    tangents
        Tangents by the identity of the input.
    layout
        Which outputs are looked at.
    level
        The level at which the tangents are batched; the results have its dimension in front.
    """

    def change(tensor: Tensor) -> Any:
        tangent = tangents.get(id(tensor))
        return tensor if tangent is None else forward_ad.make_dual(tensor, tangent)

    with forward_ad.dual_level():
        outputs = tensors_in(call(change))
        found = [forward_ad.unpack_dual(outputs[n]).tangent for n in layout.numbers]
        if level is not None:
            found = [None if t is None else expose(t, (level,)) for t in found]
        return [None if t is None else t._array.copy() for t in found]


def zero_tangent(tensor: Tensor) -> Tensor:
    """Return zeros for a tangent that is not given."""
    return wrap(np.zeros(tensor.shape, tensor.dtype.numpy), tensor.dtype)


def fill_tangents(
    call: Callable[[Callable[[Tensor], Any]], Any], tensors: Sequence[Tensor]
) -> Callable[[Callable[[Tensor], Any]], Any]:
    """Return `call` with zero tangents for those of `tensors` that a change gives none."""
    known = {id(tensor) for tensor in tensors}

    def filled(change: Callable[[Tensor], Any]) -> Any:
        def both(tensor: Tensor) -> Any:
            changed = change(tensor)
            if changed is tensor and id(tensor) in known:
                return forward_ad.make_dual(tensor, zero_tangent(tensor))
            return changed

        return call(both)

    return filled


def forward_jacobian(
    call: Callable[[Callable[[Tensor], Any]], Any],
    tensor: Tensor,
    layout: Layout,
    rows: Matrix,
    columns: Matrix,
    together: int = 1,
) -> Matrix:
    """Return the Jacobian matrix for one input by forward passes, `together` elements in each."""
    kind = np.complex128 if tensor.dtype.is_complex else np.float64
    matrix: Matrix = np.zeros((len(rows), len(columns)), kind)
    for unit in (1, 1j) if tensor.dtype.is_complex else (1,):
        for first in range(0, len(rows), together):
            chosen = rows[first : first + together]
            array = np.zeros((len(chosen), tensor.numel()), tensor.dtype.numpy)
            array[np.arange(len(chosen)), chosen] = unit
            array = array.reshape(len(chosen), *tensor.shape)
            level = None if together == 1 else Level(len(chosen))
            tangent = wrap(array[0] if level is None else array, tensor.dtype)
            if level is not None:
                tangent = batch(tangent, (level,))
            found = run_forward(call, {id(tensor): tangent}, layout, level)
            parts: list[Matrix] = []
            for t, spec in zip(found, layout.specs, strict=True):
                part = np.zeros((len(chosen), spec.numel), spec.dtype.numpy)
                if t is not None:
                    part[...] = t.reshape(len(chosen), spec.numel)
                parts.extend([part.real, part.imag] if spec.dtype.is_complex else [part])
            joined = np.concatenate(parts, 1) if parts else np.zeros((len(chosen), 0))
            matrix[first : first + len(chosen)] += unit * joined[:, columns]
    return matrix
