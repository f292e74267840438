"""What a check of a gradient found, as plain data and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["GradcheckReport", "PairReport", "WorstElement"]

OK = "ok"
WRONG = "wrong"
INCONCLUSIVE = "inconclusive"
NOT_DIFFERENTIABLE = "not_differentiable_here"
NON_DETERMINISTIC = "non_deterministic"
MISSING = "missing"
ERROR = "error"
# From the least to the most telling: the verdict of a report is that of its worst pair.
SEVERITY = (
    OK, INCONCLUSIVE, NOT_DIFFERENTIABLE, NON_DETERMINISTIC, MISSING, WRONG, ERROR,
)  # fmt: skip
WORDS = {
    OK: "ok",
    WRONG: "wrong",
    INCONCLUSIVE: "inconclusive",
    NOT_DIFFERENTIABLE: "not differentiable here",
    NON_DETERMINISTIC: "not deterministic",
    MISSING: "gradient missing",
    ERROR: "error",
}


@dataclass(frozen=True)
class WorstElement:
    """The element of a Jacobian matrix at which the two values differ most.

    Parameters
    ----------
    input_index, output_index
        Where the element lies in the input and in the output.
    analytical, numerical
        The value from the gradient formula, and that from differences.
    difference
        Absolute value of their gap.
    tolerance
        The gap that is allowed, the error bound of the numerical value included.
    part
        ``"real"`` or ``"imag"`` of the output where it is complex.
    slopes
        Differences to the left and to the right, where they disagree.
    """

    input_index: tuple[int, ...]
    output_index: tuple[int, ...]
    analytical: complex
    numerical: complex
    difference: float
    tolerance: float
    part: str | None = None
    slopes: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class PairReport:
    """The verdict on the derivative of one output with respect to one input.

    Parameters
    ----------
    output
        Number of the output among the tensors that the function returns.
    input
        Name of the input.
    verdict
        ``ok``, ``wrong``, ``inconclusive``, ``not_differentiable_here``, ``non_deterministic``,
        ``missing`` or ``error``.
    code
        Stable name of the kind of failure, None where there is none.
    message
        One sentence on what was found; empty where there is nothing to say.
    cause
        The likely mistake in words, None if no pattern was recognised.
    worst
        The element that differs most, relative to what is allowed.
    step
        Step of the differences.
    atol, rtol
        Allowed gap: ``atol + rtol * abs(numerical)``, plus the error bound `noise`.
    analytical, numerical
        Jacobian matrices, elements of the input × elements of the output. A complex output has
        its real parts first, then its imaginary parts.
    noise
        Largest error bound of the numerical values.
    """

    output: int
    input: str
    verdict: str
    code: str | None
    message: str
    cause: str | None
    worst: WorstElement | None
    step: float
    atol: float
    rtol: float
    analytical: npt.NDArray[Any] | None = None
    numerical: npt.NDArray[Any] | None = None
    noise: float = 0.0

    def to_text(self) -> str:
        """Return the facts in a few lines."""
        head = f"output {self.output}, input {self.input}: {WORDS[self.verdict]}"
        lines = [head if self.code is None else f"{head} [{self.code}]"]
        if self.cause is not None:
            lines[0] += f": {self.cause}"
        if self.message:
            lines.append(f"  {self.message}")
        if self.worst is not None and self._worst_matters(self.worst):
            lines.extend(f"  {line}" for line in self._worst_lines(self.worst))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.to_text()

    def _rule(self) -> str:
        rule = f"{self.atol:g} + {self.rtol:g} * |numerical| + error bound"
        return f"{rule}, with step {self.step:.3g}"

    def _worst_matters(self, worst: WorstElement) -> bool:
        """Tell whether the verdict is about the matrices, not about another promise."""
        if self.verdict in {INCONCLUSIVE, NOT_DIFFERENTIABLE}:
            return True
        return self.verdict != OK and not worst.difference <= worst.tolerance

    def _worst_lines(self, worst: WorstElement) -> list[str]:
        part = "" if worst.part is None else f" ({worst.part} part)"
        place = (
            f"{self.input}{_index(worst.input_index)} -> "
            f"output {self.output}{_index(worst.output_index)}{part}"
        )
        lines = [
            f"worst element: {place}",
            f"  your gradient    {_number(worst.analytical)}",
            f"  numerical value  {_number(worst.numerical)}",
            f"  gap {worst.difference:.3g}, allowed {worst.tolerance:.3g}: {self._rule()}",
        ]
        if worst.slopes is not None:
            left, right = worst.slopes
            lines.append(f"  slopes: {left:.6g} to the left, {right:.6g} to the right")
        return lines


@dataclass(frozen=True, eq=False, repr=False)
class GradcheckReport:
    """What a check found. True in a condition if every pair is ``ok``.

    Parameters
    ----------
    verdict
        The most serious verdict among the pairs.
    pairs
        One entry per output and input.
    message
        What went wrong first, or that nothing did.
    notes
        What a reader should know besides, such as that the differences were taken in float64.
    """

    verdict: str
    pairs: tuple[PairReport, ...]
    message: str
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict == OK

    @property
    def code(self) -> str | None:
        """The code of the first pair that failed."""
        return next((p.code for p in self.pairs if p.verdict == self.verdict), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: complex numbers as pairs, matrices as lists."""
        return {
            "verdict": self.verdict,
            "code": self.code,
            "message": self.message,
            "notes": list(self.notes),
            "pairs": [_plain(asdict(pair)) for pair in self.pairs],
        }

    def to_text(self) -> str:
        """Return the verdicts in words, with details of what failed."""
        failed = sum(pair.verdict != OK for pair in self.pairs)
        lines = [f"gradcheck: {WORDS[self.verdict]}"]
        if self.pairs:
            count = len(self.pairs)
            lines[0] += (
                f" ({count} {'pair' if count == 1 else 'pairs'} of output and input checked)"
                if self.verdict == OK
                else f" ({failed} of {count} pairs of output and input)"
            )
        else:
            lines.append(self.message)
        lines.extend(pair.to_text() for pair in self.pairs)
        lines.extend(f"note: {note}" for note in self.notes)
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the verdicts as a table, with details of what failed; it needs no script."""
        rows = "".join(
            f"<tr><td>{escape(_verdict(p))}</td><td>{p.output}</td><td>{escape(p.input)}</td>"
            f"<td>{escape(p.cause or p.message)}</td><td>{_largest(p)}</td></tr>"
            for p in self.pairs
        )
        heads = "".join(
            f'<th scope="col">{head}</th>'
            for head in ("verdict", "output", "input", "what was found", "largest error")
        )
        head, *rest = self.to_text().splitlines()
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        details = f"<pre>{escape(chr(10).join(rest))}</pre>" if self.verdict != OK else ""
        notes = "".join(f"<p>Note: {escape(note)}</p>" for note in self.notes)
        return (
            f"<div><p><strong>{escape(head)}</strong></p>{table if rows else ''}{details}"
            f"{notes if self.verdict == OK else ''}</div>"
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        return self.to_text()


def worst_verdict(verdicts: list[str]) -> str:
    """Return the most serious of `verdicts`."""
    return max(verdicts, key=SEVERITY.index, default=OK)


def _index(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _verdict(pair: PairReport) -> str:
    words = WORDS[pair.verdict]
    return words if pair.code is None else f"{words} [{pair.code}]"


def _largest(pair: PairReport) -> str:
    if pair.worst is None:
        return ""
    return f"{pair.worst.difference:.3g}, allowed {pair.worst.tolerance:.3g}"


def _number(value: complex) -> str:
    return f"{value:.10g}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, complex):
        return [value.real, value.imag]
    return value
