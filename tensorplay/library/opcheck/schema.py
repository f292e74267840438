"""`test_schema`: what a call does, compared with what the schema declares."""

from __future__ import annotations

from typing import Any

from tensorplay._tensor import Tensor
from tensorplay.autograd import grad_mode
from tensorplay.library.opcheck.calls import Arguments, Checked, Outcome, said
from tensorplay.library.results import ResultError
from tensorplay.library.tags import Tag
from tensorplay.library.writes import undeclared_write
from tensorplay.ops.nesting import flatten

__all__ = ["check_schema"]

_TEST = "test_schema"


def check_schema(check: Checked) -> None:
    """Check writes, aliases, kinds of results, keyword calls and defaults, and versions."""
    outcome = _first_call(check)
    if outcome is None:
        return
    _writes(check, outcome)
    _versions(check)
    _keywords(check, outcome)
    if Tag.out in check.op.tags:
        _reads_of_out(check, outcome)


def _first_call(check: Checked) -> Outcome | None:
    """Run the call that was given; an operator that refuses it fails every test, here once."""
    try:
        return check.arguments.copied().run()
    except ResultError as problem:
        check.fail(_TEST, problem.code, str(problem), cause=problem)
    except Exception as problem:  # noqa: BLE001  (whatever a person's kernel raises)
        text = f"the call that was given raises {said(problem)}"
        check.fail(_TEST, "call_error", text, cause=problem)
    return None


def _writes(check: Checked, outcome: Outcome) -> None:
    schema = check.op.schema
    if outcome.undeclared:
        check.fail(_TEST, "undeclared_write", undeclared_write(schema, outcome.undeclared))
    for argument in schema.arguments:
        if argument.is_write and outcome.changed.get(argument.name) is False:
            check.warnings.append(
                f"[{check.op.name}] argument '{argument.name}' is declared as written and this "
                "call leaves it as it was. If that is so for every call, take it out of "
                "mutates_args: a compiler may not move or drop calls that write."
            )


def _versions(check: Checked) -> None:
    arguments = check.arguments.copied()
    written = [
        t
        for argument, value in zip(check.op.schema.arguments, arguments.values, strict=True)
        for t in flatten([value])
        if argument.is_write
    ]
    before = [t._version for t in written]
    arguments.run()
    if any(t._version <= b for t, b in zip(written, before, strict=True)):
        check.fail(
            _TEST,
            "version",
            "a written argument keeps its version, so gradients that need its old value are not "
            "refused. Write through tensor operations, or report this operator.",
        )


def _keywords(check: Checked, outcome: Outcome) -> None:
    """Call with every argument by name, and with those that have their defaults left out."""
    by_name = check.arguments.copied().by_name()
    defaults = {a.name: a.default for a in check.op.schema.arguments if a.has_default}
    forms: dict[str, dict[str, Any]] = {
        "all arguments by name": by_name,
        "defaults left out": {
            n: v for n, v in by_name.items() if n not in defaults or not _same(v, defaults[n])
        },
    }
    for form, given in forms.items():
        fresh = Arguments(check.op, (), given).copied().by_name()
        fresh = {n: fresh[n] for n in given}
        try:
            with grad_mode.no_grad():
                result = check.op(**fresh)
        except Exception as problem:  # noqa: BLE001  (whatever a person's kernel raises)
            text = f"the call with {form} raises {said(problem)}"
            check.fail(_TEST, "keywords", text, cause=problem)
            continue
        results = outcome.results[0] if len(check.op.schema.returns) == 1 else outcome.results
        if check.op.schema.returns and Tag.nondeterministic not in check.op.tags:
            different = check.differs(result, results)
            if different is not None:
                check.fail(
                    _TEST,
                    "keywords",
                    f"the call with {form} gives something else: {different}. Kernel and schema "
                    "must agree on names, order and defaults.",
                )


def _same(value: Any, default: Any) -> bool:
    return (
        not isinstance(value, (Tensor, list)) and type(value) is type(default) and value == default
    )


def _reads_of_out(check: Checked, outcome: Outcome) -> None:
    """Call with other values in what is only to be written."""
    arguments = check.arguments.copied()
    names = [a.name for a in check.op.schema.arguments if a.is_write]
    with grad_mode.no_grad():
        for name, value in arguments.by_name().items():
            for tensor in flatten([value] if name in names else []):
                tensor.zero_().add_(3)
    different = check.differs(arguments.run().results, outcome.results)
    if different is not None:
        check.fail(
            _TEST,
            "out_read",
            f"the results depend on what {', '.join(names)} held before the call: {different}. "
            "Tag.out says that they are only written; write every element, or drop the tag.",
        )
