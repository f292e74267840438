"""YAML as front matter has it: plain words mean what YAML 1.2 says, and there are no aliases.

PyYAML reads YAML 1.1, in which an argument called ``y`` or ``on`` is the value true, ``010`` is
eight, ``12:30`` is 750 and ``1e3`` is a text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["WordsLoader", "written"]

_PREFIX = "tag:yaml.org,2002:"
_FLOAT = (
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_WORDS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
)


class WordsLoader(yaml.SafeLoader):
    """A loader of plain data whose words are those of YAML 1.2, without aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node; a handful of aliases of aliases would be gigabytes."""
        if self.check_event(yaml.AliasEvent):
            event: Any = self.current_event
            message = f"'*{event.anchor}' stands for another value. Write the value itself"
            raise yaml.composer.ComposerError(None, None, message, event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def integer(self, node: yaml.ScalarNode) -> int:
        """Return an integer; zeros in front mean nothing."""
        text = str(self.construct_scalar(node))
        return int(text, 0) if text.startswith(("0x", "0o")) else int(text)


class _WordsDumper(yaml.SafeDumper):
    """Quotes what the loader would take for something else."""


for _kind in (WordsLoader, _WordsDumper):
    _kind.yaml_implicit_resolvers = {}
    for _name, _pattern, _first in _WORDS:
        _kind.add_implicit_resolver(_PREFIX + _name, re.compile(f"^(?:{_pattern})$"), list(_first))
WordsLoader.add_constructor(_PREFIX + "int", WordsLoader.integer)


def written(value: Any) -> str:
    """Return plain data as a text that the loader reads as the same."""
    text: str = yaml.dump(
        value, Dumper=_WordsDumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text
