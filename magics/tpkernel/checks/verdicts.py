"""The words of verdicts: how checks are compared, and what they are called in every report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["VERDICTS", "is_bad", "verdict_text", "worst_verdict"]

#: What a verdict is called, from the least to the most serious. Verdicts of checks are compared by
#: this order and spelled by these words in every form of a report.
VERDICTS: Mapping[str, str] = {
    "ok": "✔ pass",
    "inconclusive": "? inconclusive",
    "not_differentiable_here": "? not differentiable here",
    "non_deterministic": "✘ not deterministic",
    "missing": "✘ no gradient",
    "wrong": "✘ FAIL",
    "error": "✘ ERROR",
}
_SEVERITY = {verdict: place for place, verdict in enumerate(VERDICTS)}
_BAD = _SEVERITY["non_deterministic"]


def verdict_text(verdict: str) -> str:
    """Return a verdict with its sign, such as ``✔ pass``."""
    return VERDICTS.get(verdict, f"✘ {verdict}")


def worst_verdict(verdicts: Iterable[str]) -> str:
    """Return the most serious of some verdicts, or nothing. Unknown ones are the most serious."""
    return max(verdicts, key=_severity, default="")


def is_bad(verdict: str) -> bool:
    """Whether a verdict fails a report; no verdict does not."""
    return bool(verdict) and _severity(verdict) >= _BAD


def _severity(verdict: str) -> int:
    return _SEVERITY.get(verdict, len(_SEVERITY))
