"""Operators of a library file, registered all together or not at all."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorplay.library.definitions import CustomOpDef
from tensorplay.library.modules.artifact import Description, parse, this_platform
from tensorplay.library.modules.source import define_operators, kernels_of
from tensorplay.library.modules.spec import Declaration, OperatorSpec
from tensorplay.library.registry import all_or_nothing, lookup, remove
from tensorplay.ops.schema import parse_schema

__all__ = ["OperatorModule", "load_module", "overview"]


class OperatorModule:
    """What a library file has registered: attributes and items are its operators.

    Parameters
    ----------
    file
        The file.
    description
        What it says of itself.
    operators
        Name (without namespace) to operator.
    """

    def __init__(
        self, file: Path, description: Description, operators: Mapping[str, CustomOpDef]
    ) -> None:
        self.__name__ = description.name
        self.__file__ = str(file)
        self.__doc__ = overview(description)
        self._description = description
        self._operators = dict(operators)

    def __getattr__(self, name: str) -> CustomOpDef:
        operators = self.__dict__.get("_operators", {})
        if name in operators:
            found: CustomOpDef = operators[name]
            return found
        if name.startswith("__"):
            raise AttributeError(name)
        near = difflib.get_close_matches(name, operators, n=1, cutoff=0.5)
        meant = f"; did you mean '{near[0]}'?" if near else "."
        message = (
            f"operator module '{self.__name__}' has no operator '{name}'{meant} It has "
            f"{', '.join(operators)}."
        )
        raise AttributeError(message, name=name, obj=self)

    def __getitem__(self, name: str) -> CustomOpDef:
        return self._operators[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._operators)

    def __len__(self) -> int:
        return len(self._operators)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._operators]

    def __repr__(self) -> str:
        return f"<operator module '{self.__name__}': {', '.join(self._operators)}>"


def overview(description: Description) -> str:
    """Return the module's help: each operator with its guards in words."""
    lines = [f"Operators of {description.name}."]
    for spec in description.operators:
        if not spec.helper:
            lines += ["", spec.schema, *(f"    {text}" for text in spec.doc.splitlines())]
            lines += [
                f"    {name}: {guard}" for name, guard in spec.kernel.guard_text(copies=spec.copies)
            ]
            lines += [f"    gradient of {d.input}: {_how(spec, d)}" for d in spec.derivatives]
    lines += [f"\n{d.schema}\n    {d.problem or 'no kernel'}" for d in description.declarations]
    return "\n".join(lines)


def _how(spec: OperatorSpec, derivative: Any) -> str:
    if derivative.formula is not None:
        text = str(derivative.formula.text)
    elif spec.backward is not None and not derivative.none:
        text = f"C++ function {spec.backward.operator}"
    else:
        text = "none"
    if derivative.surrogate:
        text += f" (deliberately not the derivative: {derivative.surrogate})"
    return text


_lock = threading.RLock()
# File to digest of its content and what it registered.
_loaded: dict[Path, tuple[str, OperatorModule]] = {}


def load_module(path: str | os.PathLike[str]) -> OperatorModule:
    """Register the operators of a library file; `tensorplay.library.load` says how."""
    file = Path(path).resolve()
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    before = _loaded.get(file)
    if before is not None and before[0] == digest and _is_registered(before[1]):
        return before[1]
    description = parse(content, file)
    _check_platform(description, file)
    _check_functions(description, file)
    specs: list[OperatorSpec | Declaration] = [*description.operators]
    specs += description.declarations
    callables = {s.name: _resolve(s, file) for s in specs}
    with _lock:
        before = _loaded.get(file)
        if before is not None and before[0] == digest and _is_registered(before[1]):
            return before[1]  # another thread was first
        for spec in specs:
            _check_free(spec.name, file)
        library = _open(content, file, description)
        old = before[1]._operators if before is not None else {}
        made = _define(description, library, file, callables, old)
        module = OperatorModule(file, description, made)
        _loaded[file] = (digest, module)
    return module


def _define(
    description: Description,
    library: Any,
    file: Path,
    callables: Mapping[str, Mapping[str, Callable[..., Any]]],
    old: Mapping[str, CustomOpDef],
) -> dict[str, CustomOpDef]:
    """Register everything that a file describes, and drop what an older form of it had besides."""
    try:
        kernels = kernels_of((o.kernel for o in description.operators), library)
    except AttributeError as problem:
        message = f"[load] {file} is damaged: {problem}. Build it again."
        raise RuntimeError(message) from None
    try:
        with all_or_nothing():
            made = dict(define_operators(description.operators, kernels, owner=str(file)))
            for declaration in description.declarations:
                made[declaration.name.split("::")[1]] = _declare(declaration, str(file))
            for definition in made.values():
                _register(definition, callables[definition.name])
            for definition in old.values():
                if lookup(definition.name) is definition:  # the new file has it no more
                    remove(definition)
    except RuntimeError as problem:
        message = f"[load] {file}: nothing was registered: {problem}"
        raise RuntimeError(message) from problem
    shown = [o.opname for o in description.operators if not o.helper]
    shown += [d.name.split("::")[1] for d in description.declarations]
    return {name: made[name] for name in shown}


def _is_registered(module: OperatorModule) -> bool:
    return all(lookup(d.name) is d for d in module._operators.values())


def _check_platform(description: Description, file: Path) -> None:
    built, here = description.made.platform, this_platform()
    if built != here:
        message = (
            f"[load] {file}: expected a library for {here}, got one for {built}. Install the wheel "
            "for this machine, or build it here from its sources."
        )
        raise RuntimeError(message)


def _check_functions(description: Description, file: Path) -> None:
    """See that this version has the tensor functions that formulas call."""
    import tensorplay as tp

    for spec in description.operators:
        for derivative in spec.derivatives:
            source = derivative.formula.source if derivative.formula is not None else "0"
            for node in ast.walk(ast.parse(source, mode="eval")):
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == "tp"
                    and not hasattr(tp, node.attr)
                ):
                    message = (
                        f"[load] {file}: the gradient of {spec.name} needs tensorplay.{node.attr}, "
                        "which this version has not; it was built with "
                        f"{description.made.tensorplay}."
                    )
                    raise RuntimeError(message)


def _check_free(name: str, file: Path) -> None:
    present = lookup(name)
    if present is not None and present.owner.module != str(file):
        message = (
            f"[load] {file}: nothing was registered: {name} is already defined by {present.owner}. "
            f"Write tensorplay.library.remove('{name}') before, or give one of them another name."
        )
        raise RuntimeError(message)


def _resolve(spec: OperatorSpec | Declaration, file: Path) -> dict[str, Callable[..., Any]]:
    """Import the Python functions that a declaration names."""
    found = {}
    for key, text in spec.callables.items():
        module, _, name = text.replace(":", ".").rpartition(".")
        try:
            value = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as problem:
            message = (
                f"[load] {file}: nothing was registered: '{key}' of {spec.name} names {text}, "
                f"which cannot be imported: {problem}."
            )
            raise RuntimeError(message) from problem
        if not callable(value):
            message = f"[load] {file}: '{key}' of {spec.name}: {text} is no function."
            raise TypeError(message)
        found[key] = value
    return found


def _open(content: bytes, file: Path, description: Description) -> Any:
    """Load the bytes that were checked, from a copy with a name of its own.

    What happens to the file afterwards cannot reach the process, and a file that is built again is
    another library to the system's loader.
    """
    from tensorplay.utils import cpp_jit

    try:
        with tempfile.TemporaryDirectory(prefix="tensorplay-", ignore_cleanup_errors=True) as place:
            copy = Path(place) / file.name
            copy.write_bytes(content)
            try:
                return cpp_jit.load_module(copy, keep_module_alive=True)
            except RuntimeError as problem:
                if not re.search("failed to map segment|not permitted", str(problem)):
                    raise
        return cpp_jit.load_module(file, keep_module_alive=True)  # code may not run from there
    except RuntimeError as problem:
        if not cpp_jit.is_available():
            raise
        made = description.made
        message = (
            f"[load] {file}: the system's loader refuses it: {str(problem).strip()}. It was built "
            f"for {made.platform} with TensorPlay {made.tensorplay} and engine {made.engine}."
        )
        raise RuntimeError(message) from problem


def _declare(declaration: Declaration, owner: str) -> CustomOpDef:
    from tensorplay.library.custom_op import custom_op

    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(declaration.problem)

    kernel.__module__, kernel.__qualname__ = owner, declaration.name.split("::")[1]
    kernel.__doc__ = declaration.doc or None
    made: CustomOpDef = custom_op(
        declaration.name,
        kernel,
        schema=parse_schema(declaration.schema).signature(),
        device_types=None if declaration.problem else (),
    )
    return made


def _register(definition: CustomOpDef, callables: Mapping[str, Callable[..., Any]]) -> None:
    """Register the Python functions of an operator."""
    if "fake" in callables:
        definition.register_fake(callables["fake"])
    if "autograd" in callables:
        set_up = callables.get("setup_context") or _keep_inputs(definition)
        definition.register_autograd(callables["autograd"], setup_context=set_up)


def _keep_inputs(definition: CustomOpDef) -> Callable[..., None]:
    """Return a set-up that saves all tensors, and keeps other arguments under their names."""
    arguments = definition.schema.arguments

    def set_up(
        ctx: Any, inputs: Sequence[Any], output: Any, keyword_only_inputs: Mapping[str, Any] = {}
    ) -> None:
        positional = [a.name for a in arguments if not a.kwarg_only]
        values = {**dict(zip(positional, inputs, strict=True)), **keyword_only_inputs}
        tensors = [a.name for a in arguments if str(a.type) in ("Tensor", "Tensor?")]
        ctx.save_for_backward(*(values[n] for n in tensors))
        for name in values.keys() - set(tensors):
            setattr(ctx, name, values[name])

    return set_up
