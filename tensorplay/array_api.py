"""The Python array API standard, version 2024.12, on tensors.

Libraries that follow the standard find this namespace by ``x.__array_namespace__()``. Functions
whose name and arguments are those of `tensorplay` are the same objects.

Source of names and semantics: https://data-apis.org/array-api/2024.12/
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import tensorplay as tp
from tensorplay import _array_api_fft, _device, _dtype, linalg as _linalg
from tensorplay._tensor import Tensor
from tensorplay.ops.arguments import SCALARS
from tensorplay.ops.elementwise import result_type as _result_type

__array_api_version__: Final = "2024.12"

# --- constants and types --------------------------------------------------------------------------

e, pi, inf, nan, newaxis = math.e, math.pi, math.inf, math.nan, None

bool = tp.bool
int8, int16, int32, int64 = tp.int8, tp.int16, tp.int32, tp.int64
uint8, uint16, uint32, uint64 = tp.uint8, tp.uint16, tp.uint32, tp.uint64
float32, float64 = tp.float32, tp.float64
complex64, complex128 = tp.complex64, tp.complex128

_GROUPS: Final = {
    "bool": (bool,),
    "signed integer": (int8, int16, int32, int64),
    "unsigned integer": (uint8, uint16, uint32, uint64),
    "integral": (int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    "real floating": (float32, float64),
    "complex floating": (complex64, complex128),
    "numeric": (
        int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64, complex64,
        complex128,
    ),
}  # fmt: skip

finfo, iinfo = tp.finfo, tp.iinfo


def isdtype(dtype: Any, kind: Any) -> Any:
    """Tell whether `dtype` is, or is of, `kind`: a type, the name of a group, or a tuple of both.

    Raises
    ------
    ValueError
        There is no such group.
    """
    if isinstance(kind, tuple):
        return builtins.any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _GROUPS:
            raise ValueError(f"[isdtype] argument 'kind': expected {list(_GROUPS)}, got {kind!r}.")
        return dtype in _GROUPS[kind]
    return dtype is kind


def can_cast(from_: Any, to: Any) -> Any:
    """Tell whether a type (or the type of an array) promotes to `to`."""
    source = from_.dtype if isinstance(from_, Tensor) else from_
    try:
        return _dtype.promote_types(source, to) is to
    except RuntimeError:  # integers without a common type
        return False


def result_type(*arrays_and_dtypes: Any) -> Any:
    """Return the type that arithmetic on these arrays, types and numbers gives."""
    types = [x for x in arrays_and_dtypes if isinstance(x, _dtype.dtype)]
    arrays = [x.dtype for x in arrays_and_dtypes if isinstance(x, Tensor)]
    numbers = [_dtype.scalar_dtype(x) for x in arrays_and_dtypes if isinstance(x, SCALARS)]
    return _dtype.combine([*types, *arrays], [], numbers)


def astype(x: Tensor, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Tensor:
    """Return `x` with another type.

    Raises
    ------
    TypeError
        `x` is complex and `dtype` is not.
    """
    if x.dtype.is_complex and not dtype.is_complex:
        raise TypeError(
            f"[astype] argument 'dtype': expected a complex type for {x.dtype!r}, got {dtype!r}. "
            "Write real(x)."
        )
    return x.to(dtype=dtype, device=x.device if device is None else device, copy=copy)


# --- creation -------------------------------------------------------------------------------------

asarray, from_dlpack = tp.asarray, tp.from_dlpack
arange = tp.arange


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return an array of `shape` with elements of no particular value."""
    return tp.empty(shape, dtype=dtype, device=device)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return zeros of `shape`."""
    return tp.zeros(shape, dtype=dtype, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return ones of `shape`."""
    return tp.ones(shape, dtype=dtype, device=device)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return an array of `shape` filled with a number."""
    return tp.full(shape, fill_value, dtype=dtype, device=device)


empty_like, zeros_like, ones_like, full_like = (
    tp.empty_like, tp.zeros_like, tp.ones_like, tp.full_like,
)  # fmt: skip


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return a matrix with ones on its `k`-th diagonal."""
    columns = n_rows if n_cols is None else n_cols
    out = tp.zeros(n_rows, columns, dtype=dtype, device=device)
    if -n_rows < k < columns and not out.is_meta:
        out.diagonal(k).fill_(1)
    return out


def linspace(
    start: Any,
    stop: Any,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: Any = True,
) -> Tensor:
    """Return `num` numbers evenly spaced from `start` to `stop`, which `endpoint` includes."""
    if endpoint:
        return tp.linspace(start, stop, num, dtype=dtype, device=device)
    found: Tensor = tp.linspace(start, stop, num + 1, dtype=dtype, device=device)[:-1]
    return found


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of a grid."""
    return list(tp.meshgrid(*arrays, indexing=indexing)) if arrays else []


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return the lower triangles of matrices, up to the `k`-th diagonal."""
    return x.tril(k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return the upper triangles of matrices, from the `k`-th diagonal on."""
    return x.triu(k)


# --- elementwise ----------------------------------------------------------------------------------

acos, acosh, asin, asinh, atan, atanh = tp.acos, tp.acosh, tp.asin, tp.asinh, tp.atan, tp.atanh
cos, cosh, sin, sinh, tan, tanh = tp.cos, tp.cosh, tp.sin, tp.sinh, tp.tan, tp.tanh
abs, add, atan2, copysign, hypot = tp.abs, tp.add, tp.atan2, tp.copysign, tp.hypot
bitwise_and, bitwise_or, bitwise_xor = tp.bitwise_and, tp.bitwise_or, tp.bitwise_xor
bitwise_invert = tp.bitwise_not
bitwise_left_shift, bitwise_right_shift = tp.bitwise_left_shift, tp.bitwise_right_shift
ceil, floor, trunc, round = tp.ceil, tp.floor, tp.trunc, tp.round
conj, imag, real = tp.conj, tp.imag, tp.real
divide, floor_divide, multiply, subtract = tp.div, tp.floor_divide, tp.mul, tp.sub
equal, not_equal, less, less_equal, greater, greater_equal = (
    tp.eq,
    tp.ne,
    tp.lt,
    tp.le,
    tp.gt,
    tp.ge,
)
exp, expm1, log, log1p, log2, log10 = tp.exp, tp.expm1, tp.log, tp.log1p, tp.log2, tp.log10
isfinite, isinf, isnan, signbit = tp.isfinite, tp.isinf, tp.isnan, tp.signbit
logaddexp, maximum, minimum, pow = tp.logaddexp, tp.maximum, tp.minimum, tp.pow
logical_and, logical_not = tp.logical_and, tp.logical_not
logical_or, logical_xor = tp.logical_or, tp.logical_xor
negative, reciprocal, remainder, sign = tp.neg, tp.reciprocal, tp.remainder, tp.sgn
nextafter = tp.nextafter
sqrt, square = tp.sqrt, tp.square


def positive(x: Tensor, /) -> Tensor:
    """Return a copy of numbers."""
    return x.clone()


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """Return `x` limited to the interval from `min` to `max`, in the type of `x`."""
    if min is None and max is None:
        return x.clone()
    return x.clamp(min, max).to(x.dtype)


# --- shapes ---------------------------------------------------------------------------------------


def _axes(axis: Any, ndim: int) -> Any:
    return tuple(range(ndim)) if axis is None else axis


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return the arrays in the shape that they broadcast to."""
    return list(tp.broadcast_tensors(*arrays))


broadcast_to = tp.broadcast_to


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Return the arrays joined along `axis`; flattened ones if it is None."""
    d = result_type(*arrays)
    same = [x.to(d) for x in arrays]
    return tp.cat(
        [x.flatten() for x in same] if axis is None else same, 0 if axis is None else axis
    )


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Return the arrays joined along a new axis."""
    d = result_type(*arrays)
    return tp.stack([x.to(d) for x in arrays], axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the parts along `axis`."""
    return tuple(x.unbind(axis))


def expand_dims(x: Tensor, /, *, axis: int = 0) -> Tensor:
    """Return `x` with a new axis of size 1."""
    return x.unsqueeze(axis)


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """Return `x` without axes of size 1.

    Raises
    ------
    ValueError
        An axis has another size.
    """
    for a in (axis,) if isinstance(axis, int) else axis:
        if x.size(a) != 1:
            raise ValueError(f"[squeeze] argument 'axis': axis {a} has size {x.size(a)}, not 1.")
    return x.squeeze(axis)


def flip(x: Tensor, /, *, axis: Any = None) -> Tensor:
    """Return `x` with elements in reverse order along `axis`, or all axes."""
    return tp.flip(x, _axes(axis, x.ndim))


def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Return `x` with elements moved on by `shift` along `axis`."""
    if isinstance(axis, tuple) and isinstance(shift, int):
        shift = (shift,) * len(axis)
    return tp.roll(x, shift, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: Any = None) -> Tensor:
    """Return the elements in another shape.

    Raises
    ------
    ValueError
        ``copy=False`` and a copy is needed.
    """
    if copy is False:
        try:
            return x.view(shape)
        except RuntimeError as error:
            raise ValueError(f"[reshape] argument 'copy': a copy is needed: {error}") from error
    out = x.reshape(shape)
    return out.clone() if copy else out


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """Return copies of `x` side by side."""
    return x.tile(repetitions)


def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Return each element repeated."""
    found: Tensor = tp.repeat_interleave(x, repeats, axis)
    return found


moveaxis, permute_dims = tp.movedim, tp.permute

# --- choice and order -----------------------------------------------------------------------------


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Return the elements at `indices`, a vector, along `axis`."""
    return tp.index_select(x, 0 if axis is None else axis, indices)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return for each index the element at its place along `axis`; other sizes broadcast."""
    dim = axis % x.ndim
    shape = tp.broadcast_tensors(x.narrow(dim, 0, 1), indices.narrow(dim, 0, 1))[0].shape
    wide = [x.expand(*shape[:dim], x.shape[dim], *shape[dim + 1 :]),
            indices.expand(*shape[:dim], indices.shape[dim], *shape[dim + 1 :])]  # fmt: skip
    return tp.gather(wide[0], dim, wide[1])


where = tp.where


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Return the indices of the elements that are not zero, one vector per axis.

    Raises
    ------
    ValueError
        `x` has no axes.
    """
    if not x.ndim:
        raise ValueError("[nonzero] argument 'x': expected at least one axis, got a 0-d array.")
    found: tuple[Tensor, ...] = tp.nonzero(x, as_tuple=True)
    return found


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: Any = False) -> Tensor:
    """Return where the largest element is."""
    return tp.argmax(x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: Any = False) -> Tensor:
    """Return where the smallest element is."""
    return tp.argmin(x, axis, keepdims)


def argsort(x: Tensor, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """Return the indices that sort `x`."""
    return tp.argsort(x, axis, descending, stable=stable)


def sort(x: Tensor, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """Return the elements in order."""
    return tp.sort(x, axis, descending, stable=stable)[0]


def searchsorted(x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Any = None) -> Tensor:
    """Return where the elements of `x2` would stand in sorted `x1`."""
    return tp.searchsorted(x1, x2, side=side, sorter=sorter)


class UniqueAll(NamedTuple):
    """Different elements, where they are first, which each element is, and how often."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Different elements, and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Different elements, and which of them each element is."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """Return all that there is to know about the different elements."""
    from tensorplay.ops.sorting import unique_values as found_in

    values, inverse, counts, first = found_in.apply((x, None))
    return UniqueAll(values, first, inverse, counts)


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Return the different elements, and how often each occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Return the different elements, and which of them each element is."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Return the different elements."""
    return unique_all(x).values


# --- reductions -----------------------------------------------------------------------------------


def all(x: Tensor, /, *, axis: Any = None, keepdims: Any = False) -> Tensor:
    """Return whether all elements are true."""
    return x.clone().bool() if axis == () else tp.all(x, axis, keepdims)


def any(x: Tensor, /, *, axis: Any = None, keepdims: Any = False) -> Tensor:
    """Return whether some element is true."""
    return x.clone().bool() if axis == () else tp.any(x, axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Any = None, keepdims: Any = False) -> Tensor:
    """Return the number of elements that are not zero."""
    return tp.count_nonzero(x, axis, keepdims)


def max(x: Tensor, /, *, axis: Any = None, keepdims: Any = False) -> Tensor:
    """Return the largest element."""
    return tp.amax(x, axis, keepdims)


def min(x: Tensor, /, *, axis: Any = None, keepdims: Any = False) -> Tensor:
    """Return the smallest element."""
    return tp.amin(x, axis, keepdims)


def mean(x: Tensor, /, *, axis: Any = None, keepdims: Any = False) -> Tensor:
    """Return the mean."""
    return tp.mean(x, axis, keepdims)


def prod(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: Any = False) -> Tensor:
    """Return the product."""
    return tp.prod(x, axis, keepdims, dtype=dtype)


def sum(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: Any = False) -> Tensor:
    """Return the sum."""
    return tp.sum(x, axis, keepdims, dtype=dtype)


def std(
    x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: Any = False
) -> Tensor:
    """Return the standard deviation."""
    return tp.std(x, axis, correction=correction, keepdim=keepdims)


def var(
    x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: Any = False
) -> Tensor:
    """Return the variance."""
    return tp.var(x, axis, correction=correction, keepdim=keepdims)


def _cumulative(run: Any, first: int, x: Tensor, axis: int | None, dtype: Any, initial: Any) -> Any:
    if axis is None:
        if x.ndim != 1:
            raise ValueError("[cumulative] argument 'axis': needed for more than one axis.")
        axis = 0
    out = run(x, axis, dtype=dtype)
    if initial:
        shape = list(out.shape)
        shape[axis] = 1
        out = tp.cat([out.new_full(shape, first, dtype=out.dtype), out], axis)
    return out


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: Any = False
) -> Tensor:
    """Return the running sums, behind a zero if asked to."""
    found: Tensor = _cumulative(tp.cumsum, 0, x, axis, dtype, include_initial)
    return found


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: Any = False
) -> Tensor:
    """Return the running products, behind a one if asked to."""
    found: Tensor = _cumulative(tp.cumprod, 1, x, axis, dtype, include_initial)
    return found


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None
) -> Tensor:
    """Return the differences of neighbours, taken `n` times."""
    parts = [part for part in (prepend, x, append) if part is not None]
    out = tp.cat(parts, axis) if len(parts) > 1 else x
    for _ in range(n):
        size = out.size(axis)
        if not size:
            break
        high, low = out.narrow(axis, 1, size - 1), out.narrow(axis, 0, size - 1)
        out = high.logical_xor(low) if out.dtype is bool else high - low
    return out if out is not x else x.clone()


# --- products of matrices, and the extensions -----------------------------------------------------


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return the product of matrices, in their common type."""
    d = _result_type(x1, x2)
    return tp.matmul(x1.to(d), x2.to(d))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Return the transpose of each matrix."""
    found: Tensor = x.mT
    return found


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """Return the sum of products over `axes`."""
    found: Tensor = tp.tensordot(x1, x2, axes)
    return found


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the sums of ``conj(x1) * x2`` along `axis`."""
    return _linalg.vecdot(x1, x2, dim=axis)


fft = _array_api_fft


class linalg:  # noqa: N801 - a namespace, spelled as the standard spells it
    """Linear algebra."""

    cholesky = staticmethod(_linalg.cholesky)
    det, inv, pinv, slogdet = (
        staticmethod(f) for f in (_linalg.det, _linalg.inv, _linalg.pinv, _linalg.slogdet)
    )
    eigh, eigvalsh = staticmethod(_linalg.eigh), staticmethod(_linalg.eigvalsh)
    qr, solve, svd, svdvals = (
        staticmethod(f) for f in (_linalg.qr, _linalg.solve, _linalg.svd, _linalg.svdvals)
    )
    matrix_power = staticmethod(_linalg.matrix_power)
    matmul, matrix_transpose = staticmethod(matmul), staticmethod(matrix_transpose)
    tensordot, vecdot, outer = staticmethod(tensordot), staticmethod(vecdot), staticmethod(tp.outer)

    @staticmethod
    def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
        """Return the vector products along `axis`."""
        return _linalg.cross(x1, x2, dim=axis)

    @staticmethod
    def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
        """Return the diagonal of each matrix."""
        return _linalg.diagonal(x, offset=offset)

    @staticmethod
    def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
        """Return the sum of the diagonal of each matrix."""
        return _linalg.diagonal(x, offset=offset).sum(-1, dtype=dtype)

    @staticmethod
    def matrix_norm(x: Tensor, /, *, keepdims: Any = False, ord: Any = "fro") -> Tensor:
        """Return a norm of each matrix."""
        return _linalg.matrix_norm(x, "fro" if ord is None else ord, keepdim=keepdims)

    @staticmethod
    def matrix_rank(x: Tensor, /, *, rtol: Any = None) -> Tensor:
        """Return the rank of each matrix."""
        return _linalg.matrix_rank(x, rtol=rtol)

    @staticmethod
    def vector_norm(
        x: Tensor, /, *, axis: Any = None, keepdims: Any = False, ord: Any = 2
    ) -> Tensor:
        """Return a norm over `axis`."""
        return _linalg.vector_norm(x, ord, axis, keepdims)


# --- inspection -----------------------------------------------------------------------------------


class _Info:
    """What the namespace can do."""

    def capabilities(self) -> dict[str, Any]:
        """Return whether results may have shapes that depend on values, and the most axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Any:
        """Return where arrays are made."""
        return _device.get_default_device()

    def devices(self) -> list[Any]:
        """Return where arrays can be made."""
        return [_device.CPU, _device.META]

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """Return the types of arrays made without one."""
        real_ = _dtype.get_default_dtype()
        return {
            "real floating": real_, "complex floating": real_.to_complex(),
            "integral": int64, "indexing": int64,
        }  # fmt: skip

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """Return the types of `kind`, or all, by name."""
        everything = (*_GROUPS["bool"], *_GROUPS["numeric"])
        return {d.name: d for d in everything if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> _Info:  # noqa: N807 - the standard's name
    """Return what the namespace can do."""
    return _Info()
