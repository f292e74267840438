"""How many compilers may run at once: the share of the machine that this process was given."""

from __future__ import annotations

import os
from pathlib import Path

#: Memory of one compiler with a unit of heavy headers.
_MEMORY_OF_JOB = 2**30
_CONTROL = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")


def jobs(wanted: int) -> int:
    """Return how many of some jobs to run at once, at least one.

    The smallest of what is wanted, the processors granted, the free memory in GiB, and
    ``MAX_JOBS``.
    """
    limits = [wanted, processors()]
    memory = free_memory()
    if memory is not None:
        limits.append(memory // _MEMORY_OF_JOB)
    asked = os.environ.get("MAX_JOBS", "").strip()
    if asked.isdigit():
        limits.append(int(asked))
    return max(1, min(limits))


def processors() -> int:
    """Return the processors this process may use, by its affinity and its container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _quota()
    return max(1, min(count, int(quota))) if quota is not None else count


def _quota() -> float | None:
    """Return the processors' worth of time that the control group grants, or None."""
    text = _read(_CONTROL / "cpu.max")  # version 2: "200000 100000" or "max 100000"
    if text is not None:
        quota, _, period = text.partition(" ")
    else:
        quota = _read(_CONTROL / "cpu" / "cpu.cfs_quota_us") or ""
        period = _read(_CONTROL / "cpu" / "cpu.cfs_period_us") or ""
    if not (quota.isdigit() and period.isdigit()) or int(period) == 0:
        return None  # "max", "-1" or no such file
    return int(quota) / int(period)


def free_memory() -> int | None:
    """Return the bytes that may still be used, or None where nothing says it."""
    lines = (_read(_MEMORY) or "").splitlines()
    found = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = _read(_CONTROL / limit_file), _read(_CONTROL / used_file)
        if limit and used and limit.isdigit() and used.isdigit():
            found.append(max(0, int(limit) - int(used)))
    return min(found, default=None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
