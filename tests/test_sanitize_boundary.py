"""The script that runs the boundary under valgrind reads its reports rightly."""

from __future__ import annotations

import re
import shutil

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
    found = sanitize_boundary.reports(REPORT)
    assert len(found) == 2
    assert "release_export" in found[0]
    assert "load-12-ab.so" in found[1]


def test_without_valgrind_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert sanitize_boundary.main() == 0
    assert capsys.readouterr().out == "valgrind is not installed: apt-get install valgrind\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_planted_faults_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize_boundary.main("memcheck", "1", "planted") > 0
    found = capsys.readouterr().out
    assert re.search(r"Invalid write of size 8\n.* overrun\(\)", found)
    assert re.search(r"definitely lost in .*\n(.*\n)?.* lose\(\)", found)
