"""Operators that keep the elements and change where or how they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _device, _dtype
from tensorplay._dlpack import from_dlpack
from tensorplay._layout import is_dense
from tensorplay._methods import attach
from tensorplay._tensor import MetaArray, Spec, Tensor, wrap
from tensorplay.autograd import grad_mode
from tensorplay.ops.arguments import SCALARS, check_held, reject
from tensorplay.ops.dims import broadcasts_to, strides_of
from tensorplay.ops.dispatch import overridable_method
from tensorplay.ops.elementwise import cast
from tensorplay.ops.node import bare_spec
from tensorplay.ops.primitive import Primitive, Sample, Vjp
from tensorplay.ops.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tensorplay._dtype import dtype

__all__ = ["cast_to", "check_no_loss", "clone"]


def _shapes(make: Any) -> Iterable[Sample]:
    for shape in ((), (3,), (2, 3), (0, 2)):
        yield Sample((make(*shape),), name=f"shape{list(shape)}")
    yield Sample((make(3, 4).t(),), name="transposed")


def _clone_rule(x: Spec) -> Spec:
    return x if is_dense(x.shape, strides_of(x)) else Spec(x.shape, x.dtype)


clone = Primitive(
    "clone(Tensor input) -> Tensor",
    "Copy on memory of its own, laid out as the input if that has no gaps; part of the graph.",
    lambda x: x.copy(
        order="K" if x.flags.forc or is_dense(x.shape, x.strides, x.itemsize) else "C"
    ),
    rule=_clone_rule,
    vjp={"input": Vjp(lambda g, s: g)},
    jvp="linear",
    check_first=False,
    samples=_shapes,
)

_contiguous = Primitive(
    "_contiguous(Tensor input) -> Tensor",
    "Row-major copy.",
    lambda x: x.copy(order="C"),
    rule=lambda x: Spec(x.shape, x.dtype),
    vjp={"input": Vjp(lambda g, s: g)},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=_shapes,
)

cast_to = Primitive(
    "_cast(Tensor input, ScalarType dtype) -> Tensor",
    "Copy in another type; differentiable from floating to floating type.",
    lambda x, d: _astype(x, d),  # noqa: PLW0108 - defined below
    rule=lambda x, d: Spec(x.shape, d),
    vjp={"input": Vjp(lambda g, s: _grad_of_cast(g, s.specs["input"].dtype))},
    jvp="linear",
    check_first=False,
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(2, 3), _dtype.float64), name="same"),
        Sample((make(2, 3), _dtype.complex128), name="complex"),
    ],
)


def _astype(x: Any, d: dtype) -> Any:
    if x.dtype.kind == "c" and not d.is_complex:
        x = x.real  # the field's rule: the imaginary part is dropped
    return x.astype(d.numpy)


def _grad_of_cast(g: Any, d: dtype) -> Any:
    return (g.real if g.dtype.is_complex and not d.is_complex else g).to(d)


def _contiguous_method(self: Tensor) -> Tensor:
    """Return this tensor if it is row-major, else a row-major copy."""
    return self if self.is_contiguous() else _contiguous.apply((self,))


def _check_flag(where: str, argument: str, value: Any) -> None:
    if not isinstance(value, (bool, np.bool_, int)):
        reject(where, argument, "bool", value)


def _to(
    self: Tensor,
    *args: Any,
    dtype: Any = None,
    device: Any = None,
    copy: bool = False,
    non_blocking: bool = False,
) -> Tensor:
    """Return this tensor with another type or device; itself when nothing changes.

    Parameters
    ----------
    *args
        A dtype, a device, a device and a dtype, or another tensor whose both are taken.
    dtype, device
        The same by name.
    copy
        Return a copy even if nothing changes.

    Raises
    ------
    RuntimeError
        The device is not available.
    NotImplementedError
        The tensor is on device meta and has no elements to move.
    """
    for value in args:
        if isinstance(value, Tensor):
            dtype, device = value.dtype, value.device
        elif isinstance(value, (str, _device.device)):
            device = value
        elif isinstance(value, bool):
            copy = value
        else:
            dtype = value
    if copy is not False:
        _check_flag("to", "copy", copy)
    if non_blocking is not False:
        _check_flag("to", "non_blocking", non_blocking)
    d = self._dtype if dtype is None else _dtype.as_dtype(dtype, "to")
    if self.is_cuda and device is not None and str(device) == "cpu":
        if self.requires_grad and grad_mode.state.enabled:
            message = (
                "[to] a copy from a GPU to the cpu is not recorded, and the tensor requires grad. "
                "Write x.detach().cpu()."
            )
            raise RuntimeError(message)
        return from_dlpack(self._array.source, device="cpu").to(d)
    if self.is_cuda and device is not None and str(device) in ("cuda", str(self.device)):
        device = None  # it is there
    target = self.device if device is None else _device.as_device(device, "to")
    if target.type != self.device.type:
        if self.is_meta:
            message = "[to] a tensor on device meta has no elements to move to cpu. Use empty_like."
            raise NotImplementedError(message)
        return wrap(MetaArray(Spec(tuple(self.shape), d, self.stride())), d)
    if d is not self._dtype:
        # A conversion out of the differentiable types leaves the graph.
        converted: Tensor = cast_to.apply((self, d))
        return converted
    return clone.apply((self,)) if copy else self


def _type_method(name: str, d: dtype) -> Any:
    def method(self: Tensor) -> Tensor:
        return self.to(d)

    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    method.__doc__ = f"Return this tensor with type {d!r}; itself if it has it."
    return method


def _cpu(self: Tensor) -> Tensor:
    """Return this tensor in main memory."""
    return self.to("cpu")


def _type_as(self: Tensor, other: Tensor) -> Tensor:
    """Return this tensor with the type of `other`."""
    if not isinstance(other, Tensor):
        reject("type_as", "other", "Tensor", other, "Write x.to(dtype).")
    return self.to(other.dtype)


def _copy_rule(x: Any, src: Any) -> Spec:
    _check_source("copy_", "src", x, src)
    return Spec(x.shape, x.dtype)


def _check_source(where: str, argument: str, x: Spec, src: Any) -> None:
    shape = src.shape if isinstance(src, Spec) else ()
    if not broadcasts_to(shape, x.shape):
        message = (
            f"[{where}] argument '{argument}': expected a shape that broadcasts to "
            f"{list(x.shape)}, got {list(shape)}."
        )
        raise RuntimeError(message)
    check_no_loss(where, src, x.dtype)


def check_no_loss(where: str, value: Any, d: dtype) -> None:
    """Refuse what a tensor of type `d` cannot hold: half of a complex number would vanish.

    Raises
    ------
    RuntimeError
        `d` is real and `value` complex, or `value` is a number beyond the integers of type `d`.
    """
    check_held(where, value, d)
    is_complex = (
        value.dtype.is_complex if isinstance(value, Spec)
        else value.dtype.kind == "c" if isinstance(value, np.ndarray)
        else isinstance(value, complex)
    )  # fmt: skip
    if is_complex and not d.is_complex:
        message = (
            f"[{where}] complex numbers can't be cast to the desired output type {d!r}: the "
            "imaginary part would be lost. Write value.real."
        )
        raise RuntimeError(message)


def _filled(x: Any, src: Any) -> Any:
    out = np.empty(x.shape, x.dtype)
    _write(out, src)
    return out


def _write(x: Any, src: Any) -> None:
    if not isinstance(src, np.ndarray):
        src = cast(src, _dtype.from_numpy_dtype(x.dtype))
    np.copyto(x, src, casting="unsafe")


_copy = Writer(
    "copy(Tensor input, Tensor src) -> Tensor",
    "Elements of `src`, broadcast and converted to shape and type of `input`.",
    _filled,
    write=_write,
    rule=_copy_rule,
    vjp={
        "input": Vjp(lambda g, s: g * 0),
        "src": Vjp(lambda g, s: _grad_of_cast(g, s.specs["src"].dtype)),
    },
    jvp="linear",
    scalars=("src",),
    function=False,
    method=False,
    samples=lambda make: [
        Sample((make(2, 3), make(2, 3)), name="same"),
        Sample((make(2, 3), make(3)), name="broadcast"),
    ],
)


def copy_into(where: str, argument: str, target: Tensor, src: Any) -> Tensor:
    """Copy the elements of `src` into `target`; refusals name what was called, and its argument."""
    try:
        return _copy.apply_inplace((target, src))
    except RuntimeError as error:
        problem = error
    source = bare_spec(src) if isinstance(src, Tensor) else src
    _check_source(where, argument, bare_spec(target), source)
    raise problem


def _copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Copy the elements of `src`, broadcast and converted, into this tensor.

    Raises
    ------
    RuntimeError
        `src` does not broadcast to the shape; or it is complex and this tensor is real.
    """
    if non_blocking is not False:
        _check_flag("copy_", "non_blocking", non_blocking)
    return _copy.apply_inplace((self, src))


def _fill_(self: Tensor, value: Any) -> Tensor:
    """Set all elements to `value`, a number or a 0-d tensor.

    Raises
    ------
    RuntimeError
        `value` is a tensor with dimensions.
    """
    if isinstance(value, Tensor) and value.ndim:
        message = (
            "[fill_] argument 'value': only supports a 0-dimension value tensor, got a tensor "
            f"with {value.ndim} dimensions. Write x.copy_(value)."
        )
        raise RuntimeError(message)
    if not isinstance(value, (Tensor, *SCALARS)):
        reject("fill_", "value", "a number or 0-d Tensor", value)
    return copy_into("fill_", "value", self, value)


def _zero_(self: Tensor) -> Tensor:
    """Set all elements to zero."""
    return _copy.apply_inplace((self, 0))


for _name, _d in {
    "half": _dtype.float16, "bfloat16": _dtype.bfloat16, "float": _dtype.float32,
    "double": _dtype.float64, "bool": _dtype.bool_, "byte": _dtype.uint8, "char": _dtype.int8,
    "short": _dtype.int16, "int": _dtype.int32, "long": _dtype.int64,
    "cfloat": _dtype.complex64, "cdouble": _dtype.complex128,
}.items():  # fmt: skip
    attach(_name, overridable_method(_type_method(_name, _d)))
_METHODS: dict[str, Callable[..., Any]] = {
    "to": _to, "cpu": _cpu, "type_as": _type_as, "contiguous": _contiguous_method,
    "copy_": _copy_, "fill_": _fill_, "zero_": _zero_,
}  # fmt: skip
for _name, _function in _METHODS.items():
    attach(_name, overridable_method(_function))
