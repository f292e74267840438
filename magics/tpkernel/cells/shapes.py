"""The front matter's ``shape``, read into rules of :mod:`tensorplay.library.modules.shapes`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from tensorplay.library.modules.shapes import Dims, Like, ShapeRule, ShapeRules
from tpkernel.errors import did_you_mean

__all__ = ["parse_shapes"]


class _ShapeError(ValueError):
    """A shape entry that cannot be read; the caller adds place and subject."""


def _dims(value: Any, what: str) -> Dims:
    if not isinstance(value, Sequence) or isinstance(value, str):
        message = f"the shape of '{what}' must be a list such as [n, m], got {value!r}"
        raise _ShapeError(message)
    return Dims(tuple("_" if item is None else str(item).strip() for item in value))


def _input_rule(
    value: Any, name: str, inputs: Sequence[str], ranks: Mapping[str, int | None]
) -> ShapeRule:
    if isinstance(value, str):
        if value not in inputs:
            message = f"'{value}' is no tensor input{did_you_mean(value, inputs)}"
            raise _ShapeError(message)
        return Like(value)
    rule = _dims(value, name)
    for entry in rule.entries:
        if not (entry.isidentifier() or entry.isdigit()):
            message = (
                f"dimension '{entry}' of input '{name}' must be a name, a number or _ ; "
                "expressions are for outputs"
            )
            raise _ShapeError(message)
    rank = ranks.get(name)
    if rank is not None and rank != len(rule.entries):
        message = (
            f"'{name}' has {len(rule.entries)} dimensions here and {rank} in the C++ signature; "
            "make them agree"
        )
        raise _ShapeError(message)
    return rule


def _output_rule(
    value: Any,
    name: str,
    inputs: Sequence[str],
    integers: Sequence[str],
    symbols: Sequence[str],
    ranks: Mapping[str, int | None],
) -> ShapeRule:
    if isinstance(value, str) and value in inputs:
        return Like(value)
    if isinstance(value, str):
        message = (
            f"the shape of output '{name}' is '{value}', which is no tensor input"
            f"{did_you_mean(value, inputs)} Write an input's name or a list such as [n, m]."
        )
        raise _ShapeError(message)
    rule = _dims(value, name)
    known = {*symbols, *integers, *inputs}
    for entry in rule.entries:
        try:
            tree = ast.parse(entry, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            message = f"dimension '{entry}' of output '{name}' is no expression"
            raise _ShapeError(message) from None
        _check_entry(tree.body, entry, name, inputs, ranks)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in known:
                message = (
                    f"dimension '{node.id}' of output '{name}' is not declared by an input"
                    f"{did_you_mean(node.id, known)} Declare it, as in "
                    f"shape: {{{(*inputs, 'x')[0]}: [{node.id}, …], {name}: [{node.id}]}}."
                )
                raise _ShapeError(message)
    return rule


_OPERATIONS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def _check_entry(
    node: ast.expr, entry: str, name: str, inputs: Sequence[str], ranks: Mapping[str, int | None]
) -> None:
    """Refuse what cannot be a size: an expression is integers, names and x.shape[…] in + - * // %.

    Raises
    ------
    ValueError
        With the part that cannot stand there.
    """
    where = f"dimension '{entry}' of output '{name}'"
    if isinstance(node, ast.Constant):
        if type(node.value) is not int:
            message = f"{where}: expected an integer, got {node.value!r}"
            raise _ShapeError(message)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATIONS):
        _check_entry(node.left, entry, name, inputs, ranks)
        _check_entry(node.right, entry, name, inputs, ranks)
        divides = isinstance(node.op, (ast.FloorDiv, ast.Mod))
        if divides and isinstance(node.right, ast.Constant) and node.right.value == 0:
            message = f"{where} divides by zero"
            raise _ShapeError(message)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        _check_entry(node.operand, entry, name, inputs, ranks)
    elif isinstance(node, ast.Subscript):
        _check_size_of(node, where, inputs, ranks)
    elif isinstance(node, ast.Name):
        if node.id in inputs:
            message = f"{where}: '{node.id}' is a tensor; write {node.id}.shape[0]"
            raise _ShapeError(message)
    elif not (
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr == "ndim"
    ):
        message = (
            f"{where}: '{ast.unparse(node)}' is no size. Write integers, names and x.shape[0] with "
            "+ - * // %"
        )
        raise _ShapeError(message)


def _check_size_of(
    node: ast.Subscript, where: str, inputs: Sequence[str], ranks: Mapping[str, int | None]
) -> None:
    """Check ``x.shape[2]``: an input, and a dimension that it has."""
    of, index = node.value, node.slice
    negative = isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub)
    number = index.operand if isinstance(index, ast.UnaryOp) and negative else index
    if not (
        isinstance(of, ast.Attribute)
        and of.attr == "shape"
        and isinstance(of.value, ast.Name)
        and of.value.id in inputs
        and isinstance(number, ast.Constant)
        and type(number.value) is int
    ):
        message = f"{where}: expected an input's size such as x.shape[0], got {ast.unparse(node)}"
        raise _ShapeError(message)
    rank = ranks.get(of.value.id)
    at = -number.value if negative else number.value
    if rank is not None and not -rank <= at < rank:
        message = (
            f"{where}: '{of.value.id}' has {rank} dimensions, so there is no {ast.unparse(node)}"
        )
        raise _ShapeError(message)


def parse_shapes(
    value: Any,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    integers: Sequence[str] = (),
    ranks: Mapping[str, int | None],
) -> ShapeRules:
    """Read the front matter's ``shape``.

    Parameters
    ----------
    value
        None (the default rule), an input's name, a list for the one output, or a mapping.
    inputs, outputs
        Names of tensor inputs and of outputs, in order.
    integers
        Names of integer arguments; an output's dimension may use them.
    ranks
        Rank of an input or output where the signature fixes it.

    Raises
    ------
    ValueError
        With a sentence that says what to write; the caller adds operator and line.
    """
    input_rules: dict[str, ShapeRule] = {}
    output_rules: dict[str, ShapeRule] = {}
    if value is None:
        return _default(inputs, outputs, ranks)
    if isinstance(value, Mapping):
        known = [*inputs, *outputs]
        for name in value:
            if name not in known:
                message = (
                    f"'{name}' under shape is no argument or output{did_you_mean(str(name), known)}"
                )
                raise _ShapeError(message)
        for name in inputs:
            if name in value:
                input_rules[name] = _input_rule(value[name], name, inputs, ranks)
        _check_sizes(input_rules, [*inputs, *integers])
        input_rules.update(_unnamed(inputs, input_rules, ranks))
        missing = [name for name in outputs if name not in value]
        if missing and not (
            len(inputs) == 1 or all(isinstance(r, Like) for r in input_rules.values())
        ):
            message = f"shape says nothing of output '{missing[0]}'; add {missing[0]}: [...]"
            raise _ShapeError(message)
        symbols = ShapeRules(input_rules, {}, declared=True).symbols()
        listed = {n: len(r.entries) for n, r in input_rules.items() if isinstance(r, Dims)}
        ranks = {**ranks, **listed}
        for name in outputs:
            rule = (
                _output_rule(value[name], name, inputs, integers, symbols, ranks)
                if name in value
                else Like(inputs[0])
            )
            output_rules[name] = rule
    else:
        if len(outputs) > 1 and not isinstance(value, str):
            message = f"there are {len(outputs)} outputs; write shape: {{{outputs[0]}: [...], …}}"
            raise _ShapeError(message)
        for name in outputs:
            output_rules[name] = _output_rule(value, name, inputs, integers, (), ranks)
        if isinstance(value, str):
            # One name speaks for all: an input that can have the reference's shape must have it.
            for name in inputs:
                same_rank = ranks.get(name) in (None, ranks.get(value)) or ranks.get(value) is None
                if name != value and same_rank:
                    input_rules[name] = Like(value)
    for name, rule in output_rules.items():
        rank = ranks.get(name)
        if rank is not None and isinstance(rule, Dims) and len(rule.entries) != rank:
            message = (
                f"output '{name}' has {len(rule.entries)} dimensions here and {rank} in the C++ "
                "signature; make them agree"
            )
            raise _ShapeError(message)
    return ShapeRules(input_rules, output_rules, declared=True)


def _check_sizes(rules: Mapping[str, ShapeRule], arguments: Sequence[str]) -> None:
    """Refuse a size that has the name of an argument: one of the two would be lost."""
    for name, rule in rules.items():
        for entry in rule.entries if isinstance(rule, Dims) else ():
            if entry in arguments:
                message = (
                    f"size '{entry}' in the shape of '{name}' has the name of argument '{entry}'; "
                    f"give the size another name, such as {entry}_size"
                )
                raise _ShapeError(message)


def _unnamed(
    inputs: Sequence[str], given: Mapping[str, ShapeRule], ranks: Mapping[str, int | None]
) -> Mapping[str, ShapeRule]:
    """Give the inputs that a mapping leaves out the default rule, or refuse to leave them open."""
    named = {*given, *(rule.argument for rule in given.values() if isinstance(rule, Like))}
    left = [name for name in inputs if name not in named]
    if not left or len(inputs) == 1:
        return {}
    fixed = {ranks[name] for name in inputs if ranks.get(name) is not None}
    if given or len(fixed) > 1:
        message = (
            f"shape says nothing of input '{left[0]}', so any size would pass; add {left[0]}: "
            f"[...], with _ for a dimension of any size, or {left[0]}: <input> for the same shape"
        )
        raise _ShapeError(message)
    return {name: Like(inputs[0]) for name in inputs[1:]}


def _default(
    inputs: Sequence[str], outputs: Sequence[str], ranks: Mapping[str, int | None]
) -> ShapeRules:
    """Without a declaration all tensors have one shape."""
    if not inputs:
        if outputs:
            message = (
                f"no tensor input gives output '{outputs[0]}' its shape; declare it, "
                f"as in shape: [n] with an integer argument n"
            )
            raise _ShapeError(message)
        return ShapeRules({}, {}, declared=False)
    fixed = {name: ranks.get(name) for name in (*inputs, *outputs) if ranks.get(name) is not None}
    if len(set(fixed.values())) > 1:
        pairs = ", ".join(
            f"{name}: [{', '.join('nmkl'[: rank or 0])}]" for name, rank in fixed.items()
        )
        message = (
            "tensors of different rank need their shapes declared; write something like "
            f"shape: {{{pairs}}}"
        )
        raise _ShapeError(message)
    first = inputs[0]
    return ShapeRules(
        {name: Like(first) for name in inputs[1:]},
        {name: Like(first) for name in outputs},
        declared=False,
    )
