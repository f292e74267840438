"""Classes and global functions that a cell defines, and again when it runs again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import tensorplay as tp
from tensorplay.utils import cpp_jit

pytestmark = pytest.mark.slow  # the engine's reflection takes a compiler some seconds each time


def pair(
    fields: str = "ab", *, factor: int = 2, key: str = "tests.Pair", function: str = "tests.twice"
) -> str:
    """Return C++ that defines a class with integer fields, a child of it, and a global function."""
    declared = ", ".join(f"int64_t {f}" for f in fields)
    given = ", ".join(fields)
    members = "".join(f"  int64_t {f};\n" for f in fields)
    return f"""
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/container/array.h>
using namespace tvm::ffi;
class PairObj : public Object {{
 public:
{members}  Optional<Tensor> weights;
  Array<Any> parts;
  PairObj({declared}) : {", ".join(f"{f}({f})" for f in fields)} {{}}
  int64_t sum() const {{ return {factor} * ({" + ".join(fields)}); }}
  Any apply(Function f, Any x) const {{ return f(x, {fields[0]}); }}
  static constexpr bool _type_mutable = true;
  static constexpr uint32_t _type_child_slots = 4;
  TVM_FFI_DECLARE_OBJECT_INFO("{key}", PairObj, Object);
}};
class Pair : public ObjectRef {{
 public:
  explicit Pair({declared}) {{ data_ = make_object<PairObj>({given}); }}
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(Pair, ObjectRef, PairObj);
}};
class NamedObj : public PairObj {{
 public:
  String name;
  explicit NamedObj(String name) : PairObj({", ".join(["1"] * len(fields))}), name(name) {{}}
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("{key}.Named", NamedObj, PairObj);
}};
class Named : public Pair {{
 public:
  explicit Named(String name) : Pair(ObjectPtr<PairObj>(nullptr)) {{
    data_ = make_object<NamedObj>(name);
  }}
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(Named, Pair, NamedObj);
}};
TVM_FFI_STATIC_INIT_BLOCK() {{
  namespace refl = reflection;
  refl::ObjectDef<PairObj>(refl::init(false))
{"".join(f'    .def_ro("{f}", &PairObj::{f})' for f in fields)}
    .def_rw("weights", &PairObj::weights)
    .def_rw("parts", &PairObj::parts)
    .def("sum", &PairObj::sum)
    .def("apply", &PairObj::apply)
    .def_static("__create__", []({declared}) {{ return Pair({given}); }})
    .def_static("zero", []() {{ return Pair({", ".join(["0"] * len(fields))}); }});
  refl::ObjectDef<NamedObj>(refl::init(false))
    .def_ro("name", &NamedObj::name)
    .def_static("__create__", [](String name) {{ return Named(name); }});
  refl::GlobalDef().def("{function}", [](int64_t x) {{ return {factor} * x; }});
}}
Pair make({declared}) {{ return Pair({given}); }}
Pair named(String name) {{ return Named(name); }}
int64_t one(Pair p) {{ return p->sum(); }}
int64_t total(Array<Pair> pairs) {{
  int64_t sum = 0;
  for (const Pair& p : pairs) sum += p->sum();
  return sum;
}}
"""


NAMES = ["make", "named", "total", "one"]


def load(name: str, source: str) -> cpp_jit.Module:
    return cpp_jit.load_inline(name, cpp_sources=source, functions=NAMES)


def classes(key: str) -> tuple[Any, Any]:
    @cpp_jit.register_object(key)
    class Pair(tvm_ffi.Object):
        def __init__(self, *numbers: int) -> None:
            self.__init_handle_by_constructor__(Pair.__create__, *numbers)

    @cpp_jit.register_object(f"{key}.Named")
    class Named(Pair):
        def __init__(self, name: str) -> None:
            self.__init_handle_by_constructor__(Named.__create__, name)

    return Pair, Named


def test_a_class_of_a_cell() -> None:
    module = load("pairs", pair())
    Pair, Named = classes("tests.Pair")
    p = Pair(1, 2)
    assert (p.a, p.b, p.sum(), Pair.zero().sum()) == (1, 2, 6, 0)
    with pytest.raises(AttributeError):
        p.a = 3
    assert p.weights is None
    p.weights = tp.ones(2)
    assert isinstance(p.weights, tp.Tensor)
    assert p.weights.tolist() == [1, 1]
    p.parts = [1, tp.zeros(1), [2.5], lambda: 7]
    assert p.parts[0] == 1
    assert isinstance(p.parts[1], tp.Tensor)
    assert p.parts[2] == [2.5]
    assert p.parts[3]() == 7
    seen = []
    assert p.apply(lambda x, a: (seen.append(type(x)), a)[1], tp.ones(1)) == 1
    assert seen == [tp.Tensor]
    with pytest.raises(ZeroDivisionError):
        p.apply(lambda x, a: x // 0, 1)
    p.weights = np.ones(2).astype("bfloat16")
    assert p.weights.dtype is tp.bfloat16
    refusals: list[tuple[Any, type[Exception], str]] = [
        (
            lambda: setattr(p, "weights", 3),
            TypeError,
            r"field 'weights': expected Tensor or .*got int",
        ),
        (
            lambda: setattr(p, "weights", np.ma.ones(2)),
            TypeError,
            "field 'weights': expected an array w",
        ),
        (
            lambda: setattr(p, "parts", [tp.ones(1, requires_grad=True)]),
            RuntimeError,
            r"field 'parts'\[0\]: ",
        ),
        (lambda: Pair("a", 2), TypeError, "argument #0: expected int, got str"),
        (lambda: Pair(1, 2**70), TypeError, "argument #1: expected int, got int beyond 64 bits"),
        (lambda: Pair(None, 2), TypeError, "argument #0: expected int, got None"),
    ]
    for call, error, text in refusals:
        with pytest.raises(error, match=rf"^\[classes\.<locals>\.Pair\] {text}"):
            call()
    with pytest.raises(
        ValueError, match=r"Named\] argument #0: expected text that UTF-8 has bytes"
    ):
        Named("\udc80")
    named = Named("who")
    assert (named.name, named.a, named.sum()) == ("who", 1, 4)
    with pytest.raises(TypeError, match=r"Named\] argument #0: expected str, got None"):
        Named(None)
    assert isinstance(module.make(3, 4), Pair)
    assert type(module.named("x")) is Named
    assert module.total([p, named]) == 10
    with pytest.raises(TypeError, match=r"argument 'pairs' \(position 0\): expected list of tests"):
        module.total([1])
    for call, none in ((module.one, None), (module.total, [p, None])):
        with pytest.raises(TypeError, match=r"\(position 0\): expected .*tests\.Pair, got .*None"):
            call(none)
    del module
    assert Pair(1, 2).sum() == 6  # its library stays


def test_a_class_whose_constructor_fails_or_forgets() -> None:
    module = load("forgets", pair(key="tests.Forgets", function="tests.forgets"))
    Pair, _ = classes("tests.Forgets")

    class Forgets(Pair):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            pass

    class Fails(Pair):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            kept.append(self)
            raise KeyError("half way")

    kept: list[Any] = [Forgets()]
    with pytest.raises(KeyError, match="half way"):
        Fails()
    for made in kept:
        for use in (
            lambda made=made: made.a,
            lambda made=made: made.sum(),
            lambda made=made: setattr(made, "parts", [1]),
        ):
            with pytest.raises(RuntimeError, match="whose __init__ has made none"):
                use()
        none = "expected an object that C"
        with pytest.raises(TypeError, match=rf"'p' \(position 0\): {none}"):
            module.one(made)
        with pytest.raises(TypeError, match=rf"'pairs' \(position 0\) at \[0\]: {none}"):
            module.total([made])
        with pytest.raises(TypeError, match=rf"result\[0\]: {none}"):
            Pair(1, 2).apply(lambda *_, made=made: [made], 1)

    class Made(Pair):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(4, 5)

    assert (Made().sum(), module.one(Made()), type(Made())) == (18, 18, Made)


def test_the_cell_runs_again() -> None:  # case B009
    key = {"key": "tests.Again", "function": "tests.again"}
    first = load("again", pair(**key))
    Pair, _ = classes("tests.Again")
    old = Pair(1, 2)
    assert cpp_jit.get_global_func("tests.again")(4) == 8
    # Other functions, the same fields: the objects that there are have them too.
    second = load("again", pair(factor=3, **key))
    assert (old.sum(), Pair(1, 2).sum(), second.total([old]), first.total([old])) == (9, 9, 9, 6)
    assert cpp_jit.get_global_func("tests.again")(4) == 12
    # Other fields: a new type; the objects of the old one keep theirs.
    third = load("again", pair("abc", factor=5, **key))
    assert (old.a, old.b, old.sum()) == (1, 2, 9)
    Pair, Named = classes("tests.Again")
    new = Pair(1, 2, 3)
    assert (new.c, new.sum(), third.total([new, Named("x")])) == (3, 30, 45)
    assert type(third.make(1, 2, 3)) is Pair
    with pytest.raises(TypeError, match=r"of another definition of the class\. Make it again"):
        third.one(old)
    with pytest.raises(TypeError, match="position 0"):
        third.total([old])
    # And back again.
    fourth = load("again", pair(**key))
    Pair, _ = classes("tests.Again")
    assert Pair(1, 2).sum() == fourth.total([Pair(1, 2)]) == 6


def test_files_are_loaded_again(tmp_path: Path) -> None:  # case B009
    key = {"key": "tests.Files", "function": "tests.files"}
    file, other = tmp_path / "pairs.cc", tmp_path / "more.cpp"
    other.write_text(
        "#include <tvm/ffi/function.h>\nstatic int64_t one() { return 1; }\n"
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC(one, one);\n"
    )
    exported = "".join(f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({n}_of_file, {n});\n" for n in NAMES)

    def again(*args: Any, **kwargs: Any) -> cpp_jit.Module:
        file.write_text(
            f"#include <tvm/ffi/container/tensor.h>\n{pair(*args, **kwargs, **key)}{exported}"
        )
        return cpp_jit.load("files", sources=[file, other])

    first = again()
    Pair, _ = classes("tests.Files")
    old = Pair(1, 2)
    assert first.one() == 1
    assert again().total_of_file([old]) == 6  # nothing has changed
    second = again(factor=3)
    assert (old.sum(), second.total_of_file([old])) == (9, 9)
    assert cpp_jit.get_global_func("tests.files")(4) == 12
    third = again("abc")
    Pair, _ = classes("tests.Files")
    assert (old.sum(), Pair(1, 2, 3).sum()) == (9, third.total_of_file([Pair(1, 2, 3)]))
    assert cpp_jit.load_module(third.__file__).total_of_file([Pair(1, 2, 3)]) == 12
    with pytest.raises(ValueError, match="of library 'elsewhere', got one that library 'files'"):
        cpp_jit.load("elsewhere", sources=[file, other])


def test_names_from_two_places() -> None:
    load("one_place", pair(key="tests.Two", function="tests.two"))
    with pytest.raises(ValueError, match="of library 'another', got one that library 'one_place'"):
        load("another", pair(key="tests.Two", function="tests.three"))
    with pytest.raises(ValueError, match=r"'ffi\.Array': .* that the engine or another pack"):
        load("takes_over", pair(key="tests.Four", function="ffi.Array"))


def test_without_tensorplay_a_library_registers_as_it_is_loaded() -> None:
    path = cpp_jit.build_inline(
        "elsewhere", cpp_sources=pair(key="tests.Five", function="tests.five"), functions=NAMES
    )
    code = f"""
import shutil, tvm_ffi
m = tvm_ffi.load_module({path!r})
assert tvm_ffi.get_global_func("tests.five")(2) == 4
assert m.make(1, 2).sum() == 6
shutil.copy({path!r}, {path + ".copy.so"!r})
tvm_ffi.load_module({path + ".copy.so"!r})  # a second definition is told, and ends nothing
print("alive")
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout == "alive\n"
    assert "could not register" in done.stderr
