"""`BucketSampler`: batches of samples of similar lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flowmx.errors import ArgumentError
from flowmx.gluon.data.sampler import ShuffledSampler

__all__ = ["BucketSampler"]


class BucketSampler(ShuffledSampler):
    """Batches of samples of similar lengths, which need little padding. Pass it to a loader as ``batch_sampler``.

    Each sample belongs to the bucket with the smallest bound that is not below its length, and a batch comes from one
    bucket. With ``batchify.Pad(round_to=sampler.bounds)`` all batches of a bucket have the same shape, so a hybridized
    network compiles one graph per bucket.

    Args:
        lengths: the length of each sample.
        batch_size: the number of samples in a batch.
        buckets: the number of buckets, which then have about as many samples each; or their bounds, the largest
            lengths in them.
        shuffle: draw new batches and a new order of batches for each epoch, from NumPy's generator. Otherwise batches
            go from short to long samples.
        last_batch: the treatment of the incomplete last batch of each bucket: ``"keep"`` or ``"discard"``.

    Attributes:
        bounds: the largest length in each bucket, ascending.

    Raises:
        ValueError: an argument is out of its range, or a sample is longer than the last bound.

    Example:
        >>> sampler = mx.gluon.data.BucketSampler([len(text) for text in texts], batch_size=32, buckets=8)
        >>> pad = mx.gluon.data.batchify.Pad(round_to=sampler.bounds)
        >>> loader = mx.gluon.data.DataLoader(texts, batch_sampler=sampler, batchify_fn=pad)
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, buckets: int | Sequence[int] = 10, shuffle: bool = True,
        last_batch: str = "keep",
    ) -> None:  # fmt: skip
        sizes = np.asarray(lengths)
        if sizes.ndim != 1 or not sizes.size or sizes.dtype.kind not in "iu":
            raise ArgumentError(
                f"BucketSampler: lengths is {type(lengths).__name__} of shape {sizes.shape} and dtype {sizes.dtype}, "
                "expected the length of each sample, such as [len(sample) for sample in dataset]"
            )
        if batch_size < 1:
            raise ArgumentError(f"BucketSampler: batch_size is {batch_size}, expected at least 1")
        if last_batch not in ("keep", "discard"):
            raise ArgumentError(f"BucketSampler: last_batch is {last_batch!r}, expected 'keep' or 'discard'")
        self.bounds = _bounds(sizes, buckets)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._keeps = last_batch == "keep"
        numbers = np.searchsorted(self.bounds, sizes)
        by_length = np.argsort(sizes, kind="stable")
        groups = [by_length[numbers[by_length] == number] for number in range(len(self.bounds))]
        self._groups = [group for group in groups if len(group)]

    def __iter__(self) -> Iterator[list[int]]:
        groups = self._groups
        if not self._shuffle:
            return (batch.tolist() for group in groups for batch in self._split(group))
        generator = self.take_generator()
        batches = [batch for group in groups for batch in self._split(generator.permutation(group))]
        return (batches[number].tolist() for number in generator.permutation(len(batches)))

    def _split(self, group: Any) -> list[Any]:
        batches = [group[start : start + self._batch_size] for start in range(0, len(group), self._batch_size)]
        return batches if self._keeps or len(batches[-1]) == self._batch_size else batches[:-1]

    def __len__(self) -> int:
        return sum(len(self._split(group)) for group in self._groups)

    def state(self) -> dict[str, Any]:
        """Return the state of NumPy's generator, which draws the next batches; it is empty without ``shuffle``."""
        return super().state() if self._shuffle else {}


def _bounds(sizes: Any, buckets: int | Sequence[int]) -> list[int]:
    if isinstance(buckets, int):
        if buckets < 1:
            raise ArgumentError(f"BucketSampler: buckets is {buckets}, expected at least 1, or a list of bounds")
        ends = np.arange(1, buckets + 1) * len(sizes) // buckets
        return [int(bound) for bound in np.unique(np.sort(sizes)[np.maximum(ends, 1) - 1])]
    bounds = sorted({int(bound) for bound in buckets})
    if not bounds or sizes.max() > bounds[-1]:
        longest = int(sizes.argmax())
        raise ArgumentError(
            f"BucketSampler: sample {longest} has length {sizes[longest]}, but the largest bound in buckets is "
            f"{bounds[-1] if bounds else None}: add a larger one, or leave the sample out"
        )
    return bounds
