"""A cell's checks: run in the worker, or taken from what they have found before."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tpkernel.building.request import BuiltCell, Request
from tpkernel.checks.devices import NOT_HERE
from tpkernel.checks.kept import Found, keep, kept_for, records_key
from tpkernel.checks.memory import OUT_OF_MEMORY
from tpkernel.checks.suite import run_checks
from tpkernel.report.facts import Finding, GradcheckFacts, OpcheckFacts, ValidationRow
from tpkernel.report.report import Report
from tpkernel.worker.findings import (
    AT_EXIT,
    EARLIER_DAMAGE,
    EARLIER_THREAD,
    LEAVES_PROCESSES,
    LOWERS_LIMITS,
)
from tpkernel.worker.isolation import isolating_worker
from tpkernel.worker.process import Worker, shared_worker

__all__ = ["check", "checking_worker", "with_records"]

# What a busy machine ends is tried again, and so are chance, what left the worker in ruins, and
# what takes a GPU.
_TRIED_AGAIN = frozenset(
    {
        "crash",
        "hang",
        "sanitizer",
        OUT_OF_MEMORY,
        "non_deterministic",
        *AT_EXIT,
        EARLIER_DAMAGE,
        EARLIER_THREAD,
        LEAVES_PROCESSES,
        LOWERS_LIMITS,
        NOT_HERE,
    }
)


def check(
    cell: BuiltCell,
    *,
    checks: tuple[str, ...] | None = None,
    seed: int = 0,
    on_wait: Callable[[str], None] = lambda during: None,
) -> Found:
    """Run a cell's checks, in the worker unless the request says otherwise.

    An unchanged cell gets the records that the build cache keeps with its library.

    Parameters
    ----------
    cell
        The built cell.
    checks
        Which; None for those of the request.
    seed
        Seed of made samples.
    on_wait
        Called a few times a second with what is running.

    Returns
    -------
    Found
        Records of :mod:`tpkernel.checks.suite`; crashes and hangs are findings among them.
    """
    request = cell.request
    wanted = request.checks if checks is None else checks
    if not wanted or not cell.spec.own_operators():
        return Found(())
    if request.in_process:
        made = run_checks(
            cell.spec,
            cell.definitions,
            cell.kernels,
            checks=wanted,
            seed=seed,
            library=cell.library,
        )
        return Found(tuple(made))
    key = records_key(cell.spec, wanted, seed, request.sanitize)
    if not request.recheck and (found := kept_for(cell.library, key)) is not None:
        return found
    worker = checking_worker(request)
    records = worker.run(
        cell.spec,
        cell.library,
        checks=wanted,
        seed=seed,
        budget=request.budget,
        on_wait=on_wait,
    )
    if _holds_much(worker.pid):
        worker.close()  # the next cell's kernels would not get what they need
    shown = tuple(_with_excerpt(request, r) if isinstance(r, Finding) else r for r in records)
    if {r.code for r in shown if isinstance(r, Finding)}.isdisjoint(_TRIED_AGAIN):
        keep(cell.library, key, shown)
    return Found(shown)


def checking_worker(request: Request) -> Worker:
    """Return the worker that a cell's checks run in."""
    return isolating_worker(request.sanitize) if request.sanitize else shared_worker()


def _holds_much(pid: int | None) -> bool:
    """Whether a process holds over half of the memory that it may have, such as what was leaked."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        limits = Path(f"/proc/{pid}/limits").read_text()
    except OSError:  # it has ended, or this is no Linux
        return False
    held = re.search(r"^VmData:\s+(\d+) kB", status, re.MULTILINE)
    limit = re.search(r"^Max data size\s+(\d+)", limits, re.MULTILINE)
    return held is not None and limit is not None and 2 * 1024 * int(held[1]) > int(limit[1])


def _with_excerpt(request: Request, finding: Finding) -> Finding:
    """Add the cell's line to what a sanitizer says of it."""
    if finding.code != "sanitizer":
        return finding
    return dataclasses.replace(finding, message=finding.message + request.excerpt(finding.message))


def with_records(report: Report, found: Found, checks: Sequence[str]) -> Report:
    """Return the report with the results of `checks` replaced by what was found."""
    records: Sequence[Any] = found.records
    kept = tuple(f for f in report.findings if f.check not in checks)
    return dataclasses.replace(
        report,
        gradcheck=tuple(r for r in records if isinstance(r, GradcheckFacts))
        if "gradcheck" in checks
        else report.gradcheck,
        validation=tuple(r for r in records if isinstance(r, ValidationRow))
        if "validation" in checks
        else report.validation,
        opcheck=tuple(r for r in records if isinstance(r, OpcheckFacts))
        if "opcheck" in checks
        else report.opcheck,
        findings=(*kept, *(r for r in records if isinstance(r, Finding))),
        notes=(*report.notes, *found.notes),
    )
