"""The guard's rules on the Python side: for fake tensors, and for sizes that outputs need.

The C++ guard stands before every kernel. A fake kernel never reaches it, and an output's sizes are
needed before it can be allocated, so the same table is checked here with the same texts.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tensorplay._dlpack import from_dlpack
from tensorplay._tensor import Tensor
from tensorplay.library.modules.shapes import Dims, is_alike, same_shape
from tensorplay.library.modules.spec import DTYPES, Argument, KernelSpec, OperatorSpec
from tensorplay.ops.elsewhere import allocator

__all__ = ["InputRules"]

_CASTS = {
    "bool": ".bool()", "int16": ".short()", "int32": ".int()", "int64": ".long()",
    "float16": ".half()", "bfloat16": ".bfloat16()", "float32": ".float()", "float64": ".double()",
}  # fmt: skip


class InputRules:
    """Checks an operator's tensor inputs and finds the sizes of its declared shapes.

    Parameters
    ----------
    operator
        The operator's spec.
    """

    def __init__(self, operator: OperatorSpec) -> None:
        self._name = operator.name
        self._arguments = tuple(a for a in operator.inputs if a.kind == "tensor")
        self._kernel: KernelSpec = operator.kernel
        self._symbols = operator.kernel.shapes.symbols()
        names = [a.name for a in operator.kernel.arguments]
        same = same_shape(operator.kernel.shapes, names)
        self._like = {names[i]: names[first] for i, first in same.items()}
        alike = (n for n in names if is_alike(operator.kernel.shapes, n))
        self._groups = {*self._like.values(), *alike}
        self._needed = {
            node.id: output
            for output, rule in operator.kernel.shapes.outputs.items()
            if isinstance(rule, Dims)
            for entry in rule.entries
            for node in ast.walk(ast.parse(entry, mode="eval"))
            if isinstance(node, ast.Name)
        }

    def __call__(self, *tensors: Any) -> tuple[int | None, ...]:
        """Check `tensors` (in the schema's order).

        Returns
        -------
        tuple of int
            The sizes of the shape symbols, in order of first use; None for one that no output
            needs and no tensor of the call has.

        Raises
        ------
        TypeError
            A dtype that is not admitted.
        ValueError
            A rank or size that does not fit.
        """
        sizes: dict[str, tuple[int, str]] = {}
        dtypes: dict[str, tuple[str, str]] = {}
        firsts: dict[str, tuple[tuple[int, ...], str]] = {}
        for given, value in zip(self._arguments, tensors, strict=True):
            for argument, tensor in _members(given, value):
                self._dtype(argument, tensor, dtypes)
                self._shape(given.name, argument, tuple(tensor.shape), firsts, sizes)
        for symbol in self._symbols:
            if symbol not in sizes and symbol in self._needed:
                self._unknown(symbol)
        return tuple(sizes[s][0] if s in sizes else None for s in self._symbols)

    def _unknown(self, symbol: str) -> None:
        """Say that nothing in the call has a size that an output needs."""
        rules = self._kernel.shapes.inputs
        name = next(n for n, r in rules.items() if isinstance(r, Dims) and symbol in r.entries)
        self._empty(name, f"output '{self._needed[symbol]}' needs the size {symbol} of")

    def _empty(self, name: str, why: str) -> None:
        message = (
            f"[{self._name}] argument '{name}': expected at least one tensor, since {why} its "
            "members, got an empty list."
        )
        raise ValueError(message)

    def first(self, name: str, output: str, members: Any) -> Any:
        """Return the first tensor of a list, which gives an output its shape or dtype.

        Raises
        ------
        ValueError
            The list has none.
        """
        found = next((t for t in members if t is not None), None)
        if found is None:
            self._empty(name, f"output '{output}' is like")
        return found

    def like(self, output: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of an output that has an input's, where its C++ type fixes the rank.

        Raises
        ------
        ValueError
            The input has another rank.
        """
        rank = next(a.rank for a in self._kernel.arguments if a.name == output)
        if len(shape) != rank:
            rule = self._kernel.shapes.outputs[output]
            message = (
                f"[{self._name}] output '{output}': the C++ signature says {rank} "
                f"dimension{'' if rank == 1 else 's'}, and it gets the shape {tuple(shape)}, "
                f"{rule}. Declare shape: in the front matter, such as "
                f"shape: {{{self._example(output, len(shape), rank)}}}."
            )
            raise ValueError(message)
        return shape

    def _example(self, output: str, have: int, rank: int | None) -> str:
        letters = "nmklpqrs"
        parts = [f"{a.name}: [{', '.join(letters[:have])}]" for a in self._arguments]
        return ", ".join([*parts, f"{output}: [{', '.join(letters[: rank or 0])}]"])

    def sizes(
        self, output: str, given: tuple[int, ...] | Callable[[], tuple[int, ...]]
    ) -> tuple[int, ...]:
        """Return the sizes of an output, which its declared shape has given.

        Parameters
        ----------
        output
            The output's name.
        given
            The sizes, or a function that computes them where one divides.

        Raises
        ------
        ValueError
            One of them is negative, beyond what an address counts, or divides by zero.
        """
        if callable(given):
            try:
                sizes = given()
            except ZeroDivisionError:
                names = inspect.getclosurevars(given).nonlocals
                raise ValueError(self._division(output, names)) from None
            except (IndexError, ValueError):  # of the first, or the largest, of an empty list
                names = inspect.getclosurevars(given).nonlocals
                empty = [n for n, v in names.items() if isinstance(v, (list, tuple)) and not v]
                if not empty:
                    raise
                self._empty(empty[0], f"the shape of output '{output}' needs")
        else:
            sizes = given
        if sizes and not (min(sizes) >= 0 and max(sizes) <= sys.maxsize):
            rule = self._kernel.shapes.outputs[output]
            dimension = next(i for i, size in enumerate(sizes) if not 0 <= size <= sys.maxsize)
            entry = rule.entries[dimension] if isinstance(rule, Dims) else "?"
            small = sizes[dimension] < 0
            expected = "0 or more" if small else f"{sys.maxsize} at most"
            remedy = "arguments that leave at least one element" if small else "smaller numbers"
            message = (
                f"[{self._name}] output '{output}': expected sizes of {expected}, got "
                f"{sizes[dimension]} in dimension {dimension}, which is {entry} of the declared "
                f"shape. Pass {remedy}, or change shape: in the front matter."
            )
            raise ValueError(message)
        return sizes

    def _division(self, output: str, names: Mapping[str, Any]) -> str:
        """Say which expression of an output's shape divides by zero."""
        rule = self._kernel.shapes.outputs[output]
        arguments = {a.name for a in self._kernel.arguments if a.kind == "int"}
        for entry in rule.entries if isinstance(rule, Dims) else ():
            for node in ast.walk(ast.parse(entry, mode="eval")):
                if not isinstance(node, ast.BinOp) or not isinstance(
                    node.op, (ast.FloorDiv, ast.Mod)
                ):
                    continue
                divisor = ast.unparse(node.right)
                try:
                    # Arithmetic over sizes, checked when the shape was read.
                    value = eval(divisor, {"__builtins__": {}}, dict(names))  # noqa: S307 - see above
                except ZeroDivisionError:
                    continue
                if value == 0:
                    given = f"argument '{divisor}'" if divisor in arguments else f"'{divisor}'"
                    return (
                        f"[{self._name}] {given}: expected another value than 0, since the shape "
                        f"of output '{output}' is {entry}. Pass 1 or more."
                    )
        return f"[{self._name}] the shape of output '{output}' divides by zero: {rule}"

    def dtype(self, name: str, dtype: Any) -> Any:
        """Return a dtype, None, or a list of these, in the form that the engine passes to a kernel.

        Raises
        ------
        TypeError
            It is complex: the engine has no word for these.
        """
        if dtype is None:
            return None
        if isinstance(dtype, (list, tuple)):
            return [self.dtype(name, d) for d in dtype]
        import tvm_ffi

        if dtype.is_complex:
            message = (
                f"[{self._name}] argument '{name}': expected a dtype that the engine can pass, "
                f"which is any but a complex one, got {dtype}."
            )
            raise TypeError(message)
        return tvm_ffi.dtype(dtype.name)

    def device(self, device: Any) -> Any:
        """Return a device, None, or a list of these, in the form that the engine passes."""
        if device is None:
            return None
        if isinstance(device, (list, tuple)):
            return [self.device(d) for d in device]
        import tvm_ffi

        return tvm_ffi.device(str(device))

    def empty(self, shape: tuple[int, ...], *, dtype: Any, device: Any) -> Any:
        """Return an output on the GPU `device`, of CuPy's memory.

        Raises
        ------
        RuntimeError
            CuPy is not installed.
        """
        cupy = allocator(self._name, "outputs")
        with cupy.cuda.Device(device.index):
            return from_dlpack(cupy.empty(shape, dtype.numpy))

    def run(self, kernel: Callable[..., Any], *arguments: Any) -> Any:
        """Call a kernel on the arrays that tensors on a GPU stand for."""
        return kernel(*(a._array.source if isinstance(a, Tensor) else a for a in arguments))

    def _where(self, argument: Argument) -> str:
        return f"[{self._name}] argument '{argument.name}': "

    def _dtype(self, argument: Argument, tensor: Any, seen: dict[str, tuple[str, str]]) -> None:
        name = tensor.dtype.name
        admitted = argument.dtypes
        because = ""
        if argument.variable in seen and (name in admitted or not admitted):
            first, owner = seen[argument.variable]
            admitted, because = (first,), f" as argument '{owner}'"
        if admitted and name not in admitted:
            admitted = tuple(n for n in DTYPES if n in admitted)  # in the order of the guard
            *most, last = admitted
            expected = f"{', '.join(most)} or {last}" if most else last
            cast = _CASTS.get(admitted[0], f".to(tp.{admitted[0]})")
            advice = (
                f"Write {argument.name}{cast}, or {argument.name}.astype('{admitted[0]}') for a "
                "NumPy array."
            )
            if argument.writes is True:
                advice = (
                    f"It is written, so make it {admitted[0]} from the start: a cast would receive "
                    "the result instead."
                )
            message = (
                f"{self._where(argument)}expected {expected} on {self._kernel.device}{because}, "
                f"got {name} on "
                f"{tensor.device}. {advice}"
            )
            raise TypeError(message)
        if argument.variable is not None:
            seen.setdefault(argument.variable, (name, argument.name))

    def _shape(
        self,
        name: str,
        argument: Argument,
        shape: tuple[int, ...],
        firsts: dict[str, tuple[tuple[int, ...], str]],
        sizes: dict[str, tuple[int, str]],
    ) -> None:
        rule = self._kernel.shapes.inputs.get(name)
        rank = len(rule.entries) if isinstance(rule, Dims) else argument.rank
        where = self._where(argument)
        if rank is not None and len(shape) != rank:
            plural = "" if rank == 1 else "s"
            message = (
                f"{where}expected {rank} dimension{plural}, got {len(shape)} (shape {shape}). "
                f"Write {argument.name}.reshape(...) with {rank} size{plural}."
            )
            raise ValueError(message)
        group = self._like.get(name, name)
        expects, other = shape, ""
        if group in self._groups:  # what comes first decides; an argument before it may be None
            expects, other = firsts.setdefault(group, (shape, argument.name))
        if shape != expects:
            message = (
                f"{where}expected shape {expects} as argument '{other}', got "
                f"{shape}. Expand or reshape it; where other shapes are meant, declare them with "
                "shape: in the front matter."
            )
            raise ValueError(message)
        if not isinstance(rule, Dims):
            return
        for dimension, (entry, got) in enumerate(zip(rule.entries, shape, strict=True)):
            if entry == "_":
                continue
            if entry.isdigit():
                expected, why = int(entry), ""
            else:
                expected, owner = sizes.setdefault(entry, (got, argument.name))
                why = f" ({entry}, as argument '{owner}' has)"
            if expected != got:
                message = (
                    f"{where}expected size {expected} in dimension {dimension}{why}, got {got} "
                    f"(shape {shape}). The front matter's shape declares it."
                )
                raise ValueError(message)


def _members(argument: Argument, value: Any) -> Iterator[tuple[Argument, Any]]:
    """Yield the tensors of an argument, those of a list under names of their own."""
    if not argument.is_list:
        if value is not None:
            yield argument, value
        return
    for number, member in enumerate(value):
        if member is not None:
            yield dataclasses.replace(argument, name=f"{argument.name}[{number}]"), member
