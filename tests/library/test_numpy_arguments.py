"""NumPy arrays stand for tensors in calls of users' operators, by whatever name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

import tensorplay as tp
from tensorplay import Tensor
from tensorplay.library import custom_op

SCHEMA = "(Tensor x, Tensor? y=None, Tensor[] rest=[], *, float by=1.0) -> Tensor"


@pytest.fixture
def mixed(name: str) -> Iterator[Any]:
    """Return an operator with tensors of each form, and what its body was given."""

    def body(x: Tensor, y: Tensor | None, rest: list[Tensor], *, by: float) -> Tensor:
        op.seen = (x, y, rest)
        return by * (x + (0 if y is None else y) + sum(rest))

    op = custom_op(name, body, schema=SCHEMA)
    op.register_fake(lambda x, y, rest, *, by: tp.empty_like(x))
    op.register_autograd(lambda ctx, g: (g, g, [g] * ctx.count), setup_context=_keep)
    return op


def _keep(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any) -> None:
    ctx.count = len(inputs[2])


def _frozen(*values: float) -> Any:
    array = np.array(values)
    array.flags.writeable = False
    return array


def test_arrays_enter_without_a_copy(mixed: Any) -> None:
    x, y, z = np.ones(3), np.arange(3.0), np.full(3, 5.0)[::-1]
    result = mixed(x, y, [z, tp.ones(3, dtype=tp.float64)], by=2.0)
    assert isinstance(result, Tensor)
    assert result.tolist() == [14.0, 16.0, 18.0]
    got_x, got_y, (got_z, _) = mixed.seen
    for array, tensor in ((x, got_x), (y, got_y), (z, got_z)):
        assert np.shares_memory(array, tensor.numpy())
        assert tensor.stride() == (array.strides[0] // 8,)


@pytest.mark.parametrize(
    "call",
    [
        lambda op, x: op(x),
        lambda op, x: op(x=x),
        lambda op, x: getattr(getattr(tp.ops, op.namespace), op.opname)(x),
        lambda op, x: tp.compile(op, backend="interpreter")(x),
        lambda op, x: tp.compile(lambda n: op(x) * n, backend="interpreter")(tp.ones(())),
        lambda op, x: tp.func.vmap(lambda n: op(x, n))(tp.zeros(1, dtype=tp.float64))[0],
    ],
    ids=["position", "name", "tp.ops", "compiled", "read by compiled code", "vmap"],
)
def test_each_way_to_call_takes_arrays(mixed: Any, call: Callable[..., Any]) -> None:
    x = np.array([1.0, 2.0])
    assert call(mixed, x).tolist() == [1.0, 2.0]
    x[:] = 5.0  # what the memory holds now, not what it held at the first call
    assert call(mixed, x).tolist() == [5.0, 5.0]


@pytest.mark.parametrize("make", [list, tuple])
def test_lists_of_arrays_and_of_both(name: str, make: Callable[..., Any]) -> None:
    op = custom_op(name, lambda xs: sum(xs) * 1.0, schema="(Tensor[] xs) -> Tensor")
    through = getattr(getattr(tp.ops, op.namespace), op.opname)
    array, tensor = np.array([1.0, 2.0]), tp.ones(2, dtype=tp.float64)
    for call in (op, through, lambda xs: op(xs=xs), lambda xs: through(xs=xs)):
        assert call(make([array, np.ones(2)])).tolist() == [2.0, 3.0]
        assert call(make([array, tensor])).tolist() == [2.0, 3.0]
        assert call(make([tensor, array])).tolist() == [2.0, 3.0]
    with pytest.raises(TypeError, match=r"argument 'xs': expected Tensor\[\], got ndarray"):
        op(np.ones((2, 2)))  # one array is no list: its rows would be taken for tensors unseen


def test_gradients_flow_to_the_tensors_beside_arrays(mixed: Any) -> None:
    x = tp.ones(2, dtype=tp.float64, requires_grad=True)
    assert mixed(np.ones(2)).requires_grad is False
    mixed(np.ones(2), x, [np.ones(2), x]).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


def test_one_argument_on_the_short_way(name: str) -> None:
    op = custom_op(name, lambda x, k: x * k, schema="(Tensor x, float k) -> Tensor")
    for x in (
        np.arange(3.0),
        np.arange(6.0)[::2] / 2,
        np.arange(3.0).view(np.recarray),
        _frozen(0, 1, 2),
    ):
        result = op(x, 2)
        assert type(result) is Tensor
        assert result.flatten().tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(TypeError, match="argument 'k': expected float, got ndarray"):
        op(np.ones(2), np.ones(2))
    with pytest.raises(TypeError, match="missing"):
        op(np.ones(2))


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.bool_, np.complex128]),
        hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
    )
)
def test_a_call_with_an_array_is_one_with_its_tensor(array: np.ndarray[Any, Any]) -> None:
    direct, made = _OP(array), _OP(tp.from_numpy(array))
    assert (direct.dtype, direct.shape, direct.stride()) == (made.dtype, made.shape, made.stride())
    assert direct.numpy().tobytes() == made.numpy().tobytes()


_OP = custom_op("numpy_arguments::twin", lambda x: x.clone(), schema="(Tensor x) -> Tensor")


def test_what_is_written_is_the_array(name: str) -> None:
    def body(x: Tensor) -> None:
        x.add_(1)

    op = custom_op(name, body, schema="(Tensor(a!) x) -> ()")
    array = np.zeros(2)
    op(array)
    assert array.tolist() == [1.0, 1.0]
    with pytest.raises(
        ValueError, match=r"argument 'x': expected writable memory.*Pass x\.copy\(\)"
    ):
        op(_frozen(0, 0))


def test_read_only_arrays_are_read_in_place_and_never_written(name: str) -> None:
    def body(x: Tensor) -> Tensor:
        seen.append(x)
        return x + 1

    seen: list[Tensor] = []
    array = _frozen(1, 2)
    assert custom_op(name, body, schema="(Tensor x) -> Tensor")(array).tolist() == [2.0, 3.0]
    assert np.shares_memory(array, seen[0].numpy())
    liar = custom_op(f"{name}_liar", lambda x: x.add_(1) * 1, schema="(Tensor x) -> Tensor")
    with pytest.raises(ValueError, match="read-only"):
        liar(array)
    assert array.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("array", "kind", "text"),
    [
        (np.ma.masked_array([1.0], [True]), TypeError, r"mask would be lost. Write NAME\.filled"),
        (np.array(["a"]), TypeError, "expected an element type out of .*got NumPy's <U1"),
        (np.array([None]), TypeError, "got NumPy's object"),
        (np.ones(2, ">f8"), TypeError, r"byte order .* write NAME\.astype\('float64'\)"),
        (np.ones(2, "i4,f8")["f1"], ValueError, r"expected strides .* Write NAME\.copy"),
    ],
)
def test_arrays_without_a_tensor_are_told_by_argument(
    mixed: Any, array: Any, kind: type[Exception], text: str
) -> None:
    for args, argument in (((array,), "x"), ((np.ones(2), array), "y")):
        said = text.replace("NAME", argument)
        with pytest.raises(kind, match=rf"^\[{mixed.name}\] argument '{argument}': .*{said}"):
            mixed(*args)
    said = text.replace("NAME", "x")  # a member of the list
    with pytest.raises(kind, match=rf"^\[{mixed.name}\] argument 'rest': .*{said}"):
        mixed(np.ones(2), rest=[np.ones(2), array])


def test_opcheck_takes_a_call_with_arrays(mixed: Any) -> None:
    assert tp.library.opcheck(mixed, (np.ones(3), np.ones(3), [np.ones(3)])) == {}


def test_tensors_of_other_libraries_are_told_what_to_write(mixed: Any) -> None:
    class Tensor:  # what torch's is called, too
        __module__ = "torch.nn"

        def __dlpack__(self) -> None:
            raise AssertionError

    text = r"expected Tensor, got torch\.Tensor\. Write tensorplay\.from_dlpack\(x\)\."
    for call in (mixed, tp.sin):
        with pytest.raises(TypeError, match=text):
            call(Tensor())
