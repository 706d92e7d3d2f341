"""`DataLoader`: batches of a data set, made in advance by processes or threads."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import numpy as np

from flowmx.data import rng
from flowmx.data.batch_order import check_state
from flowmx.devices import cpu_pinned
from flowmx.gluon.data import batch_maker
from flowmx.gluon.data.batchify import default_batchify_fn
from flowmx.gluon.data.epoch import Epoch, PrefetchedEpoch, SyncEpoch
from flowmx.gluon.data.position import EpochStart, Position
from flowmx.gluon.data.sampler import BatchSampler, RandomSampler, SplitSampler, sampler_state
from flowmx.gluon.data.seeds import Seed
from flowmx.gluon.data.workers import ProcessPool, ThreadPool, WorkerPool
from flowmx.gluon.data.workers import startup_package as packages
from flowmx.keywords import ChecksKeywords
from flowmx.ndarray import NDArray
from flowmx.semantics import with_semantics

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    Batch = _TypeVar("Batch", default=list[NDArray])
else:
    Batch = TypeVar("Batch")

__all__ = ["DataLoader"]

Sample = TypeVar("Sample")
Sample_co = TypeVar("Sample_co", covariant=True)


class _Samples(Protocol[Sample_co]):
    """A data set, a list, or an array."""

    def __getitem__(self, idx: int, /) -> Sample_co: ...


class DataLoader(ChecksKeywords, Generic[Batch]):
    """Batches of a data set: ``for batch in loader``, or ``async for`` in a coroutine.

    The loader starts its worker processes once and keeps them for all epochs; they end with the loader. Leaving a loop
    early discards its pending batches. The loop raises an error from a worker, with the worker's traceback and the
    number of the sample. If a data set cannot be pickled, threads load it, with a warning.

    Orders come from NumPy's generator, as in MXNet; seed it with ``numpy.random.seed``. Without workers, a batch's
    random numbers come from the same generators as in MXNet (Python's, NumPy's, or that of ``mx.random.seed``).
    Workers seed new streams for each batch from the states that these generators had when the loader was first used.

    Args:
        dataset: the samples.
        batch_size: the number of samples in a batch.
        shuffle: whether to draw a new random order for each epoch.
        sampler: determines the order, instead of ``shuffle``.
        last_batch: the treatment of an incomplete last batch: ``"keep"`` (the default), ``"discard"`` or
            ``"rollover"``; see :class:`BatchSampler`.
        batch_sampler: yields lists of samples; replaces the four preceding arguments.
        batchify_fn: makes a batch from a list of samples (default: :func:`default_batchify_fn`).
        num_workers: the number of workers; with 0, batches are made when they are requested.
        pin_memory: copy batches into pinned memory, which speeds up copies to devices.
        pin_device_id: the device to pin memory for.
        prefetch: the number of batches made in advance (default: two for each worker).
        thread_pool: use threads as workers, for data sets that mostly wait for files.
        timeout: the time limit of a batch, in seconds.
        auto_reload: begin the first epoch immediately, and each later one in the background when the previous one
            ends.
        num_parts: the number of workers of a distributed job that share the samples; see :class:`SplitSampler`.
        part_index: the index of this worker's share, from 0.

    Raises:
        ValueError: arguments conflict, or are missing.
        Exception: (from the loop) an error of the data set or of ``batchify_fn``.
        DataLoaderWorkerError: (from the loop) a worker process has ended.
        DataLoaderTimeout: (from the loop) a batch took too long.

    Example:
        >>> data = mx.gluon.data.ArrayDataset(mx.nd.ones((100, 3)), mx.nd.arange(100))
        >>> for x, y in mx.gluon.data.DataLoader(data, batch_size=10, shuffle=True, num_workers=2):
        ...     train(x, y)
    """

    def __init__(
        self,
        dataset: _Samples[Sample],
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Any = None,
        last_batch: str | None = None,
        batch_sampler: Any = None,
        batchify_fn: Callable[[list[Sample]], Batch] | None = None,
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
        needs_length = sampler is None and batch_sampler is None
        if not hasattr(dataset, "__getitem__") or (needs_length and not hasattr(dataset, "__len__")):
            raise TypeError(
                f"DataLoader: the dataset is a {type(dataset).__name__}, expected an object with a length and an "
                "index: a list, an array, or a Dataset such as gluon.data.ArrayDataset(x, y)"
            )
        self._dataset = cast("Any", dataset)
        if batch_sampler is None:
            order = sampler if sampler is not None else _sampler(len(self._dataset), shuffle, num_parts, part_index)
            batch_sampler = BatchSampler(order, _size(batch_size), last_batch or "keep")
            _expect_none("sampler", sampler, shuffle=shuffle or None, num_parts=num_parts if num_parts > 1 else None)
        else:
            _expect_none(
                "batch_sampler", batch_sampler, batch_size=batch_size, shuffle=shuffle or None, sampler=sampler,
                last_batch=last_batch, num_parts=num_parts if num_parts > 1 else None,
            )  # fmt: skip
        self._batch_sampler = batch_sampler
        self._batchify_fn = batchify_fn or default_batchify_fn
        if not isinstance(num_workers, (int, np.integer)):
            raise TypeError(f"DataLoader: num_workers is {num_workers!r}, expected an int")
        self._num_workers = max(0, int(num_workers))
        self._pin_memory, self._pin_device_id = pin_memory, pin_device_id
        self._pinned = cpu_pinned(pin_device_id) if pin_memory else None
        self._prefetch = 2 * self._num_workers if prefetch is None else max(0, int(prefetch))
        self._thread_pool = thread_pool
        self._timeout = timeout
        self._seed = Seed(self._samples() or 0, batch_size or 0)
        self._epochs = 0  # the number of epochs that have begun
        self._resume_state: dict[str, Any] | None = None
        self._latest: Position | None = None  # the position of the latest loop
        self._iter: Epoch | None = None  # an epoch that began in the background
        self._pool = self._start_workers() if self._num_workers else None
        if self._pool is not None:
            weakref.finalize(self, self._pool.close)
        self.auto_reload = auto_reload
        if auto_reload:
            self.refresh()

    def _start_workers(self) -> WorkerPool:
        """Start the workers: processes, or threads if `thread_pool` is set or the data set cannot be pickled."""
        if not self._thread_pool:
            packages.stop_main()
            try:
                content = packages.Package((self._dataset, self._batchify_fn))
                return ProcessPool(self._num_workers, content, self._timeout)
            except packages.PackageError as error:
                warnings.warn(
                    f"DataLoader: the data set or batchify_fn cannot be sent to worker processes, so threads load "
                    f"instead: {error}. Use functions and classes of a module's top level, or pass thread_pool=True",
                    stacklevel=3,
                )
        dataset, batchify_fn = self._dataset, self._batchify_fn
        return ThreadPool(
            self._num_workers,
            lambda job: batch_maker.make(dataset, batchify_fn, job.samples, job.number, lambda: job.is_needed),
        )

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> Iterator[Batch]:
        return self._begin()

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self._begin()

    # -- epochs ------------------------------------------------------------------------------------------------

    def _begin(self) -> Epoch:
        """Return the next epoch, for a loop."""
        epoch, self._iter = self._iter or self._new_epoch(), None
        epoch.loader = self
        self._latest = epoch.position
        return epoch

    def refresh(self) -> None:
        """Begin the next epoch in the background."""
        self.clean()
        self._iter = self._new_epoch()

    def clean(self) -> None:
        """Discard an epoch that began in the background; the next loop starts it again."""
        if self._iter is not None:
            self._resume_state = self._iter.position.state()
            self._iter.close()
            self._iter = None

    def _new_epoch(self) -> Epoch:
        position = (
            self._resume(self._resume_state)
            if self._resume_state
            else Position(self._start(), iter(self._batch_sampler))
        )
        self._resume_state = None
        self._epochs = position.start.epoch + 1
        length = len(self) if hasattr(self._batch_sampler, "__len__") else 0
        if self._pool is None:
            return SyncEpoch(position, length, self._dataset, self._batchify_fn)
        return PrefetchedEpoch(position, length, self._pool, max(1, self._prefetch), self._timeout)

    def _start(self) -> EpochStart:
        """Return the starting point of the next epoch: its number, its seed and the state of the sampler."""
        seed, is_new = self._seed.value()
        if is_new:
            self._epochs = 0
        try:
            return EpochStart(self._epochs, seed, sampler_state(self._batch_sampler), 0)
        except NotImplementedError:
            return EpochStart(self._epochs, seed, None, 0)

    def _resume(self, state: dict[str, Any]) -> Position:
        """Return the position that a state describes."""
        start = EpochStart(int(state["epoch"]), int(state["seed"]), state["sampler"], int(state["given"]))
        self._seed.set(start.seed)
        if start.sampler is None:
            return Position(start, iter([list(batch) for batch in state["rest"]]))
        self._batch_sampler.set_state(start.sampler)
        return Position(start, itertools.islice(iter(self._batch_sampler), start.consumed, None))

    def _on_epoch_end(self) -> None:
        """Begin the next epoch in the background, with `auto_reload`."""
        if self.auto_reload and self._iter is None:
            self.refresh()

    # -- the position in an epoch ------------------------------------------------------------------------------

    def state(self) -> dict[str, object]:
        """Return the position of the latest loop over the loader, as plain data, for a checkpoint.

        :meth:`set_state` of a loader with the same arguments restores it: the next loop continues with the next batch
        of the epoch. If a custom sampler has no ``state()``, the state includes the rest of the epoch's samples. It
        also includes the states of Python's, NumPy's and flowmx's random generators, which draw orders and
        augmentations; :meth:`set_state` restores them.
        """
        if self._latest is not None and not self._latest.finished:
            position = self._latest.state()
        elif self._iter is not None:
            position = self._iter.position.state()
        else:
            position = self._resume_state or self._state_before_epoch()
        return {**position, "samples": self._samples(), "random": rng.all_states()}

    def _state_before_epoch(self) -> dict[str, Any]:
        """Return the state before the next epoch; begins the epoch if the sampler has no state."""
        start = self._start()
        if start.sampler is not None:
            return start.state(start.consumed, None)
        self._iter = self._new_epoch()
        return self._iter.position.state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the position of a loader with the same arguments.

        Raises:
            ValueError: the state has another number of samples, or is not a loader's state.
        """
        check_state(state, {"samples": self._samples()})
        self.clean()
        self._latest = None
        self._resume_state = {name: state[name] for name in ("epoch", "seed", "sampler", "given", "rest")}
        if "random" in state:
            rng.set_all_states(state["random"])

    def _samples(self) -> int | None:
        return len(self._dataset) if hasattr(self._dataset, "__len__") else None

    # -- batches -----------------------------------------------------------------------------------------------

    def _prepare(self, batch: Any) -> Any:
        """Copy a batch to pinned memory, if requested, and convert it to NumPy-like arrays in NumPy mode."""
        return with_semantics(batch if self._pinned is None else _to_context(batch, self._pinned))


def _size(batch_size: int | None) -> int:
    if batch_size is None:
        raise ValueError("DataLoader: batch_size is missing: pass it, or a batch_sampler")
    return batch_size


def _sampler(length: int, shuffle: bool, num_parts: int, part_index: int) -> SplitSampler:
    return (
        RandomSampler(length, num_parts, part_index) if shuffle else SplitSampler(length, num_parts, part_index, False)
    )


def _expect_none(name: str, value: Any, **others: Any) -> None:
    """Check that an argument does not conflict with others."""
    conflicts = [other for other, argument in others.items() if argument is not None]
    if value is not None and conflicts:
        raise ValueError(f"DataLoader: {name} conflicts with {' and '.join(conflicts)}: pass only {name}")


def _to_context(batch: Any, context: Any) -> Any:
    if isinstance(batch, NDArray):
        return batch.as_in_context(context)
    return [_to_context(part, context) for part in batch] if isinstance(batch, (list, tuple)) else batch
