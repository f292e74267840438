"""The errors that people meet: class and words, one row per mistake."""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.autograd import forward_ad
from tensorplay.testing import assert_close


class Thing:
    """A class of the user."""


def leaf(*shape: int) -> tp.Tensor:
    return tp.ones(*shape, requires_grad=True)


def meta(*shape: int, **options: Any) -> tp.Tensor:
    return tp.ones(*shape, device="meta", **options)


def used_capsule() -> Any:
    capsule = tp.ones(2).__dlpack__()
    tp.from_dlpack(capsule)
    return capsule


def assign(x: tp.Tensor, name: str, value: Any) -> None:
    setattr(x, name, value)


def write(x: tp.Tensor, key: Any, value: Any) -> None:
    x[key] = value


def dual() -> tp.Tensor:
    return forward_ad.make_dual(tp.ones(2), tp.ones(2))


INT = tp.tensor([1, 2])
BOOL = tp.tensor([True, False])
BYTE = tp.tensor([1], dtype=tp.uint8)

CREATION = [
    (lambda: tp.tensor([[1], [1, 2]]), ValueError, "length"),
    (lambda: tp.tensor("a"), TypeError, "str"),
    (lambda: tp.tensor(None), TypeError, "None"),
    (lambda: tp.tensor([object()]), TypeError, "object"),
    (lambda: tp.tensor([1, 2], requires_grad=True), RuntimeError, "floating point"),
    (lambda: tp.ones(2, dtype=tp.bool, requires_grad=True), RuntimeError, "floating point"),
    (lambda: tp.Tensor("a"), TypeError, "str"),
    (lambda: tp.Tensor([[1], [1, 2]]), ValueError, "length"),
    (lambda: tp.as_tensor("a"), TypeError, "str"),
    (lambda: tp.asarray([1.0], copy=False), ValueError, "copy"),
    (lambda: tp.asarray(tp.ones(2), dtype=tp.int8, copy=False), ValueError, "copy"),
    (lambda: tp.from_numpy([1.0]), TypeError, "expected np.ndarray"),
    (lambda: tp.from_numpy(np.array([object()])), TypeError, "object"),
    (lambda: tp.from_dlpack([1.0]), TypeError, "__dlpack__"),
    (lambda: tp.from_dlpack(used_capsule()), ValueError, "already been consumed"),
    (lambda: tp.frombuffer(b"abc", dtype=tp.float32), ValueError, "frombuffer"),
    (lambda: tp.frombuffer(b"abcd", dtype=tp.float32, offset=9), ValueError, "frombuffer"),
    (lambda: tp.zeros(-1), RuntimeError, "non-negative"),
    (lambda: tp.empty(2, -3), RuntimeError, "non-negative"),
    (lambda: tp.ones((2, -3)), RuntimeError, "non-negative"),
    (lambda: tp.full((-1,), 1.0), RuntimeError, "non-negative"),
    (lambda: tp.rand(-1), RuntimeError, "non-negative"),
    (lambda: tp.ones(2).new_zeros(-1), RuntimeError, "non-negative"),
    (lambda: tp.arange(3, 0), RuntimeError, "inconsistent with step sign"),
    (lambda: tp.arange(0, 3, -1), RuntimeError, "inconsistent with step sign"),
    (lambda: tp.arange(0, 3, 0), RuntimeError, "step"),
    (lambda: tp.linspace(0, 1, -1), RuntimeError, "steps"),
    (lambda: tp.logspace(0, 1, -1), RuntimeError, "steps"),
    (lambda: tp.ones(4).as_strided((3, 3), (3, 1)), RuntimeError, "out of bounds for storage"),
    (lambda: tp.zeros(2, colour=1), TypeError, r"zeros\(\).*colour"),
    (lambda: tp.tensor([1], colour=1), TypeError, r"tensor\(\).*colour"),
    (lambda: tp.add(INT, INT, colour=1), TypeError, r"add\(\).*colour"),
    (lambda: INT.sum(colour=1), TypeError, r"sum\(\).*colour"),
]

TYPES = [
    (lambda: tp.set_default_dtype(tp.int32), TypeError, "only floating-point types"),
    (lambda: tp.finfo(tp.int8), TypeError, "iinfo"),
    (lambda: tp.iinfo(tp.float32), TypeError, "finfo"),
    (lambda: BYTE + tp.tensor([1], dtype=tp.uint16), (RuntimeError, TypeError), "not supported"),
    (lambda: tp.promote_types(tp.uint8, tp.uint16), (RuntimeError, TypeError), "not supported"),
    (lambda: INT // 0, RuntimeError, "ZeroDivisionError"),
    (lambda: INT % 0, RuntimeError, "ZeroDivisionError"),
    (lambda: INT // tp.tensor([1, 0]), RuntimeError, "ZeroDivisionError"),
    (lambda: tp.fmod(INT, 0), RuntimeError, "ZeroDivisionError"),
    (lambda: tp.div(INT, 0, rounding_mode="floor"), RuntimeError, "ZeroDivisionError"),
    (lambda: INT**-1, RuntimeError, "negative integer powers"),
    (lambda: BOOL - BOOL, RuntimeError, r"Use the `\^`"),
    (lambda: -BOOL, RuntimeError, "logical_not"),
    (lambda: tp.tensor([1]).add_(1.5), RuntimeError, "can't be cast to the desired output type"),
    (lambda: tp.mean(INT), RuntimeError, "floating point or complex"),
]

DEVICES = [
    (lambda: tp.device("nowhere"), ValueError, "Invalid device string"),
    (lambda: tp.device("cuda:x"), ValueError, "Invalid device string"),
    (lambda: tp.ones(2).to("cuda"), RuntimeError, "cuda"),
    (lambda: tp.ones(2, device="cuda:1"), RuntimeError, "cuda:1"),
    (lambda: meta().item(), NotImplementedError, r"\[item\]"),
    (lambda: meta(2).tolist(), NotImplementedError, r"\[tolist\]"),
    (lambda: meta(2).numpy(), NotImplementedError, r"\[numpy\]"),
    (lambda: meta(2).nonzero(), NotImplementedError, r"\[nonzero\]"),
    (lambda: tp.unique(meta(2)), NotImplementedError, r"\[unique\]"),
    (lambda: meta(2).to("cpu"), NotImplementedError, r"\[to\]"),
    (lambda: bool(meta()), NotImplementedError, r"\[bool\]"),
    (lambda: float(meta()), NotImplementedError, r"\[float\]"),
    (lambda: meta(2)[meta(2) > 0], NotImplementedError, "nonzero"),
    (lambda: tp.equal(meta(2), meta(2)), NotImplementedError, r"\[equal\]"),
    (lambda: meta(2) + tp.ones(2), ValueError, "one device"),
]

INTERCHANGE = [
    (lambda: leaf(2).__dlpack__(), BufferError, "require gradient"),
    (lambda: tp.to_dlpack(leaf(2)), BufferError, "require gradient"),
    (lambda: meta(2).__dlpack__(), BufferError, "no memory"),
    (lambda: leaf(2).numpy(), RuntimeError, r"Can't call numpy\(\) on Tensor that requires grad"),
    (lambda: np.asarray(leaf(2)), RuntimeError, r"Can't call numpy\(\) on Tensor that requires"),
]

PROTOCOLS = [
    (lambda: tp.ones(2).item(), RuntimeError, "cannot be converted to Scalar"),
    (lambda: tp.ones(0).item(), RuntimeError, "cannot be converted to Scalar"),
    (lambda: bool(tp.ones(2)), RuntimeError, "more than one value is ambiguous"),
    (lambda: bool(tp.ones(0)), RuntimeError, "no values is ambiguous"),
    (lambda: float(tp.ones(2)), ValueError, "only one element"),
    (lambda: int(tp.ones(2)), ValueError, "only one element"),
    (lambda: complex(tp.ones(2)), ValueError, "only one element"),
    (lambda: tp.tensor(1.0).__index__(), TypeError, "only integer tensors"),
    (lambda: len(tp.tensor(1.0)), TypeError, "0-d tensor"),
    (lambda: iter(tp.tensor(1.0)), TypeError, "0-d tensor"),
    (lambda: tp.ones(2) + "a", TypeError, "unsupported operand"),
    (lambda: tp.ones(2) + None, TypeError, "unsupported operand"),
    (lambda: None * tp.ones(2), TypeError, "unsupported operand"),
    (lambda: tp.ones(2) @ "a", TypeError, "unsupported operand"),
    (lambda: assign(leaf(2), "grad", tp.ones(3)), RuntimeError, "size"),
    (lambda: assign(leaf(2), "grad", tp.ones(2).double()), RuntimeError, "dtype"),
    (lambda: assign(leaf(2), "grad", [1.0, 1.0]), TypeError, "Tensor or None"),
    (lambda: __import__("copy").deepcopy(leaf(2) * 2), RuntimeError, "graph leaves"),
]

ONE = tp.ones(2, 3)

SHAPES = [
    (
        lambda: tp.ones(2) + tp.ones(3),
        RuntimeError,
        r"The size of tensor a \(2\) must match the size of tensor b \(3\) at non-singleton dim.+0",
    ),
    (lambda: ONE @ ONE, RuntimeError, r"shapes cannot be multiplied \(2x3 and 2x3\)"),
    (lambda: tp.mm(ONE, ONE), RuntimeError, r"shapes cannot be multiplied \(2x3 and 2x3\)"),
    (lambda: tp.tensor(1.0) @ ONE, RuntimeError, "at least 1D"),
    (lambda: ONE @ ONE.t().double(), RuntimeError, "same dtype"),
    (lambda: ONE.view(7), RuntimeError, "is invalid for input of size"),
    (lambda: ONE.reshape(4), RuntimeError, "is invalid for input of size"),
    (lambda: ONE.t().view(6), RuntimeError, "view size is not compatible"),
    (lambda: ONE.reshape(-1, -1), RuntimeError, "only one dimension can be inferred"),
    (lambda: tp.ones(0, 2).reshape(-1, 0), RuntimeError, "ambiguous"),
    (lambda: ONE.permute(0, 0), RuntimeError, "duplicate dims"),
    (
        lambda: tp.ones(2).sum(2),
        IndexError,
        r"Dimension out of range \(expected to be in range of \[-1, 0\], but got 2\)",
    ),
    (lambda: ONE.size(5), IndexError, r"expected to be in range of \[-2, 1\], but got 5"),
    (lambda: ONE.transpose(0, 2), IndexError, "Dimension out of range"),
    (lambda: ONE[5], IndexError, "out of bounds"),
    (lambda: ONE[tp.tensor([7])], IndexError, "out of bounds"),
    (lambda: ONE[0, 0, 0], IndexError, "too many indices"),
    (lambda: tp.tensor(1.0)[0], IndexError, "0-dim tensor"),
    (lambda: ONE[1.5], IndexError, "integers"),
    (lambda: ONE[tp.ones(2)], IndexError, "long, int or bool"),
    (lambda: ONE[tp.ones(3).bool()], IndexError, "mask"),
    (lambda: write(tp.ones(2, 3), 5, 0.0), IndexError, "out of bounds"),
    (lambda: write(tp.ones(2, 3), 1.5, 0.0), IndexError, "integers"),
    (lambda: ONE[::-1], ValueError, "step must be greater than zero"),
    (lambda: tp.cat([]), ValueError, "non-empty list"),
    (lambda: tp.stack([]), ValueError, "non-empty list"),
    (
        lambda: tp.cat([ONE, tp.ones(2, 2)]),
        RuntimeError,
        "Sizes of tensors must match except in dimension",
    ),
    (lambda: tp.stack([ONE, tp.ones(2, 2)]), RuntimeError, "equal size"),
    (
        lambda: tp.ones(2).expand(3),
        RuntimeError,
        r"expanded size of the tensor \(3\) must match the existing size \(2\)",
    ),
    (lambda: tp.ones(0).max(), RuntimeError, "Expected reduction dim to be specified"),
    (lambda: tp.ones(0).argmax(), (RuntimeError, IndexError), "Expected reduction dim to be spec"),
    (lambda: tp.ones(0, 2).amax(0), IndexError, "Expected reduction dim to be specified"),
]

OUT = [
    (lambda: tp.add(leaf(2), 1, out=tp.ones(2)), RuntimeError, "requires grad"),
    (lambda: tp.sum(leaf(2), 0, out=tp.tensor(0.0)), RuntimeError, "requires grad"),
    (lambda: tp.add(tp.ones(2), 1, out=leaf(2)), RuntimeError, "requires grad"),
]

OVERRIDES = [
    (lambda: tp.overrides.handle_tensorplay_function(tp.add, (1, 2), 1, 2), TypeError,
     r"no implementation found for 'tensorplay\.add' on types"),
]  # fmt: skip

FILES = [
    (lambda: tp.load("/nowhere/at/all"), FileNotFoundError, "nowhere"),
    (lambda: tp.load(io.BytesIO(b"not a file of ours")), ValueError, "load"),
    (lambda: tp.load(io.BytesIO(b"")), ValueError, "load"),
    (lambda: tp.save(lambda: 1, io.BytesIO()), pickle.PicklingError, "save"),
]

CLOSENESS = [
    (
        lambda: assert_close(tp.tensor([1.0, 2.0, 9.0]), tp.tensor([1.0, 2.5, 3.0])),
        AssertionError,
        r"(?s)2 / 3.*\(2,\)",
    ),
    (lambda: assert_close(tp.ones(2), tp.ones(3)), AssertionError, "shape"),
    (lambda: assert_close(tp.ones(2), tp.ones(2).double()), AssertionError, "dtype"),
    (lambda: assert_close(tp.ones(2), meta(2)), AssertionError, "device"),
    (lambda: assert_close(ONE, tp.ones(3, 2).t(), check_stride=True), AssertionError, "stride"),
    (lambda: assert_close(tp.tensor(float("nan")), tp.tensor(float("nan"))), AssertionError, "1"),
    (lambda: assert_close(tp.ones(1), tp.zeros(1), msg="mine"), AssertionError, "mine"),
]

ROWS = [*CREATION, *TYPES, *DEVICES, *INTERCHANGE, *PROTOCOLS, *SHAPES, *OUT, *OVERRIDES, *FILES]
ROWS += CLOSENESS


@pytest.mark.parametrize(
    ("call", "kind", "text"), ROWS, ids=[f"{n}-{r[2][:30]}" for n, r in enumerate(ROWS)]
)
def test_mistake(call: Any, kind: Any, text: str) -> None:
    before = tp.get_default_dtype()
    with pytest.raises(kind, match=text):
        call()
    assert tp.get_default_dtype() is before


# --- what is no mistake, and what warns -----------------------------------------------------------


def test_accepted() -> None:
    assert tp.tensor([tp.tensor(1.0), tp.tensor(2.0)]).tolist() == [1, 2]
    assert (tp.ones(2) // 0).tolist() == [float("inf")] * 2
    comparison: Any = tp.ones(2) == None  # noqa: E711 - what people write
    assert comparison is False
    assert (tp.ones(2) != None) is True  # noqa: E711
    assert type(tp.ones(2) + np.ones(2)) is type(np.ones(2) + tp.ones(2)) is tp.Tensor
    assert (BYTE + 300).tolist() == [45]
    assert tp.zeros(0).tolist() == []
    with tp.device("meta"):
        assert tp.ones(2, 3).is_meta
        assert tp.ones(2, 3).stride() == (3, 1)
    with tp.no_grad():
        assert tp.from_dlpack(leaf(2).__dlpack__()).tolist() == [1, 1]


def test_read_only_arrays_warn_and_are_copied() -> None:
    array = np.ones(2)
    array.flags.writeable = False
    with pytest.warns(UserWarning, match="read-only"):
        x = tp.from_numpy(array)
    x[0] = 5
    assert array.tolist() == [1, 1]


def test_gradient_of_what_is_no_leaf_warns() -> None:
    y = leaf(2) * 2
    with pytest.warns(UserWarning, match="not a leaf Tensor"):
        assert y.grad is None
    y.retain_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert y.grad is None


def test_read_only_memory_and_unknown_types_over_dlpack() -> None:
    array = np.ones(2)
    array.flags.writeable = False
    with pytest.raises(BufferError, match="read"):
        tp.to_dlpack(tp._tensor.wrap(array))

    class Exporter:
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("no such type")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    with pytest.raises(BufferError):
        tp.from_dlpack(Exporter())


def test_out_refuses_tangents() -> None:
    with forward_ad.dual_level():
        for call in (
            lambda: tp.add(dual(), 1, out=tp.ones(2)), lambda: tp.sum(dual(), 0, out=tp.ones(())),
        ):  # fmt: skip
            with pytest.raises(NotImplementedError, match="because it is an out= function"):
                call()


def test_files_with_objects_of_classes(tmp_path: Path) -> None:
    path = tmp_path / "thing.anything"  # any suffix
    tp.save({"x": tp.ones(2), "t": [1, "a", None, 2.5, True]}, path)
    assert tp.load(path)["t"] == [1, "a", None, 2.5, True]
    tp.save(Thing(), path)
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
        tp.load(path)
    assert isinstance(tp.load(path, weights_only=False), Thing)


def test_loading_without_memory(tmp_path: Path) -> None:
    path = tmp_path / "x"
    tp.save(tp.ones(2, 3), path)
    with pytest.raises(NotImplementedError, match="cannot be loaded to device meta"):
        tp.load(path, map_location="meta")


def test_printing_is_faithful() -> None:
    number = 0.1234567890123456
    shown = repr(tp.tensor(number, dtype=tp.float64))
    assert "dtype=tensorplay.float64" in shown
    assert repr(tp.tensor([255], dtype=tp.uint8) + 1) == "tensor([0], dtype=tensorplay.uint8)"
    assert "1.+2.j" in repr(tp.tensor([1 + 2j])).replace("0000", "")
    assert "requires_grad=True" in repr(leaf(2))
    assert "grad_fn=<MulBackward>" in repr(leaf(2) * 2)
    assert "dtype" not in repr(tp.ones(2))
    tp.set_printoptions(precision=16)
    try:
        assert str(number) in repr(tp.tensor(number, dtype=tp.float64))
    finally:
        tp.set_printoptions(precision=4)
