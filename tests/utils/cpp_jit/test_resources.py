"""How many compilers run at once."""

from __future__ import annotations

import stat

import pytest

from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit import resources


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Give the test files that say what the machine and its container grant."""
    monkeypatch.setattr(resources, "_CONTROL", tmp_path)
    monkeypatch.setattr(resources, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(resources.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.delenv("MAX_JOBS", raising=False)
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable: 8388608 kB\n")
    return tmp_path


def test_b068_jobs_are_the_smallest_of_wanted_granted_and_what_memory_allows(machine, monkeypatch):
    assert resources.jobs(3) == 3
    assert resources.jobs(99) == 8  # GiB
    (machine / "cpu.max").write_text("350000 100000\n")
    assert resources.jobs(99) == 3
    (machine / "cpu.max").write_text("max 100000\n")
    (machine / "memory.max").write_text(f"{3 * 2**30}\n")
    (machine / "memory.current").write_text(f"{2**30}\n")
    assert resources.jobs(99) == 2
    (machine / "memory.max").write_text("max\n")
    monkeypatch.setenv("MAX_JOBS", "4")
    assert resources.jobs(99) == 4
    (machine / "cpu.max").write_text("10000 100000\n")
    (machine / "meminfo").write_text("MemAvailable: 1000 kB\n")
    assert resources.jobs(99) == 1


def test_quotas_of_the_first_version_of_control_groups(machine):
    for name, text in (("cpu.cfs_quota_us", "200000"), ("cpu.cfs_period_us", "100000")):
        (machine / "cpu").mkdir(exist_ok=True)
        (machine / "cpu" / name).write_text(text)
    assert resources.jobs(99) == 2
    (machine / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert resources.jobs(99) == 8


@pytest.mark.parametrize("limit", [1, 3])
def test_files_are_compiled_at_once_but_no_more_than_allowed(limit, tmp_path, monkeypatch):
    monkeypatch.setenv("MAX_JOBS", str(limit))
    monkeypatch.setattr(resources, "processors", lambda: 8)
    monkeypatch.setattr(resources, "free_memory", lambda: None)
    counter = tmp_path / "running"
    counter.mkdir()
    # Each compilation waits until as many run as may, and notes how many it saw.
    compiler = tmp_path / "cxx"
    compiler.write_text(
        f"""#!/bin/sh
case "$*" in *-c*part*.c*)
  touch "{counter}/$$"
  for i in 1 2 3 4 5 6 7 8 9 10; do
    n=$(ls "{counter}" | wc -l); echo $n >> "{tmp_path}/seen"
    [ $n -ge {limit} ] && break
    sleep 0.5
  done
  sleep 0.3
  rm "{counter}/$$";;
esac
exec c++ "$@"
"""
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("CXX", str(compiler))
    for number in range(3):
        (tmp_path / f"part{number}.c").write_text(f"int part{number}(void) {{ return 1; }}\n")
    built = cpp_jit.build("parts", sources=sorted(tmp_path.glob("part*.c")), output="parts.so")
    assert built.endswith("parts.so")
    assert max(map(int, (tmp_path / "seen").read_text().split())) == limit
