"""Typed views in C++ signatures: ``tp::In<T, 2>``, and those that may be absent or are lists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tensorplay.library.modules.spec import Form
from tpkernel.cpp.scalar_types import bare_type

__all__ = ["View", "expanded", "view_of"]

Direction = Literal["in", "out", "inout", "result"]

_DIRECTIONS: Mapping[str, Direction] = {
    "In": "in", "Out": "out", "InOut": "inout", "Result": "result",
}  # fmt: skip
_HEAD = re.compile(
    r"^(?:::)?(?P<space>tp::|std::)?(?P<head>[A-Za-z_]\w*)\s*<(?P<inside>.*)>$", re.DOTALL
)
_ENGINES = re.compile(
    r"^(?:::)?(?:tvm::)?(?:ffi::)(?P<head>Optional|Array|List)\s*<(?P<inside>.*)>$"
)
# Containers of others, and what stands for them here.
_INSTEAD: Mapping[str, str] = {
    "optional": "tp::Optional", "Optional": "tp::Optional", "vector": "tp::List",
    "span": "tp::List", "initializer_list": "tp::List", "array": "tp::List", "Array": "tp::List",
    "List": "tp::List",
}  # fmt: skip
_FORMS: Mapping[tuple[str, ...], Form] = {
    (): "",
    ("Optional",): "?",
    ("List",): "[]",
    ("List", "Optional"): "?[]",
}
_NESTED = (
    "tp::Optional<tp::In<T>> for Tensor?, tp::List<tp::In<T>> for Tensor[], and "
    "tp::List<tp::Optional<tp::In<T>>> for Tensor?[]"
)


@dataclass(frozen=True)
class View:
    """A typed view in a signature: ``tp::In<T, 2>`` is ``View("in", "T", 2)``.

    Attributes
    ----------
    direction, element, rank
        What it is for, its element type, and the number of dimensions, None for any.
    form
        Whether it may be absent or is a list of views.
    problem
        Why it cannot stand in a signature and what to write; empty where it can.
    """

    direction: Direction
    element: str
    rank: int | None
    form: Form = ""
    problem: str = ""

    def spelled(self, element: str) -> str:
        """Return the C++ type, whole, with another element type."""
        head = next(h for h, d in _DIRECTIONS.items() if d == self.direction)
        rank = "" if self.rank is None else f", {self.rank}"
        text = f"::tp::{head}<{element}{rank}>"
        for container in reversed(next(c for c, form in _FORMS.items() if form == self.form)):
            text = f"::tp::{container}<{text}>"
        return text


def view_of(cpp_type: str, *, opened: bool = True) -> View | None:
    """Read the type of a parameter; None for one without views.

    `opened` says whether the text has a ``using namespace tp``, or names of its own for it.
    """
    text = bare_type(cpp_type)
    containers: list[str] = []
    problem = ""
    while True:
        engines = _ENGINES.match(text)
        found = engines or _HEAD.match(text)
        if found is None:
            return None
        head, inside = found["head"], found["inside"].strip()
        space = "engine" if engines else (found["space"] or "").removesuffix("::")
        ours = space == "tp" or (not space and (opened or head in ("In", "Out", "InOut")))
        if head in _DIRECTIONS and ours:
            break
        if head in ("Optional", "List") and ours:
            containers.append(head)
        elif head in _INSTEAD and space in ("std", "engine", ""):
            inside = _arguments(inside)[0]
            containers.append(_INSTEAD[head].removeprefix("tp::"))
            problem = f"views are held by {_INSTEAD[head]}<…> here. Write {_NESTED}"
        else:
            return None
        text = bare_type(inside)
    arguments = _arguments(inside)
    element = bare_type(arguments[0])
    rank: int | None = None
    if len(arguments) > 2:
        problem = f"expected an element type and a rank, got {len(arguments)} arguments"
    elif len(arguments) == 2 and arguments[1] not in ("tp::any_rank", "any_rank", "-1"):
        if not arguments[1].isdigit():
            problem = (
                f"the rank is '{arguments[1]}', and guards need it before the compiler runs. Write "
                f"a number, as in tp::{head}<{element}, 2>, or leave it out"
            )
        else:
            rank = int(arguments[1])
    form = _FORMS.get(tuple(containers))
    if form is None and not problem:
        problem = f"no argument of a schema is like that. Write {_NESTED}"
    if "*" in cpp_type or "[" in re.sub(r"<.*>", "", cpp_type):
        problem = "a view is passed by value or by reference. Leave out the * or []"
    elif _DIRECTIONS[head] == "result" and containers:
        problem = "the kernel allocates one tensor by it. Write tp::Result<T>"
    return View(_DIRECTIONS[head], element, rank, form or "", problem)


def _arguments(inside: str) -> list[str]:
    """Split template arguments at their commas."""
    parts, depth = [""], 0
    for letter in inside:
        depth += (letter == "<") - (letter == ">")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [" ".join(p.split()) for p in parts]


def expanded(
    cpp_type: str,
    aliases: Mapping[str, str],
    templates: Mapping[str, tuple[tuple[str, ...], str]],
) -> str:
    """Return a type with the text's own names for types of views replaced by these.

    Parameters
    ----------
    cpp_type
        As it stands in the signature.
    aliases
        Name to type, of ``using Name = …``.
    templates
        Name to parameters and type, of ``template <typename T> using Name = …``.
    """
    text = cpp_type
    for _ in range(8):
        before = text
        text = re.sub(
            r"(?<![\w:])[A-Za-z_]\w*\b(?!\s*(?:<|::))", lambda m: aliases.get(m[0], m[0]), text
        )
        text = _with_templates(text, templates)
        if text == before:
            break
    return text if text != cpp_type and view_of(text) is not None else cpp_type


def _with_templates(text: str, templates: Mapping[str, tuple[tuple[str, ...], str]]) -> str:
    for name, (parameters, target) in templates.items():
        for found in re.finditer(rf"(?<![\w:]){re.escape(name)}\s*<", text):
            end = _closing(text, found.end())
            if end is None:
                continue
            given = dict(zip(parameters, _arguments(text[found.end() : end]), strict=False))
            return text[: found.start()] + _with_names(target, given) + text[end + 1 :]
    return text


def _with_names(text: str, given: Mapping[str, str]) -> str:
    return re.sub(r"\b\w+\b", lambda found: given.get(found[0], found[0]), text)


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for position in range(start, len(text)):
        depth += (text[position] == "<") - (text[position] == ">")
        if depth == 0:
            return position
    return None
