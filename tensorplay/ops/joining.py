"""Operators that join tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorplay._dtype import dtype
from tensorplay._tensor import Spec, Tensor
from tensorplay.ops.dims import wrap_dim
from tensorplay.ops.elementwise import result_type
from tensorplay.ops.movement import reshape
from tensorplay.ops.parts import split_with_sizes, unbind
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp

__all__: list[str] = []


def _pairs(*shapes: tuple[int, ...], rest: tuple[Any, ...] = ()) -> Any:
    def samples(make: Any) -> Iterable[Sample]:
        yield Sample(([make(*shape) for shape in shapes], *rest), name=f"shapes{list(shapes)}")

    return samples


def _several(*makers: Any) -> Any:
    def samples(make: Any) -> Iterable[Sample]:
        for maker in makers:
            yield from maker(make)

    return samples


def _common_type(where: str, tensors: Sequence[Any]) -> dtype:
    if not tensors:
        raise ValueError(f"[{where}] argument 'tensors': expected a non-empty list of Tensors.")
    return result_type(*tensors)


# --- cat ------------------------------------------------------------------------------------------


def _is_nothing(x: Any) -> bool:
    """Tell whether `x` is an empty vector, which joins with anything."""
    return bool(x.shape == (0,))


def _cat_rule(tensors: Sequence[Any], dim: int) -> Spec:
    kind = _common_type("cat", tensors)
    shapes = [x.shape for x in tensors if not _is_nothing(x)] or [(0,)]
    first = shapes[0]
    if not first:
        raise RuntimeError("[cat] zero-dimensional tensor (at position 0) cannot be concatenated.")
    dim = wrap_dim("cat", dim, len(first))
    for number, shape in enumerate(shapes):
        if len(shape) != len(first):
            raise RuntimeError(
                f"[cat] Tensors must have same number of dimensions: got {len(first)} and "
                f"{len(shape)}."
            )
        for d, (a, b) in enumerate(zip(first, shape, strict=True)):
            if a != b and d != dim:
                raise RuntimeError(
                    f"[cat] Sizes of tensors must match except in dimension {dim}. Expected size "
                    f"{a} but got size {b} for tensor number {number} in the list."
                )
    return Spec((*first[:dim], sum(s[dim] for s in shapes), *first[dim + 1 :]), kind)


def _cat(tensors: Sequence[Any], dim: int) -> Any:
    kind = _common_type("cat", tensors)
    parts = [x for x in tensors if not _is_nothing(x)] or tensors[:1]
    # NumPy would promote by its own lattice.
    return np.concatenate([x.astype(kind.numpy, copy=False) for x in parts], axis=dim)


def _cat_grad(g: Any, s: Any) -> Any:
    specs = s.specs["tensors"]
    sizes = [0 if _is_nothing(x) else x.shape[s.dim] for x in specs]
    parts = split_with_sizes.apply((g, sizes, s.dim))
    return [reshape.apply((p, x.shape)) for p, x in zip(parts, specs, strict=True)]


cat = Primitive(
    "cat(Tensor[] tensors, int dim=0) -> Tensor",
    "The tensors one after the other along the existing dimension `dim`.",
    _cat,
    rule=_cat_rule,
    vjp={"tensors": Vjp(_cat_grad)},
    jvp="linear",
    check_first=False,
    method=False,
    out=True,
    aliases=("concat", "concatenate"),
    samples=_several(
        _pairs((2, 3), (1, 3)),
        _pairs((2, 1), (2, 3), (2, 0), rest=(-1,)),
        _pairs((0,), (2, 2), rest=(1,)),
        _pairs((3,)),
    ),
)


# --- stack ----------------------------------------------------------------------------------------


def _stack_rule(tensors: Sequence[Any], dim: int) -> Spec:
    kind = _common_type("stack", tensors)
    first = tensors[0].shape
    dim = wrap_dim("stack", dim, len(first) + 1)
    for number, x in enumerate(tensors):
        if x.shape != first:
            raise RuntimeError(
                f"[stack] stack expects each tensor to be equal size, but got {list(first)} at "
                f"entry 0 and {list(x.shape)} at entry {number}."
            )
    return Spec((*first[:dim], len(tensors), *first[dim:]), kind)


def _stack(tensors: Sequence[Any], dim: int) -> Any:
    kind = _common_type("stack", tensors)
    return np.stack([x.astype(kind.numpy, copy=False) for x in tensors], axis=dim)


stack = Primitive(
    "stack(Tensor[] tensors, int dim=0) -> Tensor",
    "Tensors of one shape side by side along a new dimension `dim`.",
    _stack,
    rule=_stack_rule,
    vjp={"tensors": Vjp(lambda g, s: list(unbind.apply((g, s.dim))))},
    jvp="linear",
    check_first=False,
    method=False,
    out=True,
    samples=_several(
        _pairs((2, 3), (2, 3)),
        _pairs((2,), (2,), (2,), rest=(-1,)),
        _pairs((), ()),
        _pairs((0, 2), (0, 2)),
    ),
)


def _at_least(ndim: int, x: Tensor) -> Any:
    return reshape.apply((x, (1,) * (ndim - x.ndim) + tuple(x.shape))) if x.ndim < ndim else x


hstack = Composite(
    "hstack(Tensor[] tensors) -> Tensor",
    "Vectors one after the other, other tensors along their second dimension.",
    lambda tensors: cat.apply(
        ([_at_least(1, x) for x in tensors], 0 if tensors and tensors[0].ndim < 2 else 1)
    ),
    method=False,
    samples=_several(_pairs((2,), (3,)), _pairs((2, 1), (2, 2)), _pairs((), ())),
)

vstack = Composite(
    "vstack(Tensor[] tensors) -> Tensor",
    "Tensors one below the other along the first dimension; a vector counts as a row.",
    lambda tensors: cat.apply(([_at_least(2, x) for x in tensors], 0)),
    method=False,
    aliases=("row_stack",),
    samples=_several(_pairs((2,), (2,)), _pairs((2, 2), (1, 2))),
)
