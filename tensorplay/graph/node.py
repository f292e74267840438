"""One step of a graph: what is called, with what, and who uses the result."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tensorplay.graph.errors import GraphCaptureError
from tensorplay.ops.operator import Operator

if TYPE_CHECKING:
    from tensorplay.graph.graph import Graph

__all__ = ["OPS", "Node", "map_arg", "target_name"]

#: What a node may be.
OPS: Final = frozenset(
    {"placeholder", "get_attr", "call_function", "call_method", "call_module", "output"}
)


_WRITTEN: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)

_NOT_WRITTEN: Final = frozenset({"__invert__", "__index__", "__int__", "__init__", "__iter__"})


def map_arg(value: Any, function: Callable[[Node], Any]) -> Any:
    """Return `value` with ``function(node)`` for each node in it, also inside of containers.

    Parameters
    ----------
    value
        An argument of a node.
    function
        What nodes are replaced by.

    Returns
    -------
    object
        Of the structure of `value`.
    """
    kind = value.__class__
    if kind is Node:
        return function(value)
    if kind is tuple:
        return tuple([map_arg(v, function) for v in value])
    if kind is list:
        return [map_arg(v, function) for v in value]
    if kind is dict:
        return {k: map_arg(v, function) for k, v in value.items()}
    if kind is slice:
        return slice(*(map_arg(v, function) for v in (value.start, value.stop, value.step)))
    if isinstance(value, tuple):  # named ones and sizes
        members = [map_arg(v, function) for v in value]
        return kind(*members) if hasattr(value, "_fields") else kind(members)
    return value


def target_name(target: Any) -> str:
    """Return what a called thing is called: ``add``, ``mylib::op`` or ``layer.weight``."""
    if isinstance(target, str):
        return target
    if isinstance(target, Operator):
        return target.schema.qualname
    schema = getattr(target, "schema", None)
    if schema is not None and hasattr(target, "mutates_args"):
        return str(schema.full_name)
    return str(getattr(target, "__name__", None) or type(target).__name__)


class Node:
    """A step of a `Graph`; graphs make them.

    Attributes
    ----------
    op : str
        One of `OPS`.
    target : str or callable
        What is called: an operator or function (call_function), the name of a method or of an
        attribute or submodule of the root, or the name of an input.
    args, kwargs
        Arguments, in which nodes stand for their values. They may be set.
    name : str
        Unique in the graph; a Python identifier.
    meta : dict
        Notes. ``meta["val"]`` is a tensor on device meta that has shape, type and strides of the
        value, or a tuple of such for several results; ``meta["source"]`` says where in the source
        the step comes from.
    users : dict
        The nodes that use the value, as keys.
    """

    __slots__ = (
        "__weakref__",
        "_args",
        "_erased",
        "_inputs",
        "_kwargs",
        "_next",
        "_prev",
        "graph",
        "meta",
        "name",
        "op",
        "target",
        "users",
    )

    def __init__(
        self, graph: Graph, name: str, op: str, target: Any, args: Any, kwargs: Any
    ) -> None:
        self.graph = graph
        self.name = name
        self.op = op
        self.target = target
        self.meta: dict[str, Any] = {}
        self.users: dict[Node, None] = {}
        self._erased = False
        self._prev: Node = self
        self._next: Node = self
        self._inputs: dict[Node, None] = {}
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._set(args, kwargs)

    # --- arguments --------------------------------------------------------------------------

    def _set(self, args: Any, kwargs: Any) -> None:
        self._args, self._kwargs = tuple(args), dict(kwargs)
        found: dict[Node, None] = {}

        def visit(node: Node) -> Node:
            found[node] = None
            return node

        for value in self._args:
            if value.__class__ is Node:
                found[value] = None
            else:
                map_arg(value, visit)
        for value in self._kwargs.values():
            map_arg(value, visit)
        for node in self._inputs:
            if node not in found:
                node.users.pop(self, None)
        for node in found:
            node.users[self] = None
        self._inputs = found

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments."""
        return self._args

    @args.setter
    def args(self, value: tuple[Any, ...]) -> None:
        self._set(value, self._kwargs)

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments by name."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, value: dict[str, Any]) -> None:
        self._set(self._args, value)

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes whose values this one uses, each once, in the order of the arguments."""
        return list(self._inputs)

    # --- place ------------------------------------------------------------------------------

    @property
    def next(self) -> Node:
        """The node after this one; the graph's root after the last."""
        return self._next

    @property
    def prev(self) -> Node:
        """The node before this one; the graph's root before the first."""
        return self._prev

    def prepend(self, x: Node) -> None:
        """Move `x` to the place before this node."""
        self.graph.check_member(self)
        self.graph.check_member(x)
        if x is self:
            return
        x._unlink()
        x._prev, x._next = self._prev, self
        self._prev._next = x
        self._prev = x

    def append(self, x: Node) -> None:
        """Move `x` to the place after this node."""
        if x is not self and self._next is not x:
            self._next._place_before(self, x)

    def _place_before(self, after: Node, x: Node) -> None:
        after.graph.check_member(after)
        after.graph.check_member(x)
        x._unlink()
        x._prev, x._next = self._prev, self
        self._prev._next = x
        self._prev = x

    def _unlink(self) -> None:
        self._prev._next, self._next._prev = self._next, self._prev

    # --- changes ----------------------------------------------------------------------------

    def replace_all_uses_with(
        self, replacement: Node, predicate: Callable[[Node], bool] | None = None
    ) -> list[Node]:
        """Let the users of this node use `replacement`, and return them.

        Parameters
        ----------
        replacement
            A node of the same graph.
        predicate
            Tells which users are changed; all if it is None.
        """
        self.graph.check_member(replacement)
        changed = [
            user for user in list(self.users)
            if user is not replacement and (predicate is None or predicate(user))
        ]  # fmt: skip
        for user in changed:
            user.replace_input_with(self, replacement)
        return changed

    def replace_input_with(self, old: Node, new: Any) -> None:
        """Use `new`, a node or a plain value, where this node uses `old`."""

        def swap(node: Node) -> Any:
            return new if node is old else node

        self._set(map_arg(self._args, swap), map_arg(self._kwargs, swap))

    # --- text -------------------------------------------------------------------------------

    def format_node(self) -> str:
        """Return one line: ``%add : [num_users=1] = call_function[target=add](args = (%x, 1))``."""
        uses = f"[num_users={len(self.users)}]"
        what = f"{self.op}[target={target_name(self.target)}]"
        if self.op == "output":
            return f"return {_show(self._args[0] if self._args else None)}"
        if self.op in {"placeholder", "get_attr"}:
            return f"%{self.name} : {uses} = {what}"
        return (
            f"%{self.name} : {uses} = {what}(args = {_show(self._args)}, "
            f"kwargs = {_show(self._kwargs)})"
        )

    def __repr__(self) -> str:
        return self.name


def _show(value: Any) -> str:
    return repr(map_arg(value, lambda node: _Percent(node.name)))


class _Percent(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"%{self}"


def is_effect(node: Node) -> bool:
    """Tell whether a node does something that its value does not show, so that it must stay."""
    if node.op in {"placeholder", "output"}:
        return True
    if node.op == "call_method":
        return _writes_by_name(node.target)
    if node.op == "call_module":
        return True  # what it does to its own state is not seen
    if node.op != "call_function":
        return False
    if node.meta.get("effect"):
        return True
    schema = getattr(node.target, "schema", None)
    if schema is None:
        schema = getattr(getattr(node.target, "operator", None), "schema", None)
    if schema is None or _writes_by_name(target_name(node.target)):
        return node.target in EFFECTS or _writes_by_name(target_name(node.target))
    return (
        getattr(node.target, "effect", None) is not None
        or not schema.returns
        or any(a.is_write or a.type.base == "Generator" for a in schema.arguments)
    )


def may_raise(node: Node) -> bool:
    """Tell whether the values of elements may make a node raise, so that it stays if unused.

    Those of the library say so; what an operator of a user raises is not known.
    """
    if node.op != "call_function":
        return False
    schema = getattr(node.target, "schema", None)
    if getattr(schema, "namespace", None) is not None:
        return True
    raises = getattr(node.target, "raises", "")
    if raises != "integers":
        return raises == "all"
    kind = getattr(node.meta.get("val"), "dtype", None)
    return kind is None or not (kind.is_floating_point or kind.is_complex)


def _writes_by_name(name: str) -> bool:
    """Tell whether a name says that what it names writes: ``add_``, ``__iadd__``, ``setitem``."""
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in _NOT_WRITTEN)
    return name.endswith("_") and not name.endswith("__")


#: Functions that change what they are given; `effects` adds its own.
EFFECTS: Final[set[Any]] = {
    *(getattr(operator, f"__i{name}__") for name in _WRITTEN), operator.setitem, operator.delitem,
}  # fmt: skip


def iterate(root: Node) -> Iterator[Node]:
    """Yield the nodes between `root` and itself; the one that was yielded may be erased."""
    node = root._next
    while node is not root:
        yield node
        node = node._next if not node._erased else _after_erased(node)


def _after_erased(node: Node) -> Node:
    while node._erased:
        node = node._next
    return node


def fail(message: str) -> GraphCaptureError:
    """Return an error of the graph with its prefix."""
    return GraphCaptureError(f"[graph] {message}")
