"""What code reads and changes, found in its bytecode: names, and attributes behind them.

One pass over the instructions of a function finds every load of a global, of a variable of an
enclosing function, of a parameter or of an imported module, with the attributes and constant items
that are read right behind it; and what the code does that a graph cannot repeat.
"""

from __future__ import annotations

import dis
import functools
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

__all__ = ["Change", "Reading", "SuperUse", "readings"]


@dataclass(frozen=True)
class Reading:
    """One load: where it starts, and what is read behind it.

    Attributes
    ----------
    kind
        ``"global"``, ``"free"`` (a variable of an enclosing function), ``"local"`` (a parameter
        that keeps its value), ``"unknown"`` (another local variable) or ``"import"``.
    name
        Its name.
    path
        Attributes, as ``(".", name)``, and items, as ``("[", constant)``; the value itself is
        used if there are none.
    line
        Line of the source.
    """

    kind: str
    name: str
    path: tuple[tuple[str, Any], ...]
    line: int | None


@dataclass(frozen=True)
class Change:
    """Something that code does to the world: ``what``, to which variable, in which line.

    `in_place` tells that an attribute is assigned what an operator such as ``+=`` made of it; then
    `target` leads to its holder.
    """

    what: str
    target: Reading | None
    name: str
    line: int | None
    in_place: bool = False


@dataclass(frozen=True)
class SuperUse:
    """One use of `super`: kinds and names of the two variables it gets, and what is read of it.

    `name` is None where it is not written right behind, or the variables are not.
    """

    kind: tuple[str, str]
    owner: tuple[str, str]
    name: str | None
    line: int | None


@dataclass(frozen=True)
class Code:
    """All that is found in one code object, nested ones apart."""

    readings: tuple[Reading, ...]
    changes: tuple[Change, ...]
    names: frozenset[str]  # attributes read behind values that are not known
    supers: tuple[SuperUse, ...]


_SKIPPED: Final = frozenset(
    {
        "CACHE",
        "EXTENDED_ARG",
        "NOP",
        "RESUME",
        "PRECALL",
        "PUSH_NULL",
        "NOT_TAKEN",
        "COPY_FREE_VARS",
    }
)
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_GLOBALS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_FREE: Final = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE",
                          "LOAD_FROM_DICT_OR_DEREF"})  # fmt: skip
_GLOBAL_CHANGES: Final = {
    "STORE_GLOBAL": "assigns the global variable",
    "DELETE_GLOBAL": "deletes the global variable",
    "STORE_NAME": "assigns the variable",
}
_FREE_CHANGES: Final = {
    "STORE_DEREF": "assigns the variable of an enclosing function",
    "DELETE_DEREF": "deletes the variable of an enclosing function",
}
_ATTRIBUTE_CHANGES: Final = {
    "STORE_ATTR": "assigns the attribute",
    "DELETE_ATTR": "deletes the attribute",
}
_OTHERS: Final = {
    "LOAD_BUILD_CLASS": "defines a class",
    "IMPORT_STAR": "imports all names of a module",
    "GET_AWAITABLE": "awaits",
}


@functools.lru_cache(maxsize=4096)
def readings(code: CodeType) -> Code:
    """Return what `code` reads and changes."""
    found = [i for i in dis.get_instructions(code) if i.opname not in _SKIPPED]
    lines = _lines(code)
    imports = _imports(found)
    parameters = set(code.co_varnames[: _parameter_count(code)]) - _assigned(found)
    reads: list[Reading] = []
    changes: list[Change] = []
    names: set[str] = set()
    twice: list[tuple[str, Reading]] = []  # attributes that are read to be assigned: x.a += 1
    index = 0
    while index < len(found):
        instruction = found[index]
        name = instruction.opname
        line = lines.get(instruction.offset)
        starts = _starts(instruction, parameters, code)
        if starts:
            for kind, variable in starts[:-1]:
                reads.append(_imported(Reading(kind, variable, (), line), imports))
            kind, variable = starts[-1]
            path, following = _path(found, index + 1)
            reading = _imported(Reading(kind, variable, path, line), imports)
            reads.append(reading)
            if reading.kind == "unknown":
                names.update(v for mark, v in path if mark == ".")
            stop = found[following] if following < len(found) else None
            member = _read_to_assign(found, following)
            if member is not None:
                reads.append(Reading(reading.kind, reading.name, (*path, (".", member)), line))
                twice.append((member, reading))
            if stop is not None and stop.opname in _ATTRIBUTE_CHANGES:
                changes.append(
                    Change(_ATTRIBUTE_CHANGES[stop.opname], reading, str(stop.argval), line)
                )
                following += 1
            index = following
            continue
        if name in _ATTRIBUTES or name in {"LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"}:
            names.add(str(instruction.argval))
        elif (
            name == "STORE_ATTR"
            and twice
            and twice[-1][0] == instruction.argval
            and _is_in_place(found, index)
        ):
            assigned, holder = twice.pop()
            changes.append(Change(_ATTRIBUTE_CHANGES[name], holder, assigned, line, in_place=True))
        elif name in _ATTRIBUTE_CHANGES:
            changes.append(Change(_ATTRIBUTE_CHANGES[name], None, str(instruction.argval), line))
        elif name in _GLOBAL_CHANGES:
            changes.append(Change(_GLOBAL_CHANGES[name], None, str(instruction.argval), line))
        elif name in _FREE_CHANGES and instruction.argval in code.co_freevars:
            changes.append(Change(_FREE_CHANGES[name], None, str(instruction.argval), line))
        elif name in _OTHERS:
            changes.append(Change(_OTHERS[name], None, "", line))
        index += 1
    for (module, attribute), line in _import_lines(found, lines):
        path = () if attribute is None else ((".", attribute),)
        reads.append(Reading("import", module, path, line))
    supers = _supers(found, lines, parameters, code)
    return Code(tuple(reads), tuple(changes), frozenset(names), supers)


def _read_to_assign(found: list[Any], index: int) -> str | None:
    """Return the attribute that is read at `index` of an object that is still needed."""
    if index + 1 >= len(found):
        return None
    copy, load = found[index], found[index + 1]
    copied = copy.opname == "DUP_TOP" or (copy.opname == "COPY" and copy.arg == 1)
    return str(load.argval) if copied and load.opname in _ATTRIBUTES else None


def _is_in_place(found: list[Any], index: int) -> bool:
    """Tell whether what is assigned at `index` comes of an operator such as ``+=``."""
    if index < 2 or found[index - 1].opname not in {"SWAP", "ROT_TWO"}:
        return False
    made = found[index - 2]
    return made.opname.startswith("INPLACE_") or (
        made.opname == "BINARY_OP" and str(made.argrepr).endswith("=")
    )


def _supers(
    found: list[Any], lines: dict[int, int | None], parameters: set[str], code: CodeType
) -> tuple[SuperUse, ...]:
    uses: list[SuperUse] = []
    for index, i in enumerate(found):
        if i.opname not in _GLOBALS or i.argval != "super":
            continue
        loads: list[tuple[str, str]] = []
        rest = iter(found[index + 1 :])
        following = next(rest, None)
        while following is not None and (starts := _starts(following, parameters, code)):
            loads += starts
            following = next(rest, None)
        if following is not None and following.opname == "CALL" and following.arg == len(loads):
            following = next(rest, None)
            if not loads and code.co_argcount:
                first = code.co_varnames[0]
                loads = [("free", "__class__"), (_kind_of(first, parameters, code), first)]
        name = None
        if following is not None and (
            following.opname in _ATTRIBUTES or following.opname.startswith("LOAD_SUPER")
        ):
            name = str(following.argval)
        kind, owner = loads if len(loads) == 2 else [("unknown", "")] * 2
        uses.append(SuperUse(kind, owner, name, lines.get(i.offset)))
    return tuple(uses)


Imported = tuple[str, "str | None"]


def _walk_imports(found: list[Any]) -> list[tuple[Imported, str | None, Any]]:
    """Return what is imported: module and name in it, the variable that gets it, the step."""
    result: list[tuple[Imported, str | None, Any]] = []
    module = ""
    for index, i in enumerate(found):
        following = found[index + 1] if index + 1 < len(found) else None
        variable = (
            str(following.argval)
            if following is not None and following.opname == "STORE_FAST"
            else None
        )
        if i.opname == "IMPORT_NAME":
            level = found[index - 2].argval  # below it lie the names that are asked for
            module = "." * level + str(i.argval) if isinstance(level, int) else str(i.argval)
            if following is None or following.opname != "IMPORT_FROM":
                result.append(((module, None), variable, i))
        elif i.opname == "IMPORT_FROM":
            result.append(((module, str(i.argval)), variable, i))
    return result


def _imports(found: list[Any]) -> dict[str, Imported]:
    """Return the variables that imports alone assign, and what they hold."""
    every = _walk_imports(found)
    named = {variable: what for what, variable, _ in every if variable is not None}
    others = [
        i.argval for i in found
        if i.opname.startswith("STORE_FAST") and not isinstance(i.argval, tuple)
    ]  # fmt: skip
    return {v: what for v, what in named.items() if others.count(v) == 1}


def _import_lines(
    found: list[Any], lines: dict[int, int | None]
) -> list[tuple[Imported, int | None]]:
    return [(what, lines.get(i.offset)) for what, _, i in _walk_imports(found)]


def _imported(reading: Reading, imports: dict[str, Imported]) -> Reading:
    """Return a reading of an imported variable as one of the module."""
    what = imports.get(reading.name) if reading.kind == "unknown" else None
    if what is None:
        return reading
    module, attribute = what
    lead = () if attribute is None else ((".", attribute),)
    # `import a.b` gives `a`.
    name = module if attribute is not None else module.partition(".")[0]
    return Reading("import", name, (*lead, *reading.path), reading.line)


def _parameter_count(code: CodeType) -> int:
    count = code.co_argcount + code.co_kwonlyargcount
    return count + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)


def _lines(code: CodeType) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for start, end, line in code.co_lines():
        for offset in range(start, end, 2):
            found[offset] = line
    return found


def _assigned(found: list[Any]) -> set[str]:
    """Return the local variables that the code assigns or deletes."""
    names: set[str] = set()
    for i in found:
        if i.opname.startswith(("STORE_FAST", "DELETE_FAST", "STORE_DEREF", "DELETE_DEREF")):
            if isinstance(i.argval, tuple):
                if i.opname.startswith("STORE_FAST_LOAD"):
                    names.add(i.argval[0])
                else:
                    names.update(i.argval)
            else:
                names.add(i.argval)
    return names


def _starts(instruction: Any, parameters: set[str], code: CodeType) -> list[tuple[str, str]]:
    """Return kind and name of the variables that an instruction loads, the last on top."""
    name, value = instruction.opname, instruction.argval
    if name in _GLOBALS:
        return [("global", str(value))]
    if name in _FREE:
        if value in code.co_freevars:
            return [("free", str(value))]
        return [("local" if value in parameters else "unknown", str(value))]
    if name.startswith("LOAD_FAST") and name != "LOAD_FAST_AND_CLEAR":
        variables = value if isinstance(value, tuple) else (value,)
    elif name.startswith("STORE_FAST_LOAD_FAST"):
        variables = value[1:]
    else:
        return []
    return [(_kind_of(v, parameters, code), str(v)) for v in variables]


def _kind_of(variable: Any, parameters: set[str], code: CodeType) -> str:
    if variable in code.co_freevars:  # handed on to an inner function, from Python 3.13 on
        return "free"
    return "local" if variable in parameters else "unknown"


def _path(found: list[Any], index: int) -> tuple[tuple[tuple[str, Any], ...], int]:
    """Return the attributes and constant items that are read from `index` on, and where it ends."""
    path: list[tuple[str, Any]] = []
    while index < len(found):
        instruction = found[index]
        if instruction.is_jump_target:  # what is on the stack may come from elsewhere
            break
        if instruction.opname in _ATTRIBUTES:
            path.append((".", str(instruction.argval)))
            index += 1
            continue
        following = found[index + 1] if index + 1 < len(found) else None
        if (
            instruction.opname in {"LOAD_CONST", "LOAD_SMALL_INT"}
            and following is not None
            and (
                following.opname == "BINARY_SUBSCR"
                or (following.opname == "BINARY_OP" and "[" in str(following.argrepr))
            )
            and isinstance(instruction.argval, (str, int))
        ):
            path.append(("[", instruction.argval))
            index += 2
            continue
        break
    return tuple(path), index
