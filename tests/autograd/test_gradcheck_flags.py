"""Every flag of the checks: what it adds, and what each failure is called."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import (
    Function,
    GradcheckError,
    gradcheck,
    gradcheck_report,
    gradgradcheck,
)


def rand(*shape, dtype=tp.float64):
    array = np.random.default_rng(len(shape)).uniform(0.5, 1.5, shape)
    if dtype.is_complex:
        array = array + 1j * np.random.default_rng(7).uniform(0.5, 1.5, shape)
    return tp.tensor(array, dtype=dtype, requires_grad=True)


def with_backward(formula, forward=lambda x: x * 2):
    class Op(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            return formula(g)

    return Op.apply


def with_jvp(formula, forward=lambda x: x * 2, slope=2):
    class Op(Function):
        @staticmethod
        def forward(ctx, *xs):
            return forward(*xs)

        @staticmethod
        def backward(ctx, g):
            return (g * slope, g * slope)[: len(ctx.needs_input_grad)]

        @staticmethod
        def jvp(ctx, *tangents):
            return formula(*tangents)

    return Op.apply


def test_signatures():
    names = list(inspect.signature(gradcheck).parameters)
    assert names == [
        "func", "inputs", "eps", "atol", "rtol", "raise_exception", "nondet_tol",
        "check_undefined_grad", "check_grad_dtypes", "check_batched_grad",
        "check_batched_forward_grad", "check_forward_ad", "check_backward_ad", "fast_mode",
        "masked", "kwargs",
    ]  # fmt: skip
    names = list(inspect.signature(gradgradcheck).parameters)
    assert names == [
        "func", "inputs", "grad_outputs", "eps", "atol", "rtol", "gen_non_contig_grad_outputs",
        "raise_exception", "nondet_tol", "check_undefined_grad", "check_grad_dtypes",
        "check_batched_grad", "check_fwd_over_rev", "check_rev_over_rev", "fast_mode", "masked",
        "kwargs",
    ]  # fmt: skip


# --- gradients that cannot be one -----------------------------------------------------------------

FOREIGN = {
    "shape": (lambda g: tp.ones(2, dtype=tp.float64), "Analytical gradient has incorrect size"),
    "dtype": (lambda g: 1.0, "grad is incorrect type"),
    "device": (lambda g: tp.ones(3, device="meta"), "grad is incorrect device"),
}


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize("code", FOREIGN)
def test_gradients_of_a_wrong_kind(code, fast_mode):
    formula, words = FOREIGN[code]
    function, x = with_backward(formula), rand(3)
    report = gradcheck_report(function, (x,), fast_mode=fast_mode)
    assert (report.verdict, report.code) == ("wrong", code)
    with pytest.raises(GradcheckError, match=words) as raised:
        gradcheck(function, (x,), fast_mode=fast_mode)
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert not gradcheck(function, (x,), raise_exception=False, fast_mode=fast_mode)


def test_raise_exception_keeps_other_errors():
    """False is for gradients; what is no gradient's fault raises all the same."""
    with pytest.raises(ValueError, match="at least one"):
        gradcheck(lambda t: t, (tp.ones(2),), raise_exception=False)
    with pytest.raises(RuntimeError, match="stride 0"):
        gradcheck(
            lambda t: t,
            (tp.rand(1, dtype=tp.float64).expand(2).requires_grad_(),),
            raise_exception=False,
        )
    with pytest.raises(AssertionError):
        gradcheck(
            lambda t: tp.cat([t, t]) if t[0].item() > 0.5 else t * 1,
            (tp.tensor([0.5], dtype=tp.float64, requires_grad=True),),
            raise_exception=False,
        )


# --- tolerances -----------------------------------------------------------------------------------


def test_tolerances_are_those_given():
    function = with_backward(lambda g: g * 2.02)
    x = rand(3)
    assert not gradcheck(function, (x,), raise_exception=False)
    assert gradcheck(function, (x,), rtol=0.02)
    assert gradcheck(function, (x,), atol=0.03, rtol=0)
    assert not gradcheck(function, (x,), atol=0.01, rtol=0, raise_exception=False)
    pair = gradcheck_report(function, (x,), atol=0.5, rtol=0.25, eps=1e-3).pairs[0]
    assert (pair.atol, pair.rtol, pair.step) == (0.5, 0.25, 1e-3)


def test_masked_is_taken():
    for masked in (None, True, False):
        assert gradcheck(tp.sin, (rand(2),), masked=masked)
    assert gradgradcheck(tp.sin, (rand(2),), masked=True)


# --- forward mode ---------------------------------------------------------------------------------

FORWARD = {"check_forward_ad": True}
FAST = pytest.mark.parametrize("fast_mode", [False, True])


@FAST
def test_forward_formulas_are_compared(fast_mode):
    x = rand(3)
    for flags in (FORWARD, {**FORWARD, "check_backward_ad": False}):
        assert gradcheck(with_jvp(lambda t: t * 2), (x,), fast_mode=fast_mode, **flags)
        wrong = with_jvp(lambda t: t * 2.1)
        with pytest.raises(GradcheckError, match="computed with forward mode AD"):
            gradcheck(wrong, (x,), fast_mode=fast_mode, **flags)
        report = gradcheck_report(wrong, (x,), fast_mode=fast_mode, **flags)
        assert (report.verdict, report.code) == ("wrong", "forward_ad")
        assert "1.05 x numerical" in report.pairs[0].cause


@FAST
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: tp.tanh(x @ y), [(2, 3), (3, 2)]),
        (lambda x, y: (x.exp() * y, x.sum(), (y * 2).sin()), [(3,), (3,)]),
        (lambda x: tp.softmax(x, -1), [(2, 4)]),
    ],
)
@pytest.mark.parametrize("dtype", [tp.float64, tp.complex128, tp.float32])
def test_all_modes_of_right_functions(function, shapes, dtype, fast_mode):
    if dtype.is_complex and len(shapes) == 1:
        return  # softmax is of real numbers
    inputs = tuple(rand(*shape, dtype=dtype) for shape in shapes)
    flags = {
        "check_forward_ad": True,
        "check_batched_grad": True,
        "check_batched_forward_grad": True,
        "check_grad_dtypes": True,
        "fast_mode": fast_mode,
    }
    assert gradcheck_report(function, inputs, **flags)
    if dtype is tp.float32:
        return
    flags = {
        "check_fwd_over_rev": True,
        "check_batched_grad": True,
        "check_grad_dtypes": True,
        "gen_non_contig_grad_outputs": True,
        "fast_mode": fast_mode,
    }
    assert gradgradcheck(function, inputs, **flags)


def test_a_fast_forward_check_runs_the_function_a_few_times():
    calls = []

    def function(x):
        calls.append(None)
        return tp.tanh(x)

    assert gradcheck(function, (rand(400),), fast_mode=True, **FORWARD)
    assert len(calls) <= 8


@pytest.mark.parametrize("dtype", [tp.float64, tp.complex128])
def test_tangents_of_built_in_operators_are_taken_together(dtype):
    calls = []

    def function(x):
        calls.append(None)
        return x.exp() * x.sum(), x.real * 2

    report = gradcheck_report(function, (rand(30, dtype=dtype),), **FORWARD)
    assert report
    assert len(calls) < 25
    calls.clear()
    report = gradcheck_report(
        function, (rand(30, dtype=dtype),), check_backward_ad=False, **FORWARD
    )
    assert report
    assert len(calls) > 60  # nothing is known of the function, so that it runs point by point


def test_types_of_tangents():
    narrow = with_jvp(lambda t: (t * 2).float())
    assert gradcheck(narrow, (rand(3),), **FORWARD)
    for fast_mode in (False, True):
        flags = {**FORWARD, "check_grad_dtypes": True, "fast_mode": fast_mode}
        with pytest.raises(GradcheckError, match="Forward AD gradient has dtype mismatch"):
            gradcheck(narrow, (rand(3),), **flags)
        assert gradcheck_report(narrow, (rand(3),), **flags).code == "dtype"


def test_missing_tangents_count_as_zeros():
    def formula(s, t):
        if s is None or t is None:  # forgets the factor of what is left
            return (s if t is None else t) * 1
        return s * 2 + t * 2

    function = with_jvp(formula, lambda x, y: x * 2 + y * 2)
    flags = {"check_backward_ad": False, **FORWARD}
    report = gradcheck_report(function, (rand(2), rand(2)), **flags)
    assert (report.verdict, report.code) == ("wrong", "forward_ad")

    def late(s, t):  # the Jacobian is right; a pair of zeros is not what None is
        if s is None or t is None:
            return (s if t is None else t) * 2
        return s * 2 + t * 2 + 1

    function = with_jvp(late, lambda x, y: x * 2 + y * 2)
    with pytest.raises(GradcheckError, match="Mismatch in tangent values"):
        gradcheck(function, (rand(2), rand(2)), **flags)
    assert gradcheck(function, (rand(2), rand(2)), check_undefined_grad=False, **flags)


# --- batches --------------------------------------------------------------------------------------


def test_batched_gradients():
    class Shared(Function):
        """Its rule for batches forgets a factor."""

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return Rule.apply(g)

    class Rule(Function):
        @staticmethod
        def forward(ctx, g):
            return g * 2

        @staticmethod
        def vmap(info, in_dims, g):
            return g * Rule.factor, in_dims[0]

    x = rand(3)
    Rule.factor = 2
    assert gradcheck(Shared.apply, (x,), check_batched_grad=True)
    Rule.factor = 3
    assert gradcheck(Shared.apply, (x,))
    with pytest.raises(GradcheckError, match="Batched gradients differ"):
        gradcheck(Shared.apply, (x,), check_batched_grad=True)

    reads = with_backward(lambda g: g * 2 if g.sum().item() < 1e9 else g)
    with pytest.raises(GradcheckError, match=r"While computing batched gradients, got: .*vmap"):
        gradcheck(reads, (x,), check_batched_grad=True)
    assert gradcheck_report(reads, (x,), check_batched_grad=True).code == "batched"


# --- second derivatives ---------------------------------------------------------------------------


class Cube(Function):
    """Its first derivative is right; `slope` is what makes the second."""

    slope = staticmethod(lambda g, x: g * 3 * x * x)

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        return Cube.slope(g, *ctx.saved_tensors)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_second_derivatives_that_miss_a_term(fast_mode, monkeypatch):
    x = rand(3)
    assert gradgradcheck(Cube.apply, (x,), fast_mode=fast_mode)
    for slope in (
        lambda g, x: g * (3 * x * x).detach(),
        lambda g, x: g * 3 * x * x.detach(),
        lambda g, x: g.detach() * 3 * x * x,
    ):
        monkeypatch.setattr(Cube, "slope", staticmethod(slope))
        assert gradcheck(Cube.apply, (x,), fast_mode=fast_mode)
        with pytest.raises(GradcheckError):
            gradgradcheck(Cube.apply, (x,), fast_mode=fast_mode)


def test_once_differentiable_fails_the_second_check():
    class Once(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @tp.autograd.function.once_differentiable
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

    assert gradcheck(Once.apply, (rand(2),))
    with pytest.raises(RuntimeError):
        gradgradcheck(Once.apply, (rand(2),))


def test_gradients_of_outputs_that_are_given():
    x = rand(3)
    v = tp.tensor([1.0, 2.0, -1.0], dtype=tp.float64, requires_grad=True)
    assert gradgradcheck(lambda t: t.exp(), (x,), v)
    assert gradgradcheck(
        lambda t: (t.exp(), t.sin()), (x,), (v, v.detach().clone().requires_grad_())
    )
    assert v.grad is None


def test_gradients_of_outputs_with_gaps():
    seen = set()

    def function(x):
        y = x * x
        if y.requires_grad:
            y.register_hook(lambda g: seen.add(g.is_contiguous()) if type(g) is tp.Tensor else None)
        return y

    assert gradgradcheck(function, (rand(2, 3),))
    assert seen == {True}
    seen.clear()
    assert gradgradcheck(function, (rand(2, 3),), gen_non_contig_grad_outputs=True)
    assert False in seen


def test_forward_over_reverse():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            return g * Inner.apply(*ctx.saved_tensors)

    class Inner(Function):
        """The exponential, with a wrong tangent."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].exp()

        @staticmethod
        def jvp(ctx, t):
            return t * ctx.saved_tensors[0].exp() * 2

    x = rand(3)
    assert gradgradcheck(Wrong.apply, (x,))
    with pytest.raises(GradcheckError):
        gradgradcheck(
            Wrong.apply, (x,), check_fwd_over_rev=True, check_rev_over_rev=False,
            check_undefined_grad=False,
        )  # fmt: skip


# --- nested inputs (case B045) --------------------------------------------------------------------


def test_nested_inputs_are_named():
    def function(xs, *, w, options):
        return (xs[0] * w + xs[1]).sum() * options["scale"][0]

    a, b, w, scale = (rand(2) for _ in range(4))
    report = gradcheck_report(function, ([a, b],), kwargs={"w": w, "options": {"scale": [scale]}})
    assert report
    names = [pair.input for pair in report.pairs]
    assert names == ["xs[0]", "xs[1]", "w", "options['scale'][0]"]
    plain = [t.detach() for t in (a, b, w)]
    with pytest.raises(ValueError, match=r"xs\[0\].*xs\[1\].*w:"):
        gradcheck(function, (plain[:2],), kwargs={"w": plain[2], "options": {"scale": [plain[0]]}})


def test_integer_outputs_are_left_out():
    def function(x):
        return x * 2, x.argmax(), (x > 0.7), x.detach() * 0

    report = gradcheck_report(function, (rand(4),))
    assert report
    assert [pair.output for pair in report.pairs] == [0]


def test_large_inputs_are_sampled_and_the_sample_is_stated():
    x = tp.from_numpy(np.linspace(-1, 1, 100_000)).requires_grad_()
    report = gradcheck_report(lambda t: (t * t).reshape(100, 1000).sum(1), (x,))
    assert report
    assert any(
        "100000 x 100 elements; a sample of 300 x 100 was checked" in n for n in report.notes
    )
    broken = with_backward(lambda g: g.reshape(100, 1).expand(100, 1000).reshape(-1) * 3,
                           lambda t: (t * 2).reshape(100, 1000).sum(1))  # fmt: skip
    report = gradcheck_report(broken, (x,))
    assert report.verdict == "wrong"
    assert "1.50 x numerical" in report.pairs[0].cause
    assert report.pairs[0].analytical.shape == (300, 100)


def test_inputs_that_share_memory_are_refused():
    x = rand(4)
    for other in (x.detach(), x.detach().requires_grad_(), x.detach()[1:]):
        with pytest.raises(RuntimeError, match="inputs x and y share memory"):
            gradcheck(lambda x, y: x * 2 + y.sum(), (x, other))
    assert gradcheck(lambda x, y: x * y, (x, x))
    both = rand(6).detach()
    even, odd = both[::2].requires_grad_(), both[1::2].requires_grad_()
    assert gradcheck(lambda x, y: x * y, (even, odd))


def test_every_code_is_documented():
    """Codes are for programs: what the modules can set is what the docstring lists."""
    folder = Path(inspect.getfile(gradcheck)).parent
    words = re.findall(r"``(\w+)``", gradcheck_report.__doc__)
    verdicts = {"ok", "wrong", "missing", "non_deterministic", "not_differentiable_here",
                "inconclusive", "error"}  # fmt: skip
    source = "\n".join(file.read_text() for file in folder.glob("*.py"))
    source = source.replace(gradcheck_report.__doc__, "")
    for code in set(words) - verdicts:
        assert f'"{code}"' in source, code
    set_by = re.findall(r'\.fail\(\s*words\.\w+,\s*"(\w+)"', source)
    set_by += re.findall(r'fail_all\(\s*words\.\w+,\s*"(\w+)"', source)
    set_by += re.findall(r'_error_report\(\s*\w+,\s*"(\w+)"', source)
    assert len(set(set_by)) > 8
    assert set(set_by) <= set(words)


class Product(Function):
    """x * y, whose rules take what they get."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx, x_t, y_t):
        x, y = ctx.saved_tensors
        return x_t * y + x * y_t


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_jvp_that_takes_no_none(fast_mode):
    inputs = (rand(2), rand(2))
    flags = {"check_forward_ad": True, "fast_mode": fast_mode}
    report = gradcheck_report(Product.apply, inputs, **flags)
    assert (report.verdict, report.code) == ("wrong", "undefined_grad")
    with pytest.warns(UserWarning, match="check_undefined_grad=False"), pytest.raises(
        GradcheckError, match="Expected jvp to handle undefined tangents, but with a tangent for x"
    ) as raised:  # fmt: skip
        gradcheck(Product.apply, inputs, **flags)
    assert isinstance(raised.value.__cause__, TypeError)
    assert gradcheck(Product.apply, inputs, check_undefined_grad=False, **flags)


def test_a_jvp_that_always_raises_is_an_exception(monkeypatch):
    def jvp(ctx, x_t, y_t):
        raise KeyError("mine")

    monkeypatch.setattr(Product, "jvp", staticmethod(jvp))
    inputs = (rand(2), rand(2))
    assert gradcheck_report(Product.apply, inputs, check_forward_ad=True).code == "exception"


def test_a_wrong_jvp_that_takes_no_none_is_compared(monkeypatch):
    def jvp(ctx, x_t, y_t):
        x, y = ctx.saved_tensors
        return 3 * x_t * y + x * y_t

    monkeypatch.setattr(Product, "jvp", staticmethod(jvp))
    report = gradcheck_report(
        Product.apply, (rand(2), rand(2)), check_forward_ad=True, check_undefined_grad=False
    )
    assert report.code == "forward_ad"
    assert [pair.verdict for pair in report.pairs] == ["wrong", "ok"]


@pytest.mark.parametrize(
    ("check", "flags", "words"),
    [
        (gradcheck, {"check_backward_ad": False}, "check_forward_ad and check_backward_ad"),
        (
            gradcheck,
            {"check_backward_ad": False, "check_forward_ad": True, "check_batched_grad": True},
            "check_batched_grad=True needs check_backward_ad=True",
        ),
        (
            gradcheck,
            {"check_batched_forward_grad": True},
            "check_batched_forward_grad=True needs check_forward_ad=True",
        ),
        (gradgradcheck, {"check_rev_over_rev": False}, "check_fwd_over_rev and check_rev_over_rev"),
        (
            gradgradcheck,
            {"check_rev_over_rev": False, "check_fwd_over_rev": True},
            "check_undefined_grad=True needs check_rev_over_rev=True",
        ),
        (
            gradgradcheck,
            {
                "check_rev_over_rev": False,
                "check_fwd_over_rev": True,
                "check_undefined_grad": False,
                "check_batched_grad": True,
            },
            "check_batched_grad=True needs check_rev_over_rev=True",
        ),
    ],
)
def test_flags_that_contradict_each_other_are_told(check, flags, words):
    x = tp.ones(2, dtype=tp.float64, requires_grad=True)
    for raises in (True, False):  # it is no finding
        with pytest.raises(AssertionError, match=words):
            check(lambda t: t * t, (x,), raise_exception=raises, **flags)
