"""Operators: one object holds everything about one, and everything else is derived from it.

A `Primitive` gives its schema, a NumPy implementation, a rule for shapes and types, derivative
rules with an explicit list of what each saves, and samples. From these come the function, the
method, the in-place variant, the signature and the texts of errors, execution on device ``meta``,
both modes of differentiation and the parametrised tests. A `Composite` is written in terms of
other operators and gives a schema, a body and samples only.

This is the only module that records nodes for operators.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorplay import _dtype
from tensorplay._methods import attach
from tensorplay._tensor import MetaArray, Spec, Tensor, spec_of, wrap
from tensorplay.autograd import forward_ad, grad_mode
from tensorplay.autograd.engine import run_backward
from tensorplay.autograd.graph import FREED, Edge, Node, SavedTensor, edge_of
from tensorplay.autograd.inplace import check_writable, rebase_history
from tensorplay.ops.arguments import SCALARS, converter, reject
from tensorplay.ops.schema import DtypeName, FunctionSchema, parse_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["OPERATORS", "Composite", "Operator", "Primitive", "Sample", "Vjp", "zeros_like_spec"]

OPERATORS: Final[dict[str, Operator]] = {}

TENSOR, TENSOR_LIST, OTHER = range(3)


@dataclass(frozen=True)
class Sample:
    """One call of an operator, for its tests: arguments, and the name of the situation."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = ""


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


def zeros_like_spec(spec: Spec) -> Tensor:
    """Return zeros of the shape and type of `spec`."""
    return wrap(np.zeros(spec.shape, spec.dtype.numpy), spec.dtype)


class Operator:
    """Schema, documentation, and the Python callables made from them."""

    schema: FunctionSchema
    doc: str
    samples: Callable[[Any], Iterable[Sample]] | None

    def __init__(
        self,
        schema: str,
        doc: str,
        *,
        samples: Callable[[Any], Iterable[Sample]] | None = None,
        method: bool = True,
        function: bool = True,
        dunders: Sequence[str] = (),
        inplace: bool = False,
        varargs: bool = False,
        aliases: Sequence[str] = (),
    ) -> None:
        self.schema = parse_schema(schema)
        self.doc = doc
        self.samples = samples
        self.name = self.schema.name
        self.varargs = varargs
        self.inplace = inplace
        self.public_function = function
        self.public_method = method
        self.dunders = tuple(dunders)
        self.aliases = tuple(aliases)
        self._defaults = {
            a.name: getattr(_dtype, a.default.name) if isinstance(a.default, DtypeName) else a.default
            for a in self.schema.arguments
            if a.has_default
        }
        self.function = self._make_function(self.name, varargs=False)
        if self.schema.namespace is None:
            self._publish()

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Run the operator on a complete tuple of arguments in the order of the schema."""
        raise NotImplementedError

    def apply_inplace(self, args: tuple[Any, ...]) -> Tensor:
        """Run the operator and write the result into the first argument."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.schema}>"

    # --- the callables ----------------------------------------------------------------------

    def parameters(self, *, first: str | None = None, varargs: bool = False) -> str:
        """Return the Python parameter list, the first parameter renamed to `first` if given."""
        parts: list[str] = []
        starred = False
        for number, argument in enumerate(self.schema.arguments):
            name = first if number == 0 and first is not None else argument.name
            if varargs and argument.type.is_list and not argument.type.is_tensor and not starred:
                parts.append(f"*{name}")
                starred = True
                continue
            if argument.kwarg_only and not starred:
                parts.append("*")
                starred = True
            default = self._defaults.get(argument.name, parts) if argument.has_default else parts
            parts.append(name if default is parts else f"{name}={default!r}")
        return ", ".join(parts)

    def _make_function(self, name: str, *, varargs: bool, method: bool = False) -> Any:
        """Compile a function with the signature of the schema that calls the operator."""
        first = "self" if method else None
        parameters = self.parameters(first=first, varargs=varargs)
        names = [a.name for a in self.schema.arguments]
        if method:
            names[0] = "self"
        spread = ""
        if varargs:
            star = parameters.split("*")[1].split(",")[0]
            spread = (
                f"    if len({star}) == 1 and not isinstance({star}[0], int):\n"
                f"        {star} = {star}[0]\n"
            )
        values = ", ".join(names) + ("," if names else "")
        call = "apply_inplace" if name.endswith("_") and not name.startswith("_") else "apply"
        source = f"def {name}({parameters}):\n{spread}    return _operator.{call}(({values}))\n"
        filename = f"<tensorplay operator {name}>"
        namespace: dict[str, Any] = {"_operator": self}
        for key, value in self._defaults.items():  # defaults without a literal, such as dtypes
            if isinstance(value, _dtype.dtype):
                namespace["tensorplay"] = _dtype
                namespace[key] = value
        exec(compile(source, filename, "exec"), namespace)  # noqa: S102 - text made from the schema
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        made = namespace[name]
        made.__doc__ = self._docstring(name)
        made.__module__ = "tensorplay"
        made.__qualname__ = f"Tensor.{name}" if method else name
        made.operator = self
        return made

    def _docstring(self, name: str) -> str:
        twin = f"In-place form of `{self.name}`: " if name == f"{self.name}_" else ""
        return f"{twin}{self.doc}\n\nSchema: ``{self.schema}``\n"

    def _publish(self) -> None:
        if self.name in OPERATORS:
            message = f"operator {self.name} is defined twice"
            raise RuntimeError(message)
        OPERATORS[self.name] = self
        if self.public_method:
            method = self._make_function(self.name, varargs=self.varargs, method=True)
            for name in (self.name, *self.aliases):
                attach(name, method)
            if self.inplace:
                attach(f"{self.name}_", self._make_function(f"{self.name}_", varargs=False, method=True))
        for name in self.dunders:
            attach(name, self._make_dunder(name))

    def _make_dunder(self, name: str) -> Any:
        """Return a Python special method: reflected, in place, or plain."""
        rest = tuple(self._defaults.get(a.name) for a in self.schema.arguments[2:])
        unary = len(self.schema.arguments) == 1
        operand = (Tensor, np.ndarray, *SCALARS)
        if unary:

            def special(self_: Tensor) -> Any:
                return self.apply((self_,))

        elif name.startswith("__r") and name not in {"__rshift__"}:

            def special(self_: Tensor, other: Any) -> Any:  # type: ignore[misc]
                if not isinstance(other, operand):
                    return NotImplemented
                return self.apply((other, self_, *rest))

        elif name.startswith("__i") and name not in {"__invert__"}:

            def special(self_: Tensor, other: Any) -> Any:  # type: ignore[misc]
                if not isinstance(other, operand):
                    return NotImplemented
                return self.apply_inplace((self_, other, *rest))

        else:

            def special(self_: Tensor, other: Any) -> Any:  # type: ignore[misc]
                if not isinstance(other, operand):
                    return NotImplemented
                return self.apply((self_, other, *rest))

        special.__name__ = name
        special.__qualname__ = f"Tensor.{name}"
        return special


class Composite(Operator):
    """An operator written in terms of others: it is differentiated and traced through its body."""

    def __init__(self, schema: str, doc: str, body: Callable[..., Any], **options: Any) -> None:
        self.body = body
        super().__init__(schema, doc, **options)
        self._converters = [
            None if a.type.is_tensor else converter(self.name, a) for a in self.schema.arguments
        ]

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Run the body."""
        return self.body(
            *[v if c is None else c(v) for v, c in zip(args, self._converters, strict=True)]
        )

    def apply_inplace(self, args: tuple[Any, ...]) -> Tensor:
        """Run the body and copy the result into the first argument."""
        target: Tensor = args[0]
        result: Tensor = target.copy_(self.apply(args))
        return result


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
        Whether Python numbers may stand for tensor arguments.
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
        scalars: bool = False,
        check_first: bool = True,
        **options: Any,
    ) -> None:
        self.impl = impl
        self.rule = rule
        self.vjp = vjp
        self.jvp = jvp
        self.scalars = scalars
        self.check_first = check_first
        super().__init__(schema, doc, **options)
        arguments = self.schema.arguments
        self._plan: list[tuple[int, int, Any]] = [
            (i, TENSOR_LIST if a.type.is_list else TENSOR, a) if a.type.is_tensor
            else (i, OTHER, converter(self.schema.qualname, a))
            for i, a in enumerate(arguments)
        ]  # fmt: skip
        self.view = bool(self.schema.returns) and any(
            r.alias is not None and not r.alias.is_write for r in self.schema.returns
        )
        unknown = set(vjp or {}) - {a.name for a in arguments if a.type.is_tensor}
        if unknown:
            message = f"operator {self.name}: vjp for {sorted(unknown)}, which are no tensor arguments"
            raise ValueError(message)

    # --- execution --------------------------------------------------------------------------

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Run the operator on a complete tuple of arguments and record it."""
        values, arrays, record, dual, meta = self._prepare(args)
        out = self._run(values, arrays, meta=meta)
        if record and grad_mode.state.enabled:
            self._record(values, out if type(out) is tuple else (out,))
        if dual:
            self._push_forward(values, out if type(out) is tuple else (out,))
        return out

    def _prepare(self, args: tuple[Any, ...]) -> tuple[list[Any], list[Any], bool, bool, bool]:
        """Check and convert the arguments: values with tensors, and the same with arrays."""
        values = list(args)
        arrays = list(args)
        record = dual = meta = False
        for i, kind, extra in self._plan:
            value = args[i]
            if kind == OTHER:
                values[i] = arrays[i] = extra(value)
                continue
            if kind == TENSOR_LIST:
                value = values[i] = self._tensor_list(extra, value)
                arrays[i] = [None if t is None else t._array for t in value]
                members = [t for t in value if t is not None]
            else:
                if not isinstance(value, Tensor):
                    value = values[i] = self._operand(extra, value)
                    if not isinstance(value, Tensor):
                        arrays[i] = value
                        continue
                arrays[i] = value._array
                members = (value,)  # type: ignore[assignment]  # a tuple is cheaper here
            for tensor in members:
                if tensor._base is not None:
                    tensor._synchronise()
                record = record or tensor._requires_grad
                dual = dual or tensor._tangent is not None
                meta = meta or type(tensor._array) is MetaArray
        return values, arrays, record, dual, meta

    def _operand(self, argument: Any, value: Any) -> Any:
        """Return what may stand for a tensor argument without being one."""
        if value is None and argument.type.optional:
            return None
        if self.scalars:
            if isinstance(value, np.ndarray):
                return wrap(value)
            if isinstance(value, SCALARS):
                return value.item() if isinstance(value, np.generic) else value
        advice = ""
        if isinstance(value, np.ndarray):
            advice = "Write tensorplay.from_numpy(x)."
        elif isinstance(value, (list, tuple, *SCALARS)):
            advice = "Write tensorplay.tensor(x)."
        reject(self.schema.qualname, argument.name, argument.type, value, advice)

    def _tensor_list(self, argument: Any, value: Any) -> list[Any]:
        kind = argument.type
        if isinstance(value, Tensor):
            value = list(value)
        if isinstance(value, (list, tuple)) and all(
            isinstance(t, Tensor) or (t is None and kind.list_of_optional) for t in value
        ):
            return list(value)
        reject(self.schema.qualname, argument.name, kind, value)

    def _specs(self, values: list[Any]) -> list[Any]:
        """Return the arguments with shape and type in place of each tensor."""
        return [
            spec_of(v) if isinstance(v, Tensor)
            else [None if t is None else spec_of(t) for t in v] if kind == TENSOR_LIST
            else v
            for v, (_, kind, _) in zip(values, self._plan, strict=True)
        ]  # fmt: skip

    def _run(self, values: list[Any], arrays: list[Any], *, meta: bool) -> Any:
        """Compute the results, or their shapes on device meta, as tensors without history."""
        if meta:
            return self._run_meta(values)
        if self.check_first:
            self.rule(*self._specs(values))
        try:
            with np.errstate(all="ignore"):  # infinities and NaN are results, not warnings
                result = self.impl(*arrays)
        except ValueError:
            if not self.check_first:
                self.rule(*self._specs(values))  # words the error about shapes, if it is one
            raise
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

    def _run_meta(self, values: list[Any]) -> Any:
        for value in values:
            for tensor in value if isinstance(value, list) else (value,):
                if isinstance(tensor, Tensor) and not tensor.is_meta and tensor.ndim:
                    message = (
                        f"[{self.schema.qualname}] expected all tensors on one device, got meta "
                        "and cpu. Write x.to('meta')."
                    )
                    raise ValueError(message)
        result = self.rule(*self._specs(values))
        if isinstance(result, Spec):
            return wrap(MetaArray(result), result.dtype)
        return tuple(wrap(MetaArray(r), r.dtype) for r in result)

    def _mark_view(self, values: list[Any], out: Tensor, number: int | None) -> None:
        """Tie a result to the memory of the first argument, if it lies there."""
        source: Tensor = values[0]
        array, root = out._array, source._array
        if array is root:  # a view is an object of its own
            out._array = array = root.view()
        shares = array.base is root or (array.base is not None and array.base is root.base)
        if not shares and not np.may_share_memory(array, root):
            return
        rest = tuple(values[1:])

        def replay(base: Tensor) -> Tensor:
            with grad_mode.enable_grad():
                result = self.apply((base, *rest))
            twin: Tensor = result if number is None else result[number]
            return twin

        out._mark_view(source, replay)

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
        check_writable(target, where)
        values, arrays, record, dual, meta = self._prepare(args)
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
        node = self._node(values) if record and self.vjp is not None else None
        if dual:
            self._push_forward(values, (out,))
        if not meta:
            np.copyto(target._array, out._array, casting="unsafe")
        target._bump_version()
        if node is not None:
            node.outputs = (spec_of(target),)
            node.save(self, values, (target,), late=True)
            rebase_history(target, node)
        target._tangent = out._tangent
        return target

    # --- reverse mode -----------------------------------------------------------------------

    def _node(self, values: list[Any]) -> PrimitiveNode:
        """Return a node that has saved the arguments its formulas will read."""
        edges: list[Edge | None] = []
        for i, kind, _ in self._plan:
            if kind == TENSOR:
                value = values[i]
                edges.append(edge_of(value) if isinstance(value, Tensor) else None)
            elif kind == TENSOR_LIST:
                edges.extend(None if t is None else edge_of(t) for t in values[i])
        node = PrimitiveNode(self, edges, values)
        node.save(self, values, (), late=False)
        return node

    def _record(self, values: list[Any], outs: tuple[Tensor, ...]) -> None:
        if self.vjp is None or not any(out._dtype.is_differentiable for out in outs):
            return
        node = self._node(values)
        if not any(e is not None for e in node.edges):
            return
        node.outputs = [
            spec_of(out) if out._dtype.is_differentiable else None for out in outs
        ]
        for number, out in enumerate(outs):
            if node.outputs[number] is not None:
                out._grad_fn, out._output_nr, out._requires_grad = node, number, True
        node.save(self, values, outs, late=True)

    # --- forward mode -----------------------------------------------------------------------

    def _push_forward(self, values: list[Any], outs: tuple[Tensor, ...]) -> None:
        if self.vjp is None:
            return
        tangents = self._tangents(values, outs)
        for out, tangent in zip(outs, tangents, strict=True):
            if tangent is not None and out._dtype.is_differentiable:
                forward_ad.set_tangent(out, tangent, self.name)

    def _tangents(self, values: list[Any], outs: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        names = [a.name for a in self.schema.arguments]
        plain = [_without_tangent(v) for v in values]
        clean = tuple(_without_tangent(out) for out in outs)
        arguments = dict(zip(names, plain, strict=True))
        tangent = {name: _tangent(v) for name, v in zip(names, values, strict=True)}
        saved = SimpleNamespace(
            **arguments,
            out=clean if len(outs) > 1 else clean[0],
            specs=dict(zip(names, self._specs(values), strict=True)),
            out_specs=[spec_of(out) for out in outs],
        )
        if callable(self.jvp):
            result = self.jvp(SimpleNamespace(**tangent), saved)
            return result if isinstance(result, (tuple, list)) else (result,)
        if self.jvp == "linear":
            zeros = [
                _tangent_or_zero(v, t, differentiable=name in (self.vjp or ()))
                for name, v, t in zip(names, plain, tangent.values(), strict=True)
            ]
            result = self.apply(tuple(zeros))
            return result if isinstance(result, tuple) else (result,)
        terms: list[Tensor] = []
        if self.jvp == "bilinear":
            for name, t in tangent.items():
                if t is not None:
                    terms.append(self.apply(tuple({**arguments, name: t}.values())))
        elif self.jvp == "elementwise":
            for name, t in tangent.items():
                rule = (self.vjp or {}).get(name)
                if t is not None and rule is not None:
                    terms.append(_conjugate(rule.formula(_conjugate(t), saved)))
        else:
            return self._tangents_by_vjp(plain, tangent, clean)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return (total if total.shape == outs[0].shape else total.expand(outs[0].shape),)

    def _tangents_by_vjp(
        self, plain: list[Any], tangent: dict[str, Any], outs: tuple[Tensor, ...]
    ) -> Sequence[Tensor | None]:
        """Differentiate the vjp, which is linear in the cotangent u: d/du <vjp(u), t> = jvp(t)."""
        recording = grad_mode.state.enabled
        with grad_mode.enable_grad():
            node = PrimitiveNode(self, (), plain)
            node.save(self, plain, outs, late=False)
            node.save(self, plain, outs, late=True)
            node.outputs = [spec_of(out) for out in outs]
            cotangents = [zeros_like_spec(spec_of(out)).requires_grad_()
                          if out._dtype.is_differentiable else None for out in outs]  # fmt: skip
            flat: list[Tensor | None] = []
            for t in tangent.values():
                flat.extend(t if isinstance(t, list) else [t])
            slots = node.slots()
            needed = [t is not None for t, slot in zip(flat, _flat_slots(plain, self._plan), strict=True) if slot]
            gradients = node.apply(list(cotangents), needed)
        wanted = [t for t, slot in zip(flat, _flat_slots(plain, self._plan), strict=True) if slot]
        assert len(wanted) == slots
        roots = []
        for gradient, t in zip(gradients, wanted, strict=True):
            edge = None if gradient is None else edge_of(gradient)
            if edge is not None and t is not None:
                roots.append((edge, t))
        sources = [c for c in cotangents if c is not None]
        edges = [edge_of(c) for c in sources]
        results = iter(
            run_backward(
                roots,
                retain_graph=False,
                create_graph=recording,
                inputs=[e for e in edges if e is not None],
                accumulate=False,
            )
        )
        return [None if c is None else next(results) for c in cotangents]


def _flat_slots(values: list[Any], plan: list[tuple[int, int, Any]]) -> list[bool]:
    """Tell for each flattened argument whether it is a tensor slot, as edges count them."""
    flat: list[bool] = []
    for i, kind, _ in plan:
        flat.extend([True] * len(values[i]) if kind == TENSOR_LIST else [kind == TENSOR])
    return flat


def _without_tangent(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_tangent(v) for v in value]
    if isinstance(value, Tensor) and value._tangent is not None:
        twin = object.__new__(Tensor)
        twin.__dict__.update(value.__dict__)
        twin._tangent = None
        return twin
    return value


def _conjugate(value: Any) -> Any:
    return value.conj() if value._dtype.is_complex else value


def _tangent(value: Any) -> Any:
    if isinstance(value, list):
        found = [_tangent(v) for v in value]
        return found if any(t is not None for t in found) else [None] * len(found)
    return value._tangent if isinstance(value, Tensor) else None


def _tangent_or_zero(value: Any, tangent: Any, *, differentiable: bool) -> Any:
    if not differentiable:
        return value
    if isinstance(value, list):
        return [
            _tangent_or_zero(v, t, differentiable=True)
            for v, t in zip(value, tangent, strict=True)
        ]
    if tangent is not None:
        return tangent
    if isinstance(value, Tensor):
        return zeros_like_spec(spec_of(value))
    return None if value is None else type(value)(0)


class PrimitiveNode(Node):
    """Node of a primitive: runs the formulas of the inputs that need a gradient, and only those."""

    __slots__ = ("_freed", "_saved", "_specs", "_values", "primitive")

    def __init__(
        self, primitive: Primitive, edges: Sequence[Edge | None], values: list[Any]
    ) -> None:
        super().__init__(edges)
        self.primitive = primitive
        self._saved: dict[str, Any] = {}
        self._freed = False
        self._specs = primitive._specs(values)
        # Numbers that stand for tensors are kept as they are; tensors only if a formula reads them.
        self._values = [
            None if isinstance(v, (Tensor, list)) else v for v in values
        ]

    def slots(self) -> int:
        """Return how many tensors the operator took."""
        return sum(
            len(spec) if kind == TENSOR_LIST else kind == TENSOR
            for spec, (_, kind, _) in zip(self._specs, self.primitive._plan, strict=True)
        )

    def save(
        self, primitive: Primitive, values: list[Any], outs: tuple[Tensor, ...], *, late: bool
    ) -> None:
        """Save what the formulas read: the arguments early, the results late."""
        rules = primitive.vjp or {}
        position = 0
        for i, kind, argument in primitive._plan:
            if kind == OTHER:
                continue
            count = len(values[i]) if kind == TENSOR_LIST else 1
            wanted = not self.edges or any(
                e is not None for e in self.edges[position : position + count]
            )
            position += count
            rule = rules.get(argument.name)
            if not wanted or rule is None:
                continue
            for name in rule.saves:
                if name in self._saved or late != (name == "out"):
                    continue
                if name == "out":
                    kept = [SavedTensor(out, number) for number, out in enumerate(outs)]
                    self._saved[name] = kept if len(outs) > 1 else kept[0]
                else:
                    value = values[primitive.schema.index_of(name)]
                    self._saved[name] = (
                        [None if t is None else SavedTensor(t) for t in value]
                        if isinstance(value, list)
                        else SavedTensor(value) if isinstance(value, Tensor) else value
                    )  # fmt: skip

    def name(self) -> str:
        """Return the name shown to people: ``MatmulBackward`` for matmul."""
        words = self.primitive.name.strip("_").split("_")
        return "".join(word[:1].upper() + word[1:] for word in words) + "Backward"

    def _unpack(self, value: Any) -> Any:
        if isinstance(value, SavedTensor):
            return value.unpack(self)
        return [self._unpack(v) for v in value] if isinstance(value, list) else value

    def apply(
        self, grads: list[Tensor | None], needed: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """Run the formulas of the needed inputs."""
        if self._freed:
            raise RuntimeError(FREED)
        primitive = self.primitive
        names = [a.name for a in primitive.schema.arguments]
        saved = SimpleNamespace(
            **{
                **dict(zip(names, self._values, strict=True)),
                **{name: self._unpack(value) for name, value in self._saved.items()},
            },
            specs=dict(zip(names, self._specs, strict=True)),
            out_specs=self.outputs,
        )
        if len(self.outputs) == 1:
            grad: Any = grads[0]
        else:
            grad = [
                zeros_like_spec(spec) if g is None and spec is not None else g
                for g, spec in zip(grads, self.outputs, strict=True)
            ]
        results: list[Tensor | None] = []
        rules = primitive.vjp or {}
        for i, kind, argument in primitive._plan:
            if kind == OTHER:
                continue
            rule = rules.get(argument.name)
            if kind == TENSOR:
                run = rule is not None and needed[len(results)]
                results.append(rule.formula(grad, saved) if run and rule is not None else None)
            else:
                count = len(self._specs[i])
                run = rule is not None and any(needed[len(results) : len(results) + count])
                results.extend(
                    rule.formula(grad, saved) if run and rule is not None else [None] * count
                )
        return results

    def release(self) -> None:
        """Free the saved tensors; a node that saved none can run again."""
        if self._saved:
            self._saved = {}
            self._freed = True
