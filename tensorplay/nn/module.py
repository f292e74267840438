"""`Module`: a function with parameters, buffers and further modules among its attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from tensorplay import _creation, _device, _dtype
from tensorplay._tensor import Tensor
from tensorplay.nn import state
from tensorplay.nn.hooks import Hook, HookHandle, Hooks, call_with_hooks
from tensorplay.nn.members import BUFFER, MODULE, PARAMETER, TRANSIENT, Members
from tensorplay.nn.parameter import Parameter
from tensorplay.ops.kinds import checked

__all__ = ["LoadResult", "Module"]

ModuleT = TypeVar("ModuleT", bound="Module")


class LoadResult(NamedTuple):
    """Names that `load_state_dict` found on one side only."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if self.missing_keys or self.unexpected_keys:
            return f"LoadResult{tuple(self)!r}"
        return "<All keys matched successfully>"


class Module:
    """A function with state: derive from it, set attributes in `__init__`, write `forward`.

    `Parameter`, `Buffer` and `Module` values of attributes are registered under the attribute's
    name, so that `parameters`, `state_dict`, `to` and the like find them.

    Examples
    --------
    >>> import tensorplay as tp
    >>> class Scale(tp.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = tp.nn.Parameter(tp.tensor(2.0))
    ...
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> Scale()(tp.tensor([1.0, 2.0])).tolist()
    [2.0, 4.0]
    """

    training: bool = True
    _hooks: Hooks | None = None
    _compiled: Callable[..., Any] | None = None

    def __init__(self) -> None:
        # Bases that each call it must not forget what another registered.
        self.__dict__.setdefault("_kinds", {})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result of a call: what a derived class writes."""
        message = (
            f'[{type(self).__name__}] is missing the required "forward" function. '
            "Write def forward(self, x)."
        )
        raise NotImplementedError(message)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `forward`, with the hooks around it."""
        if self._compiled is not None:
            return self._compiled(*args, **kwargs)
        if self._hooks is not None and self._hooks.around_calls:
            return call_with_hooks(self, self._hooks, args, kwargs)
        return self.forward(*args, **kwargs)

    def compile(self, **kwargs: Any) -> None:
        """Compile the calls of this module, with the options of `tensorplay.compile`."""
        from tensorplay import compile as compile_

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._hooks is not None and self._hooks.around_calls:
                return call_with_hooks(self, self._hooks, args, kwargs)
            return self.forward(*args, **kwargs)

        self.__dict__["_compiled"] = compile_(call, **kwargs)

    # --- attributes -----------------------------------------------------------------------------

    def _registry(self) -> dict[str, str]:
        """Return the kinds of the registered names."""
        kinds = self.__dict__.get("_kinds")
        if kinds is None:
            message = (
                f"[{type(self).__name__}] cannot assign parameters, buffers or modules before "
                "Module.__init__() call. Write super().__init__() first."
            )
            raise AttributeError(message)
        found: dict[str, str] = kinds
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        role = value._role if isinstance(value, Tensor) else None
        if role is not None:
            self._register(name, value, role)
        elif isinstance(value, Module):
            self._register(name, value, MODULE)
        else:
            kind = self.__dict__.get("_kinds", {}).get(name)
            if kind is None:
                object.__setattr__(self, name, value)
                return
            buffer = kind in {BUFFER, TRANSIENT} and isinstance(value, Tensor)
            if value is not None and not buffer:
                wanted = {PARAMETER: "Parameter", MODULE: "Module"}.get(kind, "Tensor")
                message = (
                    f"[{type(self).__name__}] cannot assign {type(value).__name__!r} object as "
                    f"{kind} {name!r}: expected {wanted} or None."
                )
                raise TypeError(message)
            self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        self.__dict__.get("_kinds", {}).pop(name, None)
        object.__delattr__(self, name)

    def __getattr__(self, name: str) -> Any:
        # Only for what is not there.
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(message)

    def _register(self, name: str, value: Any, kind: str) -> None:
        kinds = self._registry()
        if kinds.get(name, kind) != kind:
            del kinds[name]  # of another kind, it takes its place in the order anew
        kinds[name] = kind
        self.__dict__[name] = value

    def _check_name(self, where: str, name: Any, *kinds: str) -> None:
        if not isinstance(name, str):
            message = f"[{where}] argument 'name': expected str, got {type(name).__name__}."
            raise TypeError(message)
        if not name or "." in name:
            message = (
                f"[{where}] argument 'name': expected a name that is not empty and contains no "
                f'".", got {name!r}.'
            )
            raise KeyError(message)
        known = hasattr(type(self), name) or name in self.__dict__
        if known and self._registry().get(name) not in kinds:
            message = f"[{where}] argument 'name': attribute {name!r} already exists."
            raise KeyError(message)

    def register_parameter(self, name: str, param: Tensor | None) -> None:
        """Set the attribute `name` to a parameter, or to None: a parameter that is not there.

        Raises
        ------
        TypeError
            `param` is neither a `Parameter` nor None.
        KeyError
            `name` is empty, has a dot, or is an attribute of another kind.
        ValueError
            `param` was computed: only leaves of the graph can be trained.
        """
        self._registry()
        self._check_name("register_parameter", name, PARAMETER)
        if param is not None and not isinstance(param, Parameter):
            message = (
                "[register_parameter] argument 'param': expected Parameter or None, got "
                f"{type(param).__name__}. Write nn.Parameter(x)."
            )
            raise TypeError(message)
        if param is not None and param.grad_fn is not None:
            message = (
                f"[register_parameter] argument 'param': {name!r} is not a leaf of the graph. "
                "Write nn.Parameter(x.detach())."
            )
            raise ValueError(message)
        self._register(name, param, PARAMETER)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Set the attribute `name` to a buffer; `persistent` says whether `state_dict` holds it.

        Raises
        ------
        TypeError
            `tensor` is neither a `Tensor` nor None.
        KeyError
            `name` is empty, has a dot, or is an attribute of another kind.
        """
        self._registry()
        self._check_name("register_buffer", name, BUFFER, TRANSIENT)
        given: Any = tensor
        if given is not None and not isinstance(given, Tensor):
            message = (
                "[register_buffer] argument 'tensor': expected Tensor or None, got "
                f"{type(tensor).__name__}."
            )
            raise TypeError(message)
        self._register(name, tensor, BUFFER if persistent else TRANSIENT)

    def add_module(self, name: str, module: Module | None) -> None:
        """Set the attribute `name` to a module, or to None.

        Raises
        ------
        TypeError
            `module` is neither a `Module` nor None.
        KeyError
            `name` is empty, has a dot, or is an attribute of another kind.
        """
        self._registry()
        self._check_name("add_module", name, MODULE)
        given: Any = module
        if given is not None and not isinstance(given, Module):
            message = (
                "[add_module] argument 'module': expected Module or None, got "
                f"{type(module).__name__}."
            )
            raise TypeError(message)
        self._register(name, module, MODULE)

    register_module = add_module

    @property
    def _parameters(self) -> Members:
        return Members(self, (PARAMETER,))

    @property
    def _buffers(self) -> Members:
        return Members(self, (BUFFER, TRANSIENT))

    @property
    def _modules(self) -> Members:
        return Members(self, (MODULE,))

    def _members(self, *kinds: str) -> Iterator[tuple[str, Any]]:
        """Yield names and values of some kinds, without those that are None."""
        for name, kind in list(self._registry().items()):
            if kind in kinds and self.__dict__[name] is not None:
                yield name, self.__dict__[name]

    # --- traversal ------------------------------------------------------------------------------

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the modules among the attributes with their names, each once."""
        seen: set[int] = set()
        for name, module in self._members(MODULE):
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        """Yield the modules among the attributes, each once."""
        return (module for _, module in self.named_children())

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yield this module and all below it, with their paths, this one's being `prefix`."""
        memo = set() if memo is None else memo
        if remove_duplicate:
            if self in memo:
                return
            memo.add(self)
        yield prefix, self
        for name, module in self._members(MODULE):
            path = f"{prefix}.{name}" if prefix else name
            yield from module.named_modules(memo, path, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """Yield this module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def _named_tensors(
        self, kinds: tuple[str, ...], prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        owners = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in owners:
            for name, tensor in module._members(*kinds):
                if remove_duplicate and id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                yield (f"{path}.{name}" if path else name), tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters with their paths, by `recurse` also those of modules below."""
        return self._named_tensors((PARAMETER,), prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, each once."""
        return (tensor for _, tensor in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers with their paths, by `recurse` also those of modules below."""
        return self._named_tensors((BUFFER, TRANSIENT), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers, each once."""
        return (tensor for _, tensor in self.named_buffers(recurse=recurse))

    @checked
    def get_submodule(self, target: str) -> Module:
        """Return the module at the path `target`; this one for an empty path.

        Raises
        ------
        AttributeError
            A part of the path is missing, or no module.
        """
        found: Any = self
        for part in target.split(".") if target else ():
            if not hasattr(found, part):
                message = f"[get_submodule] {type(found).__name__} has no attribute {part!r}."
                raise AttributeError(message)
            found = getattr(found, part)
            if not isinstance(found, Module):
                message = f"[get_submodule] {part!r} of path {target!r} is not a Module."
                raise AttributeError(message)  # noqa: TRY004 - the path is wrong
        module: Module = found
        return module

    def _get(self, target: str, kinds: tuple[str, ...]) -> Any:
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if owner._registry().get(name) not in kinds:
            message = f"[{type(owner).__name__}] {name!r} is no {kinds[0]} of the module."
            raise AttributeError(message)
        return owner.__dict__[name]

    @checked
    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter at a path.

        Raises
        ------
        AttributeError
            There is none.
        """
        found: Parameter = self._get(target, (PARAMETER,))
        return found

    @checked
    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer at a path.

        Raises
        ------
        AttributeError
            There is none.
        """
        found: Tensor = self._get(target, (BUFFER, TRANSIENT))
        return found

    def apply(self: ModuleT, fn: Callable[[Module], Any]) -> ModuleT:
        """Call `fn` with every module below and then with this one; return this one."""
        given: Any = fn
        if not callable(given):
            message = f"[apply] argument 'fn': expected a function, got {type(given).__name__}."
            raise TypeError(message)
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # --- modes and conversion -------------------------------------------------------------------

    def train(self: ModuleT, mode: bool = True) -> ModuleT:
        """Set `training` here and below: dropout and batch normalisation differ by it.

        Raises
        ------
        TypeError
            `mode` is no bool.
        """
        flag: Any = mode
        if not isinstance(flag, bool):
            message = f"[train] argument 'mode': expected bool, got {type(mode).__name__}."
            raise TypeError(message)
        self.training = mode
        for module in self.children():
            module.train(mode)  # which a derived class may have its own of
        return self

    def eval(self: ModuleT) -> ModuleT:
        """Set `training` to False here and below."""
        return self.train(False)

    def requires_grad_(self: ModuleT, requires_grad: bool = True) -> ModuleT:
        """Set whether operations on the parameters are recorded."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the parameters, or set their elements to zero."""
        for parameter in self.parameters():
            state.forget_gradient(parameter, set_to_none=set_to_none)

    def _apply(self: ModuleT, fn: Callable[[Tensor], Tensor]) -> ModuleT:
        """Replace the elements of all parameters, their gradients, and buffers by `fn` of them."""
        # All first: a conversion that refuses leaves the module as it was.
        replaced: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}
        for tensor in (*self.parameters(), *self.buffers()):
            grad = tensor._grad
            replaced[id(tensor)] = (
                tensor,
                fn(tensor.detach()),
                None if grad is None else fn(grad.detach()),
            )
        for tensor, elements, grad in replaced.values():
            if elements._array is not tensor._array:
                tensor._grad = None  # it follows to another device
                tensor.data = elements
                tensor._grad = grad
        return self

    def to(self: ModuleT, *args: Any, **kwargs: Any) -> ModuleT:
        """Convert floating and complex parameters and buffers, in place.

        Parameters
        ----------
        *args
            A device, a dtype, both, or a tensor whose device and dtype are taken.
        **kwargs
            ``device=`` and ``dtype=``; ``non_blocking=`` changes nothing.

        Raises
        ------
        TypeError
            A dtype that is neither floating nor complex, or another kind of argument.
        """
        device, dtype = state.conversion(args, kwargs)

        def convert(tensor: Tensor) -> Tensor:
            wanted = dtype if tensor.is_floating_point() or tensor.is_complex() else None
            if wanted is not None and tensor.is_complex() and not wanted.is_complex:
                wanted = wanted.to_complex()
            result = tensor if wanted is None else tensor.to(wanted)
            return result if device is None else result.to(device)

        return self._apply(convert)

    def float(self: ModuleT) -> ModuleT:
        """Convert floating parameters and buffers to float32."""
        return self.to(_dtype.float32)

    def double(self: ModuleT) -> ModuleT:
        """Convert floating parameters and buffers to float64."""
        return self.to(_dtype.float64)

    def half(self: ModuleT) -> ModuleT:
        """Convert floating parameters and buffers to float16."""
        return self.to(_dtype.float16)

    def bfloat16(self: ModuleT) -> ModuleT:
        """Convert floating parameters and buffers to bfloat16."""
        return self.to(_dtype.bfloat16)

    def to_empty(self: ModuleT, *, device: Any, recurse: bool = True) -> ModuleT:
        """Give parameters and buffers new elements on a device, whose values are yet to be set.

        What a model made on ``"meta"`` gets memory by.

        Parameters
        ----------
        device
            Where the elements are.
        recurse
            Whether modules below are changed too.
        """
        where = _device.as_device(device, "to_empty")
        for tensor in (*self.parameters(recurse), *self.buffers(recurse)):
            tensor._grad = None
            tensor.data = _creation.empty(tensor.shape, dtype=tensor.dtype, device=where)
        return self

    def cpu(self: ModuleT) -> ModuleT:
        """Move all parameters and buffers to main memory."""
        return self.to(_device.CPU)

    # --- state ----------------------------------------------------------------------------------

    def get_extra_state(self) -> Any:
        """Return further state for `state_dict`; a derived class writes it with the next."""
        return None

    def set_extra_state(self, state: Any) -> None:
        """Take what `get_extra_state` returned."""
        message = (
            f"[{type(self).__name__}] state_dict has extra state for a module that takes none. "
            "Write def set_extra_state(self, state)."
        )
        raise RuntimeError(message)

    def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        """Return parameters and persistent buffers by path.

        Parameters
        ----------
        prefix
            Put before each path.
        keep_vars
            Give the tensors themselves instead of tensors on the same memory outside the graph.
        """
        found: dict[str, Any] = {}
        state.collect(self, found, prefix, keep_vars=keep_vars)
        return found

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> LoadResult:
        """Take elements of parameters and buffers from what `state_dict` returned.

        Nothing is changed unless all of it fits.

        Parameters
        ----------
        state_dict
            Tensors by path.
        strict
            Whether all paths must be there, and no others.
        assign
            Take the tensors themselves, with their dtype, instead of copying their elements.

        Raises
        ------
        TypeError
            `state_dict` is no mapping.
        RuntimeError
            Missing key(s), unexpected key(s), or a size mismatch.
        """
        return LoadResult(*state.load(self, state_dict, strict=strict, assign=assign))

    # --- hooks ----------------------------------------------------------------------------------

    def _add_hook(self, kind: str, hook: Hook, *, prepend: bool = False) -> HookHandle:
        if self._hooks is None:
            self.__dict__["_hooks"] = Hooks()
        hooks: Any = self._hooks
        handle: HookHandle = hooks.add(kind, hook, prepend=prepend)
        return handle

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call ``hook(module, args)`` before `forward`; what it returns replaces the arguments.

        With `with_kwargs`, ``hook(module, args, kwargs)``, which returns None or both anew.
        """
        return self._add_hook("forward_pre", Hook(hook, with_kwargs), prepend=prepend)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> HookHandle:
        """Call ``hook(module, args, output)`` after `forward`; what it returns replaces the output.

        With `with_kwargs`, ``hook(module, args, kwargs, output)``. With `always_call` also after a
        `forward` that raised, with None as the output.
        """
        return self._add_hook("forward", Hook(hook, with_kwargs, always_call), prepend=prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call ``hook(module, grad_output)`` when the gradients of the outputs are known.

        What it returns replaces them.
        """
        return self._add_hook("backward_pre", Hook(hook), prepend=prepend)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call ``hook(module, grad_input, grad_output)`` when gradients of the inputs are known.

        Both are tuples, with None for what has no gradient. What it returns replaces `grad_input`.
        """
        return self._add_hook("backward", Hook(hook), prepend=prepend)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call ``hook(module, prefix, keep_vars)`` before `state_dict` collects the module."""
        return self._add_hook("state_dict_pre", Hook(hook))

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call ``hook(module, state_dict, prefix)`` after `state_dict` collected the module."""
        return self._add_hook("state_dict", Hook(hook))

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call ``hook(module, state_dict, prefix)`` before loading, with a copy it may change."""
        return self._add_hook("load_state_dict_pre", Hook(hook))

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call ``hook(module, result)`` after loading; it may change the lists of `result`."""
        return self._add_hook("load_state_dict", Hook(hook))

    # --- Python protocols -----------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # A compiled call holds this process's functions; the next process compiles its own.
        return {name: value for name, value in self.__dict__.items() if name != "_compiled"}

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self.__dict__.get("_kinds", {})})

    def extra_repr(self) -> str:
        """Return what `repr` shows besides the modules below."""
        return ""

    def __repr__(self) -> str:
        own = self.extra_repr()
        lines = [f"({name}): {_indented(repr(module))}" for name, module in self._members(MODULE)]
        if not lines and "\n" not in own:
            return f"{type(self).__name__}({own})"
        if own:
            lines.insert(0, _indented(own))
        return f"{type(self).__name__}(\n" + "".join(f"  {line}\n" for line in lines) + ")"


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")
