"""What `opcheck` finds: failures with stable codes, and the error that lists them."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["OpCheckError", "OpCheckFailure"]


@dataclass(frozen=True)
class OpCheckFailure:
    """One thing that an operator does other than it declares.

    Attributes
    ----------
    test
        The test that found it, such as ``"test_schema"``.
    code
        What it is, in one stable word: ``"undeclared_write"``, ``"fake_shape"``, ….
    message
        What was expected, what was found, and what to change.
    variant
        The made call that shows it, such as ``"strided"``; empty for the call that was given.
    cause
        The exception behind it, if there is one.
    """

    test: str
    code: str
    message: str
    variant: str = ""
    cause: BaseException | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        where = f" on the {self.variant} call" if self.variant else ""
        return f"{self.test} [{self.code}]{where}: {self.message}"


class OpCheckError(RuntimeError):
    """An operator failed `opcheck`.

    Attributes
    ----------
    failures : tuple of OpCheckFailure
        All that was found.
    """

    def __init__(self, name: str, failures: tuple[OpCheckFailure, ...]) -> None:
        count = f"{len(failures)} failure" + ("" if len(failures) == 1 else "s")
        lines = [f"[{name}] opcheck found {count}:", *(f"  {f}" for f in failures)]
        super().__init__("\n".join(lines))
        self.failures = failures
