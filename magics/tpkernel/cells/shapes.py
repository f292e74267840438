"""The front matter's ``shape``, read into rules of :mod:`tensorplay.library.modules.shapes`."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
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
    forms: Mapping[str, str],
    unsure: Collection[str] = (),
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
        used = _check_entry(
            tree.body, f"dimension '{entry}' of output '{name}'", inputs, ranks, forms
        )
        for node in used:
            if node.id in unsure:
                message = (
                    f"dimension '{entry}' of output '{name}' is known from an argument alone that "
                    "may be None; take it from another one"
                )
                raise _ShapeError(message)
            if node.id not in known:
                message = (
                    f"dimension '{node.id}' of output '{name}' is not declared by an input"
                    f"{did_you_mean(node.id, known)} Declare it, as in "
                    f"shape: {{{(*inputs, 'x')[0]}: [{node.id}, …], {name}: [{node.id}]}}."
                )
                raise _ShapeError(message)
    return rule


_OPERATIONS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def _check_entry(
    node: ast.expr,
    where: str,
    inputs: Sequence[str],
    ranks: Mapping[str, int | None],
    forms: Mapping[str, str],
) -> list[ast.Name]:
    """Refuse what cannot be a size; return the names of sizes and integers that are used.

    An expression is integers, names, ``x.shape[…]`` and ``x.ndim`` in + - * // %; of a list of
    tensors, ``len(xs)``, and ``sum`` and ``max`` over it.

    Raises
    ------
    ValueError
        With the part that cannot stand there.
    """
    if isinstance(node, ast.Constant):
        if type(node.value) is not int:
            message = f"{where}: expected an integer, got {node.value!r}"
            raise _ShapeError(message)
        return []
    if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATIONS):
        divides = isinstance(node.op, (ast.FloorDiv, ast.Mod))
        if divides and isinstance(node.right, ast.Constant) and node.right.value == 0:
            message = f"{where} divides by zero"
            raise _ShapeError(message)
        return [
            *_check_entry(node.left, where, inputs, ranks, forms),
            *_check_entry(node.right, where, inputs, ranks, forms),
        ]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return _check_entry(node.operand, where, inputs, ranks, forms)
    if isinstance(node, ast.Subscript):
        _check_size_of(node, where, inputs, ranks, forms)
        return []
    if isinstance(node, ast.Name):
        if node.id in inputs:
            write = _of_list(node.id) if "[]" in forms.get(node.id, "") else f"{node.id}.shape[0]"
            what = "a list of tensors" if "[]" in forms.get(node.id, "") else "a tensor"
            message = f"{where}: '{node.id}' is {what}; write {write}"
            raise _ShapeError(message)
        return [node]
    if isinstance(node, ast.Call) and _is_over_list(node, where, ranks, forms):
        return []
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr == "ndim":
        _check_tensor(node.value.id, where, inputs, forms)
        return []
    lists = [n for n in inputs if forms.get(n) == "[]"]
    message = (
        f"{where}: '{ast.unparse(node)}' is no size. Write integers, names and x.shape[0] with "
        "+ - * // %" + (f", or {_of_list(lists[0])}" if lists else "")
    )
    raise _ShapeError(message)


def _of_list(name: str) -> str:
    return f"len({name}), {name}[0].shape[0], or sum(t.shape[0] for t in {name})"


def _is_over_list(
    node: ast.Call, where: str, ranks: Mapping[str, int | None], forms: Mapping[str, str]
) -> bool:
    """Whether a call is ``len(xs)``, ``sum(t.shape[0] for t in xs)`` or such a ``max``."""
    if not isinstance(node.func, ast.Name) or len(node.args) != 1 or node.keywords:
        return False
    argument = node.args[0]
    if node.func.id == "len" and isinstance(argument, ast.Name):
        return "[]" in forms.get(argument.id, "")
    if node.func.id not in ("sum", "max") or not isinstance(argument, ast.GeneratorExp):
        return False
    (loop, *more) = argument.generators
    over = loop.iter
    if (
        more
        or loop.ifs
        or not isinstance(loop.target, ast.Name)
        or not isinstance(over, ast.Name)
        or forms.get(over.id) != "[]"
        or not isinstance(argument.elt, ast.Subscript)
    ):
        return False
    member = loop.target.id
    _check_size_of(argument.elt, where, [member], {member: ranks.get(over.id)}, {})
    return True


def _check_tensor(name: str, where: str, inputs: Sequence[str], forms: Mapping[str, str]) -> None:
    """Refuse the sizes of what is no tensor, or may be none."""
    form = forms.get(name, "")
    if name not in inputs:
        message = f"{where}: '{name}' is no tensor input{did_you_mean(name, inputs)}"
    elif "[]" in form:
        message = f"{where}: '{name}' is a list of tensors; write {_of_list(name)}"
    elif form:
        message = f"{where}: '{name}' may be None; take the size from another argument"
    else:
        return
    raise _ShapeError(message)


def _check_size_of(
    node: ast.Subscript,
    where: str,
    inputs: Sequence[str],
    ranks: Mapping[str, int | None],
    forms: Mapping[str, str],
) -> None:
    """Check ``x.shape[2]``: an input, and a dimension that it has; of a list ``xs[0].shape[2]``."""
    of, number = node.value, _number(node.slice)
    tensor = of.value if isinstance(of, ast.Attribute) and of.attr == "shape" else None
    name = None
    if isinstance(tensor, ast.Name):
        name = tensor.id
    elif isinstance(tensor, ast.Subscript) and isinstance(tensor.value, ast.Name):
        in_list = forms.get(tensor.value.id) == "[]" and _number(tensor.slice) is not None
        name = tensor.value.id if in_list else None
    if name is None or name not in inputs or number is None:
        message = f"{where}: expected an input's size such as x.shape[0], got {ast.unparse(node)}"
        raise _ShapeError(message)
    if isinstance(tensor, ast.Name):
        _check_tensor(name, where, inputs, forms)
    rank = ranks.get(name)
    if rank is not None and not -rank <= number < rank:
        message = f"{where}: '{name}' has {rank} dimensions, so there is no {ast.unparse(node)}"
        raise _ShapeError(message)


def _number(node: ast.expr) -> int | None:
    """Return an integer that is written out, or None."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = node.operand if isinstance(node, ast.UnaryOp) and negative else node
    if not isinstance(inner, ast.Constant) or type(inner.value) is not int:
        return None
    return -inner.value if negative else inner.value


def _check_form(name: str, rule: ShapeRule, forms: Mapping[str, str]) -> None:
    """Refuse an output for what may be absent, or for a list, that is not like such an input."""
    form = forms.get(name, "")
    like = forms.get(rule.argument, "") if isinstance(rule, Like) else ""
    if form and like != form:
        kind = "list of outputs" if "[]" in form else "output that may be absent"
        message = (
            f"'{name}' is a {kind}, so its shape must be that of an input of the same kind: "
            f"shape: {{{name}: <input>}}"
        )
        raise _ShapeError(message)
    if not form and like in ("?", "?[]") and isinstance(rule, Like):
        message = (
            f"output '{name}' has the shape of '{rule.argument}', which may be None; take the "
            "shape from another argument"
        )
        raise _ShapeError(message)


def parse_shapes(
    value: Any,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    integers: Sequence[str] = (),
    ranks: Mapping[str, int | None],
    forms: Mapping[str, str] | None = None,
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
    forms
        Of inputs and outputs that may be absent (``"?"``) or are lists (``"[]"``, ``"?[]"``): a
        rule holds for what is there, one by one.

    Raises
    ------
    ValueError
        With a sentence that says what to write; the caller adds operator and line.
    """
    input_rules: dict[str, ShapeRule] = {}
    output_rules: dict[str, ShapeRule] = {}
    forms = forms or {}
    if value is None:
        return _default(inputs, outputs, ranks, forms)
    if isinstance(value, Mapping):
        known = [*inputs, *outputs]
        for name in value:
            if name not in known:
                message = (
                    f"'{name}' under shape is no argument or output"
                    f"{did_you_mean(str(name), known)} Names: {', '.join(known)}"
                )
                raise _ShapeError(message)
        for name in inputs:
            if name in value:
                input_rules[name] = _input_rule(value[name], name, inputs, ranks)
        _check_sizes(input_rules, [*inputs, *integers])
        input_rules.update(_unnamed(inputs, input_rules, ranks, forms))
        missing = [name for name in outputs if name not in value]
        if missing and not (
            len(inputs) == 1 or all(isinstance(r, Like) for r in input_rules.values())
        ):
            message = f"shape says nothing of output '{missing[0]}'; add {missing[0]}: [...]"
            raise _ShapeError(message)
        sure = {n: r for n, r in input_rules.items() if forms.get(n, "") in ("", "[]")}
        symbols = ShapeRules(sure, {}, declared=True).symbols()
        unsure = set(ShapeRules(input_rules, {}, declared=True).symbols()) - set(symbols)
        listed = {n: len(r.entries) for n, r in input_rules.items() if isinstance(r, Dims)}
        ranks = {**ranks, **listed}
        for name in outputs:
            rule = (
                _output_rule(value[name], name, inputs, integers, symbols, ranks, forms, unsure)
                if name in value
                else Like(inputs[0])
            )
            output_rules[name] = rule
    else:
        if len(outputs) > 1 and not isinstance(value, str):
            message = f"there are {len(outputs)} outputs; write shape: {{{outputs[0]}: [...], …}}"
            raise _ShapeError(message)
        for name in outputs:
            output_rules[name] = _output_rule(value, name, inputs, integers, (), ranks, forms)
        if isinstance(value, str):
            # One name speaks for all: an input that can have the reference's shape must have it.
            for name in inputs:
                same_rank = ranks.get(name) in (None, ranks.get(value)) or ranks.get(value) is None
                if name != value and same_rank:
                    input_rules[name] = Like(value)
    for name, rule in output_rules.items():
        _check_form(name, rule, forms)
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
    inputs: Sequence[str],
    given: Mapping[str, ShapeRule],
    ranks: Mapping[str, int | None],
    forms: Mapping[str, str],
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
    return _all_as(_first(inputs, forms), inputs, forms)


def _first(names: Sequence[str], forms: Mapping[str, str]) -> str:
    """Return the input that gives others their shape: one that is always there, if any is."""
    return min(names, key=lambda n: ("", "[]", "?", "?[]").index(forms.get(n, "")))


def _all_as(first: str, inputs: Sequence[str], forms: Mapping[str, str]) -> dict[str, ShapeRule]:
    """Give all inputs the shape of one; where that is a list, its members that of each other."""
    return {n: Like(first) for n in inputs if n != first or "[]" in forms.get(n, "")}


def _default(
    inputs: Sequence[str],
    outputs: Sequence[str],
    ranks: Mapping[str, int | None],
    forms: Mapping[str, str],
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
    first = _first(inputs, forms)
    output_rules: dict[str, ShapeRule] = {}
    for name in outputs:
        same = [n for n in inputs if forms.get(n, "") == forms.get(name, "")]
        output_rules[name] = Like(same[0] if forms.get(name) and same else first)
        _check_form(name, output_rules[name], forms)
    return ShapeRules(_all_as(first, inputs, forms), output_rules, declared=False)
