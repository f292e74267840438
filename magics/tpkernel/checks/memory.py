"""What a kernel does to memory: a check by calls on guarded copies of its arguments.

Every tensor of a call is put into a larger buffer, with zones of known bytes before and after it,
and the kernel is called on those copies several times: with outputs that hold one value before the
call, with outputs that hold another, and with other bytes in the zones. What changed outside an
output, what an output still holds of both values, and what a result owes to either of them are
mistakes that a call on ordinary memory shows as garbage, as a crash much later, or not at all.

What a kernel allocates itself lies between such zones, too, and is filled before it gets it.

Nothing is built for it: the functions of the loaded library are wrapped while a check runs
(:class:`MemoryWatch`), so gradients and the functions they call are watched too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay.library.modules.spec import Argument, CellSpec, KernelSpec, OperatorSpec
from tensorplay.utils.cpp_jit import allocator
from tpkernel.checks.samples import Sample, flat_results, leaf
from tpkernel.report.report import Finding

__all__ = ["DAMAGE", "OUT_OF_MEMORY", "MemoryWatch", "call_with_gradient", "check_memory"]

#: Code of the finding that a call needed more memory than there is.
OUT_OF_MEMORY = "out_of_memory"
#: Codes of findings after which the memory of the process cannot be trusted, or is used up.
DAMAGE = frozenset({"writes_outside", "writes_input", OUT_OF_MEMORY})

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_ALIGNMENT = 64
_ZONE = 4096
# Two fills of the zones, as bytes to which an argument's position is added: a kernel that copies
# one place too many must not copy the very byte that it finds there. As numbers of any floating
# dtype they are moderate and of opposite sign, so a result that uses one differs from a result
# that uses the other.
_ZONES = (0x40, 0xC0)
_ZONE_COUNT = 15
# What the elements hold that a kernel allocates: moderate, and of opposite sign, as well.
_ELEMENTS = (0x3F, 0xBF)
# Two values of an output's elements before the call. They fit into every dtype, and survive an
# addition visibly: `out[i] += x[i]` changes both.
_FILLS = {"f": (1234.5, -4321.25), "c": (1234.5 + 7j, -4321.25 - 3j), "b": (False, True)}
_OTHER_FILLS = (85, 42)
# How often each of the calls that differ is repeated: what draws one bit may give it twice.
_CONFIRMATIONS = 6
# An index computed from values is out of range where a made sample is outside the domain.
_DOMAIN = "Where the operator has a domain, such as 0 <= x < 1, declare samples: from it."


class _Place:
    """One tensor of a call inside a buffer of its own, with the strides of the original."""

    def __init__(self, argument: Argument, original: np.ndarray[Any, Any], zone: int) -> None:
        self.argument = argument
        self.size = original.itemsize
        steps = [
            (n - 1) * s for n, s in zip(original.shape, original.strides, strict=True) if n > 1
        ]
        span = sum(map(abs, steps)) + self.size if original.size else 0
        margin = max(_ZONE, 2 * span)
        margin += -margin % _ALIGNMENT
        raw = np.empty(span + 2 * margin + _ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        self.bytes: _Bytes = raw[start : start + span + 2 * margin]
        self.bytes[:] = zone
        self.first = margin - sum(s for s in steps if s < 0)

        def laid_out(buffer: _Bytes) -> np.ndarray[Any, Any]:
            view: np.ndarray[Any, Any] = np.ndarray(
                original.shape, original.dtype, buffer.data, self.first, original.strides
            )
            return view

        self.view = laid_out(self.bytes)
        marks = np.zeros_like(self.bytes)
        ones = np.frombuffer(b"\x01" * self.size, original.dtype)[0]
        laid_out(marks)[...] = ones
        self.inside = marks.astype(bool)
        self.before = self.bytes

    def ready(self, value: Any) -> tp.Tensor:
        """Set the elements, remember every byte, and return the tensor that the kernel gets."""
        self.view[...] = value
        self.before = self.bytes.copy()
        return tp.from_numpy(self.view)

    def changed(self, where: _Bytes) -> int | None:
        """Return the first changed element among the bytes `where`, counted from the first."""
        at = np.flatnonzero((self.bytes != self.before) & where)
        return (int(at[0]) - self.first) // self.size if at.size else None


@dataclass(frozen=True)
class _Call:
    """One call: where its tensors lay, and what the kernel returned itself."""

    places: Sequence[_Place | None]
    result: Any
    names: Sequence[str]

    def written(self) -> list[tuple[str, np.ndarray[Any, Any]]]:
        """Return name and elements of everything that the call made."""
        made = [
            (p.argument.name, np.array(p.view))
            for p in self.places
            if p is not None and p.argument.role != "in"
        ]
        return made + [(name, np.array(array)) for name, array in self.allocated()]

    def allocated(self) -> list[tuple[str, np.ndarray[Any, Any]]]:
        """Return name and elements of what the kernel allocated and gave back."""
        arrays = [r.detach().numpy() for r in flat_results(self.result)]
        fit = len(self.names) == len(arrays)
        return [(self.names[i] if fit else "result", a) for i, a in enumerate(arrays)]


class _WatchedKernel:
    """Stands for one C++ function while a :class:`MemoryWatch` is on."""

    def __init__(self, call: Callable[..., Any], kernel: KernelSpec, watch: MemoryWatch) -> None:
        self.call = call
        self.kernel = kernel
        self.watch = watch

    def __call__(self, *values: Any) -> Any:
        """Call the kernel on guarded copies and hand back what the first call made."""
        if len(values) != len(self.kernel.arguments):
            return self.call(*values)  # the guard says what is wrong
        first = self.once(values, 0, 0)
        other_fill = self.once(values, 1, 0)
        other_zone = self.once(values, 0, 1)
        self.judge(values, first, other_fill, other_zone)
        flat = [value for _, value in _flat(self.kernel, values)]
        for value, place in zip(flat, first.places, strict=True):
            if place is not None and place.argument.role != "in":
                value.detach().numpy()[...] = place.view
        return first.result

    def once(self, values: Sequence[Any], fill: int, zone: int) -> _Call:
        """Call the kernel once and note what it changed that is not its own."""
        places: list[_Place | None] = []
        made: list[Any] = []
        for position, (argument, value) in enumerate(_flat(self.kernel, values)):
            place = _place(argument, value, _ZONES[zone] + position % _ZONE_COUNT)
            places.append(place)
            if place is None:
                made.append(value)
                continue
            original = value.detach().numpy()
            made.append(
                place.ready(_fills(original.dtype)[fill] if argument.role == "out" else original)
            )
        rest = iter(made)
        given = [
            [next(rest) for _ in value] if _is_members(argument, value) else next(rest)
            for argument, value in zip(self.kernel.arguments, values, strict=True)
        ]
        guarded = allocator.guard_results(_ZONE, _ZONES[zone] + _ZONE_COUNT, _ELEMENTS[fill])
        allocator.take_damage()  # of what another function left
        try:
            result = self.call(*given)
        finally:
            allocator.guard_results(0)
        call = _Call(places, result, [r.name for r in self.kernel.results])
        if guarded:
            self.note_damage(call)
        for place in places:
            if place is None:
                continue
            name, count = place.argument.name, place.view.size
            outside = place.changed(~place.inside)
            if outside is not None:
                last = f"has elements 0 to {count - 1}" if count else "has no element"
                self.note(
                    "writes_outside",
                    name,
                    f"writes outside '{name}': element {outside} is written, and '{name}' {last}",
                    self.advice("write"),
                )
            inside = place.changed(place.inside) if place.argument.role == "in" else None
            if inside is not None:
                how = (
                    f"Declare Tensor(a!) {name} in the schema and take tp::InOut, or write to an "
                    "output."
                )
                self.note("writes_input", name, f"writes its input '{name}': element {inside}", how)
        return call

    def note_damage(self, call: _Call) -> None:
        """Note what was written around memory that the kernel allocated."""
        names = {array.ctypes.data: name for name, array in call.allocated()}
        for address, element, count in allocator.take_damage():
            name = names.get(address, "")
            last = f"has elements 0 to {count - 1}" if count else "has no element"
            subject = f"'{name}'" if name else "memory that it allocated"
            self.note(
                "writes_outside",
                name,
                f"writes outside {subject}: element {element} is written, and "
                f"{subject if name else 'it'} {last}",
                self.advice("write"),
            )

    def judge(
        self, values: Sequence[Any], first: _Call, other_fill: _Call, other_zone: _Call
    ) -> None:
        """Compare the calls."""
        kept: dict[str, np.ndarray[Any, Any]] = {}
        for one, two in zip(first.places, other_fill.places, strict=True):
            if one is None or two is None or one.argument.role != "out":
                continue
            a, b = _fills(one.view.dtype)
            name = one.argument.name
            kept[name] = _same_bits(one.view, a) & _same_bits(two.view, b)
            if kept[name].any():
                self.note_not_written(name, kept[name])
        for (name, a), (_, b) in zip(first.allocated(), other_fill.allocated(), strict=True):
            if a.shape != b.shape or not a.flags.c_contiguous or not b.flags.c_contiguous:
                continue
            fills = [np.full(a.itemsize, byte, np.uint8).view(a.dtype)[0] for byte in _ELEMENTS]
            kept[name] = _same_bits(a, fills[0]) & _same_bits(b, fills[1])
            if kept[name].any():
                self.note_not_written(name, kept[name])
        by_fill = _difference(first, other_fill, kept)
        by_zone = _difference(first, other_zone, kept)
        if by_fill is None and by_zone is None:
            return
        if not self.repeats(values, first, other_fill, other_zone):
            self.watch.unlike = True
            return
        if by_fill is not None:
            self.note(
                "reads_output",
                by_fill[0],
                f"output '{by_fill[0]}' depends on what was in memory before: {by_fill[1]} with it",
                "An output is not zeroed; assign before +=.",
            )
        if by_zone is not None:
            self.note(
                "reads_outside",
                by_zone[0],
                f"reads outside its arguments: '{by_zone[0]}' {by_zone[1]} with memory that is not "
                "the kernel's",
                self.advice("read"),
            )

    def repeats(
        self, values: Sequence[Any], first: _Call, other_fill: _Call, other_zone: _Call
    ) -> bool:
        """Whether calls on the same memory give the same: else chance or state is the cause."""
        seen = ((first, 0, 0), (other_fill, 1, 0), (other_zone, 0, 1))
        return all(
            _difference(call, self.once(values, fill, zone), {}) is None
            for _ in range(_CONFIRMATIONS)
            for call, fill, zone in seen
        )

    def note_not_written(self, name: str, kept: np.ndarray[Any, Any]) -> None:
        self.note(
            "not_written",
            name,
            f"output '{name}' is not fully written: "
            f"{_where(kept, 'keeps', 'keep')} what was in memory before",
            "An output is not zeroed; assign every element.",
        )

    def advice(self, access: str) -> str:
        domain = "" if self.watch.declared else f" {_DOMAIN}"
        if self.kernel.style == "views":
            return (
                f"Run the cell with --debug: a {access} by x[i] or x(i, j) then raises and says "
                "its index. Behind a pointer, such as x.data() or &x(i, 0), run it with "
                f"--sanitize address, which shows the line.{domain}"
            )
        return (
            "Compare the bounds of its loops with numel(), or run the cell with "
            f"--sanitize address, which shows the line.{domain}"
        )

    def note(self, code: str, argument: str, what: str, how: str) -> None:
        self.watch.add(code, self.kernel, argument, what, how)


class MemoryWatch:
    """Watches the C++ functions of a cell for as long as it is entered.

    Parameters
    ----------
    spec
        The cell.
    kernels
        Its functions as attributes; they are replaced on entry and put back on exit.
    enabled
        False calls the functions as they are: under a sanitizer, which a larger buffer would blind.

    Attributes
    ----------
    enabled
        As given.
    findings
        What has been found since they were last taken.
    unlike
        Whether a kernel gave other results on the same arguments and memory.
    """

    def __init__(self, spec: CellSpec, kernels: SimpleNamespace, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.findings: list[Finding] = []
        self.unlike = False
        self._kernels = kernels
        self._specs = {k.export: k for k in spec.kernels}
        self._saved: dict[str, Any] = {}
        self._seen: set[tuple[str, str, str]] = set()
        self._with_samples = {o.name for o in spec.operators if o.samples}
        self._operator = self._sample = ""

    @property
    def declared(self) -> bool:
        """Whether the operator that is called declares its samples."""
        return self._operator in self._with_samples

    def on(self, operator: str, sample: str) -> None:
        """Say which operator is called next, and on what."""
        self._operator, self._sample = operator, sample

    def __enter__(self) -> MemoryWatch:
        self._saved = dict(vars(self._kernels))
        for name, call in self._saved.items() if self.enabled else ():
            setattr(self._kernels, name, _WatchedKernel(call, self._specs[name], self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        vars(self._kernels).update(self._saved)

    def add(self, code: str, kernel: KernelSpec, argument: str, what: str, how: str) -> None:
        """Keep a finding, once per kind, kernel and argument."""
        key = (code, kernel.name, argument)
        if key not in self._seen:
            self._seen.add(key)
            message = f"'{kernel.name}': {what}, on {self._sample}. {how}"
            self.findings.append(Finding("memory", self._operator, "error", message, code=code))

    def take(self) -> list[Finding]:
        """Return the findings and forget them."""
        taken, self.findings = self.findings, []
        return taken


def check_memory(
    spec: OperatorSpec,
    definition: Any,
    watch: MemoryWatch,
    samples: Sequence[Sample],
    dtypes: Mapping[str, str],
    progress: Callable[[str], None],
) -> Iterator[Finding]:
    """Call an operator and its gradient on its samples, watched.

    Parameters
    ----------
    spec, definition
        The operator.
    watch
        The watch over the cell's functions.
    samples
        Arguments.
    dtypes
        Dtype per tensor input.
    progress
        Told what is about to run.
    """
    if watch.enabled and (spec.returned or spec.kernel.results) and not allocator.guard_results(0):
        message = (
            f"what '{spec.kernel.name}' allocates for its result is not watched without the "
            "compiled part of the runtime (tp.show_config() says why it is not there). Run the "
            "cell with --sanitize address, which watches it"
        )
        yield Finding("memory", spec.name, "note", message, code="not_watched")
    floating = [n for n, d in dtypes.items() if d.startswith(("float", "bfloat"))]
    inputs = [n for n in floating if n in spec.differentiated]
    failed = False
    for sample in samples:
        text = f"{sample.text}, {', '.join(dict.fromkeys(dtypes.values()))}"
        progress(f"memory check of {spec.name} on {sample.text}")
        watch.on(spec.name, text)
        try:
            arguments = sample.arguments(spec, dtypes)
            with watch:
                wanted = [n for n, owner in sample.leaves(spec).items() if owner in inputs]
                for name in wanted:
                    leaf(arguments, name).requires_grad_(True)
                call_with_gradient(definition, arguments, wanted)
        except Exception as problem:  # noqa: BLE001  (a person's kernel and formula, any error)
            if not failed:
                yield _unfinished(spec.name, text, problem)
            failed = True
        yield from watch.take()


def _unfinished(operator: str, text: str, problem: Exception) -> Finding:
    """Say what ended a call: outside of its domain an operator may raise, but not for memory."""
    said = f"{type(problem).__name__}: {problem}"
    if isinstance(problem, MemoryError):
        message = f"out of memory on {text}: {said}"
        return Finding("memory", operator, "error", message, code=OUT_OF_MEMORY)
    return Finding(
        "memory", operator, "note", f"not finished on {text}: {said}", code="not_finished"
    )


def call_with_gradient(
    definition: Any, arguments: Mapping[str, Any], wanted: Sequence[str]
) -> Sequence[Any]:
    """Call an operator and return the gradients of its results' sum, none where it has none."""
    result = definition(**arguments)
    ends = [r for r in flat_results(result) if r.requires_grad]
    if not ends or not wanted:
        return ()
    found: Sequence[Any] = tp.autograd.grad(
        ends,
        [leaf(arguments, n) for n in wanted],
        grad_outputs=[tp.ones_like(r.detach()) for r in ends],
        allow_unused=True,
    )
    return found


def _is_members(argument: Argument, value: Any) -> bool:
    return argument.is_list and isinstance(value, list)


def _flat(kernel: KernelSpec, values: Sequence[Any]) -> list[tuple[Argument, Any]]:
    """Return the arguments of a call with their values, members of lists one by one."""
    found: list[tuple[Argument, Any]] = []
    for argument, value in zip(kernel.arguments, values, strict=True):
        if _is_members(argument, value):
            found += [
                (replace(argument, name=f"{argument.name}[{i}]"), member)
                for i, member in enumerate(value)
            ]
        else:
            found.append((argument, value))
    return found


def _place(argument: Argument, value: Any, zone: int) -> _Place | None:
    """Return a place for a tensor with memory of its own kind; None passes the value as it is."""
    if argument.kind != "tensor" or not isinstance(value, tp.Tensor) or value.device.type != "cpu":
        return None
    return _Place(argument, value.detach().numpy(), zone)


def _fills(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    kind = "f" if dtype.name == "bfloat16" else dtype.kind
    one, two = _FILLS.get(kind, _OTHER_FILLS)
    return np.array(one, dtype), np.array(two, dtype)


def _same_bits(view: np.ndarray[Any, Any], value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    flat = np.ascontiguousarray(view).reshape(-1).view(np.uint8).reshape(view.size, view.itemsize)
    bits = np.frombuffer(value.tobytes(), np.uint8)
    same: np.ndarray[Any, Any] = (flat == bits).all(axis=1).reshape(view.shape)
    return same


def _difference(
    one: _Call, two: _Call, kept: Mapping[str, np.ndarray[Any, Any]]
) -> tuple[str, str] | None:
    """Return the first output that differs between two calls, and where, in words."""
    for (name, a), (_, b) in zip(one.written(), two.written(), strict=True):
        if a.shape != b.shape:
            return name, "of another shape changes"
        unlike = ~((a == b) | ((a != a) & (b != b)))  # noqa: PLR0124  (nan is unlike itself)
        if name in kept:
            unlike &= ~kept[name]
        if unlike.any():
            return name, _where(unlike, "changes", "change")
    return None


def _where(marks: np.ndarray[Any, Any], one: str, several: str) -> str:
    """Say which elements are marked, with a verb that fits their number."""
    places = np.argwhere(marks)
    index = ", ".join(map(str, places[0].tolist()))
    first = f"index [{index}]"
    if len(places) == 1:
        return f"{first} {one}"
    return f"{first} and {len(places) - 1} more of {marks.size} elements {several}"
