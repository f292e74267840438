"""Writes in place: version counters, and the histories of bases and views."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay.autograd import grad, gradcheck, gradgradcheck


def leaf(*values):
    return tp.tensor(list(values), dtype=tp.float64, requires_grad=True)


def test_versions_count_writes():
    x = tp.ones(3)
    assert x._version == 0
    x.add_(1)
    x[0] = 5.0
    assert x._version == 2
    assert x.clone()._version == 0
    assert (x + 1)._version == 0


def test_views_and_detached_tensors_share_the_counter():
    x = tp.ones(3)
    view, detached, other = x[1:], x.detach(), x.data
    view.add_(1)
    assert [t._version for t in (x, view, detached, other)] == [1, 1, 1, 0]
    detached.add_(1)
    assert [t._version for t in (x, view, detached, other)] == [2, 2, 2, 0]
    other.add_(1)
    assert x._version == 2


def test_write_through_detached_tensor_is_found():
    x = leaf(2.0)
    y = x * 1
    out = (y * y).sum()
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="version 1; expected version 0"):
        out.backward()


def test_leaves_are_protected():
    x = leaf(1.0, 2.0)
    pattern = "leaf Variable that requires grad is being used in an in-place operation"
    with pytest.raises(RuntimeError, match=pattern):
        x.add_(1)
    with pytest.raises(RuntimeError, match=f"view of a {pattern}"):
        x[1:].add_(1)
    with tp.no_grad():
        x.add_(1)
        x[1:].mul_(10)
    assert x.tolist() == [2.0, 30.0]
    assert x.is_leaf


def test_views_made_without_recording_are_refused():
    y = leaf(1.0, 2.0) * 1
    with tp.no_grad():
        view = y[1:]
    with pytest.raises(RuntimeError, match="no_grad mode"):
        view.add_(1)


def test_expanded_tensors_are_refused():
    with pytest.raises(RuntimeError, match="single memory location"):
        tp.ones(1).expand(3).add_(1)


def test_chain_of_writes():
    x = leaf(2.0)
    y = x * 1
    y.mul_(y)  # x**2
    y.mul_(x)  # x**3
    y.exp_()
    assert gradcheck(lambda x: (x * 1).mul_(x).mul_(x).exp_(), (leaf(0.5),))
    (g,) = grad(y.sum(), x)
    assert g.item() == pytest.approx(12.0 * y.item())


def through_view(x, w):
    y = x * 2
    y[1:].mul_(w)
    return y * y


def through_view_of_view(x, w):
    y = x * 2
    view = y[1:]
    view[:1].mul_(w[:1])
    view.mul_(w)
    return y * y


def view_after_base(x, w):
    y = x * 2
    view = y[1:]
    y.mul_(x)
    return view * w


def base_after_view(x, w):
    y = x * 2
    view = y[1:]
    view.mul_(w)
    y.mul_(3)
    return view * y[0]


def through_transpose(x, w):
    y = (x * 2).reshape(1, 3).expand(2, 3).clone()
    y.t()[1:].mul_(w.reshape(2, 1))
    return y * y


def into_zeros(x, w):
    y = tp.zeros(3, dtype=tp.float64)
    y[:2] = w
    y[2:].add_(x[:1])
    return y * x


def replaced(x, w):
    y = x * x
    y[1:].copy_(w)
    return y


def filled(x, w):
    y = x * x
    y[1:].zero_()
    return y * w[0]


@pytest.mark.parametrize(
    "function",
    [
        through_view, through_view_of_view, view_after_base, base_after_view, through_transpose,
        into_zeros, replaced, filled,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_histories_of_bases_and_views(function):
    x = tp.rand(3, dtype=tp.float64, requires_grad=True)
    w = tp.rand(2, dtype=tp.float64, requires_grad=True)
    assert gradcheck(function, (x, w))
    assert gradgradcheck(function, (x, w))


def test_write_through_a_real_part():
    def function(z, w):
        y = z * 2
        y.real.mul_(w)
        return y * y

    z = tp.tensor([1 + 2j, 0.5 - 1j], dtype=tp.complex128, requires_grad=True)
    w = tp.rand(2, dtype=tp.float64, requires_grad=True)
    assert gradcheck(function, (z, w))


def test_view_follows_its_base_lazily():
    x = leaf(1.0, 2.0)
    y = x * 2
    view = y[1:]
    first = view.grad_fn
    y.mul_(3)
    assert view.grad_fn is not first
    assert grad(view.sum(), x)[0].tolist() == [0.0, 6.0]


def test_constant_becomes_part_of_the_graph():
    y = tp.zeros(2, dtype=tp.float64)
    view = y[1:]
    view.add_(leaf(1.0))
    assert y.requires_grad
    assert not y.is_leaf
    assert y.grad_fn.name() == "CopySlices"


def test_freed_write_through_a_view_raises_the_second_time():
    x = leaf(1.0, 2.0)
    y = x * 2
    y[1:].mul_(x[:1])
    out = y.sum()
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_retained_gradient_of_a_base_written_through_a_view():
    x = leaf(1.0, 2.0)
    y = x * 2
    y.retain_grad()
    y[1:].mul_(5)
    (y * 3).sum().backward()
    assert y.grad.tolist() == [3.0, 3.0]
    assert x.grad.tolist() == [6.0, 30.0]


def test_windows_that_overlap_are_not_written():
    x = tp.arange(6.0)
    windows = x.unfold(0, 3, 1)
    with pytest.raises(RuntimeError, match="single memory location"):
        windows.add_(1)
    apart = x.unfold(0, 3, 3)
    apart.add_(1)
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    for view in (x.reshape(2, 3).t(), x[::2], x[1:1], x[:1]):
        view.add_(0)
