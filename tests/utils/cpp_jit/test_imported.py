"""Functions that a library imports, replaced for that library alone."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplay.utils.cpp_jit import imported

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="known of Linux's loader only")

SOURCE = """
#include <unistd.h>
extern "C" int parent() { return getppid(); }
extern "C" int address_is_known() { return getppid != nullptr; }
static int (*volatile kept)() = getppid;
extern "C" int parent_by_address() { return kept(); }
"""


@pytest.mark.parametrize("binding", ["lazy", "now"])  # `now`: the places are read-only
@pytest.mark.parametrize("call", ["-fplt", "-fno-plt"])
def test_a_function_is_replaced_for_one_library(tmp_path: Path, binding: str, call: str) -> None:
    source, library = tmp_path / "one.cpp", tmp_path / "one.so"
    source.write_text(SOURCE, "utf-8")
    command = ["g++", "-shared", "-fPIC", "-O1", call, f"-Wl,-z,{binding}", "-Wl,-z,relro"]
    subprocess.run([*command, "-o", library, source], check=True)
    loaded = ctypes.CDLL(str(library))
    if call == "-fplt":
        assert loaded.parent() == os.getppid()  # a lazy place is filled in now
    found = imported.places(str(library), ["getppid", "getpid"])
    assert found["getppid"]
    assert found["getpid"] == []
    replacement = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    for place in found["getppid"]:
        place.put(replacement)
    assert loaded.parent() == loaded.parent_by_address() == os.getpid()
    assert loaded.address_is_known() == 1
    assert ctypes.CDLL(None).getppid() == os.getppid() != os.getpid()


def test_of_what_is_not_loaded_no_place_is_known(tmp_path: Path) -> None:
    for library in ("", str(tmp_path / "none.so"), __file__):
        assert imported.places(library, ["getpid"]) == {"getpid": []}
