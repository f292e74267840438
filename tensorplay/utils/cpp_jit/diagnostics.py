"""Compiler and linker output as data, and the text that a person reads.

The text form of g++ and clang is parsed, not their JSON: it is the one form that every version of
both writes (g++ 15 dropped JSON, clang never had it). Sources carry ``#line`` directives, so the
file names and line numbers in the output are already the person's own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

Level = Literal["error", "warning", "note"]

_MESSAGE = re.compile(
    r"^(?P<file>(?:[A-Za-z]:)?[^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? "
    r"(?P<level>fatal error|error|warning|note|sorry, unimplemented|remark|optimized|missed): "
    r"(?P<text>.*)$"
)
_CONTEXT = re.compile(
    r"^(?:In file included from |\s+from )?(?P<file>(?:[A-Za-z]:)?[^:\n]*):(?P<line>\d+)"
    r"(?::(?P<column>\d+))?:\s+(?P<text>required (?:from|by).*|in .constexpr. expansion of.*)$"
)
#: A new block of g++: what an instantiation was asked for by no longer holds.
_ELSEWHERE = re.compile(r"^[^\n]*: (?:In|At) [^\n]*:$")
_INCLUDED = re.compile(
    r"^(?:(?P<first>In file included)|\s+) from (?P<file>(?:[A-Za-z]:)?[^:\n]*):(?P<line>\d+)"
    r"(?::\d+)?[,:]$"
)
#: Notes that lead from a header back to the text that asks for it, in the words of g++ and clang.
_ASKS = re.compile(
    r"called from here|(?:requested|required from) here|in (?:expansion|definition) of macro|"
    r"expanded from macro|macro .* defined here|in call to |during (?:template|concept) .* here"
)
_FIX = re.compile(r'^fix-it:"(?P<file>(?:[^"\\]|\\.)*)":\{[\d:-]+\}:"(?P<text>(?:[^"\\]|\\.)*)"$')
#: The front end of nvcc; the line below repeats the source, the next points at the column.
_NVCC = re.compile(
    r"^(?P<file>[^()\n]+)\((?P<line>\d+)\): (?P<level>catastrophic error|error|warning|remark|note)"
    r"(?: #[\w-]+)?: (?P<text>.*)$"
)
_NVCC_CARET = re.compile(r"^  (?P<blank> *)\^\s*$")
_NVCC_FATAL = re.compile(r"^(?:nvcc|ptxas|nvrtc|nvlink)\s*:?\s*(?:fatal|error)\s*: (?P<text>.*)$")
#: Microsoft's cl and link. The words before the numbers are in the language of the system.
_CL = re.compile(
    r"^(?P<file>(?:[A-Za-z]:)?[^:()\n]+)\((?P<line>\d+)(?:,(?P<column>\d+))?\)\s*: "
    r"(?:[^:\n]*?\s*(?P<code>C\d{4,5})|note|Hinweis|remarque)\s?: (?P<text>.*)$"
)
_LINK = re.compile(r"^(?P<file>.+?) : [^:\n]*?(?P<code>(?:LNK|D)\d{4})\s?: (?P<text>.*)$")
# A C++ symbol stands in quotes before its decorated form; a C symbol stands last.
_LINK_CPP = re.compile(r'"(?:[^"]*?__\w+ )?(?P<symbol>[^"]+)" \(\?')
_LINK_C = re.compile(r"(?P<symbol>[A-Za-z_]\w*)(?: referenced in function \S+)?$")
_UNDEFINED = re.compile(r"undefined reference to [`'‘](?P<symbol>.+?)['’]\s*$")
_UNDEFINED_LLD = re.compile(r"(?:ld\.lld|mold): error: undefined symbol: (?P<symbol>.+)$")
_LINKER = re.compile(r"^(?:\S*/)?(?:ld|ld\.\w+|mold|collect2)(?:\.exe)?: (?:error: )?(?P<text>.+)$")
_DRIVER = re.compile(
    r"^(?:\S*/)?(?:\S*g\+\+\S*|\S*clang\S*|cc1plus|c\+\+): (?:fatal )?error: (?P<text>.+)$"
)
#: What ``-fopt-info-vec`` of g++ and ``-Rpass`` of clang write: about a line, not about a message.
_REMARKS = frozenset({"remark", "optimized", "missed"})
_MAX_SHOWN = 10
#: Texts of a build that no person wrote.
MADE_TEXTS = frozenset({"<preamble>", "<generated>"})
_MAX_LINE = 160


@dataclass(frozen=True)
class Diagnostic:
    """One message of the compiler or the linker.

    Parameters
    ----------
    line, column
        Place in ``file``, from 1; line 0 where the tool named no place.
    level
        ``"error"``, ``"warning"`` or ``"note"``.
    message
        The tool's words, without its own name or options.
    notes
        What the tool added, each with its place if that is another one.
    fix
        Text that the compiler proposes to write, or None.
    file
        The name that the person gave the source (``In[5]``), or a path.
    source_line
        The line of text at ``line``, or None where it is not known.
    """

    line: int
    column: int | None
    level: Level
    message: str
    notes: tuple[str, ...] = ()
    fix: str | None = None
    file: str = ""
    source_line: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return dataclasses.asdict(self) | {"notes": list(self.notes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Diagnostic:
        """Return the diagnostic that `to_dict` described."""
        return cls(**{**data, "notes": tuple(data["notes"])})

    def __str__(self) -> str:
        place = self.file
        if self.line:
            place += f":{self.line}"
            if self.column:
                place += f":{self.column}"
        text = (
            f"{place}: {self.level}: {self.message}" if place else f"{self.level}: {self.message}"
        )
        if self.source_line is not None:
            text += "\n" + _excerpt(self.source_line, self.column)
        return "\n".join((text, *(f"  note: {note}" for note in self.notes)))


def _excerpt(line: str, column: int | None) -> str:
    """Return a source line, cut around the column where it is long, with a caret below."""
    line = line.expandtabs(1)
    start = 0
    at = (column or 1) - 1
    if len(line) > _MAX_LINE:
        start = max(0, min(at - _MAX_LINE // 2, len(line) - _MAX_LINE))
        line = line[start : start + _MAX_LINE]
    text = f"    {line.rstrip()}"
    if column:
        text += "\n    " + " " * (at - start) + "^"
    return text


@dataclass(frozen=True)
class Texts:
    """The sources of one build by the names that the compiler sees.

    Parameters
    ----------
    own
        Name of the person's source, which comes first in what is shown.
    lines
        Per name: the number of the first line and the lines.
    """

    own: str
    lines: Mapping[str, tuple[int, Sequence[str]]]

    def line(self, file: str, number: int) -> str | None:
        """Return one line of a source of this build or of a file, or None."""
        if file in self.lines:
            first, lines = self.lines[file]
            return lines[number - first] if 0 <= number - first < len(lines) else None
        try:
            lines = Path(file).read_text("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            return None
        return lines[number - 1] if 0 < number <= len(lines) else None

    def is_written(self, file: str) -> bool:
        """Whether a person wrote the text: theirs, or one that it brings along."""
        return file in self.lines and file not in MADE_TEXTS

    def find(self, word: str) -> tuple[int, int] | None:
        """Return line and column of a word in the person's source, or None."""
        first, lines = self.lines.get(self.own, (1, ()))
        pattern = re.compile(rf"\b{re.escape(word)}\b")
        for offset, line in enumerate(lines):
            if found := pattern.search(line):
                return first + offset, found.start() + 1
        return None


@dataclass
class _Draft:
    """A diagnostic under construction."""

    file: str
    line: int
    column: int | None
    level: Level
    message: str
    notes: list[str] = dataclasses.field(default_factory=list)
    fix: str | None = None

    def finish(self, texts: Texts) -> Diagnostic:
        return Diagnostic(
            line=self.line,
            column=self.column,
            level=self.level,
            message=self.message,
            notes=tuple(self.notes[:4]),
            fix=self.fix,
            file=self.file,
            source_line=texts.line(self.file, self.line) if self.line else None,
        )


class _Asked:
    """Follows the compiler from a mistake in a header to the person's text that asks for it."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        #: Who asks for what is being instantiated, and whether its block has ended.
        self.required: tuple[str, int, int | None] | None = None
        #: By which file and line a file is included, and the lines that just said so, inside out.
        self.includers: dict[str, tuple[str, int]] = {}
        self.chain: list[tuple[str, int]] = []

    def reads(self, line: str) -> bool:
        """Take a line that is about no mistake but about the way to it."""
        if found := _INCLUDED.match(line):
            place = found["file"], int(found["line"])
            # g++ goes on by "from" with who includes that; clang begins at the outermost file.
            self.chain.insert(0 if found["first"] else len(self.chain), place)
            return True
        if found := _CONTEXT.match(line):
            if self.texts.is_written(found["file"]):
                column = found["column"]
                self.required = found["file"], int(found["line"]), int(column) if column else None
            return True
        if _ELSEWHERE.match(line):
            self.required = None
            return True
        return False

    def meets(self, file: str) -> None:
        """Note that the files said to include each other end in this one."""
        for place in self.chain:
            self.includers[file] = place
            file = place[0]
        self.chain.clear()

    def by_context(self, draft: _Draft) -> None:
        """Move a mistake of a header to what the compiler said before it."""
        if draft.file in self.texts.lines:
            self.required = None
        elif self.required is not None:
            self.move(draft, *self.required)

    def by_note(self, draft: _Draft, note: _Draft) -> bool:
        """Move a mistake of a header to what the compiler says after it; tell whether."""
        ours = self.texts.is_written(note.file)
        if draft.file in self.texts.lines or not ours or not _ASKS.search(note.message):
            return False
        self.move(draft, note.file, note.line, note.column)
        return True

    def by_include(self, draft: _Draft) -> None:
        """Move a mistake of a header to the person's ``#include <…>``, not of their own header."""
        file, line = draft.file, 0
        for _ in self.includers:
            if file in self.texts.lines or file not in self.includers:
                break
            file, line = self.includers[file]
        if line and self.texts.is_written(file):
            include = self.texts.line(file, line) or ""
            if draft.level == "error" and re.match(r"\s*#\s*include\s*<", include):
                self.move(draft, file, line, None)

    @staticmethod
    def move(draft: _Draft, file: str, line: int, column: int | None) -> None:
        draft.notes.insert(0, f"in {Path(draft.file).name}:{draft.line}")
        draft.file, draft.line, draft.column, draft.fix = file, line, column, None


def parse(output: str, texts: Texts) -> tuple[Diagnostic, ...]:
    """Return the diagnostics in the output of g++, clang, cl, nvcc or a linker.

    Errors in the person's own source come first, then other errors, then warnings; within each
    the tool's order is kept. An error inside a header is reported at the person's line that asked
    for it: by an instantiation, a call, a macro, or else by its ``#include <…>``.
    """
    drafts: list[_Draft] = []
    asked = _Asked(texts)
    for line in output.splitlines():
        if asked.reads(line):
            continue
        if found := _MESSAGE.match(line):
            if "-Rpass-analysis=kernel-resource-usage" in line:
                continue  # facts about kernels, which `hip.kernels` reads
            draft = _from_message(found)
            if found["level"] in _REMARKS:
                drafts.append(draft)
                continue
            asked.meets(draft.file)
            if draft.level == "note":
                if not (drafts and asked.by_note(drafts[-1], draft)):
                    _add_note(drafts, draft)
                continue
            asked.by_context(draft)
            _move_before_line_break(draft, texts)
            drafts.append(draft)
        elif found := _NVCC.match(line) or _CL.match(line):
            draft = _from_nvcc(found) if found.re is _NVCC else _from_cl(found)
            if draft.level == "note" and drafts:
                _add_note(drafts, draft)
            else:
                drafts.append(draft)
        elif found := _NVCC_CARET.match(line):
            if drafts and drafts[-1].column is None:
                drafts[-1].column = len(found["blank"]) + 1
        elif found := _FIX.match(line):
            _add_fix(drafts, found["file"], found["text"])
        else:
            drafts += _from_linker(line, texts)
    for draft in drafts:
        asked.by_include(draft)
    if any(d.level == "error" and d.file != "<exports>" for d in drafts):
        # That an export does not compile either is a consequence.
        drafts = [d for d in drafts if d.file != "<exports>"]
    rank = {"error": 0, "warning": 2, "note": 4}
    drafts = list({(d.file, d.line, d.column, d.message): d for d in reversed(drafts)}.values())[
        ::-1
    ]
    drafts.sort(key=lambda d: rank[d.level] + (d.file != texts.own))
    return tuple(draft.finish(texts) for draft in drafts)


def _from_message(found: re.Match[str]) -> _Draft:
    level = found["level"]
    same = {"fatal error": "error", "sorry, unimplemented": "error"}
    level = "note" if level in _REMARKS else same.get(level, level)
    column = int(found["column"]) if found["column"] else None
    text = found["text"].replace("tvm::ffi::tensorplay_light::", "tvm::ffi::")
    text = f"not optimized: {text}" if found["level"] == "missed" else text
    return _Draft(found["file"], int(found["line"]), column, cast("Level", level), text)


def _from_nvcc(found: re.Match[str]) -> _Draft:
    level = found["level"].removeprefix("catastrophic ").replace("remark", "note")
    text = found["text"].replace("tvm::ffi::tensorplay_light::", "tvm::ffi::")
    return _Draft(found["file"], int(found["line"]), None, cast("Level", level), text)


def _from_cl(found: re.Match[str]) -> _Draft:
    code = found["code"] or ""
    level = "note" if not code else "warning" if code[1] in "456" else "error"
    column = int(found["column"]) if found["column"] else None
    return _Draft(found["file"], int(found["line"]), column, cast("Level", level), found["text"])


def _from_link(found: re.Match[str], texts: Texts) -> list[_Draft]:
    """Return what cl's driver or its linker says of no line."""
    code, text = found["code"], found["text"]
    level: Level = "warning" if re.match(r"LNK4|D9", code) else "error"
    named = _LINK_CPP.search(text) or _LINK_C.search(text)
    if code in {"LNK2001", "LNK2019"} and named:
        return [_not_defined(named["symbol"].replace("(void)", "()"), texts)]
    if code == "LNK1120":  # "1 unresolved externals": said above
        return []
    who = "linker: " if code.startswith("LNK") else ""
    return [_Draft("", 0, None, level, f"{who}{text}")]


def _not_defined(symbol: str, texts: Texts) -> _Draft:
    place = texts.find(re.sub(r"\(.*", "", symbol).split("::")[-1]) or (0, None)
    message = f"`{symbol}` is declared and used but not defined"
    return _Draft(texts.own, place[0], place[1], "error", message)


def _move_before_line_break(draft: _Draft, texts: Texts) -> None:
    """Move "expected ';' before" the first word of a line to the end of the line that lacks it."""
    if not re.search(r"expected .*[;,].* before ", draft.message) or draft.column is None:
        return
    line = texts.line(draft.file, draft.line)
    if draft.file not in texts.lines or line is None or line[: draft.column - 1].strip():
        return
    number = draft.line - 1
    while (earlier := texts.line(draft.file, number)) is not None:
        code = earlier.split("//")[0].rstrip()
        if code and not code.endswith("*/"):
            draft.line, draft.column, draft.fix = number, len(code) + 1, ";"
            return
        number -= 1


def _add_note(drafts: list[_Draft], note: _Draft) -> None:
    if not drafts:
        return
    owner = drafts[-1]
    same = (note.file, note.line) == (owner.file, owner.line)
    owner.notes.append(note.message if same else f"{note.file}:{note.line}: {note.message}")


def _add_fix(drafts: list[_Draft], file: str, text: str) -> None:
    # A fix of a header is none for the person's line that the message was moved to.
    if drafts and drafts[-1].fix is None and text and file == drafts[-1].file:
        drafts[-1].fix = text.replace('\\"', '"').replace("\\\\", "\\")


def _from_linker(line: str, texts: Texts) -> list[_Draft]:
    """Return what a line of a linker or of the compiler's driver says, if it says anything."""
    if found := _UNDEFINED.search(line) or _UNDEFINED_LLD.search(line):
        return [_not_defined(found["symbol"], texts)]
    if found := _LINK.match(line):
        return _from_link(found, texts)
    if found := _LINKER.match(line):
        if re.match(r"(?:error: )?ld returned|warning:|.*: in function ", found["text"]):
            return []
        return [_Draft("", 0, None, "error", f"linker: {found['text']}")]
    if found := _NVCC_FATAL.match(line):
        return [_from_assembler(found["text"], texts)]
    if found := _DRIVER.match(line):
        if "terminated" in found["text"]:  # explained from the exit status
            return []
        return [_Draft("", 0, None, "error", found["text"])]
    return []


def _from_assembler(text: str, texts: Texts) -> _Draft:
    """Return what ptxas or a CUDA compiler's driver says, at the kernel that it names."""
    symbol = re.search(r"\b(?:[Ee]ntry )?[Ff]unction '(\w+)'", text)
    if symbol is None:
        return _Draft("", 0, None, "error", text)
    name = last_name(symbol[1])
    place = texts.find(name)
    if place is None:
        return _Draft("", 0, None, "error", text)
    return _Draft(texts.own, *place, "error", text.replace(f"'{symbol[1]}'", f"`{name}`"))


def last_name(symbol: str) -> str:
    """Return the function's own name in a mangled C++ symbol, or the symbol."""
    rest = re.sub(r"^_ZN?L?", "", symbol) if symbol.startswith("_Z") else ""
    name = symbol
    while found := re.match(r"L?(\d+)", rest):
        end = found.end() + int(found[1])
        name, rest = rest[found.end() : end], rest[end:]
        if not symbol.startswith("_ZN"):
            break
    return name


def render(diagnostics: Iterable[Diagnostic], log: str = "") -> str:
    """Return what a person reads about a failed build.

    Parameters
    ----------
    diagnostics
        All messages in order; only errors are shown, at most ten.
    log
        The tools' whole output; its last lines are shown when no message was understood.
    """
    errors = [d for d in diagnostics if d.level == "error"]
    if not errors:
        tail = "\n".join(log.strip().splitlines()[-_MAX_SHOWN:])
        return f"the build failed without a message that could be understood:\n{tail}"
    shown: list[str] = []
    size = 0
    for error in errors[:_MAX_SHOWN]:
        # One mistake often has several consequences: the first is shown with its notes, the rest
        # without, and long tails are cut.
        text = str(error if not shown else dataclasses.replace(error, notes=()))
        if shown and size + len(text) > 900:
            break
        shown.append(text[:2000])
        size += len(text)
    if len(shown) < len(errors):
        shown.append(f"… and {len(errors) - len(shown)} more in .diagnostics; everything in .log")
    return "\n".join(shown)
