"""The short ways of small calls: what a primitive does, for the commonest arguments only.

Most calls have plain tensors of one floating type, or such tensors and a number. For those the long
way (`Primitive.apply`) asks many questions whose answers are known. A short way asks only whether
a call is such a one, and returns None if not; then the long way is taken, which also words the
errors. There are four, after the declaration of the primitive: for elementwise functions of one
and of two operands (`ufunc`), for products of two tensors, for functions of one tensor and other
arguments (`quick`), among them the views, and for functions of several tensors and other arguments.
A test runs every operator both ways.

What is written out here, and not called, is called by nearly every line of a program.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorplay import _dtype, _native
from tensorplay._detours import detours
from tensorplay._quiet import quietly
from tensorplay._tensor import Tensor, VersionCounter
from tensorplay.autograd import grad_mode
from tensorplay.autograd.graph import Edge, Node, next_number
from tensorplay.autograd.saved_tensors import INFERENCE_SAVED
from tensorplay.ops.node import FIRST_IS_NUMBER, SECOND_IS_NUMBER, TENSOR, PrimitiveNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorplay.ops.primitive import Primitive

__all__ = ["COMPILED", "quick_call", "quick_special", "quick_special_write", "quick_write"]

FLOAT32: Final = _dtype.float32
FLOAT64: Final = _dtype.float64
# One by one, so many numbers can be added before the roundings count: float32 has 24 bits.
MOST_OF_A_SMALL_SUM: Final = 1024
_NOTHING: Final = (None,)
# Several times faster than a call of the class.
_new: Final[Callable[[], Tensor]] = functools.partial(object.__new__, Tensor)
_new_node: Final[Callable[[], PrimitiveNode]] = functools.partial(object.__new__, PrimitiveNode)
_tuple: Final = tuple.__new__

# What the functions below may raise at arguments that the long way refuses with better words, or
# knows how to take; RuntimeError is `quietly` in use by another thread.
_REFUSED: Final = (TypeError, ValueError, IndexError, OverflowError, RuntimeError)

if _native.core is not None:
    _numbers: Any = next_number
    _native.core.set_layout(
        *(Tensor, VersionCounter, Node, PrimitiveNode, Edge),
        *(_numbers.__self__, grad_mode.state, detours),
    )


# Whether the extension makes the short ways; those of this module are then for comparison.
COMPILED: Final = _native.core is not None


def quick_call(primitive: Primitive, *, compiled: bool = COMPILED) -> Callable[..., Any] | None:
    """Return the short way of `primitive`, None if its declaration gives none."""
    kind = _kind_of(primitive)
    return None if kind is None else _make(kind, primitive, compiled=compiled)


def quick_write(primitive: Primitive, *, compiled: bool = COMPILED) -> Callable[..., Any] | None:
    """Return the short way of the in-place form of an elementwise function of two operands.

    It takes all arguments; those after the operands must be plain numbers.
    """
    if primitive.ufunc is None or _kind_of(primitive) != "two":
        return None
    return _make("write", primitive, compiled=compiled)


def quick_special(
    operator: Any,
    miss: Callable[..., Any],
    *,
    reflected: bool = False,
    compiled: bool = COMPILED,
) -> Any:
    """Return a special method of one or two operands that calls `miss` for the less common calls.

    It is `miss` itself if the operator has no short way. If `reflected` the second operand comes
    first.
    """
    kind = _kind_of(operator) if getattr(operator, "plan", ()) else None
    if kind is None:
        return miss
    return _wrapping(miss, _make(kind, operator, miss, swaps=reflected, compiled=compiled))


def quick_special_write(
    operator: Any, miss: Callable[..., Any], *, compiled: bool = COMPILED
) -> Any:
    """Return the special method that writes into its first operand."""
    if operator._short_write is None:
        return miss
    return _wrapping(miss, _make("write", operator, miss, compiled=compiled))


def _wrapping(miss: Callable[..., Any], made: Any) -> Any:
    made.__wrapped__ = miss  # which has the signature
    made.__module__ = __name__  # as that of a function made here
    made.__doc__ = miss.__doc__
    return made


def _kind_of(primitive: Primitive) -> str | None:
    """Return which of the ways below the declaration gives, None for none."""
    kinds = [kind for _, kind, _ in primitive.plan]
    if primitive.ufunc is not None:
        return "arguments" if kinds.count(TENSOR) == 1 else "two"
    if primitive.quick is None:
        return None
    if kinds == [TENSOR, TENSOR]:
        return "two"
    if kinds.count(TENSOR) > 1:
        return "tensors"
    return "view" if primitive.view and primitive.vjp is not None else "arguments"


def _make(
    kind: str,
    primitive: Primitive,
    miss: Callable[..., Any] | None = None,
    *,
    swaps: bool = False,
    compiled: bool,
) -> Callable[..., Any]:
    """Return a short way that returns ``miss(*args)`` for other calls, or None."""
    function: Any = primitive.quick if primitive.ufunc is None else primitive.ufunc
    elementwise = primitive.ufunc is not None
    if compiled:
        return _compiled(kind, primitive, function, miss, elementwise=elementwise, swaps=swaps)
    if kind == "two":
        if not swaps:
            return _of_two(primitive, function, miss or _miss, elementwise=elementwise)
        short = _of_two(primitive, function, _miss, elementwise=elementwise)
    elif kind == "view":
        short = _of_view(primitive, function)
    elif kind == "write":
        short = _of_write(primitive, function)
    elif kind == "tensors":
        short = _of_tensors(primitive, function)
    else:
        short = _of_arguments(primitive, function, elementwise=elementwise)
    if miss is None:
        return short
    rest = _defaults_after(primitive, 2) if kind == "write" else ()
    return _swapped(short, miss) if swaps else _or_else(short, miss, rest)


def _swapped(short: Callable[..., Any], miss: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, other: Any) -> Any:
        result = short(other, self)
        return miss(self, other) if result is None else result

    return call


def _or_else(
    short: Callable[..., Any], miss: Callable[..., Any], rest: tuple[Any, ...]
) -> Callable[..., Any]:
    def call(self: Any, *others: Any) -> Any:
        result = short(self, *others, *rest)
        return miss(self, *others) if result is None else result

    return call


def _compiled(
    kind: str,
    primitive: Primitive,
    function: Callable[..., Any],
    miss: Callable[..., Any] | None,
    *,
    elementwise: bool,
    swaps: bool,
) -> Callable[..., Any]:
    """Return the short way that the extension makes of the same facts."""
    operands = (
        2 if kind in {"two", "write"} else len(_optional(primitive)) if kind == "tensors" else 1
    )
    defaults = _defaults_after(primitive, operands)
    # Of a view by a key, the key stands for all other arguments.
    others = [extra for *_, extra in primitive.plan[operands:]]
    wanted = (1,) if operands == 1 else range(2**operands)
    made: Callable[..., Any] = _native.core.short_way(
        kind,
        primitive,
        function,
        compiled=primitive.name if primitive.schema.namespace is None else "",
        miss=miss,
        defaults=defaults,
        plain=(*[None] * operands, *defaults),
        converters=(None,) if primitive.complete is not None else tuple(others),
        again=primitive.replay if kind == "view" else primitive.impl,
        saves=tuple(_save_bits(primitive, needs, operands) for needs in wanted),
        elementwise=elementwise,
        differentiable=primitive.vjp is not None,
        casts=elementwise and not isinstance(function, np.ufunc),
        shortened=primitive.complete is not None,
        swaps=swaps,
        optional=_optional(primitive) if kind == "tensors" else (),
        integers=_integers(primitive) if kind == "tensors" else (),
    )
    return made


def _save_bits(primitive: Primitive, needs: int, operands: int) -> int:
    """Return what is saved as bits: 1, 2 and 4 for the operands, 8 for the result."""
    *early, late = _what_to_save(primitive, tuple(bool(needs >> i & 1) for i in range(operands)))
    return sum(saved << i for i, saved in enumerate(early)) | late << 3


def _optional(primitive: Primitive) -> tuple[bool, ...]:
    """Return for each tensor argument, which come first, whether it may be None."""
    return tuple(a.type.optional for _, kind, a in primitive.plan if kind == TENSOR)


def _integers(primitive: Primitive) -> tuple[bool, ...]:
    """Return for each tensor argument, which come first, whether it holds integers."""
    return tuple(a.name in primitive.integers for _, kind, a in primitive.plan if kind == TENSOR)


def _defaults_after(primitive: Primitive, operands: int) -> tuple[Any, ...]:
    others = primitive.schema.arguments[operands:]
    return tuple(primitive._defaults.get(a.name, ...) for a in others)


def _miss(*_: Any) -> None:
    """Say that a call is none of the commonest."""


def _what_to_save(primitive: Primitive, wanted: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return for each of the first two arguments, and for the result, whether it is saved."""
    names = primitive.names
    early, late = primitive.saves((*wanted, *[False] * (len(names) - len(wanted))))
    return (*(name in early for name in names[: len(wanted)]), late)


def _versions(args: tuple[Any, ...]) -> Any:
    """Return the versions of the tensors among saved arguments, 0 if they are all 0."""
    found = []
    for value in args:
        version = 0
        if value.__class__ is Tensor:
            if value._inference:
                raise RuntimeError(INFERENCE_SAVED)
            version = 0 if value._counter is None else value._counter.value
        found.append(version)
    return tuple(found) if any(found) else 0


def _source(x: Tensor) -> Any:
    """Return what a node keeps of where an argument comes from."""
    node = x._grad_fn
    if node is None:
        return x
    return _tuple(Edge, (node, x._output_nr)) if x._output_nr else node


if COMPILED:
    _native.core.set_short_ways(
        *((FLOAT32, FLOAT64), quietly, _versions),
        *((FIRST_IS_NUMBER, SECOND_IS_NUMBER), MOST_OF_A_SMALL_SUM),
    )


# Arrays for the numbers that came by, as NumPy takes twice as long with a number.
_constants: Final[dict[Any, Any]] = {}
_MOST_CONSTANTS: Final = 4096


def _constant(number: Any, d: _dtype.dtype) -> Any:
    """Return `number` as an array of type `d`, kept for the next time; some as they are."""
    # Of equal keys one would stand for the other: zeros have signs. Some integers do not fit.
    if d is not FLOAT32 and d is not FLOAT64:
        return number
    if number == 0 or number != number or abs(number) > 2**53:  # noqa: PLR0124 - NaN
        return number
    if len(_constants) >= _MOST_CONSTANTS:
        _constants.clear()
    found = _constants[d, number] = np.asarray(number, d.numpy)
    return found


def _of_two(  # noqa: C901 - of what it returns
    primitive: Primitive,
    function: Callable[..., Any],
    miss: Callable[..., Any],
    *,
    elementwise: bool,
) -> Callable[..., Any]:
    """Return the short way of a function of two tensors, if elementwise also of a number.

    It returns ``miss(self, other)`` for other calls.
    """
    mode, ndarray = grad_mode.state, np.ndarray
    differentiable = primitive.vjp is not None
    rest = _defaults_after(primitive, 2)
    plain = (None, None, *rest)
    saves = [_what_to_save(primitive, (bool(n & 1), bool(n & 2))) for n in range(4)]

    def call(self: Any, other: Any) -> Any:  # noqa: C901 - written out for speed
        if detours:
            return miss(self, other)
        pattern: Any = None
        if self.__class__ is Tensor:
            left, d = self._array, self._dtype
            if self._base is not None:
                self._synchronise()
            if self._tangent is not None or left.__class__ is not ndarray:
                return miss(self, other)
            first = self._requires_grad
        elif elementwise and (self.__class__ is float or self.__class__ is int):
            if other.__class__ is not Tensor:
                return miss(self, other)
            d, first, pattern = other._dtype, False, FIRST_IS_NUMBER
            left = _constants.get((d, self))
            if left is None:
                left = _constant(self, d)
        else:
            return miss(self, other)
        if d is not FLOAT32 and d is not FLOAT64:
            return miss(self, other)
        if other.__class__ is Tensor:
            right = other._array
            if other._base is not None:
                other._synchronise()
            if (
                other._dtype is not d
                or other._tangent is not None
                or right.__class__ is not ndarray
            ):
                return miss(self, other)
            second = other._requires_grad
        elif elementwise and (other.__class__ is float or other.__class__ is int):
            second, pattern = False, SECOND_IS_NUMBER
            right = _constants.get((d, other))
            if right is None:
                right = _constant(other, d)
        else:
            return miss(self, other)
        try:
            result = quietly(function, left, right) if elementwise else function(left, right)
        except _REFUSED:
            return miss(self, other)
        if result.__class__ is not ndarray:
            if result is None:
                return miss(self, other)
            result = np.array(result)  # a number; faster than asarray
        out = _new()
        out._array = result
        out._dtype = d
        out._tangent = out._base = out._recipe = out._counter = None
        out._output_nr = 0
        if not (first or second) or not differentiable or not mode.enabled:
            out._requires_grad = False
            out._grad_fn = None
            return out
        needs = first + 2 * second
        save_x, save_y, save_out = saves[needs]
        node = _new_node()
        node.primitive = primitive
        node.sequence = next_number()
        node._sources = (_source(self) if first else None, _source(other) if second else None)
        node._shape = result.shape
        node._dtype = d
        node._extras = node._outputs = node._counter = node._versions = None
        node._out = result if save_out else None
        if pattern is None and not save_x and not save_y:
            node._args = plain
        else:
            left = self if save_x or pattern is FIRST_IS_NUMBER else None
            right = other if save_y or pattern is SECOND_IS_NUMBER else None
            node._args = (left, right)
            if rest:
                node._args += rest
        # A number that is kept has no version, and a node of numbers alone is never freed.
        keeps_x = save_x and left.__class__ is Tensor
        keeps_y = save_y and right.__class__ is Tensor
        if keeps_x or keeps_y:
            node._versions = 0
            if (keeps_x and self._counter is not None) or (keeps_y and other._counter is not None):
                node._versions = _versions((left, right))
        if elementwise:
            node._shapes = pattern
        else:
            node._shapes = (self._array.shape, other._array.shape)
        out._grad_fn = node
        out._requires_grad = True
        return out

    return call


def _of_view(primitive: Primitive, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the short way of a view of a tensor, first, by other arguments."""
    mode, ndarray = grad_mode.state, np.ndarray
    again, shortened = primitive.replay, primitive.complete is not None

    def call(x: Any, *rest: Any) -> Tensor | None:
        if x.__class__ is not Tensor or detours:
            return None
        d = x._dtype
        array = x._array
        if (d is not FLOAT32 and d is not FLOAT64) or array.__class__ is not ndarray:
            return None
        if x._base is not None:
            x._synchronise()
        if x._tangent is not None:
            return None
        try:
            found = function(array, rest)
        except _REFUSED:
            return None
        if found is None:
            return None
        result, rest = found
        if result is array:  # a view is an object of its own
            result = array.view()
        memory = result.base
        if memory is not array and (memory is None or memory is not array.base):
            return None  # a copy, or one that only a closer look can tell from a view
        counter = x._counter
        if counter is None:
            counter = x._shared_counter()
        elif counter.__class__ is not VersionCounter:
            return None  # that of an inference tensor, or of one that moved
        out = _new()
        out._array = result
        out._dtype = d
        out._tangent = None
        out._counter = counter
        out._output_nr = 0
        base = x._base
        if base is None:
            out._base = x
            out._recipe = (again, (rest,), None)
        elif x._recipe is not None:
            out._base = base
            out._recipe = (again, (rest,), x._recipe)
        else:
            out._base = out._recipe = None
        if counter.history:
            out._seen = counter.history
        if not x._requires_grad or not mode.enabled:
            out._requires_grad = False
            out._grad_fn = None
            return out
        node = _new_node()
        node.primitive = primitive
        node.sequence = next_number()
        node._sources = (_source(x),)
        node._shape = result.shape
        node._dtype = d
        node._extras = node._outputs = node._counter = node._out = node._versions = None
        shape = array.shape
        node._args = ((shape,) if shortened else _NOTHING) + rest
        node._shapes = (shape,)
        out._grad_fn = node
        out._requires_grad = True
        return out

    return call


def _of_arguments(  # noqa: C901 - of what it returns
    primitive: Primitive, function: Callable[..., Any], *, elementwise: bool
) -> Callable[..., Any]:
    """Return the short way of a function of one tensor, first, and other arguments.

    Elementwise functions have no other arguments than defaults.
    """
    mode, ndarray = grad_mode.state, np.ndarray
    differentiable = primitive.vjp is not None
    defaults = _defaults_after(primitive, 1)
    save_x, save_out = _what_to_save(primitive, (True,))
    convert = [extra for _, _, extra in primitive.plan[1:]]
    reduce = primitive.reduce
    plain = (None, *defaults)
    # Of NumPy's own functions the type is known.
    casts = elementwise and not isinstance(function, np.ufunc)

    def call(x: Any, *rest: Any) -> Tensor | None:
        if x.__class__ is not Tensor or detours:
            return None
        d = x._dtype
        array = x._array
        if (d is not FLOAT32 and d is not FLOAT64) or array.__class__ is not ndarray:
            return None
        if x._base is not None:
            x._synchronise()
        if x._tangent is not None:
            return None
        try:
            if elementwise:
                result = quietly(function, array)
            elif (
                (usual := rest == defaults)
                and reduce is not None
                and array.size <= MOST_OF_A_SMALL_SUM
                and (array.ndim < 2 or array.flags.c_contiguous)
            ):
                result = quietly(reduce, array, None)
            else:
                result = function(array, rest)
        except _REFUSED:
            return None
        if result.__class__ is not ndarray:
            if result is None:
                return None
            result = np.array(result)  # a number; faster than asarray
        if casts and result.dtype is not d.numpy:
            result = result.astype(d.numpy)
        records = differentiable and x._requires_grad and mode.enabled
        if elementwise:
            rest = defaults
        elif records and not usual:
            # As the long way has them: what people pass may be changed later.
            rest = tuple([c(v) for c, v in zip(convert, rest, strict=True)])
        out = _new()
        out._array = result
        out._dtype = d
        out._tangent = out._base = out._recipe = out._counter = None
        out._output_nr = 0
        if not records:
            out._requires_grad = False
            out._grad_fn = None
            return out
        node = _new_node()
        node.primitive = primitive
        node.sequence = next_number()
        node._sources = (_source(x),)
        node._shape = result.shape
        node._dtype = d
        node._extras = node._outputs = node._counter = None
        node._out = result if save_out else None
        if save_x:
            node._args = (x, *rest)
        else:
            node._args = plain if elementwise or usual else (None, *rest)
        if not save_x:
            node._versions = None
        else:
            node._versions = 0 if x._counter is None else _versions((x,))
        node._shapes = None if elementwise else (array.shape,)
        out._grad_fn = node
        out._requires_grad = True
        return out

    return call


def _of_tensors(primitive: Primitive, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the short way of a function of several tensors, first, and other arguments.

    The first tensor has the type of the result; others have it too, but for those that the
    declaration says to hold integers.
    """
    mode, ndarray = grad_mode.state, np.ndarray
    optional, integers = _optional(primitive), _integers(primitive)
    count = len(optional)
    differentiable = primitive.vjp is not None
    defaults = _defaults_after(primitive, count)
    saves = [
        _what_to_save(primitive, tuple(bool(n >> i & 1) for i in range(count)))
        for n in range(2**count)
    ]
    convert = [extra for _, _, extra in primitive.plan[count:]]

    def call(*args: Any) -> Tensor | None:
        d = args[0]._dtype if args[0].__class__ is Tensor else None
        if detours or (d is not FLOAT32 and d is not FLOAT64):
            return None
        arrays: list[Any] = []
        needs = 0
        for position, may_be_none in enumerate(optional):
            x = args[position]
            if x is None and may_be_none:
                arrays.append(None)
                continue
            if x.__class__ is not Tensor:
                return None
            if x._base is not None:
                x._synchronise()
            array = x._array
            if x._tangent is not None or array.__class__ is not ndarray:
                return None
            if not (array.dtype.kind in "iu" if integers[position] else x._dtype is d):
                return None
            arrays.append(array)
            needs |= x._requires_grad << position
        rest = args[count:]
        try:
            result = function(tuple(arrays), rest)
        except _REFUSED:
            return None
        if result is None:
            return None
        records = needs and differentiable and mode.enabled
        if records and rest != defaults:
            # As the long way has them: what people pass may be changed later.
            rest = tuple([c(v) for c, v in zip(convert, rest, strict=True)])
        out = _new()
        out._array = result
        out._dtype = d
        out._tangent = out._base = out._recipe = out._counter = None
        out._output_nr = 0
        if not records:
            out._requires_grad = False
            out._grad_fn = None
            return out
        tensors = args[:count]
        *saved, save_out = saves[needs]
        kept = tuple([x if save else None for x, save in zip(tensors, saved, strict=True)])
        node = _new_node()
        node.primitive = primitive
        node.sequence = next_number()
        node._sources = tuple(
            [_source(x) if needs >> i & 1 else None for i, x in enumerate(tensors)]
        )
        node._shape = result.shape
        node._dtype = d
        node._extras = node._outputs = node._counter = None
        node._out = result if save_out else None
        node._args = kept + rest
        node._versions = None if kept == (None,) * count else _versions(kept)
        node._shapes = tuple([None if array is None else array.shape for array in arrays])
        out._grad_fn = node
        out._requires_grad = True
        return out

    return call


def _of_write(primitive: Primitive, ufunc: Callable[..., Any]) -> Callable[..., Any]:
    """Return the short way of the in-place form of a function of two operands."""
    impl = primitive.impl
    mode, ndarray = grad_mode.state, np.ndarray
    defaults = _defaults_after(primitive, 2)

    def call(x: Any, y: Any, *rest: Any) -> Tensor | None:
        if x.__class__ is not Tensor or detours or x._base is not None or x._tangent is not None:
            return None
        d = x._dtype
        target = x._array
        if (d is not FLOAT32 and d is not FLOAT64) or target.__class__ is not ndarray:
            return None
        if y.__class__ is Tensor:
            value = y._array
            if y._base is not None:
                y._synchronise()
            if y._dtype is not d or y._tangent is not None or value.__class__ is not ndarray:
                return None
            recorded = x._requires_grad or y._requires_grad
        elif y.__class__ is float or y.__class__ is int:
            value = y
            recorded = x._requires_grad
        else:
            return None
        flags = target.flags
        if (recorded and mode.enabled) or not flags.c_contiguous or not flags.writeable:
            return None
        counter = x._counter
        if counter is None:
            counter = x._shared_counter()
        elif counter.__class__ is not VersionCounter:
            return None  # that of an inference tensor, or of one that moved
        try:
            if rest == defaults:
                quietly(ufunc, target, value, out=target)
            else:
                for number in rest:
                    if number.__class__ is not float and number.__class__ is not int:
                        return None
                result = quietly(impl, target, value, *rest)
                if result.shape != target.shape or result.dtype is not target.dtype:
                    return None
                target[...] = result
        except _REFUSED:
            return None
        counter.value += 1
        return x

    return call
