"""Operators defined by users: the same object as a built-in one, with kernels per device."""

from __future__ import annotations

import inspect
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay.library.gradients import NOT_DIFFERENTIABLE, Gradient
from tensorplay.library.kernels import DEVICE_TYPES
from tensorplay.library.short_way import MISS, short_way
from tensorplay.library.tags import EffectType, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorplay.library.custom_primitive import CustomPrimitive
    from tensorplay.library.kernels import Kernels
    from tensorplay.library.owners import Owner
    from tensorplay.ops.schema import FunctionSchema

__all__ = ["CustomOpDef", "check_function", "device_keys"]


class CustomOpDef:
    """An operator defined by a user; call it as a function.

    Attributes
    ----------
    name : str
        ``"namespace::opname"``, and ``".overload"`` if it has one.
    schema : FunctionSchema
        What it takes and gives.
    tags : tuple
        Marks of `Tag`, and notes of the definer.
    effect : EffectType or None
        Side effect that a compiler has to respect.
    """

    def __init__(
        self,
        primitive: CustomPrimitive,
        owner: Owner,
        tags: tuple[Any, ...],
        function: Callable[..., Any] | None,
    ) -> None:
        self._primitive = primitive
        self._function = function
        self._short = short_way(primitive)
        self._count = len(primitive.schema.arguments)
        self.owner = owner
        self.tags = tags
        self.effect: EffectType | None = None
        self.__doc__ = primitive.doc
        self.__name__ = primitive.name
        self.__qualname__ = primitive.name
        self.__module__ = owner.module
        self.__signature__ = inspect.signature(primitive.function)

    @property
    def name(self) -> str:
        """The name with its namespace, and its overload if it has one."""
        return self.schema.full_name

    @property
    def namespace(self) -> str:
        """The part of the name before ``::``."""
        return str(self.schema.namespace)

    @property
    def opname(self) -> str:
        """The part of the name after ``::``, without the overload."""
        return self.schema.name

    @property
    def schema(self) -> FunctionSchema:
        """What the operator takes and gives."""
        return self._primitive.schema

    @property
    def operator(self) -> CustomPrimitive:
        """The operator object, of the same kind as a built-in one."""
        return self._primitive

    @property
    def operator_kernels(self) -> Kernels:
        """The kernels by device type."""
        return self._primitive.kernels

    @property
    def mutates_args(self) -> tuple[str, ...]:
        """Names of the arguments that are written."""
        return tuple(a.name for a in self.schema.arguments if a.is_write)

    @property
    def kind(self) -> str:
        """``"functional"``, ``"inplace"``, ``"out"`` or ``"mutable"``."""
        return kind_of(self.schema, self.tags)

    @property
    def checks_writes(self) -> bool:
        """Whether each call compares the arguments that are not declared as written."""
        return self._primitive.checks_writes

    @checks_writes.setter
    def checks_writes(self, wanted: bool) -> None:
        self._primitive.checks_writes = bool(wanted)

    def __getattr__(self, name: str) -> Any:
        # Overloads; what starts with an underscore is asked for by protocols of Python.
        if name.startswith("_"):
            raise AttributeError(name)
        from tensorplay.library.registry import overload_of

        return overload_of(self.schema.qualname, name)

    def check_arguments(self, /, *args: Any, **kwargs: Any) -> None:
        """See that the operator takes these arguments, without running anything.

        Raises
        ------
        TypeError
            An argument is missing, unknown, or of another type.
        """
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        self._primitive.check_arguments(tuple(bound.args) + tuple(bound.kwargs.values()))

    def shares_text_with(self, function: Callable[..., Any] | None) -> bool:
        """Tell whether one running piece of code holds both functions, and so defines twice."""
        return _stand_in_one_text(self._function, function)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the operator on arguments as the schema has them; NumPy arrays stand for tensors.

        Raises
        ------
        TypeError
            An argument is missing, unknown, or of another type.
        NotImplementedError
            There is no kernel for the device of the tensors.
        RuntimeError
            The kernel returned something else than the schema says.
        """
        if not kwargs and self._short is not None:
            out = self._short(args)
            if out is MISS and np.ndarray in map(type, args) and len(args) == self._count:
                args = self._primitive.over_arrays(args)
                out = self._short(args)
            if out is not MISS:
                return out
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
        from tensorplay.library.registry import find

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
        kinds = device_keys(self.name, device_types)

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            check_function(self.name, "fn", function)
            self.operator_kernels.add(kinds, function)
            return function

        return register if fn is None else register(fn)

    @contextmanager
    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> Iterator[None]:
        """Switch the kernel for one device type on or off inside of a ``with`` block.

        While it is off, calls run the kernel for all devices, or the composite. A kernel that is
        registered while it is off stays off until the block ends.

        Parameters
        ----------
        device_type
            ``"cpu"``, ``"cuda"`` or ``"meta"``.
        enabled
            Whether the kernel runs.

        Warns
        -----
        UserWarning
            It is so already.

        Raises
        ------
        RuntimeError
            No kernel was registered for this device type.
        """
        (kind,) = device_keys(f"{self.name}.set_kernel_enabled", (device_type,))
        kernels = self.operator_kernels
        if kind not in kernels.by_key:
            known = ", ".join(sorted(k for k in kernels.by_key if k)) or "none"
            message = (
                f"[{self.name}] set_kernel_enabled: no kernel was registered for device "
                f"'{kind}'; registered: {known}. Write @{self.name}.register_kernel('{kind}')."
            )
            raise RuntimeError(message)
        before = kind not in kernels.disabled
        if before is enabled:
            state = "enabled" if enabled else "disabled"
            warnings.warn(
                f"[{self.name}] the kernel for device '{kind}' is already {state}.",
                UserWarning,
                stacklevel=3,
            )
        kernels.switch(kind, enabled=enabled)
        try:
            yield
        finally:
            kernels.switch(kind, enabled=before)

    def register_vmap(self, fn: Any = None, /) -> Any:
        """Set how the operator runs inside of `func.vmap`; also a decorator.

        Parameters
        ----------
        fn
            ``fn(info, in_dims, *args, **kwargs) -> (out, out_dims)``. `info` has ``batch_size``
            and ``randomness``; `in_dims` tells for each positional argument which dimension runs
            over the samples, or None, nested as the arguments are. Without a rule vmap runs the
            operator sample by sample.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            check_function(self.name, "fn", function)
            self._primitive.vmap_rule = function
            return function

        return register if fn is None else register(fn)

    def register_effect(self, effect: Any) -> None:
        """Declare a side effect, or with None that there is none.

        Parameters
        ----------
        effect
            `EffectType.ORDERED`, or None.

        Raises
        ------
        TypeError
            It is something else.
        """
        if effect is not None and not isinstance(effect, EffectType):
            message = (
                f"[{self.name}] argument 'effect': expected EffectType.ORDERED or None, "
                f"got {effect!r}."
            )
            raise TypeError(message)
        self.effect = effect

    def register_fake(self, fn: Any = None, /) -> Any:
        """Set the function that gives results without data, on tensors of device meta."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            check_function(self.name, "fn", function)
            self.operator_kernels.fake = function
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
        check_function(f"{self.name}", "backward", backward)
        if setup_context is not None:
            check_function(f"{self.name}", "setup_context", setup_context)
        self._primitive.gradient = Gradient(backward, setup_context)


def check_function(where: str, argument: str, function: Any) -> None:
    """Raise TypeError unless `function` can be called."""
    if not callable(function):
        message = (
            f"[{where}] argument '{argument}': expected a function, got {type(function).__name__}."
        )
        raise TypeError(message)


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


def device_keys(where: str, device_types: Any) -> tuple[str | None, ...]:
    """Return the keys of kernels for `device_types`, a name, names, or None for all.

    Raises
    ------
    TypeError, ValueError
        It is something else, or names no device.
    """
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
