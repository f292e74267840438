"""Forward mode of primitives: the tangents of the results from those of the arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay._tensor import Tensor, spec_of, twin_of, wrap
from tensorplay.autograd import forward_ad, grad_mode
from tensorplay.autograd.engine import run_backward
from tensorplay.autograd.graph import edge_of
from tensorplay.ops.node import OTHER, PrimitiveNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorplay.ops.primitive import Primitive

__all__ = ["push_forward", "without_tangent"]


def push_forward(primitive: Primitive, values: list[Any], outs: tuple[Tensor, ...]) -> None:
    """Attach to `outs` the tangents that follow from those of the arguments `values`."""
    if primitive.vjp is None:
        return
    for out, tangent in zip(outs, _tangents(primitive, values, outs), strict=True):
        if tangent is not None and out._dtype.is_differentiable:
            forward_ad.set_tangent(out, tangent, primitive.name)


def _tangents(
    primitive: Primitive, values: list[Any], outs: tuple[Tensor, ...]
) -> Sequence[Tensor | None]:
    rule = primitive.jvp
    plain = [without_tangent(v) for v in values]
    clean = tuple(without_tangent(out) for out in outs)
    tangent = {name: _tangent(v) for name, v in zip(primitive.names, values, strict=True)}
    if rule == "linear":
        vjp = primitive.vjp or {}
        arguments = [
            _tangent_or_zero(v, t) if name in vjp else v
            for (name, t), v in zip(tangent.items(), plain, strict=True)
        ]
        return _as_tuple(primitive.apply(tuple(arguments)))
    if rule is None:
        return _by_vjp(primitive, plain, tangent, clean)
    saved = SimpleNamespace(
        **dict(zip(primitive.names, plain, strict=True)),
        out=clean if len(outs) > 1 else clean[0],
        specs=dict(zip(primitive.names, primitive.specs(plain), strict=True)),
        out_specs=[spec_of(out) for out in outs],
    )
    if callable(rule):
        return _as_tuple(rule(SimpleNamespace(**tangent), saved))
    terms: list[Tensor] = []
    for number, (name, t) in enumerate(tangent.items()):
        if t is None or name not in (primitive.vjp or {}):
            continue
        if rule == "bilinear":
            terms.append(primitive.apply((*plain[:number], t, *plain[number + 1 :])))
        else:  # elementwise: the derivative is diagonal, so that it is its own transpose
            formula = (primitive.vjp or {})[name].formula
            terms.append(_conjugate(formula(_conjugate(t), saved)))
    if not terms:
        return [None] * len(outs)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return (total if total.shape == outs[0].shape else total.expand(outs[0].shape),)


def _by_vjp(
    primitive: Primitive, plain: list[Any], tangent: dict[str, Any], outs: tuple[Tensor, ...]
) -> Sequence[Tensor | None]:
    """Differentiate the vjp, which is linear in the cotangent u: d/du <vjp(u), t> = jvp(t)."""
    recording = grad_mode.state.enabled
    tangents: list[Any] = []
    for (_, kind, _), t in zip(primitive.plan, tangent.values(), strict=True):
        if kind != OTHER:
            tangents.extend(t if isinstance(t, list) else [t])
    wanted = tuple(
        t is not None and t != [None] * (len(t) if isinstance(t, list) else 0)
        for t in tangent.values()
    )
    with grad_mode.enable_grad():
        node = PrimitiveNode(primitive, (), plain, wanted)
        node.outputs = [spec_of(out) if out._dtype.is_differentiable else None for out in outs]
        # With the history that they have: the tangent may be differentiated again.
        node.save_results(outs, wanted, own=False)
        cotangents = [
            None if spec is None else wrap(np.zeros(spec.shape, spec.dtype.numpy)).requires_grad_()
            for spec in node.outputs
        ]
        gradients = node.apply(list(cotangents), [t is not None for t in tangents])
    roots = []
    for gradient, t in zip(gradients, tangents, strict=True):
        if gradient is None or t is None or (edge := edge_of(gradient)) is None:
            continue
        roots.append((edge, t if t.shape == gradient.shape else t.expand(gradient.shape)))
    edges = [e for c in cotangents if c is not None and (e := edge_of(c)) is not None]
    found = iter(
        run_backward(
            roots, retain_graph=False, create_graph=recording, inputs=edges, accumulate=False
        )
    )
    return [None if c is None else next(found) for c in cotangents]


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def without_tangent(value: Any) -> Any:
    """Return a tensor that is the same in everything but its tangent."""
    if isinstance(value, list):
        return [without_tangent(v) for v in value]
    if isinstance(value, Tensor) and value._tangent is not None:
        twin = twin_of(value, Tensor)
        twin._tangent = None
        return twin
    return value


def _conjugate(value: Tensor) -> Tensor:
    return value.conj() if value._dtype.is_complex else value


def _tangent(value: Any) -> Any:
    if isinstance(value, list):
        return [_tangent(v) for v in value]
    return value._tangent if isinstance(value, Tensor) else None


def _tangent_or_zero(value: Any, tangent: Any) -> Any:
    """Return the tangent of an argument in which the operator is linear; zeros for none."""
    if isinstance(value, list):
        return [_tangent_or_zero(v, t) for v, t in zip(value, tangent, strict=True)]
    if tangent is not None:
        return tangent
    if isinstance(value, Tensor):
        spec = spec_of(value)
        return wrap(np.zeros(spec.shape, spec.dtype.numpy), spec.dtype)
    return None if value is None else type(value)(0)
