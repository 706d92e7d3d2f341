"""The stores of one process in one job: one for each key space, with a common session."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowmx import forks
from flowmx.engine import Variable
from flowmx.kvstore.worker.keys import KeyState

if TYPE_CHECKING:
    from flowmx.kvstore.worker.push_pull import DistValues

__all__ = ["Family"]

_LISTED = 3
"""Maximum number of parameters that a message lists."""


class Family:
    """The common state of the stores of one process.

    Attributes:
        stores: all of them; the first one has the plain key space.
        lock: held while the operations of one call are enqueued.
        control: the variable that orders operations on all keys.
        group_numbers: the numbers for this worker's groups.
        fits: the number of calls of ``fit``.
        agreements: the number of agreements on a checkpoint.
        logged_misses: the numbers of batches that this worker had fewer than others, as logged.
    """

    def __init__(self) -> None:
        self.stores: list[DistValues] = []
        self.lock = forks.lock()
        self.control = Variable("kvstore")
        self.group_numbers = itertools.count()
        self.fits = 0
        self.agreements = 0
        self.logged_misses: set[int] = set()
        self._claims: list[str] = []

    def entries(self) -> list[KeyState]:
        """Return the keys of all spaces."""
        return [entry for store in self.stores for entry in list(store._entries.values())]

    def claim(self, names: Sequence[str]) -> str:
        """Add a Trainer or Module; return the number of its key space.

        Args:
            names: the names of its parameters.
        """
        self._claims.append(_describe(names))
        return str(len(self._claims))

    def facts(self) -> dict[str, str]:
        """Return facts on the order of Trainers and Modules, which must be equal on all workers.

        Trainers whose parameters have other names, because a worker has made more blocks than others, do not differ.
        """
        counts: dict[str, int] = {}
        facts = {}
        for position, description in enumerate(self._claims, 1):
            counts[description] = counts.get(description, 0) + 1
            again = f" (number {counts[description]} of them)" if counts[description] > 1 else ""
            facts[f"the place of {description}{again} in the order of creation"] = str(position)
        return facts


def _describe(names: Sequence[str]) -> str:
    listed = ", ".join(map(repr, names[:_LISTED]))
    more = len(names) - _LISTED
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
    return f"the Trainer or Module of {listed}{f' and {more} more' if more > 0 else ''} ({digest})"[:900]
