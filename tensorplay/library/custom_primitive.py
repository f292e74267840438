"""The primitive under a custom operator: kernels per device, checked results, a joint gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _device
from tensorplay._dlpack import from_dlpack, on_gpu, tensor_over, writable_alias
from tensorplay._tensor import MetaArray, Spec, Tensor, spec_of, wrap
from tensorplay.autograd import forward_ad, grad_mode
from tensorplay.autograd.engine import run_backward
from tensorplay.autograd.function import FunctionContext, FunctionNode
from tensorplay.autograd.function_context import record_call, zeros_of
from tensorplay.autograd.graph import edge_of
from tensorplay.autograd.inplace import check_writable, rebase_history
from tensorplay.library.gradients import NOT_DIFFERENTIABLE, Gradient, flat_gradients
from tensorplay.library.kernels import COMPOSITE, Kernels
from tensorplay.library.results import checked_results, composite_results, named_results
from tensorplay.library.writes import Snapshot, undeclared_write
from tensorplay.ops.nesting import flatten, map_kind
from tensorplay.ops.node import OTHER, TENSOR_LIST, node_name
from tensorplay.ops.primitive import Primitive
from tensorplay.ops.tangents import without_tangent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tensorplay.ops.schema import FunctionSchema

__all__ = ["CustomPrimitive"]


class CustomPrimitive(Primitive):
    """A primitive whose kernels, fake kernel and gradient are functions on tensors."""

    def __init__(self, schema: FunctionSchema, doc: str) -> None:
        self.kernels = Kernels(schema)
        self.checks_writes = False
        #: By argument, what C++ types say of a kernel: whether it writes, None where they do not
        #: say. A body in Python gets memory that it cannot write where the schema promises that.
        self.access: Mapping[str, bool | None] = {}
        #: What to write where a gradient is missing, if that is not to register one.
        self.formula_advice = ""
        # One attribute, so that a call sees formula and set-up of one registration.
        self.gradient: Gradient | None = None
        self._made_formula: tuple[Gradient, Callable[..., Any]] | None = None
        super().__init__(str(schema), doc, self._on_arrays, rule=self._on_specs, method=False)
        self.qualname = schema.full_name
        # Named results are a named tuple, as those of the operators that are built in.
        self._tuple = named_results(schema)
        arguments = self.schema.arguments
        self.positional = sum(not a.kwarg_only for a in arguments)
        # Lists of numbers reach the kernel as lists, those of a declared size as tuples.
        self._lists = [
            i for i, kind, _ in self.plan
            if kind == OTHER and arguments[i].type.is_list and arguments[i].type.size is None
        ]  # fmt: skip

    @property
    def declares_no_gradient(self) -> bool:
        """Whether the results are declared to carry no gradient."""
        return self.gradient is NOT_DIFFERENTIABLE

    # --- the same questions as to a built-in operator ---------------------------------------

    def _on_arrays(self, *arguments: Any) -> Any:
        """Run the kernel on NumPy arrays."""
        return map_kind(self._run(map_kind(list(arguments), np.ndarray, wrap), [], meta=False),
                    Tensor, lambda t: t._array)  # fmt: skip

    def _on_specs(self, *arguments: Any) -> Any:
        """Run the fake kernel on shapes and types."""
        values = map_kind(list(arguments), Spec, lambda s: wrap(MetaArray(s), s.dtype))
        return map_kind(self._run(values, [], meta=True), Tensor, spec_of)

    # --- one call ---------------------------------------------------------------------------

    def over_arrays(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return arguments with tensors on the memory of the NumPy arrays among them."""
        values = list(args)
        for i, kind, argument in self.plan:
            if kind == TENSOR_LIST and isinstance(values[i], (list, tuple)):
                values[i] = self._over_members(argument, values[i])
            elif kind != OTHER and isinstance(values[i], np.ndarray):
                values[i] = self._operand(argument, values[i])
        return tuple(values)

    def _operand(self, argument: Any, value: Any) -> Any:
        """Take a NumPy array, or one on a GPU, as a tensor on its memory, as kernels do."""
        if not isinstance(value, np.ndarray):
            return from_dlpack(value) if on_gpu(value) else super()._operand(argument, value)
        where, name = self.schema.qualname, argument.name
        if not value.flags.writeable and not isinstance(value, np.ma.MaskedArray):
            writes = True if argument.is_write else self.access.get(name, False)
            if writes is not False:
                raise ValueError(_read_only(where, name, sure=writes is True))
            if name in self.access:
                # The protocol through which kernels take memory has no word for read-only.
                value = writable_alias(value)
        return tensor_over(value, where, name, "x" if argument.type.is_list else name)

    def _tensor_list(self, argument: Any, value: Any) -> list[Any]:
        if isinstance(value, (list, tuple)):
            value = self._over_members(argument, value)
        return super()._tensor_list(argument, value)

    def _over_members(self, argument: Any, value: Sequence[Any]) -> list[Any]:
        return [
            self._operand(argument, v) if isinstance(v, np.ndarray) or on_gpu(v) else v
            for v in value
        ]

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Run the operator, or the composite that stands in its place."""
        made = self._applied(args)
        return made if self._tuple is None else self._tuple(*made)

    def _applied(self, args: tuple[Any, ...]) -> Any:
        if COMPOSITE in self.kernels.by_key:
            values = self._with_lists(self._prepare(args)[0])
            first = next(flatten(values), None)
            device = _device.get_default_device() if first is None else first.device
            body = self.kernels.composite(device.type)
            if body is not None:
                return composite_results(self.schema, self._invoke(body, values), values)
        return super().apply(args)

    def check_arguments(self, args: tuple[Any, ...]) -> None:
        """See that a complete tuple of arguments has the types of the schema."""
        self._prepare(args)

    def _with_lists(self, values: list[Any]) -> list[Any]:
        for i in self._lists:
            if values[i] is not None:
                values[i] = list(values[i])
        return values

    def _run(self, values: list[Any], arrays: list[Any], *, meta: bool) -> Any:
        """Run the kernel of the tensors' device, and check what it gives."""
        self._with_lists(values)
        tensors = list(flatten(values))
        if not tensors:
            meta = _device.get_default_device().type == "meta"
        elif meta:  # there are tensors without elements here
            meta = not any(t.is_cuda for t in tensors)
        written = self._written(values)
        for value, argument in zip(values, self.schema.arguments, strict=True):
            if argument.is_write:
                for tensor in flatten([value]):
                    check_writable(tensor, self.qualname, argument=argument.name)
        # The kernel sees the memory, not the history: nothing inside it is recorded.
        inner = [_detached(v) for v in values]
        kernel = self._kernel(values, tensors, meta=meta)
        before = Snapshot(self.schema, inner) if self.checks_writes else None
        try:
            with grad_mode.no_grad():
                result = self._invoke(kernel, inner)
        finally:  # a kernel that fails may have written something
            for tensor in written:
                tensor._bump_version()
        if before is not None and (names := before.undeclared()):
            raise RuntimeError(undeclared_write(self.schema, names))
        return self.checked(result, values, inner, meta=meta)

    def checked(
        self, result: Any, values: list[Any], inner: list[Any], *, meta: bool = False
    ) -> Any:
        """Return what the kernel gave for `inner`, in place of `values`, as the caller gets it."""
        first = None if meta else next(flatten(values), None)
        device = "meta" if meta else "cpu" if first is None else first.device.type
        outs = checked_results(self.schema, result, values, inner, device=device)
        if not self.schema.returns:
            return None
        return outs[0] if len(self.schema.returns) == 1 else tuple(outs)

    def _kernel(
        self, values: list[Any], tensors: list[Tensor], *, meta: bool
    ) -> Callable[..., Any]:
        if not meta:
            device = tensors[0].device.type if tensors else "cpu"
            if any(t.device.type != device for t in tensors):
                kinds = sorted({t.device.type for t in tensors}, reverse=True)
                places = " and ".join(kinds)
                message = (
                    f"[{self.qualname}] expected all tensors on one device, got {places}. Write "
                    "tensorplay.from_dlpack(cupy.asarray(x)) for those on cpu."
                )
                raise ValueError(message)
            arguments = zip(self.schema.arguments, values, strict=True)
            first = next(((a.name, t.device) for a, v in arguments for t in flatten((v,))), None)
            return self.kernels.concrete(device, first)
        if any(not t.is_meta and t.ndim for t in tensors):
            message = (
                f"[{self.qualname}] expected all tensors on one device, got meta and cpu. "
                "Write x.to('meta')."
            )
            raise ValueError(message)
        return self.kernels.abstract()

    def _written(self, values: list[Any]) -> list[Tensor]:
        """Return the tensors that the schema says are written."""
        pairs = zip(values, self.schema.arguments, strict=True)
        return list(flatten(v for v, a in pairs if a.is_write))

    def _fresh(self, outs: Sequence[Any], written: list[Tensor]) -> list[Tensor]:
        """Return the tensors among the results that are no arguments."""
        return [t for t in flatten(outs) if not any(t is w for w in written)]

    def _split(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Split the arguments into positional and keyword-only ones."""
        names = self.schema.arguments[self.positional :]
        keywords = {a.name: v for a, v in zip(names, values[self.positional :], strict=True)}
        return tuple(values[: self.positional]), keywords

    def _invoke(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        positional, keywords = self._split(values)
        return function(*positional, **keywords)

    # --- gradients --------------------------------------------------------------------------

    def _node_name(self) -> str:
        """Return what the node of a call is called."""
        return node_name(self.name)

    def _node_place(self, number: int, count: int) -> tuple[str, str]:
        """Return the operator and the argument that is input `number` of `count` flat ones."""
        arguments = self.schema.arguments
        lists = [i for i, (_, kind, _) in enumerate(self.plan) if kind == TENSOR_LIST]
        if not lists:
            return self.qualname, arguments[number].name
        first, members = lists[0], count - len(arguments) + 1
        if number < first:
            return self.qualname, arguments[number].name
        if len(lists) > 1:  # whose lengths are not known here
            return self.qualname, f"inputs[{number}]"
        if number < first + members:
            return self.qualname, f"{arguments[first].name}[{number - first}]"
        return self.qualname, arguments[number - members + 1].name

    def _needs(self, values: list[Any], wanted: Callable[[Tensor], bool]) -> list[Any]:
        """Tell for each argument, nested as the arguments are, whether a gradient is wanted."""
        return [
            [t is not None and wanted(t) for t in v]
            if kind == TENSOR_LIST
            else isinstance(v, Tensor) and wanted(v)
            for v, (_, kind, _) in zip(values, self.plan, strict=True)
        ]

    def _context(
        self,
        gradient: Gradient | None,
        values: list[Any],
        outs: tuple[Any, ...],
        needs: list[Any],
    ) -> tuple[FunctionContext, Callable[..., Any]]:
        """Return a context filled by the set-up, and the formula on flat gradients."""
        arguments = self.schema.arguments
        ctx = FunctionContext(
            tuple(
                need for need, argument in zip(needs, arguments, strict=True)
                if not argument.kwarg_only or argument.type.is_tensor
            )
        )  # fmt: skip
        if gradient is None:
            return ctx, self._no_formula
        positional, keywords = self._split(values)
        output = outs[0] if len(self.schema.returns) == 1 else outs
        with grad_mode.no_grad():
            gradient.set_up(ctx, positional, keywords, output)
        backward = gradient.backward
        # Lists stay lists in what the formula gets; the engine sees their tensors one by one.
        layout = [
            [isinstance(t, Tensor) for t in out]
            if isinstance(out, list)
            else isinstance(out, Tensor)
            for out in outs
        ]

        def formula(context: FunctionContext, *grads: Any) -> Any:
            rest = iter(grads)
            nested = [
                [next(rest) if member else None for member in part]
                if isinstance(part, list)
                else next(rest) if part else None
                for part in layout
            ]  # fmt: skip
            return flat_gradients(self, backward(context, *nested), needs)

        return ctx, formula

    def _no_formula(self, *_: Any) -> Any:
        registering = (
            "Write\n"
            "    def backward(ctx, grad): ...\n"
            f"    {self.name}.register_autograd(backward, setup_context=...)"
        )
        message = (
            f"[{self.qualname}] no autograd formula was registered: there is no gradient formula "
            f"to differentiate it with. {self.formula_advice or registering}"
        )
        if any(a.is_write for a in self.schema.arguments):
            message = (
                f"[{self.qualname}] no autograd formula was registered, and none can be: a "
                "non-functional operator, which writes to its arguments, has no gradient. Define "
                "one that returns new tensors, or call it under tensorplay.no_grad()."
            )
        raise NotImplementedError(message)

    def record_plainly(self, args: tuple[Any, ...], out: Tensor) -> None:
        """Do what `_record` does for one new tensor from arguments that are no lists."""
        gradient = self.gradient
        if gradient is NOT_DIFFERENTIABLE or not out._dtype.is_differentiable:
            return
        formula = self._no_formula if gradient is None else self._formula(gradient)
        if gradient is None or gradient.setup_context is None:
            record_call(self, None, formula, args, out)
            return
        ctx = FunctionContext(tuple([x.__class__ is Tensor and x._requires_grad for x in args]))
        with grad_mode.no_grad():
            gradient.setup_context(ctx, args, out)
        record_call(self, ctx, formula, args, out)

    def _formula(self, gradient: Gradient) -> Callable[..., Any]:
        """Return the formula of `gradient` for the engine, the same one for all calls."""
        known = self._made_formula
        if known is None or known[0] is not gradient:
            known = self._made_formula = gradient, gradient.formula_of(self)
        return known[1]

    def _record(self, values: list[Any], outs: tuple[Any, ...]) -> None:
        written = self._written(values)
        fresh = self._fresh(outs, written)
        gradient = self.gradient
        if gradient is NOT_DIFFERENTIABLE:
            return
        if any(t._dtype.is_differentiable for t in fresh):
            needs = self._needs(values, lambda t: t.requires_grad)
            ctx, formula = self._context(gradient, values, outs, needs)
            node = FunctionNode(self, ctx, formula, self._flat(values))
            node.outputs = [spec_of(t) if t._dtype.is_differentiable else None for t in fresh]
            ctx._keep(node, fresh)
            for number, tensor in enumerate(fresh):
                if node.outputs[number] is not None and not any(
                    tensor is t for t in ctx._non_differentiable
                ):
                    tensor._grad_fn, tensor._output_nr, tensor._requires_grad = node, number, True
        for tensor in written:
            if tensor._dtype.is_differentiable:
                # Its own history first, then those of what was read: the node must be reached.
                inputs = [tensor, *(x for x in self._flat(values) if x is not tensor)]
                broken = FunctionNode(self, FunctionContext(()), self._no_formula, inputs)
                broken.outputs = [spec_of(tensor)]
                rebase_history(tensor, broken)

    def _flat(self, values: list[Any]) -> list[Any]:
        flat: list[Any] = []
        for value, (_, kind, _) in zip(values, self.plan, strict=True):
            flat.extend(value if kind == TENSOR_LIST else [value])
        return flat

    def _push_forward(self, values: list[Any], outs: tuple[Any, ...]) -> None:
        """Differentiate the backward formula, which is linear in its gradients."""
        written = self._written(values)
        fresh = self._fresh(outs, written)
        gradient = self.gradient
        if gradient is NOT_DIFFERENTIABLE or not any(
            t._dtype.is_differentiable for t in (*fresh, *written)
        ):
            return
        if gradient is None:
            registering = f"Write {self.name}.register_autograd(...)."
            message = (
                f"[{self.qualname}] no forward-mode (jvp) rule: it follows from the backward "
                f"formula, and none was registered. {self.formula_advice or registering}"
            )
            raise NotImplementedError(message)
        recording = grad_mode.state.enabled
        tangents = [t._tangent if isinstance(t, Tensor) else None for t in self._flat(values)]
        needs = self._needs(values, lambda t: t._tangent is not None)
        plain = [without_tangent(v) for v in values]
        with grad_mode.enable_grad():
            ctx, formula = self._context(gradient, plain, outs, needs)
            # Ones, not zeros, so that a gradient cut off from them shows.
            cotangents = [_cotangent(t, ctx) for t in fresh]
            gradients = formula(ctx, *cotangents)
        pairs = [
            (g, t)
            for g, t in zip(gradients, tangents, strict=True)
            if isinstance(g, Tensor) and t is not None
        ]
        roots = [(edge, t.expand(g.shape).to(g.dtype)) for g, t in pairs if (edge := edge_of(g))]
        sources = [c for c in cotangents if c.requires_grad]
        results = run_backward(
            roots,
            retain_graph=False,
            create_graph=recording,
            inputs=[e for c in sources if (e := edge_of(c)) is not None],
            accumulate=False,
        )
        cut = [g for g, _ in pairs if not g.requires_grad or all(r is None for r in results)]
        if any(np.any(g._elements(self.qualname) != 0) for g in cut):
            registering = f"Write {self.name}.register_autograd(...)."
            message = (
                f"[{self.qualname}] no forward-mode (jvp) rule: it follows from the backward "
                "formula, and that one is not written in recorded tensor operations."
            )
            raise NotImplementedError(message)
        found = iter(results)
        for tensor, cotangent in zip(fresh, cotangents, strict=True):
            tangent = next(found) if cotangent.requires_grad else None
            if tangent is not None:
                forward_ad.set_tangent(tensor, tangent, self.qualname)


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return [_detached(v) for v in value] if isinstance(value, list) else value


def _cotangent(tensor: Tensor, ctx: FunctionContext) -> Tensor:
    """Return ones to differentiate a formula by; plain zeros where no gradient passes."""
    spec = spec_of(tensor)
    if not spec.dtype.is_differentiable or any(tensor is t for t in ctx._non_differentiable):
        return zeros_of(spec)
    return wrap(np.ones(spec.shape, spec.dtype.numpy), spec.dtype).requires_grad_()


def _read_only(where: str, argument: str, *, sure: bool) -> str:
    expected = f"[{where}] argument '{argument}': expected writable memory, since the kernel"
    if sure:
        return f"{expected} writes it, got a read-only array. Pass {argument}.copy()."
    return (
        f"{expected} may write it, got a read-only array. Read it through a pointer to const in "
        f"the cell, or pass {argument}.copy()."
    )
