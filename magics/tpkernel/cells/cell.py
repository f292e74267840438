"""A cell's text, read: front matter, C++ functions, and options written in the text.

Lines count as the person sees them. In a notebook the magic's line is line 1, so the text starts
at line 2; :func:`tpkernel.build` has no such line and starts at 1.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import yaml

from tensorplay.utils.cpp_jit.source import blank
from tpkernel.cells.words import WordsLoader
from tpkernel.cpp.functions import Function, Source, parse_source
from tpkernel.errors import CellError, did_you_mean

__all__ = ["FRONT_MATTER", "KEYS", "Cell", "EntriesReader", "FrontMatter", "parse_cell"]

#: Front-matter keys with one line each, as ``%%tpkernel?`` prints them.
KEYS: Mapping[str, str] = {
    "op": "the operator's schema, such as  mylib::softplus(Tensor x, float beta=1.0) -> Tensor",
    "ops": "a list of entries, each with its own op and the keys below",
    "kernel": "name of the C++ function (default: the operator's own name)",
    "shape": "shapes: x (as input x), [n, m], or {x: [n, k], w: [k, m], out: [n, m]}",
    "out_dtype": "dtype of the outputs, where it is not the views' element type",
    "dtypes": "admitted dtypes of the kernel's template parameters (default [float32, float64])",
    "devices": "devices the kernel runs on: cpu, in a CUDA cell cuda",
    "launch": "of a CUDA kernel: grid, block, shared, and parameters that are sizes",
    "layout": "contiguous, strided, or copy: strided inputs are copied (default: as it is indexed)",
    "derivatives": "one formula per input, in tensor operations, inputs, grad and result",
    "output_differentiability": "which outputs have a gradient, such as [True, False]",
    "surrogate_gradient": "why a gradient is deliberately not the derivative; for all, or {x: why}",
    "samples": "a list of example arguments for the checks, such as {x: 'randn(3, 4)', beta: 0.5}",
    "reference": "what its times are compared with: an expression, or module:function",
    "doc": "text for help() and the report",
}

#: Where front matter begins; it ends at ``---*/``.
FRONT_MATTER = re.compile(r"^[ \t]*/\*---[ \t]*\r?\n", re.MULTILINE)
# What looks like a space or a colon and is none to YAML.
_ODD = re.compile("[\u00a0\u1680\u2000-\u200f\u202f\u205f\u2060\u3000\ufeff\uff1a\ufe55]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAGIC = re.compile(r"^%%(?P<name>[A-Za-z_]\w*)", re.MULTILINE)
_OPTION = re.compile(
    r"^[ \t]*//[ \t]*tpkernel:[ \t]*(?P<name>[\w-]+)[ \t]*=[ \t]*(?P<value>.*?)[ \t]*$"
)


@dataclass(frozen=True)
class FrontMatter:
    """One operator's entry: plain values, and the cell line of every key.

    Attributes
    ----------
    values
        Key to value as YAML gives it.
    lines
        Key to line; nested keys as ``"derivatives.x"``.
    line
        Line where the entry starts.
    """

    values: Mapping[str, Any]
    lines: Mapping[str, int]
    line: int

    def line_of(self, key: str) -> int:
        """Return the line of `key` (``"derivatives.x"`` for a nested one), or of the entry."""
        while key:
            if key in self.lines:
                return self.lines[key]
            key = key.rpartition(".")[0]
        return self.line


@dataclass(frozen=True)
class Cell:
    """A parsed cell.

    Attributes
    ----------
    text
        Everything after the magic's line, byte for byte.
    name
        What the person calls it, such as ``In[5]``.
    first_line
        The line number of the text's first line.
    entries
        Operators declared in front matter.
    source
        The C++ functions.
    flags
        Compiler flags from ``// tpkernel: flags = …`` lines at the top of the text.
    """

    #: What messages call it.
    noun: ClassVar[str] = "cell"

    text: str
    name: str
    first_line: int
    entries: tuple[FrontMatter, ...]
    source: Source
    flags: tuple[str, ...] = ()
    includes: tuple[str, ...] = field(default=())

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the cell defines."""
        return self.source.functions

    def function(self, name: str) -> Function | None:
        """Return the function called `name`, or None."""
        return next((f for f in self.functions if f.name == name), None)

    def line_text(self, line: int) -> str | None:
        """Return the text of a line counted as the person sees it."""
        lines = self.text.split("\n")
        at = line - self.first_line
        return lines[at].rstrip("\r") if 0 <= at < len(lines) else None

    def error(
        self,
        message: str,
        *,
        line: int | None = None,
        column: int | None = None,
        subject: str | None = None,
    ) -> CellError:
        """Make a :class:`CellError` that points into this cell."""
        made = CellError(message, line=line, column=column, subject=subject)
        return made.locate(self.name, self.line_text(line) if line else None)


def _plain(node: yaml.Node, loader: yaml.SafeLoader) -> Any:
    return loader.construct_object(node, deep=True)


class EntriesReader:
    """Reads YAML entries of operators and keeps the line of every key.

    Parameters
    ----------
    text, first_line
        The YAML and the number of its first line.
    name, whole, whole_first
        Name, text and first line of what it stands in, for messages.
    """

    #: What the text is called, and the keys that an entry may have.
    what = "front matter"
    word = "front-matter key"
    keys = KEYS

    def __init__(self, text: str, first_line: int, name: str, whole: str, whole_first: int) -> None:
        self.text = text
        self.first_line = first_line
        self.where = (name, whole.split("\n"), whole_first)

    def error(self, message: str, line: int, column: int | None = None) -> CellError:
        """Make an error at a line of the whole text."""
        name, lines, first = self.where
        at = line - first
        shown = lines[at].rstrip("\r") if 0 <= at < len(lines) else None
        return CellError(message, line=line, column=column).locate(name, shown)

    def entries(self) -> tuple[FrontMatter, ...]:
        """Read all entries.

        Raises
        ------
        CellError
            The text is not valid YAML, or has an unknown key.
        """
        try:
            loader = WordsLoader(self.text)
        except yaml.reader.ReaderError as problem:
            line = self.first_line + self.text[: problem.position].count("\n")
            message = f"{self.what} holds a character that YAML does not allow: {problem.reason}"
            raise self.error(message, line) from None
        try:
            root = loader.get_single_node()
        except RecursionError:
            message = f"{self.what} is nested too deeply"
            raise self.error(message, self.first_line) from None
        except yaml.MarkedYAMLError as problem:
            mark = problem.problem_mark or problem.context_mark
            line = self.first_line + (mark.line if mark else 0)
            column = mark.column + 1 if mark else None
            what = f"{problem.context}, {problem.problem}" if problem.context else problem.problem
            advice = "Write one 'key: value' per line."
            if "found character '\\t'" in str(what):
                what, advice = "a tab stands here", "Write spaces."
            elif isinstance(problem, yaml.composer.ComposerError):
                advice = ""
            message = f"{self.what} is not valid YAML: {what}. {advice}".strip()
            raise self.error(message, line, column) from None
        try:
            if root is None:
                return ()
            return self.root(root, loader)
        finally:
            loader.dispose()

    def line(self, node: yaml.Node) -> int:
        """Return the line of a node."""
        return self.first_line + int(node.start_mark.line)

    def root(self, root: yaml.Node, loader: yaml.SafeLoader) -> tuple[FrontMatter, ...]:
        """Read the whole text."""
        if not isinstance(root, yaml.MappingNode):
            message = f"{self.what} must be keys and values such as 'op: …'; got no key"
            odd = _ODD.search(self.text)
            if odd is None:
                raise self.error(message, self.line(root))
            name = unicodedata.name(odd[0], "")
            message = (
                f"the character U+{ord(odd[0]):04X} ({name}) stands here, which is neither a space "
                "nor a colon to YAML. Type it anew"
            )
            before = self.text[: odd.start()]
            column = odd.start() - before.rfind("\n")
            raise self.error(message, self.first_line + before.count("\n"), column)
        for key, value in root.value:
            if key.value != "ops":
                continue
            others = [k.value for k, _ in root.value if k.value != "ops"]
            if others:
                message = (
                    f"'{others[0]}' stands beside 'ops'; write it inside the entry it belongs to"
                )
                raise self.error(message, self.line(key))
            return self.listed(value, loader, self.line(key))
        return (self.entry(root, loader),)

    def listed(
        self, node: yaml.Node, loader: yaml.SafeLoader, line: int
    ) -> tuple[FrontMatter, ...]:
        """Read a list of entries."""
        if not isinstance(node, yaml.SequenceNode) or not all(
            isinstance(item, yaml.MappingNode) for item in node.value
        ):
            message = "'ops' must be a list of entries, each starting with '- op: …'"
            raise self.error(message, line)
        if not node.value:
            raise self.error("'ops' has no entry; write '- op: …' below it", line)
        return tuple(self.entry(item, loader) for item in node.value)

    def entry(self, node: yaml.MappingNode, loader: yaml.SafeLoader) -> FrontMatter:
        """Read one entry."""
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            line = self.line(key_node)
            if not isinstance(key, str):
                message = f"a {self.word} must be a word. Keys: {', '.join(self.keys)}."
                raise self.error(message, line, key_node.start_mark.column + 1)
            if key == "ops" and "ops" in self.keys:
                message = "'ops' cannot stand inside of an entry; list all operators in one"
                raise self.error(message, line, key_node.start_mark.column + 1)
            if key not in self.keys:
                message = (
                    f"unknown {self.word} '{key}'{did_you_mean(str(key), self.keys)} "
                    f"Keys: {', '.join(self.keys)}."
                )
                raise self.error(message, line, key_node.start_mark.column + 1)
            if key in values:
                raise self.error(f"{self.word} '{key}' stands here twice", line)
            try:
                values[key] = _plain(value_node, loader)
            except yaml.MarkedYAMLError as problem:
                mark = problem.problem_mark
                at = self.first_line + mark.line if mark else line
                message = f"the value of '{key}' is not valid YAML: {problem.problem}"
                raise self.error(message, at, mark.column + 1 if mark else None) from None
            except (ValueError, OverflowError, RecursionError) as problem:
                what = str(problem).split(";")[0].split(":")[0]
                message = f"the value of '{key}' cannot be read: {what}. Put text in quotes"
                raise self.error(message, line) from None
            lines[key] = line
            if isinstance(value_node, yaml.MappingNode):
                seen: set[str] = set()
                for inner, _ in value_node.value:
                    if not isinstance(inner.value, str):
                        continue
                    if inner.value in seen:
                        message = f"'{inner.value}' stands twice under '{key}'"
                        raise self.error(message, self.line(inner))
                    seen.add(inner.value)
                    lines[f"{key}.{inner.value}"] = self.line(inner)
            elif isinstance(value_node, yaml.SequenceNode):
                for position, item in enumerate(value_node.value):
                    lines[f"{key}.{position}"] = self.line(item)
        return FrontMatter(values, lines, self.line(node))


def parse_cell(text: str, *, name: str = "cell", first_line: int = 1) -> Cell:
    """Read a cell.

    Parameters
    ----------
    text
        The cell's text without the magic's line.
    name
        What messages call it, such as ``In[5]``.
    first_line
        The line number of the text's first line (2 below a magic).

    Raises
    ------
    CellError
        The front matter is not valid YAML, has an unknown key or lacks its end.
    """
    entries: tuple[FrontMatter, ...] = ()
    text = text.removeprefix("\ufeff")
    broken = _SURROGATE.search(text)
    if broken is not None:
        at = text[: broken.start()].count("\n")
        shown = text.split("\n")[at].encode("ascii", "backslashreplace").decode()
        message = (
            "half of a surrogate pair stands here, and no file can hold it; write the character"
        )
        raise CellError(message, line=first_line + at).locate(name, shown)
    found = FRONT_MATTER.search(text)
    if found is not None:
        start = found.end()
        end = text.find("---*/", start)
        line = first_line + text[:start].count("\n") - 1
        if end < 0:
            message = (
                "the front matter starts with /*--- and has no end; write ---*/ on its own line"
            )
            at = line - first_line
            raise CellError(message, line=line).locate(name, text.split("\n")[at].rstrip("\r"))
        reader = EntriesReader(text[start:end], line + 1, name, text, first_line)
        closed = text.find("*/", start, end)
        if closed >= 0:
            message = (
                "'*/' ends the comment here, so that the compiler takes the rest of the front "
                "matter for code. Write it apart, as in '* /'"
            )
            before = text[:closed]
            column = closed - before.rfind("\n")
            raise reader.error(message, first_line + before.count("\n"), column)
        second = FRONT_MATTER.search(text, end)
        if second is not None:
            message = (
                "a second front matter would not be read. List the operators in the first one, "
                "under 'ops:'"
            )
            raise reader.error(message, first_line + text[: second.start()].count("\n"))
        entries = reader.entries()
    _refuse_magic(text, name, first_line)
    return Cell(
        text=text,
        name=name,
        first_line=first_line,
        entries=entries,
        source=parse_source(text, first_line=first_line),
        flags=tuple(_text_flags(text, name, first_line)),
        includes=tuple(
            re.findall(r'^[ \t]*#[ \t]*include[ \t]*([<"][^>"]+[>"])', text, re.MULTILINE)
        ),
    )


def _refuse_magic(text: str, name: str, first_line: int) -> None:
    """Refuse a line such as ``%%time`` inside the C++, which a compiler cannot make sense of."""
    found = _MAGIC.search(blank(text)) if "%%" in text else None
    if found is None:
        return
    line = text[: found.start()].count("\n")
    where = "above %%tpkernel"
    if found["name"] == "tpkernel":
        where = "of a cell of its own"
    message = (
        f"'%%{found['name']}' is IPython's and no C++, and stands among the cell's text. Write it "
        f"on the line {where}"
    )
    shown = text.split("\n")[line].rstrip("\r")
    raise CellError(message, line=first_line + line, column=1).locate(name, shown)


def _text_flags(text: str, name: str, first_line: int) -> Sequence[str]:
    """Return flags given in ``// tpkernel: flags = …`` comments before the first code."""
    flags = []
    for offset, whole in enumerate(text.split("\n")):
        line = whole.rstrip("\r")
        found = _OPTION.match(line)
        if found is not None:
            if found["name"] != "flags":
                message = (
                    f"unknown option '{found['name']}' in a '// tpkernel:' comment; "
                    "only 'flags' can be given there"
                )
                raise CellError(message, line=first_line + offset).locate(name, line)
            flags.append(found["value"])
        elif line.strip() and not line.lstrip().startswith("//"):
            break
    return flags
