"""Random programs of the operator table: compiled, they give what they give eagerly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import tensorplay as tp
from tests.compiler.calls import close

UNARY = (
    *("neg", "exp", "tanh", "sigmoid", "relu", "square", "abs", "sin", "cos", "erf", "expm1"),
    *("sign", "floor", "clone", "sgn", "atan", "asinh", "reciprocal", "log1p", "rsqrt"),
    *("frac", "trunc", "gelu", "silu", "softplus", "elu", "hardtanh"),
)
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "copysign", "hypot")
COMPARED = ("lt", "ge", "ne")
REDUCED = ("sum", "mean", "amax", "amin", "logsumexp", "var", "prod")
SHAPED = ("softmax", "log_softmax", "cumsum", "flip", "transpose", "reshape", "slice", "narrow")


@st.composite
def programs(draw: Any) -> list[tuple[Any, ...]]:
    """Return steps: name, which values they read, and numbers."""
    steps = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(
            ["unary", "unary", "binary", "binary", "number", "where", "reduce", "shape", "write",
             "matmul"]
        ))  # fmt: skip
        first, second = draw(st.integers(0, 9)), draw(st.integers(0, 9))
        name: Any = None
        if kind == "unary":
            name = draw(st.sampled_from(UNARY))
        elif kind in {"binary", "number"}:
            name = draw(st.sampled_from(BINARY[:4] if kind == "number" else BINARY))
        elif kind == "where":
            name = draw(st.sampled_from(COMPARED))
        elif kind == "reduce":
            name = draw(st.sampled_from(REDUCED))
        elif kind == "shape":
            name = draw(st.sampled_from(SHAPED))
        elif kind == "write":
            name = draw(st.sampled_from(["add_", "mul_", "slice", "fill_"]))
        steps.append((kind, name, first, second, draw(st.sampled_from([0.5, 2, -1.5, 3]))))
    return steps


def run(steps: list[tuple[Any, ...]], *inputs: Any) -> list[Any]:
    """Run a program; all values have the shape of the inputs, or broadcast to it."""
    values = list(inputs)
    shape = inputs[0].shape
    for kind, name, i, j, number in steps:
        x, y = values[i % len(values)], values[j % len(values)]
        if kind == "unary":
            # Where a function has poles, it gets what stays away from them.
            safe = x * x + 1 if name in {"reciprocal", "log1p", "rsqrt"} else x
            values.append(getattr(tp, name)(safe))
        elif kind == "binary":
            safe = y * y + 1 if name == "div" else y
            values.append(getattr(x, name)(safe) if name != "div" else x / safe)
        elif kind == "number":
            values.append(getattr(x, name)(number) if name != "sub" else number - x)
        elif kind == "where":
            values.append(tp.where(getattr(x, name)(y), x, y * number))
        elif kind == "reduce":
            wide = x.expand(shape)
            kwargs = {"correction": 0} if name == "var" else {}
            dim = -1 if j % 2 else 0
            if name == "prod":
                wide = wide.tanh()
            values.append(getattr(wide, name)(dim=dim, keepdim=True, **kwargs))
        elif kind == "shape":
            values.append(_shaped(name, x.expand(shape), j))
        elif kind == "matmul":
            wide = x.expand(shape)
            values.append((wide @ wide.t()) @ wide)
        else:
            values.append(_written(name, x, y, number))
    return values[len(inputs) :]


def _shaped(name: str, x: Any, j: int) -> Any:
    if name in {"softmax", "log_softmax", "cumsum"}:
        return getattr(x, name)(dim=j % 2)
    if name == "flip":
        return x.flip(j % 2)
    if name == "transpose":
        return (x.t() * 2).t()
    if name == "reshape":
        return x.reshape(-1).reshape(x.shape) + x.reshape(1, *x.shape)[0]
    if name == "slice":
        return x[:1] + x[:, -1:]
    return x.narrow(0, 0, 1)


def _written(name: str, x: Any, y: Any, number: Any) -> Any:
    fits = np.broadcast_shapes(x.shape, y.shape) == tuple(y.shape)
    target = x.expand(y.shape).clone() if fits else x.clone()
    if name == "slice":
        target[:1] = number
        target[-1:] *= 2
        return target
    return getattr(target, name)(number)


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 5))


def finite(values: list[Any]) -> bool:
    return all(bool(tp.isfinite(v).all()) and float(v.abs().max()) < 1e6 for v in values)


def compare(steps: Any, shape: Any, dtype: Any, backend: str, compiled: Any) -> None:
    def inputs() -> list[Any]:
        tp.manual_seed(len(steps))
        x = tp.testing.make_tensor(*shape, dtype=dtype, device="cpu", low=-2, high=2)
        y = tp.testing.make_tensor(*shape, dtype=dtype, device="cpu", low=-2, high=2)
        return [x.requires_grad_(), y]

    eager = inputs()
    expected = run(steps, *eager)
    if not finite(expected):
        return
    tolerance = (
        {"rtol": 1e-10, "atol": 1e-10} if dtype is tp.float64 else {"rtol": 2e-4, "atol": 2e-4}
    )
    own = inputs()
    got = compiled(*own)
    close(got, expected, **tolerance)
    outs = [(g, e) for g, e in zip(got, expected, strict=True) if e.requires_grad]
    if not outs:
        return
    sum(e.sum() for _, e in outs).backward()
    sum(g.sum() for g, _ in outs).backward()
    if eager[0].grad is None:
        assert own[0].grad is None
    elif finite([eager[0].grad]):
        close(own[0].grad, eager[0].grad, **tolerance)


# A kernel is built for each program; the cache keeps a second run short.
EXAMPLES = 200


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_random_programs_agree(backend, dtype) -> None:
    @settings(
        max_examples=EXAMPLES // 2,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(), SIZES, SIZES)
    def check(steps: Any, first: Any, second: Any) -> None:
        compiled = tp.compile(
            lambda *x: run(steps, *x), backend=backend, fullgraph=True, recompile_limit=16
        )
        for shape in (first, second, first):
            compare(steps, shape, getattr(tp, dtype), backend, compiled)

    check()
