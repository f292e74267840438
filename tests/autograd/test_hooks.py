"""Hooks on tensors and nodes, retained gradients, and the order of it all."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay.autograd import grad


def leaf(*values):
    return tp.tensor(list(values), dtype=tp.float64, requires_grad=True)


def test_tensor_hook_may_replace_the_gradient():
    x = leaf(1.0)
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert x.grad.tolist() == [20.0]


def test_hooks_run_in_order_of_registration():
    x = leaf(1.0)
    seen = []
    y = x * 2
    y.register_hook(lambda g: seen.append(g.item()))
    y.register_hook(lambda g: g + 1)
    y.register_hook(lambda g: seen.append(g.item()))
    y.sum().backward()
    assert seen == [1.0, 2.0]
    assert x.grad.tolist() == [4.0]


def test_hook_of_a_leaf_fires_in_every_pass_and_in_grad():
    x = leaf(1.0)
    handle = x.register_hook(lambda g: g * 3)
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [12.0]
    assert grad((x * 2).sum(), x)[0].tolist() == [6.0]
    handle.remove()
    handle.remove()
    assert grad((x * 2).sum(), x)[0].tolist() == [2.0]


def test_handle_is_a_context_manager():
    x = leaf(1.0)
    with x.register_hook(lambda g: g * 3):
        (x * 2).sum().backward()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [6.0 + 2.0]


def test_hook_sees_the_sum_of_all_paths():
    x = leaf(3.0)
    y = x * 1
    seen = []
    y.register_hook(lambda g: seen.append(g.item()))
    (y * y + y).sum().backward()
    assert seen == [7.0]


def test_errors_of_tensor_hooks():
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        tp.ones(1).register_hook(lambda g: g)
    x = leaf(1.0)
    with (
        x.register_hook(lambda g: tp.ones(2)),
        pytest.raises(RuntimeError, match="changed the size"),
    ):
        (x * 2).sum().backward()
    with x.register_hook(lambda g: 1.0), pytest.raises(TypeError, match="Tensor or None"):
        (x * 2).sum().backward()


def test_hook_registered_before_an_inplace_write_sees_the_old_value():
    x = leaf(1.0)
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(("before", g.item())))
    y.mul_(5)
    y.register_hook(lambda g: seen.append(("after", g.item())))
    y.sum().backward()
    assert seen == [("after", 1.0), ("before", 5.0)]


def test_post_accumulate_hook_sees_the_updated_grad():
    x = leaf(1.0)
    seen = []
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.item()))
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    assert seen == [2.0, 4.0]
    grad((x * 2).sum(), x)
    assert seen == [2.0, 4.0]


def test_post_accumulate_hook_is_for_leaves():
    with pytest.raises(RuntimeError, match="non-leaf"):
        (leaf(1.0) * 2).register_post_accumulate_grad_hook(lambda t: None)
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        tp.ones(1).register_post_accumulate_grad_hook(lambda t: None)


def test_retained_gradient_is_a_copy_after_the_hooks():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 7)
    assert y.retains_grad
    y.sum().backward()
    assert y.grad.tolist() == [7.0]
    y.grad.zero_()
    assert x.grad.tolist() == [14.0]


def test_retain_grad_on_leaves_and_constants():
    x = leaf(1.0)
    x.retain_grad()
    assert not x.retains_grad
    with pytest.raises(RuntimeError, match="requires_grad=False"):
        tp.ones(1).retain_grad()


def test_inplace_write_keeps_the_gradient_of_the_new_value():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    y.mul_(5)
    assert y.retains_grad
    (y * 3).sum().backward()
    assert y.grad.tolist() == [3.0]
    assert x.grad.tolist() == [30.0]


def test_retained_gradient_with_inputs_is_added_once():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    (y * 3).sum().backward(inputs=[y])
    assert y.grad.tolist() == [3.0]


def test_reading_grad_of_a_tensor_that_keeps_none_warns():
    y = leaf(1.0) * 2
    with pytest.warns(UserWarning, match="not a leaf"):
        assert y.grad is None


def test_node_hooks():
    x = leaf(1.0)
    y = x * 2
    node = y.grad_fn
    node.register_prehook(lambda grads: (grads[0] * 10,))
    seen = []
    node.register_hook(lambda inputs, outputs: seen.append((inputs[0].item(), outputs[0].item())))
    node.register_hook(lambda inputs, outputs: (inputs[0] + 1, *inputs[1:]))
    y.sum().backward()
    assert seen == [(20.0, 10.0)]
    assert x.grad.tolist() == [21.0]


def test_node_hooks_must_return_the_right_number():
    y = leaf(1.0) * 2
    with (
        y.grad_fn.register_prehook(lambda grads: (grads[0], None)),
        pytest.raises(RuntimeError, match="expected 1 gradients"),
    ):
        y.sum().backward(retain_graph=True)
    with (
        y.grad_fn.register_hook(lambda inputs, outputs: ()),
        pytest.raises(RuntimeError, match="incorrect number of gradients"),
    ):
        y.sum().backward()


def test_prehook_stays_away_where_the_node_does_not_run():
    y = leaf(1.0) * 2
    seen = []
    y.grad_fn.register_prehook(lambda grads: seen.append(1))
    grad((y * 3).sum(), y)
    assert seen == []


def test_order_of_all_hooks():
    x = leaf(1.0)
    seen = []
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: seen.append("tensor"))
    y.grad_fn.register_prehook(lambda grads: seen.append(f"pre, retained {y._grad is not None}"))
    y.grad_fn.register_hook(
        lambda inputs, outputs: seen.append(f"post, retained {y._grad is not None}")
    )
    x.register_hook(lambda g: seen.append("leaf"))
    x.register_post_accumulate_grad_hook(lambda t: seen.append("accumulated"))
    y.sum().backward()
    assert seen == ["tensor", "pre, retained False", "post, retained True", "leaf", "accumulated"]


def test_leaves_are_filled_as_soon_as_their_gradient_is_complete():
    x, z = leaf(1.0), leaf(1.0)
    seen = []
    early = z * 2
    early.register_hook(lambda g: seen.append("early"))
    x.register_post_accumulate_grad_hook(lambda t: seen.append("x"))
    (early + 1 + x).sum().backward()
    assert seen == ["x", "early"]


def test_graph_can_be_walked():
    x = leaf(1.0)
    y = (x * 2).exp()
    node = y.grad_fn
    assert node.name() == "ExpBackward"
    ((mul, number),) = node.next_functions
    assert (mul.name(), number) == ("MulBackward", 0)
    assert mul.next_functions[0][0].name() == "AccumulateGrad"
    assert mul.next_functions[0][0].variable is x
    node.metadata["note"] = 1
    assert y.grad_fn.metadata == {"note": 1}
