"""Operators that copy elements to other places: repetition, flips, rolls, triangles, borders."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorplay._tensor import Spec, Tensor
from tensorplay.ops.dims import wrap_dim, wrap_dims
from tensorplay.ops.movement import Ints, expand, reshape, samples_of
from tensorplay.ops.primitive import Composite, Primitive, Vjp

__all__: list[str] = []

# --- repetition -----------------------------------------------------------------------------------


def _repeat(x: Tensor, repeats: Ints) -> Any:
    lead = len(repeats) - x.ndim
    if lead < 0 or any(r < 0 for r in repeats):
        raise RuntimeError(
            f"[repeat] argument 'repeats': expected at least {x.ndim} non-negative numbers, got "
            f"{list(repeats)}: Number of dimensions of repeat dims can not be smaller than number "
            "of dimensions of tensor."
        )
    shape = (1,) * lead + tuple(x.shape)
    pairs = [n for size in shape for n in (1, size)]
    wide = [n for r, size in zip(repeats, shape, strict=True) for n in (r, size)]
    out: Any = reshape.apply(
        (
            expand.apply((reshape.apply((x, pairs)), wide)),
            [r * n for r, n in zip(repeats, shape, strict=True)],
        )
    )
    return out.clone() if all(r == 1 for r in repeats) else out


repeat = Composite(
    "repeat(Tensor input, int[] repeats) -> Tensor",
    "Copies of the tensor side by side, `repeats` along each dimension.",
    _repeat,
    function=False,
    varargs=True,
    samples=samples_of(
        ((2, 3), ((2, 1),)), ((3,), ((2, 2),)), ((), ((3,),)), ((2, 2), ((1, 1),)), ((2,), ((0,),))
    ),
)

tile = Composite(
    "tile(Tensor input, int[] dims) -> Tensor",
    "As ``repeat``; missing leading numbers count as 1.",
    lambda x, dims: _repeat(x, (1,) * (x.ndim - len(dims)) + tuple(dims)),
    varargs=True,
    samples=samples_of(((2, 3), ((2,),)), ((3,), ((2, 2),))),
)


# --- copies in another order ----------------------------------------------------------------------


def _flip_dims(x: Any, dims: Ints) -> Ints:
    wrapped = wrap_dims("flip", dims, x.ndim)
    return wrapped if x.ndim else ()


def _flip_rule(x: Spec, dims: Ints) -> Spec:
    _flip_dims(x, dims)
    return Spec(x.shape, x.dtype)


flip = Primitive(
    "flip(Tensor input, int[1] dims) -> Tensor",
    "The elements of the dimensions `dims` in reverse order.",
    lambda x, dims: np.flip(x, _flip_dims(x, dims)).copy(),
    rule=_flip_rule,
    vjp={"input": Vjp(lambda g, s: g.flip(s.dims))},
    jvp="linear",
    check_first=False,
    varargs=True,
    samples=samples_of(((2, 3), ((0,),)), ((2, 3), ((0, -1),)), ((0, 2), ((0,),)), ((3,), ((),))),
)


def _roll_arguments(x: Any, shifts: Ints, dims: Ints | None) -> tuple[Any, Any]:
    if dims is None or not dims:
        if len(shifts) == 1:
            return shifts[0], None
    elif len(dims) == len(shifts):
        return shifts, tuple(wrap_dim("roll", d, x.ndim) for d in dims)
    raise RuntimeError(
        f"[roll] shifts and dimensions must align, got shifts {list(shifts)} and dims {dims}."
    )


def _roll_rule(x: Spec, shifts: Ints, dims: Ints | None) -> Spec:
    _roll_arguments(x, shifts, dims)
    return Spec(x.shape, x.dtype)


roll = Primitive(
    "roll(Tensor input, int[1] shifts, int[1]? dims=None) -> Tensor",
    "The elements moved on by `shifts` along `dims`, the last to the front; without `dims` along "
    "the flattened tensor.",
    lambda x, shifts, dims: np.roll(x, *_roll_arguments(x, shifts, dims)),
    rule=_roll_rule,
    vjp={"input": Vjp(lambda g, s: g.roll([-n for n in s.shifts], s.dims))},
    jvp="linear",
    check_first=False,
    samples=samples_of(
        ((2, 3), (1,)), ((2, 3), (-1, 1)), ((2, 3), ((1, 2), (0, 1))), ((0, 2), (1, 0))
    ),
)


def _triangular(name: str, side: str, condition: str, function: Any) -> Primitive:
    def rule(x: Any, diagonal: int) -> Spec:
        if x.ndim < 2:
            raise RuntimeError(
                f"[{name}] argument 'input': input tensor must have at least 2 "
                f"dimensions, got {x.ndim}."
            )
        return Spec(x.shape, x.dtype)

    return Primitive(
        f"{name}(Tensor input, int diagonal=0) -> Tensor",
        f"The {side} triangle of each matrix, ``{condition}``, zeros elsewhere.",
        # Diagonals outside of the matrix are all alike, and NumPy's integers have an end.
        lambda x, k: function(x, max(-x.shape[-2] - 1, min(k, x.shape[-1] + 1))),
        rule=rule,
        vjp={"input": Vjp(lambda g, s: getattr(g, name)(s.diagonal))},
        jvp="linear",
        inplace=True,
        samples=samples_of(((3, 4), ()), ((3, 2), (1,)), ((2, 3, 3), (-1,)), ((0, 2), ())),
    )


tril = _triangular("tril", "lower", "column - row <= diagonal", np.tril)
triu = _triangular("triu", "upper", "column - row >= diagonal", np.triu)


def _pad_widths(x: Any, pad: Ints, mode: str) -> list[tuple[int, int]]:
    """Return the widths before and after each dimension; `pad` starts with the last dimension."""
    if mode != "constant":
        raise NotImplementedError(f"[pad] argument 'mode': expected 'constant', got {mode!r}.")
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise RuntimeError(
            f"[pad] argument 'pad': expected an even number of widths, at most {2 * x.ndim}, for a "
            f"{x.ndim}-D tensor, got {len(pad)}: Padding length must be divisible by 2."
        )
    widths = [(0, 0)] * (x.ndim - len(pad) // 2)
    widths += list(zip(pad[-2::-2], pad[::-2], strict=True))
    for dim, (before, after) in enumerate(widths):
        if x.shape[dim] + before + after < 0 or -min(before, 0) - min(after, 0) > x.shape[dim]:
            raise RuntimeError(
                f"[pad] argument 'pad': the widths {before} and {after} resulted in a negative "
                f"output size of dimension {dim} with size {x.shape[dim]}."
            )
    return widths


def _pad_rule(x: Spec, pad: Ints, mode: str, value: float | None) -> Spec:
    widths = _pad_widths(x, pad, mode)
    return Spec(tuple(n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)), x.dtype)


def _pad(x: Any, pad: Ints, mode: str, value: float | None) -> Any:
    widths = _pad_widths(x, pad, mode)
    shape = tuple(n + a + b for n, (a, b) in zip(x.shape, widths, strict=True))
    out = np.full(shape, 0 if value is None else value, x.dtype)
    inner = tuple(slice(max(a, 0), n - max(b, 0)) for n, (a, b) in zip(shape, widths, strict=True))
    kept = tuple(
        slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, widths, strict=True)
    )
    out[inner] = x[kept]
    return out


pad: Primitive = Primitive(
    'pad(Tensor input, int[] pad, str mode="constant", float? value=None) -> Tensor',
    "The tensor with `value` (0) around it: `pad` holds the widths before and after the last "
    "dimension, then the one before it, …; negative widths take away.",
    _pad,
    rule=_pad_rule,
    vjp={"input": Vjp(lambda g, s: pad.apply((g, tuple(-n for n in s.pad), "constant", None)))},
    jvp=lambda t, s: pad.apply((t.input, s.pad, "constant", None)),
    check_first=False,
    method=False,
    samples=samples_of(
        ((2, 3), ((1, 2),)),
        ((2, 3), ((1, 0, 0, 1), "constant", 2.5)),
        ((4, 3), ((-1, 1, 1, -2),)),
        ((0, 2), ((1, 1),)),
    ),
)
