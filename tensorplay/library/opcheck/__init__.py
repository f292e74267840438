"""`opcheck`: whether an operator does what its registration declares."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any, Final

from tensorplay.library.opcheck.calls import Arguments, Checked
from tensorplay.library.opcheck.failures import OpCheckError, OpCheckFailure
from tensorplay.library.opcheck.fake import check_fake
from tensorplay.library.opcheck.gradients import check_gradients
from tensorplay.library.opcheck.schema import check_schema
from tensorplay.library.opcheck.tracing import check_dynamic, check_static
from tensorplay.library.opcheck.variants import check_variants
from tensorplay.library.registry import find

__all__ = ["DEFAULT_TEST_UTILS", "TEST_UTILS", "OpCheckError", "OpCheckFailure", "opcheck"]

TEST_UTILS: Final = MappingProxyType(
    {
        "test_schema": check_schema,
        "test_autograd_registration": check_gradients,
        "test_faketensor": check_fake,
        "test_aot_dispatch_static": check_static,
        "test_aot_dispatch_dynamic": check_dynamic,
        "test_variants": check_variants,
    }
)
DEFAULT_TEST_UTILS: Final = tuple(name for name in TEST_UTILS if name != "test_aot_dispatch_static")


def opcheck(
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    test_utils: str | Iterable[str] = DEFAULT_TEST_UTILS,
    raise_exception: bool = True,
    atol: float | None = None,
    rtol: float | None = None,
) -> dict[str, tuple[OpCheckFailure, ...]]:
    """Check an operator's registration by calls of it.

    The arguments are copied, and the operator is called a few dozen times. The values of gradients
    are not checked: `tensorplay.autograd.gradcheck` does that.

    Parameters
    ----------
    op
        The operator, or its qualified name.
    args, kwargs
        A call that the operator takes; tensors that require gradients have theirs checked.
    test_utils
        Names, one name or ``"all"``:

        - ``"test_schema"``: undeclared writes, results that share memory with arguments or each
          other, kinds of results, keyword calls and defaults, versions; `Tag.out` is not read;
        - ``"test_autograd_registration"``: each input that requires one gets a gradient, of its
          shape and dtype;
        - ``"test_faketensor"``: the fake kernel agrees with the kernel in count, shape, dtype,
          device and strides, and reads no data;
        - ``"test_aot_dispatch_static"`` and ``"test_aot_dispatch_dynamic"``: forward and backward
          run without data, at the sizes of the call and at others;
        - ``"test_variants"``: spaced, transposed, reversed, expanded, 0-d and empty arguments, NaN
          and infinity, a repeated call, calls from several threads.
    raise_exception
        Whether failures raise.
    atol, rtol
        Tolerances of comparisons; None for those of the dtype.

    Returns
    -------
    dict
        The failures by test; empty when all is well.

    Raises
    ------
    OpCheckError
        The operator failed.
    ValueError
        A name in `test_utils` is no test.
    TypeError
        The arguments are not those of the schema.

    Warns
    -----
    UserWarning
        An argument is declared as written and the call leaves it alone.

    Examples
    --------
    >>> import tensorplay as tp
    >>> @tp.library.custom_op("docs::first")
    ... def first(x: tp.Tensor) -> tp.Tensor:
    ...     return x[:1].clone()
    >>> @first.register_fake
    ... def _(x):
    ...     return x.new_empty((min(1, x.shape[0]),))
    >>> tp.library.opcheck(first, (tp.arange(4.0),))
    {}
    """
    definition = find("opcheck", op)
    tests = _tests(test_utils)
    given: Any = args
    if not isinstance(given, tuple):
        message = (
            f"[opcheck] argument 'args': expected a tuple of {definition.name}'s arguments, got "
            f"{type(given).__name__}."
        )
        raise TypeError(message)
    try:
        arguments = Arguments(definition, args, kwargs or {})
    except TypeError as problem:
        message = f"[opcheck] {problem}. Expected the arguments of {definition.schema}."
        raise TypeError(message) from None
    check = Checked(definition, arguments, atol, rtol)
    for run in tests:
        run(check)
    for warning in check.warnings:
        warnings.warn(warning, UserWarning, stacklevel=2)
    if check.failures and raise_exception:
        raise OpCheckError(definition.name, tuple(check.failures))
    names = {f.test: None for f in check.failures}
    return {name: tuple(f for f in check.failures if f.test == name) for name in names}


def _tests(wanted: str | Iterable[str]) -> list[Callable[[Checked], None]]:
    if wanted == "all":
        return list(TEST_UTILS.values())
    given: Any = wanted
    if not isinstance(given, (str, Iterable)):
        message = (
            f"[opcheck] argument 'test_utils': expected 'all' or names of tests, got {given!r}."
        )
        raise TypeError(message)
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    unknown = [n for n in names if n not in TEST_UTILS]
    if unknown:
        message = (
            f"[opcheck] argument 'test_utils': expected 'all' or some of {', '.join(TEST_UTILS)}, "
            f"got {unknown}."
        )
        raise ValueError(message)
    return [TEST_UTILS[n] for n in names]
