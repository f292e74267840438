"""Operator schemas: the text that declares an operator's arguments and results.

Grammar::

    schema   := [ns "::"] name ["." overload] "(" arguments ")" "->" returns
    arguments := [arg ("," arg)*] ["," "*" ("," arg)+]
    arg      := type [name] ["=" default]
    type     := base [alias] ["?"] ["[" [size] "]"] ["?"]
    base     := Tensor | int | SymInt | float | bool | str | Scalar | ScalarType | Device | Layout
              | Generator
    alias    := "(" set ["!"] ["->" set] ")"
    returns  := "()" | return | "(" return ("," return)* ")"
    default  := None | True | False | number | "str" | "[" [default ("," default)*] "]" | dtype name
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from tensorplay._device import device
from tensorplay._dtype import named as dtype_named

__all__ = [
    "NO_DEFAULT",
    "Alias",
    "Argument",
    "FunctionSchema",
    "Return",
    "SchemaType",
    "fits",
    "parse_schema",
]

BASES: Final = (
    "Tensor", "int", "SymInt", "float", "bool", "str", "Scalar", "ScalarType", "Device", "Layout",
    "Generator",
)  # fmt: skip


class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = _NoDefault()


@dataclass(frozen=True)
class DtypeName:
    """A type named as a default, such as ``float32``; resolved where it is used."""

    name: str


@dataclass(frozen=True)
class Alias:
    """Memory that an argument or result shares: ``(a)`` may alias, ``(a!)`` is written."""

    before: str
    is_write: bool = False
    after: str | None = None

    def __str__(self) -> str:
        after = "" if self.after is None else f" -> {self.after}"
        return f"({self.before}{'!' if self.is_write else ''}{after})"


@dataclass(frozen=True)
class SchemaType:
    """A type such as ``Tensor``, ``int[2]``, ``Tensor?[]`` or ``float[]?``."""

    base: str
    is_list: bool = False
    size: int | None = None
    optional: bool = False
    list_of_optional: bool = False

    @property
    def is_tensor(self) -> bool:
        """True for a tensor, an optional tensor and lists of them."""
        return self.base == "Tensor"

    def text(self, alias: Alias | None = None) -> str:
        """Return the schema text, with `alias` where it belongs: after the base."""
        inner = f"{self.base}{alias or ''}{'?' if self.list_of_optional else ''}"
        if self.is_list:
            inner += f"[{'' if self.size is None else self.size}]"
        return inner + ("?" if self.optional else "")

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True)
class Argument:
    """One argument: its name, type, default (or `NO_DEFAULT`), place and aliasing."""

    name: str
    type: SchemaType
    default: Any = NO_DEFAULT
    kwarg_only: bool = False
    alias: Alias | None = None

    @property
    def has_default(self) -> bool:
        """True when a call may leave the argument out."""
        return self.default is not NO_DEFAULT

    @property
    def is_write(self) -> bool:
        """True when the operator writes to the argument."""
        return self.alias is not None and self.alias.is_write

    def __str__(self) -> str:
        text = f"{self.type.text(self.alias)} {self.name}"
        return f"{text}={_literal(self.default)}" if self.has_default else text


@dataclass(frozen=True)
class Return:
    """One result: its type, name if it has one, and the memory it shares."""

    type: SchemaType
    name: str | None = None
    alias: Alias | None = None

    def __str__(self) -> str:
        text = self.type.text(self.alias)
        return text if self.name is None else f"{text} {self.name}"


@dataclass(frozen=True)
class FunctionSchema:
    """A parsed schema; ``str()`` gives text that parses to an equal one."""

    name: str
    arguments: tuple[Argument, ...]
    returns: tuple[Return, ...]
    namespace: str | None = None
    overload: str = ""
    _index: dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._index.update({a.name: i for i, a in enumerate(self.arguments)})

    @property
    def qualname(self) -> str:
        """The name with its namespace: ``ns::name``."""
        return self.name if self.namespace is None else f"{self.namespace}::{self.name}"

    @property
    def full_name(self) -> str:
        """The name with namespace and overload: ``ns::name.overload``."""
        return f"{self.qualname}.{self.overload}" if self.overload else self.qualname

    def index_of(self, name: str) -> int:
        """Return the position of the argument `name`; KeyError if there is none."""
        return self._index[name]

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def signature(self) -> str:
        """Return the text from the opening parenthesis on."""
        parts: list[str] = []
        starred = False
        for argument in self.arguments:
            if argument.kwarg_only and not starred:
                parts.append("*")
                starred = True
            parts.append(str(argument))
        returns = [str(r) for r in self.returns]
        result = returns[0] if len(returns) == 1 else f"({', '.join(returns)})"
        return f"({', '.join(parts)}) -> {result}"

    def __str__(self) -> str:
        return f"{self.full_name}{self.signature()}"


_ESCAPED: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_UNESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r"}


def _literal(value: Any) -> str:
    if isinstance(value, DtypeName):
        return value.name
    if isinstance(value, str):
        return '"' + "".join(_ESCAPED.get(c, c) for c in value) + '"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_literal(v) for v in value)}]"
    return repr(value)


_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf\b|nan\b))
        |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
        |(?P<word>[A-Za-z_]\w*)
        |(?P<mark>->|::|[()\[\],*?!=.|]))""",
    re.VERBOSE,
)


_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "Tensor": (), "int": (int,), "SymInt": (int,), "float": (int, float), "bool": (bool,),
    "str": (str,), "Scalar": (int, float), "ScalarType": (DtypeName,), "Device": (str,),
    "Layout": (str,), "Generator": (),
}  # fmt: skip


def fits(value: Any, type_: SchemaType) -> bool:
    """Tell whether `value` may be the default of an argument of `type_`.

    None is: it marks what may be left out, and the operator says what that means.
    """
    if value is None:
        return True
    if isinstance(value, list):
        # A size of 1 says only that one value stands for a list, as for the dims of a reduction.
        counted = type_.size is None or type_.size <= 1 or len(value) == type_.size
        return (
            type_.is_list
            and counted
            and all(_is_one(v, type_.base) or (v is None and type_.list_of_optional) for v in value)
        )
    # One value stands for a list of a declared size.
    return _is_one(value, type_.base) and (not type_.is_list or type_.size is not None)


def _is_one(value: Any, base: str) -> bool:
    if not isinstance(value, _KINDS[base]):
        return False
    return base not in _NAMES or _NAMES[base](value)


def _names_a_device(text: str) -> bool:
    try:
        device(text)
    except ValueError:
        return False
    return True


_NAMES: Final[dict[str, Callable[[Any], bool]]] = {
    "Device": _names_a_device,
    "Layout": lambda text: text == "strided",
}


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.kind = ""
        self.token = ""
        self.start = 0
        self.advance()

    def advance(self) -> str:
        previous = self.token
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            rest = self.text[self.position :]
            self.start = self.position + len(rest) - len(rest.lstrip())
            if rest.strip():
                self.kind, self.token = "bad", rest.strip()[0]
                self.fail(f"unexpected character {self.token!r}")
            self.kind, self.token = "end", ""
            return previous
        self.kind = match.lastgroup or ""
        self.token = match[self.kind]
        self.start = match.start(self.kind)
        self.position = match.end()
        return previous

    def fail(self, what: str) -> NoReturn:
        begin = self.text.rfind("\n", 0, self.start) + 1
        end = self.text.find("\n", self.start)
        line = self.text[begin : len(self.text) if end < 0 else end].replace("\t", " ")
        message = f"[schema] {what}:\n{line}\n{' ' * (self.start - begin)}^"
        raise ValueError(message)

    def take(self, mark: str) -> bool:
        if self.kind in {"mark", "word"} and self.token == mark:
            self.advance()
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            self.fail(
                f"expected '{mark}', got {self.token!r}" if self.token else f"expected '{mark}'"
            )

    def word(self, what: str) -> str:
        if self.kind != "word":
            self.fail(f"expected {what}" + (f", got {self.token!r}" if self.token else ""))
        return self.advance()

    def schema(self) -> FunctionSchema:
        name = self.word("the operator's name")
        namespace = None
        if self.take("::"):
            namespace, name = name, self.word("the operator's name")
        overload = self.word("the overload's name") if self.take(".") else ""
        self.expect("(")
        arguments: list[Argument] = []
        kwarg_only = False
        while not self.take(")"):
            if arguments or kwarg_only:
                self.expect(",")
            if self.take("*"):
                if kwarg_only:
                    self.fail("a second '*'")
                kwarg_only = True
                if self.token != ",":  # noqa: S105 - a mark, no password
                    self.fail("expected an argument after '*'")
                self.advance()
            start = self.start
            argument = self.argument(len(arguments), kwarg_only=kwarg_only)
            if any(a.name == argument.name for a in arguments):
                self.start = start
                self.fail(f"a second argument '{argument.name}'")
            if (
                not kwarg_only
                and not argument.has_default
                and any(a.has_default for a in arguments)
            ):
                self.start = start
                self.fail(f"argument '{argument.name}' without default after one with default")
            arguments.append(argument)
        self.expect("->")
        returns = self.returns()
        if self.kind != "end":
            self.fail(f"unexpected {self.token!r} after the schema")
        return FunctionSchema(name, tuple(arguments), returns, namespace, overload)

    def type(self) -> tuple[SchemaType, Alias | None]:
        if self.token not in BASES:
            self.fail(f"unknown type specifier {self.token!r}, expected one of {', '.join(BASES)}")
        base = self.advance()
        alias = self.alias() if self.token == "(" else None  # noqa: S105 - a mark, no password
        inner = self.take("?")
        if not self.take("["):
            return SchemaType(base, optional=inner), alias
        size = None
        if self.kind == "number":
            if not self.token.isdigit():
                self.fail("expected a size")
            size = int(self.advance())
        self.expect("]")
        return SchemaType(base, True, size, self.take("?"), inner), alias

    def alias(self) -> Alias:
        self.expect("(")
        before = "*" if self.take("*") else self.word("an alias set")
        while self.take("|"):
            before += "|" + self.word("an alias set")
        write = self.take("!")
        after = None
        if self.take("->"):
            after = "*" if self.take("*") else self.word("an alias set")
        self.expect(")")
        return Alias(before, write, after)

    def argument(self, number: int, *, kwarg_only: bool) -> Argument:
        type_, alias = self.type()
        # Two numbers are words that may name an argument, as in nan_to_num(…, float? nan=0.0).
        if keyword.iskeyword(self.token):
            self.fail(f"{self.token!r} is a Python keyword, expected the argument's name")
        named = self.kind == "word" or self.token in {"nan", "inf"}
        name = self.advance() if named else f"arg{number}"
        default: Any = NO_DEFAULT
        if self.take("="):
            start = self.start
            default = self.default(type_)
            if not fits(default, type_):
                self.start = start
                self.fail(f"the default of '{name}' is no value of {type_}")
        return Argument(name, type_, default, kwarg_only, alias)

    def default(self, type_: SchemaType) -> Any:
        if self.take("["):
            values: list[Any] = []
            while not self.take("]"):
                if values:
                    self.expect(",")
                values.append(self.default(type_))
            return values
        if self.kind == "number":
            text = self.advance()
            return (
                float(text)
                if type_.base == "float" or not text.lstrip("+-").isdigit()
                else int(text)
            )
        if self.kind == "string":
            text = self.advance()[1:-1]
            return re.sub(r"\\(.)", lambda m: _UNESCAPED.get(m[1], m[1]), text, flags=re.DOTALL)
        start, word = self.start, self.word("a default value")
        constants = {"None": None, "True": True, "False": False}
        if word in constants:
            return constants[word]
        if type_.base != "ScalarType" or dtype_named(word) is None:
            self.start = start
            self.fail(f"unknown default {word!r} for {type_}")
        return DtypeName(word)

    def returns(self) -> tuple[Return, ...]:
        if not self.take("("):
            return (self.result(),)
        found: list[Return] = []
        while not self.take(")"):
            if found:
                self.expect(",")
            found.append(self.result())
        return tuple(found)

    def result(self) -> Return:
        type_, alias = self.type()
        return Return(type_, self.advance() if self.kind == "word" else None, alias)


def parse_schema(text: str) -> FunctionSchema:
    """Parse schema text.

    Raises
    ------
    ValueError
        The text is not a schema; the message shows it with a caret under the first mistake.

    Examples
    --------
    >>> str(parse_schema("mylib::scale(Tensor x, float k = 2) -> Tensor"))
    'mylib::scale(Tensor x, float k=2.0) -> Tensor'
    """
    return _Parser(text).schema()
