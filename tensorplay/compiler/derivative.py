"""The node that a compiled function leaves in the recorded graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _native
from tensorplay._draws import drawn_again
from tensorplay._tensor import Spec, Tensor, wrap
from tensorplay.autograd import grad_mode
from tensorplay.autograd.engine import run_backward
from tensorplay.autograd.graph import FREED, Node, SavedTensor, edge_of, source_of
from tensorplay.compiler.arrivals import Arrival, arrival_of
from tensorplay.compiler.layouts import relaid
from tensorplay.graph.interpreter import Interpreter

if TYPE_CHECKING:
    from tensorplay.compiler.program import Program

__all__ = ["CompiledNode"]


class CompiledNode(Node):
    """History of all results of one call of a compiled function."""

    __slots__ = ("_draws", "_inputs", "_name", "_program", "_results", "_values", "_wanted")

    takes_undefined = False

    def __init__(
        self,
        name: str,
        program: Program,
        inputs: Sequence[Tensor],
        wanted: Sequence[int],
        results: Sequence[Tensor],
        values: Sequence[Any],
        draws: Sequence[Any] = (),
    ) -> None:
        super().__init__([source_of(inputs[i]) for i in wanted])
        self.outputs = [Spec(r._array.shape, r._dtype) for r in results]
        self._name = name
        self._program = program
        self._wanted = wanted
        # For a derivative of the derivative all inputs are needed; they are kept as they are.
        self._inputs: list[SavedTensor] | None = [SavedTensor(x) for x in inputs]
        self._values = values
        self._draws = draws  # where each draw of the call began
        self._results: dict[int, SavedTensor] = {}

    def keep_results(self, saved: dict[int, Tensor], numbers: dict[int, int]) -> None:
        """Save results that the backward graph reads, which have this node as history now."""
        self._results = {i: SavedTensor(t, numbers.get(i)) for i, t in saved.items()}

    def name(self) -> str:
        """Return the name shown to people."""
        return self._name

    def saved(self) -> dict[str, Any]:
        """Return the saved tensors."""
        return {"inputs": list(self._inputs or ()), "results": list(self._results.values())}

    def saves_result(self) -> bool:
        """Tell whether a result is saved."""
        return bool(self._results)

    def saves_packed(self) -> bool:
        """Tell whether something saved comes back through functions of people's own."""
        return any(s.is_packed for s in (*(self._inputs or ()), *self._results.values()))

    def release(self) -> None:
        """Free what is saved."""
        self._inputs, self._values, self._results, self._draws = None, (), {}, ()

    def apply(self, grads: list[Tensor | None], needed: Sequence[bool]) -> Sequence[Tensor | None]:
        """Run the backward graph; recorded passes run the steps of the forward graph instead."""
        if self._inputs is None:
            raise RuntimeError(FREED)
        missing = [
            n for n, (g, spec) in enumerate(zip(grads, self.outputs, strict=True))
            if spec is not None and g is None
        ]  # fmt: skip
        given = [
            wrap(_zeros(spec), spec.dtype) if g is None else g
            for g, spec in zip(grads, self.outputs, strict=True)
            if spec is not None
        ]
        if grad_mode.state.enabled:
            return self._apply_recorded(given, missing)
        program = self._program
        arguments = self._kept_values()
        kept = len(arguments)
        arguments += given
        arrivals: list[Arrival | None] = [None] * len(given)
        laid = list(arguments)
        for number, g in enumerate(given):
            array = g._array
            if number in missing:  # nothing is computed of it
                continue
            if array.__class__ is np.ndarray and not array.flags.c_contiguous:
                arrivals[number] = arrival_of(array)
                arguments[kept + number] = wrap(np.ascontiguousarray(array), g._dtype)
        if missing:
            first = len(program.saved)
            call, given_inputs = program.backward_without(
                arguments, tuple([first + n for n in missing])
            )
        else:
            call, given_inputs = program.backward_call(arguments), program.given
        results = iter(call(*arguments))
        found = [next(results) if there else None for there in given_inputs]
        if any(arrivals):
            orders = program.orders(tuple(arrivals), laid)
            for result, order in zip(found, orders, strict=True):
                if result is not None and result._array.__class__ is np.ndarray:
                    result._array = relaid(result._array, order)
        return found

    def _kept_values(self) -> list[Tensor]:
        """Return what the backward graph reads of the forward one."""
        inputs = self._inputs or ()
        for index in self._program.held:
            inputs[index].unpack(self)  # raises if it has been written to
        return [
            inputs[index].unpack(self) if kind == "input"
            else self._results[index].unpack(None) if kind == "root"
            else self._values[index]
            for kind, index in self._program.saved
        ]  # fmt: skip

    def apply_to_array(
        self, grad: Any, wanted: Collection[Node] | None, *, retain: bool
    ) -> Sequence[Any] | None:
        """Run the backward graph for the gradient of an only result, if it runs no other code."""
        program = self._program
        if (
            self._inputs is None
            or self._shape is None
            or not program.backward_is_builtin
            or grad_mode.state.enabled
            or not grad.flags.c_contiguous
            or self.saves_packed()
        ):
            return None
        arguments = [*self._kept_values(), wrap(grad, self._dtype)]
        results = iter(program.backward_call(arguments)(*arguments))
        if not retain:
            self.release()
        return [next(results)._array if there else None for there in program.given]

    def _apply_recorded(
        self, given: list[Tensor], missing: Sequence[int]
    ) -> Sequence[Tensor | None]:
        program = self._program
        replay = program.replay()
        if replay.graph is None:
            raise RuntimeError(
                f"[{self._name}] a second derivative of a compiled function that {replay.problem} "
                "is not captured. Call the function that was compiled: f.__wrapped__."
            )
        inputs = [
            s.unpack(self) if used else None  # it may have been written since
            for s, used in zip(self._inputs or (), replay.reads, strict=True)
        ]
        wanted = [inputs[i] for i in self._wanted]
        # Twins with the same history, so that a pass down to them goes no further.
        twins = {id(x): _twin(x) for x in inputs if x is not None and x.requires_grad}
        with drawn_again(self._draws):
            roots = Interpreter(replay.graph).run(*[twins.get(id(x), x) for x in inputs])
        starts = [
            (edge, g)
            for n, (number, g) in enumerate(zip(program.differentiable, given, strict=True))
            if n not in missing and (edge := edge_of(roots[number])) is not None
        ]
        edges = [None if x is None else edge_of(twins[id(x)]) for x in wanted]
        found = iter(
            run_backward(
                starts,
                retain_graph=True,
                create_graph=True,
                inputs=[e for e in edges if e is not None],
                accumulate=False,
            )
        )
        return [None if e is None else next(found) for e in edges]


if _native.core is not None:
    _native.core.configure_compiled(CompiledNode)


def _zeros(spec: Spec) -> Any:
    """Return one zero in all places: it decides nothing about how what is computed of it lies."""
    return np.broadcast_to(np.zeros((), spec.dtype.numpy), spec.shape)


def _twin(tensor: Tensor) -> Tensor:
    """Return a tensor whose only history is a step from `tensor`."""
    twin: Tensor = tensor.view_as(tensor)
    return twin
