"""`Function`: a differentiable step written by the user, with its context object."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

from tensorplay import _dtype, _native
from tensorplay._detours import detours
from tensorplay._tensor import Tensor, spec_of
from tensorplay.autograd import forward_ad, grad_mode
from tensorplay.autograd.batched import BatchedTensor
from tensorplay.autograd.function_batching import (
    apply_by_generated_rule,
    apply_rule,
    refuse,
)
from tensorplay.autograd.function_context import (
    NO_ZEROS,
    FunctionContext,
    FunctionNode,
    no_node,
    record_one,
)
from tensorplay.autograd.inplace import ViewOfInput, check_writable, rebase_history
from tensorplay.autograd.saved_tensors import SavedTensor, open_contexts

__all__ = ["Function", "FunctionContext", "FunctionNode", "once_differentiable"]


_MISS: Final = object()


class Function:
    """A differentiable step with a derivative of its own; call it through `apply`.

    A subclass defines static methods in one of two styles. Combined: ``forward(ctx, *args)``.
    Separate: ``forward(*args)`` and ``setup_context(ctx, inputs, output)``. In both,
    ``backward(ctx, *grad_outputs)`` returns one gradient, or None, per argument of ``forward``,
    and ``jvp(ctx, *tangents)`` may give the forward-mode formula.

    Inside of `func.vmap`, ``vmap(info, in_dims, *args)`` is called with whole batches and returns
    ``(outputs, out_dims)``; with ``generate_vmap_rule = True`` the other methods run on samples.
    """

    generate_vmap_rule = False

    def __init__(self) -> None:
        message = (
            f"[{type(self).__name__}] a Function is not instantiated. Write "
            f"{type(self).__name__}.apply(...)."
        )
        raise TypeError(message)

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        message = "You must implement the forward function for custom autograd.Function."
        raise NotImplementedError(message)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Fill the context, in the separate style."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return the gradients of the arguments of `forward`."""
        message = (
            "You must implement either the backward or vjp method for your custom "
            "autograd.Function to use it with backward mode AD."
        )
        raise NotImplementedError(message)

    vjp = backward

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Return the tangents of the outputs."""
        message = (
            "You must implement the jvp function for custom autograd.Function to use it with "
            "forward mode AD."
        )
        raise NotImplementedError(message)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """Return the outputs for a batch, and which dimension of each is the batch."""
        raise NotImplementedError

    @classmethod
    def _apply_batched(cls, inputs: tuple[Any, ...], names: tuple[str, ...]) -> Any:
        """Run inside of vmap."""
        own = cls.vmap is not Function.vmap
        if own and cls.generate_vmap_rule:
            message = (
                f"[{cls.__name__}] vmap: got both generate_vmap_rule=True and a vmap staticmethod. "
                "Keep one."
            )
            raise RuntimeError(message)
        if own:
            return apply_rule(cls.__name__, cls.vmap, inputs)
        if not cls.generate_vmap_rule:
            refuse(cls.__name__)

        def call(ctx: FunctionContext, values: Sequence[Any]) -> Any:
            count = len(values) - len(names)
            return cls._call(
                ctx, tuple(values[:count]), dict(zip(names, values[count:], strict=True))
            )

        return apply_by_generated_rule(cls, inputs, call)

    @classmethod
    def _call(cls, ctx: FunctionContext, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run forward, and set-up if there is one."""
        if cls.setup_context is Function.setup_context:
            return cls.forward(ctx, *args, **keywords)
        output = cls.forward(*args, **keywords)
        cls.setup_context(ctx, (*args, *keywords.values()), output)
        return output

    @classmethod
    def _node_name(cls) -> str:
        """Return what the node of a call is called."""
        return f"{cls.__name__}Backward"

    @classmethod
    def _node_place(cls, number: int, count: int) -> tuple[str, str]:  # noqa: ARG003 - of lists
        """Return the name of the class, and that of an argument of `forward`."""
        parameters = list(_signature(cls.forward)[0].parameters.values())
        if cls.setup_context is Function.setup_context:
            parameters = parameters[1:]  # ctx
        named = number < len(parameters) and all(
            p.kind is not p.VAR_POSITIONAL for p in parameters[: number + 1]
        )
        return cls.__name__, parameters[number].name if named else f"inputs[{number}]"

    @classmethod
    def _formula(cls) -> Callable[..., Any]:
        return cls.vjp if cls.backward is Function.backward else cls.backward

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call `forward` and record the step.

        Returns
        -------
        object
            What `forward` returned, its tensors having a history.

        Raises
        ------
        RuntimeError
            A tensor marked dirty is a leaf that requires grad, or was not returned.
        """
        if not kwargs:
            found = _plainly(cls, args)
            if found is not _MISS:
                return found
        separate = cls.setup_context is not Function.setup_context
        given = len(args) + len(kwargs)
        args, keywords = _bind(cls.forward, args, kwargs, separate=separate)
        inputs = (*args, *keywords.values())
        if any(isinstance(x, BatchedTensor) for x in inputs):
            return cls._apply_batched(inputs, tuple(keywords))
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        ctx = FunctionContext(tuple(isinstance(x, Tensor) and x.requires_grad for x in inputs))
        recording = grad_mode.state.enabled and any(ctx.needs_input_grad)
        with grad_mode.no_grad(), forward_ad.without_tangents(tensors) as tangents:
            output = cls._call(ctx, args, keywords)
        if any(t is not None for t in tangents):
            ctx._level = forward_ad.current_number()
        outputs = _finish(cls, ctx, inputs, given, output, recording=recording)
        if any(t is not None for t in tangents):
            _push_forward(cls, ctx, inputs, tensors, tangents, outputs)
        return tuple(outputs) if isinstance(output, (tuple, list)) else outputs[0]


def _finish(
    cls: type[Function],
    ctx: FunctionContext,
    inputs: Sequence[Any],
    given: int,
    output: Any,
    *,
    recording: bool,
) -> list[Any]:
    """Return the outputs of `forward` as tensors of their own, recorded if they are to be."""
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    results = output if isinstance(output, (tuple, list)) else (output,)
    _check_dirty(cls.__name__, ctx, tensors, results, recording=recording)
    outputs = _own_outputs(cls.__name__, ctx, tensors, results, recording=recording)
    if recording:
        _record(cls, ctx, inputs, given, results, outputs)
    return outputs


def _apply_plainly(cls: type[Function], args: tuple[Any, ...]) -> Any:
    """Run a call whose arguments are plain tensors and other things, the commonest one.

    Returns `_MISS` for others, before anything ran. The extension does the same.
    """
    if detours:
        return _MISS
    needs: list[bool] = []
    recording = False
    for x in args:
        if x.__class__ is Tensor:
            if x._base is not None:
                x._synchronise()
            if x._tangent is not None:
                return _MISS
            if x._requires_grad:
                recording = True
            needs.append(x._requires_grad)
        elif isinstance(x, Tensor):
            return _MISS  # batched, or of a subclass
        else:
            needs.append(False)
    separate = cls.setup_context is not Function.setup_context
    if separate and _takes_more(cls.forward, len(args)):
        return _MISS  # defaults are to be filled in
    mode = grad_mode.state
    ctx = FunctionContext(tuple(needs))
    before = mode.enabled
    mode.enabled = False
    try:
        if separate:
            output = cls.forward(*args)
            cls.setup_context(ctx, args, output)
        else:
            output = cls.forward(ctx, *args)
    finally:
        mode.enabled = before
    recording = recording and before
    if (
        output.__class__ is Tensor
        and output._base is None
        and output._grad_fn is None
        and not output._requires_grad
        and not ctx._dirty
        and not ctx._non_differentiable
        and output._dtype.is_differentiable
        and not any(x is output or (x.__class__ is Tensor and x._base is output) for x in args)
    ):
        if recording:
            record_one(FunctionNode(cls, ctx, cls._formula(), args), output)
        return output
    return _finish_plainly(cls, ctx, args, output, recording)


def _finish_plainly(
    cls: type[Function], ctx: FunctionContext, args: tuple[Any, ...], output: Any, recording: bool
) -> Any:
    outputs = _finish(cls, ctx, args, len(args), output, recording=recording)
    return tuple(outputs) if isinstance(output, (tuple, list)) else outputs[0]


@functools.lru_cache(maxsize=256)
def _signature(forward: Callable[..., Any]) -> tuple[inspect.Signature, int]:
    """Return the signature of `forward` and how many positional parameters it has."""
    signature = inspect.signature(forward)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return signature, sum(p.kind in kinds for p in signature.parameters.values())


def _takes_more(forward: Callable[..., Any], count: int) -> bool:
    """Tell whether `forward` has more positional parameters than arguments are given."""
    return count < _signature(forward)[1]


def _bind(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, separate: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments by position where they can be, and those by keyword only.

    In the separate style defaults are filled in, as `setup_context` unpacks all inputs.
    """
    if not kwargs and not separate:
        return args, {}
    signature, positional = _signature(forward)
    if not kwargs and len(args) >= positional:
        return args, {}
    lead = () if separate else (None,)  # stands for ctx
    bound = signature.bind(*lead, *args, **kwargs)
    if separate:
        bound.apply_defaults()
    return bound.args[len(lead) :], bound.kwargs


def _is_any(tensor: Any, others: Sequence[Any]) -> bool:
    return any(tensor is other for other in others)


def _check_dirty(
    name: str,
    ctx: FunctionContext,
    tensors: Sequence[Tensor],
    outputs: Sequence[Any],
    *,
    recording: bool,
) -> None:
    strangers = [dirty for dirty in ctx._dirty if not _is_any(dirty, tensors)]
    if strangers:
        warnings.warn(f"[{name}] a tensor marked dirty is not an input of forward.", stacklevel=4)
        ctx._dirty = tuple(dirty for dirty in ctx._dirty if not _is_any(dirty, strangers))
    for dirty in ctx._dirty:
        if recording:
            check_writable(dirty, name, argument="", written=True)
        if not _is_any(dirty, outputs):
            message = (
                f"[{name}] Some elements marked as dirty during the forward method were not "
                "returned as output. The inputs that are modified inplace must all be outputs "
                "of the Function."
            )
            raise RuntimeError(message)
        if recording and dirty._base is not None and len(outputs) > 1:
            message = (
                f"[{name}] an input that is a view is modified in place, so the Function cannot "
                f"return more than one tensor, got {len(outputs)}. Write x.clone() first."
            )
            raise RuntimeError(message)


def _own_outputs(
    name: str,
    ctx: FunctionContext,
    tensors: Sequence[Tensor],
    results: Sequence[Any],
    *,
    recording: bool,
) -> list[Any]:
    """Return the results of forward as tensors that can have a history of their own.

    An input that is returned unchanged becomes a view of itself. So does a view of an input; if
    it gets a history, it cannot be written in place, which would bypass the formula.
    """
    roots = [x if x._base is None else x._base for x in tensors]
    outputs: list[Any] = []
    for out in results:
        if not isinstance(out, Tensor) or _is_any(out, ctx._dirty):
            outputs.append(out)
            continue
        root = out if out._base is None else out._base
        aliased = _is_any(out, tensors) or _is_any(root, roots)
        if aliased and recording and _differentiable(out, ctx):
            fresh = out.detach()
            fresh._mark_view(root, ViewOfInput(name))
        elif _is_any(out, tensors):
            with grad_mode.no_grad():
                fresh = out.view_as(out)
        elif (
            _is_any(out, outputs)
            or out._grad_fn is not None
            or out._requires_grad
            or (out._base is not None and not aliased)
        ):
            fresh = out.detach()  # an output has one history, and views of temporaries have none
        else:
            fresh = out
        outputs.append(fresh)
    return outputs


def _differentiable(tensor: Tensor, ctx: FunctionContext) -> bool:
    return tensor._dtype.is_differentiable and not _is_any(tensor, ctx._non_differentiable)


def _record(
    cls: type[Function],
    ctx: FunctionContext,
    inputs: Sequence[Any],
    given: int,
    results: Sequence[Any],
    outputs: Sequence[Any],
) -> None:
    """Make one node the history of all differentiable outputs."""
    differentiable = [isinstance(r, Tensor) and _differentiable(r, ctx) for r in results]
    for dirty in ctx._dirty:
        dirty._bump_version()  # before it is saved: the saved version is the new one
    if not any(differentiable):
        return
    node = FunctionNode(cls, ctx, cls._formula(), inputs, given)
    node.outputs = [spec_of(r) if d else None for r, d in zip(results, differentiable, strict=True)]
    node.zeros = {
        number: spec_of(r)
        for number, (r, d) in enumerate(zip(results, differentiable, strict=True))
        if isinstance(r, Tensor) and not d
    }
    ctx._keep(node, results)
    for number, out in enumerate(outputs):
        if not differentiable[number]:
            continue
        if _is_any(out, ctx._dirty):
            position = next(n for n, x in enumerate(inputs) if x is out)
            rebase_history(out, node, output_nr=number, input_nr=position)
        else:
            out._grad_fn, out._output_nr, out._requires_grad = node, number, True


def _push_forward(
    cls: type[Function],
    ctx: FunctionContext,
    inputs: Sequence[Any],
    tensors: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    outputs: Sequence[Any],
) -> None:
    by_input = {id(x): t for x, t in zip(tensors, tangents, strict=True)}
    ctx._in_jvp = True
    try:
        with forward_ad.without_tangents(tensors):
            result = cls.jvp(ctx, *[by_input.get(id(x)) for x in inputs])
    finally:
        ctx._in_jvp = False
    results = result if isinstance(result, (tuple, list)) else (result,)
    if len(results) != len(outputs):
        message = (
            f"[{cls.__name__}] jvp returned an incorrect number of tangents "
            f"(expected {len(outputs)}, got {len(results)})"
        )
        raise RuntimeError(message)
    for out, tangent in zip(outputs, results, strict=True):
        if tangent is not None and isinstance(out, Tensor):
            forward_ad.set_tangent(out, tangent, cls.__name__)


_plainly: Callable[[type[Function], tuple[Any, ...]], Any]
if _native.core is None:
    _plainly = _apply_plainly
else:
    _native.core.configure_apply(
        *(Function, SavedTensor, _dtype.dtype, _dtype.FLOATING),
        *(_takes_more, _finish_plainly, open_contexts, no_node, _MISS, NO_ZEROS),
    )
    _plainly = _native.core.apply_plainly


def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` that cannot be differentiated again.

    It runs without recording; a second derivative through its results raises RuntimeError.

    Parameters
    ----------
    function
        The static method ``backward(ctx, *grads)``.

    Returns
    -------
    callable
        The method to put in its place.
    """

    @functools.wraps(function)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        with grad_mode.no_grad():
            result = function(ctx, *grads)
        if not grad_mode.state.enabled:
            return result
        involved = [
            t for t in (*grads, *ctx.saved_tensors) if isinstance(t, Tensor) and t.requires_grad
        ]
        if not involved:
            return result
        results = result if isinstance(result, (tuple, list)) else (result,)
        marked = tuple(
            _OnceDifferentiable.apply(r, *involved) if isinstance(r, Tensor) else r for r in results
        )
        return marked if isinstance(result, (tuple, list)) else marked[0]

    return wrapper


class _OnceDifferentiable(Function):
    """Passes a gradient on, and says at the second derivative that there is none."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *involved: Any) -> Any:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        message = (
            "trying to differentiate twice a function that was marked with @once_differentiable: "
            "its backward does not require grad. Write the backward in tensor operations."
        )
        raise RuntimeError(message)
