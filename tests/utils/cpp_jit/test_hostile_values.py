"""Values and names that would end the process, or be silently something else."""

from __future__ import annotations

from typing import Any

import pytest

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
    with pytest.raises(TypeError, match="argument 'f': expected a function or module, got None"):
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
