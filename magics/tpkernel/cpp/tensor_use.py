"""What is known of one tensor parameter of a C++ function, and how single mentions add up to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Facts", "TensorUse", "merged"]


@dataclass(frozen=True)
class TensorUse:
    """How a function's body uses one tensor parameter, as far as it can be followed.

    Attributes
    ----------
    dtypes
        Element types its data pointer is cast to, as dtype names.
    cast_line
        Line of the first such cast.
    checks_dtype
        The body compares ``x.dtype()`` or branches on it, so the kernel decides itself.
    untyped
        The body reads its memory and nothing says as which type.
    strided
        The body reaches the elements by strides or as ``x(i, j)``, and in no other way, so strided
        views are admitted.
    written
        True, False, or None where it cannot be followed.
    rank
        Number of indices in every ``x(i, j)``; None without any.
    address_line
        Line of the first ``&x(i, j)``: what is reached from there does not go by strides.
    """

    dtypes: tuple[str, ...] = ()
    cast_line: int | None = None
    checks_dtype: bool = False
    untyped: bool = False
    strided: bool = False
    written: bool | None = False
    rank: int | None = None
    address_line: int | None = None


class Facts:
    """What the mentions of one parameter add up to."""

    def __init__(self) -> None:
        self.dtypes: dict[str, int] = {}
        self.checks_dtype = False
        self.opaque_cast = False
        self.mentioned = False
        #: Its elements are counted through, or nothing is known of how they are reached.
        self.flat = False
        #: Its data pointer is used.
        self.memory = False
        self.ranks: set[int] = set()
        self.is_written: bool | None = False
        self.followed: set[str] = set()
        self.address_line: int | None = None

    def add_address(self, line: int) -> None:
        """Add a place where the address of an element is taken."""
        self.flat = True
        self.address_line = line if self.address_line is None else min(line, self.address_line)

    def add_cast(self, dtype: str, line: int) -> None:
        """Add a cast of the data pointer."""
        self.dtypes.setdefault(dtype, line)

    def merge_written(self, written: bool | None) -> None:
        """Add what one mention says about writing."""
        if written is True or self.is_written is True:
            self.is_written = True
        elif written is None:
            self.is_written = None

    def merge(self, use: TensorUse) -> None:
        """Add the use by a function that the tensor is handed to."""
        for dtype in use.dtypes:
            self.add_cast(dtype, use.cast_line or 0)
        self.checks_dtype |= use.checks_dtype
        self.opaque_cast |= use.untyped
        self.merge_written(use.written)
        self.flat |= not use.strided
        if use.address_line is not None:
            self.add_address(use.address_line)

    def unknown(self) -> None:
        """Add a mention of which nothing is known."""
        self.merge_written(None)
        self.flat = True
        self.opaque_cast = True

    def result(self, goes_by_strides: bool) -> TensorUse:
        """Sum up; the argument tells whether the data pointer is used by strides alone."""
        return TensorUse(
            dtypes=tuple(self.dtypes),
            cast_line=min(self.dtypes.values()) if self.dtypes else None,
            checks_dtype=self.checks_dtype,
            untyped=self.opaque_cast and not self.checks_dtype and not self.dtypes,
            strided=self.mentioned and not self.flat and (not self.memory or goes_by_strides),
            written=self.is_written,
            rank=next(iter(self.ranks)) if len(self.ranks) == 1 else None,
            address_line=self.address_line,
        )


def merged(uses: Sequence[TensorUse]) -> TensorUse:
    """Return what holds of a parameter whichever of several bodies is compiled."""
    if len(uses) == 1:
        return uses[0]
    facts = Facts()
    facts.mentioned = True
    for use in uses:
        facts.merge(use)
        facts.ranks |= set() if use.rank is None else {use.rank}
    facts.checks_dtype = all(use.checks_dtype for use in uses)
    return facts.result(goes_by_strides=True)
