"""`test_faketensor`: the fake kernel gives what the kernel gives, without data."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tensorplay import _device
from tensorplay._tensor import Tensor, spec_of
from tensorplay.library.kernels import NoFakeKernelError
from tensorplay.library.opcheck.calls import Arguments, Checked, Outcome, said
from tensorplay.library.tags import Tag
from tensorplay.ops.nesting import flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_fake", "compare_kinds", "compare_with_fake"]

_TEST = "test_faketensor"
_DENSE = ("", "resized", "NaN and infinity")


def check_fake(check: Checked) -> None:
    """Check that there is a fake kernel, and that it agrees with the kernel on this call."""
    try:
        outcome = check.arguments.copied().run()
    except Exception:  # noqa: BLE001 - whatever a person's kernel raises
        return  # `test_schema` says what the call raises
    if not any(not t.is_meta for t in check.arguments.tensors()):
        return  # nothing that a fake call would do without
    compare_with_fake(check, _TEST, check.arguments, outcome)


def compare_with_fake(
    check: Checked, test: str, arguments: Arguments, outcome: Outcome, variant: str = ""
) -> None:
    """Run the fake kernel on the same arguments without data, and compare the results.

    Strides are compared for arguments that are dense: what a kernel gives for others is its own
    choice as long as no view comes of it. Where sizes depend on values, a fake kernel may say so.
    """
    dynamic = Tag.dynamic_output_shape in check.op.tags
    try:
        with _device.META if not arguments.tensors() else contextlib.nullcontext():
            fake = arguments.on_meta().run()
    except NoFakeKernelError as problem:
        if not dynamic:
            check.fail(test, "no_fake", str(problem), variant)
        return
    except NotImplementedError as problem:
        if dynamic:
            return
        text = (
            f"the fake kernel raises {said(problem)} Compute the results' shapes from the inputs' "
            "shapes and dtypes alone."
        )
        check.fail(test, "fake_reads_data", text, variant, cause=problem)
        return
    except Exception as problem:  # noqa: BLE001  (whatever a person's fake kernel raises)
        text = f"the kernel takes this call and the fake kernel raises {said(problem)}"
        check.fail(test, "fake_error", text, variant, cause=problem)
        return
    _compare(check, test, list(fake.results), list(outcome.results), variant)


def _compare(
    check: Checked, test: str, fake: Sequence[Any], real: Sequence[Any], variant: str
) -> None:
    for number, (got, expected) in enumerate(zip(fake, real, strict=True)):
        subject = f"result {number}"
        pairs = _pairs(got, expected)
        if pairs is None:
            check.fail(
                test,
                "fake_count",
                f"{subject}: the kernel gives {_count(expected)}, the fake kernel {_count(got)}. "
                "Let it return as many.",
                variant,
                subject=subject,
            )
            continue
        for one, other in pairs:
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                _compare_tensors(check, test, number, one, other, variant)
            elif one is None or other is None or one != other:
                check.fail(
                    test,
                    "fake_value",
                    f"{subject}: the kernel gives {_shown(other)}, the fake kernel {_shown(one)}. "
                    "What is no tensor is known to a compiler from the fake kernel alone: it may "
                    "depend on shapes and dtypes only.",
                    variant,
                    subject=subject,
                )


def _pairs(got: Any, expected: Any) -> list[tuple[Any, Any]] | None:
    """Return what to compare one by one, without places where both have None."""
    one, other = (v if isinstance(v, list) else [v] for v in (got, expected))
    if len(one) != len(other) or isinstance(got, list) is not isinstance(expected, list):
        return None
    return [(a, b) for a, b in zip(one, other, strict=True) if not (a is None and b is None)]


def _shown(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else repr(value)


def _count(value: Any) -> str:
    return f"{len(value)} tensors" if isinstance(value, list) else type(value).__name__


def _compare_tensors(
    check: Checked, test: str, number: int, fake: Tensor, real: Tensor, variant: str
) -> None:
    dynamic = Tag.dynamic_output_shape in check.op.tags
    facts: list[tuple[str, Any, Any, str]] = [
        ("fake_rank", fake.ndim, real.ndim, "number of dimensions")
        if dynamic
        else ("fake_shape", tuple(fake.shape), tuple(real.shape), "shape"),
        ("fake_dtype", fake.dtype, real.dtype, "dtype"),
        ("fake_device", fake.device.type, "meta", "device"),
    ]
    if fake.shape == real.shape and variant in _DENSE and not dynamic:
        facts.append(("fake_strides", _strides(fake), _strides(real), "strides, in elements,"))
    for code, got, expected, what in facts:
        if got != expected:
            advice = {
                "fake_strides": "Let the fake kernel make a tensor with the kernel's strides, "
                "or the kernel a contiguous one.",
                "fake_device": "Let it make results on the device of the inputs, x.new_empty(…).",
            }.get(code, "Let the fake kernel compute it from the inputs.")
            gives = "expected" if code == "fake_device" else "the kernel gives"
            check.fail(
                test,
                code,
                f"result {number}: {gives} {what} {expected}, the fake kernel gives {got}. "
                f"{advice}",
                variant,
                subject=f"result {number}",
            )


def _strides(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides that matter: of dimensions with more than one element."""
    spec = spec_of(tensor)
    if 0 in spec.shape:
        return None
    strides = tensor.stride()
    return tuple(s for s, n in zip(strides, spec.shape, strict=True) if n > 1)


def compare_kinds(
    check: Checked, test: str, first: Outcome, outcome: Outcome, variant: str
) -> None:
    """Compare what even an operator whose sizes depend on values gives for any values.

    Arguments of the same types and numbers of dimensions give results of the same ones: a
    compiler, and the code behind the operator, go by these.
    """
    if Tag.dynamic_output_shape not in check.op.tags:
        return
    for number, (one, other) in enumerate(zip(first.results, outcome.results, strict=True)):
        for here, there in zip(flatten([one]), flatten([other]), strict=False):
            for code, got, expected, what in (
                ("dynamic_rank", there.ndim, here.ndim, "dimensions"),
                ("dynamic_dtype", there.dtype, here.dtype, "as its type"),
                ("dynamic_device", there.device, here.device, "as its device"),
            ):
                if got != expected:
                    text = (
                        f"result {number} has {got} {what}, and {expected} on the given call. "
                        "Sizes may depend on values; count of dimensions, type and device follow "
                        "from those of the arguments."
                    )
                    check.fail(test, code, text, variant, subject=f"result {number}")
