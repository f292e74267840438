"""The front matter's ``launch``: grid, block, shared memory and sizes of a CUDA kernel.

Entries are integers or expressions over ``numel`` (elements of the first output), the sizes that
``shape`` names, integer arguments and ``x.shape[…]``, ``x.numel()``, ``x.ndim``. They become C++
for the host, which computes them at each call; what is known without a call is checked here.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorplay.library.modules.shapes import Dims
from tensorplay.library.modules.spec import KernelSpec, Launch, LaunchSize
from tpkernel.cpp.scalar_types import CPP_TO_DTYPE, bare_type
from tpkernel.errors import did_you_mean

__all__ = ["DEFAULT", "SIZES", "LaunchError", "integer_range", "read_launch"]

#: A thread for each element of the first output.
DEFAULT: Mapping[str, Any] = {"grid": "ceil_div(numel, 256)", "block": 256}
#: Keys of a rule that are no parameter of a kernel.
SIZES = ("grid", "block", "shared")
#: Largest sizes of a launch, which every GPU has in common.
_LIMITS = {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64)}
_MOST_THREADS = 1024
#: What is computed: functions of the run-time header, and the same on numbers that are known.
_OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "sum", ast.Sub: "difference", ast.Mult: "product", ast.FloorDiv: "floor_div",
    ast.Mod: "floor_mod",
}  # fmt: skip
_CALLED: Mapping[str, str] = {"ceil_div": "ceil_div", "min": "least", "max": "most"}
_COMPUTE: Mapping[str, Callable[[int, int], int]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
    "floor_div": lambda a, b: a // b,
    "floor_mod": lambda a, b: a % b,
    "ceil_div": lambda a, b: -(-a // b),
    "least": min,
    "most": max,
}
_DIVIDE = ("floor_div", "floor_mod", "ceil_div")
_INT64 = 2**63 - 1


class LaunchError(ValueError):
    """A rule that cannot be read; `key` says where it stands under ``launch``."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


def read_launch(
    rule: Mapping[str, Any], kernel: KernelSpec, parameters: Sequence[tuple[str, str, str]]
) -> Launch:
    """Return how a kernel is launched.

    Parameters
    ----------
    rule
        As front matter has it, by `SIZES` and names of parameters that are sizes.
    kernel
        The kernel with its arguments and shapes.
    parameters
        The kernel's parameters in order: C++ type, name, and the name of its argument, which for a
        size is none of the kernel's.

    Raises
    ------
    LaunchError
        An entry is no size; the text says what to write.
    """
    reader = _Expressions(kernel)
    default = {**DEFAULT}
    if "numel" in reader.twice:  # the name is taken, what it stands for is not
        default["grid"] = f"ceil_div({reader.written}.numel(), 256)"
    given = {**default, **rule}
    grid = reader.sizes(given["grid"], "grid")
    block = reader.sizes(given["block"], "block")
    shared = reader.size(given.get("shared", 0), "shared", (0, 2**31 - 1))
    known = {a.name for a in kernel.arguments}
    passed = [
        (kind, name, argument if argument in known else reader.parameter(given[name], name, kind))
        for kind, name, argument in parameters
    ]
    words = [f"grid {_shown(given['grid'])}, block {_shown(given['block'])}"]
    words += [f"{k} {_shown(v)}" for k, v in given.items() if k not in ("grid", "block")]
    return Launch(grid, block, shared, tuple(passed), ", ".join(words))


def integer_range(cpp_type: str) -> tuple[int, int]:
    """Return the least and the largest value of a C++ integer type."""
    dtype = CPP_TO_DTYPE[bare_type(cpp_type)]
    bits = int(dtype.lstrip("uint"))
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


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


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


class _Expressions:
    """Turns entries into C++ that an export computes from its views and arguments."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.views = {a.name: f"views[{i}]" for i, a in enumerate(kernel.tensors)}
        self.ranks = {a.name: a.rank for a in kernel.tensors}
        rules = {**kernel.shapes.inputs, **kernel.shapes.outputs}
        self.ranks |= {n: len(r.entries) for n, r in rules.items() if isinstance(r, Dims)}
        self.arguments = {
            a.name: f"tp_arg_int(args[{i}])"
            for i, a in enumerate(kernel.arguments)
            if a.kind == "int"
        }
        self.numbers = dict(self.arguments)
        for name, rule in rules.items():
            for dimension, entry in enumerate(rule.entries if isinstance(rule, Dims) else ()):
                if entry.isidentifier() and entry != "_":
                    place = f"{self.views[name]}.shape[{dimension}]"
                    self.numbers.setdefault(entry, place)
        self.written = next((a.name for a in kernel.tensors if a.role != "in"), None)
        #: Names that stand for two things.
        self.twice = {"numel"} & {*self.numbers} if self.written is not None else set()
        if self.written is not None:
            self.numbers.setdefault("numel", f"{self.views[self.written]}.numel")
        self.atoms: dict[str, str] = {}

    def sizes(self, value: Any, key: str) -> tuple[LaunchSize, ...]:
        """Return the three sizes of a grid or block."""
        items = _joined(value) if isinstance(value, (list, tuple)) else [value]
        if not 1 <= len(items) <= 3:
            message = f"{key} must be a size or a list of up to three, got {value!r}"
            raise LaunchError(message, key)
        found = tuple(
            self.size(item, key, (1, most))
            for item, most in zip((*items, 1, 1), _LIMITS[key], strict=False)
        )
        threads = math.prod(s.known for s in found if s.known is not None)
        if key == "block" and threads > _MOST_THREADS:
            message = f"{key}: expected at most {_MOST_THREADS} threads, got {threads}"
            raise LaunchError(message, key)
        return found

    def parameter(self, value: Any, key: str, cpp_type: str) -> LaunchSize:
        """Return what is passed for a parameter of the kernel, which its type must hold."""
        size = self.size(value, key)
        low, high = integer_range(cpp_type)
        if size.known is not None and not low <= size.known <= high:
            message = (
                f"{key}: expected a size that {bare_type(cpp_type)} holds, from {low} to {high}, "
                f"got {size.text}"
            )
            raise LaunchError(message, key)
        return size

    def size(self, value: Any, key: str, limits: tuple[int, int] | None = None) -> LaunchSize:
        """Return one size; what is known without a call must lie within the limits."""
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            message = f"{key} must be an integer or an expression such as {_EXAMPLE}, got {value!r}"
            raise LaunchError(message, key)
        shown = str(value).strip()
        self.atoms = {}
        try:
            text = self.text(ast.parse(shown, mode="eval").body, key)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
            if isinstance(problem, LaunchError):
                raise
            what = "is too long" if isinstance(problem, RecursionError) else "is no expression"
            message = f"{key}: '{_short(shown)}' {what}; write one such as {_EXAMPLE}"
            raise LaunchError(message, key) from None
        number = text if isinstance(text, int) else None
        if limits is not None and number is not None and not limits[0] <= number <= limits[1]:
            message = f"{key}: expected a size from {limits[0]} to {limits[1]}, got {shown}"
            raise LaunchError(message, key)
        return LaunchSize(shown, self.spelled(text), number, tuple(self.atoms.items()))

    def spelled(self, value: str | int) -> str:
        return f"INT64_C({value})" if isinstance(value, int) else value

    def text(self, node: ast.expr, key: str) -> str | int:
        """Return a part of an expression as C++, or its value where no call changes that."""
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return self.held(node.value, node, key)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return self.computed(_OPERATORS[type(node.op)], (node.left, node.right), node, key)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self.computed("difference", (ast.Constant(0), node.operand), node, key)
        if isinstance(node, ast.Name):
            return self.named(node.id, key)
        if isinstance(node, ast.Attribute) and node.attr == "ndim":
            return self.atom(node, f"int64_t({self.view(node.value, key)}.ndim)")
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            return self.dimension(node, node.value, key)
        if isinstance(node, ast.Call) and not node.keywords:
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr == "numel" and not node.args:
                return self.atom(node, f"{self.view(called.value, key)}.numel")
            if isinstance(called, ast.Name) and called.id in _CALLED and len(node.args) == 2:
                return self.computed(_CALLED[called.id], node.args, node, key)
        message = (
            f"{key}: '{_short(ast.unparse(node))}' is no size. Write integers, names of sizes, "
            "numel, x.shape[0], x.numel() and x.ndim with + - * // %, ceil_div(a, b), min(a, b) or "
            "max(a, b)"
        )
        raise LaunchError(message, key)

    def held(self, value: int, node: ast.expr, key: str) -> int:
        """Return a number that is known, which an int64_t must hold."""
        if not -_INT64 <= value <= _INT64:
            message = f"{key}: expected a size of at most 64 bits, got {_short(ast.unparse(node))}"
            raise LaunchError(message, key)
        return value

    def computed(
        self, function: str, parts: Sequence[ast.expr], node: ast.expr, key: str
    ) -> str | int:
        """Return an operation on two parts, done here where both are known."""
        left, right = (self.text(part, key) for part in parts)
        if right == 0 and function in _DIVIDE:
            message = f"{key}: '{_short(ast.unparse(node))}' divides by zero"
            raise LaunchError(message, key)
        if isinstance(left, int) and isinstance(right, int):
            return self.held(_COMPUTE[function](left, right), node, key)
        return f"{function}({self.spelled(left)}, {self.spelled(right)})"

    def atom(self, node: ast.expr, cpp: str) -> str:
        self.atoms[ast.unparse(node)] = cpp
        return cpp

    def named(self, name: str, key: str) -> str:
        if name in self.twice:
            what = "an argument" if name in self.arguments else "a size that shape names"
            message = (
                f"{key}: '{name}' is {what}, and the number of elements of '{self.written}' too. "
                f"Give {what} another name, or write {self.written}.numel()"
            )
            raise LaunchError(message, key)
        if name not in self.numbers:
            what = "is a tensor; write its numel() or shape[0]" if name in self.views else "is no"
            if what == "is no":
                what = f"is no size here{did_you_mean(name, self.numbers)} Sizes: "
                what += ", ".join(self.numbers) or "none"
            message = f"{key}: '{name}' {what}"
            raise LaunchError(message, key)
        self.atoms[f"argument '{name}'" if name in self.arguments else name] = self.numbers[name]
        return self.numbers[name]

    def view(self, node: ast.expr, key: str) -> str:
        name = node.id if isinstance(node, ast.Name) else _short(ast.unparse(node))
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
        inner = index.operand if isinstance(index, ast.UnaryOp) and negative else index
        if (
            of.attr != "shape"
            or not isinstance(inner, ast.Constant)
            or type(inner.value) is not int
        ):
            message = f"{key}: expected a size such as x.shape[0], got {_short(ast.unparse(node))}"
            raise LaunchError(message, key)
        view = self.view(of.value, key)
        number = -inner.value if negative else inner.value
        name = ast.unparse(of.value)
        rank = self.ranks[name]
        if rank is None or not -rank <= number < rank:
            has = "any number of" if rank is None else str(rank)
            message = (
                f"{key}: '{name}' has {has} dimensions, so {ast.unparse(node)} may not be there. "
                f"Write a rank, as in tp::In<float, 2> {name}, or name its sizes under shape"
            )
            raise LaunchError(message, key)
        return self.atom(node, f"{view}.shape[{number % rank}]")


_EXAMPLE = "ceil_div(numel, 256)"
