"""What is generated for operators with CUDA kernels: launches, and the instances of templates.

The guard of such an operator and its launch are C++ for the host (`codegen` writes the table),
compiled beside the binaries of the cell's kernels; see ``tensorplay/cuda_operator.h``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tensorplay.library.modules.spec import DTYPES, CellSpec, KernelSpec, Launch, LaunchSize
from tensorplay.utils.cpp_jit.compile import c_string
from tensorplay.utils.cpp_jit.cuda_kernels import Entry
from tpkernel.cells.launches import integer_range
from tpkernel.cpp.scalar_types import bare_type
from tpkernel.cpp.views import view_of

__all__ = ["DEVICE_TYPES", "device_preamble", "entries", "host_preamble", "instances", "launching"]

#: Dtype name to the element type that it has in CUDA text.
DEVICE_TYPES: Mapping[str, str] = {
    **{name: text for name, text in DTYPES.items() if not name.startswith("complex")},
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
}
#: How many of the numbers that a size is computed from a message has room for.
_ATOMS = 4
_HALVES = {"float16": ("FP16", "fp16"), "bfloat16": ("BF16", "bf16")}


def host_preamble(spec: CellSpec) -> str:
    """Return what stands before the C++ for the host."""
    lines = ["#include <tensorplay/cuda_operator.h>"]
    if any("bfloat16" in a.dtypes for k in spec.kernels for a in k.arguments):
        lines.append("#include <tensorplay/bfloat16.h>")
    return "\n".join(lines) + "\n"


def device_preamble(spec: CellSpec) -> str:
    """Return what stands before the cell's text: the views, where an operator is declared."""
    if not spec.operators:
        return ""
    dtypes = {d for k in spec.kernels for a in k.arguments for d in a.dtypes}
    lines = []
    for dtype, (mark, header) in _HALVES.items():
        if dtype in dtypes:
            lines += [f"#include <cuda_{header}.h>", f"#define TENSORPLAY_CUDA_{mark} 1"]
    return "\n".join([*lines, "#include <tensorplay/cuda_views.h>"]) + "\n"


def _launched(spec: CellSpec) -> Iterator[tuple[KernelSpec, Mapping[str, str]]]:
    """Yield each kernel that an operator launches with each of its instances, once."""
    seen = set()
    for kernel in (o.kernel for o in spec.operators):
        for instance in kernel.instances:
            name = _entry(kernel, instance).name
            if name not in seen:
                seen.add(name)
                yield kernel, instance


def _entry(kernel: KernelSpec, instance: Mapping[str, str]) -> Entry:
    arguments = tuple(DEVICE_TYPES[instance[v]] for v in kernel.templates)
    shown = f"{kernel.name}<{', '.join(arguments)}>" if arguments else kernel.name
    return Entry(shown, kernel.name, arguments)


def entries(spec: CellSpec) -> tuple[Entry, ...]:
    """Return the kernels that the operators of a cell launch."""
    return tuple(_entry(*found) for found in _launched(spec))


def instances(spec: CellSpec) -> str:
    """Return the text after the cell's: each instance of a template that an operator launches."""
    lines = []
    for kernel, instance in _launched(spec):
        if kernel.templates and kernel.launch is not None:
            types = {v: DEVICE_TYPES[d] for v, d in instance.items()}
            parameters = ", ".join(_spelled(t, types) for t, _, _ in kernel.launch.parameters)
            lines.append(f"template __global__ void {_entry(kernel, instance).name}({parameters});")
    return "\n".join(lines)


def _spelled(cpp_type: str, types: Mapping[str, str]) -> str:
    """Spell a parameter's type with template parameters replaced."""
    view = view_of(cpp_type)
    if view is not None:
        return view.spelled(types.get(view.element, view.element))
    words = cpp_type.replace("*", " * ").split()
    return " ".join(types.get(word, word) for word in words)


def launching(kernel: KernelSpec, launch: Launch, variables: Sequence[str]) -> list[str]:
    """Return the body of an export that launches: guard, sizes, then the instance's kernel."""
    title, table = c_string(kernel.title), f"tp_guard_{kernel.export}"
    count = len(kernel.tensors)
    codes = "codes" if variables else "nullptr"
    lines = [f"tp_view views[{count}];"] if count else []
    if variables:
        lines.append(f"int32_t codes[{len(variables)}];")
    views = "views" if count else "nullptr"
    lines += [
        f"if (tp_rt_guard(&{table}, args, count, {views}, {codes}) != 0) return -1;",
        "result->type_index = kTVMFFINone;",
        "result->zero_padding = 0;",
        "result->v_int64 = 0;",
    ]
    numbers = {a.name: i for i, a in enumerate(kernel.tensors)}
    written = [f"views[{numbers[a.name]}].numel" for a in kernel.tensors if a.role != "in"]
    grid, block = (", ".join(map(_initial, sizes)) for sizes in (launch.grid, launch.block))
    lines += [
        "using namespace ::tensorplay::jit;",
        f"const CudaSizes sizes = {{{{{grid}}}, {{{block}}}, {_initial(launch.shared)}}};",
        f"const int todo = cuda_sizes({title}, sizes, {' + '.join(written) or '0'});",
        "if (todo != 0) return todo < 0 ? -1 : 0;",
        "const int32_t device = cuda_device_of(args, count);",
    ]
    for instance in kernel.instances:
        name = c_string(_entry(kernel, instance).name)
        tests = " && ".join(
            f"codes[{i}] == TP_DTYPE_{instance[v].upper()}" for i, v in enumerate(variables)
        )
        lines += [
            f"if ({tests or 'true'}) {{",
            *(f"  {line}" for line in _values(kernel, launch, instance)),
            f"  return cuda_launch({title}, {name}, sizes, device, values);",
            "}",
        ]
    return [*lines, "return -1;"]  # not reached: the guard admits the dtypes above only


def _values(kernel: KernelSpec, launch: Launch, instance: Mapping[str, str]) -> list[str]:
    """Return the lines that make what the kernel takes, and the addresses of it all."""
    views = {a.name: f"views[{i}]" for i, a in enumerate(kernel.tensors)}
    arguments = {a.name: (a.kind, f"args[{i}]") for i, a in enumerate(kernel.arguments)}
    lines: list[str] = []
    places: list[str] = []
    for number, (cpp_type, name, value) in enumerate(launch.parameters):
        place = f"value_{number}"
        bare = bare_type(cpp_type)
        if isinstance(value, LaunchSize):
            lines += _size(kernel, bare, name, value, place)
        elif view_of(cpp_type) is not None:
            lines += [
                f"tp_cuda_view {place};",
                f"if (cuda_view_of({views[value]}, &{place}) != 0) return -1;",
            ]
        elif value in views:
            lines.append(f"void* {place} = {views[value]}.data;")
        else:
            kind, given = arguments[value]
            own = DTYPES[instance[bare]] if bare in instance else bare
            lines.append(f"{own} {place} = static_cast<{own}>(tp_arg_{kind}({given}));")
        places.append(f"&{place}")
    return [*lines, f"void* values[] = {{{', '.join([*places, 'nullptr'])}}};"]


def _initial(size: LaunchSize) -> str:
    """Return the initialiser of a size, with the words that messages have for it."""
    if size.known is not None:
        return f"{{{size.cpp}}}"
    atoms = ", ".join(f"{{{c_string(name)}, {cpp}}}" for name, cpp in size.atoms[:_ATOMS])
    return f"{{{size.cpp}, {c_string(size.text)}, {{{atoms}}}}}"


def _size(kernel: KernelSpec, element: str, name: str, size: LaunchSize, place: str) -> list[str]:
    """Return the lines that compute a size of the launch and see that its type holds it."""
    if size.known is not None:
        return [f"{element} {place} = static_cast<{element}>({size.cpp});"]
    low, high = integer_range(element)
    # What a size is computed in holds 64 bits with a sign, so this is all that can arrive.
    low_text = "INT64_MIN" if low == -(2**63) else f"INT64_C({low})"
    high_text = f"INT64_C({min(high, 2**63 - 1)})"
    words = ", ".join(map(c_string, (kernel.title, name, element)))
    return [
        f"const CudaSize wide_{place} = {_initial(size)};",
        f"if (cuda_size_fits({words}, wide_{place}, {low_text}, {high_text}) != 0) return -1;",
        f"{element} {place} = static_cast<{element}>(wide_{place}.number.value);",
    ]
