"""The instances of each batch: pure, so that an order repeats, and an epoch is resumed in its middle."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from flowmx.data import rng

End = Literal["wrap", "repeat", "discard"]


class Batch(NamedTuple):
    """The instances of a batch.

    Attributes:
        rows: their indices, int64.
        pad: the number of instances at the end that only fill it up.
        number: the batch's number, from 0, counted over all epochs.
    """

    rows: np.ndarray[Any, np.dtype[np.int64]]
    pad: int
    number: int


class BatchOrder:
    """The instances of the batches of one epoch after another.

    Args:
        count: the number of instances.
        batch_size: instances in a batch.
        end: the treatment of instances that fill no batch: ``"wrap"`` fills it with the first ones of the next epoch,
            which then begins after them; ``"repeat"`` fills it with instances of the batch before; ``"discard"`` drops
            it.
        shuffle: in a random order, drawn anew for each epoch.
        seed: determines the order, with the number of the epoch.

    Raises:
        ValueError: there are no instances, too few, or no batch size.
    """

    def __init__(self, count: int, batch_size: int, end: End = "wrap", shuffle: bool = False, seed: int = 0) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected at least 1")
        if not count:
            raise ValueError("there are no instances: the file, or this part of it, is empty")
        if end == "discard" and count < batch_size:
            raise ValueError(
                f"batch_size is {batch_size}, but there are only {count} instances, and those that fill no batch are "
                "discarded"
            )
        self.count = count
        self.batch_size = batch_size
        self.end = end
        self.shuffle = shuffle
        self.seed = seed % 2**64
        self.epoch = 0  # epochs that were begun before
        self.position = 0  # instances of this one that were given
        self.drawn = 0
        self._wrapped = False  # the last batch reached into the next epoch
        self._order_of = -1
        self._before: Any = None

    def take(self) -> Batch | None:
        """The next batch; None at the end of the epoch."""
        left = self.count - self.position
        if self._wrapped or left <= 0 or (self.end == "discard" and left < self.batch_size):
            return None
        rows = self._rows(min(left, self.batch_size))
        pad = self.batch_size - len(rows)
        if pad and self.end == "repeat":
            rows = np.concatenate([rows, self._filling(len(rows), pad)])
        while len(rows) < self.batch_size:
            self._wrapped = True
            self.epoch, self.position = self.epoch + 1, 0
            rows = np.concatenate([rows, self._rows(min(self.count, self.batch_size - len(rows)))])
        self._before = rows
        self.drawn += 1
        return Batch(rows, pad, self.drawn - 1)

    def reset(self) -> None:
        """Begin the next epoch; one that has just begun goes on."""
        if not self._wrapped and self.position:
            self.epoch, self.position = self.epoch + 1, 0
        self._wrapped = False

    def _rows(self, number: int) -> Any:
        """The next instances of this epoch's order."""
        self.position += number
        if not self.shuffle:
            return np.arange(self.position - number, self.position)
        if self._order_of != self.epoch:
            self._order = rng.seeded(self.seed, self.epoch).permutation(self.count)
            self._order_of = self.epoch
        return self._order[self.position - number : self.position]

    def _filling(self, start: int, pad: int) -> Any:
        if self._before is not None:
            return self._before[start:]
        return np.arange(pad) % self.count

    # -- the middle of an epoch ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The position in the epoch, as plain data."""
        before = None if self._before is None else self._before.tolist()
        return {
            "lap": self.epoch, "at": self.position, "wrapped": self._wrapped, "drawn": self.drawn, "seed": self.seed,
            "count": self.count, "batch_size": self.batch_size, "before": before if self.end == "repeat" else None,
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from where it stood.

        Raises:
            ValueError: the state is of other data, another batch size or another seed.
        """
        check_state(state, {"count": self.count, "batch_size": self.batch_size, "seed": self.seed})
        self.epoch, self.position, self.drawn = int(state["lap"]), int(state["at"]), int(state["drawn"])
        self._wrapped = bool(state["wrapped"])
        self._before = None if state["before"] is None else np.asarray(state["before"], np.int64)


def check_last_batch(name: str, given: str) -> None:
    """Check MXNet's argument ``last_batch_handle`` of an iterator.

    Raises:
        ValueError: it has another value.
    """
    expected = ("pad", "discard", "roll_over")
    if given not in expected:
        raise ValueError(f"{name}: last_batch_handle is {given!r}, expected one of {expected}")


def check_state(state: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that a state was taken of an iterator like this one.

    Raises:
        ValueError: a number differs, or is missing.
    """
    for name, value in expected.items():
        if state.get(name) != value:
            raise ValueError(
                f"the state has {name} = {state.get(name)!r}, but this iterator has {value!r}: it was taken of another "
                "one, and going on from it would give other batches"
            )
