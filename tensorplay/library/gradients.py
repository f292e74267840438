"""What a registered backward formula returns, brought into the form of the engine."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorplay.ops.primitive import Primitive

__all__ = ["NOT_DIFFERENTIABLE", "Gradient", "flat_gradients"]


@dataclass(frozen=True)
class Gradient:
    """A backward formula and the function that keeps what it needs."""

    backward: Callable[..., Any]
    setup_context: Callable[..., Any] | None = None

    def set_up(
        self, ctx: Any, inputs: tuple[Any, ...], keywords: dict[str, Any], output: Any
    ) -> None:
        """Call `setup_context`; with keyword-only inputs it takes these by name, in any place."""
        function = self.setup_context
        if function is None:
            return
        if not keywords:
            function(ctx, inputs, output)
        elif "output" in inspect.signature(function).parameters:
            function(ctx, inputs, output=output, keyword_only_inputs=keywords)
        else:
            function(ctx, inputs, output, keyword_only_inputs=keywords)

    def formula_of(self, primitive: Primitive) -> Callable[..., Any]:
        """Return ``formula(ctx, *grads)`` for calls without lists and keyword-only arguments."""
        backward = self.backward
        arguments = primitive.schema.arguments
        numbers = [i for i, a in enumerate(arguments) if not a.type.is_tensor]

        def formula(ctx: Any, *grads: Any) -> Any:
            found = backward(ctx, *grads)
            if (
                found.__class__ is tuple
                and len(found) == len(arguments)
                and not any(found[i] is not None for i in numbers)
            ):
                return found
            return flat_gradients(primitive, found, list(ctx.needs_input_grad))

        return formula


def _never(*_: Any) -> Any:
    message = "a result that is declared not differentiable has no history"
    raise RuntimeError(message)


# Of an operator whose results are declared to carry no gradient.
NOT_DIFFERENTIABLE: Final = Gradient(_never)


def _fail(primitive: Primitive, what: str) -> NoReturn:
    arguments = primitive.schema.arguments
    form = ", ".join(
        "None" if not a.type.is_tensor else f"[{a.name}…]" if a.type.is_list else a.name
        for a in arguments
        if not a.kwarg_only or a.type.is_tensor
    )
    names = ", ".join(f"'{a.name}': …" for a in arguments if a.type.is_tensor)
    message = (
        f"[{primitive.schema.qualname}] backward: {what} Expected the gradients of "
        f"{primitive.schema}: ({form}), or {{{names}}}; None where there is none."
    )
    raise RuntimeError(message)


def flat_gradients(primitive: Primitive, result: Any, needs: list[Any]) -> list[Any]:
    """Return what a formula gave as one gradient per flattened argument.

    Parameters
    ----------
    primitive
        The operator, for its schema.
    result
        A dictionary by the names of arguments; or a sequence in the order of the schema, in which
        keyword-only arguments that are no tensors are left out, as are all keyword-only ones if
        none needs a gradient; or the gradient itself if there is one argument.
    needs
        Whether each argument needs a gradient, nested as the arguments are.

    Raises
    ------
    RuntimeError
        Number, names or nesting are not those of the arguments, or something that is no tensor
        has a gradient.
    """
    flat: list[Any] = []
    given = _by_argument(primitive, result, needs)
    for gradient, need, argument in zip(given, needs, primitive.schema.arguments, strict=True):
        if gradient is not None and not argument.type.is_tensor:
            _fail(primitive, f"got a gradient for '{argument.name}', which is no tensor.")
        if not isinstance(need, list):
            flat.append(gradient)
        elif gradient is None:
            flat.extend([None] * len(need))
        elif not isinstance(gradient, (list, tuple)) or len(gradient) != len(need):
            got = (
                f"{len(gradient)}"
                if isinstance(gradient, (list, tuple))
                else type(gradient).__name__
            )
            _fail(
                primitive,
                f"expected a list of {len(need)} gradients for argument '{argument.name}', "
                f"got {got}.",
            )
        else:
            flat.extend(gradient)
    return flat


def _by_argument(primitive: Primitive, result: Any, needs: list[Any]) -> list[Any]:
    """Return one gradient, or list of them, per argument of the schema."""
    arguments = primitive.schema.arguments
    if isinstance(result, dict):
        unknown = sorted(str(name) for name in result if name not in primitive.schema)
        if unknown:
            _fail(primitive, f"got gradients for {unknown}, which are no arguments.")
        return [result.get(a.name) for a in arguments]
    positional = [a for a in arguments if not a.kwarg_only]
    keywords = [a for a in arguments if a.kwarg_only and a.type.is_tensor]
    # `[g, g, g]` is the list for the only argument, `[[g, g, g]]` a sequence that holds it.
    only_list = len(positional) == 1 and isinstance(needs[0], list) and isinstance(result, list)
    if only_list and not (len(result) == 1 and isinstance(result[0], (list, tuple))):
        given = [result]
    else:
        given = list(result) if isinstance(result, (tuple, list)) else [result]
    most = len(positional) + len(keywords)
    while len(given) > most and given[-1] is None:
        given.pop()
    if len(given) == len(positional) < most:
        wanted = [a.name for a, n in zip(arguments, needs, strict=True)
                  if a.kwarg_only and (any(n) if isinstance(n, list) else n)]  # fmt: skip
        if wanted:
            _fail(primitive, f"no gradient came for keyword-only {wanted}, which need one.")
        given += [None] * len(keywords)
    if len(given) != most:
        _fail(
            primitive,
            f"returned an incorrect number of gradients (expected {most}, got {len(given)}).",
        )
    by_name = dict(zip([a.name for a in (*positional, *keywords)], given, strict=True))
    return [by_name.get(a.name) for a in arguments]
