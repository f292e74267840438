"""The C++ types that have a dtype, and what known functions do with numbers and memory."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = [
    "APPENDS",
    "BESIDE_VIEWS",
    "CPP_TO_DTYPE",
    "DERIVED_TYPES",
    "INTERNAL",
    "MEMORY_CALLS",
    "TYPES_TEXT",
    "VALUE_CALLS",
    "WRITING_CALLS",
    "bare_type",
    "engine_type",
    "what_to_write",
]

CPP_TO_DTYPE: Mapping[str, str] = {
    "bool": "bool",
    "float": "float32",
    "double": "float64",
    "_Float16": "float16",
    "tp::bfloat16": "bfloat16",
    "bfloat16": "bfloat16",  # where the cell says using namespace tp
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "unsigned": "uint32",
    "unsigned int": "uint32",
    "long": "int64",
    "unsigned long": "uint64",
    "long long": "int64",
    "unsigned long long": "uint64",
    "size_t": "uint64",
    **{f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "std::complex<float>": "complex64",
    "std::complex<double>": "complex128",
}

#: For messages.
TYPES_TEXT = (
    "Types that can be passed: tvm::ffi::TensorView, tp::In/Out/InOut, double, float, int64_t and "
    "other integers, bool, std::string; for lists tvm::ffi::Array<int64_t> and Array<double>."
)

#: Why a function is not one of the cell's kernels.
INTERNAL = "it is static, inline or in an unnamed namespace"


def what_to_write(reason: str) -> str:
    """Return the advice that belongs to a reason for which a function cannot be a kernel."""
    if reason == INTERNAL:
        return "Leave out static and inline, and write it outside of unnamed namespaces."
    if reason.startswith("it is in namespace"):
        return "Write it outside of the namespace, or one outside that calls it."
    if reason.startswith("it is a template"):
        return "Take tp::In<T> and tp::Out<T>, or write one type instead of the template."
    if re.search(r"(?:char\*|std::string_view), which cannot", reason):
        if "returned" in reason:
            return "Return std::string."
        return "Write const std::string& for a text, and c_str() where its pointer is wanted."
    return TYPES_TEXT


#: For messages of functions over typed views.
BESIDE_VIEWS = (
    "Beside typed views a function takes numbers, bool, const std::string&, DLDataType, DLDevice, "
    "tvm::ffi::Array and tvm::ffi::Optional of these, tp::Optional<tp::In<T>> and "
    "tp::List<tp::In<T>>."
)
_ENGINE = r"(?:(?:::)?tvm::)?(?:ffi::)?"
#: C++ types of one value of a schema's base type, and the one to write.
_ELEMENTS: Mapping[str, tuple[str, str]] = {
    "int": (r"(?:std::)?int64_t|int|(?:std::)?int32_t|long|long long", "int64_t"),
    "float": ("double|float", "double"),
    "bool": ("bool", "bool"),
    "str": (rf"{_ENGINE}String|std::string", "tvm::ffi::String"),
    "ScalarType": ("DLDataType", "DLDataType"),
    "Device": ("DLDevice", "DLDevice"),
}
_SAME: Mapping[str, str] = {"SymInt": "int", "Scalar": "float"}


def engine_type(base: str, form: str) -> tuple[re.Pattern[str], str] | None:
    """Return what stands for a schema type beside typed views: the C++ types, and the one to write.

    Parameters
    ----------
    base
        Base type of the schema.
    form
        ``""``, ``"?"``, ``"[]"``, ``"?[]"`` or ``"[]?"``.

    Returns
    -------
    tuple or None
        None for a type that the engine cannot pass.
    """
    known = _ELEMENTS.get(_SAME.get(base, base))
    if known is None:
        return None
    pattern, usual = known
    if not form and base == "str":
        return re.compile(rf"std::string|{_ENGINE}String"), "const std::string&"
    for mark in re.findall(r"\?|\[\]", form):
        container = "Optional" if mark == "?" else "Array"
        pattern = rf"{_ENGINE}{container}<\s*(?:{pattern})\s*>"
        usual = f"tvm::ffi::{container}<{usual}>"
    return re.compile(pattern), usual


#: Schema types that a signature without a schema may mean, by `engine_type`.
DERIVED_TYPES: tuple[tuple[str, str], ...] = tuple(
    (base, form) for form in ("", "[]", "?", "?[]", "[]?") for base in _ELEMENTS
)

WRITING_CALLS = frozenset({"swap", "std::swap", "exchange", "std::exchange"})
# Functions of the standard library that take numbers by value or by reference to const.
_NUMERIC = """
abs acos acosh asin asinh atan atan2 atanh cbrt ceil clamp copysign cos cosh cyl_bessel_i
cyl_bessel_j erf erfc exp exp2 expm1 fabs fdim floor fma fmax fmin fmod fpclassify hypot ilogb
isfinite isinf isnan isnormal labs ldexp lerp lgamma llabs llrint llround log log10 log1p log2 logb
lrint lround max min nearbyint pow remainder rint round scalbn signbit sin sinh sqrt tan tanh
tgamma trunc fprintf printf snprintf sprintf to_string imag real norm conj arg polar popcount
"""
_VALUE_NAMES = tuple(_NUMERIC.split())
VALUE_CALLS = frozenset({
    *CPP_TO_DTYPE, *_VALUE_NAMES, *(f"std::{n}" for n in _VALUE_NAMES),
    *(f"{n}{s}" for n in _VALUE_NAMES for s in "fl"), *(f"std::{n}" for n in CPP_TO_DTYPE),
})  # fmt: skip
# What calls do with memory: the positions that they only read, those that they write, and how many
# arguments the form that is meant has (others take a function of the person's, or a policy).
MEMORY_CALLS: Mapping[str, tuple[frozenset[int], frozenset[int], int]] = {
    name: (frozenset(reads), frozenset(writes), count)
    for names, reads, writes, count in (
        ("memcpy memmove", (1,), (0,), 3),
        ("memset", (), (0,), 3),
        ("memcmp", (0, 1), (), 3),
        ("copy", (0, 1), (2,), 3),
        ("copy_n", (0,), (2,), 3),
        ("accumulate", (0, 1), (), 3),
        ("inner_product", (0, 1, 2), (), 4),
        ("equal", (0, 1, 2), (), 3),
        ("fill fill_n", (), (0,), 3),
        ("iota sort", (), (0,), 3),
    )
    for name in names.split()
}
APPENDS = frozenset({"push_back", "append", "insert"})


def bare_type(text: str) -> str:
    """Return a parameter type without const, reference and a leading ``std::`` on integers."""
    text = re.sub(r"\bconst\b", "", text).replace("&", "").replace("::std::", "std::")
    text = " ".join(text.split()).removeprefix("::").replace(" *", "*")
    integer = re.fullmatch(r"std::(u?int\d+_t|size_t)", text)
    return integer.group(1) if integer else text
