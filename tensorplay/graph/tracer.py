"""Functions made into graphs by running them on values that record."""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorplay._tensor import MetaArray, Spec, Tensor, wrap
from tensorplay.autograd import grad_mode
from tensorplay.graph.errors import GraphCaptureError
from tensorplay.graph.graph import Graph
from tensorplay.graph.graph_module import GraphModule
from tensorplay.graph.node import fail
from tensorplay.graph.printing import runner
from tensorplay.graph.proxy import Proxy

__all__ = ["Tracer", "symbolic_trace", "wrap_function"]


class Tracer:
    """Makes graphs of functions.

    The function runs once, on a `Proxy` for each argument. Operators, functions and methods of
    tensors become nodes as they are called; what Python decides by is decided once, and what it
    would decide by a traced value raises. See `tensorplay.compile` for a capture that decides by
    the values of a call.

    Parameters
    ----------
    concrete_args
        Arguments that keep the value given here, by name; they are no inputs of the graph.

    Examples
    --------
    >>> print(Tracer().trace(lambda x, y: (x + y).relu()).code.rstrip())
    def forward(self, x, y):
        add = operator.add(x, y)
        relu = add.relu()
        add = None
        return relu
    """

    def __init__(self, concrete_args: Mapping[str, Any] | None = None) -> None:
        self.concrete_args = dict(concrete_args or {})
        self.graph = Graph()
        self.root: Any = {}
        self._tensors: dict[int, str] = {}
        self._modules: dict[int, str] = {}
        self._constants: dict[str, Tensor] = {}

    def is_leaf_module(self, module: Any, name: str) -> bool:
        """Tell whether a submodule is one step of the graph; those of ours are."""
        return type(module).__module__.startswith("tensorplay.nn.") and not hasattr(
            module, "__len__"
        )

    def trace(
        self, root: Callable[..., Any], sample_inputs: Sequence[Any] | None = None
    ) -> GraphModule:
        """Return the graph of `root`.

        Parameters
        ----------
        root
            A function, or a module of layers.
        sample_inputs
            One value for each argument. Shapes and types are known then (``node.meta["val"]``),
            and ``len(x)``, ``x.shape`` and loops over tensors can be traced.

        Raises
        ------
        GraphCaptureError
            Python decides by a traced value, or a result cannot be a value of a graph.
        """
        self.graph = Graph()
        self._constants = {}
        self._tensors, self._modules = {}, {}
        function: Any = root
        self.root = {}
        if hasattr(root, "named_modules"):
            self._learn(root)
            function = function.forward
        args, kwargs = self._inputs(function, sample_inputs)
        with _patched(self) if self._modules else _Nothing():
            result = function(*args, **kwargs)
        self.graph.output(self.create_arg(result))
        module = GraphModule(
            _Root(self.root, self._constants), self.graph,
            getattr(root, "__name__", None) or type(root).__name__,
        )  # fmt: skip
        self.graph.lint()
        return module

    def _learn(self, root: Any) -> None:
        self.root = root
        for name, module in root.named_modules():
            if name:
                self._modules[id(module)] = name
        for name, tensor in (*root.named_parameters(), *root.named_buffers()):
            self._tensors.setdefault(id(tensor), name)

    def _inputs(
        self, function: Callable[..., Any], samples: Sequence[Any] | None
    ) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        rest = None if samples is None else list(samples)
        known = dict(self.concrete_args)
        for name, parameter in inspect.signature(function).parameters.items():
            if name in known:
                value = known.pop(name)
            elif parameter.kind is parameter.VAR_KEYWORD:
                continue
            elif parameter.kind is parameter.VAR_POSITIONAL:
                if rest is None:
                    raise fail(
                        f"argument '*{name}': how many there are is not known. To trace it, "
                        "provide sample inputs."
                    )
                args += [self._input(f"{name}_{i}", x) for i, x in enumerate(rest)]
                rest = []
                continue
            elif rest:
                value = self._input(name, rest.pop(0))
            elif parameter.default is not parameter.empty:
                value = self._input(name, parameter.default, default=parameter.default) if (
                    samples is None
                ) else parameter.default  # fmt: skip
            elif rest is not None:
                raise fail(f"argument {name!r}: no sample input is given for it.")
            else:
                value = self._input(name)
            if parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)
        if known:
            raise fail(f"concrete_args: no argument is called {', '.join(map(repr, known))}.")
        if rest:
            raise fail(f"sample_inputs: {len(rest)} more are given than there are arguments.")
        return args, kwargs

    def _input(self, name: str, sample: Any = None, *, default: Any = None) -> Proxy:
        node = self.graph.placeholder(name, default)
        if isinstance(sample, Tensor):
            node.meta["val"] = _on_meta(sample)
        return Proxy(node, self)

    # --- nodes ------------------------------------------------------------------------------

    def create_proxy(self, op: str, target: Any, args: Any, kwargs: Any) -> Proxy:
        """Return a value for a new node."""
        node = self.graph.create_node(op, target, self.create_arg(args), self.create_arg(kwargs))
        values = [n.meta.get("val", _Nothing) for n in node.all_input_nodes]
        called = op in {"call_function", "call_method"}
        if called and values and not any(v is _Nothing for v in values):
            value = self._value(node)
            if value is not _Nothing:
                node.meta["val"] = value
        return Proxy(node, self)

    def _value(self, node: Any) -> Any:
        """Return what a node gives on device meta, `_Nothing` if that is not known."""
        from tensorplay.graph.node import map_arg

        args = map_arg(node.args, lambda n: n.meta["val"])
        kwargs = map_arg(node.kwargs, lambda n: n.meta["val"])
        try:
            with grad_mode.no_grad():
                if node.op == "call_method":
                    return getattr(args[0], node.target)(*args[1:], **kwargs)
                return runner(node.target)(*args, **kwargs)
        except (NotImplementedError, RuntimeError):
            return _Nothing  # no rule for device meta; errors about shapes come when it runs

    def create_arg(self, value: Any) -> Any:
        """Return an argument of a node for a value: proxies and tensors become nodes.

        Raises
        ------
        GraphCaptureError
            Something is neither a value of the graph nor a constant.
        """
        if isinstance(value, Proxy):
            if value.tracer is not self:
                raise fail(f"{value!r} is a value of another trace.")
            return value.node
        if isinstance(value, Tensor):
            return self._tensor(value)
        kind = type(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*[self.create_arg(v) for v in value])
        if isinstance(value, (tuple, list)):
            return (tuple if isinstance(value, tuple) else list)(
                [self.create_arg(v) for v in value]
            )
        if kind is dict:
            return {k: self.create_arg(v) for k, v in value.items()}
        if kind is slice:
            return slice(*(self.create_arg(v) for v in (value.start, value.stop, value.step)))
        return value

    def _tensor(self, value: Tensor) -> Any:
        name = self._tensors.get(id(value))
        if name is None:
            name = f"constant_{len(self._constants)}"
            self._constants[name] = value
            self._tensors[id(value)] = name
        found = self.graph.find_nodes(op="get_attr", target=name)
        if found:
            return found[0]
        node = self.graph.get_attr(name)
        node.meta["val"] = _on_meta(value)
        return node

    def call_module(self, module: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Answer for the call of a submodule: one step, or what it does."""
        name = self._modules.get(id(module))
        if name is None or not self.is_leaf_module(module, name):
            return forward(*args, **kwargs)
        return self.create_proxy("call_module", name, args, kwargs)


class _Root:
    """The attributes of a graph: those of the traced module, and constants."""

    def __init__(self, root: Any, constants: dict[str, Tensor]) -> None:
        self._original = root
        self.__dict__.update(constants)

    def __getattr__(self, name: str) -> Any:
        root = self.__dict__.get("_original")
        if isinstance(root, dict) or root is None:
            raise AttributeError(name)
        return getattr(root, name)


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _patched:  # noqa: N801 - a context
    """Sends calls of modules to a tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def __enter__(self) -> None:
        from tensorplay.nn import Module

        tracer = self.tracer
        self._module = Module
        original = self._original = Module.__call__

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            return tracer.call_module(module, functools.partial(original, module), args, kwargs)

        setattr(Module, "__call__", call)  # noqa: B010 - special methods are the class's

    def __exit__(self, *_: object) -> None:
        setattr(self._module, "__call__", self._original)  # noqa: B010 - as above


def _on_meta(tensor: Tensor) -> Tensor:
    if tensor.is_meta:
        return tensor
    return wrap(MetaArray(Spec(tuple(tensor.shape), tensor.dtype, tensor.stride())), tensor.dtype)


def symbolic_trace(
    root: Callable[..., Any], concrete_args: Mapping[str, Any] | None = None
) -> GraphModule:
    """Return the graph of a function or module; see `Tracer`.

    Parameters
    ----------
    root
        A function or module.
    concrete_args
        Arguments by name that are fixed.

    Returns
    -------
    GraphModule
        The graph with its code.
    """
    return Tracer(concrete_args).trace(root)


def wrap_function(fn_or_name: Callable[..., Any] | str) -> Any:
    """Make a function one step of every trace, instead of what it does.

    Parameters
    ----------
    fn_or_name
        The function, or its name in the module that calls this.

    Returns
    -------
    function
        To be used in place of the function; under a name it is replaced already.

    Raises
    ------
    GraphCaptureError
        No function has the name.
    """
    scope = None
    function: Any = fn_or_name
    if isinstance(fn_or_name, str):
        scope = sys._getframe(1).f_globals
        function = scope.get(fn_or_name, getattr(builtins, fn_or_name, None))
    if not callable(function):
        raise GraphCaptureError(
            f"[graph] wrap: expected a function or the name of one in this module, got "
            f"{fn_or_name!r}."
        )

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        from tensorplay.graph.proxy import _tracer_of

        tracer = _tracer_of((args, kwargs))
        if tracer is None:
            return function(*args, **kwargs)
        return tracer.create_proxy("call_function", function, args, kwargs)

    if scope is not None:
        scope[str(fn_or_name)] = wrapper
    return wrapper
