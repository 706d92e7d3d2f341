"""The loops over batches that every kind of module shares."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from flowmx import engine, metric, model
from flowmx import ndarray as nd
from flowmx.initializer import Initializer, Uniform
from flowmx.io import DataBatch, DataDesc
from flowmx.model import BatchEndParam
from flowmx.ndarray import NDArray

Callbacks: TypeAlias = Callable[..., Any] | Sequence[Callable[..., Any]] | None
Params: TypeAlias = Mapping[str, NDArray] | None
OptimizerParams: TypeAlias = Mapping[str, Any] | Iterable[tuple[str, Any]]

_SGD_PARAMS = (("learning_rate", 0.01),)


class BaseModule:
    """What every kind of module offers; see :class:`Module`.

    A module is bound (shapes are known and memory is there), then its parameters are initialized, then its
    optimizer. Data is anything that iterators of ``mx.io`` are: it gives batches to ``for`` or ``async for``,
    describes them with ``provide_data`` and ``provide_label``, and can be ``reset()``.

    Args:
        logger: where training is logged to.

    Attributes:
        binded, params_initialized, optimizer_initialized: how far it is.
        for_training: bound for training.
        inputs_need_grad: bound for gradients of its inputs.
        symbol: the symbol.
    """

    def __init__(self, logger: Any = logging) -> None:
        self.logger = logger
        self.binded = False
        self.for_training = False
        self.inputs_need_grad = False
        self.params_initialized = False
        self.optimizer_initialized = False
        self._symbol: Any = None

    # -- what a kind of module implements --------------------------------------------------------------

    @property
    def symbol(self) -> Any:
        """The symbol."""
        return self._symbol

    @property
    def data_names(self) -> list[str]:
        """Names of the inputs."""
        raise NotImplementedError

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        raise NotImplementedError

    @property
    def data_shapes(self) -> list[DataDesc]:
        """Describes the inputs it is bound with."""
        raise NotImplementedError

    @property
    def label_shapes(self) -> list[DataDesc] | None:
        """Describes the labels it is bound with, if any."""
        raise NotImplementedError

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the outputs."""
        raise NotImplementedError

    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: Any = "write",
    ) -> None:
        """Make ready for batches of these shapes."""
        raise NotImplementedError

    def init_params(
        self,
        initializer: Callable[..., Any] | None = Uniform(0.01),  # noqa: B008  (it never changes)
        arg_params: Params = None,
        aux_params: Params = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Initialize the parameters."""
        raise NotImplementedError

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: OptimizerParams = _SGD_PARAMS,
        force_init: bool = False,
    ) -> None:
        """Install an optimizer."""
        raise NotImplementedError

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """The parameters and auxiliary states, on the CPU."""
        raise NotImplementedError

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Enqueue the forward pass of a batch."""
        raise NotImplementedError

    def backward(self, out_grads: Any = None) -> None:
        """Enqueue the backward pass."""
        raise NotImplementedError

    def update(self) -> None:
        """Enqueue the optimizer's update of every parameter."""
        raise NotImplementedError

    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        """The outputs of the last forward pass."""
        raise NotImplementedError

    def get_input_grads(self, merge_multi_context: bool = True) -> Any:
        """The gradients of the inputs, of the last backward pass."""
        raise NotImplementedError

    def _measured(self, labels: Sequence[NDArray]) -> list[tuple[dict[str, NDArray], dict[str, NDArray]]]:
        """Labels and outputs of the last forward pass by name, for each device."""
        raise NotImplementedError

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor watch the executors."""
        raise NotImplementedError

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Make ready for a batch (modules with several graphs switch here)."""
        _refuse_sparse(sparse_row_id_fn)

    # -- parameters ------------------------------------------------------------------------------------

    def set_params(
        self,
        arg_params: Params,
        aux_params: Params,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters and auxiliary states, by name.

        Args:
            arg_params: the parameters.
            aux_params: the auxiliary states.
            allow_missing: leave those that are not given as they are.
            force_init: set them although they are initialized.
            allow_extra: do not mind names that the module does not have.
        """
        self.init_params(None, arg_params, aux_params, allow_missing, force_init, allow_extra)

    def save_params(self, fname: str) -> None:
        """Save parameters and auxiliary states to one file."""
        model.save_params(fname, *self.get_params())

    def load_params(self, fname: str) -> None:
        """Set the parameters and auxiliary states that :meth:`save_params` saved."""
        self.set_params(*model.read_params(fname))

    # -- one batch -------------------------------------------------------------------------------------

    def forward_backward(self, data_batch: Any) -> None:
        """Enqueue both passes of a batch, in training mode."""
        self.forward(data_batch, is_train=True)
        self.backward()

    def update_metric(
        self, eval_metric: metric.EvalMetric, labels: Sequence[NDArray], pre_sliced: bool = False
    ) -> None:
        """Count the outputs of the last forward pass into a metric; waits for them.

        Args:
            eval_metric: the metric.
            labels: the batch's labels.
            pre_sliced: only False here (a list of labels for each device is not taken).
        """
        _refuse_sliced(pre_sliced)
        for label, pred in self._measured(labels):
            eval_metric.update_dict(label, pred)

    async def update_metric_async(
        self, eval_metric: metric.EvalMetric, labels: Sequence[NDArray], pre_sliced: bool = False
    ) -> None:
        """As :meth:`update_metric`, awaiting the outputs: the form for coroutines."""
        _refuse_sliced(pre_sliced)
        for label, pred in self._measured(labels):
            await eval_metric.update_dict_async(label, pred)

    # -- many batches ----------------------------------------------------------------------------------

    async def fit(
        self,
        train_data: Any,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: OptimizerParams = _SGD_PARAMS,
        eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None,
        initializer: Initializer | Callable[..., Any] = Uniform(0.01),  # noqa: B008
        arg_params: Params = None,
        aux_params: Params = None,
        allow_missing: bool = False,
        force_rebind: bool = False,
        force_init: bool = False,
        begin_epoch: int = 0,
        num_epoch: int | None = None,
        validation_metric: Any = None,
        monitor: Any = None,
        sparse_row_id_fn: Any = None,
    ) -> None:
        """Train on all of ``train_data``, ``num_epoch - begin_epoch`` times.

        The loop runs ahead of the devices within the engine's limits, and gives way to other tasks at each
        batch. Cancelling it leaves the module as the last enqueued batch makes it.

        Over several machines (``kvstore="dist_sync"``) the workers meet at the end of each epoch: who has fewer batches
        holds nobody up, and all have the same parameters then. A worker that joins late, or a job that goes on from
        snapshots, begins with the epoch and the batch that the job has come to.

        Args:
            train_data: the batches to train on.
            eval_data: batches to evaluate on after each epoch.
            eval_metric: the metric of the training, or what ``mx.metric.create`` makes one from.
            epoch_end_callback: called with (epoch, symbol, arg_params, aux_params), all computed. Callbacks
                may be lists, and return something awaitable, which is awaited.
            batch_end_callback: called with a ``mx.model.BatchEndParam``.
            kvstore: what sums gradients over devices and machines; see :meth:`Module.init_optimizer`.
            optimizer: a name, or an optimizer.
            optimizer_params: its arguments. ``rescale_grad`` defaults to one over the batch size.
            eval_end_callback: called after each evaluation, like ``batch_end_callback``.
            eval_batch_end_callback: called after each batch of the evaluation.
            initializer: for parameters that are not given.
            arg_params: first parameters; they count before the initializer.
            aux_params: first auxiliary states.
            allow_missing: leave parameters to the initializer that are not in ``arg_params``.
            force_rebind: bind anew.
            force_init: initialize the parameters anew.
            begin_epoch: the first epoch's number: training that is resumed goes on with the epoch that its
                checkpoint is named after.
            num_epoch: the number of the epoch to stop before.
            validation_metric: the metric of the evaluation (default: that of the training).
            monitor: watches the executors.
            sparse_row_id_fn: only None here.

        Raises:
            ValueError: ``num_epoch`` is not given, or there is no batch.
        """
        if num_epoch is None:
            raise ValueError("fit: num_epoch is missing: give the number of the epoch to stop before")
        _refuse_sparse(sparse_row_id_fn)
        if force_rebind or not self.binded:
            self.bind(train_data.provide_data, train_data.provide_label, for_training=True, force_rebind=force_rebind)
        if monitor is not None:
            self.install_monitor(monitor)
        if force_init or not self.params_initialized or arg_params is not None or aux_params is not None:
            self.init_params(initializer, arg_params, aux_params, allow_missing, force_init)
        if not self.optimizer_initialized:
            self.init_optimizer(kvstore, optimizer, optimizer_params)
        if validation_metric is None:
            validation_metric = eval_metric
        eval_metric = _metric(eval_metric)

        following_epoch, done = await self._begin_fit(begin_epoch)
        while following_epoch < num_epoch:
            epoch = following_epoch
            started = time.perf_counter()
            eval_metric.reset()
            batches = _batches(train_data)
            following = await _after(done, batches)
            if following is None and not done:
                raise ValueError("fit: train_data gave no batch: is it empty, or does it need a reset()?")
            nbatch, done, totals = done, 0, []
            while following is not None:
                data_batch = following
                if monitor is not None:
                    monitor.tic()
                self.forward_backward(data_batch)
                self.update()
                await self.update_metric_async(eval_metric, data_batch.label)
                following = await anext(batches, None)
                if following is not None:
                    self.prepare(following)
                if monitor is not None:
                    monitor.toc_print()
                # Taken before the callbacks, which may reset the metric.
                totals = eval_metric.get_global_name_value()
                await _call(batch_end_callback, BatchEndParam(epoch, nbatch, eval_metric, locals()))
                await _give_way()
                nbatch += 1
            following_epoch = min(await self._end_epoch(epoch + 1), num_epoch)
            epoch = following_epoch - 1  # later than this worker knows, where it joined late
            for name, value in totals:
                self.logger.info("Epoch[%d] Train-%s=%f", epoch, name, value)
            arg_params, aux_params = await self._synchronized()
            self.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.perf_counter() - started)
            await _call(epoch_end_callback, epoch, self.symbol, arg_params, aux_params)
            if eval_data is not None:
                scores = await self.score(
                    eval_data, validation_metric, score_end_callback=eval_end_callback,
                    batch_end_callback=eval_batch_end_callback, epoch=epoch,
                )  # fmt: skip
                for name, value in scores:
                    self.logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)
            train_data.reset()

    async def _begin_fit(self, epoch: int) -> tuple[int, int]:
        """The epoch and the batch to begin with: the given one, or those that other workers are at."""
        return epoch, 0

    async def _end_epoch(self, epoch: int) -> int:
        """Await that all workers have come to the end of an epoch; return the next, by default `epoch`."""
        return epoch

    async def _synchronized(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """The parameters, computed; auxiliary states are made the same on all devices."""
        arg_params, aux_params = self.get_params()
        for array in (*arg_params.values(), *aux_params.values()):
            await array
        return arg_params, aux_params

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
            epoch: the epoch that callbacks are told.
            sparse_row_id_fn: only None here.
        """
        self._check_ready("score")
        _refuse_sparse(sparse_row_id_fn)
        if reset:
            eval_data.reset()
        measured = _metric(eval_metric)
        measured.reset()
        nbatch = 0
        async for eval_batch in _first(num_batch, eval_data):
            self.prepare(eval_batch)
            self.forward(eval_batch, is_train=False)
            await self.update_metric_async(measured, eval_batch.label)
            await _call(batch_end_callback, BatchEndParam(epoch, nbatch, measured, locals()))
            await _give_way()
            nbatch += 1
        await _call(score_end_callback, BatchEndParam(epoch, nbatch, measured, locals()))
        return measured.get_name_value()

    async def iter_predict(
        self, eval_data: Any, num_batch: int | None = None, reset: bool = True, sparse_row_id_fn: Any = None
    ) -> AsyncIterator[tuple[list[NDArray], int, Any]]:
        """Predict batch by batch: ``async for outputs, number, batch in mod.iter_predict(data)``.

        The outputs are copies without the instances that pad the batch, not computed yet: await them.

        Args:
            eval_data: the batches.
            num_batch: predict so many batches alone.
            reset: reset ``eval_data`` first.
            sparse_row_id_fn: only None here.
        """
        self._check_ready("predict")
        _refuse_sparse(sparse_row_id_fn)
        if reset:
            eval_data.reset()
        nbatch = 0
        async for eval_batch in _first(num_batch, eval_data):
            self.prepare(eval_batch)
            self.forward(eval_batch, is_train=False)
            pad = eval_batch.pad or 0
            yield [out[: out.shape[0] - pad].copy() for out in self.get_outputs()], nbatch, eval_batch
            await _give_way()
            nbatch += 1

    async def predict(
        self,
        eval_data: Any,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
        sparse_row_id_fn: Any = None,
    ) -> Any:
        """Predict all of ``eval_data``.

        Args:
            eval_data: the batches, or one array.
            num_batch: predict so many batches alone.
            merge_batches: put the batches' outputs together.
            reset: reset ``eval_data`` first.
            always_output_list: give a list for a single output too.
            sparse_row_id_fn: only None here.

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
            return await self.get_outputs()[0].copy()
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
            raise RuntimeError(f"{name}: the module is not bound: call bind() first")
        if not self.params_initialized:
            raise RuntimeError(f"{name}: the parameters are not initialized: call init_params() or set_params() first")


def _metric(given: Any) -> metric.EvalMetric:
    return given if isinstance(given, metric.EvalMetric) else metric.create(given)


async def _batches(data: Any) -> AsyncIterator[Any]:
    """The batches of an iterator, which need not know ``async for``."""
    if hasattr(data, "__aiter__"):
        async for batch in data:
            yield batch
        return
    iterator = iter(data)
    while (batch := await asyncio.to_thread(next, iterator, None)) is not None:
        yield batch


async def _after(count: int, batches: AsyncIterator[Any]) -> Any:
    """The batch after so many; None where there is none."""
    for _ in range(count):
        if await anext(batches, None) is None:
            return None
    return await anext(batches, None)


async def _first(count: int | None, data: Any) -> AsyncIterator[Any]:
    if count == 0:
        return
    number = 0
    async for batch in _batches(data):
        yield batch
        number += 1
        if number == count:
            return


async def _give_way() -> None:
    """Let other tasks run, and wait while too much is enqueued."""
    await asyncio.sleep(0)
    await engine.room()


async def _call(callbacks: Callbacks, *args: Any) -> None:
    if callbacks is None:
        return
    for callback in [callbacks] if callable(callbacks) else callbacks:
        result = callback(*args)
        if inspect.isawaitable(result):
            await result


def _refuse_sparse(sparse_row_id_fn: Any) -> None:
    if sparse_row_id_fn is not None:
        raise NotImplementedError("sparse_row_id_fn: only dense parameters exist here; leave it out")


def _refuse_sliced(pre_sliced: bool) -> None:
    if pre_sliced:
        raise NotImplementedError("update_metric: pre_sliced labels are not taken; give the whole batch's labels")
