"""Samples as a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorplay._creation import as_tensor, tensor
from tensorplay._dlpack import from_numpy
from tensorplay._dtype import float64
from tensorplay._tensor import Tensor
from tensorplay.ops.joining import stack
from tensorplay.ops.kinds import checked

__all__ = ["default_collate", "default_convert"]


def default_convert(data: Any) -> Any:
    """Return a sample with its arrays as tensors; what is none stays as it is.

    Parameters
    ----------
    data
        The sample.

    Returns
    -------
    object
        Of its structure.
    """
    if isinstance(data, (np.ndarray, np.generic)) and data.dtype.kind not in "SUO":
        return as_tensor(data)
    if isinstance(data, Mapping):
        return {key: default_convert(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(default_convert, data))
    if isinstance(data, (list, tuple)):
        return [default_convert(value) for value in data]
    return data


@checked
def default_collate(batch: Sequence[Any]) -> Any:
    """Return a batch of samples of one structure: tensors are stacked, numbers become a tensor.

    Parameters
    ----------
    batch
        Samples: tensors, arrays, numbers, texts, or mappings, tuples and lists of such.

    Returns
    -------
    object
        Of the structure of a sample.

    Raises
    ------
    TypeError
        A sample contains something else.
    RuntimeError
        Samples have other shapes or lengths than each other.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        found: Any = stack(list(batch))
        return found
    if isinstance(first, (np.ndarray, np.generic)) and first.dtype.kind not in "SUO":
        return stack([from_numpy(np.array(value)) for value in batch])
    if isinstance(first, (bool, int, complex)):
        return tensor(list(batch))
    if isinstance(first, float):
        return tensor(list(batch), dtype=float64)
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, (tuple, list)):
        if any(len(sample) != len(first) for sample in batch):
            message = (
                "[default_collate] argument 'batch': each element in list of batch should be of "
                f"equal size, got lengths {sorted({len(sample) for sample in batch})}."
            )
            raise RuntimeError(message)
        parts = [default_collate(list(part)) for part in zip(*batch, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else parts
    message = (
        "[default_collate] argument 'batch': expected tensors, arrays, numbers, texts, mappings or "
        f"lists, got {type(first).__name__}. Pass collate_fn."
    )
    raise TypeError(message)
