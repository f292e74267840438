"""Operators defined by users: the same object as a built-in one, with kernels per device."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorplay._tensor import Tensor, spec_of
from tensorplay.autograd import forward_ad, grad_mode
from tensorplay.autograd.engine import run_backward
from tensorplay.autograd.function import FunctionContext, FunctionNode
from tensorplay.autograd.graph import edge_of
from tensorplay.autograd.inplace import check_writable, rebase_history
from tensorplay.library.infer_schema import schema_of
from tensorplay.ops import NAMESPACES, Namespace
from tensorplay.ops.primitive import TENSOR_LIST, Primitive, zeros_like_spec
from tensorplay.ops.schema import FunctionSchema, parse_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CustomOpDef", "custom_op", "find"]

DEVICE_TYPES: Final = ("cpu", "cuda", "meta")
_QUALNAME: Final = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)\Z")
_REGISTRY: Final[dict[str, CustomOpDef]] = {}


class _CustomPrimitive(Primitive):
    """A primitive whose kernels, fake kernel and gradient are functions on tensors."""

    def __init__(self, schema: FunctionSchema, doc: str) -> None:
        self.kernels: dict[str | None, Callable[..., Any]] = {}
        self.fake: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None
        self.setup_context: Callable[..., Any] | None = None
        super().__init__(str(schema), doc, self._no_arrays, rule=self._no_arrays, method=False)
        self.qualname = schema.qualname

    def _no_arrays(self, *_: Any) -> Any:
        message = f"[{self.qualname}] a custom operator runs on tensors, not on arrays."
        raise NotImplementedError(message)

    # --- one call ---------------------------------------------------------------------------

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Check the arguments, run the kernel of their device, check and record the results."""
        values, _, record, dual, meta = self._prepare(args)
        record = record and grad_mode.state.enabled
        writes = [v for v, a in zip(values, self.schema.arguments, strict=True) if a.is_write]
        if record:
            for tensor in _flatten(writes):
                check_writable(tensor, self.qualname)
        # The kernel sees the memory, not the history: nothing inside it is recorded.
        inner = [_detached(v) for v in values]
        with grad_mode.no_grad():
            result = (self._fake_call if meta else self._kernel_for(values))(*inner)
        outs = self._check_results(result, values)
        for tensor in _flatten(writes):
            tensor._bump_version()
        if record:
            self._record_call(values, outs, writes)
        if dual:
            self._push_tangents(values, inner, outs)
        if not self.schema.returns:
            return None
        return outs[0] if len(self.schema.returns) == 1 else tuple(outs)

    def _keywords(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Split the arguments into positional and keyword-only ones."""
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for value, argument in zip(values, self.schema.arguments, strict=True):
            if argument.kwarg_only:
                keywords[argument.name] = value
            else:
                positional.append(value)
        return tuple(positional), keywords

    def _kernel_for(self, values: list[Any]) -> Callable[..., Any]:
        tensors = list(_flatten(values))
        device = tensors[0].device.type if tensors else "cpu"
        kernel = self.kernels.get(device) or self.kernels.get(None)
        if kernel is None:
            known = ", ".join(sorted(k for k in self.kernels if k)) or "none"
            message = (
                f"[{self.qualname}] no kernel for device {device}; registered: {known}. Write "
                f"@{self.name}.register_kernel('{device}')."
            )
            raise NotImplementedError(message)
        return lambda *inner: self._invoke(kernel, inner)

    def _invoke(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        positional, keywords = self._keywords(values)
        return function(*positional, **keywords)

    def _fake_call(self, *inner: Any) -> Any:
        if self.fake is not None:
            return self._invoke(self.fake, inner)
        if not self.schema.returns:
            return None  # writes only: shapes of arguments stay as they are
        kernel = self.kernels.get("meta")
        if kernel is not None:
            return self._invoke(kernel, inner)
        message = (
            f"[{self.qualname}] no fake kernel was registered, so shapes cannot be computed "
            f"without data. Write @{self.name}.register_fake."
        )
        raise NotImplementedError(message)

    # --- results ----------------------------------------------------------------------------

    def _check_results(self, result: Any, values: list[Any]) -> list[Any]:
        """Return the results as a list that matches the schema.

        Raises
        ------
        RuntimeError
            Number or kind is not the schema's, or a result shares memory with an argument or
            with another result.
        """
        returns = self.schema.returns
        if not returns:
            if result is not None:
                message = f"[{self.qualname}] result: expected None by the schema, got {type(result).__name__}."
                raise RuntimeError(message)
            return []
        outs = [result] if len(returns) == 1 else (
            list(result) if isinstance(result, (tuple, list)) else [result]
        )  # fmt: skip
        if len(outs) != len(returns):
            message = f"[{self.qualname}] result: expected {len(returns)} values by the schema, got {len(outs)}."
            raise RuntimeError(message)
        for number, (out, declared) in enumerate(zip(outs, returns, strict=True)):
            kind = declared.type
            if kind.is_list and isinstance(out, (list, tuple)):
                good = all(isinstance(x, Tensor) for x in out)
                outs[number] = list(out)
            elif kind.base == "Tensor":
                good = isinstance(out, Tensor)
            else:
                good = isinstance(out, (int, float, complex, np.number)) and not kind.is_list
            if not good:
                advice = " Write tensorplay.from_numpy(result)." if isinstance(out, np.ndarray) else ""
                message = (
                    f"[{self.qualname}] result {number}: expected {kind} by the schema, got "
                    f"{type(out).__name__}.{advice}"
                )
                raise RuntimeError(message)
        self._check_aliases(outs, values)
        return outs

    def _check_aliases(self, outs: list[Any], values: list[Any]) -> None:
        seen: list[tuple[str, Tensor]] = [
            (f"argument '{a.name}'", t)
            for v, a in zip(values, self.schema.arguments, strict=True)
            for t in _flatten([v])
        ]
        for number, out in enumerate(outs):
            for tensor in _flatten([out]):
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

    def _context(self, values: list[Any], outs: list[Any]) -> tuple[FunctionContext, Callable[..., Any]]:
        """Return a context filled by `setup_context`, and the formula with flat results."""
        needs = tuple(
            [t.requires_grad for t in v] if isinstance(v, list) and v and isinstance(v[0], Tensor)
            else isinstance(v, Tensor) and v.requires_grad
            for v in values
        )  # fmt: skip
        positional, keywords = self._keywords(values)
        ctx = FunctionContext(needs[: len(positional)])
        backward = self.backward
        if backward is None:
            return ctx, self._no_formula
        if self.setup_context is not None:
            output = outs[0] if len(self.schema.returns) == 1 else tuple(outs)
            extra = {"keyword_only_inputs": keywords} if keywords else {}
            with grad_mode.no_grad():
                self.setup_context(ctx, positional, output, **extra)

        # Lists stay lists in what the formula gets, and the engine sees them flat.
        counts = [len(o) if isinstance(o, list) else 1 for o in outs]

        def formula(context: FunctionContext, *grads: Any) -> Any:
            nested: list[Any] = []
            position = 0
            for out, count in zip(outs_shape, counts, strict=True):
                part = list(grads[position : position + count])
                nested.append(part if out else part[0])
                position += count
            return self._flat_gradients(backward(context, *nested), lengths)

        outs_shape = [isinstance(o, list) for o in outs]
        lengths = [len(v) if kind == TENSOR_LIST else None
                   for v, (_, kind, _) in zip(values, self.plan, strict=True)]  # fmt: skip
        return ctx, formula

    def _no_formula(self, *_: Any) -> Any:
        message = (
            f"[{self.qualname}] no autograd formula was registered: there is no gradient formula "
            "to differentiate it with. Write\n"
            f"    def backward(ctx, grad): ...\n"
            f"    {self.name}.register_autograd(backward, setup_context=...)"
        )
        raise RuntimeError(message)

    def _flat_gradients(self, result: Any, lengths: list[int | None]) -> list[Any]:
        """Return what a backward formula gave as one gradient per flattened argument."""
        arguments = self.schema.arguments
        if isinstance(result, dict):
            unknown = set(result) - {a.name for a in arguments}
            if unknown:
                message = (
                    f"[{self.qualname}] backward: expected gradients by the names of arguments "
                    f"{[a.name for a in arguments]}, got {sorted(unknown)}."
                )
                raise RuntimeError(message)
            given = [result.get(a.name) for a in arguments]
        else:
            is_single_list = (
                isinstance(result, list) and len(arguments) >= 1 and arguments[0].type.is_list
                and sum(not a.kwarg_only for a in arguments) == 1
            )  # fmt: skip
            given = [result] if is_single_list or not isinstance(result, (tuple, list)) else list(result)
            positional = [a for a in arguments if not a.kwarg_only]
            if len(given) > len(positional) and all(g is None for g in given[len(positional) :]):
                given = given[: len(positional)]
            if len(given) != len(positional):
                message = (
                    f"[{self.qualname}] backward returned an incorrect number of gradients "
                    f"(expected {len(positional)}, got {len(given)}): one per argument of "
                    f"{self.schema}, None where there is none."
                )
                raise RuntimeError(message)
            rest = iter(given)
            given = [None if a.kwarg_only else next(rest) for a in arguments]
        flat: list[Any] = []
        for gradient, length, argument in zip(given, lengths, arguments, strict=True):
            if length is None:
                flat.append(gradient)
            elif gradient is None:
                flat.extend([None] * length)
            elif not isinstance(gradient, (list, tuple)) or len(gradient) != length:
                message = (
                    f"[{self.qualname}] backward: expected a list of {length} gradients for "
                    f"argument '{argument.name}', got {gradient!r}."
                )
                raise RuntimeError(message)
            else:
                flat.extend(gradient)
        return flat

    def _record_call(self, values: list[Any], outs: list[Any], writes: list[Any]) -> None:
        tensors = list(_flatten(outs))
        if not any(t._dtype.is_differentiable for t in [*tensors, *_flatten(writes)]):
            return
        ctx, formula = self._context(values, outs)
        flat_inputs: list[Any] = []
        for value, (_, kind, _) in zip(values, self.plan, strict=True):
            flat_inputs.extend(value if kind == TENSOR_LIST else [value])
        node = FunctionNode(_node_name(self.name), ctx, formula, flat_inputs)
        node.outputs = [spec_of(t) if t._dtype.is_differentiable else None for t in tensors]
        ctx._keep(node, tensors)
        for number, tensor in enumerate(tensors):
            if node.outputs[number] is not None and not any(
                tensor is t for t in ctx._non_differentiable
            ):
                tensor._grad_fn, tensor._output_nr, tensor._requires_grad = node, number, True
        for tensor in _flatten(writes):
            broken = FunctionNode(_node_name(self.name), FunctionContext(()), self._no_formula, [tensor])
            broken.outputs = [spec_of(tensor)]
            rebase_history(tensor, broken)

    def _push_tangents(self, values: list[Any], inner: list[Any], outs: list[Any]) -> None:
        """Differentiate the backward formula, which is linear in its gradients."""
        if self.backward is None:
            message = (
                f"[{self.qualname}] no forward-mode (jvp) rule: it follows from the backward "
                f"formula, and none was registered. Write {self.name}.register_autograd(...)."
            )
            raise NotImplementedError(message)
        tensors = list(_flatten(outs))
        tangents: list[Any] = []
        for value, (_, kind, _) in zip(values, self.plan, strict=True):
            members = value if kind == TENSOR_LIST else [value]
            tangents.extend(t._tangent if isinstance(t, Tensor) else None for t in members)
        plain = [_requiring(v) for v in inner]
        with grad_mode.enable_grad():
            ctx, formula = self._context(plain, outs)
            cotangents = [zeros_like_spec(spec_of(t)).requires_grad_() for t in tensors]
            gradients = formula(ctx, *cotangents)
        roots = []
        for gradient, tangent in zip(gradients, tangents, strict=True):
            edge = edge_of(gradient) if isinstance(gradient, Tensor) else None
            if edge is not None and tangent is not None:
                roots.append((edge, tangent))
        edges = [e for e in map(edge_of, cotangents) if e is not None]
        results = run_backward(
            roots, retain_graph=False, create_graph=False, inputs=edges, accumulate=False
        )
        for tensor, tangent in zip(tensors, results, strict=True):
            if tangent is not None:
                forward_ad.set_tangent(tensor, tangent, self.qualname)


def _node_name(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.split("_")) + "Backward"


def _flatten(values: Any) -> Any:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list):
            yield from (t for t in value if isinstance(t, Tensor))


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return [_detached(v) for v in value] if isinstance(value, list) else value


def _requiring(value: Any) -> Any:
    """Mark inputs as requiring grad, so that the formula computes every gradient."""
    if isinstance(value, Tensor):
        return value.requires_grad_() if value._dtype.is_differentiable else value
    return [_requiring(v) for v in value] if isinstance(value, list) else value


def _overlap(a: Tensor, b: Tensor) -> bool:
    if a.is_meta or b.is_meta or not np.may_share_memory(a._array, b._array):
        return False
    try:
        return bool(np.shares_memory(a._array, b._array, max_work=10_000))
    except np.exceptions.TooHardError:
        return True  # the bounds overlap and the answer is dear: the cautious one


class CustomOpDef:
    """An operator defined by a user; call it as a function.

    Attributes
    ----------
    name : str
        ``"namespace::opname"``.
    schema : FunctionSchema
        What it takes and gives.
    """

    def __init__(self, primitive: _CustomPrimitive, owner: tuple[str, str], tags: Sequence[Any]) -> None:
        self._primitive = primitive
        self._owner = owner
        self.tags = tuple(tags)
        self.__doc__ = primitive.doc
        self.__name__ = primitive.name
        self.__qualname__ = primitive.name
        self.__module__ = owner[0]
        self.__signature__ = _signature_of(primitive)

    @property
    def name(self) -> str:
        """The name with its namespace."""
        return self._primitive.qualname

    @property
    def namespace(self) -> str:
        """The part of the name before ``::``."""
        return self.name.partition("::")[0]

    @property
    def opname(self) -> str:
        """The part of the name after ``::``."""
        return self.name.partition("::")[2]

    @property
    def schema(self) -> FunctionSchema:
        """What the operator takes and gives."""
        return self._primitive.schema

    @property
    def operator(self) -> Primitive:
        """The operator object, of the same kind as a built-in one."""
        return self._primitive

    @property
    def mutates_args(self) -> tuple[str, ...]:
        """Names of the arguments that are written."""
        return tuple(a.name for a in self.schema.arguments if a.is_write)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._primitive.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<CustomOpDef {self.schema}>"

    def register_kernel(self, device_types: Any = None, fn: Any = None, /) -> Any:
        """Add, or replace, the kernel for some device types (None: all); also a decorator.

        Raises
        ------
        TypeError, ValueError
            `device_types` is no name or sequence of names, or names no device.
        """
        kinds = _device_types(self.name, device_types)

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            for kind in kinds:
                self._primitive.kernels[kind] = function
            return function

        return register if fn is None else register(fn)

    def register_fake(self, fn: Any = None, /) -> Any:
        """Set the function that gives results without data, on tensors of device meta."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self._primitive.fake = function
            return function

        return register if fn is None else register(fn)

    def register_autograd(self, backward: Any, /, *, setup_context: Any = None) -> None:
        """Set the gradient.

        Parameters
        ----------
        backward
            ``backward(ctx, *grads)`` returns one gradient, or None, per argument in the order of
            the schema (keyword-only arguments left out), or a dictionary by name. A list
            argument takes a list.
        setup_context
            ``setup_context(ctx, inputs, output)`` keeps what `backward` needs; with keyword-only
            arguments it also takes ``keyword_only_inputs``, a dictionary.

        Raises
        ------
        RuntimeError
            The operator writes to arguments.
        """
        if self.mutates_args:
            message = (
                f"[{self.name}] register_autograd: a non-functional operator cannot have a "
                f"gradient; it writes to {list(self.mutates_args)}."
            )
            raise RuntimeError(message)
        if not callable(backward):
            message = f"[{self.name}] register_autograd: expected a function, got {type(backward).__name__}."
            raise TypeError(message)
        self._primitive.backward = backward
        self._primitive.setup_context = setup_context


def _signature_of(primitive: Primitive) -> Any:
    return inspect.signature(primitive.function)


def _device_types(where: str, device_types: Any) -> tuple[str | None, ...]:
    if device_types is None:
        return (None,)
    kinds = (device_types,) if isinstance(device_types, str) else device_types
    try:
        kinds = tuple(kinds)
    except TypeError:
        kinds = (0,)
    if not all(isinstance(k, str) for k in kinds):
        message = f"[{where}] argument 'device_types': expected a name or names of devices, got {device_types!r}."
        raise TypeError(message)
    unknown = [k for k in kinds if k not in DEVICE_TYPES]
    if unknown:
        message = f"[{where}] argument 'device_types': expected some of {', '.join(DEVICE_TYPES)}, got {unknown}."
        raise ValueError(message)
    return kinds


def check_qualname(operator: str, name: Any) -> tuple[str, str]:
    """Return namespace and name of a qualified name.

    Raises
    ------
    TypeError, ValueError
        It is no string, or not of the form ``ns::name``.
    """
    if not isinstance(name, str):
        message = f"[{operator}] argument 'name': expected str, got {type(name).__name__}."
        raise TypeError(message)
    match = _QUALNAME.match(name)
    if match is None:
        message = (
            f"[{operator}] argument 'name': expected a qualified op name such as "
            f"'mylib::softplus', got {name!r}."
        )
        raise ValueError(message)
    return match[1], match[2]


def _parse(name: str, schema: str) -> FunctionSchema:
    text = schema.strip()
    parsed = parse_schema(f"{name}{text}" if text.startswith("(") else text)
    if parsed.namespace is None:
        parsed = parse_schema(f"{name}{parsed.signature()}")
    if parsed.qualname != name:
        message = f"[custom_op] argument 'schema': expected the schema of {name}, got {schema!r}."
        raise ValueError(message)
    return parsed


def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: Any = (),
    device_types: Any = None,
    schema: str | None = None,
    tags: Sequence[Any] = (),
) -> Any:
    """Make an operator of a function; a decorator unless `fn` is given.

    Parameters
    ----------
    name
        ``"namespace::opname"``.
    fn
        The kernel, on tensors. Nothing that it does is recorded, and its result must be new.
    mutates_args
        Names of the arguments that it writes, or ``"unknown"`` for all tensors.
    device_types
        Device types that the kernel serves; None for all.
    schema
        Schema text, with or without the name; otherwise the annotations are read.
    tags
        Notes kept with the operator.

    Returns
    -------
    CustomOpDef
        The operator. The same function defined again (the same module and name) replaces it.

    Raises
    ------
    ValueError
        The name, schema or an annotation is not valid.
    RuntimeError
        Another function already defined an operator of this name.

    Examples
    --------
    >>> import tensorplay as tp
    >>> @tp.library.custom_op("docs::cube", mutates_args=())
    ... def cube(x: tp.Tensor) -> tp.Tensor:
    ...     return x * x * x
    >>> cube(tp.tensor([2.0]))
    tensor([8.])
    """
    namespace, opname = check_qualname("custom_op", name)
    kinds = _device_types("custom_op", device_types)
    if not isinstance(mutates_args, str) and not all(isinstance(a, str) for a in mutates_args):
        message = f"[custom_op] argument 'mutates_args': expected names of arguments, got {mutates_args!r}."
        raise TypeError(message)

    def define(function: Callable[..., Any]) -> CustomOpDef:
        if schema is None:
            parsed = schema_of(function, mutates_args=mutates_args, namespace=namespace, name=opname)
        else:
            parsed = _parse(name, schema)
        owner = (function.__module__, function.__qualname__)
        present = _REGISTRY.get(name)
        if present is not None and present._owner != owner:
            message = (
                f"[custom_op] {name} is already defined by {'.'.join(present._owner)}; "
                f"{'.'.join(owner)} cannot define it again. Choose another name."
            )
            raise RuntimeError(message)
        primitive = _CustomPrimitive(parsed, function.__doc__ or f"Custom operator {name}.")
        for kind in kinds:
            primitive.kernels[kind] = function
        made = CustomOpDef(primitive, owner, tags)
        _REGISTRY[name] = made
        NAMESPACES.setdefault(namespace, Namespace(namespace))._members[opname] = made
        return made

    return define if fn is None else define(fn)


def find(operator: str, op: Any) -> CustomOpDef:
    """Return the operator `op`, given as such or by name.

    Raises
    ------
    RuntimeError
        No operator has this name.
    """
    if isinstance(op, CustomOpDef):
        return op
    check_qualname(operator, op)
    found = _REGISTRY.get(op)
    if found is None:
        near = ", ".join(sorted(_REGISTRY)[:8]) or "none"
        message = f"[{operator}] unknown operator {op!r}: it does not exist. Defined: {near}."
        raise RuntimeError(message)
    return found

