"""History of the doctor's findings. Pure.

What is no longer found stays for a while as something of the past, so that it can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.observability.doctor.rules import FAILED, Finding

__all__ = ["Warnings"]

PRESENT = 8.0
"""Seconds after which what was not found again is past."""
_KEPT = 300.0
_MOST = 20
_SERIOUS = 75
"""The weight from which a finding is a cause of standstill or loss, and not of slowness."""


class Warnings:
    """Findings by kind and place, with when each was seen first and last."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], tuple[Finding, float, float]] = {}

    def add(self, findings: Sequence[Finding], now: float) -> None:
        """Take what a diagnosis found."""
        for each in findings:
            key = (each.kind, each.node, each.line)
            _, first, last = self._found.get(key, (each, now, now))
            self._found[key] = (each, first if now - last < PRESENT else now, now)
        kept = [row for row in self._found.items() if now - row[1][2] < _KEPT]
        self._found = dict(sorted(kept, key=lambda row: row[1][2])[-_MOST:])

    def rows(self, now: float) -> list[dict[str, Any]]:
        """All of them: what is present first, failures before all else, the most serious before others.

        A failure is what happened; the rest is what may be the cause of something.
        """
        rows = [
            {
                "kind": each.kind, "node": each.node, "text": each.text, "line": each.line, "advice": each.advice,
                "serious": each.weight >= _SERIOUS or each.kind == FAILED, "present": now - last < PRESENT,
                "ago": round(now - last, 1), "seconds": round(last - first, 1), "weight": each.weight,
            }
            for each, first, last in self._found.values()
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (not row["present"], row["kind"] != FAILED, -row["weight"]))
