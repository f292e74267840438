"""The array API standard: every name is there, and the values are those of NumPy's namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import array_api as xp

NAMES = frozenset(
    [
        "e",
        "inf",
        "nan",
        "pi",
        "newaxis",
        "arange",
        "asarray",
        "empty",
        "empty_like",
        "eye",
        "from_dlpack",
        "full",
        "full_like",
        "linspace",
        "meshgrid",
        "ones",
        "ones_like",
        "tril",
        "triu",
        "zeros",
        "zeros_like",
        "astype",
        "can_cast",
        "finfo",
        "iinfo",
        "isdtype",
        "result_type",
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float32",
        "float64",
        "complex64",
        "complex128",
        "abs",
        "acos",
        "acosh",
        "add",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "bitwise_and",
        "bitwise_left_shift",
        "bitwise_invert",
        "bitwise_or",
        "bitwise_right_shift",
        "bitwise_xor",
        "ceil",
        "clip",
        "conj",
        "copysign",
        "cos",
        "cosh",
        "divide",
        "equal",
        "exp",
        "expm1",
        "floor",
        "floor_divide",
        "greater",
        "greater_equal",
        "hypot",
        "imag",
        "isfinite",
        "isinf",
        "isnan",
        "less",
        "less_equal",
        "log",
        "log1p",
        "log2",
        "log10",
        "logaddexp",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "maximum",
        "minimum",
        "multiply",
        "negative",
        "nextafter",
        "not_equal",
        "positive",
        "pow",
        "real",
        "reciprocal",
        "remainder",
        "round",
        "sign",
        "signbit",
        "sin",
        "sinh",
        "square",
        "sqrt",
        "subtract",
        "tan",
        "tanh",
        "trunc",
        "take",
        "take_along_axis",
        "matmul",
        "matrix_transpose",
        "tensordot",
        "vecdot",
        "broadcast_arrays",
        "broadcast_to",
        "concat",
        "expand_dims",
        "flip",
        "moveaxis",
        "permute_dims",
        "repeat",
        "reshape",
        "roll",
        "squeeze",
        "stack",
        "tile",
        "unstack",
        "argmax",
        "argmin",
        "count_nonzero",
        "nonzero",
        "searchsorted",
        "where",
        "unique_all",
        "unique_counts",
        "unique_inverse",
        "unique_values",
        "argsort",
        "sort",
        "cumulative_prod",
        "cumulative_sum",
        "max",
        "mean",
        "min",
        "prod",
        "std",
        "sum",
        "var",
        "all",
        "any",
        "diff",
        "__array_namespace_info__",
        "__array_api_version__",
        "linalg",
        "fft",
    ]
)
LINALG = frozenset(
    [
        "cholesky",
        "cross",
        "det",
        "diagonal",
        "eigh",
        "eigvalsh",
        "inv",
        "matmul",
        "matrix_norm",
        "matrix_power",
        "matrix_rank",
        "matrix_transpose",
        "outer",
        "pinv",
        "qr",
        "slogdet",
        "solve",
        "svd",
        "svdvals",
        "tensordot",
        "trace",
        "vecdot",
        "vector_norm",
    ]
)
FFT = frozenset(
    [
        "fft",
        "ifft",
        "fftn",
        "ifftn",
        "rfft",
        "irfft",
        "rfftn",
        "irfftn",
        "hfft",
        "ihfft",
        "fftfreq",
        "rfftfreq",
        "fftshift",
        "ifftshift",
    ]
)


def test_every_name_is_there() -> None:
    assert [n for n in NAMES if not hasattr(xp, n)] == []
    assert [n for n in LINALG if not hasattr(xp.linalg, n)] == []
    assert [n for n in FFT if not hasattr(xp.fft, n)] == []


def test_tensors_lead_to_the_namespace() -> None:
    x = tp.ones(2)
    assert x.__array_namespace__() is xp
    assert x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(ValueError, match="api_version"):
        x.__array_namespace__(api_version="1999.12")
    assert x.to_device("cpu") is x
    with pytest.raises(ValueError, match="stream"):
        x.to_device("cpu", stream=1)


A = np.array([[1.5, -2.0, 0.25], [3.0, 0.5, -1.0]])
B = np.array([[2.0, 1.0, 4.0]])
I = np.array([[3, 1, 2], [1, 0, 2]])  # noqa: E741 - integers
T = np.array([[True, False, True], [False, False, True]])
S = np.array([[4.0, 1.0], [1.0, 3.0]])
Z = np.array([[1 + 2j, -1j, 0.5]])

# The name of a function, then its arguments, as NumPy and as this namespace take them.
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((name, (A,), {}) for name in ("abs", "exp", "sign", "round", "floor", "signbit", "square",
                                    "isnan", "negative", "positive", "atan", "logical_not")),
    *((name, (A, B), {}) for name in ("add", "divide", "pow", "hypot", "maximum", "less", "atan2",
                                      "logaddexp", "nextafter", "remainder", "copysign")
      if name != "pow"),
    *((name, (I, 2), {}) for name in ("bitwise_left_shift", "floor_divide", "bitwise_and", "pow")),
    *((name, (Z,), {}) for name in ("conj", "real", "imag", "abs", "sign")),
    ("ceil", (I,), {}), ("bitwise_invert", (I,), {}), ("clip", (A, -1.0, 1.0), {}),
    ("clip", (I, None, 2), {}), ("clip", (A,), {}),
    ("astype", (A, "int64"), {}),
    ("broadcast_arrays", (A, B), {}), ("broadcast_to", (B, (2, 3)), {}),
    ("concat", ([A, B],), {}), ("concat", ([A, I],), {"axis": None}),
    ("stack", ([A, A],), {"axis": -1}),
    ("unstack", (A,), {"axis": 1}), ("expand_dims", (A,), {"axis": 1}), ("squeeze", (B, 0), {}),
    ("flip", (A,), {}), ("flip", (A,), {"axis": 1}), ("roll", (A, 1), {}),
    ("roll", (A, 1), {"axis": (0, 1)}), ("reshape", (A, (3, 2)), {}), ("tile", (A, (2, 1)), {}),
    ("repeat", (A, 2), {}), ("repeat", (A, 2), {"axis": 1}),
    ("moveaxis", (A, 0, 1), {}), ("permute_dims", (A, (1, 0)), {}), ("matrix_transpose", (A,), {}),
    ("take", (A, np.array([1, 0])), {"axis": 0}), ("take", (A[0], np.array([1, 0])), {}),
    ("take_along_axis", (A, np.array([[0], [1]])), {"axis": 1}),
    ("take_along_axis", (A, np.array([[0, 1, 1]])), {"axis": 0}),
    ("where", (T, A, B), {}), ("nonzero", (T,), {}),
    *((name, (A,), options) for name in ("max", "min", "sum", "prod", "mean", "std", "var", "any",
                                         "all", "argmax", "argmin", "count_nonzero")
      for options in ({}, {"axis": 1}, {"axis": 0, "keepdims": True})),
    ("sum", (T,), {}), ("prod", (I,), {"dtype": "float64"}), ("std", (A,), {"correction": 1.0}),
    ("any", (T,), {"axis": ()}), ("all", (A,), {"axis": (0, 1)}),
    ("sort", (A,), {}), ("argsort", (A,), {"axis": 0}), ("searchsorted", (np.sort(A[0]), B[0]), {}),
    ("searchsorted", (np.sort(A[0]), B[0]), {"side": "right"}),
    ("unique_all", (I,), {}), ("unique_counts", (I,), {}), ("unique_inverse", (I,), {}),
    ("cumulative_sum", (A,), {"axis": 1}), ("cumulative_sum", (A[0],), {"include_initial": True}),
    ("cumulative_prod", (A,), {"axis": 0, "include_initial": True}),
    ("diff", (A,), {}), ("diff", (A,), {"axis": 0, "n": 3}), ("diff", (T,), {}),
    ("diff", (A,), {"prepend": B.T[:2], "append": B.T[1:]}),
    ("matmul", (A, A.T), {}), ("matmul", (A, I.T), {}), ("tensordot", (A, A), {"axes": 2}),
    ("tensordot", (A, A), {"axes": ([0], [0])}), ("vecdot", (A, B), {}), ("vecdot", (Z, Z), {}),
    ("tril", (A,), {"k": 1}), ("triu", (A,), {"k": -1}),
    ("meshgrid", (A[0], B[0]), {}), ("meshgrid", (A[0], B[0]), {"indexing": "ij"}),
    ("linalg.cross", (A, B), {}), ("linalg.trace", (S,), {"offset": 1}),
    ("linalg.outer", (A[0], B[0]), {}),
    ("linalg.diagonal", (A,), {"offset": 1}), ("linalg.cholesky", (S,), {}),
    ("linalg.det", (S,), {}),
    ("linalg.inv", (S,), {}), ("linalg.slogdet", (S,), {}), ("linalg.solve", (S, S), {}),
    ("linalg.eigvalsh", (S,), {}), ("linalg.svdvals", (A,), {}), ("linalg.pinv", (A,), {}),
    ("linalg.matrix_norm", (A,), {"ord": "nuc", "keepdims": True}),
    ("linalg.matrix_rank", (A,), {}),
    ("linalg.matrix_power", (S, -2), {}), ("linalg.vector_norm", (A,), {"axis": 0, "ord": 1}),
    ("fft.fft", (A,), {"norm": "ortho"}), ("fft.rfft", (A,), {"n": 4}), ("fft.fftshift", (A,), {}),
]  # fmt: skip


def find(namespace: Any, name: str) -> Any:
    for part in name.split("."):
        namespace = getattr(namespace, part)
    return namespace


def ours(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tp.from_numpy(value.copy())
    if isinstance(value, str) and hasattr(np, value):
        return getattr(tp, value)
    return [ours(v) for v in value] if isinstance(value, list) else value


def theirs(value: Any) -> Any:
    return np.dtype(value) if isinstance(value, str) and value in ("int64", "float64") else value


@pytest.mark.parametrize(
    ("name", "args", "options"), CALLS, ids=[f"{n}-{c[0]}" for n, c in enumerate(CALLS)]
)
def test_values_are_those_of_numpy(name: str, args: Any, options: Any) -> None:
    expected = find(np, name)(*map(theirs, args), **{k: theirs(v) for k, v in options.items()})
    found = find(xp, name)(*map(ours, args), **{
        k: v if isinstance(v, str) and k != "dtype" else ours(v) for k, v in options.items()
    })  # fmt: skip
    many = isinstance(expected, tuple | list)
    if many:
        assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True) if many else [(found, expected)]:
        assert tuple(a.shape) == np.shape(b)
        assert a.dtype.numpy.kind == np.asarray(b).dtype.kind
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-12, atol=1e-12)


def test_creation() -> None:
    assert xp.unique_values(ours(I)).tolist() == [0, 1, 2, 3]
    assert xp.eye(3, 4, k=1).tolist() == np.eye(3, 4, k=1).tolist()
    assert xp.eye(2, k=5).tolist() == [[0, 0], [0, 0]]
    assert xp.linspace(0, 1, 4, endpoint=False).tolist() == [0, 0.25, 0.5, 0.75]
    assert xp.meshgrid() == []
    assert xp.asarray([1, 2], dtype=xp.float64).dtype is xp.float64


def test_types() -> None:
    assert xp.isdtype(xp.int8, "integral")
    assert xp.isdtype(xp.float32, ("bool", xp.float32))
    assert not xp.isdtype(xp.uint8, "signed integer")
    assert xp.can_cast(xp.int8, xp.int16)
    assert not xp.can_cast(tp.ones(2), xp.int64)
    assert not xp.can_cast(xp.uint64, xp.int64)
    assert xp.result_type(xp.int8, tp.ones(2), 1.0) is xp.float32
    assert xp.result_type(xp.int8, 3) is xp.int8
    info = xp.__array_namespace_info__()
    assert info.dtypes(kind="bool") == {"bool": xp.bool}
    assert len(info.dtypes()) == 13
    assert info.default_dtypes()["real floating"] is xp.float32
    assert info.default_device() in info.devices()
    assert info.capabilities()["boolean indexing"]


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: xp.isdtype(xp.int8, "float"), ValueError, "kind"),
        (lambda: xp.astype(tp.ones(1).cfloat(), xp.float32), TypeError, "complex"),
        (lambda: xp.squeeze(tp.ones(2, 1), 0), ValueError, "axis 0 has size 2"),
        (lambda: xp.reshape(tp.ones(2, 3).t(), (6,), copy=False), ValueError, "a copy is needed"),
        (lambda: xp.nonzero(tp.tensor(1.0)), ValueError, "at least one axis"),
        (lambda: xp.cumulative_sum(tp.ones(2, 2)), ValueError, "more than one axis"),
    ],
)
def test_errors(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_gradients_pass_through() -> None:
    x = tp.tensor([1.0, 2.0, 4.0], requires_grad=True)
    xp.diff(xp.cumulative_sum(x)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 1]


def test_names_of_arguments_are_the_standards() -> None:
    assert xp.zeros(shape=(2, 1)).shape == (2, 1)
    assert xp.ones(shape=3).shape == (3,)
    assert xp.empty(shape=(0, 2), dtype=xp.int8).dtype is xp.int8
    assert xp.full(shape=(2,), fill_value=7).tolist() == [7, 7]
    x = tp.rand(4, 6, dtype=tp.float64)
    for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
        expected = getattr(np.fft, name)(x.numpy(), n=5, axis=0, norm="ortho")
        found = getattr(xp.fft, name)(x, n=5, axis=0, norm="ortho")
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    for name in ("fftn", "ifftn", "rfftn", "irfftn"):
        expected = getattr(np.fft, name)(x.numpy(), s=(3, 4), axes=(0, 1), norm="forward")
        found = getattr(xp.fft, name)(x, s=(3, 4), axes=(0, 1), norm="forward")
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    for name in ("fftshift", "ifftshift"):
        expected = getattr(np.fft, name)(x.numpy(), axes=(1,))
        np.testing.assert_array_equal(getattr(xp.fft, name)(x, axes=(1,)).numpy(), expected)
    assert xp.fft.fftfreq(4, d=0.5).tolist() == np.fft.fftfreq(4, d=0.5).tolist()
    assert xp.fft.rfftfreq(4, d=0.5, dtype=xp.float64).dtype is xp.float64


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


SCIPY = """
import numpy as np, tensorplay as tp
from scipy import cluster, fft, integrate, ndimage, signal, special, stats

x = np.linspace(0.1, 2.0, 12).reshape(4, 3) ** 2
calls = {
    "logsumexp": lambda x: special.logsumexp(x, axis=0),
    "softmax": lambda x: special.softmax(x, axis=0),
    "erf": special.erf, "gammaln": special.gammaln, "expit": special.expit,
    "xlogy": lambda x: special.xlogy(x, x),
    "zscore": lambda x: stats.zscore(x, axis=0), "skew": lambda x: stats.skew(x, axis=0),
    "kurtosis": stats.kurtosis, "gmean": lambda x: stats.gmean(x, axis=0),
    "moment": lambda x: stats.moment(x, 2), "entropy": stats.entropy,
    "variation": stats.variation, "ttest": lambda x: stats.ttest_1samp(x, 0.5).statistic,
    "pearsonr": lambda x: stats.pearsonr(x[:, 0], x[:, 1]).statistic,
    "fft": fft.fft, "irfft": fft.irfft, "trapezoid": integrate.trapezoid,
    "whiten": cluster.vq.whiten, "gaussian": lambda x: ndimage.gaussian_filter(x, 1.0),
    "detrend": signal.detrend, "hilbert": signal.hilbert,
}
for name, call in calls.items():
    found = call(tp.from_numpy(x.copy()))
    assert isinstance(found, tp.Tensor), (name, type(found))
    np.testing.assert_allclose(found.numpy(), call(x), rtol=1e-9, atol=1e-12, err_msg=name)
"""


@pytest.mark.slow
def test_scipy_dispatches_to_tensors() -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    run(SCIPY)


SKLEARN = """
import numpy as np, tensorplay as tp
from sklearn import config_context
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, mean_squared_error, r2_score
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances, rbf_kernel
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import Binarizer, MaxAbsScaler, MinMaxScaler, Normalizer
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

random = np.random.default_rng(0)
x, y = random.normal(size=(20, 3)), np.arange(20) % 2
x[:, 0] += 5 * y

def mixture(x, y):
    return GaussianMixture(2, init_params="random_from_data", random_state=0).fit(x).means_

calls = {
    "StandardScaler": lambda x, y: StandardScaler().fit_transform(x),
    "MinMaxScaler": lambda x, y: MinMaxScaler().fit_transform(x),
    "MaxAbsScaler": lambda x, y: MaxAbsScaler().fit_transform(x),
    "Normalizer": lambda x, y: Normalizer().fit_transform(x),
    "Binarizer": lambda x, y: Binarizer().fit_transform(x),
    "PolynomialFeatures": lambda x, y: PolynomialFeatures(2).fit_transform(x),
    "PCA": lambda x, y: PCA(2, svd_solver="full").fit_transform(x),
    "Ridge": lambda x, y: Ridge(solver="svd").fit(x, x[:, 0]).predict(x),
    "LinearDiscriminantAnalysis": lambda x, y: LinearDiscriminantAnalysis().fit(x, y).predict(x),
    "GaussianMixture": mixture,
    "euclidean_distances": lambda x, y: euclidean_distances(x),
    "cosine_similarity": lambda x, y: cosine_similarity(x),
    "rbf_kernel": lambda x, y: rbf_kernel(x),
    "accuracy_score": lambda x, y: accuracy_score(y, y),
    "mean_squared_error": lambda x, y: mean_squared_error(x[:, 0], x[:, 1]),
    "r2_score": lambda x, y: r2_score(x[:, 0], x[:, 1]),
}
for name, call in calls.items():
    with config_context(array_api_dispatch=True):
        found = call(tp.from_numpy(x.copy()), tp.from_numpy(y.copy()))
    if not isinstance(found, float):
        assert isinstance(found, tp.Tensor), (name, type(found))
        found = found.numpy()
    np.testing.assert_allclose(found, call(x, y), rtol=1e-8, atol=1e-10, err_msg=name)
"""


@pytest.mark.slow
def test_scikit_learn_dispatches_to_tensors() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    run(SKLEARN)
