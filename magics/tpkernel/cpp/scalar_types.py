"""The C++ types that have a dtype, and what known functions do with numbers and memory."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = [
    "APPENDS",
    "BESIDE_VIEWS",
    "CPP_TO_DTYPE",
    "ENGINE_TYPES",
    "MEMORY_CALLS",
    "TYPES_TEXT",
    "VALUE_CALLS",
    "WRITING_CALLS",
    "bare_type",
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

#: For messages of functions over typed views.
BESIDE_VIEWS = (
    "Beside typed views a function takes numbers, bool, const std::string&, DLDataType, "
    "tvm::ffi::Array and tvm::ffi::Optional of numbers. For Tensor? and lists of tensors take all "
    "of its tensors as tvm::ffi::TensorView, and these as tvm::ffi::Optional<tvm::ffi::Tensor> and "
    "tvm::ffi::Array<tvm::ffi::Tensor>."
)
#: What stands for a schema type beside typed views: the C++ types, and the one to write.
ENGINE_TYPES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "str": (re.compile(r"std::string|(tvm::)?(ffi::)?String"), "const std::string&"),
    "ScalarType": (re.compile("DLDataType"), "DLDataType"),
    **{
        f"{kind}[]": (
            re.compile(rf"(tvm::)?(ffi::)?Array<({element})>"),
            f"tvm::ffi::Array<{usual}>",
        )
        for kind, element, usual in (
            ("int", "int64_t|int|int32_t", "int64_t"),
            ("float", "double|float", "double"),
            ("bool", "bool", "bool"),
        )
    },
    **{
        f"{kind}?": (
            re.compile(rf"(tvm::)?(ffi::)?Optional<({element})>"),
            f"tvm::ffi::Optional<{usual}>",
        )
        for kind, element, usual in (
            ("int", "int64_t|int|int32_t", "int64_t"),
            ("float", "double|float", "double"),
            ("bool", "bool", "bool"),
            ("str", r"(tvm::)?(ffi::)?String|std::string", "tvm::ffi::String"),
        )
    },
}

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
