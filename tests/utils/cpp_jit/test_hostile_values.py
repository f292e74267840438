"""Values and names that would end the process, or be silently something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi

import tensorplay as tp
from tensorplay.utils import cpp_jit


@pytest.fixture(scope="module")
def module() -> cpp_jit.Module:
    return cpp_jit.load_inline(
        "hostile",
        cpp_sources="""
        #include <tvm/ffi/container/array.h>
        uint64_t large(int64_t shift) { return ~uint64_t(0) >> shift; }
        int64_t count(tvm::ffi::Array<tvm::ffi::Any> x) { return static_cast<int64_t>(x.size()); }
        int64_t run(tvm::ffi::Function f) { return f(20).cast<int64_t>(); }
        """,
        functions=["large", "count", "run"],
    )


def test_variables_of_a_cell_are_its_own() -> None:
    module = cpp_jit.load_inline(
        "own_variables",
        cpp_sources="""
        double timezone = 2.5;
        int64_t optind = 77;
        double zone() { return timezone; }
        int64_t index_of_options() { return optind; }
        """,
        functions=["zone", "index_of_options"],
    )
    assert module.zone() == 2.5
    assert module.index_of_options() == 77


def nested(kind: type) -> Any:
    value: Any = {} if kind is dict else []
    if kind is dict:
        value["self"] = value
    else:
        value.append(value)
    return value if kind is not tuple else (value,)


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("kind", [list, dict, tuple])
def test_containers_that_hold_themselves(module: cpp_jit.Module, kind: type) -> None:
    with pytest.raises(TypeError, match=r"argument 'x'.*nests deeper or holds itself"):
        module.count(nested(kind))


def test_depth_of_containers(module: cpp_jit.Module) -> None:
    assert module.count(deep(150)) == 1
    with pytest.raises(TypeError, match="at most 200 levels"):
        module.count(deep(100_000))


def test_no_function_where_one_is_called(module: cpp_jit.Module) -> None:
    assert module.run(lambda x: x + 1) == 21
    with pytest.raises(
        TypeError, match=r"argument 'f' \(position 0\): expected a function or module, got None"
    ):
        module.run(None)


@pytest.mark.parametrize("rung", ["light", "full"])
def test_unsigned_results_beyond_the_engines_integers(rung: str, module: cpp_jit.Module) -> None:
    if rung == "light":
        module = cpp_jit.load_inline(
            "unsigned",
            cpp_sources="uint64_t large(int64_t shift) { return ~uint64_t(0) >> shift; }",
            functions="large",
        )
    assert module.large(1) == 2**63 - 1
    with pytest.raises(ValueError, match="above 2\\*\\*63 - 1"):
        module.large(0)


@pytest.fixture(scope="module")
def texts() -> cpp_jit.Module:
    return cpp_jit.load_inline(
        "texts",
        cpp_sources=r"""
        #include <tvm/ffi/any.h>
        #include <tvm/ffi/string.h>
        #include <stdexcept>
        int64_t thrown(std::string text) {
          TVM_FFI_THROW(ValueError) << "name " << std::string("BYTES") << " bad";
          return 0;
        }
        int64_t standard(int64_t) { throw std::out_of_range("at \xe2\x82"); }
        tvm::ffi::Any same(tvm::ffi::Any x) { return x; }
        int64_t size(tvm::ffi::String text) { return static_cast<int64_t>(text.size()); }
        int64_t code(DLDataType kind) { return kind.code; }
        """.replace("BYTES", r"\xff\xc3\xa9\xed\xa0\x80\xc0\xaf\xf0\x9f\x98\x80\xf4\x90"),
        functions=["thrown", "standard", "same", "size", "code"],
    )


def test_messages_that_are_no_utf8(texts: cpp_jit.Module) -> None:
    bad = "\ufffd"
    with pytest.raises(ValueError, match=r"^name ") as raised:
        texts.thrown("x")
    assert type(raised.value) is ValueError
    assert str(raised.value) == f"name {bad}é{bad * 3}{bad * 2}😀{bad * 2} bad"
    with pytest.raises(IndexError, match=f"^at {bad}{bad}$"):
        texts.standard(1)


@pytest.mark.parametrize("key", [(1, 2), (1, (2, "a")), ((), 1.5), "a", 3])
def test_keys_come_back_as_they_were(texts: cpp_jit.Module, key: Any) -> None:
    assert texts.same({key: 3}) == {key: 3}
    assert texts.same([{"inner": {key: [1, 2]}}]) == [{"inner": {key: [1, 2]}}]


@pytest.mark.parametrize("value", ["\udc80", ["a", "\udc80"], {"\udc80": 1}, {"a": ("\udc80",)}])
def test_texts_without_bytes(texts: cpp_jit.Module, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^\[texts::same\] argument 'x' .*UTF-8.*'\\udc80' at 0"):
        texts.same(value)
    with pytest.raises(ValueError, match=r"^\[texts::size\] argument 'text' .* at 1\. Write"):
        texts.size("a\udc80")


@pytest.mark.parametrize(
    ("kind", "expected", "got"),
    [
        (tp.complex64, "a dtype that is not complex", "complex64"),
        (np.dtype("c16"), "a dtype that is not complex", "complex128"),
        (np.dtype("M8[s]"), "a dtype of numbers or bool", "datetime64"),
        (3, "dtype", "int"),
    ],
)
def test_element_types_that_the_engine_has_not(
    texts: cpp_jit.Module, kind: Any, expected: str, got: str
) -> None:
    with pytest.raises(
        TypeError, match=rf"^\[texts::code\] argument 'kind' .*: expected {expected}, got {got}"
    ):
        texts.code(kind)
    assert texts.same(kind) == kind  # as an object of Python


def test_names_of_element_types(texts: cpp_jit.Module) -> None:
    assert texts.code("float32") == texts.code(np.dtype("f4")) == texts.code(tp.float32)
    with pytest.raises(ValueError, match=r"^\[texts::code\] argument 'kind' .*, got 'bogus'\.$"):
        texts.code("bogus")


def _inc(x: int) -> int:
    return x + 1


# A parameter's type, values that hold None where it does not say Optional, and ones that do not.
NULLS: dict[str, tuple[str, list[Any], list[Any]]] = {
    "function": ("Function", [None], [_inc]),
    "typed": ("TypedFunction<int64_t(int64_t)>", [None], [_inc]),
    "alias": ("Alias", [None], [_inc]),
    "list_of": ("Array<Function>", [[None], [_inc, None]], [[_inc], []]),
    "list_of_typed": ("Array<TypedFunction<int64_t(int64_t)>>", [[None]], [[_inc], []]),
    "values": ("Map<String, Function>", [{"a": None}], [{"a": _inc}, {}]),
    "values_typed": ("Map<String, TypedFunction<void()>>", [{"a": None}], [{"a": _inc}, {}]),
    "keys": ("Map<Function, int64_t>", [{None: 1}], [{_inc: 1}, {}]),
    "keys_typed": ("Map<TypedFunction<void()>, int64_t>", [{None: 1}], [{_inc: 1}]),
    "tuple_of_typed": ("Tuple<int64_t, TypedFunction<void()>>", [(1, None)], [(1, _inc)]),
    "nested": ("Array<Map<String, Array<Tensor>>>", [[{"a": [None]}]], [[{"a": []}], [{}]]),
    "maybe_list": ("Optional<Array<Function>>", [[None]], [None, [_inc]]),
    "maybe_typed": ("Optional<TypedFunction<void()>>", [], [None, _inc]),
    "list_of_maybe": ("Array<Optional<Function>>", [], [[None], [_inc]]),
    "either": ("Variant<Function, int64_t>", [None], [_inc, 1]),
    "either_typed": ("Variant<TypedFunction<void()>, int64_t>", [None], [_inc, 1]),
    "either_or_none": ("Variant<Function, Optional<int64_t>>", [], [None, _inc, 1]),
    "either_list": ("Variant<Array<Function>, int64_t>", [[None]], [[_inc], [], 1]),
    "either_typed_list": ("Variant<Array<TypedFunction<void()>>, int64_t>", [[None]], [[_inc], 1]),
    "either_map": ("Variant<Map<String, Tensor>, Tensor>", [{"a": None}, None], [{}, np.ones(1)]),
    "either_listed": ("Array<Variant<Array<Function>, int64_t>>", [[1, [None]]], [[1, [_inc]]]),
    "either_anything": ("Variant<Array<Function>, Array<Optional<Tensor>>>", [], [[None], [_inc]]),
}


@pytest.fixture(scope="module")
def nullable() -> cpp_jit.Module:
    kernels = "\n".join(f"void {name}({kind} x) {{}}" for name, (kind, *_) in NULLS.items())
    return cpp_jit.load_inline(
        "nullable",
        cpp_sources=f"""
        #include <tensorplay/ffi_containers.h>
        using namespace tvm::ffi;
        using Alias = TypedFunction<int64_t(int64_t)>;
        {kernels}
        """,
        functions=list(NULLS),
    )


@pytest.fixture(scope="module")
def registered() -> type:
    """Return a class of C++, beside functions, that the engine calls by its own conversions."""
    functions = "\n".join(
        f'refl::GlobalDef().def("nulls.{name}", []({kind} x) {{}});'
        for name, (kind, *_) in NULLS.items()
    )
    methods = "\n".join(f"void {name}({kind} x) {{}}" for name, (kind, *_) in NULLS.items())
    defined = "\n".join(f'.def("{name}", &HolderObj::{name})' for name in NULLS)
    module = cpp_jit.load_inline(
        "nulls",
        cpp_sources=f"""
        #include <tensorplay/ffi_containers.h>
        #include <tvm/ffi/reflection/registry.h>
        using namespace tvm::ffi;
        using Alias = TypedFunction<int64_t(int64_t)>;
        class HolderObj : public Object {{
         public:
          {methods}
          static constexpr bool _type_mutable = true;
          TVM_FFI_DECLARE_OBJECT_INFO_FINAL("nulls.Holder", HolderObj, Object);
        }};
        TVM_FFI_STATIC_INIT_BLOCK() {{
          namespace refl = reflection;
          {functions}
          refl::ObjectDef<HolderObj>(refl::init(false))
            .def_static("__create__", []() {{ return ObjectRef(make_object<HolderObj>()); }})
            {defined};
        }}
        int64_t one() {{ return 1; }}
        """,
        functions="one",
    )

    @cpp_jit.register_object("nulls.Holder")
    class Holder(tvm_ffi.Object):
        kept = module

        def __init__(self) -> None:
            self.__init_handle_by_constructor__(Holder.__create__)

    return Holder


@pytest.mark.parametrize("name", NULLS)
def test_none_reaches_no_function_or_method_that_does_not_expect_it(
    registered: type, name: str
) -> None:
    _, refused, taken = NULLS[name]
    for call in (cpp_jit.get_global_func(f"nulls.{name}"), getattr(registered(), name)):
        for value in refused:
            with pytest.raises(TypeError, match=r"expected .*None"):
                call(value)
        for value in taken:
            call(value)


@pytest.mark.parametrize("name", NULLS)
def test_none_reaches_no_kernel_that_does_not_expect_it(
    nullable: cpp_jit.Module, name: str
) -> None:
    kernel = getattr(nullable, name)
    _, refused, taken = NULLS[name]
    for value in refused:
        with pytest.raises(TypeError, match=r"argument 'x' \(position 0\): expected .*None"):
            kernel(value)
    for value in taken:
        kernel(value)


def test_what_fails_when_it_is_told_of_an_error_is_a_warning(module: cpp_jit.Module) -> None:
    class MineError(Exception):
        pass

    def callback(_x: int) -> int:
        raise mine

    def told(error: BaseException) -> None:
        raise LookupError(f"of {type(error).__name__}")

    mine = MineError()
    module.run.on_error = told
    try:
        with (
            pytest.warns(RuntimeWarning, match=r"at a MineError: LookupError\('of MineError'\)"),
            pytest.raises(MineError) as raised,
        ):
            module.run(callback)
    finally:
        module.run.on_error = None
    assert raised.value is mine


@pytest.mark.parametrize(
    ("result", "got"),
    [("a", "str"), (None, "None"), (2.5, "float"), ([1], "list"), (tp.ones(1), "Tensor")],
)
def test_a_callback_of_another_kind_than_the_kernel_converts(
    module: cpp_jit.Module, result: Any, got: str
) -> None:
    with pytest.raises(TypeError) as raised:
        module.run(lambda x: result)
    said = str(raised.value).partition("\n")[0]
    assert said == (
        "[hostile::run] expected int where it converts a value, such as the result of a callback, "
        f"got {got}. Return or pass int."
    )
