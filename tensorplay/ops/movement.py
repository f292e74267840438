"""Views of a whole tensor: another shape, another order of dimensions, repetition without a copy.

A result annotated ``Tensor(a)`` shares the memory of its input. Backward formulas read shapes only,
so that none of these operators keeps its input alive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorplay._methods import attach
from tensorplay._tensor import Spec, Tensor, spec_of, twin_of
from tensorplay.autograd import grad_mode
from tensorplay.ops.arguments import reject
from tensorplay.ops.dims import resolve_size, strides_of, view_strides, wrap_dim, wrap_dims
from tensorplay.ops.dispatch import overridable
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp

__all__ = ["broadcast_tensors", "samples_of", "take_geometry"]

Ints = tuple[int, ...]


def samples_of(*cases: tuple[tuple[int, ...], tuple[Any, ...]]) -> Any:
    """Return samples from pairs of a shape and the arguments after the tensor."""

    def samples(make: Any) -> Iterable[Sample]:
        for shape, rest in cases:
            yield Sample((make(*shape), *rest), name=f"shape{list(shape)}")
        shape, rest = cases[0]
        if len(shape) > 1:
            yield Sample(
                (make(*reversed(shape)).permute(*range(len(shape))[::-1]), *rest), name="transposed"
            )

    return samples


# --- another shape on the same elements -----------------------------------------------------------


def _quick_reshape(x: Any, rest: tuple[Any, ...]) -> Any:
    (shape,) = rest
    if shape.__class__ is not tuple:
        return None
    for size in shape:
        if size.__class__ is not int or size < 0:
            break
    else:
        return x.reshape(shape), rest
    result = x.reshape(shape)
    found = result.shape
    # NumPy takes every negative size for -1.
    return (result, (found,)) if found == shape or min(shape) == -1 else None


def _reshaped_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    """Give a gradient the shape of the input, which had the same elements."""
    return g.reshape(shapes[0])


_RESHAPED = Vjp(lambda g, s: g.reshape(s.specs["input"].shape), arrays=_reshaped_array)


def _reshape_rule(x: Spec, shape: tuple[int, ...]) -> Spec:
    shape = resolve_size("reshape", shape, x.numel)
    return Spec(shape, x.dtype, view_strides(x, shape))


reshape = Primitive(
    "reshape(Tensor(a) input, int[] shape) -> Tensor(a)",
    "The elements in row-major order in another shape: a view where strides allow it, else a copy.",
    lambda x, shape: x.reshape(resolve_size("reshape", shape, x.size)),
    rule=_reshape_rule,
    vjp={"input": _RESHAPED},
    quick=_quick_reshape,
    jvp="linear",
    check_first=False,
    varargs=True,
    samples=samples_of(
        ((2, 3), ((3, 2),)), ((4,), ((2, -1),)), ((), ((1, 1),)), ((0, 2), ((2, 0),))
    ),
)


def _view(x: Tensor, size: Ints) -> Any:
    shape = resolve_size("view", size, x._array.size)
    if x.is_meta or x.is_cuda or not x._array.flags.c_contiguous:
        spec = spec_of(x)
        if view_strides(spec, shape) is None:
            raise RuntimeError(
                f"[view] argument 'size': view size is not compatible with input tensor's size "
                f"{list(x.shape)} and strides {strides_of(spec)}: a dimension of {list(shape)} "
                "spans two separate pieces of memory. Write x.reshape(...)."
            )
    return reshape.run(x, shape)


# Written in terms of reshape so that its history holds for gradients of any layout.
view = Composite(
    "view(Tensor(a) input, int[] size) -> Tensor(a)",
    "The same memory in another shape.",
    _view,
    # Where reshape gives a view, it is this one.
    short=reshape._short,
    function=False,
    varargs=True,
    samples=lambda make: [
        Sample((make(2, 3), (3, 2)), name="shape[2, 3]"),
        Sample((make(2, 6).t(), (3, 2, 2)), name="transposed"),
        Sample((make(0, 3), (3, 0)), name="empty"),
    ],
)

view_as = Composite(
    "view_as(Tensor(a) input, Tensor other) -> Tensor(a)",
    "The same memory in the shape of `other`.",
    lambda x, other: view.apply((x, other.shape)),
    function=False,
    samples=lambda make: [Sample((make(2, 3), make(3, 2)))],
)

reshape_as = Composite(
    "reshape_as(Tensor(a) input, Tensor other) -> Tensor(a)",
    "The elements in the shape of `other`.",
    lambda x, other: reshape.run(x, other._array.shape),
    function=False,
    samples=lambda make: [Sample((make(2, 3), make(6)))],
)


def _flatten(x: Tensor, start_dim: int, end_dim: int) -> Any:
    shape = x._array.shape
    start, end = (wrap_dim("flatten", d, len(shape)) for d in (start_dim, end_dim))
    if start > end:
        raise RuntimeError(
            f"[flatten] argument 'start_dim': start_dim {start_dim} cannot come after "
            f"end_dim {end_dim}."
        )
    return reshape.run(x, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


flatten = Composite(
    "flatten(Tensor(a) input, int start_dim=0, int end_dim=-1) -> Tensor(a)",
    "The dimensions from `start_dim` to `end_dim` made into one.",
    _flatten,
    aliases=(),
    samples=samples_of(((2, 3, 2), (1,)), ((), ()), ((3,), ()), ((2, 0, 3), (0, 1))),
)


def _unflatten(x: Tensor, dim: int, sizes: tuple[int, ...]) -> Any:
    shape = x._array.shape
    dim = wrap_dim("unflatten", dim, len(shape))
    inner = resolve_size("unflatten", sizes, shape[dim] if shape else 1)
    return reshape.run(x, (*shape[:dim], *inner, *shape[dim + 1 :]))


unflatten = Composite(
    "unflatten(Tensor(a) input, int dim, int[] sizes) -> Tensor(a)",
    "Dimension `dim` made into several of the given `sizes`.",
    _unflatten,
    samples=samples_of(((2, 6), (1, (3, -1))), ((4,), (0, (2, 2)))),
)


def _squeezed(x: Any, dim: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the dimensions of size 1 that squeeze removes."""
    dims = range(x.ndim) if dim is None else wrap_dims("squeeze", dim, x.ndim)
    return tuple(d for d in dims if x.ndim and x.shape[d] == 1)


def _quick_squeeze(x: Any, rest: tuple[Any, ...]) -> Any:
    (dim,) = rest
    if dim is None:
        return x.squeeze(_squeezed(x, None)), (None,)
    return (x.squeeze(_squeezed(x, (dim,))), ((dim,),)) if dim.__class__ is int else None


def _squeeze_rule(x: Spec, dim: tuple[int, ...] | None) -> Spec:
    gone = _squeezed(x, dim)
    kept = [d for d in range(x.ndim) if d not in gone]
    strides = strides_of(x)
    return Spec(tuple(x.shape[d] for d in kept), x.dtype, tuple(strides[d] for d in kept))


squeeze = Primitive(
    "squeeze(Tensor(a) input, int[1]? dim=None) -> Tensor(a)",
    "Without the dimensions of size 1, or without those of them that `dim` names.",
    lambda x, dim: x.squeeze(_squeezed(x, dim)),
    rule=_squeeze_rule,
    vjp={"input": _RESHAPED},
    quick=_quick_squeeze,
    jvp="linear",
    check_first=False,
    samples=samples_of(((1, 3, 1), ()), ((1, 3, 1), (-1,)), ((2, 1), (0,)), ((1,), ()), ((), ())),
)


def _unsqueeze_rule(x: Spec, dim: int) -> Spec:
    dim = wrap_dim("unsqueeze", dim, x.ndim + 1)
    strides = strides_of(x)
    step = strides[dim] * x.shape[dim] if dim < x.ndim else 1
    return Spec(
        (*x.shape[:dim], 1, *x.shape[dim:]), x.dtype, (*strides[:dim], step, *strides[dim:])
    )


unsqueeze = Primitive(
    "unsqueeze(Tensor(a) input, int dim) -> Tensor(a)",
    "With a dimension of size 1 inserted at `dim`.",
    np.expand_dims,
    rule=_unsqueeze_rule,
    vjp={"input": _RESHAPED},
    quick=lambda x, rest: (np.expand_dims(x, *rest), rest) if rest[0].__class__ is int else None,
    jvp="linear",
    check_first=False,
    samples=samples_of(((2, 3), (1,)), ((2, 3), (-1,)), ((), (0,)), ((0, 2), (0,))),
)


# --- another order of dimensions ------------------------------------------------------------------


def _permutation(x: Any, dims: tuple[int, ...]) -> tuple[int, ...]:
    if len(dims) != x.ndim:
        raise RuntimeError(
            f"[permute] argument 'dims': the number of dimensions in the tensor input ({x.ndim}) "
            f"does not match the length of the desired ordering of dimensions ({len(dims)})."
        )
    return wrap_dims("permute", dims, x.ndim)


def _quick_permute(x: Any, rest: tuple[Any, ...]) -> Any:
    (dims,) = rest
    if dims.__class__ is not tuple or len(dims) != x.ndim:
        return None
    for dim in dims:
        if dim.__class__ is not int:
            return None
    return x.transpose(dims), rest


def _permute_rule(x: Spec, dims: tuple[int, ...]) -> Spec:
    order = _permutation(x, dims)
    strides = strides_of(x)
    return Spec(tuple(x.shape[d] for d in order), x.dtype, tuple(strides[d] for d in order))


def _inverse(dims: Sequence[int]) -> tuple[int, ...]:
    order = [0] * len(dims)
    for place, dim in enumerate(dims):
        order[dim % len(dims)] = place
    return tuple(order)


permute = Primitive(
    "permute(Tensor(a) input, int[] dims) -> Tensor(a)",
    "The dimensions in the order `dims`.",
    lambda x, dims: x.transpose(dims),
    rule=_permute_rule,
    vjp={
        "input": Vjp(
            lambda g, s: g.permute(_inverse(s.dims)),
            arrays=lambda g, args, shapes, out: g.transpose(_inverse(args[1])),
        )
    },
    quick=_quick_permute,
    jvp="linear",
    check_first=False,
    varargs=True,
    samples=samples_of(
        ((2, 3, 4), ((2, 0, 1),)), ((2, 3), ((-1, 0),)), ((), ((),)), ((0, 2), ((1, 0),))
    ),
)


def _transpose_rule(x: Spec, dim0: int, dim1: int) -> Spec:
    a, b = (wrap_dim("transpose", d, x.ndim) for d in (dim0, dim1))
    order = list(range(x.ndim))
    if order:
        order[a], order[b] = b, a
    return _permute_rule(x, tuple(order))


def _transpose(x: Any, dim0: int, dim1: int) -> Any:
    if not x.ndim and not {dim0, dim1} <= {0, -1}:
        raise ValueError  # the rule words it
    return x.swapaxes(dim0, dim1) if x.ndim else x


transpose = Primitive(
    "transpose(Tensor(a) input, int dim0, int dim1) -> Tensor(a)",
    "Dimensions `dim0` and `dim1` exchanged.",
    _transpose,
    rule=_transpose_rule,
    vjp={
        "input": Vjp(
            lambda g, s: g.transpose(s.dim0, s.dim1),
            arrays=lambda g, args, shapes, out: g.swapaxes(args[1], args[2]) if g.ndim else g,
        )
    },
    quick=lambda x, rest: (
        (x.swapaxes(*rest), rest) if rest[0].__class__ is int and rest[1].__class__ is int else None
    ),
    jvp="linear",
    check_first=False,
    aliases=("swapaxes", "swapdims"),
    samples=samples_of(((2, 3), (0, 1)), ((2, 3, 4), (-1, 0)), ((), (0, -1)), ((0, 2), (0, 1))),
)


def _t(x: Tensor) -> Any:
    if x.ndim > 2:
        raise RuntimeError(
            f"[t] argument 'input': expected a tensor with <= 2 dimensions, got {x.ndim}. "
            "Write x.transpose(dim0, dim1)."
        )
    return transpose.run(x, 0, x.ndim - 1) if x.ndim else view.apply((x, ()))


t = Composite(
    "t(Tensor(a) input) -> Tensor(a)",
    "Transpose of a matrix; a vector or 0-d tensor as it is.",
    _t,
    samples=samples_of(((2, 3), ()), ((3,), ()), ((), ())),
)


def _movedim(x: Tensor, source: tuple[int, ...], destination: tuple[int, ...]) -> Any:
    if len(source) != len(destination):
        raise RuntimeError(
            f"[movedim] Invalid source or destination dims: source ({len(source)} dims) should "
            f"contain the same number of dims as destination ({len(destination)} dims)."
        )
    taken = wrap_dims("movedim", source, x.ndim)
    places = wrap_dims("movedim", destination, x.ndim)
    order = [d for d in range(x.ndim) if d not in taken]
    for place, dim in sorted(zip(places, taken, strict=True)):
        order.insert(place, dim)
    return permute.run(x, tuple(order) if x.ndim else ())


movedim = Composite(
    "movedim(Tensor(a) input, int[1] source, int[1] destination) -> Tensor(a)",
    "Dimensions `source` moved to the places `destination`, the others in their old order.",
    _movedim,
    aliases=("moveaxis",),
    samples=samples_of(((2, 3, 4), (0, -1)), ((2, 3, 4), ((0, 1), (2, 0)))),
)


def _matrix_only(where: str, x: Tensor) -> None:
    if x.ndim < 2:
        raise RuntimeError(
            f"[{where}] only supported on matrices or batches of matrices, got a {x.ndim}-D tensor."
        )


def _T(self: Tensor) -> Any:  # noqa: N802 - the field's spelling
    """Reverse the order of all dimensions; the transpose of a matrix."""
    return permute.run(self, tuple(range(self.ndim))[::-1])


def _mT(self: Tensor) -> Any:  # noqa: N802 - the field's spelling
    """Exchange the last two dimensions: the transpose of each matrix."""
    _matrix_only("mT", self)
    return transpose.run(self, -2, -1)


def _mH(self: Tensor) -> Any:  # noqa: N802 - the field's spelling
    """Give the conjugate transpose of each matrix."""
    _matrix_only("mH", self)
    result: Any = transpose.apply((self, -2, -1))
    return result.conj() if self._dtype.is_complex else result


for _name, _property in {"T": _T, "mT": _mT, "mH": _mH, "H": _mH}.items():
    attach(_name, property(_property))


# --- another geometry in place --------------------------------------------------------------------


def take_geometry(self: Tensor, view: Tensor) -> Tensor:
    """Make `self` what `view`, a view of all its elements, is; the elements stay where they are."""
    if view._base is self:
        # Other views of `self` say how to make them from what it was: that becomes their base.
        old = twin_of(self, Tensor)
        self._base = old
    else:
        self._base = view._base
    self._recipe, self._seen = view._recipe, view._seen
    self._array, self._tangent = view._array, view._tangent
    self._grad_fn, self._output_nr = view._grad_fn, view._output_nr
    self._bump_version()
    return self


def _attach_inplace(operator: Primitive | Composite, *names: str) -> None:
    """Attach the in-place form of a view that keeps all elements, under each of `names`."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.requires_grad and self.is_leaf and grad_mode.is_grad_enabled():
            raise RuntimeError(
                f"[{operator.name}_] a leaf Variable that requires grad is being used in an "
                f"in-place operation. Write the out-of-place form `{operator.name}`."
            )
        return take_geometry(self, operator(self, *args, **kwargs))

    for name in names:
        method.__name__ = f"{name}_"
        method.__qualname__ = f"Tensor.{name}_"
        method.__doc__ = f"In-place form of `{operator.name}`: {operator.doc}"
        attach(f"{name}_", overridable(method))


_attach_inplace(squeeze, "squeeze")
_attach_inplace(unsqueeze, "unsqueeze")
_attach_inplace(transpose, "transpose", "swapaxes", "swapdims")
_attach_inplace(t, "t")


# --- repetition -----------------------------------------------------------------------------------


def _expanded(x: Any, size: Ints) -> Ints:
    lead = len(size) - x.ndim
    if lead < 0:
        raise RuntimeError(
            f"[expand] the number of sizes provided ({len(size)}) must be greater or equal to the "
            f"number of dimensions in the tensor ({x.ndim})."
        )
    result = []
    for dim, wanted in enumerate(size):
        present = x.shape[dim - lead] if dim >= lead else 1
        if wanted < -1 or (wanted == -1 and dim < lead):
            raise RuntimeError(
                f"[expand] the expanded size of the tensor ({wanted}) isn't allowed in "
                f"dimension {dim}."
            )
        if present not in (1, wanted) and wanted != -1:
            raise RuntimeError(
                f"[expand] The expanded size of the tensor ({wanted}) must match the existing size "
                f"({present}) at non-singleton dimension {dim}. Target sizes: {list(size)}. "
                f"Tensor sizes: {list(x.shape)}."
            )
        result.append(present if wanted == -1 else wanted)
    return tuple(result)


def _expand_rule(x: Spec, size: Ints) -> Spec:
    shape = _expanded(x, size)
    lead = len(shape) - x.ndim
    steps = (0,) * lead + strides_of(x)
    old = (1,) * lead + x.shape
    strides = tuple(0 if a != b else s for a, b, s in zip(old, shape, steps, strict=True))
    return Spec(shape, x.dtype, strides)


def _expand(x: Any, size: Ints) -> Any:
    out = np.broadcast_to(x, _expanded(x, size))
    # NumPy guards against writes that hit memory twice; `check_writable` does so for tensors.
    if x.flags.writeable and out is not x:
        out.flags.writeable = True
    return out


def _quick_expand(x: Any, rest: tuple[Any, ...]) -> Any:
    (size,) = rest
    if size.__class__ is not tuple:
        return None
    for wanted in size:
        if wanted.__class__ is not int:
            return None
    # NumPy has its own strides for arrays without elements.
    return None if 0 in _expanded(x, size) else (_expand(x, size), rest)


expand = Primitive(
    "expand(Tensor(a) input, int[] size) -> Tensor(a)",
    "Dimensions of size 1 repeated to `size` without a copy; -1 keeps a size.",
    _expand,
    rule=_expand_rule,
    # What was repeated is summed as after broadcasting.
    vjp={"input": Vjp(lambda g, s: g, arrays=lambda g, args, shapes, out: g)},
    quick=_quick_expand,
    jvp="linear",
    check_first=False,
    function=False,
    varargs=True,
    samples=samples_of(
        ((2, 1), ((3, -1, 4),)),
        ((3,), ((2, 3),)),
        ((), ((2, 2),)),
        ((1, 0), ((2, 0),)),
        ((1,), ((0,),)),
    ),
)

expand_as = Composite(
    "expand_as(Tensor(a) input, Tensor other) -> Tensor(a)",
    "Repeated to the shape of `other` without a copy.",
    lambda x, other: expand.run(x, other._array.shape),
    function=False,
    samples=lambda make: [Sample((make(2, 1), make(2, 3)))],
)

broadcast_to = Composite(
    "broadcast_to(Tensor(a) input, int[] size) -> Tensor(a)",
    "Repeated to `size` without a copy.",
    expand.run,
    samples=samples_of(((2, 1), ((2, 3),)), ((), ((2,),))),
)


@overridable
def broadcast_tensors(*tensors: Tensor) -> tuple[Any, ...]:
    """Return `tensors` expanded to the shape that they broadcast to.

    Parameters
    ----------
    *tensors
        The tensors.

    Returns
    -------
    tuple of Tensor
        Views of one shape.

    Raises
    ------
    RuntimeError
        They do not broadcast together.
    TypeError
        One is no tensor.

    Examples
    --------
    >>> import tensorplay as tp
    >>> a, b = tp.broadcast_tensors(tp.ones(3, 1), tp.zeros(2))
    >>> a.shape, b.shape
    (Size([3, 2]), Size([3, 2]))
    """
    from tensorplay.ops.elementwise import broadcast_shapes

    for x in tensors:
        if not isinstance(x, Tensor):
            reject("broadcast_tensors", "tensors", "Tensor", x, "Write broadcast_tensors(*xs).")
    if not tensors:
        return ()
    shape = broadcast_shapes("broadcast_tensors", *(tuple(x.shape) for x in tensors))
    return tuple(expand.run(x, shape) for x in tensors)
