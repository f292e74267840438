"""What a function gets instead of tensors while it is traced: values that record what is done."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tensorplay._tensor import Tensor
from tensorplay.graph.errors import TraceError
from tensorplay.graph.node import Node
from tensorplay.library.owners import line_of
from tensorplay.library.registry import lookup

if TYPE_CHECKING:
    from tensorplay.graph.tracer import Tracer

__all__ = ["Proxy"]

# What is known of a value whose shape is.
_FACTS: Final = frozenset({"shape", "dtype", "ndim", "device", "is_meta"})
_UNKNOWN: Final = object()


def line_of_user() -> str:
    """Return where in the user's source something happens, as ``, at file.py:3``."""
    import os
    import sys
    from pathlib import Path

    package = str(Path(__file__).resolve().parents[1]) + os.sep
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith((package, "<tensorplay ")):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f", at {line_of(frame.f_code, frame.f_lineno)}"


class Proxy:
    """Stands for the value of a node.

    Operators, methods and functions of tensors make nodes. What Python asks for at once, such as
    the truth of a value, raises `TraceError`.

    Attributes
    ----------
    node : Node
        The node.
    """

    def __init__(self, node: Node, tracer: Tracer) -> None:
        self.node = node
        self.tracer = tracer

    @property
    def _value(self) -> Any:
        return self.node.meta.get("val", _UNKNOWN)

    def __repr__(self) -> str:
        return f"Proxy({self.node.name})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = self._value
        if name in _FACTS and isinstance(value, Tensor):
            return getattr(value, name)
        if value is not _UNKNOWN and not isinstance(value, Tensor) and hasattr(value, name):
            return getattr(value, name)
        return Attribute(self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record a call of the value."""
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    # --- what Python asks for at once -------------------------------------------------------

    def _refuse(self, what: str, advice: str) -> TraceError:
        return TraceError(
            f"[graph] {what} by the traced value {self.node.name!r}{line_of_user()}: it is known "
            f"only when the graph runs. {advice}"
        )

    def __bool__(self) -> bool:
        raise self._refuse(
            "Python control flow", "Write tensorplay.where(condition, a, b), or pass the value in "
            "concrete_args."
        )  # fmt: skip

    def __len__(self) -> int:
        value = self._value
        if value is _UNKNOWN:
            raise self._refuse("len() is asked for", "To trace it, provide sample inputs.")
        return len(value)

    def __iter__(self) -> Iterator[Any]:
        value = self._value
        if value is _UNKNOWN:
            raise TraceError(
                f"[graph] the traced value {self.node.name!r} cannot be iterated"
                f"{line_of_user()}: how many members it has is not known. Provide sample inputs."
            )
        return iter([operator.getitem(self, i) for i in range(len(value))])

    def __index__(self) -> int:
        raise self._refuse("a whole number is asked for", "Pass it in concrete_args.")

    def __int__(self) -> int:
        raise self._refuse("int() is asked for", "Pass it in concrete_args.")

    def __float__(self) -> float:
        raise self._refuse("float() is asked for", "Pass it in concrete_args.")

    def __contains__(self, item: object) -> bool:
        raise self._refuse("Python control flow (in)", "Write (x == item).any() as a value.")

    __hash__ = object.__hash__

    # --- functions of tensors ---------------------------------------------------------------

    @classmethod
    def __tensorplay_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tracer = _tracer_of((args, kwargs))
        if tracer is None:
            return NotImplemented
        made = getattr(func, "operator", None)
        if made is not None and made.schema.namespace is not None:
            definition: Any = lookup(made.schema.full_name)
            return tracer.create_proxy("call_function", definition or func, args, kwargs)
        if (getattr(func, "__qualname__", "") or "").startswith("Tensor."):
            if args and isinstance(args[0], Proxy):
                return tracer.create_proxy("call_method", func.__name__, args, kwargs)
            return tracer.create_proxy("call_function", func, args, kwargs)
        return tracer.create_proxy("call_function", func, args, kwargs)


class Attribute(Proxy):
    """An attribute of a traced value: a method if it is called."""

    def __init__(self, root: Proxy, name: str) -> None:
        self._root = root
        self._name = name
        self.tracer = root.tracer

    @property
    def node(self) -> Node:  # type: ignore[override]  # a property here
        """The node that reads the attribute, made when it is needed."""
        found: Node | None = self.__dict__.get("_node")
        if found is None:
            made = self.tracer.create_proxy("call_function", getattr, (self._root, self._name), {})
            found = self.__dict__["_node"] = made.node
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", self._name, (self._root, *args), kwargs)


def _tracer_of(value: Any) -> Tracer | None:
    if isinstance(value, Proxy):
        return value.tracer
    if isinstance(value, (tuple, list)):
        return next((t for v in value if (t := _tracer_of(v)) is not None), None)
    if isinstance(value, dict):
        return _tracer_of(list(value.values()))
    if isinstance(value, slice):
        return _tracer_of((value.start, value.stop, value.step))
    return None


def _binary(function: Any, *, reflected: bool) -> Any:
    def special(self: Proxy, other: Any) -> Any:
        args = (other, self) if reflected else (self, other)
        return self.tracer.create_proxy("call_function", function, args, {})

    return special


def _unary(function: Any) -> Any:
    def special(self: Proxy) -> Any:
        return self.tracer.create_proxy("call_function", function, (self,), {})

    return special


_ARITHMETIC: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and_", "or_", "xor", "lshift", "rshift"),
)
for _name in _ARITHMETIC:
    _plain = _name.strip("_")
    _function = getattr(operator, _name)
    setattr(Proxy, f"__{_plain}__", _binary(_function, reflected=False))
    setattr(Proxy, f"__r{_plain}__", _binary(_function, reflected=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "getitem"):
    setattr(Proxy, f"__{_name}__", _binary(getattr(operator, _name), reflected=False))

for _name in ("neg", "pos", "abs", "invert"):
    setattr(Proxy, f"__{_name}__", _unary(getattr(operator, _name)))


def _setitem(self: Proxy, key: Any, value: Any) -> None:
    self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


setattr(Proxy, "__setitem__", _setitem)  # noqa: B010 - as the others
