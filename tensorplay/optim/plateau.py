"""A learning rate that follows a measure instead of the number of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorplay.ops.kinds import checked
from tensorplay.optim.checks import want_counts, want_state
from tensorplay.optim.optimizer import Optimizer

__all__ = ["ReduceLROnPlateau"]


class ReduceLROnPlateau:
    """The rate times `factor` when a measure has not improved for some steps.

    Parameters
    ----------
    optimizer
        Whose rates it sets.
    mode
        ``"min"`` for a measure that should fall, ``"max"`` for one that should rise.
    factor
        Below 1.
    patience
        Steps without improvement that are let pass.
    threshold
        By how much a measure must be better to count.
    threshold_mode
        ``"rel"`` for a share of the best, ``"abs"`` for a difference.
    cooldown
        Steps after a reduction in which nothing is counted.
    min_lr
        The lowest rate, or one for each group.
    eps
        A reduction by less is not made.

    Raises
    ------
    TypeError
        `optimizer` is none.
    ValueError
        `factor` is not below 1, an unknown mode, or another number of lowest rates.
    """

    @checked
    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        want_counts("ReduceLROnPlateau", 0, patience=patience, cooldown=cooldown)
        if not factor < 1:
            message = f"[ReduceLROnPlateau] argument 'factor': expected below 1.0, got {factor}."
            raise ValueError(message)
        for name, value, known in (
            ("mode", mode, ("min", "max")),
            ("threshold_mode", threshold_mode, ("rel", "abs")),
        ):
            if value not in known:
                message = (
                    f"[ReduceLROnPlateau] argument {name!r}: expected {known[0]!r} or "
                    f"{known[1]!r}, got {value!r}."
                )
                raise ValueError(message)
        groups = len(optimizer.param_groups)
        lowest = list(min_lr) if isinstance(min_lr, Sequence) else [min_lr] * groups
        if len(lowest) != groups:
            message = (
                f"[ReduceLROnPlateau] argument 'min_lr': expected {groups}, got {len(lowest)}."
            )
            raise ValueError(message)
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown = threshold, threshold_mode, cooldown
        self.min_lrs, self.eps = lowest, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0

    def _is_better(self, value: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        if self.threshold_mode == "abs":
            return sign * value < sign * self.best - self.threshold
        if not math.isfinite(self.best):
            return sign * value < sign * self.best
        # As the field has it: best·(1 − t) for a minimum, best·(1 + t) for a maximum.
        return sign * value < sign * self.best * (1 - sign * self.threshold)

    def step(self, metrics: Any) -> None:
        """Take note of the measure after an epoch.

        Raises
        ------
        TypeError
            `metrics` is no number.
        """
        try:
            value = float(metrics)
        except (TypeError, ValueError) as error:
            message = (
                "[ReduceLROnPlateau.step] argument 'metrics': expected a number, got "
                f"{type(metrics).__name__}."
            )
            raise TypeError(message) from error
        self.last_epoch += 1
        if self._is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, lowest in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                new = max(group["lr"] * self.factor, lowest)
                if group["lr"] - new > self.eps:
                    group["lr"] = new
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def get_last_lr(self) -> list[float]:
        """Return the rates of the groups."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return what is remembered, without the optimizer."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        want_state(type(self).__name__, state_dict)
        self.__dict__.update(state_dict)
