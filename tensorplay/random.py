"""Random numbers: one default generator per process, and generators with explicit state."""

from __future__ import annotations

import secrets
import threading
from typing import Any

import numpy as np

from tensorplay import _device, _dtype
from tensorplay._creation import shape_of
from tensorplay._tensor import MetaArray, Spec, Tensor, wrap
from tensorplay.ops.arguments import reject

__all__ = [
    "Generator",
    "initial_seed",
    "manual_seed",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "seed",
]


class Generator:
    """A source of random numbers (PCG64); the same seed gives the same stream on one build."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = _device.device(device)
        self._lock = threading.Lock()
        self.seed()

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of `seed` and return the generator."""
        if not isinstance(seed, (int, np.integer)):
            reject("manual_seed", "seed", "int", seed)
        self._seed = int(seed)
        self.numpy = np.random.Generator(np.random.PCG64(self._seed % 2**64))
        return self

    def seed(self) -> int:
        """Start a stream that nobody can predict and return its seed."""
        self.manual_seed(secrets.randbits(63))
        return self._seed

    def initial_seed(self) -> int:
        """Return the seed of the present stream."""
        return self._seed


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Start the stream of `seed` in the default generator and return it."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Start an unpredictable stream in the default generator and return its seed."""
    return default_generator.seed()


def initial_seed() -> int:
    """Return the seed of the default generator's present stream."""
    return default_generator.initial_seed()


def _sampled(
    where: str,
    size: tuple[Any, ...],
    draw: Any,
    dtype: Any,
    device: Any,
    requires_grad: bool,  # noqa: FBT001
    generator: Generator | None,
    default: Any = None,
) -> Tensor:
    shape = shape_of(where, size)
    d = _dtype.as_dtype(dtype, where) if dtype is not None else default or _dtype.get_default_dtype()
    if _device.as_device(device, where).type == "meta":
        result = wrap(MetaArray(Spec(shape, d)), d)
    else:
        source = default_generator if generator is None else generator
        with source._lock:
            array = draw(source.numpy, shape)
        result = wrap(np.asarray(array).astype(d.numpy, copy=False), d)
    if requires_grad:
        result.requires_grad = True
    return result


def _floating(where: str, dtype: Any) -> None:
    if dtype is not None and not _dtype.as_dtype(dtype, where).is_floating_point:
        message = f"[{where}] argument 'dtype': expected a floating type, got {dtype!r}."
        raise TypeError(message)


def rand(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return numbers uniform in [0, 1)."""
    _floating("rand", dtype)

    def draw(source: np.random.Generator, shape: tuple[int, ...]) -> Any:
        # In float32 straight away, so that rounding cannot give 1.
        single = (dtype or _dtype.get_default_dtype()).itemsize <= 4  # noqa: PLR2004
        values = source.random(shape, np.float32 if single else np.float64)
        return np.minimum(values, np.float32(1) - np.float32(2**-8)) if (
            single and (dtype or _dtype.float32).itemsize == 2  # noqa: PLR2004
        ) else values  # fmt: skip

    return _sampled("rand", size, draw, dtype, device, requires_grad, generator)


def randn(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return numbers of the normal distribution with mean 0 and variance 1."""
    _floating("randn", dtype)
    return _sampled(
        "randn", size, lambda g, s: g.standard_normal(s), dtype, device, requires_grad, generator
    )


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return integers from `low` (0 if left out) up to, not with, `high`.

    Raises
    ------
    RuntimeError
        `high` is not above `low`.
    """
    if size is None:
        low, high, size = 0, low, high
    if size is None:
        message = "[randint] expected (high, size) or (low, high, size)."
        raise TypeError(message)
    if high <= low:
        message = f"[randint] expected low < high, got low={low}, high={high}."
        raise RuntimeError(message)
    return _sampled(
        "randint",
        (size,),
        lambda g, s: g.integers(low, high, s),
        dtype,
        device,
        requires_grad,
        generator,
        _dtype.int64,
    )


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return the integers from 0 to n - 1 in random order."""
    return _sampled(
        "randperm",
        (n,),
        lambda g, s: g.permutation(s[0]),
        dtype,
        device,
        requires_grad,
        generator,
        _dtype.int64,
    )


def rand_like(input: Tensor, **options: Any) -> Tensor:  # noqa: A002
    """Return uniform numbers of the shape, type and device of `input`."""
    options = {"dtype": input.dtype, "device": input.device, **options}
    return rand(tuple(input.shape), **options)


def randn_like(input: Tensor, **options: Any) -> Tensor:  # noqa: A002
    """Return normal numbers of the shape, type and device of `input`."""
    options = {"dtype": input.dtype, "device": input.device, **options}
    return randn(tuple(input.shape), **options)
