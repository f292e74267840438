"""What the forward step of a `Function` keeps for its derivative, and the node that uses it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tensorplay import _native
from tensorplay._tensor import Spec, Tensor, wrap
from tensorplay.autograd import forward_ad, grad_mode
from tensorplay.autograd.graph import (
    FREED,
    Node,
    SavedTensor,
    saved_attribute,
    source_of,
)

__all__ = [
    "NO_ZEROS",
    "FunctionContext",
    "FunctionNode",
    "no_node",
    "record_call",
    "record_one",
    "zeros_of",
]


def no_node() -> None:
    """Stand in a new context for the reference to its node."""


_PLAIN = frozenset({int, float, bool, str, type(None)})


class FunctionContext:
    """What `forward` leaves for `backward`; also a place for attributes of the user's own.

    A tensor that `forward` computes has no history, so a second derivative would miss its share.
    Such tensors are marked when the step is recorded: used in a differentiated `backward`, they
    raise if a derivative reaches them. Nor has it a tangent: where the inputs had some, `backward`
    cannot have it at the same level of forward mode.
    """

    # The fields of the context are slots, so that ``__dict__`` holds what the user sets, only.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_computed",
        "_dirty",
        "_for_forward",
        "_freed",
        "_in_jvp",
        "_input_ids",
        "_level",
        "_materialize",
        "_node",
        "_non_differentiable",
        "_saved",
        "_to_save",
        "_tracked",
        "needs_input_grad",
    )

    def __init__(self, needs_input_grad: tuple[Any, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._to_save: tuple[Tensor | None, ...] = ()
        self._for_forward: tuple[Tensor | None, ...] = ()
        self._saved: list[SavedTensor | None] | None = None
        self._freed = False
        self._node: Callable[[], Node | None] = no_node
        self._dirty: tuple[Tensor, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._materialize = True
        self._in_jvp = False
        self._level: int | None = None  # of forward mode, if inputs had tangents
        self._input_ids: frozenset[int] = frozenset()
        self._computed: dict[str, Any] = {}  # attributes with tensors that have no history
        self._tracked = False  # whether a derivative of the running `backward` will be taken

    def __getattr__(self, name: str) -> Any:
        try:
            value = self._computed[name]
        except KeyError:
            message = f"the context of this Function has no attribute {name!r}"
            raise AttributeError(message) from None
        return self._marked(value, f"ctx.{name}")

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
        """The tensors kept by `save_for_backward`, in order; in `jvp` those of `save_for_forward`.

        Raises
        ------
        RuntimeError
            One was changed in place since, or the graph was freed.
        """
        if self._in_jvp and self._for_forward:
            return self._for_forward
        if self._freed:
            raise RuntimeError(FREED)
        if self._saved is None:
            return self._to_save
        node = self._node()
        found: list[Tensor | None] = []
        for number, saved in enumerate(self._saved):
            tensor = None if saved is None else saved.unpack(node)
            if saved is not None and saved.computed:
                tensor = self._marked(tensor, f"ctx.saved_tensors[{number}]")
            found.append(tensor)
        return tuple(found)

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

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether missing gradients of outputs arrive as zeros (True) or None."""
        self._materialize = bool(value)

    def _keep(self, node: Node, outputs: Sequence[Any]) -> None:
        """Turn the tensors to save into saved ones; those that are outputs lose their history."""
        self._node = weakref.ref(node)
        dirty = {id(t) for t in self._dirty}
        # An input that is returned unchanged is still an input here.
        numbers = {
            id(out): number
            for number, out in enumerate(outputs)
            if id(out) not in self._input_ids or id(out) in dirty
        }
        self._saved = [
            None if t is None
            else SavedTensor(t, numbers.get(id(t)), computed=self._is_computed(t, numbers))
            for t in self._to_save
        ]  # fmt: skip
        self._to_save = ()
        for name, value in list(self.__dict__.items()):
            if any(self._is_computed(t, numbers) for t in _tensors_of(value)):
                self._computed[name] = self.__dict__.pop(name)

    def _keep_for_one(self, node: Node, output: Tensor) -> None:
        """Do what `_keep` does for one output that is no input."""
        self._node = weakref.ref(node)
        if not self._to_save and not self.__dict__:
            self._saved = []
            return
        ids = self._input_ids
        self._saved = [
            None if t is None
            else SavedTensor(t, 0) if t is output
            else SavedTensor(
                t,
                computed=not t._requires_grad and id(t) not in ids and t._dtype.is_differentiable,
            )
            for t in self._to_save
        ]  # fmt: skip
        self._to_save = ()
        for name, value in list(self.__dict__.items()):
            if value.__class__ not in _PLAIN and any(
                self._is_computed(t, {id(output): 0}) for t in _tensors_of(value)
            ):
                self._computed[name] = self.__dict__.pop(name)

    def _is_computed(self, tensor: Tensor, outputs: Mapping[int, int]) -> bool:
        """Tell whether a tensor is neither input nor output nor has a history of its own."""
        return (
            tensor._dtype.is_differentiable
            and not tensor._requires_grad
            and id(tensor) not in self._input_ids
            and id(tensor) not in outputs
        )

    def _marked(self, value: Any, name: str) -> Any:
        node = self._node()
        dual = self._level is not None and self._level == forward_ad.current_number()
        if dual and not self._in_jvp and node is not None:
            raise RuntimeError(_no_history(name, node, "tangent"))
        if not self._tracked or not grad_mode.state.enabled or node is None:
            return value
        return _with_marks(value, name, node)

    def _free(self) -> None:
        if self._saved:
            self._saved = []
            self._freed = True


def _tensors_only(operator: str, tensors: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    for number, tensor in enumerate(tensors):
        if tensor is not None and not isinstance(tensor, Tensor):
            message = (
                f"[{operator}] {operator} can only save variables, but argument {number} "
                f"is of type {type(tensor).__name__}. Set it as an attribute of ctx."
            )
            raise TypeError(message)
    return tensors


def _tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for member in value for tensor in _tensors_of(member)]
    return []


def _with_marks(value: Any, name: str, node: Node) -> Any:
    """Return `value` with tensors that raise when a derivative reaches them."""
    if isinstance(value, Tensor):
        if value._requires_grad or not value._dtype.is_differentiable:
            return value
        twin = value.detach()
        twin._grad_fn, twin._requires_grad = ComputedInForward(name, node, twin), True
        return twin
    if type(value) in {list, tuple}:
        return type(value)(_with_marks(v, f"{name}[{i}]", node) for i, v in enumerate(value))
    if type(value) is dict:
        return {k: _with_marks(v, f"{name}[{k!r}]", node) for k, v in value.items()}
    return value


def _no_history(name: str, node: Node, what: str) -> str:
    return (
        f"[{node.name()}] {name} was computed in forward and is neither an input nor an "
        f"output, so it has no {what}, and a second derivative through it would be wrong. "
        "Return it as an output and save that, or compute it again in backward from saved "
        "inputs; pass constants as arguments."
    )


class ComputedInForward(Node):
    """History of a tensor that was computed in `forward`: unknown, so it can only raise."""

    __slots__ = ("_message",)

    def __init__(self, name: str, node: Node, tensor: Tensor) -> None:
        # The edges lead where the true history would, so that passes to the inputs come by.
        super().__init__(node.edges, (Spec(tensor._array.shape, tensor._dtype),))
        self._message = _no_history(name, node, "history")

    def apply(self, grads: list[Tensor | None], needed: Sequence[bool]) -> Sequence[Tensor | None]:
        """Raise."""
        raise RuntimeError(self._message)


class Maker(Protocol):
    """What was called: it knows what people call its node and the inputs of that."""

    def _node_name(self) -> str:
        """Return the name of the node, such as ``CubeBackward``."""

    def _node_place(self, number: int, count: int) -> tuple[str, str]:
        """Return the operator and the argument that is input `number` of `count`."""


class FunctionNode(Node):
    """Node of a joint backward formula: one call gives the gradients of all inputs.

    Parameters
    ----------
    maker
        The operator or class that was called.
    ctx
        The filled context.
    formula
        ``formula(ctx, *grads)`` returns one gradient, or None, per input.
    inputs
        The arguments; those that are tensors may get a gradient.
    given
        How many of them the caller wrote; the rest are defaults, and need no entry in the result.
    """

    __slots__ = ("_ctx", "_maker", "formula", "given", "zeros")

    _ctx: FunctionContext | tuple[Any, ...]  # or `needs_input_grad`, until somebody asks for it

    takes_undefined = True
    takes_real_part = False  # people write the formula

    def __init__(
        self,
        maker: Maker,
        ctx: FunctionContext,
        formula: Callable[..., Any],
        inputs: Sequence[Any],
        given: int | None = None,
    ) -> None:
        super().__init__([source_of(x) for x in inputs])
        self._maker = maker
        self._ctx = ctx
        self.formula = formula
        self.given = len(inputs) if given is None else given
        # Shapes of outputs without a gradient, whose slots in the formula get zeros all the same.
        self.zeros: dict[int, Spec] = {}
        ctx._input_ids = frozenset(id(x) for x in inputs if isinstance(x, Tensor))

    @property
    def ctx(self) -> FunctionContext:
        """The context of the call; one that nobody has filled is made when it is asked for."""
        held = self._ctx
        if isinstance(held, tuple):
            made = self._ctx = FunctionContext(held)
            made._saved = []
            made._node = weakref.ref(self)
            return made
        return held

    def name(self) -> str:
        """Return the name shown to people."""
        return self._maker._node_name()

    def place(self, number: int) -> str:
        """Return operator and argument of an input, as errors begin."""
        operator, argument = self._maker._node_place(number, len(self._sources))
        return f"[{operator}] argument '{argument}': "

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors that the context keeps."""
        return self.ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_saved_", "_raw_saved_")):
            return saved_attribute(self, name)
        # Attributes that the user set on ctx can be read from the node, as in the field.
        return getattr(object.__getattribute__(self, "ctx"), name)

    def saved(self) -> dict[str, Any]:
        """Return the saved tensors; they have no names of their own."""
        return {"tensors": list(self.ctx._saved or ())}

    def apply(self, grads: list[Tensor | None], needed: Sequence[bool]) -> Sequence[Tensor | None]:
        """Call the formula and check how much it returns."""
        ctx = self.ctx
        arguments = list(grads)
        if ctx._materialize and (self.zeros or any(x is None for x in arguments)):
            for number, spec in enumerate(self.outputs):
                shape = self.zeros.get(number) if spec is None else spec
                if arguments[number] is None and shape is not None:
                    arguments[number] = zeros_of(shape)
        outer, ctx._tracked = ctx._tracked, grad_mode.state.enabled
        try:
            results = self.formula(ctx, *arguments)
        finally:
            ctx._tracked = outer
        return self.fitted(results)

    def fitted(self, results: Any) -> list[Tensor | None]:
        """Return what the formula gave as one gradient, or None, per input.

        Raises
        ------
        RuntimeError
            It gave too few, or too many.
        """
        if not isinstance(results, (tuple, list)):
            results = (results,)
        sources = self._sources
        count = len(sources)
        if len(results) == count and not any(s is None for s in sources):
            return list(results)  # one for each, and all are wanted
        if len(results) < self.given or any(x is not None for x in results[count:]):
            operator, _ = self._maker._node_place(0, count)
            message = (
                f"[{operator}] function {self.name()} returned an incorrect number of gradients "
                f"(expected {self.given}, got {len(results)}). Return one per argument, None "
                "where there is none."
            )
            raise RuntimeError(message)
        padded = [*results[:count], *[None] * (count - len(results))]
        # A gradient for an input that needs none is dropped unseen, as its type may be anything.
        return [None if s is None else x for s, x in zip(sources, padded, strict=True)]

    def saves_result(self) -> bool:
        """Tell whether an output was saved."""
        held = self._ctx
        return held.__class__ is not tuple and any(
            s is not None and s.is_result for s in self.ctx._saved or ()
        )

    def release(self) -> None:
        """Free the saved tensors."""
        if self._ctx.__class__ is not tuple:
            self.ctx._free()


NO_ZEROS: dict[int, Spec] = {}


def _record_call(
    maker: Maker,
    ctx: FunctionContext | None,
    formula: Callable[..., Any],
    inputs: tuple[Any, ...],
    output: Tensor,
) -> None:
    """Record a call that gave one new differentiable tensor, while anomaly mode is off.

    Without `ctx` nobody fills the context, which is made when somebody asks for it.
    """
    needs = tuple([x.__class__ is Tensor and x._requires_grad for x in inputs])
    node = FunctionNode(maker, FunctionContext(needs) if ctx is None else ctx, formula, inputs)
    record_one(node, output)


record_call: Callable[..., None] = (
    _record_call if _native.core is None else _native.core.record_call
)


def record_one(node: FunctionNode, output: Tensor) -> None:
    """Make `node` the history of its only output, a new differentiable tensor."""
    node._outputs, node._shape, node._dtype = None, output._array.shape, output._dtype
    node.ctx._keep_for_one(node, output)
    output._grad_fn, output._output_nr, output._requires_grad = node, 0, True


def zeros_of(spec: Spec) -> Tensor:
    """Return zeros of the shape and type of `spec`."""
    return wrap(np.zeros(spec.shape, spec.dtype.numpy), spec.dtype)


if _native.core is not None:
    _native.core.configure_functions(FunctionNode, FunctionContext)
