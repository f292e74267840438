"""`test_variants`: the call again with other memory, shapes and values, twice, and from threads.

An operator may refuse a variant by an exception. What it takes, it must compute rightly: the same
results from strided memory as from dense memory, the fake kernel's shapes, no undeclared writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tensorplay._dtype import finfo
from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd.gradcheck.determinism import ROUNDINGS
from tensorplay.library.opcheck.calls import (
    Arguments,
    Array,
    Checked,
    Outcome,
    difference,
    said,
)
from tensorplay.library.opcheck.fake import compare_kinds, compare_with_fake
from tensorplay.library.results import overlap
from tensorplay.library.tags import Tag
from tensorplay.library.writes import undeclared_write
from tensorplay.ops.nesting import flatten

__all__ = ["check_variants"]

_TEST = "test_variants"
_THREADS = 4


def check_variants(check: Checked) -> None:
    """Run all variants that these arguments have."""
    try:
        first = check.arguments.copied().run()
    except Exception:  # noqa: BLE001 - whatever a person's kernel raises
        return  # `test_schema` says what the call raises
    if Tag.nondeterministic not in check.op.tags:
        _again(check, first)
        _from_threads(check, first)
    for variant, arguments, dense in _variants(check.arguments):
        outcome = _accepted(check, arguments, variant)
        if outcome is None:
            continue
        if outcome.undeclared:
            message = undeclared_write(check.op.schema, outcome.undeclared)
            check.fail(_TEST, "undeclared_write", message, variant)
        if check.op.operator_kernels.fake is not None:
            compare_with_fake(check, _TEST, arguments, outcome, variant)
        if variant != "0-d":  # other numbers of dimensions may give others
            compare_kinds(check, _TEST, first, outcome, variant)
        if dense is None or Tag.nondeterministic in check.op.tags:
            continue
        expected = _accepted(check, dense, variant)
        different = None if expected is None else _compare(check, outcome, expected)
        if different is not None:
            check.fail(
                _TEST,
                "strided",
                f"{_LAYOUTS[variant]} arguments give other results than contiguous ones with the "
                f"same values: {different}. Honour strides, call x.contiguous() first, or refuse "
                "them with a ValueError.",
                variant,
            )


_LAYOUTS = {
    "spaced": "spaced out (x[..., ::2])",
    "transposed": "transposed",
    "reversed": "reversed (negative strides)",
    "expanded": "expanded (stride 0)",
}


def _accepted(check: Checked, arguments: Arguments, variant: str) -> Outcome | None:
    """Run a variant; None where the operator refuses it."""
    try:
        return arguments.run()
    except Exception as problem:  # noqa: BLE001 - a refusal, of any kind
        if not str(problem).strip():
            check.fail(
                _TEST,
                "silent_refusal",
                f"raises {type(problem).__name__} without a word. Say what was expected.",
                variant,
            )
        return None


def _compare(check: Checked, got: Outcome, expected: Outcome) -> str | None:
    different = check.differs(got.results, expected.results)
    if different is not None:
        return different
    names = [a.name for a in check.op.schema.arguments if a.is_write]
    for name, one, other in zip(
        [a.name for a in check.op.schema.arguments], got.values, expected.values, strict=True
    ):
        if name in names:
            found = check.differs(list(flatten([one])), list(flatten([other])))
            if found is not None:
                return f"what is written to '{name}': {found}"
    return None


# --- repeated -------------------------------------------------------------------------------------


def _again(check: Checked, first: Outcome) -> None:
    second = check.arguments.copied().run()
    _shares_with_the_first(check, first, second)
    different = _unlike(second.results, first.results)
    if different is not None:
        check.fail(
            _TEST,
            "not_deterministic",
            f"a second call on the same arguments gives something else: {different}. Reset what "
            "the kernel keeps between calls, or give the operator Tag.nondeterministic.",
            "repeated",
        )


def _shares_with_the_first(check: Checked, first: Outcome, second: Outcome) -> None:
    """See that a second call leaves what the first one returned alone."""
    arguments = [*flatten(first.values), *flatten(second.values)]
    for number, (one, other) in enumerate(zip(first.tensors(), second.tensors(), strict=False)):
        if not any(one is a or other is a for a in arguments) and overlap(one, other):
            check.fail(
                _TEST,
                "shared_result",
                f"result {number} of a second call lies in the memory of the first call's, which "
                "it changes. Allocate results in each call.",
                "repeated",
                subject=f"result {number}",
            )


def _from_threads(check: Checked, first: Outcome) -> None:
    if any(f.test == _TEST and f.code == "not_deterministic" for f in check.failures):
        return
    from concurrent.futures import ThreadPoolExecutor  # which the import of the package spares

    copies = [check.arguments.copied() for _ in range(_THREADS)]
    with ThreadPoolExecutor(_THREADS) as pool:
        runs = [pool.submit(_thrice, copy) for copy in copies]
    for run in runs:
        problem = run.exception()
        different = None
        if problem is None:
            found = (_unlike(o.results, first.results) for o in run.result())
            different = next((d for d in found if d is not None), None)
        if problem is not None or different is not None:
            what = f"raises {said(problem)}" if problem is not None else f"gives {different}"
            check.fail(
                _TEST,
                "threads",
                f"called from {_THREADS} threads at once it {what}. Keep scratch memory in the "
                "call, not in globals or static variables.",
                "threaded",
            )
            return


def _unlike(got: Any, expected: Any) -> str | None:
    """Say how two runs differ by more than threads that add in changing order make of a sum."""
    lists = isinstance(expected, (tuple, list)) and isinstance(got, (tuple, list))
    if lists and len(got) == len(expected):
        found = (_unlike(g, e) for g, e in zip(got, expected, strict=True))
        return next((f for f in found if f is not None), None)
    rounding = 0.0
    if isinstance(expected, Tensor) and (
        expected.dtype.is_floating_point or expected.dtype.is_complex
    ):
        values = np.abs(expected.detach().numpy())
        largest = float(np.max(values, where=np.isfinite(values), initial=0))
        rounding = ROUNDINGS * finfo(expected.dtype).eps * largest
    return difference(got, expected, atol=rounding, rtol=0.0)


def _thrice(arguments: Arguments) -> list[Outcome]:
    return [arguments.copied().run() for _ in range(3)]


# --- made arguments -------------------------------------------------------------------------------


def _variants(arguments: Arguments) -> Iterator[tuple[str, Arguments, Arguments | None]]:
    """Yield name, arguments, and for another layout the same values in dense memory."""
    written = {
        id(t)
        for a, v in zip(arguments.op.schema.arguments, arguments.values, strict=True)
        for t in flatten([v])
        if a.is_write
    }

    def made(change: Callable[[Array], Array]) -> Arguments:
        return arguments.mapped(
            lambda t: t if t.is_meta else wrap(change(t.detach()._array), t._dtype)
        )

    for name, change in (("spaced", _spaced), ("transposed", _transposed), ("reversed", _reversed)):
        yield name, made(change), made(np.array)

    def expand(tensor: Tensor) -> Tensor:
        if tensor.is_meta or not tensor.ndim or not tensor.numel() or id(tensor) in written:
            return wrap(tensor.detach()._array.copy(), tensor._dtype)
        return wrap(tensor.detach()._array[:1].copy(), tensor._dtype).expand(tensor.shape)

    expanded = arguments.mapped(expand)
    yield "expanded", expanded, expanded.mapped(lambda t: t.contiguous().clone())
    yield "0-d", made(lambda a: a.ravel()[:1].reshape(()).copy() if a.size else a.copy()), None
    yield "empty", made(lambda a: a[:0].copy() if a.ndim else a.copy()), None
    yield "NaN and infinity", made(_special), None


def _spaced(array: Array) -> Array:
    if not array.ndim:
        return np.array(array)
    wide: Array = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    spaced: Array = wide[..., ::2]
    return spaced


def _transposed(array: Array) -> Array:
    turned: Array = np.array(array.T, order="C").T
    return turned


def _reversed(array: Array) -> Array:
    flipped: Array = np.flip(np.array(np.flip(array), order="C"))
    return flipped


def _special(array: Array) -> Array:
    made: Array = np.array(array)
    if made.dtype.kind in "fcV":
        flat = made.reshape(-1)
        for place, value in enumerate((np.nan, np.inf, -np.inf)[: flat.size]):
            flat[place] = value
    return made
