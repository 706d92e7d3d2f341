"""Samplers: the order of samples, and their division into batches.

Random orders come from NumPy's generator, as in MXNet; seed it with ``numpy.random.seed``. :meth:`state` returns the
state of that generator. It is optional: without it, a loader's state holds the rest of the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flowmx.data import rng
from flowmx.data.sharding import share
from flowmx.errors import ArgumentError
from flowmx.keywords import ChecksKeywords

__all__ = [
    "BatchSampler", "FilterSampler", "RandomSampler", "Sampler", "SequentialSampler", "SplitSampler",
    "WeightedRandomSampler",
]  # fmt: skip

_BATCH_COUNTS: dict[str, Callable[[int, int, int], int]] = {
    "keep": lambda count, size, rest: -(-count // size),
    "discard": lambda count, size, rest: count // size,
    "rollover": lambda count, size, rest: (count + rest) // size,
}
"""The number of batches, by the treatment of an incomplete last batch."""


class Sampler(ChecksKeywords):
    """Base class of samplers: a subclass implements ``__iter__`` and ``__len__``.

    A sampler whose order changes from epoch to epoch also implements :meth:`state` and :meth:`set_state`.
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must implement __iter__()")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must implement __len__()")

    def state(self) -> Any:
        """Return the state that determines the order of the next epoch, as plain data."""
        raise NotImplementedError(f"{type(self).__name__} must implement state() to save its position")

    def set_state(self, state: Any) -> None:
        """Restore a state: the next epoch has the order that followed it."""
        raise NotImplementedError(f"{type(self).__name__} must implement set_state(state)")


class SequentialSampler(Sampler):
    """The indices from ``start``, in order.

    Args:
        length: the number of indices.
        start: the first index.
    """

    def __init__(self, length: int, start: int = 0) -> None:
        self._length = length
        self._start = start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._start, self._start + self._length))

    def __len__(self) -> int:
        return self._length

    def state(self) -> None:
        """Return None: all epochs are equal."""

    def set_state(self, state: None) -> None:
        """Do nothing."""


class ShuffledSampler(Sampler):
    """Base class of samplers that draw each order from NumPy's generator, and can repeat it."""

    _generator_state: list[Any] | None = None
    """The state of NumPy's generator for the next order, if :meth:`set_state` set it."""

    def take_generator(self) -> Any:
        """Return the generator of the next order: the global one, or one that repeats its draws after a state."""
        state, self._generator_state = self._generator_state, None
        if state is None or state == rng.numpy_state():
            return rng.numpy()
        return rng.replay_generator(state)  # the global one has already drawn this order

    def state(self) -> dict[str, Any]:
        """Return the state of NumPy's generator, which draws the next order."""
        return {"numpy": self._generator_state or rng.numpy_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._generator_state = list(state["numpy"]) if state else None


class SplitSampler(ShuffledSampler):
    """One worker's share of the indices below ``length``, in a new random order each epoch, or in order.

    All shares have the same length, so that synchronized workers make the same number of steps: if the indices do
    not divide evenly, some shares begin with the last indices of the previous share.

    Args:
        length: the number of indices.
        num_parts: the number of workers that share them.
        part_index: the number of this worker's share, from 0.
        shuffle: whether the order is random.

    Raises:
        ValueError: the share does not exist, or there are fewer indices than workers.
    """

    def __init__(self, length: int, num_parts: int = 1, part_index: int = 0, shuffle: bool = True) -> None:
        part = share(length, part_index, num_parts, "equal")
        if num_parts > 1 and length < num_parts:
            raise ValueError(
                f"{type(self).__name__}: {length} samples cannot be shared by num_parts = {num_parts} workers"
            )
        self._start: int = part.start
        self._share: int = part.stop - part.start
        self._shuffle = shuffle

    def __iter__(self) -> Iterator[int]:
        order = np.arange(self._start, self._start + self._share)
        if self._shuffle:
            self.take_generator().shuffle(order)
        return iter(order.tolist())

    def __len__(self) -> int:
        return self._share

    def state(self) -> dict[str, Any]:
        """Return the state of NumPy's generator, which draws the next order; it is empty without ``shuffle``."""
        return super().state() if self._shuffle else {}


class RandomSampler(SplitSampler):
    """The indices below ``length``, or one worker's share of them, in a new random order each epoch.

    Args:
        length: the number of indices.
        num_parts: the number of workers that share them; see :class:`SplitSampler`.
        part_index: the number of this worker's share, from 0.
    """

    def __init__(self, length: int, num_parts: int = 1, part_index: int = 0) -> None:
        super().__init__(length, num_parts, part_index)


class WeightedRandomSampler(ShuffledSampler):
    """Random indices, drawn in proportion to weights: for example, rare classes more often.

    The draws come from NumPy's generator; seed it with ``numpy.random.seed``. Each epoch draws again.

    Args:
        weights: a non-negative number for each sample; they need not sum to 1.
        num_samples: the number of indices in an epoch (default: the number of weights).
        replacement: whether an index may be drawn several times in an epoch.

    Raises:
        ValueError: a weight is negative or not finite, all are 0, or there are too few for the number of samples
            without replacement.

    Example:
        >>> counts = np.bincount(labels)
        >>> sampler = mx.gluon.data.WeightedRandomSampler(1 / counts[labels])
        >>> loader = mx.gluon.data.DataLoader(dataset, batch_size=32, sampler=sampler)
    """

    def __init__(self, weights: Any, num_samples: int | None = None, replacement: bool = True) -> None:
        values = np.asarray(weights.asnumpy() if hasattr(weights, "asnumpy") else weights, np.float64)
        if values.ndim != 1 or not values.size:
            raise ArgumentError(
                f"WeightedRandomSampler: weights has shape {values.shape}, expected one number for each sample"
            )
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(wrong) or not values.any():
            problem = f"weight {wrong[0]} is {values[wrong[0]]}" if len(wrong) else "all weights are 0"
            raise ArgumentError(f"WeightedRandomSampler: {problem}, expected non-negative numbers that are not all 0")
        count = len(values) if num_samples is None else num_samples
        if count != int(count) or count < 1:
            raise ArgumentError(f"WeightedRandomSampler: num_samples is {count!r}, expected a positive int")
        possible = int(np.count_nonzero(values))
        if not replacement and count > possible:
            raise ArgumentError(
                f"WeightedRandomSampler: {count} samples cannot be drawn without replacement from {possible} with "
                f"positive weights: pass num_samples={possible} at most, or replacement=True"
            )
        self._probabilities = values / values.sum()
        self._count = count
        self._replacement = replacement

    def __iter__(self) -> Iterator[int]:
        generator = self.take_generator()
        order = generator.choice(len(self._probabilities), self._count, self._replacement, self._probabilities)
        return iter(order.tolist())

    def __len__(self) -> int:
        return self._count


class FilterSampler(SequentialSampler):
    """The indices of the samples for which a function returns True; the constructor calls it for all samples.

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
    """Lists of indices from another sampler, one list per batch.

    Args:
        sampler: the other sampler.
        batch_size: the length of the lists.
        last_batch: the treatment of an incomplete last batch: ``"keep"`` returns it, ``"discard"`` drops it,
            ``"rollover"`` moves it to the beginning of the next epoch.

    Raises:
        ValueError: ``batch_size`` or ``last_batch`` is invalid.

    Example:
        >>> list(BatchSampler(SequentialSampler(10), 3, "keep"))
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    """

    def __init__(self, sampler: Any, batch_size: int, last_batch: str = "keep") -> None:
        if batch_size < 1:
            raise ValueError(f"BatchSampler: batch_size is {batch_size}, expected at least 1")
        if last_batch not in _BATCH_COUNTS:
            raise ValueError(f"BatchSampler: last_batch is {last_batch!r}, expected 'keep', 'discard' or 'rollover'")
        self._sampler = sampler
        self._batch_size = batch_size
        self._last_batch = last_batch
        self._prev: list[Any] = []

    def __iter__(self) -> Iterator[list[int]]:
        batch, self._prev = self._prev, []
        return self._batches(batch, iter(self._sampler))

    def _batches(self, batch: list[int], order: Iterator[int]) -> Iterator[list[int]]:
        for index in order:
            batch.append(index)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if self._last_batch == "rollover":
            self._prev = batch
        elif batch and self._last_batch == "keep":
            yield batch

    def __len__(self) -> int:
        return _BATCH_COUNTS[self._last_batch](len(self._sampler), self._batch_size, len(self._prev))

    def state(self) -> dict[str, Any]:
        """Return the state of the wrapped sampler, and the indices that roll over into the next epoch.

        Raises:
            NotImplementedError: the wrapped sampler has no state.
        """
        return {"prev": list(self._prev), "sampler": sampler_state(self._sampler)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._sampler.set_state(state["sampler"])
        self._prev = list(state["prev"])


def sampler_state(sampler: Any) -> Any:
    """Return the state that determines a sampler's next epoch.

    Raises:
        NotImplementedError: the sampler has no state.
    """
    if not hasattr(sampler, "state"):
        raise NotImplementedError(f"{type(sampler).__name__} has no state()")
    return sampler.state()
