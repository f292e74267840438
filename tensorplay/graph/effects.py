"""What a graph does besides computing: the writes at its end."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from tensorplay._tensor import Tensor, wrap
from tensorplay.graph.node import EFFECTS
from tensorplay.graph.order import order_of
from tensorplay.ops.operator import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FlatCall", "MutatingCall", "flat_results", "write", "write_part"]


def write(destination: Tensor, value: Tensor) -> Tensor:
    """Copy `value` into `destination`, once, and return that.

    What a captured function did in place stands in its graph as calls of this function before the
    output, one for each tensor that changed.

    Parameters
    ----------
    destination
        The tensor that is written.
    value
        Its new elements.

    Returns
    -------
    Tensor
        `destination` itself.
    """
    written: Tensor = OPERATORS["copy"].apply_inplace((destination, value))
    return written


EFFECTS.add(write)


def write_part(base: Tensor, value: Tensor, steps: tuple[Any, ...]) -> Tensor:
    """Return a copy of `base` in which the view that `steps` lead to has the elements of `value`.

    Parameters
    ----------
    base, value
        Tensors; `value` broadcasts to the view.
    steps
        Operators that give views, each with its other arguments and which of its results it is.
    """
    order = order_of(base.shape, base.stride())
    if order is None:
        result: Tensor = OPERATORS["clone"].apply((base,))
    else:  # a copy lies as its source, but for gaps, which are none of it
        turned = OPERATORS["clone"].apply((base.permute(order),))
        result = turned.permute([order.index(d) for d in range(len(order))])
    part = result
    for primitive, rest, number in steps:
        found = primitive.apply((part, *rest))
        part = found if number is None else found[number]
    OPERATORS["copy"].apply_inplace((part, value))
    # No view, as far as anybody sees, and with a history only where the steps are recorded.
    return result if result._requires_grad else wrap(result._array, result._dtype)


class MutatingCall:
    """An operator of a user that writes to arguments, as one that returns what it would write.

    Its results are those of the operator, and after them the written arguments, in order.
    """

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.schema = definition.schema
        self.mutates_args = definition.mutates_args
        self.__name__ = definition.name
        self.__qualname__ = definition.name

    @classmethod
    def of(cls, definition: Any) -> MutatingCall:
        """Return the one for an operator, always the same."""
        found = _CALLS.get(definition)
        if found is None:
            found = _CALLS[definition] = cls(definition)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator on copies of what it writes."""
        positional = [a for a in self.schema.arguments if not a.kwarg_only]
        copies: list[Tensor] = []

        def copied(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [copied(v) for v in value]
            if value is None:
                return None
            copies.append(value.clone())
            return copies[-1]

        values = [copied(v) if a.is_write else v for a, v in zip(positional, args, strict=False)]
        writes = {a.name for a in self.schema.arguments if a.is_write}
        named = {k: copied(v) if k in writes else v for k, v in kwargs.items()}
        result = self.definition(*values, **named)
        given = () if result is None else result if isinstance(result, tuple) else (result,)
        return (*given, *copies)


class FlatCall:
    """An operator of a user with lists or None among its results, as one that returns tensors.

    A graph holds tensors: those of lists stand one by one, and what is None is left out.
    """

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.schema = definition.schema
        self.effect = definition.effect
        self.__name__ = definition.name
        self.__qualname__ = definition.name

    @classmethod
    def of(cls, definition: Any) -> FlatCall:
        """Return the one for an operator, always the same."""
        found = _FLAT.get(definition)
        if found is None:
            found = _FLAT[definition] = cls(definition)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """Run the operator."""
        result = self.definition(*args, **kwargs)
        return flat_results(result if isinstance(result, tuple) else (result,))


def flat_results(results: Iterable[Any]) -> tuple[Any, ...]:
    """Return results with the members of lists one by one, and without those that are None."""
    flat = [r for given in results for r in (given if isinstance(given, list) else [given])]
    return tuple(r for r in flat if r is not None)


_CALLS: Final[weakref.WeakKeyDictionary[Any, MutatingCall]] = weakref.WeakKeyDictionary()
_FLAT: Final[weakref.WeakKeyDictionary[Any, FlatCall]] = weakref.WeakKeyDictionary()
