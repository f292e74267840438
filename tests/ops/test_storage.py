"""Tensors that change their class, size or memory."""

from __future__ import annotations

import numpy as np
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
    versions = x._version, source._version
    x[0] = 9
    assert source.tolist() == [9, 1, 2, 3, 4, 5]
    assert (x._version, source._version) == (versions[0] + 1, versions[1] + 1)
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
        with pytest.raises(RuntimeError, match=r"cannot (change|share) the memory"):
            call()
    # What was saved for a gradient is not changed behind its back.
    x = tp.ones(3)
    loss = (leaf * x).sum()
    x.resize_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()


def test_what_was_saved_is_not_what_the_memory_became() -> None:
    leaf = tp.ones(4, requires_grad=True)
    for change in (
        lambda c: c.set_(tp.full((4,), 5.0)),
        lambda c: c.set_(tp.arange(9.0), 3, (4,)),
        lambda c: c.resize_(2, 4),
        lambda c: c.resize_(2),
        lambda c: c.resize_(2, 4).set_(tp.zeros(4).add_(1).add_(1)),
    ):
        for writes in range(3):
            c = tp.arange(4.0)
            for _ in range(writes):
                c.add_(0)
            loss = (leaf * c).sum()
            # A view that was saved goes by the memory that it lies in.
            other = (leaf[:1] * c[1:2]).sum() if writes == 1 else None
            change(c)
            with pytest.raises(RuntimeError, match="modified by an inplace"):
                loss.backward()
            if other is not None and c.shape != (2,):
                other.backward()
                assert leaf.grad.tolist() == [1, 0, 0, 0]
                leaf.grad = None


def test_the_source_and_its_saves_stay_as_they_are() -> None:
    leaf, source, x = tp.ones(2, requires_grad=True), tp.arange(2.0), tp.zeros(2)
    loss = (leaf * source).sum()
    x.set_(source)
    loss.backward()
    assert leaf.grad.tolist() == [0, 1]
    loss, other = (leaf * source).sum(), (leaf * x).sum()
    x.view(2, 1).mul_(2)
    for late in (loss, other):
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            late.backward()


def test_views_stay_with_the_memory_they_lie_in() -> None:
    factor = tp.full((2,), 3.0, requires_grad=True)
    for change in (lambda x: x.set_(tp.ones(4)), lambda x: x.resize_(100)):
        x = tp.ones(4)
        view = x[:2]
        deeper = view[1:]
        version = view._version
        change(x)
        assert view._version == version
        view.mul_(factor)
        assert x.grad_fn is None
        assert not x.requires_grad
        assert x.sum().grad_fn is None
        deeper.sum().backward()
        assert factor.grad.tolist() == [0, 1]
        assert view.tolist() == [3, 3]
        factor.grad = None
        new = x[:2]
        new.mul_(factor)
        assert x.grad_fn is not None
        x.sum().backward()
        assert factor.grad.tolist() == x.detach()[:2].div(3).tolist()
        factor.grad = None


def test_a_size_that_fits_keeps_histories_together() -> None:
    factor = tp.full((2,), 3.0, requires_grad=True)
    x = tp.ones(6)
    view = x[4:]
    x.resize_(2, 2)
    view.mul_(factor)
    assert view.tolist() == [3, 3]
    assert x.tolist() == [[1, 1], [1, 1]]
    x[0].mul_(factor)
    x.sum().backward()
    assert factor.grad.tolist() == [1, 1]
    base = tp.ones(6)
    part = base[2:].resize_(2)
    factor.grad = None
    part.mul_(factor)
    base.sum().backward()
    assert factor.grad.tolist() == [1, 1]
    assert base.tolist() == [1, 1, 3, 3, 1, 1]


def test_tensors_that_require_grad_keep_their_memory_without_recording() -> None:
    leaf = tp.ones(3, requires_grad=True)
    made = leaf * 2
    with tp.no_grad():
        for tensor in (leaf, made):
            for change in (lambda t: t.resize_(2), lambda t: t.set_(tp.ones(2))):
                with pytest.raises(RuntimeError, match="cannot change the memory"):
                    change(tensor)
        assert tp.ones(1).set_(leaf).tolist() == [1, 1, 1]


def test_inference_tensors_share_memory_among_themselves() -> None:
    with tp.inference_mode():
        x = tp.zeros(2).set_(tp.ones(3)).resize_(9)
        assert x.is_inference()
        assert x[1:].is_inference()
    with pytest.raises(RuntimeError, match="only one of the tensors was made in inference mode"):
        tp.zeros(2).set_(x)


def test_memory_of_an_import_ends_where_the_array_ended() -> None:
    for d in (np.float64, np.int8, tp.bfloat16.numpy):
        whole = np.arange(10).astype(d)
        x = tp.from_numpy(whole[2:4])
        assert x.storage_offset() == 0
        x.fill_(7)
        assert whole[2:4].tolist() == [7, 7]
        x.resize_(5).fill_(-1)
        assert whole.tolist() == [0, 1, 7, 7, 4, 5, 6, 7, 8, 9]
        for part, size, stride in (
            (whole[2:4], (5,), (1,)), (whole[4::2], (7,), (1,)), (whole[5:2:-1], (4,), (1,)),
        ):  # fmt: skip
            with pytest.raises(RuntimeError, match="out of bounds"):
                tp.from_numpy(part).as_strided(size, stride, 0)
            assert tp.from_numpy(part).tolist() == part.tolist()
    back = tp.from_numpy(whole[5:2:-1])
    assert back.resize_(5).tolist()[:3] == [5, 4, 7]


def test_resize_goes_by_the_order_in_memory() -> None:
    turned = tp.arange(6.0).reshape(2, 3).t()
    assert turned.resize_(2, 2).tolist() == [[0, 1], [2, 3]]
    x = tp.zeros(0).set_(tp.arange(6.0), 0, (3, 2), (1, 3))
    assert x.resize_(8).tolist()[:6] == [0, 1, 2, 3, 4, 5]


def test_samples_of_a_batch_have_no_memory_of_their_own() -> None:
    for change in (
        lambda x: x.clone().resize_(1),
        lambda x: x.clone().set_(tp.ones(2)),
        lambda x: tp.ones(2).set_(x),
    ):
        with pytest.raises(NotImplementedError, match=r"_\] no rule for vmap"):
            tp.func.vmap(change)(tp.ones(3, 2))
