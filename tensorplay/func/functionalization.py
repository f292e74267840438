"""Functions that write into their arguments, as functions that do not until they are done."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorplay._tensor import Tensor
from tensorplay.autograd.batched import BatchedTensor
from tensorplay.func.trees import flatten, unflatten

__all__ = ["functionalize"]


def _memory(tensor: Tensor) -> Any:
    value = tensor._value if isinstance(tensor, BatchedTensor) else tensor
    return value._shared_counter()


def functionalize(func: Callable[..., Any], *, remove: str = "mutations") -> Callable[..., Any]:
    """Return a function that does what `func` does, without writing into what it was given.

    `func` runs on copies. Arguments into which it wrote get their new values at the end, in one
    write each, so that nothing that happens in between sees a tensor change. Results that `func`
    returns as views of its arguments are tensors of their own.

    Parameters
    ----------
    func
        Function of tensors, which may be nested in lists, tuples and dictionaries.
    remove
        ``"mutations"``, or ``"mutations_and_views"``: then no two results share memory either.

    Returns
    -------
    function
        Takes what `func` takes and returns what it returns.

    Raises
    ------
    RuntimeError
        `remove` is something else. When called: an argument that was written may not be, such as a
        leaf that requires grad, or another argument lies in its memory.
    """
    if remove not in {"mutations", "mutations_and_views"}:
        message = (
            "[functionalize] argument 'remove': expected 'mutations' or 'mutations_and_views', got "
            f"{remove!r}."
        )
        raise RuntimeError(message)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given, structure = flatten((args, kwargs))
        copies: dict[int, Tensor] = {}
        for value in given:
            if isinstance(value, Tensor):
                copies.setdefault(id(value), value.clone())
        versions = {key: copy._version for key, copy in copies.items()}
        inner, named = unflatten(
            structure, [copies[id(v)] if isinstance(v, Tensor) else v for v in given]
        )
        result = func(*inner, **named)
        tensors = {id(v): v for v in given if isinstance(v, Tensor)}
        changed = [key for key in tensors if copies[key]._version != versions[key]]
        memories = [_memory(value) for value in tensors.values()]
        written: dict[int, Tensor] = {}
        for key in changed:
            value = tensors[key]
            if sum(memory is _memory(value) for memory in memories) > 1:
                message = (
                    "[functionalize] the function wrote into an argument that shares memory with "
                    "another one, which does not see that. Pass x.clone() for one of them."
                )
                raise RuntimeError(message)
        for key in changed:
            tensors[key].copy_(copies[key])
            written[id(copies[key])] = tensors[key]
        leaves, out_structure = flatten(result)
        # An argument that was written and is returned is the argument itself.
        outs = [written.get(id(x), x) if isinstance(x, Tensor) else x for x in leaves]
        if remove == "mutations_and_views":
            outs = [x.clone() if isinstance(x, Tensor) and x._base is not None else x for x in outs]
        return unflatten(out_structure, outs)

    return wrapper
