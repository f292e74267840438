"""`Optimizer`: what the methods share: groups of parameters, their state, and saving it."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd import enable_grad
from tensorplay.nn.hooks import HookHandle
from tensorplay.nn.state import forget_gradient
from tensorplay.ops.kinds import checked
from tensorplay.optim import fused

__all__ = ["Array", "Optimizer", "Required", "at_least", "between"]

Array = npt.NDArray[Any]


class Required:
    """Stands for an option without default."""


def at_least(where: str, name: str, value: Any, low: float = 0.0) -> None:
    """Check that an option is a number, and not below `low`.

    Raises
    ------
    TypeError
        It is no number.
    ValueError
        It is below `low`, or NaN.
    """
    words = {"lr": "learning rate", "eps": "epsilon value", "weight_decay": "weight_decay value"}
    if isinstance(value, Tensor) or not hasattr(value, "__float__"):
        message = f"[{where}] argument {name!r}: expected float, got {type(value).__name__}."
        raise TypeError(message)
    if not value >= low:
        message = (
            f"[{where}] argument {name!r}: Invalid {words.get(name, name + ' value')}: {value}, "
            f"expected at least {low:g}."
        )
        raise ValueError(message)


def between(where: str, name: str, value: Any) -> None:
    """Check that an option is a number, at least 0 and below 1.

    Raises
    ------
    TypeError
        It is no number.
    ValueError
        It is another number.
    """
    at_least(where, name, value)
    if not value < 1:
        message = f"[{where}] argument {name!r}: Invalid value: {value}, expected below 1."
        raise ValueError(message)


class Optimizer:
    """Base of all methods; a derived class writes `_update`, and `_check` for its options.

    Parameters
    ----------
    params
        Tensors to optimise, pairs of names and tensors, or dictionaries with ``"params"`` and
        options that differ from the defaults.
    defaults
        Options of groups that do not give them.

    Attributes
    ----------
    param_groups
        Dictionaries of ``"params"`` and the options, which may be changed between steps.
    state
        What the method remembers of each parameter.

    Raises
    ------
    TypeError
        `params` is a bare tensor, or contains something else than tensors.
    ValueError
        There are none, one is no graph leaf, or one appears twice.
    """

    @checked
    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            message = (
                f"[{self._name}] argument 'params': expected an iterable of Tensors or dicts, got "
                "a Tensor. Write [x]."
            )
            raise TypeError(message)
        if not isinstance(params, Iterable) or isinstance(params, dict):
            message = (
                f"[{self._name}] argument 'params': expected an iterable of Tensors or dicts, got "
                f"{type(params).__name__}. Write model.parameters()."
            )
            raise TypeError(message)
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        # A method of one's own may ask for the state of a parameter that has none yet.
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self._scratch: dict[Any, Array] = {}
        self._hooks: dict[str, dict[int, Callable[..., Any]]] = {"before": {}, "after": {}}
        groups = list(params)
        if not groups:
            message = f"[{self._name}] argument 'params': got an empty parameter list."
            raise ValueError(message)
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    @property
    def _name(self) -> str:
        return type(self).__name__

    # --- groups -----------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own, such as layers that are trained from now on.

        Raises
        ------
        TypeError
            It is no dictionary with ``"params"``, or contains something else than tensors.
        ValueError
            A parameter is no graph leaf, or is in a group already; an option is out of range.
        """
        given: Any = param_group
        if not isinstance(given, dict) or "params" not in given:
            message = (
                f"[{self._name}] argument 'param_group': expected a dict with 'params', got "
                f"{param_group!r}."
            )
            raise TypeError(message)
        given = given["params"]
        if isinstance(given, (set, frozenset)):
            message = (
                f"[{self._name}] argument 'params': expected an ordered collection, got a set: "
                "its order changes from run to run. Write a list."
            )
            raise TypeError(message)
        params: list[Any] = [given] if isinstance(given, Tensor) else list(given)
        names: list[str] | None = None
        if params and all(isinstance(p, tuple) and len(p) == 2 for p in params):
            names = [name for name, _ in params]
            params = [p for _, p in params]
        present = {id(p) for group in self.param_groups for p in group["params"]}
        for p in params:
            self._check_parameter(p, present)
            present.add(id(p))
        group = {**self.defaults, **param_group, "params": params}
        if names is not None:
            group["param_names"] = names
        for name, value in group.items():
            if value is Required:
                message = f"[{self._name}] argument {name!r}: the group gives none, write a value."
                raise ValueError(message)
        self._check(group)
        self.param_groups.append(group)

    def _check_parameter(self, p: Any, present: set[int]) -> None:
        if not isinstance(p, Tensor):
            message = (
                f"[{self._name}] argument 'params': expected Tensors (it can only optimize "
                f"Tensors), got {type(p).__name__}."
            )
            raise TypeError(message)
        if p.grad_fn is not None and not p.retains_grad:
            message = (
                f"[{self._name}] argument 'params': can't optimize a non-leaf Tensor. "
                "Write x.detach().requires_grad_()."
            )
            raise ValueError(message)
        if not p.dtype.is_differentiable:
            message = (
                f"[{self._name}] argument 'params': expected floating or complex elements, got "
                f"{p.dtype!r}."
            )
            raise ValueError(message)
        if any(size > 1 and step == 0 for size, step in zip(p.shape, p.stride(), strict=True)):
            message = (
                f"[{self._name}] argument 'params': the elements of an expanded tensor are one in "
                "memory. Write nn.Parameter(x.clone())."
            )
            raise ValueError(message)
        if id(p) in present:
            message = f"[{self._name}] argument 'params': a parameter appears more than once."
            raise ValueError(message)

    def _check(self, group: dict[str, Any]) -> None:
        """Check the options of a group."""

    # --- steps ------------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set their elements to zero."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p._grad = None
                elif p._grad is not None:
                    forget_gradient(p, set_to_none=False)

    @checked
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change the parameters by their gradients; those without one stay as they are.

        Parameters
        ----------
        closure
            Computes loss and gradients anew; called first.

        Returns
        -------
        object
            What `closure` returned, None without one.
        """
        for hook in tuple(self._hooks["before"].values()):
            hook(self, () if closure is None else (closure,), {})
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                grad: Any = p._grad
                if grad is not None and grad._array.shape != p._array.shape:
                    self._refuse_gradient(p, grad)
        for group in self.param_groups:
            at = self._step_together(group, 0)
            if at < len(group["params"]):
                with np.errstate(all="ignore"):  # as the operators, kernels and joint steps are
                    self._step_one_by_one(group, at)
        for hook in tuple(self._hooks["after"].values()):
            hook(self, () if closure is None else (closure,), {})
        return loss

    def _refuse_gradient(self, p: Tensor, grad: Tensor) -> NoReturn:
        # Since `p.data` was set: NumPy would repeat a smaller one. No parameter has changed yet.
        message = (
            f"[{self._name}] a gradient has shape {list(grad.shape)}, its parameter "
            f"{list(p.shape)}. Write optimizer.zero_grad() and compute it anew."
        )
        raise RuntimeError(message)

    def _step_one_by_one(self, group: dict[str, Any], at: int) -> None:
        params: Sequence[Tensor] = group["params"]
        while at < len(params):
            if params[at]._grad is not None:
                self._step_one(params[at], group)
            at = self._step_together(group, at + 1)

    def _step_together(self, group: dict[str, Any], at: int) -> int:
        """Step with parameters from index `at` on in one call; return the index of the next."""
        return at

    def _step_one(self, p: Tensor, group: dict[str, Any]) -> None:
        grad: Any = p._grad
        x, g = p._array, grad._array
        if not p.is_cpu:
            if p.is_cuda:
                message = (
                    f"[{self._name}] expected parameters on cpu, got one on {p.device}. Optimizers "
                    "write main memory; keep the parameter there."
                )
                raise NotImplementedError(message)
            return
        state = self.state[p]
        p._bump_version()
        kind = x.dtype.char
        if kind in "fd":
            if self._fuses(x, g, state, group):
                self._update_fused(x, g, state, group)
                return
            if group.get("maximize"):
                # Without `out`, of a parameter without dimensions it is a number, not an array.
                g = np.negative(g, out=self._temporary(g, 2))
            self._update(x, g, state, group)
            return
        # Others are computed on a copy: complex numbers as pairs, narrow ones with more digits.
        pairs = x.dtype.kind == "c"
        narrow = np.dtype(np.float32)
        wide, slope = (
            (y.copy().view(y.real.dtype) if pairs and y.ndim else y.astype(narrow))
            for y in (
                np.atleast_1d(np.ascontiguousarray(x)),
                np.atleast_1d(np.ascontiguousarray(g)),
            )
        )
        if group.get("maximize"):
            slope = np.negative(slope)
        self._update(wide, slope, state, group)
        x[...] = (wide.view(x.dtype) if pairs else wide.astype(x.dtype)).reshape(x.shape)

    def _update(self, x: Array, g: Array, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Change the elements `x` of a parameter by its gradient `g`."""
        raise NotImplementedError

    def _fuses(self, x: Array, g: Array, state: dict[str, Any], group: dict[str, Any]) -> bool:
        """Tell whether one kernel does the whole update of a parameter."""
        wanted = group.get("fused", False)
        if wanted is False or (wanted is None and x.size < fused.LEAST) or x.size == 0:
            return False
        if not (x.flags.c_contiguous and g.flags.c_contiguous and x.dtype == g.dtype):
            return False
        kept = (v._array for v in state.values() if isinstance(v, Tensor))
        if any(np.may_share_memory(a, b) for a, b in combinations((x, g, *kept), 2)):
            return False  # the kernel reads nothing that it has written
        if fused.can_compile():
            return True
        if wanted:
            message = (
                f"[{self._name}] argument 'fused': there is no C++ compiler for the kernel. "
                "Pass fused=None to use one where there is."
            )
            raise RuntimeError(message)
        return False

    def _update_fused(
        self, x: Array, g: Array, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Do what `_update` does, by a kernel, the sign of `g` for `maximize` included."""
        raise NotImplementedError

    def _zeros(self, state: dict[str, Any], name: str, x: Array) -> Array:
        """Return the array `name` of a state, zeros at first."""
        found = state.get(name)
        if found is None:
            found = state[name] = wrap(np.zeros(x.shape, x.dtype))
        array: Array = found._array
        return array

    def _temporary(self, x: Array, number: int = 0) -> Array:
        """Return memory of the shape of `x` for values within a step."""
        key = x.shape, x.dtype.char, number
        found = self._scratch.get(key)
        if found is None:
            found = self._scratch[key] = np.empty(x.shape, x.dtype)
        return found

    def _with_decay(self, x: Array, g: Array, decay: float) -> Array:
        """Return ``g + decay·x``, in temporary memory unless it is `g`."""
        if not decay:
            return g
        total = np.multiply(x, decay, out=self._temporary(x, 1))
        total += g
        return total

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call ``hook(optimizer, args, kwargs)`` before each step, with its arguments."""
        return self._add_hook("before", hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call ``hook(optimizer, args, kwargs)`` after each step, with its arguments."""
        return self._add_hook("after", hook)

    def _add_hook(self, when: str, hook: Callable[..., Any]) -> HookHandle:
        given: Any = hook
        if not callable(given):
            message = (
                f"[{self._name}] argument 'hook': expected a function, got {type(given).__name__}."
            )
            raise TypeError(message)
        handle = HookHandle(self._hooks[when])
        self._hooks[when][handle._number] = hook
        return handle

    # --- saving -----------------------------------------------------------------------------

    def _numbered(self) -> Iterator[tuple[int, Tensor]]:
        return enumerate(p for group in self.param_groups for p in group["params"])

    def state_dict(self) -> dict[str, Any]:
        """Return options and state, parameters being numbers in the order of the groups."""
        numbers = {id(p): i for i, p in self._numbered()}
        return {
            "state": {numbers[id(p)]: dict(s) for p, s in self.state.items() if id(p) in numbers},
            "param_groups": [
                {
                    **{k: v for k, v in group.items() if k != "params"},
                    "params": [numbers[id(p)] for p in group["params"]],
                }
                for group in self.param_groups
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take options and state from what `state_dict` returned.

        Raises
        ------
        TypeError
            It is no dictionary.
        ValueError
            It has other keys, there are other groups, or groups of other sizes; nothing is changed.
        """
        given: Any = state_dict
        if not isinstance(given, dict):
            message = (
                f"[{self._name}] argument 'state_dict': expected a dict, got "
                f"{type(given).__name__}. Write what state_dict() returned."
            )
            raise TypeError(message)
        if not {"state", "param_groups"} <= given.keys():
            message = (
                f"[{self._name}] argument 'state_dict': expected keys 'state' and 'param_groups', "
                f"got {list(given)}. Write what optimizer.state_dict() returned, not the model's."
            )
            raise ValueError(message)
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            message = (
                f"[{self._name}] argument 'state_dict': has a different number of parameter "
                f"groups, {len(groups)} instead of {len(self.param_groups)}."
            )
            raise ValueError(message)
        tensors: dict[int, Tensor] = {}
        for place, (new, old) in enumerate(zip(groups, self.param_groups, strict=True)):
            if len(new["params"]) != len(old["params"]):
                message = (
                    f"[{self._name}] argument 'state_dict': group {place} has "
                    f"{len(new['params'])} parameters, the optimizer's has {len(old['params'])}."
                )
                raise ValueError(message)
            tensors.update(zip(new["params"], old["params"], strict=True))
        state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        for number, values in state_dict["state"].items():
            p = tensors.get(int(number))
            if p is not None:
                state[p] = self._taken(p, values)
        options = [
            {**copy.deepcopy({k: v for k, v in new.items() if k != "params"})} for new in groups
        ]
        for group, new in zip(self.param_groups, options, strict=True):
            group.update(new)
        self.state = state

    def _taken(self, p: Tensor, values: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of one parameter's state, in the type that steps compute in."""
        working = p.dtype.numpy
        if working.kind == "c":
            working = np.empty(0, working).real.dtype
        elif working.char not in "fd":
            working = np.dtype(np.float32)
        shape = self._state_shape(p)
        found: dict[str, Any] = {}
        for name, value in values.items():
            # Numbers of steps may be tensors, too.
            if isinstance(value, Tensor) and (value.ndim or not p.ndim):
                self._check_state(p, name, value, shape)
                found[name] = wrap(value._array.astype(working).reshape(shape))  # a copy
            else:
                found[name] = copy.deepcopy(value)
        return found

    def _state_shape(self, p: Tensor) -> tuple[int, ...]:
        """Return the shape in which steps compute: complex numbers are pairs, see `_step_one`."""
        if p.dtype.numpy.char in "fd":
            return tuple(p.shape)
        shape = tuple(p.shape) or (1,)
        return (*shape[:-1], 2 * shape[-1]) if p.dtype.is_complex else shape

    def _check_state(self, p: Tensor, name: str, value: Tensor, shape: tuple[int, ...]) -> None:
        scalar = value.numel() == 1 == math.prod(shape) and max(value.ndim, len(shape)) < 2
        if tuple(value.shape) != shape and not scalar:
            message = (
                f"[{self._name}] argument 'state_dict': {name!r} has shape "
                f"{list(value.shape)}, the parameter {list(p.shape)}."
            )
            raise ValueError(message)

    def __repr__(self) -> str:
        lines = []
        for i, group in enumerate(self.param_groups):
            lines.append(f"group {i}: {len(group['params'])} parameters")
            lines += [f"  {k}: {v!r}" for k, v in sorted(group.items()) if k != "params"]
        return f"{self._name}(\n" + "".join(f"  {line}\n" for line in lines) + ")"
