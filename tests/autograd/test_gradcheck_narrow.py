"""Wrong gradients in narrow types are found: in float64 where the function works in that."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import Function, gradcheck_report
from tests.ops.sampling import cases, tensors_of

NARROW = [tp.float32, tp.float16, tp.bfloat16]
dtypes = pytest.mark.parametrize("dtype", NARROW, ids=str)
FAST = pytest.mark.parametrize("fast_mode", [False, True])


def square(slope, only=None):
    """Return ``x * x`` with ``g * slope(x)`` as its gradient, of type `only` if that is given."""

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            if only is not None and x.dtype is not only:
                message = f"expected {only}"
                raise TypeError(message)
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * slope(x)

    return Square.apply


def point(dtype):
    return tp.tensor([1, 0.5, 2], dtype=dtype, requires_grad=True)


@FAST
@dtypes
@pytest.mark.parametrize("factor", [3.0, 2.2, 2.02, 1.5, -2.0, 0.0])
def test_wrong_factors(dtype, factor, fast_mode):
    report = gradcheck_report(square(lambda x: factor * x), (point(dtype),), fast_mode=fast_mode)
    assert report.verdict == "wrong"
    assert "depends on the type" not in report.message


@FAST
@dtypes
def test_right_ones(dtype, fast_mode):
    def mixed(x):
        return (x * x).exp().sum() + x.sin() / 3

    for function in (square(lambda x: 2 * x), mixed):
        assert gradcheck_report(function, (point(dtype),), fast_mode=fast_mode)


@dtypes
def test_a_kernel_of_one_type(dtype):
    def verdict(factor):
        function = square(lambda x: factor * x, only=dtype)
        return gradcheck_report(function, (point(dtype),)).verdict

    assert verdict(2.0) == "ok"
    assert verdict(3.0) == "wrong"
    assert verdict(-2.0) == "wrong"
    assert verdict(0.0) == "wrong"


@dtypes
def test_a_formula_that_is_wrong_in_one_type_alone(dtype):
    function = square(lambda x: (3 if x.dtype is dtype else 2) * x)
    report = gradcheck_report(function, (point(dtype),))
    assert report.verdict == "wrong"
    assert "depends on the type" in report.message


def test_a_formula_that_takes_no_float64():
    def slope(x, factor):
        if x.dtype is tp.float64:
            raise TypeError
        return factor * x

    assert gradcheck_report(square(lambda x: slope(x, 2)), (point(tp.float32),))
    assert gradcheck_report(square(lambda x: slope(x, 3)), (point(tp.bfloat16),)).verdict == "wrong"


@dtypes
def test_forward_mode(dtype):
    class Tangents(Function):
        factor = 2.0

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

        @staticmethod
        def jvp(ctx, t):
            return t * Tangents.factor * ctx.saved_tensors[0]

    assert gradcheck_report(Tangents.apply, (point(dtype),), check_forward_ad=True)
    Tangents.factor = 2.2
    report = gradcheck_report(Tangents.apply, (point(dtype),), check_forward_ad=True)
    assert (report.verdict, report.code) == ("wrong", "forward_ad")


def test_gradients_that_leave_the_type_are_not_called_wrong():
    x = tp.tensor([200.0], dtype=tp.float16, requires_grad=True)
    report = gradcheck_report(lambda t: t * t * 0.5 * 600 / 600, (x,))
    assert report.verdict != "wrong"


# --- kernels of one type, without a float64 twin --------------------------------------------------

SMOOTH = {
    "square": (lambda x: x * x, lambda g, x: g * 2 * x),
    "exp": (lambda x: x.exp(), lambda g, x: g * x.exp()),
    "sin": (lambda x: x.sin(), lambda g, x: g * x.cos()),
    "tanh": (lambda x: x.tanh(), lambda g, x: g * (1 - x.tanh() ** 2)),
    "linear": (lambda x: x * 0.3, lambda g, x: g * 0.3),
    "log": (lambda x: x.log(), lambda g, x: g / x),
    "sigmoid": (lambda x: x.sigmoid(), lambda g, x: g * x.sigmoid() * (1 - x.sigmoid())),
    "sum": (lambda x: x.exp().sum(), lambda g, x: g * x.exp()),
    "relu": (tp.relu, lambda g, x: g * (x > 0).to(x.dtype)),
}


def kernel(name, dtype, factor):
    """Return a function that takes one type alone, with its gradient times `factor`."""
    forward, backward = SMOOTH[name]

    class Kernel(Function):
        @staticmethod
        def forward(ctx, x):
            if x.dtype is not dtype:
                message = f"expected {dtype}"
                raise TypeError(message)
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors) * factor

    return Kernel.apply


def verdicts(name, dtype, factor, **options):
    found = set()
    for seed in range(3):
        values = np.random.default_rng(seed).uniform(0.4, 2, 5)
        x = tp.tensor(values).to(dtype).detach().requires_grad_()
        found.add(gradcheck_report(kernel(name, dtype, factor), (x,), **options).verdict)
    return found


@FAST
@dtypes
@pytest.mark.parametrize("name", SMOOTH)
def test_right_gradients_of_kernels_are_never_called_wrong(name, dtype, fast_mode):
    found = verdicts(name, dtype, 1.0, fast_mode=fast_mode)
    assert found <= {"ok", "inconclusive"}
    if dtype is not tp.bfloat16:
        assert found == {"ok"}


@FAST
@pytest.mark.parametrize("dtype", [tp.float16, tp.bfloat16], ids=str)
def test_what_half_precision_cannot_tell_is_no_silent_pass(dtype, fast_mode):
    def report(factor, only=dtype):
        function = square(lambda x: factor * x, only=only)
        return gradcheck_report(function, (point(dtype),), fast_mode=fast_mode)

    right = report(2.0)
    assert right.verdict == "ok"
    least = {tp.float16: 1.0, tp.bfloat16: 3.5}[dtype]
    (note,) = [n for n in right.notes if "looks like rounding" in n]
    assert f"x is {dtype!r}" in note
    assert f"less than about {least}%" in note
    for factor in (1 + least / 100, 1 - least / 100):
        assert report(2.0 * factor).verdict == "inconclusive"
    # Where there are gradients in float64, these tell.
    assert not any("looks like rounding" in n for n in report(2.0, None).notes)
    assert report(2.01, None).verdict == "wrong"


@FAST
@pytest.mark.parametrize("factor", [1.01, 0.99])
@pytest.mark.parametrize("name", SMOOTH)
def test_one_percent_is_found_in_float32(name, factor, fast_mode):
    assert verdicts(name, tp.float32, factor, fast_mode=fast_mode) == {"wrong"}


@FAST
@pytest.mark.parametrize("factor", [1.08, 0.92])
@pytest.mark.parametrize("name", SMOOTH)
def test_a_few_percent_do_not_pass_in_half_precision(name, factor, fast_mode):
    assert verdicts(name, tp.bfloat16, factor, fast_mode=fast_mode) <= {"inconclusive", "wrong"}
    assert verdicts(name, tp.float16, factor, fast_mode=fast_mode) == {"wrong"}


@pytest.mark.parametrize("factor", [1.02, 0.98])
@pytest.mark.parametrize("name", SMOOTH)
def test_two_percent_do_not_pass_in_float16(name, factor):
    assert verdicts(name, tp.float16, factor) <= {"inconclusive", "wrong"}


@dtypes
@pytest.mark.parametrize("factor", [2.0, -1.0, 0.0])
@pytest.mark.parametrize("name", SMOOTH)
def test_gross_mistakes_of_kernels_are_found(name, dtype, factor):
    assert verdicts(name, dtype, factor) == {"wrong"}


@pytest.mark.parametrize("factor", [1.0, 1.06])
def test_a_half_precision_formula_of_a_function_of_all_types(factor):
    """The function takes float64, its formula does not: differences are exact, it is not."""

    class Half(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            if x.dtype is not tp.bfloat16:
                message = "expected bfloat16"
                raise TypeError(message)
            return g * 2 * x * factor

    verdict = gradcheck_report(Half.apply, (point(tp.bfloat16),)).verdict
    assert verdict == ("ok" if factor == 1.0 else "inconclusive")


@dtypes
def test_outputs_without_a_gradient(dtype):
    report = gradcheck_report(lambda x: x.argmax(), (point(dtype),))
    assert report
    assert any("no output is of a type" in note for note in report.notes)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [tp.float64, tp.float32, tp.bfloat16], ids=str)
def test_right_formulas_of_all_operators_are_not_accused(dtype):
    accused, checked, seen = [], 0, set()
    for parameters in cases():
        case = parameters.values[0]
        given = [t for t in tensors_of(list(case.arguments)) if t.dtype is tp.float64]
        random = any(a.type.base == "Generator" for a in case.operator.schema.arguments)
        if not given or random or (dtype is not tp.float64 and case.operator.name in seen):
            continue
        seen.add(case.operator.name)
        leaves = [t.detach().to(dtype).clone().requires_grad_() for t in given]
        places = {id(t): n for n, t in enumerate(given)}

        def function(*xs, case=case, places=places):
            return case.run(lambda x: xs[places[id(x)]] if id(x) in places else x)

        report = gradcheck_report(function, tuple(leaves))
        checked += report.verdict == "ok"
        if report.verdict in {"wrong", "missing", "non_deterministic"}:
            accused.append(f"{case.name}: {report.to_text()}")
    assert not accused
    assert checked > 100
