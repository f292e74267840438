"""Tensors on device cuda: what they stand for, what runs on them, and what is refused in words."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tests.gpu_arrays import GpuArray


def on_gpu(values: Any, index: int = 0) -> tp.Tensor:
    return tp.from_dlpack(GpuArray(values, index))


def elements(x: tp.Tensor | None) -> list[Any]:
    assert x is not None
    return x.detach().cpu().tolist()  # type: ignore[no-any-return]


def test_an_array_on_a_gpu_becomes_a_tensor_there() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = tp.from_dlpack(GpuArray(array.T, 1))
    assert (x.device, x.dtype, tuple(x.shape)) == (tp.device("cuda:1"), tp.float32, (3, 2))
    assert (x.is_cuda, x.is_cpu, x.is_meta) == (True, False, False)
    assert (x.stride(), x.is_contiguous()) == ((1, 3), False)
    assert repr(x) == "tensor(..., device='cuda:1', size=(3, 2))"
    assert x.__dlpack_device__() == (2, 1)
    assert x.cpu().tolist() == array.T.tolist()
    assert x.to("cuda") is x
    assert x.to("cuda:1") is x
    assert x.to("meta").stride() == (1, 3)
    assert x.detach().device == x.device
    assert tp.from_dlpack(GpuArray(array), device="cpu").tolist() == array.tolist()
    array[0, 0] = 7  # the same memory
    assert x.cpu()[0, 0] == 7


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float64", "complex64"]
)
def test_every_dtype_is_read(dtype: str) -> None:
    assert on_gpu(np.zeros(3, dtype)).dtype is getattr(tp, dtype)


def test_arithmetic_is_that_of_the_arrays_library_and_is_recorded() -> None:
    x = on_gpu([1.0, 2.0, 3.0]).requires_grad_()
    y = on_gpu([4.0, 5.0, 6.0])
    z = (x * y + x) / 2 - (-x)
    assert z.device == x.device
    assert elements(z) == [3.5, 8.0, 13.5]
    z.backward(on_gpu([1.0, 10.0, 100.0]))
    assert elements(x.grad) == [3.5, 40.0, 450.0]
    held = x.grad
    (2 * x).backward(on_gpu([1.0, 1.0, 1.0]))
    assert x.grad is held  # as on the cpu, gradients are added to the tensor that is there
    assert elements(x.grad) == [5.5, 42.0, 452.0]


def test_a_gradient_is_a_copy_of_what_came_in() -> None:
    x, one = on_gpu([1.0]).requires_grad_(), on_gpu([1.0])
    (x * 1).backward(one)
    one._array.source.array[0] = 9
    assert elements(x.grad) == [1.0]


REFUSED: list[tuple[Callable[[tp.Tensor], Any], type[Exception], str]] = [
    (lambda x: x.exp(), NotImplementedError, r"\[exp\] no kernel for device cuda: .* \+ - \* /"),
    (lambda x: tp.cat([x, x]), NotImplementedError, r"\[cat\] no kernel for device cuda"),
    (lambda x: x[0], NotImplementedError, "no kernel for device cuda"),
    (lambda x: tp.div(x, x, rounding_mode="floor"), NotImplementedError, r"\[div\] no kernel"),
    (lambda x: x.add_(x), NotImplementedError, r"\[add_\] tensors on device cuda are written by"),
    (lambda x: x.fill_(1), NotImplementedError, "device cuda are written by operators"),
    (lambda x: x * tp.ones(2), ValueError, r"\[mul\] expected all .* got cuda:0 and cpu\. Write"),
    (lambda x: tp.ones(2) * x, ValueError, r"\[mul\] expected all .* got cuda:0 and cpu\. Write"),
    (lambda x: x + on_gpu([1.0, 2.0], 1), ValueError, "got cuda:1 and cuda:0"),
    (lambda x: x + x.to("meta"), ValueError, "got meta and cuda:0"),
    (lambda x: x + on_gpu(np.ones(3)), RuntimeError, r"\[add\]"),
    (lambda x: on_gpu([True]) + 1.5, TypeError, r"\[add\] .* on cuda:0\. Write x\.detach\(\)\.cpu"),
    (lambda x: x.numpy(), NotImplementedError, r"\[numpy\] .* cuda:0 has no elements in main mem"),
    (lambda x: x.tolist(), NotImplementedError, r"Write x\.detach\(\)\.cpu\(\)"),
    (bool, NotImplementedError, r"\[bool\]"),
    (pickle.dumps, NotImplementedError, r"\[pickle\]"),
    (copy.deepcopy, NotImplementedError, r"\[deepcopy\]"),
    (lambda x: tp.save(x, io.BytesIO()), NotImplementedError, r"\[save\]"),
    (lambda x: x.to("cuda:1"), RuntimeError, r"expected cpu or meta, got cuda:1: .*from_dlpack"),
    (lambda x: x.resize_(1), NotImplementedError, r"\[resize_\] .* got one on cuda:0, whose mem"),
    (lambda x: x.set_(x), NotImplementedError, r"\[set_\] expected .* on cpu or meta, got one on"),
    (lambda x: tp.ones(2).set_(x), NotImplementedError, r"\[set_\] .* got one on cuda:0"),
    (tp.zeros_like, RuntimeError, r"\[zeros\] .*from_dlpack\(cupy"),
    (lambda x: x.requires_grad_().cpu(), RuntimeError, r"is not recorded, .* x\.detach\(\)\.cpu"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), REFUSED)
def test_what_does_not_run_there_is_refused(
    call: Callable[[tp.Tensor], Any], kind: type[Exception], words: str
) -> None:
    x = on_gpu([1.0, 2.0])
    with pytest.raises(kind, match=words):
        call(x)
    assert elements(x) == [1.0, 2.0]


def test_a_result_of_another_dtype_than_ours_is_refused() -> None:
    """Promotion is the arrays' library's; where it differs nothing is recorded under our dtype."""
    with pytest.raises(TypeError, match="Give both arguments one dtype"):
        on_gpu(np.ones(2, np.int64)) * on_gpu(np.ones(2, np.float32))


def test_optimisers_refuse_parameters_there() -> None:
    p = tp.nn.Parameter(on_gpu([1.0]))
    p.grad = on_gpu([1.0])
    with pytest.raises(NotImplementedError, match=r"\[SGD\] expected parameters on cpu, got one"):
        tp.optim.SGD([p], lr=0.1).step()


def test_a_gradient_lies_where_its_tensor_does() -> None:
    x = on_gpu([1.0]).requires_grad_()
    with pytest.raises(RuntimeError, match="expected a gradient on device cuda:0"):
        x.grad = tp.ones(1, dtype=tp.float64)
    with pytest.raises(RuntimeError, match="on device cuda:0, got one on cpu"):
        (x * 2).backward(tp.ones(1, dtype=tp.float64))


def test_an_array_that_does_not_copy_itself_says_so() -> None:
    class Stays(GpuArray):
        def __dlpack__(self, *, dl_device: Any = None, **_: Any) -> Any:
            if dl_device is not None:
                raise BufferError("no transfer")
            return super().__dlpack__()

    x = tp.from_dlpack(Stays([1.0]))
    with pytest.raises(BufferError, match=r"a Stays does not copy itself .* no transfer"):
        x.cpu()


def test_operators_run_the_kernel_of_the_tensors_device() -> None:
    @tp.library.custom_op("cudatensors::f", mutates_args=(), device_types="cuda")
    def f(x: tp.Tensor) -> tp.Tensor:
        return x * 3

    x = on_gpu([1.0, 2.0])
    assert elements(f(x)) == [3.0, 6.0]
    assert elements(f(GpuArray([1.0, 2.0]))) == [3.0, 6.0]  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match=r"device cpu; .*Pass tensors on a GPU"):
        f(tp.ones(2))
    f.register_kernel("cpu", lambda x: x * 5)
    assert f(tp.ones(2)).tolist() == [5.0, 5.0]
    assert elements(f(x)) == [3.0, 6.0]
    wrong = tp.library.custom_op("cudatensors::g", lambda x: tp.ones(2), mutates_args=(),
                                 schema="(Tensor x) -> Tensor")  # fmt: skip
    with pytest.raises(RuntimeError, match="expected a tensor on device cuda, got one on cpu"):
        wrong(x)
    both = tp.library.custom_op("cudatensors::h", lambda x, y: x * y, mutates_args=(),
                                schema="(Tensor x, Tensor y) -> Tensor")  # fmt: skip
    with pytest.raises(ValueError, match="expected all tensors on one device, got cuda and cpu"):
        both(tp.ones(2), x)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "float16", "float64", "complex64"]
)
@pytest.mark.parametrize("word", ["copy", "clone", None])
def test_a_copy_is_one_for_every_dtype_and_library(dtype: str, word: str | None) -> None:
    class Copies(GpuArray):
        """As libraries have it: a method of this name."""

    if word is not None:
        setattr(Copies, word, lambda self: GpuArray(self.array.copy(), self.index))
    array = np.array([1, 0, 1], dtype)
    x = tp.from_dlpack(Copies(array, 1))
    y = x.clone()
    array[0] = 0
    assert (y.device, y.dtype) == (x.device, x.dtype)
    assert y.cpu().tolist() == [1, 0, 1]


@pytest.mark.parametrize("word", ["copy", "contiguous"])
def test_a_row_major_copy_is_made_by_the_library(word: str) -> None:
    class Copies(GpuArray):
        """As CuPy and PyTorch have it: their copies are row-major by these methods."""

    def copied(self: GpuArray) -> GpuArray:
        return GpuArray(self.array.copy(order="C"), self.index)

    setattr(Copies, word, copied)
    x = tp.from_dlpack(Copies(np.arange(6.0).reshape(2, 3).T, 1)).requires_grad_()
    y = x.contiguous()
    assert (y.device, y.stride(), y.detach().cpu().tolist()) == (
        x.device, (2, 1), [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]],
    )  # fmt: skip
    y.backward(on_gpu(np.full((3, 2), 2.0), 1))
    assert x.grad is not None
    assert x.grad.cpu().tolist() == [[2.0, 2.0]] * 3
    row_major = on_gpu([1.0])
    assert row_major.contiguous() is row_major
    setattr(Copies, word, lambda self: GpuArray(self.array.copy(order="K"), self.index))
    with pytest.raises(ValueError, match=r"\[contiguous\] expected a row-major copy.* \(1, 3\)"):
        x.contiguous()


def test_what_the_library_does_not_compute_names_the_operator() -> None:
    class Refuses(GpuArray):
        def __mul__(self, other: Any) -> Any:
            raise TypeError("no such kernel")

    x = tp.from_dlpack(Refuses([1.0]))
    with pytest.raises(
        TypeError, match=r"\[mul\] .* on cuda refuses: no such kernel\. Write x\.det"
    ):
        x * x


def test_gradcheck_refuses_inputs_there() -> None:
    x = on_gpu([1.0]).requires_grad_()
    with pytest.raises(
        ValueError, match=r"\[gradcheck\] input \w+: expected .* on cpu, got .* cuda:0"
    ):
        tp.autograd.gradcheck(lambda v: v * v, (x,))


def test_elements_from_another_device_leave_no_gradient_behind() -> None:
    p = tp.nn.Parameter(tp.ones(1, dtype=tp.float64))
    p.grad = tp.ones(1, dtype=tp.float64)
    for other in (on_gpu([1.0]), tp.ones(1, dtype=tp.float64, device="meta")):
        with pytest.raises(RuntimeError, match=r"\[data\] expected elements on cpu, where"):
            p.data = other
        assert p.is_cpu
    made = p * 2
    with pytest.raises(RuntimeError, match=r"\[data\] .* no graph leaf.* and cpu, got .* cuda:0"):
        made.data = on_gpu([1.0])
    p.grad = None
    p.data = on_gpu([1.0])
    p.grad = on_gpu([1.0])
    assert p.grad.device == p.device


def test_a_module_takes_its_gradients_along() -> None:
    module = tp.nn.Linear(1, 1, bias=False, dtype=tp.float64)
    module.weight = tp.nn.Parameter(on_gpu([[2.0]]))
    module.weight.grad = on_gpu([[3.0]])
    module.cpu()
    assert module.weight.tolist() == [[2.0]]
    assert module.weight.grad.tolist() == [[3.0]]
    module.to_empty(device="meta")
    assert module.weight.grad is None
    assert module.weight.is_meta


def test_shapes_there_are_known_without_elements() -> None:
    x = on_gpu(np.ones((2, 3)).T)
    with pytest.raises(RuntimeError, match=r"\[view\] argument 'size'"):
        x.view(6)
