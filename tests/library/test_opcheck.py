"""`opcheck`: right operators pass, and each way of being wrong has its code."""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.library import OpCheckError, OpCheckFailure, Tag, custom_op, opcheck
from tensorplay.library.opcheck import DEFAULT_TEST_UTILS, TEST_UTILS


def leaf(*shape: int) -> Tensor:
    """Return a float64 tensor that requires a gradient."""
    return tp.rand(shape, dtype=tp.float64).requires_grad_()


def codes(op: Any, args: Any, kwargs: Any = None, **options: Any) -> set[tuple[str, str]]:
    found = opcheck(op, args, kwargs, raise_exception=False, **options)
    assert all(f.test == test for test, failures in found.items() for f in failures)
    return {(f.test.removeprefix("test_"), f.code) for fs in found.values() for f in fs}


def full(name: str, body: Any, **options: Any) -> Any:
    """Define an operator that gives a new tensor like its first argument."""
    op = custom_op(name, body, **options)
    op.register_fake(lambda x, *rest, **more: tp.empty_like(x))
    return op


# --- right ones -----------------------------------------------------------------------------------


def good_cube(name: str) -> Any:
    op = full(name, lambda x: tp.from_numpy(np.asarray(x.numpy() ** 3)))
    op.register_autograd(
        lambda ctx, g: 3 * g * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return op


def test_right_operators_pass(name: str) -> None:
    cube = good_cube(name)
    assert opcheck(cube, (leaf(3, 4),), test_utils="all") == {}
    assert opcheck(name, (tp.rand(5),)) == {}
    assert opcheck(cube, (leaf(),)) == {}


def test_lists_keywords_and_several_results_pass(name: str) -> None:
    @custom_op(name)
    def split(
        xs: list[Tensor], w: Tensor | None = None, *, k: float = 2.0
    ) -> tuple[Tensor, Tensor, int]:
        total = tp.from_numpy(sum(x.numpy() for x in xs) * k)
        return total, tp.from_numpy(np.negative(total.numpy())), len(xs)

    @split.register_fake
    def _(xs: Any, w: Any, *, k: float) -> Any:
        return tp.empty_like(xs[0]), tp.empty_like(xs[0]), len(xs)

    split.register_autograd(
        lambda ctx, a, b, n: {"xs": [(a - b) * ctx.k] * ctx.n},
        setup_context=_keep_k,
    )
    xs = [leaf(3), leaf(3)]
    assert opcheck(split, (xs,), {"k": 3.0}, test_utils="all") == {}
    assert opcheck(split, (xs, tp.ones(3, dtype=tp.float64))) == {}


def _keep_k(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any) -> None:
    ctx.k, ctx.n = keyword_only_inputs["k"], len(inputs[0])


def test_operators_that_write_pass(name: str) -> None:
    bump = custom_op(name, lambda x: x.add_(1), tags=(Tag.inplace,))
    assert opcheck(bump, (tp.zeros(3, 2),), test_utils="all") == {}

    @custom_op(f"{name}_out", tags=(Tag.out,))
    def double(x: Tensor, *, out: Tensor) -> Tensor:
        return out.copy_(x * 2)

    assert opcheck(double, (tp.rand(3),), {"out": tp.empty(3)}, test_utils="all") == {}


def test_a_refusal_is_no_failure(name: str) -> None:
    @custom_op(name)
    def strict(x: Tensor) -> Tensor:
        if not x.is_contiguous() or x.ndim != 2 or not x.numel():
            message = "expected a contiguous matrix"
            raise ValueError(message)
        return x + 1

    strict.register_fake(tp.empty_like)
    assert opcheck(strict, (tp.rand(2, 3),)) == {}


def test_a_composite_passes(name: str) -> None:
    library.define(name, "(Tensor x) -> Tensor")
    library.impl(name, "CompositeImplicitAutograd", lambda x: (x * x).sum())
    assert opcheck(name, (leaf(4),), test_utils="all") == {}


# --- wrong ones -----------------------------------------------------------------------------------


def test_b032_an_undeclared_write(name: str) -> None:
    @custom_op(name)
    def bump(x: Tensor) -> Tensor:
        x.add_(1)
        return x.clone()

    x = tp.zeros(3)
    with pytest.raises(OpCheckError, match=r"(?s)argument 'x'.*mutates_args=\('x',\)") as caught:
        opcheck(bump, (x,))
    assert x.tolist() == [0, 0, 0]  # copies were used
    first = caught.value.failures[0]
    assert isinstance(first, OpCheckFailure)
    assert (first.test, first.code) == ("test_schema", "undeclared_write")


def test_a_write_of_nan_bits_is_seen(name: str) -> None:
    @custom_op(name)
    def sneak(x: Tensor, y: Tensor) -> Tensor:
        y.numpy().view(np.uint32)[0] ^= 1  # another NaN
        return x + 1

    sneak.register_fake(lambda x, y: tp.empty_like(x))
    nan = tp.full((2,), float("nan"))
    assert ("schema", "undeclared_write") in codes(sneak, (tp.rand(2), nan))


def test_b032_a_declared_write_that_does_not_happen_is_a_warning(name: str) -> None:
    @custom_op(name, mutates_args=("out",))
    def lazy(x: Tensor, out: Tensor) -> None:
        return None

    with pytest.warns(UserWarning, match="'out' is declared as written"):
        assert opcheck(lazy, (tp.rand(2), tp.rand(2))) == {}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda x: x, "alias"),
        (lambda x: x[:1], "alias"),
        (lambda x: 3, "result_type"),
        (lambda x: (x + 1, x), "result_type"),
        (lambda x: None, "result_type"),
        (lambda x: x.nothing, "call_error"),
        (lambda x: 1 / 0, "call_error"),
    ],
)
def test_wrong_results(name: str, body: Any, code: str) -> None:
    op = full(name, body, schema="(Tensor x) -> Tensor")
    assert codes(op, (tp.rand(3),)) == {("schema", code)}


def test_a_kernel_that_names_its_arguments_otherwise(name: str) -> None:
    library.define(name, "(Tensor x, *, float k=2.0) -> Tensor")
    library.impl(name, "default", lambda x, **options: x * options.get("scale", 1.0))
    library.register_fake(name, lambda x, k: tp.empty_like(x))
    assert codes(name, (tp.rand(3),), {"k": 2.0}) == set()  # it ignores k, consistently


def test_out_that_is_read(name: str) -> None:
    @custom_op(name, tags=(Tag.out,))
    def add(x: Tensor, *, out: Tensor) -> Tensor:
        return out.add_(x)

    assert ("schema", "out_read") in codes(add, (tp.rand(3),), {"out": tp.zeros(3)})


def test_a_missing_gradient(name: str) -> None:
    op = full(name, lambda x: x * 2)
    assert codes(op, (leaf(3),)) == {("autograd_registration", "no_gradient")}
    assert codes(op, (tp.rand(3),)) == set()
    op.register_autograd(None)
    assert codes(op, (leaf(3),)) == set()


def test_a_composite_that_detaches(name: str) -> None:
    library.define(name, "(Tensor x) -> Tensor")
    library.impl(name, "CompositeImplicitAutograd", lambda x: tp.from_numpy(x.detach().numpy() * 2))
    library.register_fake(name, tp.empty_like)
    assert ("autograd_registration", "detached") in codes(name, (leaf(3),))


@pytest.mark.parametrize(
    "formula",
    [
        lambda ctx, g: (g, tp.ones(7, dtype=tp.float64)),
        lambda ctx, g: g,
        lambda ctx, g: (g, g.sum(0), g),
        lambda ctx, g: (g, 3.0),
    ],
)
def test_gradients_that_do_not_fit(name: str, formula: Any) -> None:
    op = custom_op(name, lambda x, y: x + y)
    op.register_fake(lambda x, y: x + y)
    op.register_autograd(formula)
    assert ("autograd_registration", "gradient_error") in codes(op, (leaf(3, 2), leaf(2)))


def test_a_formula_that_raises_or_reads_data(name: str) -> None:
    op = full(name, lambda x: x * 2)
    op.register_autograd(lambda ctx, g: g.nothing)
    found = opcheck(op, (leaf(3),), raise_exception=False)["test_autograd_registration"]
    assert [f.code for f in found] == ["gradient_error"]
    assert isinstance(found[0].cause, AttributeError)
    op.register_autograd(lambda ctx, g: tp.from_numpy(g.numpy() * 2))
    assert codes(op, (leaf(3),), test_utils="test_autograd_registration") == set()
    assert codes(op, (leaf(3),), test_utils="all") == {
        ("aot_dispatch_static", "gradient_error"),
        ("aot_dispatch_dynamic", "gradient_error"),
    }


def test_a_gradient_that_is_left_out(name: str) -> None:
    op = custom_op(name, lambda x, y: x * y)
    op.register_fake(lambda x, y: tp.empty_like(x))
    op.register_autograd(lambda ctx, g: (g, None))
    with pytest.raises(OpCheckError, match=r"missing_gradient.*argument 'y' requires a gradient"):
        opcheck(op, (leaf(3), leaf(3)), test_utils="test_autograd_registration")
    assert codes(op, (leaf(3), tp.rand(3, dtype=tp.float64))) == set()


def test_results_that_are_no_tensors_are_compared(name: str) -> None:
    @custom_op(name)
    def count(x: Tensor) -> tuple[Tensor, int]:
        return x + 1, 5

    count.register_fake(lambda x: (tp.empty_like(x), 7))
    found = opcheck(count, (tp.rand(3),), test_utils="test_faketensor", raise_exception=False)
    assert [f.code for f in found["test_faketensor"]] == ["fake_value"]


def test_each_wrong_result_is_named(name: str) -> None:
    @custom_op(name)
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x + 2

    two.register_fake(lambda x: (x.new_empty(9), x.new_empty(8)))
    found = opcheck(two, (tp.rand(3),), test_utils="test_faketensor", raise_exception=False)
    assert [f.code for f in found["test_faketensor"]] == ["fake_shape", "fake_shape"]


def test_a_formula_that_writes_to_its_gradient(name: str) -> None:
    op = full(name, lambda x: x * 2)
    op.register_autograd(lambda ctx, g: g.mul_(2))
    found = codes(op, (leaf(3),), test_utils="test_autograd_registration")
    assert found == {("autograd_registration", "writes_gradient")}


def test_one_buffer_for_all_results(name: str) -> None:
    kept = tp.zeros(3)
    op = full(name, lambda x: kept.copy_(x * 2))
    assert ("variants", "shared_result") in codes(op, (tp.rand(3),))


def test_operators_without_tensors(name: str) -> None:
    @custom_op(name)
    def filled(n: int, k: float = 1.0) -> Tensor:
        return tp.full((n,), k)

    filled.register_fake(lambda n, k=1.0: tp.empty(n))
    assert opcheck(filled, (3,), test_utils="all") == {}


def test_a_definition_that_was_replaced(name: str) -> None:
    def make() -> Any:
        return custom_op(name, _plus_one)

    old, _ = make(), make()
    old.register_fake(tp.empty_like)
    assert ("autograd_registration", "replaced") in codes(old, (tp.rand(2),))


def _plus_one(x: Tensor) -> Tensor:
    return x + 1


@pytest.mark.parametrize(
    ("fake", "code"),
    [
        (lambda x: tp.empty(3), "fake_shape"),
        (lambda x: tp.empty_like(x, dtype=tp.int64), "fake_dtype"),
        (lambda x: tp.empty((3, 2)).transpose(0, 1), "fake_strides"),
        (lambda x: x.new_empty(int(x.sum())), "fake_reads_data"),
        (lambda x: x.new_empty(x.numpy().shape), "fake_reads_data"),
        (lambda x: x.reshape(100), "fake_error"),
    ],
)
def test_wrong_fake_kernels(name: str, fake: Any, code: str) -> None:
    op = custom_op(name, lambda x: x + 1)
    op.register_fake(fake)
    assert ("faketensor", code) in codes(op, (tp.rand(2, 3),))


def test_no_fake_kernel(name: str) -> None:
    op = custom_op(name, lambda x: x + 1)
    assert ("faketensor", "no_fake") in codes(op, (tp.rand(2),))


def test_a_list_of_another_length(name: str) -> None:
    @custom_op(name)
    def chunks(x: Tensor) -> list[Tensor]:
        return [x[0].clone(), x[1].clone()]

    chunks.register_fake(lambda x: [x.new_empty(x.shape[1:])])
    assert ("faketensor", "fake_count") in codes(chunks, (tp.rand(2, 3),))


def test_a_fake_kernel_with_baked_sizes(name: str) -> None:
    op = custom_op(name, lambda x: x + 1)
    op.register_fake(lambda x: tp.empty(4))
    found = codes(op, (tp.rand(4),), test_utils=("test_faketensor", "test_aot_dispatch_dynamic"))
    assert found == {("aot_dispatch_dynamic", "fake_shape")}


def test_strides_that_are_not_honoured(name: str) -> None:
    def flat(x: Tensor) -> Tensor:
        array = x.numpy()
        base = array if array.base is None else np.asarray(array.base).reshape(-1)
        return tp.from_numpy(np.resize(base.reshape(-1)[: array.size], array.shape) + 0)

    found = opcheck(full(name, flat), (tp.rand(2, 3),), raise_exception=False)
    (failure,) = found["test_variants"]
    assert failure.code == "strided"
    assert failure.variant == "spaced"
    assert "x.contiguous()" in str(failure)


def test_a_kernel_wrong_on_empty_arguments(name: str) -> None:
    @custom_op(name)
    def mean(x: Tensor) -> Tensor:
        return x.mean(dim=0) if len(x) else tp.zeros(1, 1)

    mean.register_fake(lambda x: x.new_empty(x.shape[1:]))
    found = opcheck(mean, (tp.rand(3, 2),), raise_exception=False)["test_variants"]
    assert [(f.code, f.variant) for f in found] == [("fake_shape", "empty")]


def test_a_kernel_that_writes_only_for_nan(name: str) -> None:
    @custom_op(name)
    def clean(x: Tensor) -> Tensor:
        array = x.numpy()
        array[np.isnan(array)] = 0
        return tp.from_numpy(array + 1)

    clean.register_fake(tp.empty_like)
    found = opcheck(clean, (tp.rand(3),), raise_exception=False)["test_variants"]
    assert [(f.code, f.variant) for f in found] == [("undeclared_write", "NaN and infinity")]


def test_state_between_calls(name: str) -> None:
    numbers = itertools.count()
    op = full(name, lambda x: x + next(numbers))
    found = codes(op, (tp.rand(3),))
    assert ("variants", "not_deterministic") in found
    noisy = full(f"{name}_noisy", lambda x: x + next(numbers), tags=(Tag.nondeterministic,))
    assert codes(noisy, (tp.rand(3),)) == set()


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        (lambda n: tp.tensor([n]), tp.tensor([1e6], dtype=tp.float32)),
        (lambda n: tp.tensor([float(n)], dtype=tp.float64), tp.tensor([6e4], dtype=tp.float16)),
    ],
    ids=["whole numbers", "small numbers"],
)
def test_state_beside_large_results(name: str, changes: Any, stays: Tensor) -> None:
    numbers = itertools.count()

    @custom_op(name)
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return stays.clone(), changes(next(numbers))

    both.register_fake(lambda x: (tp.empty_like(stays), tp.empty_like(changes(0))))
    found = codes(both, (tp.rand(3),), test_utils="test_variants")
    assert ("variants", "not_deterministic") in found


def test_scratch_memory_shared_by_threads(name: str) -> None:
    scratch: dict[str, Any] = {}
    op = full(name, lambda x: _racy(x, scratch))
    assert ("variants", "threads") in codes(op, (tp.rand(3),), test_utils="test_variants")


def _racy(x: Tensor, scratch: dict[str, Any]) -> Tensor:
    key = threading.get_ident()
    scratch["owner"] = key
    time.sleep(0.01)
    return x + (0 if scratch["owner"] == key else 1)


def test_a_refusal_without_words(name: str) -> None:
    @custom_op(name)
    def mute(x: Tensor) -> Tensor:
        if not x.numel():
            raise ValueError
        return x + 1

    mute.register_fake(tp.empty_like)
    assert codes(mute, (tp.rand(3),)) == {("variants", "silent_refusal")}


# --- the function itself --------------------------------------------------------------------------


def test_choosing_tests(name: str) -> None:
    op = custom_op(name, lambda x: x + 1)
    assert codes(op, (leaf(2),), test_utils="test_schema") == set()
    assert set(DEFAULT_TEST_UTILS) < set(TEST_UTILS)
    with pytest.raises(ValueError, match=r"expected 'all' or some of test_schema.*'test_x'"):
        opcheck(op, (leaf(2),), test_utils=["test_x"])
    with pytest.raises(RuntimeError, match="does not exist"):
        opcheck("tests_none::x", ())
    with pytest.raises(TypeError, match="argument 'test_utils'"):
        opcheck(op, (leaf(2),), test_utils=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="argument 'op': expected an operator"):
        opcheck(lambda x: x, (leaf(2),))
    with pytest.raises(TypeError, match="expected a tuple"):
        opcheck(op, leaf(2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"missing a required argument.*Expected the arguments of"):
        opcheck(op, ())


def test_tolerances(name: str) -> None:
    noise = itertools.cycle([0.0, 1e-3])
    op = full(name, lambda x: x + next(noise), tags=(Tag.pointwise,))
    strict = codes(op, (tp.ones(3),), test_utils="test_schema")
    assert strict == {("schema", "keywords")}
    assert codes(op, (tp.ones(3),), test_utils="test_schema", atol=0.1, rtol=0.1) == set()


def test_arguments_are_left_alone(name: str) -> None:
    op = good_cube(name)
    x = leaf(3)
    before = x.detach().numpy().copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opcheck(op, (x,), test_utils="all")
    np.testing.assert_array_equal(x.detach().numpy(), before)
    assert x.grad is None


# --- sizes that depend on values ------------------------------------------------------------------


def positive(name: str, kernel: Any = None, **options: Any) -> Any:
    """Define an operator that keeps what is above zero."""
    body = kernel or (lambda x: x[x > 0].clone())
    op = custom_op(
        name, body, schema="(Tensor x) -> Tensor", tags=Tag.dynamic_output_shape, **options
    )
    op.register_autograd(_scattered, setup_context=_keep_places)
    return op


def _keep_places(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.shape = inputs[0].shape
    ctx.save_for_backward((inputs[0] > 0).flatten().nonzero().flatten())


def _scattered(ctx: Any, grad: Any) -> Any:
    zeros = tp.zeros(ctx.shape, dtype=grad.dtype).flatten()
    return zeros.index_add(0, ctx.saved_tensors[0], grad).reshape(ctx.shape)


def _unknown(x: Any) -> Any:
    raise NotImplementedError("sizes depend on values")


def test_sizes_that_depend_on_values_need_no_fake_kernel(name: str) -> None:
    assert opcheck(positive(name), (leaf(3, 4),), test_utils="all") == {}
    told = positive(f"{name}_told")
    told.register_fake(_unknown)
    assert opcheck(told, (leaf(7),), test_utils="all") == {}
    untagged = custom_op(
        f"{name}_untagged", lambda x: x[x > 0].clone(), schema="(Tensor x) -> Tensor"
    )
    untagged.register_fake(_unknown)
    assert ("faketensor", "fake_reads_data") in codes(untagged, (tp.rand(3),))


@pytest.mark.parametrize(
    ("kernel", "failure"),
    [
        (lambda x: (x[x > 0] if x.isfinite().all() else x[:, None]).clone(),
         ("variants", "dynamic_rank")),
        (lambda x: x[x > 0].to(tp.float32 if len(x) == 3 else x.dtype),
         ("aot_dispatch_dynamic", "dynamic_dtype")),
        (lambda x: (x if x.isnan().any() else x[x > 0].float()).clone(),
         ("variants", "dynamic_dtype")),
    ],
    ids=["rank by values", "type by sizes", "type by values"],
)  # fmt: skip
def test_ranks_and_types_do_not_depend_on_values(name: str, kernel: Any, failure: Any) -> None:
    x = tp.tensor([0.25, 0.5, 0.75], dtype=tp.float64)
    op = custom_op(name, kernel, schema="(Tensor x) -> Tensor", tags=Tag.dynamic_output_shape)
    assert failure in codes(op, (x,))


def test_a_fake_kernel_beside_unknown_sizes_is_compared_in_the_rest(name: str) -> None:
    op = positive(name)
    op.register_fake(lambda x: x.new_empty((0,)))
    assert opcheck(op, (tp.rand(4),)) == {}
    op.register_fake(lambda x: x.new_empty((0, 1), dtype=tp.int64))
    found = codes(op, (tp.rand(4),), test_utils="test_faketensor")
    assert found == {("faketensor", "fake_rank"), ("faketensor", "fake_dtype")}


def test_the_compiled_call_is_compared_where_sizes_depend_on_values(name: str) -> None:
    calls = itertools.count()
    # The first call is the eager one that the compiled call is compared with.
    op = positive(name, lambda x: x[x > 0] * (1 if next(calls) == 0 else 2))
    found = codes(op, (leaf(5),), test_utils="test_aot_dispatch_static")
    assert found == {("aot_dispatch_static", "compiled_differs")}
