"""The samples of each batch, a function of a seed, so that orders are repeatable and epochs can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from flowmx.data import rng

End = Literal["wrap", "repeat", "discard"]


class Batch(NamedTuple):
    """The samples of a batch.

    Attributes:
        rows: the samples' indices, int64.
        pad: the number of samples at the end that are padding.
        number: the batch's number, from 0, counted over all epochs.
    """

    rows: np.ndarray[Any, np.dtype[np.int64]]
    pad: int
    number: int


class BatchOrder:
    """The samples of the batches of successive epochs.

    Args:
        count: the number of samples.
        batch_size: the number of samples in a batch.
        end: the treatment of an incomplete last batch: ``"wrap"`` fills it with the first samples of the next epoch,
            which then begins after them; ``"repeat"`` fills it with samples of the previous batch; ``"discard"`` drops
            it.
        shuffle: whether to draw a random order for each epoch.
        seed: determines the order, together with the epoch's number.

    Raises:
        ValueError: there are no samples, or not enough for a batch and ``end`` is ``"discard"``, or ``batch_size`` is
            less than 1.
    """

    def __init__(self, count: int, batch_size: int, end: End = "wrap", shuffle: bool = False, seed: int = 0) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected at least 1")
        if not count:
            raise ValueError("there are no samples: the file, or this part of it, is empty")
        if end == "discard" and count < batch_size:
            raise ValueError(
                f"batch_size is {batch_size}, but there are only {count} samples, and an incomplete batch is discarded"
            )
        self.count = count
        self.batch_size = batch_size
        self.end = end
        self.shuffle = shuffle
        self.seed = seed % 2**64
        self.epoch = 0  # number of earlier epochs
        self.position = 0  # samples of this epoch that have been returned
        self.drawn = 0
        self._wrapped = False  # whether the last batch has samples of the next epoch
        self._order_epoch = -1
        self._previous_rows: Any = None

    def take(self) -> Batch | None:
        """Return the next batch; None at the end of the epoch."""
        remaining = self.count - self.position
        if self._wrapped or remaining <= 0 or (self.end == "discard" and remaining < self.batch_size):
            return None
        rows = self._rows(min(remaining, self.batch_size))
        pad = self.batch_size - len(rows)
        if pad and self.end == "repeat":
            rows = np.concatenate([rows, self._padding(len(rows), pad)])
        while len(rows) < self.batch_size:
            self._wrapped = True
            self.epoch, self.position = self.epoch + 1, 0
            rows = np.concatenate([rows, self._rows(min(self.count, self.batch_size - len(rows)))])
        self._previous_rows = rows
        self.drawn += 1
        return Batch(rows, pad, self.drawn - 1)

    def reset(self) -> None:
        """Begin the next epoch, unless this one has just begun."""
        if not self._wrapped and self.position:
            self.epoch, self.position = self.epoch + 1, 0
        self._wrapped = False

    def _rows(self, number: int) -> Any:
        """Return the next samples of this epoch's order."""
        self.position += number
        if not self.shuffle:
            return np.arange(self.position - number, self.position)
        if self._order_epoch != self.epoch:
            self._order = rng.make_generator(self.seed, self.epoch).permutation(self.count)
            self._order_epoch = self.epoch
        return self._order[self.position - number : self.position]

    def _padding(self, start: int, pad: int) -> Any:
        if self._previous_rows is not None:
            return self._previous_rows[start:]
        return np.arange(pad) % self.count

    # -- the position in an epoch ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the position in the epoch, as plain data."""
        rows = None if self._previous_rows is None else self._previous_rows.tolist()
        return {
            "lap": self.epoch, "at": self.position, "wrapped": self._wrapped, "drawn": self.drawn, "seed": self.seed,
            "count": self.count, "batch_size": self.batch_size, "before": rows if self.end == "repeat" else None,
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a position.

        Raises:
            ValueError: the state belongs to other data, another batch size or another seed.
        """
        check_state(state, {"count": self.count, "batch_size": self.batch_size, "seed": self.seed})
        self.epoch, self.position, self.drawn = int(state["lap"]), int(state["at"]), int(state["drawn"])
        self._wrapped = bool(state["wrapped"])
        self._previous_rows = None if state["before"] is None else np.asarray(state["before"], np.int64)


def check_last_batch(name: str, choice: str) -> None:
    """Check MXNet's argument ``last_batch_handle`` of an iterator.

    Raises:
        ValueError: the value is unknown.
    """
    expected = ("pad", "discard", "roll_over")
    if choice not in expected:
        raise ValueError(f"{name}: last_batch_handle is {choice!r}, expected one of {expected}")


def check_state(state: Mapping[str, object], expected: Mapping[str, object]) -> None:
    """Check that a state belongs to an iterator like this one.

    Raises:
        ValueError: a number differs, or is missing.
    """
    for name, value in expected.items():
        if state.get(name) != value:
            raise ValueError(
                f"the state has {name} = {state.get(name)!r}, but this iterator has {value!r}: the state belongs to "
                "another iterator, and resuming from it would return other batches"
            )
