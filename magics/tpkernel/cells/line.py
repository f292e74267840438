"""The magic's own line, and cells that have something above it.

Flags must reach the compiler byte for byte. IPython's splitter takes a value that begins with ``-``
for another option and expands braces and dollars, so the line is split here.
"""

# IPython carries few annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

import ast
import difflib
import re
import shlex
import textwrap
from collections.abc import Sequence

from IPython.core.error import UsageError

__all__ = ["AT_LINE", "REFUSE", "hoist_magic", "nearest_option", "split_line"]

#: Hidden option that carries where the magic stood, when something was above it.
AT_LINE = "--at-line"
#: Hidden option that carries why a cell is refused.
REFUSE = "--refuse"

_TOKEN = re.compile(r"""(?:[^\s"']|"(?:\\.|[^"\\])*"|'[^']*')+""")
_MAGIC = re.compile(r"^%%(?P<name>\w+)")
#: A line that may mean the magic, however its signs, blanks and letters are.
_ABOUT = re.compile(
    r"(?P<indent>[ \t]*)(?:(?P<signs>%+)(?P<blanks>[ \t]*)|!?(?=tpkernel\s*$|tpkernel\s+-))"
    r"(?P<name>(?i:tp_?k\w*))(?P<rest>.*)"
)
#: Two magics in one line.
_BOTH = re.compile(r"%{1,2}(?P<around>capture|memit|prun|time|timeit)\b.*\s%{1,2}tpkernel\b")
_FUNCTION = re.compile(r"[\w>&*][ \t*&]+\w+[ \t]*\([^;{}]*\)[\w\s]*\{")
#: Cell magics that run what stands below them as a cell.
_AROUND = frozenset({"capture", "memit", "prun", "time", "timeit"})
_ONE_VALUE = frozenset(
    {
        *("--name", "-n", "--flags", "-f", "--expect-error", "--contiguous", "--budget"),
        *("--sanitize", "--jobs", "-j"),
    }
)


def split_line(line: str) -> list[str]:
    """Split the magic's line into arguments for its parser.

    A ``#`` after a space starts a comment. Everything after ``--`` is one string of flags, taken as
    it is. An option's value may begin with ``-``.

    Raises
    ------
    UsageError
        A quote that does not close.
    """
    arguments: list[str] = []
    waiting: str | None = None
    position = 0
    while True:
        position += len(line[position:]) - len(line[position:].lstrip())
        if position >= len(line) or line[position] == "#":
            break
        found = _TOKEN.match(line, position)
        if found is None or (found.end() < len(line) and not line[found.end()].isspace()):
            message = f"%%tpkernel: a quote does not close in {line[position:]!r}"
            raise UsageError(message)
        raw, position = found[0], found.end()
        if raw == "--" and waiting is None:
            rest = _without_comment(line[position:])
            if rest:
                arguments.append(f"--flags={rest}")
            break
        word = shlex.split(raw)[0] if "\\" in raw or '"' in raw or "'" in raw else raw
        if waiting is not None:
            arguments.append(f"{waiting}={word}")
            waiting = None
        elif raw in _ONE_VALUE:
            waiting = {"-n": "--name", "-f": "--flags", "-j": "--jobs"}.get(raw, raw)
        else:
            arguments.append(word)
    if waiting is not None:
        arguments.append(waiting)  # the parser says that its value is missing
    return arguments


def _without_comment(text: str) -> str:
    """Cut a trailing comment that stands outside quotes."""
    position = 0
    for found in _TOKEN.finditer(text):
        if found[0].startswith("#"):
            return text[: found.start()].strip()
        position = found.end()
    return text[:position].strip()


def hoist_magic(lines: list[str]) -> list[str]:
    """Move ``%%tpkernel`` up over blank lines and comments; an input step of IPython.

    Below a magic that runs the rest of the cell, such as ``%%time``, it stays where it is and is
    told its line.

    Where that cannot be done, the cell becomes one that says why. It does not raise here, because
    input steps also run when a front end only asks whether a cell is complete.
    """
    first = next((i for i, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return lines
    if lines[first][:1].isspace():  # what IPython does next, and looks for magics after it
        lines = textwrap.dedent("".join(lines)).splitlines(keepends=True)
    wrong = _miswritten(lines)
    if wrong is not None:
        return _refusing(wrong)
    head = _MAGIC.match(lines[first])
    if head is not None:
        near = difflib.get_close_matches(head["name"].lower(), ["tpkernel"], cutoff=0.8)
        if near and head["name"] != "tpkernel" and not _is_magic(head["name"]):
            message = f"Cell magic `%%{head['name']}` not found; did you mean `%%tpkernel`?"
            return _refusing(message)
        if head["name"] in _AROUND:
            return _placed(lines)
        if head["name"] != "tpkernel" or first == 0:
            return lines
    at = next((i for i, line in enumerate(lines) if re.match(r"%%tpkernel\b", line)), None)
    if at is None:
        return lines
    above = [line.strip() for line in lines[:at]]
    if all(not line or line.startswith(("#", "//")) for line in above):
        magic = lines[at].rstrip("\n")
        moved = re.sub(r"^%%tpkernel\b", f"%%tpkernel {AT_LINE}={at + 1}", magic) + "\n"
        return [moved, *lines[at + 1 :]]
    if head is None and not _is_python("".join(lines)):
        message = (
            f"%%tpkernel on line {at + 1} must be the first statement of the cell; move what "
            "stands above it into a cell of its own."
        )
        return _refusing(message)
    return lines


def _miswritten(lines: list[str]) -> str | None:
    """Say what is wrong with a line that means the magic and is not written as it is."""
    at = next((i for i, line in enumerate(lines) if _ABOUT.match(line) or _BOTH.match(line)), None)
    if at is None:
        return None
    above, body = lines[:at], "".join(lines[at + 1 :])
    first = all(not line.strip() or line.strip().startswith(("#", "//")) for line in above)
    if not first and (any(map(_MAGIC.match, above)) or not _is_notebook_python("".join(above))):
        return None  # text of another magic, or of a string
    both, found = _BOTH.match(lines[at]), _ABOUT.match(lines[at])
    if both is not None or found is None:
        around = both["around"] if both is not None and _is_cpp(body) else None
        return around and f"`%%{around}` stands on a line of its own, above `%%tpkernel`."
    written, name, rest = lines[at].strip(), found["name"], found["rest"]
    signs = found["signs"] or ""
    if not difflib.get_close_matches(name.lower(), ["tpkernel"], cutoff=0.8):
        return None
    exact = not found["blanks"] and name == "tpkernel"
    if not exact and not found["blanks"] and (signs == "%%" or _is_magic(name, "line")):
        return None  # the caller looks at misspelt cell magics
    if signs == "%%" and exact:
        return _miswritten_end(found, body) if first else None
    is_cpp = _is_cpp(body)
    options = not is_cpp or rest.lstrip().startswith("-")  # else what belongs to no cell
    wanted = f"%%tpkernel {rest.strip() if options else ''}".strip()
    if is_cpp:
        where = "" if first else " as the first statement of the cell"
        if signs == "%" and exact:
            return (
                "`%tpkernel` takes a command on a line of its own. A cell of C++ and its options "
                f"belong to `%%tpkernel`, with two percent signs: write `{wanted}`{where}."
            )
        return f"`{written}` is no magic; did you mean `{wanted}`{where}?"
    if not first or not signs.startswith("%") or (signs == "%" and exact):
        return None  # Python or a command; of what there is not, IPython tells
    return f"`{written}` is no magic; did you mean `{wanted[1:] if signs == '%' else wanted}`?"


def _miswritten_end(found: re.Match[str], body: str) -> str | None:
    """Say what is wrong around the two signs and the name, which are right."""
    rest = found["rest"].rstrip()
    if rest.startswith("?"):
        wrong = "`%%tpkernel?` shows the help. It stands in a cell of its own, without C++ below."
        return wrong if body.strip() else None
    if rest and not rest[0].isspace():
        written = found[0].split()[0]
        return f"Cell magic `{written}` not found; a blank is missing after `%%tpkernel`."
    if found["indent"] and _is_cpp(body):
        return "`%%tpkernel` must begin its line; take away the blanks in front of it."
    return None


def _is_cpp(text: str) -> bool:
    """Whether a text looks like C++, and is no Python either."""
    looks_so = "/*" in text or "#include" in text or _FUNCTION.search(text) is not None
    return looks_so and not _is_notebook_python(text)


def _is_notebook_python(text: str) -> bool:
    """Whether a text is Python, magics and commands of a shell among it."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return _is_python(TransformerManager().transform_cell(text))
    except SyntaxError:
        return False


def _placed(lines: list[str]) -> list[str]:
    """Tell ``%%tpkernel`` its line where only magics around it, comments and blanks are above."""
    for at, line in enumerate(lines):
        found = _MAGIC.match(line)
        if found is not None and found["name"] == "tpkernel":
            told = re.sub(r"^%%tpkernel\b", f"%%tpkernel {AT_LINE}={at + 1}", line)
            return [*lines[:at], told, *lines[at + 1 :]]
        around = found is not None and found["name"] in _AROUND
        if not around and line.strip() and not line.strip().startswith(("#", "//")):
            break
    return lines


def _refusing(message: str) -> list[str]:
    return [f"%%tpkernel {REFUSE}={shlex.quote(message)}\n", "//\n"]


def _is_python(text: str) -> bool:
    """Whether the text is Python as it stands, with the magic's name inside a string."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _is_magic(name: str, kind: str = "cell") -> bool:
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    return shell is not None and shell.find_magic(name, kind) is not None


def nearest_option(word: str, options: Sequence[str]) -> str:
    """Say which option a wrong one may have meant."""
    near = difflib.get_close_matches(word.split("=", maxsplit=1)[0], list(options), n=1, cutoff=0.4)
    return f"; did you mean {near[0]}?" if near else "."
