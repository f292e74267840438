"""Products with Jacobian and Hessian matrices, and these matrices, of functions of tensors.

A function takes one tensor, or several as positional arguments, and returns a tensor or a tuple.
Results have the same structure: for a tuple of inputs a tuple with one entry per input, for a tuple
of outputs one more tuple around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd import forward_ad, grad_mode
from tensorplay.autograd.backward import grad
from tensorplay.autograd.batched import Level, batch, expose, state

__all__ = ["hessian", "hvp", "jacfwd", "jacobian", "jvp", "vhp", "vjp"]

Tensors = tuple[Tensor, ...]


def _tensors(value: Any, operator: str, what: str) -> tuple[bool, Tensors]:
    """Return whether `value` is a tuple, and its tensors."""
    many = isinstance(value, (tuple, list))
    members = tuple(value) if many else (value,)
    for number, member in enumerate(members):
        if not isinstance(member, Tensor):
            place = f"the value at index {number} has type" if many else "it has type"
            message = (
                f"[{operator}] the {what} must be either a Tensor or a tuple of Tensors, but "
                f"{place} {type(member).__name__}."
            )
            raise TypeError(message)
    return many, members


def _start(inputs: Tensors, *, create_graph: bool) -> Tensors:
    """Return inputs whose gradients can be asked for, with their history if that is wanted."""
    return tuple(
        x.view_as(x) if create_graph and x.requires_grad else x.detach().requires_grad_()
        for x in inputs
    )


def _finish(value: Any, *, create_graph: bool) -> Any:
    """Return results without history, unless that was asked for."""
    if create_graph:
        return value
    if isinstance(value, tuple):
        return tuple(_finish(v, create_graph=False) for v in value)
    return value.detach()


def _as_given(value: tuple[Any, ...], *, many: bool) -> Any:
    return value if many else value[0]


def _vector(
    v: Any, like: Tensors, operator: str, *, many: bool, whose: str, needs_one: bool
) -> Tensors:
    """Return the vector of a product, checked against what it is multiplied with."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            what = "the user-provided function returns a single Tensor with a single element"
            if not needs_one:
                what = "the input to the user-provided function is a single Tensor with one element"
            message = f"[{operator}] the vector v can only be None if {what}. Pass v."
            raise RuntimeError(message)
        ones: Tensor = like[0].detach().new_ones(like[0].shape)
        return (ones,)
    _, vectors = _tensors(v, operator, "vector v")
    if len(vectors) != len(like):
        message = (
            f"[{operator}] v is a tuple of invalid length: should be {len(like)} but got "
            f"{len(vectors)}."
        )
        raise RuntimeError(message)
    for number, (vector, other) in enumerate(zip(vectors, like, strict=True)):
        if vector.shape != other.shape:
            which = f"entry {number} in v" if many else "v"
            message = (
                f"[{operator}] {which} has invalid size: should be {list(other.shape)}, the size "
                f"of the {whose}, but got {list(vector.shape)}."
            )
            raise RuntimeError(message)
    return vectors


def _run(
    func: Callable[..., Any], inputs: Tensors, operator: str, *, strict: bool
) -> tuple[bool, Tensors]:
    """Call the function; return whether its result is a tuple, and the tensors in it."""
    with grad_mode.enable_grad():
        many, outputs = _tensors(func(*inputs), operator, "result of the user-provided function")
    if strict:
        for number, out in enumerate(outputs):
            if not out.requires_grad:
                message = (
                    f"[{operator}] output {number} of the user-provided function does not require "
                    "gradients. In strict mode the outputs must be computed in a differentiable "
                    "manner from the inputs."
                )
                raise RuntimeError(message)
    return many, outputs


def _grads(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    vectors: Sequence[Tensor],
    *,
    create_graph: bool,
    batched: bool = False,
) -> list[Tensor | None]:
    """Return gradients; None for inputs that no output depends on."""
    pairs = [(o, v) for o, v in zip(outputs, vectors, strict=True) if o.requires_grad]
    if not pairs:
        return [None] * len(inputs)
    found: tuple[Tensor | None, ...] = grad(
        [o for o, _ in pairs], inputs, [v for _, v in pairs], allow_unused=True,
        create_graph=create_graph, retain_graph=True, is_grads_batched=batched,
    )  # fmt: skip
    return list(found)


def _fill(
    found: Sequence[Tensor | None],
    like: Sequence[Tensor],
    operator: str,
    *,
    strict: bool,
    create_graph: bool,
    of: str,
) -> Tensors:
    """Return zeros for missing gradients; in strict mode raise for them.

    In strict mode with `create_graph` the gradients must depend on the inputs in their turn.
    """
    filled: list[Tensor] = []
    for number, (value, x) in enumerate(zip(found, like, strict=True)):
        if value is None and strict:
            message = (
                f"[{operator}] {of} is independent of input {number}, which is not allowed in "
                "strict mode. Without strict=True the result has zeros there."
            )
            raise RuntimeError(message)
        if value is not None and strict and create_graph and not value.requires_grad:
            message = (
                f"[{operator}] the derivative of {of} with respect to input {number} is "
                "independent of the inputs, which is not allowed in strict mode when "
                "create_graph=True."
            )
            raise RuntimeError(message)
        filled.append(_zeros(x) if value is None else value)
    return tuple(filled)


def _zeros(like: Tensor) -> Tensor:
    zeros: Tensor = like.detach().new_zeros(like.shape)
    return zeros


_THE_OUTPUT = "the output of the user-provided function"


def vjp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return the outputs, and `v` times the Jacobian matrix.

    Parameters
    ----------
    func
        Function of the inputs.
    inputs
        A tensor, or a tuple of positional arguments.
    v
        A tensor, or tuple of tensors, of the sizes of the outputs; may be left out for one output
        of one element.
    create_graph
        Whether the results can be differentiated.
    strict
        Raise, instead of giving zeros, where an output does not depend on an input.

    Returns
    -------
    tuple
        Outputs, and one product per input.

    Raises
    ------
    RuntimeError
        `v` has an invalid size or is missing; or a reason of `strict`.
    TypeError
        An input or output is no tensor.
    """
    many, given = _tensors(inputs, "vjp", "inputs")
    xs = _start(given, create_graph=create_graph)
    many_out, outputs = _run(func, xs, "vjp", strict=strict)
    vectors = _vector(v, outputs, "vjp", many=many_out, whose="output", needs_one=True)
    found = _grads(outputs, xs, vectors, create_graph=create_graph)
    products = _fill(found, xs, "vjp", strict=strict, create_graph=create_graph, of=_THE_OUTPUT)
    return (
        _finish(_as_given(outputs, many=many_out), create_graph=create_graph),
        _finish(_as_given(products, many=many), create_graph=create_graph),
    )


def jvp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
    mode: str = "reversed",
) -> tuple[Any, Any]:
    """Return the outputs, and the Jacobian matrix times `v`.

    Parameters
    ----------
    func, inputs, create_graph, strict
        As in `vjp`.
    v
        A tensor, or tuple of tensors, of the sizes of the inputs; may be left out for one input
        of one element.
    mode
        ``"reversed"``: differentiate a reverse pass, for functions with a backward formula only;
        ``"forward"``: carry tangents, in one run of the function.

    Returns
    -------
    tuple
        Outputs, and one product per output.

    Raises
    ------
    RuntimeError, TypeError
        As in `vjp`.
    ValueError
        Another mode.
    """
    if mode not in {"reversed", "forward"}:
        message = f"[jvp] argument 'mode': expected 'reversed' or 'forward', got {mode!r}."
        raise ValueError(message)
    many, given = _tensors(inputs, "jvp", "inputs")
    vectors = _vector(v, given, "jvp", many=many, whose="input", needs_one=False)
    if mode == "forward":
        return _jvp_forward(func, given, vectors, create_graph=create_graph, strict=strict)
    xs = _start(given, create_graph=create_graph)
    many_out, outputs = _run(func, xs, "jvp", strict=strict)
    # The vjp is linear in its vector u, so that d<vjp(u), v>/du is the jvp at any u.
    us = tuple(_zeros(out).requires_grad_() for out in outputs)
    with grad_mode.enable_grad():
        gradients = _grads(outputs, xs, us, create_graph=True)
    first = _fill(gradients, xs, "jvp", strict=strict, create_graph=False, of=_THE_OUTPUT)
    found = _grads(first, us, vectors, create_graph=create_graph)
    products = [_zeros(out) if t is None else t for t, out in zip(found, outputs, strict=True)]
    if strict and create_graph:
        _fill(found, outputs, "jvp", strict=True, create_graph=True, of=_THE_OUTPUT)
    return (
        _finish(_as_given(outputs, many=many_out), create_graph=create_graph),
        _finish(_as_given(tuple(products), many=many_out), create_graph=create_graph),
    )


def _jvp_forward(
    func: Callable[..., Any],
    given: Tensors,
    vectors: Tensors,
    *,
    create_graph: bool,
    strict: bool,
) -> tuple[Any, Any]:
    with forward_ad.dual_level(), grad_mode.set_grad_enabled(create_graph):
        xs = [x if create_graph else x.detach() for x in given]
        duals = [forward_ad.make_dual(x, v) for x, v in zip(xs, vectors, strict=True)]
        many, outputs = _tensors(func(*duals), "jvp", "result of the user-provided function")
        pairs = [forward_ad.unpack_dual(out) for out in outputs]
    for number, pair in enumerate(pairs):
        if strict and pair.tangent is None:
            message = (
                f"[jvp] output {number} of the user-provided function is independent of the "
                "inputs, which is not allowed in strict mode."
            )
            raise RuntimeError(message)
    tangents = tuple(_zeros(p.primal) if p.tangent is None else p.tangent for p in pairs)
    outs = tuple(p.primal for p in pairs)
    return (
        _finish(_as_given(outs, many=many), create_graph=create_graph),
        _finish(_as_given(tangents, many=many), create_graph=create_graph),
    )


def _one_element(func: Callable[..., Any], operator: str) -> Callable[..., Tensor]:
    """Return `func` with a check that it returns a single number."""

    def checked(*inputs: Tensor) -> Tensor:
        out = func(*inputs)
        many, outputs = _tensors(out, operator, "result of the user-provided function")
        if many:
            message = f"[{operator}] the function given should return a single Tensor, got a tuple."
            raise RuntimeError(message)
        (found,) = outputs
        if found.numel() != 1:
            message = (
                f"[{operator}] the Tensor returned by the function given to {operator} should "
                f"contain a single element, got size {list(found.shape)}. Write y.sum()."
            )
            raise RuntimeError(message)
        scalar: Tensor = found.reshape(())
        return scalar

    return checked


def _gradient(
    func: Callable[..., Any], xs: Tensors, operator: str, *, strict: bool
) -> tuple[Tensor, Tensors]:
    """Return the only output and its gradient, with history."""
    _, (out,) = _run(_one_element(func, operator), xs, operator, strict=strict)
    found = _grads([out], xs, [out.detach().new_ones(())], create_graph=True)
    return out, _fill(found, xs, operator, strict=strict, create_graph=strict, of=_THE_OUTPUT)


def vhp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return the output, and `v` times the Hessian matrix, of a function with one element.

    Parameters
    ----------
    func, inputs, create_graph, strict
        As in `vjp`.
    v
        A tensor, or tuple of tensors, of the sizes of the inputs.

    Returns
    -------
    tuple
        Output, and one product per input.

    Raises
    ------
    RuntimeError
        The function returns more than one element, or a reason of `vjp`.
    """
    return _hessian_product(func, inputs, v, "vhp", create_graph=create_graph, strict=strict)


def hvp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return the output, and the Hessian matrix times `v`, of a function with one element.

    Where the function is twice differentiable the matrix is symmetric and this is `vhp`; both are
    computed by differentiating the gradient, ``d<grad, v>/dx``. At other points they may differ:
    this is the derivative of the gradient in the direction `v`.

    Parameters
    ----------
    func, inputs, v, create_graph, strict
        As in `vhp`.

    Returns
    -------
    tuple
        Output, and one product per input.

    Raises
    ------
    RuntimeError
        As in `vhp`.
    """
    many, given = _tensors(inputs, "hvp", "inputs")
    vectors = _vector(v, given, "hvp", many=many, whose="input", needs_one=False)
    xs = _start(given, create_graph=create_graph)
    with grad_mode.enable_grad():
        out, gradient = _gradient(func, xs, "hvp", strict=strict)
        us = tuple(_zeros(x).requires_grad_() for x in xs)
        back = _grads(gradient, xs, us, create_graph=True)
    first = _fill(back, xs, "hvp", strict=strict, create_graph=False, of="the gradient")
    found = _grads(first, us, vectors, create_graph=create_graph)
    products = _fill(found, us, "hvp", strict=strict and create_graph, create_graph=create_graph,
                     of="the gradient")  # fmt: skip
    return (
        _finish(out, create_graph=create_graph),
        _finish(_as_given(products, many=many), create_graph=create_graph),
    )


def _hessian_product(
    func: Callable[..., Any],
    inputs: Any,
    v: Any,
    operator: str,
    *,
    create_graph: bool,
    strict: bool,
) -> tuple[Any, Any]:
    many, given = _tensors(inputs, operator, "inputs")
    vectors = _vector(v, given, operator, many=many, whose="input", needs_one=False)
    xs = _start(given, create_graph=create_graph)
    with grad_mode.enable_grad():
        out, gradient = _gradient(func, xs, operator, strict=strict)
    found = _grads(gradient, xs, vectors, create_graph=create_graph)
    products = _fill(
        found, xs, operator, strict=strict, create_graph=create_graph, of="the gradient"
    )
    return (
        _finish(out, create_graph=create_graph),
        _finish(_as_given(products, many=many), create_graph=create_graph),
    )


def jacobian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Return the Jacobian matrices of `func`.

    Parameters
    ----------
    func, inputs, create_graph, strict
        As in `vjp`.
    vectorize
        Whether rows (in forward mode columns) are computed together, as in `func.vmap`, instead
        of one after the other.
    strategy
        ``"reverse-mode"``: a pass per element of the outputs; ``"forward-mode"``: a run per element
        of the inputs.

    Returns
    -------
    Tensor or tuple
        For one input and one output a tensor of the size of the output followed by that of the
        input. Otherwise a tuple over inputs, a tuple over outputs, or the second of the first.

    Raises
    ------
    RuntimeError, TypeError
        As in `vjp`.
    ValueError
        Another strategy.
    NotImplementedError
        Forward mode with `create_graph`.
    """
    if strategy not in {"reverse-mode", "forward-mode"}:
        message = (
            "[jacobian] argument 'strategy': expected 'reverse-mode' or 'forward-mode', got "
            f"{strategy!r}."
        )
        raise ValueError(message)
    many, given = _tensors(inputs, "jacobian", "inputs")
    if strategy == "forward-mode":
        if create_graph:
            message = (
                "[jacobian] create_graph=True is not available with strategy='forward-mode'. Write "
                "strategy='reverse-mode'."
            )
            raise NotImplementedError(message)
        return _forward_jacobian(func, given, many=many, strict=strict, vectorize=vectorize)
    xs = _start(given, create_graph=create_graph)
    many_out, outputs = _run(func, xs, "jacobian", strict=strict)
    rows: list[Any] = []
    for number, out in enumerate(outputs):
        of = f"output {number} of the user-provided function"
        blocks = _blocks(out, xs, create_graph=create_graph, vectorize=vectorize)
        like = [None if b is None else b for b in blocks]
        filled = _fill(
            like,
            [x.detach().new_zeros((*out.shape, *x.shape)) for x in xs],
            "jacobian",
            strict=strict,
            create_graph=create_graph,
            of=of,
        )
        rows.append(_as_given(filled, many=many))
    return _finish(_as_given(tuple(rows), many=many_out), create_graph=create_graph)


def _blocks(
    out: Tensor, xs: Tensors, *, create_graph: bool, vectorize: bool
) -> list[Tensor | None]:
    """Return the derivatives of one output: each of its size followed by that of an input."""
    basis = _basis(out)
    with grad_mode.enable_grad():
        if vectorize and len(basis):
            columns = _grads([out], xs, [basis], create_graph=create_graph, batched=True)
        else:
            from tensorplay.ops.joining import stack  # operators lie above this module

            table = [_grads([out], xs, [row], create_graph=create_graph) for row in basis]
            columns = [
                None if not table or any(row[i] is None for row in table)
                else stack([row[i] for row in table])
                for i in range(len(xs))
            ]  # fmt: skip
        return [
            None if c is None else c.reshape((*out.shape, *x.shape))
            for c, x in zip(columns, xs, strict=True)
        ]


def _basis(tensor: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
    """Return unit vectors of the space of `tensor`, along a first dimension: all, or some."""
    count = tensor.numel()
    rows = (count if stop is None else stop) - start
    eye = np.eye(rows, count, start, dtype=tensor.dtype.numpy)
    return wrap(eye.reshape(rows, *tensor.shape), tensor.dtype)


def _forward_jacobian(
    func: Callable[..., Any],
    given: Tensors,
    *,
    many: bool,
    strict: bool,
    vectorize: bool | None,
) -> Any:
    """Return the matrices column by column, or `vectorize` all columns; None: if possible."""
    from tensorplay.ops.joining import stack

    many_out = False
    outputs: Tensors = ()
    table: list[list[Any]] = []
    for number, x in enumerate(given):
        least = 2 if vectorize is None else 1  # of one column there is nothing to gain
        if vectorize is not False and x.numel() >= least:
            try:
                many_out, outputs, column = _columns_together(func, given, number, strict=strict)
            except Exception:
                if vectorize:
                    raise
                # It reads values, draws numbers, or has a step without a rule for batches: one by
                # one it runs, or raises what it raises there.
                vectorize = False
            else:
                table.append(column)
                continue
        columns: list[Tensors] = []
        for unit in _basis(x):
            vectors = tuple(unit if n == number else _zeros(o) for n, o in enumerate(given))
            out, product = _jvp_forward(func, given, vectors, create_graph=False, strict=strict)
            many_out, outputs = _tensors(out, "jacobian", "result of the user-provided function")
            columns.append(_tensors(product, "jacobian", "products")[1])
        if not columns:
            out = func(*[g.detach() for g in given])
            many_out, outputs = _tensors(out, "jacobian", "result of the user-provided function")
        table.append([
            stack([c[n] for c in columns], -1).reshape((*o.shape, *x.shape))
            if columns else o.detach().new_zeros((*o.shape, *x.shape))
            for n, o in enumerate(outputs)
        ])  # fmt: skip
    rows = [_as_given(tuple(column[n] for column in table), many=many) for n in range(len(outputs))]
    return _as_given(tuple(rows), many=many_out)


# Elements that the tangents of one run for many columns may have.
_MOST_TOGETHER = 4_000_000


def _columns_together(
    func: Callable[..., Any], given: Tensors, number: int, *, strict: bool
) -> tuple[bool, Tensors, list[Any]]:
    """Return the derivatives of all outputs for one input, from runs with many of its tangents."""
    from tensorplay.ops.joining import cat

    x = given[number]
    many = False
    outputs: Tensors = ()
    parts: list[list[Any]] = []
    count = max(1, _MOST_TOGETHER // x.numel())
    for start in range(0, x.numel(), count):
        units = _basis(x, start, min(start + count, x.numel()))
        level = Level(len(units))
        vectors = tuple(
            batch(units, (level,)) if n == number else _zeros(o) for n, o in enumerate(given)
        )
        state.levels.append(level)
        try:
            out, product = _jvp_forward(func, given, vectors, create_graph=False, strict=strict)
        finally:
            state.levels.remove(level)
        many, outputs = _tensors(out, "jacobian", "result of the user-provided function")
        _, products = _tensors(product, "jacobian", "products")
        parts.append([expose(t, (level,)).movedim(0, -1) for t in products])
    blocks = parts[0] if len(parts) == 1 else [cat(p, -1) for p in zip(*parts, strict=True)]
    return (
        many,
        outputs,
        [b.reshape((*o.shape, *x.shape)) for b, o in zip(blocks, outputs, strict=True)],
    )


def jacfwd(func: Callable[..., Any], inputs: Any) -> Any:
    """Return the Jacobian matrices of `func`, by forward mode: ``jacobian`` for few inputs.

    The columns are computed together where `func` runs on batches, else one after the other.

    Parameters
    ----------
    func, inputs
        As in `vjp`.

    Returns
    -------
    Tensor or tuple
        As from `jacobian`.
    """
    many, given = _tensors(inputs, "jacobian", "inputs")
    return _forward_jacobian(func, given, many=many, strict=False, vectorize=None)


def hessian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return the Hessian matrix of a function with one element.

    Parameters
    ----------
    func, inputs, create_graph, strict, vectorize
        As in `jacobian`.
    outer_jacobian_strategy
        How the gradient is differentiated, as `strategy` in `jacobian`.

    Returns
    -------
    Tensor or tuple
        For one input a tensor of its size twice; for a tuple of inputs a tuple of tuples.

    Raises
    ------
    RuntimeError
        The function returns more than one element, or a reason of `jacobian`.
    """
    many, given = _tensors(inputs, "hessian", "inputs")
    scalar = _one_element(func, "hessian")

    def gradient(*xs: Tensor) -> Tensors:
        with grad_mode.enable_grad():
            # In forward mode these are tensors of this call, with a tangent and without history.
            live = tuple(x if x.requires_grad else x.requires_grad_() for x in xs)
            return _gradient(scalar, live, "hessian", strict=strict)[1]

    found = jacobian(
        gradient, tuple(given), create_graph, strict, vectorize, outer_jacobian_strategy
    )
    return found if many else found[0][0]
