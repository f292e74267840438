"""References of the operators on order, by loops over one-dimensional lines."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["SORTING"]


def along(x: Any, dim: int, choose: Callable[[list[Any]], list[int]], *, drop: bool) -> Any:
    """Return what `choose` picks of each line along `dim`, and the places."""
    if not x.ndim:
        return x, np.zeros((), int)
    lines = np.moveaxis(x, dim, -1)
    places = np.array([choose(list(lines[row])) for row in np.ndindex(lines.shape[:-1])], int)
    places = places.reshape(*lines.shape[:-1], -1 if places.size else 0)
    places = np.moveaxis(places, -1, dim)
    values = np.take_along_axis(x, places, dim)
    return (values.squeeze(dim), places.squeeze(dim)) if drop else (values, places)


def ranked(line: list[Any], *, descending: bool = False) -> list[int]:
    return sorted(range(len(line)), key=lambda i: -line[i] if descending else line[i])


def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return along(x, dim, lambda line: ranked(line, descending=descending), drop=False)


def topk(x: Any, k: int, dim: int = -1, largest: bool = True) -> Any:
    return along(x, dim, lambda line: ranked(line, descending=largest)[:k], drop=False)


def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return along(x, dim, lambda line: ranked(line)[k - 1 : k], drop=not keepdim)


def median_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    middle = (x.shape[dim] - 1) // 2 if x.ndim else 0
    return along(x, dim, lambda line: [ranked(line)[middle]], drop=not keepdim)


def median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return sorted(x.ravel())[(x.size - 1) // 2]
    return median_along(x, dim, keepdim)


def unique(x: Any, dim: int | None = None) -> Any:
    parts = list(x.ravel()) if dim is None else [tuple(p) for p in np.moveaxis(x, dim, 0)]
    different = sorted(set(parts))
    values = np.array(different, x.dtype)
    if dim is not None:
        values = np.moveaxis(values, 0, dim)
    inverse = np.array([different.index(p) for p in parts])
    return (
        values,
        inverse.reshape(x.shape) if dim is None else inverse,
        np.array([parts.count(p) for p in different]),
        np.array([parts.index(p) for p in different]),
    )


def isin(x: Any, test: Any, invert: bool = False) -> Any:
    among = set(np.ravel(test).tolist())
    return np.array([(v in among) != invert for v in x.ravel().tolist()]).reshape(x.shape)


def searchsorted(
    sequence: Any,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    find = bisect.bisect_right if right or side == "right" else bisect.bisect_left
    if sorter is not None:
        sequence = sequence[sorter]
    out = np.empty(np.shape(x), int)
    for place in np.ndindex(out.shape):
        line = sequence if sequence.ndim == 1 else sequence[place[:-1]]
        out[place] = find(list(line), np.asarray(x)[place])
    return out


SORTING: dict[str, Callable[..., Any]] = {
    "sort": sort,
    "argsort": lambda *args, **kwargs: sort(*args, **kwargs)[1],
    "topk": topk,
    "kthvalue": kthvalue,
    "_median_along": median_along,
    "median": median,
    "_unique": unique,
    "isin": isin,
    "searchsorted": searchsorted,
    "bucketize": lambda x, boundaries, right=False: searchsorted(boundaries, x, right=right),
}
