"""What a cell declares: operators, kernels and their guards, as frozen plain data.

The records here are all that later stations need: the C++ wrapper, the Python operator module,
the fake kernel, the gradient, the checks in another process and the report are derived from them.
:mod:`tpkernel.cells.reading` fills them from front matter, typed views and plain signatures, and
:mod:`tensorplay.library.modules.artifact` from the description inside a library file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tensorplay.library.modules.shapes import ShapeRules

__all__ = [
    "DTYPES",
    "Allocated",
    "Argument",
    "BackwardCall",
    "CellSpec",
    "Declaration",
    "Derivative",
    "Formula",
    "KernelSpec",
    "Launch",
    "LaunchSize",
    "OperatorSpec",
    "Output",
]

#: Dtype name to the C++ element type of a typed view. The order is that of ``tp_dtype``.
DTYPES: Mapping[str, str] = {
    "bool": "bool",
    "uint8": "uint8_t",
    "int8": "int8_t",
    "uint16": "uint16_t",
    "int16": "int16_t",
    "uint32": "uint32_t",
    "int32": "int32_t",
    "uint64": "uint64_t",
    "int64": "int64_t",
    "float16": "_Float16",
    "bfloat16": "tp::bfloat16",
    "float32": "float",
    "float64": "double",
    "complex64": "std::complex<float>",
    "complex128": "std::complex<double>",
}

Kind = Literal["tensor", "int", "float", "bool", "other"]
Role = Literal["in", "out", "inout"]
#: One tensor, one or None, a list of tensors, a list of tensors or None.
Form = Literal["", "?", "[]", "?[]"]


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel and the guard that stands before it.

    Attributes
    ----------
    name, kind, cpp_type
        As the person calls it; tensor or scalar; the C++ parameter type.
    role
        Read, written, or both.
    dtypes
        Admitted dtypes of a tensor; empty admits any.
    variable
        The template parameter its element type is, or None.
    rank
        Number of dimensions, None for any.
    contiguous
        The kernel indexes flat, so strided views are refused.
    writes
        True or False; None where the body cannot be followed (then read-only arrays are refused
        and aliasing is not judged).
    low, high
        Range of an integer argument.
    because
        Where the guard comes from, for the report.
    untyped
        Its memory is read and nothing says as which dtype.
    form
        Of a tensor: whether it may be absent or is a list, as the schema writes it.
    """

    name: str
    kind: Kind
    cpp_type: str
    role: Role = "in"
    dtypes: tuple[str, ...] = ()
    variable: str | None = None
    rank: int | None = None
    contiguous: bool = False
    writes: bool | None = False
    low: int = 0
    high: int = 0
    because: str = ""
    untyped: bool = False
    form: Form = ""

    @property
    def is_list(self) -> bool:
        """Whether it is a list of tensors."""
        return self.form.endswith("[]")


@dataclass(frozen=True)
class Allocated:
    """An output that the kernel allocates when it knows the sizes.

    Attributes
    ----------
    name, cpp_type
        As the person calls it; the C++ parameter type.
    position
        Among the C++ parameters.
    dtype, variable
        Its dtype, or the template parameter that it is.
    rank
        Number of dimensions, None for any.
    """

    name: str
    cpp_type: str
    position: int
    dtype: str | None
    variable: str | None
    rank: int | None


@dataclass(frozen=True)
class LaunchSize:
    """A size of a launch: an entry of a rule, as C++ computes it at each call.

    Attributes
    ----------
    text
        The entry as the person wrote it.
    cpp
        The C++ expression.
    known
        Its value, where that does not depend on the call.
    atoms
        What it is computed from: name, for messages, and C++ expression.
    """

    text: str
    cpp: str
    known: int | None = None
    atoms: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Launch:
    """How a CUDA operator's kernel is launched.

    Attributes
    ----------
    grid, block
        Three sizes each.
    shared
        Bytes of dynamic shared memory.
    parameters
        The kernel's parameters in order: C++ type, name, and the operator's argument or a size.
    text
        The rule in words, for the report.
    """

    grid: tuple[LaunchSize, ...]
    block: tuple[LaunchSize, ...]
    shared: LaunchSize
    parameters: tuple[tuple[str, str, str | LaunchSize], ...]
    text: str


@dataclass(frozen=True)
class KernelSpec:
    """A C++ function of the cell and what its export wrapper checks.

    Attributes
    ----------
    name
        The C++ function.
    title
        What messages call it: the operator's or the function's name.
    style
        ``"views"``: typed views, called through the generated dispatch. ``"plain"``: the engine's
        own types, called through the engine's export after the guard.
    instances
        For templates: one mapping of template parameter to dtype per instance to build.
    shapes
        Relations between the tensors' sizes.
    alias_ok
        Outputs may share memory with inputs.
    suffix
        Tells apart the exports of a function that several operators use with their own guards.
    device
        Device type that the tensors lie on: ``"cpu"`` or ``"cuda"``.
    launch
        How it runs on a GPU; None on the CPU.
    results
        Outputs that the kernel allocates (``tp::Result``) and the export returns, each with its
        position among the C++ parameters.
    """

    name: str
    title: str
    style: Literal["views", "plain"]
    arguments: tuple[Argument, ...]
    returns: str
    templates: tuple[str, ...]
    instances: tuple[Mapping[str, str], ...]
    shapes: ShapeRules
    line: int
    defaults: Mapping[str, Any] = field(default_factory=dict)
    doc: str = ""
    alias_ok: bool = False
    suffix: str = ""
    device: str = "cpu"
    launch: Launch | None = None
    results: tuple[Allocated, ...] = ()

    @property
    def export(self) -> str:
        """The name under which the library exports the guarded function."""
        return self.name + self.suffix

    @property
    def tensors(self) -> tuple[Argument, ...]:
        """The tensor arguments, in order."""
        return tuple(a for a in self.arguments if a.kind == "tensor")

    def guard_text(self, *, copies: bool = False) -> list[tuple[str, str]]:
        """Return pairs of argument name and its guard in words.

        A last pair says which dtypes may meet in one call, where several tensors have a choice.

        Parameters
        ----------
        copies
            Strided inputs are copied where the kernel needs contiguous ones.
        """
        rules = {**self.shapes.inputs, **self.shapes.outputs}
        apart = self.device == "cpu" and len(self.tensors) > 1 and not self.alias_ok
        pairs = [
            (
                a.name,
                describe_guard(a, self.device, copies=copies, apart=apart)
                + (f", shape {rules[a.name]}" if a.name in rules else ""),
            )
            for a in self.arguments
        ]
        mixtures = self.mixture_text()
        return [*pairs, ("mixed dtypes", mixtures)] if mixtures else pairs

    def mixture_text(self) -> str:
        """Say which dtypes the tensors of a call may have together; empty where that is clear."""
        groups: dict[str, list[Argument]] = {}
        for a in self.tensors:
            if a.role != "out" and len(a.dtypes) > 1:
                groups.setdefault(a.variable or f"of {a.name}", []).append(a)
        parts, free = [], []
        for variable, members in groups.items():
            names = [a.name + (" (each member)" if a.is_list else "") for a in members]
            if len(members) > 1 or (members[0].is_list and members[0].variable == variable):
                parts.append(f"{' and '.join(names)} must have one dtype")
            else:
                free += names
        if len(groups) > 1 and free:
            own = "their own each" if len(free) > 1 else "its own"
            parts.append(f"{' and '.join(free)} may have any of {own}")
        return "; ".join(parts)


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


@dataclass(frozen=True)
class Output:
    """An output: its name, and its dtype as a fixed one or as an input's.

    Attributes
    ----------
    allocated
        The kernel allocates it.
    differentiable
        Whether it has a gradient, where its dtype can have one.
    form
        As of an argument: an output for an optional input, or for each member of a list.
    """

    name: str
    dtype: str | None
    dtype_like: str | None
    allocated: bool = False
    differentiable: bool = True
    form: Form = ""


@dataclass(frozen=True)
class Derivative:
    """The gradient of one input: a formula, or an output of the cell's backward kernel.

    Attributes
    ----------
    surrogate
        Why it is deliberately not the derivative, in the person's words; empty where it is.
    none
        The input is declared to have no gradient.
    """

    input: str
    formula: Formula | None
    line: int
    surrogate: str = ""
    none: bool = False


@dataclass(frozen=True)
class BackwardCall:
    """How the gradient calls the cell's ``NAME_backward``: helper, arguments, outputs in order."""

    operator: str
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class OperatorSpec:
    """One operator.

    Attributes
    ----------
    name
        ``"namespace::op"``.
    schema
        The whole schema text.
    kernel
        The C++ function behind it.
    outputs
        Outputs that the Python side allocates, in order; empty for in-place operators and for
        kernels that return their results.
    returned
        How many results the kernel itself returns.
    mutates
        Inputs written in place.
    derivatives
        By input; an input that is missing has none and says so when its gradient is asked.
    backward
        The call of the cell's ``NAME_backward``, or None.
    helper
        Made for use in formulas only; not bound in the notebook.
    samples
        Example arguments as declared.
    copies
        Strided inputs are copied rather than refused.
    origin
        Where the declaration came from, in words.
    callables
        Python functions that take part, as ``"package.module:function"``, by what they are:
        ``autograd``, ``setup_context`` and ``fake``.
    reference
        What its times are compared with: an expression, or ``"module:function"``; empty for none.
    """

    name: str
    schema: str
    kernel: KernelSpec
    outputs: tuple[Output, ...]
    returned: int
    mutates: tuple[str, ...]
    derivatives: tuple[Derivative, ...]
    backward: BackwardCall | None
    samples: tuple[Mapping[str, Any], ...]
    doc: str
    helper: bool
    copies: bool
    line: int
    origin: str
    callables: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""

    @property
    def namespace(self) -> str:
        """The part before the colons."""
        return self.name.split("::")[0]

    @property
    def opname(self) -> str:
        """The part after the colons."""
        return self.name.split("::")[1]

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The kernel's arguments that the operator's caller gives."""
        return tuple(a for a in self.kernel.arguments if a.role != "out")

    @property
    def tensor_inputs(self) -> tuple[str, ...]:
        """Names of the tensor inputs."""
        return tuple(a.name for a in self.inputs if a.kind == "tensor")

    @property
    def unknown_shapes(self) -> tuple[str, ...]:
        """Outputs whose shape depends on values, so that only a call tells it."""
        known = self.kernel.shapes.outputs
        return tuple(o.name for o in self.outputs if o.name not in known)

    @property
    def differentiated(self) -> tuple[str, ...]:
        """Names of the inputs that have a gradient, in the order of `derivatives`."""
        return tuple(d.input for d in self.derivatives if not d.none)

    @property
    def surrogates(self) -> Mapping[str, str]:
        """Inputs whose gradient is deliberately not the derivative, and why."""
        return {d.input: d.surrogate for d in self.derivatives if d.surrogate}

    @property
    def result_names(self) -> tuple[str, ...]:
        """What formulas call the results: ``result``, or the outputs' names."""
        if len(self.outputs) > 1:
            return tuple(o.name for o in self.outputs)
        return ("result",) if self.outputs or self.returned else ()

    @property
    def grad_names(self) -> tuple[str, ...]:
        """What formulas call the incoming gradients."""
        if len(self.outputs) > 1:
            return tuple(f"grad_{o.name}" for o in self.outputs)
        return ("grad",)


@dataclass(frozen=True)
class Declaration:
    """An operator without a kernel of its own.

    Attributes
    ----------
    name, schema, doc, callables, line
        As `OperatorSpec` has them.
    problem
        What a call raises as RuntimeError; empty where a kernel may still be registered.
    """

    name: str
    schema: str
    doc: str
    callables: Mapping[str, str]
    problem: str
    line: int


@dataclass(frozen=True)
class CellSpec:
    """Everything a cell declares.

    Attributes
    ----------
    cell
        The cell's name, such as ``In[5]``.
    operators
        Declared operators first, then helpers.
    functions
        Plain kernels bound under their own names.
    skipped
        Functions that are not exported, with the reason.
    declarations
        Operators that are declared without a kernel.
    """

    cell: str
    operators: tuple[OperatorSpec, ...]
    functions: tuple[KernelSpec, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    declarations: tuple[Declaration, ...] = ()

    @property
    def kernels(self) -> tuple[KernelSpec, ...]:
        """All exports: C++ functions with their guards, each once."""
        found = {k.export: k for k in (*self.functions, *(o.kernel for o in self.operators))}
        return tuple(found.values())

    @property
    def bound_names(self) -> tuple[str, ...]:
        """Names that the cell binds in the notebook."""
        operators = [o.opname for o in self.own_operators()]
        return (*operators, *(f.name for f in self.functions))

    def own_operators(self, name: str = "") -> list[OperatorSpec]:
        """Return the operators that are no helpers, or those called `name`, qualified or not."""
        own = [o for o in self.operators if not o.helper]
        return [o for o in own if name in ("", o.name, o.opname)]


def describe_guard(
    argument: Argument, device: str = "cpu", *, copies: bool = False, apart: bool = False
) -> str:
    """Say an argument's guard in words.

    Parameters
    ----------
    argument
        The argument.
    device
        Where its memory must be.
    copies
        A strided input is copied where the kernel needs a contiguous one.
    apart
        What the kernel writes shares no memory with its other tensors.
    """
    if argument.kind == "int":
        text = f"integer from {argument.low} to {argument.high}"
    elif argument.kind == "tensor":
        before = {"": "", "?": "None, or ", "[]": "a list, each ", "?[]": "a list, each None or "}
        dtypes = " or ".join(argument.dtypes) if argument.dtypes else "any dtype"
        parts = [before[argument.form] + dtypes, f"on {device}"]
        if argument.rank is not None:
            parts.append(f"{argument.rank}-d")
        strides = "contiguous" if argument.contiguous else "any strides"
        if argument.contiguous and copies and argument.writes is False:
            strides += " or else copied"
        parts.append(strides)
        parts.append(
            {True: "written", False: "read only", None: "possibly written"}[argument.writes]
        )
        if apart and argument.writes:
            parts.append("memory of its own")
        text = ", ".join(parts)
    elif argument.kind == "other":
        text = f"as the engine converts {argument.cpp_type}"
    else:
        text = {"float": "number", "bool": "True or False"}[argument.kind]
    return f"{text} ({argument.because})" if argument.because else text
