"""Exchange of memory with other libraries through DLPack, and aliases of read-only memory."""

from __future__ import annotations

from tensorplay._dlpack import from_dlpack, on_gpu, to_dlpack, writable_alias

__all__ = ["from_dlpack", "on_gpu", "to_dlpack", "writable_alias"]
