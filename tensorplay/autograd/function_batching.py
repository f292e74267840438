"""`Function` inside of `func.vmap`: by a rule of its own, or by its formulas on batched tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorplay._tensor import Tensor
from tensorplay.autograd.batched import (
    BatchedTensor,
    Level,
    Levels,
    batch,
    expose,
    levels_of,
    physical,
    state,
)
from tensorplay.autograd.function_context import FunctionContext

if TYPE_CHECKING:
    from tensorplay.autograd.function import Function

__all__ = ["VmapInfo", "apply_by_generated_rule", "apply_rule", "refuse"]


class VmapInfo(NamedTuple):
    """What a `Function.vmap` is told about the batch."""

    batch_size: int
    randomness: str


def refuse(name: str) -> None:
    """Say that a Function cannot be batched.

    Raises
    ------
    RuntimeError
        Always.
    """
    message = (
        f"[{name}] vmap: this Function has no batching rule. Define the static method "
        "vmap(info, in_dims, *args), or set generate_vmap_rule = True if forward and backward "
        "are written in tensor operations."
    )
    raise RuntimeError(message)


# --- a rule of its own ----------------------------------------------------------------------------


def apply_rule(
    name: str,
    rule: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call a rule for the innermost level; outer levels come by when it applies something.

    Parameters
    ----------
    name
        Whose rule, for messages.
    rule
        ``rule(info, in_dims, *args, **kwargs) -> (outputs, out_dims)``.
    args, kwargs
        The arguments, some of them batched, or lists of such.

    Raises
    ------
    RuntimeError
        The rule returned something else.
    """
    kwargs = kwargs or {}
    level = levels_of([*args, *kwargs.values()])[-1]

    def dim(value: Any) -> Any:
        if isinstance(value, list):
            return [dim(v) for v in value]
        return 0 if isinstance(value, BatchedTensor) and level in value._levels else None

    def exposed(value: Any) -> Any:
        if isinstance(value, list):
            return [exposed(v) for v in value]
        return expose(value, (level,)) if dim(value) == 0 else value

    outer, state.levels = state.levels, [x for x in state.levels if x is not level]
    try:
        found = rule(
            VmapInfo(level.size, level.randomness),
            tuple(dim(x) for x in args),
            *(exposed(x) for x in args),
            **{key: exposed(x) for key, x in kwargs.items()},
        )
    finally:
        state.levels = outer
    if not isinstance(found, tuple) or len(found) != 2:
        message = (
            f"[{name}] vmap: expected the rule to return (outputs, out_dims), got "
            f"{type(found).__name__}."
        )
        raise RuntimeError(message)
    outputs, out_dims = found
    if not isinstance(outputs, (tuple, list)):
        return _rebatched(name, outputs, out_dims, level)
    dims = out_dims if isinstance(out_dims, (tuple, list)) else [out_dims] * len(outputs)
    if len(dims) != len(outputs):
        message = (
            f"[{name}] vmap returned {len(outputs)} outputs and {len(dims)} out_dims: "
            "they need the same structure."
        )
        raise RuntimeError(message)
    return type(outputs)(_rebatched(name, x, d, level) for x, d in zip(outputs, dims, strict=True))


def _rebatched(name: str, value: Any, dim: Any, level: Level) -> Any:
    if dim is None or not isinstance(value, Tensor):
        return value
    if isinstance(dim, bool) or not isinstance(dim, int):
        message = (
            f"[{name}] vmap: expected out_dims of integers or None, one per output, got {dim!r}."
        )
        raise TypeError(message)
    if not -value.ndim <= dim < value.ndim:
        message = (
            f"[{name}] vmap returned {dim} in out_dims for an output of {value.ndim} dimensions: "
            "expected the dimension that runs over the samples, or None."
        )
        raise IndexError(message)
    if value.shape[dim] != level.size:
        message = (
            f"[{name}] vmap returned size {value.shape[dim]} in dimension {dim} of an output, "
            f"expected the size of the batch, {level.size}."
        )
        raise RuntimeError(message)
    return batch(value.movedim(dim, 0), (level,))


# --- a rule from the formulas ---------------------------------------------------------------------


def apply_by_generated_rule(
    cls: type[Function], inputs: tuple[Any, ...], call: Callable[[Any, Sequence[Any]], Any]
) -> Any:
    """Run a Function on ordinary tensors whose formulas are those of `cls` on batched ones.

    Parameters
    ----------
    cls
        The Function.
    inputs
        All its arguments.
    call
        ``call(ctx, inputs)`` runs forward, and what fills the context.
    """
    from tensorplay.autograd.function import Function

    own = [x._levels if isinstance(x, BatchedTensor) else () for x in inputs]
    plan: dict[str, Any] = {}

    class Batched(Function):
        @staticmethod
        def forward(ctx: Any, *values: Any) -> Any:
            inner = FunctionContext(ctx.needs_input_grad)
            result = call(inner, [_batched(v, n) for v, n in zip(values, own, strict=True)])
            many = isinstance(result, (tuple, list))
            results = tuple(result) if many else (result,)
            plan["many"], plan["out"] = many, [_levels(x) for x in results]
            _hold(ctx, inner)
            outs = tuple(_value(x) for x in results)
            return outs if many else outs[0]

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            inner = _restore(ctx)
            found = cls._formula()(
                inner, *[_batched(g, n) for g, n in zip(grads, plan["out"], strict=True)]
            )
            given = found if isinstance(found, (tuple, list)) else (found,)
            return tuple(
                _as_input(g, inputs[n], own[n]) if n < len(inputs) else g
                for n, g in enumerate(given)
            )

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            inner = _restore(ctx, forward=True)
            found = cls.jvp(inner, *[_batched(t, n) for t, n in zip(tangents, own, strict=True)])
            given = found if isinstance(found, (tuple, list)) else (found,)
            values = tuple(
                physical(t, n) if isinstance(t, Tensor) else t
                for t, n in zip(given, plan["out"], strict=True)
            )
            return values if plan["many"] else values[0]

    Batched.__name__ = Batched.__qualname__ = cls.__name__
    result = Batched.apply(*[_value(x) for x in inputs])
    results = result if isinstance(result, tuple) else (result,)
    outs = tuple(_batched(x, n) for x, n in zip(results, plan["out"], strict=True))
    return outs if plan["many"] else outs[0]


def _as_input(grad: Any, x: Any, levels: Levels) -> Any:
    """Return a gradient with the batch dimensions of its input, summed over other ones."""
    if not isinstance(grad, Tensor) or not isinstance(x, Tensor):
        return grad
    if grad.shape != x.shape:
        grad = grad.sum_to_size(x.shape)
    extra = tuple(n for n in levels_of([grad]) if n not in levels)
    if extra:
        grad = expose(grad, extra).sum(tuple(range(len(extra))))
    return physical(grad, levels)


def _levels(value: Any) -> Levels:
    return value._levels if isinstance(value, BatchedTensor) else ()


def _value(value: Any) -> Any:
    return value._value if isinstance(value, BatchedTensor) else value


def _batched(value: Any, levels: Levels) -> Any:
    return batch(value, levels) if isinstance(value, Tensor) and levels else value


def _walk(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested values with ``change(tensor)`` in place of each tensor."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in {list, tuple}:
        return type(value)(_walk(v, change) for v in value)
    if type(value) is dict:
        return {key: _walk(v, change) for key, v in value.items()}
    return value


def _pair(value: Any, levels: Any) -> Any:
    """Return nested values batched at the levels in the same places of `levels`."""
    if isinstance(value, Tensor):
        return batch(value, levels)
    if type(value) in {list, tuple}:
        return type(value)(_pair(v, n) for v, n in zip(value, levels, strict=True))
    if type(value) is dict:
        return {key: _pair(v, levels[key]) for key, v in value.items()}
    return value


def _hold(ctx: FunctionContext, inner: FunctionContext) -> None:
    """Keep in `ctx` what `inner` was filled with, as ordinary tensors under its rules."""
    ctx.save_for_backward(*[_value(t) for t in inner._to_save])
    ctx.save_for_forward(*[_value(t) for t in inner._for_forward])
    ctx.mark_dirty(*[_value(t) for t in inner._dirty])
    ctx.mark_non_differentiable(*[_value(t) for t in inner._non_differentiable])
    ctx.set_materialize_grads(inner._materialize)
    names = list(inner.__dict__)
    # Attributes of the user's own, so that tensors without history among them are noticed.
    for name in names:
        setattr(ctx, name, _walk(inner.__dict__[name], _value))
    ctx._batched = (  # type: ignore[attr-defined]  # an attribute of the context like any other
        names,
        {name: _walk(inner.__dict__[name], _levels) for name in names},
        [_levels(t) for t in inner._to_save],
        [_levels(t) for t in inner._for_forward],
    )


def _restore(ctx: Any, *, forward: bool = False) -> FunctionContext:
    """Return a context like the one that forward filled, on what `ctx` kept."""
    names, levels, saved, for_forward = ctx._batched
    inner = FunctionContext(ctx.needs_input_grad)
    for name in names:
        setattr(inner, name, _pair(getattr(ctx, name), levels[name]))
    kept = zip(ctx.saved_for_forward, for_forward, strict=True)
    inner._for_forward = tuple(_batched(t, n) for t, n in kept)
    if forward and inner._for_forward:
        inner._in_jvp = True
        return inner
    inner._to_save = tuple(_batched(t, n) for t, n in zip(ctx.saved_tensors, saved, strict=True))
    return inner
