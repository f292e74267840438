"""Calls each overridable function with one argument of a foreign type, at each place for one.

Run by `test_overrides` as a program, as no class of tensors and no mode may exist in the process.
Writes the number of calls and those of which the type was not asked.
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import tensorplay as tp
from tensorplay.ops.dispatch import protocol
from tensorplay.overrides import (
    get_testing_overrides,
    is_tensor_method_or_property,
    resolve_name,
)


class Foreign:
    asked = 0

    def __tensorplay_function__(self, func, types, args=(), kwargs=None):
        Foreign.asked += 1
        return -1


def calls(parameters: list[inspect.Parameter], *, method: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield arguments with a `Foreign` at one place: a tensor comes first, the rest are ones."""
    for place, chosen in enumerate(parameters):
        if chosen.kind is chosen.VAR_KEYWORD:
            continue
        args: list[Any] = []
        named: dict[str, Any] = {}
        by_name: dict[str, Any] = {}
        for number, p in enumerate(parameters):
            here = number == place
            value = Foreign() if here else tp.ones(2, 2) if number == 0 and not method else 1
            if p.kind is p.VAR_POSITIONAL:
                args += [value] if here else []
            elif p.kind is p.KEYWORD_ONLY:
                if here or p.default is p.empty:
                    named[p.name] = value
            elif p.kind is not p.VAR_KEYWORD and (number <= place or p.default is p.empty):
                args.append(value)
                by_name[p.name] = value
        yield chosen.name, args, named
        if chosen.kind is chosen.POSITIONAL_OR_KEYWORD and len(by_name) == len(args):
            yield f"{chosen.name}=", [], {**by_name, **named}


def main() -> None:
    silent, count = [], 0
    for function, dummy in get_testing_overrides().items():
        if not hasattr(function, "overridable"):
            continue  # a member that only classes of tensors answer
        name = resolve_name(function) or ""
        method = is_tensor_method_or_property(function)
        parameters = list(inspect.signature(dummy).parameters.values())[1 if method else 0 :]
        for place, args, named in calls(parameters, method=method):
            Foreign.asked = 0
            try:
                function(*([tp.ones(2, 2)] if method else []), *args, **named)
            except Exception as error:  # noqa: BLE001 - whatever it is, the type was not asked
                silent.append(f"{name}({place}): {error}")
            else:
                if not Foreign.asked:
                    silent.append(f"{name}({place})")
            count += 1
    assert not protocol.on
    json.dump({"calls": count, "silent": silent}, sys.stdout)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
