"""Derivatives of functions, as functions: `grad`, `vjp`, `jvp`, and Jacobian matrices.

Each lifts its inputs to tensors of its own, so that transforms can be nested in any order, also
with `vmap`. Arguments and results may be nested in lists, tuples and dictionaries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorplay._tensor import Tensor, wrap
from tensorplay.autograd import forward_ad, grad_mode
from tensorplay.autograd.backward import grad as gradients
from tensorplay.autograd.batched import BatchedTensor, batch, physical, settle, state, union
from tensorplay.autograd.graph import AccumulateGrad, Node, edge_of
from tensorplay.func.trees import flatten, same_structure, unflatten
from tensorplay.func.vmap import vmap

__all__ = ["grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp"]

Argnums = int | tuple[int, ...]


# --- into a transform and out of it ---------------------------------------------------------------


def _value(tensor: Tensor) -> Tensor:
    return tensor._value if isinstance(tensor, BatchedTensor) else tensor


def _lift(tensor: Tensor) -> Tensor:
    """Return a tensor of this transform: its gradient can be asked for, and is its own.

    It keeps history and tangent of the given one. Inside of vmap it differs from sample to sample,
    as its gradient may.
    """
    tensor = settle(tensor)
    if state.levels:
        levels = union([tensor, *(batch_like(level) for level in state.levels)])
        tensor = batch(physical(tensor, levels), levels)
    with grad_mode.enable_grad():
        fresh: Tensor = tensor.view_as(tensor)
    own = _value(fresh)
    own._base = own._replay = None
    if not own._requires_grad:
        own.requires_grad_()
    return fresh


def batch_like(level: Any) -> Tensor:
    """Return a number for each sample of `level`; only its level matters."""
    return batch(wrap(np.zeros(level.size)), (level,))


def _leaves_beyond(outputs: Sequence[Any], lifted: Sequence[Tensor]) -> bool:
    """Tell whether outputs depend on anything recorded outside of this transform."""
    own = {id(_value(x)) for x in lifted}
    edges = [edge_of(_value(x)) for x in outputs if isinstance(x, Tensor)]
    nodes: list[Node] = list({id(e.node): e.node for e in edges if e is not None}.values())
    seen = {id(node) for node in nodes}
    for node in nodes:  # grows while it is walked
        if isinstance(node, AccumulateGrad) and id(node.variable) not in own:
            return True
        for edge in node.edges:
            if edge is not None and id(edge.node) not in seen:
                seen.add(id(edge.node))
                nodes.append(edge.node)
    return False


def _lower(value: Any, lifted: Sequence[Tensor], *, recorded: bool) -> Any:
    """Return results without the history that is this transform's own; tangents stay."""
    leaves, structure = flatten(value)
    return unflatten(
        structure, [_cut(x, lifted, recorded) if isinstance(x, Tensor) else x for x in leaves]
    )


def _cut(tensor: Tensor, lifted: Sequence[Tensor], recorded: bool) -> Tensor:
    if not tensor.requires_grad or (recorded and _leaves_beyond([tensor], lifted)):
        return tensor
    plain = _value(tensor)
    result = plain.detach()
    tangent = plain._tangent
    if tangent is not None:
        forward_ad.attach_tangent(result, _cut(tangent, lifted, recorded))
    return batch(result, tensor._levels) if isinstance(tensor, BatchedTensor) else result


def _zeros(like: Tensor) -> Tensor:
    zeros: Tensor = like.detach().new_zeros(like.shape)
    return zeros


def _tensors(value: Any, where: str, what: str) -> tuple[list[Tensor], Any]:
    leaves, structure = flatten(value)
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            message = f"[{where}] expected {what} to be Tensors, got {type(leaf).__name__}."
            raise RuntimeError(message)  # noqa: TRY004 - the field's kind
    return leaves, structure


def _with_aux(result: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        message = (
            f"[{where}] with has_aux=True the function must return (output, aux), got "
            f"{type(result).__name__}."
        )
        raise RuntimeError(message)
    return result


def _chosen(argnums: Argnums, args: tuple[Any, ...], where: str) -> tuple[int, ...]:
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for number in numbers:
        if not -len(args) <= number < len(args):
            message = (
                f"[{where}] argument 'argnums': got {number}, but the function has {len(args)} "
                "positional arguments."
            )
            raise RuntimeError(message)
    return tuple(number % len(args) for number in numbers)


# --- reverse mode ---------------------------------------------------------------------------------


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return the outputs of ``func(*primals)`` and a function of cotangents.

    Parameters
    ----------
    func
        Function of `primals`.
    *primals
        Tensors, or nested structures of them.
    has_aux
        Whether `func` returns ``(output, aux)``, of which only the first is differentiated.

    Returns
    -------
    tuple
        Outputs; a function that takes cotangents of the structure of the outputs and returns one
        gradient per primal (as a tuple if there are several); with `has_aux` also ``aux``.

    Raises
    ------
    RuntimeError
        A primal or output is no tensor; cotangents of another structure or size.
    """
    given, structure = _tensors(primals, "vjp", "primals")
    lifted = [_lift(x) for x in given]
    recorded = grad_mode.state.enabled
    with grad_mode.enable_grad():
        result = func(*unflatten(structure, lifted))
    aux = None
    if has_aux:
        result, aux = _with_aux(result, "vjp")
    outputs, out_structure = _tensors(result, "vjp", "the outputs of the function")
    beyond = recorded and _leaves_beyond(outputs, lifted)

    def vjp_fn(cotangents: Any) -> Any:
        vectors, found = _tensors(cotangents, "vjp", "cotangents")
        if not same_structure(found, out_structure):
            message = (
                "[vjp] expected pytree structure of cotangents to be the same as that of the "
                f"outputs: got {found}, expected {out_structure}."
            )
            raise RuntimeError(message)
        create = grad_mode.state.enabled and (beyond or any(v.requires_grad for v in vectors))
        grads = _products(outputs, lifted, vectors, create_graph=create)
        results = unflatten(structure, _lower(grads, lifted, recorded=create))
        return results[0] if len(primals) == 1 else results

    value = _lower(result, lifted, recorded=recorded)
    if has_aux:
        return value, vjp_fn, _lower(aux, lifted, recorded=recorded)
    return value, vjp_fn


def _products(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    vectors: Sequence[Tensor],
    *,
    create_graph: bool,
) -> list[Tensor]:
    pairs = [(o, v) for o, v in zip(outputs, vectors, strict=True) if o.requires_grad]
    if not pairs:
        return [_zeros(x) for x in inputs]
    found = gradients(
        [o for o, _ in pairs], inputs, [v for _, v in pairs],
        retain_graph=True, create_graph=create_graph, allow_unused=True,
    )  # fmt: skip
    return [_zeros(x) if g is None else g for g, x in zip(found, inputs, strict=True)]


def grad_and_value(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that gives the gradient of `func` and its value.

    Parameters
    ----------
    func
        Function that returns a real number, as a tensor.
    argnums
        For which positional arguments; several numbers give a tuple of gradients.
    has_aux
        Whether `func` returns ``(output, aux)``.

    Returns
    -------
    function
        Returns ``(gradient, value)``, with `has_aux` ``(gradient, (value, aux))``.

    Raises
    ------
    RuntimeError
        When called: the output is not a scalar tensor, or an argument is no tensor.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        numbers = _chosen(argnums, args, "grad")
        given, structure = _tensors(
            [args[n] for n in numbers], "grad", "the arguments to differentiate"
        )
        lifted = [_lift(x) for x in given]
        filled = list(args)
        for number, value in zip(numbers, unflatten(structure, lifted), strict=True):
            filled[number] = value
        recorded = grad_mode.state.enabled
        with grad_mode.enable_grad():
            output = func(*filled, **kwargs)
        aux = None
        if has_aux:
            output, aux = _with_aux(output, "grad")
        if not isinstance(output, Tensor) or output.ndim or output.is_complex():
            got = (
                f"a tensor of size {list(output.shape)} and {output.dtype!r}"
                if isinstance(output, Tensor)
                else type(output).__name__
            )
            message = (
                f"[grad] expected the function to return a real scalar Tensor, got {got}. Write "
                "y.sum()."
            )
            raise RuntimeError(message)
        beyond = recorded and _leaves_beyond([output], lifted)
        ones = output.detach().new_ones(())
        found = _products([output], lifted, [ones], create_graph=beyond)
        grads = unflatten(structure, _lower(found, lifted, recorded=beyond))
        result = grads[0] if isinstance(argnums, int) else tuple(grads)
        value = _lower(output, lifted, recorded=recorded)
        return (result, (value, _lower(aux, lifted, recorded=recorded))) if has_aux else (
            result, value)  # fmt: skip

    return wrapper


def grad(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that gives the gradient of `func`.

    Parameters
    ----------
    func, argnums, has_aux
        As in `grad_and_value`.

    Returns
    -------
    function
        Returns the gradient, with `has_aux` ``(gradient, aux)``.

    Raises
    ------
    RuntimeError
        As in `grad_and_value`.

    Examples
    --------
    >>> import tensorplay as tp
    >>> tp.func.grad(lambda x: x**3)(tp.tensor(2.0))
    tensor(12.)
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result, value = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return wrapper


# --- forward mode ---------------------------------------------------------------------------------


def jvp(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> Any:
    """Return the outputs of ``func(*primals)`` and their tangents.

    Inside of another forward-mode derivative the gradient is differentiated instead.

    Parameters
    ----------
    func
        Function of `primals`.
    primals, tangents
        Tuples of the same structure.
    strict
        Raise if an output does not depend on the primals, instead of giving zeros.
    has_aux
        Whether `func` returns ``(output, aux)``.

    Returns
    -------
    tuple
        Outputs, tangents, with `has_aux` also ``aux``.

    Raises
    ------
    RuntimeError
        `primals` or `tangents` is no tuple, or their structure or sizes differ.
    """
    for name, value in (("primals", primals), ("tangents", tangents)):
        if not isinstance(value, tuple) or not value:
            message = (
                f"[jvp] expected {name} to be a tuple with at least one entry, got "
                f"{type(value).__name__}. Write (x,)."
            )
            raise RuntimeError(message)
    given, structure = _tensors(primals, "jvp", "primals")
    vectors, found = _tensors(tangents, "jvp", "tangents")
    if not same_structure(structure, found):
        message = (
            "[jvp] expected primals and tangents to have the same python structure, got "
            f"{structure} and {found}."
        )
        raise RuntimeError(message)
    for x, v in zip(given, vectors, strict=True):
        if x.shape != v.shape:
            message = (
                f"[jvp] expected a tangent of size {list(x.shape)}, the size of the primal, got "
                f"{list(v.shape)}."
            )
            raise RuntimeError(message)
    run = _jvp_by_gradients if forward_ad.current_dual_level() >= 0 else _jvp_by_tangents
    outputs, products, aux = run(func, given, structure, vectors, has_aux=has_aux)
    leaves, out_structure = outputs
    if strict and any(t is None for t in products):
        message = "[jvp] an output is independent of the primals, which strict=True refuses."
        raise RuntimeError(message)
    filled = [_zeros(x) if t is None else t for x, t in zip(leaves, products, strict=True)]
    result = unflatten(out_structure, leaves), unflatten(out_structure, filled)
    return (*result, aux) if has_aux else result


def _jvp_by_tangents(
    func: Callable[..., Any],
    given: list[Tensor],
    structure: Any,
    vectors: list[Tensor],
    *,
    has_aux: bool,
) -> tuple[tuple[list[Tensor], Any], list[Tensor | None], Any]:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, v) for x, v in zip(given, vectors, strict=True)]
        result, aux = func(*unflatten(structure, duals)), None
        if has_aux:
            result, aux = _with_aux(result, "jvp")
            leaves, aux_structure = flatten(aux)
            aux = unflatten(
                aux_structure,
                [forward_ad.unpack_dual(x).primal if isinstance(x, Tensor) else x for x in leaves],
            )
        outputs, out_structure = _tensors(result, "jvp", "the outputs of the function")
        pairs = [forward_ad.unpack_dual(x) for x in outputs]
    return ([p.primal for p in pairs], out_structure), [p.tangent for p in pairs], aux


def _jvp_by_gradients(
    func: Callable[..., Any],
    given: list[Tensor],
    structure: Any,
    vectors: list[Tensor],
    *,
    has_aux: bool,
) -> tuple[tuple[list[Tensor], Any], list[Tensor | None], Any]:
    lifted = [_lift(x) for x in given]
    recorded = grad_mode.state.enabled
    with grad_mode.enable_grad():
        result, aux = func(*unflatten(structure, lifted)), None
        if has_aux:
            result, aux = _with_aux(result, "jvp")
        outputs, out_structure = _tensors(result, "jvp", "the outputs of the function")
        push = _pusher(outputs, lifted)
    beyond = recorded and (_leaves_beyond(outputs, lifted) or any(v.requires_grad for v in vectors))
    products = _lower(push(vectors, create_graph=beyond), lifted, recorded=beyond)
    values = _lower(outputs, lifted, recorded=recorded)
    return (values, out_structure), products, _lower(aux, lifted, recorded=recorded)


def _pusher(outputs: Sequence[Tensor], lifted: Sequence[Tensor]) -> Callable[..., Any]:
    """Return the linear map from tangents of `lifted` to those of `outputs`.

    The vjp is linear in its vector u, so that the derivative of <vjp(u), v> for u is the jvp.
    """
    us = [_lift(_zeros(x)) for x in outputs]
    firsts = _products(outputs, lifted, us, create_graph=True)

    def push(vectors: Sequence[Tensor], *, create_graph: bool) -> list[Tensor | None]:
        pairs = [(g, v) for g, v in zip(firsts, vectors, strict=True) if g.requires_grad]
        if not pairs:
            return [None] * len(us)
        found = gradients(
            [g for g, _ in pairs], us, [v for _, v in pairs],
            retain_graph=True, create_graph=create_graph, allow_unused=True,
        )  # fmt: skip
        return list(found)

    return push


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the outputs of ``func(*primals)``, and the linear map of tangents there.

    The function runs once; the map can be used many times, also inside of `vmap`.

    Parameters
    ----------
    func
        Function of `primals`.
    *primals
        Tensors, or nested structures of them.

    Returns
    -------
    tuple
        Outputs, and a function of tangents of the structure of the primals.

    Raises
    ------
    RuntimeError
        A primal or output is no tensor, or tangents are of another structure.
    """
    given, structure = _tensors(primals, "linearize", "primals")
    lifted = [_lift(x) for x in given]
    recorded = grad_mode.state.enabled
    with grad_mode.enable_grad():
        result = func(*unflatten(structure, lifted))
        outputs, out_structure = _tensors(result, "linearize", "the outputs of the function")
        push = _pusher(outputs, lifted)
    beyond = recorded and _leaves_beyond(outputs, lifted)

    def jvp_fn(*tangents: Any) -> Any:
        vectors, found = _tensors(tangents, "linearize", "tangents")
        if not same_structure(structure, found):
            message = (
                "[linearize] expected tangents to have the same python structure as the primals, "
                f"got {found} and {structure}."
            )
            raise RuntimeError(message)
        create = grad_mode.state.enabled and (beyond or any(v.requires_grad for v in vectors))
        products = push(vectors, create_graph=create)
        filled = [_zeros(x) if t is None else t for x, t in zip(outputs, products, strict=True)]
        return unflatten(out_structure, _lower(filled, lifted, recorded=create))

    return _lower(result, lifted, recorded=recorded), jvp_fn


# --- matrices -------------------------------------------------------------------------------------


def _basis(like: Tensor) -> Tensor:
    """Return the unit vectors of the space of `like`, along a first dimension."""
    count = like.numel()
    eye = np.eye(count, dtype=like.dtype.numpy).reshape((count, *like.shape))
    return wrap(eye, like.dtype)


def _bound(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], numbers: Sequence[int]
) -> Callable[..., Any]:
    """Return `func` as a function of the arguments `numbers` alone."""

    def of_chosen(*chosen: Any) -> Any:
        filled = list(args)
        for number, value in zip(numbers, chosen, strict=True):
            filled[number] = value
        return func(*filled, **kwargs)

    return of_chosen


def jacrev(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that gives the Jacobian matrices of `func`, by reverse mode.

    Parameters
    ----------
    func
        Function of tensors.
    argnums
        For which positional arguments; several numbers give a tuple for each output.
    has_aux
        Whether `func` returns ``(output, aux)``.
    chunk_size
        How many rows to compute at once; all by default.

    Returns
    -------
    function
        Returns tensors of the size of an output followed by that of an input, in the structure of
        the outputs.

    Raises
    ------
    RuntimeError
        As in `vjp`.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        numbers = _chosen(argnums, args, "jacrev")
        chosen = [args[n] for n in numbers]
        found = vjp(_bound(func, args, kwargs, numbers), *chosen, has_aux=has_aux)
        output, vjp_fn = found[0], found[1]
        outputs, structure = flatten(output)
        inputs, in_structure = flatten(tuple(chosen))

        def rows(number: int, out: Tensor) -> Any:
            def one(vector: Tensor) -> Any:
                vectors = [vector if n == number else _zeros(o) for n, o in enumerate(outputs)]
                grads = vjp_fn(unflatten(structure, vectors))
                return flatten(grads)[0]

            if not out.numel():
                blocks = [_zeros(x).expand((0, *x.shape)) for x in inputs]
            else:
                blocks = vmap(one, chunk_size=chunk_size)(_basis(out))
            shaped = [
                b.reshape((*out.shape, *x.shape)) for b, x in zip(blocks, inputs, strict=True)
            ]
            result = unflatten(in_structure, shaped)
            return result[0] if isinstance(argnums, int) else result

        matrices = unflatten(structure, [rows(n, out) for n, out in enumerate(outputs)])
        return (matrices, found[2]) if has_aux else matrices

    return wrapper


def jacfwd(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
) -> Callable[..., Any]:
    """Return a function that gives the Jacobian matrices of `func`, by forward mode.

    Parameters
    ----------
    func, argnums, has_aux
        As in `jacrev`.
    randomness
        As in `vmap`, which runs `func` for all columns.

    Returns
    -------
    function
        As from `jacrev`.

    Raises
    ------
    RuntimeError
        As in `jvp`.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        numbers = _chosen(argnums, args, "jacfwd")
        chosen = tuple(args[n] for n in numbers)
        inputs, in_structure = _tensors(chosen, "jacfwd", "the arguments to differentiate")
        bound = _bound(func, args, kwargs, numbers)

        def columns(number: int, x: Tensor) -> Any:
            def one(vector: Tensor) -> Any:
                vectors = [vector if n == number else _zeros(o) for n, o in enumerate(inputs)]
                tangents = unflatten(in_structure, vectors)
                found = jvp(bound, chosen, tangents, has_aux=has_aux)
                return found[1:]

            out_dims = (-1, None) if has_aux else (-1,)
            if not x.numel():
                found = jvp(bound, chosen, chosen, has_aux=has_aux)
                leaves, structure = flatten(found[0])
                blocks = [_zeros(o).reshape((*o.shape, 1)).expand((*o.shape, 0)) for o in leaves]
                return (unflatten(structure, blocks), *found[2:])
            return vmap(one, 0, out_dims, randomness)(_basis(x))

        results = [columns(n, x) for n, x in enumerate(inputs)]
        _, structure = flatten(results[0][0])
        shaped = [
            [b.reshape((*b.shape[:-1], *x.shape)) for b in flatten(result[0])[0]]
            for result, x in zip(results, inputs, strict=True)
        ]
        rows = []
        for number in range(len(shaped[0])):
            row = unflatten(in_structure, [column[number] for column in shaped])
            rows.append(row[0] if isinstance(argnums, int) else row)
        matrices = unflatten(structure, rows)
        return (matrices, results[0][1]) if has_aux else matrices

    return wrapper


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """Return a function that gives the second derivatives of `func`: forward over reverse mode.

    Parameters
    ----------
    func, argnums
        As in `jacrev`.

    Returns
    -------
    function
        Returns, for a number, a tensor of the size of the input twice.

    Raises
    ------
    RuntimeError
        As in `jacrev`.
    """
    return jacfwd(jacrev(func, argnums), argnums)
