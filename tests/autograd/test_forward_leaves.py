"""Forward mode never loses a derivative in silence where a tensor leaves the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp

LEAVING: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda a: tp.from_numpy(a.numpy() ** 2),
    "asarray": lambda a: tp.from_numpy(np.asarray(a) ** 2),
    "dlpack": lambda a: tp.from_dlpack(a) ** 2,
    "numpy from dlpack": lambda a: tp.from_numpy(np.from_dlpack(a) ** 2),
}


@pytest.mark.parametrize("way", LEAVING)
def test_a_tensor_with_a_tangent_does_not_leave(way: str) -> None:
    x = tp.ones(3)
    with pytest.raises((RuntimeError, BufferError), match=r"tangent|vmap|batch"):
        tp.func.jvp(LEAVING[way], (x,), (x,))
    with pytest.raises((RuntimeError, BufferError), match=r"tangent|vmap|batch"):
        tp.func.jacfwd(LEAVING[way])(x)


def test_what_is_detached_leaves() -> None:
    x = tp.ones(3)
    out, tangent = tp.func.jvp(lambda a: a * float(a.detach().numpy().sum()), (x,), (x,))
    assert out.tolist() == [3, 3, 3]
    assert tangent.tolist() == [3, 3, 3]
