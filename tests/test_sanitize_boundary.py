"""The script that runs the boundary under valgrind reads its reports rightly."""

from __future__ import annotations

import os
import re
import shutil
import sys

import pytest

from tests import sanitize_boundary

REPORT = """==1== Memcheck, a memory error detector
==1==
==1== Invalid read of size 8
==1==    at 0x1: PyObject_Malloc (in /usr/bin/python3.11)
==1==    by 0x2: somewhere (in /usr/lib/libother.so)
==1==
==1== Invalid write of size 4
==1==    at 0x3: tensorplay::release_export(DLManagedTensorVersioned*) (exchange.cpp:10)
==1==    by 0x4: TVMFFIObjectDecRef (in /x/libtvm_ffi.so)
==1==
==1== Possible data race during write of size 8
==1==    at 0x5: ??? (in /x/tmp/load-12-ab.so (deleted))
==1==
==1== ERROR SUMMARY: 3 errors
""".replace("==1==\n", "==1== \n")  # as valgrind writes an empty line


def test_findings_in_our_code_are_told_from_others() -> None:
    found, others = sanitize_boundary.reports(REPORT)
    assert (len(found), others) == (2, 1)
    assert "release_export" in found[0]
    assert "load-12-ab.so" in found[1]


@pytest.mark.parametrize("tool", ["memcheck", "tsan"])
def test_without_the_checker_it_says_that_nothing_is_checked(
    tool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert sanitize_boundary.main(tool) == 2
    assert capsys.readouterr().out.startswith(f"{tool}: not run, nothing is checked; ")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.abort()", "ended with status -6"),
        ("import time; time.sleep(60)", "did not finish in 1 s"),
        ("", ""),
    ],
)
def test_a_program_that_does_not_come_to_its_end_is_no_clean_run(
    code: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def checked(*_: object) -> tuple[list[str], str, str]:
        return [], "", sanitize_boundary.run([sys.executable, "-c", code], os.environ)

    monkeypatch.setattr(sanitize_boundary, "LIMIT", 1 if "sleep" in code else 60)
    monkeypatch.setattr(sanitize_boundary, "under_valgrind", checked)
    assert sanitize_boundary.main() == (2 if said else 0)
    shown = capsys.readouterr().out
    assert (f"the program {said} (8 threads of 20 rounds" in shown) == bool(said)
    assert ("nothing is known of the rest" in shown) == bool(said)


@pytest.mark.long
@pytest.mark.timeout(1600)
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_planted_faults_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize_boundary.main("memcheck", "1", "overrun", "lose") == 1
    found = capsys.readouterr().out
    assert re.search(r"Invalid write of size 8\n.* overrun\(\)", found)
    assert re.search(r"definitely lost in .*\n(.*\n)?.* lose\(\)", found)


@pytest.mark.long
@pytest.mark.timeout(1600)
def test_a_planted_race_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    status = sanitize_boundary.main("tsan", "2", "race")
    found = capsys.readouterr().out
    if status == 2 and "not run" in found:
        pytest.skip(found)
    assert status == 1
    assert re.search(r"data race .*\n.*\n +#0 .*\(load-\d+", found)
