"""Loops over batches: evaluating and predicting, and what all loops need."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from flowmx import engine, metric
from flowmx import ndarray as nd
from flowmx.engine.loops import runs_in_plain_code
from flowmx.errors import StateError
from flowmx.io import DataBatch
from flowmx.model import BatchEndParam
from flowmx.ndarray import NDArray

Callbacks: TypeAlias = Callable[..., Any] | Sequence[Callable[..., Any]] | None


class Loops:
    """The loops over a module's batches that train nothing; ``fit`` is in :mod:`.fitting`."""

    binded: bool
    params_initialized: bool

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Make ready for a batch: modules with several graphs switch here, and row_sparse parameters are pulled.

        Args:
            data_batch: the batch.
            sparse_row_id_fn: called with it, gives a dict from the names of parameters to the numbers of their rows
                that it needs; only :class:`Module` and :class:`BucketingModule` call it.
        """
        if sparse_row_id_fn is not None:
            warnings.warn(f"prepare: a {type(self).__name__} does not call sparse_row_id_fn", stacklevel=2)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Enqueue the forward pass of a batch."""
        raise NotImplementedError

    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        """The outputs of the last forward pass."""
        raise NotImplementedError

    async def update_metric_async(
        self, eval_metric: metric.EvalMetric, labels: Sequence[NDArray], pre_sliced: bool = False
    ) -> None:
        """Count the outputs of the last forward pass into a metric, awaiting them."""
        raise NotImplementedError

    @runs_in_plain_code
    async def score(
        self,
        eval_data: Any,
        eval_metric: Any,
        num_batch: int | None = None,
        batch_end_callback: Callbacks = None,
        score_end_callback: Callbacks = None,
        reset: bool = True,
        epoch: int = 0,
        sparse_row_id_fn: Any = None,
    ) -> list[tuple[str, float]]:
        """Evaluate on all of ``eval_data``; returns pairs of name and value.

        Args:
            eval_data: the batches.
            eval_metric: the metric, or what ``mx.metric.create`` makes one from.
            num_batch: evaluate so many batches alone.
            batch_end_callback: called after each batch with a ``mx.model.BatchEndParam``.
            score_end_callback: called at the end, likewise.
            reset: reset ``eval_data`` first.
            epoch: the epoch that callbacks are given.
            sparse_row_id_fn: as for :meth:`prepare`.
        """
        self._check_ready("score")
        if reset:
            eval_data.reset()
        measured = metric_of(eval_metric)
        measured.reset()
        nbatch = 0
        async for eval_batch in _first(num_batch, eval_data):
            self.prepare(eval_batch, **await given_rows(sparse_row_id_fn, eval_batch))
            self.forward(eval_batch, is_train=False)
            await self.update_metric_async(measured, labels_of(eval_batch))
            await call(batch_end_callback, BatchEndParam(epoch, nbatch, measured, locals()))
            await give_way()
            nbatch += 1
        await call(score_end_callback, BatchEndParam(epoch, nbatch, measured, locals()))
        return measured.get_name_value()

    def iter_predict(
        self, eval_data: Any, num_batch: int | None = None, reset: bool = True, sparse_row_id_fn: Any = None
    ) -> Predictions:
        """Predict batch by batch: ``for outputs, number, batch in mod.iter_predict(data)``, or ``async for``.

        The outputs are copies without the instances that pad the batch, not computed yet: await them.

        Args:
            eval_data: the batches.
            num_batch: predict so many batches alone.
            reset: reset ``eval_data`` first.
            sparse_row_id_fn: as for :meth:`prepare`.
        """
        self._check_ready("predict")
        if reset:
            eval_data.reset()
        return Predictions(self, eval_data, num_batch, sparse_row_id_fn)

    def _predicted(self, batch: Any, rows: dict[str, Any]) -> list[NDArray]:
        self.prepare(batch, **rows)
        self.forward(batch, is_train=False)
        pad = getattr(batch, "pad", None) or 0
        return [out[: out.shape[0] - pad].copy() for out in self.get_outputs()]

    @runs_in_plain_code
    async def predict(
        self,
        eval_data: Any,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
        sparse_row_id_fn: Any = None,
    ) -> NDArray | list[NDArray] | list[list[NDArray]]:
        """Predict all of ``eval_data``.

        Args:
            eval_data: the batches, or one array.
            num_batch: predict so many batches alone.
            merge_batches: put the batches' outputs together.
            reset: reset ``eval_data`` first.
            always_output_list: give a list for a single output too.
            sparse_row_id_fn: as for :meth:`prepare`.

        Returns:
            the outputs, computed: a list of arrays (a single output is returned itself); without
            ``merge_batches`` a list of such lists, one for each batch.

        Raises:
            ValueError: batches that are to be merged differ in their number of outputs.
        """
        self._check_ready("predict")
        if isinstance(eval_data, (NDArray, np.ndarray)):
            array = eval_data if isinstance(eval_data, NDArray) else nd.array(eval_data)
            self.forward(DataBatch([array]), is_train=False)
            output: NDArray = await self.get_outputs()[0].copy()
            return output
        found = [outputs async for outputs, _, _ in self.iter_predict(eval_data, num_batch, reset, sparse_row_id_fn)]
        for outputs in found:
            for out in outputs:
                await out
        if not merge_batches or not found:
            return found
        if len({len(outputs) for outputs in found}) > 1:
            raise ValueError(
                "predict: the batches differ in their number of outputs, so they can not be merged: pass "
                "merge_batches=False"
            )
        merged = [parts[0] if len(parts) == 1 else nd.op.concat(*parts, dim=0) for parts in zip(*found, strict=True)]
        for out in merged:
            await out
        return merged[0] if len(merged) == 1 and not always_output_list else merged

    def _check_ready(self, name: str) -> None:
        if not self.binded:
            raise StateError(f"{name}: the module is not bound: call bind() first")
        if not self.params_initialized:
            raise StateError(f"{name}: the parameters are not initialized: call init_params() or set_params() first")


class Predictions:
    """The outputs of a module for one batch after the other, with the batch's number and the batch.

    Args:
        module: who predicts.
        data: the batches.
        num_batch: how many of them (default: all).
        sparse_row_id_fn: as for :meth:`Loops.prepare`.
    """

    def __init__(self, module: Loops, data: Any, num_batch: int | None, sparse_row_id_fn: Any = None) -> None:
        self._module = module
        self._data = data
        self._num_batch = num_batch
        self._rows = sparse_row_id_fn

    def __iter__(self) -> Iterator[tuple[list[NDArray], int, Any]]:
        for number, batch in enumerate(itertools.islice(self._data, self._num_batch)):
            yield self._module._predicted(batch, _keyword(self._rows)), number, batch

    async def __aiter__(self) -> AsyncIterator[tuple[list[NDArray], int, Any]]:
        number = 0
        async for batch in _first(self._num_batch, self._data):
            rows = await given_rows(self._rows, batch)
            yield self._module._predicted(batch, rows), number, batch
            await give_way()
            number += 1


def labels_of(batch: Any) -> Any:
    """A batch's labels; a batch may be anything with ``data``."""
    return getattr(batch, "label", None) or []


def metric_of(given: Any) -> metric.EvalMetric:
    """A metric, or the one that is made of what was given."""
    return given if isinstance(given, metric.EvalMetric) else metric.create(given)


async def batches_of(data: Any) -> AsyncIterator[Any]:
    """The batches of an iterator, which need not know ``async for``."""
    if hasattr(data, "__aiter__"):
        async for batch in data:
            yield batch
        return
    iterator = iter(data)
    while (batch := await asyncio.to_thread(next, iterator, None)) is not None:
        yield batch


async def batch_after(count: int, batches: AsyncIterator[Any]) -> Any:
    """The batch after so many; None where there is none."""
    for _ in range(count):
        if await anext(batches, None) is None:
            return None
    return await anext(batches, None)


async def _first(count: int | None, data: Any) -> AsyncIterator[Any]:
    if count == 0:
        return
    number = 0
    async for batch in batches_of(data):
        yield batch
        number += 1
        if number == count:
            return


async def give_way() -> None:
    """Let other tasks run, and wait while too much is enqueued."""
    await asyncio.sleep(0)
    await engine.room()


async def call(callbacks: Callbacks, *args: Any) -> None:
    """Call callbacks, and await what they return where that is awaitable."""
    if callbacks is None:
        return
    for callback in [callbacks] if callable(callbacks) else callbacks:
        result = callback(*args)
        if inspect.isawaitable(result):
            await result


async def given_rows(sparse_row_id_fn: Any, batch: Any) -> dict[str, Any]:
    """The keyword of ``prepare``, where there is one to give, once the batch is there: the function will look at it."""
    if sparse_row_id_fn is not None:
        for array in (*batch.data, *labels_of(batch)):
            await array
    return _keyword(sparse_row_id_fn)


def _keyword(sparse_row_id_fn: Any) -> dict[str, Any]:
    # Modules of users may not take it.
    return {} if sparse_row_id_fn is None else {"sparse_row_id_fn": sparse_row_id_fn}


def refuse_sliced(pre_sliced: bool) -> None:
    """Refuse labels that come as a list for each device."""
    if pre_sliced:
        raise NotImplementedError("update_metric: pre_sliced labels are not taken; give the whole batch's labels")
