"""`DataLoader`: batches of a data set, made by processes or threads, some batches ahead."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from flowmx.data.batch_order import check_state
from flowmx.devices import cpu_pinned
from flowmx.gluon.data import batch_maker
from flowmx.gluon.data.batchify import default_batchify_fn
from flowmx.gluon.data.epoch import Epoch, PrefetchedEpoch, SyncEpoch
from flowmx.gluon.data.position import EpochStart, Position
from flowmx.gluon.data.sampler import BatchSampler, RandomSampler, SplitSampler, state_of
from flowmx.gluon.data.seeds import Seed
from flowmx.gluon.data.workers import ProcessPool, ThreadPool, WorkerPool
from flowmx.gluon.data.workers import package as packages
from flowmx.ndarray import NDArray
from flowmx.semantics import dress

__all__ = ["DataLoader"]


class DataLoader:
    """Batches of a data set: ``for batch in loader``, or ``async for`` in a coroutine.

    Worker processes are started with the loader, and kept over its epochs; a loop that is broken off leaves nothing
    behind but them, and they end with the loader. An error in one comes out of the loop with the worker's traceback and
    the number of the sample. A data set that can not be pickled is loaded by threads, with a warning.

    After ``mx.random.seed`` the order and what is random about each batch are the same whatever the workers: streams
    are started from a seed of the batch (Python's, NumPy's and flowmx's; in threads that of the augmentations alone).

    Args:
        dataset: the samples.
        batch_size: the number of samples in a batch.
        shuffle: in a new random order each epoch.
        sampler: gives the order instead.
        last_batch: the treatment of samples that fill no batch: ``"keep"`` (the default), ``"discard"`` or
            ``"rollover"``; see :class:`BatchSampler`.
        batch_sampler: gives lists of samples, in place of the four before.
        batchify_fn: from a list of samples to a batch (default: :func:`default_batchify_fn`).
        num_workers: the number of workers; with 0 a batch is made when it is asked for.
        pin_memory: copy batches into pinned memory, from which devices copy faster.
        pin_device_id: for which device.
        prefetch: the number of batches made ahead (default: two for each worker).
        thread_pool: the workers are threads; for data sets that wait for files more than they compute.
        timeout: seconds that a worker may take for a batch.
        auto_reload: begin the next epoch in the background as soon as one has ended, and the first at once.
        num_parts: the number of workers of a distributed job that share the samples; see :class:`SplitSampler`.
        part_index: the index of this worker's share, from 0.

    Raises:
        ValueError: arguments that exclude each other, or are missing.
        Exception: (from the loop) what the data set or ``batchify_fn`` raised.
        DataLoaderWorkerError: (from the loop) a worker process has ended.
        DataLoaderTimeout: (from the loop) a batch took too long.

    Example:
        >>> data = mx.gluon.data.ArrayDataset(mx.nd.ones((100, 3)), mx.nd.arange(100))
        >>> for x, y in mx.gluon.data.DataLoader(data, batch_size=10, shuffle=True, num_workers=2):
        ...     train(x, y)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Any = None,
        last_batch: str | None = None,
        batch_sampler: Any = None,
        batchify_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        pin_device_id: int = 0,
        prefetch: int | None = None,
        thread_pool: bool = False,
        timeout: float = 120,
        auto_reload: bool = False,
        *,
        num_parts: int = 1,
        part_index: int = 0,
    ) -> None:
        if timeout <= 0:
            raise ValueError(f"DataLoader: timeout is {timeout}, expected more than 0 seconds")
        self._dataset = dataset
        if batch_sampler is None:
            order = sampler if sampler is not None else _sampler(len(dataset), shuffle, num_parts, part_index)
            batch_sampler = BatchSampler(order, _size(batch_size), last_batch or "keep")
            _expect_none("sampler", sampler, shuffle=shuffle or None, num_parts=num_parts if num_parts > 1 else None)
        else:
            _expect_none(
                "batch_sampler", batch_sampler, batch_size=batch_size, shuffle=shuffle or None, sampler=sampler,
                last_batch=last_batch, num_parts=num_parts if num_parts > 1 else None,
            )  # fmt: skip
        self._batch_sampler = batch_sampler
        self._batchify_fn = batchify_fn or default_batchify_fn
        self._num_workers = max(0, num_workers)
        self._pin_memory, self._pin_device_id = pin_memory, pin_device_id
        self._pinned = cpu_pinned(pin_device_id) if pin_memory else None
        self._prefetch = 2 * self._num_workers if prefetch is None else max(0, int(prefetch))
        self._thread_pool = thread_pool
        self._timeout = timeout
        self._seed = Seed()
        self._epochs = 0  # that were begun
        self._resumed: dict[str, Any] | None = None
        self._latest: Position | None = None  # where the latest loop stands
        self._iter: Epoch | None = None  # one that was begun ahead
        self._pool = self._start_workers() if self._num_workers else None
        if self._pool is not None:
            weakref.finalize(self, self._pool.close)
        self.auto_reload = auto_reload
        if auto_reload:
            self.refresh()

    def _start_workers(self) -> WorkerPool:
        """Start the workers: processes, or threads where `thread_pool` is set or the data set can not be pickled."""
        if not self._thread_pool:
            packages.stop_main()
            try:
                content = packages.Package((self._dataset, self._batchify_fn))
                return ProcessPool(self._num_workers, content, self._timeout)
            except packages.PackageError as error:
                warnings.warn(
                    f"DataLoader: the data set or batchify_fn can not be handed to worker processes, so threads load "
                    f"instead: {error}. Use functions and classes of a module's top level, or pass thread_pool=True",
                    stacklevel=3,
                )
        dataset, batchify_fn = self._dataset, self._batchify_fn
        return ThreadPool(
            self._num_workers,
            lambda job: batch_maker.make(dataset, batchify_fn, job.samples, job.number, lambda: job.wanted),
        )

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._begin()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._begin()

    # -- epochs ------------------------------------------------------------------------------------------------

    def _begin(self) -> Epoch:
        """The next epoch, for a loop."""
        epoch, self._iter = self._iter or self._new_epoch(), None
        epoch.loader = self
        self._latest = epoch.position
        return epoch

    def refresh(self) -> None:
        """Begin the next epoch in the background."""
        self.clean()
        self._iter = self._new_epoch()

    def clean(self) -> None:
        """Forget an epoch that was begun in the background; the next loop begins it anew."""
        if self._iter is not None:
            self._resumed = self._iter.position.state()
            self._iter.close()
            self._iter = None

    def _new_epoch(self) -> Epoch:
        position = self._resume(self._resumed) if self._resumed else Position(self._start(), iter(self._batch_sampler))
        self._resumed = None
        self._epochs = position.start.epoch + 1
        length = len(self) if hasattr(self._batch_sampler, "__len__") else 0
        if self._pool is None:
            return SyncEpoch(position, length, self._dataset, self._batchify_fn)
        return PrefetchedEpoch(position, length, self._pool, max(1, self._prefetch), self._timeout)

    def _start(self) -> EpochStart:
        """The starting point of the next epoch: its number, seed and the state of the sampler."""
        seed, is_new = self._seed.value()
        if is_new:
            self._epochs = 0
        try:
            return EpochStart(self._epochs, seed, state_of(self._batch_sampler), 0)
        except NotImplementedError:
            return EpochStart(self._epochs, seed, None, 0)

    def _resume(self, state: dict[str, Any]) -> Position:
        """The position that a state describes."""
        start = EpochStart(int(state["epoch"]), int(state["seed"]), state["sampler"], int(state["given"]))
        self._seed.set(start.seed)
        if start.sampler is None:
            return Position(start, iter([list(batch) for batch in state["rest"]]))
        self._batch_sampler.set_state(start.sampler)
        return Position(start, itertools.islice(iter(self._batch_sampler), start.given, None))

    def _ended(self) -> None:
        """A loop has come to its end."""
        if self.auto_reload and self._iter is None:
            self.refresh()

    # -- the middle of an epoch --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The position of the latest loop over the loader, as plain data, for a checkpoint.

        A loader made with the same arguments, given this by :meth:`set_state`, goes on with the batch that comes next
        here: the next loop over it is the rest of the epoch. For a sampler of your own without ``state()`` it holds the
        rest of the epoch's samples.
        """
        if self._latest is not None and not self._latest.finished:
            found = self._latest.state()
        elif self._iter is not None:
            found = self._iter.position.state()
        else:
            found = self._resumed or self._before()
        return {**found, "samples": self._samples()}

    def _before(self) -> dict[str, Any]:
        """The state before the next epoch, which is begun only where its order is not known otherwise."""
        start = self._start()
        if start.sampler is not None:
            return {**start._asdict(), "rest": None}
        self._iter = self._new_epoch()
        return self._iter.position.state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from where a loader stood that was made with the same arguments.

        Raises:
            ValueError: it had another number of samples, or this is no loader's state.
        """
        check_state(state, {"samples": self._samples()})
        self.clean()
        self._latest = None
        self._resumed = {name: state[name] for name in ("epoch", "seed", "sampler", "given", "rest")}

    def _samples(self) -> int | None:
        return len(self._dataset) if hasattr(self._dataset, "__len__") else None

    # -- batches -----------------------------------------------------------------------------------------------

    def _given(self, batch: Any) -> Any:
        """A batch as the loop gets it."""
        return dress(batch if self._pinned is None else _moved(batch, self._pinned))


def _size(batch_size: int | None) -> int:
    if batch_size is None:
        raise ValueError("DataLoader: batch_size is missing: give it, or a batch_sampler")
    return batch_size


def _sampler(length: int, shuffle: bool, num_parts: int, part_index: int) -> SplitSampler:
    return (
        RandomSampler(length, num_parts, part_index) if shuffle else SplitSampler(length, num_parts, part_index, False)
    )


def _expect_none(name: str, given: Any, **others: Any) -> None:
    """Check that what another argument decides was not given too."""
    found = [other for other, value in others.items() if value is not None]
    if given is not None and found:
        raise ValueError(f"DataLoader: {name} was given, and {' and '.join(found)} as well: {name} decides that")


def _moved(batch: Any, context: Any) -> Any:
    if isinstance(batch, NDArray):
        return batch.as_in_context(context)
    return [_moved(each, context) for each in batch] if isinstance(batch, (list, tuple)) else batch
