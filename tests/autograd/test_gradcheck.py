"""Checks of gradients: right ones pass, and every kind of failure has its verdict and its words."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import (
    Function,
    GradcheckError,
    GradcheckReport,
    gradcheck,
    gradcheck_report,
    gradgradcheck,
)


def rand(*shape, dtype=tp.float64):
    return tp.rand(*shape, dtype=dtype).add(0.5).detach().requires_grad_()


def product(make):
    """Return ``x * y`` with ``make(g, x, y)`` as the gradients of x and y."""

    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            return make(g, *ctx.saved_tensors)

    return Product.apply


def unary(forward, backward):
    """Return a function with ``backward(g, x)`` as its gradient."""

    class Unary(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)

    return Unary.apply


square = unary(lambda x: x * x, lambda g, x: g * 2 * x)


def only(report):
    (pair,) = report.pairs
    return pair


# --- the names ------------------------------------------------------------------------------------


def test_function_and_module_path_are_one():
    from tensorplay.autograd.gradcheck import gradcheck as by_path

    assert tp.autograd.gradcheck is by_path
    assert tp.autograd.gradcheck.gradcheck is by_path
    assert tp.autograd.gradcheck.gradgradcheck is gradgradcheck
    assert issubclass(GradcheckError, RuntimeError)


# --- right gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        square,
        lambda x: x.exp() * x.sum(),
        lambda x: x.reshape(2, 3) @ x.reshape(3, 2),
        lambda x: (x.sum(), x * 2, "text", x > 0),
        lambda x: {"a": x.sigmoid(), "b": [x.log()]},
        lambda x: x.reshape(2, 3).t(),
        lambda x: x.sum(),
        lambda x: x.detach() * 0 + 3,
    ],
)
def test_right_gradients_pass(function, fast_mode):
    x = rand(6)
    before = x.tolist()
    assert gradcheck(function, (x,), fast_mode=fast_mode, check_batched_grad=True)
    assert x.tolist() == before
    assert x._version == 0
    assert x.grad is None


@pytest.mark.parametrize("fast_mode", [False, True])
def test_complex_and_real_inputs_together(fast_mode):
    z = tp.tensor([0.5 + 1j, -0.3 + 0.2j], dtype=tp.complex128, requires_grad=True)
    x = rand(2)

    def function(z, x):
        return z * z.conj() * x, (z * x).exp(), (z.real * x).sum()

    assert gradcheck(function, (z, x), fast_mode=fast_mode, check_forward_ad=True)
    assert gradgradcheck(function, (z, x), fast_mode=fast_mode)


def test_gradgradcheck_of_vectors_with_gaps():
    assert gradgradcheck(square, (rand(3),), gen_non_contig_grad_outputs=True)
    assert gradgradcheck(square, (rand(3),), [tp.ones(3, dtype=tp.float64)])


def test_inputs_in_lists_dictionaries_and_keywords_are_named():
    """Case B045."""

    def function(xs, options, *, w):
        return (xs[0] * w + xs[1]).sum() * options["scale"]

    a, b, w, scale = rand(2), rand(2), rand(2), rand(1)
    report = gradcheck(function, ([a, b], {"scale": scale}), kwargs={"w": w})
    assert [pair.input for pair in report.pairs] == ["xs[0]", "xs[1]", "options['scale']", "w"]
    plain = [t.detach() for t in (a, b, w)]
    with pytest.raises(
        ValueError, match=r"require gradient.*xs\[0\].*xs\[1\].*w: .*requires_grad_"
    ):
        gradcheck(function, (plain[:2], {}), kwargs={"w": plain[2]})


def test_names_of_the_arguments_of_a_function_class():
    assert [p.input for p in gradcheck(square, rand(2)).pairs] == ["x"]
    assert [p.input for p in gradcheck(lambda *v: v[0] * v[1], (rand(2), rand(2))).pairs] == [
        "v[0]",
        "v[1]",
    ]


def test_same_tensor_twice():
    x = rand(3)
    assert gradcheck(lambda a, b: a * b, (x, x))


def test_empty_inputs():
    assert gradcheck(lambda x: x * 2, (rand(0, 3),))


def test_result_is_true_and_prints():
    report = gradcheck(square, (rand(2),))
    assert isinstance(report, GradcheckReport)
    assert bool(report)
    assert "gradcheck: ok" in str(report)


# --- wrong gradients, and why ---------------------------------------------------------------------


WRONG = {
    "2.00 x numerical": lambda g, x, y: (g * 2 * y, g * x),
    "sign": lambda g, x, y: (-g * y, g * x),
    "zero where it should not": lambda g, x, y: (g * y * 0, g * x),
    "number of elements of the input": lambda g, x, y: (g * y / 6, g * x),
    "analytical is x x numerical": lambda g, x, y: (g * y * x, g * x),
    "chain rule": lambda g, x, y: (g * y * (x.cos() + 2), g * x),
    "the incoming gradient is ignored": lambda g, x, y: (y * g.sum(), g * x),
    "reverse order": lambda g, x, y: ((g * y).reshape(-1).flip(0).reshape(2, 3), g * x),
    "wrong only at 1 of 6": lambda g, x, y: (g * (y + tp.tensor([[0.0, 0, 0], [0, 0, 9]])), g * x),
    "nan": lambda g, x, y: (g * y / (x - x), g * x),
}


@pytest.mark.parametrize("words", WRONG)
def test_likely_cause(words):
    """Case B058."""
    x, y = rand(2, 3), rand(2, 3)
    report = gradcheck(product(WRONG[words]), (x, y), raise_exception=False)
    assert not report
    assert report.verdict == "wrong"
    assert [p.verdict for p in report.pairs] == ["wrong", "ok"]
    pair = report.pairs[0]
    assert pair.code == "jacobian_mismatch"
    assert words in pair.cause
    assert words in str(report)


def test_transposed_gradients():
    w = rand(3, 3)
    c = rand(3, 3).detach()
    by_input = unary(lambda x: x @ c, lambda g, x: (g @ c.t()).t())
    assert "transposed" in only(gradcheck_report(by_input, (w,))).cause
    by_output = unary(lambda x: x * 1, lambda g, x: g.t())
    assert "transposed" in only(gradcheck_report(by_output, (w,))).cause


def test_conjugated_gradient():
    z = tp.tensor([0.5 + 1j, -0.3 + 0.2j], dtype=tp.complex128, requires_grad=True)
    report = gradcheck_report(unary(lambda z: (z * z).real, lambda g, z: g * 2 * z), (z,))
    assert "conjugate" in only(report).cause


def test_complex_factor():
    z = tp.tensor([0.5 + 1j, -0.3 + 0.2j], dtype=tp.complex128, requires_grad=True)
    report = gradcheck_report(unary(lambda z: z * 2, lambda g, z: g * 2j), (z,))
    assert "constant factor" in only(report).cause


def test_unsummed_broadcast_dimension():
    function = unary(lambda x: x.reshape(1, 3).expand(4, 3).clone(), lambda g, x: g[:1].reshape(3))
    report = gradcheck_report(function, (rand(3),))
    assert "broadcast dimension 0 of the output was not summed" in only(report).cause


def test_missing_and_extra_terms():
    missing = unary(
        lambda x: x.sum() * x, lambda g, x: g * x.sum()
    )  # the term of the sum is missing
    assert only(gradcheck_report(missing, (rand(3),))).verdict == "wrong"
    spread = unary(lambda x: x * 2, lambda g, x: g * 2 + g.sum())
    assert "too many" not in (only(gradcheck_report(spread, (rand(1),))).cause or "")


def test_worst_element_and_tolerance():
    bump = tp.tensor([0.0, 1.0, 0.0], dtype=tp.float64)
    function = unary(lambda x: x * 3, lambda g, x: g * (3 + bump))
    pair = only(gradcheck_report(function, (rand(3),), atol=1e-4, rtol=1e-2))
    assert (pair.worst.input_index, pair.worst.output_index) == ((1,), (1,))
    assert pair.worst.analytical == pytest.approx(4)
    assert pair.worst.numerical == pytest.approx(3)
    assert pair.worst.difference == pytest.approx(1)
    assert pair.worst.tolerance == pytest.approx(1e-4 + 3e-2, rel=1e-3)
    assert (pair.atol, pair.rtol, pair.step) == (1e-4, 1e-2, 1e-6)
    assert pair.analytical.shape == pair.numerical.shape == (3, 3)
    assert pair.analytical[1, 1] == pytest.approx(4)


def test_text_of_a_failure():
    x, y = rand(3), rand(3)
    report = gradcheck(product(WRONG["2.00 x numerical"]), (x, y), raise_exception=False)
    text = report.to_text()
    for fact in (
        "output 0, input x: wrong [jacobian_mismatch]: off by a constant factor",
        "worst element: x[", "your gradient", "numerical value", "gap", "allowed", "step 1e-06",
        "output 0, input y: ok",
    ):  # fmt: skip
        assert fact in text
    with pytest.raises(
        GradcheckError, match="Jacobian mismatch for output 0 with respect to input 0"
    ):
        gradcheck(product(WRONG["sign"]), (x, y))


def test_report_is_plain_data():
    z = tp.tensor([1 + 1j], dtype=tp.complex128, requires_grad=True)
    report = gradcheck_report(unary(lambda z: z * 2, lambda g, z: g * 3), (z,))
    data = json.loads(json.dumps(report.to_dict()))
    assert data["verdict"] == "wrong"
    assert data["pairs"][0]["worst"]["analytical"] == [3.0, 0.0]


def test_fast_mode_finds_and_then_locates():
    report = gradcheck_report(product(WRONG["sign"]), (rand(2, 3), rand(2, 3)), fast_mode=True)
    assert [p.verdict for p in report.pairs] == ["wrong", "ok"]
    assert "sign" in report.pairs[0].cause
    assert any("fast mode" in note for note in report.notes)


# --- other verdicts -------------------------------------------------------------------------------


def test_missing_gradient():
    report = gradcheck_report(product(lambda g, x, y: (None, g * x)), (rand(2), rand(2)))
    assert (report.pairs[0].verdict, report.pairs[0].code) == ("missing", "missing_gradient")
    assert report.pairs[1].verdict == "ok"
    report = gradcheck_report(lambda x: x.detach() * 2, (rand(2),))
    assert (only(report).verdict, only(report).code) == ("missing", "missing_gradient")
    with pytest.raises(GradcheckError, match="Numerical gradient for function expected to be zero"):
        gradcheck(lambda x: x.detach() * 2, (rand(2),))


def test_missing_formula():
    class NoBackward(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    report = gradcheck_report(NoBackward.apply, (rand(2),))
    assert (only(report).verdict, only(report).code) == ("missing", "no_formula")
    assert "must implement" in report.message


def test_missing_second_derivative_fails():
    detached = unary(lambda x: x * x, lambda g, x: (g * 2 * x).detach())
    assert gradcheck(detached, (rand(2),))
    with pytest.raises(GradcheckError):
        gradgradcheck(detached, (rand(2),))


@pytest.mark.parametrize(
    "function", [tp.relu, lambda x: tp.where(x > 0, 3 * x, x), lambda x: x.reshape(2, 2).max(1)[0]]
)
def test_point_without_a_derivative(function):
    """Case B067."""
    x = tp.zeros(4, dtype=tp.float64, requires_grad=True)
    report = gradcheck(function, (x,), raise_exception=False)
    assert not report
    assert (report.verdict, report.code) == ("not_differentiable_here", "not_differentiable")
    assert "not differentiable" in str(report)
    assert "At a point nearby the gradient is right" in str(report)
    left, right = only(report).worst.slopes
    assert left != pytest.approx(right)
    assert x.tolist() == [0.0] * 4


def test_wrong_formula_is_found_at_and_away_from_the_kink():
    broken = unary(tp.relu, lambda g, x: g * 2 * (x > 0).double())
    for start in (0.0, 1.0):
        x = tp.full((4,), start, dtype=tp.float64, requires_grad=True)
        report = gradcheck_report(broken, (x,))
        assert report.verdict == "wrong", start
        assert "2.00" in only(report).cause


def test_function_without_values_around_the_point():
    x = tp.zeros(1, dtype=tp.float64, requires_grad=True)
    report = gradcheck_report(lambda x: x.log(), (x,))
    assert not report
    assert only(report).code in {"not_finite", "not_differentiable", "jacobian_mismatch"}


# --- determinism (case B039) ----------------------------------------------------------------------


def drifting(amount):
    state = {"n": 0}

    class Drift(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            state["n"] += 1
            return g * (2 + amount * (state["n"] % 7))

    return Drift.apply


def test_state_in_backward():
    report = gradcheck_report(drifting(1e-4), (rand(3),))
    assert (report.verdict, report.code) == ("non_deterministic", "not_reentrant")
    assert "ran backward twice" in report.message
    with pytest.raises(GradcheckError, match="Backward is not reentrant"):
        gradcheck(drifting(1e-4), (rand(3),))
    assert gradcheck(drifting(1e-6), (rand(3),), nondet_tol=1e-4)
    assert gradcheck_report(drifting(1e-4), (rand(3),), fast_mode=True).code == "not_reentrant"


def test_rounding_passes_with_a_note():
    report = gradcheck(drifting(2e-16 * 2), (rand(3),))
    assert report
    assert any("rounding" in note for note in report.notes)


def test_randomness_is_named():
    noisy = unary(lambda x: x * 2, lambda g, x: g * (2 + 0.1 * tp.rand(3, dtype=tp.float64)))
    report = gradcheck_report(noisy, (rand(3),))
    assert (report.verdict, report.code) == ("non_deterministic", "random")
    assert "tensorplay's generator" in report.message
    report = gradcheck_report(lambda x: x * np.random.default_rng().random(), (rand(3),))
    assert report.verdict == "non_deterministic"
    report = gradcheck_report(lambda x: x * tp.rand(3, dtype=tp.float64), (rand(3),))
    assert (report.verdict, report.code) == ("non_deterministic", "random")


def test_state_in_forward():
    calls = []

    def function(x):
        calls.append(1)
        return x * len(calls)

    report = gradcheck_report(function, (rand(3),))
    assert (report.verdict, report.code) == ("non_deterministic", "stateful_forward")


# --- narrow types (case B015) ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [tp.float32, tp.float16, tp.bfloat16])
def test_linear_map_in_narrow_types(dtype):
    w = tp.tensor([[0.3, -0.7]], dtype=dtype)
    x = rand(1, 2, dtype=dtype)
    with pytest.warns(UserWarning, match="not a double precision"):
        assert gradcheck(lambda t: t @ w.t(), (x,))
    report = gradcheck_report(lambda t: (t @ w.t()).to(dtype), (x,))
    assert report.verdict in {"ok", "inconclusive"}
    assert np.abs(only(report).numerical).min() > 0


def only_float32(forward, backward):
    """Return a function that takes nothing wider, as a kernel may."""

    def checked(x):
        if x.dtype is not tp.float32:
            message = "expected float32"
            raise TypeError(message)
        return forward(x)

    return unary(checked, backward)


@pytest.mark.parametrize("scale", [1.0, 1.01, 1.05, -1.0])
@pytest.mark.parametrize(
    ("forward", "slope"),
    [
        (lambda x: x * 0.3, lambda x: x * 0 + 0.3),
        (lambda x: x.exp(), lambda x: x.exp()),
        (lambda x: x * x * x, lambda x: 3 * x * x),
        (lambda x: x.sin(), lambda x: x.cos()),
    ],
)
def test_float32_without_a_wider_twin(forward, slope, scale):
    function = only_float32(forward, lambda g, x: g * slope(x) * scale)
    report = gradcheck_report(function, (rand(5, dtype=tp.float32),))
    assert report.verdict == ("ok" if scale == 1.0 else "wrong")


def test_wrong_by_five_percent_in_float32():
    function = unary(lambda x: x * 0.3, lambda g, x: g * 0.3 * 1.05)
    assert gradcheck_report(function, (rand(5, dtype=tp.float32),)).verdict == "wrong"


def test_too_little_precision_is_said_so():
    function = only_float32(lambda x: x + 1e6, lambda g, x: g * 1.02)
    report = gradcheck_report(function, (rand(3, dtype=tp.float32),))
    assert (report.verdict, report.code) == ("inconclusive", "precision")
    assert "precision is too low" in str(report)


def test_step_of_float64_in_float32_is_inconclusive_not_wrong():
    function = only_float32(lambda x: x * 3, lambda g, x: g * 3)
    report = gradcheck_report(function, (rand(3, dtype=tp.float32),), eps=1e-6)
    assert report.verdict in {"ok", "inconclusive"}


def test_function_that_computes_more_coarsely_than_its_type():
    function = unary(lambda x: (x.float() * 3).double(), lambda g, x: g * 3)
    assert gradcheck_report(function, (rand(4),)).verdict in {"ok", "inconclusive"}


def test_large_function_values_widen_the_allowed_gap():
    assert gradcheck(lambda x: x * 1e-3 + 1e5, (rand(3),))


# --- promises besides the values ------------------------------------------------------------------


def test_gradient_that_ignores_or_bends_the_incoming_one():
    constant = unary(lambda x: x.sum(), lambda g, x: x * 0 + 1)
    squared = unary(lambda x: x * 2, lambda g, x: g * g * 2)
    for function in (constant, squared):
        with pytest.raises(GradcheckError, match="backward not multiplied by grad_output"):
            gradcheck(function, (rand(3),))
        assert gradcheck_report(function, (rand(3),)).code == "not_linear_in_grad"


def test_undefined_gradients():
    class NoZeros(Function):
        result = None

        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, a, b):
            return NoZeros.formula(a, b)

    def both(a, b):
        if a is None and b is None:
            return None
        return (0 if a is None else a * 2) + (0 if b is None else b * 3)

    x = rand(3)
    NoZeros.formula = both
    assert gradcheck(NoZeros.apply, (x,))
    NoZeros.formula = lambda a, b: a * 2 + b * 3
    for fast_mode in (False, True):
        with pytest.warns(UserWarning, match="check_undefined_grad=False"), pytest.raises(
            GradcheckError, match="Expected backward function to handle undefined output grads"
        ) as raised:  # fmt: skip
            gradcheck(NoZeros.apply, (x,), fast_mode=fast_mode)
        assert isinstance(raised.value.__cause__, TypeError)
        assert gradcheck(NoZeros.apply, (x,), check_undefined_grad=False, fast_mode=fast_mode)

    class Single(NoZeros):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return Single.formula(g)

    Single.formula = lambda g: g * 2
    with pytest.warns(UserWarning, match="check_undefined_grad=False"), pytest.raises(
        GradcheckError, match="Expected backward function to handle undefined output grads"
    ) as raised:  # fmt: skip
        gradcheck(Single.apply, (x,))
    assert isinstance(raised.value.__cause__, TypeError)
    assert gradcheck(Single.apply, (x,), check_undefined_grad=False)
    Single.formula = lambda g: tp.ones(3) if g is None else g * 2
    with pytest.warns(UserWarning, match="check_undefined_grad=False"), pytest.raises(
        GradcheckError, match="Expected all input grads to be undefined or zero"
    ):  # fmt: skip
        gradcheck(Single.apply, (x,))
    assert gradcheck_report(Single.apply, (x,)).code == "undefined_grad"


def test_types_of_gradients():
    function = unary(lambda x: x * 2, lambda g, x: (g * 2).float())
    assert gradcheck(function, (rand(3),))
    with pytest.raises(GradcheckError, match="Gradient has dtype mismatch"):
        gradcheck(function, (rand(3),), check_grad_dtypes=True)
    assert gradcheck_report(function, (rand(3),), check_grad_dtypes=True).code == "dtype"
    assert gradcheck(square, (rand(3),), check_grad_dtypes=True)


def test_forward_mode_is_compared_too():
    class Forward(Function):
        factor = 2

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

        @staticmethod
        def jvp(ctx, t):
            return t * Forward.factor

    x = rand(3)
    assert gradcheck(Forward.apply, (x,), check_forward_ad=True)
    assert gradcheck(Forward.apply, (x,), check_forward_ad=True, check_backward_ad=False)
    Forward.factor = 3
    report = gradcheck_report(Forward.apply, (x,), check_forward_ad=True)
    assert (report.verdict, report.code) == ("wrong", "forward_ad")
    assert "1.50 x numerical" in only(report).cause
    with pytest.raises(GradcheckError, match="computed with forward mode AD"):
        gradcheck(Forward.apply, (x,), check_forward_ad=True)
    missing = gradcheck_report(square, (x,), check_forward_ad=True)
    assert (missing.verdict, missing.code) == ("missing", "no_forward_formula")


# --- bad input and flags --------------------------------------------------------------------------


def test_bad_inputs():
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        gradcheck(lambda x: x * 2, (tp.tensor([1, 2]),))
    report = gradcheck_report(lambda n: n * 2, (tp.tensor([1, 2]),))
    assert (report.verdict, report.code) == ("error", "bad_input")
    assert "n: tensorplay.int64 [2] (this type has no gradient; write n.double())" in str(report)
    with pytest.raises(RuntimeError, match="has a dimension with stride 0"):
        gradcheck(lambda x: x * 2, (tp.rand(1, dtype=tp.float64).expand(3).requires_grad_(),))
    with pytest.raises(TypeError, match="expected a Tensor or a tuple"):
        gradcheck(lambda x: x * 2, {"x": rand(2)})
    x = rand(2)
    x._array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        gradcheck(lambda x: x * 2, (x,))
    with pytest.raises(ValueError, match="on meta"):
        gradcheck(lambda x: x * 2, (tp.ones(2, device="meta", requires_grad=True),))


def test_outputs_that_change_their_shape_or_type():
    x = tp.tensor([0.5], dtype=tp.float64, requires_grad=True)

    def grows(t):
        return tp.cat([t, t]) if t.item() > 0.5 else t * 1

    def narrows(t):
        return t.float() if t.item() > 0.5 else t * 1

    with pytest.raises(AssertionError, match="outputs with the same shape"):
        gradcheck(grows, (x,))
    with pytest.raises(AssertionError, match="outputs with the same dtype"):
        gradcheck(narrows, (x,))
    assert gradcheck_report(grows, (x,)).code == "output_unstable"
    assert x.tolist() == [0.5]


def test_exceptions_of_user_code():
    def fail(*_):
        message = "mine"
        raise ZeroDivisionError(message)

    for function in (fail, unary(lambda x: x * 2, fail)):
        with pytest.raises(ZeroDivisionError):
            gradcheck(function, (rand(2),), raise_exception=False)
        report = gradcheck_report(function, (rand(2),))
        assert (report.verdict, report.code) == ("error", "exception")
        assert "ZeroDivisionError: mine" in report.message


def test_outputs_without_a_gradient():
    with pytest.raises(ValueError, match="expected the function to return a tensor"):
        gradcheck(lambda x: 3.0, (rand(2),))
    report = gradcheck(lambda x: x > 0, (rand(2),))
    assert report
    assert any("no output is of a type" in note for note in report.notes)


def test_flags_of_forward_mode_go_together():
    assert gradcheck(tp.sin, (rand(2),), check_forward_ad=True, check_batched_forward_grad=True)


def test_large_jacobians_are_sampled():
    x = tp.rand(2500, dtype=tp.float64, requires_grad=True)
    report = gradcheck_report(lambda x: x * 2, (x,))
    assert report
    assert any("a sample of 2000 x 2000" in note for note in report.notes)


def test_numerical_jacobian_by_itself():
    x = rand(3)
    (table,) = tp.autograd.gradcheck.get_numerical_jacobian_wrt_specific_input(
        square, 0, (x,), square(x), 1e-6
    )
    np.testing.assert_allclose(table.numpy(), np.diag(2 * x.detach().numpy()), atol=1e-6)


def test_second_order_of_a_complex_scalar() -> None:
    x = tp.tensor([1.0 + 2.0j, -0.5 + 0.25j], dtype=tp.complex128).requires_grad_()
    assert tp.autograd.gradgradcheck(lambda z: (z * z * z).sum(), (x,))


@pytest.mark.parametrize(
    ("factor", "shown"),
    [(1.0033, "1.003"), (0.9967, "0.997"), (-1.0033, "-1.003"), (1.5, "1.50"), (1.0004, "1.0004")],
)
def test_a_factor_near_one_is_not_shown_as_one(factor, shown):
    x = rand(3)
    report = gradcheck_report(lambda x: Scaled.apply(x, factor), (x,), rtol=1e-5)
    assert only(report).cause == f"off by a constant factor: analytical is {shown} x numerical"


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 * ctx.factor, None


def test_a_ratio_that_changes_sign_is_a_missing_term() -> None:
    """The derivative of mish without the second term of the product rule."""
    x = tp.tensor([-1.6, -1.3, -0.7, 0.4, 1.2], dtype=tp.float64, requires_grad=True)
    mish = unary(
        lambda z: z * tp.tanh(tp.log1p(tp.exp(z))), lambda g, z: g * tp.tanh(tp.log1p(tp.exp(z)))
    )
    cause = only(gradcheck_report(mish, (x,))).cause
    assert cause.startswith("a term is missing or wrong")
    assert "changes its sign" in cause


def test_a_report_as_the_last_line_of_a_cell_is_readable_in_text_and_html() -> None:
    x = tp.tensor([1.0, 2.0], dtype=tp.float64, requires_grad=True)
    right = gradcheck_report(tp.sin, (x,))
    assert repr(right) == right.to_text()
    assert repr(right.pairs[0]) == right.pairs[0].to_text()
    assert "<td>ok</td>" in right._repr_html_()
    assert "array(" not in repr(right)

    def broken(t: tp.Tensor) -> tp.Tensor:
        return (t.detach() * t).sum()

    wrong = gradcheck_report(broken, (x,))
    page = wrong._repr_html_()
    assert wrong.verdict == "wrong"
    assert "worst element" in page
    assert "<script" not in page
