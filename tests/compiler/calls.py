"""Compiled calls against eager ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorplay as tp
from tensorplay.func.trees import flatten


def compiled(function: Callable[..., Any], **kwargs: Any) -> Any:
    return tp.compile(function, backend="interpreter", fullgraph=True, **kwargs)


def one() -> tp.Tensor:
    return tp.ones(1)


def tensors_of(value: Any) -> list[Any]:
    return [x for x in flatten(value)[0] if isinstance(x, tp.Tensor)]


def close(got: Any, want: Any, **tolerance: Any) -> None:
    """Assert that two nested results are the same: structure, kinds, values, need of gradients."""
    a, b = flatten(got), flatten(want)
    assert a[1] == b[1]
    for x, y in zip(a[0], b[0], strict=True):
        if isinstance(y, tp.Tensor):
            assert isinstance(x, tp.Tensor)
            assert x.requires_grad is y.requires_grad
            tp.testing.assert_close(x.detach(), y.detach(), equal_nan=True, **tolerance)
        else:
            assert type(x) is type(y)
            assert x == y


def run_with_gradients(function: Callable[..., Any], make: Callable[[], Any]) -> list[Any]:
    """Return result, arguments afterwards, and gradients, for a call on new arguments."""
    args = make()
    result = function(*args)
    outs = [x for x in tensors_of(result) if x.requires_grad]
    if outs:
        total = sum((x.real if x.is_complex() else x).sum() for x in outs)
        total.backward()
    leaves = [x for x in tensors_of(args) if x.is_leaf]
    return [
        [x.detach().clone() if isinstance(x, tp.Tensor) else x for x in flatten(result)[0]],
        [x.detach().clone() for x in tensors_of(args)],
        [x.grad for x in leaves],
    ]
