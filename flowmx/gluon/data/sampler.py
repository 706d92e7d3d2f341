"""Samplers: in which order samples come, and which make up a batch.

An order follows from a seed and the number of the epoch, so that :meth:`state` is a few numbers. A sampler without
:meth:`state` works too; a loader's state then holds what is left of the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flowmx.data import rng
from flowmx.data.sharding import share
from flowmx.gluon.data.seeds import Seed

__all__ = ["BatchSampler", "FilterSampler", "RandomSampler", "Sampler", "SequentialSampler", "SplitSampler"]

_ENDS: dict[str, Callable[[int, int, int], int]] = {
    "keep": lambda count, size, left: -(-count // size),
    "discard": lambda count, size, left: count // size,
    "rollover": lambda count, size, left: (count + left) // size,
}
"""The number of batches, by the treatment of numbers that fill no batch."""


class Sampler:
    """Base of the samplers: a subclass implements ``__iter__`` and ``__len__``.

    One whose order changes from epoch to epoch implements :meth:`state` and :meth:`set_state` too.
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must implement __iter__()")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must implement __len__()")

    def state(self) -> Any:
        """The state that determines the order of the next epoch, as plain data."""
        raise NotImplementedError(f"{type(self).__name__} does not say where it stands: it must implement state()")

    def set_state(self, state: Any) -> None:
        """Let the order of the next epoch be that which it was when the state was taken."""
        raise NotImplementedError(f"{type(self).__name__} must implement set_state(state)")


class SequentialSampler(Sampler):
    """The numbers from ``start`` on, in order.

    Args:
        length: the number of indices.
        start: the first.
    """

    def __init__(self, length: int, start: int = 0) -> None:
        self._length = length
        self._start = start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._start, self._start + self._length))

    def __len__(self) -> int:
        return self._length

    def state(self) -> None:
        """Nothing: each epoch is like the last."""

    def set_state(self, state: None) -> None:
        """Nothing to set."""


class SplitSampler(Sampler):
    """One worker's share of the numbers from 0 on, in a new random order each epoch, or in order.

    All shares have the same length, so that workers that wait for one another make as many steps: where the numbers do
    not divide evenly, some shares begin with the last numbers of the one before.

    Args:
        length: the number of indices.
        num_parts: the number of workers that share them.
        part_index: the index of this worker's share, from 0.
        shuffle: in random order.

    Raises:
        ValueError: there is no such share, or there are fewer numbers than workers.
    """

    def __init__(self, length: int, num_parts: int = 1, part_index: int = 0, shuffle: bool = True) -> None:
        own = share(length, part_index, num_parts, "equal")
        if num_parts > 1 and length < num_parts:
            raise ValueError(
                f"{type(self).__name__}: {length} samples can not be shared by num_parts = {num_parts} workers"
            )
        self._start: int = own.start
        self._share: int = own.stop - own.start
        self._shuffle = shuffle
        self._seed = Seed()
        self._epoch = 0

    def __iter__(self) -> Iterator[int]:
        if not self._shuffle:
            return iter(range(self._start, self._start + self._share))
        seed = self._settled()
        self._epoch += 1
        order = rng.seeded(seed, self._epoch - 1).permutation(self._share)
        return iter((order + self._start).tolist())

    def __len__(self) -> int:
        return self._share

    def _settled(self) -> int:
        """The seed; after ``mx.random.seed`` another one, with which epochs are counted from 0."""
        seed, is_new = self._seed.value()
        if is_new:
            self._epoch = 0
        return seed

    def state(self) -> dict[str, int]:
        if not self._shuffle:
            return {}
        return {"seed": self._settled(), "lap": self._epoch}

    def set_state(self, state: dict[str, int]) -> None:
        if state:
            self._seed.set(int(state["seed"]))
            self._epoch = int(state["lap"])


class RandomSampler(SplitSampler):
    """The numbers from 0 to ``length``, or one worker's share of them, in a new random order each epoch.

    Args:
        length: the number of indices.
        num_parts: the number of workers that share them; see :class:`SplitSampler`.
        part_index: the index of this worker's share, from 0.
    """

    def __init__(self, length: int, num_parts: int = 1, part_index: int = 0) -> None:
        super().__init__(length, num_parts, part_index)


class FilterSampler(SequentialSampler):
    """The numbers of the samples that a function returns True for; it is called with all of them now.

    Args:
        fn: the function.
        dataset: the samples.
    """

    def __init__(self, fn: Callable[[Any], bool], dataset: Any) -> None:
        self._indices = [i for i in range(len(dataset)) if fn(dataset[i])]
        super().__init__(len(self._indices))

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)


class BatchSampler(Sampler):
    """Lists of numbers, a batch each, from another sampler.

    Args:
        sampler: the other sampler.
        batch_size: numbers in a batch.
        last_batch: the treatment of numbers that fill no batch: ``"keep"`` makes a smaller one of them, ``"discard"``
            drops them, ``"rollover"`` puts them before the next epoch's first.

    Raises:
        ValueError: ``batch_size`` or ``last_batch`` has another value.

    Example:
        >>> list(BatchSampler(SequentialSampler(10), 3, "keep"))
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    """

    def __init__(self, sampler: Any, batch_size: int, last_batch: str = "keep") -> None:
        if batch_size < 1:
            raise ValueError(f"BatchSampler: batch_size is {batch_size}, expected at least 1")
        if last_batch not in _ENDS:
            raise ValueError(f"BatchSampler: last_batch is {last_batch!r}, expected 'keep', 'discard' or 'rollover'")
        self._sampler = sampler
        self._batch_size = batch_size
        self._last_batch = last_batch
        self._prev: list[Any] = []

    def __iter__(self) -> Iterator[list[Any]]:
        batch, self._prev = self._prev, []
        return self._batches(batch, iter(self._sampler))

    def _batches(self, batch: list[Any], order: Iterator[Any]) -> Iterator[list[Any]]:
        for each in order:
            batch.append(each)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if self._last_batch == "rollover":
            self._prev = batch
        elif batch and self._last_batch == "keep":
            yield batch

    def __len__(self) -> int:
        return _ENDS[self._last_batch](len(self._sampler), self._batch_size, len(self._prev))

    def state(self) -> dict[str, Any]:
        """The state of the wrapped sampler, and the indices that roll over into the next epoch.

        Raises:
            NotImplementedError: its sampler does not say.
        """
        return {"prev": list(self._prev), "sampler": state_of(self._sampler)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._sampler.set_state(state["sampler"])
        self._prev = list(state["prev"])


def state_of(sampler: Any) -> Any:
    """The state that determines a sampler's next epoch.

    Raises:
        NotImplementedError: it does not say.
    """
    if not hasattr(sampler, "state"):
        raise NotImplementedError(f"{type(sampler).__name__} has no state()")
    return sampler.state()
