"""Parts of MXNet's DataLoader that packages import from ``mxnet.gluon.data`` for custom loaders."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import multiprocessing.queues
import pickle
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import ThreadPool
from multiprocessing.reduction import ForkingPickler
from typing import Any

from flowmx import context
from flowmx.devices import Context
from flowmx.gluon.data import sampler as _sampler
from flowmx.gluon.data.dataset import _FirstTransform as _TransformFirstClosure
from flowmx.gluon.data.dataset import _Subset as _SampledDataset
from flowmx.gluon.data.dataset import _TransformedDataset as _LazyTransformDataset
from flowmx.gluon.data.loader import DataLoader
from flowmx.ndarray import NDArray

__all__ = [
    "DataLoaderV1", "ForkingPickler", "Queue", "SimpleQueue", "ThreadPool", "_LazyTransformDataset", "_MultiWorkerIter",
    "_SampledDataset", "_TransformFirstClosure", "_as_in_context", "_sampler", "_thread_worker_fn",
    "_thread_worker_initializer", "_worker_fn", "_worker_initializer", "context", "multiprocessing", "pickle",
]  # fmt: skip

DataLoaderV1 = DataLoader
_worker_dataset: Any = None
"""The dataset of this worker process."""


def Queue(*args: Any, **kwargs: Any) -> multiprocessing.queues.Queue[Any]:  # noqa: N802
    """Return a queue between processes, which supports arrays."""
    return multiprocessing.get_context().Queue(*args, **kwargs)


def SimpleQueue(*args: object, **kwargs: object) -> multiprocessing.queues.SimpleQueue[Any]:  # noqa: N802
    """Return a queue between processes without a feeder thread, which supports arrays."""
    return multiprocessing.get_context().SimpleQueue(*args, **kwargs)


def _as_in_context(data: object, ctx: Context) -> Any:
    """Copy a (nested) batch to a device."""
    if isinstance(data, NDArray):
        return data.as_in_context(ctx)
    return [_as_in_context(part, ctx) for part in data] if isinstance(data, (list, tuple)) else data


def _worker_initializer(dataset: object, active_shape: bool = False, active_array: bool = False) -> None:
    """Store the dataset of a worker process for `_worker_fn`."""
    global _worker_dataset
    del active_shape, active_array  # options of mx.np
    _worker_dataset = dataset


def _thread_worker_initializer(active_shape: bool = False, active_array: bool = False) -> None:
    """Do nothing: the arguments are options of ``mx.np``."""


def _worker_fn(samples: Sequence[int], batchify_fn: Callable[[list[Any]], Any], dataset: object = None) -> bytes:
    """Return a pickled batch of the worker's dataset."""
    del dataset
    return bytes(ForkingPickler.dumps(batchify_fn([_worker_dataset[i] for i in samples])))


def _thread_worker_fn(samples: Sequence[int], batchify_fn: Callable[[list[Any]], Any], dataset: Any) -> Any:
    """Return a batch of a dataset."""
    return batchify_fn([dataset[i] for i in samples])


class _MultiWorkerIter:
    """An iterator over batches that a pool prefetches.

    Args:
        worker_pool: a pool of processes or threads of `multiprocessing`.
        batchify_fn: converts a list of samples to a batch.
        batch_sampler: yields the sample indices of batches.
        pin_memory: whether to copy batches to pinned memory.
        pin_device_id: the device for pinned memory.
        worker_fn: called in the pool with the indices, ``batchify_fn`` and the dataset; returns a pickle if the dataset
            is None.
        prefetch: number of batches to prefetch.
        dataset: the dataset for threads; None if the processes have it.
        data_loader: referenced, so that it outlives its batches.
        timeout: maximum seconds per batch.

    Raises:
        multiprocessing.TimeoutError: (from the loop) a batch took longer than ``timeout``.
    """

    def __init__(
        self, worker_pool: Any, batchify_fn: Callable[[list[Any]], Any], batch_sampler: Any, pin_memory: bool = False,
        pin_device_id: int = 0, worker_fn: Callable[..., object] = _worker_fn, prefetch: int = 0, dataset: Any = None,
        data_loader: Any = None, timeout: float = 120,
    ) -> None:  # fmt: skip
        self._worker_pool = worker_pool
        self._batchify_fn = batchify_fn
        self._batch_sampler = batch_sampler
        self._data_buffer: dict[int, Any] = {}
        self._rcvd_idx = self._sent_idx = 0
        self._iter = iter(batch_sampler)
        self._worker_fn = worker_fn
        self._pin_memory, self._pin_device_id = pin_memory, pin_device_id
        self._dataset, self._data_loader = dataset, data_loader
        self._timeout = timeout
        for _ in range(prefetch):
            self._push_next()

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def _push_next(self) -> None:
        samples = next(self._iter, None)
        if samples is not None:
            job = self._worker_pool.apply_async(self._worker_fn, (samples, self._batchify_fn, self._dataset))
            self._data_buffer[self._sent_idx] = job
            self._sent_idx += 1

    def __next__(self) -> Any:
        self._push_next()
        if self._rcvd_idx == self._sent_idx:
            raise StopIteration
        job = self._data_buffer.pop(self._rcvd_idx)
        self._rcvd_idx += 1
        try:
            result = job.get(self._timeout)
        except multiprocessing.context.TimeoutError:
            raise multiprocessing.context.TimeoutError(
                f"a batch took longer than {self._timeout} seconds: pass a larger timeout, or make the transforms "
                "cheaper"
            ) from None
        except Exception:  # the user's dataset may raise anything
            self._worker_pool.terminate()
            raise
        batch = pickle.loads(result) if self._dataset is None else result
        return _as_in_context(batch, context.cpu_pinned(self._pin_device_id)) if self._pin_memory else batch

    def next(self) -> Any:
        """Return the next batch."""
        return next(self)

    def __iter__(self) -> Iterator[Any]:
        return self
