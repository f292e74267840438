"""Random operators: samples whose distribution depends on tensors.

`generator` is a `tensorplay.Generator`; the default one if left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._methods import attach
from tensorplay._tensor import Spec, Tensor
from tensorplay.ops.arguments import SCALARS, as_plain, reject
from tensorplay.ops.dispatch import overridable, overridable_method
from tensorplay.ops.elementwise import broadcast_shapes, no_gradient
from tensorplay.ops.primitive import Composite, Primitive, Sample

__all__ = ["bernoulli", "dropout", "multinomial", "normal"]


def _draw(where: str, generator: Any, draw: Any) -> Any:
    """Return ``draw(source)`` with the NumPy generator of `generator`."""
    from tensorplay.random import Generator, default_generator

    if generator is not None and not isinstance(generator, Generator):
        reject(where, "generator", "Generator or None", generator)
    source = default_generator if generator is None else generator
    return np.asarray(source._draw(draw))


def _want_floating(where: str, x: Any) -> Spec:
    d = x.dtype if isinstance(x.dtype, _dtype.dtype) else _dtype.from_numpy_dtype(x.dtype)
    if not d.is_floating_point:
        raise TypeError(
            f"[{where}] argument 'input': expected a floating point tensor, got {d!r}. "
            "Write x.float()."
        )
    return Spec(tuple(x.shape), d)


# --- noise of the shape of a tensor ---------------------------------------------------------------
# What is differentiable in a random operator is written in terms of one of these.


def _below_one(d: Any) -> Any:
    return d.numpy.type(1 - _dtype.finfo(d).eps / 2)


def _noise(
    name: str, doc: str, draw: Any, *parameters: str, below: Any = None, **options: Any
) -> Primitive:
    """Define noise of the shape and type of `input`; ``draw(source, shape, *parameters)``."""
    extra = "".join(f", float {p}" for p in parameters)

    def impl(x: Any, *rest: Any) -> Any:
        spec = _want_floating(name.strip("_"), x)
        values = _draw(name, rest[-1], lambda source: draw(source, x.shape, *rest[:-1]))
        rounded = values.astype(spec.dtype.numpy, copy=False)
        # The interval is open: rounding to a narrow type must not give 1.
        return rounded if below is None else np.minimum(rounded, below(spec.dtype))

    return Primitive(
        f"{name}(Tensor input{extra}, Generator? generator=None) -> Tensor",
        doc,
        impl,
        rule=lambda x, *rest: _want_floating(name.strip("_"), x),
        check_first=False,
        function=False,
        method=False,
        **options,
    )


kept_mask = _noise(
    "_dropout_mask",
    "``1 / (1 - p)`` with probability ``1 - p``, else 0.",
    lambda source, shape, p: (source.random(shape) >= p) * (1 / (1 - p) if p < 1 else 0.0),
    "p",
    samples=lambda make: [Sample((make(2, 3), 0.5))],
)

standard_normal = _noise(
    "_standard_normal",
    "Numbers of the normal distribution with mean 0 and variance 1.",
    lambda source, shape: source.standard_normal(shape),
    samples=lambda make: [Sample((make(2, 3),))],
)

uniform = _noise(
    "_uniform",
    "Numbers uniform in [0, 1).",
    lambda source, shape: source.random(shape),
    below=_below_one,
    samples=lambda make: [Sample((make(2, 3),))],
)


def _dropout(x: Tensor, p: float, training: bool, generator: Any) -> Any:
    if not 0 <= p <= 1:
        raise ValueError(
            f"[dropout] argument 'p': dropout probability has to be between 0 and 1, but got {p}."
        )
    if not training or not p:
        return x
    return x * kept_mask.apply((x, p, generator))


dropout = Composite(
    "dropout(Tensor input, float p=0.5, bool training=True, *, Generator? generator=None) "
    "-> Tensor",
    "`input` with each element set to 0 with probability `p`, the others times ``1 / (1 - p)``; "
    "`input` itself without `training`.",
    _dropout,
    method=False,
    samples=lambda make: [Sample((make(2, 3),)), Sample((make(2, 3), 0.5, False), name="off")],
)

# --- distributions --------------------------------------------------------------------------------


def _bernoulli(x: Any, p: float | None, generator: Any) -> Any:
    chance = x if p is None else np.full(x.shape, p)
    if p is None:
        _want_floating("bernoulli", x)
    if chance.size and not ((chance >= 0) & (chance <= 1)).all():
        raise RuntimeError(
            "[bernoulli] argument 'input': Expected p_in >= 0 && p_in <= 1, got probabilities "
            f"from {chance.min()} to {chance.max()}."
        )
    return _draw("bernoulli", generator, lambda g: g.random(x.shape) < chance).astype(x.dtype)


def _bernoulli_rule(x: Spec, p: float | None, generator: Any) -> Spec:
    return _want_floating("bernoulli", x) if p is None else Spec(x.shape, x.dtype)


bernoulli = Primitive(
    "bernoulli(Tensor input, float? p=None, *, Generator? generator=None) -> Tensor",
    "1 with the probability that `input`, or `p` for all elements, says, else 0; the gradient is "
    "zero.",
    _bernoulli,
    rule=_bernoulli_rule,
    vjp={"input": no_gradient},
    check_first=False,
    samples=lambda make: [
        Sample((make(2, 3, low=0.0, high=1.0),), name="each"),
        Sample((make(2, 3), 0.25), name="all"),
    ],
)


def _check_multinomial(x: Any, num_samples: int, replacement: bool) -> Spec:
    spec = _want_floating("multinomial", x)
    if spec.ndim not in (1, 2) or not spec.shape[-1]:
        raise RuntimeError(
            "[multinomial] argument 'input': prob_dist must be 1 or 2 dim, with at least one "
            f"category, got {list(spec.shape)}."
        )
    if num_samples <= 0:
        raise RuntimeError(
            f"[multinomial] argument 'num_samples': cannot sample n_sample <= 0 samples, got "
            f"{num_samples}."
        )
    if not replacement and num_samples > spec.shape[-1]:
        raise RuntimeError(
            "[multinomial] argument 'num_samples': cannot sample n_sample > prob_dist.size(-1) "
            f"samples without replacement, got {num_samples} of {spec.shape[-1]}."
        )
    return Spec((*spec.shape[:-1], num_samples), _dtype.int64)


def _multinomial(x: Any, num_samples: int, replacement: bool, generator: Any) -> Any:
    _check_multinomial(x, num_samples, replacement)
    weight = x.astype(np.float64)
    if not (np.isfinite(weight) & (weight >= 0)).all():
        raise RuntimeError(
            "[multinomial] argument 'input': probability tensor contains either `inf`, `nan` or "
            "element < 0."
        )
    needed = 1 if replacement else num_samples
    if (np.count_nonzero(weight, axis=-1) < needed).any():
        raise RuntimeError(
            "[multinomial] argument 'input': invalid multinomial distribution: expected at least "
            f"{needed} categories with a probability above 0."
        )
    if not replacement:
        # The first arrivals of independent processes with these rates.
        arrival = _draw("multinomial", generator, lambda g: g.standard_exponential(x.shape))
        with np.errstate(divide="ignore"):
            return np.argsort(arrival / weight, axis=-1, kind="stable")[..., :num_samples]
    edges = np.cumsum(weight, axis=-1)
    shape = (*x.shape[:-1], num_samples)
    # A point below the total lies in one of the intervals; those of no length are never found.
    points = _draw("multinomial", generator, lambda g: g.random(shape)) * edges[..., -1:]
    points = np.minimum(points, np.nextafter(edges[..., -1:], 0))
    found = np.empty(shape, np.int64)
    for row in np.ndindex(x.shape[:-1]):
        found[row] = np.searchsorted(edges[row], points[row], "right")
    return found


multinomial = Primitive(
    "multinomial(Tensor input, int num_samples, bool replacement=False, *, "
    "Generator? generator=None) -> Tensor",
    "`num_samples` categories of each row, drawn with probabilities proportional to `input`.",
    _multinomial,
    rule=lambda x, n, replacement, generator: _check_multinomial(x, n, replacement),
    check_first=False,
    samples=lambda make: [
        Sample((make(4, low=0.1), 2), name="vector"),
        Sample((make(2, 3, low=0.1), 5, True), name="rows"),
    ],
)


@overridable
def normal(
    mean: Any,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return numbers of normal distributions.

    Parameters
    ----------
    mean, std
        Numbers, or tensors that broadcast together; the result is ``mean + std * noise``, and is
        differentiated as that.
    size
        Shape of the result where both are numbers; needed then, and refused otherwise.
    generator
        Source of the numbers; the default generator if left out.
    dtype, device, requires_grad
        Of the result, where both are numbers.

    Returns
    -------
    Tensor
        Of `size`, or of the shape that `mean` and `std` broadcast to.

    Raises
    ------
    RuntimeError
        A standard deviation is negative.
    TypeError
        `size` is missing, or given beside a tensor.
    """
    from tensorplay._creation import empty
    from tensorplay.random import randn

    for argument, value in (("mean", mean), ("std", std)):
        if not isinstance(value, (Tensor, *SCALARS)):
            reject("normal", argument, "Tensor or number", value)
        low: Any = 0.0
        if argument == "std":
            low = value if not isinstance(value, Tensor) else 0.0
            if isinstance(value, Tensor) and not value.is_meta and value.numel():
                low = value._array.min()
        if low < 0:
            raise RuntimeError(
                f"[normal] argument 'std': normal expects all elements of std >= 0.0, got {low}."
            )
    tensors = [x for x in (mean, std) if isinstance(x, Tensor)]
    if not tensors:
        if size is None:
            reject("normal", "size", "int[]", None, "Both mean and std are numbers.")
        noise = randn(size, generator=generator, dtype=dtype, device=device)
        result: Tensor = noise * std + mean
        return result.requires_grad_() if requires_grad else result
    if size is not None:
        raise TypeError("[normal] argument 'size': expected None beside a tensor, got a size.")
    shape = broadcast_shapes("normal", *(tuple(x.shape) for x in tensors))
    like = empty(shape, dtype=tensors[0].dtype, device=tensors[0].device)
    drawn: Tensor = standard_normal.apply((like, generator)) * std + mean
    return drawn


# --- in place -------------------------------------------------------------------------------------


def _normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    """Fill this tensor with numbers of the normal distribution with this mean and deviation.

    Raises
    ------
    RuntimeError
        `std` is negative.
    """
    mean = as_plain("normal_", "mean", "float", mean)
    std = as_plain("normal_", "std", "float", std)
    if std < 0:
        raise RuntimeError(f"[normal_] argument 'std': expected std >= 0.0, got {std}.")
    noise: Any = standard_normal.apply((self.detach(), generator))
    return self.copy_(noise * std + mean)


def _uniform_(
    self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None
) -> Tensor:
    """Fill this tensor with numbers uniform between `low` and `high`.

    Raises
    ------
    RuntimeError
        `high` is below `low`, or one is not finite.
    """
    low = as_plain("uniform_", "low", "float", low)
    high = as_plain("uniform_", "high", "float", high)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise RuntimeError(f"[uniform_] expected finite numbers low <= high, got {low} and {high}.")
    noise: Any = uniform.apply((self.detach(), generator))
    return self.copy_(noise * (high - low) + low)


def _bernoulli_(self: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    """Fill this tensor with 1 with probability `p`, else 0.

    Raises
    ------
    RuntimeError
        `p` is no probability.
    """
    return self.copy_(bernoulli.apply((self.detach(), p, generator)))


attach("normal_", overridable_method(_normal_))
attach("uniform_", overridable_method(_uniform_))
attach("bernoulli_", overridable_method(_bernoulli_))
