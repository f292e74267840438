"""Hooks on saved tensors: how they are kept, and writes to what was saved."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import Function, grad
from tensorplay.autograd.graph import (
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)


def leaf(*values):
    return tp.tensor(list(values), dtype=tp.float64, requires_grad=True)


def to_numpy(tensor):
    return tensor.detach().numpy().copy()


def test_pack_runs_once_per_saved_tensor_and_unpack_at_every_read():
    packed, unpacked = [], []

    def pack(tensor):
        packed.append(tensor)
        return to_numpy(tensor)

    def unpack(array):
        unpacked.append(array)
        return tp.from_numpy(array)

    x, y = leaf(2.0), leaf(3.0)
    with saved_tensors_hooks(pack, unpack):
        z = (x * y).sum()
    assert len(packed) == 2
    assert not unpacked
    z.backward(retain_graph=True)
    assert (x.grad.item(), y.grad.item()) == (3.0, 2.0)
    z.backward()
    assert len(unpacked) == 4
    assert len(packed) == 2


def test_saved_results_are_packed_without_a_cycle():
    x = leaf(0.5)
    with saved_tensors_hooks(to_numpy, tp.from_numpy):
        y = x.exp()
    reference = weakref.ref(y.grad_fn)
    (g,) = grad(y.sum(), x)
    assert g.item() == pytest.approx(np.exp(0.5))
    gc.disable()
    try:
        del y
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("function", [lambda x: x * x, lambda x: x.exp(), lambda x: (x * 2).sin()])
def test_second_derivatives_go_through_unpacked_tensors(function):
    x = leaf(0.3, -1.2)
    with saved_tensors_hooks(to_numpy, tp.from_numpy):
        (first,) = grad(function(x).sum(), x, create_graph=True)
    (second,) = grad(first.sum(), x)
    (expected,) = grad(grad(function(x).sum(), x, create_graph=True)[0].sum(), x)
    np.testing.assert_allclose(second.numpy(), expected.numpy())


def test_a_function_packs_what_it_saves():
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, None)
            return x * x

        @staticmethod
        def backward(ctx, g):
            x, nothing = ctx.saved_tensors
            assert nothing is None
            return 2 * g * x

    seen = []
    x = leaf(3.0)
    with saved_tensors_hooks(lambda t: seen.append(t) or to_numpy(t), tp.from_numpy):
        y = Square.apply(x)
    assert len(seen) == 1
    assert grad(y.sum(), x)[0].item() == 6.0


def test_the_innermost_context_serves():
    seen = []
    x = leaf(2.0)
    with (
        saved_tensors_hooks(lambda t: seen.append("outer") or t, lambda t: t),
        saved_tensors_hooks(lambda t: seen.append("inner") or t, lambda t: t),
    ):
        x * x
    assert set(seen) == {"inner"}


def test_hooks_belong_to_the_thread():
    seen = []
    x = leaf(2.0)

    def work():
        x * x

    with saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert not seen


def test_unpack_must_return_a_tensor():
    x = leaf(2.0)
    with saved_tensors_hooks(lambda t: t, lambda t: 1.0):
        y = (x * x).sum()
    with pytest.raises(TypeError, match="unpack hook to return a Tensor, got float"):
        y.backward()


def test_pack_must_not_change_its_input():
    x = leaf(2.0)
    y = x * 1

    def pack(tensor):
        tensor.mul_(2)
        return tensor

    with (
        saved_tensors_hooks(pack, lambda t: t),
        pytest.raises(RuntimeError, match="pack hook is modifying its input"),
    ):
        y * y


def test_hooks_must_be_functions():
    with pytest.raises(TypeError, match="pack_hook"):
        saved_tensors_hooks(1, lambda t: t)


def test_an_exception_in_pack_leaves_the_graph_usable():
    x = leaf(2.0)

    def pack(tensor):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), saved_tensors_hooks(pack, lambda t: t):
        x * x
    assert grad((x * x).sum(), x)[0].item() == 4.0


def test_version_is_not_checked_where_hooks_keep_a_copy():
    x = leaf(2.0)
    y = x * 1
    with saved_tensors_hooks(to_numpy, tp.from_numpy):
        z = (y * y).sum()
    y.mul_(10)
    z.backward()
    assert x.grad.item() == 4.0


def test_save_on_cpu():
    x = leaf(2.0, 3.0)
    for pin in (False, True):
        with save_on_cpu(pin_memory=pin):
            y = (x.exp() * x).sum()
        (g,) = grad(y, x)
        v = x.detach().numpy()
        np.testing.assert_allclose(g.numpy(), np.exp(v) * (1 + v))


def test_disabled_hooks_raise_the_given_message():
    with (
        disable_saved_tensors_hooks("not here"),
        pytest.raises(RuntimeError, match="not here"),
        saved_tensors_hooks(lambda t: t, lambda t: t),
    ):
        pass
    with (
        saved_tensors_hooks(lambda t: t, lambda t: t),
        pytest.raises(RuntimeError, match="not there"),
        disable_saved_tensors_hooks("not there"),
    ):
        pass
    with disable_saved_tensors_hooks("a"):
        with disable_saved_tensors_hooks("b"):
            pass
        with pytest.raises(RuntimeError, match="a"), save_on_cpu():
            pass
    with save_on_cpu():
        pass


def test_saved_values_can_be_read_from_the_node_and_hooked():
    x, y = leaf(2.0), leaf(3.0)
    z = x * y
    assert z.grad_fn._saved_input.item() == 2.0
    raw = z.grad_fn._raw_saved_input
    raw.register_hooks(lambda t: to_numpy(t) * 10, tp.from_numpy)
    with pytest.raises(RuntimeError, match="already been registered"):
        raw.register_hooks(lambda t: t, lambda t: t)
    z.sum().backward()
    assert (x.grad.item(), y.grad.item()) == (3.0, 20.0)
    with pytest.raises(AttributeError, match=r"input.*freed"):
        _ = z.grad_fn._saved_input
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = (x * y).grad_fn._saved_nothing_like_it


def test_writes_to_saved_tensors_may_be_allowed():
    x = leaf(1.0, 2.0)
    with allow_mutation_on_saved_tensors() as copies:
        y = x * 1
        z = (y * y).sum()
        y.mul_(5)
        assert copies.copied == 1  # both factors are one saved tensor
        part = y[:1]
        part.zero_()
        w = (y * 3).sum()
    (g,) = grad(z, x, retain_graph=True)
    assert g.tolist() == [2.0, 4.0]
    (h,) = grad(w, x)
    assert h.tolist() == [0.0, 15.0]


def test_second_derivatives_after_allowed_writes():
    x = leaf(3.0)
    with allow_mutation_on_saved_tensors():
        y = x * 1
        z = (y * y * y).sum()
        y.zero_()
        (first,) = grad(z, x, create_graph=True)
        (second,) = grad(first.sum(), x)
    assert (first.item(), second.item()) == (27.0, 18.0)


def test_a_write_to_a_saved_result_may_be_allowed():
    x = leaf(0.0)
    with allow_mutation_on_saved_tensors():
        y = x.exp()
        y.add_(10)
    assert grad(y.sum(), x)[0].item() == 1.0


def test_a_leaf_written_without_recording_keeps_its_saved_value():
    w = leaf(2.0)
    with allow_mutation_on_saved_tensors():
        loss = (w * w).sum()
        with tp.no_grad():
            w.add_(100)
        loss.backward()
    assert w.grad.item() == 4.0


def test_without_the_context_the_write_is_an_error_again():
    x = leaf(1.0)
    with allow_mutation_on_saved_tensors() as copies:
        y = x * 1
        z = (y * y).sum()
        copies.clear()
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()
        with pytest.raises(RuntimeError, match="don't nest"), allow_mutation_on_saved_tensors():
            pass


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("operator", ["mul", "cumprod"])  # on the short way, and on the long one
def test_a_history_that_was_cut_off_in_place_is_missed(operator: str, again: bool) -> None:
    x = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    h = x * 1
    y = (h * h * h).sum() if operator == "mul" else h.cumprod(0).sum()
    h.detach_()
    if again:
        h.requires_grad_()
    (first,) = tp.autograd.grad(y, x, retain_graph=True)  # of the first order all is there
    assert first.tolist() == ([3, 12, 27] if operator == "mul" else [9, 4, 2])
    with pytest.raises(RuntimeError, match=r"detached in place.*Write h = h\.detach\(\)"):
        tp.autograd.grad(y, x, create_graph=True)


def test_leaves_that_were_saved_have_second_derivatives() -> None:
    x = tp.tensor([2.0], requires_grad=True)
    y = (x * x * x).sum()
    assert y.grad_fn is not None
    assert y.grad_fn.next_functions  # the edges are made
    (g,) = tp.autograd.grad(y, x, create_graph=True)
    assert tp.autograd.grad(g.sum(), x)[0].tolist() == [12]
