"""Every operator on inputs that hypothesis makes: values, and how they lie in memory.

The values are those of the operator's samples for any seed, so that they stay where the operator
is defined; elementwise operators get any shapes that broadcast together. Results are compared with
the references, as are their types and, on device meta, their shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import tensorplay as tp
from tensorplay.ops import OPERATORS
from tests.ops.references import REFERENCES
from tests.ops.sampling import Array, Maker, replace
from tests.ops.test_operators import READS_VALUES

# --- the same values, stored in another way -------------------------------------------------------


def row_major(a: Array) -> Array:
    return a.copy()


def column_major(a: Array) -> Array:
    return np.array(a, order="F")


def backwards(a: Array) -> Array:
    """Store the elements in reverse: all strides are negative."""
    turned = (..., *(slice(None, None, -1),) * a.ndim)
    return a[turned].copy()[turned]


def one_backwards(a: Array) -> Array:
    return a[..., ::-1].copy()[..., ::-1] if a.ndim else a.copy()


def gaps(a: Array) -> Array:
    """Store every element twice as far from the next, and not at the start."""
    wide = np.empty((*a.shape, 3), a.dtype)
    wide[...] = np.array(7).astype(a.dtype)
    wide[..., 1] = a
    return wide[..., 1]


def part_of_wider(a: Array) -> Array:
    wide = np.zeros(tuple(n + 2 for n in a.shape), a.dtype)
    inner = wide[(..., *(slice(1, -1),) * a.ndim)]
    inner[...] = a
    return inner


LAYOUTS = (row_major, column_major, backwards, one_backwards, gaps, part_of_wider)


def stored(a: Array, layout: Callable[[Array], Array]) -> tp.Tensor:
    result = tp.from_numpy(layout(a))
    assert np.array_equal(result.numpy(), a, equal_nan=a.dtype.kind in "fc")
    return result


def test_layouts_are_what_they_are_called() -> None:
    a = np.arange(6.0).reshape(2, 3)
    assert stored(a, backwards).stride() == (-3, -1)
    assert stored(a, one_backwards).stride() == (3, -1)
    assert stored(a, column_major).stride() == (1, 2)
    assert stored(a, gaps).stride() == (9, 3)
    assert stored(a, part_of_wider).stride() == (5, 1)


# --- comparison -----------------------------------------------------------------------------------

settled = settings(
    max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


def numpy_of(value: Any) -> Any:
    return replace(value, lambda t: t.detach().numpy())


def compare(name: str, args: Any, kwargs: Any) -> None:
    """Compare values, types and shapes on device meta of one call with the reference."""
    operator = OPERATORS[name]
    with np.errstate(all="ignore"):
        expected = REFERENCES[name](*numpy_of(list(args)), **numpy_of(kwargs))
    actual = operator.function(*args, **kwargs)
    if name not in READS_VALUES:
        shapes = operator.function(
            *replace(list(args), lambda t: t.to("meta")),
            **replace(kwargs, lambda t: t.to("meta")),
        )
    else:
        shapes = actual
    many = isinstance(actual, tuple | list)
    if not many:
        actual, expected, shapes = [actual], [expected], [shapes]
    assert len(actual) == len(expected) == len(shapes)
    for a, b, m in zip(actual, expected, shapes, strict=True):
        if not isinstance(a, tp.Tensor):
            assert a == b
            continue
        assert tuple(a.shape) == np.shape(b) == tuple(m.shape)
        assert a.dtype is m.dtype
        wanted = np.asarray(b).dtype
        if np.asarray(b).size:  # a reference gives no type where it has no elements to look at
            assert a.dtype.numpy == wanted or name in OTHER_TYPES, (a.dtype, wanted)
        np.testing.assert_allclose(a.detach().numpy(), b, rtol=1e-10, atol=1e-11)


OTHER_TYPES = {"searchsorted", "bucketize"}  # on request

# What views the memory itself, whatever lies where, and what refuses strides.
OF_MEMORY = {"_as_strided", "as_strided", "view_as_complex"}

NAMES = sorted(n for n in REFERENCES if OPERATORS[n].samples is not None and n not in OF_MEMORY)


@pytest.mark.parametrize("name", NAMES)
@settled
@given(data=st.data())
def test_any_values_in_any_layout(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 10**6))
    make = Maker(f"{name} {seed}")
    samples = OPERATORS[name].samples
    assert samples is not None
    for sample in samples(make):
        layouts = data.draw(st.lists(st.sampled_from(LAYOUTS), min_size=3, max_size=3))
        turns = itertools.cycle(layouts)

        def change(t: tp.Tensor, turns: Any = turns) -> tp.Tensor:
            return stored(t.detach().numpy(), next(turns))

        compare(name, replace(list(sample.args), change), replace(sample.kwargs, change))


# --- elementwise operators ------------------------------------------------------------------------


class Recorder(Maker):
    """Notes the interval that an operator asks for."""

    def __init__(self) -> None:
        super().__init__("recorder")
        self.options: list[dict[str, Any]] = []

    def __call__(self, *shape: int, **options: Any) -> tp.Tensor:
        self.options.append(options)
        return super().__call__(*shape, **options)


def elementwise() -> dict[str, tuple[int, dict[str, Any]]]:
    """Return the operators that take any shapes: their numbers of tensors, and the intervals."""
    found = {}
    for name in NAMES:
        recorder = Recorder()
        samples = OPERATORS[name].samples
        assert samples is not None
        first = next(iter(samples(recorder)))
        kind = getattr(OPERATORS[name], "jvp", None), getattr(OPERATORS[name], "ufunc", None)
        if first.name.startswith("shape") and (kind[0] == "elementwise" or kind[1] is not None):
            found[name] = len(first.args), recorder.options[0]
    return found


ELEMENTWISE = elementwise()


def test_elementwise_operators_are_found() -> None:
    assert {"add", "mul", "exp", "lerp", "maximum", "atan2", "erf"} <= ELEMENTWISE.keys()
    assert len(ELEMENTWISE) > 50


@pytest.mark.parametrize("name", ELEMENTWISE)
@settings(settled, max_examples=8)
@given(data=st.data())
def test_any_shapes_that_broadcast(name: str, data: st.DataObject) -> None:
    count, options = ELEMENTWISE[name]
    shapes = data.draw(
        hnp.mutually_broadcastable_shapes(
            num_shapes=count, min_dims=0, max_dims=3, min_side=0, max_side=3
        )
    ).input_shapes
    make = Maker(f"{name} {data.draw(st.integers(0, 10**6))}")
    tensors = []
    for shape in shapes:
        values = make(*shape, **options).detach().numpy()
        tensors.append(stored(values, data.draw(st.sampled_from(LAYOUTS))))
    if data.draw(st.booleans()):  # a stride of zero
        widest = np.broadcast_shapes(*shapes)
        tensors = [t.expand(widest) for t in tensors]
    compare(name, tensors, {})
