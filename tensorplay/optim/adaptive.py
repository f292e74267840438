"""Methods whose step adapts to each element: Adam, AdamW, RMSprop, Adagrad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorplay._tensor import wrap
from tensorplay.ops.kinds import checked
from tensorplay.optim import fused as formulas
from tensorplay.optim.optimizer import Array, Optimizer, at_least, between

__all__ = ["Adagrad", "Adam", "AdamW", "RMSprop"]


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015).

    ``m = β₁·m + (1 − β₁)·g``, ``v = β₂·v + (1 − β₂)·g²``, at step t
    ``x −= lr·(m/(1 − β₁ᵗ)) / (√(v/(1 − β₂ᵗ)) + eps)``.

    Parameters
    ----------
    params
        Tensors, named tensors, or groups; see `Optimizer`.
    lr
        Learning rate.
    betas
        β₁ and β₂, at least 0 and below 1.
    eps
        As above.
    weight_decay
        ``weight_decay·x`` is added to the gradient.
    amsgrad
        Whether v is the largest so far (Reddi et al., 2018).
    maximize
        Whether to go up instead of down.
    fused
        Whether one compiled kernel updates a parameter; None for large ones, where there is a
        compiler.

    Raises
    ------
    ValueError
        An option out of range.
    """

    _decoupled = False

    @checked
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
                "fused": fused,
            },
        )

    def _check(self, group: dict[str, Any]) -> None:
        for name in ("lr", "eps", "weight_decay"):
            at_least(self._name, name, group[name])
        if not isinstance(group["betas"], Sequence):
            message = (
                f"[{self._name}] argument 'betas': expected a pair, got "
                f"{type(group['betas']).__name__}."
            )
            raise TypeError(message)
        if len(group["betas"]) != 2:
            message = f"[{self._name}] argument 'betas': expected 2, got {group['betas']!r}."
            raise ValueError(message)
        for i, beta in enumerate(group["betas"]):
            between(self._name, f"betas[{i}]", beta)

    def _update_fused(
        self, x: Array, g: Array, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        lr, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
        step = state["step"] = int(state.get("step", 0)) + 1
        arrays = [x, g, self._zeros(state, "exp_avg", x), self._zeros(state, "exp_avg_sq", x)]
        if group["amsgrad"]:
            arrays.append(self._zeros(state, "max_exp_avg_sq", x))
        update = formulas.adam(
            decoupled=self._decoupled,
            amsgrad=bool(group["amsgrad"]),
            maximize=bool(group["maximize"]),
        )
        numbers = (
            1 - lr * decay if self._decoupled else decay,
            1 - beta1,
            1 - beta2,
            lr / (1 - beta1**step),
            1 / math.sqrt(1 - beta2**step),
            group["eps"],
        )
        formulas.run(update, tuple(arrays), numbers)

    def _update(self, x: Array, g: Array, state: dict[str, Any], group: dict[str, Any]) -> None:
        scratch = self._temporary(x)
        lr, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
        if self._decoupled:
            x *= 1 - lr * decay
        else:
            g = self._with_decay(x, g, decay)
        step = state["step"] = int(state.get("step", 0)) + 1
        m = self._zeros(state, "exp_avg", x)
        v = self._zeros(state, "exp_avg_sq", x)
        np.subtract(g, m, out=scratch)
        scratch *= 1 - beta1
        m += scratch
        np.multiply(g, g, out=scratch)
        scratch *= 1 - beta2
        v *= beta2
        v += scratch
        if group["amsgrad"]:
            largest = self._zeros(state, "max_exp_avg_sq", x)
            v = np.maximum(largest, v, out=largest)
        np.sqrt(v, out=scratch)
        scratch /= math.sqrt(1 - beta2**step)
        scratch += group["eps"]
        np.divide(m, scratch, out=scratch)
        scratch *= lr / (1 - beta1**step)
        x -= scratch


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

    Parameters and errors are those of `Adam`; ``lr·weight_decay·x`` is taken off x before the step.

    Parameters
    ----------
    params
        Tensors, named tensors, or groups; see `Optimizer`.
    lr
        Learning rate.
    betas
        β₁ and β₂ of `Adam`, at least 0 and below 1.
    eps
        As for `Adam`.
    weight_decay
        The parameters shrink by ``lr * weight_decay`` of themselves at each step.
    amsgrad
        As for `Adam`.
    maximize
        Whether to go up instead of down.
    fused
        As for `Adam`.
    """

    _decoupled = True

    @checked
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, fused=fused
        )


class RMSprop(Optimizer):
    """RMSprop (Hinton, lecture 6e of "Neural networks for machine learning", 2012).

    ``v = alpha·v + (1 − alpha)·g²``, ``d = g/(√v + eps)``; with momentum ``b = momentum·b + d`` and
    ``x −= lr·b``, else ``x −= lr·d``. `centered` takes the square of the mean gradient off v.

    Parameters
    ----------
    params
        Tensors, named tensors, or groups; see `Optimizer`.
    lr
        Learning rate.
    alpha, eps, weight_decay, momentum, centered
        As above; ``weight_decay·x`` is added to the gradient.
    maximize
        Whether to go up instead of down.
    fused
        Whether one compiled kernel updates a parameter; None for large ones, where there is a
        compiler.

    Raises
    ------
    ValueError
        A negative option.
    """

    @checked
    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
                "maximize": maximize,
                "fused": fused,
            },
        )

    def _check(self, group: dict[str, Any]) -> None:
        for name in ("lr", "alpha", "eps", "weight_decay", "momentum"):
            at_least("RMSprop", name, group[name])

    def _update_fused(
        self, x: Array, g: Array, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        state["step"] = int(state.get("step", 0)) + 1
        centered, momentum = bool(group["centered"]), bool(group["momentum"])
        arrays = [x, g, self._zeros(state, "square_avg", x)]
        if centered:
            arrays.append(self._zeros(state, "grad_avg", x))
        if momentum:
            arrays.append(self._zeros(state, "momentum_buffer", x))
        update = formulas.rmsprop(
            centered=centered, momentum=momentum, maximize=bool(group["maximize"])
        )
        names = ("lr", "weight_decay", "alpha", "eps", "momentum")
        lr, decay, alpha, eps, factor = (group[name] for name in names)
        formulas.run(update, tuple(arrays), (lr, decay, 1 - alpha, eps, factor))

    def _update(self, x: Array, g: Array, state: dict[str, Any], group: dict[str, Any]) -> None:
        scratch = self._temporary(x)
        g = self._with_decay(x, g, group["weight_decay"])
        alpha = group["alpha"]
        state["step"] = int(state.get("step", 0)) + 1
        v = self._zeros(state, "square_avg", x)
        v *= alpha
        np.multiply(g, g, out=scratch)
        scratch *= 1 - alpha
        v += scratch
        if group["centered"]:
            mean = self._zeros(state, "grad_avg", x)
            np.subtract(g, mean, out=scratch)
            scratch *= 1 - alpha
            mean += scratch
            np.multiply(mean, mean, out=scratch)
            np.subtract(v, scratch, out=scratch)
            # Rounding can take it below zero.
            np.sqrt(np.maximum(scratch, 0, out=scratch), out=scratch)
        else:
            np.sqrt(v, out=scratch)
        scratch += group["eps"]
        np.divide(g, scratch, out=scratch)
        if group["momentum"]:
            b = self._zeros(state, "momentum_buffer", x)
            b *= group["momentum"]
            b += scratch
            np.multiply(b, group["lr"], out=scratch)
        else:
            scratch *= group["lr"]
        x -= scratch


class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan and Singer, 2011).

    ``v = v + g²``, at step t ``x −= lr/(1 + (t − 1)·lr_decay)·g/(√v + eps)``.

    Parameters
    ----------
    params
        Tensors, named tensors, or groups; see `Optimizer`.
    lr
        Learning rate.
    lr_decay, weight_decay, eps
        As above; ``weight_decay·x`` is added to the gradient.
    initial_accumulator_value
        v at the start.
    maximize
        Whether to go up instead of down.
    fused
        Whether one compiled kernel updates a parameter; None for large ones, where there is a
        compiler.

    Raises
    ------
    ValueError
        A negative option.
    """

    @checked
    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "lr_decay": lr_decay,
                "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value,
                "eps": eps,
                "maximize": maximize,
                "fused": fused,
            },
        )

    def _check(self, group: dict[str, Any]) -> None:
        for name in ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"):
            at_least("Adagrad", name, group[name])

    def _update_fused(
        self, x: Array, g: Array, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        step = state["step"] = int(state.get("step", 0)) + 1
        self._start(state, x, group)
        lr = group["lr"] / (1 + (step - 1) * group["lr_decay"])
        update = formulas.adagrad(maximize=bool(group["maximize"]))
        numbers = (lr, group["weight_decay"], group["eps"])
        formulas.run(update, (x, g, state["sum"]._array), numbers)

    def _start(self, state: dict[str, Any], x: Array, group: dict[str, Any]) -> None:
        if "sum" not in state:
            state["sum"] = wrap(np.full(x.shape, group["initial_accumulator_value"], x.dtype))

    def _update(self, x: Array, g: Array, state: dict[str, Any], group: dict[str, Any]) -> None:
        scratch = self._temporary(x)
        g = self._with_decay(x, g, group["weight_decay"])
        step = state["step"] = int(state.get("step", 0)) + 1
        self._start(state, x, group)
        v = state["sum"]._array
        np.multiply(g, g, out=scratch)
        v += scratch
        np.sqrt(v, out=scratch)
        scratch += group["eps"]
        np.divide(g, scratch, out=scratch)
        scratch *= group["lr"] / (1 + (step - 1) * group["lr_decay"])
        x -= scratch
