"""Declarations and sources of an operator module, read as one text with places in its files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, ClassVar

import yaml

from tensorplay.library.modules.spec import CellSpec, Declaration, OperatorSpec
from tpkernel.cells.cell import KEYS, Cell, EntriesReader, FrontMatter, parse_cell
from tpkernel.cells.entries import EntryReader
from tpkernel.cells.reading import CellReader, Options
from tpkernel.cpp.functions import Source, parse_source
from tpkernel.errors import CellError, did_you_mean

__all__ = ["MODULE_KEYS", "Document", "ModuleCell", "read_documents", "read_module"]

#: What an entry of a yaml file may have besides the keys of a cell's front matter.
MODULE_KEYS: Mapping[str, str] = {
    "func": "the schema, as op",
    "dispatch": "device to C++ function, such as {CPU: scale_add_cpu}",
    "autograd": "Python function of the gradient, as package.module:function",
    "fake": "Python function of the fake kernel, as package.module:function",
}
_CALLABLE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?::[A-Za-z_]\w*|\.[A-Za-z_]\w*)")


@dataclass(frozen=True)
class Document:
    """One file: its name as messages have it, its text, and the module's number of its line 1."""

    name: str
    text: str
    first: int = 1

    @property
    def lines(self) -> list[str]:
        """The text's lines."""
        return self.text.split("\n")

    @property
    def end(self) -> int:
        """The module's number of the line after the last one."""
        return self.first + len(self.lines)


@dataclass(frozen=True)
class ModuleCell(Cell):
    """Several files read as one cell: lines count through all of them, errors name the file.

    Attributes
    ----------
    documents
        The files, in the order of their lines.
    """

    noun: ClassVar[str] = "module"

    documents: tuple[Document, ...] = ()

    def place(self, line: int) -> tuple[Document, int]:
        """Return the file that holds a line of the module, and the line's number there."""
        for document in self.documents:
            if line < document.end:
                return document, line - document.first + 1
        last = self.documents[-1]
        return last, len(last.lines)

    def placed(self, operator: OperatorSpec) -> OperatorSpec:
        """Return an operator whose lines, also those in words, are those of its file."""

        def words(found: re.Match[str]) -> str:
            document, number = self.place(int(found[1]))
            return f"line {number} of {PurePath(document.name).name}"

        kernel = operator.kernel
        arguments = [
            replace(a, because=re.sub(r"line (\d+)", words, a.because)) for a in kernel.arguments
        ]
        kernel = replace(kernel, arguments=tuple(arguments), line=self.place(kernel.line)[1])
        derivatives = [replace(d, line=self.place(d.line)[1]) for d in operator.derivatives]
        line = self.place(operator.line)[1]
        return replace(operator, kernel=kernel, derivatives=tuple(derivatives), line=line)

    def line_text(self, line: int) -> str | None:
        """Return the text of a line of the module."""
        document, number = self.place(line)
        return document.lines[number - 1].rstrip("\r")

    def error(
        self,
        message: str,
        *,
        line: int | None = None,
        column: int | None = None,
        subject: str | None = None,
    ) -> CellError:
        """Make a :class:`CellError` that points into one of the files."""
        document, number = self.place(line or 1)
        made = CellError(message, line=number, column=column, subject=subject)
        return made.locate(document.name, self.line_text(line or 1))


class _DeclarationsReader(EntriesReader):
    what = "the file"
    word = "key"
    keys: Mapping[str, str] = {**KEYS, **MODULE_KEYS}

    def root(self, root: yaml.Node, loader: yaml.SafeLoader) -> tuple[FrontMatter, ...]:
        """Read a list of entries, a document with ``ops:``, or one entry."""
        if isinstance(root, yaml.SequenceNode):
            return self.listed(root, loader, self.line(root))
        return super().root(root, loader)


def read_documents(declarations: Document | None, sources: Sequence[Document]) -> ModuleCell:
    """Read the files of a module.

    Parameters
    ----------
    declarations
        The yaml file; entries may also stand in the front matter of sources.
    sources
        C++ files.

    Raises
    ------
    CellError
        A file is not valid YAML, or has an unknown key.
    """
    documents: list[Document] = []
    entries: list[FrontMatter] = []
    parts: list[Source] = []
    flags: list[str] = []
    includes: list[str] = []
    if declarations is not None:
        documents.append(declarations)
        text = declarations.text
        entries += _DeclarationsReader(text, 1, declarations.name, text, 1).entries()
    for source in sources:
        first = documents[-1].end if documents else 1
        documents.append(replace(source, first=first))
        own = parse_cell(source.text, name=source.name)
        entries += [_moved(entry, first - 1) for entry in own.entries]
        parts.append(parse_source(source.text, first_line=first))
        flags += own.flags
        includes += own.includes
    aliases: dict[str, str] = {}
    for part in parts:
        for name, kind in part.aliases.items():
            if aliases.setdefault(name, kind) != kind:
                aliases[name] = ""  # two files mean two things, so nothing follows from it
    return ModuleCell(
        text="\n".join(d.text for d in documents),
        name=documents[0].name if documents else "module",
        first_line=1,
        entries=tuple(entries),
        source=Source(
            functions=tuple(f for part in parts for f in part.functions),
            classes=frozenset().union(*(part.classes for part in parts)),
            aliases={name: kind for name, kind in aliases.items() if kind},
            drops_const=any(part.drops_const for part in parts),
            runs_on_load=any(part.runs_on_load for part in parts),
        ),
        flags=tuple(flags),
        includes=tuple(includes),
        documents=tuple(documents),
    )


def _moved(entry: FrontMatter, by: int) -> FrontMatter:
    lines = {key: line + by for key, line in entry.lines.items()}
    return FrontMatter(entry.values, lines, entry.line + by)


def read_module(cell: ModuleCell, options: Options) -> CellSpec:
    """Read the operators of a module.

    Raises
    ------
    CellError
        A declaration and its function do not fit; the text begins with file and line.
    """
    if not cell.entries:
        message = (
            "no operator is declared. Write entries such as '- op: mylib::f(Tensor x) -> Tensor' "
            "in a yaml file, or front matter /*--- op: … ---*/ in the source"
        )
        raise cell.error(message)
    reader = _ModuleReader(cell, options)
    plain: list[FrontMatter] = []
    declared: list[Declaration] = []
    callables: dict[str, tuple[FrontMatter, Mapping[str, str]]] = {}
    for given in cell.entries:
        entry = reader.common(given)
        schema = EntryReader(CellReader(cell, options), entry).schema()
        found = reader.callables(entry)
        callables[schema.qualname] = (entry, found)
        problem = reader.missing_kernel(entry, schema.qualname, [a.type for a in schema.arguments])
        if problem is None:
            plain.append(entry)
        else:
            doc = str(entry.values.get("doc", "")).strip()
            made = Declaration(
                schema.qualname, str(schema), doc, found, problem, entry.line_of("op")
            )
            declared.append(made)
    spec = CellSpec(cell.name, (), ())
    if plain:
        spec = CellReader(replace(cell, entries=tuple(plain)), options).read()
    operators = [reader.finished(o, *callables.get(o.name, (None, {}))) for o in spec.operators]
    names: dict[str, str] = {}
    every: list[OperatorSpec | Declaration] = [*operators, *declared]
    for operator in every:
        short = operator.name.split("::")[1]
        if short in names:
            message = f"the name '{short}' is declared twice: a module has one operator of a name"
            raise cell.error(message, line=operator.line, subject=operator.name)
        names[short] = operator.name
    return replace(spec, operators=tuple(operators), declarations=tuple(declared))


class _ModuleReader:
    """What entries of a yaml file may say besides what a cell's front matter may."""

    def __init__(self, cell: ModuleCell, options: Options) -> None:
        self.cell = cell
        self.options = options

    def common(self, entry: FrontMatter) -> FrontMatter:
        """Return an entry with `func` and `dispatch` in the words of front matter."""
        values, lines = dict(entry.values), dict(entry.lines)
        for old, new in (("func", "op"), ("dispatch", "kernel")):
            if old not in values:
                continue
            if new in values:
                message = f"'{old}' and '{new}' say the same; keep one"
                raise self.cell.error(message, line=lines[old])
            values[new] = values[old] if old == "func" else self.symbol(entry)
            lines[new] = lines[old]
        return FrontMatter(values, lines, entry.line)

    def symbol(self, entry: FrontMatter) -> Any:
        """Return the C++ function that `dispatch` names; empty where it names none."""
        value = entry.values["dispatch"]
        if value is None:
            value = {}
        line = entry.line_of("dispatch")
        if not isinstance(value, Mapping):
            message = f"dispatch must map a device to a C++ function, as {{CPU: f}}, got {value!r}"
            raise self.cell.error(message, line=line)
        for device in value:
            if str(device).lower() != "cpu":
                message = (
                    f"device '{device}' under dispatch{did_you_mean(str(device), ['CPU'])} The "
                    "kernels of an operator module are C++ and run on CPU."
                )
                raise self.cell.error(message, line=entry.line_of(f"dispatch.{device}"))
        return next(iter(value.values()), "")

    def missing_kernel(self, entry: FrontMatter, name: str, kinds: Sequence[Any]) -> str | None:
        """Return what a call raises where the entry has no kernel to call, else None."""
        if "dispatch" not in entry.values:
            return None
        if not entry.values["kernel"]:
            return ""
        if any(kind.base == "Tensor" for kind in kinds):
            return None
        return (
            f"[{name}] no Tensor argument: dispatch chooses a kernel by the device of a tensor, "
            "and the schema has none. Write 'kernel:' instead of 'dispatch:' for one that needs "
            "none."
        )

    def callables(self, entry: FrontMatter) -> dict[str, str]:
        """Read `autograd` and `fake`."""
        found: dict[str, Any] = {}
        if "fake" in entry.values:
            found["fake"] = entry.values["fake"]
        value = entry.values.get("autograd")
        if isinstance(value, Mapping):
            unknown = [k for k in value if k not in ("backward", "setup_context")]
            if unknown or "backward" not in value:
                message = (
                    "autograd must name a function, or map 'backward' and 'setup_context' to one "
                    f"each, got {dict(value)!r}"
                )
                raise self.cell.error(message, line=entry.line_of("autograd"))
            found["autograd"] = value["backward"]
            if "setup_context" in value:
                found["setup_context"] = value["setup_context"]
        elif value is not None:
            found["autograd"] = value
        for key, text in found.items():
            if not isinstance(text, str) or not _CALLABLE.fullmatch(text):
                message = (
                    f"'{key}' must name a Python function as package.module:function, got {text!r}"
                )
                at = entry.line_of("fake" if key == "fake" else "autograd")
                raise self.cell.error(message, line=at)
        return found

    def finished(
        self, spec: OperatorSpec, entry: FrontMatter | None, callables: Mapping[str, str]
    ) -> OperatorSpec:
        """Return an operator with its Python functions."""
        if entry is None or spec.helper or not callables:
            return spec
        if "autograd" in callables and spec.derivatives:
            message = "the gradient is given by autograd, and by derivatives or a C++ function too"
            raise self.cell.error(message, line=entry.line_of("autograd"), subject=spec.name)
        return replace(spec, callables=dict(callables))
