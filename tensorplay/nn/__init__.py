"""Neural networks: modules with parameters, and the functions they are made of."""

from __future__ import annotations

from tensorplay.nn import functional, init, utils
from tensorplay.nn.hooks import HookHandle
from tensorplay.nn.module import LoadResult, Module
from tensorplay.nn.modules.activation import *
from tensorplay.nn.modules.activation import __all__ as _activations
from tensorplay.nn.modules.attention import *
from tensorplay.nn.modules.attention import __all__ as _attention
from tensorplay.nn.modules.containers import *
from tensorplay.nn.modules.containers import __all__ as _containers
from tensorplay.nn.modules.convolution import *
from tensorplay.nn.modules.convolution import __all__ as _convolutions
from tensorplay.nn.modules.linear import *
from tensorplay.nn.modules.linear import __all__ as _linear
from tensorplay.nn.modules.loss import *
from tensorplay.nn.modules.loss import __all__ as _losses
from tensorplay.nn.modules.normalisation import *
from tensorplay.nn.modules.normalisation import __all__ as _normalisations
from tensorplay.nn.modules.recurrent import *
from tensorplay.nn.modules.recurrent import __all__ as _recurrent
from tensorplay.nn.parameter import Buffer, Parameter

__all__ = [
    "Buffer",
    "HookHandle",
    "LoadResult",
    "Module",
    "Parameter",
    "functional",
    "init",
    "utils",
]
__all__ += _activations + _attention + _containers + _convolutions
__all__ += _linear + _losses + _normalisations + _recurrent
