"""The compiled function: which program serves a call, and what it gives back."""

from __future__ import annotations

import functools
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorplay import _dtype
from tensorplay._detours import detours, watching
from tensorplay._tensor import Tensor
from tensorplay.autograd import grad_mode
from tensorplay.compiler import config
from tensorplay.compiler.capture import AliasError, Captured, Output, capture
from tensorplay.compiler.derivative import CompiledNode
from tensorplay.compiler.guards import first_broken, guard_function
from tensorplay.compiler.program import Family, Origin, Program, signature
from tensorplay.compiler.reports import CompileReport, Event, ProgramReport
from tensorplay.compiler.sources import user_line
from tensorplay.compiler.watch import CONSTANTS, Guard
from tensorplay.func.trees import flatten, unflatten
from tensorplay.graph.errors import GraphCaptureError
from tensorplay.ops.dispatch import is_override, local

__all__ = ["Binding", "CompiledFunction", "Options", "disabled"]


class _Disabled(threading.local):
    depth: int = 0


disabled: Final = _Disabled()

_MISS: Final = object()
#: Kinds of calls that failed, none having succeeded, before others are not tried.
MOST_FAILURES: Final = 8
_SIMPLE: Final = frozenset({int, bool, str, type(None)})


@dataclass(frozen=True)
class Options:
    """How a function is compiled."""

    backend: Callable[..., Any] | None  # None: the default one at the time of the capture
    keywords: dict[str, Any]
    fullgraph: bool = False
    dynamic: bool | None = None
    recompile_limit: int | None = None
    strict_native: bool = False


class Binding:
    """A program for the calls of one kind: one set of shapes, and guards that hold."""

    def __init__(
        self,
        captured: Captured,
        program: Program,
        leaf_numbers: dict[int, int],
        name: str,
    ) -> None:
        self.program = program
        self.name = name
        self.guards: list[Guard] = list(captured.watch.guards.values())
        self.live: list[Guard] = []
        self.fixed: list[tuple[int, Tensor]] = []
        self.sources: list[tuple[str, int]] = []  # of each input of the graph
        for x in captured.inputs:
            position = leaf_numbers.get(id(x.tensor))
            if position is not None:
                self.sources.append(("leaf", position))
                continue
            guard = captured.watch.tensors[id(x.tensor)][1]
            if guard is not None:
                self.sources.append(("live", len(self.live)))
                self.live.append(guard)
            else:
                self.sources.append(("fixed", len(self.fixed)))
                self.fixed.append((len(self.fixed), x.tensor))
        self.guard, self.guard_text = guard_function(self.guards, self.live)
        live = {id(g.value) for g in self.live}
        self.outside = {i for i in captured.watch.tensors if i not in live}
        # Of tensors that only Python looks at, and of those that no guard finds.
        taken = {id(x.tensor) for x in captured.inputs} - {id(t) for _, t in self.fixed}
        self.facts = [
            (t, _facts(t)) for i, (t, _) in captured.watch.tensors.items() if i not in taken
        ]
        self.outputs = captured.outputs
        self.structure = captured.structure
        self.conditions = [c.value for c in captured.recorder.conditions]
        self.condition_texts = [(c.construct, c.line) for c in captured.recorder.conditions]
        self.outside_writes = captured.outside_writes
        self.written = sorted(
            {w[0] for w in captured.writes} | {w[0] for w in captured.outside_writes}
        )
        self.roots = len(captured.roots)
        self.differentiable = captured.differentiable if captured.gradients else []
        self.wanted = captured.wanted
        self.only_leaves = [p for k, p in self.sources if k == "leaf"]
        self.in_order = all(k == "leaf" for k, _ in self.sources)
        only = self.outputs[0] if len(self.outputs) == 1 else None
        # The commonest function: one new tensor, and nothing else.
        self.is_single = (
            only is not None
            and only.kind == "root"
            and not only.steps
            and self.structure == flatten(0)[1]
            and self.roots == 1
        )
        self.hits = 0

    # --- a call -----------------------------------------------------------------------------

    def tensors(self, leaves: Sequence[Any]) -> list[Tensor] | None:
        """Return the inputs of the graph for a call, None if the guards do not hold."""
        live = self.guard()
        if live is None:
            return None
        if live or self.outside:
            given = {id(leaves[i]) for i in self.only_leaves}
            if not (given.isdisjoint(self.outside) and given.isdisjoint(map(id, live))):
                return None  # an argument is also read from outside
        for t, facts in self.facts:
            if _facts(t) != facts:
                return None
        if self.in_order:
            flat = [leaves[i] for i in self.only_leaves]
        else:
            flat = [
                leaves[i] if kind == "leaf" else live[i] if kind == "live" else self.fixed[i][1]
                for kind, i in self.sources
            ]
        if self.written and self._overlap(flat):
            return None
        return flat

    def _overlap(self, flat: Sequence[Tensor]) -> bool:
        """Tell whether something that is written lies in the memory of another input."""
        for i in self.written:
            mine = flat[i]._array
            for j, other in enumerate(flat):
                if j != i and np.may_share_memory(mine, other._array):
                    return True
        return False

    def decides(self, flat: list[Tensor]) -> bool:
        """Tell whether Python decides as in the capture, before something happens for good."""
        check = self.program.check
        if check is None:
            return True
        try:
            with grad_mode.no_grad():
                values = check(*flat)
        except Exception:  # noqa: BLE001 - what it would have decided otherwise is unknown
            return False
        return all(_equal(v._array, c) for v, c in zip(values, self.conditions, strict=True))

    def run(self, flat: list[Tensor]) -> Any:
        """Run the program on the inputs of the graph; `_MISS` if Python would decide otherwise."""
        program = self.program
        mode = grad_mode.state
        recording = mode.enabled
        if recording:
            mode.enabled = False
            try:
                results = program.call(*flat)
            finally:
                mode.enabled = True
        else:
            results = program.call(*flat)
        if results.__class__ is not tuple:
            results = tuple(results)
        if self.conditions:
            for value, expected in zip(results[self.roots :], self.conditions, strict=False):
                if not _equal(value._array, expected):
                    return _MISS
        if recording and self.differentiable:
            self._record(flat, results)
        if self.is_single:
            return results[0]
        return self._finish(flat, results, recording=recording)

    def _record(self, flat: list[Tensor], results: tuple[Any, ...]) -> None:
        program = self.program
        first = self.roots + len(self.conditions)
        numbers = {root: n for n, root in enumerate(self.differentiable)}
        tensors = [results[i] for i in self.differentiable]
        node = CompiledNode(self.name, program, flat, self.wanted, tensors, results[first:])
        for number, tensor in enumerate(tensors):
            tensor._grad_fn, tensor._output_nr, tensor._requires_grad = node, number, True
        saved = {i: results[i] for kind, i in program.saved if kind == "root"}
        if saved:
            node.keep_results(saved, numbers)

    def _finish(self, flat: list[Tensor], results: tuple[Any, ...], *, recording: bool) -> Any:
        for position, root, recorded in self.outside_writes:
            with grad_mode.set_grad_enabled(recorded and recording):
                flat[position].copy_(results[root])
        made: dict[tuple[str, int], Tensor] = {}
        found = [self._output(x, flat, results, made, recording=recording) for x in self.outputs]
        return unflatten(self.structure, found)

    def _output(
        self,
        output: Output,
        flat: list[Tensor],
        results: tuple[Any, ...],
        made: dict[tuple[str, int], Tensor],
        *,
        recording: bool,
    ) -> Any:
        if output.kind == "constant":
            return output.value
        tensor: Tensor = flat[output.index] if output.kind == "input" else results[output.index]
        if output.detached and tensor._requires_grad:
            place = (output.kind, output.index)
            if place not in made:
                made[place] = tensor.detach()
            tensor = made[place]
        if output.steps:
            with grad_mode.set_grad_enabled(recording):
                for primitive, rest, number in output.steps:
                    out = primitive.apply((tensor, *rest))
                    tensor = out if number is None else out[number]
        return tensor


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    array = tensor._array
    return (
        tensor._dtype,
        array.shape,
        array.strides,
        tensor._requires_grad,
        (tensor._tangent is None and array.__class__ is np.ndarray),
    )


def _equal(one: Any, two: Any) -> bool:
    return bool(one.shape == two.shape and one.tobytes() == two.tobytes())


def _leaf_key(x: Any) -> Any:
    """Return what distinguishes a leaf from others to a graph; `_MISS` if no graph takes it."""
    if isinstance(x, Tensor):
        if x._base is not None:
            x._synchronise()
        array = x._array
        if array.__class__ is not np.ndarray or x._tangent is not None or is_override(x):
            return _MISS
        needs = x._requires_grad
        return (
            x.__class__, x._dtype, array.shape, array.strides, needs,
            needs and x._grad_fn is None, x._inference,
        )  # fmt: skip
    kind = x.__class__
    if kind in _SIMPLE:
        return (kind, x)
    if kind is float or kind is complex or isinstance(x, np.generic):
        return (kind, repr(x))
    if isinstance(x, CONSTANTS):
        try:
            hash(x)
        except TypeError:
            return (kind, repr(x))
        return (kind, x)
    return ("object", id(x))


def _leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Any]:
    """Return the leaves of the arguments and their structure, None if that is a plain tuple."""
    if kwargs:
        return flatten((args, kwargs))
    for x in args:
        kind = x.__class__
        if kind is not Tensor and kind not in _SCALARS and not isinstance(x, Tensor):
            return flatten((args, kwargs))
    return args, None


def _key_of(leaves: Sequence[Any], structure: Any) -> tuple[Any, ...] | None:
    """Return what distinguishes a call from others to a graph; None if no graph takes it."""
    state = grad_mode.state
    parts: list[Any] = [state.enabled, state.inference, _dtype.get_default_dtype()]
    tensors = 0
    for x in leaves:
        if x.__class__ is Tensor:  # written out: the path of every call
            array = x._array
            if x._base is not None:
                x._synchronise()
            if array.__class__ is not np.ndarray or x._tangent is not None:
                return None
            needs = x._requires_grad
            parts.append((
                x._dtype, array.shape, array.strides, needs,
                needs and x._grad_fn is None, x._inference,
            ))  # fmt: skip
            tensors += 1
            continue
        part = _leaf_key(x)
        if part is _MISS:
            return None
        parts.append(part)
        tensors += isinstance(x, Tensor)
    if tensors > 1 and len({id(x) for x in leaves if isinstance(x, Tensor)}) < tensors:
        parts.append(_repeats(leaves))
    if structure is not None:
        parts.append(_shape_of(structure))
    return tuple(parts)


class CompiledFunction:
    """A function that runs as compiled graphs.

    Attributes
    ----------
    __wrapped__ : callable
        The function itself.
    """

    def __init__(self, function: Callable[..., Any], options: Options, name: str | None) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self._function = function
        self._options = options
        self._name = name or getattr(function, "__name__", None) or type(function).__name__
        self._lock = threading.RLock()
        self._held = _held(function)
        self._reset()

    def _reset(self) -> None:
        self._bindings: OrderedDict[Any, list[Binding]] = OrderedDict()
        self._families: dict[Any, list[Family]] = {}
        self._reasons: dict[Any, str] = {}  # why calls of a kind run eagerly
        self._events: list[Event] = []
        self._eager_calls = 0
        self._shape_seconds: list[float] = []  # of captures that a known program serves
        self._limit_hit = False
        self._objects: dict[int, Any] = {}  # arguments that are told apart by identity

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        # What the function or module has besides being called.
        function = self.__dict__.get("_function")
        if function is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(function, name)

    def __repr__(self) -> str:
        return f"<compiled {self._name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, by a program if there is one for the call."""
        if watching.recorder is not None or disabled.depth:
            return self._function(*args, **kwargs)  # part of the function around it, or not wanted
        if detours and local.modes:
            return self._eagerly("a mode answers the calls of this thread", args, kwargs)
        leaves, structure = _leaves_of(args, kwargs)
        key = _key_of(leaves, structure)
        if key is None:
            return self._eagerly("an argument is no plain tensor", args, kwargs)
        found = self._bindings.get(key)
        if found is not None:
            for binding in found:
                flat = binding.tensors(leaves)
                if flat is None:
                    continue
                if not binding.conditions or binding.program.check is not None:
                    if not binding.decides(flat):
                        continue
                    binding.hits += 1
                    return binding.run(flat)
                try:
                    result = binding.run(flat)
                except Exception:  # noqa: BLE001 - what it would have decided otherwise is unknown
                    result = _MISS
                if result is not _MISS:
                    binding.hits += 1
                    return result
        if structure is None:
            structure = flatten((args, kwargs))[1]
        return self._new(key, leaves, structure, args, kwargs)

    # --- calls without a program ------------------------------------------------------------

    def _eagerly(self, reason: str, args: Any, kwargs: Any) -> Any:
        self._eager_calls += 1
        if self._options.strict_native:
            message = f"[compile] strict_native: {self._name} would run in Python because {reason}."
            raise RuntimeError(message)
        if not any(e.reason == reason for e in self._events):
            self._events.append(Event("eager", reason, 0.0))
        return self._function(*args, **kwargs)

    def _new(self, key: Any, leaves: Sequence[Any], structure: Any, args: Any, kwargs: Any) -> Any:
        """Capture the call, or run it eagerly if that is known to fail."""
        with self._lock:
            reason = self._reasons.get(key) or self._reasons.get(_these(key, leaves))
            if reason is None and not self._families and len(self._reasons) >= MOST_FAILURES:
                reason = next(reversed(self._reasons.values()))
            if reason is None and (self._limit_hit or len(self._bindings) > config.most_shapes):
                self._trim()
            if reason is None:
                binding, reason = self._make(key, leaves, structure)
            else:
                binding = None
        if binding is None:
            return self._eagerly(str(reason), args, kwargs)
        flat = binding.tensors(leaves)
        result = _MISS if flat is None else binding.run(flat)
        if result is _MISS:
            return self._eagerly("its guards did not hold right after the capture", args, kwargs)
        binding.hits += 1
        return result

    def _trim(self) -> None:
        while len(self._bindings) > config.most_shapes:
            self._bindings.popitem(last=False)

    def _make(
        self, key: Any, leaves: Sequence[Any], structure: Any
    ) -> tuple[Binding | None, str | None]:
        begin = time.perf_counter()
        try:
            captured = capture(
                self._function, leaves, structure, self._leaf_names(leaves), held=self._held
            )
        except AliasError as error:
            return None, self._give_up(_these(key, leaves), str(error), error)
        except GraphCaptureError as error:
            return None, self._give_up(key, str(error), error)
        except Exception as error:
            # The function itself may raise this: then it does so again.
            reason = f"the capture failed: {type(error).__name__}: {error}"
            if self._options.strict_native:
                raise
            return None, self._give_up(key, reason, None)
        shape = signature(captured)
        families = self._families.setdefault(shape.structure, [])
        origin = Origin(
            _without_sizes(key),
            captured.watch.guards,
            tuple([c.value.tobytes() for c in captured.recorder.conditions]),
            captured.watch.literals,
        )
        family = next((f for f in families if f.serves(shape, origin)), None)
        kind, why = "shape", ""
        replaced: list[Family] = []
        if family is None:
            family = Family(shape, origin, exact=self._options.dynamic is False)
            replaced = [f for f in families if family.serves(f.shape, f.origin)]
            limit = self._options.recompile_limit or config.recompile_limit
            why = self._why_new(key, leaves)
            if self._count() - len(replaced) >= limit:
                return None, self._at_limit(limit, why)
            kind = "compile" if self._count() == 0 else "recompile"
        numbers = shape.arguments, shape.floats
        program = family.variants.get(numbers)
        if program is None:
            program = family.variants[numbers] = self._program(captured)
        if kind != "shape":
            families.append(family)
            self._replace(families, replaced, family, program)
            self._events.append(Event(kind, why, time.perf_counter() - begin))
        else:
            self._shape_seconds.append(time.perf_counter() - begin)
        leaf_numbers: dict[int, int] = {}
        for number, x in enumerate(leaves):
            if isinstance(x, Tensor):
                leaf_numbers.setdefault(id(x), number)
            elif not isinstance(x, CONSTANTS):
                self._objects[id(x)] = x
        binding = Binding(captured, program, leaf_numbers, f"{_camel(self._name)}Backward")
        if binding.written and binding._overlap([x.tensor for x in captured.inputs]):
            reason = "it writes into an argument that shares memory with another"
            return None, self._give_up(key, reason, None)
        self._bindings.setdefault(key, []).insert(0, binding)
        return binding, None

    def _count(self) -> int:
        return sum(len(families) for families in self._families.values())

    def _replace(
        self, families: list[Family], replaced: list[Family], by: Family, program: Program
    ) -> None:
        """Let a program for all sizes take the place of those that were made for 0 or 1."""
        for old in replaced:
            families.remove(old)
            by.floats |= old.floats
            for numbers, variant in old.variants.items():
                if by.variants.setdefault(numbers, variant) is program:
                    for binding in self._all_bindings():
                        if binding.program is variant:
                            binding.program = program

    def programs(self) -> list[Program]:
        """Return the programs that were made."""
        return [
            program
            for families in self._families.values()
            for family in families
            for program in family.variants.values()
        ]

    def _all_bindings(self) -> list[Binding]:
        return [b for found in self._bindings.values() for b in found]

    def _program(self, captured: Captured) -> Program:
        from tensorplay.compiler.backends import get_default_backend, lookup_backend

        backend = self._options.backend or lookup_backend(get_default_backend())
        return Program(
            captured,
            backend,
            self._options.keywords,
            [x.tensor.detach() for x in captured.inputs],
            passes=config.passes,
        )

    def _give_up(self, key: Any, reason: str, error: GraphCaptureError | None) -> str:
        if self._options.fullgraph or self._options.strict_native:
            if error is not None:
                raise error
            if self._options.fullgraph:
                line = user_line()
                where = "" if line is None else f" (called at {line})"
                raise GraphCaptureError(f"[compile] fullgraph: {reason}{where}")
            raise RuntimeError(f"[compile] strict_native: {reason}")
        if len(self._reasons) > config.most_shapes:
            self._reasons.clear()
        self._reasons[key] = reason
        if not any(e.reason == reason for e in self._events):
            self._events.append(Event("break", reason, 0.0))
        return reason

    def _at_limit(self, limit: int, why: str) -> str:
        reason = (
            f"the specialization limit of {limit} programs is reached; the last reason to compile "
            f"again was: {why}"
        )
        if config.fail_on_recompile_limit_hit:
            raise RuntimeError(f"[compile] {self._name}: {reason}")
        if not self._limit_hit:
            self._limit_hit = True
            self._events.append(Event("limit", reason, 0.0))
            warnings.warn(
                f"[compile] {self._name}: {reason}. Further kinds of calls run eagerly. Write "
                "f.report() for all reasons, or compile(f, recompile_limit=...).",
                RuntimeWarning,
                stacklevel=5,
            )
        return reason

    # --- words ------------------------------------------------------------------------------

    def _leaf_names(self, leaves: Sequence[Any]) -> list[str]:
        code = getattr(self._function, "__code__", None)
        names = list(code.co_varnames[: code.co_argcount]) if code is not None else []
        if len(names) < len(leaves) or any(isinstance(x, (list, tuple, dict)) for x in leaves):
            names += [f"argument_{i}" for i in range(len(names), len(leaves))]
        return names[: len(leaves)]

    def _why_new(self, key: Any, leaves: Sequence[Any]) -> str:
        """Return what is new about a call, against the last known one that is most like it."""
        if not self._bindings:
            return "first call"
        known = self._bindings.get(key)
        if known:
            broken = first_broken(known[0].guards, known[0].live)
            if broken is not None:
                return broken
            if known[0].conditions:
                construct, line = known[0].condition_texts[0]
                return f"{construct}() of a value at {line} gave another answer"
            return "a tensor that it reads changed its shape or type"
        names = ["grad mode", "inference mode", "default dtype", *self._leaf_names(leaves)]
        best: list[str] | None = None
        for other in reversed(self._bindings):
            if len(other) != len(key):
                continue
            changes = [
                _change(name, o, n)
                for name, o, n in zip([*names, *["structure"] * len(key)], other, key, strict=False)
                if o != n
            ]
            if changes and (best is None or len(changes) < len(best)):
                best = changes
        return "; ".join(best) if best else "another number or structure of arguments"

    def report(self) -> CompileReport:
        """Return what was compiled, why, and what runs eagerly."""
        families = [f for found in self._families.values() for f in found]
        bindings = self._all_bindings()
        programs = []
        for number, family in enumerate(families):
            variants = list(family.variants.values())
            mine = [b for b in bindings if any(b.program is v for v in variants)]
            programs.append(ProgramReport.of(number, variants[-1], mine))
        return CompileReport(
            name=self._name,
            programs=len(families),
            shapes=len(bindings),
            hits=sum(p.hits for p in programs),
            eager_calls=self._eager_calls,
            details=tuple(programs),
            shape_seconds=sum(self._shape_seconds),
            events=tuple(self._events),
        )

    def reset(self) -> None:
        """Forget all programs."""
        with self._lock:
            self._reset()


def _without_sizes(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what distinguishes a call from others apart from sizes."""
    parts: list[Any] = []
    for part in key:
        tensor = _tensor_part(part)
        if tensor is not None:
            part = (*part[:-6], tensor[0], len(tensor[1]), *part[-3:])  # noqa: PLW2901
        parts.append(part)
    return tuple(parts)


def _shape_of(structure: Any) -> Any:
    """Return the structure of arguments as something to look up: kinds, and keys as they are."""
    kind = structure.__class__
    if isinstance(structure, tuple | list):
        return (kind, *[_shape_of(x) for x in structure])
    if kind is dict:
        return (kind, *[(k.__class__, k, _shape_of(x)) for k, x in structure.items()])
    return None


def _these(key: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Return a key for calls with these very tensors."""
    return ("these", key, tuple([id(x) for x in leaves if isinstance(x, Tensor)]))


_SCALARS: Final = frozenset({int, float, bool, str, type(None), complex})


def _held(function: Any) -> list[Any]:
    """Return the objects that a function is bound to."""
    owner = getattr(function, "__self__", None)
    if owner is not None:
        return [owner]
    return [] if hasattr(function, "__code__") else [function]


def _repeats(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Return for each tensor where it appears first."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x), n) for n, x in enumerate(leaves) if isinstance(x, Tensor))


def _camel(name: str) -> str:
    words = "".join(c if c.isalnum() else "_" for c in name).split("_")
    return "".join(w[:1].upper() + w[1:] for w in words) or "Compiled"


def _change(name: str, old: Any, new: Any) -> str:
    """Return ``x: float32 became float64``, or with shapes where the type is the same."""
    one, two = _tensor_part(old), _tensor_part(new)
    if (
        one is not None
        and two is not None
        and one[0] is not two[0]
        and (len(one[1]) == len(two[1]))
    ):
        return f"{name}: {one[0].name} became {two[0].name}"
    return f"{name}: {_text(old)} became {_text(new)}"


def _tensor_part(part: Any) -> tuple[Any, ...] | None:
    """Return type, shape, strides and need of a gradient, None of what is no tensor."""
    if not isinstance(part, tuple) or len(part) < 6 or not isinstance(part[-6], _dtype.dtype):
        return None
    return part[-6:-2]


def _text(part: Any) -> str:
    tensor = _tensor_part(part)
    if tensor is not None:
        d, shape, strides, needs = tensor
        text = f"{d.name}{list(shape)}"
        step = d.itemsize
        for n, s in zip(reversed(shape), reversed(strides), strict=True):
            if n != 1 and s != step:
                text += " with other strides"
                break
            step *= n
        return text + (" that requires grad" if needs else "")
    if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], type):
        return str(part[1])
    return str(part)
