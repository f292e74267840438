"""`backward` and `grad`: the reverse pass as people call it, and the hooks on tensors."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorplay import _native
from tensorplay._methods import attach
from tensorplay._tensor import Tensor, spec_of, wrap
from tensorplay.autograd import grad_mode
from tensorplay.autograd.batched import BatchedTensor, Level, batch, expose
from tensorplay.autograd.engine import check_gradient, run_backward
from tensorplay.autograd.function_context import zeros_of
from tensorplay.autograd.graph import (
    AccumulateGrad,
    Edge,
    RemovableHandle,
    add_to_grad,
    edge_of,
    leaf_hooks,
)
from tensorplay.ops.dispatch import overridable_alone

__all__ = ["backward", "grad"]


def _as_sequence(value: Any, operator: str, argument: str) -> list[Any]:
    if isinstance(value, (Tensor, Edge)):
        return [value]
    if value.__class__ is list:
        return list(value)
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(value)
    message = (
        f"[{operator}] argument '{argument}': expected a Tensor or a sequence of them, "
        f"got {type(value).__name__}."
    )
    raise TypeError(message)


def _roots(operator: str, tensors: list[Any], grads: Any) -> list[tuple[Edge, Tensor]]:
    """Pair each output that requires grad with its gradient."""
    given = [None] * len(tensors) if grads is None else _as_sequence(grads, operator, "gradient")
    if len(given) != len(tensors):
        message = (
            f"[{operator}] expected one gradient per output: got {len(tensors)} tensors and "
            f"{len(given)} gradients."
        )
        raise RuntimeError(message)
    roots: list[tuple[Edge, Tensor]] = []
    for number, (tensor, gradient) in enumerate(zip(tensors, given, strict=True)):
        if isinstance(tensor, Edge):
            roots.append((tensor, _edge_gradient(operator, tensor, gradient, number)))
            continue
        if not isinstance(tensor, Tensor):
            message = f"[{operator}] expected Tensors, got {type(tensor).__name__} at {number}."
            raise TypeError(message)
        edge = edge_of(tensor)
        if edge is None:
            message = (
                f"[{operator}] element {number} of tensors does not require grad and does not "
                "have a grad_fn. Set requires_grad on the inputs of the computation."
            )
            raise RuntimeError(message)
        roots.append((edge, _root_gradient(operator, tensor, gradient, number)))
    return roots


def _edge_gradient(operator: str, edge: Edge, gradient: Any, number: int) -> Tensor:
    """Return the gradient to start from at an edge, where there is no tensor to look at."""
    spec = edge.node.outputs[edge.output_nr]
    if spec is None:  # not reached: an edge leads to what has a gradient
        message = f"[{operator}] element {number} of tensors does not require grad."
        raise RuntimeError(message)
    return _root_gradient(operator, zeros_of(spec), gradient, number)


def _root_gradient(operator: str, tensor: Tensor, gradient: Any, number: int) -> Tensor:
    """Return the gradient to start from: the given one, or 1 for a real scalar."""
    if gradient.__class__ is Tensor and tensor.__class__ is Tensor:
        given, result = gradient._array, tensor._array
        if (
            given.__class__ is np.ndarray
            and result.__class__ is np.ndarray
            and gradient._dtype is tensor._dtype
            and given.shape == result.shape
        ):
            fitting: Tensor = gradient
            return fitting  # nothing to convert
    if gradient is None:
        if tensor.numel() != 1:
            message = (
                f"[{operator}] grad can be implicitly created only for scalar outputs, got "
                f"size {list(tensor.shape)}. Pass a gradient, or reduce with y.sum()."
            )
            raise RuntimeError(message)
        if tensor.is_complex():
            message = (
                f"[{operator}] grad can be implicitly created only for real scalar outputs, got "
                f"{tensor.dtype!r}. Pass a gradient, or write y.abs()."
            )
            raise RuntimeError(message)
        if tensor.__class__ is Tensor and not tensor.is_meta:
            return wrap(np.ones(tensor._array.shape, tensor._array.dtype), tensor._dtype)
        ones: Tensor = tensor.detach().new_ones(tensor.shape)
        return ones
    if not isinstance(gradient, Tensor):
        message = (
            f"[{operator}] gradients can be either Tensors or None, got {type(gradient).__name__}."
        )
        raise TypeError(message)
    if gradient.shape != tensor.shape:
        message = (
            f"[{operator}] Mismatch in shape: grad_output[{number}] has a shape of "
            f"{list(gradient.shape)} and output[{number}] has a shape of {list(tensor.shape)}."
        )
        raise RuntimeError(message)
    where = f"[{operator}] invalid gradient of output {number}"
    return check_gradient(gradient, spec_of(tensor), where, device=tensor.device)


@overridable_alone
def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """Add the gradients of `tensors` to the ``grad`` of the leaves.

    Parameters
    ----------
    tensors
        Tensor, or sequence of tensors, to differentiate.
    grad_tensors
        Gradient of each; may be left out for tensors of one element.
    retain_graph
        Keep the graph for another pass; by default as `create_graph`.
    create_graph
        Record the pass itself, so that the gradients can be differentiated.
    grad_variables
        Old name of `grad_tensors`.
    inputs
        Tensors (one, a sequence or a mapping) whose ``grad`` is filled instead of that of all
        leaves.

    Raises
    ------
    RuntimeError
        An output does not require grad; a gradient is missing or of another shape; the graph
        was freed.
    """
    if grad_variables is not None:
        warnings.warn(
            "`grad_variables` is deprecated. Use `grad_tensors`.", FutureWarning, stacklevel=2
        )
        grad_tensors = grad_variables if grad_tensors is None else grad_tensors
    outs = _as_sequence(tensors, "backward", "tensors")
    if any(isinstance(out, BatchedTensor) for out in outs):
        message = (
            "[backward] vmap: there is one .grad for all samples, so that backward() is not "
            "possible inside. Write func.grad(f), or autograd.grad(y, x)."
        )
        raise RuntimeError(message)
    roots = _roots("backward", outs, grad_tensors)
    keep = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        run_backward(roots, retain_graph=keep, create_graph=create_graph)
        return
    wanted = _as_sequence(inputs, "backward", "inputs")
    if not wanted:
        message = "[backward] argument 'inputs': cannot be empty."
        raise RuntimeError(message)
    edges = [_wanted_edge("backward", tensor, n) for n, tensor in enumerate(wanted)]
    grads = run_backward(roots, retain_graph=keep, create_graph=create_graph, inputs=edges)
    found = {id(t): (t, e, g) for t, e, g in zip(wanted, edges, grads, strict=True)}
    with grad_mode.set_grad_enabled(create_graph):
        for tensor, edge, gradient in found.values():
            # A leaf, and a tensor that retains its gradient, got it on the way.
            got_it = isinstance(edge.node, AccumulateGrad) or edge.node.retains(edge.output_nr)
            if gradient is not None and not got_it and isinstance(tensor, Tensor):
                add_to_grad(tensor, gradient)


def _wanted_edge(operator: str, tensor: Any, number: int) -> Edge:
    if isinstance(tensor, Edge):
        return tensor
    if not isinstance(tensor, Tensor):
        message = f"[{operator}] expected Tensors as inputs, got {type(tensor).__name__}."
        raise TypeError(message)
    edge = edge_of(tensor)
    if edge is None:
        message = (
            f"[{operator}] one of the differentiated Tensors (input {number}) does not require "
            "grad. Write x.requires_grad_() before the computation."
        )
        raise RuntimeError(message)
    return edge


@overridable_alone
def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """Return the gradients of `outputs` with respect to `inputs`; no ``grad`` is touched.

    Parameters
    ----------
    outputs
        Tensor, or sequence of tensors, to differentiate.
    inputs
        Tensor, sequence or mapping of tensors to differentiate for.
    grad_outputs
        Gradient of each output; may be left out for tensors of one element. With
        `is_grads_batched` each has an additional first dimension.
    retain_graph, create_graph
        As in `backward`.
    only_inputs
        Must be True; another value warns.
    allow_unused
        Give None for an input that no output depends on, instead of raising.
    is_grads_batched
        Run once per entry of the first dimension of `grad_outputs` and stack the results.
    materialize_grads
        Give zeros instead of None; implies `allow_unused`.

    Returns
    -------
    tuple or dict
        One gradient per input; a mapping of inputs gives a dictionary.

    Raises
    ------
    RuntimeError
        An input was not used and `allow_unused` is not set, or a reason of `backward`.
    ValueError
        `materialize_grads` together with ``allow_unused=False``.

    Examples
    --------
    >>> import tensorplay as tp
    >>> x = tp.tensor(3.0, requires_grad=True)
    >>> tp.autograd.grad(x * x, x)
    (tensor(6.),)
    """
    if not only_inputs:
        warnings.warn("[grad] only_inputs=False has no effect.", FutureWarning, stacklevel=2)
    if materialize_grads and allow_unused is False:
        message = (
            "[grad] expected allow_unused to be True or not passed when materialize_grads=True."
        )
        raise ValueError(message)
    outs = _as_sequence(outputs, "grad", "outputs")
    wanted = _as_sequence(inputs, "grad", "inputs")
    if not wanted:
        message = "[grad] argument 'inputs': cannot be empty."
        raise RuntimeError(message)
    keep = create_graph if retain_graph is None else retain_graph
    edges = [_wanted_edge("grad", _value(x), number) for number, x in enumerate(wanted)]
    samples = any(isinstance(x, BatchedTensor) for x in (*outs, *wanted))

    def once(gradients: Any, retain: bool) -> list[Tensor | None]:
        if samples:
            return _grad_of_samples(
                outs, wanted, gradients, edges, retain_graph=retain, create_graph=create_graph
            )
        return run_backward(
            _roots("grad", outs, gradients),
            retain_graph=retain,
            create_graph=create_graph,
            inputs=edges,
            accumulate=False,
        )

    if is_grads_batched:
        results = _batched(outs, grad_outputs, once, keep)
    else:
        results = once(grad_outputs, keep)
    for number, tensor in enumerate(wanted):
        if results[number] is not None:
            continue
        if materialize_grads:
            edge = edges[number]
            spec = edge.node.outputs[edge.output_nr] if isinstance(tensor, Edge) else None
            results[number] = (
                tensor.detach().new_zeros(tensor.shape) if spec is None else zeros_of(spec)
            )
        elif not allow_unused:
            message = (
                f"[grad] one of the differentiated Tensors (input {number}) appears to not have "
                "been used in the graph. Set allow_unused=True if this is the desired behavior."
            )
            raise RuntimeError(message)
    if isinstance(inputs, Mapping):
        return dict(zip(inputs, results, strict=True))
    return tuple(results)


def _batched(
    outs: list[Any],
    grad_outputs: Any,
    once: Callable[[Any, bool], list[Tensor | None]],
    keep: bool,
) -> list[Tensor | None]:
    given = [] if grad_outputs is None else _as_sequence(grad_outputs, "grad", "grad_outputs")
    sizes = {g.shape[0] for g in given if isinstance(g, Tensor) and g.ndim}
    fits = len(given) == len(outs) and all(
        isinstance(g, Tensor) and g.ndim and g.shape[1:] == out.shape
        for out, g in zip(outs, given, strict=False)
    )
    if not fits or len(sizes) != 1 or sizes == {0}:
        message = (
            "[grad] with is_grads_batched=True each gradient needs one dimension more than its "
            f"output, of the same size for all: outputs of {[list(o.shape) for o in outs]}, "
            f"gradients of {[list(g.shape) if isinstance(g, Tensor) else g for g in given]}."
        )
        raise RuntimeError(message)
    (count,) = sizes

    level = Level(count)
    results = once([batch(g, (level,)) for g in given], keep)
    return [None if r is None else expose(r, (level,)) for r in results]


def _value(tensor: Any) -> Any:
    return tensor._value if isinstance(tensor, BatchedTensor) else tensor


def _grad_of_samples(
    outs: list[Any],
    wanted: list[Any],
    gradients: Any,
    edges: list[Edge],
    *,
    retain_graph: bool,
    create_graph: bool,
) -> list[Tensor | None]:
    """Return gradients inside of vmap, where the graph is that of whole batches.

    Samples do not mix, so that one pass on the whole batches gives the gradient of each sample.
    """
    given = [None] * len(outs)
    if gradients is not None:
        given = _as_sequence(gradients, "grad", "gradient")
    groups: dict[Any, list[tuple[Edge, Tensor]]] = {}
    for number, (out, gradient) in enumerate(zip(outs, given, strict=True)):
        edge = _wanted_edge("grad", _value(out), number)
        levels = out._levels if isinstance(out, BatchedTensor) else ()
        start = _root_gradient("grad", out, gradient, number)
        groups.setdefault(levels, []).append((edge, expose(start, levels) if levels else start))
    total: list[Tensor | None] = [None] * len(wanted)
    for count, (levels, roots) in enumerate(groups.items(), 1):
        found = run_backward(
            roots,
            retain_graph=retain_graph or count < len(groups),
            create_graph=create_graph,
            inputs=edges,
            accumulate=False,
        )
        for number, (x, part) in enumerate(zip(wanted, found, strict=True)):
            if part is None:
                continue
            own = x._levels if isinstance(x, BatchedTensor) else ()
            if own != levels:
                message = (
                    f"[grad] vmap: input {number} is the same for all samples and the output is "
                    "not, so that only the sum of their gradients is known. Pass the input as an "
                    "argument of the function, or write func.grad(f)."
                )
                raise RuntimeError(message)
            result = batch(part, levels)
            present = total[number]
            total[number] = result if present is None else present + result
    return total


# Modes and types were asked about the method already.
_ask_nobody: Callable[..., None] = inspect.unwrap(backward)


# Starts from a plain tensor and runs the whole pass; says whether it did.
_plainly: Callable[..., bool] | None = (
    None if _native.core is None else _native.core.backward_plainly
)


@overridable_alone
def _tensor_backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of this tensor to the ``grad`` of the leaves; see `autograd.backward`."""
    if (
        _plainly is not None
        and inputs is None
        and not create_graph
        and _plainly(self, gradient, retain_graph)
    ):
        return
    grads = None if gradient is None else [gradient]
    _ask_nobody([self], grads, retain_graph, create_graph, inputs=inputs)


def _register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call ``hook(grad)`` whenever a gradient of this tensor arrives; it may return another.

    Raises
    ------
    RuntimeError
        The tensor does not require grad.
    """
    if not self.requires_grad:
        message = (
            "[register_hook] cannot register a hook on a tensor that doesn't require gradient. "
            "Write x.requires_grad_()."
        )
        raise RuntimeError(message)
    if self._grad_fn is not None:
        return RemovableHandle(self._grad_fn.tensor_hooks(self._output_nr), hook)
    return RemovableHandle(leaf_hooks(self).grad, hook)


def _register_post_accumulate_grad_hook(
    self: Tensor, hook: Callable[[Tensor], None]
) -> RemovableHandle:
    """Call ``hook(tensor)`` after a gradient was added to ``grad`` of this leaf.

    Raises
    ------
    RuntimeError
        The tensor is not a leaf, or does not require grad.
    """
    if self.grad_fn is not None or not self.requires_grad:
        what = (
            "a non-leaf" if self.grad_fn is not None else "a tensor that doesn't require gradient"
        )
        message = f"[register_post_accumulate_grad_hook] cannot register a hook on {what}."
        raise RuntimeError(message)
    return RemovableHandle(leaf_hooks(self).post_accumulate, hook)


def _retain_grad(self: Tensor) -> None:
    """Fill ``grad`` in backward passes although this tensor is not a leaf.

    Raises
    ------
    RuntimeError
        The tensor does not require grad.
    """
    if not self.requires_grad:
        message = "[retain_grad] can't retain_grad on Tensor that has requires_grad=False."
        raise RuntimeError(message)
    if self._grad_fn is not None:
        self._grad_fn.retain(self)


attach("backward", _tensor_backward)
attach("register_hook", _register_hook)
attach("register_post_accumulate_grad_hook", _register_post_accumulate_grad_hook)
attach("retain_grad", _retain_grad)
