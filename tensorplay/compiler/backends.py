"""What runs a captured graph: backends by name."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from tensorplay.graph.graph_module import GraphModule, look_up
from tensorplay.graph.node import Node
from tensorplay.graph.printing import runner

__all__ = [
    "BUILT_IN",
    "get_default_backend",
    "list_backends",
    "lookup_backend",
    "register_backend",
    "set_default_backend",
    "unregister_backend",
]

Backend = Callable[..., Callable[..., Any]]

_backends: Final[dict[str, tuple[Backend, frozenset[str]]]] = {}
_lock: Final = threading.Lock()
BUILT_IN: Final = frozenset({"cpp", "eager", "interpreter"})


class _Default:
    name: str | Backend = "cpp"


def _eager(gm: GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    """Run the text of the graph: each step by the library, as without compiling."""
    return gm.forward


def interpreter(gm: GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    """Run the graph step by step, with everything looked up beforehand."""
    place: dict[Node, int] = {}
    constants: list[tuple[int, Any]] = []
    steps: list[tuple[Any, Any, Any, int, tuple[int, ...]]] = []
    inputs = 0
    last: dict[Node, int] = {}
    nodes = list(gm.graph.nodes)
    for number, node in enumerate(nodes):
        place[node] = number
        for used in node.all_input_nodes:
            last[used] = number
    result: Any = ()
    for number, node in enumerate(nodes):
        if node.op == "placeholder":
            inputs += 1
        elif node.op == "get_attr":
            constants.append((number, look_up(gm.root, node.target)))
        elif node.op == "output":
            result = node.args[0]
        else:
            dead = tuple(
                place[n] for n in {*node.all_input_nodes, node}
                if last.get(n, number) == number and n.op == "call_function"
            )  # fmt: skip
            steps.append((runner(node.target), node.args, node.kwargs, number, dead))
    makers = [
        (function, _maker(args, place), _maker(tuple(kwargs.items()), place) if kwargs else None,
         number, dead)
        for function, args, kwargs, number, dead in steps
    ]  # fmt: skip
    make_result = _maker(result, place)
    size = len(nodes)

    def call(*tensors: Any) -> Any:
        values: list[Any] = [None] * size
        values[:inputs] = tensors
        for number, value in constants:
            values[number] = value
        for function, make, make_kwargs, number, dead in makers:
            args = make(values)
            value = (
                function(*args) if make_kwargs is None
                else function(*args, **dict(make_kwargs(values)))
            )  # fmt: skip
            del args
            values[number] = value
            for index in dead:
                values[index] = None
        return make_result(values)

    return call


def _maker(value: Any, place: dict[Node, int]) -> Callable[[list[Any]], Any]:
    """Return what makes arguments of the values of nodes."""
    names: dict[str, Any] = {}

    def text(v: Any) -> str:
        if isinstance(v, Node):
            return f"values[{place[v]}]"
        if type(v) is tuple:
            return "(" + "".join(f"{text(x)}, " for x in v) + ")"
        if type(v) is list:
            return "[" + ", ".join(map(text, v)) + "]"
        name = f"c{len(names)}"
        names[name] = v
        return name

    source = f"lambda values: {text(value)}"
    function: Callable[[list[Any]], Any] = eval(source, names)  # noqa: S307 - text made here
    return function


_noticed: Final[set[str]] = set()


#: What compilers say where they cannot write.
_NO_ROOM: Final = (
    *(os.strerror(n) for n in (errno.ENOSPC, errno.EFBIG, errno.EROFS)),
    "File size limit exceeded",
)


def _cpp(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """Generate C++ for fused steps; where none can be built, fall back to the interpreter."""
    from tensorplay.utils import cpp_jit

    try:
        from tensorplay.compiler import cpp

        return cpp.cpp(gm, example_inputs, **kwargs)
    except cpp_jit.MissingToolError as error:
        problem: Exception = error
        why = "there is no compiler for native code"
        line = str(error).splitlines()[0] if str(error) else "no compiler"
    except (OSError, cpp_jit.BuildError) as error:
        line = str(error) if isinstance(error, OSError) else _no_room(error.log)
        if not line:
            raise  # the compiler refuses what we wrote
        problem, why = error, f"native code could not be made: {line}"
    if kwargs.get("strict_native"):
        raise RuntimeError(f"[compile] strict_native: {why}: {problem}") from problem
    kind = type(problem).__name__
    if kind not in _noticed:
        _noticed.add(kind)
        sys.stderr.write(
            f"[compile] no native code ({line}): compiled functions run step by step, by the "
            "backend 'interpreter'.\n"
        )
    from tensorplay.compiler.cpp.report import Region, Report

    steps = tuple(n.name for n in gm.graph.nodes if n.op.startswith("call"))
    call = interpreter(gm, example_inputs)
    vars(call)["report"] = Report(
        (Region("python", steps, (), why),), (), 0.0, cached=False, writes=(), code=gm.code
    )
    return call


def _no_room(log: str) -> str:
    """Return the line of a compiler's output that says that it could not write, if one does."""
    lines = (line.strip() for line in log.splitlines())
    return next((line for line in lines if any(text in line for text in _NO_ROOM)), "")


def _register_built_in() -> None:
    _backends["cpp"] = (_cpp, frozenset())
    _backends["interpreter"] = (interpreter, frozenset())
    _backends["eager"] = (_eager, frozenset({"debug"}))


_register_built_in()


def list_backends(exclude_tags: Sequence[str] | None = ("debug", "experimental")) -> list[str]:
    """Return the names of the backends, in order, without those that have one of these tags.

    Parameters
    ----------
    exclude_tags
        The tags.

    Returns
    -------
    list of str
        The names.
    """
    excluded = set(exclude_tags or ())
    return sorted(name for name, (_, tags) in _backends.items() if not tags & excluded)


def lookup_backend(compiler_fn: str | Backend) -> Backend:
    """Return the backend of a name; a function is one itself.

    Parameters
    ----------
    compiler_fn
        The name, or a function.

    Returns
    -------
    callable
        The backend.

    Raises
    ------
    ValueError
        No backend has the name.
    TypeError
        It is neither a name nor a function.
    """
    return _found(compiler_fn, "[compile] argument 'backend'")


def _found(compiler_fn: str | Backend, where: str) -> Backend:
    if callable(compiler_fn):
        return compiler_fn
    given: Any = compiler_fn
    if not isinstance(given, str):
        message = (
            f"{where}: expected the name of a backend or a function, got {type(given).__name__}."
        )
        raise TypeError(message)
    found = _backends.get(compiler_fn)
    if found is None:
        message = (
            f"{where}: expected one of {', '.join(sorted(_backends))}, got "
            f"{compiler_fn!r}. Write tensorplay.compiler.register_backend(function, name=...)."
        )
        raise ValueError(message)
    return found[0]


def register_backend(
    compiler_fn: Backend | None = None, name: str | None = None, tags: Sequence[str] = ()
) -> Any:
    """Register a backend, ``backend(gm, example_inputs, **kwargs)``, which returns a function.

    Parameters
    ----------
    compiler_fn
        The backend: it gets a `graph.GraphModule`, whose inputs and results are flat tuples of
        tensors, and example tensors, and returns what is called in place of the graph. Without it,
        a decorator is returned.
    name
        Its name; that of the function if left out.
    tags
        ``"debug"`` and ``"experimental"`` backends are not listed by default.

    Returns
    -------
    callable
        The backend, or a decorator.

    Raises
    ------
    TypeError
        `compiler_fn` is no function.
    ValueError
        The name is taken.
    """
    if compiler_fn is None:
        return lambda function: register_backend(function, name, tags)
    given: Any = compiler_fn
    if not callable(given):
        message = (
            "[register_backend] argument 'compiler_fn': expected a function, got "
            f"{type(given).__name__}."
        )
        raise TypeError(message)
    chosen = name or getattr(compiler_fn, "__name__", None)
    if not isinstance(chosen, str) or not chosen:
        message = "[register_backend] argument 'name': expected a name. Write name='...'."
        raise ValueError(message)
    with _lock:
        known = _backends.get(chosen)
        if known is not None and known[0] is not compiler_fn:
            message = (
                f"[register_backend] argument 'name': there is a backend {chosen!r} already. "
                f"Write tensorplay.compiler.unregister_backend({chosen!r}) first."
            )
            raise ValueError(message)
        _backends[chosen] = (compiler_fn, frozenset(tags))
    return compiler_fn


def unregister_backend(name: str) -> None:
    """Forget a backend.

    Parameters
    ----------
    name
        Its name.

    Raises
    ------
    ValueError
        There is none of this name, or it is built in, or the default.
    """
    _found(name, "[unregister_backend] argument 'name'")
    if name in BUILT_IN or name == _Default.name:
        what = "built in" if name in BUILT_IN else "the default"
        message = f"[unregister_backend] argument 'name': {name!r} is {what}."
        raise ValueError(message)
    with _lock:
        del _backends[name]


def set_default_backend(backend: str | Backend) -> None:
    """Choose the backend of functions that are compiled without one, from now on.

    Parameters
    ----------
    backend
        Its name, or a function.
    """
    _found(backend, "[set_default_backend] argument 'backend'")
    _Default.name = backend


def get_default_backend() -> str | Backend:
    """Return the backend of functions that are compiled without one.

    Returns
    -------
    str or callable
        What `set_default_backend` got.
    """
    return _Default.name
