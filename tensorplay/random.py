"""Random numbers: one default generator per process, and generators with explicit state."""

from __future__ import annotations

import contextlib
import operator
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplay import _device, _dtype
from tensorplay._creation import shape_of
from tensorplay._draws import drawn
from tensorplay._tensor import MetaArray, Spec, Tensor, wrap
from tensorplay.autograd import batched
from tensorplay.ops.arguments import reject
from tensorplay.ops.dispatch import overridable

if TYPE_CHECKING:
    from tensorplay._dtype import dtype as dtype_

__all__ = [
    "Generator",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "seed",
    "set_rng_state",
]


class Generator:
    """A source of random numbers (PCG64); the same seed gives the same stream on one build.

    Parameters
    ----------
    device
        Device that it is used on.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.device = _device.as_device(device, "Generator")
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._numpy: np.random.Generator | None = None
        self.seed()

    def manual_seed(self, seed: Any) -> Generator:
        """Start the stream of `seed` and return the generator."""
        if not isinstance(seed, (int, np.integer)):
            reject("manual_seed", "seed", "int", seed)
        with self._lock:
            self._seed = int(seed)
            self._numpy = None
        return self

    @property
    def numpy(self) -> np.random.Generator:
        """NumPy's generator, made when the first number is drawn: its package loads slowly."""
        if self._numpy is None:
            with self._making:
                if self._numpy is None:
                    self._numpy = np.random.Generator(np.random.PCG64(self._seed % 2**64))
        return self._numpy

    def _draw(self, function: Callable[[np.random.Generator], Any]) -> Any:
        """Return what `function` draws from NumPy's generator, which nobody else uses meanwhile."""
        with self._lock:
            return drawn(function, lambda: self.numpy)

    def seed(self) -> int:
        """Start a stream that nobody can predict and return its seed."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        return self._seed

    def initial_seed(self) -> int:
        """Return the seed of the present stream."""
        return self._seed

    def get_state(self) -> Tensor:
        """Return where in its stream the generator is, as a tensor of bytes."""
        import json

        with self._lock:
            state = {"seed": self._seed, "bits": self.numpy.bit_generator.state}
        return wrap(np.frombuffer(json.dumps(state).encode(), np.uint8).copy())

    def set_state(self, new_state: Any) -> Generator:
        """Go to where `get_state` was called and return the generator.

        Raises
        ------
        TypeError
            `new_state` is no tensor of bytes.
        ValueError
            The bytes are no state.
        """
        if not isinstance(new_state, Tensor) or new_state.dtype is not _dtype.uint8:
            reject("set_rng_state", "new_state", "a Tensor of uint8", new_state)
        import json

        try:
            state = json.loads(new_state.numpy().tobytes())
            bits = np.random.PCG64()
            bits.state = state["bits"]
            seed = int(state["seed"])
        except (ValueError, TypeError, KeyError) as error:
            message = (
                "[set_rng_state] argument 'new_state': expected what get_rng_state returned, "
                f"got other bytes: {error}."
            )
            raise ValueError(message) from error
        with self._lock:
            self._seed, self._numpy = seed, np.random.Generator(bits)
        return self


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Start the stream of `seed` in the default generator and return it.

    Parameters
    ----------
    seed
        Any integer of 64 bits.

    Returns
    -------
    Generator
        The default one.

    Examples
    --------
    >>> import tensorplay as tp
    >>> first = tp.manual_seed(0) and tp.rand(3)
    >>> again = tp.manual_seed(0) and tp.rand(3)
    >>> bool((first == again).all())
    True
    """
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Start an unpredictable stream in the default generator and return its seed.

    Returns
    -------
    int
        Of 64 bits.
    """
    return default_generator.seed()


def initial_seed() -> int:
    """Return the seed of the default generator's present stream.

    Returns
    -------
    int
        The seed.
    """
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """Return where in its stream the default generator is, as a tensor of bytes.

    Returns
    -------
    Tensor
        What `set_rng_state` takes; uint8.
    """
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Let the default generator go on where `get_rng_state` was called.

    Parameters
    ----------
    new_state
        What `get_rng_state` returned.
    """
    default_generator.set_state(new_state)


@contextlib.contextmanager
def fork_rng() -> Iterator[None]:
    """Leave the default generator, after the block, where it was before."""
    state = get_rng_state()
    try:
        yield
    finally:
        set_rng_state(state)


def _sampled(
    where: str,
    size: tuple[Any, ...],
    draw: Any,
    dtype: Any,
    device: Any,
    requires_grad: bool,
    generator: Generator | None,
    default: dtype_ | None = None,
) -> Tensor:
    if batched.state.levels:  # inside of vmap, which says what the samples share
        from tensorplay.ops.batching import sampled

        return sampled(
            where,
            lambda: _sampled_once(
                where, size, draw, dtype, device, requires_grad, generator, default
            ),
        )
    return _sampled_once(where, size, draw, dtype, device, requires_grad, generator, default)


def _sampled_once(
    where: str,
    size: tuple[Any, ...],
    draw: Any,
    dtype: Any,
    device: Any,
    requires_grad: bool,
    generator: Generator | None,
    default: dtype_ | None,
) -> Tensor:
    shape = shape_of(where, size)
    d = _dtype.as_dtype(default or _dtype.get_default_dtype() if dtype is None else dtype, where)
    if generator is not None and not isinstance(generator, Generator):
        reject(where, "generator", "Generator or None", generator)
    if _device.as_device(device, where).type == "meta":
        result = wrap(MetaArray(Spec(shape, d)), d)
    else:
        source = default_generator if generator is None else generator
        array = source._draw(lambda numpy: draw(numpy, shape))
        result = wrap(np.asarray(array).astype(d.numpy, copy=False), d)
    if requires_grad:
        result.requires_grad = True
    return result


def _floating(where: str, dtype: Any) -> dtype_:
    d = _dtype.get_default_dtype() if dtype is None else _dtype.as_dtype(dtype, where)
    if not d.is_floating_point:
        message = f"[{where}] argument 'dtype': expected a floating type, got {d!r}."
        raise TypeError(message)
    return d


@overridable
def rand(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return numbers uniform in [0, 1).

    Parameters
    ----------
    *size
        The shape, as numbers or as one sequence.
    generator
        Source of the numbers; the default generator otherwise.
    dtype
        Type of the elements; the default floating type otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Of `size`, floating.
    """
    d = _floating("rand", dtype)

    def draw(source: np.random.Generator, shape: tuple[int, ...]) -> Any:
        # Narrow types are drawn in float32 straight away, so that rounding cannot give 1.
        values = source.random(shape, np.float64 if d is _dtype.float64 else np.float32)
        if d.itemsize < 4:
            below_one = 1 - _dtype.finfo(d).eps / 2
            values = np.minimum(values, np.float32(below_one))
        return values

    return _sampled("rand", size, draw, d, device, requires_grad, generator)


@overridable
def randn(
    *size: Any,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return numbers of the normal distribution with mean 0 and variance 1.

    Parameters
    ----------
    *size
        The shape, as numbers or as one sequence.
    generator
        Source of the numbers; the default generator otherwise.
    dtype
        Type of the elements; the default floating type otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Of `size`, floating or complex.
    """
    d = _floating("randn", dtype)
    return _sampled(
        "randn", size, lambda g, s: g.standard_normal(s), d, device, requires_grad, generator
    )


@overridable
def randint(
    low: Any = None,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return integers from `low` (0 if left out) up to, not with, `high`.

    Parameters
    ----------
    low
        Least number; the only one given is `high`.
    high
        Number that is not reached.
    size
        The shape.
    generator
        Source of the numbers; the default generator otherwise.
    dtype
        Type of the elements; int64 otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Of `size`.

    Raises
    ------
    RuntimeError
        `high` is not above `low`.
    ValueError
        `dtype` does not hold all of them.
    TypeError
        There is no `size` or no `high`.
    """
    if size is None:  # randint(high, size)
        low, high, size = None, low, high
    elif high is None:  # randint(high, size=size)
        low, high = None, low
    if high is None or size is None:
        message = "[randint] expected (high, size) or (low, high, size)."
        raise TypeError(message)
    low, high = _whole("low", 0 if low is None else low), _whole("high", high)
    d = _dtype.int64 if dtype is None else _dtype.as_dtype(dtype, "randint")
    if d.category == _dtype.INTEGER and low < high:
        limits = _dtype.iinfo(d)
        if low < limits.min or high - 1 > limits.max:
            message = (
                f"[randint] expected low and high from {limits.min} to {limits.max + 1}, the "
                f"range of {d!r}, got low={low}, high={high}."
            )
            raise ValueError(message)
    if high <= low:
        message = f"[randint] expected low < high, got low={low}, high={high}."
        raise RuntimeError(message)
    return _sampled(
        "randint",
        (size,),
        lambda g, s: g.integers(low, high, s, np.uint64 if d is _dtype.uint64 else np.int64),
        d,
        device,
        requires_grad,
        generator,
        _dtype.int64,
    )


def _whole(argument: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        reject("randint", argument, "int", value)


@overridable
def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return the integers from 0 to n - 1 in random order.

    Parameters
    ----------
    n
        How many.
    generator
        Source of the numbers; the default generator otherwise.
    dtype
        Type of the elements; int64 otherwise.
    device
        Device of the result; the default device otherwise.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Vector of `n` elements.
    """
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


def _like(where: str, input_: Any, dtype: Any, device: Any) -> tuple[tuple[int, ...], Any, Any]:
    if not isinstance(input_, Tensor):
        reject(where, "input", "Tensor", input_)
    return (
        tuple(input_.shape),
        input_.dtype if dtype is None else dtype,
        input_.device if device is None else device,
    )


@overridable
def rand_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return uniform numbers of the shape, type and device of `input`.

    Parameters
    ----------
    input
        Tensor whose shape, type and device are taken.
    generator
        Source of the numbers; the default generator otherwise.
    dtype
        Another type.
    device
        Another device.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Of the shape of `input`, on new memory.
    """
    size, d, where = _like("rand_like", input, dtype, device)
    return rand(size, generator=generator, dtype=d, device=where, requires_grad=requires_grad)


@overridable
def randn_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return normal numbers of the shape, type and device of `input`.

    Parameters
    ----------
    input
        Tensor whose shape, type and device are taken.
    generator
        Source of the numbers; the default generator otherwise.
    dtype
        Another type.
    device
        Another device.
    requires_grad
        Whether operations on the result are recorded.

    Returns
    -------
    Tensor
        Of the shape of `input`, on new memory.
    """
    size, d, where = _like("randn_like", input, dtype, device)
    return randn(size, generator=generator, dtype=d, device=where, requires_grad=requires_grad)


@overridable
def randint_like(
    input: Tensor,
    low: Any,
    high: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """Return integers from `low` (0 if left out) up to `high`, in shape and type of `input`.

    Parameters
    ----------
    input
        Tensor whose shape, type and device are taken.
    low
        Least number; the only one given is `high`.
    high
        Number that is not reached.
    generator
        Source of the numbers; the default generator otherwise.
    dtype
        Another type.
    device
        Another device.

    Returns
    -------
    Tensor
        Of the shape of `input`, on new memory.
    """
    size, d, where = _like("randint_like", input, dtype, device)
    return randint(low, high, size, generator=generator, dtype=d, device=where)
