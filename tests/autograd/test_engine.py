"""The reverse pass: what it computes, what it keeps, and every error that it names."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import Function, backward, forward_ad, grad


def leaf(*values, dtype=tp.float64):
    return tp.tensor(list(values), dtype=dtype, requires_grad=True)


class Fails(Function):
    """Raises in backward as long as `broken` is set."""

    broken = True

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        if Fails.broken:
            message = "formula failed"
            raise KeyError(message)
        return g


# --- values ---------------------------------------------------------------------------------------


def test_backward_accumulates_into_leaves():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (x * y).sum().backward()
    (x * x).sum().backward()
    assert x.grad.tolist() == [3.0 + 2.0, 4.0 + 4.0]
    assert y.grad.tolist() == [1.0, 2.0]


def test_one_tensor_used_on_many_paths_gets_the_sum():
    x = leaf(2.0)
    a = x * x
    (a * a + a * x + x).sum().backward()  # x**4 + x**3 + x
    assert x.grad.tolist() == [4 * 8.0 + 3 * 4.0 + 1.0]


def test_leaves_do_not_share_the_memory_of_one_gradient():
    x, y = leaf(1.0), leaf(1.0)
    (x + y).sum().backward()
    x.grad.add_(5.0)
    assert y.grad.tolist() == [1.0]


def test_gradient_given_to_backward_is_not_changed_by_accumulation():
    x, seed = leaf(1.0, 1.0), tp.tensor([1.0, 2.0], dtype=tp.float64)
    for _ in range(3):
        (x + 0).backward(seed)
    assert seed.tolist() == [1.0, 2.0]
    assert x.grad.tolist() == [3.0, 6.0]


def test_references_to_grad_stay_valid_over_passes():
    x = leaf(1.0)
    (x * 2).sum().backward()
    held = x.grad
    (x * 2).sum().backward()
    assert held is x.grad
    assert held.tolist() == [4.0]


def test_a_root_that_is_a_leaf_gets_the_gradient_itself():
    x = leaf(1.0, 2.0)
    x.backward(tp.ones(2, dtype=tp.float64))
    assert x.grad.tolist() == [1.0, 1.0]


def test_several_roots_run_in_one_pass():
    x = leaf(3.0)
    a, b = (x * 2).sum(), (x * x).sum()
    backward([a, b])
    assert x.grad.tolist() == [2.0 + 6.0]


def test_broadcast_gradients_are_summed():
    x, row = tp.ones((2, 3), requires_grad=True), tp.ones((1, 3), requires_grad=True)
    (x * row).sum().backward()
    assert row.grad.tolist() == [[2.0, 2.0, 2.0]]


def test_gradient_has_the_type_of_the_leaf():
    x = tp.ones(2, dtype=tp.float32, requires_grad=True)
    (x * tp.ones(2, dtype=tp.float64)).sum().backward()
    assert x.grad.dtype is tp.float32


def test_second_derivatives():
    x = leaf(2.0)
    (first,) = grad((x * x * x).sum(), x, create_graph=True)
    (second,) = grad(first.sum(), x, create_graph=True)
    (third,) = grad(second.sum(), x)
    assert (first.tolist(), second.tolist(), third.tolist()) == ([12.0], [12.0], [6.0])
    assert not third.requires_grad


def test_without_create_graph_gradients_have_no_history():
    x = leaf(2.0)
    (first,) = grad((x * x).sum(), x)
    assert not first.requires_grad


# --- grad and backward with inputs ----------------------------------------------------------------


def test_grad_returns_a_tuple_and_touches_no_grad():
    x, y = leaf(2.0), leaf(5.0)
    result = grad((x * y).sum(), [x, y])
    assert isinstance(result, tuple)
    assert [g.tolist() for g in result] == [[5.0], [2.0]]
    assert x.grad is None
    assert y.grad is None


def test_grad_of_a_mapping_is_a_mapping():
    x, y = leaf(2.0), leaf(5.0)
    result = grad((x * y).sum(), {"x": x, "y": y})
    assert list(result) == ["x", "y"]
    assert result["y"].tolist() == [2.0]


def test_grad_for_an_intermediate_tensor():
    x = leaf(3.0)
    middle = x * 2
    (g,) = grad((middle * middle).sum(), middle)
    assert g.tolist() == [12.0]


def test_formulas_of_inputs_nobody_asked_for_are_not_run():
    x, y = leaf(1.0), leaf(2.0)
    out = (x * Fails.apply(y)).sum()
    (g,) = grad(out, x, retain_graph=True)
    assert g.tolist() == [2.0]
    with pytest.raises(KeyError):
        grad(out, y)


def test_backward_with_inputs_fills_only_those():
    x, y = leaf(2.0), leaf(5.0)
    middle = x * y
    middle.sum().backward(inputs=[y, middle, y])
    assert x.grad is None
    assert y.grad.tolist() == [2.0]
    assert middle._grad.tolist() == [1.0]


def test_backward_with_inputs_takes_a_tensor_or_a_mapping():
    x, y = leaf(2.0), leaf(5.0)
    (x * y).sum().backward(inputs=x)
    (x * y).sum().backward(inputs={"y": y})
    assert (x.grad.tolist(), y.grad.tolist()) == ([5.0], [2.0])


def test_unused_inputs():
    x, y = leaf(2.0), leaf(5.0)
    assert grad((x * 2).sum(), [x, y], allow_unused=True)[1] is None
    zeros = grad((x * 2).sum(), [x, y], materialize_grads=True)[1]
    assert zeros.tolist() == [0.0]
    with pytest.raises(RuntimeError, match=r"not have been used in the graph.*allow_unused"):
        grad((x * 2).sum(), [x, y])
    with pytest.raises(ValueError, match="allow_unused"):
        grad((x * 2).sum(), [x, y], materialize_grads=True, allow_unused=False)


def test_batched_gradients():
    x = leaf(1.0, 2.0)
    y = x * x
    rows = tp.tensor(np.eye(2))
    (jacobian,) = grad(y, x, rows, is_grads_batched=True)
    assert jacobian.tolist() == [[2.0, 0.0], [0.0, 4.0]]


@pytest.mark.parametrize("gradients", [None, tp.ones(2, dtype=tp.float64), tp.ones(())])
def test_batched_gradients_need_the_batch_dimension(gradients):
    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="is_grads_batched"):
        grad(x * x, x, gradients, is_grads_batched=True)


# --- errors ---------------------------------------------------------------------------------------


def test_root_must_be_scalar_without_a_gradient():
    with pytest.raises(
        RuntimeError, match="grad can be implicitly created only for scalar outputs"
    ):
        (leaf(1.0, 2.0) * 2).backward()
    z = tp.tensor([1 + 2j], requires_grad=True)
    with pytest.raises(RuntimeError, match="only for real scalar"):
        (z * 2).backward()


def test_root_must_require_grad():
    pattern = "does not require grad and does not have a grad_fn"
    with pytest.raises(RuntimeError, match=pattern):
        tp.ones(()).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad(leaf(1.0).sum(), tp.ones(1))


def test_gradient_must_fit():
    y = leaf(1.0, 2.0) * 2
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        y.backward(tp.ones(3, dtype=tp.float64))
    with pytest.raises(TypeError, match="Tensors or None"):
        y.backward(1.0)
    with pytest.raises(RuntimeError, match="one gradient per output"):
        backward([y], [tp.ones(2), tp.ones(2)])


@pytest.mark.parametrize("call", [lambda y: y.backward(inputs=[]), lambda y: grad(y, [])])
def test_inputs_cannot_be_empty(call):
    with pytest.raises(RuntimeError, match="cannot be empty"):
        call((leaf(1.0) * 2).sum())


def test_arguments_of_wrong_kind():
    y = (leaf(1.0) * 2).sum()
    with pytest.raises(TypeError, match="expected Tensors as inputs"):
        grad(y, [1.0])
    with pytest.raises(TypeError, match="expected a Tensor or a sequence"):
        grad(y, 1.0)


def test_old_arguments_warn():
    x = leaf(1.0)
    with pytest.warns(FutureWarning, match="grad_variables"):
        backward([x * 2], grad_variables=[tp.ones(1, dtype=tp.float64)])
    assert x.grad.tolist() == [2.0]
    with pytest.warns(FutureWarning, match="only_inputs"):
        grad((x * 2).sum(), x, only_inputs=False)


def test_flags_of_tensors():
    with pytest.raises(RuntimeError, match="you can only change requires_grad flags of leaf"):
        (leaf(1.0) * 2).requires_grad = False
    with pytest.raises(RuntimeError, match="floating point"):
        tp.tensor([1, 2]).requires_grad_()
    with pytest.raises(RuntimeError, match="floating point"):
        tp.tensor([True]).requires_grad_()


def test_assigned_gradients_are_checked():
    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="size"):
        x.grad = tp.ones(3, dtype=tp.float64)
    with pytest.raises(RuntimeError, match="dtype"):
        x.grad = tp.ones(2, dtype=tp.float32)
    with pytest.raises(TypeError, match="Tensor or None"):
        x.grad = 1.0


# --- graphs: freed, retained, deep, dying ---------------------------------------------------------


def test_graph_that_saved_something_runs_once():
    x = leaf(2.0)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match=r"through the graph a second time.*retain_graph=True"):
        y.backward()


def test_graph_that_saved_nothing_may_run_twice():
    x = leaf(2.0)
    y = (x + 1).sum()
    y.backward()
    y.backward()
    assert x.grad.tolist() == [2.0]


def test_retained_graph_runs_until_it_is_freed():
    x = leaf(2.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [8.0]
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_exception_leaves_the_graph_usable():
    x = leaf(2.0)
    y = (Fails.apply(x) * x).sum()
    Fails.broken = True
    with pytest.raises(KeyError, match="formula failed"):
        y.backward(retain_graph=True)
    assert tp.is_grad_enabled()
    Fails.broken = False
    y.backward()
    assert x.grad.tolist() == [4.0]
    Fails.broken = True


DEPTH = 100_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "depth", "slope"),
    [
        (lambda y, x: y + 1.0, DEPTH, 1.0),
        (lambda y, x: y * x, DEPTH, DEPTH + 1.0),  # saves tensors along the way
        (lambda y, x: y.add_(x), DEPTH // 8, DEPTH // 8 + 1.0),
        (lambda y, x: y.view(1), DEPTH // 8, 1.0),
    ],
    ids=["add", "saved", "in place", "views"],
)
def test_deep_graph_needs_no_recursion(step, depth, slope):
    assert depth > 10 * sys.getrecursionlimit()
    x = leaf(1.0)
    y = x * 1
    for _ in range(depth):
        y = step(y, x)
    (g,) = grad(y.sum(), x)
    assert g.tolist() == [slope]
    node = weakref.ref(y.grad_fn)
    del y  # the whole chain dies here
    assert node() is None


@pytest.mark.slow
def test_deep_graph_is_differentiated_twice_and_forward():
    x = leaf(1.0)
    y = x
    for _ in range(DEPTH // 4):
        y = y * 1.0
    (first,) = grad((y * y).sum(), x, create_graph=True)
    assert grad(first.sum(), x)[0].tolist() == [2.0]
    del y, first
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(leaf(1.0).detach(), leaf(2.0).detach())
        for _ in range(DEPTH // 4):
            dual = dual * 1.0
        assert forward_ad.unpack_dual(dual).tangent.tolist() == [2.0]


def test_graphs_die_by_reference_counts_alone():
    gc.collect()
    gc.disable()
    try:
        x = leaf(1.0, 2.0)
        y = (x.exp() * x).sigmoid().sum()  # exp and sigmoid save their outputs
        nodes = [weakref.ref(y.grad_fn), weakref.ref(y.grad_fn.next_functions[0][0])]
        y.backward(retain_graph=True)
        del y
        assert [node() for node in nodes] == [None, None]
        z = leaf(1.0)
        node = weakref.ref((z * 2).grad_fn)
        assert node() is None
        held = weakref.ref(z)
        del z
        assert held() is None
    finally:
        gc.enable()


def test_what_a_formula_does_not_read_may_change():
    """Sums, shapes and constants pin nothing."""
    x = leaf(1.0, 2.0)
    y = x * 1
    out = y.sum() + y.reshape(2, 1).sum()
    y.add_(1)
    out.backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_changed_saved_tensor_is_found():
    x = leaf(1.0, 2.0)
    y = x * 1
    out = (y * y).sum()
    y.add_(1)
    with pytest.raises(
        RuntimeError,
        match=r"modified by an inplace operation.*is at version 1; expected version 0 instead.*"
        "anomaly detection",
    ):
        out.backward()


def test_backward_inside_backward():
    class Inner(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with tp.enable_grad():
                y = x.detach().requires_grad_()
                (slope,) = grad((y * y).sum(), y)
            return g * slope

    x = leaf(3.0)
    Inner.apply(x).sum().backward()
    assert x.grad.tolist() == [6.0]


def test_threads_may_share_leaves_and_run_at_once():
    x = leaf(*[1.0] * 8)
    errors = []

    def work():
        try:
            for _ in range(50):
                (x * x).sum().backward()
                (g,) = grad((x * 3).sum(), x)
                assert g.tolist() == [3.0] * 8
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert x.grad.tolist() == [2.0 * 4 * 50] * 8


def test_threads_run_backward_through_one_graph_at_once():
    """Both passes are under way at the same time: each waits for the other in its formula."""
    met = threading.Barrier(2, timeout=20)

    class Meets(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            met.wait()
            return g * 2 * ctx.saved_tensors[0]

    x = leaf(1.0, 2.0)
    seen = []
    y = Meets.apply(x * 3)
    y.register_hook(lambda g: seen.append((threading.get_ident(), g.tolist())))
    found = {}

    def work(factor):
        mode = tp.is_grad_enabled()
        gradient = tp.full((2,), factor, dtype=tp.float64)
        found[factor] = grad(y, x, gradient, retain_graph=True)[0].tolist()
        found[-factor] = tp.is_grad_enabled() is mode

    threads = [threading.Thread(target=work, args=(f,)) for f in (1.0, 10.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {1.0: [18.0, 36.0], 10.0: [180.0, 360.0], -1.0: True, -10.0: True}
    assert len({ident for ident, _ in seen}) == 2
    assert sorted(g for _, g in seen) == [[1.0, 1.0], [10.0, 10.0]]


def test_an_exception_in_a_pass_inside_of_a_pass():
    class Inner(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with tp.enable_grad():
                z = Fails.apply(x.detach().requires_grad_()).sum()
            try:
                z.backward()
            except KeyError:
                return g * 2
            return g * 3

    x = leaf(1.0)
    y = Inner.apply(x) * x
    Fails.broken = True
    assert grad(y, x, retain_graph=True)[0].tolist() == [4.0]
    assert tp.is_grad_enabled()
    Fails.broken = False
    assert grad(y, x)[0].tolist() == [5.0]
    Fails.broken = True


def test_complex_gradients_follow_the_convention():
    """The gradient of a real function of z = x + iy is dL/dx + i dL/dy."""
    z = tp.tensor([3.0 + 4.0j], dtype=tp.complex128, requires_grad=True)
    (z * z.conj()).real.sum().backward()  # x**2 + y**2
    assert z.grad.tolist() == [6.0 + 8.0j]
