"""Gradient formulas of the front matter, turned into Python that the operator's module can hold.

A formula is one Python expression over the operator's inputs, ``grad`` and ``result``. Free names
are tensor functions: ``sigmoid(beta * x)`` becomes ``tp.sigmoid(beta * x)``. Other kernels of the
cell may be called by name. What a formula reads of inputs and results is what the operator saves
for backward, and nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tpkernel.errors import did_you_mean

__all__ = ["Formula", "read_formula"]

_ROOTS = frozenset({"tp", "math"})
_BUILTINS = frozenset({"float", "int", "len", "range", "tuple"})


@dataclass(frozen=True)
class Formula:
    """A checked formula.

    Attributes
    ----------
    text
        As the person wrote it.
    source
        The Python expression, with tensor functions spelled ``tp.…``.
    reads
        Names of inputs and results that it uses.
    kernels
        Other kernels of the cell that it calls.
    """

    text: str
    source: str
    reads: frozenset[str]
    kernels: frozenset[str]


class _Resolver(ast.NodeTransformer):
    def __init__(
        self, values: Collection[str], kernels: Collection[str], grads: Collection[str]
    ) -> None:
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
            message = (
                f"unknown name '{name}'{near} Names here: "
                f"{', '.join([*sorted(known), 'tensor functions'])}."
            )
            raise ValueError(message)
        return node

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


def read_formula(
    text: str,
    *,
    values: Sequence[str],
    grads: Sequence[str],
    kernels: Sequence[str] = (),
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

    Raises
    ------
    ValueError
        No expression, or a name that means nothing; the message names the nearest.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as problem:
        message = f"'{text}' is no Python expression: {problem.msg}"
        raise ValueError(message) from None
    resolver = _Resolver(values, kernels, grads)
    resolved = ast.fix_missing_locations(resolver.visit(tree))
    return Formula(
        text=text,
        source=ast.unparse(resolved),
        reads=frozenset(resolver.reads),
        kernels=frozenset(resolver.called),
    )
