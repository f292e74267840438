"""Types and modes that answer calls: who is asked, in which order, and what comes out."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

import tensorplay as tp
from tensorplay import overrides
from tensorplay.library import custom_op
from tensorplay.overrides import TensorPlayFunctionMode, get_testing_overrides, resolve_name

OVERRIDES = get_testing_overrides()


class Diagonal:
    """A type of its own that answers everything, with what it was asked."""

    def __init__(self, n: int = 2) -> None:
        self.n = n

    def __tensorplay_function__(self, func, types, args, kwargs=None):
        return func, types, args, kwargs


class Silent:
    def __tensorplay_function__(self, func, types, args, kwargs=None):
        return NotImplemented


class Logged(tp.Tensor):
    """A class of tensors that writes down what it is asked."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __tensorplay_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(resolve_name(func))
        return super().__tensorplay_function__(func, types, args, kwargs)


class Plain(tp.Tensor):
    """A class of tensors without a method of its own."""


class Untold(tp.Tensor):
    __tensorplay_function__ = None


class Names(TensorPlayFunctionMode):
    def __init__(self, sink, label="", answer=None):
        self.sink, self.label, self.answer = sink, label, answer

    def __tensorplay_function__(self, func, types, args=(), kwargs=None):
        self.sink.append(self.label + resolve_name(func))
        return func(*args, **(kwargs or {})) if self.answer is None else self.answer


@pytest.fixture(autouse=True)
def calls() -> Iterator[list[str]]:
    Logged.calls.clear()
    yield Logged.calls
    Logged.calls.clear()


def is_factory(function) -> bool:
    name = resolve_name(function).rpartition(".")[2]
    return name in FACTORIES


FACTORIES = {
    *("arange", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "normal", "ones"),
    *("rand", "randint", "randn", "randperm", "scalar_tensor", "tril_indices", "triu_indices"),
    *("zeros", "fftfreq", "rfftfreq", "frombuffer", "tensor", "as_tensor", "asarray"),
}


# --- every function -------------------------------------------------------------------------------


def arguments(function, value):
    """Return arguments for the parameters without default: `value` for tensors, else a number."""
    signature = inspect.signature(OVERRIDES[function])
    operator = getattr(function, "operator", None)
    lists = {a.name for a in operator.schema.arguments if a.type.is_list and a.type.is_tensor} \
        if operator else set()  # fmt: skip
    found, first = [], True
    for name, p in signature.parameters.items():
        if p.kind is p.KEYWORD_ONLY:
            continue
        if p.kind is p.VAR_POSITIONAL and first:
            found.append(value)
        if p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        found.append([value] if name in lists else value if first else 1)
        first = False
    return found


@pytest.mark.parametrize("function", OVERRIDES, ids=resolve_name)
def test_every_function_asks_the_type_of_its_argument(function, calls) -> None:
    asked = []

    class Own(tp.Tensor):
        @classmethod
        def __tensorplay_function__(cls, func, types, args=(), kwargs=None):
            asked.append((func, types))
            return -1

    value = Own([1.0])
    asked.clear()
    if overrides.is_tensor_method_or_property(function):
        # As they are found on the class: `x.add`, `x + y`, `x.shape`, `x.grad = y`.
        name, _, accessor = resolve_name(function).removeprefix("tensorplay.Tensor.").partition(".")
        if accessor == "__get__":
            answer = getattr(value, name)
        elif accessor:
            setattr(value, name, None)
            answer = -1
        else:
            answer = getattr(Own, name)(*arguments(function, value))
    elif is_factory(function):
        with Names(asked, answer=-1):
            answer = function(*arguments(function, 1))
        assert (answer, asked) == (-1, [resolve_name(function)])
        return
    else:
        answer = function(*arguments(function, value))
    expected = None if resolve_name(function).endswith("__setitem__") else -1
    assert answer == expected
    assert asked[0][1] == (Own,)
    if "__" not in resolve_name(function):  # operators name their method: `x + y` is Tensor.add
        assert asked == [(function, (Own,))]


def test_every_function_asks_where_no_class_of_tensors_was_ever_defined() -> None:
    # Nothing that this process did before may decide who is asked.
    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("overridden_alone.py")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["silent"] == []
    assert result["calls"] > 2000


@pytest.mark.parametrize("function", OVERRIDES, ids=resolve_name)
def test_every_name_finds_its_function(function) -> None:
    _, *path = resolve_name(function).split(".")
    assert functools.reduce(getattr, path, tp) == function


@pytest.mark.parametrize("function", OVERRIDES, ids=resolve_name)
def test_dummies_have_the_signature_and_return_a_number(function) -> None:
    dummy = OVERRIDES[function]
    named = {n: 1 for n, p in inspect.signature(dummy).parameters.items()
             if p.kind is p.KEYWORD_ONLY and p.default is p.empty}  # fmt: skip
    assert dummy(*arguments(function, 1), **named) == -1
    with pytest.raises(TypeError):
        dummy(no_such_argument=1, another=2)


def test_every_public_function_is_overridable_or_ignored() -> None:
    ignored = {resolve_name(f) for f in overrides.get_ignored_functions()}
    listed = {f for group in overrides.get_overridable_functions().values() for f in group}
    assert listed.isdisjoint(overrides.get_ignored_functions())
    assert {tp.add, tp.einsum, tp.zeros, tp.linalg.norm, tp.autograd.grad} <= listed
    assert {tp.Tensor.add, tp.Tensor.__getitem__, tp.Tensor.shape.__get__} <= listed
    # What is ignored makes no tensor from a tensor: all are named here.
    assert {n.removeprefix("tensorplay.") for n in ignored} == {
        *(
            "can_cast",
            "compile",
            "from_dlpack",
            "from_numpy",
            "get_default_device",
            "get_default_dtype",
        ),
        *("get_rng_state", "initial_seed", "is_grad_enabled", "is_inference_mode_enabled", "load"),
        *("manual_seed", "result_type", "save", "seed", "set_default_device"),
        *("set_default_dtype", "set_printoptions", "set_rng_state", "show_config", "to_dlpack"),
        *("autograd.gradcheck", "autograd.gradcheck_report", "autograd.gradgradcheck"),
        *("autograd.is_anomaly_check_nan_enabled", "autograd.is_anomaly_enabled"),
        *("autograd.jvp", "autograd.once_differentiable"),  # the first takes a function
    }


# --- other types ----------------------------------------------------------------------------------

T = tp.ones(2)
D = Diagonal()


@pytest.mark.parametrize(
    ("call", "function", "args", "kwargs"),
    [
        (lambda: tp.add(T, D), tp.add, (T, D), {}),
        (lambda: tp.add(D, T, alpha=2), tp.add, (D, T), {"alpha": 2}),
        (lambda: T.add(D), tp.Tensor.add, (T, D), {}),
        (lambda: T + D, tp.Tensor.add, (T, D), {}),
        (lambda: D + T, tp.Tensor.add, (D, T), {}),
        (lambda: D - T, tp.Tensor.sub, (D, T), {}),
        (lambda: T / D, tp.Tensor.div, (T, D), {}),
        (lambda: D**T, tp.Tensor.pow, (D, T), {}),
        (lambda: T @ D, tp.Tensor.matmul, (T, D), {}),
        (lambda: D @ T, tp.Tensor.matmul, (D, T), {}),
        (lambda: T < D, tp.Tensor.lt, (T, D), {}),
        (lambda: T == D, tp.Tensor.eq, (T, D), {}),
        (lambda: tp.sum(D, dim=0), tp.sum, (D,), {"dim": 0}),
        (lambda: tp.cat([T, D]), tp.cat, ([T, D],), {}),
        (lambda: tp.stack((T, D), dim=1), tp.stack, ((T, D),), {"dim": 1}),
        (lambda: tp.einsum("i,i", T, D), tp.einsum, ("i,i", T, D), {}),
        (lambda: tp.where(D, T, T), tp.where, (D,), {"input": T, "other": T}),
        (lambda: tp.zeros_like(D), tp.zeros_like, (D,), {}),
        (lambda: tp.linalg.inv(D), tp.linalg.inv, (D,), {}),
        (lambda: tp.linalg.norm(D), tp.linalg.norm, (D,), {}),
        (lambda: tp.autograd.grad(D, T), tp.autograd.grad, (D, T), {}),
    ],
)
def test_functions_methods_and_operators_ask_other_types(call, function, args, kwargs) -> None:
    got, types, given, named = call()
    assert got == function
    assert types == (Diagonal,)

    def same(a, b):
        if isinstance(b, list | tuple):
            return len(a) == len(b) and all(map(same, a, b))
        return a is b or (not isinstance(b, tp.Tensor | Diagonal) and a == b)

    assert same(given, args)
    assert named.keys() == kwargs.keys()
    assert all(same(named[k], kwargs[k]) for k in kwargs)


def test_in_place_operator_asks() -> None:
    x = tp.ones(2)
    x += D
    assert x[0] == tp.Tensor.add_


def test_writing_by_index_asks() -> None:
    seen = []

    class Value:
        def __tensorplay_function__(self, func, types, args, kwargs=None):
            seen.append((func, args[1]))

    x = tp.zeros(3)
    x[1] = Value()
    assert seen == [(tp.Tensor.__setitem__, 1)]
    assert x.tolist() == [0, 0, 0]


def test_subclasses_are_asked_before_bases_and_left_before_right() -> None:
    order = []

    def declining(name, *bases):
        def method(self, func, types, args, kwargs=None):
            order.append(name)
            return NotImplemented

        return type(name, bases, {"__tensorplay_function__": method})

    A, Other = declining("A"), declining("Other")
    B = declining("B", A)
    with pytest.raises(TypeError, match=r"no implementation found for 'tensorplay\.cat' on types"):
        tp.cat([A(), Other(), B(), A(), tp.ones(1)])
    assert order == ["B", "A", "Other"]


@pytest.mark.parametrize(
    "call", [lambda: tp.add(T, Silent()), lambda: T + Silent(), lambda: Silent() + T,
             lambda: T.add(Silent()), lambda: Silent() == T, lambda: tp.cat([Silent()])],
)  # fmt: skip
def test_nobody_answers(call) -> None:
    with pytest.raises(
        TypeError, match=r"no implementation found for 'tensorplay\.(Tensor\.)?\w+'"
    ):
        call()


def test_declining_type_with_a_reflected_operator_is_asked_by_python() -> None:
    class Reflected(Silent):
        def __radd__(self, other):
            return "reflected"

    assert T + Reflected() == "reflected"


def test_types_without_the_protocol_are_refused_as_ever() -> None:
    with pytest.raises(TypeError, match="argument 'other'"):
        tp.add(T, object())
    with pytest.raises(TypeError, match="unsupported operand"):
        T + object()


def test_an_error_of_an_answer_is_raised_without_a_chain() -> None:
    class Broken:
        def __tensorplay_function__(self, func, types, args, kwargs=None):
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        tp.add(T, Broken())
    assert caught.value.__context__ is None


# --- classes of tensors ---------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Plain, Logged])
def test_results_are_of_the_class(cls) -> None:
    s, t = cls([1.0, 2.0]), tp.tensor([3.0, 4.0])
    results = [
        *(
            s + t,
            t + s,
            2 - s,
            s.sum(),
            tp.add(t, s),
            tp.cat([t, s]),
            s[0],
            t[(s - 1).long()],
            s.detach(),
        ),
        *(s.reshape(2, 1), tp.zeros_like(s), s.new_zeros(3), s.split(1)[1], s.max(0).values, s.T),
        *(tp.stack([s, t]).unbind()[0], s.clone(), s.float(), -s, s == t),
    ]
    assert [type(r) for r in results] == [cls] * len(results)
    assert (s + t).tolist() == [4, 6]
    assert isinstance(s.split(1), tuple)


def test_types_that_do_not_know_each_other_refuse() -> None:
    with pytest.raises(TypeError, match="no implementation found"):
        Plain([1.0]) + Logged([1.0])


def test_a_subclass_of_a_subclass_wins() -> None:
    class Closer(Plain):
        pass

    assert type(Plain([1.0]) + Closer([1.0])) is Closer
    assert type(Closer([1.0]) * Plain([1.0])) is Closer


def test_attributes_and_methods_by_hand_ask(calls) -> None:
    s = Logged([1.0, 2.0])
    calls.clear()
    assert s.shape == (2,)
    assert s.ndim == 1
    assert s.tolist() == [1, 2]
    assert len(s) == 2
    s.requires_grad = True
    assert calls == [
        *("tensorplay.Tensor.shape.__get__", "tensorplay.Tensor.ndim.__get__"),
        *("tensorplay.Tensor.tolist", "tensorplay.Tensor.__len__"),
        "tensorplay.Tensor.requires_grad.__set__",
    ]


def test_members_that_a_class_defines_are_left_to_it() -> None:
    class Mine(Logged):
        @property
        def shape(self):
            return "mine"

    assert Mine([1.0]).shape == "mine"


def test_gradient_flows_through_a_class(calls) -> None:
    s = Logged([1.0, 2.0], requires_grad=True)
    calls.clear()
    loss = (s * s * tp.tensor([3.0, 4.0])).sum()
    assert type(loss) is Logged
    loss.backward()
    assert calls == ["tensorplay.Tensor.mul"] * 2 + [
        "tensorplay.Tensor.sum",
        "tensorplay.Tensor.backward",
    ]
    assert s.grad.tolist() == [6, 16]
    (g,) = tp.autograd.grad((s**3).sum(), s, create_graph=True)
    assert tp.autograd.grad(g.sum(), s)[0].tolist() == [6, 12]


def test_views_and_writes_of_a_class() -> None:
    base = Plain([1.0, 2.0, 3.0])
    part = base[1:]
    part.mul_(10)
    base += 1
    assert type(base) is Plain
    assert base.tolist() == [2, 21, 31]
    assert part.tolist() == [21, 31]
    assert part._version == base._version == 2
    assert base.add_(1) is base


def test_a_class_in_custom_op_and_vmap_and_compile_order(calls) -> None:
    @custom_op("overridestest::twice", mutates_args=())
    def twice(x: tp.Tensor) -> tp.Tensor:
        return x.detach() * 2

    s = Logged([1.0, 2.0])
    calls.clear()
    out = twice(s)
    assert type(out) is Logged
    assert calls[0] == "tensorplay.ops.overridestest.twice"
    mapped = tp.func.vmap(lambda x: x * 2)(Plain([[1.0], [2.0]]))
    assert mapped.tolist() == [[2], [4]]


def test_none_means_a_plain_tensor() -> None:
    u = Untold([1.0])
    assert type(u + 1) is tp.Tensor
    assert not overrides.has_tensorplay_function((u,))


def test_copies_keep_the_class() -> None:
    import copy
    import pickle

    s = Plain([1.0, 2.0])
    assert type(copy.deepcopy(s)) is Plain
    assert type(pickle.loads(pickle.dumps(s))) is Plain
    assert repr(s)


# --- modes ----------------------------------------------------------------------------------------


def test_mode_sees_functions_methods_operators_and_factories() -> None:
    seen: list[str] = []
    with Names(seen):
        x = tp.ones(2)
        y = x + 1
        y = y.add(x)
        y[0]
        y[0] = 3
        tp.sum(y)
        tp.tensor([1.0])
        tp.rand(1)
        y.new_zeros(1)
        tp.linalg.norm(y)
        y = y @ x
        y = -y
    assert [n.removeprefix("tensorplay.") for n in seen] == [
        *("ones", "Tensor.add", "Tensor.add", "Tensor.__getitem__", "Tensor.__setitem__", "sum"),
        *("tensor", "rand", "Tensor.new_zeros", "linalg.norm", "Tensor.matmul", "Tensor.neg"),
    ]
    tp.ones(2) + 1
    assert len(seen) == 12


def test_mode_sees_writes_and_conversions() -> None:
    seen: list[str] = []
    x = tp.ones(2)
    with Names(seen):
        x.add_(1)
        x *= 2
        x.exp_().copy_(x).fill_(3).zero_()
        x.double().to(tp.int8)
        x.uniform_()
        x.unsqueeze_(0)
        x.where(x > 0, x)
    names = ["add_", "mul_", "exp_", "copy_", "fill_", "zero_", "double", "to", "uniform_"]
    assert seen == [f"tensorplay.Tensor.{n}" for n in (*names, "unsqueeze_", "gt", "where")]


def test_the_innermost_mode_is_asked_first() -> None:
    seen: list[str] = []
    with Names(seen, "outer "), Names(seen, "inner "):
        tp.exp(T)
    assert seen == ["inner tensorplay.exp", "outer tensorplay.exp"]


def test_a_mode_that_declines_leaves_the_call_to_the_next() -> None:
    seen: list[str] = []
    with Names(seen, "outer ", answer=5), Names(seen, "inner ", answer=NotImplemented):
        assert tp.exp(T) == 5
    assert seen == ["inner tensorplay.exp", "outer tensorplay.exp"]
    with Names([], answer=NotImplemented):
        assert type(Plain([1.0]) + 1) is Plain  # the type answers
        with pytest.raises(TypeError, match=r"no implementation found for 'tensorplay.exp'.*Names"):
            tp.exp(T)


def test_modes_come_before_types(calls) -> None:
    seen: list[str] = []
    s = Logged([1.0])
    calls.clear()
    with Names(seen):
        out = s + 1
    assert type(out) is Logged
    assert seen == calls == ["tensorplay.Tensor.add"]


def test_a_mode_answers_with_anything() -> None:
    class Doubling(TensorPlayFunctionMode):
        def __tensorplay_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is tp.ones else result

    with Doubling():
        assert tp.ones(2).tolist() == [2, 2]
        assert tp.zeros(1).tolist() == [0]


def test_a_mode_with_autograd_sees_the_calls_of_the_user_only() -> None:
    seen: list[str] = []
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    with Names(seen):
        (x * x).sum().backward()
    assert x.grad.tolist() == [2, 4]
    assert seen == [f"tensorplay.Tensor.{n}" for n in ("mul", "sum", "backward")]
    seen.clear()
    with Names(seen):
        mapped = tp.func.vmap(lambda v: v.exp() * 2)(T)
    assert mapped.shape == (2,)
    assert "tensorplay.Tensor.exp" in seen


def test_a_mode_belongs_to_its_thread_and_ends_with_an_error() -> None:
    seen: list[str] = []
    with Names(seen):
        thread = threading.Thread(target=lambda: tp.ones(2) + 1)
        thread.start()
        thread.join()
    assert seen == []
    with pytest.raises(KeyError), Names(seen):
        raise KeyError
    tp.ones(1)
    assert seen == []


def test_modes_are_left_from_the_inside() -> None:
    seen: list[str] = []
    outer, inner = Names(seen, "outer "), Names(seen, "inner ")
    with outer:
        with inner:
            with pytest.raises(RuntimeError, match=r"\[Names\] .* not the innermost"):
                outer.__exit__(None, None, None)
            tp.ones(1)
            assert seen[0] == "inner tensorplay.ones"
        seen.clear()
        tp.ones(1)
        assert seen[0] == "outer tensorplay.ones"
    with pytest.raises(RuntimeError, match="which is none"):
        outer.__exit__(None, None, None)
    seen.clear()
    tp.ones(1)
    assert seen == []


def test_namespaces_are_modules_that_exist() -> None:
    for name in overrides.NAMESPACES:
        assert importlib.import_module(f"tensorplay{name}")


def test_the_short_way_is_taken_again_after_a_mode() -> None:
    from tensorplay._detours import detours

    with Names([]), Names([]):
        assert detours
    assert not detours


def test_a_mode_without_a_method_says_so() -> None:
    class Empty(TensorPlayFunctionMode):
        pass

    with Empty(), pytest.raises(NotImplementedError, match=r"\[Empty\].*__tensorplay_function__"):
        tp.ones(1)


def test_reentrant_dispatch_asks_the_mode_again() -> None:
    class Halving(TensorPlayFunctionMode):
        depth = 0

        def __tensorplay_function__(self, func, types, args=(), kwargs=None):
            if func is not tp.exp:
                return func(*args, **(kwargs or {}))
            self.depth += 1
            if self.depth > 3:
                return self.depth
            with overrides.enable_reentrant_dispatch():
                return tp.exp(*args)

    with Halving():
        assert tp.exp(T) == 4


# --- functions of users ---------------------------------------------------------------------------


def scaled(a, b):
    if overrides.has_tensorplay_function((a, b)):
        return overrides.handle_tensorplay_function(scaled, (a, b), a, b)
    return a * b + 1


def test_functions_of_users_take_part(calls) -> None:
    func, types, args, kwargs = scaled(T, D)
    assert (func, types, args[1], kwargs) == (scaled, (Diagonal,), D, {})
    assert scaled(T, T).tolist() == [2, 2]
    out = scaled(Logged([1.0]), T)
    assert type(out) is Logged
    assert calls == [f"{__name__}.scaled"]


def test_wrap_makes_the_same_of_a_function() -> None:
    @overrides.wrap_tensorplay_function(lambda a, b=None: (a, b))
    def product(a, b=None):
        """Multiply."""
        return a * b

    assert product(D, b=T)[0] is product
    assert product(T, b=T).tolist() == [1, 1]
    assert product.__doc__ == "Multiply."


def test_handle_without_anybody_to_ask() -> None:
    with pytest.raises(TypeError, match=r"no implementation found for 'tensorplay\.add' on types"):
        overrides.handle_tensorplay_function(tp.add, (T, 1), T, 1)


def test_redispatch_skips_one_call_and_sees_the_inner_ones() -> None:
    seen: list[str] = []

    class Deep(tp.Tensor):
        @classmethod
        def __tensorplay_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return overrides.redispatch_function(func, types, args, kwargs)

    out = scaled(Deep([3.0]), Deep([4.0]))
    assert seen == ["scaled", "mul"]
    assert out.tolist() == [13]
    assert type(out) is tp.Tensor


def test_questions_about_values_and_functions() -> None:
    assert [overrides.is_tensor_like(x) for x in (T, Plain([1.0]), D, Untold([1.0]), 6, None)] == [
        *(True, True, True, True, False, False)
    ]
    assert [overrides.has_tensorplay_function((x,)) for x in (T, Plain([1.0]), D, 6)] == [
        *(False, True, True, False)
    ]
    assert overrides.is_tensor_method_or_property(tp.Tensor.add)
    assert overrides.is_tensor_method_or_property(tp.Tensor.shape.__get__)
    assert not overrides.is_tensor_method_or_property(tp.add)
    assert [
        resolve_name(f) for f in (tp.add, tp.Tensor.add, tp.linalg.inv, tp.Tensor.T.__get__)
    ] == [
        *("tensorplay.add", "tensorplay.Tensor.add", "tensorplay.linalg.inv"),
        "tensorplay.Tensor.T.__get__",
    ]
    assert resolve_name(5) is None
