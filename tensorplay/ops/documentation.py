"""Docstrings of the functions and methods that are made from operators.

The operator's block says what it computes; the rest comes from its schema. What an argument means
is written once per name here, and once more for the operators in which it means something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tensorplay.ops.schema import FunctionSchema, SchemaType

__all__ = ["docstring"]

_FFT_SIZES: Final = (
    "Sizes along `dim` that the input is cut or filled with zeros to; those it has by default."
)
_WEIGHT_OF_CLASS: Final = "Shape (classes,): a factor for each class; 1 by default."
_BROADCAST: Final = "broadcast against `input`."
_ELEMENT_WEIGHT: Final = "Factor of each loss, broadcast against `input`; 1 by default."

_POOLS: Final = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool")
_WINDOWS: Final = (*_POOLS, "conv", "conv_transpose")

# By name of the argument, or by "operator.argument" where it differs.
_ARGUMENTS: Final[dict[str, str]] = {
    "A": "Matrices in the last two dimensions, batches before them.",
    "B": "Right hand sides: matrices, or vectors, with the batches of `A`.",
    "UPLO": "Which triangle is read, ``'L'`` or ``'U'``; the other one is taken for its mirror.",
    "abs": "Magnitudes; broadcast against `angle`.",
    "accumulate": "Whether values are added to what is there.",
    "alpha": "Factor of the second operand.",
    "elu.alpha": "Minus the limit far below zero.",
    "addmm.alpha": "Factor of the product.",
    "baddbmm.alpha": "Factor of the product.",
    "addmv.alpha": "Factor of the product.",
    "angle": "Angles in radians.",
    "approximate": "``'none'``, or ``'tanh'`` for the approximation by a hyperbolic tangent.",
    "assume_unique": "Accepted and without an effect.",
    "atol": "Absolute tolerance.",
    "attn_mask": "Bool: what is seen; floating point: added to the scores. Shape (…, L, S).",
    "batch1": "Shape (b, n, m).",
    "batch2": "Shape (b, m, p).",
    "beta": "Factor of `input`.",
    "softplus.beta": "Sharpness; the result is within ``log(2) / beta`` of relu.",
    "smooth_l1_loss.beta": "Difference at which the square becomes a line.",
    "bias": "Shape (features of the result,); none by default.",
    "layer_norm.bias": "Of the shape `normalized_shape`; none by default.",
    "boundaries": "Sorted vector.",
    "ceil_mode": "Whether a last window that only begins inside of the input counts.",
    "chunks": "Number of parts, at most.",
    "condition": "Bool tensor.",
    "correction": "Subtracted from the number of elements; 1 makes the variance unbiased.",
    "count_include_pad": "Whether zeros of the padding count as elements.",
    "decimals": "Digits behind the point; negative ones round to tens, hundreds, …",
    "descending": "Whether the largest element comes first.",
    "destination": "Where they go, in the same order.",
    "diagonal": "Which diagonal: 0 the main one, positive ones above, negative ones below.",
    "dilation": "Distance between the elements of a window.",
    "dim": "Dimension; negative ones count from the end.",
    "dim0": "Dimension; negative ones count from the end.",
    "dim1": "Dimension of the rows; negative ones count from the end.",
    "transpose.dim1": "The other dimension.",
    "dim2": "Dimension of the columns.",
    "dimension": "Dimension; negative ones count from the end.",
    "dims": "Dimensions; negative ones count from the end.",
    "tile.dims": "Number of copies along each dimension.",
    "divisor_override": "What sums are divided by, instead of the number of elements.",
    "dropout_p": "Probability that a weight is set to zero.",
    "dtype": "Type that the input is converted to before.",
    "elements": "Tensor of any shape.",
    "enable_gqa": "Whether heads of key and value are repeated to those of query.",
    "end": "The other end; broadcast against `input`.",
    "slice.end": "Index to stop before; the size by default.",
    "end_dim": "Last of the dimensions.",
    "eps": "Added under the root.",
    "equal_nan": "Whether NaN equals NaN.",
    "exponent": "Exponent; broadcast against `input`.",
    "full_matrices": "Whether `U` and `Vh` are square.",
    "generator": "Source of the random numbers; the default one of the process otherwise.",
    "groups": "Number of groups of channels; each result sees the channels of its own.",
    "hermitian": "Whether `A` is taken to be Hermitian.",
    "ignore_index": "Class whose elements count for nothing.",
    "imag": "Imaginary parts.",
    "index": "Integers, from minus the size to the size of the dimension.",
    "select.index": "Index, negative ones count from the end.",
    "index_select.index": "Vector of integers.",
    "index_add.index": "Vector of integers, one for each part of `source`.",
    "gather.index": "Integers below the size, of the rank of `input`; not larger elsewhere.",
    "scatter.index": "Integers below the size, of the rank of `input`; not larger elsewhere.",
    "scatter_add.index": "Integers below the size, of the rank of `input`; not larger elsewhere.",
    "indices": "One integer or bool tensor per dimension, None for all of it; they broadcast.",
    "take_along_dim.indices": "Integers, of the rank of `input`.",
    "input": "",
    "invert": "Whether the answer is negated.",
    "is_causal": "Whether position i sees positions up to i alone.",
    "k": "How many.",
    "kthvalue.k": "Place in the order, counted from 1.",
    "keepdim": "Whether reduced dimensions stay, with size 1.",
    "kernel_size": "Size of the window along each dimension.",
    "key": "Shape (…, S, E).",
    "label_smoothing": "Share of the probability that is spread over all classes, in [0, 1].",
    "largest": "Whether the largest are wanted.",
    "left": "Whether ``A @ X = B`` is solved, otherwise ``X @ A = B``.",
    "length": "How many elements.",
    "mask": "Bool tensor; broadcast against `input`.",
    "mat": "Shape (n, m).",
    "mat1": "Shape (n, m).",
    "mat2": "Shape (m, p).",
    "bmm.mat2": "Shape (b, m, p).",
    "max": "Upper limit, a tensor or a number; none by default.",
    "max_val": "Upper limit.",
    "min": "Lower limit, a tensor or a number; none by default.",
    "min_val": "Lower limit.",
    "mode": "``'constant'``, ``'reflect'``, ``'replicate'`` or ``'circular'``.",
    "linalg_qr.mode": "``'reduced'``, ``'complete'`` or ``'r'``, which leaves `Q` empty.",
    "n": "Size that the dimension is cut or filled with zeros to; the one it has by default.",
    "nan": "Instead of NaN; 0 by default.",
    "neginf": "Instead of -∞; the lowest finite number by default.",
    "posinf": "Instead of ∞; the largest finite number by default.",
    "negative_slope": "Slope below zero.",
    "norm": "``'backward'``, ``'forward'`` or ``'ortho'``, as above.",
    "normalized_shape": "The last sizes of `input`, over which mean and variance are taken.",
    "num_classes": "Number of classes; -1: one more than the largest index.",
    "num_samples": "Draws from each row.",
    "offset": "Which diagonal: 0 the main one, positive ones above, negative ones below.",
    "other": "Second operand; broadcast against `input`.",
    "matmul.other": "Shape (…, m, p) or (m,).",
    "mm.other": "Shape (m, p).",
    "view_as.other": "Tensor whose shape is taken.",
    "reshape_as.other": "Tensor whose shape is taken.",
    "expand_as.other": "Tensor whose shape is taken.",
    "out_int32": "Whether the result is int32; int64 otherwise.",
    "output_padding": "Rows of zeros added to one side of the result.",
    "output_size": "Size of the result along each dimension; None keeps it.",
    "p": "Probability, in [0, 1].",
    "norm.p": "Order of the norm.",
    "pad": "Widths before and after the last dimension, then those of the one before it, …",
    "padding": "Width of what is added on both sides of each dimension.",
    "pos_weight": "Factor of the part of positive targets; broadcast against `input`.",
    "query": "Shape (…, L, E).",
    "rcond": "Singular values below ``rcond`` times the largest count as zero.",
    "real": "Real parts; broadcast against `imag`.",
    "reduction": "``'mean'``, ``'sum'`` or ``'none'``.",
    "repeats": "Number of copies along each dimension, new ones in front.",
    "replacement": "Whether a category may be drawn again.",
    "return_indices": "Whether where the largest are is given too, counted in the plane.",
    "right": "Whether equal elements lie in front.",
    "rounding_mode": "None, ``'trunc'`` (towards zero) or ``'floor'``.",
    "rtol": "Relative tolerance.",
    "s": _FFT_SIZES,
    "scale": "Factor of the scores; ``1 / sqrt(E)`` by default.",
    "shape": "The new shape; -1 once, for what is left.",
    "shifts": "How far, one number per dimension.",
    "side": "``'left'`` or ``'right'``, in place of `right`.",
    "size": "The shape.",
    "view.size": "The new shape; -1 once, for what is left.",
    "unfold.size": "Size of the windows.",
    "sizes": "Sizes whose product is that of the dimension; -1 once, for what is left.",
    "sorted": "Whether the result is in order; it always is.",
    "sorted_sequence": "In order along its last dimension; the others are those of `input`.",
    "sorter": "Indices that put `sorted_sequence` in order.",
    "source": "Dimensions to move.",
    "index_add.source": "Parts to be added, one for each element of `index`.",
    "split_sizes": "Sizes of the parts; they add up to that of the dimension.",
    "src": "Elements to write.",
    "copy.src": "Elements to write; broadcast to the shape of `input`.",
    "stable": "Equal elements keep their order in any case.",
    "start": "First index.",
    "start_dim": "First of the dimensions.",
    "step": "Distance from one to the next.",
    "storage_offset": "Where the first element is in memory, in elements.",
    "stride": "Distance between windows along each dimension.",
    "as_strided.stride": "Steps in memory along each dimension, in elements.",
    "max_pool1d.stride": "Distance between windows; their size by default.",
    "max_pool2d.stride": "Distance between windows; their size by default.",
    "avg_pool1d.stride": "Distance between windows; their size by default.",
    "avg_pool2d.stride": "Distance between windows; their size by default.",
    "target": "What `input` should be; of its shape.",
    "nll_loss.target": "Classes, int64, of the shape of `input` without dimension 1.",
    "cross_entropy.target": "Classes as for `nll_loss`, or probabilities, shape as `input`.",
    "tensor": "Vector.",
    "one_hot.tensor": "Classes, int64, at least 0.",
    "tensor1": "First factor; broadcast against `input`.",
    "tensor2": "Second factor; broadcast against `input`.",
    "addcdiv.tensor2": "Divisor; broadcast against `input`.",
    "tensors": "At least one tensor.",
    "test_elements": "What is looked for.",
    "threshold": "Above ``beta * input`` of this the identity is used.",
    "training": "Whether anything is dropped.",
    "upper": "Whether the upper factor is wanted.",
    "value": "Number, or tensor of one element.",
    "addcmul.value": "Factor of the product.",
    "addcdiv.value": "Factor of the quotient.",
    "pad.value": "What the border holds; 0 by default.",
    "scaled_dot_product_attention.value": "Shape (…, S, Ev).",
    "values": "What is written; broadcast to the indexed part.",
    "vec": "Shape (m,).",
    "vec2": "Vector.",
    "weight": "Weights.",
    "lerp.weight": "Where between the ends: 0 is `input`, 1 is `end`.",
    "linear.weight": "Shape (features of the result, features of the input).",
    "embedding.weight": "Shape (number of rows, length of a row).",
    "layer_norm.weight": "Of the shape `normalized_shape`; 1 by default.",
    "rms_norm.weight": "Of the shape `normalized_shape`; 1 by default.",
    "binary_cross_entropy.weight": _ELEMENT_WEIGHT,
    "binary_cross_entropy_with_logits.weight": _ELEMENT_WEIGHT,
    "nll_loss.weight": _WEIGHT_OF_CLASS,
    "cross_entropy.weight": _WEIGHT_OF_CLASS,
}

# Shapes of the first operand where "any shape" would be wrong and the first line does not say it.
_INPUTS: Final[dict[str, str]] = (
    {
        "matmul": "Shape (…, n, m) or (m,).",
        "mm": "Shape (n, m).",
        "mv": "Shape (n, m).",
        "dot": "Vector.",
        "bmm": "Shape (b, n, m).",
        "outer": "Vector.",
        "addmm": "Broadcast to (n, p).",
        "baddbmm": "Broadcast to (b, n, p).",
        "addmv": "Broadcast to (n,).",
        "linear": "Shape (…, features).",
        "trace": "Matrix.",
        "t": "At most two dimensions.",
        "diag": "Vector or matrix.",
        "tril": "Shape (…, rows, columns).",
        "triu": "Shape (…, rows, columns).",
        "multinomial": "Vector, or a matrix of rows; at least 0.",
        "nll_loss": "Shape (batch, classes, …) or (classes,).",
        "cross_entropy": "Shape (batch, classes, …) or (classes,); not normalised.",
        "binary_cross_entropy": "Probabilities, in [0, 1].",
        "embedding": "Indices of rows, integers.",
    }
    | {f"{name}1d": "Shape ((N,) C, L)." for name in _WINDOWS}
    | {f"{name}2d": "Shape ((N,) C, H, W)." for name in _WINDOWS}
)

# Comparisons and the like: results are bool, whatever the formulas say.
_WITHOUT_GRADIENT: Final = {
    *("eq", "ne", "lt", "le", "gt", "ge", "isclose", "isfinite", "isinf", "isnan", "signbit"),
    *("logical_and", "logical_not", "logical_or", "logical_xor"),
}

_KINDS: Final = {
    "SymInt": "int",
    "Scalar": "number",
    "ScalarType": "dtype",
    "Device": "device",
    "Layout": "layout",
}


def _kind(kind: SchemaType) -> str:
    """Return a schema type in words."""
    base = _KINDS.get(kind.base, kind.base)
    if kind.is_list:
        several = f"sequence of {base}{' or None' if kind.list_of_optional else ''}"
        return f"{base} or {several}" if kind.size is not None else several
    return base


def _section(title: str, entries: list[tuple[str, str]]) -> str:
    lines = [f"{name}\n    {text}" if text else name for name, text in entries]
    return "\n".join(("", title, "-" * len(title), *lines, ""))


def _meaning(schema: FunctionSchema, argument: str) -> str:
    if argument == "input":
        return _INPUTS.get(schema.name, "")
    return _ARGUMENTS.get(f"{schema.name}.{argument}") or _ARGUMENTS.get(argument, "")


def _results(schema: FunctionSchema, name: str) -> list[tuple[str, str]]:
    """Return names and texts of what the function returns."""
    if name == f"{schema.name}_":
        return [("Tensor", "The first operand itself, written.")]
    returns = schema.returns
    if len(returns) == 1:
        (result,) = returns
        kind = "list of Tensor" if result.type.is_list else result.type.base
        if result.alias is not None:
            shares = schema.name not in {"reshape", "reshape_as", "flatten", "unflatten"}
            if schema.name.startswith("fft_"):
                return [(kind, "New.")]
            text = "A view: it shares memory with the tensor."
            return [(kind, text if shares else "A view where strides allow it, else a copy.")]
        if "keepdim" in schema:
            return [(kind, "Without the dimensions `dim`, all by default; see `keepdim`.")]
        if "reduction" in schema:
            return [(kind, "0-d, or with ``'none'`` one loss for each element or sample.")]
        if schema.name[:-2] in _WINDOWS:
            shape = "((N,) C, L)" if schema.name.endswith("1d") else "((N,) C, H, W)"
            pair = "return_indices" in schema
            also = "; with `return_indices` a pair of these, the second int64" if pair else ""
            return [(kind, f"Shape {shape}, in new sizes{also}.")]
        broadcast = [a for a in schema.arguments if _meaning(schema, a.name).endswith(_BROADCAST)]
        if schema.name == "masked_select":
            return [(kind, "Vector of the elements.")]
        if broadcast and result.type.is_tensor:
            return [(kind, "Of the shape that the operands broadcast to.")]
        return [(kind, "")]
    return [(f"{r.name or 'result'} : {r.type.base}", "") for r in returns]


# What else than ValueError an unknown text raises, and than RuntimeError shapes that do not fit.
_UNKNOWN_TEXT: Final = {"div": "RuntimeError", "pad": "NotImplementedError"}
_UNFIT_SHAPES: Final = {
    "binary_cross_entropy": "ValueError",
    "binary_cross_entropy_with_logits": "ValueError",
    "nll_loss": "ValueError",
    "cross_entropy": "ValueError",
    "index_select": "IndexError",
}
_FIT_ALWAYS: Final = {"take", "isin", "equal", "masked_select", "take_along_dim"}


def _errors(schema: FunctionSchema) -> list[tuple[str, str]]:
    """Return the errors and when they come."""
    name, arguments = schema.name, schema.arguments
    when: dict[str, list[str]] = {"TypeError": ["an argument is of another kind or type"]}
    if any(a.type.base in {"int", "SymInt"} and a.name.startswith("dim") for a in arguments):
        when["IndexError"] = ["a dimension is out of range"]
    if sum(a.type.is_tensor for a in arguments) > 1 and name not in _FIT_ALWAYS:
        error = _UNFIT_SHAPES.get(name, "RuntimeError")
        when.setdefault(error, []).append("the shapes of the tensors do not fit")
    if name[:-2] in _POOLS:
        when["RuntimeError"] = ["the number of dimensions is another, or a window does not fit"]
    if any(a.type.base == "str" for a in arguments):
        error = "RuntimeError" if name.startswith("fft_") else _UNKNOWN_TEXT.get(name, "ValueError")
        when.setdefault(error, []).append("a text is none of those above")
    return [(error, f"If {', or '.join(causes)}.") for error, causes in when.items()]


def docstring(
    schema: FunctionSchema,
    doc: str,
    name: str,
    *,
    gradients: list[str] | None,
    method: bool,
    writes: bool,
) -> str:
    """Return the docstring of the function or method `name` of an operator.

    Parameters
    ----------
    schema
        Schema of the operator.
    doc
        What it computes.
    name
        Name of the function; with an underscore behind the operator's for the in-place form.
    gradients
        The arguments that it is differentiable in; None where its body says it.
    method
        Whether the first argument is the tensor that it is called on.
    writes
        Whether it takes ``out=``.
    """
    twin = f"In-place form of `{schema.name}`: " if name == f"{schema.name}_" else ""
    text = f"{twin}{doc}\n\nSchema: ``{schema}``\n"
    if schema.namespace is not None:
        return text
    entries = []
    for argument in schema.arguments[1:] if method else schema.arguments:
        meaning = _meaning(schema, argument.name)
        optional = ", optional" if argument.has_default else ""
        entries.append((f"{argument.name} : {_kind(argument.type)}{optional}", meaning))
    if writes:
        entries.append(("out : Tensor, optional", "Where the result is written; no gradients."))
    if entries:
        text += _section("Parameters", entries)
    text += _section("Returns", _results(schema, name))
    text += _section("Raises", _errors(schema))
    if schema.name in _WITHOUT_GRADIENT:
        gradients = []
    if gradients is not None:
        which = f"Differentiable in {', '.join(gradients)}." if gradients else "Not differentiable."
        text += f"\nNotes\n-----\n{which}\n"
    return text
