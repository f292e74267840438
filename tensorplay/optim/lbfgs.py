"""L-BFGS: a quasi-Newton method with limited memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd import enable_grad
from tensorplay.ops.kinds import checked
from tensorplay.optim.optimizer import Array, Optimizer, at_least

__all__ = ["LBFGS"]


class LBFGS(Optimizer):
    """L-BFGS (Nocedal, 1980), by the two-loop recursion, for functions without noise.

    Parameters
    ----------
    params
        Tensors, all in one group.
    lr
        Length of a step; with a line search, of the first one tried.
    max_iter
        Iterations in a call of `step`.
    max_eval
        Evaluations of the closure in a call of `step`; ``max_iter·5/4`` by default.
    tolerance_grad
        The largest absolute gradient at which to stop.
    tolerance_change
        The change of parameters or of the loss at which to stop.
    history_size
        How many changes are remembered.
    line_search_fn
        None, or ``"strong_wolfe"`` (Nocedal and Wright, "Numerical optimization", algorithms 3.5
        and 3.6).

    Raises
    ------
    ValueError
        More than one group, a negative option, or an unknown line search.
    """

    @checked
    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "max_iter": max_iter,
                "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                "tolerance_grad": tolerance_grad,
                "tolerance_change": tolerance_change,
                "history_size": history_size,
                "line_search_fn": line_search_fn,
            },
        )

    def _check(self, group: dict[str, Any]) -> None:
        if self.param_groups:
            message = "[LBFGS] argument 'params': doesn't support per-parameter groups."
            raise ValueError(message)
        for name in ("lr", "tolerance_grad", "tolerance_change"):
            at_least("LBFGS", name, group[name])
        for p in group["params"]:
            if p.dtype.numpy.char not in "fd":
                message = (
                    f"[LBFGS] argument 'params': expected float32 or float64, got {p.dtype!r}."
                )
                raise ValueError(message)
        if group["line_search_fn"] not in {None, "strong_wolfe"}:
            message = (
                "[LBFGS] argument 'line_search_fn': expected None or 'strong_wolfe', got "
                f"{group['line_search_fn']!r}."
            )
            raise ValueError(message)

    def _state_shape(self, p: Tensor) -> tuple[int, ...]:
        return (sum(q.numel() for q in self.param_groups[0]["params"]),)  # all in one vector

    # --- all parameters as one vector -------------------------------------------------------

    def _gather(self) -> Array:
        parts = [
            np.zeros(p.numel(), p.dtype.numpy) if p._grad is None else p._grad._array.reshape(-1)
            for p in self.param_groups[0]["params"]
        ]
        return np.concatenate(parts)

    def _position(self) -> Array:
        return np.concatenate([p._array.reshape(-1) for p in self.param_groups[0]["params"]])

    def _move_to(self, x: Array) -> None:
        at = 0
        for p in self.param_groups[0]["params"]:
            size = p.numel()
            p._array[...] = x[at : at + size].reshape(p.shape)
            p._bump_version()
            at += size

    @checked
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Iterate, and return the loss at the start.

        Parameters
        ----------
        closure
            Clears the gradients, computes the loss, calls its `backward`, and returns it.

        Raises
        ------
        TypeError
            There is no closure.
        """
        if closure is None:
            message = "[LBFGS.step] argument 'closure': expected a function, got None."
            raise TypeError(message)
        group = self.param_groups[0]
        state = self.state.setdefault(group["params"][0], {"evaluations": 0, "iterations": 0})

        def evaluate() -> tuple[float, Array]:
            with enable_grad():
                loss = float(closure())
            state["evaluations"] += 1
            return loss, self._gather()

        with enable_grad():
            first = closure()
        state["evaluations"] += 1
        loss, gradient = float(first), self._gather()
        if np.abs(gradient).max(initial=0.0) <= group["tolerance_grad"]:
            return first
        start = state["evaluations"]
        for turn in range(group["max_iter"]):
            state["iterations"] += 1
            direction = self._direction(state, gradient, group["history_size"])
            slope = float(gradient @ direction)
            if not slope < -group["tolerance_change"]:
                break
            t = group["lr"]
            if state["iterations"] == 1:
                t *= min(1.0, 1.0 / float(np.abs(gradient).sum()))
            x, before = self._position(), loss
            if group["line_search_fn"] == "strong_wolfe":
                t, loss, new = _strong_wolfe(
                    functools.partial(self._at, x, direction, evaluate),
                    t,
                    (loss, gradient),
                    direction,
                    group["tolerance_change"],
                )
                self._move_to(x + x.dtype.type(t) * direction)
            else:
                self._move_to(x + x.dtype.type(t) * direction)
                # The next call of `step` begins where this one ends: with an evaluation.
                last = turn == group["max_iter"] - 1
                loss, new = (loss, gradient) if last else evaluate()
            state.update(previous=wrap(gradient), direction=wrap(direction), t=float(t))
            gradient = new
            if (
                state["evaluations"] - start >= group["max_eval"]
                or np.abs(gradient).max(initial=0.0) <= group["tolerance_grad"]
                or np.abs(direction * t).max(initial=0.0) <= group["tolerance_change"]
                or abs(loss - before) < group["tolerance_change"]
                or not np.isfinite(loss)
            ):
                break
        return first

    def _at(self, x: Array, direction: Array, evaluate: Any, t: float) -> tuple[float, Array]:
        self._move_to(x + x.dtype.type(t) * direction)
        found: tuple[float, Array] = evaluate()
        return found

    def _direction(self, state: dict[str, Any], gradient: Array, limit: int) -> Array:
        """Return minus the approximate inverse Hessian times the gradient."""
        if "previous" not in state:
            return -gradient
        changes = state.setdefault("changes", [])
        y = gradient - state["previous"]._array
        s = state["direction"]._array * state["t"]
        curvature = float(y @ s)
        if curvature > 1e-10:  # else the update would not stay positive definite
            changes.append((wrap(s), wrap(y)))
            del changes[:-limit]
            state["scale"] = curvature / float(y @ y)
        q = -gradient
        kept = []
        for s_, y_ in reversed(changes):
            s, y = s_._array, y_._array
            rho = 1.0 / float(y @ s)
            alpha = float(s @ q) * rho
            q = q - q.dtype.type(alpha) * y
            kept.append((s, y, rho, alpha))
        r: Array = q * q.dtype.type(state.get("scale", 1.0))
        for s, y, rho, alpha in reversed(kept):
            r = r + r.dtype.type(alpha - float(y @ r) * rho) * s
        return r


def _strong_wolfe(
    at: Callable[[float], tuple[float, Array]],
    t: float,
    start: tuple[float, Array],
    direction: Array,
    tolerance: float,
    most: int = 25,
) -> tuple[float, float, Array]:
    """Return a step with sufficient decrease and a small slope, its loss and gradient."""
    c1, c2 = 1e-4, 0.9
    loss0, gradient0 = start
    slope0 = float(gradient0 @ direction)
    width = float(np.abs(direction).max(initial=0.0))
    low = (0.0, loss0, gradient0, slope0)
    high: Any = None
    best = low
    for _ in range(most):
        loss, gradient = at(t)
        slope = float(gradient @ direction)
        here = (t, loss, gradient, slope)
        if np.isfinite(loss) and loss < best[1]:
            best = here
        bracketed = high is not None
        worse = loss >= low[1] and (bracketed or low[0] > 0)
        if not np.isfinite(loss) or loss > loss0 + c1 * t * slope0 or worse:
            high = here
        elif abs(slope) <= -c2 * slope0:
            return t, loss, gradient
        else:
            # The minimum lies between `here` and the end that the slope points to.
            if slope >= 0 if not bracketed else slope * (high[0] - low[0]) >= 0:
                high = low
            low = here
        if high is None:
            t *= 2.0
        else:
            t = _between(low, high)
            if abs(high[0] - low[0]) * width < tolerance:
                break
    return best[0], best[1], best[2]


def _between(low: Any, high: Any) -> float:
    """Return the minimum of the cubic through both ends, or the middle if it is near an end."""
    a, fa, _, ga = low
    b, fb, _, gb = high
    middle = 0.5 * (a + b)
    if not np.isfinite(fb) or not np.isfinite(gb):
        return float(middle)
    d1 = ga + gb - 3 * (fa - fb) / (a - b)
    square = d1 * d1 - ga * gb
    if square < 0:
        return float(middle)
    d2 = np.sqrt(square) * (1 if b >= a else -1)
    found = b - (b - a) * ((gb + d2 - d1) / (gb - ga + 2 * d2)) if gb - ga + 2 * d2 else middle
    margin = 0.1 * abs(b - a)
    inside = min(a, b) + margin <= found <= max(a, b) - margin
    return float(found if inside else middle)
