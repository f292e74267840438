"""`vmap`: a function of one sample becomes a function of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorplay._tensor import Tensor
from tensorplay.autograd.batched import BatchedTensor, Level, batch, expose, state
from tensorplay.func.trees import flatten, unflatten
from tensorplay.ops.joining import cat

__all__ = ["vmap"]


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that applies `func` to every sample of a batch.

    Inside, tensors look like one sample, but operators run once for all of them. It may be nested,
    and goes together with all kinds of differentiation.

    Parameters
    ----------
    func
        Function of positional arguments, which may be nested in lists, tuples and dictionaries.
        Keyword arguments are batched along their first dimension.
    in_dims
        Which dimension of the tensors is the batch: a number, None for what all samples share, or
        a structure of these that fits the arguments.
    out_dims
        Where the batch lies in the results: a number, or a structure that fits the results.
    randomness
        ``"error"``: random operators raise; ``"same"``: all samples see the same random numbers;
        ``"different"``: each its own.
    chunk_size
        How many samples to compute at once; all by default.

    Returns
    -------
    function
        Takes and returns batches.

    Raises
    ------
    ValueError
        When called: sizes differ, no argument is batched, or a structure does not fit.
    RuntimeError
        When called: a random operator in mode ``"error"``, or values are read.

    Examples
    --------
    >>> import tensorplay as tp
    >>> tp.func.vmap(tp.dot)(tp.ones(4, 3), tp.ones(4, 3))
    tensor([3., 3., 3., 3.])
    """
    if randomness not in {"error", "same", "different"}:
        message = (
            "[vmap] argument 'randomness': expected 'error', 'same' or 'different', got "
            f"{randomness!r}."
        )
        raise RuntimeError(message)
    if chunk_size is not None and chunk_size < 1:
        message = f"[vmap] argument 'chunk_size': expected a positive number, got {chunk_size}."
        raise ValueError(message)

    @functools.wraps(func)
    def batched(*args: Any, **kwargs: Any) -> Any:
        leaves, dims, structure = _inputs(in_dims, args, kwargs)
        size = _size(leaves, dims)

        def run(part: Sequence[Any], count: int) -> Any:
            return _run(func, structure, part, dims, out_dims, Level(count, randomness))

        if chunk_size is None or chunk_size >= size:
            return run(leaves, size)
        results = []
        for start in range(0, size, chunk_size):
            count = min(chunk_size, size - start)
            part = [
                x if d is None else x.narrow(d, start, count)
                for x, d in zip(leaves, dims, strict=True)
            ]
            results.append(run(part, count))
        return _concatenated(results, out_dims)

    return batched


# --- arguments ------------------------------------------------------------------------------------


def _inputs(in_dims: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return all leaves of the arguments, the batch dimension of each, and their structure."""
    if not args and not kwargs:
        message = "[vmap] got no inputs: expected at least one Tensor to map over."
        raise ValueError(message)
    if not isinstance(in_dims, (int, tuple, list)) or isinstance(in_dims, bool):
        if in_dims is None:
            message = (
                "[vmap] argument 'in_dims': None for all arguments leaves nothing to map over."
            )
        else:
            message = (
                "[vmap] argument 'in_dims': expected an int or a tuple that fits the arguments, "
                f"got {type(in_dims).__name__}."
            )
        raise ValueError(message)  # noqa: TRY004 - the field's kind
    if isinstance(in_dims, (tuple, list)) and len(in_dims) != len(args):
        message = (
            f"[vmap] argument 'in_dims': expected one entry for each of {len(args)} arguments, got "
            f"{len(in_dims)}: in_dims is not compatible with the structure of inputs."
        )
        raise ValueError(message)
    given = in_dims if isinstance(in_dims, (tuple, list)) else (in_dims,) * len(args)
    dims = [d for dim, arg in zip(given, args, strict=True) for d in _spread(dim, arg, "in_dims")]
    dims += _spread(0, kwargs, "in_dims")
    leaves, structure = flatten((args, kwargs))
    return leaves, _checked(leaves, dims, explicit=not isinstance(in_dims, int)), structure


def _spread(dims: Any, value: Any, argument: str) -> list[Any]:
    """Return one entry of `dims` for each leaf of `value`."""
    if dims is None or (isinstance(dims, int) and not isinstance(dims, bool)):
        return [dims] * len(flatten(value)[0])
    fits = False
    pairs: list[tuple[Any, Any]] = []
    if isinstance(dims, (tuple, list)) and isinstance(value, (tuple, list)):
        fits = len(dims) == len(value)
        pairs = list(zip(dims, value, strict=False))
    elif isinstance(dims, Mapping) and isinstance(value, Mapping):
        fits = dims.keys() == value.keys()
        pairs = [(dims[key], value[key]) for key in value] if fits else []
    if not fits:
        message = (
            f"[vmap] argument '{argument}': {dims!r} is not compatible with the structure of "
            f"{type(value).__name__}."
        )
        raise ValueError(message)
    return [d for dim, member in pairs for d in _spread(dim, member, argument)]


def _checked(leaves: list[Any], dims: list[Any], *, explicit: bool) -> list[Any]:
    """Return the dimensions counted from the front; what is no tensor has none."""
    found: list[Any] = []
    for leaf, dim in zip(leaves, dims, strict=True):
        if not isinstance(leaf, Tensor):
            if dim is not None and explicit and dim != 0:
                message = (
                    f"[vmap] argument 'in_dims': got {dim} for an input that is no Tensor but "
                    f"{type(leaf).__name__}. Write None."
                )
                raise ValueError(message)
            found.append(None)
            continue
        if dim is None:
            found.append(None)
            continue
        ndim = leaf.ndim
        if not -ndim <= dim < ndim:
            message = (
                f"[vmap] argument 'in_dims': got in_dim={dim} for an input of dimensionality "
                f"{ndim}, expected one from {-ndim} to {ndim - 1}."
            )
            raise ValueError(message)
        found.append(dim % ndim)
    return found


def _size(leaves: list[Any], dims: list[Any]) -> int:
    sizes = [x.shape[d] for x, d in zip(leaves, dims, strict=True) if d is not None]
    if not sizes:
        message = "[vmap] expected at least one Tensor to map over, got none."
        raise ValueError(message)
    if len(set(sizes)) > 1:
        message = (
            "[vmap] expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{sizes}."
        )
        raise ValueError(message)
    found: int = sizes[0]
    return found


# --- one run --------------------------------------------------------------------------------------


def _run(
    func: Callable[..., Any],
    structure: Any,
    leaves: Sequence[Any],
    dims: Sequence[Any],
    out_dims: Any,
    level: Level,
) -> Any:
    state.levels.append(level)
    try:
        inner = [
            x if d is None else batch(x.movedim(d, 0), (level,))
            for x, d in zip(leaves, dims, strict=True)
        ]
        args, kwargs = unflatten(structure, inner)
        result = func(*args, **kwargs)
    finally:
        state.levels.pop()
    return _outputs(result, out_dims, level)


def _outputs(result: Any, out_dims: Any, level: Level) -> Any:
    """Return the results with the batch where `out_dims` says."""
    leaves, structure = flatten(result)
    dims = _spread(out_dims, result, "out_dims")
    return unflatten(structure, [_output(x, d, level) for x, d in zip(leaves, dims, strict=True)])


def _output(leaf: Any, dim: int | None, level: Level) -> Any:
    if not isinstance(leaf, Tensor):
        message = (
            "[vmap] expected the function to return Tensors, got type "
            f"{type(leaf).__name__} as a return."
        )
        raise ValueError(message)  # noqa: TRY004 - the field's kind
    batched = isinstance(leaf, BatchedTensor) and level in leaf._levels
    if dim is None:
        if batched:
            message = (
                "[vmap] argument 'out_dims': got None for a result that differs between the "
                "samples. Write a number."
            )
            raise ValueError(message)
        return leaf
    if not -leaf.ndim - 1 <= dim <= leaf.ndim:
        message = (
            f"[vmap] argument 'out_dims': got {dim} for a result of dimensionality {leaf.ndim}."
        )
        raise ValueError(message)
    return expose(leaf, (level,)).movedim(0, dim)


def _concatenated(results: list[Any], out_dims: Any) -> Any:
    first, structure = flatten(results[0])
    dims = _spread(out_dims, results[0], "out_dims")
    columns = zip(*(flatten(r)[0] for r in results), strict=True)
    return unflatten(
        structure,
        [
            f if d is None else cat.apply((list(c), d))
            for f, d, c in zip(first, dims, columns, strict=True)
        ],
    )
