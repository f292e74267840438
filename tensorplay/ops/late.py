"""Functions whose text is written and compiled when they are first called, or looked at.

There are several hundred functions of operators, and a program calls few of them.
"""

from __future__ import annotations

import inspect
import linecache
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["late_function"]


def _first_call(*args: Any, **kwargs: Any) -> Any:
    # Runs with the namespace of the late function, which `late_function` fills.
    return complete()(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821 - see above


def late_function(
    name: str,
    filename: str,
    write: Callable[[], str],
    namespace: dict[str, Any],
    *,
    now: bool = False,
) -> Any:
    """Return a function that becomes the one of a text.

    Parameters
    ----------
    name
        Name of the function that the text defines.
    filename
        What tracebacks show.
    write
        Returns the text.
    namespace
        The names that the text reads; becomes the globals of the function.
    now
        Compile at once. The first call of the others has more frames in its traceback.
    """

    def complete() -> Any:
        source = write()
        code = compile(source, filename, "exec")
        own = dict(namespace)
        exec(code, own)  # noqa: S102 - text made from a schema
        real = own[name]
        linecache.cache[filename] = (
            len(source),
            None,
            source.splitlines(keepends=True),
            filename,
        )
        # Another thread may be calling it: the old code does with any defaults, the new does not.
        made.__defaults__ = real.__defaults__
        made.__kwdefaults__ = real.__kwdefaults__
        made.__code__ = real.__code__
        return made

    namespace["complete"] = complete
    made: Any = FunctionType(_first_call.__code__.replace(co_filename=filename), namespace, name)
    if now:
        return complete()
    made.__signature__ = _LateSignature(complete)
    return made


class _LateSignature(inspect.Signature):
    """The signature of a function that is completed when it is asked for."""

    __slots__ = ("_complete", "_found")

    def __init__(self, complete: Callable[[], Any]) -> None:
        self._complete = complete
        self._found: Any = None
        self._return_annotation = inspect.Signature.empty

    @property
    def _parameters(self) -> Any:
        if self._found is None:
            made = self._complete()
            made.__dict__.pop("__signature__", None)
            self._found = inspect.signature(made).parameters
        return self._found

    def _whole(self) -> inspect.Signature:
        return inspect.Signature(tuple(self.parameters.values()))

    def replace(self, **changes: Any) -> inspect.Signature:  # type: ignore[override]  # whatever can change
        """Return a signature with these changes."""
        return self._whole().replace(**changes)

    def __reduce__(self) -> Any:
        return self._whole().__reduce__()
