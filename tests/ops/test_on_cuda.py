"""Every operator and every public method on tensors on a GPU: a right result there, or a refusal.

What is refused names the operator and where the tensor lies, and leaves the tensor as it was.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.ops import OPERATORS, Operator
from tests.gpu_arrays import GpuArray, cupy
from tests.ops.sampling import Case, cases, replace, tensors_of
from tests.ops.test_operators import RANDOM, convert, inplace_cases

ERRORS = (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError, BufferError)


@pytest.fixture(scope="module", autouse=True)
def with_cupy() -> Iterator[None]:
    """CuPy makes the row-major copies of arrays that have no word for these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cupy())
        yield


class There:
    """Tensors on a GPU, made of such in main memory, and whether they are what they were."""

    def __init__(self) -> None:
        self.made: list[tuple[tp.Tensor, np.ndarray[Any, Any]]] = []

    def __call__(self, x: tp.Tensor) -> tp.Tensor:
        array = x.detach().numpy()
        made = tp.from_dlpack(GpuArray(array.copy()))
        self.made.append((made, array.copy()))
        return made

    def assert_unchanged(self) -> None:
        for x, array in self.made:
            assert x.device == tp.device("cuda:0")
            assert (tuple(x.shape), x.dtype.numpy) == (array.shape, array.dtype)
            np.testing.assert_array_equal(x.detach().cpu().numpy(), array)


def assert_answered(
    call: Callable[[Callable[[tp.Tensor], tp.Tensor]], Any], *, cpu: bool = False
) -> bool:
    """Call with tensors in main memory and on a GPU; return whether the first is a right call.

    `call` gets what makes the tensors of its arguments. `cpu` says that results lie there.
    """
    with np.errstate(all="ignore"):
        try:
            expected = call(lambda x: x)
        except ERRORS:
            return False
        return answered_there(call, expected, cpu=cpu)


def answered_there(call: Callable[[Any], Any], expected: Any, *, cpu: bool) -> bool:
    """Assert that a call gives what is expected there, or is refused; return True."""
    there = There()
    refusal = ""
    try:
        found = call(there)
    except ERRORS as error:
        refusal = str(error)
    there.assert_unchanged()
    if refusal:
        assert re.match(r"\[\w+\] .*\bcuda\b", refusal), refusal
        return True
    for here, other in zip(tensors_of(found), tensors_of(expected), strict=True):
        assert here.device == tp.device("cuda:0" if there.made and not cpu else "cpu")
        assert (tuple(here.shape), here.dtype) == (tuple(other.shape), other.dtype)
        np.testing.assert_array_equal(here.detach().cpu().numpy(), other.detach().numpy())
    if isinstance(expected, (bool, int, float, str, tuple)) and not list(tensors_of(expected)):
        assert found == expected
    return True


def deterministic(operator: Operator) -> bool:
    return operator.name not in RANDOM


@pytest.mark.parametrize("d", [tp.float32, tp.int64, tp.bool], ids=str)
@pytest.mark.parametrize("case", cases(where=deterministic))
def test_every_operator_runs_there_or_is_refused(case: Case, d: Any) -> None:
    assert_answered(lambda there: case.run(lambda t: there(convert(t, d))))


@pytest.mark.parametrize("case", inplace_cases())
def test_no_operator_writes_there(case: Case) -> None:
    args, kwargs = case.arguments
    there = There()
    target, *others = replace(list(args), lambda t: there(t.detach()))
    with pytest.raises(ERRORS, match=r"\[\w+\] .*\bcuda\b"):
        getattr(target, f"{case.operator.name}_")(*others, **kwargs)
    there.assert_unchanged()


#: What every method is called with; "x" is a tensor. One call at least is right in main memory.
TRIED: tuple[tuple[Any, ...], ...] = (
    *((), ("x",), (2,), (0,), (0, 1), ("x", "x"), (1, "x"), (0, "x", "x"), ((2,),), (0, (2,))),
    *((tp.float64,), (0, 0, 1), ((1, 1), 0), (print,), (tp.Tensor,)),
)
#: Methods of tensors that require grad.
RECORDED = {"backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad"}
METHODS = [
    n
    for n in dir(tp.Tensor)
    if n[0] != "_" and n.removesuffix("_") not in OPERATORS and callable(getattr(tp.Tensor, n))
]


@pytest.mark.parametrize("name", METHODS)
def test_every_other_method_runs_there_or_is_refused(name: str) -> None:
    values = ([1], [1, 0], [[1, 0], [3, 1]])
    right = False
    for start in [np.array(v, d) for v in values for d in ("float32", "int64", "bool")]:
        recorded = name in RECORDED and start.dtype.kind == "f"
        for arguments in TRIED:

            def call(
                there: Any, start: Any = start, recorded: bool = recorded, given: Any = arguments
            ) -> Any:
                others = [there(tp.tensor(start)) if a == "x" else a for a in given]
                return getattr(there(tp.tensor(start)).requires_grad_(recorded), name)(*others)

            right = assert_answered(call, cpu=name == "cpu") or right
    assert right
