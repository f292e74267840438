"""Operators beyond the notebook: libraries that load without a compiler, and packages."""
