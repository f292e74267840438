"""Every hostile kernel in one notebook, under all checks: the kernel of the notebook survives."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.tpkernel.checks.test_hostile_kernels import CELL, HOSTILE
from tests.tpkernel.kernel import Session, kernel_session
from tests.tpkernel.shell import SOFTPLUS

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system"),
]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with kernel_session() as made:
        made.run("import os, tpkernel; pid, folder = os.getpid(), os.getcwd(); precious = [1, 2]")
        yield made


@pytest.mark.parametrize("name", HOSTILE)
def test_a_notebook_survives_and_is_told(session: Session, name: str):
    body, code, part = HOSTILE[name]
    flags = " -- -fopenmp" if "omp" in body else ""
    shown = session.run(f"%%tpkernel --budget 6{flags}\n{CELL.replace('BODY', body)}")
    assert "cell::hostile" in shown
    told = session.run(
        "found = [f for f in tpkernel.last_report().findings if f.level == 'error' or"
        " f.code == 'not_finished']\n"
        "print([f.code for f in found]); print(*(f.message for f in found))"
    )
    assert f"'{code}'" in told
    assert part in told
    alive = "print(os.getpid() == pid, os.getcwd() == folder, precious)"
    assert session.run(alive) == "True True [1, 2]\n"


def test_the_next_cell_is_judged_rightly(session: Session):
    session.run(f"%%tpkernel --recheck\n{SOFTPLUS}")
    assert session.run("print(tpkernel.last_report().ok)") == "True\n"
