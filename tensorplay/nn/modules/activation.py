"""Activations as modules.

With ``inplace=True``, where a constructor has it, the input is written over. That saves no memory
here; it is for models that were written so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorplay import _creation
from tensorplay._tensor import Tensor
from tensorplay.nn import functional as F
from tensorplay.nn.module import Module
from tensorplay.nn.parameter import Parameter
from tensorplay.ops.kinds import checked

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]


def in_place(function: Callable[..., Tensor], input: Tensor, **options: Any) -> Tensor:
    """Write the result of a function over its input, and return that.

    The function gets a copy, which its derivative may remember.
    """
    return input.copy_(function(input.clone(), **options))


class _Activation(Module):
    """Calls one function with the options that the constructor was given."""

    _function: Callable[..., Tensor]
    _options: tuple[str, ...] = ()
    inplace: bool = False

    def __init__(self, *, inplace: bool = False, **options: Any) -> None:
        super().__init__()
        if inplace:
            self.inplace = True
        self._options = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def forward(self, input: Tensor) -> Tensor:
        if self.inplace:
            options = {name: getattr(self, name) for name in self._options}
            return in_place(self._function, input, **options)
        if self._options:
            return self._function(input, **{name: getattr(self, name) for name in self._options})
        return self._function(input)

    def extra_repr(self) -> str:
        names = (*self._options, "inplace") if self.inplace else self._options
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class ReLU(_Activation):
    """`functional.relu`: the positive part.

    Parameters
    ----------
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.relu)

    @checked
    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class ReLU6(_Activation):
    """`functional.relu6`: the positive part, at most 6.

    Parameters
    ----------
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.relu6)

    @checked
    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class Sigmoid(_Activation):
    """`functional.sigmoid`: ``1/(1 + exp(−x))``."""

    _function = staticmethod(F.sigmoid)

    def __init__(self) -> None:
        super().__init__()


class Tanh(_Activation):
    """`functional.tanh`."""

    _function = staticmethod(F.tanh)

    def __init__(self) -> None:
        super().__init__()


class SiLU(_Activation):
    """`functional.silu`: ``x·sigmoid(x)``.

    Parameters
    ----------
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.silu)

    @checked
    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class Mish(_Activation):
    """`functional.mish`: ``x·tanh(softplus(x))``.

    Parameters
    ----------
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.mish)

    @checked
    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class SELU(_Activation):
    """`functional.selu`.

    Parameters
    ----------
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.selu)

    @checked
    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class Hardsigmoid(_Activation):
    """`functional.hardsigmoid`.

    Parameters
    ----------
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.hardsigmoid)

    @checked
    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class Hardswish(_Activation):
    """`functional.hardswish`.

    Parameters
    ----------
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.hardswish)

    @checked
    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class LogSigmoid(_Activation):
    """`functional.logsigmoid`."""

    _function = staticmethod(F.logsigmoid)

    def __init__(self) -> None:
        super().__init__()


class Softsign(_Activation):
    """`functional.softsign`."""

    _function = staticmethod(F.softsign)

    def __init__(self) -> None:
        super().__init__()


class Tanhshrink(_Activation):
    """`functional.tanhshrink`."""

    _function = staticmethod(F.tanhshrink)

    def __init__(self) -> None:
        super().__init__()


class GELU(_Activation):
    """`functional.gelu`, exact or by ``approximate="tanh"``.

    Parameters
    ----------
    approximate
        ``'none'`` or ``'tanh'``.
    """

    _function = staticmethod(F.gelu)

    @checked
    def __init__(self, approximate: str = "none") -> None:
        super().__init__(approximate=approximate)


class ELU(_Activation):
    """`functional.elu`.

    Parameters
    ----------
    alpha
        Minus the limit far below zero.
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.elu)

    @checked
    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(alpha=alpha, inplace=inplace)


class CELU(_Activation):
    """`functional.celu`.

    Parameters
    ----------
    alpha
        Minus the limit far below zero.
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.celu)

    @checked
    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(alpha=alpha, inplace=inplace)


class LeakyReLU(_Activation):
    """`functional.leaky_relu`.

    Parameters
    ----------
    negative_slope
        Slope below zero.
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.leaky_relu)

    @checked
    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(negative_slope=negative_slope, inplace=inplace)


class Hardtanh(_Activation):
    """`functional.hardtanh`.

    Parameters
    ----------
    min_val
        Lower limit.
    max_val
        Upper limit.
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.hardtanh)

    @checked
    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__(min_val=min_val, max_val=max_val, inplace=inplace)


class Softplus(_Activation):
    """`functional.softplus`.

    Parameters
    ----------
    beta
        Sharpness.
    threshold
        Above ``beta * x`` of this the identity is used.
    """

    _function = staticmethod(F.softplus)

    @checked
    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__(beta=beta, threshold=threshold)


class Softshrink(_Activation):
    """`functional.softshrink`.

    Parameters
    ----------
    lambd
        How far elements move towards zero.
    """

    _function = staticmethod(F.softshrink)

    @checked
    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__(lambd=lambd)


class Hardshrink(_Activation):
    """`functional.hardshrink`.

    Parameters
    ----------
    lambd
        Magnitude up to which the result is zero.
    """

    _function = staticmethod(F.hardshrink)

    @checked
    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__(lambd=lambd)


class Threshold(_Activation):
    """`functional.threshold`.

    Parameters
    ----------
    threshold
        Elements above stay.
    value
        What the others become.
    inplace
        Whether the input itself is written.
    """

    _function = staticmethod(F.threshold)

    @checked
    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(threshold=threshold, value=value, inplace=inplace)


class GLU(_Activation):
    """`functional.glu`: the first half of `dim` times the sigmoid of the second.

    Parameters
    ----------
    dim
        Dimension; negative ones count from the end.
    """

    _function = staticmethod(F.glu)

    @checked
    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim=dim)


class Softmax(_Activation):
    """`functional.softmax` along `dim`.

    Parameters
    ----------
    dim
        Dimension; negative ones count from the end.
    """

    _function = staticmethod(F.softmax)

    @checked
    def __init__(self, dim: int) -> None:
        super().__init__(dim=dim)


class Softmin(_Activation):
    """`functional.softmin` along `dim`.

    Parameters
    ----------
    dim
        Dimension; negative ones count from the end.
    """

    _function = staticmethod(F.softmin)

    @checked
    def __init__(self, dim: int) -> None:
        super().__init__(dim=dim)


class LogSoftmax(_Activation):
    """`functional.log_softmax` along `dim`.

    Parameters
    ----------
    dim
        Dimension; negative ones count from the end.
    """

    _function = staticmethod(F.log_softmax)

    @checked
    def __init__(self, dim: int) -> None:
        super().__init__(dim=dim)


class PReLU(Module):
    """`functional.prelu`: a leaky ReLU that learns its slopes.

    Parameters
    ----------
    num_parameters
        1, or the number of channels, dimension 1 of the input.
    init
        The slopes at the start.
    dtype
        That of the slopes.

    Attributes
    ----------
    weight
        Shape (num_parameters,).
    """

    weight: Parameter

    @checked
    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(_creation.full((num_parameters,), init, dtype=dtype))

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
