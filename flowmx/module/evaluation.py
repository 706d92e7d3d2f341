"""Loops over batches for evaluation and prediction, and helpers for all loops."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias, cast, overload

import numpy as np

from flowmx import engine, metric
from flowmx import ndarray as nd
from flowmx.data.pending_batches import Failure, PendingBatch, PendingIterator, TaskFetch, ThreadedIterator
from flowmx.engine.loops import blocks_in_ordinary_code
from flowmx.errors import StateError
from flowmx.io import DataBatch
from flowmx.keywords import ChecksKeywords
from flowmx.model import BatchEndParam
from flowmx.ndarray import NDArray

Callbacks: TypeAlias = Callable[..., Any] | Sequence[Callable[..., Any]] | None


class _OfDevices(Protocol):
    """A method that returns an array for each name, or a list of the devices' parts, as type checkers see it."""

    @overload
    def __call__(self, merge_multi_context: Literal[True] = True) -> list[NDArray]: ...

    @overload
    def __call__(self, merge_multi_context: Literal[False]) -> list[list[NDArray]]: ...

    @overload
    def __call__(self, merge_multi_context: bool = ...) -> list[NDArray] | list[list[NDArray]]: ...


class _OfDevicesMethod(Protocol):
    def __get__(self, module: object, owner: type | None = None) -> _OfDevices: ...


def merges_devices(method: Callable[..., Any]) -> _OfDevicesMethod:
    """Return a method with the argument ``merge_multi_context``, with its type."""
    return cast("_OfDevicesMethod", method)


class Loops(ChecksKeywords):
    """The loops over a module's batches that do not train; ``fit`` is in :mod:`.fitting`."""

    binded: bool
    params_initialized: bool

    def prepare(self, data_batch: object, sparse_row_id_fn: object = None) -> None:
        """Prepare for a batch: bind its graph in a module with several graphs, and pull row_sparse parameters.

        Args:
            data_batch: the batch.
            sparse_row_id_fn: a function that takes the batch and returns a dict: the row numbers that the batch needs,
                by the name of the parameter. Only :class:`Module` and :class:`BucketingModule` call it.
        """
        if sparse_row_id_fn is not None:
            warnings.warn(f"prepare: a {type(self).__name__} does not call sparse_row_id_fn", stacklevel=2)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Enqueue the forward pass of a batch."""
        raise NotImplementedError

    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        """Return the outputs of the last forward pass."""
        raise NotImplementedError

    async def update_metric_async(
        self, eval_metric: metric.EvalMetric, labels: Sequence[NDArray], pre_sliced: bool = False
    ) -> None:
        """Await the outputs of the last forward pass, and update a metric with them."""
        raise NotImplementedError

    @blocks_in_ordinary_code
    async def score(
        self,
        eval_data: Any,
        eval_metric: object,
        num_batch: int | None = None,
        batch_end_callback: Callbacks = None,
        score_end_callback: Callbacks = None,
        reset: bool = True,
        epoch: int = 0,
        sparse_row_id_fn: object = None,
    ) -> list[tuple[str, float]]:
        """Evaluate on all of ``eval_data``; return pairs of name and value.

        Args:
            eval_data: the batches.
            eval_metric: the metric, or an argument of ``mx.metric.create``.
            num_batch: evaluate this number of batches (default: all).
            batch_end_callback: called after each batch with a ``mx.model.BatchEndParam``.
            score_end_callback: called at the end with a ``mx.model.BatchEndParam``.
            reset: reset ``eval_data`` first.
            epoch: the epoch that callbacks receive.
            sparse_row_id_fn: as for :meth:`prepare`.
        """
        self._check_ready("score")
        if reset:
            eval_data.reset()
        score_metric = as_metric(eval_metric)
        score_metric.reset()
        nbatch = 0
        async for eval_batch in _first(num_batch, eval_data):
            self.prepare(eval_batch, **await rows_keyword(sparse_row_id_fn, eval_batch))
            self.forward(eval_batch, is_train=False)
            await self.update_metric_async(score_metric, batch_labels(eval_batch))
            await call(batch_end_callback, BatchEndParam(epoch, nbatch, score_metric, locals()))
            await yield_to_tasks()
            nbatch += 1
        await call(score_end_callback, BatchEndParam(epoch, nbatch, score_metric, locals()))
        return score_metric.get_name_value()

    def iter_predict(
        self, eval_data: Any, num_batch: int | None = None, reset: bool = True, sparse_row_id_fn: object = None
    ) -> Predictions:
        """Predict batch by batch: ``for outputs, number, batch in mod.iter_predict(data)``, or ``async for``.

        The outputs are enqueued copies without the samples that pad the batch; await them.

        Args:
            eval_data: the batches.
            num_batch: predict this number of batches (default: all).
            reset: reset ``eval_data`` first.
            sparse_row_id_fn: as for :meth:`prepare`.
        """
        self._check_ready("predict")
        if reset:
            eval_data.reset()
        return Predictions(self, eval_data, num_batch, sparse_row_id_fn)

    def _predict_batch(self, batch: object, rows: dict[str, Any]) -> list[NDArray]:
        self.prepare(batch, **rows)
        self.forward(batch, is_train=False)
        pad = getattr(batch, "pad", None) or 0
        return [out[: out.shape[0] - pad].copy() for out in self.get_outputs()]

    @blocks_in_ordinary_code
    async def predict(
        self,
        eval_data: object,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
        sparse_row_id_fn: object = None,
    ) -> NDArray:
        """Predict all of ``eval_data``.

        Args:
            eval_data: the batches, or one array.
            num_batch: predict this number of batches (default: all).
            merge_batches: concatenate the batches' outputs.
            reset: reset ``eval_data`` first.
            always_output_list: return a list for a single output too.
            sparse_row_id_fn: as for :meth:`prepare`.

        Returns:
            The computed outputs: a list of arrays, or the array itself for a single output. Without
            ``merge_batches``, a list of such lists, one for each batch.

        Raises:
            ValueError: the batches have different numbers of outputs and cannot be merged.
        """
        self._check_ready("predict")
        if isinstance(eval_data, (NDArray, np.ndarray)):
            array = eval_data if isinstance(eval_data, NDArray) else nd.array(eval_data)
            self.forward(DataBatch([array]), is_train=False)
            output: NDArray = await self.get_outputs()[0].copy()
            return output
        batches = [outputs async for outputs, _, _ in self.iter_predict(eval_data, num_batch, reset, sparse_row_id_fn)]
        for outputs in batches:
            for out in outputs:
                await out
        if not merge_batches or not batches:
            return cast("NDArray", batches)  # lists unpack like an array, so that checkers need not know which it is
        if len({len(outputs) for outputs in batches}) > 1:
            raise ValueError(
                "predict: the batches differ in their number of outputs, so they cannot be merged: pass "
                "merge_batches=False"
            )
        merged = [parts[0] if len(parts) == 1 else nd.op.concat(*parts, dim=0) for parts in zip(*batches, strict=True)]
        for out in merged:
            await out
        return merged[0] if len(merged) == 1 and not always_output_list else cast("NDArray", merged)

    def _check_ready(self, name: str) -> None:
        if not self.binded:
            raise StateError(f"{name}: the module is not bound: call bind() first")
        if not self.params_initialized:
            raise StateError(f"{name}: the parameters are not initialized: call init_params() or set_params() first")


class Predictions:
    """An iterator over a module's outputs, batch by batch, with the batch's number and the batch.

    Args:
        module: the module.
        data: the batches.
        num_batch: the number of batches (default: all).
        sparse_row_id_fn: as for :meth:`Loops.prepare`.
    """

    def __init__(self, module: Loops, data: Any, num_batch: int | None, sparse_row_id_fn: object = None) -> None:
        self._module = module
        self._data = data
        self._num_batch = num_batch
        self._rows = sparse_row_id_fn

    def __iter__(self) -> Iterator[tuple[list[NDArray], int, Any]]:
        for number, batch in enumerate(itertools.islice(self._data, self._num_batch)):
            yield self._module._predict_batch(batch, _keyword(self._rows)), number, batch

    def __aiter__(self) -> AsyncIterator[tuple[list[NDArray], int, Any]]:
        return _AsyncPredictions(self._predict_batch())

    async def _predict_batch(self) -> AsyncIterator[tuple[list[NDArray], int, Any]]:
        number = 0
        async for batch in _first(self._num_batch, self._data):
            rows = await rows_keyword(self._rows, batch)
            yield self._module._predict_batch(batch, rows), number, batch
            await yield_to_tasks()
            number += 1


class _AsyncPredictions(PendingIterator[tuple[list[NDArray], int, Any]]):
    """The asynchronous iterator of :class:`Predictions`.

    Args:
        predictions: an async generator; it must not be cancelled, because that would end it.
    """

    def __init__(self, predictions: AsyncIterator[tuple[list[NDArray], int, Any]]) -> None:
        super().__init__()
        self._predictions = predictions
        self._next: TaskFetch | None = None

    def __aiter__(self) -> _AsyncPredictions:
        return self

    async def __anext__(self) -> tuple[list[NDArray], int, Any]:
        return await self._take_async()

    def _head(self) -> TaskFetch:
        if self._next is None:
            self._next = TaskFetch(anext(self._predictions, None))
        return self._next

    def _is_pending(self, head: PendingBatch) -> bool:
        return self._next is head

    def _pop(self, result: Any) -> tuple[list[NDArray], int, Any]:
        self._next = None
        if isinstance(result, Failure):
            raise result.error
        if result is None:
            raise StopIteration
        outputs: tuple[list[NDArray], int, Any] = result
        return outputs


def batch_labels(batch: object) -> Any:
    """Return a batch's labels; a batch is any object with ``data``."""
    return getattr(batch, "label", None) or []


def as_metric(value: object) -> metric.EvalMetric:
    """Return `value` if it is a metric, otherwise the result of ``mx.metric.create``."""
    return value if isinstance(value, metric.EvalMetric) else metric.create(value)


def iterate_batches(data: Any) -> AsyncIterator[Any]:
    """Return an async iterator over batches; `data` need not support ``async for``."""
    return aiter(data) if hasattr(data, "__aiter__") else ThreadedIterator(iter(data))


async def batch_after(count: int, batches: AsyncIterator[Any]) -> Any:
    """Skip `count` batches and return the next one; None at the end."""
    for _ in range(count):
        if await anext(batches, None) is None:
            return None
    return await anext(batches, None)


async def _first(count: int | None, data: object) -> AsyncIterator[Any]:
    if count == 0:
        return
    number = 0
    async for batch in iterate_batches(data):
        yield batch
        number += 1
        if number == count:
            return


async def yield_to_tasks() -> None:
    """Yield to other tasks, and wait while the engine's queue is full."""
    await asyncio.sleep(0)
    await engine.wait_for_capacity()


async def call(callbacks: Callbacks, *args: object) -> None:
    """Call callbacks, and await awaitable results."""
    if callbacks is None:
        return
    for callback in [callbacks] if callable(callbacks) else callbacks:
        result = callback(*args)
        if inspect.isawaitable(result):
            await result


async def rows_keyword(sparse_row_id_fn: object, batch: Any) -> dict[str, Any]:
    """Return the keyword arguments of ``prepare``, after awaiting the batch if a function will read it."""
    if sparse_row_id_fn is not None:
        for array in (*batch.data, *batch_labels(batch)):
            await array
    return _keyword(sparse_row_id_fn)


def _keyword(sparse_row_id_fn: object) -> dict[str, Any]:
    # A user's module may not accept this keyword.
    return {} if sparse_row_id_fn is None else {"sparse_row_id_fn": sparse_row_id_fn}


def check_not_sliced(pre_sliced: bool) -> None:
    """Raise NotImplementedError if labels are a list for each device."""
    if pre_sliced:
        raise NotImplementedError("update_metric: pre_sliced labels are not supported: pass the whole batch's labels")
