"""Operators declared first and given kernels later: `define`, `impl` and `Library`."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from tensorplay.library.custom_op import parse_definition
from tensorplay.library.definitions import CustomOpDef, check_function
from tensorplay.library.kernels import COMPOSITE, DEFAULT, kernel_key
from tensorplay.library.owners import Owner, owner_of_frame, same_owner
from tensorplay.library.registry import check_name, find, install, remove
from tensorplay.library.tags import as_tags, check_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Library", "check_library", "define", "get_kernel", "impl"]

KINDS: Final = ("DEF", "IMPL", "FRAGMENT")
_DEFINING: Final[dict[str, Library]] = {}
_lock: Final = threading.RLock()


class Library:
    """A set of declarations and kernels in one namespace.

    Parameters
    ----------
    ns
        The namespace.
    kind
        ``"DEF"`` starts a namespace, once; ``"FRAGMENT"`` declares more operators in it;
        ``"IMPL"`` only adds kernels.

    Raises
    ------
    ValueError
        The namespace is no identifier, or there is no such kind.
    RuntimeError
        A second DEF of a namespace, from another place. The same place replaces what it declared
        before: a notebook cell that is run again, or a module that is loaded again.

    Examples
    --------
    >>> import tensorplay as tp
    >>> lib = tp.library.Library("docs_lib", "DEF")
    >>> lib.define("twice(Tensor x) -> Tensor")
    'docs_lib::twice'
    >>> lib.impl("twice", lambda x: x * 2)
    >>> tp.ops.docs_lib.twice(tp.ones(2))
    tensor([2., 2.])
    >>> lib.close()
    """

    def __init__(self, ns: str, kind: str) -> None:
        given: Any = ns
        if not isinstance(given, str) or not ns.isidentifier():
            message = f"[Library] argument 'ns': expected an identifier, got {ns!r}."
            raise ValueError(message)
        if kind not in KINDS:
            message = (
                f"[Library] argument 'kind': expected one of {', '.join(KINDS)}, got {kind!r}."
            )
            raise ValueError(message)
        self.ns = ns
        self.kind = kind
        frame = sys._getframe(1)
        self._owner = owner_of_frame(frame)
        self._code: Any = frame.f_code
        self._defined: list[CustomOpDef] = []
        self._closed = False
        if kind == "DEF":
            self._start()

    def _start(self) -> None:
        with _lock:
            library = _DEFINING.get(self.ns)
            if library is not None:
                if not _runs_again(library, self):
                    owner = library._owner
                    message = (
                        f"[Library] namespace '{self.ns}' has a DEF library by {owner}; there can "
                        f"be only a single DEF Library, so {self._owner} writes "
                        f"Library('{self.ns}', 'FRAGMENT')."
                    )
                    raise RuntimeError(message)
                library.close()
            _DEFINING[self.ns] = self

    def close(self) -> None:
        """Take back what this library declared, unless it has been replaced since.

        It declares and implements nothing from then on.
        """
        self._closed = True
        for definition in self._defined:
            try:
                current = find("close", definition.name) is definition
            except RuntimeError:
                current = False
            if current:
                remove(definition)
        self._defined.clear()
        with _lock:
            if _DEFINING.get(self.ns) is self:
                del _DEFINING[self.ns]

    def _qualified(self, where: str, name: Any) -> str:
        """Return an operator's name with the namespace of this library.

        Raises
        ------
        ValueError
            It has another namespace.
        RuntimeError
            The library was closed.
        """
        if self._closed:
            message = (
                f"[{where}] this library of the namespace '{self.ns}' was closed. "
                f"Write Library('{self.ns}', 'FRAGMENT') for another."
            )
            raise RuntimeError(message)
        text = name.name if isinstance(name, CustomOpDef) else name
        if not isinstance(text, str):
            message = f"[{where}] expected the name of an operator, got {name!r}."
            raise TypeError(message)
        namespace, colons, rest = text.partition("::")
        if colons and namespace.strip() != self.ns:
            message = f"[{where}] {text!r} is not in the namespace '{self.ns}' of this library."
            raise ValueError(message)
        return f"{self.ns}::{rest if colons else text}"

    def define(self, schema: str, *, alias_analysis: str = "", tags: Any = ()) -> str:
        """Declare an operator, without a kernel.

        Parameters
        ----------
        schema
            ``"name(arguments) -> results"``; the namespace may stand before the name.
        alias_analysis
            ``""`` or ``"FROM_SCHEMA"``: the schema says what is written and what is shared.
        tags
            Marks of `Tag`.

        Returns
        -------
        str
            The qualified name.

        Raises
        ------
        ValueError
            The schema does not parse, has another namespace or no parenthesis.
        RuntimeError
            The library is of kind IMPL, or another owner declared the operator.
        """
        if self.kind == "IMPL":
            message = (
                f"[Library.define] expected a library of kind DEF or FRAGMENT, got IMPL. Write "
                f"Library('{self.ns}', 'FRAGMENT')."
            )
            raise RuntimeError(message)
        if alias_analysis not in ("", "FROM_SCHEMA"):
            message = (
                "[Library.define] argument 'alias_analysis': expected '' or 'FROM_SCHEMA', got "
                f"{alias_analysis!r}. What is not declared as written may not be written."
            )
            raise ValueError(message)
        name, rest = _split("Library.define", schema)
        made = _declare(
            "Library.define",
            self._qualified("Library.define", name),
            rest,
            owner_of_frame(sys._getframe(1)),
            as_tags("define", tags),
        )
        self._defined.append(made)
        return made.name

    def impl(
        self,
        op_name: Any,
        fn: Callable[..., Any] | None = None,
        device_type: str = "CompositeExplicitAutograd",
        *,
        dispatch_key: str = "",
        allow_override: bool = True,
    ) -> Any:
        """Add the kernel of an operator for one device type; a decorator unless `fn` is given.

        Parameters
        ----------
        op_name
            Name, with or without the namespace, or the operator.
        fn
            The kernel.
        device_type
            ``"cpu"``, ``"cuda"``, ``"meta"``, ``"CompositeExplicitAutograd"`` (for all devices) or
            ``"CompositeImplicitAutograd"`` (a body in other operators, which are recorded).
        dispatch_key
            The same; it goes before `device_type` if given.
        allow_override
            Whether a kernel that is there already is replaced.

        Raises
        ------
        RuntimeError
            There is no such operator; or a kernel is there and may not be replaced.
        """
        name = self._qualified("Library.impl", op_name)
        key = kernel_key(
            "Library.impl",
            dispatch_key or device_type,
            "dispatch_key" if dispatch_key else "device_type",
        )
        definition = find("Library.impl", name)

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            check_function("Library.impl", "fn", function)
            if not allow_override and key in definition.operator_kernels.by_key:
                message = (
                    f"[Library.impl] {name} has a kernel for {key or 'all devices'} already, and "
                    "allow_override is False."
                )
                raise RuntimeError(message)
            definition.operator_kernels.add((key,), function)
            return function

        if fn is None:
            return register
        register(fn)
        return None

    def fallback(self, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        """Refuse: a kernel for all operators of a namespace would hide which are missing.

        Raises
        ------
        NotImplementedError
            Always.
        """
        del fn, dispatch_key, options
        message = (
            f"[Library.fallback] namespace '{self.ns}': kernels stand for one operator each. Write "
            "lib.impl(name, fn) for each."
        )
        raise NotImplementedError(message)

    def __repr__(self) -> str:
        return f"Library(ns={self.ns!r}, kind={self.kind!r})"


def _runs_again(first: Library, second: Library) -> bool:
    """Tell whether the text that started a namespace is run once more, and so starts it anew.

    That is so for a notebook cell in a later execution, and for a module that is loaded again: the
    same line of it, compiled again. A function that is called twice defines twice.
    """
    old, new = first._owner, second._owner
    if old.execution is not None and old.cell is None:
        return new.execution not in (None, old.execution)
    if old.execution is not None:
        return same_owner(old, new) and old.execution != new.execution
    return (
        same_owner(old, new)
        and old.place == new.place
        and new.qualname == "<module>"
        and first._code is not second._code
    )


def _split(where: str, text: Any) -> tuple[str, str]:
    """Split a pasted declaration before its parenthesis."""
    if not isinstance(text, str):
        message = f"[{where}] argument 'schema': expected str, got {type(text).__name__}."
        raise TypeError(message)
    name, parenthesis, rest = text.partition("(")
    if not parenthesis:
        message = (
            f"[{where}] argument 'schema': expected 'name(arguments) -> results', got {text!r}."
        )
        raise ValueError(message)
    return name.strip(), parenthesis + rest


def _declare(where: str, name: str, schema: str, owner: Owner, tags: Sequence[Any]) -> CustomOpDef:
    check_name(where, name, overload=True)
    parsed = parse_definition(where, name, schema)
    check_tags(where, parsed, tags)
    return install(where, parsed, owner, tags=tags)


def define(
    qualname: str, schema: str | None = None, *, lib: Library | None = None, tags: Any = ()
) -> None:
    """Declare an operator without a kernel; `impl` gives it kernels.

    Parameters
    ----------
    qualname
        ``"ns::name"``; or, without `schema`, the whole text ``"ns::name(…) -> …"``.
    schema
        ``"(arguments) -> results"``.
    lib
        The library that it belongs to, and that takes it back on closing.
    tags
        Marks of `Tag`.

    Raises
    ------
    ValueError
        The name or schema is not valid, or has another namespace than `lib`.
    RuntimeError
        Another owner declared the operator. The same one replaces it, kernels included.
    """
    if schema is None:
        qualname, schema = _split("define", qualname)
    check_name("define", qualname, overload=True)
    if lib is not None:
        check_library("define", lib, qualname)
    made = _declare(
        "define", qualname, schema, owner_of_frame(sys._getframe(1)), as_tags("define", tags)
    )
    if lib is not None:
        lib._defined.append(made)


def impl(
    qualname: Any,
    types: str | Iterable[str],
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Library | None = None,
) -> Any:
    """Add the kernel of a declared operator; a decorator unless `func` is given.

    Parameters
    ----------
    qualname
        Name of the operator, or the operator.
    types
        One or several of ``"cpu"``, ``"cuda"``, ``"meta"``, ``"default"`` or
        ``"CompositeExplicitAutograd"`` (for all devices), and ``"CompositeImplicitAutograd"`` (a
        body in other operators, which are recorded in its place).
    func
        The kernel.
    lib
        A library of the operator's namespace.

    Returns
    -------
    callable
        `func`, or a decorator.

    Raises
    ------
    RuntimeError
        There is no such operator.
    TypeError, ValueError
        `types` names no device and no composite.
    """
    names = (types,) if isinstance(types, str) else types
    try:
        keys = [kernel_key("impl", name) for name in names]
    except TypeError:
        message = (
            "[impl] argument 'types': expected a device type or a composite spelling, or several, "
            f"got {types!r}."
        )
        raise TypeError(message) from None
    if not keys:
        raise ValueError(
            "[impl] argument 'types': expected at least one device type or composite spelling, "
            "got none. Write 'default' for a kernel of all devices."
        )
    definition = find("impl", qualname)
    if lib is not None:
        check_library("impl", lib, definition)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        check_function("impl", "func", function)
        definition.operator_kernels.add(keys, function)
        return function

    return register if func is None else register(func)


def get_kernel(op: Any, dispatch_key: str) -> Callable[..., Any]:
    """Return the function that was registered for one device type or composite.

    Parameters
    ----------
    op
        The operator, or its name.
    dispatch_key
        As `impl` takes it.

    Returns
    -------
    callable
        The function as it was registered.

    Raises
    ------
    LookupError
        None was registered, or it is switched off.
    RuntimeError
        There is no such operator.
    """
    definition = find("get_kernel", op)
    key = kernel_key("get_kernel", dispatch_key, "dispatch_key")
    kernels = definition.operator_kernels
    found = kernels.get(key)
    if found is None:
        names = {DEFAULT: "default", COMPOSITE: "CompositeImplicitAutograd"}
        known = ", ".join(sorted(names.get(k, str(k)) for k in kernels.by_key)) or "none"
        state = "is switched off" if key in kernels.disabled else "was not registered"
        message = (
            f"[get_kernel] {definition.name}: a kernel for {dispatch_key!r} {state}; "
            f"registered: {known}."
        )
        raise LookupError(message)
    return found


def check_library(where: str, lib: Any, op: Any) -> None:
    """See that `lib` is a library of the namespace of `op`, an operator or its name.

    Raises
    ------
    TypeError, ValueError
        It is none, or has another namespace.
    """
    if not isinstance(lib, Library):
        message = f"[{where}] argument 'lib': expected a Library, got {type(lib).__name__}."
        raise TypeError(message)
    lib._qualified(where, op)
