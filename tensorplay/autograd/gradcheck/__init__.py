"""Checks of gradients against differences, with a verdict, the worst element and a likely cause.

``tensorplay.autograd.gradcheck`` is the function itself; the names of this module are attributes
of it, so that both ``autograd.gradcheck(f, x)`` and ``autograd.gradcheck.gradcheck(f, x)`` work.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorplay._tensor import Tensor, spec_of, wrap
from tensorplay.autograd.backward import grad
from tensorplay.autograd.gradcheck import report as words
from tensorplay.autograd.gradcheck.check import run_check
from tensorplay.autograd.gradcheck.inputs import admitted, find_tensors, parameter_names
from tensorplay.autograd.gradcheck.numerical import (
    Differences,
    Evaluator,
    Layout,
    machine_epsilon,
    precision_for,
    tensors_in,
)
from tensorplay.autograd.gradcheck.report import GradcheckReport, PairReport, WorstElement
from tensorplay.autograd.gradcheck.state import Options, State

__all__ = [
    "GradcheckError",
    "GradcheckReport",
    "PairReport",
    "WorstElement",
    "get_numerical_jacobian_wrt_specific_input",
    "gradcheck",
    "gradcheck_report",
    "gradgradcheck",
]


class GradcheckError(RuntimeError):
    """A gradient is not proven right.

    Attributes
    ----------
    report
        The full report, None where the check could not begin.
    """

    def __init__(self, message: str, report: GradcheckReport | None = None) -> None:
        super().__init__(message)
        self.report = report


def _arguments(operator: str, inputs: Any) -> tuple[Any, ...]:
    if isinstance(inputs, Tensor):
        return (inputs,)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs)
    message = (
        f"[{operator}] argument 'inputs': expected a Tensor or a tuple of arguments, got "
        f"{type(inputs).__name__}. Write (x,), and keywords as kwargs={{…}}."
    )
    raise TypeError(message)


def _check_number(operator: str, argument: str, value: Any, *, positive: bool = False) -> None:
    """Refuse what is no finite number, or too small: the check would have nothing to say."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        message = (
            f"[{operator}] argument '{argument}': expected a number, got {type(value).__name__}."
        )
        raise TypeError(message)
    if not (math.isfinite(value) and (value > 0 if positive else value >= 0)):
        what = "a finite number above 0" if positive else "a finite number, 0 or above"
        message = f"[{operator}] argument '{argument}': expected {what}, got {value}."
        raise ValueError(message)


def _check_flags(options: Options) -> None:
    for name in ("eps", "atol", "rtol", "nondet_tol"):
        value = getattr(options, name)
        if value is not None:
            _check_number("gradcheck", name, value, positive=name == "eps")
    if not options.check_forward_ad and not options.check_backward_ad:
        message = "[gradcheck] expected at least one of check_forward_ad and check_backward_ad."
        raise AssertionError(message)
    if options.check_batched_grad and not options.check_backward_ad:
        message = "[gradcheck] setting check_batched_grad=True needs check_backward_ad=True."
        raise AssertionError(message)
    if options.check_batched_forward_grad and not options.check_forward_ad:
        message = "[gradcheck] setting check_batched_forward_grad=True needs check_forward_ad=True."
        raise AssertionError(message)


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> GradcheckReport:
    """Compare the gradients of `func` with central differences.

    Parameters
    ----------
    func
        Function of the inputs that returns a tensor, or a sequence or mapping of them.
    inputs
        A tensor, or the tuple of positional arguments. Tensors in lists, tuples and dictionaries
        are found; those that require grad are checked.
    eps
        Step of the differences. By default 1e-6 in float64, times the element where that is
        larger than 1, and as large as rounding asks for in narrower types.
    atol, rtol
        Allowed gap ``atol + rtol * abs(numerical)``; by default 1e-5 and 1e-3 in float64. The
        bound on the error of the numerical value is added.
    raise_exception
        Whether a verdict other than ``ok`` raises.
    nondet_tol
        Allowed difference between two backward passes.
    check_undefined_grad
        Whether the formulas must take missing gradients and tangents for zeros.
    check_grad_dtypes
        Whether the formula must return the type of the input itself.
    check_batched_grad
        Whether gradients for a batch of output gradients must be those for each.
    check_batched_forward_grad
        The same for tangents.
    check_forward_ad, check_backward_ad
        Which modes are checked.
    fast_mode
        Compare one random combination per input and output; look closer only if it differs.
    masked
        Accepted for compatibility; there are no sparse layouts.
    kwargs
        Keyword arguments of `func`.

    Returns
    -------
    GradcheckReport
        True in a condition if every gradient is right; prints as text.

    Raises
    ------
    GradcheckError
        A gradient is wrong, missing, or cannot be proven right at this point.
    ValueError
        No input requires grad; `eps` is not above 0; `atol`, `rtol` or `nondet_tol` is negative
        or not finite.
    AssertionError
        The flags contradict each other, or the shape of the outputs depends on the values.

    Examples
    --------
    >>> import tensorplay as tp
    >>> x = tp.tensor([0.5, -1.0], dtype=tp.float64, requires_grad=True)
    >>> bool(tp.autograd.gradcheck(lambda t: (t * t).sin(), (x,)))
    True
    """
    options = Options(
        eps, atol, rtol, nondet_tol, check_undefined_grad, check_grad_dtypes, check_batched_grad,
        check_batched_forward_grad, check_forward_ad, check_backward_ad, fast_mode,
    )  # fmt: skip
    _check_flags(options)
    state = State(func, _arguments("gradcheck", inputs), dict(kwargs or {}), options)
    _warn_of_narrow_types(state)
    report = run_check(state)
    if report.code == "undefined_grad":
        warnings.warn(
            "[gradcheck] the formula was called without some gradients of its outputs, or "
            "tangents of its inputs. Pass check_undefined_grad=False if that never happens.",
            UserWarning,
            stacklevel=2,
        )
    if not report and raise_exception:
        raise GradcheckError(f"{report.message}\n{report.to_text()}", report) from state.cause
    return report


def _warn_of_narrow_types(state: State) -> None:
    for leaf in state.checked:
        if machine_epsilon(leaf.tensor.dtype) > 1e-12:
            warnings.warn(
                f"[gradcheck] input {leaf.name} is {leaf.tensor.dtype!r}, not a double precision "
                "floating point or complex tensor: the check can tell less.",
                UserWarning,
                stacklevel=3,
            )


def gradcheck_report(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> GradcheckReport:
    """Compare the gradients of `func` with central differences; every finding is in the report.

    The parameters are those of `gradcheck`. The codes of each verdict:

    - ``wrong``: ``jacobian_mismatch``, ``forward_ad`` (the same by tangents), ``batched``,
      ``not_linear_in_grad``, ``undefined_grad`` (a missing gradient or
      tangent is not taken for zeros), ``shape``, ``dtype``, ``device`` (what a formula returned);
    - ``missing``: ``missing_gradient``, ``no_formula``, ``no_forward_formula``;
    - ``non_deterministic``: ``not_reentrant``, ``random``, ``stateful_forward``;
    - ``not_differentiable_here``: ``not_differentiable``;
    - ``inconclusive``: ``precision``, ``not_finite``;
    - ``error``: ``bad_input`` (what the check was given), ``output_unstable`` (the outputs change
      shape or type), ``exception`` (what the function or a formula raised).

    Parameters
    ----------
    func, inputs, eps, atol, rtol, nondet_tol, check_undefined_grad, check_grad_dtypes
        As for `gradcheck`.
    check_batched_grad, check_batched_forward_grad, check_forward_ad, check_backward_ad
        As for `gradcheck`.
    fast_mode, masked, kwargs
        As for `gradcheck`.

    Returns
    -------
    GradcheckReport
        Verdict, findings, the worst element, and both matrices; true if the gradient is right.

    Raises
    ------
    AssertionError
        The flags contradict each other.
    ValueError
        As of `gradcheck` for `eps` and the tolerances.
    """
    options = Options(
        eps, atol, rtol, nondet_tol, check_undefined_grad, check_grad_dtypes, check_batched_grad,
        check_batched_forward_grad, check_forward_ad, check_backward_ad, fast_mode,
    )  # fmt: skip
    _check_flags(options)
    try:
        state = State(func, _arguments("gradcheck_report", inputs), dict(kwargs or {}), options)
    except (TypeError, ValueError, RuntimeError) as error:
        return _error_report([], "bad_input", error)
    names = [leaf.name for leaf in state.checked]
    try:
        return run_check(state)
    except AssertionError as error:
        return _error_report(names, "output_unstable", error)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is a finding
        return _error_report(names, "exception", error)


def _error_report(names: list[str], code: str, error: Exception) -> GradcheckReport:
    message = str(error) if code == "bad_input" else f"{type(error).__name__}: {error}"
    nan = float("nan")
    pairs = tuple(
        PairReport(0, name, words.ERROR, code, message, None, None, nan, nan, nan)
        for name in names or ("inputs",)
    )
    return GradcheckReport(words.ERROR, pairs, message)


@dataclass
class _FirstDerivative:
    """The vector-Jacobian product of a function, as a function of its inputs and the vectors."""

    func: Callable[..., Any]
    count: int
    kwargs: Mapping[str, Any]
    chosen: list[int]
    argument_names: list[str]

    def __call__(self, *arguments: Any) -> tuple[Tensor, ...]:
        args, vectors = arguments[: self.count], arguments[self.count :]
        outputs = tensors_in(self.func(*args, **self.kwargs))
        leaves = [leaf.tensor for leaf in find_tensors(self.func, args, self.kwargs)]
        wanted = [tensor for tensor in leaves if tensor.requires_grad]
        grads = grad(
            [outputs[n] for n in self.chosen],
            wanted,
            list(vectors),
            create_graph=True,
            allow_unused=True,
        )
        return tuple(g for g in grads if g is not None)


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
    kwargs: Mapping[str, Any] | None = None,
) -> GradcheckReport:
    """Compare second derivatives with central differences of the first.

    Parameters
    ----------
    func, inputs, eps, atol, rtol, raise_exception, nondet_tol, check_undefined_grad
        As in `gradcheck`.
    check_grad_dtypes, check_batched_grad, fast_mode, masked, kwargs
        As in `gradcheck`.
    grad_outputs
        Gradients of the outputs at which to differentiate; random by default.
    gen_non_contig_grad_outputs
        Whether the random ones have gaps in memory.
    check_fwd_over_rev, check_rev_over_rev
        Which modes differentiate the gradient.

    Returns
    -------
    GradcheckReport
        True in a condition if every second derivative is right.

    Raises
    ------
    GradcheckError
        As `gradcheck`.
    AssertionError
        An option asks for a mode that is switched off.
    """
    if not check_fwd_over_rev and not check_rev_over_rev:
        message = (
            "[gradgradcheck] expected at least one of check_fwd_over_rev and check_rev_over_rev."
        )
        raise AssertionError(message)
    if check_undefined_grad and not check_rev_over_rev:
        message = "[gradgradcheck] setting check_undefined_grad=True needs check_rev_over_rev=True."
        raise AssertionError(message)
    if check_batched_grad and not check_rev_over_rev:
        message = "[gradgradcheck] setting check_batched_grad=True needs check_rev_over_rev=True."
        raise AssertionError(message)
    args, named = _arguments("gradgradcheck", inputs), dict(kwargs or {})
    admitted(find_tensors(func, args, named))
    outputs = tensors_in(func(*args, **named))
    chosen = [n for n, out in enumerate(outputs) if out.requires_grad]
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        vectors = [_random_like(outputs[n], rng, gaps=gen_non_contig_grad_outputs) for n in chosen]
    else:
        vectors = [v.requires_grad_() if v.is_leaf else v for v in tensors_in(grad_outputs)]
    if not chosen:
        vectors = []
    names = [*parameter_names(func, len(args)), *(f"grad_outputs[{n}]" for n in chosen)]
    return gradcheck(
        _FirstDerivative(func, len(args), named, chosen, names),
        (*args, *vectors),
        eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception, nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad, check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad, check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev, fast_mode=fast_mode, masked=masked,
    )  # fmt: skip


def _random_like(tensor: Tensor, rng: np.random.Generator, *, gaps: bool) -> Tensor:
    shape = (*tensor.shape, 2) if gaps else tensor.shape
    array = np.asarray(rng.standard_normal(shape))
    if tensor.dtype.is_complex:
        array = array + 1j * rng.standard_normal(shape)
    array = np.asarray(array, tensor.dtype.numpy)  # arithmetic on 0-d arrays gives scalars
    result = wrap(array[..., 0] if gaps else array, tensor.dtype)
    result.requires_grad = True
    return result


def get_numerical_jacobian_wrt_specific_input(
    fn: Callable[..., Any],
    input_idx: int,
    inputs: Any,
    outputs: Any,
    eps: float,
    input: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the numerical Jacobian matrix of each output for one input.

    Parameters
    ----------
    fn
        The function.
    input_idx
        Which of the inputs.
    inputs
        Its arguments.
    outputs
        What it returns for them.
    eps
        Step of the central differences.
    input
        The tensor to change, if not the argument `input_idx`.

    Returns
    -------
    tuple
        One tensor of size elements of the input × elements of the output per output; of a complex
        output first the derivatives of the real parts, then those of the imaginary parts.
    """
    operator = "get_numerical_jacobian_wrt_specific_input"
    _check_number(operator, "eps", eps, positive=True)
    args = _arguments(operator, inputs)
    tensor = args[input_idx] if input is None else input
    results = tensors_in(outputs)
    layout = Layout(range(len(results)), [spec_of(out) for out in results])
    precision = replace(precision_for(machine_epsilon(tensor.dtype)), step=eps)
    evaluate = Evaluator(lambda: fn(*args), layout)
    differences = Differences(evaluate, tensor._array, precision, scaled=False)
    rows = [differences.row(tuple(map(int, i)))[0] for i in np.ndindex(tensor.shape)]
    table = np.stack(rows) if rows else np.zeros((0, layout.size))
    return tuple(wrap(table[:, layout.columns(n)].copy()) for n in range(len(results)))


for _name in __all__:
    setattr(gradcheck, _name, globals()[_name])
