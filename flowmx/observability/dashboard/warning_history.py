"""History of the doctor's findings. This module does no I/O.

Findings that are no longer present stay for a while, so that they can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.observability.doctor.rules import FAILED, Finding

__all__ = ["WarningHistory"]

PRESENT = 8.0
"""Seconds after which a finding that does not recur counts as past."""
_MAX_AGE = 300.0
_MAX_ROWS = 20
_SERIOUS = 75
"""Findings of at least this weight mean a standstill or a failure; lighter ones mean slowness."""


class WarningHistory:
    """Findings by kind and place, with the times of their first and last occurrence."""

    def __init__(self) -> None:
        self._findings: dict[tuple[str, str, str], tuple[Finding, float, float]] = {}

    def add(self, findings: Sequence[Finding], now: float) -> None:
        """Add the findings of a diagnosis."""
        for finding in findings:
            key = (finding.kind, finding.node, finding.line)
            _, first, last = self._findings.get(key, (finding, now, now))
            self._findings[key] = (finding, first if now - last < PRESENT else now, now)
        recent = [row for row in self._findings.items() if now - row[1][2] < _MAX_AGE]
        self._findings = dict(sorted(recent, key=lambda row: row[1][2])[-_MAX_ROWS:])

    def rows(self, now: float) -> list[dict[str, Any]]:
        """Return all findings: present ones first, then failures first, then by weight.

        Failures come first because they are facts; other findings are suspected causes.
        """
        rows = [
            {
                "kind": finding.kind, "node": finding.node, "text": finding.text, "line": finding.line,
                "advice": finding.advice,
                "serious": finding.weight >= _SERIOUS or finding.kind == FAILED, "present": now - last < PRESENT,
                "ago": round(now - last, 1), "seconds": round(last - first, 1), "weight": finding.weight,
            }
            for finding, first, last in self._findings.values()
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (not row["present"], row["kind"] != FAILED, -row["weight"]))
