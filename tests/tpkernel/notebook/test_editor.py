"""Messages as the cell's editor takes them: lines, columns, and what is left out."""

from __future__ import annotations

import json

import pytest

import tpkernel
from tensorplay.utils import cpp_jit
from tests.tpkernel.shell import SOFTPLUS
from tpkernel.lab import EXTENSION, link, main, unlink
from tpkernel.notebook.editor import (
    DIAGNOSTICS_MIME,
    diagnostics_bundle,
    diagnostics_of,
    report_diagnostics,
)
from tpkernel.report.widget import ReportWidget


def failed(text: str) -> list[dict[str, object]]:
    with pytest.raises((cpp_jit.BuildError, tpkernel.CellError)) as caught:
        tpkernel.build(text, checks=False)
    return diagnostics_of(caught.value, "cell")


def test_a_compilers_error_stands_at_line_and_column():
    first, *_ = failed("int64_t f() {\n  return factor;\n}\n")
    assert (first["line"], first["column"], first["severity"]) == (2, 10, "error")
    assert "factor" in first["message"]
    assert first["source_line"] == "  return factor;"


@pytest.mark.parametrize(
    ("before", "column"), [("\t", 9), ("/* ä */ ", 16), ("/* 漢字 */ ", 17), ("/* 𝄞 */ ", 17)]
)
def test_columns_count_as_the_editor_counts(before: str, column: int):
    first, *_ = failed(f"int64_t f() {{\n{before}return factor;\n}}\n")
    line = str(first["source_line"])
    units = line.encode("utf-16-le")[: 2 * (int(str(first["column"])) - 1)]
    assert units.decode("utf-16-le") == line[: line.index("factor")]
    assert first["column"] == column


def test_a_proposed_fix_travels_along():
    first, *_ = failed("int64_t f() {\n  int64_t a = 1\n  return a;\n}\n")
    assert first["line"] == 2
    assert first["fix"] == ";"


def test_an_error_of_the_cell_itself_is_one_too():
    (only,) = failed("/*---\nop: m::f(Tensor x) -> Tensor\nshapes: x\n---*/\nvoid f() {}\n")
    assert only["line"] == 3
    assert "shapes" in only["message"]


def test_an_error_without_a_place_and_other_exceptions_say_nothing():
    assert diagnostics_of(tpkernel.CellError("no functions"), "cell") == []
    assert diagnostics_of(KeyboardInterrupt(), "cell") == []


def test_the_output_is_for_the_extension_and_a_table_for_everyone_else():
    found = failed("int64_t f() {\n  return factor < 1;\n}\n")
    bundle = diagnostics_bundle(found)
    json.dumps(bundle)
    assert bundle[DIAGNOSTICS_MIME] == {"diagnostics": found}
    assert "error at line 2:10" in bundle["text/plain"]
    assert "2:10" in bundle["text/html"]
    assert "factor &lt; 1" in bundle["text/html"]
    assert "\n" not in bundle["text/html"]


def test_warnings_of_a_good_build_come_with_the_report():
    text = SOFTPLUS.replace("  for", "  int64_t unused = 1;\n  for")
    report = tpkernel.build(text, flags="-Wall", checks=False)
    (warning,) = report_diagnostics(report)
    assert (warning["line"], warning["severity"]) == (8, "warning")
    assert "unused" in warning["message"]
    data, _ = ReportWidget(report)._repr_mimebundle_()
    assert data[DIAGNOSTICS_MIME] == {"diagnostics": [warning]}
    quiet, _ = ReportWidget(tpkernel.build(SOFTPLUS, checks=False))._repr_mimebundle_()
    assert DIAGNOSTICS_MIME not in quiet


def test_the_extensions_folder_says_what_it_holds():
    package = json.loads((EXTENSION / "package.json").read_text())
    load = package["jupyterlab"]["_build"]["load"]
    assert (EXTENSION / load).is_file()
    assert package["version"] in load  # so that a browser does not keep an old copy
    assert json.loads((EXTENSION / "install.json").read_text())["packageManager"] == "python"
    source = (EXTENSION / load).read_text()
    assert DIAGNOSTICS_MIME in source
    assert "http" not in source.replace("https://", "http")


def test_an_editable_install_links_the_extension(tmp_path, capsys):
    place = link(str(tmp_path))
    assert (place / "package.json").is_file()
    assert link(str(tmp_path)) == place  # again is no error
    main(["unlink", "--prefix", str(tmp_path)])
    assert "removed" in capsys.readouterr().out
    assert not unlink(str(tmp_path))
    place.mkdir()
    with pytest.raises(SystemExit):
        main(["link", "--prefix", str(tmp_path)])
    assert "no link" in capsys.readouterr().err
