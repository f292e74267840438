"""`test_aot_dispatch_static` and `…_dynamic`: forward and backward without data.

What a compiler captures ahead of time is the operator as one opaque call, its results' shapes from
the fake kernel, and its backward formula run on tensors without data. These tests run just that:
with the sizes of the given call, and with sizes that differ from them.
"""

from __future__ import annotations

from itertools import count

import numpy as np

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd import grad_mode
from tensorplay.library.nested import flatten
from tensorplay.library.opcheck.calls import Arguments, Checked
from tensorplay.library.opcheck.fake import compare_with_fake
from tensorplay.library.opcheck.gradients import gradients_of

__all__ = ["check_dynamic", "check_static"]


def check_static(check: Checked) -> None:
    """Run forward and backward without data, with the sizes of the call."""
    _capture(check, "test_aot_dispatch_static", check.arguments)


def check_dynamic(check: Checked) -> None:
    """Compare kernel and fake kernel at other sizes, and run backward without data there.

    Sizes that are equal in the call stay equal. A call that the kernel does not take at those
    sizes says nothing.
    """
    test = "test_aot_dispatch_dynamic"
    other = _resized(check.arguments)
    try:
        outcome = other.copied().run()
    except Exception:  # noqa: BLE001
        _capture(check, test, check.arguments)
        return
    compare_with_fake(check, test, other, outcome, "resized")
    _capture(check, test, other)


def _capture(check: Checked, test: str, arguments: Arguments) -> None:
    op = check.op
    if op.mutates_args or not any(t.requires_grad for t in arguments.tensors()):
        return
    if op.operator.gradient is None or op.operator.declares_no_gradient:
        return  # `test_autograd_registration` speaks of it
    try:
        with grad_mode.enable_grad():
            meta = arguments.on_meta(requires_grad=True)
            result = meta.call()
    except Exception:  # noqa: BLE001
        return  # `test_faketensor` says what the fake kernel raises
    outs = [
        t
        for t in flatten(list(result) if isinstance(result, (tuple, list)) else [result])
        if t.requires_grad
    ]
    if outs:
        gradients_of(check, test, meta, outs)


def _resized(arguments: Arguments) -> Arguments:
    """Return the arguments with every size above one replaced by another, equal ones alike."""
    sizes = sorted({n for t in arguments.tensors() for n in t.shape if n > 1})
    fresh = (n for n in count(2) if n not in sizes)
    other = {n: next(fresh) for n in sizes}

    def resize(tensor: Tensor) -> Tensor:
        shape = tuple(other.get(n, n) for n in tensor.shape)
        made = wrap(np.resize(tensor.detach()._array, shape).copy(), tensor._dtype)
        return made.requires_grad_() if tensor.requires_grad else made

    return arguments.mapped(lambda t: t if t.is_meta else resize(t))
