from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor
from tensorplay._tensor import Spec
from tensorplay.library import custom_op
from tensorplay.library.infer_schema import Number
from tests.library.cubes import make_cube, x64

# --- definition ----------------------------------------------------------------------------------


def test_attributes(name: str) -> None:
    @custom_op(name, mutates_args=(), device_types="cpu", tags=("note",))
    def scale(x: Tensor, factor: float = 2.0) -> Tensor:
        """Scale."""
        return x * factor

    assert scale.name == name
    assert f"{scale.namespace}::{scale.opname}" == name
    assert str(scale.schema) == f"{name}(Tensor x, float factor=2.0) -> Tensor"
    assert scale.mutates_args == ()
    assert scale.tags == ("note",)
    assert name in repr(scale)
    assert scale.__doc__ is not None
    assert scale(tp.ones(2)).tolist() == [2, 2]
    assert scale(tp.ones(2), factor=3).tolist() == [3, 3]
    assert tp.library.get_op(name) is scale
    assert tp.library.has_op(name)
    assert getattr(getattr(tp.ops, scale.namespace), scale.opname) is scale
    assert copy.deepcopy(scale) is scale
    assert pickle.loads(pickle.dumps(scale)) is scale


def test_a_function_may_be_given_at_once_and_need_no_annotations(name: str) -> None:
    op = custom_op(name, lambda x, k=2: x * k)
    assert str(op.schema) == f"{name}(Tensor x, SymInt k=2) -> Tensor"
    assert op(tp.ones(1)).tolist() == [2]


@pytest.mark.parametrize("text", ["plain", "a::b::c", "::b", "a::", "1a::b", "a::b-c", "a::lambda",
                                  "a b::c", "a::b\n"])  # fmt: skip
def test_bad_names(text: str) -> None:
    with pytest.raises(ValueError, match="qualified op name"):
        custom_op(text, lambda x: x)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"mutates_args": 3}, TypeError, "expected names of arguments"),
        ({"mutates_args": (1,)}, TypeError, "expected names of arguments"),
        ({"mutates_args": "out"}, TypeError, "expected the name of an argument"),
        ({"mutates_args": ("w",)}, ValueError, "were not found in the custom op's signature"),
        ({"device_types": 3}, TypeError, "argument 'device_types'"),
        ({"device_types": ("cpu", 1)}, TypeError, "argument 'device_types'"),
        ({"device_types": "tpu"}, ValueError, "expected some of cpu, cuda, meta"),
        ({"schema": "(Tensr x) -> Tensor"}, ValueError, "unknown type specifier"),
        ({"schema": "other::op(Tensor x) -> Tensor"}, ValueError, "expected the schema of"),
        ({"schema": "(Tensor x, int k) -> Tensor"}, ValueError, "does not take the arguments"),
        ({"schema": "(Tensor x) -> Tensor", "mutates_args": ("y",)}, ValueError, "not found"),
        ({"schema": "(Tensor x) -> Tensor", "mutates_args": ("x",)}, ValueError, "is written"),
        ({"schema": "(Tensor(a) x) -> Tensor(a)"}, ValueError, "returns a view"),
    ],
)
def test_bad_options(name: str, options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        custom_op(name, lambda x: x, **options)
    assert not tp.library.has_op(name)


def test_what_is_no_function(name: str) -> None:
    with pytest.raises(TypeError, match="argument 'name': expected str"):
        custom_op(3)
    with pytest.raises(TypeError, match="argument 'fn': expected a function"):
        custom_op(name, 3)
    op = custom_op(name, lambda x: x.clone())
    for register in (
        op.register_fake,
        op.register_autograd,
        lambda f: op.register_kernel("cpu", f),
    ):
        with pytest.raises(TypeError, match="expected a function"):
            register(3)


def test_schema_text(name: str) -> None:
    for text in ("(Tensor x, *, int k=1) -> Tensor", f"{name}(Tensor x, *, int k=1) -> Tensor"):

        @custom_op(name, schema=text)
        def op(x: Any, *, k: Any) -> Any:
            return x + k

        assert str(op.schema) == f"{name}(Tensor x, *, int k=1) -> Tensor"
        assert op(tp.ones(1), k=2).tolist() == [3]


def test_names_that_are_special_elsewhere() -> None:
    @custom_op("tests_custom_op::scale_", mutates_args=("x",))
    def scale_(x: Tensor, k: float = float("inf"), d: tp.dtype = tp.bool) -> None:
        x.mul_(k)

    x = tp.ones(2)
    scale_(x, 3.0)
    assert x.tolist() == [3, 3]
    scale_(x)
    assert x.tolist() == [float("inf")] * 2


def test_unknown_operators() -> None:
    for use in (tp.library.get_op, tp.library.register_fake, tp.library.register_kernel,
                lambda n: tp.library.register_autograd(n, lambda ctx, g: g)):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"unknown operator.*does not exist"):
            use("tests_custom_op::nope")
        with pytest.raises(ValueError, match="qualified op name"):
            use("nope")
    assert not tp.library.has_op("tests_custom_op::nope")
    with pytest.raises(AttributeError, match="custom_op"):
        _ = tp.ops.tests_custom_op.nope
    with pytest.raises(AttributeError, match="no operator and no namespace"):
        _ = tp.ops.tests_no_namespace


# --- defining again ------------------------------------------------------------------------------


def test_the_same_definer_replaces(name: str) -> None:
    def cell(scale: float) -> Any:
        @custom_op(name, mutates_args=())
        def mul(x: Tensor) -> Tensor:
            return x * scale

        return mul

    first, second = cell(2), cell(3)
    assert float(second(tp.ones(1))) == 3
    assert float(first(tp.ones(1))) == 2
    assert tp.library.get_op(name) is second


def run_cell(name: str, text: str) -> Any:
    """Run the text of a notebook cell and return the operator that it defines."""
    scope = {"__name__": "__main__", "tp": tp, "custom_op": custom_op, "NAME": name}
    exec(compile(text, "<cell>", "exec"), scope)
    return scope["op"]


def test_a_cell_replaces_what_it_made_with_another_schema(name: str) -> None:
    text = (
        "@custom_op(NAME, mutates_args=())\ndef op(x: tp.Tensor) -> tp.Tensor:\n    return x * 2\n"
    )
    run_cell(name, text).register_autograd(lambda ctx, g: g * 2)
    changed = run_cell(name, text.replace("x: tp.Tensor", "x: tp.Tensor, k: int = 5"))
    assert str(changed.schema) == f"{name}(Tensor x, SymInt k=5) -> Tensor"
    # Nothing of the old definition stays, its gradient neither.
    y = changed(tp.ones(1, requires_grad=True))
    with pytest.raises(RuntimeError, match="no autograd formula"):
        y.backward()


def test_another_definer_is_refused(name: str) -> None:
    def one() -> None:
        @custom_op(name)
        def first(x: Tensor) -> Tensor:
            return x * 1

    def two() -> None:
        @custom_op(name)
        def second(x: Tensor) -> Tensor:
            return x * 2

    one()
    with pytest.raises(RuntimeError, match=r"already defined by .*first.*second"):
        two()
    assert tp.library.get_op(name)(tp.ones(1)).tolist() == [1]


def test_one_text_cannot_define_twice(name: str) -> None:
    @custom_op(name)
    def op(x: Tensor) -> Tensor:
        return x * 1

    with pytest.raises(RuntimeError, match="already defined"):

        @custom_op(name)
        def op(x: Tensor) -> Tensor:
            return x * 2


def test_older_graphs_keep_their_formula(name: str) -> None:
    def cell(scale: float) -> Any:
        @custom_op(name)
        def mul(x: Tensor) -> Tensor:
            return x * scale

        mul.register_autograd(lambda ctx, g: g * scale)
        return mul

    x = tp.ones(1, requires_grad=True)
    old = cell(2)
    before = old(x)
    new = cell(3)
    new.register_autograd(lambda ctx, g: g * 30)
    after = new(x)
    new.register_autograd(lambda ctx, g: g * 300)
    assert tp.autograd.grad(before, x)[0].tolist() == [2]
    assert tp.autograd.grad(after, x)[0].tolist() == [30]
    assert tp.autograd.grad(new(x), x)[0].tolist() == [300]


# --- arguments -----------------------------------------------------------------------------------


@pytest.fixture
def typed(name: str) -> Any:
    @custom_op(name, mutates_args=())
    def op(
        x: Tensor, n: int = 1, f: float = 1.0, b: bool = False, s: str = "", xs: list[Tensor] = [],  # noqa: B006
        *, o: Tensor | None = None, d: tp.dtype = tp.float32, p: tuple[int, int] = (1, 1),
        ns: list[int] | None = None,
    ) -> Tensor:  # fmt: skip
        op.seen = (n, f, b, s, xs, o, d, p, ns)
        return x.clone()

    return op


def test_arguments_arrive_in_their_python_types(typed: Any) -> None:
    x = tp.ones(1)
    typed(x)
    assert typed.seen == (1, 1.0, False, "", [], None, tp.float32, (1, 1), None)
    typed(x, True, 2, np.bool_(True), "t", (x, x), o=x, d=np.float64, p=[2, 3], ns=(4, 5))
    n, f, b, s, xs, o, d, p, ns = typed.seen
    assert (n, f, b, s, d, p, ns) == (1, 2.0, True, "t", tp.float64, (2, 3), [4, 5])
    assert (type(n), type(f), type(b), type(ns)) == (int, float, bool, list)
    assert len(xs) == 2
    assert o.tolist() == [1]
    typed(x, tp.tensor(7), np.int8(3))
    assert typed.seen[:2] == (7, 3.0)


@pytest.mark.parametrize(
    ("args", "kwargs", "argument", "expected", "got"),
    [
        ((1.0,), {}, "x", "Tensor", "float"),
        (([np.ones(2)],), {}, "x", "Tensor", "list of ndarray"),
        ((None,), {}, "x", "Tensor", "NoneType"),
        ((), {"n": 2.5}, "n", "SymInt", "float"),
        ((), {"n": "1"}, "n", "SymInt", "str"),
        ((), {"n": None}, "n", "SymInt", "NoneType"),
        ((), {"f": "1"}, "f", "float", "str"),
        ((), {"f": 1j}, "f", "float", "complex"),
        ((), {"b": 1}, "b", "bool", "int"),
        ((), {"s": 1}, "s", "str", "int"),
        ((), {"xs": [1]}, "xs", r"Tensor\[\]", "list of int"),
        ((), {"o": 1}, "o", r"Tensor\?", "int"),
        ((), {"d": "float32"}, "d", "a dtype", "str"),
        ((), {"ns": 3}, "ns", r"SymInt\[\]\?", "int"),
        ((), {"ns": [1, 2.5]}, "ns", r"SymInt\[\]\?", "list of float, int"),
    ],
)
def test_arguments_of_another_type(
    typed: Any, args: Any, kwargs: Any, argument: str, expected: str, got: str
) -> None:
    args = args or (tp.ones(1),)
    text = rf"^\[{typed.name}\] argument '{argument}': expected {expected}.*, got {got}"
    with pytest.raises(TypeError, match=text):
        typed(*args, **kwargs)


def test_a_list_of_another_length(typed: Any) -> None:
    with pytest.raises(ValueError, match=r"argument 'p': expected 2 values \(SymInt\[2\]\), got 3"):
        typed(tp.ones(1), p=(1, 2, 3))


def test_missing_and_unknown_arguments_show_the_schema(typed: Any) -> None:
    for call, what in (
        (typed, "missing 1 required positional argument: 'x'"),
        (lambda: typed(tp.ones(1), nope=1), "unexpected keyword argument 'nope'"),
        (lambda: typed(tp.ones(1), x=1), "multiple values for argument 'x'"),
        (lambda: typed(*[tp.ones(1)] * 9), "positional arguments"),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        text = str(caught.value)
        assert text.startswith(f"[{typed.name}] ")
        assert what in text
        assert str(typed.schema) in text


def test_a_type_error_of_the_kernel_is_its_own(name: str) -> None:
    def kernel(x: Tensor) -> Tensor:
        raise TypeError("of the kernel")

    with pytest.raises(TypeError, match=r"^of the kernel$"):
        custom_op(name, kernel)(tp.ones(1))


def test_a_number_that_requires_grad_is_not_taken_silently(name: str) -> None:
    @custom_op(name)
    def scale(x: Tensor, k: Number) -> Tensor:
        return x * k

    assert scale(tp.ones(1), tp.tensor(2.0)).tolist() == [2]
    with pytest.raises(TypeError, match=r"argument 'k': expected a number.*requires grad"):
        scale(tp.ones(1), tp.tensor(2.0, requires_grad=True))


# --- kernels -------------------------------------------------------------------------------------


def test_the_kernel_sees_memory_without_history(name: str) -> None:
    @custom_op(name)
    def op(x: Tensor) -> Tensor:
        op.seen = (x.requires_grad, tp.is_grad_enabled())
        op.same = x.data_ptr()
        return tp.from_dlpack(x).clone()

    x = tp.ones(2, requires_grad=True)
    y = op(x)
    assert op.seen[1] is False
    assert op.same == x.data_ptr()
    assert y.requires_grad
    assert not op(tp.ones(2)).requires_grad
    with tp.no_grad():
        assert not op(x).requires_grad


def test_kernels_by_device(name: str) -> None:
    op = custom_op(name, lambda x: x * 2, device_types="cuda")
    with pytest.raises(NotImplementedError, match="no kernel for device cpu; registered: cuda"):
        op(tp.ones(1))

    @op.register_kernel("cpu")
    def first(x: Tensor) -> Tensor:
        return x * 3

    assert op(tp.ones(1)).tolist() == [3]
    tp.library.register_kernel(name, ["cpu"], lambda x: x * 4)
    assert op(tp.ones(1)).tolist() == [4]
    assert first(tp.ones(1)).tolist() == [3]
    for wrong, error in ((3, TypeError), ("tpu", ValueError)):
        with pytest.raises(error, match="device_types"):
            op.register_kernel(wrong)


@pytest.mark.parametrize(
    ("returns", "result", "text"),
    [
        (Tensor, None, "result 0: expected Tensor by the schema, got NoneType"),
        (Tensor, np.ones(1), r"got ndarray\. Write tensorplay\.from_numpy"),
        (Tensor, 1.0, "got float"),
        (Tensor, (tp.ones(1), tp.ones(1)), "expected Tensor by the schema, got tuple"),
        (None, tp.ones(1), "expected None by the schema, got Tensor"),
        (tuple[Tensor, Tensor], tp.ones(1), "expected 2 values by the schema, got Tensor"),
        (tuple[Tensor, Tensor], (tp.ones(1),) * 3, "expected 2 values by the schema, got 3"),
        (tuple[Tensor, Tensor], None, "expected 2 values by the schema, got NoneType"),
        (
            tuple[Tensor, int],
            (tp.ones(1), 2.5),
            "result 1: expected SymInt by the schema, got float",
        ),
        (list[Tensor], tp.ones(1), r"expected Tensor\[\] by the schema, got Tensor"),
        (list[Tensor], [tp.ones(1), 2], r"expected Tensor\[\] by the schema, got list"),
        (bool, 1, "expected bool by the schema, got int"),
        (Tensor, tp.ones(1, device="meta"), "expected a tensor on device cpu"),
    ],
)
def test_results_that_do_not_match_the_schema(
    name: str, returns: Any, result: Any, text: str
) -> None:
    def kernel(x: Tensor) -> Any:
        return result

    kernel.__annotations__["return"] = returns
    with pytest.raises(RuntimeError, match=rf"^\[{name}\].*{text}"):
        custom_op(name, kernel)(tp.ones(1))


@pytest.mark.parametrize(
    ("body", "returns", "pair"),
    [
        (lambda x: x, Tensor, "output 0 may not alias argument 'x'"),
        (lambda x: x[:1], Tensor, "output 0 may not alias argument 'x'"),
        (lambda x: x.t(), Tensor, "output 0 may not alias argument 'x'"),
        (lambda x: tp.from_numpy(x.numpy()), Tensor, "output 0 may not alias argument 'x'"),
        (lambda x: (y := x.clone(), y), tuple[Tensor, Tensor], "output 1 may not alias output 0"),
        (lambda x: [x.clone(), x[0]], list[Tensor], "output 0 may not alias argument 'x'"),
        (lambda x: (y := x.clone(), [y[1:]]), tuple[Tensor, list[Tensor]],
         "output 1 may not alias output 0"),
    ],
)  # fmt: skip
def test_b044_results_that_share_memory(name: str, body: Any, returns: Any, pair: str) -> None:
    def kernel(x: Tensor) -> Any:
        return body(x)

    kernel.__annotations__["return"] = returns
    with pytest.raises(RuntimeError, match=rf"{pair}.*result\.clone\(\).*mutates_args"):
        custom_op(name, kernel)(tp.ones(2, 2))


def test_neighbours_in_one_buffer_share_nothing(name: str) -> None:
    @custom_op(name)
    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        buffer = tp.arange(8.0)
        return buffer[::2], buffer[1::2]

    even, odd = halves(tp.ones(1))
    assert (even.tolist(), odd.tolist()) == ([0, 2, 4, 6], [1, 3, 5, 7])


def test_a_tensor_that_the_kernel_keeps_gets_no_history(name: str) -> None:
    kept = tp.ones(2)

    @custom_op(name)
    def op(x: Tensor) -> Tensor:
        return kept

    y = op(tp.ones(2, requires_grad=True))
    assert y.requires_grad
    assert not kept.requires_grad
    assert y.data_ptr() == kept.data_ptr()


def test_several_and_other_results(name: str) -> None:
    @custom_op(name)
    def stats(x: Tensor) -> tuple[Tensor, int, list[Tensor], float, bool]:
        return x * 2, np.int64(len(x)), (x * 3, x * 4), np.float32(0.5), np.bool_(True)

    double, count, rest, half, flag = stats(tp.ones(2))
    assert double.tolist() == [2, 2]
    assert [r.tolist() for r in rest] == [[3, 3], [4, 4]]
    assert (count, half, flag) == (2, 0.5, True)
    assert (type(count), type(half), type(flag)) == (int, float, bool)


# --- operators that write ------------------------------------------------------------------------


@pytest.mark.parametrize("mutates", ["out", ("out",), ["out"]])
def test_a_writing_operator(name: str, mutates: Any) -> None:
    @custom_op(name, mutates_args=mutates)
    def add_one(x: Tensor, out: Tensor) -> None:
        out.numpy()[...] = x.numpy() + 1

    assert str(add_one.schema) == f"{name}(Tensor x, Tensor(a1!) out) -> ()"
    assert add_one.mutates_args == ("out",)
    x, out = tp.ones(2), tp.zeros(2)
    assert add_one(x, out) is None
    assert out.tolist() == [2, 2]
    assert (x._version, out._version) == (0, 1)


def test_a_write_invalidates_what_was_saved(name: str) -> None:
    @custom_op(name, mutates_args=("x",))
    def clear(x: Tensor) -> None:
        x.numpy()[...] = 0

    w, x = x64(1.0), x64(3.0, requires_grad=False)
    y = w * x
    clear(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_write_counts_even_if_the_kernel_fails(name: str) -> None:
    @custom_op(name, mutates_args=("xs",))
    def op(xs: list[Tensor]) -> None:
        xs[0].numpy()[...] = 0
        raise ValueError("half way")

    xs = [tp.ones(1), tp.ones(1)]
    with pytest.raises(ValueError, match="half way"):
        op(xs)
    assert [x._version for x in xs] == [1, 1]


def test_autograd_on_a_writing_operator_is_refused(name: str) -> None:
    @custom_op(name, mutates_args=("x",))
    def double_(x: Tensor) -> None:
        x.numpy()[...] *= 2

    with pytest.raises(RuntimeError, match="non-functional operator"):
        double_.register_autograd(lambda ctx, g: g)
    leaf = tp.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        double_(leaf)
    assert leaf.tolist() == [1, 1]
    result = leaf * 1
    double_(result)
    with pytest.raises(RuntimeError, match=rf"\[{name}\].*non-functional operator"):
        result.sum().backward()
    with tp.no_grad():
        double_(leaf)
    assert leaf.tolist() == [2, 2]


def test_a_write_where_another_input_requires_grad(name: str) -> None:
    @custom_op(name, mutates_args=("out",))
    def copy_to(x: Tensor, out: Tensor, count: Tensor) -> None:
        out.numpy()[...] = x.numpy()

    x, out, count = tp.ones(2, requires_grad=True), tp.zeros(2), tp.tensor([1])
    copy_to(x, out, count)
    assert not count.requires_grad
    with pytest.raises(RuntimeError, match="non-functional operator"):
        out.sum().backward()


def test_memory_that_several_elements_share_is_not_written(name: str) -> None:
    op = custom_op(
        name, lambda x, y, rest: None, schema="(Tensor x, Tensor(a!) y, Tensor(a!)[] rest) -> ()"
    )
    own, shared = tp.ones(3), tp.ones(1).expand(3)
    compiled = tp.compile(op, backend="interpreter")
    for call in (op, compiled):
        for args, argument in (((own, shared, [own]), "y"), ((own, own, [own, shared]), "rest")):
            text = rf"argument '{argument}': expected .* single memory location"
            with pytest.raises(RuntimeError, match=rf"^\[{op.name}\] {text}"):
                call(*args)
    op(shared, own, [])


def test_an_operator_that_returns_what_it_wrote(name: str) -> None:
    schema = "(Tensor(a!) x, Tensor y) -> Tensor(a!)"
    op = custom_op(name, lambda x, y: x.add_(y), schema=schema)
    x = tp.ones(2)
    assert op(x, tp.ones(2)) is x
    assert x.tolist() == [2, 2]
    op.register_kernel("cpu", lambda x, y: x + y)
    with pytest.raises(RuntimeError, match=r"result 0: expected argument 'x' itself"):
        op(x, x)


# --- device meta ---------------------------------------------------------------------------------


def test_fake_kernel(name: str) -> None:
    @custom_op(name)
    def pool(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        raise AssertionError("the kernel runs on data only")

    x = tp.ones(4, 3, device="meta", dtype=tp.float64)
    with pytest.raises(NotImplementedError, match=rf"\[{name}\] no fake kernel.*register_fake"):
        pool(x, 2)

    @pool.register_fake
    def _(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return x.new_empty(x.shape[0] // k, 3), tp.zeros(k, dtype=tp.int64)

    values, indices = pool(x, 2)
    assert (values.is_meta, values.shape, values.dtype) == (True, (2, 3), tp.float64)
    assert (indices.is_meta, indices.shape) == (True, (2,))
    with pytest.raises(ValueError, match="one device, got meta and cpu"):
        custom_op(f"{name}b", lambda x, y: x)(x, tp.ones(4, 3))


def test_fake_kernels_are_checked_too(name: str) -> None:
    op = custom_op(name, lambda x: x.clone())
    x = tp.ones(2, device="meta")
    for fake, text in (
        (lambda x: x, "may not alias"),
        (lambda x: None, "expected Tensor"),
        (lambda x: tp.ones(2, device="cpu"), "expected a tensor on device meta"),
    ):
        tp.library.register_fake(name, fake)
        with pytest.raises(RuntimeError, match=text):
            op(x)
    op.register_fake(lambda x: tp.tensor(x.item()))
    with pytest.raises(NotImplementedError, match="item"):
        op(x)


def test_meta_without_tensors_and_with_writes(name: str) -> None:
    @custom_op(name)
    def make(n: int) -> Tensor:
        return tp.zeros(n)

    make.register_fake(tp.empty)
    assert make(3).tolist() == [0, 0, 0]
    with tp.device("meta"):
        assert make(3).is_meta
    write = custom_op(f"{name}w", lambda x: None, schema="(Tensor(a!) x) -> ()")
    x = tp.ones(2, device="meta")
    assert write(x) is None
    assert x._version == 1


def test_gradients_flow_on_meta(name: str) -> None:
    cube = make_cube(name)
    cube.register_fake(lambda x: x.new_empty(x.shape))
    x = tp.ones(3, device="meta", requires_grad=True)
    (gradient,) = tp.autograd.grad(cube(x), x, tp.ones(3, device="meta"))
    assert gradient.is_meta
    assert gradient.shape == (3,)


# --- threads -------------------------------------------------------------------------------------


def test_calls_and_registrations_from_several_threads(name: str) -> None:
    cube = make_cube(name)
    failures: list[BaseException] = []

    def gradient(scale: int) -> tuple[Any, Any]:
        def setup(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.scale = scale
            ctx.save_for_backward(*inputs)

        def backward(ctx: Any, g: Tensor) -> Tensor:
            assert ctx.scale == scale  # formula and set-up of one registration
            return g * scale

        return backward, setup

    def call(seed: int) -> None:
        try:
            for number in range(50):
                x = x64(float(seed + number))
                y = cube(x)
                assert y.item() == (seed + number) ** 3
                y.backward()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for scale in range(100):
        backward, setup = gradient(scale)
        cube.register_autograd(backward, setup_context=setup)
    for thread in threads:
        thread.join()
    assert failures == []


def test_arguments_may_have_any_name(name: str) -> None:
    schema = "(Tensor operator, Tensor result, int short=1, int defaults=2) -> Tensor"

    @custom_op(name, mutates_args=(), schema=schema)
    def op(operator: Tensor, result: Tensor, short: int = 1, defaults: int = 2) -> Tensor:
        return operator + result * short * defaults

    assert op(x64(1.0), x64(2.0)).tolist() == [5.0]
    assert op(x64(1.0), result=x64(2.0), short=3).tolist() == [13.0]


def test_a_custom_operator_answers_what_a_built_in_one_answers(name: str) -> None:
    @custom_op(name, mutates_args=())
    def split(x: Tensor, k: int = 2) -> tuple[Tensor, Tensor]:
        return x[:k].clone(), x[k:].clone()

    @split.register_fake
    def _(x: Tensor, k: int = 2) -> tuple[Tensor, Tensor]:
        return x.new_empty(k), x.new_empty(x.shape[0] - k)

    first, second = split.operator.impl(np.arange(5.0), 3)
    assert first.tolist() == [0, 1, 2]
    assert second.tolist() == [3, 4]
    built_in = tp.exp.operator
    (one,) = [built_in.rule(Spec((5,), tp.float32))]
    specs = split.operator.rule(Spec((5,), tp.float32), 3)
    assert [type(s) for s in specs] == [type(one)] * 2
    assert [(s.shape, s.dtype) for s in specs] == [((3,), tp.float32), ((2,), tp.float32)]
