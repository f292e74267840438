"""Tensors that belong to a module: parameters, which are trained, and buffers, which are not."""

from __future__ import annotations

from typing import Any

from tensorplay import _creation
from tensorplay._tensor import Tensor, blank
from tensorplay.ops.kinds import checked

__all__ = ["Buffer", "Parameter"]


class _Marked(type):
    """Asks a tensor for its mark: a marked one is a plain `Tensor`, and as fast."""

    _roles: tuple[str, ...] = ()

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, Tensor) and instance._role is not None:
            # A class derived from Parameter has instances of its own.
            return instance._role in cls.__dict__.get("_roles", ()) or cls in type(instance).__mro__
        return False


def _marked(cls: type, data: Any, role: str, where: str, *, requires_grad: bool) -> Any:
    if data is None:
        data = _creation.empty(0)
    if not isinstance(data, Tensor):
        message = (
            f"[{where}] argument 'data': expected Tensor, got {type(data).__name__}. "
            f"Write {where}(tensorplay.tensor(x))."
        )
        raise TypeError(message)
    plain = data.detach()
    result: Any = plain
    if "_roles" not in cls.__dict__:  # a class derived from Parameter or Buffer
        result = blank(cls)
        result._array, result._dtype, result._counter = plain._array, plain._dtype, plain._counter
    elif type(data) is not Tensor and getattr(type(data), "__tensorplay_function__", None):
        result = blank(type(data))
        result._array, result._dtype, result._counter = plain._array, plain._dtype, plain._counter
        result.__dict__.update(data.__dict__)
    result._role = role
    if requires_grad:
        result.requires_grad = True
    return result


class Parameter(Tensor, metaclass=_Marked):
    """A tensor that a module trains.

    It is a `Tensor` with a mark, by which ``isinstance(x, Parameter)`` and assignment to an
    attribute of a `Module` know it; results of operators have no mark.

    Parameters
    ----------
    data
        The elements, whose memory is shared; empty by default.
    requires_grad
        Whether operations on it are recorded.

    Raises
    ------
    TypeError
        `data` is no tensor.
    RuntimeError
        `requires_grad` for elements that are neither floating nor complex.
    """

    _roles = ("parameter",)
    __tensorplay_function__ = None  # a plain tensor to operators

    @checked
    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Parameter:
        """Return a marked tensor on the memory of `data`."""
        found: Parameter = _marked(cls, data, "parameter", "Parameter", requires_grad=requires_grad)
        return found


class Buffer(Tensor, metaclass=_Marked):
    """A tensor of a module's state that is not trained, such as a running mean.

    Parameters
    ----------
    data
        The elements, whose memory is shared; empty by default.
    persistent
        Whether ``Module.state_dict`` holds it.

    Raises
    ------
    TypeError
        `data` is no tensor.
    """

    _roles = ("buffer", "transient buffer")
    __tensorplay_function__ = None

    @checked
    def __new__(cls, data: Any = None, *, persistent: bool = True) -> Buffer:
        """Return a marked tensor on the memory of `data`."""
        role = "buffer" if persistent else "transient buffer"
        found: Buffer = _marked(cls, data, role, "Buffer", requires_grad=False)
        return found
