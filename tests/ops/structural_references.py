"""References of the operators on shapes, indices, matrices, and those of neural networks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["STRUCTURAL"]


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    shape = x.shape or (1,)
    end = end_dim % len(shape)
    return x.reshape(
        (*shape[:start_dim], int(np.prod(shape[start_dim : end + 1])), *shape[end + 1 :])
    )


def squeeze(x: Any, dim: Any = None) -> Any:
    dims = range(x.ndim) if dim is None else np.atleast_1d(dim) % max(x.ndim, 1)
    return x.reshape([n for d, n in enumerate(x.shape) if not (n == 1 and d in dims)])


def transpose(x: Any, dim0: int, dim1: int) -> Any:
    return np.swapaxes(x, dim0, dim1) if x.ndim else x


def sliced(x: Any, start: Any, stop: Any, step: Any, shape: Any) -> Any:
    for axis, bounds in enumerate(zip(start, stop, step, strict=True)):
        x = np.take(x, list(range(*bounds)), axis=axis)
    return x.reshape(shape)


def slice_adjoint(g: Any, start: Any, stop: Any, step: Any, shape: Any) -> Any:
    out = np.zeros(shape)
    places = itertools.product(*map(range, start, stop, step))
    for place, value in zip(places, g.ravel(), strict=True):
        out[place] = value
    return out


def slice_along(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return np.take(x, list(range(x.shape[dim]))[start:end:step], axis=dim)


def narrow(x: Any, dim: int, start: int, length: int) -> Any:
    return np.take(x, [start % x.shape[dim] + i if length else 0 for i in range(length)], axis=dim)


def parts(x: Any, sizes: Any, dim: int = 0) -> list[Any]:
    return np.split(x, np.cumsum(sizes)[:-1], axis=dim)


def chunk(x: Any, chunks: int, dim: int = 0) -> list[Any]:
    size = x.shape[dim]
    each = -(-size // chunks)
    return np.split(x, range(each, size, each), axis=dim)


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    moved = np.moveaxis(x, (dim1, dim2), (-2, -1))
    rows, columns = moved.shape[-2:]
    picked = [moved[..., i, i + offset] for i in range(rows) if 0 <= i + offset < columns]
    return np.stack(picked, axis=-1) if picked else np.zeros((*moved.shape[:-2], 0))


def diagonal_adjoint(g: Any, shape: Any, offset: int, dim1: int, dim2: int) -> Any:
    out = np.zeros(shape)
    moved = np.moveaxis(out, (dim1, dim2), (-2, -1))
    for k in range(g.shape[-1]):
        moved[..., k - min(offset, 0), k + max(offset, 0)] = g[..., k]
    return out


def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    matrices = np.zeros((*x.shape, x.shape[-1])) + x[..., None] * np.eye(x.shape[-1])
    if offset:
        widths = [(0, 0)] * (x.ndim - 1)
        shift = (0, abs(offset)), (abs(offset), 0)
        matrices = np.pad(matrices, [*widths, *(shift if offset > 0 else shift[::-1])])
    return np.moveaxis(matrices, (-2, -1), (dim1, dim2))


def expand(x: Any, size: Any) -> Any:
    lead = len(size) - x.ndim
    shape = [x.shape[d - lead] if n == -1 else n for d, n in enumerate(size)]
    return np.zeros(shape) + x


def triangle(keep: Callable[[Any, Any, int], Any]) -> Callable[..., Any]:
    def reference(x: Any, diagonal: int = 0) -> Any:
        rows, columns = np.indices(x.shape[-2:])
        return np.where(keep(rows, columns, diagonal), x, 0)

    return reference


def pad(x: Any, widths: Any, mode: str = "constant", value: float | None = None) -> Any:
    pairs = [(0, 0)] * (x.ndim - len(widths) // 2) + list(
        zip(widths[::2], widths[1::2], strict=True)
    )[::-1]
    for axis, (a, b) in enumerate(pairs):
        x = np.take(x, range(max(-a, 0), x.shape[axis] - max(-b, 0)), axis=axis)
    grown = [(max(a, 0), max(b, 0)) for a, b in pairs]
    if mode != "constant":
        return np.pad(x, grown, {"circular": "wrap", "replicate": "edge"}.get(mode, mode))
    return np.pad(x, grown, constant_values=value or 0)


def cat(tensors: Any, dim: int = 0) -> Any:
    return np.concatenate([x for x in tensors if x.shape != (0,)], axis=dim)


def selection(indices: Any) -> Any:
    return tuple(slice(None) if i is None else i for i in indices)


def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    out = x.copy()
    places = selection(indices)
    if accumulate:
        np.add.at(out, places, values)
    else:
        out[places] = values
    return out


def index_add(x: Any, dim: int, index: Any, source: Any, alpha: float = 1) -> Any:
    out = x.copy()
    for k, i in enumerate(index):
        np.moveaxis(out, dim, 0)[i] += alpha * np.moveaxis(source, dim, 0)[k]
    return out


def gather(x: Any, dim: int, index: Any) -> Any:
    out = np.empty(index.shape)
    for place in np.ndindex(index.shape):
        source = list(place)
        source[dim] = index[place]
        out[place] = x[tuple(source)]
    return out


def scatter(x: Any, dim: int, index: Any, src: Any, *, add: bool = False) -> Any:
    out = x.copy()
    for place in np.ndindex(index.shape):
        target = list(place)
        target[dim] = index[place]
        out[tuple(target)] = src[place] + (out[tuple(target)] if add else 0)
    return out


def take_along_dim(x: Any, indices: Any, dim: int | None = None) -> Any:
    return x.ravel()[indices] if dim is None else np.take_along_axis(x, indices, axis=dim)


def masked_select(x: Any, mask: Any) -> Any:
    x, mask = np.broadcast_arrays(x, mask)
    return x[mask]


def einsum(operands: Any, equation: str) -> Any:
    return np.einsum(equation, *operands)


def plus_product(x: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Any:
    return beta * x + alpha * (a @ b)


def linear(x: Any, weight: Any, bias: Any = 0) -> Any:
    return np.einsum("...i,oi->...o" if weight.ndim == 2 else "...i,i->...", x, weight) + bias


def softmax(x: Any, dim: int) -> Any:
    return np.exp(x) / np.sum(np.exp(x), axis=dim if x.ndim else None, keepdims=True)


def reduced(loss: Any, reduction: str) -> Any:
    return {"none": np.array, "sum": np.sum, "mean": np.mean}[reduction](loss)


def smooth_l1(x: Any, y: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    d = np.abs(x - y)
    return reduced(np.where(d < beta, d * d / (2 * beta), d - beta / 2), reduction)


def bce(p: Any, y: Any, weight: Any = 1, pos_weight: Any = 1, reduction: str = "mean") -> Any:
    return reduced(-weight * (pos_weight * y * np.log(p) + (1 - y) * np.log(1 - p)), reduction)


def bce_with_logits(x: Any, *rest: Any, **more: Any) -> Any:
    return bce(1 / (1 + np.exp(-x)), *rest, **more)


def nll(
    logs: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    if logs.ndim == 1:
        logs, target = logs[None], target[None]
        squeezed = reduction == "none"
    else:
        squeezed = False
    weight = np.ones(logs.shape[1]) if weight is None else weight
    loss, total = np.zeros(target.shape), 0.0
    classes = logs.shape[1]
    for place in np.ndindex(target.shape):
        if target[place] == ignore_index:
            continue
        row = logs[(place[0], slice(None), *place[1:])]
        soft = np.full(classes, label_smoothing / classes)
        soft[target[place]] += 1 - label_smoothing
        loss[place] = -np.sum(weight * soft * row)
        total += weight[target[place]]
    loss = loss[0] if squeezed else loss
    return loss.sum() / total if reduction == "mean" else reduced(loss, reduction)


def pick(x: Any, target: Any, dim: int, ignore_index: int, _: str) -> Any:
    out = np.zeros(target.shape)
    for place in np.ndindex(target.shape):
        if target[place] != ignore_index:
            out[place] = x[(*place[:dim], target[place], *place[dim:])]
    return out


def place(g: Any, target: Any, dim: int, ignore_index: int, classes: int) -> Any:
    marks = np.eye(classes)[np.where(target == ignore_index, 0, target)]
    return np.moveaxis(marks * np.where(target == ignore_index, 0, g)[..., None], -1, dim)


def cross_entropy(x: Any, target: Any, *rest: Any, **more: Any) -> Any:
    logs = np.log(softmax(x, 0 if x.ndim == 1 else 1))
    if target.dtype.kind == "f":
        return -(logs * target).sum(1).mean()
    return nll(logs, target, *rest, **more)


def layer_norm(x: Any, shape: Any, weight: Any = 1, bias: Any = 0, eps: float = 1e-5) -> Any:
    axis = tuple(range(-len(shape), 0))
    mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


def rms_norm(x: Any, shape: Any, weight: Any = 1, eps: float | None = None) -> Any:
    axis = tuple(range(-len(shape), 0))
    eps = np.finfo(x.dtype).eps if eps is None else eps
    return x / np.sqrt((x**2).mean(axis, keepdims=True) + eps) * weight


def unfold(x: Any, dimension: int, size: int, step: int) -> Any:
    if not x.ndim:
        return np.repeat(x, size)
    starts = range(0, x.shape[dimension] - size + 1, step)
    windows = [np.take(x, list(range(k, k + size)), axis=dimension) for k in starts]
    return np.stack([np.moveaxis(w, dimension, -1) for w in windows], axis=dimension)


def unfold_adjoint(g: Any, shape: Any, dimension: int, size: int, step: int) -> Any:
    if not shape:
        return g.sum()
    out = np.zeros(shape)
    lines, windows = np.moveaxis(out, dimension, -1), np.moveaxis(g, dimension, -2)
    for n, k in np.ndindex(windows.shape[-2:]):
        lines[..., n * step + k] += windows[..., n, k]
    return out


def as_strided(x: Any, size: Any, stride: Any, offset: int = 0, *_: Any) -> Any:
    memory = x.ravel(order="K")
    out = np.empty(size)
    for place in np.ndindex(*size):
        out[place] = memory[offset + sum(i * s for i, s in zip(place, stride, strict=True))]
    return out


STRUCTURAL: dict[str, Callable[..., Any]] = {
    # movement
    "reshape": np.reshape,
    "view": np.reshape,
    "view_as": lambda x, other: np.reshape(x, other.shape),
    "reshape_as": lambda x, other: np.reshape(x, other.shape),
    "flatten": flatten,
    "unflatten": lambda x, dim, sizes: x.reshape((*x.shape[:dim], *sizes)),
    "squeeze": squeeze,
    "unsqueeze": np.expand_dims,
    "permute": np.transpose,
    "transpose": transpose,
    "t": np.transpose,
    "movedim": np.moveaxis,
    "_slice": sliced,
    "_slice_adjoint": slice_adjoint,
    "select": lambda x, dim, index: np.take(x, index, axis=dim),
    "slice": slice_along,
    "narrow": narrow,
    "unbind": lambda x, dim=0: [np.take(x, i, axis=dim) for i in range(x.shape[dim])],
    "split_with_sizes": parts,
    "chunk": chunk,
    "diagonal": diagonal,
    "_diagonal_adjoint": diagonal_adjoint,
    "expand": expand,
    "expand_as": lambda x, other: expand(x, other.shape),
    "broadcast_to": expand,
    "repeat": np.tile,
    "tile": np.tile,
    "flip": np.flip,
    "roll": np.roll,
    "tril": triangle(lambda row, column, k: column - row <= k),
    "triu": triangle(lambda row, column, k: column - row >= k),
    "pad": pad,
    # joining
    "cat": cat,
    "stack": lambda tensors, dim=0: np.stack(tensors, axis=dim),
    "hstack": np.hstack,
    "vstack": np.vstack,
    # indexing
    "where": np.where,
    "masked_fill": lambda x, mask, value: np.where(mask, value, x),
    "_nonzero": lambda x: np.stack(np.nonzero(np.atleast_1d(x)), axis=1)[:, : x.ndim],
    "_index": lambda x, indices: x[selection(indices)],
    "index_put": index_put,
    "_index_adjoint": lambda g, indices, shape: index_put(np.zeros(shape), indices, g, True),
    "index_select": lambda x, dim, index: np.take(x, index, axis=dim),
    "index_add": index_add,
    "gather": gather,
    "scatter": scatter,
    "scatter_add": lambda *args: scatter(*args, add=True),
    "masked_select": masked_select,
    "take": np.take,
    "take_along_dim": take_along_dim,
    # products
    "matmul": np.matmul,
    "mm": np.dot,
    "mv": np.dot,
    "dot": np.vdot,
    "bmm": lambda a, b: np.einsum("bij,bjk->bik", a, b),
    "outer": np.outer,
    "addmm": plus_product,
    "baddbmm": plus_product,
    "addmv": plus_product,
    "linear": linear,
    "_einsum": einsum,
    "trace": np.trace,
    "diag_embed": diag_embed,
    "diag": np.diag,
    # neural networks
    "softmax": softmax,
    "log_softmax": lambda x, dim: np.log(softmax(x, dim)),
    "mse_loss": lambda x, y, reduction="mean": reduced((x - y) ** 2, reduction),
    "l1_loss": lambda x, y, reduction="mean": reduced(np.abs(x - y), reduction),
    "smooth_l1_loss": smooth_l1,
    "_logits_loss": lambda x, y: bce_with_logits(x, y, reduction="none"),
    "binary_cross_entropy_with_logits": bce_with_logits,
    "binary_cross_entropy": bce,
    "_pick_class": pick,
    "_nll_loss": lambda x, target, ignored: nll(x, target, ignore_index=ignored),
    "_place_class": place,
    "nll_loss": nll,
    "cross_entropy": cross_entropy,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "one_hot": lambda x, classes=None: np.eye(classes or x.max() + 1, dtype=np.int64)[x],
    "embedding": lambda index, weight: weight[index],
    "unfold": unfold,
    "_unfold_adjoint": unfold_adjoint,
    "as_strided": as_strided,
    "_as_strided": as_strided,
}
