"""Checks of what a source is asked to export, before a compiler runs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tensorplay.utils.cpp_jit.diagnostics import Diagnostic, Texts
from tensorplay.utils.cpp_jit.errors import BuildError
from tensorplay.utils.cpp_jit.source import Function, Scan, closest, names

_TYPES = "tvm::ffi::TensorView, bool, an integer, float, double or std::string"
_POINTERS = frozenset({"DLTensor*", "void*", "TVMFFIByteArray*"})
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")


def check_exports(exports: Iterable[str], source: Scan, preamble: Scan, texts: Texts) -> None:
    """Raise BuildError for an export that no compiler could make work.

    Only what is certain is refused: a name that occurs nowhere while nothing else could bring it
    in, and parameter types that cannot come from Python.
    """
    functions = {function.name: function for function in source.functions}
    words = names(source.code) | names(preamble.code)
    elsewhere = bool(source.local_includes or preamble.local_includes)
    found: list[Diagnostic] = []
    for name in exports:
        if not _IDENTIFIER.match(name):
            found.append(_at(texts, None, f"`{name}` is not the name of a C++ function"))
        elif name == "main":
            found.append(_at(texts, "main", "`main` cannot be exported; rename the function"))
        elif name in functions:
            found += _unsupported(functions[name], texts)
        elif name not in words and not elsewhere:
            nearest = closest(name, functions)
            hint = ""
            if nearest:
                hint = f"; did you mean `{nearest}`?"
            elif functions:
                hint = f"; the source defines {', '.join(f'`{n}`' for n in functions)}"
            found.append(_at(texts, nearest, f"no function `{name}`{hint}"))
    if found:
        raise BuildError("\n".join(str(d) for d in found), diagnostics=found)


def _unsupported(function: Function, texts: Texts) -> list[Diagnostic]:
    found = []
    for position, parameter in enumerate(function.parameters):
        type_ = parameter.type.replace(" *", "*").replace(" &", "&")
        shown = f"`{parameter.name}`" if parameter.name else f"#{position}"
        if type_.endswith("*") and type_ not in _POINTERS and type_ != "const char*":
            reason = "a pointer cannot come from Python"
        elif type_.endswith("&") and not type_.endswith("&&") and "const" not in type_:
            reason = "a reference that can be written to cannot come from Python"
        else:
            continue
        message = f"`{function.name}`: parameter {shown} has type `{type_}`: {reason}; use {_TYPES}"
        found.append(_at(texts, function.name, message))
    return found


def _at(texts: Texts, word: str | None, message: str) -> Diagnostic:
    place = texts.find(word) if word else None
    line, column = place or (texts.lines[texts.own][0], None)
    return Diagnostic(
        line=line,
        column=column,
        level="error",
        message=message,
        file=texts.own,
        source_line=texts.line(texts.own, line) if place else None,
    )
