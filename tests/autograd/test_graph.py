"""Gradient edges and hooks on several tensors."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

import tensorplay as tp
from tensorplay.autograd import backward, grad
from tensorplay.autograd.graph import get_gradient_edge, register_multi_grad_hook


def leaf(*values):
    return tp.tensor(list(values), dtype=tp.float64, requires_grad=True)


def test_edges_stand_for_tensors_in_grad():
    x = leaf(2.0)
    y = x * x
    z = y * 3
    (g,) = grad(z.sum(), get_gradient_edge(y), retain_graph=True)
    assert g.item() == 3.0
    (g,) = grad(get_gradient_edge(z), x, grad_outputs=tp.tensor([1.0], dtype=tp.float64))
    assert g.item() == 12.0


def test_an_edge_names_node_and_output():
    x = leaf(1.0, 2.0)
    a, b = x.unbind()
    assert get_gradient_edge(b).node is a.grad_fn
    assert get_gradient_edge(b).output_nr == 1
    assert get_gradient_edge(get_gradient_edge(b)) == get_gradient_edge(b)
    assert get_gradient_edge(x).node is get_gradient_edge(x).node


def test_an_edge_does_not_keep_the_tensor():
    x = leaf(1.0)
    y = x * 2
    edge = get_gradient_edge(y)
    reference = weakref.ref(y)
    z = y + 1
    del y
    gc.collect()
    assert reference() is None
    assert grad(z.sum(), edge)[0].item() == 1.0


def test_roots_and_missing_gradients_at_edges():
    x, other = leaf(2.0), leaf(1.0, 1.0)
    y = x * 3
    backward(get_gradient_edge(y))
    assert x.grad.item() == 3.0
    unused = get_gradient_edge(other * 2)
    (g,) = grad((x * 3).sum(), unused, materialize_grads=True)
    assert g.tolist() == [0.0, 0.0]


def test_no_edge_without_grad():
    with pytest.raises(RuntimeError, match="does not require gradients"):
        get_gradient_edge(tp.ones(2))


def test_multi_grad_hook_waits_for_all():
    x, y, z = leaf(1.0), leaf(2.0), leaf(3.0)
    seen = []
    handle = register_multi_grad_hook([x, y, z], seen.append)
    (x * y).sum().backward()
    assert len(seen) == 1
    assert [None if g is None else g.item() for g in seen[0]] == [2.0, 1.0, None]
    (x * y * z).sum().backward()
    assert [g.item() for g in seen[1]] == [6.0, 3.0, 2.0]
    handle.remove()
    (x * y).sum().backward()
    assert len(seen) == 2


def test_multi_grad_hook_counts_what_the_pass_computes():
    x, y = leaf(1.0), leaf(2.0)
    a, b = x * 2, y * 3
    seen = []
    register_multi_grad_hook((a, b), seen.append)
    loss = (a * b).sum()
    grad(loss, x, retain_graph=True)
    assert [None if g is None else g.item() for g in seen[0]] == [6.0, None]
    loss.backward()
    assert [g.item() for g in seen[1]] == [6.0, 2.0]


def test_multi_grad_hook_after_a_pass_that_failed():
    x, y = leaf(1.0), leaf(2.0)
    seen = []
    register_multi_grad_hook((x, y), seen.append)
    late = x * 2
    early = y * 1

    def fail(g):
        raise ValueError("stop")

    handle = late.register_hook(fail)
    with pytest.raises(ValueError, match="stop"):
        (late * 1 + early).sum().backward(retain_graph=True)
    handle.remove()
    seen.clear()
    x.grad = y.grad = None
    (x * y).sum().backward()
    assert [g.item() for g in seen[0]] == [2.0, 1.0]


def test_multi_grad_hook_keeps_the_passes_of_two_threads_apart():
    x, y = leaf(1.0), leaf(2.0)
    seen = []
    register_multi_grad_hook((x, y), lambda grads: seen.append([g.item() for g in grads]))
    inside, go_on = threading.Event(), threading.Event()

    def wait(_):
        inside.set()
        assert go_on.wait(30)

    slow = x * 3
    slow.register_hook(wait)
    # The gradient of y, which has arrived when the thread waits, is kept for that pass alone.
    thread = threading.Thread(target=(slow.sum() + y * 1).sum().backward)
    thread.start()
    assert inside.wait(30)
    (x * 5 + y * 7).sum().backward()
    go_on.set()
    thread.join(30)
    assert seen == [[5.0, 7.0], [3.0, 1.0]]


def test_multi_grad_hook_in_mode_any():
    x, y = leaf(1.0), leaf(2.0)
    seen = []
    register_multi_grad_hook([x, y], lambda g: seen.append(g.item()), mode="any")
    (x * y).sum().backward()
    assert len(seen) == 1
    assert seen[0] in {1.0, 2.0}


def test_multi_grad_hook_errors():
    with pytest.raises(ValueError, match="expects mode to be one of"):
        register_multi_grad_hook([leaf(1.0)], print, mode="some")
    with pytest.raises(RuntimeError, match="does not require gradients"):
        register_multi_grad_hook([tp.ones(1)], print)
