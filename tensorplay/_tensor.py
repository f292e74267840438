"""The tensor: views, versions and gradient slots. Operators are attached from above."""

from __future__ import annotations

import copy
import functools
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tensorplay import _device, _dtype, _printing
from tensorplay._detours import detours, watching
from tensorplay._layout import (
    DeviceArray,
    InferenceCounter,
    MetaArray,
    MovedCounter,
    Size,
    Spec,
    VersionCounter,
    contiguous_strides,
)
from tensorplay._memory import TensorMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tensorplay._device import device
    from tensorplay._dtype import dtype

__all__ = [
    "InferenceCounter",
    "MetaArray",
    "Size",
    "Spec",
    "Tensor",
    "VersionCounter",
    "contiguous_strides",
    "wrap",
]

TensorT = TypeVar("TensorT", bound="Tensor")


class _ThisThread(threading.local):
    """What is on in this thread. A number of a thread says less: the next one may get it again."""

    inference: bool = False


this_thread = _ThisThread()


class Tensor(TensorMemory):
    """An n-dimensional array that can carry a gradient.

    Parameters
    ----------
    data
        Numbers, nested sequences of numbers, or an array; copied. Floats by default.
    device
        Where the elements lie.
    requires_grad
        Whether operations on the tensor are recorded.

    See Also
    --------
    tensorplay.tensor : infers the type from the data.
    """

    # What every operator looks at has a slot, which `blank` fills; `ops.quick` does so by hand.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_array",
        "_base",
        "_counter",
        "_dtype",
        "_grad_fn",
        "_output_nr",
        "_recipe",
        "_requires_grad",
        "_tangent",
    )

    _array: Any
    _base: Tensor | None
    _counter: VersionCounter | None
    _dtype: dtype
    _grad_fn: Any
    _output_nr: int
    _recipe: Any  # how a view is made from `_base`: see `_replay`
    _requires_grad: bool
    _tangent: Tensor | None

    # What few tensors have lies in their dictionary; until then it is this.
    _grad: Tensor | None = None
    _seen: int = 0
    _accumulator: Any = None
    _hooks: Any = None
    _inference: bool = False
    _role: str | None = None  # "parameter", "buffer" or "transient buffer" of a module

    def __new__(
        cls: type[TensorT],
        data: Any = (),
        *,
        device: str | device | None = None,
        requires_grad: bool = False,
    ) -> TensorT:
        self = blank(cls)
        if isinstance(data, Tensor):
            self._array = data._array if data.is_meta else data._elements("Tensor").copy()
            self._dtype = data._dtype
        else:
            d = _dtype.get_default_dtype()
            self._array = _plain_array(data, d)
            self._dtype = d
        if _device.as_device(device, "Tensor").type == "meta":
            self._array = MetaArray(Spec(self._array.shape, self._dtype))
        if detours:
            _mark_inference(self)
        if requires_grad:
            self.requires_grad = True
        return self

    # --- memory -----------------------------------------------------------------------------

    def numpy(self, *, force: bool = False) -> npt.NDArray[Any]:
        """Return the elements as a NumPy array on the same memory.

        Parameters
        ----------
        force
            Detach first if needed.

        Raises
        ------
        RuntimeError
            The tensor requires grad, or has a tangent, and `force` is not set.
        """
        if self.requires_grad and not force:
            message = (
                "[numpy] Can't call numpy() on Tensor that requires grad. Write x.detach().numpy()."
            )
            raise RuntimeError(message)
        if self._tangent is not None and not force:
            message = (
                "[numpy] Can't call numpy() on Tensor that has a tangent: forward mode would miss "
                "what NumPy computes. Write x.detach().numpy()."
            )
            raise RuntimeError(message)
        array: npt.NDArray[Any] = self._elements("numpy").view()  # with shape and flags of its own
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                message = f"[__array__] a conversion from {array.dtype} to {dtype} needs a copy."
                raise ValueError(message)
            return array.astype(dtype)
        return array.copy() if copy else array

    def detach(self) -> Tensor:
        """Return a tensor on the same memory that is outside the graph."""
        result = wrap(self._array, self._dtype)
        result._counter = self._shared_counter()
        if detours or self._inference:
            result._inference = self._inference
        return result

    def detach_(self) -> Tensor:
        """Take this tensor out of the graph and return it.

        Raises
        ------
        RuntimeError
            It is a view, whose history is that of its base.
        """
        if self._base is not None:
            message = "[detach_] can't detach views in-place. Write x.detach()."
            raise RuntimeError(message)
        self._shared_counter()  # a node that saved this tensor goes by it
        self._grad_fn, self._output_nr, self._requires_grad = None, 0, False
        return self

    @property
    def data(self) -> Tensor:
        """The same memory outside the graph, with a version counter of its own."""
        return wrap(self._array, self._dtype)

    @data.setter
    def data(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            message = f"[data] expected Tensor, got {type(value).__name__}."
            raise TypeError(message)
        same = value._array.shape == self._array.shape and value._dtype is self._dtype
        same = same and value.device == self.device
        if not same and (self.grad_fn is not None or self._base is not None):
            message = (
                "[data] other elements for a tensor that is no graph leaf, or that is a view, must "
                f"have its shape, dtype and device, {list(self.shape)}, {self._dtype!r} and "
                f"{self.device}, got {list(value.shape)}, {value._dtype!r} and {value.device}. "
                "Write x = y."
            )
            raise RuntimeError(message)
        if self._grad is not None and value.device != self.device:
            message = (
                f"[data] expected elements on {self.device}, where the tensor's gradient lies, got "
                f"some on {value.device}. Write x.grad = None first."
            )
            raise RuntimeError(message)
        if self._requires_grad and not value._dtype.is_differentiable:
            message = (
                "[data] a tensor that requires grad needs floating point or complex elements, got "
                f"{value._dtype!r}. Write x.requires_grad_(False) first."
            )
            raise RuntimeError(message)
        # A node that saved the tensor must hear of it, although the old memory is as it was.
        counter = self._shared_counter()
        counter.value += 1
        self._array, self._dtype = value._array, value._dtype
        if self._grad_fn is None and self._base is None:
            self._accumulator = None  # it knows shape and type

    # --- versions and views -----------------------------------------------------------------

    def _shared_counter(self) -> VersionCounter:
        counter = self._counter
        if counter is None:
            # A node that saved the elements of its result must hear of writes to them.
            node = self._grad_fn
            counter = VersionCounter() if node is None else node.result_counter(self._output_nr)
            self._counter = counter
        elif counter.__class__ is MovedCounter:  # tensors on one memory are known by its counter
            return counter.of
        return counter

    @property
    def _version(self) -> int:
        if watching.recorder is not None:
            watching.recorder.refuse_outer(self, "reads x._version", by_library=True)
        if self._inference:
            message = (
                "[_version] inference tensors do not track version counter. Write x.clone() "
                "outside of inference_mode() to get a normal tensor."
            )
            raise RuntimeError(message)
        return 0 if self._counter is None else self._counter.value

    def _bump_version(self) -> None:
        self._shared_counter().value += 1

    def _mark_view(self, of: Tensor, replay: Callable[..., Tensor], *rest: Any) -> None:
        """Record that this tensor is ``replay(of, *rest)`` on the memory of `of`."""
        if detours or of._inference:  # a view is of the kind of its base
            self._inference = of._inference
        self._counter = of._shared_counter()
        if of._base is None:
            self._base, self._recipe = of, (replay, rest, None) if rest else replay
        elif of._recipe is not None:
            self._base, self._recipe = of._base, (replay, rest, of._recipe)
        self._seen = self._counter.history

    @property
    def _replay(self) -> Callable[[Tensor], Tensor] | None:
        """How a view is made from `_base`; None for others.

        It is kept as that function, or as function, further arguments, and recipe for the tensor
        that the function views, None if that is the base.
        """
        recipe = self._recipe
        if recipe.__class__ is not tuple:
            found: Callable[[Tensor], Tensor] | None = recipe
            return found
        return functools.partial(_follow, recipe)

    @_replay.setter
    def _replay(self, replay: Callable[[Tensor], Tensor] | None) -> None:
        self._recipe = replay

    def _synchronise(self) -> None:
        """Look up the history of a view again if its base got a new one by an in-place write."""
        counter = self._counter
        if counter is None or self._base is None or self._recipe is None:
            return
        if self._base._base is not None:  # the base became a view, of a tensor that is as it was
            self._base = self._base._base
        if self._seen != counter.history:
            seen = counter.history
            twin = _follow(self._recipe, self._base)
            self._seen = seen  # not before: a replay that refuses must refuse again
            self._grad_fn, self._output_nr = twin._grad_fn, twin._output_nr
            self._requires_grad = twin._requires_grad
            self._tangent = twin._tangent

    # --- gradients --------------------------------------------------------------------------

    @property
    def grad_fn(self) -> Any:
        """The node of the graph that made this tensor, None for a leaf."""
        if self._base is not None:
            self._synchronise()
        return self._grad_fn

    @property
    def output_nr(self) -> int:
        """Which output of `grad_fn` this tensor is."""
        return self._output_nr

    @property
    def is_leaf(self) -> bool:
        """True when no recorded operation made this tensor."""
        return self.grad_fn is None

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded."""
        if self._base is not None:
            self._synchronise()
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and not self._dtype.is_differentiable:
            message = (
                "[requires_grad] only Tensors of floating point and complex dtype can require "
                f"gradients, got {self._dtype!r}. Write x.float() first."
            )
            raise RuntimeError(message)
        if value and self._inference and not this_thread.inference:
            message = (
                "[requires_grad] setting requires_grad=True on an inference tensor outside of "
                "inference_mode() is not allowed. Write x.clone() first."
            )
            raise RuntimeError(message)
        if not value and self.grad_fn is not None:
            message = (
                "[requires_grad] you can only change requires_grad flags of leaf variables. "
                "Write x.detach()."
            )
            raise RuntimeError(message)
        if value and not self._requires_grad:
            self._base = self._replay = None  # from now on a leaf, not what its base makes of it
        self._requires_grad = bool(value)

    def is_inference(self) -> bool:
        """Tell whether the tensor was made in inference mode, and so can never be recorded."""
        return self._inference

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad` and return the tensor.

        Raises
        ------
        TypeError
            `requires_grad` is no bool.
        """
        flag: Any = requires_grad
        if not isinstance(flag, (bool, np.bool_, int)):
            kind = type(flag).__name__
            message = f"[requires_grad_] argument 'requires_grad': expected bool, got {kind}."
            raise TypeError(message)
        self.requires_grad = requires_grad
        return self

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward passes have accumulated, None before the first."""
        if watching.recorder is not None:
            watching.recorder.refuse_outer(self, "reads x.grad")
        if self._grad is None and self._grad_fn is not None and not self.retains_grad:
            warnings.warn(
                "the .grad of a tensor that is not a leaf Tensor is read; it is not filled by "
                "backward() unless x.retain_grad() was called.",
                UserWarning,
                stacklevel=2,
            )
        return self._grad

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                message = f"[grad] expected Tensor or None, got {type(value).__name__}."
                raise TypeError(message)
            if value._array.shape != self._array.shape:
                message = (
                    f"[grad] expected a gradient of size {list(self.shape)}, the size of the "
                    f"tensor, got {list(value.shape)}."
                )
                raise RuntimeError(message)
            if value._dtype is not self._dtype:
                message = (
                    f"[grad] expected a gradient of dtype {self._dtype!r}, the dtype of the "
                    f"tensor, got {value._dtype!r}."
                )
                raise RuntimeError(message)
            if value.device.type != self.device.type:
                message = (
                    f"[grad] expected a gradient on device {self.device}, the device of the "
                    f"tensor, got {value.device}."
                )
                raise RuntimeError(message)
            if value is self:
                message = "[grad] a tensor cannot be its own gradient. Write x.detach().clone()."
                raise RuntimeError(message)
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self._grad = None

    @property
    def retains_grad(self) -> bool:
        """Whether backward fills `grad` although the tensor is not a leaf."""
        node = self.grad_fn
        return node is not None and node.retains(self._output_nr)

    # --- Python protocols -------------------------------------------------------------------

    def __iter__(self) -> Iterator[Tensor]:
        if self._array.ndim == 0:
            message = "[iter] iteration over a 0-d tensor. Write x.item()."
            raise TypeError(message)
        return (self[i] for i in range(self._array.shape[0]))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        if watching.recorder is not None:
            watching.recorder.asked(self, "repr")  # refused, unless the run made the tensor
        return _printing.describe(self)

    def __format__(self, spec: str) -> str:
        if self._array.ndim == 0 and spec and not self.is_meta:
            return format(self.item(), spec)
        return format(repr(self), spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self.grad_fn is not None:
            message = (
                "[deepcopy] only Tensors created explicitly by the user (graph leaves) support "
                "the deepcopy protocol. Write x.detach().clone()."
            )
            raise RuntimeError(message)
        array = self._array if self.is_meta else self._elements("deepcopy").copy(order="K")
        result = blank(type(self))
        result._array, result._dtype = array, self._dtype
        result._requires_grad = self._requires_grad
        if self._role is not None:
            result._role = self._role
        memo[id(self)] = result
        if self._grad is not None:
            result._grad = copy.deepcopy(self._grad, memo)
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.grad_fn is not None:
            message = "[pickle] only graph leaves can be pickled. Write x.detach()."
            raise RuntimeError(message)
        if self.is_cuda:
            self._elements("pickle")
        if isinstance(self._array, MetaArray):
            spec = Spec(self._array.shape, self._dtype, self.stride())
            return _unpickle_meta, (spec, type(self), self._requires_grad, self._role)
        rest = (self._requires_grad,) if self._role is None else (self._requires_grad, self._role)
        return _unpickle, (type(self), self._array, self._dtype, *rest)


def blank(cls: type[TensorT]) -> TensorT:
    """Return a tensor of class `cls` without history; elements and type are up to the caller."""
    self = object.__new__(cls)
    self._requires_grad = False
    self._grad_fn = self._tangent = self._base = self._recipe = self._counter = None
    self._output_nr = 0
    return self


# Twice as fast as a call of the class, which has a constructor for people.
_new: Callable[[], Tensor] = functools.partial(object.__new__, Tensor)


def twin_of(tensor: Tensor, cls: type[TensorT]) -> TensorT:
    """Return a tensor of class `cls` that is the same as `tensor` in everything."""
    twin = blank(cls)
    for name in Tensor.__slots__[2:]:
        setattr(twin, name, getattr(tensor, name))
    twin.__dict__.update(tensor.__dict__)
    return twin


def _follow(recipe: Any, base: Tensor) -> Tensor:
    """Make a view of `base`, as its recipe says."""
    steps = []
    while recipe.__class__ is tuple:
        function, rest, recipe = recipe
        steps.append((function, rest))
    view: Tensor = base if recipe is None else recipe(base)
    for function, rest in reversed(steps):
        view = function(view, *rest)
    return view


def _plain_array(data: Any, d: dtype) -> npt.NDArray[Any]:
    """Return numbers as an array of type `d` on memory of its own."""
    try:
        with np.errstate(all="ignore"):
            return np.array(data, dtype=d.numpy)
    except (TypeError, ValueError) as error:
        message = (
            "[Tensor] argument 'data': expected numbers, nested sequences of numbers of equal "
            f"length, or an array, got {type(data).__name__}: {error}. Write tensorplay.tensor(x)."
        )
        kind = ValueError if "inhomogeneous" in str(error) else TypeError
        raise kind(message) from error


def _unpickle(
    cls: type[Tensor], array: Any, d: dtype, requires_grad: bool, role: str | None = None
) -> Tensor:
    result = blank(cls)
    result._array, result._dtype, result._requires_grad = array, d, requires_grad
    if role is not None:
        result._role = role
    return result


def _unpickle_meta(
    spec: Spec,
    cls: type[Tensor] = Tensor,
    requires_grad: bool = False,
    role: str | None = None,
) -> Tensor:
    return _unpickle(cls, MetaArray(spec), spec.dtype, requires_grad, role)


def wrap(array: Any, d: dtype | None = None) -> Tensor:
    """Return a tensor on the memory of `array`, a NumPy array or a `MetaArray`."""
    result = _new()
    result._array = array
    result._dtype = _dtype.from_numpy_dtype(array.dtype) if d is None else d
    result._requires_grad = False
    result._grad_fn = result._tangent = result._base = result._recipe = result._counter = None
    result._output_nr = 0
    if detours:
        _mark_inference(result)
    return result


def _mark_inference(tensor: Tensor) -> None:
    """Mark a new tensor, if this thread is in inference mode; note it for who asks for new ones."""
    if watching.made is not None:
        watching.made.append(tensor)
    if this_thread.inference:
        tensor._inference = True
        tensor._counter = InferenceCounter()


def spec_of(tensor: Tensor) -> Spec:
    """Return shape and type of `tensor`; strides only where they are not row-major."""
    array = tensor._array
    if type(array) in (MetaArray, DeviceArray) or not array.flags.c_contiguous:
        return Spec(array.shape, tensor._dtype, tensor.stride())
    return Spec(array.shape, tensor._dtype)
