"""What people's code may do to tensors, nodes and passes: no crash, nothing silently wrong.

Most of it is about the extension; it has to hold without it as well.
"""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import Function, graph
from tensorplay.ops.node import PrimitiveNode


class Product(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return tp.from_numpy(x.detach().numpy() * y.detach().numpy())

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x


# --- gradients in the memory of `grad` ----------------------------------------------------------

SHARED = {
    "expanded": (lambda m: m[:4], lambda m: np.broadcast_to(m[1:2], 4)),
    "reversed": (lambda m: m[:4], lambda m: m[3::-1]),
    "behind": (lambda m: m[1:5], lambda m: m[:4]),
    "before": (lambda m: m[:4], lambda m: m[1:5]),
    "strided": (lambda m: m[1:5], lambda m: m[::2]),
    "the same": (lambda m: m[:4], lambda m: m[:4]),
    "apart": (lambda m: m[:4], lambda m: m[4:]),
    "matrix": (lambda m: m[1:5].reshape(2, 2), lambda m: m[:4].reshape(2, 2)),
    "transposed": (lambda m: m[:4].reshape(2, 2), lambda m: m[:4].reshape(2, 2).T),
    "one": (lambda m: m[:1], lambda m: m[1:2]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SHARED)
def test_gradients_that_lie_in_the_memory_of_grad_are_read_before_it_is_written(name, dtype):
    present, arriving = SHARED[name]
    memory = np.arange(1, 9).astype(dtype)
    expected = present(memory.copy()) + arriving(memory.copy())
    x = tp.tensor(np.zeros(expected.shape, dtype), requires_grad=True)
    x.grad = tp.from_numpy(present(memory))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of read-only memory, which is copied
        gradient = tp.from_numpy(arriving(memory))
    (x + 0.0).backward(gradient)
    np.testing.assert_array_equal(x.grad.numpy(), expected)
    assert np.shares_memory(x.grad.numpy(), memory)


def test_a_gradient_expanded_from_grad_itself():
    x = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x.grad = tp.tensor([1.0, 10.0, 100.0])
    (x + 0.0).backward(x.grad[1:2].expand(3))
    assert x.grad.tolist() == [11.0, 20.0, 110.0]


# --- attributes that are gone, or are not what they were ---------------------------------------

ODD = {
    "deleted": ...,
    "a number": 3,
    "a text": "x",
    "a list": [1],
    "a tuple": (),
    "object": object(),
}
SLOTS = [s for s in tp.Tensor.__slots__ if not s.startswith("__")]
NODE_SLOTS = [
    s for c in PrimitiveNode.__mro__ for s in getattr(c, "__slots__", ()) if not s.startswith("__")
]
EMPTY_EDGE = tuple.__new__(graph.Edge, ())


def spoil(owner: Any, slot: str, value: Any) -> None:
    if value is ...:
        delattr(owner, slot)
    else:
        setattr(owner, slot, value)


def leaf() -> tp.Tensor:
    return tp.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)


KINDS = {
    "leaf": leaf,
    "plain": lambda: leaf().detach().clone(),
    "result": lambda: leaf() * 2.0,
    "view": lambda: (tp.tensor([1.0, 2.0, 3.0, 4.0, 5.0], requires_grad=True) * 2.0)[1:],
}
USES = (
    lambda t, u: t + u,
    lambda t, u: u - t,
    lambda t, _: t * 2.0,
    lambda t, _: t.exp(),
    lambda t, _: t.sum(),
    lambda t, _: t.sum(0),
    lambda t, _: t.reshape((2, 2)),
    lambda t, _: t[1:],
    lambda t, _: t.expand((3, 4)),
    lambda t, _: t.detach().add_(1.0),
    lambda t, u: t.add_(u),
    lambda t, u: (t * u).sum().backward(),
    lambda t, u: t.backward(u.detach()),
    lambda t, u: (u * 1.0).backward(t),
    lambda t, u: Product.apply(t, u).sum().backward(),
    lambda t, u: tp.autograd.grad((t * u).sum(), [t]),
    lambda t, u: tp.matmul(t.reshape((2, 2)), u.reshape((2, 2))),
)


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("slot", SLOTS)
def test_a_tensor_whose_attributes_are_spoiled_is_refused_or_works(slot, value):
    for make in KINDS.values():
        for use in USES:
            t = make()
            spoil(t, slot, ODD[value])
            with contextlib.suppress(Exception):
                use(t, leaf())
        t, u = make(), leaf()
        z = (Product.apply(t, u) * t + t.exp()).sum()
        spoil(t, slot, ODD[value])  # between forward and backward
        with contextlib.suppress(Exception):
            z.backward()
    assert tp.is_grad_enabled()
    assert graph.running.passes == []


@pytest.mark.parametrize("slot", NODE_SLOTS)
def test_a_node_whose_attributes_are_spoiled_is_refused_or_works(slot):
    makers = (lambda x: x * x, tp.exp, tp.sum, lambda x: x.reshape((4, 1)), lambda x: x * 2.0)
    for value in [*ODD.values(), (1, 2), EMPTY_EDGE, [EMPTY_EDGE], None]:
        for make in makers:
            x = leaf()
            y = make(x)
            z = (y * y).sum()
            spoil(y.grad_fn, slot, value)
            for _ in range(2):
                with contextlib.suppress(Exception):
                    z.backward(retain_graph=True)
            with contextlib.suppress(Exception):
                y[:1].detach().add_(1.0)
    assert graph.running.passes == []


@pytest.mark.parametrize("slot", ["value", "history"])
def test_a_counter_whose_attributes_are_spoiled_is_refused_or_works(slot):
    uses = (
        lambda b, _: (b * b).sum().backward(),
        lambda b, _: Product.apply(b, b).sum().backward(),
        lambda b, v: v * 2.0,
        lambda b, _: b.add_(1.0),
        lambda b, v: v.add_(1.0),
        lambda b, _: b.detach().add_(1.0),
    )
    for value in ODD.values():
        for use in uses:
            b = leaf() * 1.0
            v = b[:1]
            spoil(b._counter, slot, value)
            with contextlib.suppress(Exception):
                use(b, v)
    assert graph.running.passes == []


# --- leaves that become something else ---------------------------------------------------------


class Marked(tp.Tensor):
    pass


def test_a_leaf_whose_class_is_changed_after_it_was_used():
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    z = (x * x).sum()
    x.__class__ = Marked
    z.backward(retain_graph=True)
    assert x.grad.tolist() == [2.0, 4.0]
    assert tp.autograd.grad(z, [x], retain_graph=True)[0].tolist() == [2.0, 4.0]
    z.backward(create_graph=True)
    assert x.grad.tolist() == [4.0, 8.0]


# --- interrupts --------------------------------------------------------------------------------


class Interrupt(BaseException):
    pass


def interrupted_at(number: int, run: Any) -> bool:
    """Raise where that many functions have begun, as a signal may; say whether it was reached."""
    left = number

    def count(frame: Any, event: str, _argument: object) -> None:
        nonlocal left
        # A generator that is closed begins as well, for the profiler alone.
        if event != "call" or frame.f_code.co_name == "<genexpr>":
            return
        left -= 1
        if left == 0:
            sys.setprofile(None)
            raise Interrupt

    unraisable = []
    before, sys.unraisablehook = sys.unraisablehook, unraisable.append
    sys.setprofile(count)
    try:
        run()
    except Interrupt:
        return True
    finally:
        sys.setprofile(None)
        sys.unraisablehook = before
        assert unraisable == []
    assert left > 0, "the interrupt was swallowed"
    return False


@pytest.mark.skipif(tp._native.core is None, reason="an interrupt may arrive in Python's own code")
def test_an_interrupt_anywhere_in_a_pass_arrives_and_leaves_no_trace():
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    y.register_hook(lambda g: g * 1.0)
    z = Product.apply(y, y).exp().sum()
    for number in range(1, 2000):
        reached = interrupted_at(number, lambda: z.backward(retain_graph=True))
        assert graph.running.passes == []
        assert not graph.accumulating._is_owned()
        assert np.geterr()["over"] == "warn"
        if not reached:
            break
    assert number > 10
    x.grad = None
    z.backward()
    np.testing.assert_allclose(x.grad.numpy(), [4 * np.e, 32 * np.exp(16)], rtol=1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_of_fork_can_run_a_pass_while_another_thread_of_the_parent_did():
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with graph.accumulating:
            inside.set()
            leave.wait(1)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads beside a fork
        pid = os.fork()
    if pid == 0:
        helper = threading.Thread(target=lambda: (leaf() * 2.0).sum().backward(), daemon=True)
        helper.start()
        helper.join(20)
        os._exit(helper.is_alive())
    leave.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0
    assert not graph.accumulating._is_owned()


# --- copies ------------------------------------------------------------------------------------


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickled])
def test_copies_of_modes_and_of_methods(way):
    method = tp.Tensor.__add__
    assert way(method) is method
    assert way(tp.Tensor.__imul__) is tp.Tensor.__imul__
    for make, wanted in [
        (tp.no_grad, False),
        (tp.enable_grad, True),
        (tp.inference_mode, False),
        (lambda: tp.inference_mode(mode=False), True),
    ]:
        mode = make()
        with mode:
            made = way(mode)
        assert type(made) is type(mode)
        assert tp.is_grad_enabled()
        with made:
            assert tp.is_grad_enabled() is wanted
        assert tp.is_grad_enabled()
    mode = tp.set_grad_enabled(False)
    tp.set_grad_enabled(True)
    made = way(mode)
    assert tp.is_grad_enabled()
    with made:
        assert not tp.is_grad_enabled()
    assert tp.is_grad_enabled()
    assert not made(tp.is_grad_enabled)()
    assert tp.is_grad_enabled()
