"""The ledger of a job's pushes, and what must hold for the values that workers read.

Each push adds one to an element that belongs to it alone. So a value shows which pushes it contains, and how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Ledger", "Violation"]


class Violation(AssertionError):
    """A law that a run has broken."""


def demand(truth: object, text: str) -> None:
    """Raise unless a law holds.

    Raises:
        Violation: it does not.
    """
    if not truth:
        raise Violation(text)


@dataclass
class Ledger:
    """The pushes of a job and the values that its workers have read.

    Args:
        mode: the consistency mode of the job.
        steps: the number of elements of a writer.

    Attributes:
        sent: by writer, the number of pushes that it has started; pushes of a writer have consecutive steps.
        answered: by writer, the steps whose value it has read after its push.
    """

    mode: str
    steps: int
    sent: dict[int, list[int]] = field(default_factory=dict)
    answered: dict[int, list[int]] = field(default_factory=dict)
    rounds: dict[tuple[int, int], Any] = field(default_factory=dict)

    def push(self, writer: int, step: int) -> int:
        """Record the start of a push of all keys; return the element that it adds to."""
        self.sent.setdefault(writer, []).append(step)
        return writer * self.steps + step

    def forget(self) -> None:
        """Require no earlier push from now on: the job has resumed from snapshots, which may be older."""
        self.answered.clear()
        self.rounds.clear()

    def mark(self) -> list[int]:
        """Return the elements of all answered pushes: a read that begins now must contain them."""
        return [writer * self.steps + step for writer, steps in self.answered.items() for step in steps]

    def read(self, writer: int, step: int, values: Sequence[Any], mark: Sequence[int]) -> None:
        """Check the values that a writer has read after its push of a step.

        Args:
            writer: the writer.
            step: its last step.
            values: the value of each key.
            mark: what :meth:`mark` returned before the read.

        Raises:
            Violation: a value is not the sum of the pushes that it must contain.
        """
        own = [writer * self.steps + done for done in self.sent[writer] if done <= step]
        for key, counts in enumerate(self.check(values, [*own, *mark])):
            if self.mode == "sync" and self.sent[writer][0] == 0:  # parts of a key count a late worker from other steps
                first = self.rounds.setdefault((key, step), counts)
                differences = np.flatnonzero(first != counts)
                demand(not differences.size, f"key {key} has two values after step {step}: {self._names(differences)}")
        self.answered.setdefault(writer, []).append(step)

    def check(self, values: Sequence[Any], required: Sequence[int]) -> list[Any]:
        """Check values; return how often each push is counted, by key.

        Args:
            values: the value of each key.
            required: the elements of pushes that they must contain.

        Raises:
            Violation: a push is missing, or counts twice, or was never sent.
        """
        result = []
        for key, value in enumerate(values):
            result.append(counts := self._counts(key, value))
            lost = [entry for entry in required if not counts[entry]]
            demand(not lost, f"key {key} has lost answered pushes: {self._names(lost)}")
        return result

    def _counts(self, key: int, value: Any) -> Any:
        counts = np.asarray(value)
        sent = np.zeros(len(counts), bool)
        sent[[writer * self.steps + step for writer, steps in self.sent.items() for step in steps]] = True
        twice = np.flatnonzero(counts > 1)
        demand(not twice.size, f"key {key} counts pushes twice: {self._names(twice)}")
        wrong = np.flatnonzero((counts != 0) & ~((counts == 1) & sent))
        demand(not wrong.size, f"key {key} has values that nobody pushed: {self._names(wrong)}")
        return counts

    def _names(self, elements: Any) -> str:
        names = [f"step {element % self.steps} of writer {element // self.steps}" for element in elements]
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
