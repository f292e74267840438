"""Tensors that change their class, size or memory."""

from __future__ import annotations

import pytest

import tensorplay as tp


class Special(tp.Tensor):
    pass


def test_as_subclass_shares_memory_and_history() -> None:
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    s = x.as_subclass(Special)
    assert type(s) is Special
    assert s.data_ptr() == x.data_ptr()
    (s * s).sum().backward()
    assert x.grad.tolist() == [2, 4]
    base = tp.zeros(3)
    part = base.as_subclass(Special)
    part.add_(1)
    assert base.tolist() == [1, 1, 1]
    assert base._version == part._version == 1
    assert type(part.as_subclass(tp.Tensor)) is tp.Tensor
    for wrong in (int, 5, None):
        with pytest.raises(TypeError, match=r"\[as_subclass\] argument 'cls'"):
            x.as_subclass(wrong)


def test_resize() -> None:
    x = tp.arange(6.0)
    address = x.data_ptr()
    assert x.resize_(2, 2) is x
    assert x.tolist() == [[0, 1], [2, 3]]
    assert x.resize_((3, 2)).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert x.data_ptr() == address
    assert x._version == 2
    x.resize_(8)
    assert x.shape == (8,)
    assert x.tolist()[:6] == [0, 1, 2, 3, 4, 5]
    assert x.resize_(0).tolist() == []
    part = tp.arange(6.0)[2:]
    assert part.resize_(2).tolist() == [2, 3]
    with pytest.raises(RuntimeError, match="a view cannot become larger"):
        tp.arange(6.0)[2:].resize_(9)
    assert tp.ones(2, device="meta").resize_(3, 3).shape == (3, 3)
    with pytest.raises(RuntimeError, match="non-negative"):
        x.resize_(-1)


def test_set() -> None:
    x, source = tp.zeros(2), tp.arange(6.0)
    assert x.set_(source) is x
    x[0] = 9
    assert source.tolist() == [9, 1, 2, 3, 4, 5]
    assert x._version == source._version
    x.set_(source, 1, (2, 2), (2, 1))
    assert x.tolist() == [[1, 2], [3, 4]]
    x.set_(source, 2, (3,))
    assert x.tolist() == [2, 3, 4]
    assert x.set_().shape == (0,)
    with pytest.raises(RuntimeError, match="out of bounds"):
        x.set_(source, 3, (9,))
    with pytest.raises(RuntimeError, match=r"expected tensorplay.float32 on cpu"):
        x.set_(source.double())
    with pytest.raises(TypeError, match=r"\[set_\] argument 'source'"):
        x.set_([1.0])


def test_memory_of_recorded_tensors_stays() -> None:
    leaf = tp.ones(3, requires_grad=True)
    for call in (
        lambda: leaf.resize_(2),
        lambda: leaf.set_(tp.ones(2)),
        lambda: tp.ones(1).set_(leaf),
    ):
        with pytest.raises(RuntimeError, match="cannot change the memory"):
            call()
    # What was saved for a gradient is not changed behind its back.
    x = tp.ones(3)
    loss = (leaf * x).sum()
    x.resize_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()
