"""The check itself: what is compared with what, in which order, and with which verdict."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplay import _dtype
from tensorplay._tensor import Tensor, spec_of, wrap
from tensorplay.autograd.gradcheck import report as words
from tensorplay.autograd.gradcheck.analytical import (
    Reverse,
    forward_jacobian,
    raw_gradient_types,
    run_forward,
)
from tensorplay.autograd.gradcheck.compare import Block, compare
from tensorplay.autograd.gradcheck.inputs import Leaf, admitted, find_tensors, replace_tensors
from tensorplay.autograd.gradcheck.numerical import (
    Differences,
    Evaluator,
    Layout,
    Precision,
    machine_epsilon,
    precision_for,
    tensors_in,
)
from tensorplay.autograd.gradcheck.report import GradcheckReport, PairReport

__all__ = ["Checker", "Options"]

Matrix = npt.NDArray[Any]

# A Jacobian matrix with more elements than this is sampled.
_MOST_ELEMENTS = 4_000_000
_SAMPLED = 2000
# Differences between two runs up to this many roundings come from the order of a sum.
_ROUNDINGS = 32


@dataclass(frozen=True)
class Options:
    """The flags of `gradcheck`."""

    eps: float | None = None
    atol: float | None = None
    rtol: float | None = None
    nondet_tol: float = 0.0
    check_undefined_grad: bool = True
    check_grad_dtypes: bool = False
    check_batched_grad: bool = False
    check_batched_forward_grad: bool = False
    check_forward_ad: bool = False
    check_backward_ad: bool = True
    fast_mode: bool = False


@dataclass
class _Pair:
    """Verdict under construction; the first failure stands."""

    output: int
    leaf: Leaf
    precision: Precision
    verdict: str = words.OK
    code: str | None = None
    message: str = ""
    block: Block | None = None

    def fail(self, verdict: str, code: str, message: str) -> None:
        if self.verdict == words.OK:
            self.verdict, self.code, self.message = verdict, code, message

    def take(self, block: Block, code: str, message: str) -> None:
        """Adopt the result of a comparison of matrices."""
        if self.verdict != words.OK or (self.block is not None and block.verdict == words.OK):
            return
        self.block = block
        if block.verdict != words.OK:
            text = f"{message} {block.message}".strip()
            self.fail(block.verdict, block.code or code, text)

    def report(self) -> PairReport:
        block = self.block
        if block is None:
            cause = worst = analytical = numerical = None
            noise = 0.0
        else:
            cause, worst, noise = block.cause, block.worst, block.noise_bound
            analytical, numerical = block.analytical, block.numerical
        p = self.precision
        return PairReport(
            self.output, self.leaf.name, self.verdict, self.code, self.message, cause, worst,
            p.step, p.atol, p.rtol, analytical, numerical, noise,
        )  # fmt: skip


@dataclass
class Checker:
    """One check of one function at one point.

    Parameters
    ----------
    func, args, kwargs
        The function and its arguments; tensors may lie in lists, tuples and dictionaries.
    options
        The flags.
    leaves
        The tensors found in the arguments.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Options
    leaves: list[Leaf] = field(init=False)
    checked: list[Leaf] = field(init=False)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leaves = find_tensors(self.func, self.args, self.kwargs)
        self.checked = admitted(self.leaves)

    # --- running the function ---------------------------------------------------------------

    def _call(self, change: Callable[[Tensor], Any] | None = None) -> Any:
        if change is None:
            return self.func(*self.args, **self.kwargs)
        args = replace_tensors(self.args, change)
        return self.func(*args, **replace_tensors(dict(self.kwargs), change))

    def run(self) -> GradcheckReport:
        """Run all comparisons.

        Raises
        ------
        AssertionError, ValueError, RuntimeError, …
            What the function or its formula raises, except where the check is about that.
        """
        outputs = tensors_in(self._call())
        chosen = [n for n, out in enumerate(outputs) if out.requires_grad]
        recorded = bool(chosen)
        if not recorded:
            chosen = [n for n, out in enumerate(outputs) if out.dtype.is_differentiable]
        layout = Layout(chosen, [spec_of(outputs[n]) for n in chosen])
        self.layout = layout
        self.evaluate = Evaluator(self._call, layout)
        self.centre = layout.flatten([outputs[n]._array for n in chosen])
        self._prepare_numerical()
        self.pairs = [
            [_Pair(n, leaf, self.precisions[i]) for i, leaf in enumerate(self.checked)]
            for n in chosen
        ]
        if self._forward_is_repeatable():
            if recorded and self.options.check_backward_ad:
                self._check_reverse([outputs[n] for n in chosen])
            elif not recorded:
                self._expect_constant()
            if self.options.check_forward_ad:
                self._check_forward()
        return self._report()

    def _report(self) -> GradcheckReport:
        pairs = tuple(pair.report() for row in self.pairs for pair in row)
        verdict = words.worst_verdict([pair.verdict for pair in pairs])
        first = next((pair for pair in pairs if pair.verdict == verdict), None)
        message = "every gradient agrees with the numerical one."
        if verdict != words.OK and first is not None:
            message = first.message
        return GradcheckReport(verdict, pairs, message, tuple(dict.fromkeys(self.notes)))

    # --- the numerical side -----------------------------------------------------------------

    def _prepare_numerical(self) -> None:
        """Choose type, step and tolerances, in float64 if the function takes it."""
        options = self.options
        outputs = [machine_epsilon(spec.dtype) for spec in self.layout.specs]
        coarsest = max(outputs, default=0.0)
        epsilons = [max(machine_epsilon(x.tensor.dtype), coarsest) for x in self.checked]
        narrow = max(epsilons) > 1e-12
        self.arrays: list[Matrix] = [leaf.tensor._array for leaf in self.checked]
        numerical = self.evaluate
        promoted = None
        if narrow and options.eps is None:
            promoted = self._promoted()
        if promoted is not None:
            numerical, self.arrays = promoted
            names = ", ".join(sorted({repr(x.tensor.dtype) for x in self.checked}))
            self.notes.append(
                f"inputs are {names}; the differences were taken in float64, on converted copies."
            )
        self.precisions: list[Precision] = []
        self.differences: list[Differences] = []
        for array, epsilon in zip(self.arrays, epsilons, strict=True):
            shown = precision_for(epsilon)
            used = precision_for(np.finfo(np.float64).eps) if promoted is not None else shown
            used = replace(
                used,
                step=used.step if options.eps is None else options.eps,
                atol=shown.atol if options.atol is None else options.atol,
                rtol=shown.rtol if options.rtol is None else options.rtol,
                resolution=shown.resolution,
            )
            self.precisions.append(used)
            self.differences.append(Differences(numerical, array, used, scaled=options.eps is None))
        # Rounding of the analytical side, where it is not of the type of the differences.
        self.analytical_epsilon = 0.0 if promoted is None else max(epsilons)
        self.numerical_centre = self.centre if promoted is None else numerical()

    def _promoted(self) -> tuple[Evaluator, list[Matrix]] | None:
        """Return the function on float64 copies of the inputs, None if it does not take them."""
        twins: dict[int, Tensor] = {}
        for leaf in self.leaves:
            tensor = leaf.tensor
            if tensor.dtype.is_differentiable and not tensor.is_meta:
                wide = _dtype.complex128 if tensor.dtype.is_complex else _dtype.float64
                twin = wrap(tensor._array.astype(wide.numpy), wide)
                twin.requires_grad = tensor.requires_grad
                twins[id(tensor)] = twin

        def call() -> Any:
            return self._call(lambda tensor: twins.get(id(tensor), tensor))

        try:
            outputs = tensors_in(call())
        except Exception:  # noqa: BLE001 - a kernel for float32 alone may refuse in any way
            return None
        specs = []
        for number, spec in zip(self.layout.numbers, self.layout.specs, strict=True):
            if number >= len(outputs) or outputs[number].shape != spec.shape:
                return None
            specs.append(spec_of(outputs[number]))
            if machine_epsilon(outputs[number].dtype) > 1e-12:
                return None
        layout = Layout(self.layout.numbers, specs)
        evaluate = Evaluator(call, layout)
        centre = layout.flatten([outputs[n]._array for n in layout.numbers])
        epsilon = max(machine_epsilon(spec.dtype) for spec in self.layout.specs)
        close = np.abs(centre - self.centre) <= 64 * epsilon * (np.abs(centre).max(initial=1))
        if not (close | ~np.isfinite(centre)).all():
            return None
        arrays = [twins[id(leaf.tensor)]._array for leaf in self.checked]
        return (evaluate, arrays) if _resolves(evaluate, arrays) else None

    # --- determinism ------------------------------------------------------------------------

    def _forward_is_repeatable(self) -> bool:
        before = _generator_states()
        again = self.evaluate()
        after = _generator_states()
        gap = np.abs(again - self.centre)
        allowed = _ROUNDINGS * self._rounding(self.centre)
        if not (gap > max(allowed, self.options.nondet_tol)).any():
            return True
        used = _used_generator(before, after)
        place = int(np.nanargmax(gap))
        what = f"the function gave two results for the same input: they differ by {gap[place]:.3g}."
        if used is not None:
            code, why = "random", f"It draws random numbers from {used}; fix the seed inside."
        else:
            code, why = "stateful_forward", "It keeps state between calls."
        for row in self.pairs:
            for pair in row:
                pair.fail(words.NON_DETERMINISTIC, code, f"{what} {why}")
        return False

    def _rounding(self, values: Matrix) -> float:
        epsilon = max((machine_epsilon(s.dtype) for s in self.layout.specs), default=0.0)
        finite = np.abs(values[np.isfinite(values)])
        return float(epsilon * finite.max(initial=0.0))

    def _compare_runs(self, reverse: Reverse, first: list[Matrix], second: list[Matrix]) -> None:
        """Compare two computations of the analytical matrices."""
        for i, (one, two) in enumerate(zip(first, second, strict=True)):
            gap = np.abs(one - two)
            if not (gap > self.options.nondet_tol).any():
                continue
            row, column = np.unravel_index(int(np.nanargmax(gap)), gap.shape)
            largest = float(gap[row, column])
            epsilon = max(
                machine_epsilon(self.checked[i].tensor.dtype),
                max(machine_epsilon(s.dtype) for s in self.layout.specs),
            )
            unit = epsilon * float(np.abs(one).max(initial=0.0))
            flat = int(self.rows[i][row])
            index = np.unravel_index(flat, self.checked[i].tensor.shape)
            where = f"{self.checked[i].name}[{', '.join(map(str, index))}]" if index else (
                self.checked[i].name)  # fmt: skip
            did = (
                f"ran backward twice with the same data; the gradient of {where} differed by "
                f"{largest:.3g}"
            )
            if largest <= _ROUNDINGS * unit:
                self.notes.append(
                    f"{did}, which is rounding: sums in changing order. Pass "
                    f"nondet_tol={largest:.1g} to allow it without this note."
                )
                continue
            before = _generator_states()
            reverse.vjp([reverse.zeros(n) for n in range(len(reverse.outputs))])
            used = _used_generator(before, _generator_states())
            if used is not None:
                code, why = "random", f"It draws random numbers from {used}."
            else:
                code, why = "not_reentrant", "It keeps state between calls."
            for output, pairs in enumerate(self.pairs):
                if (gap[:, self.blocks[output]] > self.options.nondet_tol).any():
                    pairs[i].fail(
                        words.NON_DETERMINISTIC,
                        code,
                        f"Backward is not reentrant: {did}. {why} nondet_tol={largest:.1g} would "
                        "allow it.",
                    )

    # --- reverse mode -----------------------------------------------------------------------

    def _choose_elements(self) -> None:
        """Choose the elements looked at: all, or a sample of large matrices."""
        rng = np.random.default_rng(0)
        sizes = [array.size for array in self.arrays]
        outputs = [self.layout.columns(n) for n in range(len(self.layout.specs))]
        lengths = [s.stop - s.start for s in outputs]

        def some(size: int, *, sampled: bool) -> Matrix:
            if not sampled or size <= _SAMPLED:
                return np.arange(size)
            return np.sort(rng.choice(size, _SAMPLED, replace=False))

        large = sum(sizes) * sum(lengths) > _MOST_ELEMENTS
        self.rows = [some(size, sampled=large) for size in sizes]
        self.columns = [some(size, sampled=large) for size in lengths]
        if large:
            self.notes.append(
                f"the Jacobian has {sum(sizes)} x {sum(lengths)} elements; a sample of "
                f"{sum(map(len, self.rows))} x {sum(map(len, self.columns))} was checked."
            )
        self.flat_columns = np.concatenate(
            [c + s.start for c, s in zip(self.columns, outputs, strict=True)] or [np.arange(0)]
        ).astype(np.intp)
        stops = np.cumsum([0, *map(len, self.columns)]).tolist()
        self.blocks = [slice(a, b) for a, b in zip(stops, stops[1:], strict=False)]

    def _check_reverse(self, outputs: Sequence[Tensor]) -> None:
        self._choose_elements()
        reverse = Reverse(outputs, [leaf.tensor for leaf in self.checked], self.layout)
        try:
            if self.options.fast_mode and self._fast_reverse(reverse):
                jacobian = None
            else:
                jacobian = reverse.jacobian(self.rows, self.columns)
        except NotImplementedError as error:
            self._fail_all(words.MISSING, "no_formula", str(error))
            return
        if jacobian is not None:
            again = reverse.jacobian(self.rows, self.columns)
            self._compare_runs(reverse, jacobian.matrices, again.matrices)
            if self.options.check_grad_dtypes:
                self._check_types(reverse)
            self._compare_all(jacobian.matrices, "")
            self._find_missing(jacobian.defined)
            self._check_linear(reverse, jacobian.matrices)
        if self.options.check_batched_grad:
            self._check_batched(reverse)
        if self.options.check_undefined_grad:
            self._check_undefined(reverse)

    def _fail_all(self, verdict: str, code: str, message: str) -> None:
        for row in self.pairs:
            for pair in row:
                pair.fail(verdict, code, message)

    def _compare_all(self, matrices: list[Matrix], how: str) -> None:
        """Compare analytical matrices with numerical ones, input by input."""
        for i, analytical in enumerate(matrices):
            undecided = [n for n, row in enumerate(self.pairs) if row[i].verdict == words.OK]
            if not undecided:
                continue
            for n, block in zip(undecided, self._blocks(i, analytical, undecided), strict=True):
                pair = self.pairs[n][i]
                message = (
                    f"Jacobian mismatch for output {pair.output} with respect to input "
                    f"{self.leaves.index(pair.leaf)}{how}."
                )
                code = "forward_ad" if how else "jacobian_mismatch"
                pair.take(block, code, message if block.verdict == words.WRONG else "")

    def _blocks(self, i: int, analytical: Matrix, wanted: Sequence[int]) -> Iterator[Block]:
        return compare(
            self.differences[i],
            analytical,
            self.rows[i],
            self.flat_columns,
            self.numerical_centre,
            blocks=[(n, self.blocks[n], self.columns[n]) for n in wanted],
            layout=self.layout,
            epsilon=self.analytical_epsilon,
            again=lambda: self._nearby(i, analytical.shape),
        )

    def _nearby(self, i: int, shape: tuple[int, ...]) -> tuple[Matrix, list[Block]] | None:
        """Return the comparison at a point nearby, None if the function has no value there."""
        with self._moved():
            outputs = tensors_in(self._call())
            chosen = [outputs[n] for n in self.layout.numbers]
            if not all(out.requires_grad for out in chosen):
                return None
            centre = self.differences[i].evaluate()
            if not np.isfinite(centre).all():
                return None
            reverse = Reverse(chosen, [leaf.tensor for leaf in self.checked], self.layout)
            analytical = reverse.jacobian(self.rows, self.columns).matrices[i]
            blocks = compare(
                self.differences[i],
                analytical,
                self.rows[i],
                self.flat_columns,
                centre,
                blocks=[(n, b, self.columns[n]) for n, b in enumerate(self.blocks)],
                layout=self.layout,
                epsilon=self.analytical_epsilon,
                again=None,
            )
            return analytical, list(blocks)

    @contextmanager
    def _moved(self) -> Iterator[None]:
        """Move all checked inputs a little, and back at the end."""
        rng = np.random.default_rng(1)
        memory = {id(a): a for leaf in self.checked for a in (leaf.tensor._array,)}
        memory.update({id(a): a for a in self.arrays})
        kept = [(array, array.copy()) for array in memory.values()]
        moves: dict[tuple[int, ...], Matrix] = {}
        try:
            for i, leaf in enumerate(self.checked):
                array = leaf.tensor._array
                step = 20 * self.precisions[i].step if self.analytical_epsilon == 0 else 0.05
                size = max(0.01, step) * np.maximum(1, np.abs(array.astype(np.complex128)))
                shift = rng.choice([-1.0, 1.0], array.shape) * rng.uniform(0.5, 1, array.shape)
                moves[(i,)] = moved = (array + size * shift).astype(array.dtype)
                array[...] = moved
                if self.arrays[i] is not array:
                    self.arrays[i][...] = moved
            yield
        finally:
            for array, old in kept:
                array[...] = old

    def _find_missing(self, defined: list[list[bool]]) -> None:
        """Say that a gradient never arrived, where that is what a mismatch is."""
        for n, row in enumerate(self.pairs):
            for i, pair in enumerate(row):
                if pair.code == "jacobian_mismatch" and not defined[i][n]:
                    pair.verdict, pair.code = words.MISSING, "missing_gradient"
                    pair.message += " No gradient arrived at this input at all: None was returned."

    def _expect_constant(self) -> None:
        """No output requires grad: the function must not depend on the inputs."""
        self._choose_elements()
        zeros = [np.zeros((len(r), len(self.flat_columns)),
                          np.complex128 if a.dtype.kind == "c" else np.float64)
                 for r, a in zip(self.rows, self.arrays, strict=True)]  # fmt: skip
        for i, analytical in enumerate(zeros):
            wanted = range(len(self.pairs))
            for n, block in zip(wanted, self._blocks(i, analytical, wanted), strict=True):
                if block.verdict == words.WRONG:
                    block = replace(block, cause=None)
                    self.pairs[n][i].take(block, "missing_gradient", "")
                    self.pairs[n][i].verdict = words.MISSING
                    self.pairs[n][i].message = (
                        "Numerical gradient for function expected to be zero, as its output does "
                        "not require grad: the graph was cut, by detach() or by a step without "
                        "a gradient formula."
                    )

    # --- further promises of a formula ------------------------------------------------------

    def _check_types(self, reverse: Reverse) -> None:
        found = raw_gradient_types(reverse, [reverse.zeros(n) for n in range(len(self.pairs))])
        for i, (leaf, entries) in enumerate(zip(self.checked, found, strict=True)):
            for maker, kind in entries:
                if kind is not leaf.tensor.dtype:
                    for row in self.pairs:
                        row[i].fail(
                            words.WRONG,
                            "dtype",
                            f"Gradient has dtype mismatch: {maker} returned {kind!r} for input "
                            f"{leaf.name} of {leaf.tensor.dtype!r}.",
                        )

    def _check_linear(self, reverse: Reverse, matrices: list[Matrix]) -> None:
        """The gradient is linear in the incoming one: zero gives zero, a mixture the mixture."""
        count = len(reverse.outputs)
        for i, grad in enumerate(reverse.vjp([reverse.zeros(n) for n in range(count)])):
            if grad is not None and np.any(grad._array != 0):
                for row in self.pairs:
                    row[i].fail(
                        words.WRONG,
                        "not_linear_in_grad",
                        "backward not multiplied by grad_output: a zero gradient of the outputs "
                        f"gives a gradient of {self.checked[i].name} that is not zero.",
                    )
        if sum(map(len, self.columns)) != self.layout.size:
            return  # a sample cannot tell
        rng = np.random.default_rng(2)
        for output, row in enumerate(self.pairs):
            columns = self.layout.columns(output)
            vector = rng.uniform(0.5, 2.0, columns.stop - columns.start)
            cotangents: list[Tensor | None] = [None] * count
            cotangents[output] = reverse.cotangent(output, vector)
            for i, grad in enumerate(reverse.vjp(cotangents)):
                block = matrices[i][:, columns]
                expected = block @ vector
                got = 0.0 if grad is None else grad._array.reshape(-1)[self.rows[i]]
                p = self.precisions[i]
                size = np.abs(block) @ vector
                gap = np.abs(expected - got)
                if (gap > p.atol + p.rtol * size).any():
                    row[i].fail(
                        words.WRONG,
                        "not_linear_in_grad",
                        "backward not multiplied by grad_output: the gradient of "
                        f"{self.checked[i].name} is not linear in that of the output; for a mixed "
                        f"gradient it is off by {float(gap.max()):.3g}.",
                    )

    def _check_undefined(self, reverse: Reverse) -> None:
        """A formula is called without some of its gradients, and must take that for zeros."""
        count = len(reverse.outputs)
        cases = [list(range(count))] + ([[n] for n in range(count)] if count > 1 else [])
        for undefined in cases:
            cotangents = [None if n in undefined else reverse.zeros(n) for n in range(count)]
            try:
                grads = reverse.vjp(cotangents, undefined=undefined)
            except Exception as error:  # noqa: BLE001 - `None * 2` raises what it likes
                message = (
                    "Expected backward function to handle undefined output grads, but without the "
                    f"gradient of output {undefined} it raised {type(error).__name__}: {error}. "
                    "Test for None, or leave ctx.set_materialize_grads at True."
                )
                self._fail_all(words.WRONG, "undefined_grad", message)
                return
            for i, grad in enumerate(grads):
                if grad is not None and np.any(grad._array != 0):
                    for row in self.pairs:
                        row[i].fail(
                            words.WRONG,
                            "undefined_grad",
                            "Expected all input grads to be undefined or zero when all output "
                            f"grads are, got a gradient of {self.checked[i].name} that is not.",
                        )

    def _check_batched(self, reverse: Reverse) -> None:
        from tensorplay.autograd.backward import grad  # noqa: PLC0415 - used by this flag alone

        rng = np.random.default_rng(3)
        inputs = [leaf.tensor for leaf in self.checked]
        for output, row in enumerate(self.pairs):
            columns = self.layout.columns(output)
            vectors = [rng.standard_normal(columns.stop - columns.start) for _ in range(2)]
            rows = [reverse.cotangent(output, v) for v in vectors]
            batch = wrap(np.stack([r._array for r in rows]), rows[0].dtype)
            out = reverse.outputs[output]
            options = {"retain_graph": True, "allow_unused": True}
            try:
                batched = grad(out, inputs, batch, is_grads_batched=True, **options)
            except Exception as error:  # noqa: BLE001 - that it raises is the finding
                for pair in row:
                    pair.fail(words.WRONG, "batched",
                              f"While computing batched gradients, got: {error}")  # fmt: skip
                continue
            single = [grad(out, inputs, r, **options) for r in rows]
            for i, pair in enumerate(row):
                got = batched[i]
                expected = [s[i] for s in single]
                p = self.precisions[i]
                if got is None and all(e is None for e in expected):
                    continue
                same = got is not None and all(
                    e is not None and np.allclose(g, e._array, rtol=p.rtol, atol=p.atol)
                    for g, e in zip(got._array, expected, strict=True)
                )
                if not same:
                    pair.fail(words.WRONG, "batched", "Batched gradients differ from those "
                              "computed one at a time.")  # fmt: skip

    # --- forward mode -----------------------------------------------------------------------

    def _check_forward(self) -> None:
        if not self.options.check_backward_ad:
            self._choose_elements()
        matrices = []
        for i, leaf in enumerate(self.checked):
            try:
                matrices.append(
                    forward_jacobian(
                        self._call, leaf.tensor, self.layout, self.rows[i], self.flat_columns
                    )
                )
            except NotImplementedError as error:
                self._fail_all(words.MISSING, "no_forward_formula", str(error))
                return
        self._compare_all(matrices, ", computed with forward mode AD")
        if self.options.check_undefined_grad:
            self._check_undefined_tangents()
        if self.options.check_grad_dtypes:
            self._check_tangent_types()

    def _tangent(self, i: int) -> Tensor:
        tensor = self.checked[i].tensor
        rng = np.random.default_rng(4 + i)
        return wrap(rng.uniform(0.5, 2, tensor.shape).astype(tensor.dtype.numpy), tensor.dtype)

    def _check_undefined_tangents(self) -> None:
        """A missing tangent counts as one of zeros."""
        if len(self.checked) == 1:
            return
        for i, leaf in enumerate(self.checked):
            tangent = self._tangent(i)
            alone = run_forward(self._call, {id(leaf.tensor): tangent}, self.layout)
            zeros = {
                id(x.tensor): wrap(np.zeros(x.tensor.shape, x.tensor.dtype.numpy), x.tensor.dtype)
                for x in self.checked
            }
            zeros[id(leaf.tensor)] = tangent
            both = run_forward(self._call, zeros, self.layout)
            p = self.precisions[i]
            for n, (one, two) in enumerate(zip(alone, both, strict=True)):
                left = 0.0 if one is None else one
                right = 0.0 if two is None else two
                if not np.allclose(left, right, rtol=p.rtol, atol=p.atol, equal_nan=True):
                    self.pairs[n][i].fail(
                        words.WRONG,
                        "forward_ad",
                        f"Mismatch in tangent values: with a tangent for {leaf.name} alone the "
                        "result differs from that with zero tangents for the other inputs.",
                    )

    def _check_tangent_types(self) -> None:
        for i, leaf in enumerate(self.checked):
            found = run_forward(self._call, {id(leaf.tensor): self._tangent(i)}, self.layout)
            for n, (tangent, spec) in enumerate(zip(found, self.layout.specs, strict=True)):
                if tangent is not None and tangent.dtype != spec.dtype.numpy:
                    self.pairs[n][i].fail(
                        words.WRONG, "dtype",
                        f"Forward AD gradient has dtype mismatch: {tangent.dtype} for an output "
                        f"of {spec.dtype!r}.",
                    )  # fmt: skip

    # --- fast mode --------------------------------------------------------------------------

    def _fast_reverse(self, reverse: Reverse) -> bool:
        """Compare v'Ju for random u and v; return whether all pairs agree.

        Where one does not, the slow mode decides and says where.
        """
        rng = np.random.default_rng(5)
        products: list[list[Any]] = []
        vectors = []
        for output in range(len(self.pairs)):
            columns = self.layout.columns(output)
            vector = rng.uniform(0.5, 1.5, columns.stop - columns.start)
            vectors.append(vector / max(np.linalg.norm(vector), 1e-30))
            cotangents: list[Tensor | None] = [None] * len(self.pairs)
            cotangents[output] = reverse.cotangent(output, vectors[-1])
            one, two = reverse.vjp(cotangents), reverse.vjp(cotangents)
            self._compare_products(output, one, two)
            products.append(one)
        agrees = True
        for i, differences in enumerate(self.differences):
            array = self.arrays[i]
            u = rng.uniform(0.5, 1.5, array.shape)
            if array.dtype.kind == "c":
                u = u + 1j * rng.uniform(0.5, 1.5, array.shape)
            u /= max(np.linalg.norm(u), 1e-30)
            slope, noise = differences.directional(u)
            p = self.precisions[i]
            for output, row in enumerate(self.pairs):
                columns = self.layout.columns(output)
                numerical = float(vectors[output] @ slope[columns])
                bound = float(np.abs(vectors[output]) @ noise[columns])
                grad = products[output][i]
                analytical = 0.0 if grad is None else float(
                    np.sum(grad._array.astype(np.complex128) * u.conj()).real)  # fmt: skip
                gap = abs(analytical - numerical)
                bound += 8 * self.analytical_epsilon * abs(numerical)
                if not gap <= p.atol + p.rtol * abs(numerical) + bound:
                    agrees = False
                    self.notes.append(
                        f"fast mode: for output {row[i].output} and {row[i].leaf.name} v'Ju is "
                        f"{analytical:.6g} by the formula and {numerical:.6g} by differences; the "
                        "slow mode was run to find where."
                    )
        return agrees

    def _compare_products(
        self, output: int, first: list[Tensor | None], second: list[Tensor | None]
    ) -> None:
        for i, (one, two) in enumerate(zip(first, second, strict=True)):
            if one is None or two is None:
                continue
            gap = float(np.abs(one._array - two._array).max(initial=0))
            unit = machine_epsilon(one.dtype) * float(np.abs(one._array).max(initial=0))
            if gap > max(self.options.nondet_tol, _ROUNDINGS * unit):
                self.pairs[output][i].fail(
                    words.NON_DETERMINISTIC,
                    "not_reentrant",
                    "Backward is not reentrant: ran backward twice with the same data; the "
                    f"gradient of {self.checked[i].name} differed by {gap:.3g}.",
                )


def _resolves(evaluate: Evaluator, arrays: Sequence[Matrix]) -> bool:
    """Tell whether a function on float64 also computes in it, by two steps in one direction.

    A kernel that converts to float32 inside shows steps of that size for small changes.
    """
    rng = np.random.default_rng(6)
    kept = [array.copy() for array in arrays]
    moves = [rng.uniform(0.5, 1, array.shape) for array in arrays]

    def slope(h: float) -> Matrix:
        sides = []
        for sign in (1, -1):
            for array, old, move in zip(arrays, kept, moves, strict=True):
                array[...] = old + sign * h * move
            sides.append(evaluate())
        result: Matrix = (sides[0] - sides[1]) / (2 * h)
        return result

    try:
        with np.errstate(all="ignore"):
            small, large = slope(1e-6), slope(1e-5)
    finally:
        for array, old in zip(arrays, kept, strict=True):
            array[...] = old
    scale = np.abs(large[np.isfinite(large)]).max(initial=0.0)
    gap = np.abs(small - large)
    return bool((gap[np.isfinite(gap)] <= 1e-4 * scale + 1e-6).all())


def _generator_states() -> dict[str, Any]:
    """Return the states of the random generators that code usually draws from."""
    kind, keys, position, *rest = np.random.get_state()  # noqa: NPY002 - others may use it
    states: dict[str, Any] = {
        "numpy.random": (kind, keys.tobytes(), position, *rest),  # type: ignore[union-attr]
        "random": random.getstate(),
    }
    ours = sys.modules.get("tensorplay.random")
    if ours is not None:
        states["tensorplay"] = repr(ours.default_generator.numpy.bit_generator.state)
    return states


def _used_generator(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    for name, state in after.items():
        if before.get(name) != state:
            return f"tensorplay's generator ({name})" if name == "tensorplay" else name
    return None
