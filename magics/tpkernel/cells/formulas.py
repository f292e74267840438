"""Gradient formulas of the front matter, turned into Python that the operator's module can hold.

A formula is one Python expression over the operator's inputs, ``grad`` and ``result``. Free names
are tensor functions: ``sigmoid(beta * x)`` becomes ``tp.sigmoid(beta * x)``. Other kernels of the
cell may be called by name. What a formula reads of inputs and results is what the operator saves
for backward, and nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tensorplay.library.modules.spec import Formula
from tpkernel.errors import did_you_mean

__all__ = ["cut_at_comma", "is_function_path", "read_formula"]

_ROOTS = frozenset({"tp", "math"})
_BUILTINS = frozenset({"float", "int", "len", "range", "tuple"})


class _Resolver(ast.NodeTransformer):
    def __init__(
        self,
        values: Collection[str],
        kernels: Collection[str],
        grads: Collection[str],
        strict: Collection[str],
        instead: Mapping[str, str],
    ) -> None:
        self.strict = set(strict)
        self.instead = instead
        self.values = set(values)
        self.kernels = set(kernels)
        self.grads = set(grads)
        self.local: set[str] = set()
        self.reads: set[str] = set()
        self.called: set[str] = set()

    def visit_Name(self, node: ast.Name) -> ast.expr:
        name = node.id
        if name in self.values:
            self.reads.add(name)
        elif name in self.grads or name in _ROOTS or name in self.local:
            pass
        elif name in self.kernels:
            self.called.add(name)
        elif _is_tensor_function(name):
            return ast.copy_location(
                ast.Attribute(ast.Name("tp", ast.Load()), name, ast.Load()), node
            )
        elif name not in _BUILTINS:
            known = [*self.values, *self.grads, *self.kernels]
            near = did_you_mean(name, [*known, *_tensor_functions()])
            if name in self.instead:
                near = f"; write '{self.instead[name]}'."
            message = (
                f"unknown name '{name}'{near} Names here: "
                f"{', '.join([*sorted(known), 'tensor functions'])}."
            )
            raise ValueError(message)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr.endswith("_") and not node.attr.startswith("_"):
            message = (
                f"'{node.attr}' changes a tensor in place, and the caller still has it; write "
                f"'{node.attr[:-1]}'"
            )
            raise ValueError(message)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if any(k.arg == "out" for k in node.keywords):
            message = "out= writes into a tensor that the caller has; write the expression itself"
            raise ValueError(message)
        strict = isinstance(node.func, ast.Name) and node.func.id in self.strict
        made = self.generic_visit(node)
        if strict:  # gradients arrive expanded or transposed
            node.args = [a if isinstance(a, ast.Starred) else _contiguous(a) for a in node.args]
            for keyword in node.keywords:
                keyword.value = _contiguous(keyword.value)
        return made

    def visit_Await(self, node: ast.Await) -> ast.AST:
        message = "'await' cannot stand in a formula; write the expression itself"
        raise ValueError(message)

    def visit_Yield(self, node: ast.Yield | ast.YieldFrom) -> ast.AST:
        message = "'yield' cannot stand in a formula; write the expression itself"
        raise ValueError(message)

    visit_YieldFrom = visit_Yield  # noqa: N815  (the name that ast looks for)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        for generator in node.generators:
            for target in ast.walk(generator.target):
                if isinstance(target, ast.Name):
                    self.local.add(target.id)
        return self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        message = "a lambda cannot stand in a formula; write the expression itself"
        raise ValueError(message)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        message = "':=' cannot stand in a formula; write the expression itself"
        raise ValueError(message)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _contiguous(value: ast.expr) -> ast.expr:
    if isinstance(value, ast.Constant):
        return value
    function = ast.Attribute(ast.Name("rules", ast.Load()), "_contiguous", ast.Load())
    return ast.Call(function, [value], [])


def _tensor_functions() -> list[str]:
    import tensorplay

    return [name for name in dir(tensorplay) if _is_tensor_function(name)]


def _is_tensor_function(name: str) -> bool:
    import tensorplay

    if name.startswith("_"):
        return False
    found = getattr(tensorplay, name, None)
    return found is not None and (
        callable(found) or isinstance(found, (float, int, tensorplay.dtype))
    )


def is_function_path(text: str) -> bool:
    """Whether a text is ``module:function`` rather than an expression."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(p.isidentifier() for p in (*module.split("."), *name.split(".")))


def read_formula(
    text: str,
    *,
    values: Sequence[str],
    grads: Sequence[str],
    kernels: Sequence[str] = (),
    strict: Collection[str] = (),
    instead: Mapping[str, str] | None = None,
) -> Formula:
    """Check a formula and resolve its names.

    Parameters
    ----------
    text
        One Python expression.
    values
        Names of inputs and results.
    grads
        Names of incoming gradients: ``grad``, or ``grad_<output>`` for several outputs.
    kernels
        Kernels of the cell that may be called.
    strict
        Those that refuse strided tensors, so that the formula makes them contiguous.
    instead
        Names that mean nothing here, and what is meant: ``{"out": "result"}``.

    Raises
    ------
    ValueError
        No expression, or a name that means nothing; the message names the nearest.
    """
    resolver = _Resolver(values, kernels, grads, strict, instead or {})
    try:
        tree = ast.parse(text.strip(), mode="eval")
        resolved = ast.fix_missing_locations(resolver.visit(tree))
        source = ast.unparse(resolved)
        compile(source, "<formula>", "eval")
    except SyntaxError as problem:
        what = problem.msg.replace("parentheses", "parts")
        message = f"'{_short(text)}' is no Python expression: {what}"
        raise ValueError(message) from None
    except (RecursionError, MemoryError):
        message = f"'{_short(text)}' is nested too deeply"
        raise ValueError(message) from None
    return Formula(
        text=text,
        source=source,
        reads=frozenset(resolver.reads),
        kernels=frozenset(resolver.called),
    )


def cut_at_comma(given: Mapping[Any, Any]) -> tuple[str, str] | None:
    """Find an expression that YAML took for several values, such as ``{x: f(grad, x)}``.

    Returns
    -------
    tuple of str or None
        The key, and what to write.
    """
    items = list(given.items())
    for position, (name, text) in enumerate(items):
        if not isinstance(text, str) or _depth(text) <= 0:
            continue
        whole = text
        for rest, value in items[position + 1 :]:
            if value is not None:
                break
            whole += f", {rest}"
            if _depth(whole) == 0:
                message = (
                    f"YAML ends it at the comma, as '{text}'. Put it in quotes, {name}: '{whole}', "
                    "or on a line of its own"
                )
                return str(name), message
    return None


def _depth(text: str) -> int:
    return text.count("(") - text.count(")")
