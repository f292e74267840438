"""Operators defined by users: the same object as a built-in one, with kernels per device."""

from __future__ import annotations

import inspect
import keyword
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from tensorplay.library.custom_primitive import CustomPrimitive
from tensorplay.library.gradients import NOT_DIFFERENTIABLE, Gradient
from tensorplay.library.infer_schema import schema_of
from tensorplay.ops import NAMESPACES, Namespace
from tensorplay.ops.schema import FunctionSchema, parse_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensorplay.ops.primitive import Primitive

__all__ = ["CustomOpDef", "custom_op", "find"]

DEVICE_TYPES: Final = ("cpu", "cuda", "meta")
_QUALNAME: Final = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)\Z")
_REGISTRY: Final[dict[str, CustomOpDef]] = {}


class CustomOpDef:
    """An operator defined by a user; call it as a function.

    Attributes
    ----------
    name : str
        ``"namespace::opname"``.
    schema : FunctionSchema
        What it takes and gives.
    """

    def __init__(
        self, primitive: CustomPrimitive, function: Callable[..., Any], tags: Sequence[Any]
    ) -> None:
        self._primitive = primitive
        self._function = function
        self._owner = owner = _owner_of(function)
        self.tags = tuple(tags)
        self.__doc__ = primitive.doc
        self.__name__ = primitive.name
        self.__qualname__ = primitive.name
        self.__module__ = owner[0]
        self.__signature__ = inspect.signature(primitive.function)

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
        """Run the operator on arguments as the schema has them.

        Raises
        ------
        TypeError
            An argument is missing, unknown, or of another type.
        NotImplementedError
            There is no kernel for the device of the tensors.
        RuntimeError
            The kernel returned something else than the schema says.
        """
        try:
            return self._primitive.function(*args, **kwargs)
        except TypeError as error:
            # Python raises at the call itself, with no frame below it, when the arguments do not
            # fit the signature.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            what = str(error).partition("() ")[2] or str(error)
            message = f"[{self.name}] {what}. Expected the arguments of {self.schema}."
            raise TypeError(message) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return find, ("pickle", self.name)

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
            _check_function(self.name, "fn", function)
            for kind in kinds:
                self._primitive.kernels[kind] = function
            return function

        return register if fn is None else register(fn)

    def register_fake(self, fn: Any = None, /) -> Any:
        """Set the function that gives results without data, on tensors of device meta."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            _check_function(self.name, "fn", function)
            self._primitive.fake = function
            return function

        return register if fn is None else register(fn)

    def register_autograd(self, backward: Any, /, *, setup_context: Any = None) -> None:
        """Set the gradient, or replace it; graphs recorded before keep the one they had.

        Parameters
        ----------
        backward
            ``backward(ctx, *grads)`` returns one gradient, or None, per argument in the order of
            the schema (keyword-only arguments left out unless they are tensors that need one),
            or a dictionary by name. A list argument takes a list. None instead of a function
            declares that the results carry no gradient.
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
        if backward is None and setup_context is None:
            self._primitive.gradient = NOT_DIFFERENTIABLE
            return
        _check_function(f"{self.name}", "backward", backward)
        if setup_context is not None:
            _check_function(f"{self.name}", "setup_context", setup_context)
        self._primitive.gradient = Gradient(backward, setup_context)


def _check_function(where: str, argument: str, function: Any) -> None:
    if not callable(function):
        message = (
            f"[{where}] argument '{argument}': expected a function, got {type(function).__name__}."
        )
        raise TypeError(message)


def _owner_of(function: Any) -> tuple[str, str]:
    """Return module and name of the definer, who may define again what he defined."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module), str(getattr(function, "__qualname__", type(function).__qualname__))


def _stand_in_one_text(old: Any, new: Any) -> bool:
    """Tell whether one running piece of code holds both functions, so that it defines twice."""
    first, second = (getattr(f, "__code__", None) for f in (old, new))
    frame = sys._getframe(1)
    while first is not None and second is not None and first != second:
        if second in frame.f_code.co_consts:
            return first in frame.f_code.co_consts
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _device_types(where: str, device_types: Any) -> tuple[str | None, ...]:
    if device_types is None:
        return (None,)
    kinds = (device_types,) if isinstance(device_types, str) else device_types
    try:
        kinds = tuple(kinds)
    except TypeError:
        kinds = (0,)
    if not all(isinstance(k, str) for k in kinds):
        message = (
            f"[{where}] argument 'device_types': expected a name or names of devices, "
            f"got {device_types!r}."
        )
        raise TypeError(message)
    unknown = [k for k in kinds if k not in DEVICE_TYPES]
    if unknown:
        message = (
            f"[{where}] argument 'device_types': expected some of {', '.join(DEVICE_TYPES)}, "
            f"got {unknown}."
        )
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
    if match is None or any(map(keyword.iskeyword, match.groups())):
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
    written = {a.alias.before for a in parsed.arguments if a.alias is not None and a.is_write}
    if any(r.alias is not None and r.alias.before not in written for r in parsed.returns):
        message = (
            f"[custom_op] argument 'schema': {parsed} returns a view. Return a copy, or the "
            "argument that is written: Tensor(a!) x … -> Tensor(a!)."
        )
        raise ValueError(message)
    return parsed


def _check_mutates(schema: FunctionSchema, mutates_args: Any) -> None:
    """Compare `mutates_args`, if given beside a schema, with what the schema says."""
    names = {mutates_args} if isinstance(mutates_args, str) else set(mutates_args)
    missing = sorted(n for n in names if n not in schema and n != "unknown")
    if missing:
        message = (
            f"[custom_op] argument 'mutates_args': {missing} were not found in the custom op's "
            f"signature {schema}."
        )
        raise ValueError(message)
    written = {a.name for a in schema.arguments if a.is_write}
    if names - {"unknown"} and names != written:
        message = (
            f"[custom_op] argument 'mutates_args': {sorted(names)} are not what {schema} says is "
            f"written, {sorted(written)}. Write Tensor(a!) there."
        )
        raise ValueError(message)


def _check_signature(function: Any, schema: FunctionSchema) -> None:
    """See that the kernel takes the arguments that the schema gives it."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-in functions need not have one
        return
    positional = [a.name for a in schema.arguments if not a.kwarg_only]
    try:
        signature.bind(*positional, **{a.name: a for a in schema.arguments if a.kwarg_only})
    except TypeError as error:
        message = (
            f"[custom_op] {'.'.join(_owner_of(function))}{signature} does not take the arguments "
            f"of {schema}: {error}."
        )
        raise ValueError(message) from None


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
        Name or names of the arguments that it writes, or ``"unknown"`` for all tensors.
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
    text: Any = schema
    if text is not None and not isinstance(text, str):
        message = f"[custom_op] argument 'schema': expected str, got {type(text).__name__}."
        raise TypeError(message)
    if not isinstance(mutates_args, str):
        try:
            mutates_args = tuple(mutates_args)
        except TypeError:
            mutates_args = (mutates_args,)
        if not all(isinstance(a, str) for a in mutates_args):
            message = (
                "[custom_op] argument 'mutates_args': expected names of arguments, "
                f"got {mutates_args!r}."
            )
            raise TypeError(message)

    def define(function: Callable[..., Any]) -> CustomOpDef:
        _check_function("custom_op", "fn", function)
        if schema is None:
            parsed = schema_of(
                function, mutates_args=mutates_args, namespace=namespace, name=opname
            )
        else:
            parsed = _parse(name, schema)
            _check_mutates(parsed, mutates_args)
            _check_signature(function, parsed)
        owner = _owner_of(function)
        present = _REGISTRY.get(name)
        if present is not None and (
            present._owner != owner or _stand_in_one_text(present._function, function)
        ):
            message = (
                f"[custom_op] {name} is already defined by {'.'.join(present._owner)}; "
                f"{'.'.join(owner)} cannot define it again. Choose another name."
            )
            raise RuntimeError(message)
        primitive = CustomPrimitive(parsed, function.__doc__ or f"Custom operator {name}.")
        for kind in kinds:
            primitive.kernels[kind] = function
        made = CustomOpDef(primitive, function, tags)
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
