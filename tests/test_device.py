from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

import tensorplay as tp


def test_equality_and_text() -> None:
    assert tp.device("cuda:1") == tp.device("cuda", 1)
    assert tp.device("cuda") != tp.device("cuda:0")
    assert len({tp.device("cpu"), tp.device("cpu"), tp.device("meta")}) == 2
    assert str(tp.device("cuda", 2)) == "cuda:2"
    assert repr(tp.device("cuda:2")) == "device(type='cuda', index=2)"
    assert tp.device(tp.device("cuda:1")) == tp.device("cuda:1")
    assert pickle.loads(pickle.dumps(tp.device("cuda:1"))) == tp.device("cuda:1")


@pytest.mark.parametrize("text", ["gpu", "", "cpu:", "cpu:-1", "cuda:01", "cpu:x", "CPU", "cpu\n"])
def test_bad_string(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid device string"):
        tp.device(text)


@pytest.mark.parametrize(
    ("args", "error"),
    [((3,), TypeError), (("cuda", "1"), TypeError), (("cuda", True), TypeError),
     (("cuda", -1), ValueError), (("cuda:1", 1), ValueError),
     ((tp.device("cuda:1"), 0), ValueError)],
)  # fmt: skip
def test_bad_arguments(args: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^\[device\]"):
        tp.device(*args)


def test_a_gpu_is_asked_for_in_vain() -> None:
    for use in (lambda: tp.zeros(2, device="cuda"), lambda: tp.ones(1).to("cuda:0"),
                lambda: tp.set_default_device("cuda")):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"expected cpu or meta, got cuda.*Use device='cpu'"):
            use()


def test_there_is_one_cpu() -> None:
    assert tp.zeros(2, device="cpu:0").device == tp.device("cpu")
    with pytest.raises(ValueError, match="of which there is one"):
        tp.zeros(2, device="cpu:3")
    with pytest.raises(TypeError, match=r"\[zeros\] argument 'device'"):
        tp.zeros(2, device=3)


def test_context_manager() -> None:
    with tp.device("meta"):
        assert tp.zeros(2).is_meta
        with tp.device("cpu"):
            assert not tp.zeros(2).is_meta
        assert tp.rand(2).is_meta
    assert not tp.zeros(2).is_meta


def test_context_is_that_of_its_thread() -> None:
    seen: list[tp.device] = []
    with tp.device("meta"):
        thread = threading.Thread(target=lambda: seen.append(tp.get_default_device()))
        thread.start()
        thread.join()
    assert seen == [tp.device("cpu")]


def test_default_device() -> None:
    tp.set_default_device("meta")
    try:
        assert tp.ones(1).is_meta
        assert tp.ones(1, device="cpu").is_cpu
    finally:
        tp.set_default_device(None)
    assert tp.get_default_device() == tp.device("cpu")


def test_meta_has_everything_but_elements() -> None:
    x = tp.empty(2, 3, device="meta", dtype=tp.float64)
    assert (x.shape, x.dtype, x.stride(), x.numel(), x.nbytes) == (
        (2, 3),
        tp.float64,
        (3, 1),
        6,
        48,
    )
    assert x.is_contiguous()
    y = (x + 1).sum(0)
    assert y.is_meta
    assert y.shape == (3,)
    assert tp.zeros(2, 0, device="meta").stride() == tp.zeros(2, 0).stride()


@pytest.mark.parametrize(
    "read",
    [lambda x: x.item(), lambda x: x.tolist(), lambda x: x.numpy(), lambda x: x.to("cpu"), bool,
     float, lambda x: x.data_ptr()],
)  # fmt: skip
def test_meta_refuses_to_be_read(read: Any) -> None:
    with pytest.raises(NotImplementedError, match="meta"):
        read(tp.ones(1, device="meta"))
