"""vmap: where the batch lies, nesting, random numbers, writes, and errors."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.func import vmap
from tensorplay.ops import Primitive


def numbers(*shape, seed=0):
    return tp.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def test_a_batch_of_products():
    x, w = numbers(3, 4), numbers(5, 4, seed=1)
    np.testing.assert_allclose(vmap(lambda a: w @ a)(x).numpy(), x.numpy() @ w.numpy().T)


def test_samples_look_like_samples():
    seen = []

    def function(a):
        seen.append((a.shape, a.ndim, a.dtype, a.numel(), a.device.type, a.is_meta, len(a)))
        return a

    vmap(function)(numbers(3, 4))
    assert seen == [((4,), 1, tp.float64, 4, "cpu", False, 4)]


def test_in_dims_and_out_dims():
    x, y = numbers(2, 3, 4), numbers(4, 2)
    found = vmap(lambda a, b: a * b[0], in_dims=(-1, 0), out_dims=-1)(x, y)
    np.testing.assert_allclose(found.numpy(), x.numpy() * y.numpy()[:, 0])
    one = vmap(lambda a, b: a + b, in_dims=(0, None))(y, y[0])
    np.testing.assert_allclose(one.numpy(), y.numpy() + y.numpy()[0])
    two = vmap(lambda a: (a, a.sum()), out_dims=(1, 0))(x)
    assert two[0].shape == (3, 2, 4)
    assert two[1].shape == (2,)


def test_structures():
    x, y = numbers(3, 2), numbers(2, 3, seed=1)

    def function(data, *, scale):
        return {"sum": data["a"] + data["b"][0], "twice": (scale * 2,)}

    found = vmap(function, in_dims=({"a": 0, "b": [1]},))({"a": x, "b": [y]}, scale=tp.arange(3))
    np.testing.assert_allclose(found["sum"].numpy(), x.numpy() + y.numpy().T)
    assert found["twice"][0].tolist() == [0, 2, 4]


def test_a_result_that_no_sample_changes():
    found = vmap(lambda a: tp.ones(2))(numbers(3))
    assert found.shape == (3, 2)
    shared = vmap(lambda a: tp.ones(2), out_dims=None)(numbers(3))
    assert shared.shape == (2,)


def test_nested_levels():
    x, y, z = numbers(2, 3), numbers(4, 3, seed=1), numbers(5, 3, seed=2)
    found = vmap(lambda a: vmap(lambda b: vmap(lambda c: (a * b * c).sum())(z))(y))(x)
    np.testing.assert_allclose(
        found.numpy(), np.einsum("ai,bi,ci->abc", x.numpy(), y.numpy(), z.numpy())
    )
    crossed = vmap(vmap(lambda a, b: a - b, (0, None)), (None, 0))(x, y)
    np.testing.assert_allclose(crossed.numpy(), x.numpy()[None] - y.numpy()[:, None])


def test_chunks_give_the_same():
    x = numbers(7, 3)
    whole = vmap(lambda a: (a.exp(), a.sum()), out_dims=(1, 0))(x)
    for size in (1, 3, 7, 20):
        parts = vmap(lambda a: (a.exp(), a.sum()), out_dims=(1, 0), chunk_size=size)(x)
        for one, two in zip(whole, parts, strict=True):
            np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_indexing_and_joining():
    x = numbers(3, 4, 5)
    picked = tp.tensor([1, 3])

    def function(a):
        parts = [a[0], a[:, 1][:1].expand(5), a[picked].sum(0), a[-1, ::2].mean().expand(5)]
        return tp.stack(parts) + a.t()[0, 0]

    rows = [function(x[i]).numpy() for i in range(3)]
    np.testing.assert_allclose(vmap(function)(x).numpy(), np.stack(rows))


def test_indices_that_differ_between_the_samples():
    x, i = numbers(4, 5), tp.tensor([[0, 1], [4, 4], [2, 0]])
    found = vmap(lambda rows: x[:, rows], in_dims=0)(i)
    np.testing.assert_allclose(found.numpy(), np.stack([x.numpy()[:, r] for r in i.numpy()]))


def test_a_number_of_each_sample_as_an_index():
    x, n = numbers(3, 4), tp.tensor([2, 0, 3])
    np.testing.assert_array_equal(vmap(lambda a, i: a[i])(x, n).numpy(), x.numpy()[range(3), n])
    np.testing.assert_array_equal(vmap(lambda i: x[1, i])(n).numpy(), x.numpy()[1, n.numpy()])
    np.testing.assert_array_equal(vmap(lambda i: x[:, i])(n).numpy(), x.numpy()[:, n.numpy()].T)
    np.testing.assert_array_equal(
        vmap(lambda a, i: a[None, i])(x, n - 4).numpy(), x.numpy()[range(3), n - 4][:, None]
    )

    def written(a, i):
        b = a.clone()
        b[i] = 9.0
        return b

    expected = x.numpy().copy()
    expected[range(3), n] = 9
    np.testing.assert_array_equal(vmap(written)(x, n).numpy(), expected)
    y = x.clone().requires_grad_()
    vmap(lambda a, i: a[i] * a[i])(y, n).sum().backward()
    gradient = np.zeros((3, 4))
    gradient[range(3), n] = 2 * x.numpy()[range(3), n]
    np.testing.assert_allclose(y.grad.numpy(), gradient)
    with pytest.raises(IndexError, match="out of"):
        vmap(lambda a, i: a[i])(x, n + 1)
    with pytest.raises(RuntimeError, match="vmap: the elements"):
        vmap(lambda a, b: a[b])(x, n > 0)  # how many elements a mask picks depends on it


@pytest.mark.parametrize(
    "pick",
    [
        lambda a, i, j: a[i],
        lambda a, i, j: a[:, i],
        lambda a, i, j: a[..., i],
        lambda a, i, j: a[i, j],
        lambda a, i, j: a[:, i, j],
        lambda a, i, j: a[i, :, j],
        lambda a, i, j: a[i, 1:, j],
        lambda a, i, j: a[j[:, None], i],
        lambda a, i, j: tp.index_select(a, 1, i),
    ],
)
@pytest.mark.parametrize("batched", [(0, 0, 0), (0, None, None), (None, 0, 0), (0, 0, None)])
def test_indices_of_each_sample_anywhere(pick, batched):
    a = numbers(4, 3, 3, 3)
    i, j = tp.tensor([[0, 1], [2, 2], [1, 0], [0, 0]]), tp.tensor([[2, 0], [0, 1], [1, 1], [2, 2]])
    given = [x if d == 0 else x[1] for x, d in zip((a, i, j), batched, strict=True)]
    leaf = given[0].clone().requires_grad_()
    found = vmap(pick, batched)(leaf, *given[1:])
    found.exp().sum().backward()
    twin = given[0].clone().requires_grad_()
    rows = [
        pick(*[x[n] if d == 0 else x for x, d in zip((twin, *given[1:]), batched, strict=True)])
        for n in range(4)
    ]
    expected = tp.stack(rows)
    expected.exp().sum().backward()
    np.testing.assert_array_equal(found.detach().numpy(), expected.detach().numpy())
    np.testing.assert_allclose(leaf.grad.numpy(), twin.grad.numpy())


@pytest.mark.parametrize(
    ("place", "shape"), [((0,), (2, 3, 3)), ((1,), (3, 2, 3)), ((0, 2), (2, 3)), ((1,), (3,))]
)
def test_writes_at_indices_of_each_sample(place, shape):
    a, values = numbers(4, 3, 3, 3), numbers(4, *shape, seed=1)
    i = tp.tensor([[0, 1], [2, 0], [1, 0], [0, 2]])

    def function(x, index, value):
        y = x.clone()
        y[tuple(index if d in place else slice(None) for d in range(3))] = value
        return y

    for value in (values, None):
        own = [values[0] if value is None else values[n] for n in range(4)]
        found = vmap(function, (0, 0, None if value is None else 0))(
            a, i, values[0] if value is None else values
        )
        rows = [function(a[n], i[n], own[n]) for n in range(4)]
        np.testing.assert_array_equal(found.numpy(), tp.stack(rows).numpy())


def test_losses_check_all_samples():
    x, target = numbers(4, 2, 3), tp.tensor([[0, 2], [1, -100], [2, 2], [0, 1]])
    for loss in (tp.cross_entropy, tp.nll_loss):
        rows = [loss(x[n], target[n]).item() for n in range(4)]
        np.testing.assert_allclose(vmap(loss)(x, target).numpy(), rows)
    with pytest.raises(IndexError, match="out of bounds"):
        vmap(tp.nll_loss)(x, target + 1)
    p = tp.full((4, 2), 0.5)
    vmap(tp.binary_cross_entropy)(p, p)
    p[3, 1] = 1.5
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        vmap(tp.binary_cross_entropy)(p, tp.ones(4, 2))


def test_types_of_scalar_samples():
    x = tp.ones(3, dtype=tp.float64)
    w = tp.ones(2, dtype=tp.float32)
    assert vmap(lambda a: a * w)(x).dtype is tp.float32
    assert vmap(lambda a: w + a)(x).dtype is (w + x[0]).dtype


def test_writes_in_place():
    x = numbers(3, 4)
    kept = x.numpy().copy()

    def function(a):
        b = a.clone()
        b.mul_(2).add_(a)
        b[0] = 5.0
        b[1:].zero_()
        return b

    found = vmap(function)(x)
    np.testing.assert_allclose(found.numpy(), [[5.0, 0, 0, 0]] * 3)
    np.testing.assert_array_equal(x.numpy(), kept)
    vmap(lambda a: a.add_(1))(x)
    np.testing.assert_allclose(x.numpy(), kept + 1)


def test_a_write_that_would_need_room_for_all_samples():
    x, shared = numbers(3, 4), tp.zeros(4, dtype=tp.float64)
    with pytest.raises(RuntimeError, match="in-place arithmetic is not possible"):
        vmap(shared.add_)(x)
    with pytest.raises(RuntimeError, match="result of the shape"):
        vmap(lambda a: a.add_(tp.ones(2, 4, dtype=tp.float64)))(x)
    with pytest.raises(RuntimeError, match="can't be cast"):
        vmap(lambda a: a.add_(0.5))(tp.arange(6).reshape(3, 2))


def test_gradients_through_a_batch():
    x = numbers(3, 4).requires_grad_()
    w = numbers(4, seed=1).requires_grad_()
    vmap(lambda a: (a * w).tanh().sum())(x).sum().backward()
    y, v = x.detach().requires_grad_(), w.detach().requires_grad_()
    (y * v).tanh().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy())
    np.testing.assert_allclose(w.grad.numpy(), v.grad.numpy())


def test_writes_are_differentiated():
    x = numbers(3, 2).requires_grad_()

    def function(a):
        b = a * 1
        b.mul_(b)
        b[0] = b[1] * 3
        return b.sum()

    vmap(function)(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy()[:, 0], 0)
    np.testing.assert_allclose(x.grad.numpy()[:, 1], 8 * x.detach().numpy()[:, 1])


# --- random numbers -------------------------------------------------------------------------------

DRAWS = [
    lambda a: tp.rand(2, dtype=tp.float64),
    tp.randn_like,
    lambda a: tp.dropout(a, 0.5),
    lambda a: tp.bernoulli(a.abs().clamp(0, 1)),
    lambda a: tp.randperm(4),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_random_operators_raise_unless_told(draw):
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(draw)(tp.ones(3, 8, dtype=tp.float64))
    tp.rand(1)  # the mode ends with the call


@pytest.mark.parametrize("draw", DRAWS)
def test_randomness_is_the_same_or_different(draw):
    tp.manual_seed(3)
    x = tp.full((6, 8), 0.5, dtype=tp.float64)
    same = vmap(draw, randomness="same")(x).numpy()
    assert (same == same[0]).all()
    different = vmap(draw, randomness="different")(x).numpy()
    assert not (different == different[0]).all()
    assert not np.array_equal(same[0], vmap(draw, randomness="same")(x).numpy()[0])


def test_randomness_of_nested_levels():
    tp.manual_seed(0)
    inner = vmap(lambda a: tp.rand(3), randomness="same")
    found = vmap(inner, randomness="different")(tp.ones(2, 4)).numpy()
    assert (found == found[:, :1]).all()
    assert not (found[0] == found[1]).all()
    inner = vmap(lambda a: tp.dropout(a, 0.5), randomness="different")
    found = vmap(inner, randomness="same")(tp.ones(3, 40)).numpy()
    assert (found == found[:1]).all()
    assert not (found[0] == found[0, 0]).all()


# --- errors ---------------------------------------------------------------------------------------


def test_sizes_must_agree():
    with pytest.raises(ValueError, match="same size"):
        vmap(lambda a, b: a)(tp.ones(2), tp.ones(3))


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ((), {}, "no inputs"),
        ((1.0,), {}, "at least one Tensor"),
        ((tp.ones(2),), {"in_dims": None}, "in_dims"),
        ((tp.ones(2),), {"in_dims": "0"}, "in_dims"),
        ((tp.ones(2),), {"in_dims": (0, 0)}, "structure"),
        ((tp.ones(2),), {"in_dims": 1}, "dimensionality"),
        ((tp.ones(()),), {}, "dimensionality"),
        (([tp.ones(2)],), {"in_dims": ([0, 0],)}, "structure"),
        ((2.0, tp.ones(2)), {"in_dims": (1, 0)}, "no Tensor"),
        ((tp.ones(2),), {"out_dims": 2}, "dimensionality"),
        ((tp.ones(2),), {"out_dims": (0, 0)}, "structure"),
        ((tp.ones(2),), {"out_dims": None}, "differs between the samples"),
    ],
)
def test_arguments_that_do_not_fit(arguments, options, match):
    with pytest.raises(ValueError, match=match):
        vmap(lambda *a: a[-1], **options)(*arguments)


def test_other_errors():
    with pytest.raises(RuntimeError, match="'error', 'same' or 'different'"):
        vmap(lambda a: a, randomness="some")
    with pytest.raises(ValueError, match="chunk_size"):
        vmap(lambda a: a, chunk_size=0)
    with pytest.raises(ValueError, match="expected the function to return Tensors"):
        vmap(lambda a: 1.0)(tp.ones(2))


@pytest.mark.parametrize(
    "read",
    [
        lambda a: a.item(), lambda a: a.numpy(), lambda a: a.tolist(), float,
        lambda a: 1 if a > 0 else 2, lambda a: a.data_ptr(), np.asarray,
    ],
)  # fmt: skip
def test_values_cannot_be_read(read):
    with pytest.raises(RuntimeError, match="vmap: the elements of a batched tensor"):
        vmap(read)(tp.ones(2))


def test_shapes_that_depend_on_values():
    with pytest.raises(RuntimeError, match="differs between the samples"):
        vmap(tp.nonzero)(tp.tensor([[1, 0], [1, 1]]))


def test_backward_inside():
    with pytest.raises(RuntimeError, match="not possible inside"):
        vmap(lambda a: (a * a).backward())(tp.ones(2).requires_grad_())


def test_an_error_leaves_nothing_open():
    before = Primitive.apply
    with pytest.raises(ZeroDivisionError):
        vmap(lambda a: 1 / 0)(tp.ones(2))
    assert Primitive.apply is before
    assert tp.rand(2).shape == (2,)


def test_threads_do_not_disturb_each_other():
    x = numbers(4, 3)
    problems = []

    def work(seed):
        for _ in range(30):
            y = numbers(4, 3, seed=seed)
            found = vmap(lambda a, b: (a * b).sum())(x, y).numpy()
            if not np.allclose(found, (x.numpy() * y.numpy()).sum(1)):
                problems.append(seed)
            plain = (x * y).sum(1)
            if type(plain) is not tp.Tensor:
                problems.append(seed)

    before = Primitive.apply
    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert Primitive.apply is before


def test_custom_operators_run_sample_by_sample():
    @tp.library.custom_op("test_vmap::double", mutates_args=())
    def double(x: tp.Tensor) -> tp.Tensor:
        return tp.from_numpy(x.numpy() * 2)

    double.register_autograd(lambda ctx, g: g * 2)
    x = numbers(3, 4).requires_grad_()
    found = vmap(double)(x)
    np.testing.assert_allclose(found.detach().numpy(), 2 * x.detach().numpy())
    found.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2.0)


def test_representation_shows_batch_and_sample():
    texts = []
    vmap(lambda a: texts.append(repr(a)) or a)(tp.ones(2, 3))
    assert texts[0].startswith("BatchedTensor(batch=[2], sample=[3]")


def test_the_elements_of_samples_are_not_replaced():
    def function(x):
        x.data = tp.ones(2)
        return x

    with pytest.raises(RuntimeError, match=r"\[data\] vmap: .* Write x = y"):
        vmap(function)(numbers(3, 2))
