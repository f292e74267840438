"""Operators: one object holds everything about one, and everything else is derived from it.

A `Primitive` gives its schema, a NumPy implementation, a rule for shapes and types, derivative
rules with an explicit list of what each saves, and samples. From these come the function, the
method, the in-place variant, the signature and the texts of errors, execution on device ``meta``,
both modes of differentiation and the parametrised tests. A `Composite` is written in terms of
other operators and gives a schema, a body and samples only.

This module and ``quick``, its short way for small calls, are all that records nodes of operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorplay import _dtype
from tensorplay._detours import detours, watching
from tensorplay._quiet import restore, silence
from tensorplay._tensor import MetaArray, Spec, Tensor, VersionCounter, spec_of, wrap
from tensorplay.autograd import batched, forward_ad, grad_mode
from tensorplay.autograd.graph import Edge, edge_of
from tensorplay.autograd.inplace import check_writable, rebase_history
from tensorplay.ops.arguments import SCALARS, converter, reject
from tensorplay.ops.elsewhere import run_elsewhere
from tensorplay.ops.nesting import flatten
from tensorplay.ops.node import (
    OTHER,
    TENSOR,
    TENSOR_LIST,
    PrimitiveNode,
    Vjp,
    bare_spec,
    show_saved,
)
from tensorplay.ops.operator import OPERATORS, Composite, Operator, Sample
from tensorplay.ops.quick import quick_call, quick_write
from tensorplay.ops.tangents import push_forward

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHED: Final = object()  # says that an argument stands for the samples of vmap

__all__ = ["OPERATORS", "Composite", "Operator", "Primitive", "Sample", "Vjp"]


def _kind(array: Any, so_far: Any) -> Any:
    """Return what `Primitive._prepare` says of arguments one of which has no elements here."""
    if isinstance(array, MetaArray):
        return BATCHED if array.is_batched else so_far or True
    return so_far


class Primitive(Operator):
    """An operator with rules of its own.

    Parameters
    ----------
    schema
        Schema text; tensor arguments that are written or viewed are annotated there.
    doc
        One line on what it computes, with the formula where there is one.
    impl
        ``impl(*arguments)`` with a NumPy array in place of each tensor; returns an array, or a
        tuple of them.
    rule
        The same with a `Spec` in place of each tensor; returns a `Spec` or a tuple of them, and
        raises the errors about shapes and types.
    vjp
        A `Vjp` per differentiable tensor argument. None: results never require grad.
    jvp
        ``"linear"`` in all tensor arguments together; ``"elementwise"``: the derivative is
        diagonal, so that the vjp serves; ``"bilinear"``: linear in each of two arguments; a
        function ``jvp(t, s)`` of the tangents by name and of the arguments and ``out``; or None,
        and the vjp is differentiated.
    scalars
        Whether Python numbers may stand for tensor arguments; or the names of those.
    ufunc
        NumPy's function for the commonest calls: it takes the first one or two arguments, which
        are arrays of one type, float32 or float64, or the second a number, and gives that type.
        The other arguments have their defaults, and no formula reads ``s.specs``.
    quick
        ``quick(array, others)`` on one float32 or float64 array and the tuple of the other
        arguments as they were passed, or ``quick(array, array)`` on two of one such type: the
        result of `impl`, of the same type, for calls that it knows; None, or an error, for all
        others. It silences NumPy's warnings itself (`quietly`). That of a view returns a pair: the
        result, and the other arguments as the converters would have them. Of three operands, or of
        two and other arguments, it is ``quick(arrays, others)``: the first array has the type of
        the result, the others have that too, those in `integers` hold integers of any type, and
        one that is optional may be None.
    integers
        The names of the tensor arguments, never the first, that hold integers in calls of `quick`.
    reduce
        NumPy's ``reduce(array, None)`` for calls with the default arguments on few elements.
    complete
        ``complete(shape, key)`` gives all arguments, None for the tensor, where `quick` takes a key
        instead of them. The short way is then `by_key`, and not part of the function.
    decomposition
        ``decomposition(*arguments)``: the same on tensors in terms of other operators. Captures
        record it, since the compiler knows and fuses those; vmap and forward mode run it, which
        have rules for them.
    check_first
        Whether the rule runs before the implementation, for implementations whose own errors
        come too late or say too little.
    """

    def __init__(
        self,
        schema: str,
        doc: str,
        impl: Callable[..., Any],
        *,
        rule: Callable[..., Any],
        vjp: dict[str, Vjp] | None = None,
        jvp: str | Callable[[Any, Any], Any] | None = None,
        scalars: bool | tuple[str, ...] = False,
        check_first: bool = True,
        ufunc: Callable[..., Any] | None = None,
        quick: Callable[..., Any] | None = None,
        integers: tuple[str, ...] = (),
        reduce: Callable[..., Any] | None = None,
        complete: Callable[..., tuple[Any, ...]] | None = None,
        decomposition: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        self.impl = impl
        self.rule = rule
        self.vjp = vjp
        self.jvp = jvp
        self.scalars = scalars
        self.check_first = check_first
        self.ufunc = ufunc
        self.quick = quick
        self.integers = integers
        self.reduce = reduce
        self.complete = complete
        self.decomposition = decomposition
        #: How an operator of a user runs inside of vmap; the built-in ones have theirs in a table.
        self.vmap_rule: Callable[..., Any] | None = None
        self._saves: dict[tuple[bool, ...], tuple[tuple[str, ...], bool]] = {}
        self.plan: list[tuple[int, int, Any]] = []
        #: The positions of arguments that random numbers are drawn from.
        self.generators: tuple[int, ...] = ()
        self.by_key: Callable[..., Any] | None = None
        self.known_array_rules: dict[_dtype.dtype, list[list[Any]]] = {}
        super().__init__(schema, doc, **options)

    def differentiable_in(self) -> list[str]:
        """Return the names of the arguments that have a derivative."""
        return [name for name in self.names if name in (self.vjp or {})]

    def short_way(self) -> Callable[..., Any] | None:
        """Return the function that answers the commonest calls, or None from others."""
        arguments = self.schema.arguments
        self.plan = [
            (i, TENSOR_LIST if a.type.is_list else TENSOR, a) if a.type.is_tensor
            else (i, OTHER, converter(self.schema.qualname, a))
            for i, a in enumerate(arguments)
        ]  # fmt: skip
        self.view = bool(self.schema.returns) and any(
            r.alias is not None and not r.alias.is_write for r in self.schema.returns
        )
        self.generators = tuple([i for i, a in enumerate(arguments) if a.type.base == "Generator"])
        if self.generators:
            # Inside of vmap it matters also where no argument differs between the samples.
            self.apply = self._apply_random  # type: ignore[method-assign]
        unknown = set(self.vjp or {}) - {a.name for a in arguments if a.type.is_tensor}
        if unknown:
            message = (
                f"operator {self.name}: vjp for {sorted(unknown)}, which are no tensor arguments"
            )
            raise ValueError(message)
        show_saved((*self.names, "out"))
        self._short_takes_all = self.quick is not None
        self._short_write = quick_write(self) if self.inplace else None
        short = quick_call(self)
        if self.complete is not None:
            self.by_key, short = short, None
        return short

    def array_rules(self, d: _dtype.dtype) -> list[list[Any]]:
        """Return the derivative formulas on arrays of type `d`; see `ops.array_rules`."""
        found = self.known_array_rules.get(d)
        if found is None:
            from tensorplay.ops.array_rules import array_rules  # which looks operators up

            found = self.known_array_rules[d] = array_rules(self, d)
        return found

    def all_arguments(self, args: Any) -> Any:
        """Return what a node keeps of the arguments, one for each."""
        if self.complete is None or len(args) == len(self.names):
            return args
        return self.complete(*args)

    # --- execution --------------------------------------------------------------------------

    def run(self, *args: Any) -> Any:
        """Run the operator on a complete tuple of arguments, by its short way if that will do."""
        found = None if self._short is None else self._short(*args)
        return self.apply(args) if found is None else found

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Run the operator on a complete tuple of arguments and record it."""
        values, arrays, record, dual, meta = self._prepare(args)
        if self.decomposition is not None and (dual or meta is BATCHED):
            return self.decomposition(*values)
        if meta is BATCHED:
            from tensorplay.ops.batching import apply_batched  # it is written in terms of operators

            return apply_batched(self, values)
        if detours and watching.recorder is not None:
            return watching.recorder.call(self, values)
        out = self._run(values, arrays, meta=meta)
        if record and grad_mode.state.enabled:
            self._record(values, out if type(out) is tuple else (out,))
        if dual:
            self._push_forward(values, out if type(out) is tuple else (out,))
        return out

    def _apply_random(self, args: tuple[Any, ...]) -> Any:
        if not batched.state.levels:
            return type(self).apply(self, args)
        from tensorplay.ops.batching import apply_batched

        return apply_batched(self, self._prepare(args)[0])

    def _push_forward(self, values: list[Any], outs: tuple[Any, ...]) -> None:
        push_forward(self, values, outs)

    def _prepare(self, args: tuple[Any, ...]) -> tuple[list[Any], list[Any], bool, bool, Any]:
        """Check and convert the arguments: values with tensors, and the same with arrays.

        The last result is false where all elements are there, True on device meta, and `BATCHED`
        where a tensor stands for the samples of `func.vmap`.
        """
        values = list(args)
        arrays = list(args)
        record = dual = False
        meta: Any = False
        for i, kind, extra in self.plan:
            value = args[i]
            if kind == OTHER:
                values[i] = arrays[i] = extra(value)
                continue
            if kind == TENSOR_LIST:
                value = values[i] = self._tensor_list(extra, value)
                arrays[i] = [None if t is None else t._array for t in value]
                for tensor in value:
                    if tensor is not None:
                        if tensor._base is not None:
                            tensor._synchronise()
                        record = record or tensor._requires_grad
                        dual = dual or tensor._tangent is not None
                        if type(tensor._array) is not np.ndarray:
                            meta = _kind(tensor._array, meta)
                continue
            if not isinstance(value, Tensor):
                value = values[i] = self._operand(extra, value)
                if not isinstance(value, Tensor):
                    arrays[i] = value
                    continue
            # Written out, not looped over: this is the path of every small operation.
            arrays[i] = array = value._array
            if value._base is not None:
                value._synchronise()
            if value._requires_grad:
                record = True
            if value._tangent is not None:
                dual = True
            if type(array) is not np.ndarray:
                meta = _kind(array, meta)
        return values, arrays, record, dual, meta

    def _operand(self, argument: Any, value: Any) -> Any:  # noqa: RET503 - reject raises
        """Return what may stand for a tensor argument without being one."""
        if value is None and argument.type.optional:
            return None
        if self.scalars is True or (self.scalars and argument.name in self.scalars):
            if isinstance(value, np.ndarray):
                try:
                    return wrap(value)
                except TypeError as error:
                    where = f"[{self.schema.qualname}] argument '{argument.name}'"
                    message = f"{where}: {error}"
                    raise TypeError(message) from None
            if isinstance(value, SCALARS):
                return value.item() if isinstance(value, np.generic) else value
        reject(self.schema.qualname, argument.name, argument.type, value)

    def _tensor_list(self, argument: Any, value: Any) -> list[Any]:  # noqa: RET503 - reject raises
        kind = argument.type
        if isinstance(value, Tensor):
            value = list(value)
        if isinstance(value, (list, tuple)) and all(
            isinstance(t, Tensor) or (t is None and kind.list_of_optional) for t in value
        ):
            return list(value)
        reject(self.schema.qualname, argument.name, kind, value)

    def specs(self, values: list[Any]) -> list[Any]:
        """Return the arguments with shape and type in place of each tensor."""
        return [
            spec_of(v) if isinstance(v, Tensor)
            else [None if t is None else spec_of(t) for t in v] if kind == TENSOR_LIST
            else v
            for v, (_, kind, _) in zip(values, self.plan, strict=True)
        ]  # fmt: skip

    def _run(self, values: list[Any], arrays: list[Any], *, meta: bool) -> Any:
        """Compute the results, or their shapes on device meta, as tensors without history."""
        if meta:
            return self._run_meta(values)
        if self.check_first:
            self.rule(*self.specs(values))
        token = silence()  # infinities and NaN are results, not warnings
        try:
            result = self.impl(*arrays)
        except (ValueError, OverflowError, MemoryError) as error:
            if not self.check_first:
                self.rule(*self.specs(values))  # words the error about shapes, if it is one
            self._explain(error)
            raise
        finally:
            restore(token)
        if type(result) is tuple:
            outs = tuple(wrap(np.asarray(r)) for r in result)
            if self.view:
                for number, out in enumerate(outs):
                    self._mark_view(values, out, number)
            return outs
        out = wrap(result if type(result) is np.ndarray else np.asarray(result))
        if self.view:
            self._mark_view(values, out, None)
        return out

    def _explain(self, error: Exception) -> None:
        """Raise NumPy's error with the name of the operator before it; ours have that."""
        prefix = f"[{self.schema.qualname}]"
        kind = MemoryError if isinstance(error, MemoryError) else ValueError
        words = str(error) or "there is not enough memory"
        if isinstance(error, OverflowError):
            words = f"a number is out of range: {words}"
        if not words.startswith("["):
            message = f"{prefix} {words}."
            raise kind(message) from error

    def _run_meta(self, values: list[Any]) -> Any:
        tensors = list(flatten(values))
        if any(t.is_cuda for t in tensors):
            name = self.schema.qualname
            return run_elsewhere(name, values, lambda: self.rule(*self.specs(values)))
        if any(not t.is_meta and t.ndim for t in tensors):
            message = (
                f"[{self.schema.qualname}] expected all tensors on one device, got meta and cpu. "
                "Write x.to('meta')."
            )
            raise ValueError(message)
        result = self.rule(*self.specs(values))
        many = not isinstance(result, Spec)
        outs = tuple(wrap(MetaArray(r), r.dtype) for r in (result if many else (result,)))
        if self.view:
            for number, (out, spec) in enumerate(
                zip(outs, result if many else (result,), strict=True)
            ):
                if spec.strides is not None:  # else the rule says that it is a copy
                    self._tie(values, out, number if many else None)
        return outs if many else outs[0]

    def _mark_view(self, values: list[Any], out: Tensor, number: int | None) -> None:
        """Tie a result to the first argument, if it lies in its memory."""
        source: Tensor = values[0]
        array, root = out._array, source._array
        if array is root:  # a view is an object of its own
            out._array = array = root.view()
        shares = array.base is root or (array.base is not None and array.base is root.base)
        if shares or np.may_share_memory(array, root):
            self._tie(values, out, number)

    def _tie(self, values: list[Any], out: Tensor, number: int | None) -> None:
        """Make result `out` a view of the first argument."""
        out._mark_view(values[0], self.replay, tuple(values[1:]), number)

    def replay(self, base: Tensor, rest: tuple[Any, ...], number: int | None = None) -> Tensor:
        """Return the view of `base` that a call with these other arguments made."""
        if self.complete is not None and len(rest) == 1:
            rest = self.complete(base._array.shape, *rest)[1:]
        with grad_mode.enable_grad():
            result = self.apply((base, *rest))
        twin: Tensor = result if number is None else result[number]
        return twin

    # --- in place ---------------------------------------------------------------------------

    def apply_inplace(self, args: tuple[Any, ...]) -> Tensor:
        """Run the operator and write the result into the first argument.

        Raises
        ------
        RuntimeError
            The result has another shape or a higher kind than the first argument, or that may
            not be written.
        """
        where = f"{self.name}_"
        target = args[0]
        if not isinstance(target, Tensor):
            reject(where, self.schema.arguments[0].name, "Tensor", target)
        values, arrays, record, dual, meta = self._prepare(args)
        if meta is BATCHED:
            from tensorplay.ops.batching import apply_inplace_batched

            return apply_inplace_batched(self, values)
        if detours and watching.recorder is not None:
            written: Tensor = watching.recorder.write(self, values)
            return written
        check_writable(target, where)
        if target.is_cuda:
            message = (
                f"[{where}] tensors on device cuda are written by operators with CUDA kernels "
                f"only. Write the out-of-place form `{self.name}`."
            )
            raise NotImplementedError(message)
        out = self._run(values, arrays, meta=meta)
        if out._array.shape != target._array.shape:
            message = (
                f"[{where}] expected a result of the shape of the first argument "
                f"{list(target.shape)}, got {list(out.shape)}: output with shape "
                f"{list(target.shape)} doesn't match the broadcast shape {list(out.shape)}."
            )
            raise RuntimeError(message)
        if not _dtype.can_cast(out._dtype, target._dtype):
            message = (
                f"[{where}] result type {out._dtype!r} can't be cast to the desired output type "
                f"{target._dtype!r}. Write the out-of-place form `{self.name}`."
            )
            raise RuntimeError(message)
        record = record and grad_mode.state.enabled and target._dtype.is_differentiable
        wanted: tuple[bool, ...] = ()
        node = None
        if record and self.vjp is not None:
            node, wanted = self._node(values, target)
        if dual:
            self._push_forward(values, (out,))
        if not meta:
            np.copyto(target._array, out._array, casting="unsafe")
        target._bump_version()
        if node is not None:
            node.outputs = (bare_spec(target),)
            node.save_results((target,), wanted)
            rebase_history(target, node)
        if dual:
            forward_ad.write_tangent(target, out._tangent, where)
        return target

    # --- reverse mode -----------------------------------------------------------------------

    def saves(self, wanted: tuple[bool, ...]) -> tuple[tuple[str, ...], bool]:
        """Return which arguments to save, and whether the results too, for the wanted inputs."""
        found = self._saves.get(wanted)
        if found is None:
            names: list[str] = []
            for name, want in zip(self.names, wanted, strict=True):
                rule = (self.vjp or {}).get(name)
                if want and rule is not None:
                    names.extend(n for n in rule.saves if n not in names)
            found = self._saves[wanted] = (tuple(n for n in names if n != "out"), "out" in names)
        return found

    def _node(
        self, values: list[Any], written: Tensor | None = None
    ) -> tuple[PrimitiveNode, tuple[bool, ...]]:
        """Return a node that has saved what its formulas read, and whose gradients are wanted.

        Arguments in the memory of `written`, which is about to change, are saved as copies.
        """
        edges: list[Edge | None] = []
        wanted = [False] * len(values)
        for i, kind, _ in self.plan:
            if kind == TENSOR:
                value = values[i]
                edge = edge_of(value) if isinstance(value, Tensor) else None
                wanted[i] = edge is not None
                edges.append(edge)
            elif kind == TENSOR_LIST:
                found = [None if t is None else edge_of(t) for t in values[i]]
                wanted[i] = any(e is not None for e in found)
                edges.extend(found)
        if written is not None:
            saved = self.saves(tuple(wanted))[0]
            values = [
                _snapshot(v) if name in saved and isinstance(v, Tensor)
                and v._shared_counter() is written._shared_counter() else v
                for name, v in zip(self.names, values, strict=True)
            ]  # fmt: skip
        return PrimitiveNode(self, edges, values, tuple(wanted)), tuple(wanted)

    def _record(self, values: list[Any], outs: tuple[Tensor, ...]) -> None:
        if self.vjp is None or not any(out._dtype.is_differentiable for out in outs):
            return
        node, wanted = self._node(values)
        outputs: list[Spec | None] = []
        for number, out in enumerate(outs):
            if out._dtype.is_differentiable:
                outputs.append(bare_spec(out))
                out._grad_fn, out._output_nr, out._requires_grad = node, number, True
            else:
                outputs.append(None)
        node.outputs = outputs
        node.save_results(outs, wanted)


def _snapshot(tensor: Tensor) -> Tensor:
    """Return a copy with the history of `tensor`, which is about to be overwritten."""
    if tensor.is_meta or (tensor._requires_grad and tensor._grad_fn is None):
        return tensor  # a leaf stays itself: a gradient of the gradient must find it
    copy = wrap(tensor._array.copy(), tensor._dtype)
    copy._counter = VersionCounter()  # not that of the node whose result `tensor` is
    copy._grad_fn, copy._output_nr = tensor._grad_fn, tensor._output_nr
    copy._requires_grad = tensor._requires_grad
    return copy
