"""`Library`, `define`, `impl`, overloads, kernels by key and the marks of operators."""

from __future__ import annotations

import contextlib
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.library import EffectType, Library, Tag, custom_op
from tensorplay.library.registry import all_or_nothing
from tests.library.cubes import x64


@pytest.fixture
def ns(name: str) -> str:
    """Return a namespace that no other test has."""
    return name.replace("::", "_")


# --- declared first, kernels later ----------------------------------------------------------------


def test_a_declared_operator_gets_kernels_later(name: str) -> None:
    library.define(name, "(Tensor x, float k=2.0) -> Tensor")
    op = library.get_op(name)
    assert str(op.schema) == f"{name}(Tensor x, float k=2.0) -> Tensor"
    with pytest.raises(NotImplementedError, match="no kernel for device cpu"):
        op(tp.ones(1))

    @library.impl(name, "cpu")
    def kernel(x: Tensor, k: float) -> Tensor:
        return x * k

    assert op(tp.ones(2)).tolist() == [2, 2]
    library.impl(name, ("default", "meta"), lambda x, k: x * (k + 1))
    assert op(tp.ones(2)).tolist() == [2, 2]  # its own device goes first
    assert op(tp.ones(2, device="meta")).shape == (2,)
    assert library.get_kernel(op, "cpu") is kernel


def test_one_pasted_text_declares(name: str) -> None:
    library.define(f"{name}(Tensor x) -> (Tensor, int)")
    library.impl(name, "default", lambda x: (x + 1, x.numel()))
    value, count = library.get_op(name)(tp.ones(3))
    assert value.tolist() == [2, 2, 2]
    assert count == 3


def test_declaring_again_replaces_schema_and_kernels(name: str) -> None:
    library.define(name, "(Tensor x) -> Tensor")
    library.impl(name, "default", lambda x: x + 1)
    library.define(name, "(Tensor x, int n) -> Tensor")
    with pytest.raises(NotImplementedError, match="no kernel"):
        library.get_op(name)(tp.ones(1), 2)
    assert "SymInt n" in str(library.get_op(name).schema) or "int n" in str(
        library.get_op(name).schema
    )


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (("plain", "(Tensor x) -> Tensor"), ValueError, "qualified op name"),
        (("a::b::c(Tensor x) -> Tensor",), ValueError, "qualified op name"),
        (("tests_define::x Tensor x -> Tensor",), ValueError, r"expected 'name\(arguments\)"),
        (("tests_define::x", "(Tensr x) -> Tensor"), ValueError, "unknown type specifier"),
        (("tests_define::x", "(Tensor(a) x) -> Tensor(a)"), ValueError, "returns a view"),
        (("tests_define::x", "tests_other::x(Tensor x) -> Tensor"), ValueError, "the schema of"),
        ((3,), TypeError, "expected str"),
        (
            ("tests_define::x", "(Tensor x=None) -> Tensor"),
            ValueError,
            r"default of 'x' is None, which is no value of Tensor. Write Tensor\? x=None",
        ),
        (("tests_define::x", "(int n=None) -> int"), ValueError, r"Write int\? n=None"),
        (("tests_define::x", "(int n='3') -> int"), ValueError, "no value of int"),
        (("tests_define::x", f"(int n={2**63}) -> int"), ValueError, "integer of 64 bits"),
        (("tests_define::x", f"(int[] n=[1, {-(2**63) - 1}]) -> int"), ValueError, "64 bits"),
        (("tests_define::x", "(Tensor x, Tensor x) -> Tensor"), ValueError, "second argument"),
        (("tests_define::x", "(int a=1, int b) -> Tensor"), ValueError, "without default"),
        (("tests_define::x", "(Tensor x, *) -> Tensor"), ValueError, "after"),
        (("tests_define::_members", "(Tensor x) -> Tensor"), ValueError, "attribute of every"),
        (("tests_define::__class__", "(Tensor x) -> Tensor"), ValueError, "attribute of every"),
        (("tests_define::class", "(Tensor x) -> Tensor"), ValueError, "qualified op name"),
    ],
)
def test_bad_declarations(args: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        library.define(*args)
    assert not library.has_op("tests_define::x")


@pytest.mark.parametrize(
    ("types", "error", "text"),
    [
        ("tpu", ValueError, "expected one of cpu, cuda, meta, default"),
        ("AutogradCPU", ValueError, "register_autograd"),
        (3, TypeError, "argument 'types'"),
        (("cpu", 3), TypeError, "argument 'types'"),
        ((), ValueError, "at least one device type"),
        ([], ValueError, "at least one device type"),
    ],
)
def test_bad_types(name: str, types: Any, error: type[Exception], text: str) -> None:
    library.define(name, "(Tensor x) -> Tensor")
    with pytest.raises(error, match=text):
        library.impl(name, types, lambda x: x)


def test_unknown_operators_are_named_with_the_nearest(name: str) -> None:
    library.define(name, "(Tensor x) -> Tensor")
    wrong = f"{name}x"
    for call in (
        lambda: library.impl(wrong, "cpu", lambda x: x),
        lambda: library.register_vmap(wrong, lambda *a: a),
        lambda: library.register_effectful(wrong, None),
        lambda: library.get_kernel(wrong, "cpu"),
        lambda: library.remove(wrong),
    ):
        with pytest.raises(RuntimeError, match=rf"does not exist.*{name}"):
            call()


# --- libraries ------------------------------------------------------------------------------------


def test_a_library_declares_and_implements(ns: str) -> None:
    lib = Library(ns, "DEF")
    assert lib.define("scale(Tensor x, *, float k=3.0) -> Tensor") == f"{ns}::scale"
    assert lib.define(f"{ns}::shift(Tensor x) -> Tensor", tags=Tag.pointwise) == f"{ns}::shift"
    lib.impl("scale", lambda x, k: x * k)

    @lib.impl(f"{ns}::shift", device_type="cpu")
    def shift(x: Tensor) -> Tensor:
        return x + 1

    space = getattr(tp.ops, ns)
    assert space.scale(tp.ones(1)).tolist() == [3]
    assert space.shift(tp.ones(1)).tolist() == [2]
    assert space.shift.tags == (Tag.pointwise,)
    lib.impl("shift", lambda x: x + 5, "meta")  # the key may be the third positional argument
    assert library.get_kernel(f"{ns}::shift", "Meta") is not None

    fragment = Library(ns, "FRAGMENT")
    fragment.define("more(Tensor x) -> Tensor")
    Library(ns, "IMPL").impl("more", lambda x: x * 7)
    assert space.more(tp.ones(1)).tolist() == [7]
    fragment.close()
    with pytest.raises(AttributeError, match="no operator 'more'"):
        _ = space.more
    assert space.scale(tp.ones(1)).tolist() == [3]
    lib.close()
    assert not library.has_op(f"{ns}::scale")


def test_a_closed_library_declares_nothing(ns: str) -> None:
    lib = Library(ns, "DEF")
    lib.define("f(Tensor x) -> Tensor")
    lib.close()
    assert not library.has_op(f"{ns}::f")
    for call in (
        lambda: lib.define("g(Tensor x) -> Tensor"),
        lambda: lib.impl("f", lambda x: x),
    ):
        with pytest.raises(RuntimeError, match=f"was closed. Write Library.'{ns}', 'FRAGMENT'"):
            call()
    assert not library.has_op(f"{ns}::g")
    lib.close()  # again is no error
    Library(ns, "DEF").close()


def test_names_beyond_ascii_and_schemas_of_any_length(ns: str) -> None:
    lib = Library(ns, "DEF")
    assert lib.define("größe(Tensor größe) -> Tensor") == f"{ns}::größe"
    lib.impl("größe", lambda x: x + 1)
    assert getattr(tp.ops, ns).größe(größe=tp.ones(1)).tolist() == [2]
    many = ", ".join(f"Tensor x{i}" for i in range(300))
    lib.define(f"many({many}) -> Tensor")
    lib.impl("many", lambda *xs: xs[0] + xs[-1])
    assert getattr(tp.ops, ns).many(*[tp.ones(1)] * 300).tolist() == [2]
    lib.close()


def test_a_second_definition_of_a_namespace(ns: str) -> None:
    first = Library(ns, "DEF")
    with pytest.raises(RuntimeError, match=r"only a single DEF Library.*FRAGMENT"):
        Library(ns, "DEF")
    first.close()
    Library(ns, "DEF").close()


def test_a_module_that_is_loaded_again_starts_its_namespace_anew(ns: str) -> None:
    text = f"lib = library.Library('{ns}', 'DEF')\nlib.define('f(Tensor x) -> Tensor')\n"
    for body in ("x + 1", "x + 2"):
        scope = {"__name__": "tests_reloaded", "library": library}
        exec(compile(text, "reloaded.py", "exec"), scope)
        exec(f"lib.impl('f', lambda x: {body})", scope)
    assert getattr(tp.ops, ns).f(tp.zeros(1)).tolist() == [2]
    library.remove(f"{ns}::f")


def test_a_function_that_is_called_twice_defines_twice(ns: str) -> None:
    def make() -> Library:
        return Library(ns, "DEF")

    first = make()
    first.define("f(Tensor x) -> Tensor")
    with pytest.raises(RuntimeError, match="only a single DEF Library"):
        make()
    assert library.has_op(f"{ns}::f")
    first.close()


def test_libraries_check_what_they_are_given(ns: str) -> None:
    with pytest.raises(ValueError, match="expected an identifier"):
        Library("a::b", "DEF")
    with pytest.raises(ValueError, match="expected one of DEF, IMPL, FRAGMENT"):
        Library(ns, "def")
    lib = Library(ns, "FRAGMENT")
    with pytest.raises(ValueError, match="not in the namespace"):
        lib.define("other::f(Tensor x) -> Tensor")
    with pytest.raises(ValueError, match=r"expected 'name\(arguments\)"):
        lib.define("f")
    with pytest.raises(ValueError, match="alias_analysis"):
        lib.define("f(Tensor x) -> Tensor", alias_analysis="CONSERVATIVE")
    with pytest.raises(RuntimeError, match="does not exist"):
        lib.impl("nothing", lambda x: x)
    with pytest.raises(RuntimeError, match="expected a library of kind DEF or FRAGMENT"):
        Library(ns, "IMPL").define("f(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="fallback"):
        lib.fallback(lambda x: x)
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x + 1)
    with pytest.raises(RuntimeError, match="allow_override is False"):
        lib.impl("f", lambda x: x + 2, allow_override=False)
    with pytest.raises(TypeError, match="expected a Library"):
        library.impl(f"{ns}::f", "cpu", lambda x: x, lib="lib")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not in the namespace"):
        library.register_kernel(f"{ns}::f", "cpu", lambda x: x, lib=Library(f"{ns}2", "FRAGMENT"))
    library.register_fake(f"{ns}::f", lambda x: x.clone(), lib=lib)
    with pytest.raises(RuntimeError, match="fake kernel already"):
        library.register_fake(f"{ns}::f", lambda x: x, allow_override=False)
    lib.close()


# --- overloads ------------------------------------------------------------------------------------


def test_overloads(ns: str) -> None:
    lib = Library(ns, "DEF")
    lib.define("add.Scalar(Tensor x, Scalar y) -> Tensor")
    lib.define("add.pair(Tensor x, Tensor y, Tensor z) -> Tensor")
    lib.impl("add.Scalar", lambda x, y: x + y)
    lib.impl("add.pair", lambda x, y, z: x + y + z)
    packet = getattr(tp.ops, ns).add
    assert packet.overloads() == ["Scalar", "pair"]
    assert packet(tp.ones(1), 2).tolist() == [3]
    assert packet(tp.ones(1), tp.ones(1), tp.ones(1)).tolist() == [3]
    assert packet.Scalar.name == f"{ns}::add.Scalar"
    assert packet.Scalar.opname == "add"
    with pytest.raises(TypeError, match="no overload takes these arguments"):
        packet()
    with pytest.raises(AttributeError, match="overloads: Scalar, pair"):
        _ = packet.nothing
    with pytest.raises(RuntimeError, match="several overloads"):
        library.register_fake(packet, lambda x: x)
    lib.define("add(Tensor x) -> Tensor")
    lib.impl("add", lambda x: x.clone())
    both = getattr(tp.ops, ns).add
    op = both.default
    assert op.default is op
    assert library.get_op(f"{ns}::add") is op
    assert both(tp.ones(1)).tolist() == [1]
    assert both(tp.ones(1), 2).tolist() == [3]
    assert op.pair(tp.ones(1), tp.ones(1), tp.ones(1)).tolist() == [3]
    for found in (op, both):
        with pytest.raises(AttributeError, match="overloads: default, Scalar, pair"):
            _ = found.nothing
    # The types of arguments choose, too.
    lib.define("mul.Tensor(Tensor x, Tensor y) -> Tensor")
    lib.define("mul.Scalar(Tensor x, Scalar y) -> Tensor")
    lib.impl("mul.Tensor", lambda x, y: x * y)
    lib.impl("mul.Scalar", lambda x, y: x * y + 100)
    assert getattr(tp.ops, ns).mul(tp.ones(1), 2.0).tolist() == [102]
    assert getattr(tp.ops, ns).mul(tp.ones(1), tp.ones(1)).tolist() == [1]
    lib.close()


# --- kernels by key -------------------------------------------------------------------------------


def test_a_composite_is_recorded(name: str) -> None:
    library.define(name, "(Tensor x, Tensor[] rest, int k=2) -> Tensor")
    library.impl(name, "CompositeImplicitAutograd", lambda x, rest, k: (x**k * rest[0]).sum())
    op = library.get_op(name)
    x = x64(3)
    op(x, [x * 2]).backward()
    assert tp.autograd.gradcheck(lambda a, b: op(a, [b]), (x64(3), x64(3)))
    assert op(tp.ones(3, device="meta"), [tp.ones(3, device="meta")]).shape == ()
    # A kernel of the device goes before it, and is opaque again.
    library.impl(name, "cpu", lambda x, rest, k: x.sum())
    with pytest.raises(RuntimeError, match="no autograd formula"):
        op(x64(3), [x64(3)]).backward()


@pytest.mark.parametrize(
    ("schema", "body", "text"),
    [
        ("(Tensor x) -> Tensor", lambda x: None, "expected Tensor by the schema"),
        ("(Tensor x) -> (Tensor, Tensor)", lambda x: [x, 2, "a"], "expected 2 values"),
        ("(Tensor x) -> int", lambda x: x, "expected int by the schema"),
        ("(Tensor(a!) x) -> Tensor(a!)", lambda x: x * 2, "expected argument 'x' itself"),
    ],
)
def test_results_of_composites_are_checked(name: str, schema: str, body: Any, text: str) -> None:
    library.define(name, schema)
    library.impl(name, "CompositeImplicitAutograd", body)
    with pytest.raises(RuntimeError, match=text):
        library.get_op(name)(tp.ones(2))
    found = library.opcheck(name, (tp.ones(2),), raise_exception=False)
    assert {f.code for f in found["test_schema"]} == {"result_type"}


def test_kernels_switched_off(name: str) -> None:
    @custom_op(name)
    def op(x: Tensor) -> Tensor:
        return x + 1

    op.register_kernel("cpu", lambda x: x + 2)
    x = tp.zeros(1)
    assert op(x).tolist() == [2]
    with op.set_kernel_enabled("cpu", False):
        assert op(x).tolist() == [1]
        with pytest.raises(LookupError, match="is switched off"):
            library.get_kernel(op, "cpu")
        with (
            pytest.warns(UserWarning, match="already disabled"),
            op.set_kernel_enabled("cpu", False),
        ):
            assert op(x).tolist() == [1]
        op.register_kernel("cpu", lambda x: x + 3)
        assert op(x).tolist() == [1]  # registered while off: off
        with op.set_kernel_enabled("cpu"):
            assert op(x).tolist() == [3]
    assert op(x).tolist() == [3]
    with pytest.warns(UserWarning, match="already enabled"), op.set_kernel_enabled("cpu"):
        pass
    with (
        pytest.raises(RuntimeError, match="no kernel was registered for device 'cuda'"),
        op.set_kernel_enabled("cuda", False),
    ):
        pass
    with pytest.raises(RuntimeError, match="stop"), op.set_kernel_enabled("cpu", False):
        raise RuntimeError("stop")
    assert op(x).tolist() == [3]
    with pytest.raises(LookupError, match=r"'cuda' was not registered; registered: cpu, default"):
        library.get_kernel(op, "cuda")


# --- kinds ----------------------------------------------------------------------------------------


def test_inplace_by_tag(name: str) -> None:
    @custom_op(name, tags=(Tag.inplace,))
    def bump(x: Tensor, k: float = 1.0) -> Tensor:
        return x.add_(k)

    assert str(bump.schema) == f"{name}(Tensor(a0!) x, float k=1.0) -> Tensor(a0!)"
    assert bump.kind == "inplace"
    x = tp.zeros(2)
    version = x._version
    assert bump(x) is x
    assert x.tolist() == [1, 1]
    assert x._version > version
    meta = tp.zeros(2, device="meta")
    assert bump(meta) is meta  # the fake kernel follows from the kind


def test_out_by_tag(name: str) -> None:
    @custom_op(name, tags=(Tag.out,))
    def split(x: Tensor, *, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        low.copy_(x.clamp(max=0))
        high.copy_(x.clamp(min=0))
        return low, high

    assert split.kind == "out"
    assert split.mutates_args == ("low", "high")
    low, high = tp.empty(2), tp.empty(2)
    results = split(tp.tensor([-1.0, 2.0]), low=low, high=high)
    assert results[0] is low
    assert results[1] is high
    assert low.tolist() == [-1, 0]
    meta = {"low": tp.empty(2, device="meta"), "high": tp.empty(2, device="meta")}
    assert split(tp.empty(2, device="meta"), **meta)[1] is meta["high"]
    with pytest.raises(RuntimeError, match="non-functional operator"):
        split.register_autograd(lambda ctx, a, b: a)


@pytest.mark.parametrize(
    ("schema", "tags", "text"),
    [
        ("(Tensor(a!) x) -> Tensor(a!)", (Tag.inplace, Tag.out), "cannot be both"),
        ("(Tensor x) -> Tensor", (Tag.inplace,), "first positional argument to be written"),
        ("(Tensor x, Tensor(a!) y) -> Tensor(a!)", (Tag.inplace,), "first positional argument"),
        ("(Tensor(a!) x, Tensor(b!) y) -> Tensor(a!)", (Tag.inplace,), r"not \['y'\]"),
        ("(Tensor(a!) x) -> ()", (Tag.inplace,), "it to return 'x'"),
        ("(Tensor x) -> Tensor", (Tag.out,), "keyword-only tensors to be written"),
        ("(Tensor(a!) x) -> Tensor(a!)", (Tag.out,), r"keyword-only, not \['x'\]"),
        ("(Tensor x, *, Tensor(a!) y) -> ()", (Tag.out,), "in order: y"),
    ],
)
def test_rules_of_tags(name: str, schema: str, tags: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        library.define(name, schema, tags=tags)
    assert not library.has_op(name)


def test_what_is_no_tag(name: str) -> None:
    assert custom_op(name, lambda x: x + 1, tags=Tag.pointwise).tags == (Tag.pointwise,)
    for call in (
        lambda: custom_op(f"{name}2", lambda x: x, tags=3),
        lambda: library.define(f"{name}2", "(Tensor x) -> Tensor", tags=3),
        lambda: library.infer_schema(lambda x: x, mutates_args=(), tags=(3,)),
    ):
        with pytest.raises(TypeError, match=r"argument 'tags': expected members of.*got 3"):
            call()
    with pytest.raises(ValueError, match=r"\[custom_op\] argument 'mutates_args'"):
        custom_op(f"{name}2", lambda x: x, mutates_args=("q",))


def test_readers_meet_a_whole_registry(name: str) -> None:
    custom_op(name, lambda x: x + 1)
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            try:
                library.get_op(name)
                dir(getattr(tp.ops, name.partition("::")[0]))
            except BaseException as problem:  # noqa: BLE001  (shown below)
                failures.append(problem)
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for turn in range(200):
        with contextlib.suppress(ZeroDivisionError), all_or_nothing():
            library.define(f"{name}_{turn % 3}.o{turn}", "(Tensor x) -> Tensor")
            raise ZeroDivisionError
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert not library.has_op(f"{name}_0.o0")


def test_infer_schema_knows_tags() -> None:
    def f(x: Tensor, *, out: Tensor) -> Tensor: ...

    assert library.infer_schema(f, mutates_args=(), tags=(Tag.out,)) == (
        "(Tensor x, *, Tensor(a1!) out) -> Tensor(a1!)"
    )
    with pytest.raises(ValueError, match="cannot be both"):
        library.infer_schema(f, mutates_args=(), tags=(Tag.out, Tag.inplace))
    with pytest.raises(ValueError, match=r"Tag\.inplace"):
        library.infer_schema(f, mutates_args=("out",), tags=(Tag.inplace,))


def test_effects(name: str) -> None:
    op = custom_op(name, lambda x: x + 1)
    assert op.effect is None
    library.register_effectful(name, EffectType.ORDERED)
    assert op.effect is EffectType.ORDERED
    library.register_effectful(op, None)
    assert op.effect is None
    with pytest.raises(TypeError, match=r"expected EffectType\.ORDERED or None"):
        library.register_effectful(op, "ordered")  # type: ignore[arg-type]


def test_b032_undeclared_writes_are_found_where_asked_for(name: str) -> None:
    @custom_op(name)
    def bump(x: Tensor, xs: list[Tensor]) -> Tensor:
        xs[1].add_(1)
        return x.clone()

    x, xs = tp.zeros(2), [tp.zeros(1), tp.zeros(1)]
    bump(x, xs)
    bump.checks_writes = True
    with pytest.raises(RuntimeError, match=r"argument 'xs'.*mutates_args=\('xs',\)"):
        bump(x, xs)
    bump.checks_writes = False
    bump(x, xs)


# --- vmap -----------------------------------------------------------------------------------------


def test_a_vmap_rule_runs_once(name: str) -> None:
    calls: list[tuple[Any, ...]] = []

    @custom_op(name)
    def scale(x: Tensor, ys: list[Tensor], *, k: float = 2.0) -> Tensor:
        assert x.ndim == 1, "sample by sample"
        return x * k + ys[0]

    @library.register_vmap(name)
    def rule(info: Any, in_dims: Any, x: Tensor, ys: list[Tensor], *, k: float) -> Any:
        calls.append((info.batch_size, in_dims))
        x = x if in_dims[0] is not None else x.unsqueeze(0)
        y = ys[0] if in_dims[1][0] is not None else ys[0].unsqueeze(0)
        return x * k + y, 0

    x, y = tp.rand(4, 3), tp.rand(3)
    found = tp.func.vmap(lambda a: scale(a, [y], k=3.0))(x)
    np.testing.assert_allclose(found.numpy(), x.numpy() * 3 + y.numpy(), rtol=1e-6)
    assert calls == [(4, (0, [None]))]
    outer = tp.func.vmap(lambda b: tp.func.vmap(lambda a: scale(a, [b]))(x))(tp.rand(2, 3))
    assert outer.shape == (2, 4, 3)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda info, in_dims, x: x, r"expected \(outputs, out_dims\)|to return \(outputs"),
        (lambda info, in_dims, x: ((x, x), (0,)), "2 outputs and 1 out_dims"),
        (lambda info, in_dims, x: (x[:2], 0), "expected the size of the batch, 4"),
    ],
)
def test_wrong_vmap_rules(name: str, rule: Any, text: str) -> None:
    op = custom_op(name, lambda x: x + 1)
    op.register_vmap(rule)
    with pytest.raises(RuntimeError, match=text):
        tp.func.vmap(op)(tp.rand(4, 3))


# --- owners ---------------------------------------------------------------------------------------


def run_cell(name: str, text: str, scope: dict[str, Any] | None = None) -> None:
    scope = scope or {"__name__": "__main__", "tp": tp, "NAME": name, "library": library}
    file = "run/ipykernel_1/123.py"
    exec(compile(text, file, "exec"), scope)


class Notebook:
    """What `notebook_cell` asks IPython for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cell: str | None = "a"
        self.execution_count = 0
        self.kernel = SimpleNamespace(
            get_parent=lambda channel: {"metadata": {"cellId": self.cell} if self.cell else {}}
        )
        module = ModuleType("IPython")
        module.get_ipython = lambda: self  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", module)

    def run(self, cell: str | None, name: str, text: str) -> None:
        self.cell = cell
        self.execution_count += 1
        run_cell(name, text)


DEFINE = """
@tp.library.custom_op(NAME)
def {function}(x: tp.Tensor) -> tp.Tensor:
    return x * {k}
"""


def test_a_cell_owns_what_it_defines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch)
    notebook.run("a", name, DEFINE.format(function="op", k=1))
    notebook.run("a", name, DEFINE.format(function="renamed", k=2))  # the same cell, edited
    assert library.get_op(name)(tp.ones(1)).tolist() == [2]
    with pytest.raises(RuntimeError, match=r"renamed \(In\[2\], line 2\).*In\[3\], line 2"):
        notebook.run("b", name, DEFINE.format(function="renamed", k=3))
    assert library.get_op(name)(tp.ones(1)).tolist() == [2]
    with pytest.raises(RuntimeError, match="already defined"):
        notebook.run("a", name, DEFINE.format(function="f", k=4) + DEFINE.format(function="g", k=5))
    library.remove(name)
    notebook.run("b", name, DEFINE.format(function="renamed", k=3))
    assert library.get_op(name)(tp.ones(1)).tolist() == [3]


def test_without_cell_ids_the_function_is_the_owner(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = Notebook(monkeypatch)
    notebook.run(None, name, DEFINE.format(function="op", k=1))
    notebook.run(None, name, DEFINE.format(function="op", k=2))
    with pytest.raises(RuntimeError, match="already defined"):
        notebook.run(None, name, DEFINE.format(function="other", k=3))


@pytest.mark.parametrize("ids", [("a", "a", "b"), (None, None, None)])
def test_a_notebook_starts_a_namespace_again(
    ns: str, ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"lib = library.Library('{ns}', 'DEF')\nlib.define('f(Tensor x) -> Tensor')\n"
    notebook = Notebook(monkeypatch)
    notebook.run(ids[0], ns, text)
    notebook.run(ids[1], ns, text.replace("Tensor x", "Tensor x, int k"))
    assert "k" in str(library.get_op(f"{ns}::f").schema)
    with pytest.raises(RuntimeError, match="single DEF"):
        notebook.run(ids[1], ns, text + text)
    if ids[2] is not None:
        with pytest.raises(RuntimeError, match="single DEF"):
            notebook.run(ids[2], ns, text)


def test_a_replaced_definition_cannot_be_removed(name: str) -> None:
    first = custom_op(name, _plain)
    second = custom_op(name, _plain)
    with pytest.raises(RuntimeError, match="has been replaced"):
        library.remove(first)
    library.remove(second)
    assert not library.has_op(name)
    assert first(tp.ones(1)).tolist() == [1]


def _plain(x: Tensor) -> Tensor:
    return x.clone()


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (lambda x: (x * 2, 5), IndexError, r"returned 5 in out_dims for an output of 2 dimensions"),
        (lambda x: (x * 2, -3), IndexError, r"returned -3 in out_dims"),
        (lambda x: (x.sum(), 0), IndexError, r"returned 0 in out_dims for an output of 0"),
        (lambda x: (x * 2, "a"), TypeError, "expected out_dims of integers or None"),
        (lambda x: (x * 2, True), TypeError, "expected out_dims of integers or None"),
        (lambda x: (x * 2, (0, 0)), TypeError, "expected out_dims of integers or None"),
        (lambda x: (x[:2], 0), RuntimeError, "size 2 in dimension 0 .* size of the batch, 3"),
        (lambda x: x * 2, RuntimeError, r"expected the rule to return \(outputs, out_dims\)"),
    ],
)
def test_a_rule_for_samples_that_answers_wrongly_is_named(
    name: str, answer: Any, error: type[Exception], text: str
) -> None:
    library.define(name, "(Tensor x) -> Tensor")
    library.impl(name, "default", lambda x: x * 2)
    library.register_vmap(name, lambda info, in_dims, x: answer(x))
    with pytest.raises(error, match=rf"\[{name}\] vmap.*{text}"):
        tp.func.vmap(library.get_op(name))(tp.ones(3, 4))
