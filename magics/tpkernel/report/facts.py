"""The records that a report is made of: frozen dataclasses of plain data.

Each is what one step found; :mod:`tpkernel.report.report` puts them together, and text, HTML and
widget show them. Nothing here computes.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal

from tpkernel.checks.verdicts import verdict_text

__all__ = [
    "CUDA_HEADS",
    "BuildFacts",
    "CompileFacts",
    "CudaFacts",
    "CudaKernelFacts",
    "DiagnosticFacts",
    "Finding",
    "FunctionFacts",
    "GradcheckFacts",
    "GradcheckSettings",
    "InstructionFacts",
    "JacobianFacts",
    "ListingFacts",
    "OpcheckFacts",
    "OpcheckFailureFacts",
    "OperatorFacts",
    "PairFacts",
    "RegionFacts",
    "StepCurve",
    "TimingFacts",
    "TimingRow",
    "ValidationRow",
    "WorstFacts",
]


@dataclass(frozen=True)
class DiagnosticFacts:
    """One message of the compiler, at the cell's own line."""

    line: int
    column: int | None
    level: str
    message: str
    source_line: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class InstructionFacts:
    """One machine instruction.

    Attributes
    ----------
    line
        Line of the cell that it comes from; None where the compiler does not say.
    """

    function: str
    address: str
    text: str
    line: int | None


@dataclass(frozen=True)
class ListingFacts:
    """What the compiler made of the cell's kernels.

    Attributes
    ----------
    command
        The command that showed the instructions.
    remarks
        What the optimiser did and did not do, at lines of the cell.
    instructions
        The machine code of the cell's kernels.
    notes
        What is missing, and why.
    """

    command: str
    remarks: tuple[DiagnosticFacts, ...]
    instructions: tuple[InstructionFacts, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CudaKernelFacts:
    """What a CUDA kernel takes on one architecture: registers, and bytes of memory per thread.

    Attributes
    ----------
    shared
        Bytes of static shared memory of a block.
    """

    name: str
    target: str
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int

    @property
    def row(self) -> tuple[str, ...]:
        """The kernel as a row of texts, in the order of `CUDA_HEADS`."""
        sizes = (self.registers, self.shared, self.stack, self.spill_stores, self.spill_loads)
        return self.name, self.target, *map(str, sizes)


#: What stands above the columns of `CudaKernelFacts.row`.
CUDA_HEADS = (
    "kernel", "architecture", "registers", "shared memory (bytes)", "stack (bytes)",
    "spill stores (bytes)", "spill loads (bytes)",
)  # fmt: skip


@dataclass(frozen=True)
class CudaFacts:
    """For what a CUDA cell was built.

    Attributes
    ----------
    route, toolkit
        By what (``"nvrtc"`` or ``"nvcc"``), and of which version.
    targets, reason
        Architectures, and why these.
    """

    route: str
    toolkit: str
    targets: tuple[str, ...]
    reason: str
    kernels: tuple[CudaKernelFacts, ...]

    @property
    def text(self) -> str:
        """All but the kernels in one line."""
        return f"{', '.join(self.targets)} by {self.route} {self.toolkit} ({self.reason})"


@dataclass(frozen=True)
class BuildFacts:
    """How the library came to be.

    Attributes
    ----------
    cached
        Found, not built by this run.
    seconds
        Time of the build that made it.
    ready_seconds
        Time from the cell's start until the kernels could be called.
    once_seconds
        Part of `ready_seconds`, and not of `seconds`, that made what all cells share, once per
        compiler and kind of header.
    inputs
        What the key is made of, in words: name and value.
    cuda
        Of a CUDA cell: for what it was built.
    """

    key: str
    folder: str
    library: str
    cached: bool
    seconds: float
    ready_seconds: float
    rung: str
    commands: tuple[tuple[str, ...], ...]
    diagnostics: tuple[DiagnosticFacts, ...]
    log: str
    once_seconds: float = 0.0
    inputs: tuple[tuple[str, str], ...] = ()
    cuda: CudaFacts | None = None

    @property
    def how(self) -> str:
        """How the library came to be, in a few words."""
        if self.cached:
            return "from cache"
        text = f"built in {self.seconds:.2f} s"
        if self.once_seconds:
            text += f" after {self.once_seconds:.2f} s, once, for what all cells share"
        return text


@dataclass(frozen=True)
class OperatorFacts:
    """An operator: declaration, guards, and the source made from them."""

    name: str
    schema: str
    kernel: str
    origin: str
    doc: str
    guards: tuple[tuple[str, str], ...]
    wrapper: str
    fake: str
    gradient: str
    derivatives: tuple[tuple[str, str], ...]
    helper: bool


@dataclass(frozen=True)
class FunctionFacts:
    """A plain kernel: signature and guards."""

    name: str
    signature: str
    guards: tuple[tuple[str, str], ...]
    line: int


@dataclass(frozen=True)
class ValidationRow:
    """What one operator says to one argument of one dtype, device and layout.

    Attributes
    ----------
    admitted
        The call returned.
    message
        The error of a call that did not.
    declared
        What the declaration says: True, False, or None where it says nothing.
    """

    operator: str
    argument: str
    dtype: str
    device: str
    layout: str
    admitted: bool
    message: str
    declared: bool | None = None

    @property
    def verdict(self) -> str:
        """``"ok"`` where the operator does what its declaration says, else ``"wrong"``."""
        return "ok" if self.declared in (None, self.admitted) else "wrong"

    @property
    def answer(self) -> str:
        """The row's outcome in words."""
        if self.verdict == "ok":
            return "✔ admitted" if self.admitted else f"✘ refused. {self.message}"
        said = "admits" if self.declared else "refuses"
        got = f". {self.message}" if self.message else ", and the call returned"
        return f"{verdict_text('wrong')}: the declaration {said} it{got}"


# -- gradcheck ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JacobianFacts:
    """The matrices of one pair: elements of the input by elements of the output.

    A matrix of more than 256 rows or columns is shown in blocks; each stands for its element with
    the largest difference, relative to what is allowed.

    Attributes
    ----------
    input_shape, output_shape
        What the rows and columns count, in memory order.
    parts
        2 for a complex output: first the derivatives of the real parts, then of the imaginary.
    rows, columns
        Size of the tables below, which are listed row by row.
    places
        Row and column in the whole matrix, for each element; empty where they are its own.
    analytical, numerical
        The value by the gradient formula, and that by differences.
    difference, allowed
        Absolute value of their gap, and what it may be: ``atol + rtol * abs(numerical)`` and the
        largest error bound of the differences.
    """

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    parts: int
    rows: int
    columns: int
    places: tuple[tuple[int, int], ...]
    analytical: tuple[float | complex, ...]
    numerical: tuple[float | complex, ...]
    difference: tuple[float, ...]
    allowed: tuple[float, ...]


@dataclass(frozen=True)
class StepCurve:
    """The error of central differences against their step, for one pair.

    Attributes
    ----------
    steps
        From small to large.
    formula_gap
        Largest gap between the differences and the gradient formula.
    reference_gap
        Largest gap between the differences and an extrapolation from two steps, which does not
        depend on the formula: it falls with truncation and rises with rounding.
    meeting
        The step at which truncation and rounding are equal; None where one of them does not show.
    used
        The step of the check.
    """

    steps: tuple[float, ...]
    formula_gap: tuple[float, ...]
    reference_gap: tuple[float, ...]
    meeting: float | None
    used: float | None


@dataclass(frozen=True)
class WorstFacts:
    """The element of a Jacobian matrix at which the two values differ most.

    Its fields are those of ``worst`` in a report of :func:`tensorplay.autograd.gradcheck_report`.

    Attributes
    ----------
    input_index, output_index
        Where the element lies in the input and in the output.
    analytical, numerical
        The value from the gradient formula, and that from differences.
    difference
        Absolute value of their gap.
    tolerance
        The gap that is allowed.
    """

    input_index: tuple[int, ...]
    output_index: tuple[int, ...]
    analytical: float | complex
    numerical: float | complex
    difference: float
    tolerance: float


@dataclass(frozen=True)
class PairFacts:
    """One output against one input in a gradcheck.

    Attributes
    ----------
    step, atol, rtol
        What the differences were taken with; None where it did not come to that.
    worst
        The element that differs most, relative to what is allowed; None where none was compared.
    jacobian
        The matrices; None where none were compared.
    curve
        Error against step, where it was asked for.
    """

    output: int
    input: str
    verdict: str
    code: str | None
    message: str
    cause: str | None
    step: float | None
    atol: float | None
    rtol: float | None
    worst: WorstFacts | None
    jacobian: JacobianFacts | None = None
    curve: StepCurve | None = None


def _is_number(value: Any) -> bool:
    return _is_kind(value, numbers.Real) and 0 <= value <= sys.float_info.max


def _is_size(value: Any) -> bool:
    return _is_kind(value, numbers.Integral) and value >= 0


def _is_kind(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)  # True is no 1


def _is_listed(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


@dataclass(frozen=True)
class GradcheckSettings:
    """What a person chooses for a gradcheck; the defaults are those of a cell's own check.

    Attributes
    ----------
    operator
        Its name, with or without the namespace; empty for all of the cell.
    shapes
        Shape per tensor argument; the others follow from the declared relations.
    dtype
        Of the checked inputs; None for the widest that is admitted.
    seed
        Of the values.
    step, atol, rtol
        Of the differences; None for those of the dtype.
    mode
        Which derivatives are compared with the differences.
    fast
        Compare one random combination of elements first.
    inputs
        The inputs to check; empty for all.
    order
        2 for derivatives of the derivatives.
    curve
        Take the differences at many steps, too.
    caller
        The function that a person called, for errors.
    """

    operator: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtype: str | None = None
    seed: int = 0
    step: float | None = None
    atol: float | None = None
    rtol: float | None = None
    mode: Literal["reverse", "forward", "both"] = "reverse"
    fast: bool = False
    inputs: tuple[str, ...] = ()
    order: Literal[1, 2] = 1
    curve: bool = False

    caller: InitVar[str] = "with_gradcheck"

    def __post_init__(self, caller: str) -> None:
        """Refuse what no gradcheck is: anything else would be taken for the other choice."""
        named: Any = self.shapes
        shapes: dict[str, Any] = dict(named) if isinstance(named, Mapping) else {}
        shapes = {n: tuple(s) if _is_listed(s) else s for n, s in shapes.items()}
        inputs: Any = self.inputs
        inputs = tuple(inputs) if _is_listed(inputs) else inputs
        optional = {"step", "atol", "rtol", "dtype"}
        zero = "a finite number, 0 or above"
        given: tuple[tuple[str, Any, bool, str], ...] = (
            ("operator", self.operator, isinstance(self.operator, str), "a name"),
            ("shapes", named, isinstance(named, Mapping), "a mapping of shapes"),
            *(
                (
                    "shapes", {n: s}, isinstance(s, tuple) and all(map(_is_size, s)),
                    f"a shape, such as {{{n!r}: (2, 3)}}, of whole numbers, 0 or above",
                )
                for n, s in shapes.items()
            ),
            ("dtype", self.dtype, isinstance(self.dtype, str), "the name of a dtype"),
            ("seed", self.seed, _is_size(self.seed), "a whole number, 0 or above"),
            ("step", self.step, _is_number(self.step) and self.step != 0, "a number above 0"),
            ("atol", self.atol, _is_number(self.atol), zero),
            ("rtol", self.rtol, _is_number(self.rtol), zero),
            *(
                (name, value, value in known, f"one of {', '.join(map(repr, known))}")
                for name, value, known in (
                    ("mode", self.mode, ("reverse", "forward", "both")),
                    ("order", self.order, (1, 2)),
                )
            ),
            ("fast", self.fast, isinstance(self.fast, bool), "True or False"),
            (
                "inputs", self.inputs,
                isinstance(inputs, tuple) and all(isinstance(n, str) for n in inputs),
                "a list of names",
            ),
            ("curve", self.curve, isinstance(self.curve, bool), "True or False"),
        )  # fmt: skip
        for name, value, fits, expected in given:
            if not fits and not (value is None and name in optional):
                message = f"[{caller}] argument '{name}': expected {expected}, got {value!r}"
                raise ValueError(message)
        sizes = {n: tuple(map(int, s)) for n, s in shapes.items()}
        object.__setattr__(self, "shapes", sizes)
        object.__setattr__(self, "inputs", inputs)

    def text(self) -> str:
        """Return what differs from the defaults and is not said by the sample, in words."""
        parts = [f"seed {self.seed}"]
        named = (("step", self.step), ("atol", self.atol), ("rtol", self.rtol))
        parts += [f"{name} {value:g}" for name, value in named if value is not None]
        if self.mode != "reverse":
            parts.append("forward mode" if self.mode == "forward" else "both modes")
        if self.fast:
            parts.append("fast")
        if self.inputs:
            parts.append(f"inputs {', '.join(self.inputs)}")
        if self.order == 2:
            parts.append("second order")
        return ", ".join(parts)


@dataclass(frozen=True)
class GradcheckFacts:
    """A gradcheck of one operator on one sample.

    Attributes
    ----------
    order
        1 for the gradient, 2 for the derivatives of the gradient.
    settings
        What a person chose, in words; empty for the cell's own check.
    """

    operator: str
    sample: str
    verdict: str
    message: str
    pairs: tuple[PairFacts, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    order: int = 1
    settings: str = ""


# -- other checks ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpcheckFailureFacts:
    """One thing that an operator does other than it declares."""

    test: str
    code: str
    variant: str
    message: str


@dataclass(frozen=True)
class OpcheckFacts:
    """What `tensorplay.library.opcheck` found on one sample.

    Attributes
    ----------
    tests
        The tests that were run.
    """

    operator: str
    sample: str
    tests: tuple[str, ...]
    failures: tuple[OpcheckFailureFacts, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def verdict(self) -> str:
        """``"ok"`` without a failure, else ``"wrong"``."""
        return "wrong" if self.failures else "ok"


@dataclass(frozen=True)
class RegionFacts:
    """Nodes of a captured graph that run together, how, and why not as a kernel."""

    kind: str
    nodes: str
    reason: str


@dataclass(frozen=True)
class CompileFacts:
    """An operator inside a function that `tensorplay.compile` compiled, against the same eagerly.

    Attributes
    ----------
    graph, backward_graph
        What was captured, with the operator as one opaque node; empty where nothing was.
    breaks
        Why the call was not captured.
    difference, gradient_difference
        Largest absolute gap of results and of gradients; None without a gradient.
    allowed
        What rounding of the operations around it may make of that.
    """

    operator: str
    sample: str
    graph: str
    backward_graph: str
    regions: tuple[RegionFacts, ...]
    breaks: tuple[str, ...]
    difference: float
    gradient_difference: float | None
    allowed: float
    seconds: float

    @property
    def verdict(self) -> str:
        """``"ok"`` where the call was captured and agrees with the eager one, else ``"wrong"``."""
        gaps = (self.difference, self.gradient_difference or 0.0)
        agrees = all(gap <= self.allowed for gap in gaps)
        return "ok" if agrees and self.graph and not self.breaks else "wrong"


@dataclass(frozen=True)
class TimingRow:
    """Times at one size.

    Attributes
    ----------
    bytes
        Of all tensors that are read and written.
    seconds, median
        Of one call: the shortest of all rounds, and the median.
    reference
        The shortest time of the reference; None without one.
    limit
        The shortest time in which this machine copies as many bytes.
    gap
        Largest absolute difference between the results; None without a reference.
    """

    sizes: str
    elements: int
    bytes: int
    seconds: float
    median: float
    limit: float
    reference: float | None = None
    gap: float | None = None

    @property
    def bandwidth(self) -> float:
        """Bytes read and written in a second."""
        return self.bytes / self.seconds


@dataclass(frozen=True)
class TimingFacts:
    """Times of one operator across sizes.

    Attributes
    ----------
    reference
        What it is compared with, as the person wrote it; empty without one.
    """

    operator: str
    dtype: str
    rows: tuple[TimingRow, ...]
    reference: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something a check met that has no place in its table: a crash, a hang, a failed sample.

    Attributes
    ----------
    signal
        Name of the signal that ended the worker.
    code
        What kind of mistake it is, for programs: ``"crash"``, ``"hang"``, ``"out_of_memory"``,
        ``"writes_outside"``, ``"writes_input"``, ``"not_written"``, ``"reads_output"``,
        ``"reads_outside"``, ``"keeps_state"``, ``"non_deterministic"``, ``"crash_at_exit"``,
        ``"hang_at_exit"``, ``"earlier_thread"``, ``"earlier_damage"``, ``"not_watched"``,
        ``"misnamed_backward"`` and so on; empty where the message is all there is.
    """

    check: str
    operator: str
    level: Literal["error", "warning", "note"]
    message: str
    signal: str | None = None
    code: str = ""
