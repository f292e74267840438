"""Grids and buffers."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorplay as tp

SIZES = st.integers(0, 4)


@given(SIZES, SIZES, st.integers(-5, 5))
def test_indices_of_triangles(rows: int, columns: int, offset: int) -> None:
    for find, name in ((tp.tril_indices, "tril"), (tp.triu_indices, "triu")):
        marked = np.zeros((rows, columns))
        found = find(rows, columns, offset)
        marked[tuple(found.numpy())] = 1
        np.testing.assert_array_equal(marked, getattr(np, name)(np.ones((rows, columns)), offset))
        assert found.dtype is tp.int64
        assert found.shape[0] == 2


@given(st.lists(SIZES, min_size=1, max_size=3), st.sampled_from(["ij", "xy"]))
def test_meshgrid_is_that_of_numpy(sizes: list[int], indexing: Any) -> None:
    vectors = [tp.arange(float(n)) for n in sizes]
    expected = np.meshgrid(*(v.numpy() for v in vectors), indexing=indexing)
    for found, wanted in zip(tp.meshgrid(vectors, indexing=indexing), expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)


def test_meshgrid_has_gradients_and_takes_numbers() -> None:
    x = tp.ones(3, requires_grad=True)
    rows, columns = tp.meshgrid(x, tp.tensor(2.0))
    assert (rows.shape, columns.shape) == ((3, 1), (3, 1))
    tp.meshgrid(x, x)[1].sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3, 3]


def test_logspace() -> None:
    np.testing.assert_allclose(tp.logspace(0, 2, 5).numpy(), np.logspace(0, 2, 5), rtol=1e-6)
    assert tp.logspace(0, 3, 4, base=2, dtype=tp.int64).tolist() == [1, 2, 4, 8]
    assert tp.logspace(0, 1, 0).shape == (0,)
    assert tp.logspace(0, 1, 3, requires_grad=True).requires_grad
    assert tp.logspace(0, 1, 3, device="meta").is_meta


def test_scalar_tensor() -> None:
    assert tp.scalar_tensor(3).dtype is tp.float32
    assert tp.scalar_tensor(3j).dtype is tp.complex64
    assert tp.scalar_tensor(True, dtype=tp.bool).item() is True


def test_buffers_share_memory() -> None:
    memory = bytearray(np.arange(4, dtype=np.int16).tobytes())
    x = tp.frombuffer(memory, dtype=tp.int16, offset=2)
    x[0] = 7
    assert memory[2] == 7
    assert tp.frombuffer(memory, dtype=tp.int16, count=2).tolist() == [0, 7]
    assert tp.frombuffer(array.array("d", [1.5]), dtype=tp.float64).tolist() == [1.5]
    assert tp.frombuffer(bytearray(b"\x80\x3f"), dtype=tp.bfloat16).tolist() == [1.0]
    with pytest.warns(UserWarning, match="not writable"):
        copy = tp.frombuffer(b"\x01\x02", dtype=tp.uint8)
    copy.zero_()


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: tp.tril_indices(-1, 2), RuntimeError, "non-negative"),
        (lambda: tp.tril_indices(2, 2, 0.5), TypeError, "expected int"),
        (tp.meshgrid, RuntimeError, "non-empty"),
        (lambda: tp.meshgrid(tp.ones(2, 2)), RuntimeError, "0D or 1D"),
        (lambda: tp.meshgrid(tp.ones(2), tp.ones(2).long()), RuntimeError, "same dtype"),
        (lambda: tp.meshgrid(tp.ones(2), indexing="yx"), ValueError, "'xy' or 'ij'"),
        (lambda: tp.meshgrid([1, 2]), TypeError, "expected Tensors"),
        (lambda: tp.logspace(0, 1, -1), RuntimeError, "non-negative"),
        (lambda: tp.logspace(0, 1, 2, base="e"), TypeError, "a number"),
        (lambda: tp.logspace(0, 99, 2, dtype=tp.int8), ValueError, "range"),
        (lambda: tp.scalar_tensor([1]), TypeError, "a number"),
        (lambda: tp.frombuffer(3, dtype=tp.int8), TypeError, "buffer protocol"),
        (lambda: tp.frombuffer(b"", dtype=tp.int8), ValueError, "offset"),
        (lambda: tp.frombuffer(bytearray(3), dtype=tp.int16), ValueError, "multiple of element"),
        (lambda: tp.frombuffer(bytearray(4), dtype=tp.int16, count=3), ValueError, "requested 3"),
        (lambda: tp.frombuffer(bytearray(4), dtype=tp.int16, offset=4), ValueError, "offset"),
        (lambda: tp.frombuffer(bytearray(4), dtype=tp.int16, offset=-1), ValueError, "offset"),
    ],
)
def test_errors(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
