"""The front matter's ``launch``: grid, block, shared memory and sizes of a CUDA kernel.

Entries are integers or expressions over ``numel`` (elements of the first output), the sizes that
``shape`` names, integer arguments and ``x.shape[…]``, ``x.numel()``, ``x.ndim``. They become C++
for the host, which computes them at each call.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorplay.library.modules.shapes import Dims
from tensorplay.library.modules.spec import KernelSpec, Launch
from tpkernel.errors import did_you_mean

__all__ = ["DEFAULT", "SIZES", "LaunchError", "read_launch"]

#: A thread for each element of the first output.
DEFAULT: Mapping[str, Any] = {"grid": "ceil_div(numel, 256)", "block": 256}
#: Keys of a rule that are no parameter of a kernel.
SIZES = ("grid", "block", "shared")
_OPERATIONS: Mapping[type[ast.operator], str] = {
    ast.Add: "({} + {})",
    ast.Sub: "({} - {})",
    ast.Mult: "({} * {})",
    ast.FloorDiv: "floor_div({}, {})",
    ast.Mod: "floor_mod({}, {})",
}
#: Largest sizes of a launch, which every GPU has in common.
_LIMITS = {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64)}
_MOST_THREADS = 1024
_COMPUTE: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLED: Mapping[str, Callable[[int, int], int]] = {
    "ceil_div": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}
_FUNCTIONS = {"ceil_div": "ceil_div", "min": "least", "max": "most"}


class LaunchError(ValueError):
    """A rule that cannot be read; `key` says where it stands under ``launch``."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


def read_launch(
    rule: Mapping[str, Any], kernel: KernelSpec, parameters: Sequence[tuple[str, str]]
) -> Launch:
    """Return how a kernel is launched.

    Parameters
    ----------
    rule
        As front matter has it, by `SIZES` and names of parameters that are sizes.
    kernel
        The kernel with its arguments and shapes.
    parameters
        C++ type and name of the kernel's parameters, in order.

    Raises
    ------
    LaunchError
        An entry is no size; the text says what to write.
    """
    reader = _Expressions(kernel)
    given = {**DEFAULT, **rule}
    grid = reader.sizes(given["grid"], "grid")
    block = reader.sizes(given["block"], "block")
    shared = reader.size(given.get("shared", 0), "shared", (0, 2**31 - 1))
    known = {a.name for a in kernel.arguments}
    passed = [
        (kind, name if name in known else "=" + reader.size(given[name], name))
        for kind, name in parameters
    ]
    words = [f"grid {_shown(given['grid'])}, block {_shown(given['block'])}"]
    words += [f"{k} {_shown(v)}" for k, v in given.items() if k not in ("grid", "block")]
    return Launch(grid, block, shared, tuple(passed), ", ".join(words))


def _joined(items: Sequence[Any]) -> list[Any]:
    """Put expressions together again that YAML has cut at a comma inside of parentheses."""
    done: list[Any] = []
    for item in items:
        before = str(done[-1]) if done else ""
        if before.count("(") > before.count(")"):
            done[-1] = f"{before}, {item}"
        else:
            done.append(item)
    return done


def _shown(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, (list, tuple)) else str(value)


def _constant(node: ast.expr) -> int | None:
    """Return what an expression is worth whatever the call; None where that is open."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _constant(node.operand)
        return None if inner is None else -inner
    compute: Callable[[int, int], int] | None = None
    parts: Sequence[ast.expr] = ()
    if isinstance(node, ast.BinOp):
        compute, parts = _COMPUTE.get(type(node.op)), (node.left, node.right)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        compute, parts = _CALLED.get(node.func.id), node.args
    known = [n for n in map(_constant, parts) if n is not None]
    return compute(*known) if compute is not None and len(known) == len(parts) == 2 else None


def _check_divisor(node: ast.expr, divisor: ast.expr, key: str) -> None:
    if _constant(divisor) == 0:
        message = f"{key}: '{ast.unparse(node)}' divides by zero"
        raise LaunchError(message, key)


class _Expressions:
    """Turns entries into C++ that an export computes from its views and arguments."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.views = {a.name: f"views[{i}]" for i, a in enumerate(kernel.tensors)}
        self.ranks = {a.name: a.rank for a in kernel.tensors}
        rules = {**kernel.shapes.inputs, **kernel.shapes.outputs}
        self.ranks |= {n: len(r.entries) for n, r in rules.items() if isinstance(r, Dims)}
        self.numbers = {
            a.name: f"tp_arg_int(args[{i}])"
            for i, a in enumerate(kernel.arguments)
            if a.kind == "int"
        }
        written = next((a.name for a in kernel.tensors if a.role != "in"), None)
        for name, rule in rules.items():
            for dimension, entry in enumerate(rule.entries if isinstance(rule, Dims) else ()):
                if entry.isidentifier() and entry != "_":
                    place = f"{self.views[name]}.shape[{dimension}]"
                    self.numbers.setdefault(entry, place)
        if written is not None:
            self.numbers.setdefault("numel", f"{self.views[written]}.numel")

    def sizes(self, value: Any, key: str) -> tuple[str, ...]:
        """Return three C++ expressions."""
        items = _joined(value) if isinstance(value, (list, tuple)) else [value]
        if not 1 <= len(items) <= 3:
            message = f"{key} must be a size or a list of up to three, got {value!r}"
            raise LaunchError(message, key)
        found = tuple(
            self.size(item, key, (1, most))
            for item, most in zip((*items, 1, 1), _LIMITS[key], strict=False)
        )
        known = [_constant(ast.parse(str(item).strip(), mode="eval").body) for item in items]
        threads = math.prod(n for n in known if n is not None)
        if key == "block" and threads > _MOST_THREADS:
            message = f"{key}: expected at most {_MOST_THREADS} threads, got {threads}"
            raise LaunchError(message, key)
        return found

    def size(self, value: Any, key: str, limits: tuple[int, int] | None = None) -> str:
        """Return one C++ expression; what is known without a call must lie within the limits."""
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            message = f"{key} must be an integer or an expression such as {_EXAMPLE}, got {value!r}"
            raise LaunchError(message, key)
        try:
            tree = ast.parse(str(value).strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            message = f"{key}: '{value}' is no expression; write one such as {_EXAMPLE}"
            raise LaunchError(message, key) from None
        text = self.text(tree.body, key)
        number = _constant(tree.body)
        if limits is not None and number is not None and not limits[0] <= number <= limits[1]:
            message = f"{key}: expected a size from {limits[0]} to {limits[1]}, got {value}"
            raise LaunchError(message, key)
        return text

    def text(self, node: ast.expr, key: str) -> str:
        """Return a part of an expression as C++."""
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value < 2**63:
            return f"INT64_C({node.value})"
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            left, right = self.text(node.left, key), self.text(node.right, key)
            if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
                _check_divisor(node, node.right, key)
            return _OPERATIONS[type(node.op)].format(left, right)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return f"(-{self.text(node.operand, key)})"
        if isinstance(node, ast.Name):
            return self.named(node.id, key)
        if isinstance(node, ast.Attribute) and node.attr == "ndim":
            return f"int64_t({self.view(node.value, key)}.ndim)"
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            return self.dimension(node, node.value, key)
        if isinstance(node, ast.Call) and not node.keywords:
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr == "numel" and not node.args:
                return f"{self.view(called.value, key)}.numel"
            if isinstance(called, ast.Name) and called.id in _FUNCTIONS and len(node.args) == 2:
                inner = ", ".join(self.text(a, key) for a in node.args)
                if called.id == "ceil_div":
                    _check_divisor(node, node.args[1], key)
                return f"{_FUNCTIONS[called.id]}({inner})"
        message = (
            f"{key}: '{ast.unparse(node)}' is no size. Write integers, names of sizes, numel, "
            "x.shape[0], x.numel() and x.ndim with + - * // %, ceil_div(a, b), min(a, b) or "
            "max(a, b)"
        )
        raise LaunchError(message, key)

    def named(self, name: str, key: str) -> str:
        if name not in self.numbers:
            what = "is a tensor; write its numel() or shape[0]" if name in self.views else "is no"
            if what == "is no":
                what = f"is no size here{did_you_mean(name, self.numbers)} Sizes: "
                what += ", ".join(self.numbers) or "none"
            message = f"{key}: '{name}' {what}"
            raise LaunchError(message, key)
        return self.numbers[name]

    def view(self, node: ast.expr, key: str) -> str:
        name = node.id if isinstance(node, ast.Name) else ast.unparse(node)
        if name not in self.views:
            message = (
                f"{key}: '{name}' is no tensor of the kernel{did_you_mean(name, self.views)} "
                f"Tensors: {', '.join(self.views)}"
            )
            raise LaunchError(message, key)
        return self.views[name]

    def dimension(self, node: ast.Subscript, of: ast.Attribute, key: str) -> str:
        index = node.slice
        negative = isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub)
        inner = index.operand if isinstance(index, ast.UnaryOp) else index
        constant = isinstance(inner, ast.Constant) and type(inner.value) is int
        if of.attr != "shape" or not constant:
            message = f"{key}: expected a size such as x.shape[0], got {ast.unparse(node)}"
            raise LaunchError(message, key)
        view = self.view(of.value, key)
        number = int(ast.literal_eval(inner)) * (-1 if negative else 1)
        rank = self.ranks[ast.unparse(of.value)]
        if rank is None or not -rank <= number < rank:
            name = ast.unparse(of.value)
            has = "any number of" if rank is None else str(rank)
            message = (
                f"{key}: '{name}' has {has} dimensions, so {ast.unparse(node)} may not be there. "
                f"Write a rank, as in tp::In<float, 2> {name}, or name its sizes under shape"
            )
            raise LaunchError(message, key)
        return f"{view}.shape[{number % rank}]"


_EXAMPLE = "ceil_div(numel, 256)"
