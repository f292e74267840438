"""Hooks of modules: functions called around `forward`, `backward` and the state dictionary."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorplay._tensor import Tensor
from tensorplay.autograd import Function, grad_mode
from tensorplay.ops.kinds import checked

if TYPE_CHECKING:
    from tensorplay.nn.module import Module

__all__ = ["Hook", "HookHandle", "Hooks", "call_with_hooks"]

_numbers = itertools.count()


class Hook(NamedTuple):
    """A function, and how it is called."""

    function: Callable[..., Any]
    with_kwargs: bool = False
    always: bool = False


class HookHandle:
    """What a registration returns; `remove` ends it, and so does the end of a ``with`` block."""

    @checked
    def __init__(self, hooks: dict[int, Any]) -> None:
        self._hooks = hooks
        # A module that was loaded has numbers that another process gave.
        self._number = next(number for number in _numbers if number not in hooks)

    def remove(self) -> None:
        """Take the hook away; nothing happens the second time."""
        self._hooks.pop(self._number, None)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Hooks:
    """All hooks of one module, each kind in the order of its calls."""

    KINDS = (
        "forward_pre",
        "forward",
        "backward_pre",
        "backward",
        "state_dict_pre",
        "state_dict",
        "load_state_dict_pre",
        "load_state_dict",
    )

    def __init__(self) -> None:
        self.kinds: dict[str, dict[int, Hook]] = {kind: {} for kind in self.KINDS}

    def add(self, kind: str, hook: Hook, *, prepend: bool = False) -> HookHandle:
        """Add a hook, by `prepend` before the others."""
        function: Any = hook.function
        if not callable(function):
            message = (
                f"[register_{kind}_hook] argument 'hook': expected a function, got "
                f"{type(hook.function).__name__}."
            )
            raise TypeError(message)
        hooks = self.kinds[kind]
        handle = HookHandle(hooks)
        number = handle._number
        hooks[number] = hook
        if prepend:
            others = {key: value for key, value in hooks.items() if key != number}
            hooks.clear()
            hooks.update({number: hook, **others})
        return handle

    def of(self, kind: str) -> list[Hook]:
        """Return the hooks of one kind; a list of its own, as a hook may remove itself."""
        return list(self.kinds[kind].values())

    @property
    def around_calls(self) -> bool:
        """Whether a call of the module has to look at them."""
        return any(self.kinds[kind] for kind in self.KINDS[:4])

    def __deepcopy__(self, memo: dict[int, Any]) -> Hooks:
        twin = memo[id(self)] = Hooks()
        for kind, hooks in self.kinds.items():
            # A method of a module becomes that of its copy, functions are their own copies.
            for number, (function, *how) in hooks.items():
                twin.kinds[kind][number] = Hook(copy.deepcopy(function, memo), *how)
        return twin


def call_with_hooks(module: Module, hooks: Hooks, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Call `module.forward` with the hooks around it."""
    pending = [hook for hook in hooks.of("forward") if hook.always]
    try:
        return _call(module, hooks, args, kwargs, pending)
    except BaseException:
        # They hear of a call that failed, with no result; its exception is what people see.
        for hook in pending:
            given = (kwargs, None) if hook.with_kwargs else (None,)
            hook.function(module, args, *given)
        raise


def _call(
    module: Module, hooks: Hooks, args: tuple[Any, ...], kwargs: Any, pending: list[Hook]
) -> Any:
    for hook in hooks.of("forward_pre"):
        if hook.with_kwargs:
            changed = hook.function(module, args, kwargs)
            if changed is not None:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    message = (
                        f"[{type(module).__name__}] a forward pre-hook with kwargs must return "
                        f"None or a tuple of new args and kwargs, got {changed!r}."
                    )
                    raise RuntimeError(message)
                args, kwargs = changed
        else:
            changed = hook.function(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    watch = None
    if hooks.kinds["backward"] or hooks.kinds["backward_pre"]:
        watch = _Watch(module, hooks)
        args = watch.inputs(args)
    result = module.forward(*args, **kwargs)
    for hook in hooks.of("forward"):
        if hook in pending:
            pending.remove(hook)
        given = (kwargs, result) if hook.with_kwargs else (result,)
        changed = hook.function(module, args, *given)
        if changed is not None:
            result = changed
    return result if watch is None else watch.outputs(result)


class _Watch:
    """Sees the gradients of one call's outputs and inputs."""

    def __init__(self, module: Module, hooks: Hooks) -> None:
        self.module, self.hooks = module, hooks
        self.grad_output: tuple[Any, ...] | None = None
        self.watches_inputs = False
        self.count = 0

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments, tensors that require grad as seen."""
        places = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
        self.count = len(args)
        if not places or not grad_mode.is_grad_enabled():
            return args
        self.watches_inputs = True
        seen = _Inputs.apply(self, tuple(places), *[args[i] for i in places])
        found = list(args)
        for place, tensor in zip(places, seen, strict=True):
            found[place] = tensor
        return tuple(found)

    def outputs(self, result: Any) -> Any:
        """Return the result, tensors that require grad as seen."""
        many = isinstance(result, (tuple, list))
        values = list(result) if many else [result]
        places = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.requires_grad]
        if not places:
            return result
        seen = _Outputs.apply(self, tuple(places), len(values), *[values[i] for i in places])
        for place, tensor in zip(places, seen, strict=True):
            values[place] = tensor
        if not many:
            return values[0]
        if hasattr(result, "_fields"):  # a named tuple
            return type(result)(*values)
        return type(result)(values)

    def call(self, grad_input: tuple[Any, ...]) -> tuple[Any, ...]:
        """Call the backward hooks, which may return other gradients of the inputs."""
        for hook in self.hooks.of("backward"):
            changed = hook.function(self.module, grad_input, self.grad_output)
            grad_input = _replaced("backward", changed, grad_input)
        return grad_input


def _replaced(kind: str, changed: Any, present: tuple[Any, ...]) -> tuple[Any, ...]:
    if changed is None:
        return present
    found = changed if isinstance(changed, tuple) else (changed,)
    if len(found) != len(present):
        message = (
            f"[register_full_{kind}_hook] a hook returned {len(found)} gradients, expected "
            f"{len(present)}."
        )
        raise RuntimeError(message)
    return found


class _Inputs(Function):
    """The identity on the inputs of a call; its backward is the end of the module's."""

    @staticmethod
    def forward(ctx: Any, watch: _Watch, places: tuple[int, ...], *tensors: Any) -> Any:
        ctx.watch, ctx.places = watch, places
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        watch = ctx.watch
        if watch.grad_output is None:  # only inputs were asked about
            return (None, None, *grads)
        full: list[Any] = [None] * watch.count
        for place, grad in zip(ctx.places, grads, strict=True):
            full[place] = grad
        found = watch.call(tuple(full))
        watch.grad_output = None
        return (None, None, *[found[place] for place in ctx.places])


class _Outputs(Function):
    """The identity on the outputs of a call; its backward is the start of the module's."""

    @staticmethod
    def forward(ctx: Any, watch: _Watch, places: tuple[int, ...], count: int, *tensors: Any) -> Any:
        ctx.watch, ctx.places, ctx.count = watch, places, count
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        watch = ctx.watch
        full: list[Any] = [None] * ctx.count
        for place, grad in zip(ctx.places, grads, strict=True):
            full[place] = grad
        grad_output = tuple(full)
        for hook in watch.hooks.of("backward_pre"):
            changed = hook.function(watch.module, grad_output)
            grad_output = _replaced("backward_pre", changed, grad_output)
        watch.grad_output = grad_output
        if not watch.watches_inputs:
            # No input requires grad: nothing comes after the outputs that could be waited for.
            watch.call((None,) * watch.count)
            watch.grad_output = None
        return (None, None, None, *[grad_output[place] for place in ctx.places])
