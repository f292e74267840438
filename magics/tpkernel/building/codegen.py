"""The C++ that is appended to a cell: guard tables, dispatch over dtypes, and exports.

One static table and one small function per kernel. The table's words are explained in
``tensorplay/guard.h``. A kernel over typed views is called through a chain of tests on the
dtypes the guard found; a plain kernel is handed to the engine's own export after the guard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tensorplay.library.modules.shapes import Dims, is_alike, same_shape
from tensorplay.library.modules.spec import DTYPES, Allocated, Argument, CellSpec, KernelSpec
from tpkernel.building.cuda_codegen import launching
from tpkernel.cpp.scalar_types import bare_type
from tpkernel.cpp.views import view_of

__all__ = ["export_source", "preamble"]

_KINDS = {
    "tensor": "TP_KIND_TENSOR",
    "int": "TP_KIND_INT",
    "float": "TP_KIND_FLOAT",
    "bool": "TP_KIND_BOOL",
    "other": "TP_KIND_ANY",
}
_DEVICES = {"cpu": "0", "cuda": "kDLCUDA"}
# Of DLPack: code, bits, lanes.
_DLPACK: Mapping[str, str] = {
    "bool": "{kDLBool, 8, 1}",
    "bfloat16": "{kDLBfloat, 16, 1}",
    **{f"{s}int{b}": f"{{kDL{s.upper()}Int, {b}, 1}}" for s in ("", "u") for b in (8, 16, 32, 64)},
    **{f"float{b}": f"{{kDLFloat, {b}, 1}}" for b in (16, 32, 64)},
    **{f"complex{b}": f"{{kDLComplex, {b}, 1}}" for b in (64, 128)},
}


def preamble(spec: CellSpec, macros: Iterable[str] = ()) -> str:
    """Return what stands before the cell's text.

    Parameters
    ----------
    spec
        The cell.
    macros
        ``NAME`` or ``NAME=VALUE`` of ``-D`` flags. They are defined here, after our headers, so
        that a macro called ``N`` or ``T`` cannot break them.
    """
    lines = ["#include <tensorplay/kernel.h>"]
    dtypes = {d for k in spec.kernels for a in k.arguments for d in a.dtypes}
    dtypes |= {r.dtype for k in spec.kernels for r in k.results if r.dtype is not None}
    if "bfloat16" in dtypes:
        lines.append("#include <tensorplay/bfloat16.h>")
    if any(d.startswith("complex") for d in dtypes):
        lines.append("#include <complex>")
    for macro in macros:
        name, equals, value = macro.partition("=")
        lines.append(f"#define {name} {value if equals else '1'}")
    return "\n".join(lines) + "\n"


def export_source(spec: CellSpec, macros: Iterable[str] = ()) -> str:
    """Return what stands after the cell's text: one guarded export per kernel."""
    parts = [f"#undef {macro.partition('=')[0].partition('(')[0]}" for macro in macros]
    parts += [_export(kernel) for kernel in spec.kernels]
    return "\n".join(parts) + "\n"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _dtype_bits(dtypes: Sequence[str]) -> str:
    return " | ".join(f"1u << TP_DTYPE_{name.upper()}" for name in dtypes) or "0u"


def _integer(value: int) -> str:
    return "INT64_MIN" if value == -(2**63) else f"INT64_C({value})"


def _export(kernel: KernelSpec) -> str:
    """Write the table, the symbols of its shapes, and the exported function."""
    tag = kernel.export
    symbols = list(kernel.shapes.symbols())
    same = same_shape(kernel.shapes, [a.name for a in kernel.arguments])
    lines: list[str] = []
    rows: list[str] = []
    variables = list(kernel.templates) if kernel.style == "views" else []
    for position, argument in enumerate(kernel.arguments):
        dims = "nullptr"
        rank = argument.rank
        like = same.get(position, -1)
        rule = {**kernel.shapes.inputs, **kernel.shapes.outputs}.get(argument.name)
        if isinstance(rule, Dims):
            rank = len(rule.entries)
            dims = f"tp_dims_{tag}_{position}" if rank else "nullptr"
            entries = ", ".join(_dim(entry, symbols) for entry in rule.entries)
            if rank:
                lines.append(f"static const tp_dim {dims}[] = {{{entries}}};")
        named = argument.variable
        if argument.kind == "float":  # a number of template type must fit the tensors' dtype
            named = bare_type(argument.cpp_type)
        variable = variables.index(named) if named in variables else -1
        rows.append(
            f"    {{{_text(argument.name)}, {_text(argument.cpp_type)}, {_KINDS[argument.kind]}, "
            f"{-1 if rank is None else rank}, {_dtype_bits(argument.dtypes)}, "
            f"{_flags(argument, kernel)}, "
            f"{variable}, {like}, "
            f"{_integer(argument.low)}, {_integer(argument.high)}, {dims}}},"
        )
    table = "nullptr"
    if rows:
        table = f"tp_args_{tag}"
        lines += [f"static const tp_guard_arg {table}[] = {{", *rows, "};"]
    if kernel.results:
        lines.append(f"static const tp_guard_arg tp_results_{tag}[] = {{")
        for made in kernel.results:
            rank = -1 if made.rank is None else made.rank
            lines.append(
                f"    {{{_text(made.name)}, {_text(made.cpp_type)}, TP_KIND_TENSOR, {rank}, 0u, "
                "TP_FLAG_WRITES, -1, -1, 0, 0, nullptr},"
            )
        lines.append("};")
    names = "nullptr"
    if symbols:
        names = f"tp_symbols_{tag}"
        lines.append(f"static const char* const {names}[] = {{{', '.join(map(_text, symbols))}}};")
    lines.append(
        f"static const tp_guard tp_guard_{tag} = {{{_text(kernel.title)}, {table}, {len(rows)}, "
        f"{len(variables)}, {names}, {len(symbols)}, {_DEVICES[kernel.device]}}};"
    )
    if kernel.launch is not None:
        body = launching(kernel, kernel.launch, variables)
    else:
        body = _dispatch(kernel, variables) if kernel.style == "views" else _forward(kernel)
    lines += [
        f'extern "C" __attribute__((visibility("default"))) int __tvm_ffi_{tag}(',
        "    void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {",
        *("  " + line for line in body),
        "}",
    ]
    return "\n".join(lines)


def _dim(entry: str, symbols: Sequence[str]) -> str:
    if entry in symbols:
        return f"{{{symbols.index(entry)}, 0, 0}}"
    if entry.isdigit():
        return f"{{TP_DIM_LITERAL, 0, {entry}}}"
    return "{TP_DIM_FREE, 0, 0}"


def _flags(argument: Argument, kernel: KernelSpec) -> str:
    flags = []
    if argument.kind == "tensor":
        if argument.writes is True:
            flags.append("TP_FLAG_WRITES")
        if argument.contiguous:
            flags.append("TP_FLAG_CONTIGUOUS")
        if kernel.alias_ok:
            flags.append("TP_FLAG_ALIAS_OK")
        if argument.form == "?":
            flags.append("TP_FLAG_OPTIONAL")
        if argument.is_list:
            flags.append("TP_FLAG_LIST")
            if argument.form == "?[]":
                flags.append("TP_FLAG_ABSENT_MEMBERS")
            if is_alike(kernel.shapes, argument.name):
                flags.append("TP_FLAG_ALIKE")
    return " | ".join(flags) or "0u"


def _forward(kernel: KernelSpec) -> list[str]:
    """Call a plain kernel: guard, then the engine's export."""
    table = f"tp_guard_{kernel.export}"
    return [
        f"if (tp_rt_guard(&{table}, args, count, nullptr, nullptr) != 0) return -1;",
        f"return ::tensorplay::jit::call({_pointer(kernel)}, {_text(kernel.name)},",
        "                                args, count, result);",
    ]


def _pointer(kernel: KernelSpec) -> str:
    """Spell the function's address; with its type, as the C library has functions of many names."""
    types = [kernel.returns, *(a.cpp_type for a in kernel.arguments)]
    if any(re.search(r"\bauto\b|\bdecltype\b|[\[(]", t) for t in types) or not kernel.returns:
        return f"&::{kernel.name}"
    return f"static_cast<{types[0]} (*)({', '.join(types[1:])})>(&::{kernel.name})"


def _dispatch(kernel: KernelSpec, variables: Sequence[str]) -> list[str]:
    """Call a kernel over typed views: guard, then the instance for the dtypes found."""
    tensors = len(kernel.tensors)
    views = "views" if tensors else "nullptr"
    codes = "codes" if variables else "nullptr"
    lines = []
    if tensors:
        lines.append(f"tp_view views[{tensors}];")
    if variables:
        lines.append(f"int32_t codes[{len(variables)}];")
    count = len(kernel.results)
    table = f"tp_guard_{kernel.export}"
    lines += [
        f"if (tp_rt_guard(&{table}, args, count, {views}, {codes}) != 0) return -1;",
    ]
    if any(a.kind == "other" for a in kernel.arguments):
        guarded = "::tensorplay::jit::Guarded"
        types = (a.cpp_type if a.kind == "other" else guarded for a in kernel.arguments)
        lines += [
            f"using mixed = ::tensorplay::jit::Mixed<{', '.join(types)}>;",
            f"if (mixed::check({_text(kernel.name)}, args, count) != 0) return -1;",
        ]
    if any(a.is_list for a in kernel.tensors):
        lines.append(f"tp_members_of members_{{views, {tensors}}};")
    if count:
        made = f"tp_results_{kernel.export}"
        each = ", ".join(
            f"{{&{table}, &{made}[{i}], {{0, 0, 1}}, nullptr, {{}}}}" for i in range(count)
        )
        lines += [
            f"tp_result results[{count}] = {{{each}}};",
            f"tp_results_of results_{{results, {count}}};",
        ]
    lines.append("try {")
    for number, instance in enumerate(kernel.instances):
        call = f"::{kernel.name}{_template_arguments(variables, instance)}"
        call += f"({_arguments(kernel, instance)});"
        tests = " && ".join(
            f"codes[{i}] == TP_DTYPE_{instance[v].upper()}" for i, v in enumerate(variables)
        )
        dtypes = "".join(
            f"results[{i}].dtype = {_DLPACK[r.dtype or instance[str(r.variable)]]}; "
            for i, r in enumerate(kernel.results)
        )
        if not tests:
            lines.append(f"  {dtypes}{call}")
        else:
            lines.append(f"  {'else ' if number else ''}if ({tests}) {{\n      {dtypes}{call} }}")
    lines += [
        "} catch (...) {",
        "  return tp_rt_raise_current();",
        "}",
    ]
    if count:
        return [*lines, f"return tp_rt_take_results(results, {count}, result);"]
    return [
        *lines,
        "result->type_index = kTVMFFINone;",
        "result->zero_padding = 0;",
        "result->v_int64 = 0;",
        "return 0;",
    ]


def _template_arguments(variables: Sequence[str], instance: Mapping[str, str]) -> str:
    if not variables:
        return ""
    return "<" + ", ".join(DTYPES[instance[v]] for v in variables) + ">"


def _arguments(kernel: KernelSpec, instance: Mapping[str, str]) -> str:
    texts = []
    view = 0
    for position, argument in enumerate(kernel.arguments):
        if argument.kind == "tensor":
            texts.append(f"{_view_type(argument, instance)}(&views[{view}])")
            view += 1
            continue
        if argument.kind == "other":
            texts.append(
                f"mixed::take<{argument.cpp_type}>(args[{position}], "
                f"{_text(kernel.name)}, {position})"
            )
            continue
        bare = bare_type(argument.cpp_type)
        target = DTYPES[instance[bare]] if bare in instance else bare
        texts.append(f"static_cast<{target}>(tp_arg_{argument.kind}(args[{position}]))")
    for number, made in enumerate(kernel.results):
        texts.insert(made.position, f"{_view_type(made, instance)}(&results[{number}])")
    return ", ".join(texts)


def _view_type(argument: Argument | Allocated, instance: Mapping[str, str]) -> str:
    """Spell a view's type with its element resolved."""
    view = view_of(argument.cpp_type)
    assert view is not None  # noqa: S101  (the reader has read it)
    variable = argument.variable
    return view.spelled(view.element if variable is None else DTYPES[instance[variable]])
