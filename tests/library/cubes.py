"""An operator that several tests use."""

from __future__ import annotations

from typing import Any

import tensorplay as tp
from tensorplay import Tensor
from tensorplay.library import custom_op


def x64(*values: float, requires_grad: bool = True) -> Tensor:
    return tp.tensor(values, dtype=tp.float64, requires_grad=requires_grad)


def make_cube(name: str) -> Any:
    """Return an opaque cube with a formula that is differentiable again."""

    @custom_op(name, mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return tp.tensor(x.numpy() ** 3)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x

    cube.register_autograd(backward, setup_context=setup)
    return cube
