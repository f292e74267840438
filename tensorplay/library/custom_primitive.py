"""The primitive under a custom operator: kernels per device, checked results, a joint gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _device
from tensorplay._tensor import MetaArray, Spec, Tensor, spec_of, wrap
from tensorplay.autograd import forward_ad, grad_mode
from tensorplay.autograd.engine import run_backward
from tensorplay.autograd.function import FunctionContext, FunctionNode
from tensorplay.autograd.function_context import zeros_of
from tensorplay.autograd.graph import edge_of
from tensorplay.autograd.inplace import check_writable, rebase_history
from tensorplay.library.gradients import NOT_DIFFERENTIABLE, Gradient, flat_gradients
from tensorplay.ops.arguments import SCALARS
from tensorplay.ops.node import OTHER, TENSOR_LIST, node_name
from tensorplay.ops.primitive import Primitive
from tensorplay.ops.tangents import without_tangent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tensorplay.ops.schema import FunctionSchema, SchemaType

__all__ = ["CustomPrimitive"]


class CustomPrimitive(Primitive):
    """A primitive whose kernels, fake kernel and gradient are functions on tensors."""

    def __init__(self, schema: FunctionSchema, doc: str) -> None:
        self.kernels: dict[str | None, Callable[..., Any]] = {}
        self.fake: Callable[..., Any] | None = None
        # One attribute, so that a call sees formula and set-up of one registration.
        self.gradient: Gradient | None = None
        super().__init__(str(schema), doc, self._on_arrays, rule=self._on_specs, method=False)
        self.qualname = schema.qualname
        arguments = self.schema.arguments
        self.positional = sum(not a.kwarg_only for a in arguments)
        # Lists of numbers reach the kernel as lists, those of a declared size as tuples.
        self._lists = [
            i for i, kind, _ in self.plan
            if kind == OTHER and arguments[i].type.is_list and arguments[i].type.size is None
        ]  # fmt: skip

    # --- the same questions as to a built-in operator ---------------------------------------

    def _on_arrays(self, *arguments: Any) -> Any:
        """Run the kernel on NumPy arrays."""
        return _map(self._run(_map(list(arguments), np.ndarray, wrap), [], meta=False),
                    Tensor, lambda t: t._array)  # fmt: skip

    def _on_specs(self, *arguments: Any) -> Any:
        """Run the fake kernel on shapes and types."""
        values = _map(list(arguments), Spec, lambda s: wrap(MetaArray(s), s.dtype))
        return _map(self._run(values, [], meta=True), Tensor, spec_of)

    # --- one call ---------------------------------------------------------------------------

    def _run(self, values: list[Any], arrays: list[Any], *, meta: bool) -> Any:
        """Run the kernel of the tensors' device, and check what it gives."""
        for i in self._lists:
            if values[i] is not None:
                values[i] = list(values[i])
        tensors = list(_flatten(values))
        if not tensors:
            meta = _device.get_default_device().type == "meta"
        written = self._written(values)
        for tensor in written:
            check_writable(tensor, self.qualname)
        # The kernel sees the memory, not the history: nothing inside it is recorded.
        inner = [_detached(v) for v in values]
        kernel = self._fake_kernel(tensors) if meta else self._kernel(tensors)
        try:
            with grad_mode.no_grad():
                result = self._invoke(kernel, inner)
        finally:  # a kernel that fails may have written something
            for tensor in written:
                tensor._bump_version()
        outs = self._results(result, values, inner, meta=meta)
        if not self.schema.returns:
            return None
        return outs[0] if len(self.schema.returns) == 1 else tuple(outs)

    def _written(self, values: list[Any]) -> list[Tensor]:
        """Return the tensors that the schema says are written."""
        pairs = zip(values, self.schema.arguments, strict=True)
        return list(_flatten(v for v, a in pairs if a.is_write))

    def _fresh(self, outs: Sequence[Any], written: list[Tensor]) -> list[Tensor]:
        """Return the tensors among the results that are no arguments."""
        return [t for t in _flatten(outs) if not any(t is w for w in written)]

    def _split(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Split the arguments into positional and keyword-only ones."""
        names = self.schema.arguments[self.positional :]
        keywords = {a.name: v for a, v in zip(names, values[self.positional :], strict=True)}
        return tuple(values[: self.positional]), keywords

    def _invoke(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        positional, keywords = self._split(values)
        return function(*positional, **keywords)

    def _kernel(self, tensors: list[Tensor]) -> Callable[..., Any]:
        device = tensors[0].device.type if tensors else "cpu"
        kernel = self.kernels.get(device) or self.kernels.get(None)
        if kernel is None:
            known = ", ".join(sorted(k for k in self.kernels if k)) or "none"
            message = (
                f"[{self.qualname}] no kernel for device {device}; registered: {known}. Write "
                f"@{self.name}.register_kernel('{device}')."
            )
            raise NotImplementedError(message)
        return kernel

    def _fake_kernel(self, tensors: list[Tensor]) -> Callable[..., Any]:
        if any(not t.is_meta and t.ndim for t in tensors):
            message = (
                f"[{self.qualname}] expected all tensors on one device, got meta and cpu. "
                "Write x.to('meta')."
            )
            raise ValueError(message)
        fake = self.fake or self.kernels.get("meta")
        if fake is None:
            if not self.schema.returns:
                return _nothing  # it writes only: the shapes of its arguments stay as they are
            message = (
                f"[{self.qualname}] no fake kernel was registered, so shapes cannot be computed "
                f"without data. Write @{self.name}.register_fake."
            )
            raise NotImplementedError(message)

        def on_meta(*args: Any, **kwargs: Any) -> Any:
            with _device.META:  # what the fake kernel makes has no data either
                return fake(*args, **kwargs)

        return on_meta

    # --- results ----------------------------------------------------------------------------

    def _results(
        self, result: Any, values: list[Any], inner: list[Any], *, meta: bool
    ) -> list[Any]:
        """Return the results as a list that matches the schema, on tensor objects of their own.

        Raises
        ------
        RuntimeError
            Number or kind is not the schema's, or a result shares memory with an argument or
            with another result.
        """
        returns = self.schema.returns
        if len(returns) == 1:
            given: Sequence[Any] = [result]
        elif isinstance(result, (tuple, list)):
            given = result
        else:
            given = [] if result is None else [result]
        if len(given) != len(returns):
            expected = f"{len(returns)} values" if returns else "None"
            got = f"{len(given)} values" if len(given) > 1 else type(result).__name__
            message = f"[{self.qualname}] result: expected {expected} by the schema, got {got}."
            raise RuntimeError(message)
        outs: list[Any] = []
        for number, (out, declared) in enumerate(zip(given, returns, strict=True)):
            if declared.alias is not None:
                outs.append(self._written_argument(number, out, values, inner))
            else:
                outs.append(self._result(number, out, declared.type, meta=meta))
        self._check_aliases(outs, values)
        return outs

    def _written_argument(self, number: int, out: Any, values: list[Any], inner: list[Any]) -> Any:
        """Return the argument that the schema says is result `number`."""
        alias = self.schema.returns[number].alias
        before = "" if alias is None else alias.before
        for position, argument in enumerate(self.schema.arguments):
            if argument.alias is not None and argument.alias.before == before:
                if out is inner[position]:
                    return values[position]
                message = (
                    f"[{self.qualname}] result {number}: expected argument '{argument.name}' "
                    f"itself, as {self.schema} says, got another {type(out).__name__}. "
                    f"Write `return {argument.name}`."
                )
                raise RuntimeError(message)
        message = f"[{self.qualname}] result {number}: no argument has the alias set {alias}."
        raise RuntimeError(message)

    def _result(self, number: int, out: Any, kind: SchemaType, *, meta: bool) -> Any:
        if out is None and kind.optional:
            return None
        try:
            if kind.is_list:
                if not isinstance(out, (list, tuple)):
                    raise TypeError
                return [
                    None if x is None and kind.list_of_optional else _one_result(x, kind.base)
                    for x in out
                ]
            found = _one_result(out, kind.base)
        except TypeError:
            advice = ""
            if kind.base == "Tensor" and isinstance(out, np.ndarray):
                advice = " Write tensorplay.from_numpy(result)."
            message = (
                f"[{self.qualname}] result {number}: expected {kind} by the schema, got "
                f"{type(out).__name__}.{advice}"
            )
            raise RuntimeError(message) from None
        if isinstance(found, Tensor) and found.is_meta is not meta:
            expected = "meta" if meta else "cpu"
            message = (
                f"[{self.qualname}] result {number}: expected a tensor on device {expected}, got "
                f"one on {found.device}."
            )
            raise RuntimeError(message)
        return found

    def _check_aliases(self, outs: list[Any], values: list[Any]) -> None:
        seen: list[tuple[str, Tensor]] = [
            (f"argument '{a.name}'", t)
            for v, a in zip(values, self.schema.arguments, strict=True)
            for t in _flatten([v])
        ]
        for number, out in enumerate(outs):
            for tensor in _flatten([out]):
                if any(tensor is other for _, other in seen):
                    continue  # an argument that the schema says is returned
                for name, other in seen:
                    if _overlap(tensor, other):
                        message = (
                            f"[{self.qualname}] output {number} may not alias {name}: they share "
                            f"memory. Return a copy (`return result.clone()`), or declare an "
                            f"in-place operator (mutates_args=...) and return nothing."
                        )
                        raise RuntimeError(message)
                seen.append((f"output {number}", tensor))

    # --- gradients --------------------------------------------------------------------------

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
        message = (
            f"[{self.qualname}] no autograd formula was registered: there is no gradient formula "
            "to differentiate it with. Write\n"
            f"    def backward(ctx, grad): ...\n"
            f"    {self.name}.register_autograd(backward, setup_context=...)"
        )
        if any(a.is_write for a in self.schema.arguments):
            message = (
                f"[{self.qualname}] no autograd formula was registered, and none can be: a "
                "non-functional operator, which writes to its arguments, has no gradient. Define "
                "one that returns new tensors, or call it under tensorplay.no_grad()."
            )
        raise NotImplementedError(message)

    def _record(self, values: list[Any], outs: tuple[Any, ...]) -> None:
        written = self._written(values)
        fresh = self._fresh(outs, written)
        gradient = self.gradient
        if gradient is NOT_DIFFERENTIABLE:
            return
        if any(t._dtype.is_differentiable for t in fresh):
            needs = self._needs(values, lambda t: t.requires_grad)
            ctx, formula = self._context(gradient, values, outs, needs)
            node = FunctionNode(node_name(self.name), ctx, formula, self._flat(values))
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
                name, ctx = node_name(self.name), FunctionContext(())
                broken = FunctionNode(name, ctx, self._no_formula, inputs)
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
            message = (
                f"[{self.qualname}] no forward-mode (jvp) rule: it follows from the backward "
                f"formula, and none was registered. Write {self.name}.register_autograd(...)."
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


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _flatten(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list):
            yield from (t for t in value if isinstance(t, Tensor))


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return [_detached(v) for v in value] if isinstance(value, list) else value


def _map(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    """Return nested values with each object of `kind` replaced by ``change(object)``."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(v, kind, change) for v in value)
    return value


def _cotangent(tensor: Tensor, ctx: FunctionContext) -> Tensor:
    """Return ones to differentiate a formula by; plain zeros where no gradient passes."""
    spec = spec_of(tensor)
    if not spec.dtype.is_differentiable or any(tensor is t for t in ctx._non_differentiable):
        return zeros_of(spec)
    return wrap(np.ones(spec.shape, spec.dtype.numpy), spec.dtype).requires_grad_()


_NUMBERS: dict[str, tuple[tuple[type, ...], type]] = {
    "int": ((int, np.integer), int),
    "SymInt": ((int, np.integer), int),
    "float": ((int, float, np.integer, np.floating), float),
    "bool": ((bool, np.bool_), bool),
    "str": ((str,), str),
}


def _one_result(out: Any, base: str) -> Any:
    """Return one result in the form that the schema's type has in Python; TypeError if it cannot.

    A tensor is returned as a new object on the same memory: what the kernel keeps for itself
    gets no history.
    """
    if base == "Tensor":
        if isinstance(out, Tensor):
            return out.detach()
    elif base == "Scalar":
        if isinstance(out, SCALARS):
            return out.item() if isinstance(out, np.generic) else out
    elif base in _NUMBERS:
        admitted, make = _NUMBERS[base]
        if isinstance(out, admitted):
            return make(out)
    else:
        return out
    raise TypeError


def _overlap(a: Tensor, b: Tensor) -> bool:
    if a.is_meta or b.is_meta:
        return a._array is b._array
    if not np.may_share_memory(a._array, b._array):
        return False
    try:
        return bool(np.shares_memory(a._array, b._array, max_work=10_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True  # the bounds overlap and the answer is dear: the cautious one
