"""NumPy's functions that operators answer, with NumPy's names of arguments.

A function here takes only the arguments that our operators know; calls with others are left to
NumPy itself.
"""

from __future__ import annotations

import operator
import string
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from tensorplay import _dtype, linalg
from tensorplay._creation import as_tensor, full_like, ones_like, zeros_like
from tensorplay._dtype import promote_types
from tensorplay._tensor import Tensor
from tensorplay.ops import OPERATORS
from tensorplay.ops.indexing import repeat_interleave
from tensorplay.ops.linalg import einsum, tensordot

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FUNCTIONS", "INFORMATION", "REAL_ONLY", "WRITERS", "reduced"]


def _tensor(x: Any) -> Tensor:
    # Lists have the types that NumPy gives them.
    return x if isinstance(x, Tensor) else as_tensor(np.asarray(x))


def _call(name: str, *args: Any, **kwargs: Any) -> Any:
    return OPERATORS[name].function(*args, **kwargs)


def _flat(x: Any, axis: Any) -> tuple[Tensor, int]:
    """Return what NumPy reduces: the tensor, or all elements as a vector if `axis` is None."""
    x = _tensor(x)
    return (x.reshape(-1), 0) if axis is None else (x, axis)


def _floating(x: Any) -> Tensor:
    """Return the tensor in the type in which NumPy computes means and decompositions."""
    x = _tensor(x)
    found: Tensor = x if x.dtype.is_differentiable else x.double()
    return found


def reduced(name: str, a: Any, axis: Any, *, keepdims: bool = False, **options: Any) -> Any:
    """Reduce along `axis`: None stands for all dimensions, and an empty tuple for none."""
    a = _tensor(a)
    if axis == ():
        a, axis, keepdims = a.unsqueeze(-1), -1, False
    if name == "prod" and isinstance(axis, tuple):
        for n in sorted(normalize_axis_tuple(axis, a.ndim), reverse=True):
            a = _call(name, a, n, keepdim=keepdims, **options)
        return a
    if axis is None and name == "prod":
        result = _call(name, a, **options)
        return result.reshape((1,) * a.ndim) if keepdims else result
    if name in {"amax", "amin"}:
        axis = _all_axes(a, axis)
    return _call(name, a, axis, keepdim=keepdims, **options)


def _all_axes(x: Tensor, axis: Any) -> Any:
    return tuple(range(x.ndim)) if axis is None else axis


# --- reductions -----------------------------------------------------------------------------------


def _reduction(name: str) -> Callable[..., Any]:
    def function(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        return reduced(name, a, axis, keepdims=keepdims)

    return function


def _mean(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return reduced("mean", _floating(a), axis, keepdims=keepdims)


def _spread(name: str) -> Callable[..., Any]:
    def function(
        a: Any, axis: Any = None, *, ddof: float = 0, correction: float = 0, keepdims: bool = False
    ) -> Any:
        correction = ddof or correction
        return reduced(name, _floating(a), axis, keepdims=keepdims, correction=correction)

    return function


def _position(name: str) -> Callable[..., Any]:
    def function(a: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
        return _call(name, _tensor(a), axis, keepdims)

    return function


def _scan(name: str) -> Callable[..., Any]:
    def function(a: Any, axis: int | None = None) -> Any:
        a, axis = _flat(a, axis)
        return _call(name, a if a.ndim else a.reshape(1), axis)

    return function


# --- shapes ---------------------------------------------------------------------------------------


def _tensors(arrays: Any) -> list[Tensor]:
    return [_tensor(a) for a in arrays]


def _concatenate(arrays: Any, axis: int | None = 0) -> Any:
    tensors = _tensors(arrays)
    if axis is None:
        tensors, axis = [t.reshape(-1) for t in tensors], 0
    if any(t.ndim == 0 for t in tensors):
        raise ValueError(
            "[concatenate] tensors without dimensions cannot be concatenated. Write np.stack(x)."
        )
    return _call("cat", tensors, axis)


def _stack(arrays: Any, axis: int = 0) -> Any:
    return _call("stack", _tensors(arrays), axis)


def _vstack(tup: Any) -> Any:
    return _call("vstack", _tensors(tup))


def _hstack(tup: Any) -> Any:
    return _call("hstack", _tensors(tup))


def _reshape(a: Any, shape: Any) -> Any:
    sizes = (shape,) if isinstance(shape, int) else tuple(map(operator.index, shape))
    return _tensor(a).reshape(sizes)


def _transpose(a: Any, axes: Any = None) -> Any:
    a = _tensor(a)
    return a.permute(tuple(range(a.ndim))[::-1] if axes is None else tuple(axes))


def _swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    return _tensor(a).transpose(axis1, axis2)


def _moveaxis(a: Any, source: Any, destination: Any) -> Any:
    return _tensor(a).movedim(source, destination)


def _squeeze(a: Any, axis: Any = None) -> Any:
    a = _tensor(a)
    if axis is None:
        return a.squeeze()
    for n in (axis,) if isinstance(axis, int) else axis:
        if a.shape[n] != 1:
            raise ValueError(f"[squeeze] argument 'axis': dimension {n} has size {a.shape[n]}.")
    return a.squeeze(axis)


def _expand_dims(a: Any, axis: Any) -> Any:
    a = _tensor(a)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    for n in sorted(normalize_axis_tuple(axes, a.ndim + len(axes))):
        a = a.unsqueeze(n)
    return a


def _broadcast_to(array: Any, shape: Any) -> Any:
    return _tensor(array).broadcast_to((shape,) if isinstance(shape, int) else tuple(shape))


def _ravel(a: Any) -> Any:
    return _tensor(a).reshape(-1)


def _flip(m: Any, axis: Any = None) -> Any:
    m = _tensor(m)
    return m.flip(_all_axes(m, axis))


def _roll(a: Any, shift: Any, axis: Any = None) -> Any:
    a = _tensor(a)
    if axis is None:
        return _call("roll", a, int(np.sum(shift)))
    shifts, axes = np.broadcast_arrays(shift, axis)
    if not axes.size:
        return a.clone()
    return _call("roll", a, tuple(shifts.ravel().tolist()), tuple(axes.ravel().tolist()))


def _tile(A: Any, reps: Any) -> Any:
    return _tensor(A).tile((reps,) if isinstance(reps, int) else tuple(reps))


def _repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    a = _tensor(a)
    return repeat_interleave(a, repeats if isinstance(repeats, int) else _tensor(repeats), axis)


def _diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return _tensor(a).diagonal(offset, axis1, axis2)


def _triangle(name: str) -> Callable[..., Any]:
    def function(m: Any, k: int = 0) -> Any:
        m = _tensor(m)
        return _call(name, m.broadcast_to((len(m), len(m))) if m.ndim == 1 else m, k)

    return function


# --- values ---------------------------------------------------------------------------------------


def _where(condition: Any, x: Any, y: Any) -> Any:
    condition = _tensor(condition)
    condition = condition if condition.dtype.name == "bool" else condition != 0
    numbers = (Tensor, bool, int, float, complex)
    return _call("where", condition, *[v if isinstance(v, numbers) else _tensor(v) for v in (x, y)])


def _clip(a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    if a_min is None and a_max is None:
        return _tensor(a).clone()
    return _call("clamp", _tensor(a), a_min, a_max)


def _sort(a: Any, axis: int | None = -1, *, stable: bool = False) -> Any:
    return _call("sort", *_flat(a, axis), stable=stable)[0]


def _argsort(a: Any, axis: int | None = -1, *, stable: bool = False) -> Any:
    return _call("argsort", *_flat(a, axis), stable=stable)


def _take(a: Any, indices: Any, axis: int | None = None) -> Any:
    a, axis = _flat(a, axis)
    indices = _tensor(indices)
    if indices.numel() and indices.dtype.is_differentiable:
        raise TypeError(
            f"[take] argument 'indices': expected integers, got {indices.dtype!r}. Write x.long()."
        )
    indices = indices.long()
    indices = indices.where(indices >= 0, indices + a.size(axis))
    taken = a.index_select(axis, indices.reshape(-1))
    axis %= a.ndim
    return taken.reshape((*a.shape[:axis], *indices.shape, *a.shape[axis + 1 :]))


def _nan_to_num(x: Any, *, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    return _call("nan_to_num", _tensor(x), nan, posinf, neginf)


def _copy(a: Any) -> Any:
    return _tensor(a).clone()


def _real(val: Any) -> Any:
    return _tensor(val).real


def _imag(val: Any) -> Any:
    val = _tensor(val)
    return val.imag if val.dtype.is_complex else zeros_like(val)


def _round(a: Any, decimals: int = 0) -> Any:
    return _call("round", _tensor(a), decimals=decimals)


# --- products -------------------------------------------------------------------------------------


def _dot(a: Any, b: Any) -> Any:
    a, b = _tensor(a), _tensor(b)
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    return tensordot(a, b, ([a.ndim - 1], [max(b.ndim - 2, 0)]))


def _outer(a: Any, b: Any) -> Any:
    return _call("outer", _tensor(a).reshape(-1), _tensor(b).reshape(-1))


def _tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    if not isinstance(axes, int):
        axes = [[n] if isinstance(n, int) else list(n) for n in axes]
    return tensordot(_tensor(a), _tensor(b), axes)


def _einsum(subscripts: Any, /, *operands: Any) -> Any:
    if not isinstance(subscripts, str):
        return _einsum_of_pairs((subscripts, *operands))
    return einsum(subscripts, *map(_tensor, operands))


def _einsum_of_pairs(given: tuple[Any, ...]) -> Any:
    """Take operands that are followed by the numbers of their dimensions, and those of the result.

    They are letters of an equation: in order of the alphabet, which a result without numbers takes.
    """
    letters = string.ascii_uppercase + string.ascii_lowercase

    def term(numbers: Any) -> str:
        return "".join("..." if n is Ellipsis else letters[operator.index(n)] for n in numbers)

    count = len(given) // 2
    equation = ",".join(term(numbers) for numbers in given[1 : 2 * count : 2])
    if len(given) % 2:
        equation += "->" + term(given[-1])
    return einsum(equation, *map(_tensor, given[: 2 * count : 2]))


def _of_matrix(function: Callable[..., Any]) -> Callable[..., Any]:
    def applied(a: Any) -> Any:
        return function(_floating(a))

    return applied


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    x = _floating(x)
    if ord is None and axis is None:
        norm = linalg.vector_norm(x)
        return norm.reshape((1,) * x.ndim) if keepdims else norm
    return linalg.norm(x, ord, axis, keepdims)


def _solve(a: Any, b: Any) -> Any:
    a, b = _floating(a), _floating(b)
    d = promote_types(a.dtype, b.dtype)
    a, b = a.to(d), b.to(d)
    if b.ndim == 1:
        return linalg.solve(a, b.unsqueeze(-1).broadcast_to((*a.shape[:-1], 1))).squeeze(-1)
    # Else it is matrices, also where the operator would take it for as many vectors.
    return linalg.solve(a, b.broadcast_to((*a.shape[:-2], *b.shape)) if b.ndim < a.ndim else b)


def _trace(a: Any) -> Any:
    return _tensor(a).diagonal(0, 0, 1).sum(-1)


# --- comparison and likes -------------------------------------------------------------------------


def _close(name: str) -> Callable[..., Any]:
    def function(
        a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Any:
        return _call(name, _tensor(a), _tensor(b), rtol, atol, equal_nan)

    return function


def _type_of_elements(dtype: Any) -> Any:
    """Return what NumPy's `dtype=` names: types of ours, and all that NumPy takes."""
    if dtype is None or isinstance(dtype, _dtype.dtype):
        return dtype
    return _dtype.from_numpy_dtype(np.dtype(dtype))


def _like(make: Callable[..., Any]) -> Callable[..., Any]:
    def function(a: Any, dtype: Any = None) -> Any:
        return make(_tensor(a), dtype=_type_of_elements(dtype))

    return function


def _full_like(a: Any, fill_value: Any, dtype: Any = None) -> Any:
    return full_like(_tensor(a), fill_value, dtype=_type_of_elements(dtype))


FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {
    np.sum: _reduction("sum"), np.mean: _mean, np.std: _spread("std"), np.var: _spread("var"),
    np.prod: _reduction("prod"), np.max: _reduction("amax"), np.amax: _reduction("amax"),
    np.min: _reduction("amin"), np.amin: _reduction("amin"), np.argmax: _position("argmax"),
    np.argmin: _position("argmin"), np.any: _reduction("any"), np.all: _reduction("all"),
    np.cumsum: _scan("cumsum"), np.cumprod: _scan("cumprod"),
    np.count_nonzero: _reduction("count_nonzero"),
    np.concatenate: _concatenate, np.stack: _stack, np.vstack: _vstack, np.hstack: _hstack,
    np.reshape: _reshape, np.transpose: _transpose, np.swapaxes: _swapaxes,
    np.moveaxis: _moveaxis, np.squeeze: _squeeze, np.expand_dims: _expand_dims,
    np.broadcast_to: _broadcast_to, np.ravel: _ravel, np.flip: _flip, np.roll: _roll,
    np.tile: _tile, np.repeat: _repeat, np.diagonal: _diagonal, np.tril: _triangle("tril"),
    np.triu: _triangle("triu"), np.where: _where, np.clip: _clip, np.sort: _sort,
    np.argsort: _argsort, np.take: _take, np.nan_to_num: _nan_to_num, np.copy: _copy,
    np.real: _real, np.imag: _imag, np.round: _round, np.around: _round, np.dot: _dot,
    np.outer: _outer, np.tensordot: _tensordot, np.einsum: _einsum, np.trace: _trace,
    np.linalg.inv: _of_matrix(linalg.inv), np.linalg.det: _of_matrix(linalg.det),
    np.linalg.cholesky: _of_matrix(linalg.cholesky), np.linalg.solve: _solve,
    np.linalg.norm: _norm, np.isclose: _close("isclose"), np.allclose: _close("allclose"),
    np.zeros_like: _like(zeros_like), np.ones_like: _like(ones_like), np.full_like: _full_like,
}  # fmt: skip

# Of these functions, the operators know no complex numbers, which NumPy orders by the real part.
REAL_ONLY: Final = frozenset({
    np.max, np.amax, np.min, np.amin, np.argmax, np.argmin, np.sort, np.argsort, np.round,
    np.around, np.clip, np.nan_to_num,
})  # fmt: skip

# Functions that ask about shapes and types, or show elements, whatever requires grad.
INFORMATION: Final = frozenset({
    np.shape, np.ndim, np.size, np.result_type, np.can_cast, np.min_scalar_type, np.common_type,
    np.iscomplexobj, np.isrealobj, np.array_repr, np.array_str, np.array2string, np.array_equal,
    np.array_equiv, np.shares_memory, np.may_share_memory,
})  # fmt: skip

# Functions that write to their first argument.
WRITERS: Final = frozenset({
    np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis,
})  # fmt: skip
