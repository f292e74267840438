"""Kernels that are called in a process of their own: ``--isolate`` and ``--sanitize``.

The functions here stand for those of a library that is not loaded in the session. A call hands its
arguments over, and brings back the result and what the kernel has written. A kernel that crashes
ends the other process and raises :class:`~tpkernel.errors.KernelCrash` in the session.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.spec import CellSpec, KernelSpec
from tensorplay.utils.cpp_jit.kernel import tell
from tpkernel.building.sanitizers import sanitizer_environment
from tpkernel.errors import KernelCrash
from tpkernel.worker.process import Worker
from tpkernel.worker.transfer import Packet, TransferError, described, pack, rebuilt_error, unpack

__all__ = ["isolated_kernels", "isolating_worker"]

_workers: dict[tuple[str, ...], Worker] = {}
_workers_lock = threading.Lock()


def isolating_worker(sanitizers: tuple[str, ...] = ()) -> Worker:
    """Return the session's worker for isolated calls, one for each choice of sanitizers."""
    with _workers_lock:
        if sanitizers not in _workers:
            environment = sanitizer_environment(sanitizers) if sanitizers else None
            made = Worker(environment=environment, sanitized=bool(sanitizers))
            _workers[sanitizers] = made
            atexit.register(made.close)
        return _workers[sanitizers]


class IsolatedKernel:
    """One exported function of a library that another process has loaded."""

    def __init__(
        self,
        kernel: KernelSpec,
        spec: CellSpec,
        library: str,
        worker: Worker,
        excerpt: Callable[[str], str],
    ) -> None:
        self.kernel = kernel
        self.spec = spec
        self.library = library
        self.worker = worker
        self.excerpt = excerpt
        #: Told of what a call raises, as a kernel of this process tells it.
        self.on_error: Callable[[BaseException], object] | None = None
        self.names = [a.name for a in kernel.arguments]
        self.written = tuple(
            i
            for i, a in enumerate(kernel.arguments)
            if a.kind == "tensor" and a.writes is not False
        )

    def __repr__(self) -> str:
        return f"<isolated kernel {self.kernel.title}>"

    def __call__(self, *args: Any) -> Any:
        """Call the kernel there.

        Raises
        ------
        KernelCrash
            The kernel ended that process.
        TypeError
            An argument or a result that cannot be handed over.
        """
        try:
            return self._called(*args)
        except Exception as problem:
            tell(self.on_error, problem)
            raise

    def _called(self, *args: Any) -> Any:
        title = self.kernel.title
        try:
            packet = pack(args)
        except TransferError as problem:
            message = f"[{title}] {problem}. Run the cell without --isolate."
            raise TypeError(message) from None
        during = f"the call {title}({described(self.names, args)})"
        try:
            kind, value = self.worker.call(
                self.spec, self.library, self.kernel.export, packet, self.written, during
            )
        except KernelCrash as crash:
            message = (
                f"[{title}] {str(crash).rstrip('.')}. The session goes on; the next call starts a "
                f"fresh worker.{self.excerpt(str(crash))}"
            )
            raise KernelCrash(
                message,
                signal=crash.signal,
                during=crash.during,
                ended=crash.ended,
                stack=crash.stack,
                report=crash.report,
            ) from None
        self.copy_back(args, value[2])
        if kind == "raised":
            raise rebuilt_error(value[0], value[1])
        position, result, _ = value
        return args[position] if position is not None else unpack(result)[0]

    def copy_back(self, args: tuple[Any, ...], packet: Packet) -> None:
        """Write what the kernel has changed into the session's own memory."""
        if not self.written:
            return
        for index, (value, after) in enumerate(zip(args, unpack(packet), strict=True)):
            if index in self.written:
                _write_back(value, after)


def _write_back(value: Any, after: Any) -> None:
    if isinstance(value, list):
        for member, changed in zip(value, after, strict=True):
            _write_back(member, changed)
    elif isinstance(value, tp.Tensor):
        value.detach().numpy()[...] = after.numpy()
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        value[...] = after


def isolated_kernels(
    spec: CellSpec, library: str, worker: Worker, excerpt: Callable[[str], str]
) -> SimpleNamespace:
    """Return a cell's functions as attributes, each called in another process.

    Parameters
    ----------
    spec, library
        The cell and its library.
    worker
        The process.
    excerpt
        Gives the cell's line that a message names.
    """
    return SimpleNamespace(
        **{k.export: IsolatedKernel(k, spec, library, worker, excerpt) for k in spec.kernels}
    )
