"""Modules that hold modules or parameters by position or by key."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

from tensorplay._tensor import Tensor
from tensorplay.nn.members import MODULE, PARAMETER
from tensorplay.nn.module import Module
from tensorplay.nn.parameter import Parameter
from tensorplay.ops.arguments import reject
from tensorplay.ops.kinds import is_int

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


def _position(owner: Module, index: Any, size: int) -> int:
    """Return an index from the front.

    Raises
    ------
    TypeError
        It is no integer.
    IndexError
        It is out of range.
    """
    if not is_int(index):
        reject(type(owner).__name__, "index", "int or slice", index)
    place = operator.index(index)
    if not -size <= place < size:
        message = f"[{type(owner).__name__}] index {place} is out of range, the size is {size}."
        raise IndexError(message)
    return place % size


class _Numbered(Module):
    """Keeps its members under the names ``"0"``, ``"1"`` and so on."""

    _kind = MODULE  # of the members; derived classes may have parameters and buffers besides
    _given = "modules"  # what the constructor calls them

    def _names(self) -> list[str]:
        return [name for name, kind in self._registry().items() if kind == self._kind]

    def _list(self) -> list[Any]:
        return [self.__dict__[name] for name in self._names()]

    def _set_list(self, values: Iterable[Any]) -> None:
        """Keep these members, and no others; all are checked before one is kept."""
        given: Any = values
        if not isinstance(given, Iterable):
            reject(type(self).__name__, self._given, "an iterable", given, "Write a list.")
        values = [self._member(value) for value in given]
        for name in self._names():
            delattr(self, name)
        for i, value in enumerate(values):
            setattr(self, str(i), value)

    def _member(self, value: Any) -> Any:
        if not isinstance(value, Module):
            reject(type(self).__name__, self._given, "Module", value)
        return value

    def __len__(self) -> int:
        return len(self._names())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            made: Any = type(self)
            return made(self._list()[index])
        return self._list()[_position(self, index, len(self))]

    def __setitem__(self, index: Any, value: Any) -> None:
        values = self._list()
        if not isinstance(index, slice):
            index = _position(self, index, len(values))
        values[index] = value
        self._set_list(values)

    def __delitem__(self, index: Any) -> None:
        values = self._list()
        if not isinstance(index, slice):
            index = _position(self, index, len(values))
        del values[index]
        self._set_list(values)

    def __contains__(self, value: object) -> bool:
        return any(member is value for member in self._list())

    def insert(self, index: int, value: Any) -> None:
        """Put a member before position `index`."""
        values = self._list()
        values.insert(index, value)
        self._set_list(values)

    def append(self, value: Any) -> Any:
        """Put a member at the end, and return the container."""
        self._set_list([*self._list(), value])
        return self

    def extend(self, values: Iterable[Any]) -> Any:
        """Put members at the end, and return the container."""
        self._set_list([*self._list(), *values])
        return self

    def pop(self, index: int = -1) -> Any:
        """Take a member away and return it."""
        value = self[index]
        del self[index]
        return value


class Sequential(_Numbered):
    """Modules called one after the other, each with the result of the one before.

    Parameters
    ----------
    *args
        Modules, or one mapping of names to modules.

    Raises
    ------
    TypeError
        One of them is no module.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, self._member(module))
        else:
            self._set_list(args)

    def forward(self, input: Any) -> Any:
        for module in self._list():
            input = module(input)
        return input

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            names = self._names()[index]
            return type(self)({name: self.__dict__[name] for name in names})
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        name = self._names()[_position(self, index, len(self))]
        setattr(self, name, self._member(value))

    def _set_list(self, values: Iterable[Any]) -> None:
        # Names that were given are kept by those members that stay.
        names = {id(self.__dict__[name]): name for name in self._names()}
        values = [self._member(value) for value in values]
        for name in self._names():
            delattr(self, name)
        for i, value in enumerate(values):
            name = names.get(id(value), str(i))
            if name.isdigit() or name in self._registry():
                name = str(i)
            setattr(self, name, value)


class ModuleList(_Numbered, MutableSequence[Any]):
    """A list of modules, which are members of the module that holds the list.

    Parameters
    ----------
    modules
        The modules.

    Raises
    ------
    TypeError
        One of them is no module.
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self._set_list(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        return self.extend(other)


class ParameterList(_Numbered, MutableSequence[Any]):
    """A list of parameters, which are members of the module that holds the list.

    Parameters
    ----------
    values
        Parameters; tensors become parameters.

    Raises
    ------
    TypeError
        One of them is no tensor.
    """

    _kind, _given = PARAMETER, "values"

    def __init__(self, values: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._set_list(values)

    def _member(self, value: Any) -> Any:
        return value if isinstance(value, Parameter) else Parameter(value)

    def extra_repr(self) -> str:
        return "\n".join(
            f"({i}): Parameter of size {list(p.shape)}, {p.dtype!r}" for i, p in enumerate(self)
        )


class _Keyed(Module):
    """Keeps its members under names that people choose."""

    _kind = MODULE  # of the members; derived classes may have parameters and buffers besides

    # Two modules are never equal, although dictionaries with equal members are.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _fill(self, argument: str, members: Any) -> None:
        """Take the members that the constructor was given."""
        if not hasattr(members, "keys"):
            expected = "a mapping, or pairs of names and members"
            if not isinstance(members, Iterable):
                reject(type(self).__name__, argument, expected, members)
            members = list(members)
            for pair in members:
                if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                    reject(type(self).__name__, argument, expected, pair)
        self.update(members)

    def _check_key(self, key: Any) -> None:
        if not isinstance(key, str):
            message = (
                f"[{type(self).__name__}] argument 'key': expected str, got {type(key).__name__}."
            )
            raise TypeError(message)
        self._check_name(type(self).__name__, key, self._kind)

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self.__dict__[key]

    def __delitem__(self, key: str) -> None:
        self[key]
        delattr(self, key)

    def __len__(self) -> int:
        return sum(kind == self._kind for kind in self._registry().values())

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, kind in self._registry().items() if kind == self._kind])

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._registry().get(key) == self._kind


class ModuleDict(_Keyed, MutableMapping[str, Any]):
    """Modules by name, which are members of the module that holds the dictionary.

    Parameters
    ----------
    modules
        A mapping, or pairs, of names and modules.

    Raises
    ------
    TypeError
        A value is no module, or a name no text.
    KeyError
        A name is empty, has a dot, or is one of the methods.
    """

    def __init__(self, modules: Any = ()) -> None:
        super().__init__()
        self._fill("modules", modules)

    def __setitem__(self, key: str, value: Module) -> None:
        self._check_key(key)
        self.add_module(key, value)


class ParameterDict(_Keyed, MutableMapping[str, Any]):
    """Parameters by name, which are members of the module that holds the dictionary.

    Parameters
    ----------
    parameters
        A mapping, or pairs, of names and parameters; tensors become parameters.

    Raises
    ------
    TypeError
        A value is no tensor, or a name no text.
    KeyError
        A name is empty, has a dot, or is one of the methods.
    """

    _kind = PARAMETER

    def __init__(self, parameters: Any = ()) -> None:
        super().__init__()
        self._fill("parameters", parameters)

    def __setitem__(self, key: str, value: Tensor) -> None:
        self._check_key(key)
        parameter = value if isinstance(value, Parameter) else Parameter(value)
        self.register_parameter(key, parameter)

    def extra_repr(self) -> str:
        return "\n".join(
            f"({name}): Parameter of size {list(p.shape)}, {p.dtype!r}" for name, p in self.items()
        )
