"""What a module holds: parameters, buffers and modules among its attributes.

They are plain attributes, so that reading one is as fast as Python can; beside them a module keeps
which name is of which kind, in the order in which they were registered.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

__all__ = ["BUFFER", "MODULE", "PARAMETER", "TRANSIENT", "Members"]

PARAMETER, BUFFER, TRANSIENT, MODULE = "parameter", "buffer", "transient buffer", "module"


class Members(MutableMapping[str, Any]):
    """The attributes of some kinds, as a dictionary that reads and writes the attributes."""

    __slots__ = ("_default", "_kinds", "_owner")

    def __init__(self, owner: Any, kinds: tuple[str, ...]) -> None:
        self._owner, self._kinds = owner, kinds
        self._default = kinds[0]

    def __getitem__(self, name: str) -> Any:
        if self._owner.__dict__["_kinds"].get(name) not in self._kinds:
            raise KeyError(name)
        return self._owner.__dict__[name]

    def __setitem__(self, name: str, value: Any) -> None:
        kinds = self._owner.__dict__["_kinds"]
        if kinds.get(name) not in self._kinds:
            kinds[name] = self._default
        self._owner.__dict__[name] = value

    def __delitem__(self, name: str) -> None:
        self[name]
        del self._owner.__dict__["_kinds"][name], self._owner.__dict__[name]

    def __iter__(self) -> Iterator[str]:
        kinds = self._owner.__dict__["_kinds"]
        return iter([name for name, kind in kinds.items() if kind in self._kinds])

    def __len__(self) -> int:
        return sum(kind in self._kinds for kind in self._owner.__dict__["_kinds"].values())

    def __repr__(self) -> str:
        return repr(dict(self))
