"""Updates of large parameters as one kernel each, which `tensorplay.compile` writes.

NumPy passes over the memory of a parameter once for each operation of an update, ten times for
Adam; a kernel does so once. The formulas are those of the methods, on tensors: an array that is
given here is changed where it is.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

from tensorplay._creation import tensor
from tensorplay._dtype import from_numpy_dtype
from tensorplay._tensor import wrap
from tensorplay.autograd import no_grad

__all__ = ["LEAST", "adagrad", "adam", "can_compile", "rmsprop", "run", "sgd"]

#: Elements from which a kernel is worth its call, and the compiler's time before the first.
LEAST = 32768

Update = Callable[..., None]


@functools.lru_cache(maxsize=1)
def can_compile() -> bool:
    """Tell whether there is a compiler on the machine, and what builds with it."""
    from tensorplay.compiler.cpp.build import NEEDED
    from tensorplay.utils.cpp_jit import MissingToolError, toolchain

    if not all(map(importlib.util.find_spec, NEEDED)):
        return False
    try:
        toolchain.find_compiler()
    except MissingToolError:
        return False
    return True


def _compiled(update: Update) -> Update:
    from tensorplay.compiler import compile as compile_

    found: Update = compile_(update, fullgraph=True, strict_native=True, backend="cpp")
    return found


def run(update: Update, arrays: tuple[Any, ...], numbers: tuple[float, ...]) -> None:
    """Change arrays by an update, with numbers that may differ from call to call."""
    d = from_numpy_dtype(arrays[0].dtype)
    with no_grad():
        # Numbers as tensors are not part of the kernel: another learning rate is no other kernel.
        update(*map(wrap, arrays), *[tensor(number, dtype=d) for number in numbers])


@functools.lru_cache(maxsize=16)
def sgd(*, momentum: bool, nesterov: bool, maximize: bool) -> Update:
    """Return the update of `SGD` after its first step."""

    def with_momentum(x: Any, g: Any, b: Any, lr: Any, decay: Any, factor: Any, share: Any) -> None:
        d = (-g if maximize else g) + x * decay
        b.mul_(factor).add_(d * share)
        x.sub_((d + b * factor if nesterov else b) * lr)

    def plain(x: Any, g: Any, lr: Any, decay: Any) -> None:
        x.sub_(((-g if maximize else g) + x * decay) * lr)

    return _compiled(with_momentum if momentum else plain)


@functools.lru_cache(maxsize=16)
def adam(*, decoupled: bool, amsgrad: bool, maximize: bool) -> Update:
    """Return the update of `Adam`, by `decoupled` of `AdamW`.

    ``shrink`` is ``1 − lr·weight_decay`` for the latter, ``weight_decay`` for the former; ``root``
    is ``1/√(1 − β₂ᵗ)`` and ``step`` ``lr/(1 − β₁ᵗ)``.
    """

    def moments(
        x: Any, g: Any, m: Any, v: Any, shrink: Any, first: Any, second: Any
    ) -> tuple[Any, Any]:
        d = -g if maximize else g
        if decoupled:
            x.mul_(shrink)
        else:
            d = d + x * shrink
        m.add_((d - m) * first)
        v.add_((d * d - v) * second)
        return m, v

    def largest(
        x: Any, g: Any, m: Any, v: Any, top: Any,
        shrink: Any, first: Any, second: Any, step: Any, root: Any, eps: Any,
    ) -> None:  # fmt: skip
        moments(x, g, m, v, shrink, first, second)
        top.copy_(top.maximum(v))
        x.sub_(m * step / (top.sqrt() * root + eps))

    def usual(
        x: Any, g: Any, m: Any, v: Any,
        shrink: Any, first: Any, second: Any, step: Any, root: Any, eps: Any,
    ) -> None:  # fmt: skip
        moments(x, g, m, v, shrink, first, second)
        x.sub_(m * step / (v.sqrt() * root + eps))

    return _compiled(largest if amsgrad else usual)


@functools.lru_cache(maxsize=16)
def rmsprop(*, centered: bool, momentum: bool, maximize: bool) -> Update:
    """Return the update of `RMSprop`; arrays that it does not need are left out."""

    def update(x: Any, g: Any, v: Any, *rest: Any) -> None:
        arrays, numbers = rest[: centered + momentum], rest[centered + momentum :]
        lr, decay, share, eps, factor = numbers
        d = (-g if maximize else g) + x * decay
        v.add_((d * d - v) * share)
        spread = v
        if centered:
            mean = arrays[0]
            mean.add_((d - mean) * share)
            spread = (v - mean * mean).clamp(min=0)
        d = d / (spread.sqrt() + eps)
        if momentum:
            b = arrays[-1]
            b.mul_(factor).add_(d)
            d = b
        x.sub_(d * lr)

    return _compiled(update)


@functools.lru_cache(maxsize=4)
def adagrad(*, maximize: bool) -> Update:
    """Return the update of `Adagrad`."""

    def update(x: Any, g: Any, v: Any, lr: Any, decay: Any, eps: Any) -> None:
        d = (-g if maximize else g) + x * decay
        v.add_(d * d)
        x.sub_(d * lr / (v.sqrt() + eps))

    return _compiled(update)
