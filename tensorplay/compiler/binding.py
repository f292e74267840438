"""What serves the calls of one kind: a program, where its tensors are, and when it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tensorplay._draws import noted_draws
from tensorplay._dtype import dtype
from tensorplay._tensor import Tensor
from tensorplay.autograd import grad_mode
from tensorplay.compiler.capture import Captured, Output
from tensorplay.compiler.derivative import CompiledNode
from tensorplay.compiler.guards import guard_function
from tensorplay.compiler.numbers import Make, number_tensor
from tensorplay.compiler.program import Program
from tensorplay.compiler.watch import Guard
from tensorplay.func.trees import flatten, unflatten

__all__ = ["MISS", "Binding"]

#: What a call gives where Python would decide otherwise than in the capture.
MISS: Final = object()


class Binding:
    """A program for the calls of one kind: one set of shapes, and guards that hold."""

    def __init__(
        self,
        captured: Captured,
        program: Program,
        leaf_numbers: dict[int, int],
        name: str,
    ) -> None:
        self.program = program
        self.name = name
        self.guards: list[Guard] = list(captured.watch.guards.values())
        self.live: list[Guard] = []
        self.fixed: list[tuple[int, Tensor]] = []
        self.sources: list[tuple[str, int]] = []  # of each input of the graph
        numbers = captured.recorder.numbers
        self.numbers: list[tuple[Make, type, dtype]] = []
        self.number_conditions = [] if numbers is None else numbers.conditions
        for x in captured.inputs:
            position = leaf_numbers.get(id(x.tensor))
            if position is not None:
                self.sources.append(("leaf", position))
                continue
            if numbers is not None and (number := numbers.inputs.get(id(x.tensor))) is not None:
                self.sources.append(("number", len(self.numbers)))
                self.numbers.append(number)
                continue
            guard = captured.watch.tensors[id(x.tensor)][1]
            if guard is not None:
                self.sources.append(("live", len(self.live)))
                self.live.append(guard)
            else:
                self.sources.append(("fixed", len(self.fixed)))
                self.fixed.append((len(self.fixed), x.tensor))
        self.guard, self.guard_text = guard_function(self.guards, self.live)
        live = {id(g.value) for g in self.live}
        self.outside = {i for i in captured.watch.tensors if i not in live}
        # Of tensors that only Python looks at, and of those that no guard finds.
        taken = {id(x.tensor) for x in captured.inputs} - {id(t) for _, t in self.fixed}
        self.facts = [
            (t, _facts(t)) for i, (t, _) in captured.watch.tensors.items() if i not in taken
        ]
        self.outputs = captured.outputs
        self.structure = captured.structure
        self.conditions = [c.value for c in captured.recorder.conditions]
        self.condition_texts = [(c.construct, c.line) for c in captured.recorder.conditions]
        self.outside_writes = captured.outside_writes
        self.written = sorted(
            {w[0] for w in captured.writes} | {w[0] for w in captured.outside_writes}
        )
        self.repeats = captured.recorder.repeats
        self.draws = captured.recorder.draws
        self.roots = len(captured.roots)
        self.differentiable = captured.differentiable if captured.gradients else []
        self.wanted = captured.wanted
        self.only_leaves = [p for k, p in self.sources if k == "leaf"]
        self.in_order = all(k == "leaf" for k, _ in self.sources)
        only = self.outputs[0] if len(self.outputs) == 1 else None
        # The commonest function: one new tensor, and nothing else.
        self.is_single = (
            only is not None
            and only.kind == "root"
            and not only.steps
            and self.structure == flatten(0)[1]
            and self.roots == 1
        )
        self.hits = 0

    # --- a call -----------------------------------------------------------------------------

    def tensors(self, leaves: Sequence[Any]) -> list[Tensor] | None:
        """Return the inputs of the graph for a call, None if the guards do not hold."""
        live = self.guard()
        if live is None:
            return None
        if live or self.outside:
            given = {id(leaves[i]) for i in self.only_leaves}
            if not (given.isdisjoint(self.outside) and given.isdisjoint(map(id, live))):
                return None  # an argument is also read from outside
        for t, facts in self.facts:
            if _facts(t) != facts:
                return None
        numbers: list[Any] = []
        if self.numbers or self.number_conditions:
            found = self._numbers_of(leaves)
            if found is None:
                return None
            numbers = found
        if self.in_order:
            flat = [leaves[i] for i in self.only_leaves]
        else:
            flat = [
                leaves[i] if kind == "leaf" else live[i] if kind == "live"
                else numbers[i] if kind == "number" else self.fixed[i][1]
                for kind, i in self.sources
            ]  # fmt: skip
        if self.written and self._overlap(flat):
            return None
        return flat

    def _numbers_of(self, leaves: Sequence[Any]) -> list[Tensor] | None:
        """Return the numbers that the graph takes; None if it does not hold for those of a call."""
        if self.other_decision(leaves) is not None:
            return None
        try:
            made = [number_tensor(make(leaves), usual, kind) for make, usual, kind in self.numbers]
        except Exception:  # noqa: BLE001 - the function raises it itself
            return None
        tensors = [x for x in made if x is not None]
        return tensors if len(tensors) == len(made) else None

    def other_decision(self, leaves: Sequence[Any]) -> str | None:
        """Return the line in which Python would decide otherwise by a number; None without one."""
        for make, decided, line in self.number_conditions:
            try:
                if make(leaves) is decided:
                    continue
            except Exception:  # noqa: BLE001, S110 - the function raises it itself
                pass
            return line or "an unknown line"
        return None

    def _overlap(self, flat: Sequence[Tensor]) -> bool:
        """Tell whether something that is written lies in the memory of another input."""
        for i in self.written:
            mine = flat[i]._array
            for j, other in enumerate(flat):
                if j != i and np.may_share_memory(mine, other._array):
                    return True
        return False

    def state(self, flat: Sequence[Tensor]) -> tuple[list[int], list[Any]]:
        """Return versions of what is written, and states of what draws random numbers."""
        versions = [flat[i]._shared_counter().value for i in self.written]
        return versions, [g.get_state() for g in self.draws]

    def goes_back(self, flat: Sequence[Tensor], before: tuple[list[int], list[Any]]) -> bool:
        """Undo what a run that raised has done; false where something cannot be undone."""
        versions, states = before
        if not self.repeats or [flat[i]._shared_counter().value for i in self.written] != versions:
            return False
        for generator, state in zip(self.draws, states, strict=True):
            generator.set_state(state)
        return True

    def decides(self, flat: list[Tensor]) -> bool:
        """Tell whether Python decides as in the capture, before something happens for good."""
        check = self.program.check
        if check is None:
            return True
        try:
            with grad_mode.no_grad():
                values = check(*flat)
        except Exception:  # noqa: BLE001 - what it would have decided otherwise is unknown
            return False
        return all(_equal(v._array, c) for v, c in zip(values, self.conditions, strict=True))

    def run(self, flat: list[Tensor]) -> Any:
        """Run the program on the inputs of the graph; `MISS` if Python would decide otherwise."""
        program = self.program
        mode = grad_mode.state
        recording = mode.enabled
        draws: Sequence[Any] = ()
        if recording:
            mode.enabled = False
            try:
                if self.draws and self.differentiable:
                    with noted_draws() as draws:
                        results = program.call(*flat)
                else:
                    results = program.call(*flat)
            finally:
                mode.enabled = True
        else:
            results = program.call(*flat)
        if results.__class__ is not tuple:
            results = tuple(results)
        if self.conditions and program.check is None:  # which was asked before
            for value, expected in zip(results[self.roots :], self.conditions, strict=False):
                if not _equal(value._array, expected):
                    return MISS
        if recording and self.differentiable:
            self._record(flat, results, draws)
        if self.is_single:
            return results[0]
        return self._finish(flat, results, recording=recording)

    def _record(
        self,
        flat: list[Tensor],
        results: tuple[Any, ...],
        draws: Sequence[Any],
    ) -> None:
        program = self.program
        first = program.first_kept
        numbers = {root: n for n, root in enumerate(self.differentiable)}
        tensors = [results[i] for i in self.differentiable]
        node = CompiledNode(self.name, program, flat, self.wanted, tensors, results[first:], draws)
        for number, tensor in enumerate(tensors):
            tensor._grad_fn, tensor._output_nr, tensor._requires_grad = node, number, True
        saved = {i: results[i] for kind, i in program.saved if kind == "root"}
        if saved:
            node.keep_results(saved, numbers)

    def _finish(self, flat: list[Tensor], results: tuple[Any, ...], *, recording: bool) -> Any:
        for position, root, recorded in self.outside_writes:
            with grad_mode.set_grad_enabled(recorded and recording):
                flat[position].copy_(results[root])
        found: list[Any] = []
        views: dict[Any, Any] = {}
        for x in self.outputs:
            found.append(
                found[x.index] if x.kind == "result"
                else self._output(x, flat, results, views, recording=recording)
            )  # fmt: skip
        return unflatten(self.structure, found)

    def _output(
        self,
        output: Output,
        flat: list[Tensor],
        results: tuple[Any, ...],
        views: dict[Any, Any],
        *,
        recording: bool,
    ) -> Any:
        """Return one result of the function; `views` are those that were made for earlier ones."""
        if output.kind == "constant":
            return output.value
        tensor: Tensor = flat[output.index] if output.kind == "input" else results[output.index]
        if output.another or (
            output.detached and (tensor._requires_grad or output.kind == "input")
        ):
            tensor = tensor.detach()
        if output.steps:
            # One call of the function, which has one tuple `rest`, is one call here: its parts have
            # one node, and what several results are seen through is there once.
            place: Any = (output.kind, output.index, output.detached, output.another)
            with grad_mode.set_grad_enabled(recording):
                for step, (primitive, rest, number) in enumerate(output.steps, 1):
                    place = (place, id(rest))
                    last = step == len(output.steps)
                    # A result of its own, where the function made another tensor of the same view.
                    out = None if last and (place, number) in views else views.get(place)
                    if out is None:
                        out = views[place] = primitive.apply((tensor, *rest))
                    tensor = out if number is None else out[number]
                    place = (place, number)
            views[place] = tensor
        return tensor


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    array = tensor._array
    return (
        tensor._dtype,
        array.shape,
        array.strides,
        tensor._requires_grad,
        (tensor._tangent is None and array.__class__ is np.ndarray),
    )


def _equal(one: Any, two: Any) -> bool:
    return bool(one.shape == two.shape and one.tobytes() == two.tobytes())
