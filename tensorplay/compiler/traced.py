"""Tensors that stand for values of a graph while a function is captured.

A `TracedTensor` looks like an ordinary tensor on the CPU: shape, type, strides, history, versions
and views are those that the function would see. Where others have elements, it has a `TracedArray`:
the node of the graph that computes them. Memory is what arrays share, so a write through one tensor
is seen by all others on the same memory, as it is when the function runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from tensorplay import _device
from tensorplay._detours import watching
from tensorplay._tensor import MetaArray, Spec, Tensor, VersionCounter, blank, contiguous_strides

if TYPE_CHECKING:
    from tensorplay._dtype import dtype
    from tensorplay.compiler.recorder import Recorder
    from tensorplay.graph.node import Node

__all__ = ["Step", "TracedArray", "TracedTensor", "is_traced", "traced"]

#: One view of a chain: the operator, its other arguments, and which of its results.
Step = tuple[Any, tuple[Any, ...], int | None]


class _Flags:
    """What library code asks of the layout of an array."""

    __slots__ = ("c_contiguous", "f_contiguous", "forc", "writeable")

    def __init__(self, c_contiguous: bool, f_contiguous: bool) -> None:
        self.c_contiguous = c_contiguous
        self.f_contiguous = f_contiguous
        self.forc = c_contiguous or f_contiguous
        self.writeable = True


_FLAGS: Final = {(c, f): _Flags(c, f) for c in (False, True) for f in (False, True)}


class TracedArray(MetaArray):
    """The memory of a traced tensor, or a view of it.

    Parameters
    ----------
    recorder
        The capture under way.
    spec
        Shape, type and strides.
    node
        What computes the elements.
    root, steps
        For a view, the array that owns the memory, and the views that lead from it to this one.
    """

    __slots__ = ("_node", "flags", "owner", "recorder", "root", "seen", "steps", "version")

    def __init__(
        self,
        recorder: Recorder,
        spec: Spec,
        node: Node,
        root: TracedArray | None = None,
        steps: tuple[Step, ...] = (),
    ) -> None:
        super().__init__(spec)
        self.recorder = recorder
        self._node = node
        self.root = root
        self.steps = steps
        self.version = 0  # number of writes to memory that this array owns
        self.seen = 0 if root is None else root.version
        self.owner: Any = None  # the input or constant whose memory this is
        c = f = True
        if spec.strides is not None and self.size:
            c = _is_contiguous(spec.shape, spec.strides)
            f = _is_contiguous(spec.shape[::-1], spec.strides[::-1])
        else:
            f = sum(n > 1 for n in spec.shape) < 2
        self.flags = _FLAGS[c, f]

    @property
    def memory(self) -> TracedArray:
        """The array that owns the memory."""
        return self if self.root is None else self.root

    def node(self) -> Node:
        """Return the node that computes what the elements are now."""
        if self.root is not None and self.seen != self.root.version:
            self._node = self.recorder.view_node(self.root.node(), self.steps)
            self.seen = self.root.version
        return self._node

    def store(self, node: Node) -> None:
        """Let the elements be what `node` computes from now on."""
        if self.root is None:
            self._node = node
            self.version += 1
            return
        self.root.store(self.recorder.write_part(self.root.node(), self.steps, node))
        self._node, self.seen = node, self.root.version

    # Nothing of the library may take this for elements.

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self.recorder.refuse("reads the elements of a tensor in NumPy")

    __array__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __mul__ = __getitem__ = __len__ = __iter__ = _refuse
    __bool__ = __float__ = __int__ = __neg__ = __abs__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return all(
        n == 1 or s == c for n, s, c in zip(shape, strides, contiguous_strides(shape), strict=True)
    )


class TracedTensor(Tensor):
    """A tensor of a captured function."""

    __tensorplay_function__: Any = None  # it counts as a plain tensor

    _array: TracedArray

    @property
    def device(self) -> _device.device:
        """Where the elements will lie."""
        return _device.CPU

    @property
    def is_meta(self) -> bool:
        """False: there will be elements."""
        return False

    @property
    def is_cpu(self) -> bool:
        """True."""
        return True

    def detach(self) -> Tensor:
        """Return a tensor on the same memory that is outside the graph."""
        return traced(self._array, self._dtype, counter=self._shared_counter())

    @property
    def data(self) -> Tensor:
        """The same memory outside the graph, with a version counter of its own."""
        return traced(self._array, self._dtype)

    @data.setter
    def data(self, value: Any) -> None:
        raise self._array.recorder.refuse("sets x.data")

    @property
    def grad(self) -> Tensor | None:
        """The gradient of a tensor made in the run; that of one from outside is not captured."""
        self._array.recorder.refuse_outer(self, "reads x.grad")
        return self._grad

    @grad.setter
    def grad(self, value: Any) -> None:
        self._array.recorder.refuse_outer(self, "sets x.grad")
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self._array.recorder.refuse_outer(self, "deletes x.grad")
        self._grad = None

    def _elements(self, operator: str) -> Any:
        return self._array.recorder.elements(self, operator)

    def data_ptr(self) -> int:
        """Refuse: there is no memory yet."""
        raise self._array.recorder.refuse("calls x.data_ptr()")

    def storage_offset(self) -> int:
        """Refuse: there is no memory yet."""
        raise self._array.recorder.refuse("calls x.storage_offset()")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        raise self._array.recorder.refuse("copies a tensor by copy.deepcopy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self._array.recorder.refuse("pickles a tensor")

    def __repr__(self) -> str:
        if watching.recorder is self._array.recorder:  # not in a debugger, afterwards
            raise self._array.recorder.refuse("writes the elements of a tensor as text")
        return f"TracedTensor({self._dtype.name}{list(self._array.shape)})"

    def __format__(self, spec: str) -> str:
        if self._array.ndim == 0 and spec:
            return format(self.item(), spec)
        return format(repr(self), spec)


def traced(array: TracedArray, d: dtype, *, counter: VersionCounter | None = None) -> Tensor:
    """Return a tensor on `array`, of type `d` and without history."""
    result = blank(TracedTensor)
    result._array, result._dtype, result._counter = array, d, counter
    return result


def is_traced(value: Any) -> bool:
    """Tell whether a tensor stands for a value of a graph."""
    return isinstance(value, Tensor) and value._array.__class__ is TracedArray
