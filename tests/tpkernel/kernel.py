"""A kernel of a notebook, as a front end talks to it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

#: The first cell builds what all cells share, on a machine that may be busy.
_SECONDS = 90


@dataclass
class Session:
    """A kernel, and what it answered."""

    manager: KernelManager
    client: BlockingKernelClient
    shown: list[str] = field(default_factory=list)

    def start(self, code: str) -> str:
        self.shown.clear()
        return str(self.client.execute(code))

    def reply(self, request: str) -> dict[str, Any]:
        """Wait for a cell to end; collect the text of its displays and updates."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=_SECONDS)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if "data" in content:
                self.shown.append(str(content["data"].get("text/plain", content["data"])))
            if message["msg_type"] == "stream":
                self.shown.append(content["text"])
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                break
        while True:
            answer = self.client.get_shell_msg(timeout=_SECONDS)
            if answer["parent_header"].get("msg_id") == request:
                return dict(answer["content"])

    def wait_for(self, request: str, text: str) -> None:
        """Wait until a running cell has shown a text."""
        while not any(text in shown for shown in self.shown):
            message = self.client.get_iopub_msg(timeout=_SECONDS)
            content = message["content"]
            if message["parent_header"].get("msg_id") == request:
                self.shown.append(str(content.get("data", content.get("text", ""))))

    def run(self, code: str) -> str:
        answer = self.reply(self.start(code))
        assert answer["status"] == "ok", answer
        return "\n".join(self.shown)


@contextlib.contextmanager
def kernel_session() -> Iterator[Session]:
    """Start a kernel with the extension loaded, and end it."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=_SECONDS)
        made = Session(manager, client)
        made.run("%load_ext tensorplay")
        yield made
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
