"""The operators that users have defined, by name."""

from __future__ import annotations

import contextlib
import difflib
import keyword
import re
import threading
from typing import TYPE_CHECKING, Any, Final

from tensorplay.library.custom_primitive import CustomPrimitive
from tensorplay.library.definitions import CustomOpDef
from tensorplay.library.owners import same_owner
from tensorplay.ops import NAMESPACES, Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tensorplay.library.owners import Owner
    from tensorplay.ops.schema import FunctionSchema

__all__ = [
    "OverloadPacket",
    "all_or_nothing",
    "check_name",
    "find",
    "install",
    "lookup",
    "remove",
]

_WORD: Final = r"[A-Za-z_]\w*"
_QUALNAME: Final = re.compile(rf"({_WORD})::({_WORD})(?:\.({_WORD}))?\Z")
_REGISTRY: Final[dict[str, CustomOpDef]] = {}
_lock: Final = threading.RLock()


class OverloadPacket:
    """All overloads of one name: ``tensorplay.ops.ns.op.out`` is one of them.

    A call goes to the first overload that takes the arguments, their types included: the default
    one if there is one, then the others in the order of definition.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """The common name."""
        return self._name

    def overloads(self) -> list[str]:
        """Return the names of the overloads."""
        return overloads_of(self._name)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the first overload that takes these arguments.

        Raises
        ------
        TypeError
            None does.
        """
        reasons = []
        for overload in self.overloads():
            found = overload_of(self._name, overload)
            try:
                found.check_arguments(*args, **kwargs)
            except TypeError as problem:
                reasons.append(f"{found.schema}: {problem}")
                continue
            return found(*args, **kwargs)
        message = f"[{self._name}] no overload takes these arguments. " + "; ".join(reasons)
        raise TypeError(message)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return overload_of(self._name, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.overloads()]

    def __repr__(self) -> str:
        return f"<overloads of {self._name}: {', '.join(self.overloads())}>"


def overloads_of(name: str) -> list[str]:
    """Return the overloads of `name`, ``"default"`` for the one without a name of its own."""
    found = ["default"] if name in _REGISTRY else []
    start = f"{name}."
    return found + [key[len(start) :] for key in list(_REGISTRY) if key.startswith(start)]


def overload_of(name: str, overload: str) -> CustomOpDef:
    """Return one overload.

    Raises
    ------
    AttributeError
        There is none of this name.
    """
    found = _REGISTRY.get(name if overload == "default" else f"{name}.{overload}")
    if found is None:
        known = ", ".join(overloads_of(name)) or "none"
        message = f"operator {name} has no overload or attribute '{overload}'; overloads: {known}."
        raise AttributeError(message)
    return found


def check_name(where: str, name: Any, *, overload: bool = False) -> tuple[str, str]:
    """Return namespace and name of a qualified name.

    Parameters
    ----------
    where, name
        The function that was called, and what it was given.
    overload
        Whether the name of an overload may follow.

    Raises
    ------
    TypeError, ValueError
        It is no string, or not of the form ``ns::name``.
    """
    if not isinstance(name, str):
        message = f"[{where}] argument 'name': expected str, got {type(name).__name__}."
        raise TypeError(message)
    match = _QUALNAME.match(name)
    if (
        match is None
        or (match[3] and not overload)
        or any(keyword.iskeyword(part) for part in match.groups() if part)
    ):
        message = (
            f"[{where}] argument 'name': expected a qualified op name such as "
            f"'mylib::softplus', got {name!r}."
        )
        raise ValueError(message)
    if match[2].startswith("__") or hasattr(Namespace(""), match[2]):
        message = (
            f"[{where}] argument 'name': {match[2]!r} is an attribute of every namespace in "
            "tensorplay.ops, where the operator could not be reached. Write another name."
        )
        raise ValueError(message)
    return match[1], match[2]


def find(where: str, op: Any) -> CustomOpDef:
    """Return the operator `op`, given as such or by name.

    Raises
    ------
    RuntimeError
        No operator has this name.
    """
    if isinstance(op, CustomOpDef):
        return op
    if isinstance(op, OverloadPacket):
        message = (
            f"[{where}] argument 'op': {op.name} has several overloads; expected one of "
            f"{', '.join(f'{op.name}.{o}' for o in op.overloads())}."
        )
        raise RuntimeError(message)  # noqa: TRY004  (a name that says too little)
    definition = getattr(op, "definition", None)  # what a %%tpkernel cell binds has one
    if isinstance(definition, CustomOpDef):
        return definition
    if not isinstance(op, str):
        message = (
            f"[{where}] argument 'op': expected an operator or its qualified name, such as "
            f"'mylib::softplus', got {type(op).__name__}."
        )
        raise TypeError(message)
    check_name(where, op, overload=True)
    found = _REGISTRY.get(op)
    if found is None:
        known = sorted(_REGISTRY)
        near = difflib.get_close_matches(op, known, 3, 0.5) or known[:8]
        message = (
            f"[{where}] unknown operator {op!r}: it does not exist. "
            f"Defined: {', '.join(near) or 'none'}."
        )
        raise RuntimeError(message)
    return found


def install(
    where: str,
    schema: FunctionSchema,
    owner: Owner,
    *,
    doc: str = "",
    tags: Iterable[Any] = (),
    function: Callable[..., Any] | None = None,
    keys: Iterable[str | None] = (),
) -> CustomOpDef:
    """Make an operator and put it under its name.

    Parameters
    ----------
    where
        The function that was called.
    schema, owner, doc, tags
        Of the operator.
    function, keys
        A kernel, and the keys of `Kernels` that it serves.

    Raises
    ------
    RuntimeError
        Another owner already defined an operator of this name.
    """
    name = schema.full_name
    assert schema.namespace is not None  # noqa: S101  (names are qualified when they come here)
    with _lock:
        present = _REGISTRY.get(name)
        if present is not None and not (
            same_owner(present.owner, owner) and not present.shares_text_with(function)
        ):
            message = (
                f"[{where}] {name} is already defined by {present.owner}; {owner} cannot define "
                f"it again. Choose another name, or write tensorplay.library.remove('{name}') "
                "before it."
            )
            raise RuntimeError(message)
        text = doc or (function.__doc__ if function is not None else None)
        primitive = CustomPrimitive(schema, text or f"Custom operator {name}.")
        if function is not None:
            primitive.kernels.add(keys, function)
        made = CustomOpDef(primitive, owner, tuple(tags), function)
        _REGISTRY[name] = made
        _publish(schema.namespace, schema.name)
    return made


def remove(op: Any) -> None:
    """Take an operator out of the registry; what holds it already can go on calling it.

    Parameters
    ----------
    op
        The operator, or its name ``"ns::op"``.

    Raises
    ------
    RuntimeError
        No operator has this name, or another one does by now.
    """
    definition = find("remove", op)
    with _lock:
        if _REGISTRY.get(definition.name) is not definition:
            message = f"[remove] {definition.name}: this definition has been replaced."
            raise RuntimeError(message)
        del _REGISTRY[definition.name]
        _publish(definition.namespace, definition.opname)


def lookup(name: str) -> CustomOpDef | None:
    """Return what is registered under a full name, or None."""
    return _REGISTRY.get(name)


@contextlib.contextmanager
def all_or_nothing() -> Iterator[None]:
    """Register what the block registers, or nothing of it if the block raises."""
    with _lock:
        before, spaces = dict(_REGISTRY), set(NAMESPACES)
        try:
            yield
        except BaseException:
            # Name by name: others read the registry meanwhile, and find what is not concerned.
            for name in [*before, *(n for n in list(_REGISTRY) if n not in before)]:
                if before.get(name) is _REGISTRY.get(name):
                    continue
                if name in before:
                    _REGISTRY[name] = before[name]
                else:
                    del _REGISTRY[name]
                namespace, _, rest = name.partition("::")
                _publish(namespace, rest.partition(".")[0])
            for namespace in set(NAMESPACES) - spaces:
                del NAMESPACES[namespace]
            raise


def _publish(namespace: str, opname: str) -> None:
    """Show in ``tensorplay.ops`` what the registry has of a name."""
    qualname = f"{namespace}::{opname}"
    space = NAMESPACES.setdefault(namespace, Namespace(namespace))
    overloads = overloads_of(qualname)
    if overloads == ["default"]:
        space._members[opname] = _REGISTRY[qualname]
    elif overloads:
        space._members[opname] = OverloadPacket(qualname)
    else:
        space._members.pop(opname, None)
