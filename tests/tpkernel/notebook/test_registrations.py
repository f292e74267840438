"""What a cell's C++ registers for the whole process, run again with another text (case B009)."""

from __future__ import annotations

import re

import pytest

import tpkernel
from tests.tpkernel.shell import Shell

pytestmark = pytest.mark.slow  # the engine's reflection takes a compiler some seconds each time

FUNCTION = """\
#include <tvm/ffi/reflection/registry.h>
TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("tests.cell.scaled", [](int64_t x) { return 2 * x; });
}
"""

POINT = """\
#include <tvm/ffi/reflection/registry.h>
namespace ffi = tvm::ffi;
class PointObj : public ffi::Object {
 public:
  int64_t x;
  explicit PointObj(int64_t x) : x(x) {}
  int64_t twice() const { return 2 * x; }
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tests.cell.Point", PointObj, ffi::Object);
};
TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = ffi::reflection;
  refl::ObjectDef<PointObj>(refl::init(false))
      .def_ro("x", &PointObj::x)
      .def("twice", &PointObj::twice)
      .def_static("__create__", [](int64_t x) { return ffi::make_object<PointObj>(x); });
}
"""

CLASS = """\
import tvm_ffi
from tensorplay.utils.cpp_jit import register_object
@register_object("tests.cell.Point")
class Point(tvm_ffi.Object):
    def __init__(self, *numbers):
        self.__init_handle_by_constructor__(Point.__create__, *numbers)
"""


def test_the_report_of_registrations_says_what_there_is(shell: Shell) -> None:
    text = FUNCTION.replace("tests.cell.scaled", "tests.cell.lone")
    ran = shell.kernel(text)  # no --name: there is nothing to bind
    assert ran.error is None, ran.shown
    assert re.search(r"^In\[\d+\]: registers tests\.cell\.lone · ", ran.text)
    assert "registers   function tests.cell.lone" in ran.text
    assert "cpp_jit.get_global_func(name)" in ran.text
    assert shell.kernel(text.replace("2 * x", "4 * x")).error is None  # the cell with another text
    shell.ok("from tensorplay.utils import cpp_jit")
    assert shell.ok("cpp_jit.get_global_func('tests.cell.lone')(4)").result == 16
    ran = shell.kernel(POINT.replace("tests.cell.Point", "tests.cell.Lone"))
    assert ran.error is None, ran.shown
    report = tpkernel.last_report()
    assert report.registered == (("class", "tests.cell.Lone"),)
    assert report.to_dict()["registered"] == [["class", "tests.cell.Lone"]]
    for said in (report.title, report.to_text(), report.to_text(full=True), report.to_html()):
        assert "tests.cell.Lone" in said


@pytest.mark.parametrize("option", ["--isolate", "--sanitize address"])
def test_registrations_alone_are_not_isolated(shell: Shell, option: str) -> None:
    ran = shell.kernel(FUNCTION.replace("tests.cell.scaled", "tests.cell.apart"), option)
    assert isinstance(ran.error, tpkernel.CellError)
    assert f"{option.split(maxsplit=1)[0]} is for functions that are called" in ran.shown
    assert "Leave the option out" in ran.shown
    shell.ok("from tensorplay.utils import cpp_jit")
    assert shell.run("cpp_jit.get_global_func('tests.cell.apart')").error is not None


def test_a_cell_with_registrations_alone(shell: Shell) -> None:
    shell.ok("from tensorplay.utils.cpp_jit import get_global_func")
    assert shell.kernel(FUNCTION, "--name scales").error is None
    shell.ok("held = get_global_func('tests.cell.scaled')")
    assert shell.ok("held(4)").result == 8
    assert shell.kernel(FUNCTION, "--name scales").error is None
    assert shell.kernel(FUNCTION.replace("2 * x", "3 * x"), "--name scales").error is None
    # What was looked up before stays what it was, as a name in Python does.
    assert shell.ok("held(4), get_global_func('tests.cell.scaled')(4)").result == (8, 12)
    # An edit that does not compile leaves what there is.
    assert shell.kernel(FUNCTION.replace("2 * x", "2 * y"), "--name scales").error is not None
    assert shell.ok("get_global_func('tests.cell.scaled')(4)").result == 12


def test_a_cell_with_a_class_alone_and_then_with_other_fields(shell: Shell) -> None:
    assert shell.kernel(POINT, "--name points").error is None
    shell.ok(CLASS)
    shell.ok("old = Point(3)")
    assert shell.ok("old.x, old.twice()").result == (3, 6)
    # Another method, the same fields: the objects that there are have it too.
    assert shell.kernel(POINT.replace("2 * x", "5 * x"), "--name points").error is None
    assert shell.ok("old.twice()").result == 15
    # Another layout under the same key.
    wider = (
        POINT.replace("int64_t x;", "double before; int64_t x;")
        .replace(": x(x)", ": before(0.5), x(x)")
        .replace('.def_ro("x"', '.def_ro("before", &PointObj::before).def_ro("x"')
    )
    assert shell.kernel(wider, "--name points").error is None
    shell.ok(CLASS)
    assert shell.ok("new = Point(4); (new.before, new.x, new.twice())").result == (0.5, 4, 8)
    assert shell.ok("old.x, old.twice(), hasattr(old, 'before')").result == (3, 15, False)


def test_an_error_of_a_cell_keeps_its_class(shell: Shell) -> None:
    shell.ok("from tensorplay.utils.cpp_jit import register_error")
    shell.ok("@register_error\nclass CellsOwnError(ValueError): pass")
    text = 'void fail() { TVM_FFI_THROW(CellsOwnError) << "first"; }'
    for said in ("first", "second"):
        changed = f"#include <tvm/ffi/error.h>\n{text.replace('first', said)}"
        assert shell.kernel(changed, "--name failing").error is None
        shell.ok("@register_error\nclass CellsOwnError(ValueError): pass")  # its cell runs again
        error = shell.run("failing.fail()").error
        assert type(error) is shell["CellsOwnError"]
        assert str(error) == f"[fail] {said}"


def test_two_cells_may_not_register_one_name(shell: Shell) -> None:
    text = FUNCTION.replace("tests.cell.scaled", "tests.cell.once")
    assert shell.kernel(text, "--name one_cell").error is None
    ran = shell.kernel(text.replace("2 * x", "4 * x"), "--name other_cell")
    assert "'tests.cell.once'" in str(ran.error)
    for library in ("one_cell", "other_cell"):
        assert library in str(ran.error)
    shell.ok("from tensorplay.utils.cpp_jit import get_global_func")
    assert shell.ok("get_global_func('tests.cell.once')(4)").result == 8
