"""One module in both libraries: from the same parameters to results, gradients and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import tensorplay as tp

TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
Array = Any


def tensors(value: Any) -> list[Any]:
    """Return the tensors of a result, in the order in which they stand."""
    if value is None:
        return []
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else [value]


def differentiate(lib: Any, results: Iterable[Any]) -> None:
    """Go back from a sum in which no two elements have the same factor."""
    total = None
    for result in results:
        if result.requires_grad:
            factors = np.cos(np.arange(result.numel()) * 0.7).reshape(tuple(result.shape))
            part = (result * lib.from_numpy(factors).to(result.dtype)).sum()
            total = part if total is None else total + part
    if total is not None:
        total.backward()


def gradient(tensor: Any) -> Array:
    """Return a gradient, nothing where there is none."""
    return np.zeros(0) if tensor.grad is None else tensor.grad.numpy()


def outcome(
    lib: Any, module: Any, arrays: Iterable[Array], call: Callable[..., Any] | None = None
) -> list[Array]:
    """Return results, gradients of inputs and of parameters, and the state after a call."""
    inputs = [lib.from_numpy(a.copy()) for a in arrays]
    for x in inputs:
        if x.is_floating_point():
            x.requires_grad_()
    results = tensors(module(*inputs) if call is None else call(lib, module, *inputs))
    differentiate(lib, results)
    found = [r.detach().numpy() for r in results]
    found += [gradient(x) for x in inputs]
    found += [gradient(p) for p in module.parameters()]
    return found + [v.numpy() for v in module.state_dict().values()]


def compare(
    torch: Any,
    make: Callable[[Any], Any],
    arrays: tuple[Array, ...],
    *,
    kind: str,
    call: Callable[..., Any] | None = None,
    tolerance: float | None = None,
) -> None:
    """Hold that both libraries make of the same numbers the same, or both refuse.

    Parameters
    ----------
    torch
        The other library.
    make
        Makes the module of a library.
    arrays
        Inputs; floating ones are differentiated.
    kind
        Name of the type in which is computed.
    call
        ``call(lib, module, *inputs)``; by default the module with the inputs.
    tolerance
        Of differences, relative to the element and to the largest one; by default that of the type.
    """
    try:
        theirs = make(torch)
        start = {k: v.numpy().copy() for k, v in theirs.state_dict().items()}
        expected = outcome(torch, theirs, arrays, call)
    except (RuntimeError, ValueError, AssertionError, IndexError) as refusal:
        refused(make, arrays, call, refusal)
        return
    ours = make(tp)
    assert {k: v.shape for k, v in start.items()} == {
        k: tuple(v.shape) for k, v in ours.state_dict().items()
    }
    ours.load_state_dict({k: tp.from_numpy(v) for k, v in start.items()})
    found = outcome(tp, ours, arrays, call)
    tolerance = TOLERANCES[kind] if tolerance is None else tolerance
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        # What cancels is as far from zero as what it is a difference of is rounded.
        largest = np.abs(b[np.isfinite(b)]).max(initial=1)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest)


def refused(
    make: Callable[[Any], Any], arrays: tuple[Array, ...], call: Any, refusal: Exception
) -> None:
    """Hold that what the other library refuses is refused here too."""
    try:
        outcome(tp, make(tp), arrays, call)
    except (RuntimeError, ValueError, IndexError):
        return
    raise AssertionError(f"PyTorch refuses: {refusal}")
