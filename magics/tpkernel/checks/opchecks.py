"""`tensorplay.library.opcheck` on an operator's sample, as a plain record."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tensorplay as tp
from tensorplay.library.modules.spec import OperatorSpec
from tpkernel.checks.gradchecks import said_of
from tpkernel.checks.samples import Sample, leaf, preferred_dtypes
from tpkernel.report.facts import Finding, OpcheckFacts, OpcheckFailureFacts

__all__ = ["opchecks"]

# Those of `opcheck` itself.
_TESTS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
    "test_variants",
)


def opchecks(
    spec: OperatorSpec, definition: Any, sample: Sample, progress: Callable[[str], None]
) -> Iterator[OpcheckFacts | Finding]:
    """Run `tensorplay.library.opcheck` on one sample of one operator."""
    progress(f"opcheck of {spec.name} on {sample.text}")
    start = time.perf_counter()
    dtypes = preferred_dtypes(spec)
    notes: list[str] = []
    if spec.unknown_shapes:
        notes.append(
            f"the sizes of '{spec.unknown_shapes[0]}' depend on values, so that no call without "
            "data gives them: its type, device and number of dimensions are compared across "
            "calls, not its sizes, and its backward is not run without data"
        )
    try:
        arguments = sample.arguments(spec, dtypes)
        for name, owner in sample.leaves(spec).items():
            value = leaf(arguments, name)
            if owner in spec.differentiated:
                value.requires_grad_(value.dtype.is_floating_point or value.dtype.is_complex)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = tp.library.opcheck(
                definition, (), arguments, test_utils=_TESTS, raise_exception=False
            )
    except Exception as problem:  # noqa: BLE001  (a person's kernel and formula, any error)
        yield Finding("opcheck", spec.name, "error", f"on {sample.text}: {said_of(problem)}")
        return
    yield OpcheckFacts(
        operator=spec.name,
        sample=f"{sample.text}, {', '.join(dict.fromkeys(dtypes.values()))}",
        tests=_TESTS,
        failures=tuple(
            OpcheckFailureFacts(f.test, f.code, f.variant, _advised(spec, f))
            for failures in found.values()
            for f in failures
        ),
        notes=(*notes, *(str(w.message) for w in said if issubclass(w.category, UserWarning))),
        seconds=time.perf_counter() - start,
    )


def _advised(spec: OperatorSpec, failure: Any) -> str:
    """Return what a failure says; of a shape that nothing declares the fake kernel says it all."""
    undeclared = spec.returned and not spec.kernel.shapes.declared
    return str(failure.cause if undeclared and failure.cause is not None else failure.message)
