"""Element types, their promotion, and what can be asked of them.

Promotion has three categories with priorities: tensors with dimensions, then 0-d tensors, then
Python scalars. A lower category changes the result only when its *kind* (bool, integer, floating,
complex) is higher; within a category the usual lattice applies. NumPy's own promotion differs
(int64 + float32 is float64 there, float32 here), so it is never consulted.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DTYPES",
    "can_cast",
    "dtype",
    "finfo",
    "from_numpy_dtype",
    "get_default_dtype",
    "iinfo",
    "promote_types",
    "scalar_dtype",
    "set_default_dtype",
]

BOOL, INTEGER, FLOATING, COMPLEX = range(4)


class dtype:  # noqa: N801 - the field's spelling
    """An element type. The instances are module attributes; none is made by users."""

    __slots__ = ("category", "is_signed", "itemsize", "name", "numpy")

    name: str
    numpy: np.dtype[Any]
    category: int
    itemsize: int
    is_signed: bool

    def __init__(self, name: str, numpy_type: Any, category: int, *, signed: bool = True) -> None:
        self.name = name
        self.numpy = np.dtype(numpy_type)
        self.category = category
        self.itemsize = self.numpy.itemsize
        self.is_signed = signed

    @property
    def is_floating_point(self) -> bool:
        """True for real floating types."""
        return self.category == FLOATING

    @property
    def is_complex(self) -> bool:
        """True for complex types."""
        return self.category == COMPLEX

    @property
    def is_differentiable(self) -> bool:
        """True for the types that may carry a gradient."""
        return self.category >= FLOATING

    def to_real(self) -> dtype:
        """Return the type of one component: float32 for complex64, itself for a real type."""
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    def to_complex(self) -> dtype:
        """Return the complex type whose components are at least as precise."""
        if self.category == COMPLEX:
            return self
        return complex128 if self.name == "float64" else complex64

    def __repr__(self) -> str:
        return f"tensorplay.{self.name}"

    def __reduce__(self) -> str | tuple[Any, ...]:
        return (_by_name, (self.name,))


_Dtype = dtype  # for classes with an attribute of that name

bool_: Final = dtype("bool", np.bool_, BOOL, signed=False)
uint8: Final = dtype("uint8", np.uint8, INTEGER, signed=False)
uint16: Final = dtype("uint16", np.uint16, INTEGER, signed=False)
uint32: Final = dtype("uint32", np.uint32, INTEGER, signed=False)
uint64: Final = dtype("uint64", np.uint64, INTEGER, signed=False)
int8: Final = dtype("int8", np.int8, INTEGER)
int16: Final = dtype("int16", np.int16, INTEGER)
int32: Final = dtype("int32", np.int32, INTEGER)
int64: Final = dtype("int64", np.int64, INTEGER)
float16: Final = dtype("float16", np.float16, FLOATING)
# One byte: e and m give the bits of exponent and mantissa, f has no infinity, uz no negative zero.
float8_e4m3fn: Final = dtype("float8_e4m3fn", ml_dtypes.float8_e4m3fn, FLOATING)
float8_e4m3fnuz: Final = dtype("float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz, FLOATING)
float8_e5m2: Final = dtype("float8_e5m2", ml_dtypes.float8_e5m2, FLOATING)
float8_e5m2fnuz: Final = dtype("float8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz, FLOATING)
bfloat16: Final = dtype("bfloat16", ml_dtypes.bfloat16, FLOATING)
float32: Final = dtype("float32", np.float32, FLOATING)
float64: Final = dtype("float64", np.float64, FLOATING)
complex64: Final = dtype("complex64", np.complex64, COMPLEX)
complex128: Final = dtype("complex128", np.complex128, COMPLEX)

DTYPES: Final = (
    bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64,
    float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz,
    float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip
# NumPy's types that are too short to add up or multiply in: that is done in float32.
NARROW: Final = frozenset(d.numpy for d in DTYPES if d.category == FLOATING and d.itemsize < 4)
_FROM_NUMPY: Final = {d.numpy: d for d in DTYPES}
_FROM_NAME: Final = {d.name: d for d in DTYPES}
# Unsigned types wider than a byte have no common integer type with the others.
_LONELY: Final = {uint16, uint32, uint64}
# Types of one byte are for storage: which wider type to compute in is for the caller to say.
_STORED: Final = {float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz}

_default = float32


def _by_name(name: str) -> dtype:
    return _FROM_NAME[name]


def named(name: str) -> dtype | None:
    """Return the type called `name` in schemas (``float32``, ``bool``), None if there is none."""
    return _FROM_NAME.get(name)


def from_numpy_dtype(numpy_type: Any, name: str = "x") -> dtype:
    """Return the type of NumPy's `numpy_type`; errors call the array `name`.

    Raises
    ------
    TypeError
        The type has no counterpart (object, str, datetime, …).
    """
    found = _FROM_NUMPY.get(numpy_type)
    if found is None:
        normal = np.dtype(numpy_type)
        found = _FROM_NUMPY.get(normal.newbyteorder("="))
        if found is None or not normal.isnative:
            names = ", ".join(_FROM_NAME)
            message = f"expected an element type out of {names}, got NumPy's {normal}."
            if found is not None:
                order = "Its byte order is not this machine's"
                message += f" {order}: write {name}.astype('{found.name}')."
            elif normal.kind in "fc":
                held = "float64" if normal.kind == "f" else "complex128"
                message += f" Write {name}.astype('{held}')."
            elif normal.kind in "USO":
                message += f" Write {name}.astype('float64') if it holds numbers."
            raise TypeError(message)
    return found


def as_dtype(value: Any, operator: str, argument: str = "dtype") -> dtype:
    """Return `value` as a type; NumPy's types and Python's bool, int, float, complex are taken."""
    if isinstance(value, dtype):
        return value
    if value is float:
        return _default
    if value is complex:
        return _default.to_complex()
    plain = value is bool or value is int or isinstance(value, np.dtype)
    if plain or (isinstance(value, type) and issubclass(value, np.generic)):
        try:
            return from_numpy_dtype(np.dtype(value))
        except TypeError as error:
            raise TypeError(f"[{operator}] argument '{argument}': {error}") from error
    message = (
        f"[{operator}] argument '{argument}': expected a dtype such as tensorplay.float32, "
        f"got {type(value).__name__}."
    )
    raise TypeError(message)


def set_default_dtype(d: Any) -> None:
    """Set the type that Python floats get.

    Parameters
    ----------
    d
        A floating type.

    Raises
    ------
    TypeError
        `d` is not a floating type.
    """
    global _default  # noqa: PLW0603 - one process-wide setting, as in the field
    if not isinstance(d, dtype) or not d.is_floating_point:
        message = f"[set_default_dtype] only floating-point types can be the default, got {d!r}."
        raise TypeError(message)
    _default = d


def get_default_dtype() -> dtype:
    """Return the type that Python floats get.

    Returns
    -------
    dtype
        float32 unless another one was set.
    """
    return _default


def scalar_dtype(value: Any) -> dtype:
    """Return the type that the Python (or NumPy) scalar `value` stands for."""
    if isinstance(value, (bool, np.bool_)):
        return bool_
    if isinstance(value, (int, np.integer)):
        return int64
    if isinstance(value, (float, np.floating)):
        return _default
    return _default.to_complex()


@functools.cache
def promote_types(a: dtype, b: dtype) -> dtype:
    """Return the smallest type of the lattice that holds both `a` and `b`.

    Parameters
    ----------
    a
        A type.
    b
        Another type.

    Returns
    -------
    dtype
        `a`, `b` or a wider type.

    Raises
    ------
    RuntimeError
        One is uint16, uint32 or uint64 and the other a different integer type; or one is a
        floating type of one byte and the other a different floating type.
    """
    if a is b:
        return a
    low, high = sorted((a, b), key=lambda d: d.category)
    if high.category == COMPLEX:
        return complex128 if {"float64", "complex128"} & {low.name, high.name} else complex64
    if low.category < high.category:
        return high
    if (
        (a in _LONELY or b in _LONELY)
        if high.category == INTEGER
        else (a in _STORED or b in _STORED)
    ):
        message = f"promotion of {a!r} with {b!r} is not supported. Convert one of them first."
        raise RuntimeError(message)
    if high.category == FLOATING:  # float16 and bfloat16 hold each other's range or precision not
        return float32 if low.itemsize == high.itemsize else max(a, b, key=lambda d: d.itemsize)
    if a.is_signed == b.is_signed:
        return max(a, b, key=lambda d: d.itemsize)
    signed = a if a.is_signed else b
    return int16 if signed is int8 else signed


@functools.cache
def _merge(high: dtype | None, low: dtype | None) -> dtype | None:
    """Combine the results of two categories, `high` having priority."""
    if high is None or low is None:
        return high or low
    if high.category == COMPLEX:
        return high
    if high.category == FLOATING:
        return high.to_complex() if low.category == COMPLEX else high
    return promote_types(high, low) if low.category >= FLOATING or high.category == BOOL else high


def combine(
    dimensioned: Iterable[dtype], zero_dim: Iterable[dtype], scalars: Iterable[dtype]
) -> dtype:
    """Return the result type of operands sorted into the three categories."""
    parts: list[dtype | None] = []
    for group in (dimensioned, zero_dim, scalars):
        part: dtype | None = None
        for d in group:
            part = d if part is None else promote_types(part, d)
        parts.append(part)
    result = _merge(_merge(parts[0], parts[1]), parts[2])
    if result is None:
        message = "[result_type] expected at least one operand, got none."
        raise ValueError(message)
    return result


def can_cast(from_: dtype, to: dtype) -> bool:
    """Tell whether an in-place result of type `from_` may be written into a tensor of type `to`.

    The kind must not fall: complex to real, floating to integer and anything to bool are refused.

    Parameters
    ----------
    from_
        Type of what is computed.
    to
        Type of what is written.

    Returns
    -------
    bool
        Whether it may.
    """
    if from_.category == COMPLEX:
        return to.category == COMPLEX
    if from_.category == FLOATING:
        return to.category >= FLOATING
    return to.category != BOOL or from_.category == BOOL


@dataclass(frozen=True)
class finfo:  # noqa: N801 - the field's spelling
    """Limits of a floating type; of a complex type, those of its components.

    Parameters
    ----------
    dtype
        A floating or complex type; the default floating type without it.
    """

    dtype: _Dtype

    def __init__(self, dtype: Any = None) -> None:
        d = _default if dtype is None else as_dtype(dtype, "finfo")
        if not d.is_differentiable:
            message = f"[finfo] argument 'dtype': expected a floating type, got {d!r}. Use iinfo."
            raise TypeError(message)
        object.__setattr__(self, "dtype", d.to_real())

    def __getattr__(self, name: str) -> float:
        if name not in {"eps", "max", "min", "tiny", "smallest_normal", "resolution"}:
            raise AttributeError(name)
        return float(getattr(ml_dtypes.finfo(self.dtype.numpy), name))  # type: ignore[no-untyped-call]  # it has no types

    @property
    def bits(self) -> int:
        """Number of bits of one value."""
        return 8 * self.dtype.itemsize


@dataclass(frozen=True)
class iinfo:  # noqa: N801 - the field's spelling
    """Limits of an integer type.

    Parameters
    ----------
    dtype
        An integer type.
    """

    dtype: _Dtype

    def __init__(self, dtype: Any) -> None:
        d = as_dtype(dtype, "iinfo")
        if d.category != INTEGER:
            message = f"[iinfo] argument 'dtype': expected an integer type, got {d!r}. Use finfo."
            raise TypeError(message)
        object.__setattr__(self, "dtype", d)

    @property
    def max(self) -> int:
        """Largest value."""
        return int(np.iinfo(self.dtype.numpy).max)

    @property
    def min(self) -> int:
        """Smallest value."""
        return int(np.iinfo(self.dtype.numpy).min)

    @property
    def bits(self) -> int:
        """Number of bits of one value."""
        return 8 * self.dtype.itemsize
