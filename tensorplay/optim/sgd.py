"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorplay import _native
from tensorplay._tensor import wrap
from tensorplay.ops.kinds import checked
from tensorplay.optim import fused as formulas
from tensorplay.optim.optimizer import Array, Optimizer, at_least

__all__ = ["SGD"]


#: What a joint step stands for: a derived class that has its own of these steps one by one.
_STEPS = ("_step_one", "_update", "_fuses", "_with_decay", "_temporary")


def _is_float32(value: Any) -> bool:
    """Tell whether an option is a number that float32 can hold."""
    return type(value) in (float, int) and abs(value) < 3e38


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum by choice.

    With ``d = g + weight_decay·x``, ``b = momentum·b + (1 − dampening)·d`` (the first b is d):
    ``x −= lr·b``, with `nesterov` ``x −= lr·(d + momentum·b)``; without momentum ``x −= lr·d``.
    Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013).

    Parameters
    ----------
    params
        Tensors, named tensors, or groups; see `Optimizer`.
    lr
        Learning rate.
    momentum, dampening, weight_decay, nesterov
        As above.
    maximize
        Whether to go up instead of down.
    fused
        Whether one compiled kernel updates a parameter; None for large ones, where there is a
        compiler.

    Raises
    ------
    ValueError
        A negative option, or `nesterov` without momentum or with dampening.

    Examples
    --------
    >>> import tensorplay as tp
    >>> x = tp.tensor([1.0], requires_grad=True)
    >>> optimizer = tp.optim.SGD([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> optimizer.step()
    >>> x.detach()
    tensor([0.])
    """

    @checked
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
                "fused": fused,
            },
        )

    def _check(self, group: dict[str, Any]) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            at_least("SGD", name, group[name])
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            message = (
                "[SGD] argument 'nesterov': Nesterov momentum requires a momentum and zero "
                f"dampening, got momentum={group['momentum']}, dampening={group['dampening']}."
            )
            raise ValueError(message)

    def _step_together(self, group: dict[str, Any], at: int) -> int:
        cls = type(self)
        if cls is not SGD and any(getattr(cls, n) is not getattr(SGD, n) for n in _STEPS):
            return at
        numbers = tuple([group[name] for name in ("lr", "weight_decay", "momentum", "dampening")])
        if _native.core is None or group["fused"] or not all(map(_is_float32, numbers)):
            return at
        lr, decay, momentum, dampening = numbers
        reached: int = _native.core.sgd_step(
            *(group["params"], at, self.state, formulas.LEAST, lr, decay, momentum, 1 - dampening),
            *(bool(group["nesterov"]), bool(group["maximize"])),
        )
        return reached

    def _update_fused(
        self, x: Array, g: Array, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
        maximize = bool(group["maximize"])
        if not momentum:
            update = formulas.sgd(momentum=False, nesterov=False, maximize=maximize)
            formulas.run(update, (x, g), (lr, decay))
            return
        share = 1.0 - group["dampening"]
        if "momentum_buffer" not in state:
            share = 1.0  # the first is the gradient itself
        b = self._zeros(state, "momentum_buffer", x)
        update = formulas.sgd(momentum=True, nesterov=bool(group["nesterov"]), maximize=maximize)
        formulas.run(update, (x, g, b), (lr, decay, momentum, share))

    def _update(self, x: Array, g: Array, state: dict[str, Any], group: dict[str, Any]) -> None:
        scratch = self._temporary(x)
        g = self._with_decay(x, g, group["weight_decay"])
        momentum = group["momentum"]
        if momentum:
            buffer = state.get("momentum_buffer")
            if buffer is None:
                b = g.copy()
                state["momentum_buffer"] = wrap(b)
            else:
                b = buffer._array
                b *= momentum
                np.multiply(g, 1 - group["dampening"], out=scratch)
                b += scratch
            if group["nesterov"]:
                np.multiply(b, momentum, out=scratch)
                scratch += g
                g = scratch
            else:
                g = b
        np.multiply(g, group["lr"], out=scratch)
        x -= scratch
