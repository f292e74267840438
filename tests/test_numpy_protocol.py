"""NumPy's functions on tensors: values, types and gradients, none of which is lost silently."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorplay as tp
from tensorplay._numpy_functions import FUNCTIONS
from tensorplay._numpy_protocol import ANSWERS


def tensor(*values: float, requires_grad: bool = False) -> tp.Tensor:
    return tp.tensor(list(values), dtype=tp.float64, requires_grad=requires_grad)


# --- operators between arrays and tensors ---------------------------------------------------------

SYMBOLS = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, operator.pow, operator.matmul, operator.eq, operator.lt, operator.ge),
]


@pytest.mark.parametrize("symbol", SYMBOLS, ids=lambda f: f.__name__)
def test_array_and_tensor_give_a_tensor_in_either_order(symbol) -> None:
    a, b = np.array([4.0, 5.0]), np.array([2.0, 3.0])
    expected = symbol(a, b)
    for left, right in ((a, tp.from_numpy(b)), (tp.from_numpy(a), b)):
        result = symbol(left, right)
        assert type(result) is tp.Tensor
        np.testing.assert_allclose(result.numpy(), expected)


@pytest.mark.parametrize("number", [np.float64(2), np.float32(2), np.int64(2), np.bool_(True)])
def test_numbers_of_numpy_are_numbers(number) -> None:
    x = tp.tensor([1.0, 2.0])
    for result in (number * x, x * number):
        assert type(result) is tp.Tensor
        assert result.dtype is tp.float32
        assert result.tolist() == [float(number), 2 * float(number)]


def test_gradient_of_mixed_expressions() -> None:
    x = tensor(1.0, 2.0, requires_grad=True)
    (np.array([3.0, 4.0]) * x + np.exp(x)).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.array([3, 4]) + np.exp([1, 2]))


def test_an_array_is_changed_in_place() -> None:
    a = np.ones(2)
    b = a
    b += tensor(1.0, 2.0)
    assert b is a
    assert type(b) is np.ndarray
    assert a.tolist() == [2, 3]
    with pytest.raises(RuntimeError, match=r"\[add\].*requires grad.*detach"):
        b += tensor(1.0, 2.0, requires_grad=True)
    assert a.tolist() == [2, 3]


def test_arrays_of_objects_are_refused() -> None:
    with pytest.raises(TypeError):
        np.array([1, "a"], dtype=object) + tensor(1.0, 2.0)


# --- ufuncs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ufunc", ANSWERS, ids=lambda u: u.__name__)
def test_ufunc_is_answered_by_its_operator(ufunc) -> None:
    integers = ufunc.__name__.startswith("bitwise") or ufunc.__name__ in {
        *("left_shift", "right_shift", "invert")
    }
    a, b = (np.array([3, 5, 6]), np.array([1, 2, 3])) if integers else (
        np.array([0.2, 0.5, 0.9]), np.array([0.5, 0.25, 2.0])
    )  # fmt: skip
    if ufunc is np.arccosh:
        a = a + 1
    arrays = (a, b)[: ufunc.nin]
    expected = ufunc(*arrays)
    result = ufunc(*map(tp.from_numpy, arrays))
    assert type(result) is tp.Tensor
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-14)
    if result.dtype.is_floating_point and not integers:
        x = tp.from_numpy(a).requires_grad_()
        assert ufunc(x, *map(tp.from_numpy, arrays[1:])).requires_grad


finite = st.floats(-5, 5)


@settings(max_examples=50, deadline=None)
@given(st.lists(finite, min_size=1, max_size=4), finite)
def test_binary_ufuncs_agree_with_numpy(values, number) -> None:
    a = np.array(values)
    for ufunc in (np.add, np.subtract, np.multiply, np.maximum, np.hypot, np.arctan2, np.less):
        np.testing.assert_array_equal(ufunc(tp.from_numpy(a), number).numpy(), ufunc(a, number))
        np.testing.assert_array_equal(ufunc(number, tp.from_numpy(a)).numpy(), ufunc(number, a))
        np.testing.assert_array_equal(ufunc(values, tp.from_numpy(a)).numpy(), ufunc(values, a))


def test_types_are_promoted_as_by_operators() -> None:
    assert np.add(tp.tensor([1]), tp.tensor([1.0])).dtype is tp.float32
    assert np.exp(tp.tensor([1])).dtype is tp.float32
    assert np.equal(tp.tensor([1]), 1).dtype is tp.bool


X = [[1.0, 5.0, 2.0], [4.0, 3.0, 6.0]]


@pytest.mark.parametrize(
    "call",
    [
        np.add.reduce, lambda x: np.add.reduce(x, axis=None),
        lambda x: np.add.reduce(x, axis=1, keepdims=True), np.multiply.reduce,
        lambda x: np.maximum.reduce(x, axis=(0, 1)), lambda x: np.minimum.reduce(x, axis=-1),
        lambda x: np.add.accumulate(x, axis=1), np.multiply.accumulate,
        lambda x: np.add.outer(x, x), lambda x: np.subtract.outer(x, 2.0),
        lambda x: np.divmod(x, 2.0)[1],
    ],
)  # fmt: skip
def test_methods_of_ufuncs_are_recorded(call) -> None:
    a = np.array(X)
    x = tp.from_numpy(a).requires_grad_()
    result = call(x)
    np.testing.assert_allclose(result.detach().numpy(), call(a))
    assert result.requires_grad


@pytest.mark.parametrize(
    "call",
    [
        np.cbrt, np.rad2deg, np.subtract.reduce,
        lambda x: np.add.reduceat(x, [0, 1]), np.maximum.accumulate,
        lambda x: np.add.reduce(x, initial=5.0), lambda x: np.modf(x)[0],
        lambda x: np.add(x, 1.0, dtype=np.float64), lambda x: np.median(x, axis=0),
        lambda x: np.percentile(x, 50), lambda x: np.pad(x, 1), lambda x: np.split(x, 2)[1],
        lambda x: np.sum(x, where=np.array([True, False, True])), lambda x: np.linalg.svd(x)[1],
        lambda x: np.linalg.qr(x).R, np.unique, lambda x: np.interp(x, [0, 9], [0, 1]),
    ],
)  # fmt: skip
def test_what_numpy_computes_is_wrapped_and_never_loses_a_gradient(call) -> None:
    a = np.array(X)
    result = call(tp.from_numpy(a))
    assert type(result) is tp.Tensor
    np.testing.assert_allclose(result.numpy(), call(a))
    x = tp.from_numpy(a).requires_grad_()
    with pytest.raises(RuntimeError, match=r"^\[[\w.]+\] NumPy computes this outside.*x.detach"):
        call(x)
    with tp.no_grad():
        assert not call(x).requires_grad
    with tp.autograd.forward_ad.dual_level():
        dual = tp.autograd.forward_ad.make_dual(tp.from_numpy(a), tp.from_numpy(a))
        with pytest.raises(RuntimeError, match="tangent"):
            call(dual)


def test_vmap_and_meta_do_not_slip_through() -> None:
    with pytest.raises(RuntimeError):
        tp.func.vmap(np.cbrt)(tp.ones(2, 3))
    assert tp.func.vmap(np.exp)(tp.zeros(2, 3)).tolist() == [[1] * 3] * 2
    with pytest.raises(NotImplementedError, match="meta"):
        np.cbrt(tp.ones(2, device="meta"))
    assert np.exp(tp.ones(2, device="meta")).is_meta


# --- out= and where= ------------------------------------------------------------------------------


def test_out_is_written_and_returned() -> None:
    x, out = tensor(1.0, 4.0), tp.zeros(2, dtype=tp.float64)
    assert np.sqrt(x, out=out) is out
    assert out.tolist() == [1, 2]
    assert out._version == 1
    array = np.zeros(2)
    assert np.add(x, x, out=array) is array
    assert array.tolist() == [2, 8]
    whole, part = np.modf(x, out=(None, out))
    assert part is out
    assert whole.tolist() == [0, 0]
    assert np.add(x, 1.0, out=out, where=np.array([True, False])) is out
    assert out.tolist() == [2, 4]
    assert np.sum(tp.ones(2, 2), axis=0, out=out) is out
    assert out.tolist() == [2, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, out: np.clip(x, 0.0, 2.0, out), lambda x, out: np.cumsum(x, 0, None, out),
        lambda x, out: np.median(x[None], 0, out), lambda x, out: np.add(x, x, out),
        lambda x, out: np.round(x, 1, out), lambda x, out: np.take(x, [0, 1, 2], 0, out),
    ],
)  # fmt: skip
def test_out_by_position_counts_as_a_change_in_place(call) -> None:
    x, out = tensor(3.0, 1.0, 2.0), tensor(0.0, 0.0, 0.0)
    assert call(x, out) is out
    assert out._version == 1
    np.testing.assert_array_equal(out.numpy(), call(x.numpy(), np.zeros(3)))
    with pytest.raises(RuntimeError, match="leaf"):
        call(x, tensor(0.0, 0.0, 0.0, requires_grad=True))


def test_out_that_may_not_be_written() -> None:
    leaf = tensor(1.0, 2.0, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        np.exp(tensor(1.0, 2.0), out=leaf)
    with pytest.raises(RuntimeError, match="requires grad"):
        np.exp(leaf, out=tensor(0.0, 0.0))
    with pytest.raises(RuntimeError, match="single memory location"):
        np.exp(tensor(1.0, 2.0), out=tp.zeros(1, dtype=tp.float64).expand(2))
    with pytest.raises(TypeError, match=r"[Cc]annot cast"):
        np.exp(tensor(1.0, 2.0), out=tp.zeros(2, dtype=tp.int64))


def test_writers_count_as_changes_in_place() -> None:
    x = tensor(1.0, 2.0, 3.0)
    saved = tensor(1.0, 1.0, 1.0, requires_grad=True)
    loss = (saved * x).sum()
    np.add.at(x, [0, 0], 1.0)
    assert x.tolist() == [3, 2, 3]
    np.copyto(x, 7.0)
    np.put(x, [1], 9.0)
    np.split(x, 3)[2].mul_(0)  # NumPy's views count with the tensor, too
    assert x.tolist() == [7, 9, 0]
    assert x._version == 4
    for inplace in (lambda v: np.nan_to_num(v, copy=False), lambda v: np.nan_to_num(v, False)):
        version = x._version
        x.data[0] = float("nan")
        inplace(x)
        assert x.tolist() == [0, 9, 0]
        assert x._version == version + 1
        with pytest.raises(RuntimeError, match="requires grad"):
            inplace(tensor(1.0, requires_grad=True))
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()


# --- functions ------------------------------------------------------------------------------------

FUNCTION_CALLS = [
    np.sum, lambda x: np.sum(x, 0), lambda x: np.sum(x, axis=(0, 1)),
    lambda x: np.sum(x, axis=-1, keepdims=True), np.mean, lambda x: np.mean(x, 1),
    np.std, lambda x: np.std(x, 0, ddof=1), lambda x: np.var(x, axis=1),
    np.prod, lambda x: np.prod(x, 0), lambda x: np.prod(x, keepdims=True),
    np.max, lambda x: np.max(x, axis=0), lambda x: np.amin(x, axis=(0, 1)),
    lambda x: np.min(x, 1, keepdims=True), lambda x: np.amax(x, -1), np.cumsum,
    lambda x: np.cumsum(x, axis=1), lambda x: np.cumprod(x, 0),
    lambda x: np.concatenate([x, x]), lambda x: np.concatenate((x, x), axis=1),
    lambda x: np.concatenate([x, x], axis=None), lambda x: np.concatenate([x, np.ones((1, 3))]),
    lambda x: np.stack([x, x], axis=-1), lambda x: np.vstack([x, x]), lambda x: np.hstack((x, x)),
    lambda x: np.reshape(x, (3, 2)), lambda x: np.reshape(x, -1), np.transpose,
    lambda x: np.transpose(x, (1, 0)), lambda x: np.swapaxes(x, 0, 1),
    lambda x: np.moveaxis(x, 0, -1), lambda x: np.squeeze(x[None]), lambda x: np.expand_dims(x, 1),
    lambda x: np.squeeze(x[None], axis=0), lambda x: np.expand_dims(x, (0, -1)),
    lambda x: np.broadcast_to(x, (2, 2, 3)), np.ravel, np.flip,
    lambda x: np.flip(x, 0), lambda x: np.roll(x, 1), lambda x: np.roll(x, 1, axis=1),
    lambda x: np.tile(x, 2), lambda x: np.tile(x, (2, 1)), lambda x: np.repeat(x, 2),
    lambda x: np.repeat(x, [1, 2], axis=0), np.diagonal, np.tril,
    lambda x: np.triu(x, 1), lambda x: np.where(x > 2, x, 0), lambda x: np.where(x > 2, x, x * 2),
    lambda x: np.clip(x, 2, 4), lambda x: np.clip(x, None, 3), np.sort,
    lambda x: np.sort(x, axis=0), lambda x: np.sort(x, axis=None), lambda x: np.take(x, [0, 4]),
    lambda x: np.take(x, [[0, 1]], axis=1), np.nan_to_num, np.copy,
    np.real, lambda x: np.round(x * 0.37, 1), lambda x: np.dot(x, [1.0, 2.0, 3.0]),
    lambda x: np.dot(x, x.T), lambda x: np.outer(x, x), lambda x: np.tensordot(x, x, 2),
    lambda x: np.tensordot(x, x, axes=([1], [1])), lambda x: np.einsum("ij,kj->ik", x, x),
    np.trace, lambda x: np.linalg.inv(x @ x.T), lambda x: np.linalg.det(x @ x.T),
    lambda x: np.linalg.cholesky(x @ x.T), lambda x: np.linalg.solve(x @ x.T, x),
    np.linalg.norm, lambda x: np.linalg.norm(x, axis=1),
    lambda x: np.linalg.norm(x, 1, (0, 1), keepdims=True), lambda x: np.full_like(x, 3.0) * x,
]  # fmt: skip


@pytest.mark.parametrize("call", FUNCTION_CALLS)
def test_functions_are_answered_by_operators(call) -> None:
    a = np.array(X)
    expected = call(a)
    x = tp.from_numpy(a.copy()).requires_grad_()
    result = call(x)
    assert type(result) is tp.Tensor
    assert tuple(result.shape) == np.shape(expected)
    assert result.dtype.numpy == expected.dtype
    np.testing.assert_allclose(result.detach().numpy(), expected, rtol=1e-12)
    assert result.requires_grad


@pytest.mark.parametrize(
    "call",
    [
        np.argmax, lambda x: np.argmin(x, axis=1), lambda x: np.argsort(x, 0),
        lambda x: np.any(x > 5), lambda x: np.all(x > 0, axis=0), lambda x: np.isclose(x, x + 1e-9),
        lambda x: np.count_nonzero(x > 2, axis=1), np.zeros_like, np.imag,
        lambda x: np.ones_like(x, dtype=np.float32), lambda x: np.ones_like(x, dtype="f8"),
        lambda x: np.full_like(x, 2, dtype=int), lambda x: np.nonzero(x > 3)[0],
        lambda x: np.where(x > 3)[1],
    ],
)  # fmt: skip
def test_functions_without_gradient(call) -> None:
    a = np.array(X)
    result = call(tp.from_numpy(a))
    assert type(result) is tp.Tensor
    np.testing.assert_array_equal(result.numpy(), call(a))
    assert result.dtype.numpy == call(a).dtype


def test_every_function_of_the_table_is_called_here() -> None:
    named = {f.__name__ for f in FUNCTIONS}
    calls = [c for c in FUNCTION_CALLS if c not in FUNCTIONS]
    called = {f.__name__ for f in FUNCTION_CALLS if f in FUNCTIONS} | {"amax", "amin"}
    called |= {n for c in calls for n in c.__code__.co_names}
    rest = {"argmax", "argmin", "argsort", "any", "all", "isclose", "count_nonzero", "allclose",
            "zeros_like", "imag", "ones_like", "around"}  # fmt: skip
    assert named - called - rest == set()


def test_questions_about_a_tensor_do_not_need_its_elements() -> None:
    x = tp.ones(2, 3, requires_grad=True)
    assert np.shape(x) == (2, 3)
    assert np.ndim(x) == 2
    assert np.size(x) == 6
    assert np.array_equal(x, x) is True
    assert np.allclose(x, x) is True
    assert np.result_type(x) == np.float32


AXES = [None, 0, -1, (), (0,), (0, 1), (1, -1), (0, 0), (0, -3), 3, (7,)]


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize(
    "name",
    [
        "sum", "mean", "std", "var", "prod", "max", "amin", "any", "all",
        "count_nonzero", "flip", "add.reduce", "multiply.reduce", "maximum.reduce",
        "minimum.reduce", "logical_and.reduce", "logical_or.reduce", "expand_dims",
    ],
)  # fmt: skip
def test_axes_mean_what_they_mean_to_numpy(name, axis) -> None:
    call = operator.attrgetter(name)(np)
    cube = np.arange(24.0).reshape(2, 3, 4) % 7 - 2
    options: list[dict[str, Any]] = [{}]
    if call not in (np.flip, np.expand_dims):
        options.append({"keepdims": True})
    for a in (cube, cube > 0, cube.astype(np.int32), cube + 1j * cube[::-1], cube[:1, :, :1]):
        for more in options:
            try:
                expected = call(a, axis=axis, **more)
            except (TypeError, ValueError, IndexError):
                with pytest.raises((TypeError, ValueError, IndexError, RuntimeError)):
                    call(tp.from_numpy(a.copy()), axis=axis, **more)
                continue
            result = call(tp.from_numpy(a.copy()), axis=axis, **more)
            assert tuple(result.shape) == expected.shape
            np.testing.assert_allclose(result.numpy(), expected)


def test_no_axis_keeps_the_gradient() -> None:
    for call in (np.sum, np.max, np.mean, np.add.reduce, np.prod):
        x = tensor(1.0, 2.0, requires_grad=True)
        (call(x, axis=()) * tensor(3.0, 4.0)).sum().backward()
        assert x.grad.tolist() == [3, 4]


INTS = np.array([[2, 1], [1, 3]])
NUMPY_CALLS = [
    lambda x: np.take(x, -1), lambda x: np.take(x, [-1, -2]), lambda x: np.take(x, [[0, -1]], 1),
    lambda x: np.take(x, np.uint8(1), -1), lambda x: np.take(x, [True]),
    lambda x: np.roll(x, 2, axis=(0, 1)), lambda x: np.roll(x, (1, 2)), lambda x: np.roll(x, 1, ()),
    lambda x: np.roll(x, (1, 2), axis=0), lambda x: np.roll(x, 1, axis=(0, 0)), np.linalg.inv,
    np.linalg.det, np.linalg.cholesky, np.linalg.norm, lambda x: np.linalg.norm(x, 1),
    lambda x: np.linalg.norm(x, 2), lambda x: np.linalg.norm(x, axis=0),
    lambda x: np.linalg.solve(x, x + 1), lambda x: np.linalg.solve(x, np.ones(2, np.float32)),
    lambda x: np.linalg.solve(np.stack([x, x]), x),
    lambda x: np.linalg.solve(np.stack([x, x]), x[0]),
    lambda x: np.einsum(x, [0, 1], [1, 0]), lambda x: np.einsum(x, [0, 1], x, [1, 30]),
    lambda x: np.einsum(x, [Ellipsis, 0], [0, Ellipsis]), lambda x: np.einsum(x, [0, 0]),
    lambda x: np.triu(x[0]), lambda x: np.tril(x[0], -1), lambda x: np.cumsum(x[0, 0], axis=0),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(NUMPY_CALLS)))
def test_calls_that_numpy_knows(number) -> None:
    call = NUMPY_CALLS[number]
    for d in (np.int64, np.float64, np.complex128):
        a = INTS.astype(d)
        expected, x = call(a), tp.from_numpy(a.copy())
        result = call(x)
        assert type(result) is tp.Tensor
        assert tuple(result.shape) == np.shape(expected)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)
    leaf = tp.from_numpy(INTS.astype(np.float64)).requires_grad_()
    assert call(leaf).requires_grad


def test_indices_of_take() -> None:
    x = tp.arange(3.0)
    for wrong in ([3], [-4]):
        with pytest.raises(IndexError):
            np.take(x, wrong)
    with pytest.raises(TypeError, match=r"\[take\] argument 'indices'"):
        np.take(x, [1.5])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.max(x, 0), np.min, np.argmax, np.argmin, np.sort, np.argsort, np.round,
        lambda x: np.around(x, 1), lambda x: np.clip(x, 0, 2), np.nan_to_num, np.rint,
        lambda x: np.maximum(x, np.flip(x, 0)), lambda x: np.fmin(x, 1 + 1j), np.minimum.reduce,
        lambda x: np.maximum(x.real, x),
    ],
)  # fmt: skip
def test_complex_numbers_are_left_to_numpy_where_operators_know_none(call) -> None:
    a = np.array([[1.26 + 2j, -1 + 0.5j], [1.26 + 1j, 3 - 1j]])
    result = call(tp.from_numpy(a.copy()))
    assert type(result) is tp.Tensor
    np.testing.assert_array_equal(result.numpy(), call(a))
    assert result.dtype.numpy == call(a).dtype
    with pytest.raises(RuntimeError, match="requires grad"):
        call(tp.from_numpy(a.copy()).requires_grad_())


def test_what_numpy_refuses_of_complex_numbers() -> None:
    for ufunc in (np.fabs, np.signbit):
        for x in (tp.ones(2) * 1j, tp.ones(2, dtype=tp.complex64)):
            with pytest.raises(TypeError):
                ufunc(x)
        assert ufunc(tp.tensor([-2.0, 1.0])).tolist() == ufunc(np.array([-2.0, 1.0])).tolist()
    assert np.fabs(tp.tensor([-2, 1])).dtype is tp.float32
    x = tensor(-2.0, 1.0, requires_grad=True)
    np.fabs(x).sum().backward()
    assert x.grad.tolist() == [-1, 1]


def test_refusals_of_functions() -> None:
    with pytest.raises(ValueError, match=r"\[concatenate\]"):
        np.concatenate([tp.tensor(1.0), tp.tensor(2.0)])
    with pytest.raises(ValueError, match=r"\[squeeze\]"):
        np.squeeze(tp.ones(2), axis=0)

    class Foreign:
        def __array_function__(self, func, types, args, kwargs):
            return NotImplemented

    with pytest.raises(TypeError, match="no implementation"):
        np.concatenate([tp.ones(2), Foreign()])


def test_asarray() -> None:
    x = tp.ones(2)
    assert np.asarray(x).base is not None
    np.asarray(x)[0] = 5
    assert x.tolist() == [5, 1]
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.array(x, copy=True).base is None
    with pytest.raises(ValueError, match="copy"):
        np.asarray(x, dtype=np.float64, copy=False)
    with pytest.raises(RuntimeError, match=r"requires grad.*x\.detach\(\)\.numpy\(\)"):
        np.asarray(tp.ones(2, requires_grad=True))
    with pytest.raises(NotImplementedError, match="meta"):
        np.asarray(tp.ones(2, device="meta"))


def test_classes_of_tensors_keep_their_class() -> None:
    class Special(tp.Tensor):
        pass

    s = Special([1.0, 2.0])
    assert type(np.add(s, np.ones(2))) is Special
    assert type(np.ones(2) + s) is Special
    assert type(np.sum(s)) is Special
    assert type(np.concatenate([s, tp.ones(1)])) is Special
