"""The compiled function: which program serves a call, and what it gives back."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorplay._detours import detours, watching
from tensorplay._tensor import Tensor
from tensorplay.compiler import config
from tensorplay.compiler.binding import MISS, Binding
from tensorplay.compiler.capture import AliasError, Captured, capture
from tensorplay.compiler.guards import first_broken
from tensorplay.compiler.keys import (
    change,
    key_of,
    leaves_of,
    like_any_numbers,
    numbers_of,
    objects_in,
    these,
    with_any_numbers,
    without_numbers,
    without_objects,
    without_sizes,
)
from tensorplay.compiler.program import Family, Origin, Program, signature
from tensorplay.compiler.reports import CompileReport, Event, ProgramReport
from tensorplay.compiler.sources import line_of_error, user_line
from tensorplay.func.trees import flatten
from tensorplay.graph.errors import GraphCaptureError
from tensorplay.ops.dispatch import local

__all__ = ["CompiledFunction", "Options", "all_compiled", "disabled"]


class _Disabled(threading.local):
    depth: int = 0


disabled: Final = _Disabled()

#: Kinds of calls that failed, none having succeeded, before others are not tried.
MOST_FAILURES: Final = 8
#: Arguments that are objects of which each came once only, before further ones are not captured.
MOST_OBJECTS: Final = 64
#: Numbers with programs of their own before one for any number is tried.
MOST_NUMBERS: Final = 2
#: Captures of one kind of calls in which the function raised, or that were beyond the limit, before
#: others are not tried.
MOST_TRIES: Final = 3

_INSTEAD: Final = "Pass the tensors and numbers that it holds, in a tuple or dictionary"
_AS_TENSOR: Final = "Pass a number that is new in each call as a tensor, tensorplay.tensor(number)"


@dataclass(frozen=True)
class Options:
    """How a function is compiled."""

    backend: Callable[..., Any] | None  # None: the default one at the time of the capture
    keywords: dict[str, Any]
    fullgraph: bool = False
    dynamic: bool | None = None
    recompile_limit: int | None = None
    strict_native: bool = False


class CompiledFunction:
    """A function that runs as compiled graphs.

    Attributes
    ----------
    __wrapped__ : callable
        The function itself.
    """

    def __init__(self, function: Callable[..., Any], options: Options, name: str | None) -> None:
        functools.update_wrapper(self, function, updated=())
        # Its attributes too, but for those with the names of methods here.
        own = getattr(function, "__dict__", {}).items()
        self.__dict__.update({name: x for name, x in own if not hasattr(type(self), name)})
        self.__wrapped__ = function
        self._function = function
        self._options = options
        self._name = name or getattr(function, "__name__", None) or type(function).__name__
        self._lock = threading.RLock()
        self._held = _held(function)
        self._reset()
        all_compiled.add(self)

    def __reduce__(self) -> Any:
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        name = getattr(self, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name  # as a function that its module defines: by its name
        return CompiledFunction, (self._function, self._options, self._name)

    def _reset(self) -> None:
        self._bindings: OrderedDict[Any, list[Binding]] = OrderedDict()
        self._families: dict[Any, list[Family]] = {}
        self._reasons: dict[Any, str] = {}  # why calls of a kind run eagerly
        self._tries: dict[Any, int] = {}  # captures of a kind that led to nothing
        self._events: list[Event] = []
        self._eager_calls = 0
        self._shape_seconds = 0.0  # of captures that a known program serves
        self._limits: dict[str, str] = {}  # that were reached, each with the reason given first
        self._past_hits = 0  # of bindings that were let go
        self._objects: dict[int, Any] = {}  # arguments that are told apart by identity
        self._by_objects: dict[Any, list[Any]] = {}  # keys that differ in these
        # By kind of call: the numbers that came first, and which leaves may be any number; None
        # where the function looks at them.
        self._by_numbers: dict[Any, list[dict[int, Any]]] = {}
        self._any_numbers: dict[Any, set[int] | None] = {}

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
        leaves, structure = leaves_of(args, kwargs)
        key = key_of(leaves, structure)
        if key is None:
            return self._eagerly("an argument is no plain tensor", args, kwargs)
        found = self._bindings.get(key)
        if found is None and self._any_numbers:
            found = self._bindings.get(self._key_for_any(key))
        if found is not None:
            for binding in found:
                flat = binding.tensors(leaves)
                if flat is None:
                    continue
                if not binding.conditions or binding.program.check is not None:
                    if not binding.decides(flat):
                        continue
                    binding.hits += 1
                    if not binding.written:
                        return binding.run(flat)
                    return self._writing(binding, flat, args, kwargs)
                try:
                    result = binding.run(flat)
                except Exception:  # noqa: BLE001 - what it would have decided otherwise is unknown
                    result = MISS
                if result is not MISS:
                    binding.hits += 1
                    return result
        if structure is None:
            structure = flatten((args, kwargs), known=True)[1]
        return self._new(key, leaves, structure, args, kwargs)

    def _writing(self, binding: Binding, flat: list[Tensor], args: Any, kwargs: Any) -> Any:
        """Run a program that writes into what it is given, which it does at its end.

        The function itself has written before a later step raises, so it runs then, and raises.
        """
        before = binding.state(flat)
        try:
            return binding.run(flat)
        except Exception:
            if not binding.goes_back(flat, before):
                raise
            self._function(*args, **kwargs)
            raise  # it does not: the program is wrong, and has not written

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
            reason = (
                self._reasons.get(key)
                or self._reasons.get(these(key, leaves))
                or self._reasons.get(without_objects(key))
                or self._reasons.get(without_numbers(key))
            )
            if reason is None and not self._families and len(self._reasons) >= MOST_FAILURES:
                reason = next(reversed(self._reasons.values()))
            if reason is None and (self._limits or len(self._bindings) > config.most_shapes):
                self._trim()
            if reason is None:
                reason = self._has_new_objects(key, leaves)
            binding = None
            if reason is None:
                binding, reason = self._for_any_numbers(key, leaves, structure)
            if binding is None and reason is None:
                binding, reason = self._make(key, leaves, structure)
        if binding is None:
            return self._eagerly(str(reason), args, kwargs)
        flat = binding.tensors(leaves)
        if flat is None:
            return self._eagerly("its guards did not hold right after the capture", args, kwargs)
        if binding.written:
            result = self._writing(binding, flat, args, kwargs)
        else:
            result = binding.run(flat)
        if result is MISS:
            construct, line = binding.condition_texts[0]
            reason = (
                f"kernels round what Python looks at, by {construct}() at {line}, to another answer"
            )
            return self._eagerly(reason, args, kwargs)
        binding.hits += 1
        return result

    def _trim(self) -> None:
        while len(self._bindings) > config.most_shapes:
            self._forget(next(iter(self._bindings)))

    def _forget(self, key: Any) -> None:
        """Let the bindings of a key go, with programs and objects that no other key has."""
        forgotten = self._bindings.pop(key)
        self._past_hits += sum(b.hits for b in forgotten)
        unused = {b.program for b in forgotten} - {b.program for b in self._all_bindings()}
        for family in itertools.chain(*self._families.values()):
            family.drop(unused)
        kind = without_objects(key)
        alike = [k for k in self._by_objects.pop(kind, ()) if k != key]
        if alike:
            self._by_objects[kind] = alike
        for number in objects_in(key):
            if not any(number in objects_in(k) for k in self._bindings):
                self._objects.pop(number, None)

    def _has_new_objects(self, key: Any, leaves: Sequence[Any]) -> str | None:
        """Note a key that has objects; return why further ones like it are not captured."""
        kind = without_objects(key)
        if kind == key:
            return None
        known = self._by_objects.setdefault(kind, [])
        known[:] = [
            k for k in known
            if k != key and k in self._bindings and self._bindings[k][0].hits < 2
        ]  # fmt: skip
        known.append(key)
        if len(known) <= MOST_OBJECTS:
            return None
        if self._options.fullgraph:
            self._forget(known[0])
            return None
        for k in known[:-1]:
            self._forget(k)
        reason = (
            f"{self._object_name(key, leaves)}, is another object in each call: after "
            f"{MOST_OBJECTS} of them no further ones are captured. {_INSTEAD}"
        )
        return self._give_up(kind, reason, None)

    def _object_name(self, key: Any, leaves: Sequence[Any]) -> str:
        """Return name and type of an argument that is told apart by identity: of a new one."""
        found = [
            (n, x) for n, x in zip(self._leaf_names(leaves), leaves, strict=True)
            if id(x) in objects_in(key)
        ]  # fmt: skip
        name, x = next((one for one in found if id(one[1]) not in self._objects), found[0])
        return f"{name}, of type {type(x).__name__}"

    def _key_for_any(self, key: Any) -> Any:
        """Return the key of calls with any number in place of some, where a program serves them."""
        numbers = self._any_numbers.get(like_any_numbers(key))
        return with_any_numbers(key, numbers) if numbers else key

    def _for_any_numbers(
        self, key: Any, leaves: Sequence[Any], structure: Any
    ) -> tuple[Binding | None, str | None]:
        """Capture for any numbers in place of those that were others in two calls before."""
        here = like_any_numbers(key)
        kind = without_sizes(here)
        numbers = self._any_numbers.get(kind, set())
        if numbers is None or self._options.dynamic is False:
            return None, None
        if len(self._any_numbers) + len(self._by_numbers) > config.most_shapes:
            self._by_numbers.clear()
            self._any_numbers.clear()
        values = numbers_of(key)
        known = self._by_numbers.setdefault(kind, [])
        if len(known) < MOST_NUMBERS:
            if values not in known:
                known.append(values)
            return None, None
        numbers = numbers | {i for i, x in values.items() if any(k[i] != x for k in known)}
        if not numbers:
            return None, None
        binding, reason = self._make(with_any_numbers(key, numbers), leaves, structure, numbers)
        if binding is not None:
            self._any_numbers[kind] = self._any_numbers[here] = numbers
        elif reason is None and kind not in self._any_numbers:
            self._any_numbers[kind] = None
        return binding, reason

    def _make(
        self, key: Any, leaves: Sequence[Any], structure: Any, any_numbers: Collection[int] = ()
    ) -> tuple[Binding | None, str | None]:
        """Capture a call; nothing and no reason where that does not do for any numbers."""
        begin = time.perf_counter()
        names = self._leaf_names(leaves)
        try:
            captured = capture(
                self._function, leaves, structure, names, held=self._held, any_numbers=any_numbers
            )
        except Exception as error:  # noqa: BLE001 - raised again, or the function does it
            if any_numbers:
                return None, None
            return None, self._not_captured(key, leaves, error)
        shape = signature(captured)
        families = self._families.setdefault(shape.structure, [])
        origin = Origin(
            without_sizes(key),
            captured.watch.guards,
            tuple([c.value.tobytes() for c in captured.recorder.conditions]),
            captured.watch.literals,
        )
        family = next((f for f in families if f.serves(shape, origin)), None)
        kind, why = "shape", ""
        replaced: list[Family] = []
        limit = self._options.recompile_limit or config.recompile_limit
        if len(self._bindings.get(key, ())) >= limit:  # each is tried in each call
            what = f"{limit} programs or answers for one kind of calls"
            return None, self._at_limit(what, self._why_new(key, leaves), key, leaves)
        if family is None:
            family = Family(shape, origin, exact=self._options.dynamic is False)
            replaced = [f for f in families if family.serves(f.shape, f.origin)]
            why = self._why_new(key, leaves)
            if self._count() - len(replaced) >= limit:
                return None, self._at_limit(f"{limit} programs", why, key, leaves)
            kind = "compile" if self._count() == 0 else "recompile"
        program = family.program(shape)
        if program is None:
            program = self._program(captured)
            family.add(shape, program)
        if kind != "shape":
            families.append(family)
            self._replace(families, replaced, family)
            self._events.append(Event(kind, why, time.perf_counter() - begin))
        else:
            self._shape_seconds += time.perf_counter() - begin
        leaf_numbers: dict[int, int] = {}
        for number, x in enumerate(leaves):
            if isinstance(x, Tensor):
                leaf_numbers.setdefault(id(x), number)
        binding = Binding(captured, program, leaf_numbers, f"{_camel(self._name)}Backward")
        if binding.written and binding._overlap([x.tensor for x in captured.inputs]):
            reason = "it writes into an argument that shares memory with another"
            return None, self._give_up(key, reason, None)
        self._objects.update({id(x): x for x in leaves if id(x) in objects_in(key)})
        self._bindings.setdefault(key, []).insert(0, binding)
        self._tries.pop(("raised", without_numbers(key)), None)
        return binding, None

    def _not_captured(self, key: Any, leaves: Sequence[Any], error: Exception) -> str:
        """Return why calls like one whose capture raised run eagerly, or this one alone."""
        if isinstance(error, AliasError):
            return self._give_up(these(key, leaves), str(error), error)
        if isinstance(error, GraphCaptureError):
            return self._give_up(key, str(error), error)
        # The function itself may raise this: then it does so again.
        line = line_of_error(error)
        where = "" if line is None else f" (at {line})"
        reason = f"the capture failed: {type(error).__name__}: {error}{where}"
        if self._options.strict_native:
            raise error
        kind = without_sizes(like_any_numbers(key))
        if self._any_numbers.get(kind, ()) is None and self._tried(("any", kind)) < MOST_TRIES:
            del self._any_numbers[kind]  # nor was this number captured: it says nothing of others
        raised = self._tried(key)
        alike = self._tried(("raised", without_numbers(key)))
        if alike >= MOST_FAILURES and not self._options.fullgraph:
            # Numbers are new in each call, and none of the last ones was captured.
            return self._give_up(without_numbers(key), reason, None)
        lacking = isinstance(error, NotImplementedError)
        if raised < MOST_TRIES and not lacking and not self._options.fullgraph:
            return reason  # perhaps for the values of this call only
        return self._give_up(key, reason, None)

    def _tried(self, kind: Any) -> int:
        """Count a capture that led to nothing; return how many there were of the kind."""
        if len(self._tries) > config.most_shapes:
            self._tries.clear()
        self._tries[kind] = self._tries.get(kind, 0) + 1
        return self._tries[kind]

    def _count(self) -> int:
        return sum(len(families) for families in self._families.values())

    def _replace(self, families: list[Family], replaced: list[Family], by: Family) -> None:
        """Let a program for all sizes take the place of those that were made for 0 or 1."""
        for old in replaced:
            families.remove(old)
            instead = by.take_over(old)
            for binding in self._all_bindings():
                binding.program = instead.get(binding.program, binding.program)

    def programs(self) -> list[Program]:
        """Return the programs that were made."""
        return [
            program
            for families in self._families.values()
            for family in families
            for program in family.programs
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

    def _at_limit(self, limit: str, why: str, key: Any, leaves: Sequence[Any]) -> str:
        kind = without_objects(key)
        if key not in self._bindings and any(without_objects(k) == kind for k in self._bindings):
            why = f"{self._object_name(key, leaves)}, is another object. {_INSTEAD}"
        elif key not in self._bindings:
            kind = without_numbers(key)
            if any(without_numbers(k) == kind for k in self._bindings):
                why = f"{why}. {_AS_TENSOR}"
        reason = (
            f"the specialization limit of {limit} is reached; the last reason to compile again "
            f"was: {why}"
        )
        if config.fail_on_recompile_limit_hit:
            raise RuntimeError(f"[compile] {self._name}: {reason}")
        if not self._limits:
            self._events.append(Event("limit", reason, 0.0))
            warnings.warn(
                f"[compile] {self._name}: {reason}. Further kinds of calls run eagerly. Write "
                "f.report() for all reasons, or compile(f, recompile_limit=...).",
                RuntimeWarning,
                stacklevel=5,
            )
        reason = self._limits.setdefault(limit, reason)  # one event, however many calls there are
        if self._tried(kind) >= MOST_TRIES:
            # No more captures of this kind, nor tests of answers that were given only once.
            if len(self._reasons) > config.most_shapes:
                self._reasons.clear()
            self._reasons[kind] = reason
            known = self._bindings.get(key, [])
            kept = [b for b in known if b.hits > 1 or not b.conditions]
            if kept:
                self._past_hits += sum(b.hits for b in known) - sum(b.hits for b in kept)
                self._bindings[key] = kept
            elif known:
                self._forget(key)
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
            line = known[0].other_decision(leaves)
            if line is not None:
                return f"a number decided otherwise at {line}"
            return "a tensor that it reads changed its shape or type"
        names = ["grad mode", "inference mode", "default dtype", *self._leaf_names(leaves)]
        best: list[str] | None = None
        for other in reversed(self._bindings):
            if len(other) != len(key):
                continue
            changes = [
                change(name, o, n)
                for name, o, n in zip([*names, *[""] * len(key)], other, key, strict=False)
                if o != n
            ]
            if changes and (best is None or len(changes) < len(best)):
                best = changes
        return (
            "; ".join(dict.fromkeys(best)) if best else "another number or structure of arguments"
        )

    def report(self) -> CompileReport:
        """Return what was compiled, why, and what runs eagerly."""
        families = [f for found in self._families.values() for f in found]
        bindings = self._all_bindings()
        programs = []
        for number, family in enumerate(families):
            variants = family.programs
            mine = [b for b in bindings if any(b.program is v for v in variants)]
            programs.append(ProgramReport.of(number, variants[-1], mine))
        return CompileReport(
            name=self._name,
            programs=len(families),
            shapes=len(bindings),
            hits=self._past_hits + sum(p.hits for p in programs),
            eager_calls=self._eager_calls,
            details=tuple(programs),
            shape_seconds=self._shape_seconds,
            events=tuple(self._events),
        )

    def reset(self) -> None:
        """Forget all programs."""
        with self._lock:
            self._reset()


#: All compiled functions.
all_compiled: Final[weakref.WeakSet[CompiledFunction]] = weakref.WeakSet()


def _held(function: Any) -> list[Any]:
    """Return the objects that a function is bound to."""
    owner = getattr(function, "__self__", None)
    if owner is not None:
        return [owner]
    return [] if hasattr(function, "__code__") else [function]


def _camel(name: str) -> str:
    words = "".join(c if c.isalnum() else "_" for c in name).split("_")
    return "".join(w[:1].upper() + w[1:] for w in words) or "Compiled"
