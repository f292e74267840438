"""Operators that copy elements to other places: repetition, flips, rolls, triangles, borders."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._tensor import Spec, Tensor
from tensorplay.ops.arguments import check_held
from tensorplay.ops.dims import wrap_dim, wrap_dims
from tensorplay.ops.joining import cat
from tensorplay.ops.movement import Ints, expand, reshape, samples_of
from tensorplay.ops.parts import narrow
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
        if not x.ndim:  # not as elsewhere, where a number has the dimensions 0 and -1
            raise IndexError(
                f"[roll] argument 'dims': expected none for a tensor without dimensions, got "
                f"{list(dims)}. Leave dims away."
            )
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


MODES = ("constant", "reflect", "replicate", "circular")


def _pad_widths(x: Any, pad: Ints, mode: str) -> list[tuple[int, int]]:
    """Return the widths before and after each dimension; `pad` starts with the last dimension."""
    if mode not in MODES:
        raise NotImplementedError(
            f"[pad] argument 'mode': expected one of {', '.join(MODES)}, got {mode!r}."
        )
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise RuntimeError(
            f"[pad] argument 'pad': expected an even number of widths, at most {2 * x.ndim}, for a "
            f"{x.ndim}-D tensor, got {len(pad)}: Padding length must be divisible by 2."
        )
    widths = [(0, 0)] * (x.ndim - len(pad) // 2)
    widths += list(zip(pad[-2::-2], pad[::-2], strict=True))
    for dim, (before, after) in enumerate(widths):
        size = x.shape[dim]
        if size + before + after < 0 or -min(before, 0) - min(after, 0) > size:
            raise RuntimeError(
                f"[pad] argument 'pad': the widths {before} and {after} resulted in a negative "
                f"output size of dimension {dim} with size {size}."
            )
        # What is there to continue: all but the edge itself, any number, or one turn.
        inner = size + min(before, 0) + min(after, 0)
        most = {"reflect": max(inner - 1, 0), "circular": inner, "replicate": 0}.get(mode)
        if mode == "replicate" and inner:
            most = None
        if most is not None and max(before, after) > most:
            raise RuntimeError(
                f"[pad] argument 'pad': padding size should be at most {most} in mode {mode!r} for "
                f"dimension {dim} with size {inner}, got {before} and {after}."
            )
    return widths


def _pad_spec(x: Any, pad: Ints, mode: str, value: float | None) -> Spec:
    widths = _pad_widths(x, pad, mode)
    d = x.dtype if isinstance(x, Spec) else _dtype.from_numpy_dtype(x.dtype)
    if value is not None and mode == "constant":
        check_held("pad", value, d)
    return Spec(tuple(n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)), d)


def _pad(x: Any, pad: Ints, mode: str, value: float | None) -> Any:
    shape = _pad_spec(x, pad, mode, value).shape
    widths = _pad_widths(x, pad, mode)
    out = np.full(shape, 0 if value is None else value, x.dtype)
    inner = tuple(slice(max(a, 0), n - max(b, 0)) for n, (a, b) in zip(shape, widths, strict=True))
    kept = tuple(
        slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, widths, strict=True)
    )
    out[inner] = x[kept]
    return out


class Pad(Primitive):
    """Padding with a number; in the other modes, the joined parts of the tensor itself."""

    def apply(self, args: tuple[Any, ...]) -> Any:
        """Run the operator."""
        x, widths, mode = args[:3]
        if mode == "constant" or not isinstance(x, Tensor):
            return super().apply(args)
        widths, mode = self.plan[1][2](widths), self.plan[2][2](mode)
        pairs = _pad_widths(x, widths, mode)
        if not any(n for pair in pairs for n in pair):
            return x.clone()
        for dim, (before, after) in enumerate(pairs):
            if before or after:
                x = _continued(x, dim, before, after, mode)
        return x


def _continued(x: Tensor, dim: int, before: int, after: int, mode: str) -> Any:
    """Return `x` longer by `before` and `after` in `dim`, by what it holds itself."""
    size = x.shape[dim] + min(before, 0) + min(after, 0)
    x = narrow.apply((x, dim, max(-before, 0), size))
    before, after = max(before, 0), max(after, 0)
    if mode == "circular":
        parts = ((size - before, before), (0, after))
    elif mode == "reflect":
        parts = ((1, before), (size - 1 - after, after))
    else:
        parts = ((0, 1), (size - 1, 1))
    joined = []
    for (start, length), width in zip(parts, (before, after), strict=True):
        part = narrow.apply((x, dim, start, length)) if width else None
        if part is not None and mode == "reflect":
            part = flip.apply((part, (dim,)))
        elif part is not None and mode == "replicate":
            part = expand.apply((part, [width if d == dim else -1 for d in range(x.ndim)]))
        joined.append(part)
    return cat.apply(([t for t in (joined[0], x, joined[1]) if t is not None], dim))


pad: Primitive = Pad(
    'pad(Tensor input, int[] pad, str mode="constant", float? value=None) -> Tensor',
    "The tensor with a border of `value` (0), or continued by its own elements in the modes "
    "``reflect``, ``replicate`` and ``circular``: `pad` holds the widths before and after the last "
    "dimension, then the one before it, …; negative widths take away.",
    _pad,
    rule=_pad_spec,
    vjp={"input": Vjp(lambda g, s: pad.apply((g, tuple(-n for n in s.pad), "constant", None)))},
    jvp=lambda t, s: pad.apply((t.input, s.pad, "constant", None)),
    check_first=False,
    method=False,
    samples=samples_of(
        ((2, 3), ((1, 2),)),
        ((2, 3), ((1, 0, 0, 1), "constant", 2.5)),
        ((4, 3), ((-1, 1, 1, -2),)),
        ((0, 2), ((1, 1),)),
        ((2, 4), ((2, 3, 1, 1), "reflect")),
        ((2, 3), ((3, 1, 0, 2), "replicate")),
        ((2, 3), ((3, 1, -1, 1), "circular")),
        ((4,), ((-1, 2), "reflect")),
        ((3,), ((0, 0), "reflect")),
    ),
)
