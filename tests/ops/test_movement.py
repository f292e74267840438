"""Views and rearrangements: shared memory, strides, what is kept for backward, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorplay as tp
from tensorplay.ops import OPERATORS

# --- chains of views against NumPy ----------------------------------------------------------------


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Draw an array of up to three dimensions, of any layout: transposed, with steps, reversed."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    steps = [draw(st.sampled_from((1, 2, -1))) for _ in shape]
    source = np.arange(float(math.prod(n * 2 for n in shape))).reshape([n * 2 for n in shape])
    part = source[(*(slice(None, None, s) for s in steps), ...)]
    part = part[(*(slice(n) for n in shape), ...)]
    return part.transpose(draw(st.permutations(range(len(shape)))))


@st.composite
def moved(draw: st.DrawFn, x: tp.Tensor, a: Any) -> tuple[tp.Tensor, Any]:
    """One more view of a tensor and of the array that stands for it."""
    ndim = a.ndim
    kinds = ["unsqueeze", "squeeze", "permute", "flatten"]
    kinds += ["transpose", "slice"] if ndim else []
    kinds += ["select"] if ndim and a.shape[0] else []
    kinds += ["diagonal"] if ndim > 1 else []
    kind = draw(st.sampled_from(kinds))
    if kind == "unsqueeze":
        dim = draw(st.integers(-ndim - 1, ndim))
        return x.unsqueeze(dim), np.expand_dims(a, dim)
    if kind == "squeeze":
        return x.squeeze(), a.squeeze()
    if kind == "permute":
        dims = draw(st.permutations(range(ndim)))
        return x.permute(*dims), a.transpose(dims)
    if kind == "flatten":
        return x.flatten(), a.reshape(-1)
    if kind == "transpose":
        p, q = draw(st.integers(-ndim, ndim - 1)), draw(st.integers(-ndim, ndim - 1))
        return x.transpose(p, q), a.swapaxes(p, q)
    if kind == "slice":
        start, stop = draw(st.integers(-5, 5)), draw(st.one_of(st.none(), st.integers(-5, 5)))
        step = draw(st.integers(1, 3))
        return x.slice(-1, start, stop, step), a[..., slice(start, stop, step)]
    if kind == "select":
        return x.select(0, -1), a[-1, ...]
    offset = draw(st.integers(-3, 3))
    return x.diagonal(offset, 0, 1), a.diagonal(offset, 0, 1)


@given(st.data())
def test_chain_of_views_is_that_of_numpy(data: st.DataObject) -> None:
    a = data.draw(arrays())
    x = tp.from_numpy(a)
    for _ in range(data.draw(st.integers(1, 4))):
        before = x
        x, a = data.draw(moved(x, a))
        assert tuple(x.shape) == a.shape
        np.testing.assert_array_equal(x.numpy(), a)
        a = x.numpy()  # where both copied, they are two copies
        # Shared memory is known as such: versions move together.
        if x.numel() and np.may_share_memory(x.numpy(), before.numpy()):
            assert x._base is not None
            version = before._version
            x.add_(1)
            assert before._version == version + 1
            np.testing.assert_array_equal(x.numpy(), a)


VIEWS: dict[str, Any] = {
    "reshape": lambda x: x.reshape(6, 4),
    "view": lambda x: x.view(-1, 4),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, -1)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, -1),
    "t": lambda x: x[0].t(),
    "T": lambda x: x[0].T,
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, 2),
    "squeeze": lambda x: x[:1].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 5, -1, -1)[:, 0],
    "select": lambda x: x.select(1, -1),
    "slice": lambda x: x.slice(2, 1, None, 2),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "unbind": lambda x: x.unbind(1)[2],
    "split": lambda x: x.split(2, 1)[1],
    "chunk": lambda x: x.chunk(2, 2)[1],
    "getitem": lambda x: x[..., None, 1:, ::2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_shares_memory_version_and_strides_of_meta(name: str) -> None:
    x = tp.from_numpy(np.arange(24.0).reshape(2, 3, 4))
    y = VIEWS[name](x)
    y.fill_(-1)
    assert x._version == y._version == 1
    assert int((x == -1).sum()) == y.numel()
    twin = VIEWS[name](x.to("meta"))
    sizes = [(n, s) for n, s in zip(y.shape, y.stride(), strict=True) if n > 1]
    assert [(n, s) for n, s in zip(twin.shape, twin.stride(), strict=True) if n > 1] == sizes


def test_expand_has_stride_zero_and_refuses_writes() -> None:
    x = tp.ones(3, 1)
    y = x.expand(3, 4)
    assert y.stride() == (1, 0)
    with pytest.raises(RuntimeError, match="single memory location"):
        y.add_(1)
    y[:, 0].add_(1)
    assert x.tolist() == [[2.0], [2.0], [2.0]]


def test_reshape_copies_where_strides_do_not_allow_a_view() -> None:
    x = tp.from_numpy(np.arange(6.0).reshape(2, 3))
    y = x.t().reshape(6)
    y.zero_()
    assert x._version == 0
    assert y._base is None
    assert y.is_contiguous()


def test_clone_of_an_expanded_tensor_is_row_major() -> None:
    assert tp.ones(3).expand(2, 3).clone().is_contiguous()
    assert tp.ones(2, 3).t().clone().stride() == (1, 3)


# --- backward keeps shapes only -------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        *VIEWS.values(),
        lambda x: x.flip(0),
        lambda x: x.roll(1, 0),
        lambda x: x.tril(),
        lambda x: x.repeat(2, 1, 1),
        lambda x: x.repeat_interleave(2, 1),
        lambda x: tp.pad(x, (1, 1)),
        lambda x: tp.cat([x, x]),
        lambda x: tp.stack([x, x]),
    ],
)
def test_input_may_change_before_backward(make: Any) -> None:
    leaf = tp.ones(2, 3, 4).requires_grad_()
    x = leaf * 1
    y = make(x).sum() * 1
    with tp.no_grad():
        x.mul_(5)
    y.backward()
    assert leaf.grad is not None
    assert float(leaf.grad.sum()) == float(make(tp.ones(2, 3, 4)).sum())


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_graph_of_views_can_run_twice(name: str) -> None:
    leaf = tp.ones(2, 3, 4).requires_grad_()
    y = VIEWS[name](leaf).sum()
    y.backward()
    y.backward()
    assert leaf.grad is not None
    assert set(leaf.grad.flatten().tolist()) <= {0.0, 2.0}


# --- forms of calls -------------------------------------------------------------------------------


def test_sizes_may_be_separate_or_one_sequence() -> None:
    x = tp.ones(2, 3)
    assert x.reshape(3, 2).shape == x.reshape((3, 2)).shape == x.reshape([3, 2]).shape == (3, 2)
    assert x.reshape(tp.Size([6])).shape == x.reshape(np.int64(6)).shape == (6,)
    assert x.permute(1, 0).shape == x.permute((1, 0)).shape == tp.permute(x, (1, 0)).shape == (3, 2)
    assert x.expand(4, -1, 3).shape == x.expand((4, -1, 3)).shape == (4, 2, 3)
    assert x.view_as(tp.ones(6)).shape == (6,)
    assert x.swapaxes(0, 1).shape == (3, 2)
    assert x.squeeze((0, 1)).shape == (2, 3)
    assert x.movedim((0, 1), (1, 0)).shape == (3, 2)
    assert tp.ones(2, 3, 4).flip(0, 1).shape == (2, 3, 4)


def test_parts_are_tuples_of_the_right_sizes() -> None:
    x = tp.ones(7, 2)
    assert [len(p) for p in x.split(3)] == [3, 3, 1]
    assert [len(p) for p in x.split([2, 0, 5])] == [2, 0, 5]
    assert [len(p) for p in x.chunk(3)] == [3, 3, 1]
    assert len(tp.ones(0, 2).unbind()) == 0
    assert [p.shape for p in tp.ones(0, 2).chunk(2)] == [(0, 2), (0, 2)]
    assert [p.shape for p in tp.ones(0).split(0)] == [(0,)]
    assert isinstance(x.split(3), tuple)


def test_broadcast_tensors() -> None:
    a, b = tp.broadcast_tensors(tp.ones(2, 1), tp.ones(3))
    assert a.shape == b.shape == (2, 3)


def test_function_names_exist_at_top_level_where_the_field_has_them() -> None:
    assert not hasattr(tp, "view")
    assert not hasattr(tp, "expand")
    for name in ("reshape", "permute", "split", "chunk", "movedim", "pad", "roll", "flip", "tile"):
        assert callable(getattr(tp, name))


# --- errors ---------------------------------------------------------------------------------------

X = tp.ones(2, 3)
ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: X.view(5), RuntimeError, "is invalid for input of size 6"),
    (lambda: X.t().view(6), RuntimeError, "view size is not compatible"),
    (lambda: X.reshape(-1, -1), RuntimeError, "only one dimension can be inferred"),
    (lambda: tp.zeros(0).reshape(-1, 0), RuntimeError, "ambiguous"),
    (lambda: X.reshape(-2, 3), RuntimeError, "invalid shape dimension -2"),
    (lambda: X.reshape(4, -1), RuntimeError, "is invalid for input of size 6"),
    (lambda: X.permute(0, 0), RuntimeError, "duplicate dims"),
    (lambda: X.permute(0), RuntimeError, "does not match the length"),
    (
        lambda: tp.ones(1).transpose(0, 2),
        IndexError,
        r"Dimension out of range \(expected to be in range of \[-1, 0\], but got 2\)",
    ),
    (lambda: tp.tensor(1.0).transpose(0, 1), IndexError, "Dimension out of range"),
    (lambda: X.unsqueeze(4), IndexError, r"range of \[-3, 2\], but got 4"),
    (lambda: X.squeeze(2), IndexError, "Dimension out of range"),
    (lambda: X.flatten(1, 0), RuntimeError, "start_dim 1 cannot come after end_dim 0"),
    (lambda: X.select(0, 2), IndexError, "index 2 out of range"),
    (lambda: tp.tensor(1.0).select(0, 0), IndexError, "0-d"),
    (lambda: X.slice(0, 0, 2, 0), ValueError, "step must be greater than zero"),
    (lambda: X.narrow(0, 1, 2), RuntimeError, "exceeds dimension size"),
    (lambda: X.narrow(0, 0, -1), RuntimeError, "length must be non-negative"),
    (lambda: X.narrow(0, 3, 0), IndexError, "start out of range"),
    (lambda: X.split([1, 2]), RuntimeError, "sum exactly to 2"),
    (lambda: X.split(0), RuntimeError, "split_size can only be 0"),
    (lambda: X.chunk(0), RuntimeError, "greater than 0"),
    (lambda: tp.tensor(1.0).unbind(), IndexError, "no dimensions"),
    (lambda: X.diagonal(0, 1, 1), RuntimeError, "cannot be identical"),
    (
        lambda: tp.ones(2, 1).expand(3, 1),
        RuntimeError,
        r"expanded size of the tensor \(3\) must match the existing size \(2\)",
    ),
    (lambda: X.expand(3), RuntimeError, "greater or equal to the number of dimensions"),
    (lambda: X.expand(-1, 2, 3), RuntimeError, "isn't allowed in dimension 0"),
    (lambda: X.repeat(2), RuntimeError, "can not be smaller than number of dimensions"),
    (lambda: X.flip(0, 0), RuntimeError, "appears multiple times"),
    (lambda: X.roll((1, 2), 0), RuntimeError, "must align"),
    (lambda: tp.tensor(3.0).roll(1, 0), IndexError, "argument 'dims': expected none"),
    (lambda: tp.tensor(3.0, device="meta").roll(1, -1), IndexError, "argument 'dims'"),
    (lambda: tp.ones(3).tril(), RuntimeError, "at least 2 dimensions"),
    (lambda: tp.pad(X, (1,)), RuntimeError, "divisible by 2"),
    (lambda: tp.pad(X, (-2, -2)), RuntimeError, "negative output size"),
    (lambda: tp.pad(X, (1, 1), mode="mirror"), NotImplementedError, "mode"),
    (lambda: tp.pad(X, (4, 1), mode="reflect"), RuntimeError, "padding size should be at most"),
    (lambda: tp.pad(X, (9, 1), mode="circular"), RuntimeError, "padding size should be at most"),
    (lambda: tp.pad(X[:0].t(), (1, 1), mode="replicate"), RuntimeError, "padding size"),
    (lambda: tp.ones(3).mT, RuntimeError, "only supported on matrices"),
    (lambda: tp.ones(2, 2, 2).t(), RuntimeError, "<= 2 dimensions"),
    (
        lambda: X.movedim((0, 1), (0,)),
        RuntimeError,
        "same number of dimensions|same number of dims",
    ),
    (lambda: tp.broadcast_tensors(X, tp.ones(2)), RuntimeError, "must match the size of tensor b"),
]


@pytest.mark.parametrize(("call", "kind", "text"), ERRORS)
def test_error(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        call()
    assert str(caught.value).startswith("[")


@pytest.mark.parametrize(("call", "kind", "text"), ERRORS)
def test_meta_raises_the_same(
    call: Any, kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "X", X.to("meta"))
    with pytest.raises(kind, match=text):
        call()


def test_views_are_declared_as_such() -> None:
    views = {
        "reshape",
        "permute",
        "transpose",
        "squeeze",
        "unsqueeze",
        "expand",
        "_slice",
        "unbind",
    }
    views |= {"split_with_sizes", "diagonal"}
    assert {n for n, o in OPERATORS.items() if getattr(o, "view", False)} >= views


# --- geometry in place ----------------------------------------------------------------------------


def test_inplace_geometry_changes_the_tensor_itself() -> None:
    x = tp.arange(6).reshape(2, 3).clone()
    memory = x.data_ptr()
    assert x.t_() is x
    assert x.shape == (3, 2)
    assert x.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert x.unsqueeze_(0).shape == (1, 3, 2)
    assert x.swapaxes_(1, 2).shape == (1, 2, 3)
    assert x.squeeze_().shape == (2, 3)
    assert x.data_ptr() == memory
    assert x._version == 4


def test_inplace_geometry_is_part_of_the_graph() -> None:
    leaf = tp.arange(6, dtype=tp.float64).reshape(2, 3).clone().requires_grad_()
    x = leaf * 2
    x.t_()
    x[0] = 1.0
    (x * tp.arange(6, dtype=tp.float64).reshape(3, 2)).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [[0.0, 4.0, 8.0], [0.0, 6.0, 10.0]]
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        leaf.t_()


def test_views_made_before_a_change_of_geometry_stay_right() -> None:
    leaf = tp.ones(2, 3, dtype=tp.float64).requires_grad_()
    x = leaf * 2
    row = x[0]
    x.t_()
    x[0].mul_(5)  # the first column of what x was
    assert row.tolist() == [10.0, 2.0, 2.0]
    row.mul_(3)
    assert x.tolist() == [[30.0, 10.0], [6.0, 2.0], [6.0, 2.0]]
    (row.sum() + x.sum()).backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [[60.0, 12.0, 12.0], [10.0, 2.0, 2.0]]


def test_view_that_becomes_a_leaf_guards_its_views() -> None:
    base = tp.ones(3)
    leaf = base[:2].requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        leaf[0].mul_(2)
    (leaf * 3).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [3.0, 3.0]
