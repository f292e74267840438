"""Batching rules of the operators, one per family.

A rule gets a `Call` and returns the results with the dimensions of the batch in front. Shapes and
types of one sample are checked before, and the results after. Where a rule raises `NoRule`, and for
the operators in `SAMPLE_BY_SAMPLE`, the samples are computed one after the other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd.batched import BatchedTensor, levels_of, physical
from tensorplay.ops.batching import Call, NoRule, Rule
from tensorplay.ops.operator import OPERATORS
from tensorplay.ops.primitive import Primitive

__all__ = ["RULES", "SAMPLE_BY_SAMPLE", "batched_with"]

RULES: dict[str, Rule] = {}


def _register(rule: Rule, *names: str) -> None:
    RULES.update(dict.fromkeys(names, rule))


def _tensors(call: Call) -> dict[str, Any]:
    """Return the arguments that are tensors, by name."""
    pairs = zip(call.operator.names, call.values, strict=True)
    return {name: value for name, value in pairs if isinstance(value, Tensor)}


# --- elementwise ----------------------------------------------------------------------------------


def _elementwise(call: Call) -> Any:
    """Operands broadcast against each other, and so do their batches."""
    tensors = _tensors(call)
    ndim = max(t.ndim for t in tensors.values())
    return call.run(**{name: call.padded(t, ndim) for name, t in tensors.items()})


def _copy(call: Call) -> Any:
    """Give the first operand all samples, as the result has its shape."""
    ndim = call.ndim("input")
    return call.run(input=call.full("input"), src=call.padded(call["src"], ndim))


def _where(call: Call) -> Any:
    if call["input"] is None:
        message = (
            "[where] vmap: the positions where a condition holds differ in number between the "
            "samples. Write where(condition, a, b)."
        )
        raise RuntimeError(message)
    return _elementwise(call)


def _masked_fill(call: Call) -> Any:
    """Choose where the value differs between the samples: it may be a single number only."""
    if not call.is_batched("value"):
        ndim = max(call.ndim("input"), call.ndim("mask"))
        return call.run(
            input=call.padded(call["input"], ndim), mask=call.padded(call["mask"], ndim)
        )
    ndim = max(call.ndim("input"), call.ndim("mask"))
    operands = [call.padded(call[name], ndim) for name in ("mask", "value", "input")]
    return OPERATORS["where"].apply(tuple(operands))


_LINEAR_ELEMENTWISE = (
    "add", "sub", "neg", "conj", "real", "imag", "sgn", "abs", "angle", "complex", "polar", "clone",
    "_contiguous", "_cast",
)  # fmt: skip

for _name, _operator in OPERATORS.items():
    if isinstance(_operator, Primitive) and _operator.jvp == "elementwise":
        _register(_elementwise, _name)
_register(_elementwise, *_LINEAR_ELEMENTWISE)
_register(_copy, "copy")
_register(_where, "where")
_register(_masked_fill, "masked_fill")


# --- operators on the last dimensions -------------------------------------------------------------


def _trailing(call: Call) -> Any:
    """Call the operator, which leaves the dimensions in front alone."""
    return call.run(input=call.full("input"))


def _matrices(call: Call) -> Any:
    """Call the operator, which takes batches of matrices itself."""
    return call.run(**{name: call.full(name) for name in _tensors(call)})


def _solve(call: Call) -> Any:
    """Call the operator, which takes batches of matrices that broadcast against each other."""
    ndim = max(call.ndim("A"), call.ndim("B"))
    return call.run(A=call.padded(call["A"], ndim), B=call.padded(call["B"], ndim))


def _one_hot(call: Call) -> Any:
    if call["num_classes"] < 0:
        message = "[one_hot] vmap: the number of classes depends on values. Pass num_classes."
        raise RuntimeError(message)
    return call.run(tensor=call.full("tensor"))


_register(_trailing, "tril", "triu", "view_as_real", "view_as_complex", "pad", "_max_pool")
_register(
    _matrices,
    *("linalg_inv", "_slogdet", "linalg_det", "linalg_pinv", "_cholesky", "_eig", "_eigh", "_svd"),
    *("_svd_full", "_qr", "_qr_complete", "_sum_at"),
)
_register(_solve, "_solve")
_register(_one_hot, "one_hot")


# --- movement -------------------------------------------------------------------------------------


def _to_shape(parameter: str) -> Rule:
    """Put the shape of the batch before that of the result, which is an argument."""

    def rule(call: Call) -> Any:
        shape = (*call.sizes, *call.out[0].shape)
        return call.run(input=call.full("input"), **{parameter: shape})

    return rule


def _expand(call: Call) -> Any:
    shape = call.out[0].shape
    value = call.padded(call["input"], len(shape))
    return call.run(input=value, size=(*call.sizes, *shape))


def _squeeze(call: Call) -> Any:
    dims, ndim = call["dim"], call.ndim("input")
    shape = call["input"].shape
    if dims is None:
        chosen = [d for d in range(ndim) if shape[d] == 1]
    else:
        chosen = [d % ndim for d in ([dims] if isinstance(dims, int) else dims)] if ndim else []
    return call.run(input=call.full("input"), dim=tuple(d + call.lead for d in chosen))


def _unsqueeze(call: Call) -> Any:
    return call.run(input=call.full("input"), dim=call.shifted(call["dim"], call.ndim("input") + 1))


def _permute(call: Call) -> Any:
    ndim = call.ndim("input")
    dims = [call.shifted(d, ndim) for d in call["dims"]]
    return call.run(input=call.full("input"), dims=(*range(call.lead), *dims))


def _transpose(call: Call) -> Any:
    ndim = call.ndim("input")
    if not ndim:
        return call.full("input")
    return call.run(
        input=call.full("input"),
        dim0=call.shifted(call["dim0"], ndim),
        dim1=call.shifted(call["dim1"], ndim),
    )


def _flip(call: Call) -> Any:
    ndim = call.ndim("input")
    dims = call["dims"]
    dims = [dims] if isinstance(dims, int) else dims
    if not ndim:
        return call.full("input").clone()
    return call.run(input=call.full("input"), dims=tuple(call.shifted(d, ndim) for d in dims))


def _roll(call: Call) -> Any:
    ndim, value = call.ndim("input"), call.full("input")
    dims = call["dims"]
    if not ndim:
        return value.clone()
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        flat = value.reshape((*call.sizes, math.prod(call["input"].shape)))
        return call.run(input=flat, dims=(call.lead,)).reshape(value.shape)
    dims = [dims] if isinstance(dims, int) else dims
    return call.run(input=value, dims=tuple(call.shifted(d, ndim) for d in dims))


def _slice(call: Call) -> Any:
    bounds = {
        "start": (*[0] * call.lead, *call["start"]),
        "stop": (*call.sizes, *call["stop"]),
        "step": (*[1] * call.lead, *call["step"]),
        "shape": (*call.sizes, *call["shape"]),
    }
    return call.run(input=call.full("input"), **bounds)


def _diagonal(call: Call) -> Any:
    ndim = call.ndim("input")
    return call.run(
        input=call.full("input"),
        dim1=call.shifted(call["dim1"], ndim),
        dim2=call.shifted(call["dim2"], ndim),
    )


def _diagonal_adjoint(call: Call) -> Any:
    ndim = len(call["shape"])
    return call.run(
        input=call.full("input"),
        shape=(*call.sizes, *call["shape"]),
        dim1=call.shifted(call["dim1"], ndim),
        dim2=call.shifted(call["dim2"], ndim),
    )


def _sum_to_size(call: Call) -> Any:
    size = tuple(call["size"])
    ones = [1] * (call.ndim("input") - len(size))
    found = call.run(input=call.full("input"), size=(*call.sizes, *ones, *size))
    return found.reshape((*call.sizes, *size))


_register(_to_shape("shape"), "reshape")
_register(_expand, "expand")
_register(_squeeze, "squeeze")
_register(_unsqueeze, "unsqueeze")
_register(_permute, "permute")
_register(_transpose, "transpose")
_register(_flip, "flip")
_register(_roll, "roll")
_register(_slice, "_slice", "_slice_adjoint")
_register(_diagonal, "diagonal")
_register(_diagonal_adjoint, "_diagonal_adjoint")
_register(_sum_to_size, "sum_to_size")


# --- along a dimension ----------------------------------------------------------------------------


def _with_dimension(call: Call, name: str) -> Tensor:
    """Return an argument with all samples, a single number as a vector of one."""
    value = call.full(name)
    return value if call.ndim(name) else value.unsqueeze(-1)


def _along(*operands: str, dim: str = "dim") -> Rule:
    """Work along one dimension of the operands, which lies further back."""

    def rule(call: Call) -> Any:
        values = {
            name: _with_dimension(call, name) for name in operands if isinstance(call[name], Tensor)
        }
        scalar = not call.ndim(operands[0])
        if call[dim] is None:
            raise NoRule
        found = call.run(**values, **{dim: call.shifted(call[dim], call.ndim(operands[0]) or 1)})
        if not scalar:
            return found
        return tuple(map(_as_scalar, found)) if isinstance(found, tuple) else _as_scalar(found)

    def _as_scalar(value: Tensor) -> Tensor:
        keeps = value.ndim and value._array.shape[-1] == 1
        result: Tensor = value.squeeze(-1) if keeps else value
        return result

    def checked(call: Call) -> Any:
        found = rule(call)
        many = isinstance(found, tuple)
        fits = [
            f if f._array.shape == (*call.sizes, *s.shape) else f.reshape((*call.sizes, *s.shape))
            for f, s in zip(found if many else (found,), call.out, strict=True)
        ]
        return tuple(fits) if many else fits[0]

    return checked


def _reduce(call: Call) -> Any:
    """Take a number of dimensions together; by default all of the sample."""
    ndim, dims = call.ndim("input"), call["dim"]
    value = _with_dimension(call, "input")
    if not ndim:
        return call.run(input=value, dim=(call.lead,), keepdim=False)
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        dims = range(ndim)
    dims = [dims] if isinstance(dims, int) else dims
    return call.run(input=value, dim=tuple(call.shifted(d, ndim) for d in dims))


def _over_dims(call: Call) -> Any:
    """Work along several dimensions, each of which lies further back."""
    ndim = call.ndim("input")
    return call.run(input=call.full("input"), dim=tuple(call.shifted(d, ndim) for d in call["dim"]))


def _argmax(call: Call) -> Any:
    if call["dim"] is not None:
        return _ALONG_INPUT(call)
    if not call["input"].numel():
        raise NoRule
    flat = call.full("input").reshape((*call.sizes, -1))
    found = call.run(input=flat, dim=call.lead, keepdim=False)
    return found.reshape((*call.sizes, *call.out[0].shape))


def _index_select(call: Call) -> Any:
    ndim = call.ndim("input")
    if not ndim:
        raise NoRule
    if call.is_batched("index"):
        indices = [*[None] * (call["dim"] % ndim), call["index"].reshape((-1,))]
        return physical(OPERATORS["_index"].apply((call["input"], indices)), call.levels)
    return call.run(input=call.full("input"), dim=call.shifted(call["dim"], ndim))


def _index_add(call: Call) -> Any:
    ndim = call.ndim("input")
    if not ndim:
        raise NoRule
    if call.is_batched("index"):
        indices = [*[None] * (call["dim"] % ndim), call["index"].reshape((-1,))]
        values = call["source"] * call["alpha"]
        put = OPERATORS["index_put"].apply((call["input"], indices, values, True))
        return physical(put, call.levels)
    dim = call.shifted(call["dim"], ndim)
    return call.run(input=call.full("input"), source=call.full("source"), dim=dim)


def _classes(call: Call) -> Any:
    """Work on classes along a dimension of one operand, which lies further back."""
    operands = {name: call.full(name) for name in ("input", "target")}
    return call.run(**operands, dim=call["dim"] + call.lead)


_ALONG_INPUT = _along("input")
_register(
    _ALONG_INPUT,
    *("softmax", "log_softmax", "cumsum", "cumprod", "sort", "topk", "kthvalue", "_median_along"),
    *("_max_along", "_min_along", "unbind", "split_with_sizes"),
)
_register(_along("input", dim="dimension"), "unfold")
_register(_along("input", "index"), "gather")
_register(_along("input", "index", "src"), "scatter", "scatter_add")
_register(
    _reduce,
    *("sum", "mean", "prod", "amax", "amin", "any", "all", "count_nonzero", "var", "std"),
    *("logsumexp", "norm"),
)
_register(_argmax, "argmax", "argmin")
_register(_over_dims, "_fft_c2c")
_register(_ALONG_INPUT, "_fft_r2c", "_fft_c2r_adjoint")
_register(_classes, "_pick_class", "_place_class")
_register(_index_select, "index_select")
_register(_index_add, "index_add")


def _unfold_adjoint(call: Call) -> Any:
    shape = tuple(call["shape"])
    if not shape:  # a number has one window at most, of itself
        only: Any = call.full("input")
        return only.sum(-1)
    return call.run(
        input=call.full("input"),
        shape=(*call.sizes, *shape),
        dimension=call.shifted(call["dimension"], len(shape)),
    )


_register(_unfold_adjoint, "_unfold_adjoint")


# --- joining --------------------------------------------------------------------------------------


def _join(call: Call, joined: list[Tensor] | None = None) -> Any:
    joined = call["tensors"] if joined is None else joined
    tensors = [physical(t, call.levels) for t in joined]
    ndim = len(call.out[0].shape)
    return call.run(tensors=tensors, dim=call.shifted(call["dim"], ndim))


def _cat(call: Call) -> Any:
    # Empty vectors may stand between tensors of any shape; they change nothing.
    ndim = len(call.out[0].shape)
    return _join(call, [t for t in call["tensors"] if t.ndim == ndim])


_register(_join, "stack")
_register(_cat, "cat")


# --- products of matrices -------------------------------------------------------------------------


def _matmul(call: Call) -> Any:
    """Vectors become matrices; the batches are broadcast by the operator itself."""
    left, right = call["input"], call["other"]
    ranks = left.ndim, right.ndim
    ndim = max(*ranks, 2)

    def prepared(value: Tensor, axis: int) -> Any:
        if value.ndim == 1:
            value = value.unsqueeze(axis)
        return call.padded(value, ndim)

    found = call.run(input=prepared(left, 0), other=prepared(right, 1))
    return found.reshape((*call.sizes, *call.out[0].shape)) if 1 in ranks else found


def _einsum(call: Call) -> Any:
    inputs, output = call["equation"].split("->")
    free = [c for c in _LETTERS if c not in call["equation"]]
    if len(free) < call.lead:
        raise NoRule
    letters = "".join(free[: call.lead])
    terms, operands = [], []
    for term, operand in zip(inputs.split(","), call["operands"], strict=True):
        if isinstance(operand, BatchedTensor):
            terms.append(letters + term)
            operands.append(physical(operand, call.levels, expand=False))
        else:
            terms.append(term)
            operands.append(operand)
    return call.run(operands=operands, equation=f"{','.join(terms)}->{letters}{output}")


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

_register(_matmul, "matmul")
_register(_einsum, "_einsum")


# --- convolutions ---------------------------------------------------------------------------------
# They have a batch of their own, which takes in that of vmap where the other operand is the same
# for all samples. Otherwise each sample becomes a group of channels.


def _merged(call: Call, name: str) -> Tensor:
    """Return an operand with the samples in its first dimension."""
    value = call.full(name)
    shape = value._array.shape
    return value.reshape((math.prod(shape[: call.lead + 1]), *shape[call.lead + 1 :]))


def _folded(call: Call, name: str) -> Tensor:
    """Return an operand with the samples in its channels, which are its second dimension."""
    value = call.full(name)
    rows, channels, *rest = value._array.shape[call.lead :]
    count = math.prod(call.sizes)
    stacked = value.reshape((count, rows, channels, *rest)).movedim(0, 1)
    return stacked.reshape((rows, count * channels, *rest))


def _unfolded(call: Call, value: Tensor) -> Tensor:
    """Return a result with the samples, which are in its channels, in front."""
    rows, channels, *rest = call.out[0].shape
    count = math.prod(call.sizes)
    apart = value.reshape((rows, count, channels, *rest)).movedim(1, 0)
    return apart.reshape((*call.sizes, rows, channels, *rest))


def _shares_images(call: Call, name: str) -> bool:
    """Tell whether the samples may become channels of the result instead of groups.

    All channels of the result see the same images, as long as there is one group.
    """
    return call["groups"] == 1 and not call.is_batched(name)


def _convolution(call: Call) -> Any:
    shape = (*call.sizes, *call.out[0].shape)
    if not call.is_batched("weight"):
        return call.run(input=_merged(call, "input")).reshape(shape)
    if _shares_images(call, "input"):
        return _unfolded(call, call.run(weight=_merged(call, "weight")))
    groups = math.prod(call.sizes) * call["groups"]
    found = call.run(input=_folded(call, "input"), weight=_merged(call, "weight"), groups=groups)
    return _unfolded(call, found)


def _convolution_to_input(call: Call) -> Any:
    count, (rows, channels, *rest) = math.prod(call.sizes), call["size"]
    if not call.is_batched("weight"):
        found = call.run(input=_merged(call, "input"), size=(count * rows, channels, *rest))
        return found.reshape((*call.sizes, rows, channels, *rest))
    found = call.run(
        input=_folded(call, "input"),
        weight=_merged(call, "weight"),
        size=(rows, count * channels, *rest),
        groups=count * call["groups"],
    )
    return _unfolded(call, found)


def _convolution_to_weight(call: Call) -> Any:
    count, (channels, *rest) = math.prod(call.sizes), call["size"]
    shape = (*call.sizes, channels, *rest)
    size = (count * channels, *rest)
    if _shares_images(call, "source"):
        return call.run(input=_folded(call, "input"), size=size).reshape(shape)
    found = call.run(
        input=_folded(call, "input"),
        source=_folded(call, "source"),
        size=size,
        groups=count * call["groups"],
    )
    return found.reshape(shape)


_register(_convolution, "_convolution")
_register(_convolution_to_input, "_convolution_to_input")
_register(_convolution_to_weight, "_convolution_to_weight")


# --- indexing by tensors --------------------------------------------------------------------------


def _grid(call: Call, ndim: int) -> list[Tensor]:
    """Return, per level, the numbers of the samples, to index with beside `ndim` dimensions."""
    found = []
    for place, size in enumerate(call.sizes):
        shape = [1] * (call.lead + ndim)
        shape[place] = size
        found.append(wrap(np.arange(size).reshape(shape)))
    return found


class _Layout:
    """Where the dimensions of an indexed tensor go, so that an index runs for all samples.

    The indexed dimensions come first after those of the batch, then the others. In the results
    the dimensions of the index tensors stand there too, and go back where NumPy's rules have them.
    """

    def __init__(self, call: Call, ndim: int) -> None:
        indices, lead = call["indices"], call.lead
        places = [d for d, i in enumerate(indices) if i is not None]
        rest = [d for d in range(ndim) if d not in places]
        given = [indices[d] for d in places]
        wide = max(i.ndim for i in given)
        together = places[-1] - places[0] + 1 == len(places)
        front = places[0] if together else 0
        self.lead = lead
        self.rank = wide + len(rest)  # of the elements that one sample picks
        self.order = [*range(lead), *(lead + d for d in (*places, *rest))]
        first = lead + wide
        self.back = [
            *range(lead),
            *range(first, first + front),
            *range(lead, first),
            *range(first + front, first + len(rest)),
        ]
        self.indices: list[Any] = [*[None] * lead, *given]
        if levels_of(given):
            self.indices = [*_grid(call, wide), *(call.padded(i, wide) for i in given)]

    def turned(self, value: Tensor) -> Tensor:
        """Return an indexed tensor with its dimensions in the order above."""
        return _permuted(value, self.order)

    def restored(self, value: Tensor) -> Tensor:
        """Undo `turned`."""
        return _permuted(value, _inverse(self.order))

    def picked(self, value: Tensor) -> Tensor:
        """Return picked elements with their dimensions where NumPy's rules have them."""
        return _permuted(value, self.back)

    def unpicked(self, value: Tensor) -> Tensor:
        """Undo `picked`."""
        return _permuted(value, _inverse(self.back))


def _permuted(value: Tensor, dims: list[int]) -> Tensor:
    if dims == sorted(dims):
        return value
    found: Tensor = value.permute(dims)
    return found


def _inverse(dims: list[int]) -> list[int]:
    return [dims.index(d) for d in range(len(dims))]


def _index(call: Call) -> Any:
    layout = _Layout(call, call.ndim("input"))
    value = layout.turned(call.full("input"))
    return layout.picked(call.run(input=value, indices=layout.indices))


def _index_adjoint(call: Call) -> Any:
    layout = _Layout(call, len(call["shape"]))
    full = (*call.sizes, *call["shape"])
    found = call.run(
        input=layout.unpicked(call.full("input")),
        indices=layout.indices,
        shape=tuple(full[d] for d in layout.order),
    )
    return layout.restored(found)


def _index_put(call: Call) -> Any:
    layout = _Layout(call, call.ndim("input"))
    values = call.padded(call["values"], layout.rank)
    if isinstance(values, Tensor) and layout.back != sorted(layout.back):
        missing = layout.lead + layout.rank - values.ndim
        values = layout.unpicked(values.reshape((*[1] * missing, *values.shape)))
    value = layout.turned(call.full("input"))
    return layout.restored(call.run(input=value, indices=layout.indices, values=values))


_register(_index, "_index")
_register(_index_adjoint, "_index_adjoint")
_register(_index_put, "index_put")


# --- looking for elements -------------------------------------------------------------------------


def _isin(call: Call) -> Any:
    """Compare with all elements to look for, where those differ between the samples."""
    if not call.is_batched("test_elements"):
        return call.run(elements=call.full("elements"))
    elements, test = call["elements"], call["test_elements"]
    if isinstance(elements, Tensor):
        elements = elements.unsqueeze(-1)
    found = (test.reshape((-1,)) == elements).any(-1)
    return physical(~found if call["invert"] else found, call.levels)


def _searchsorted(call: Call) -> Any:
    sequence, x, sorter = call["sorted_sequence"], call["input"], call["sorter"]
    shared = not call.is_batched("sorted_sequence") and not call.is_batched("sorter")
    if shared and sequence.ndim == 1:
        return call.run(input=call.full("input"))
    values = call.full("input") if isinstance(x, Tensor) else x
    if sequence.ndim == 1:  # in a batch it is searched along the last dimension only
        if not isinstance(x, Tensor):
            values = sequence.new_full((), x)
            values = physical(values, call.levels)
        values = values.reshape((*call.sizes, math.prod(call.out[0].shape)))
    found = call.run(
        sorted_sequence=call.full("sorted_sequence"),
        input=values,
        sorter=None if sorter is None else call.full("sorter"),
    )
    return found.reshape((*call.sizes, *call.out[0].shape))


_register(_isin, "isin")
_register(_searchsorted, "searchsorted")


# --- views by strides -----------------------------------------------------------------------------


def _as_strided(call: Call) -> Any:
    """Each sample gets memory of its own: strides would reach into that of the others."""
    value = call.full("input")
    if not value.numel():
        raise NoRule
    shape = call["input"].shape
    flat = value.reshape((-1, *shape))
    parts = [call.run(input=flat[i].clone(), input_offset=0) for i in range(flat.shape[0])]
    whole = OPERATORS["stack"].apply((parts, 0))
    return whole.reshape((*call.sizes, *call.out[0].shape))


_register(_as_strided, "_as_strided")

# Operators that run sample by sample, and why.
SAMPLE_BY_SAMPLE: dict[str, str] = dict.fromkeys(
    ("_nonzero", "_unique"), "the shape of the result depends on the values"
)
SAMPLE_BY_SAMPLE.update(
    dict.fromkeys(
        ("_dropout_mask", "_standard_normal", "_uniform", "bernoulli", "multinomial"),
        "`vmap(randomness=…)` says which samples share their random numbers",
    )
)
SAMPLE_BY_SAMPLE.update({})


def batched_with(name: str) -> Rule | str | None:
    """Return the rule of an operator, or the reason why there is none."""
    operator: Any = OPERATORS[name]
    if operator.decomposition is not None:
        return "runs its decomposition"
    return RULES.get(name) or SAMPLE_BY_SAMPLE.get(name)
