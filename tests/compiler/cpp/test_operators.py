"""Every operator that kernels know against eager execution: its samples, types and layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.compiler.cpp import CompiledGraph
from tensorplay.compiler.cpp.lowering import ALONG_ROW, REDUCING, is_elementwise
from tensorplay.ops import OPERATORS
from tests.compiler.cpp.graphs import Builder
from tests.ops.sampling import Maker, replace, tensors_of

FLOATS = (tp.float32, tp.float64)
#: Operators of integers and truth values, with their operands.
DISCRETE = {
    **dict.fromkeys(("add", "sub", "mul", "maximum", "minimum"), 2),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), 2),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), 2),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), 2),
    **dict.fromkeys(("neg", "abs", "square", "logical_not", "bitwise_not", "relu", "sign"), 1),
    **dict.fromkeys(("sum", "prod", "amax", "amin", "any", "all", "mean", "exp", "clone"), 1),
}
INTEGERS = (tp.int8, tp.int16, tp.int32, tp.int64, tp.uint8, tp.bool)


def known() -> list[str]:
    return [
        name for name, o in OPERATORS.items()
        if o.samples and (is_elementwise(name) or name in REDUCING | ALONG_ROW)
    ]  # fmt: skip


class Batch:
    """Many calls in one graph, so that the compiler starts once; each has its own inputs."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any, dict[str, Any]]] = []

    def add(self, label: str, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        self.calls.append((label, name, list(args), kwargs))

    def check(self, rtol: dict[Any, float]) -> CompiledGraph:
        builder = Builder()
        tensors: list[tp.Tensor] = []

        def node(tensor: tp.Tensor) -> Any:
            tensors.append(tensor)
            return builder.input(tensor)

        given = [replace((args, kwargs), node) for _, _, args, kwargs in self.calls]
        nodes = [
            getattr(builder, name)(*args, **kwargs)
            for (_, name, _, _), (args, kwargs) in zip(self.calls, given, strict=True)
        ]
        compiled = builder.compile(*nodes)
        for (label, name, args, kwargs), ours in zip(self.calls, compiled(*tensors), strict=True):
            with tp.no_grad():
                theirs = OPERATORS[name](*args, **kwargs)
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), label
            tolerance = rtol.get(ours.dtype, 0)
            np.testing.assert_allclose(
                ours.numpy(), theirs.numpy(), rtol=tolerance, atol=tolerance, err_msg=label
            )
        return compiled


@pytest.mark.parametrize("kind", FLOATS, ids=repr)
def test_samples_of_every_operator(kind: Any) -> None:
    batch = Batch()
    for name in known():
        make = Maker(name)
        for number, sample in enumerate(OPERATORS[name].samples(make)):  # type: ignore[misc]
            args, kwargs = replace(
                (list(sample.args), sample.kwargs),
                lambda t: t.detach().to(kind) if t.dtype is tp.float64 else t.detach(),
            )
            if any(t.dtype.is_complex for t in tensors_of([args, kwargs])):
                continue
            if any(isinstance(v, type(kind)) and v.is_complex for v in args):
                continue
            if name == "where" and len(args) == 1:
                continue  # how many indices it gives depends on the elements: no graph holds it
            batch.add(f"{name} {sample.name or number}", name, args, kwargs)
    compiled = batch.check({tp.float32: 3e-6, tp.float64: 3e-15})
    fused = {o for r in compiled.report.regions if r.kind == "kernel" for o in r.operators}
    assert fused >= set(known()) - {"logical_and"} - DISCRETE_ONLY


#: Operators whose samples are no floating numbers, or that are no kernel for these.
DISCRETE_ONLY = {
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
    *("logical_or", "logical_xor"),
}


def layouts(kind: Any, seed: str) -> dict[str, tp.Tensor]:
    """Return tensors that lie in every way that tensors do."""
    random = np.random.default_rng(len(seed))
    whole = random.integers(0, 2 if kind is tp.bool else 7, (6, 5, 4))
    base = tp.from_numpy(whole.astype(kind.numpy))
    return {
        "plain": base, "0-d": base[0, 0, 0], "empty": base[:0], "one": base[:1, :1, :1],
        "transposed": base.permute(2, 1, 0), "reversed": tp.from_numpy(base.numpy()[::-1, :, ::-1]),
        "stepped": base[::2, ::2, ::3], "broadcast": base[:, :1].expand(6, 5, 4),
        "row": base[0, 0], "long": tp.from_numpy(np.resize(whole, 70).astype(kind.numpy)),
    }  # fmt: skip


@pytest.mark.parametrize("kind", [*INTEGERS, tp.float32], ids=repr)
def test_types_and_layouts(kind: Any) -> None:
    batch = Batch()
    for name, operands in DISCRETE.items():
        for where, x in layouts(kind, name).items():
            args = (x, layouts(kind, name + "other")[where])[:operands]
            try:
                OPERATORS[name](*args)
            except (RuntimeError, TypeError, IndexError):
                continue  # eager execution refuses it, so no graph holds it
            batch.add(f"{name} {where}", name, args, {})
            if operands == 2 and where in {"plain", "transposed"}:
                batch.add(f"{name} broadcast {where}", name, (x, args[1][..., :1, :]), {})
                batch.add(f"{name} column {where}", name, (x, args[1][..., :1]), {})
    batch.check({tp.float32: 2e-6})


@pytest.mark.parametrize("kind", [*INTEGERS, tp.float32, tp.float64], ids=repr)
def test_types_beside_narrow_ones_at_all_lengths(kind: Any) -> None:
    """Kernels whose widest type has 1, 2, 4 or 8 bytes, over whole vectors and parts of them."""

    def steps(x: tp.Tensor, y: tp.Tensor) -> tuple[tp.Tensor, ...]:
        more = x > y
        chosen = tp.where(more, x, y)
        whole = not kind.is_floating_point
        return (
            more & (x != y), more.logical_not() | (y <= x), chosen, x.to(tp.bool), y.to(tp.int64),
            x.to(tp.float32), y.to(tp.int8) if whole else x, y.to(tp.uint8) if whole else x,
            (more | (x == y)).any(), more.all(), more.sum(), chosen.amax(),
        )  # fmt: skip

    random = np.random.default_rng(7)

    def numbers(d: Any, count: int) -> tp.Tensor:
        if d.is_floating_point:
            return tp.from_numpy((random.standard_normal(count) * 50).astype(d.numpy))
        if d is tp.bool:
            return tp.from_numpy(random.random(count) > 0.5)
        ends = np.iinfo(d.numpy)
        return tp.from_numpy(random.integers(ends.min, ends.max, count, d.numpy, endpoint=True))

    for other in (kind, tp.int8, tp.uint8, tp.bool):
        f = tp.compile(steps, backend="cpp", fullgraph=True)
        for count in (1, 7, 31, 64, 129, 5000):
            x, y = numbers(kind, count), numbers(other, count)
            for ours, theirs in zip(f(x, y), steps(x, y), strict=True):
                assert ours.dtype is theirs.dtype
                np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("kind", [tp.float32, tp.float64], ids=repr)
def test_layouts_of_rows(kind: Any) -> None:
    batch = Batch()
    for where, x in layouts(kind, "rows").items():
        y = (x.to(kind) * 0.37).sin()
        for name in ("softmax", "log_softmax"):
            if y.ndim:
                batch.add(f"{name} {where}", name, (y, -1), {})
        for name in ("logsumexp", "var", "sum", "mean", "amax", "std"):
            if y.ndim and y.numel():
                batch.add(f"{name} last {where}", name, (y, (-1,)), {})
                batch.add(f"{name} all {where}", name, (y,), {})
            if y.ndim == 3 and y.numel():
                batch.add(f"{name} two {where}", name, (y, (1, 2)), {"keepdim": True})
                batch.add(f"{name} first {where}", name, (y, (0,)), {})
    batch.check({tp.float32: 3e-6, tp.float64: 3e-15})


def test_numbers_of_every_kind() -> None:
    x = tp.tensor([-3.0, -0.0, 0.0, 2.5, float("nan"), float("inf")])
    batch = Batch()
    for number in (0, -1, 3, 0.5, 1e-30, -0.0, float("nan"), float("inf"), 2**60, 1e300, True):
        for name in ("add", "mul", "div", "maximum", "lt", "eq", "pow"):
            batch.add(f"{name} {number}", name, (x, number), {})
            batch.add(f"{number} {name}", name, (number, x), {})
    with np.errstate(all="ignore"):
        batch.check({tp.float32: 1e-6})


def test_casts_give_what_numpy_gives() -> None:
    x = tp.tensor([-2.5, -0.0, 0.49, 1.5, 127.9, 3e5])
    whole = tp.tensor([-3, 0, 1, 2, 200, 70000])
    batch = Batch()
    for target in (tp.float32, tp.float64, tp.int32, tp.int64, tp.bool, tp.int8, tp.uint8):
        batch.add(f"int to {target}", "_cast", (whole, target), {})
        if target not in {tp.int8, tp.uint8}:  # what NumPy does there is undefined
            batch.add(f"float to {target}", "_cast", (x, target), {})
        batch.add(f"bool to {target}", "_cast", (whole > 1, target), {})
    batch.check({})


@pytest.mark.parametrize("dtype", [tp.float32, tp.float64])
@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin", "relu", "clamp", "abs"])
def test_signs_of_zeros_are_those_of_the_operators(name, dtype) -> None:
    values = [-0.0, 0.0, float("nan"), 1.0, -1.0, float("inf")]
    x = tp.tensor([a for a in values for _ in values], dtype=dtype)
    y = tp.tensor([b for _ in values for b in values], dtype=dtype)
    functions = {
        "relu": lambda a, b: a.relu(), "clamp": lambda a, b: a.clamp(min=0.0, max=0.5),
        "abs": lambda a, b: a.abs(),
    }  # fmt: skip
    function = functions.get(name, getattr(tp, name, None))
    expected = function(x, y).numpy()
    result = tp.compile(function, backend="cpp", fullgraph=True)(x, y).numpy()
    np.testing.assert_array_equal(result, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(result[numbers]), np.signbit(expected[numbers]))
