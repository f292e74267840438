"""`test_aot_dispatch_static` and `…_dynamic`: forward and backward without data, and compiled.

What `tensorplay.compile` captures is the operator as one opaque call, its results' shapes from the
fake kernel, and its backward formula run on tensors without data. These tests run just that, and
compare a compiled call with the operator: with the sizes of the given call, and with others.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd import grad_mode
from tensorplay.autograd.backward import grad
from tensorplay.library.opcheck.calls import Arguments, Checked, said
from tensorplay.library.opcheck.fake import compare_kinds, compare_with_fake
from tensorplay.library.opcheck.gradients import gradients_of
from tensorplay.library.tags import Tag
from tensorplay.ops.nesting import flatten

__all__ = ["check_dynamic", "check_static"]


def check_static(check: Checked) -> None:
    """Run forward and backward without data, with the sizes of the call."""
    _capture(check, "test_aot_dispatch_static", check.arguments)
    _compare_compiled(check, "test_aot_dispatch_static", check.arguments)


def check_dynamic(check: Checked) -> None:
    """Compare kernel and fake kernel at other sizes, and run backward without data there.

    Sizes that are equal in the call stay equal. A call that the kernel does not take at those
    sizes says nothing.
    """
    test = "test_aot_dispatch_dynamic"
    other = _resized(check.arguments)
    try:
        outcome = other.copied().run()
    except Exception:  # noqa: BLE001 - the kernel refuses these sizes in any way
        _capture(check, test, check.arguments)
        return
    compare_with_fake(check, test, other, outcome, "resized")
    compare_kinds(check, test, check.arguments.copied().run(), outcome, "resized")
    _capture(check, test, other)
    _compare_compiled(check, test, other)


def _compare_compiled(check: Checked, test: str, arguments: Arguments) -> None:
    """Compare the operator in a compiled function with the operator alone.

    Only where nothing else was found, which would say more.
    """
    op = check.op
    plain = all(r.alias is None and str(r.type) == "Tensor" for r in op.schema.returns)
    if check.failures or not plain or any(t.is_meta for t in arguments.tensors()):
        return
    needs = op.operator.gradient is not None and not op.operator.declares_no_gradient
    dynamic = Tag.dynamic_output_shape in op.tags
    try:
        if not dynamic:
            with grad_mode.no_grad():
                arguments.on_meta().call()
        own = arguments.copied(requires_grad=needs)
        expected = _with_gradients(own)
    except Exception:  # noqa: BLE001 - whatever a person's kernel or formula raises
        return  # other tests say what the operator and its fake kernel raise
    from tensorplay.compiler import compile as compile_  # the layer above

    def call(*values: Any) -> Any:
        return Arguments.of(op, list(values)).call()

    made = compile_(call, backend="interpreter")
    other = arguments.copied(requires_grad=needs)
    try:
        got = _with_gradients(other, made)
    except Exception as problem:  # noqa: BLE001 - whatever it raises is the finding
        check.fail(test, "compiled_error", f"compiled, the call raises {said(problem)}.",
                   cause=problem)  # fmt: skip
        return
    report = made.report()
    if not report.programs and not dynamic:  # which runs between two graphs
        reasons = " ".join(e.reason for e in report.events)
        check.fail(test, "not_captured", f"tensorplay.compile leaves the call out: {reasons}")
        return
    if Tag.nondeterministic in op.tags:
        return
    words = check.differs([*got, *other.values], [*expected, *own.values])
    if words is not None:
        check.fail(
            test, "compiled_differs",
            f"compiled, results or gradients are others: {words}. The kernel or the fake kernel "
            "depends on more than its arguments, or the formula does.",
        )  # fmt: skip


def _with_gradients(arguments: Arguments, function: Any = None) -> list[Any]:
    """Return results of a call, and gradients of what requires one."""
    with grad_mode.enable_grad():
        result = arguments.call() if function is None else function(*arguments.values)
        outs = list(result) if isinstance(result, (tuple, list)) else [result]
        sources = [t for t in arguments.tensors() if t.requires_grad]
        roots = [t for t in flatten(outs) if t.requires_grad]
        if not sources or not roots:
            return outs
        found = grad(roots, sources, [t.detach() * 0 + 1 for t in roots], allow_unused=True)
    return [*outs, *found]


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
    except Exception:  # noqa: BLE001 - whatever a person's fake kernel raises
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
