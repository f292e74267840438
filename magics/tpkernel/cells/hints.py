"""What a cell probably means and does not say: gradients under another name, dtypes of nothing.

Nothing here changes what is built. Each hint is a warning or a note of the report, or is added to
the error of a cell that does not read or compile.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from tensorplay.library.modules.spec import CellSpec, KernelSpec, OperatorSpec
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit.source import blank_comments
from tpkernel.cells.cell import Cell
from tpkernel.errors import CellError
from tpkernel.report.report import Finding

__all__ = ["compiler_hint", "hints", "like_backward", "with_hint", "without_gradient"]

_ENDINGS = (
    "back", "backprop", "bwd", "bw", "deriv", "derivative", "dx", "grad", "gradient", "grads",
    "vjp",
)  # fmt: skip
_STARTS = ("back", "backward", "bwd", "d", "grad", "gradient", "vjp")
_NEAR = 0.85
_OPENMP = re.compile(
    r"^[ \t]*(?:#|%:)[ \t]*pragma[ \t]+omp[ \t]+(?P<line>[^\n]*)"
    r'|\b_Pragma\s*\(\s*"omp\s+(?P<string>[^"\n]*)"',
    re.MULTILINE,
)
_OPENMP_FLAG = re.compile(r"-f(?:i?openmp(?:=.*)?)|[-/]q?openmp(?::.*)?")
_OPENMP_CALL = re.compile(r"`(?:omp_|GOMP_|__kmpc_)\w+.*not defined")
_NO_FLAG = "tp::parallel_for(0, n, [&](int64_t i) { … }), which needs no flag"
#: What g++ and clang say of an intrinsic whose instructions they were not told to use.
_TARGET = re.compile(
    r"target specific option mismatch|requires target feature '(?P<feature>[^']*)'|"
    r"needs isa option (?P<option>.*)"
)
_TARGET_HEADER = re.compile(r"^in (\w+?)intrin\.h")
#: Headers of one kind of instructions: elsewhere the place in the header decides, and each release
#: of a compiler has other places.
_TARGET_OF = {"xmm": "sse", "emm": "sse2", "pmm": "sse3", "tmm": "ssse3"} | {
    name: name
    for name in (
        "avx", "avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512fp16", "avx512ifma",
        "avx512vbmi", "avx512vnni", "avx512vpopcntdq", "avxvnni", "bmi", "bmi2", "f16c", "fma",
        "lzcnt", "popcnt", "rdseed", "rtm", "sha",
    )
}  # fmt: skip


def hints(cell: Cell, spec: CellSpec, flags: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Return hints about gradients, arguments whose dtype nothing guards, and ignored pragmas.

    Parameters
    ----------
    cell
        The parsed cell.
    spec
        What was read from it.
    flags
        What the compiler got.
    """
    found: list[Finding] = [*_ignored_openmp(cell, flags)]
    for operator in spec.operators:
        if not operator.helper:
            found += _misnamed(cell, spec, operator)
            found += _incomplete(operator)
    for kernel in spec.kernels:
        found += _unguarded(kernel)
    return tuple(found)


def with_hint(cell: Cell, problem: CellError) -> CellError:
    """Return the error of a cell that does not read, with what its function may have meant to be.

    A function whose parameters are those of a gradient is no operator under another name; the
    reader says of ``grad`` that formulas use it, and renaming that would be the wrong way out.
    """
    name = str(problem.subject or "").split("::")[-1]
    base = next(
        (f.name for f in cell.functions if f.name != name and like_backward(name, f.name)), None
    )
    if base is None or name == f"{base}_backward":
        return problem
    hint = f"If '{name}' is the gradient of '{base}', call it '{base}_backward'"
    return cell.error(
        f"{problem.message.rstrip('.')}. {hint}",
        line=problem.line,
        column=problem.column,
        subject=problem.subject,
    )


def compiler_hint(problem: cpp_jit.BuildError, flags: Sequence[str]) -> str:
    """Return what to write where the compiler's own words do not tell, or an empty text.

    Parameters
    ----------
    problem
        What the compiler refuses.
    flags
        What it got.
    """
    for diagnostic in problem.diagnostics:
        found = re.search(r"read-only location '(\w+)\.tp::In<", diagnostic.message)
        if found is not None:
            return (
                f"'{found[1]}' is tp::In, an input that is only read. Write tp::InOut to change it "
                "in place, or tp::Out for a result."
            )
        if _OPENMP_CALL.search(diagnostic.message) and not _has_openmp(flags):
            return (
                "This function is OpenMP's. Build with -fopenmp, as in '%%tpkernel -- -fopenmp', "
                f"or write {_NO_FLAG}."
            )
        found = _TARGET.search(diagnostic.message)
        if found is None:
            continue
        name = _instructions(found, diagnostic.notes)
        if "-march=native" in flags:
            lacks = name or "the instructions of this function"
            return f"This machine, for which -march=native builds, does not have {lacks}."
        hint = (
            "The compiler uses only what every processor of this kind has, and "
            f"{name or 'what this function stands for'} is not among that. Write '%%tpkernel -- "
            "-march=native' for all that this machine has"
        )
        return (
            f"{hint}."
            if not name
            else (
                f'{hint}, or __attribute__((target("{name}"))) in front of the function; a lambda '
                "needs one of its own, behind its parameters."
            )
        )
    return ""


def _instructions(found: re.Match[str], notes: Sequence[str]) -> str:
    """Return what the compiler calls the instructions that it lacks; empty where it is open."""
    feature, option = found["feature"], found["option"]
    if feature:
        return feature if re.fullmatch(r"[\w.,-]+", feature) else ""
    if option:
        only = re.fullmatch(r"-m([\w.-]+)", option.strip())
        return only[1] if only else ""
    head = next(filter(None, map(_TARGET_HEADER.match, notes)), None)
    return _TARGET_OF.get(head[1], "") if head else ""


def _has_openmp(flags: Sequence[str]) -> bool:
    return any(_OPENMP_FLAG.fullmatch(flag) for flag in flags)


def _ignored_openmp(cell: Cell, flags: Sequence[str]) -> Iterator[Finding]:
    """Find pragmas that the compiler passes over in silence."""
    text = blank_comments(cell.text)
    if _has_openmp(flags) or "_OPENMP" in text:  # the cell asks itself whether there is OpenMP
        return
    for found in _OPENMP.finditer(text):
        words = " ".join((found["line"] or found["string"] or "").split())
        line = cell.first_line + text[: found.start()].count("\n")
        if re.match(r"(?:simd|declare\s+simd|ordered\s+simd)\b", words):
            if "-fopenmp-simd" in flags:
                continue
            message = "build with -fopenmp-simd, as in '%%tpkernel -- -fopenmp-simd'."
        else:
            message = (
                "what it stands before runs on one thread. Build with -fopenmp, as in "
                f"'%%tpkernel -- -fopenmp', or write {_NO_FLAG}."
            )
        message = f"'#pragma omp {words}' at line {line} is ignored without a flag: {message}"
        yield Finding("cell", "", "warning", message, code="ignored_pragma")
        return


def _misnamed(cell: Cell, spec: CellSpec, operator: OperatorSpec) -> Iterator[Finding]:
    """Find functions that look like a gradient and are used for nothing."""
    given = {d.input for d in operator.derivatives}
    if operator.backward is not None or given.issuperset(operator.tensor_inputs):
        return
    names = {operator.opname, operator.kernel.name}
    used = {o.kernel.name for o in spec.operators if o.helper}
    used |= {o.kernel.name for o in spec.operators if o.origin == "front matter"} | names
    for function in cell.functions:
        if function.name in used or not any(like_backward(function.name, n) for n in names):
            continue
        right = f"{operator.opname}_backward"
        message = (
            f"'{function.name}' looks like the gradient of '{operator.opname}' and is not used as "
            f"one: a gradient is found by the name '{right}'. Rename it, or call it in a formula "
            "under derivatives."
        )
        yield Finding("cell", operator.name, "warning", message, code="misnamed_backward")


def like_backward(name: str, operator: str) -> bool:
    """Whether a function's name is a usual one for the gradient of an operator."""
    plain, base = name.lower().strip("_"), operator.lower().strip("_")
    words = {f"{base}_{e}" for e in _ENDINGS} | {f"{base}{e}" for e in ("backward", *_ENDINGS)}
    words |= {f"{s}_{base}" for s in _STARTS} | {f"{s}{base}" for s in ("backward", "grad")}
    if plain in words:
        return True
    rest = plain.removeprefix(base).strip("_")
    return rest != plain and difflib.SequenceMatcher(None, rest, "backward").ratio() >= _NEAR


def _unguarded(kernel: KernelSpec) -> Iterator[Finding]:
    """Find tensors whose memory is read and of which nothing says as what."""
    for argument in kernel.arguments:
        if argument.untyped and not argument.dtypes:
            message = (
                f"no dtype guard on '{argument.name}': nothing says which dtype it may have, so "
                f"any is admitted. Write static_cast<float*>({argument.name}.data_ptr()), or "
                f"tp::In<float> {argument.name}; or declare dtypes: in front matter."
            )
            yield Finding("guards", kernel.title, "warning", message, code="no_dtype_guard")


def without_gradient(operator: OperatorSpec) -> Iterator[str]:
    """Return the inputs that have no gradient where others have one, and none was declared."""
    given = {d.input for d in operator.derivatives}
    for argument in operator.inputs if given else ():
        real = not argument.dtypes or any("float" in d or "complex" in d for d in argument.dtypes)
        if real and argument.kind == "tensor" and argument.name not in given:
            yield argument.name


def _incomplete(operator: OperatorSpec) -> Iterator[Finding]:
    """Find tensor inputs without a gradient where others have one."""
    for name in without_gradient(operator):
        if operator.backward is not None:
            where = operator.backward.operator
            message = (
                f"'{where}' gives no gradient of '{name}', so asking for it raises. Add an output "
                f"tp::Out<T> grad_{name} to '{where}', or a formula for {name} under derivatives."
            )
        else:
            message = (
                f"input '{name}' has no gradient formula, so asking for its gradient raises. Add "
                f"'{name}: …' under derivatives, or '{name}: non_differentiable' if that is meant."
            )
        yield Finding("cell", operator.name, "warning", message, code="missing_gradient")
