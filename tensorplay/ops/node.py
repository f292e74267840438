"""The node that a primitive leaves in the graph, and the rules that it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tensorplay._tensor import Spec, Tensor
from tensorplay.autograd.function_context import zeros_of
from tensorplay.autograd.graph import FREED, Node, SavedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensorplay.autograd.graph import Edge
    from tensorplay.ops.primitive import Primitive

__all__ = [
    "OTHER",
    "TENSOR",
    "TENSOR_LIST",
    "PrimitiveNode",
    "Vjp",
    "bare_spec",
    "node_name",
]

# What an argument of an operator is: a tensor, a list of tensors, or something else.
TENSOR, TENSOR_LIST, OTHER = range(3)


class Vjp:
    """How the gradient of one input follows from that of the output.

    Parameters
    ----------
    formula
        ``formula(g, s)`` returns the gradient, in tensor operations. `g` is the gradient of the
        output (a list of them if there are several). `s` has an attribute per saved tensor and
        per argument that is not a tensor, ``s.specs`` with shape and type of every tensor
        argument by name, and ``s.out_specs``. The result may be larger than the input by
        broadcasting, and of another type: it is summed and cast.
    saves
        Names of the tensors that the formula reads: arguments, or ``"out"``.
    """

    __slots__ = ("formula", "saves")

    def __init__(self, formula: Callable[[Any, Any], Any], *saves: str) -> None:
        self.formula = formula
        self.saves = saves


def bare_spec(tensor: Tensor) -> Spec:
    """Return shape and type of `tensor`; formulas never ask for strides."""
    spec: Spec = _make_spec(Spec, (tensor._array.shape, tensor._dtype, None))
    return spec


# Spec(...) goes through Python code; a node makes several.
_make_spec: Any = tuple.__new__


def node_name(operator: str) -> str:
    """Return what the node of an operator is called: ``LogSoftmaxBackward`` for log_softmax."""
    words = operator.strip("_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "Backward"


class PrimitiveNode(Node):
    """Node of a primitive: runs the formulas of the inputs that need a gradient, and only those."""

    __slots__ = ("_freed", "_saved", "_specs", "_values", "_wanted", "primitive")

    def __init__(
        self,
        primitive: Primitive,
        edges: Sequence[Edge | None],
        values: list[Any],
        wanted: tuple[bool, ...],
    ) -> None:
        super().__init__(edges)
        self.primitive = primitive
        self._wanted = wanted
        self._freed = False
        # Shapes and types of all tensors; the tensors only where a formula reads them. Numbers
        # that stand for tensors are kept as they are.
        self._specs: list[Any] | None = []
        self._values: list[Any] = []
        for v in values:
            kind = type(v)
            if isinstance(v, Tensor):
                self._specs.append(bare_spec(v))
                self._values.append(None)
            elif kind is list:
                self._specs.append([None if t is None else bare_spec(t) for t in v])
                self._values.append(None)
            else:
                self._specs.append(v)
                self._values.append(v)
        self._saved: dict[str, Any] = {}
        for name in primitive.saves(wanted)[0]:
            value = values[primitive.schema.index_of(name)]
            self._saved[name] = (
                SavedTensor(value) if isinstance(value, Tensor)
                else [None if t is None else SavedTensor(t) for t in value]
                if isinstance(value, list) else value
            )  # fmt: skip

    @classmethod
    def short(
        cls, primitive: Primitive, edges: Sequence[Edge | None], values: list[Any], output: Spec
    ) -> PrimitiveNode:
        """Return a node as the short way makes it: without shapes, and nothing saved yet."""
        node = cls.__new__(cls)
        Node.__init__(node, edges, (output,))
        node.primitive = primitive
        node._wanted = ()
        node._freed = False
        node._specs = None
        node._values = values
        node._saved = {}
        return node

    def save_results(self, outs: tuple[Tensor, ...], *, own: bool = True) -> None:
        """Save the results, if a formula reads them; `own` if this node is their history."""
        if self.primitive.saves(self._wanted)[1]:
            kept = [SavedTensor(out, number if own else None) for number, out in enumerate(outs)]
            self._saved["out"] = kept if len(outs) > 1 else kept[0]

    def name(self) -> str:
        """Return the name shown to people."""
        return node_name(self.primitive.name)

    def _unpack(self, value: Any) -> Any:
        if isinstance(value, SavedTensor):
            return value.unpack(self)
        return [self._unpack(v) for v in value] if isinstance(value, list) else value

    def apply(self, grads: list[Tensor | None], needed: Sequence[bool]) -> Sequence[Tensor | None]:
        """Run the formulas of the needed inputs."""
        if self._freed:
            raise RuntimeError(FREED)
        primitive = self.primitive
        saved = SimpleNamespace()
        attributes = saved.__dict__
        attributes.update(zip(primitive.names, self._values, strict=True))
        for name, value in self._saved.items():
            attributes[name] = self._unpack(value)
        if self._specs is not None:  # None after the short way, whose formulas read no shapes
            saved.specs = dict(zip(primitive.names, self._specs, strict=True))
        saved.out_specs = self.outputs
        grad: Any = grads[0] if len(self.outputs) == 1 else [
            zeros_of(spec) if g is None and spec is not None else g
            for g, spec in zip(grads, self.outputs, strict=True)
        ]  # fmt: skip
        results: list[Tensor | None] = []
        rules = primitive.vjp or {}
        for _, kind, argument in primitive.plan:
            if kind == OTHER:
                continue
            rule = rules.get(argument.name)
            if kind == TENSOR:
                run = rule is not None and needed[len(results)]
                results.append(rule.formula(grad, saved) if run and rule is not None else None)
            else:
                count = len(saved.specs[argument.name])
                run = rule is not None and any(needed[len(results) : len(results) + count])
                results.extend(
                    rule.formula(grad, saved) if run and rule is not None else [None] * count
                )
        return results

    def saves_result(self) -> bool:
        """Tell whether a formula reads the result."""
        return "out" in self._saved

    def release(self) -> None:
        """Free the saved tensors; a node that saved none can run again."""
        if self._saved:
            self._saved = {}
            self._freed = True
