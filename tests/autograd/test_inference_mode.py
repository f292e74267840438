"""Inference mode: tensors that can never be recorded."""

from __future__ import annotations

import threading

import pytest

import tensorplay as tp


def leaf(*values):
    return tp.tensor(list(values), dtype=tp.float64, requires_grad=True)


def test_tensors_made_inside_are_marked():
    x = leaf(1.0)
    with tp.inference_mode():
        assert tp.is_inference_mode_enabled()
        assert not tp.is_grad_enabled()
        made = [x * 2, tp.ones(2), tp.tensor([1.0]), tp.Tensor([1.0]), tp.rand(2), x.clone()]
    assert not tp.is_inference_mode_enabled()
    assert tp.is_grad_enabled()
    assert all(t.is_inference() and not t.requires_grad for t in made)
    assert not (x * 2).is_inference()


def test_views_are_of_the_kind_of_their_base():
    x = leaf(1.0, 2.0)
    with tp.inference_mode():
        made = tp.ones(2, 2)
        views = [x[0], x.view(2, 1), x.detach()]
        own = made[0]
    assert not any(v.is_inference() for v in views)
    assert own.is_inference()
    assert made[1].is_inference()
    assert made.detach().is_inference()


def test_no_version_counter():
    with tp.inference_mode():
        made = tp.ones(2)
        made.add_(1)
    with pytest.raises(RuntimeError, match="do not track version counter"):
        made._version  # noqa: B018 - reading is what fails


def test_cannot_be_saved_for_backward():
    x = leaf(1.0, 2.0)
    with tp.inference_mode():
        made = tp.ones(2, dtype=tp.float64)
    with pytest.raises(RuntimeError, match="cannot be saved for backward"):
        x * made
    (x + made).sum().backward()  # nothing is saved here
    assert x.grad.tolist() == [1.0, 1.0]
    (x * made.clone()).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_function_cannot_save_one():
    class Keep(tp.autograd.Function):
        @staticmethod
        def forward(ctx, x, other):
            ctx.save_for_backward(other)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0], None

    with tp.inference_mode():
        made = tp.ones(1)
    with pytest.raises(RuntimeError, match="cannot be saved for backward"):
        Keep.apply(leaf(1.0), made)


def test_writes_outside_are_refused():
    with tp.inference_mode():
        made = tp.ones(2)
        made.mul_(3)
    for write in (lambda: made.add_(1), made[0].zero_, lambda: made.__setitem__(0, 1.0)):
        with pytest.raises(RuntimeError, match="inference"):
            write()
    with pytest.raises(RuntimeError, match="inference"):
        made.requires_grad_()
    with pytest.raises(RuntimeError, match="inference"):
        made.requires_grad = True
    assert made.tolist() == [3.0, 3.0]
    made.requires_grad_(False)
    copy = made.clone()
    copy.add_(1).requires_grad_()
    assert copy.tolist() == [4.0, 4.0]


def test_normal_tensors_may_be_written_inside():
    x = leaf(1.0)
    y = x * 1
    z = (y * y).sum()
    with tp.inference_mode():
        x.add_(1)
        y.add_(1)
    assert y._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_grad_mode_cannot_be_switched_on_inside():
    x = leaf(1.0)
    with tp.inference_mode():
        with tp.enable_grad():
            assert not (x * 2).requires_grad
        with tp.set_grad_enabled(True):
            assert not (x * 2).requires_grad
        with tp.inference_mode(False):
            assert (x * 2).requires_grad
            assert not (x * 2).is_inference()
        assert (x * 2).is_inference()
    assert tp.is_grad_enabled()
    with tp.no_grad(), tp.inference_mode(False):
        assert not tp.is_grad_enabled()


def test_decorator_and_generator():
    @tp.inference_mode()
    def function(x):
        return x * 2

    @tp.inference_mode
    def bare(x):
        return x * 2

    @tp.inference_mode(mode=False)
    def normal(x):
        return x * 2

    @tp.inference_mode()
    def generator(x):
        yield x * 2

    x = leaf(1.0)
    assert function(x).is_inference()
    assert bare(x).is_inference()
    assert not normal(x).is_inference()
    steps = generator(x)
    assert next(steps).is_inference()
    assert not tp.is_inference_mode_enabled()


def test_an_exception_ends_the_mode():
    with pytest.raises(ValueError, match="x"), tp.inference_mode():
        raise ValueError("x")
    assert not tp.is_inference_mode_enabled()
    assert not tp.ones(1).is_inference()


def test_the_mode_belongs_to_the_thread():
    found = []

    def work():
        found.append(tp.ones(1).is_inference())

    with tp.inference_mode():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [False]
