"""A built cell as a package that pip builds and installs, with tests of what it does today."""

from __future__ import annotations

import inspect
import json
import keyword
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import tensorplay as tp
from tensorplay.library.modules.spec import CellSpec, OperatorSpec
from tpkernel.cells.cell import FRONT_MATTER, parse_cell
from tpkernel.cells.words import written
from tpkernel.checks.samples import (
    Sample,
    flat_results,
    leaf,
    make_samples,
    preferred_dtypes,
    with_leaves,
)
from tpkernel.checks.verdicts import is_bad

if TYPE_CHECKING:
    from tpkernel.building.request import Request
    from tpkernel.report.report import Report

__all__ = ["Origin", "export_package"]

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Origin:
    """What a report was made from."""

    request: Request
    spec: CellSpec
    definitions: Mapping[str, Any]


def export_package(
    report: Report,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a package; `Report.export` says how."""
    origin: Origin | None = report.origin
    if origin is None:
        message = "[export] the report was not made by a build of this session; run the cell again"
        raise RuntimeError(message)
    target = Path(folder)
    package = name or re.sub(r"[-. ]", "_", target.absolute().name)
    if not package.isidentifier() or keyword.iskeyword(package):
        message = f"[export] '{package}' cannot name a package; write export(folder, name='mypkg')."
        raise ValueError(message)
    operators = origin.spec.own_operators()
    if not operators:
        message = (
            "[export] expected a cell with operators, got plain kernels. Declare one in front "
            "matter: /*--- op: mylib::name(Tensor x) -> Tensor ---*/, each key on its own line."
        )
        raise ValueError(message)
    on_gpu = next((o for o in operators if o.kernel.device == "cuda"), None)
    if on_gpu is not None:
        message = (
            f"[export] {on_gpu.name} runs on cuda, and packages hold C++ kernels for the cpu, "
            "which are compiled and tested where pip runs. Keep the cell's text in a file of a "
            "package and build it where that is imported: tpkernel.build(Path(__file__).with_name("
            f"'{on_gpu.opname}.cu').read_text('utf-8'), checks=False)."
        )
        raise ValueError(message)
    _refuse_failed(report)
    recorded = _record(origin, operators)
    files = {
        "pyproject.toml": _pyproject(package, operators, origin.request),
        ".gitignore": "*.so\n__pycache__/\n",
        "README.md": _readme(package, origin.spec, operators),
        f"src/{package}/__init__.py": _init(package, operators),
        f"src/{package}/ops.yaml": _declarations(origin, operators, package),
        f"src/{package}/kernels.cc": _source(origin.request.text),
        f"tests/test_{package}.py": _TEST.replace("PACKAGE", package),
        "tests/recorded.json": json.dumps(recorded, indent=1) + "\n",
    }
    for header, text in _headers(origin.request.text):
        files[f"src/{package}/{header}"] = text
    present = [n for n in files if (target / n).exists()]
    if present and not overwrite:
        message = (
            f"[export] {target} has {', '.join(present)} already. Write export(folder, "
            "overwrite=True) to replace them."
        )
        raise FileExistsError(message)
    for relative, text in files.items():
        file = target / relative
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8", newline="")
    return target


def _refuse_failed(report: Report) -> None:
    """Refuse what the checks found wrong: its own tests would fail, or crash what runs them."""
    errors = [f.message for f in report.findings if f.level == "error"]
    if is_bad(report.gradcheck_verdict):
        errors += [g.message for g in report.gradcheck if is_bad(g.verdict)]
    if errors:
        message = f"[export] the checks found: {errors[0]} Correct the cell and run it again."
        raise RuntimeError(message)


# -- sources --------------------------------------------------------------------------------------


def _source(text: str) -> str:
    """Return the cell's C++ without its front matter."""
    found = FRONT_MATTER.search(text)
    if found is None:
        return text
    end = text.index("---*/", found.end()) + len("---*/")
    return (text[: found.start()] + text[end:].removeprefix("\r").removeprefix("\n")).lstrip("\n")


def _declarations(origin: Origin, operators: Sequence[OperatorSpec], package: str) -> str:
    """Return the entries: the front matter word for word, and entries for typed views."""
    text = origin.request.text
    found = FRONT_MATTER.search(text)
    derived = [o for o in operators if o.origin != "front matter"]
    if found is None or not derived:
        front = text[found.end() : text.index("---*/", found.end())] if found else ""
        own = textwrap.dedent(front).rstrip() + "\n" if found else ""
        return own + _entries([{"op": _renamed(o, package)} for o in derived])
    entries = [dict(e.values) for e in parse_cell(text).entries]
    return _entries([*entries, *({"op": _renamed(o, package)} for o in derived)])


def _entries(entries: Sequence[Mapping[str, Any]]) -> str:
    return written(list(entries)) if entries else ""


def _renamed(operator: OperatorSpec, package: str) -> str:
    """Return a schema in the package's namespace, for an operator that has none of its own."""
    return package + operator.schema[len(operator.namespace) :]


def _headers(text: str) -> Iterator[tuple[str, str]]:
    """Find the person's own headers, which stand beside where the cell ran."""
    waiting, seen = _INCLUDE.findall(text), set()
    while waiting:
        name = waiting.pop()
        file = Path.cwd() / name
        if name in seen or not file.is_file():
            continue
        seen.add(name)
        if ".." in PurePath(name).parts or PurePath(name).is_absolute():
            message = f'[export] #include "{name}" leaves the folder; a package cannot hold it.'
            raise ValueError(message)
        content = file.read_text("utf-8")
        waiting += _INCLUDE.findall(content)
        yield name, content


# -- what is recorded -----------------------------------------------------------------------------


def _record(origin: Origin, operators: Sequence[OperatorSpec]) -> dict[str, Any]:
    """Call each operator on its samples; return arguments and results, and what has a gradient."""
    values: list[dict[str, Any]] = []
    gradients: list[dict[str, Any]] = []
    for operator in operators:
        definition = origin.definitions[operator.opname]
        widest = preferred_dtypes(operator)
        narrow = {
            a.name: "float32" if widest[a.name] == "float64" and "float32" in a.dtypes
            else widest[a.name]
            for a in operator.inputs
            if a.kind == "tensor"
        }  # fmt: skip
        tried = [widest] if narrow == widest else [widest, narrow]
        values += [
            _case(operator, definition, sample, dtypes)
            for sample in make_samples(operator)
            for dtypes in tried
        ]
        gradients += _gradients(operator, definition, widest)
    return {"values": values, "gradients": gradients}


def _case(
    operator: OperatorSpec, definition: Any, sample: Sample, dtypes: Mapping[str, str]
) -> dict[str, Any]:
    arguments = sample.arguments(operator, dtypes)
    case = {
        "operator": operator.opname,
        "sample": f"{sample.text}, {', '.join(dict.fromkeys(dtypes.values()))}".strip(", "),
        "arguments": {name: _plain(value) for name, value in arguments.items()},
    }
    try:
        result = definition(**arguments)
    except Exception as problem:
        message = f"[export] {operator.name} fails on its sample {sample.text}: {problem}"
        raise RuntimeError(message) from problem
    case["results"] = [_plain(r) for r in flat_results(result)]
    case["written"] = {name: _plain(arguments[name]) for name in operator.mutates}
    return case


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what JSON has no word for says what it is."""
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    if isinstance(value, tp.dtype):
        return {"kind": "dtype", "name": value.name}
    if isinstance(value, tp.device):
        return {"kind": "device", "name": str(value)}
    if isinstance(value, complex):
        return {"kind": "complex", "parts": [value.real, value.imag]}
    if not isinstance(value, tp.Tensor):
        return value
    array = value.detach().numpy()
    if value.dtype.is_complex:
        values: Any = [[v.real, v.imag] for v in array.ravel().tolist()]
    elif value.dtype.is_floating_point:
        values = [float(v) for v in array.ravel()]
    else:
        values = array.ravel().tolist()
    return {
        "kind": "tensor",
        "dtype": value.dtype.name,
        "shape": list(value.shape),
        "values": values,
    }


def _gradients(
    operator: OperatorSpec, definition: Any, dtypes: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Return samples with the inputs whose gradient is right; a wrong one is no package's.

    Gradients that are deliberately not derivatives are recorded as they are.
    """
    floating = [n for n in operator.differentiated if dtypes[n].startswith("float")]
    for number, sample in enumerate(make_samples(operator) if floating else ()):
        chosen = sample
        if not operator.samples and not _finite(definition(**sample.arguments(operator, dtypes))):
            chosen = make_samples(operator, positive=True)[number]
        leaves = {n: o for n, o in chosen.leaves(operator).items() if o in floating}
        deliberate = [n for n, owner in leaves.items() if owner in operator.surrogates]
        names = [n for n in leaves if n not in deliberate]
        arguments = chosen.arguments(operator, dtypes)
        case = {
            "operator": operator.opname,
            "sample": chosen.text,
            "arguments": {n: _plain(v) for n, v in arguments.items()},
            "inputs": names,
            "deliberate": _recorded(definition, arguments, deliberate),
        }
        if names and not _is_right(operator, definition, arguments, names, chosen):
            case["inputs"] = []
        if case["inputs"] or deliberate:
            yield case


def _is_right(
    operator: OperatorSpec,
    definition: Any,
    arguments: Mapping[str, Any],
    names: Sequence[str],
    sample: Sample,
) -> bool:
    """Compare gradients with differences; False where nothing can be said."""

    def call(*tensors: Any) -> Any:
        return definition(**with_leaves(arguments, dict(zip(names, tensors, strict=True))))

    # The names that the message gives to inputs are those of the function's parameters.
    kind = inspect.Parameter.POSITIONAL_ONLY
    vars(call)["__signature__"] = inspect.Signature(
        [inspect.Parameter(re.sub(r"\[(\d+)\]", r"_\1", n), kind) for n in names]
    )
    inputs = tuple(leaf(arguments, n).requires_grad_(True) for n in names)
    found = tp.autograd.gradcheck_report(call, inputs)
    if is_bad(str(found.verdict)):
        message = (
            f"[export] the gradient of {operator.name} on {sample.text}: "
            f"{str(found.message).rstrip('.')}. Run the cell with its checks, whose report "
            "shows the likely cause; correct it and export again."
        )
        raise RuntimeError(message)
    return bool(found.verdict == "ok")


def _recorded(
    definition: Any, arguments: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """Return the gradients of the sum of all results."""
    if not names:
        return {}
    inputs = [leaf(arguments, n).detach().requires_grad_(True) for n in names]
    results = flat_results(
        definition(**with_leaves(arguments, dict(zip(names, inputs, strict=True))))
    )
    roots = [r.sum() for r in results if r.requires_grad]
    found = tp.autograd.grad(roots, inputs, allow_unused=True) if roots else [None] * len(inputs)
    return {n: _plain(g) for n, g in zip(names, found, strict=True)}


def _finite(result: Any) -> bool:
    tensors = [r for r in flat_results(result) if r.dtype.is_floating_point]
    return all(bool(tp.isfinite(r).all()) for r in tensors)


# -- the package's own files ----------------------------------------------------------------------


def _pyproject(package: str, operators: Sequence[OperatorSpec], request: Request) -> str:
    names = ", ".join(o.opname for o in operators)
    options = []
    if request.flags:
        options.append(f"flags = {json.dumps(list(request.flags), ensure_ascii=False)}")
    if request.contiguous != "error":
        options.append(f'contiguous = "{request.contiguous}"')
    if request.alias_ok:
        options.append("allow_alias = true")
    more = "".join(f"{line}\n" for line in options)
    return f"""[build-system]
requires = ["hatchling>=1.25", "tensorplay-workbench[build]"]
build-backend = "hatchling.build"

[project]
name = "{package.replace("_", "-")}"
version = "0.1.0"
description = "Operators for TensorPlay: {names}"
readme = "README.md"
requires-python = ">=3.10"
dependencies = ["tensorplay-workbench[jit]"]

[project.optional-dependencies]
test = ["pytest"]

[tool.hatch.build]
dev-mode-dirs = ["src"]

[tool.hatch.build.targets.wheel]
packages = ["src/{package}"]

[tool.hatch.build.hooks.tensorplay]
library = "src/{package}/lib{package}.so"
declarations = "src/{package}/ops.yaml"
sources = ["src/{package}/kernels.cc"]
{more}"""


def _init(package: str, operators: Sequence[OperatorSpec]) -> str:
    names = [o.opname for o in operators]
    lines = [
        f'"""Operators for TensorPlay: {", ".join(names)}."""',
        "",
        "from pathlib import Path",
        "",
        "from tensorplay.library import load",
        "",
        f"__all__ = {json.dumps(sorted(names))}",
        "",
        f'_operators = load(Path(__file__).with_name("lib{package}.so"))',
        *(f"{name} = _operators.{name}" for name in names),
    ]
    return "\n".join(lines) + "\n"


def _readme(package: str, spec: CellSpec, operators: Sequence[OperatorSpec]) -> str:
    listed = "\n".join(
        f"- `{o.schema}`" + (f": {o.doc.splitlines()[0]}" if o.doc else "") for o in operators
    )
    plain = ""
    if spec.functions:
        names = ", ".join(f.name for f in spec.functions)
        plain = f"\nPlain kernels of the cell are not part of it: {names}.\n"
    return f"""# {package}

Operators for TensorPlay, exported from {spec.cell}:

{listed}
{plain}
`src/{package}/ops.yaml` declares them and `src/{package}/kernels.cc` holds the kernels. `pip`
compiles them when it builds the package, which needs a C++17 compiler; the wheel that it makes
needs none, and serves every Python version of its platform.

```sh
pip install .            # build and install
pip wheel --no-deps .    # a wheel for machines without a compiler
pip install '.[test]' && pytest
```

`pip` takes `tensorplay-workbench` from where it takes everything else. If your index does not have
it, make its wheel from a checkout, once, and say where it lies; `--find-links` holds for the
environment that `pip` builds in, too:

```sh
pip wheel --no-deps --wheel-dir wheels path/to/tensorplay-workbench   # the checkout
pip install --find-links wheels .
```

```python
import {package}

{package}.{operators[0].opname}
```

The tests compare results with those of the day of the export (`tests/recorded.json`), and
gradients with differences.
"""


_TEST = '''"""The operators give what they gave at the export, and their gradients are right."""

import json
from pathlib import Path

import pytest
import tensorplay as tp

import PACKAGE

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text("utf-8"))


def made(value):
    """Return an argument or a result as it was recorded."""
    if isinstance(value, list):
        return [made(member) for member in value]
    if not isinstance(value, dict):
        return value
    if value["kind"] == "complex":
        return complex(*value["parts"])
    if value["kind"] == "device":
        return tp.device(value["name"])
    if value["kind"] == "dtype":
        return getattr(tp, value["name"])
    dtype = getattr(tp, value["dtype"])
    values = [complex(*v) for v in value["values"]] if dtype.is_complex else value["values"]
    return tp.tensor(values, dtype=dtype).reshape(value["shape"])


def tensors_of(value):
    """Return the tensors among results, those of lists one by one."""
    if isinstance(value, (list, tuple)):
        return [tensor for member in value for tensor in tensors_of(member)]
    return [value] if isinstance(value, tp.Tensor) else []


def leaf(arguments, name):
    """Return a tensor among arguments by its name, such as 'xs[0]'."""
    owner, bracket, number = name.partition("[")
    return arguments[owner][int(number[:-1])] if bracket else arguments[owner]


def with_leaf(arguments, name, tensor):
    """Return arguments with one of their tensors replaced."""
    owner, bracket, number = name.partition("[")
    if bracket:
        members = list(arguments[owner])
        members[int(number[:-1])] = tensor
        tensor = members
    return {**arguments, owner: tensor}


def arguments_of(case):
    return {name: made(value) for name, value in case["arguments"].items()}


def name_of(case):
    return f"{case['operator']}: {case['sample']}"


def gradient_cases(key):
    return [case for case in RECORDED["gradients"] if case[key]]


@pytest.mark.parametrize("case", RECORDED["values"], ids=name_of)
def test_values(case):
    arguments = arguments_of(case)
    results = tensors_of(getattr(PACKAGE, case["operator"])(**arguments))
    assert len(results) == len(case["results"])
    for result, recorded in zip(results, case["results"]):
        tp.testing.assert_close(result, made(recorded), equal_nan=True)
    for name, recorded in case["written"].items():
        written = zip(tensors_of([arguments[name]]), tensors_of([made(recorded)]))
        for tensor, expected in written:
            tp.testing.assert_close(tensor, expected, equal_nan=True)


@pytest.mark.parametrize("case", gradient_cases("inputs"), ids=name_of)
def test_gradients(case):
    arguments = arguments_of(case)

    def call(*tensors):
        given = arguments
        for name, tensor in zip(case["inputs"], tensors):
            given = with_leaf(given, name, tensor)
        return getattr(PACKAGE, case["operator"])(**given)

    inputs = tuple(leaf(arguments, name).requires_grad_() for name in case["inputs"])
    assert tp.autograd.gradcheck(call, inputs)


@pytest.mark.parametrize("case", gradient_cases("deliberate"), ids=name_of)
def test_gradients_that_are_no_derivatives(case):
    arguments = arguments_of(case)
    inputs = [leaf(arguments, name).requires_grad_() for name in case["deliberate"]]
    results = tensors_of(getattr(PACKAGE, case["operator"])(**arguments))
    roots = [result.sum() for result in results if result.requires_grad]
    found = tp.autograd.grad(roots, inputs, allow_unused=True) if roots else [None] * len(inputs)
    for gradient, recorded in zip(found, case["deliberate"].values()):
        if recorded is None:
            assert gradient is None
        else:
            tp.testing.assert_close(gradient, made(recorded), equal_nan=True)


@pytest.mark.parametrize("name", PACKAGE.__all__)
def test_operators_are_registered(name):
    operator = getattr(PACKAGE, name)
    assert tp.library.get_op(operator.name) is operator
    assert operator.__doc__
'''
