"""`test_autograd_registration`: a gradient is there, on the right object, and fits the inputs."""

from __future__ import annotations

from typing import Any

from tensorplay._tensor import Tensor
from tensorplay.autograd import grad_mode
from tensorplay.autograd.backward import grad
from tensorplay.library.kernels import COMPOSITE
from tensorplay.library.opcheck.calls import Arguments, Checked, difference, said
from tensorplay.library.registry import find
from tensorplay.ops.nesting import flatten

__all__ = ["check_gradients", "gradients_of"]

_TEST = "test_autograd_registration"


def check_gradients(check: Checked) -> None:
    """Check that inputs that require gradients get them, of their shapes and dtypes."""
    op = check.op
    current = find("opcheck", op.name) if _is_registered(op) else None
    if current is not op:
        check.fail(
            _TEST,
            "replaced",
            f"{op.name} has been defined again since, and a gradient given to this object does not "
            f"reach the operator that runs. Use tensorplay.library.get_op('{op.name}').",
        )
    if op.mutates_args or not any(t.requires_grad for t in check.arguments.tensors()):
        return
    try:
        with grad_mode.enable_grad():
            arguments = check.arguments.copied(requires_grad=True)
            outs = _differentiable(arguments.call())
    except Exception:  # noqa: BLE001 - whatever a person's kernel raises
        return  # `test_schema` says what the call raises
    if not outs:
        return
    declared_none = op.operator.declares_no_gradient
    if not any(t.requires_grad for t in outs):
        if not declared_none:
            check.fail(
                _TEST,
                "detached",
                "inputs require gradients and no result does: the body leaves the recorded tensors "
                "(.numpy(), .detach(), .item()). Register a gradient with register_autograd, or "
                f"declare that there is none: {op.opname}.register_autograd(None).",
            )
        return
    if op.operator.gradient is None and COMPOSITE not in op.operator_kernels.by_key:
        check.fail(
            _TEST,
            "no_gradient",
            "inputs require gradients and no formula was registered, so backward raises. Write "
            f"{op.opname}.register_autograd(backward, setup_context=…), or declare that there is "
            f"none: {op.opname}.register_autograd(None).",
        )
        return
    gradients_of(check, _TEST, arguments, outs)


def gradients_of(check: Checked, test: str, arguments: Arguments, outs: list[Tensor]) -> None:
    """Run backward from all results; the engine compares shapes and dtypes with the inputs."""
    inputs = [t for t in arguments.tensors() if t.requires_grad]
    roots = [t for t in outs if t.requires_grad]
    incoming = [_ones(t) for t in roots]
    before = None if inputs[0].is_meta else [t.clone() for t in incoming]
    try:
        found = grad(roots, inputs, incoming, allow_unused=True)
    except Exception as problem:  # noqa: BLE001  (whatever a person's formula raises)
        advice = (
            "A formula runs without data when shapes are computed: no .numpy(), .item() or "
            "branches on values in it."
            if inputs[0].is_meta
            else "Mend the formula or its setup_context."
        )
        text = f"backward raises {said(problem)} {advice}"
        check.fail(test, "gradient_error", text, cause=problem)
        return
    if before is not None and difference(incoming, before, atol=0.0, rtol=0.0) is not None:
        check.fail(
            test,
            "writes_gradient",
            "the formula writes to the gradient that it is given, which others use too. Write "
            "g * 2 instead of g.mul_(2).",
        )
    names = arguments.names()
    for tensor, gradient in zip(inputs, found, strict=True):
        if gradient is None:
            check.fail(
                test,
                "missing_gradient",
                f"argument '{names[id(tensor)]}' requires a gradient, and the formula returns None "
                "for it. Return its gradient, or zeros (x.new_zeros(x.shape)) if it has no "
                "influence.",
                subject=names[id(tensor)],
            )


def _is_registered(op: Any) -> bool:
    try:
        find("opcheck", op.name)
    except RuntimeError:
        return False
    return True


def _differentiable(result: Any) -> list[Tensor]:
    results = result if isinstance(result, (tuple, list)) else [result]
    return [t for t in flatten(list(results)) if t.dtype.is_differentiable]


def _ones(tensor: Tensor) -> Tensor:
    return tensor.detach().new_ones(tensor.shape)
