"""Signatures of what a cell binds: one builder for Python's view of a schema or a C++ function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any

from tensorplay.ops.schema import DtypeName, FunctionSchema

__all__ = ["make_signature", "parameters_text", "schema_signature"]

EMPTY = inspect.Parameter.empty


def make_signature(parameters: Iterable[tuple[str, Any, bool]]) -> inspect.Signature:
    """Return a signature.

    Parameters
    ----------
    parameters
        Name, default (or :data:`EMPTY`) and whether it is keyword-only, in order. A positional
        default in front of a parameter without one is left out, as no call could use it.
    """
    listed = list(parameters)
    positional = [default for _, default, keyword_only in listed if not keyword_only]
    first = next((i for i in range(len(positional), 0, -1) if positional[i - 1] is EMPTY), 0)
    made = []
    place = 0
    for name, default, keyword_only in listed:
        if keyword_only:
            made.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
            continue
        given = default if place >= first else EMPTY
        made.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=given))
        place += 1
    return inspect.Signature(made)


def schema_signature(schema: FunctionSchema) -> inspect.Signature:
    """Return the signature of a Python function with the arguments of a schema."""
    return make_signature(
        (a.name, a.default if a.has_default else EMPTY, a.kwarg_only) for a in schema.arguments
    )


def parameters_text(signature: inspect.Signature) -> str:
    """Return the parameters as Python source in which ``tp`` and ``math`` are known."""
    parts = []
    starred = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        default = "" if parameter.default is EMPTY else f"={_source(parameter.default)}"
        parts.append(parameter.name + default)
    return ", ".join(parts)


def _source(value: Any) -> str:
    """Return a default as Python source."""
    if isinstance(value, float) and not math.isfinite(value):
        return "math.nan" if math.isnan(value) else f"{'-' if value < 0 else ''}math.inf"
    if isinstance(value, DtypeName):
        return f"tp.{value.name}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_source, value))}]"
    return repr(value)
