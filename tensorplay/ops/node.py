"""The node that a primitive leaves in the graph, and the rules that it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay._tensor import Spec, Tensor, VersionCounter, wrap
from tensorplay.autograd import grad_mode
from tensorplay.autograd.function_context import zeros_of
from tensorplay.autograd.graph import (
    FREED,
    AccumulateGrad,
    Node,
    SavedTensor,
    saved_attribute,
    target_of,
)
from tensorplay.autograd.saved_tensors import DETACHED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from tensorplay.autograd.graph import Edge
    from tensorplay.ops.primitive import Primitive

__all__ = [
    "FIRST_IS_NUMBER",
    "OTHER",
    "SECOND_IS_NUMBER",
    "TENSOR",
    "TENSOR_LIST",
    "PrimitiveNode",
    "Vjp",
    "bare_spec",
    "node_name",
    "show_saved",
]

# What an argument of an operator is: a tensor, a list of tensors, or something else.
TENSOR, TENSOR_LIST, OTHER = range(3)
# Which operand of an elementwise operator was a number, in the record of a short way.
FIRST_IS_NUMBER, SECOND_IS_NUMBER = 1, 2


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
    arrays
        The same on NumPy arrays, for passes that are not recorded themselves:
        ``arrays(g, args, shapes, out)`` gets the record of a short way, which has arrays for saved
        tensors, and returns an array that may be `g` or share its memory; or None, and `formula`
        is taken. Formulas in arithmetic alone need none: it is made of them (`ops.array_rules`).
    """

    __slots__ = ("arrays", "formula", "saves")

    def __init__(
        self,
        formula: Callable[[Any, Any], Any],
        *saves: str,
        arrays: Callable[[Any, Any, Any, Any], Any] | None = None,
    ) -> None:
        self.formula = formula
        self.saves = saves
        self.arrays = arrays


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
    """Node of a primitive: runs the formulas of the inputs that need a gradient, and only those.

    All primitives share the class, as attributes of one class are found sooner. There are two ways
    to fill a node. The long way (the constructor) keeps a `SavedTensor` for each tensor that a
    formula reads, and shape and type of all. A short way keeps the tensors themselves and the
    versions that they had, the elements of its result, and the shapes of tensor arguments if
    formulas read shapes; all that have gradients are of one type.
    """

    __slots__ = ("_args", "_counter", "_out", "_shapes", "_versions", "primitive")

    # One per argument of the schema: what is saved of a tensor, None for one that is not saved, and
    # the value of another. Of a short way it may be what `Primitive.complete` makes that of. None
    # when it was freed.
    _args: Any
    _counter: VersionCounter | None  # of the only output, once it has one
    _out: Any  # what is saved of the result: its elements, after a short way
    # A list of specs and values. After a short way a tuple of shapes; or, of an elementwise
    # operator, whose formulas read no shapes, which operand was a number, or None.
    _shapes: Any
    # None if no argument is saved. After a short way, their versions, or 0 if all of them are.
    _versions: Any
    primitive: Primitive

    def __init__(
        self,
        primitive: Primitive,
        edges: Sequence[Edge | None],
        values: list[Any],
        wanted: tuple[bool, ...],
    ) -> None:
        super().__init__(edges)
        self.primitive = primitive
        self._counter = None
        self._out = None
        # Shapes and types of all tensors; the tensors only where a formula reads them. Numbers
        # that stand for tensors are kept as they are.
        self._shapes = []
        self._args = []
        self._versions = None
        early = primitive.saves(wanted)[0]
        for name, v in zip(primitive.names, values, strict=True):
            kind = type(v)
            if isinstance(v, Tensor):
                self._shapes.append(bare_spec(v))
                kept: Any = SavedTensor(v) if name in early else None
            elif kind is list:
                self._shapes.append([None if t is None else bare_spec(t) for t in v])
                kept = [None if t is None else SavedTensor(t) for t in v] if name in early else None
            else:
                self._shapes.append(v)
                kept = v
            if kept is not None and kept is not v:
                self._versions = 0
            self._args.append(kept)

    def save_results(
        self, outs: tuple[Tensor, ...], wanted: tuple[bool, ...], *, own: bool = True
    ) -> None:
        """Save the results, if a formula reads them; `own` if this node is their history."""
        if self.primitive.saves(wanted)[1]:
            kept = [SavedTensor(out, number if own else None) for number, out in enumerate(outs)]
            self._out = kept if len(outs) > 1 else kept[0]

    def name(self) -> str:
        """Return the name shown to people."""
        return node_name(self.primitive.name)

    def place(self, number: int) -> str:
        """Return operator and argument of an input, as errors begin."""
        primitive = self.primitive
        names: list[str] = []
        for position, kind, argument in primitive.plan:
            if kind == TENSOR:
                names.append(argument.name)
            elif kind == TENSOR_LIST:  # which the long way records, with a list of specs
                count = len(self._shapes[position])
                names.extend(f"{argument.name}[{n}]" for n in range(count))
        return f"[{primitive.schema.qualname}] argument '{names[number]}': "

    # --- what is saved ----------------------------------------------------------------------

    def _unpack(self, value: Any, position: int) -> Any:
        if isinstance(value, SavedTensor):
            return value.unpack(self)
        if isinstance(value, Tensor):
            counter = value._counter
            version = 0 if counter is None else counter.value
            if version != (self._versions[position] if self._versions else 0):
                return self._pack(value, position).unpack(self)  # raises
            if value._grad_fn is None and grad_mode.state.enabled and self._had_history(position):
                raise RuntimeError(DETACHED)
            return value
        return [self._unpack(v, position) for v in value] if isinstance(value, list) else value

    def _had_history(self, position: int) -> bool:
        """Tell whether an argument that a short way kept was the result of a recorded call then."""
        sources = self._sources  # a short way has its tensors first, one for each
        source = sources[position] if position < len(sources) else None
        if source is None or source.__class__ is Tensor:
            return False
        return not isinstance(target_of(source)[0], AccumulateGrad)

    def _pack(self, value: Tensor, position: int) -> SavedTensor:
        """Return a saved tensor for one that a short way kept."""
        saved = SavedTensor(value)
        saved._version = self._versions[position] if self._versions else 0
        saved._had_history = self._had_history(position)
        return saved

    def _pack_result(self) -> SavedTensor:
        """Return a saved tensor for the elements of the result that a short way kept."""
        result = wrap(self._out, self._dtype)
        result._counter = self.result_counter(0)
        saved = SavedTensor(result, 0)
        saved._version, saved._wants_grad = 0, True
        return saved

    def result_counter(self, output_nr: int) -> VersionCounter:
        """Return the counter for writes to the memory of an output, which has none yet."""
        if self._outputs is not None and len(self._outputs) > 1:
            return VersionCounter()
        if self._counter is None:
            self._counter = VersionCounter()
        return self._counter

    def saved(self) -> dict[str, Any]:
        """Return what is saved for `apply`, by name: a `SavedTensor`, a list of them, or a number.

        What a short way kept is packed first, so that hooks can be registered on it.
        """
        if self._args is None:
            return {}
        primitive = self.primitive
        self._args = args = [
            self._pack(value, position) if isinstance(value, Tensor) else value
            for position, value in enumerate(primitive.all_arguments(self._args))
        ]
        if type(self._out) is np.ndarray:
            self._out = self._pack_result()
        read = {name for rule in (primitive.vjp or {}).values() for name in rule.saves}
        found = {
            name: value
            for name, value in zip(primitive.names, args, strict=True)
            if name in read and value is not None
        }
        if self._out is not None:
            found["out"] = self._out
        return found

    def saves_result(self) -> bool:
        """Tell whether a formula reads the result."""
        return self._out is not None

    def saves_packed(self) -> bool:
        """Tell whether something saved comes back through functions of people's own."""
        return _is_packed(self._out) or any(map(_is_packed, self._args or ()))

    def release(self) -> None:
        """Free the saved tensors; a node that saved none can run again."""
        if self._versions is not None or self._out is not None:
            self._args = self._out = None

    # --- the formulas -----------------------------------------------------------------------

    def _saved_for_formulas(self) -> SimpleNamespace:
        if self._args is None:
            raise RuntimeError(FREED)
        primitive = self.primitive
        names = primitive.names
        args = primitive.all_arguments(self._args)
        saved = SimpleNamespace()
        attributes = saved.__dict__
        if self._versions is None:
            attributes.update(zip(names, args, strict=True))
        else:
            for position, name in enumerate(names):
                attributes[name] = self._unpack(args[position], position)
        if self._out is not None:
            if type(self._out) is np.ndarray:
                self._out = self._pack_result()
            attributes["out"] = self._unpack(self._out, 0)
        shapes = self._shapes
        if type(shapes) is list:
            saved.specs = dict(zip(names, shapes, strict=True))
        elif type(shapes) is tuple:
            tensors = [a.name for _, kind, a in primitive.plan if kind == TENSOR]
            saved.specs = {
                name: None if shape is None else Spec(shape, self._dtype)
                for name, shape in zip(tensors, shapes, strict=True)
            }
        saved.out_specs = self.outputs
        return saved

    def apply(self, grads: list[Tensor | None], needed: Sequence[bool]) -> Sequence[Tensor | None]:
        """Run the formulas of the needed inputs."""
        primitive = self.primitive
        saved = self._saved_for_formulas()
        grad: Any = grads[0] if len(grads) == 1 else [
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

    def apply_to_array(
        self, grad: Any, wanted: Collection[Node] | None, *, retain: bool
    ) -> Sequence[Any] | None:
        """Run the formulas on arrays, for a node of a short way that has such formulas."""
        shapes, args, out = self._shapes, self._args, self._out
        if args is None or shapes.__class__ is list:
            return None
        d = self._dtype
        rules = self.primitive.known_array_rules.get(d) or self.primitive.array_rules(d)
        row = rules[shapes if shapes.__class__ is int else 0]
        if out is not None and (
            out.__class__ is not np.ndarray
            or (self._counter is not None and self._counter.value != 0)
        ):
            return None
        versions = self._versions
        if versions is not None:
            args = _arrays_of(args, versions)
            if args is None:
                return None
        sources = self._sources
        if wanted is None and len(sources) == 1 and row[0] is not None:  # written out: the most
            result = row[0](grad, args, shapes, out)
            if result is None:
                return None
            if not retain and (versions is not None or out is not None):
                self._args = self._out = None
            return (result if result.__class__ is np.ndarray else np.asarray(result),)
        results: list[Any] = []
        for rule, source in zip(row, sources):  # noqa: B905 - one each; faster
            if source is None or (wanted is not None and target_of(source)[0] not in wanted):
                results.append(None)
                continue
            if rule is None:
                return None
            result = rule(grad, args, shapes, out)
            if result.__class__ is not np.ndarray:
                if result is None:
                    return None
                result = np.asarray(result)
            results.append(result)
        if not retain:
            self.release()
        return results


def _arrays_of(args: Any, versions: Any) -> list[Any] | None:
    """Return arrays for the tensors that a short way kept, None if one is more than its elements.

    Or if it was written since, which the formulas on tensors refuse.
    """
    arrays = []
    for position, value in enumerate(args):
        if value.__class__ is Tensor:
            counter = value._counter
            version = 0 if counter is None else counter.value
            if value._tangent is not None or version != (versions[position] if versions else 0):
                return None
            arrays.append(value._array)
        elif value.__class__ is SavedTensor:
            return None
        else:
            arrays.append(value)
    return arrays


def _is_packed(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_packed, value))
    return isinstance(value, SavedTensor) and value.is_packed


def show_saved(names: Iterable[str]) -> None:
    """Let all nodes show what is saved under `names` as attributes."""
    for name in names:
        for attribute in (f"_saved_{name}", f"_raw_saved_{name}"):
            if attribute not in vars(PrimitiveNode):
                setattr(PrimitiveNode, attribute, property(_Saved(attribute)))


class _Saved:
    """Reads an attribute of `show_saved`."""

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def __call__(self, node: Node) -> Any:
        """Return what the node saved."""
        return saved_attribute(node, self.attribute)
