"""`Function`: a differentiable step written by the user, with its context object."""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from tensorplay._tensor import Tensor, spec_of, wrap
from tensorplay.autograd import forward_ad, grad_mode
from tensorplay.autograd.graph import FREED, Node, SavedTensor, edge_of
from tensorplay.autograd.inplace import check_writable, rebase_history

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Function", "FunctionContext", "FunctionNode", "once_differentiable"]


class FunctionContext:
    """What `forward` leaves for `backward`; also a place for attributes of the user's own."""

    def __init__(self, needs_input_grad: tuple[Any, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._to_save: tuple[Tensor | None, ...] = ()
        self._for_forward: tuple[Tensor | None, ...] = ()
        self._saved: list[SavedTensor | None] | None = None
        self._freed = False
        self._node: Callable[[], Node | None] = lambda: None
        self._dirty: tuple[Tensor, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._materialize = True
        self._called_once = False

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep inputs or outputs for `backward`; the last call counts.

        Raises
        ------
        TypeError
            An argument is neither a tensor nor None; set it as an attribute instead.
        """
        self._to_save = _tensors_only("save_for_backward", tensors)

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `jvp`."""
        self._for_forward = _tensors_only("save_for_forward", tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors kept by `save_for_backward`, in order.

        Raises
        ------
        RuntimeError
            One was changed in place since, or the graph was freed.
        """
        if self._freed:
            raise RuntimeError(FREED)
        if self._saved is None:
            return self._for_forward or self._to_save
        node = self._node()
        assert node is not None or not self._saved
        return tuple(None if s is None else s.unpack(node) for s in self._saved)  # type: ignore[arg-type]

    @property
    def saved_for_forward(self) -> tuple[Any, ...]:
        """The tensors kept by `save_for_forward`."""
        return self._for_forward

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say which inputs were changed in place; they must be returned."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say which outputs carry no gradient."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:  # noqa: FBT001
        """Choose whether missing gradients of outputs arrive as zeros (True) or None."""
        self._materialize = bool(value)

    def _keep(self, node: Node, outputs: Sequence[Any]) -> None:
        """Turn the tensors to save into saved ones; those that are outputs lose their history."""
        self._node = weakref.ref(node)
        numbers = {id(out): number for number, out in enumerate(outputs)}
        self._saved = [
            None if t is None else SavedTensor(t, numbers.get(id(t))) for t in self._to_save
        ]
        self._to_save = ()

    def _free(self) -> None:
        if self._saved:
            self._saved = []
            self._freed = True


def _tensors_only(operator: str, tensors: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    for number, tensor in enumerate(tensors):
        if tensor is not None and not isinstance(tensor, Tensor):
            message = (
                f"[{operator}] save_for_backward can only save variables, but argument {number} "
                f"is of type {type(tensor).__name__}. Set it as an attribute of ctx."
            )
            raise TypeError(message)
    return tensors


class FunctionNode(Node):
    """Node of a joint backward formula: one call gives the gradients of all inputs."""

    __slots__ = ("_name", "ctx", "formula")

    takes_undefined = True

    def __init__(
        self,
        name: str,
        ctx: FunctionContext,
        formula: Callable[..., Any],
        inputs: Sequence[Any],
    ) -> None:
        super().__init__([edge_of(x) if isinstance(x, Tensor) else None for x in inputs])
        self._name = name
        self.ctx = ctx
        self.formula = formula

    def name(self) -> str:
        """Return the name shown to people."""
        return self._name

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors that the context keeps."""
        return self.ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        # Attributes that the user set on ctx can be read from the node, as in the field.
        return getattr(object.__getattribute__(self, "ctx"), name)

    def apply(
        self,
        grads: list[Tensor | None],
        needed: Sequence[bool],  # noqa: ARG002 - one call computes all; ctx.needs_input_grad tells
    ) -> Sequence[Tensor | None]:
        """Call the formula and check what it returns."""
        if self.ctx._materialize:
            for number, spec in enumerate(self.outputs):
                if grads[number] is None and spec is not None:
                    grads[number] = zeros_of(spec)
        results = self.formula(self.ctx, *grads)
        if not isinstance(results, (tuple, list)):
            results = (results,)
        count = len(self.edges)
        extra = results[count:]
        if len(results) < count or any(x is not None for x in extra):
            message = (
                f"function {self._name} returned an incorrect number of gradients "
                f"(expected {count}, got {len(results)})"
            )
            raise RuntimeError(message)
        # A gradient for an input that needs none is dropped unseen, as its type may be anything.
        return [
            None if edge is None else x for edge, x in zip(self.edges, results[:count], strict=True)
        ]

    def release(self) -> None:
        """Free the saved tensors."""
        self.ctx._free()


def zeros_of(spec: Any) -> Tensor:
    """Return zeros of the shape and type of `spec`."""
    import numpy as np  # noqa: PLC0415 - the only use in this module

    return wrap(np.zeros(spec.shape, spec.dtype.numpy), spec.dtype)


def _differentiable(tensor: Tensor, ctx: FunctionContext) -> bool:
    return tensor._dtype.is_differentiable and not any(
        tensor is other for other in ctx._non_differentiable
    )


def _refuse_view(name: str) -> Callable[[Tensor], Tensor]:
    def refuse(base: Tensor) -> Tensor:
        message = (
            f"[{name}] an output of this Function is a view of its input of size "
            f"{list(base.shape)}, and one of them is being modified in place, which hides the "
            "gradient formula. Return a clone from forward."
        )
        raise RuntimeError(message)

    return refuse


class Function:
    """A differentiable step with a derivative of its own; call it through `apply`.

    A subclass defines static methods in one of two styles. Combined: ``forward(ctx, *args)``.
    Separate: ``forward(*args)`` and ``setup_context(ctx, inputs, output)``. In both,
    ``backward(ctx, *grad_outputs)`` returns one gradient, or None, per argument of ``forward``,
    and ``jvp(ctx, *tangents)`` may give the forward-mode formula.
    """

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
        separate = cls.setup_context is not Function.setup_context
        if kwargs:
            lead = () if separate else (None,)
            bound = inspect.signature(cls.forward).bind(*lead, *args, **kwargs)
            bound.apply_defaults()
            args = bound.args[len(lead) :]
        tensors = [x for x in args if isinstance(x, Tensor)]
        needs = tuple(isinstance(x, Tensor) and x.requires_grad for x in args)
        ctx = FunctionContext(needs)
        recording = grad_mode.state.enabled and any(needs)
        with grad_mode.no_grad():
            output = cls.forward(*args) if separate else cls.forward(ctx, *args)
            if separate:
                cls.setup_context(ctx, args, output)
        name = f"{cls.__name__}Backward"
        outputs = list(output) if isinstance(output, (tuple, list)) else [output]
        originals = tuple(outputs)
        _check_dirty(cls.__name__, ctx, tensors, outputs, recording=recording)
        for number, out in enumerate(outputs):
            if isinstance(out, Tensor) and not any(out is d for d in ctx._dirty):
                outputs[number] = _as_own(out, tensors, cls.__name__)
        if recording:
            _record(name, cls._formula(), ctx, args, outputs, originals)
        if any(x._tangent is not None for x in tensors):
            _push_forward(cls, ctx, args, outputs)
        if isinstance(output, (tuple, list)):
            return tuple(outputs)
        return outputs[0]


def _check_dirty(
    name: str, ctx: FunctionContext, tensors: list[Tensor], outputs: list[Any], *, recording: bool
) -> None:
    for dirty in ctx._dirty:
        if not any(dirty is x for x in tensors):
            warnings.warn(
                f"[{name}] a tensor marked dirty is not an input of forward.", stacklevel=4
            )
            continue
        if recording:
            check_writable(dirty, name)
        if not any(dirty is out for out in outputs):
            message = (
                f"[{name}] Some elements marked as dirty during the forward method were not "
                "returned as output. The inputs that are modified inplace must all be outputs "
                "of the Function."
            )
            raise RuntimeError(message)


def _as_own(out: Tensor, inputs: list[Tensor], name: str) -> Tensor:
    """Return `out` as a tensor that can have a history of its own."""
    if any(out is x for x in inputs) or out._base is not None:
        fresh = out.detach()
        base = out if out._base is None else out._base
        fresh._mark_view(base, _refuse_view(name))
        return fresh
    return out if out._grad_fn is None and not out._requires_grad else out.detach()


def _record(
    name: str,
    formula: Callable[..., Any],
    ctx: FunctionContext,
    args: Sequence[Any],
    outputs: list[Any],
    originals: tuple[Any, ...],
) -> None:
    node = FunctionNode(name, ctx, formula, args)
    node.outputs = [
        spec_of(out) if isinstance(out, Tensor) and _differentiable(out, ctx) else None
        for out in originals
    ]
    # Saved tensors are recognised as outputs by identity, before or after `_as_own`.
    ctx._keep(node, [o if any(o is d for d in ctx._dirty) else f for o, f in
                     zip(originals, outputs, strict=True)] if outputs != list(originals)
              else originals)  # fmt: skip
    for number, out in enumerate(outputs):
        if node.outputs[number] is None:
            continue
        if any(out is d for d in ctx._dirty):
            out._bump_version()
            rebase_history(out, node)
            out._output_nr = number
        else:
            out._grad_fn, out._output_nr, out._requires_grad = node, number, True


def _push_forward(
    cls: type[Function], ctx: FunctionContext, args: Sequence[Any], outputs: list[Any]
) -> None:
    tangents = [x._tangent if isinstance(x, Tensor) else None for x in args]
    result = cls.jvp(ctx, *tangents)
    results = result if isinstance(result, (tuple, list)) else (result,)
    tensors = [out for out in outputs if isinstance(out, Tensor)]
    if len(results) != len(tensors):
        message = (
            f"[{cls.__name__}] jvp returned an incorrect number of tangents "
            f"(expected {len(tensors)}, got {len(results)})"
        )
        raise RuntimeError(message)
    for out, tangent in zip(tensors, results, strict=True):
        if tangent is not None:
            forward_ad.set_tangent(out, tangent, cls.__name__)


def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` that cannot be differentiated again.

    It runs without recording; a second derivative through its results raises RuntimeError.
    """

    @functools.wraps(function)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        with grad_mode.no_grad():
            result = function(ctx, *grads)
        involved = [*grads, *(t for t in ctx.saved_tensors if isinstance(t, Tensor))]
        if not grad_mode.state.enabled or not any(
            isinstance(g, Tensor) and g.requires_grad for g in involved
        ):
            return result
        results = result if isinstance(result, (tuple, list)) else (result,)
        marked = tuple(_DoubleBackwardError.apply(r, *involved) if isinstance(r, Tensor) else r
                       for r in results)  # fmt: skip
        return marked if isinstance(result, (tuple, list)) else marked[0]

    return wrapper


class _DoubleBackwardError(Function):
    """Passes a gradient on, and says at the second derivative that there is none."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *involved: Any) -> Tensor:
        ctx.count = 1 + len(involved)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        message = (
            "trying to differentiate twice a function that was marked with @once_differentiable: "
            "its backward does not require grad. Write the backward in tensor operations."
        )
        raise RuntimeError(message)
