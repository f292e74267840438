"""Products of vectors, matrices and tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorplay import _dtype
from tensorplay._quiet import quietly
from tensorplay._tensor import Spec, Tensor
from tensorplay.ops.arguments import reject
from tensorplay.ops.dims import broadcasts_to, wrap_dim, wrap_dims
from tensorplay.ops.dispatch import overridable
from tensorplay.ops.elementwise import add, broadcast_shapes, result_type
from tensorplay.ops.movement import expand, permute, reshape
from tensorplay.ops.parts import diagonal, diagonal_adjoint
from tensorplay.ops.primitive import Composite, Primitive, Sample, Vjp
from tensorplay.ops.reduction import add_up

__all__ = ["einsum", "tensordot"]


def _pairs(*shapes: tuple[tuple[int, ...], tuple[int, ...]], rest: tuple[Any, ...] = ()) -> Any:
    def samples(make: Any) -> Iterable[Sample]:
        for a, b in shapes:
            yield Sample((make(*a), make(*b), *rest), name=f"shapes{[list(a), list(b)]}")

    return samples


def _adjoint(x: Any) -> Any:
    """Conjugate transpose of each matrix."""
    return _conj(x.transpose(-2, -1))


def _conj(x: Any) -> Any:
    return x.conj() if x.dtype.is_complex else x


# --- matmul ---------------------------------------------------------------------------------------


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape) if hasattr(x, "shape") else ()


def _matmul_rule(x: Any, other: Any) -> Spec:
    a, b = _shape(x), _shape(other)
    if not a or not b:
        raise RuntimeError(
            "[matmul] both arguments to matmul need to be at least 1D, but they are "
            f"{len(a)}D and {len(b)}D. Write x * y."
        )
    if x.dtype != other.dtype:
        raise RuntimeError(
            f"[matmul] expected both arguments to have the same dtype, but got {x.dtype!r} and "
            f"{other.dtype!r}. Write x.to(y.dtype)."
        )
    rows, inner = (a if len(a) > 1 else (1, *a))[-2:]
    other_inner, columns = (b if len(b) > 1 else (*b, 1))[-2:]
    if inner != other_inner:
        raise RuntimeError(
            f"[matmul] mat1 and mat2 shapes cannot be multiplied ({rows}x{inner} and "
            f"{other_inner}x{columns}): got shapes {list(a)} and {list(b)}."
        )
    batch = broadcast_shapes("matmul", a[:-2], b[:-2])
    return Spec((*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())), x.dtype)


def _matmul(x: Any, other: Any) -> Any:
    if not isinstance(x, np.ndarray) or not isinstance(other, np.ndarray) or x.dtype != other.dtype:
        raise ValueError  # the rule words it
    # NumPy multiplies these element by element; float32 is faster and keeps more digits.
    if x.dtype in _dtype.NARROW:
        return np.matmul(x.astype(np.float32), other.astype(np.float32)).astype(x.dtype)
    if x.ndim > 2 and other.ndim == 2 and x.flags.c_contiguous and x.size:
        # One product of matrices instead of one per batch entry.
        return np.matmul(x.reshape(-1, x.shape[-1]), other).reshape(*x.shape[:-1], other.shape[1])
    if x.ndim == 2 and other.ndim == 2:
        return x.dot(other)  # the same product with less of a call around it
    return np.matmul(x, other)


def _quick_matmul(x: Any, other: Any) -> Any:
    return quietly(np.dot, x, other) if x.ndim == 2 and other.ndim == 2 else None


def _matmul_grad_input_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    return g.dot(args[1].T)


def _matmul_grad_other_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    return args[0].T.dot(g)


def _matmul_grad_input(g: Any, s: Any) -> Any:
    """Gradient of the first factor; what was broadcast is summed by the engine."""
    other, ndim, other_ndim = _conj(s.other), s.specs["input"].ndim, s.specs["other"].ndim
    if other_ndim == 1:
        return g.unsqueeze(-1) * other
    if ndim == 1:
        return matmul.run(other, g.unsqueeze(-1)).squeeze(-1)
    return matmul.run(g, other.transpose(-2, -1))


def _matmul_grad_other(g: Any, s: Any) -> Any:
    """Gradient of the second factor."""
    x, ndim, other_ndim = _conj(s.input), s.specs["input"].ndim, s.specs["other"].ndim
    if ndim == 1:
        return x * g if other_ndim == 1 else x.unsqueeze(-1) * g.unsqueeze(-2)
    if other_ndim == 1:
        g = g.unsqueeze(-1)
    if ndim > 2 and other_ndim <= 2:
        # The sum over the batch is part of one product of matrices.
        rows = math.prod(s.specs["input"].shape[:-1])
        x, g = (reshape.run(v, (rows, v.shape[-1])) for v in (x, g))
    out: Any = matmul.run(x.transpose(-2, -1), g)
    return out.squeeze(-1) if other_ndim == 1 else out


def _matmul_samples(make: Any) -> Iterable[Sample]:
    yield from _pairs(
        ((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 2, 3), (3, 2)),
        ((2, 3), (2, 3, 2)), ((2, 1, 2, 3), (3, 3, 2)), ((3,), (2, 3, 2)), ((2, 2, 3), (3,)),
        ((0, 3), (3, 2)), ((2, 0), (0, 3)),
    )(make)  # fmt: skip
    yield Sample((make(3, 2).t(), make(4, 3).t()), name="transposed")


matmul = Primitive(
    "matmul(Tensor input, Tensor other) -> Tensor",
    "Product of matrices, ``input @ other``: batches broadcast, a vector is a row in front and a "
    "column behind.",
    _matmul,
    rule=_matmul_rule,
    vjp={
        "input": Vjp(_matmul_grad_input, "other", arrays=_matmul_grad_input_array),
        "other": Vjp(_matmul_grad_other, "input", arrays=_matmul_grad_other_array),
    },
    jvp="bilinear",
    scalars=True,
    out=True,
    check_first=False,
    quick=_quick_matmul,
    dunders=("__matmul__", "__rmatmul__", "__imatmul__"),
    samples=_matmul_samples,
)


def _ranked(name: str, first: int, second: int) -> Any:
    """Return the body of a product that takes tensors of these ranks only."""

    def body(x: Tensor, other: Tensor) -> Any:
        for argument, value, ndim in (("input", x, first), ("other", other, second)):
            if not isinstance(value, Tensor):
                reject(name, argument, "Tensor", value)
            if value.ndim != ndim:
                raise RuntimeError(
                    f"[{name}] argument '{argument}': expected a {ndim}D tensor, got "
                    f"{value.ndim}D. Write x @ y, which takes all ranks."
                )
        if name == "bmm" and x.shape[0] != other.shape[0]:
            raise RuntimeError(
                f"[bmm] expected batches of one size, got {x.shape[0]} and {other.shape[0]}."
            )
        return matmul.run(x, other)

    return body


mm = Composite(
    "mm(Tensor input, Tensor other) -> Tensor",
    "Product of two matrices.",
    _ranked("mm", 2, 2),
    samples=_pairs(((2, 3), (3, 2))),
)
mv = Composite(
    "mv(Tensor input, Tensor vec) -> Tensor",
    "Product of a matrix and a vector.",
    _ranked("mv", 2, 1),
    samples=_pairs(((2, 3), (3,))),
)
dot = Composite(
    "dot(Tensor input, Tensor tensor) -> Tensor",
    "Sum of the products of the elements of two vectors; nothing is conjugated.",
    _ranked("dot", 1, 1),
    samples=_pairs(((3,), (3,))),
)
bmm = Composite(
    "bmm(Tensor input, Tensor mat2) -> Tensor",
    "Products of the matrices of two batches of one size.",
    _ranked("bmm", 3, 3),
    samples=_pairs(((2, 2, 3), (2, 3, 1))),
)


def _outer(x: Tensor, vec2: Tensor) -> Any:
    if x.ndim != 1 or vec2.ndim != 1:
        raise RuntimeError(f"[outer] expected 1D tensors, got {x.ndim}D and {vec2.ndim}D.")
    return x.unsqueeze(1) * vec2


outer = Composite(
    "outer(Tensor input, Tensor vec2) -> Tensor",
    "Products of every element of one vector with every element of another.",
    _outer,
    aliases=("ger",),
    samples=_pairs(((2,), (3,))),
)


def _plus_product(name: str, product: Any) -> Any:
    def body(x: Tensor, first: Tensor, second: Tensor, beta: Any, alpha: Any) -> Any:
        out: Any = product(first, second)
        shape = tuple(out.shape)
        if not broadcasts_to(tuple(x.shape), shape):
            raise RuntimeError(
                f"[{name}] argument 'input': expected a shape that broadcasts to {list(shape)}, "
                f"got {list(x.shape)}."
            )
        out = out if alpha == 1 else out * alpha
        # A factor of 0 stands for "without": not even NaN in `input` counts.
        return out if beta == 0 else x + out if beta == 1 else x * beta + out

    return body


addmm = Composite(
    "addmm(Tensor input, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    "``beta * input + alpha * (mat1 @ mat2)``.",
    _plus_product("addmm", _ranked("addmm", 2, 2)),
    inplace=True,
    samples=lambda make: [
        Sample((make(2, 4), make(2, 3), make(3, 4)), name="plain"),
        Sample((make(4), make(2, 3), make(3, 4)), {"beta": 0.5, "alpha": 2}, name="factors"),
    ],
)
baddbmm = Composite(
    "baddbmm(Tensor input, Tensor batch1, Tensor batch2, *, Scalar beta=1, "
    "Scalar alpha=1) -> Tensor",
    "``beta * input + alpha * (batch1 @ batch2)`` for batches of matrices.",
    _plus_product("baddbmm", _ranked("baddbmm", 3, 3)),
    inplace=True,
    samples=lambda make: [Sample((make(4), make(2, 2, 3), make(2, 3, 4)))],
)
addmv = Composite(
    "addmv(Tensor input, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    "``beta * input + alpha * (mat @ vec)``.",
    _plus_product("addmv", _ranked("addmv", 2, 1)),
    inplace=True,
    samples=lambda make: [Sample((make(2), make(2, 3), make(3)))],
)


def _linear_rule(x: Spec, weight: Spec, bias: Spec | None) -> Spec:
    if not 1 <= weight.ndim <= 2:
        raise RuntimeError(
            f"[linear] argument 'weight': expected a matrix or vector, got {weight.ndim}D."
        )
    product = _matmul_rule(x, Spec(weight.shape[::-1], weight.dtype))
    if bias is None:
        return product
    shape = broadcast_shapes("linear", product.shape, bias.shape)
    return Spec(shape, result_type(product, bias))


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    product = _matmul(x, weight.T)
    return product if bias is None else add.impl(product, bias, 1)


def _quick_linear(arrays: tuple[Any, ...], _: tuple[Any, ...]) -> Any:
    x, weight, bias = arrays
    if weight.ndim != 2 or not weight.size or weight.dtype is not x.dtype:
        return None
    product = quietly(_matmul, x, weight.T)
    if bias is None:
        return product
    if bias.shape != weight.shape[:1] or bias.dtype is not x.dtype:
        return None  # a bias of another shape may make the result larger
    return quietly(np.add, product, bias, product)


def _matrix(x: Any, leading: int) -> Any:
    """Return `x` as a matrix with a row for each index of its leading dimensions."""
    return reshape.run(x, (math.prod(x.shape[:leading]), math.prod(x.shape[leading:])))


def _linear_grad(g: Any, s: Any) -> Any:
    """Return the gradient of the product as a matrix with a row for each row of the input."""
    shape = (*s.specs["input"].shape[:-1], *s.specs["weight"].shape[:-1])
    return _matrix(g if g.shape == shape else g.sum_to_size(shape), s.specs["input"].ndim - 1)


def _linear_grad_input(g: Any, s: Any) -> Any:
    shape = s.specs["input"].shape
    weight = _conj(_matrix(s.weight, s.weight.ndim - 1))
    return reshape.run(matmul.run(_linear_grad(g, s), weight), shape)


def _linear_grad_weight(g: Any, s: Any) -> Any:
    x = _conj(_matrix(s.input, s.input.ndim - 1))
    return reshape.run(matmul.run(_linear_grad(g, s).t(), x), s.specs["weight"].shape)


def _linear_grad_input_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    weight = args[1]
    return (
        g.dot(weight) if g.ndim == 2 else g.reshape(-1, g.shape[-1]).dot(weight).reshape(shapes[0])
    )


def _linear_grad_weight_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    x = args[0]
    if g.ndim != 2:
        g, x = (v.reshape(-1, v.shape[-1]) for v in (g, x))
    return g.T.dot(x)


def _linear_grad_bias_array(g: Any, args: Any, shapes: Any, out: Any) -> Any:
    return add_up(g if g.ndim == 2 else g.reshape(-1, g.shape[-1]), (0,))


linear = Primitive(
    "linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
    "``input @ weight.T + bias``; `weight` has a row per feature of the result.",
    _linear,
    rule=_linear_rule,
    vjp={
        "input": Vjp(_linear_grad_input, "weight", arrays=_linear_grad_input_array),
        "weight": Vjp(_linear_grad_weight, "input", arrays=_linear_grad_weight_array),
        "bias": Vjp(lambda g, s: g, arrays=_linear_grad_bias_array),
    },
    quick=_quick_linear,
    decomposition=lambda x, weight, bias: (
        matmul.run(x, weight.t()) if bias is None else matmul.run(x, weight.t()) + bias
    ),
    method=False,
    samples=lambda make: [
        Sample((make(2, 3), make(4, 3), make(4)), name="matrix"),
        Sample((make(2, 2, 3), make(4, 3)), name="no bias"),
        Sample((make(2, 2, 3), make(4, 3), make(4)), name="batch"),
        Sample((make(3), make(4, 3), make(4)), name="vector"),
        Sample((make(2, 3), make(3)), name="one feature"),
        Sample((make(3), make(3), make(2, 1)), name="larger bias"),
        Sample((make(0, 3), make(4, 3), make(4)), name="no rows"),
        Sample((make(2, 0), make(4, 0), make(4)), name="no features"),
        Sample((make(2, 2, 3), make(0, 3), make(0)), name="no features of the result"),
        Sample((make(2, 0), make(0)), name="a vector of no features"),
        Sample((make(3, 2).t(), make(3, 4).t(), make(4)), name="transposed"),
    ],
)


# --- sums over chosen dimensions ------------------------------------------------------------------


@overridable
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Any:
    """Return the sum of products over dimensions of two tensors.

    Parameters
    ----------
    a, b
        The factors.
    dims
        A number n, for the last n dimensions of `a` with the first n of `b`; or two sequences
        with the dimensions of each.

    Returns
    -------
    Tensor
        With the other dimensions of `a`, then those of `b`.

    Raises
    ------
    RuntimeError
        The sizes of the dimensions do not match.
    """
    for argument, value in (("a", a), ("b", b)):
        if not isinstance(value, Tensor):
            reject("tensordot", argument, "Tensor", value)
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise RuntimeError(
                f"[tensordot] argument 'dims': expected a number from 0 to the smaller number of "
                f"dimensions ({min(a.ndim, b.ndim)}), got {dims}."
            )
        pairs: tuple[Sequence[int], ...] = (range(a.ndim - dims, a.ndim), range(dims))
    else:
        pair = isinstance(dims, (list, tuple)) and len(dims) == 2
        if not pair or not all(isinstance(d, (int, list, tuple)) for d in dims):
            reject("tensordot", "dims", "int, or two sequences of int", dims)
        pairs = tuple([d] if isinstance(d, int) else list(d) for d in dims)
    taken_a = wrap_dims("tensordot", pairs[0], a.ndim)
    taken_b = wrap_dims("tensordot", pairs[1], b.ndim)
    if len(taken_a) != len(taken_b):
        raise RuntimeError(
            "[tensordot] argument 'dims': both dimension lists should have same length, got "
            f"{len(taken_a)} and {len(taken_b)}."
        )
    for p, q in zip(taken_a, taken_b, strict=True):
        if a.shape[p] != b.shape[q]:
            raise RuntimeError(
                f"[tensordot] contracted dimensions need to match, but first has size {a.shape[p]} "
                f"in dim {p} and second has size {b.shape[q]} in dim {q}."
            )
    kept_a = [d for d in range(a.ndim) if d not in taken_a]
    kept_b = [d for d in range(b.ndim) if d not in taken_b]
    inner = math.prod(a.shape[d] for d in taken_a)
    rows = [a.shape[d] for d in kept_a]
    columns = [b.shape[d] for d in kept_b]
    left = reshape.apply((permute.apply((a, [*kept_a, *taken_a])), (math.prod(rows), inner)))
    right = reshape.apply((permute.apply((b, [*taken_b, *kept_b])), (inner, math.prod(columns))))
    return reshape.apply((matmul.run(left, right), (*rows, *columns)))


def _einsum_terms(equation: str) -> tuple[list[str], str]:
    inputs, _, output = equation.partition("->")
    return inputs.split(","), output


def _einsum_rule(operands: Sequence[Any], equation: str) -> Spec:
    terms, output = _einsum_terms(equation)
    sizes: dict[str, int] = {}
    for number, (term, x) in enumerate(zip(terms, operands, strict=True)):
        for letter, size in zip(term, x.shape, strict=True):
            if sizes.get(letter, 1) not in (1, size) and size != 1:
                raise RuntimeError(
                    f"[einsum] operands do not broadcast: operand {number} has size {size} for "
                    f"subscript '{letter}', an earlier one has {sizes[letter]}."
                )
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
    kinds = {x.dtype for x in operands}
    if len(kinds) > 1:
        raise RuntimeError(
            "[einsum] expected all operands to have the same dtype, got "
            f"{', '.join(sorted(repr(k) for k in kinds))}. Write x.to(y.dtype)."
        )
    return Spec(tuple(sizes[letter] for letter in output), operands[0].dtype)


def _einsum(operands: Sequence[Any], equation: str) -> Any:
    kind = operands[0].dtype
    if kind in _dtype.NARROW:
        operands = [x.astype(np.float32) for x in operands]
    out = np.einsum(equation, *operands, optimize=len(operands) > 1)
    return np.array(out, kind, order="C", copy=None if len(operands) > 1 else True)


def _einsum_grad(g: Any, s: Any) -> list[Any]:
    """Return the gradient of each operand: the sum of products of `g` and the other operands."""
    terms, output = _einsum_terms(s.equation)
    grads = []
    for number, term in enumerate(terms):
        others = [_conj(x) for n, x in enumerate(s.operands) if n != number]
        names = [t for n, t in enumerate(terms) if n != number]
        grad = _einsum_node.apply(([g, *others], f"{','.join([output, *names])}->{term}"))
        # Where the other operands have size 1 for a letter, they were repeated for this one.
        sizes = zip(grad.shape, s.specs["operands"][number].shape, strict=True)
        grads.append(expand.apply((grad, [m if n == 1 else n for n, m in sizes])))
    return grads


def _einsum_jvp(t: Any, s: Any) -> Any:
    total: Any = None
    for number, tangent in enumerate(t.operands):
        if tangent is not None:
            operands = [tangent if n == number else x for n, x in enumerate(s.operands)]
            part = _einsum_node.apply((operands, s.equation))
            total = part if total is None else total + part
    return total


# The equation is explicit; in each term every letter appears once, and in another term too.
_einsum_node = Primitive(
    "_einsum(Tensor[] operands, str equation) -> Tensor",
    "Sum of products over the letters of `equation`.",
    _einsum,
    rule=_einsum_rule,
    vjp={"operands": Vjp(_einsum_grad, "operands")},
    jvp=_einsum_jvp,
    function=False,
    method=False,
    samples=lambda make: [
        Sample(([make(2, 3), make(3, 2)], "ij,jk->ik"), name="matrices"),
        Sample(([make(2, 3)], "ij->ji"), name="transpose"),
        Sample(([make(2), make(3), make(2, 3)], "i,j,ij->j"), name="three"),
    ],
)

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _named(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """Return a term per operand and the term of the result, without ellipsis."""
    text = equation.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(operands):
        raise RuntimeError(
            f"[einsum] argument 'equation': expected as many terms as operands ({len(operands)}), "
            f"got {len(terms)} in {equation!r}."
        )
    for term in (*terms, output):
        if set(term.replace("...", "", 1)) - set(_LETTERS):
            raise RuntimeError(
                f"[einsum] argument 'equation': invalid subscript given in {term!r}, subscripts "
                "must be in [a-zA-Z] and one '...'."
            )
    free = [c for c in _LETTERS if c not in text]
    widths = []
    for number, (term, x) in enumerate(zip(terms, operands, strict=True)):
        named = len(term.replace("...", ""))
        if named > x.ndim or ("..." not in term and named != x.ndim):
            raise RuntimeError(
                f"[einsum] the number of subscripts in the equation ({named}) does not match the "
                f"number of dimensions ({x.ndim}) for operand {number}."
            )
        widths.append(x.ndim - named)
    width = max(widths)
    if width > len(free):
        raise RuntimeError("[einsum] more dimensions than there are letters for them.")
    dots = "".join(free[:width])
    terms = [t.replace("...", dots[width - w :]) for t, w in zip(terms, widths, strict=True)]
    if not arrow:
        letters = "".join(terms)
        output = dots + "".join(
            sorted(c for c in set(letters) - set(dots) if letters.count(c) == 1)
        )
    output = output.replace("...", dots)
    for letter in output:
        if output.count(letter) > 1 or not any(letter in t for t in terms):
            raise RuntimeError(
                f"[einsum] argument 'equation': output subscript {letter} appears more than once "
                f"in the output or in no operand, in {equation!r}."
            )
    return terms, output


@overridable
def einsum(equation: str, *operands: Any) -> Any:
    """Return the sum of products that `equation` describes, in Einstein's notation.

    Parameters
    ----------
    equation
        A term of letters per operand, one letter per dimension, and after ``->`` the letters of
        the result; letters missing there are summed over. Without ``->`` the result has the
        letters that appear once, in alphabetical order. ``...`` stands for dimensions that
        broadcast.
    *operands
        The tensors, or one list of them.

    Returns
    -------
    Tensor
        Its dimensions are the letters behind ``->``.

    Raises
    ------
    RuntimeError
        The equation does not fit the operands, or sizes of one letter differ.

    Examples
    --------
    >>> import tensorplay as tp
    >>> tp.einsum("ij,jk->ik", tp.ones(2, 3), tp.ones(3, 4)).shape
    Size([2, 4])
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str):
        reject("einsum", "equation", "str", equation)
    for x in operands:
        if not isinstance(x, Tensor):
            reject("einsum", "operands", "Tensors", x)
    if not operands:
        raise RuntimeError("[einsum] must provide at least one operand.")
    terms, output = _named(equation, operands)
    tensors = list(operands)
    for number in range(len(terms)):
        x, term = tensors[number], terms[number]
        # A letter twice in one term is a diagonal.
        while repeated := [c for c in term if term.count(c) > 1]:
            first = term.index(repeated[0])
            second = term.index(repeated[0], first + 1)
            if x.shape[first] != x.shape[second]:
                raise RuntimeError(
                    f"[einsum] subscript {repeated[0]} is repeated for operand {number} but the "
                    f"sizes don't match, {x.shape[second]} != {x.shape[first]}."
                )
            x = diagonal.apply((x, 0, first, second))
            rest = term[:first] + term[first + 1 : second] + term[second + 1 :]
            term = rest + repeated[0]
        # A letter nowhere else is summed at once.
        elsewhere = output + "".join(t for n, t in enumerate(terms) if n != number)
        alone = [d for d, c in enumerate(term) if c not in elsewhere]
        if alone:
            x = x.sum(alone)
            term = "".join(c for c in term if c in elsewhere)
        tensors[number], terms[number] = x, term
    return _einsum_node.apply((tensors, f"{','.join(terms)}->{output}"))


# --- diagonals ------------------------------------------------------------------------------------


def _trace(x: Tensor) -> Any:
    if x.ndim != 2:
        raise RuntimeError(f"[trace] expected a matrix, got a {x.ndim}-D tensor.")
    return diagonal.apply((x, 0, 0, 1)).sum()


trace = Composite(
    "trace(Tensor input) -> Tensor",
    "Sum of the diagonal of a matrix.",
    _trace,
    samples=lambda make: [Sample((make(3, 3),)), Sample((make(2, 3),), name="wide")],
)


def _diag_embed(x: Tensor, offset: int, dim1: int, dim2: int) -> Any:
    if not x.ndim:
        raise RuntimeError("[diag_embed] expected a tensor with at least 1 dimension, got 0-D.")
    ndim = x.ndim + 1
    a, b = (wrap_dim("diag_embed", d, ndim) for d in (dim1, dim2))
    if a == b:
        raise RuntimeError(f"[diag_embed] diagonal dimensions cannot be identical {dim1}, {dim2}.")
    side = x.shape[-1] + abs(offset)
    rest = iter(x.shape[:-1])
    shape = [side if d in (a, b) else next(rest) for d in range(ndim)]
    return diagonal_adjoint.apply((x, shape, offset, a, b))


diag_embed = Composite(
    "diag_embed(Tensor input, int offset=0, int dim1=-2, int dim2=-1) -> Tensor",
    "Square matrices with the last dimension of `input` on a diagonal, zeros elsewhere.",
    _diag_embed,
    samples=lambda make: [
        Sample((make(3),)),
        Sample((make(2, 2), 1), name="above"),
        Sample((make(2, 2), -1, 0, 2), name="dims"),
    ],
)


def _diag(x: Tensor, offset: int) -> Any:
    if x.ndim == 1:
        return _diag_embed(x, offset, 0, 1)
    if x.ndim != 2:
        raise RuntimeError(f"[diag] expected a vector or matrix, got a {x.ndim}-D tensor.")
    return diagonal.apply((x, offset, 0, 1)).clone()


diag = Composite(
    "diag(Tensor input, int diagonal=0) -> Tensor",
    "The matrix with a vector on its diagonal, or the diagonal of a matrix.",
    _diag,
    samples=lambda make: [
        Sample((make(3),), name="vector"),
        Sample((make(3, 4), 1), name="matrix"),
        Sample((make(2), -1), name="below"),
    ],
)
