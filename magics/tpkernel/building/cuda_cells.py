"""Cells of CUDA text: which functions they bind, and their build by cpp_jit's way for CUDA.

A cell with a kernel (``__global__``) in it is one. Kernels that front matter declares, or that take
typed views, make operators (:mod:`tpkernel.cells.cuda_reading`). Without these a text of kernels
alone binds them, to be called on a grid; where functions for the host launch them, the cell binds
those functions. What such a cell cannot have (options of the C++ compiler, includes of other cells)
is refused here, with what there is instead.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorplay.library.modules.shapes import ShapeRules
from tensorplay.library.modules.spec import Argument, CellSpec, KernelSpec
from tensorplay.utils import cpp_jit
from tensorplay.utils.cpp_jit.compile import Unit
from tensorplay.utils.cpp_jit.cuda_build import CudaUnit, build_cuda
from tensorplay.utils.cpp_jit.flags import Options, checked
from tensorplay.utils.cpp_jit.source import Function as Scanned, scan
from tpkernel.building.codegen import export_source
from tpkernel.building.cuda_codegen import (
    device_preamble,
    entries,
    host_preamble,
    instances,
)
from tpkernel.cells.cell import Cell
from tpkernel.cells.cuda_reading import has_operators, read_operators
from tpkernel.cells.flags import limited_compilers, split_flags
from tpkernel.cells.reading import CellReader, Options as ReadingOptions, cpp_defaults
from tpkernel.cpp.functions import Function
from tpkernel.cpp.includes import included_names
from tpkernel.errors import CellError
from tpkernel.report.facts import CudaFacts, CudaKernelFacts, FunctionFacts

if TYPE_CHECKING:
    from tpkernel.building.request import Request

__all__ = [
    "CUDA_NOTE",
    "compile_cuda",
    "cuda_facts",
    "function_facts",
    "is_cuda",
    "read_cuda",
    "refuse_options",
]

#: What the report of such a cell says at its end.
CUDA_NOTE = (
    "A CUDA cell: kernels are called on a grid, name[blocks, threads](…), with tensors of any "
    "library that are on a GPU. For an operator with a gradient, declare it in front matter: "
    "/*--- op: mylib::name(Tensor x) -> Tensor ---*/, each key on its own line."
)
_KERNEL = re.compile(r"\b__global__\b")
_DEVICE = re.compile(r"\b__(?:global|device)__\b")


def is_cuda(text: str) -> bool:
    """Whether a text is CUDA: there is a kernel in its code, comments and strings aside."""
    return _KERNEL.search(text) is not None and _KERNEL.search(scan(text).code) is not None


def refuse_options(request: Request, cell: Cell) -> None:
    """Refuse options of a run that mean nothing for CUDA text.

    Raises
    ------
    CellError
        One of them is given; the text says what there is for CUDA.
    """
    given = {
        "--debug": (request.debug, "write --flags -lineinfo and use compute-sanitizer"),
        "--sanitize": (bool(request.sanitize), "use compute-sanitizer, of the CUDA toolkit"),
        "--isolate": (request.isolate, "a fault on the GPU is an exception of the next call"),
    }
    for option, (is_given, instead) in given.items():
        if is_given:
            message = f"{option} is for C++ cells, and this one is CUDA (__global__): {instead}"
            raise cell.error(message, line=request.option_line)


def read_cuda(cell: Cell, options: ReadingOptions) -> CellSpec:
    """Choose what a CUDA cell binds.

    Raises
    ------
    CellError
        An operator does not fit its kernel, or nothing can be bound.
    """
    for line in included_names(cell.text).values():
        message = (
            "a CUDA cell (__global__) includes no other cells. Write functions that several cells "
            'share into a header of your folder, and #include "name.h"'
        )
        raise cell.error(message, line=cell.first_line + line)
    marked = [f for f in cell.functions if _KERNEL.search(_head(cell, f))]
    if has_operators(cell, marked):
        return _read_operators(cell, options, marked)
    if options.copy:
        message = (
            "--contiguous copy is for operators, and this cell of CUDA text (__global__) has none: "
            "write cupy.ascontiguousarray(x) in the call, or declare an operator"
        )
        raise cell.error(message, line=options.option_line)
    reader = CellReader(cell, options)
    reader.check_functions()
    scanned = {f.name: f for f in scan(cell.text).functions}
    kernels, hosts, skipped = _sorted(cell, reader, scanned)
    wanted = options.functions
    if wanted is None:
        chosen = hosts or kernels
        if hosts:
            skipped += [(f.name, "a kernel, which functions of the cell launch") for f in kernels]
    else:
        chosen = [f for f in (*kernels, *hosts) if f.name in wanted]
        for name, reason in skipped:
            if name in wanted:
                at = cell.function(name)
                raise cell.error(reason, line=at.line if at else None, subject=name)
        named = [f for f in chosen if f in kernels]
        if named and hosts:
            message = (
                f"'{named[0].name}' is a kernel, and a cell with functions for the host, such as "
                f"'{hosts[0].name}', binds these. Put kernels that are called on a grid into a "
                "cell of their own"
            )
            raise cell.error(message, line=options.option_line)
    if not chosen:
        raise _nothing_bound(cell, skipped)
    return CellSpec(
        cell=cell.name,
        operators=(),
        functions=tuple(_kernel_spec(f, kernel=f in kernels) for f in chosen),
        skipped=tuple(skipped),
    )


def _nothing_bound(cell: Cell, skipped: Sequence[tuple[str, str]]) -> CellError:
    """Make the error for a cell of CUDA text that binds no name."""
    marked = _KERNEL.search(scan(cell.text).code)
    line = cell.first_line + cell.text[: marked.start()].count("\n") if marked else None
    if not skipped:
        message = (
            "no kernel can be bound: a kernel is a function outside of classes with __global__ "
            "before its name, __global__ void name(…)"
        )
        return cell.error(message, line=line)
    name, reason = skipped[0]
    at = cell.function(name)
    if at is not None and not _DEVICE.search(_head(cell, at)):
        reason += ". If it is a kernel, write __global__ itself before its name, not a macro"
    return cell.error(f"no kernel can be bound; '{name}': {reason}", line=at.line if at else line)


def _head(cell: Cell, function: Function) -> str:
    """Return the code that stands before a function's name, from the end of what precedes it.

    Marks of CUDA may stand on lines of their own there, with attributes and bounds of the launch
    in between.
    """
    flat = scan(cell.text).flat
    at = _line_starts(flat)[function.line - cell.first_line] + function.column - 1
    return flat[max(flat.rfind(sign, 0, at) for sign in ";{}") + 1 : at]


@functools.lru_cache(maxsize=8)
def _line_starts(text: str) -> tuple[int, ...]:
    return (0, *(found.end() for found in re.finditer("\n", text)))


def _read_operators(cell: Cell, options: ReadingOptions, kernels: Sequence[Function]) -> CellSpec:
    """Read a cell with operators, in which all else is code for the device."""
    CellReader(cell, options).check_functions()
    seen: set[str] = set()
    for kernel in kernels:
        if kernel.name in seen:
            message = "several kernels of the cell have this name; give each its own"
            raise cell.error(message, line=kernel.line, column=kernel.column, subject=kernel.name)
        seen.add(kernel.name)
    for function in cell.functions:
        if function not in kernels and not _DEVICE.search(_head(cell, function)):
            message = (
                f"'{function.name}' is a function for the host, which a CUDA cell with operators "
                "cannot have: kernels are launched as launch: says. Mark it __device__, or put "
                "functions that launch kernels into a cell of their own, without operators"
            )
            raise cell.error(message, line=function.line, subject=function.name)
    return read_operators(cell, options, kernels)


def _sorted(
    cell: Cell, reader: CellReader, scanned: dict[str, Scanned]
) -> tuple[list[Function], list[Function], list[tuple[str, str]]]:
    """Return kernels, functions for the host, and what is neither, with the reason."""
    kernels: list[Function] = []
    hosts: list[Function] = []
    skipped: list[tuple[str, str]] = []
    listed = reader.options.functions or ()
    for function in cell.functions:
        marks = scanned[function.name].result if function.name in scanned else function.return_type
        if function.has_views:
            message = (
                "typed views (tp::In, tp::Out) are for kernels here. In a function that launches "
                "one take tvm::ffi::TensorView"
            )
            raise cell.error(message, line=function.line, subject=function.name)
        if not _DEVICE.search(marks):
            reason = reader.reason_to_skip(function, listed=function.name in listed)
            if reason is None:
                hosts.append(function)
            elif not function.internal:
                skipped.append((function.name, reason))
        elif _KERNEL.search(marks):
            if function.templates:
                reason = (
                    f"it is a template; write a kernel for each type, such as __global__ void "
                    f"{function.name}_float(…), and let them share a __device__ template"
                )
            elif function.namespace:
                reason = f"it is in namespace {function.namespace}"
            elif sum(f.name == function.name for f in cell.functions) > 1:
                reason = "several functions have its name; give each its own"
            else:
                kernels.append(function)
                continue
            skipped.append((function.name, reason))
        elif function.name in listed:
            reason = "it is a __device__ function, which only kernels can call"
            skipped.append((function.name, reason))
    return kernels, hosts, skipped


def _kernel_spec(function: Function, *, kernel: bool) -> KernelSpec:
    return KernelSpec(
        name=function.name,
        title=function.name,
        style="plain",
        arguments=tuple(
            Argument(name=p.name, kind="other", cpp_type=p.type, because=_guard(p.type, kernel))
            for p in function.parameters
        ),
        returns="void" if kernel else function.return_type,
        templates=(),
        instances=({},),
        shapes=ShapeRules({}, {}, declared=False),
        line=function.line,
        defaults=cpp_defaults(function),
        doc=_signature(function, kernel=kernel),
    )


def _signature(function: Function, *, kernel: bool) -> str:
    if not kernel:
        return function.signature
    inside = ", ".join(f"{p.type} {p.name}".strip() for p in function.parameters)
    return f"__global__ void {function.name}({inside})"


def _guard(cpp_type: str, kernel: bool) -> str:
    if "*" in cpp_type:
        element = re.sub(r"\b(?:const|volatile|__restrict__|__restrict)\b|\*", "", cpp_type)
        return f"tensor on one GPU, contiguous, elements of type {' '.join(element.split())}"
    if not kernel and "Tensor" in cpp_type:
        return "tensor on one GPU"
    return f"a value that {cpp_type} holds"


def function_facts(kernel: KernelSpec) -> FunctionFacts:
    """Return what the report says of a function that the cell binds."""
    guards = tuple((a.name, a.because) for a in kernel.arguments)
    return FunctionFacts(kernel.name, kernel.doc, guards, kernel.line)


def compile_cuda(request: Request, cell: Cell, spec: CellSpec, source_name: str) -> cpp_jit.Build:
    """Compile a CUDA cell that was read, or find its library. It takes no GPU.

    Raises
    ------
    CellError
        Flags that cannot be split, or with which no library for the GPU here comes out.
    BuildError
        The compiler refuses it.
    MissingToolError
        There is neither NVRTC nor nvcc, or the text needs nvcc.
    """
    try:
        flags = split_flags((*cell.flags, *request.flags))
        device: Sequence[str] = [*flags.cflags, *(f"-D{macro}" for macro in flags.macros)]
        options = Options(
            cuda_cflags=checked("--flags", device, device=True),
            ldflags=checked("--flags", flags.ldflags),
        )
    except ValueError as problem:
        line = request.option_line if request.flags else None
        raise cell.error(str(problem).removeprefix("[cpp_jit] "), line=line) from None
    with limited_compilers(request.jobs):
        name = request.name or spec.bound_names[0]
        unit = Unit(
            name,
            cpp_jit.Source(cell.text, source_name, cell.first_line),
            dict.fromkeys((f.name for f in spec.functions), ""),
            instances(spec),
            device_preamble(spec),
            options,
        )
        host = None
        if spec.operators:
            exported = dataclasses.replace(spec, functions=())
            none = cpp_jit.Source("", "<operators>")
            host = Unit(name, none, {}, export_source(exported), host_preamble(spec), options)
        return build_cuda(CudaUnit(host, unit, {}, launched=entries(spec)))


def cuda_facts(build: cpp_jit.Build) -> CudaFacts | None:
    """Return for what a library of CUDA code was built, or None for C++."""
    made = build.cuda
    if made is None:
        return None
    return CudaFacts(
        route=made["route"],
        toolkit=made["toolkit"],
        targets=tuple(made["targets"]),
        reason=made["reason"],
        kernels=tuple(
            CudaKernelFacts(
                k["name"], k["target"], k["registers"], k["shared"], k["stack"],
                k["spill_stores"], k["spill_loads"],
            )
            for k in made["kernels"]
        ),
    )  # fmt: skip
