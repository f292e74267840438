"""What a cell shows while it builds: progress in its one output, messages as they are made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tensorplay.utils.cpp_jit import toolchain
from tests.tpkernel.notebook.test_owners import in_cell
from tests.tpkernel.shell import SOFTPLUS, Shell

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script is the compiler")

BROKEN = "int64_t f() {\n  return first;\n}\nint64_t g() { return second; }\n"
# Stands for the compiler: one message, a second of silence, another one.
SAYS = r"""
printf '<tpkernel cell>:3:10: error: first is missing\n' >&2
sleep 1.3
printf '<tpkernel cell>:5:23: error: second is missing\n' >&2
sleep 0.3
exit 1
"""


@pytest.fixture
def told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[Any]]]:
    """Return what the front end is told of the cell, message by message."""
    import comm

    found: list[list[Any]] = []

    def take(data: dict[str, Any]) -> None:
        assert data["cell_id"] == "one"
        found.append([(d["line"], d["message"]) for d in data["diagnostics"]])

    create = comm.create_comm

    def opened(target_name: str, data: dict[str, Any], **more: Any) -> Any:
        if target_name != "tpkernel.diagnostics":
            return create(target_name=target_name, data=data, **more)
        take(data)
        return SimpleNamespace(send=take, close=lambda deleting: found.append(["closed"]))

    monkeypatch.setattr(comm, "create_comm", opened)
    in_cell(shell, "one")
    yield found
    in_cell(shell, None)


FIRST = (3, "first is missing")
SECOND = (5, "second is missing")


def test_messages_come_while_the_compiler_runs_and_go_when_mended(
    shell: Shell, told: list[list[Any]], monkeypatch: pytest.MonkeyPatch
):
    assert shell.kernel(SOFTPLUS, "--no-check").error is None
    assert told == []
    with monkeypatch.context() as stub:
        stub.setattr(toolchain, "_within_limits", lambda *_: ("/bin/sh", "-c", SAYS))
        ran = shell.kernel(BROKEN, "--no-check")
    assert told == [[FIRST], [FIRST, SECOND], ["closed"]]
    assert type(ran.error).__name__ == "BuildError"
    # Progress and messages are one output, which the front end replaces.
    progress, last = ran.outputs
    assert progress.data["text/plain"] == "compiling, 1 s …"
    assert "second is missing" in last.data["text/plain"]
    assert (progress.update, last.update) == (False, True)
    assert progress.transient == last.transient
    told.clear()
    assert shell.kernel("int64_t f() { return 1; }", "--no-check").error is None
    assert told == []  # its outputs are cleared when it runs; there is nothing to take back


def test_what_was_told_and_is_no_longer_so_is_taken_back(
    shell: Shell, told: list[list[Any]], monkeypatch: pytest.MonkeyPatch
):
    """Such as a message of an attempt after which another one built."""
    from tpkernel.notebook.output import CellOutput

    output = CellOutput(shell.ip, "one", "In[1]")
    output.messages.tell([{"line": 3, "message": "early"}])
    output.messages.tell([{"line": 3, "message": "early"}])
    output.messages.tell([])
    output.messages.close()
    assert told == [[(3, "early")], [], ["closed"]]


def test_without_a_front_end_nothing_is_told(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(toolchain, "_within_limits", lambda *_: ("/bin/sh", "-c", SAYS))
    ran = shell.kernel(BROKEN + "// plain", "--no-check")
    assert type(ran.error).__name__ == "BuildError"
    assert ran.outputs == []
