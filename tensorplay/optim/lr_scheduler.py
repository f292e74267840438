"""Learning rates that change from step to step.

Schedules change the rate that they find, so that several can be used on one optimizer, and what a
person or `ReduceLROnPlateau` sets is kept. Where a schedule is alone, its rates are those of its
formula to the last digit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensorplay.ops.arguments import reject
from tensorplay.ops.kinds import checked
from tensorplay.optim.checks import want_counts, want_state
from tensorplay.optim.optimizer import Optimizer
from tensorplay.optim.plateau import ReduceLROnPlateau

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


class LRScheduler:
    """Base of schedules: a derived class writes `get_lr`, or `_rate` for rates by a formula.

    Parameters
    ----------
    optimizer
        Whose groups' ``"lr"`` it sets. Their ``"initial_lr"`` is the rate at the start.
    last_epoch
        The number of steps that were made, −1 for a new schedule; others need groups with
        ``"initial_lr"``.

    Raises
    ------
    TypeError
        `optimizer` is none.
    KeyError
        A group has no ``"initial_lr"`` where one is needed.
    """

    _chains = True  # whether the next rate depends on the present one

    @checked
    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        name = type(self).__name__
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                message = (
                    f"[{name}] param 'initial_lr' is not specified in param_groups[{i}] when "
                    "resuming an optimizer. Pass last_epoch=-1, or load the optimizer's state."
                )
                raise KeyError(message)
        self.optimizer = optimizer
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self.step()

    def _rate(self, base: float, step: int, group: int) -> float:
        """Return the rate after `step` steps of a group that started with `base`."""
        message = f"[{type(self).__name__}] has no get_lr. Write def get_lr(self)."
        raise NotImplementedError(message)

    def _next(self, present: float, base: float, step: int, group: int) -> float:
        """Return the rate after `step` steps, where `present` is that before the last of them."""
        before = self._before(base, step, group)
        return present * self._rate(base, step, group) / before if before else present

    def _before(self, base: float, step: int, group: int) -> float:
        return self._rate(base, step - 1, group) if step > 0 else base

    def get_lr(self) -> list[float]:
        """Return the next rates of the groups, from those that they have."""
        found = []
        groups = zip(self.optimizer.param_groups, self.base_lrs, strict=False)
        for i, (group, base) in enumerate(groups):
            present, step = group["lr"], self.last_epoch
            if self._chains and present != self._before(base, step, i):
                found.append(self._next(present, base, step, i))
            else:
                found.append(self._rate(base, step, i))
        return found

    def get_last_lr(self) -> list[float]:
        """Return the rates of the groups."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self) -> None:
        """Go on to the next rate."""
        self.last_epoch += 1
        self._set()

    def _set(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=False):
            group["lr"] = rate

    def _restart(self) -> None:
        """Begin, with the rates that the optimizer started with."""
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=False):
            group["lr"] = base
        self.last_epoch = 0
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule remembers, without the optimizer and functions."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if name != "optimizer" and not name.startswith("_") and not callable(value)
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        want_state(type(self).__name__, state_dict)
        self.__dict__.update(state_dict)


class StepLR(LRScheduler):
    """The rate times `gamma` every `step_size` steps.

    Parameters
    ----------
    optimizer
        The optimiser whose rates change.
    step_size
        Number of steps.
    gamma
        Factor.
    last_epoch
        Number of the last step; -1 to begin.
    """

    @checked
    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        want_counts("StepLR", 1, step_size=step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def _rate(self, base: float, step: int, group: int) -> float:
        return base * self.gamma ** (step // self.step_size)


class MultiStepLR(LRScheduler):
    """The rate times `gamma` at each of the steps `milestones`.

    Parameters
    ----------
    optimizer
        The optimiser whose rates change.
    milestones
        The steps, increasing.
    gamma
        Factor.
    last_epoch
        Number of the last step; -1 to begin.
    """

    @checked
    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        steps = list(milestones)
        for step in steps:
            want_counts("MultiStepLR", 0, milestones=step)
        self.milestones, self.gamma = sorted(steps), gamma
        super().__init__(optimizer, last_epoch)

    def _rate(self, base: float, step: int, group: int) -> float:
        return base * self.gamma ** bisect_right(self.milestones, step)


class ExponentialLR(LRScheduler):
    """The rate times `gamma` at each step.

    Parameters
    ----------
    optimizer
        The optimiser whose rates change.
    gamma
        Factor.
    last_epoch
        Number of the last step; -1 to begin.
    """

    @checked
    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _rate(self, base: float, step: int, group: int) -> float:
        return base * self.gamma**step


class LambdaLR(LRScheduler):
    """The first rate times a function of the number of steps, or one function for each group.

    The rate that it finds does not matter, so it cannot be one of several schedules.

    Parameters
    ----------
    optimizer
        The optimiser whose rates change.
    lr_lambda
        ``lr_lambda(step)``, which gives the factor; or one for each group.
    last_epoch
        Number of the last step; -1 to begin.

    Raises
    ------
    ValueError
        There are other numbers of functions and groups.
    """

    _chains = False

    @checked
    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        many = list(lr_lambda) if isinstance(lr_lambda, Sequence) else [lr_lambda] * groups
        if len(many) != groups:
            message = (
                f"[LambdaLR] argument 'lr_lambda': expected {groups} functions, got {len(many)}."
            )
            raise ValueError(message)
        for function in many:
            given: Any = function
            if not callable(given):
                message = (
                    "[LambdaLR] argument 'lr_lambda': expected a function, got "
                    f"{type(given).__name__}. Write lambda step: factor."
                )
                raise TypeError(message)
        self._functions = many
        super().__init__(optimizer, last_epoch)

    def _rate(self, base: float, step: int, group: int) -> float:
        return base * self._functions[group](step)


class ConstantLR(LRScheduler):
    """The rate times `factor` for the first `total_iters` steps.

    Parameters
    ----------
    optimizer
        The optimiser whose rates change.
    factor
        Factor.
    total_iters
        Number of steps.
    last_epoch
        Number of the last step; -1 to begin.
    """

    @checked
    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        want_counts("ConstantLR", 0, total_iters=total_iters)
        if not 0 <= factor <= 1:
            message = f"[ConstantLR] argument 'factor': expected between 0 and 1, got {factor}."
            raise ValueError(message)
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def _rate(self, base: float, step: int, group: int) -> float:
        return base * (self.factor if step < self.total_iters else 1.0)


class LinearLR(LRScheduler):
    """The rate times a factor that goes from one to the other in `total_iters` steps.

    Parameters
    ----------
    optimizer
        The optimiser whose rates change.
    start_factor
        First factor.
    end_factor
        Last factor.
    total_iters
        Number of steps between them.
    last_epoch
        Number of the last step; -1 to begin.
    """

    @checked
    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        want_counts("LinearLR", 0, total_iters=total_iters)
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            message = (
                "[LinearLR] expected 'start_factor' above 0 and both factors at most 1, got "
                f"{start_factor} and {end_factor}."
            )
            raise ValueError(message)
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _rate(self, base: float, step: int, group: int) -> float:
        part = min(step, self.total_iters) / max(1, self.total_iters)
        return base * (self.start_factor + (self.end_factor - self.start_factor) * part)


class CosineAnnealingLR(LRScheduler):
    """The rate along half a cosine to `eta_min` in `T_max` steps, and back (Loshchilov, 2017).

    Parameters
    ----------
    optimizer
        The optimiser whose rates change.
    T_max
        Steps of half a period.
    eta_min
        Least rate.
    last_epoch
        Number of the last step; -1 to begin.
    """

    @checked
    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        want_counts("CosineAnnealingLR", 1, T_max=T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def _rate(self, base: float, step: int, group: int) -> float:
        return (
            self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * step / self.T_max)) / 2
        )

    def _next(self, present: float, base: float, step: int, group: int) -> float:
        if step == 0:
            return present
        now, before = (1 + math.cos(math.pi * t / self.T_max) for t in (step, step - 1))
        if (step - 1 - self.T_max) % (2 * self.T_max) == 0:  # up again from the lowest
            return present + (base - self.eta_min) * now / 2
        return (present - self.eta_min) * now / before + self.eta_min


class OneCycleLR(LRScheduler):
    """The rate up to `max_lr` and down again, once (Smith and Topin, 2018).

    Parameters
    ----------
    optimizer
        Whose rates it sets.
    max_lr
        The highest rate.
    total_steps
        Steps of the cycle; one more raises.
    pct_start
        Share of the steps that go up.
    cycle_momentum
        Whether momentum, or β₁, goes down while the rate goes up, and back.
    base_momentum, max_momentum
        Between which it goes.
    div_factor
        ``max_lr`` over the first rate.
    final_div_factor
        The first rate over the last.
    last_epoch
        That of `LRScheduler`.

    Raises
    ------
    ValueError
        No steps, a share out of range, a step beyond the cycle, or `cycle_momentum` for an
        optimizer without momentum.
    """

    _chains = False

    @checked
    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        last_epoch: int = -1,
    ) -> None:
        if total_steps < 1 or not 0 <= pct_start <= 1:
            message = (
                "[OneCycleLR] expected at least 1 step and 'pct_start' between 0 and 1, got "
                f"{total_steps} and {pct_start}."
            )
            raise ValueError(message)
        self.max_lr, self.total_steps, self.pct_start = max_lr, total_steps, pct_start
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        self.cycle_momentum = cycle_momentum
        self.base_momentum, self.max_momentum = base_momentum, max_momentum
        if cycle_momentum and not {"momentum", "betas"} & optimizer.defaults.keys():
            message = (
                "[OneCycleLR] argument 'cycle_momentum': the optimizer must support momentum, "
                f"{type(optimizer).__name__} has none. Pass cycle_momentum=False."
            )
            raise ValueError(message)
        super().__init__(optimizer, last_epoch)

    def _along(self, step: int, start: float, top: float, end: float) -> float:
        """Return a value on the way from `start` over `top` to `end`, by half cosines."""
        turn = self.pct_start * self.total_steps - 1
        if step <= turn:
            low, high, part = start, top, step / turn if turn > 0 else 1.0
        else:
            part = (step - turn) / max(1e-12, self.total_steps - 1 - turn)
            low, high = top, end
        return high + (low - high) * (1 + math.cos(math.pi * part)) / 2

    def _rate(self, base: float, step: int, group: int) -> float:
        if step >= self.total_steps:
            message = (
                f"[OneCycleLR] step {step + 1} of a cycle of {self.total_steps}. "
                "Write a larger total_steps."
            )
            raise ValueError(message)
        first = self.max_lr / self.div_factor
        return self._along(step, first, self.max_lr, first / self.final_div_factor)

    def _set(self) -> None:
        super()._set()
        if self.cycle_momentum:
            momentum = self._along(
                self.last_epoch, self.max_momentum, self.base_momentum, self.max_momentum
            )
            for group in self.optimizer.param_groups:
                if "betas" in group:
                    group["betas"] = (momentum, *group["betas"][1:])
                else:
                    group["momentum"] = momentum


def _want_schedules(where: str, schedulers: Iterable[Any]) -> None:
    for scheduler in schedulers:
        if not isinstance(scheduler, LRScheduler):
            reject(where, "schedulers", "schedules that step without metrics", scheduler)


class SequentialLR(LRScheduler):
    """One schedule after the other, each from one of the steps `milestones` on.

    Parameters
    ----------
    optimizer
        The optimiser whose rates change.
    schedulers
        The schedules, of the same optimiser.
    milestones
        The steps at which the next one begins.
    last_epoch
        Number of the last step; -1 to begin.

    Raises
    ------
    ValueError
        There is not one milestone between two schedules each, or one is of another optimizer.
    """

    @checked
    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            message = (
                "[SequentialLR] argument 'milestones': expected one less than schedulers, got "
                f"{len(milestones)} for {len(schedulers)}."
            )
            raise ValueError(message)
        _want_schedules("SequentialLR", schedulers)
        if any(s.optimizer is not optimizer for s in schedulers):
            message = "[SequentialLR] argument 'schedulers': one is of another optimizer."
            raise ValueError(message)
        self._schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch)

    def _set(self) -> None:
        place = bisect_right(self.milestones, self.last_epoch)
        chosen = self._schedulers[place]
        start = self.milestones[place - 1] if place else 0
        if self.last_epoch == start:
            chosen._restart()  # the others have begun as well, when they were made
        else:
            chosen.step()

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedules remember."""
        return {**super().state_dict(), "schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        rest = dict(state_dict)
        for scheduler, values in zip(self._schedulers, rest.pop("schedulers"), strict=True):
            scheduler.load_state_dict(values)
        super().load_state_dict(rest)


class ChainedScheduler(LRScheduler):
    """Several schedules at once: each changes the rates that the one before it left.

    Parameters
    ----------
    schedulers
        The schedules, of one optimiser.
    optimizer
        The optimiser; that of the schedules by default.

    Raises
    ------
    ValueError
        There are none, or one is of another optimizer.
    TypeError
        One changes no rates by steps alone, such as `ReduceLROnPlateau`.
    """

    @checked
    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        self._schedulers = list(schedulers)
        if not self._schedulers:
            message = "[ChainedScheduler] argument 'schedulers': expected at least one, got none."
            raise ValueError(message)
        _want_schedules("ChainedScheduler", self._schedulers)
        chosen = self._schedulers[0].optimizer if optimizer is None else optimizer
        if any(s.optimizer is not chosen for s in self._schedulers):
            message = "[ChainedScheduler] argument 'schedulers': one is of another optimizer."
            raise ValueError(message)
        self.optimizer = chosen

    def step(self) -> None:
        """Go on to the next rates."""
        for scheduler in self._schedulers:
            scheduler.step()

    def _restart(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in self._schedulers:
            scheduler.last_epoch = 0
            scheduler._set()

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedules remember."""
        return {"schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        states = state_dict["schedulers"]
        for scheduler, values in zip(self._schedulers, states, strict=True):
            scheduler.load_state_dict(values)
