"""`Estimator`: training and evaluation of a model, without a hand-written loop.

Ordinary code calls ``fit`` and ``evaluate``, as in MXNet; a coroutine awaits them, or ``fit_async`` and
``evaluate_async``, which are always coroutines. All of them run the same coroutine; in ordinary code its awaitables are
ready immediately.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from flowmx import engine
from flowmx.checkpoint.content import Place
from flowmx.checkpoint.meeting import Meeting, skip
from flowmx.devices import Context, cpu, gpu, num_gpus
from flowmx.engine.loops import Done, blocks_in_ordinary_code
from flowmx.errors import ArgumentError
from flowmx.gluon.contrib.estimator import events
from flowmx.gluon.contrib.estimator.batch_processor import BatchProcessor
from flowmx.gluon.contrib.estimator.event_handler import (
    GradientUpdateHandler,
    LoggingHandler,
    MetricHandler,
    StoppingHandler,
    ValidationHandler,
    log_to_curves,
)
from flowmx.gluon.contrib.estimator.utils import check_metrics, check_metrics_are_updated, default_metric
from flowmx.gluon.loss import Loss
from flowmx.gluon.trainer import Trainer
from flowmx.initializer import InitializerLike
from flowmx.keywords import ChecksKeywords
from flowmx.metric import EvalMetric
from flowmx.metric import Loss as LossMetric

__all__ = ["Estimator"]


Handlers: TypeAlias = dict[str, list[Any]]
"""The handlers of each event, by the name of the method that handles it."""


class Estimator(ChecksKeywords):
    """Trains and evaluates a model.

    Args:
        net: the model.
        loss: its loss.
        train_metrics: metrics of training (default: the usual one for the loss, and the loss itself).
        val_metrics: metrics of evaluation (default: copies of the training metrics).
        initializer: initializes the parameters that are not initialized yet.
        trainer: updates the parameters (default: plain SGD at 0.001, with a warning).
        context: the device or devices (default: the first GPU, or the CPU).
        val_net: the model to evaluate (default: ``net``); it shares parameters with ``net``.
        val_loss: the loss of the evaluation (default: ``loss``).
        batch_processor: computes a batch; see :class:`BatchProcessor`.

    Raises:
        ValueError: an argument has the wrong type.

    Example:
        >>> estimator = Estimator(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), trainer=trainer)
        >>> estimator.fit(train_data, val_data, epochs=3)
        >>> print(estimator.val_metrics)
    """

    def __init__(
        self, net: Any, loss: Loss, train_metrics: object = None, val_metrics: object = None,
        initializer: InitializerLike = None, trainer: Trainer | None = None,
        context: Context | Sequence[Context] | None = None, val_net: Any = None, val_loss: Loss | None = None,
        batch_processor: object = None,
    ) -> None:  # fmt: skip
        self.net = net
        self.loss = self._check_loss(loss)
        self._train_metrics = check_metrics(train_metrics)
        self._val_metrics = check_metrics(val_metrics)
        self._add_default_training_metrics()
        self._add_validation_metrics()
        self.val_loss = self.loss if val_loss is None else self._check_loss(val_loss)
        self.val_net = net if val_net is None else val_net
        self.logger = logging.Logger(name="Estimator", level=logging.INFO)
        self.logger.addHandler(logging.StreamHandler(sys.stdout))
        self.context = self._check_context(context)
        self._initialize(initializer)
        self.trainer = self._check_trainer(trainer)
        self.batch_processor = self._check_batch_processor(batch_processor)
        self.max_epoch: int | None = None
        self.max_batch: int | None = None
        self.epoch_length: int | None = None
        """The number of batches in an epoch of training; None if the data has no length."""
        self.batch_axis = 0
        self._waiting: _WaitStrategy = _BlockingWaits()

    @property
    def train_metrics(self) -> list[EvalMetric]:
        """The metrics of training."""
        return self._train_metrics

    @property
    def val_metrics(self) -> list[EvalMetric]:
        """The metrics of evaluation."""
        return self._val_metrics

    @property
    def asynchronous(self) -> bool:
        """Whether a coroutine (``fit_async``) is running; handlers must then return awaitables instead of blocking."""
        return isinstance(self._waiting, _AwaitedWaits)

    # -- construction ----------------------------------------------------------------------------------
    # Subclasses of MXNet's estimator override methods with these names.

    def _add_default_training_metrics(self) -> None:
        if not self._train_metrics:
            default = default_metric(self.loss)
            self._train_metrics = [] if default is None else [default]
            self._train_metrics.append(LossMetric(self.loss.name.rstrip("0123456789")))
        for metric in self._train_metrics:
            metric.name = f"training {metric.name}"

    def _add_validation_metrics(self) -> None:
        if not self._val_metrics:
            self._val_metrics = copy.deepcopy(self._train_metrics)
        for metric in self._val_metrics:
            metric.name = f"validation {metric.name.removeprefix('training ')}"

    def _initialize(self, initializer: InitializerLike) -> None:
        if not self._is_initialized():
            self.net.initialize(init=initializer, ctx=self.context)
        elif initializer is not None:
            warnings.warn(
                "Estimator: Network already fully initialized, so the initializer was not used: call "
                "net.initialize(..., force_reinit=True) to initialize it again",
                stacklevel=3,
            )

    def _is_initialized(self) -> bool:
        try:
            for param in self.net.collect_params().values():
                param.list_ctx()
        except RuntimeError:
            return False
        return True

    def _check_loss(self, loss: object) -> Loss:
        if not isinstance(loss, Loss):
            raise ValueError(f"Estimator: loss is {loss!r}, expected a mx.gluon.loss.Loss")
        return loss

    def _check_context(self, context: object) -> list[Context]:
        return _contexts(context)

    def _check_batch_processor(self, batch_processor: object) -> Any:
        if batch_processor is None:
            return BatchProcessor()
        if not all(callable(getattr(batch_processor, name, None)) for name in ("fit_batch", "evaluate_batch")):
            raise ValueError(
                f"Estimator: batch_processor {batch_processor!r} has no methods fit_batch and evaluate_batch"
            )
        return batch_processor

    def _check_trainer(self, trainer: Trainer | None) -> Trainer:
        if trainer is None:
            warnings.warn("Estimator: No trainer specified: SGD with a learning rate of 0.001 is used", stacklevel=3)
            return Trainer(self.net.collect_params(), "sgd", {"learning_rate": 0.001})
        if not isinstance(trainer, Trainer):
            raise ValueError(f"Estimator: trainer is {trainer!r}, expected a mx.gluon.Trainer")
        return trainer

    # -- running ---------------------------------------------------------------------------------------

    def fit(
        self, train_data: object, val_data: object = None, epochs: int | None = None, event_handlers: object = None,
        batches: int | None = None, batch_axis: int = 0,
    ) -> Done:  # fmt: skip
        """Train for a number of epochs or batches. Ordinary code blocks until training ends; a coroutine awaits it.

        Args:
            train_data: yields batches (data, label), such as a ``gluon.data.DataLoader``.
            val_data: batches of the same form, to evaluate on after each epoch.
            epochs: the number of passes over the data.
            event_handlers: additional handlers, called before the default ones (updates, metrics, log).
            batches: the number of batches to train on, instead of epochs.
            batch_axis: the axis along which a batch is split over the devices.

        Raises:
            ValueError: neither epochs nor batches are set, or both are; or the data is not iterable, yields batches of
                another form, or is a ``mx.io.DataIter``, which pads its last batch with samples of the first.
        """
        arguments = (train_data, val_data, epochs, event_handlers, batches, batch_axis)
        if asyncio._get_running_loop() is not None:
            return blocks_in_ordinary_code(self.fit_async)(*arguments)
        return _run_to_completion(self._run_with(_BlockingWaits(), self._fit, *arguments))

    async def fit_async(
        self, train_data: object, val_data: object = None, epochs: int | None = None, event_handlers: object = None,
        batches: int | None = None, batch_axis: int = 0,
    ) -> None:  # fmt: skip
        """Train like :meth:`fit`, in a coroutine that yields to other tasks; data may be an asynchronous iterable."""
        await self._run_with(
            _AwaitedWaits(), self._fit, train_data, val_data, epochs, event_handlers, batches, batch_axis
        )

    def evaluate(
        self, val_data: object, batch_axis: int = 0, event_handlers: object = None
    ) -> Done:  # fmt: skip
        """Evaluate into :attr:`val_metrics`. Ordinary code blocks until evaluation ends; a coroutine awaits it.

        Args:
            val_data: as for :meth:`fit`.
            batch_axis: as for :meth:`fit`.
            event_handlers: additional handlers, called before the default ones.

        Raises:
            ValueError: the data is invalid, as for :meth:`fit`.
        """
        arguments = (val_data, batch_axis, event_handlers)
        if asyncio._get_running_loop() is not None:
            return blocks_in_ordinary_code(self.evaluate_async)(*arguments)
        return _run_to_completion(self._run_with(_BlockingWaits(), self._evaluate, *arguments))

    async def evaluate_async(self, val_data: object, batch_axis: int = 0, event_handlers: object = None) -> None:
        """Evaluate like :meth:`evaluate`, in a coroutine."""
        await self._run_with(_AwaitedWaits(), self._evaluate, val_data, batch_axis, event_handlers)

    async def _run_with(
        self, waiting: _WaitStrategy, work: Callable[..., Coroutine[object, object, None]], *args: object
    ) -> None:
        previous, self._waiting = self._waiting, waiting
        try:
            await work(*args)
        finally:
            self._waiting = previous

    async def _fit(
        self, train_data: object, val_data: object, epochs: int | None, event_handlers: object, batches: int | None,
        batch_axis: int,
    ) -> None:  # fmt: skip
        if (not epochs) == (not batches):
            raise ValueError(f"fit: epochs is {epochs} and batches is {batches}, expected one of them to be set")
        for data in (train_data, *([] if val_data is None else [val_data])):
            _check_data(data, self._waiting.source_methods)
        self.max_epoch, self.max_batch, self.batch_axis = epochs, batches, batch_axis
        self.epoch_length = len(train_data) if hasattr(train_data, "__len__") else None
        handlers = self._group_by_event(self._prepare_default_handlers(val_data, event_handlers))
        await self._notify(handlers, "train_begin")
        meeting = Meeting(self.trainer._kvstore, self.trainer)
        epoch = await self._call(self._begin, meeting, train_data, handlers, epochs or 0)
        is_finished = epochs is not None and epoch >= epochs
        while not is_finished:
            await self._epoch(train_data, handlers, self.batch_processor.fit_batch, batch_axis)
            epoch = await self._call(meeting.end_epoch, epoch + 1)
            is_finished = await self._notify(handlers, "epoch_end")
        await self._notify(handlers, "train_end")

    def _begin(self, meeting: Meeting, train_data: object, handlers: Handlers, epochs: int) -> int:
        """Return the first epoch: in a running distributed job, the current epoch of the other workers."""
        start_epoch = epochs - (self.max_epoch or 0)  # a CheckpointHandler has reduced max_epoch
        epoch, batch = meeting.begin(Place(start_epoch, 0))
        if self.max_epoch:
            for handler in {id(handler): handler for group in handlers.values() for handler in group}.values():
                if hasattr(handler, "current_epoch"):
                    handler.current_epoch += epoch - start_epoch
        skip(train_data, batch)
        return epoch

    async def _call(self, work: Callable[..., int], *arguments: object) -> int:
        """Call a function that waits for other workers."""
        return await asyncio.to_thread(work, *arguments) if self.asynchronous else work(*arguments)

    async def _evaluate(self, val_data: object, batch_axis: int, event_handlers: object) -> None:
        _check_data(val_data, self._waiting.source_methods)
        for metric in self.val_metrics:
            metric.reset()
        handlers = self._group_by_event(self._prepare_default_validation_handlers(event_handlers))
        await self._epoch(val_data, handlers, self.batch_processor.evaluate_batch, batch_axis)
        for metric in self.val_metrics:
            log_to_curves(metric)
        await self._notify(handlers, "epoch_end")

    async def _epoch(self, batches: Any, handlers: Handlers, compute: Callable[..., Any], batch_axis: int) -> None:
        await self._notify(handlers, "epoch_begin")
        async for batch in self._waiting.batches(batches):
            await self._notify(handlers, "batch_begin", batch=batch)
            _, label, pred, loss = compute(self, batch, batch_axis)
            await self._waiting.ready([label, pred, loss])
            details = {"batch": batch, "pred": pred, "label": label, "loss": loss}
            if await self._notify(handlers, "batch_end", **details):
                break

    async def _notify(self, handlers: Handlers, event: str, **details: object) -> bool:
        """Call the handlers of an event; return whether one of them asks to stop."""
        results = [await self._waiting.result(getattr(handler, event)(self, **details)) for handler in handlers[event]]
        return any(results)

    def _group_by_event(self, handlers: Sequence[events.EventHandler]) -> Handlers:
        return dict(zip(_EVENTS, self._categorize_handlers(handlers), strict=True))

    # -- handlers, with the names that custom estimators call in MXNet -----------------------------------

    def _categorize_handlers(self, event_handlers: Sequence[events.EventHandler]) -> tuple[list[Any], ...]:
        """Return the handlers of each event: the beginnings of training, epoch and batch, then the ends."""
        kinds: tuple[type[events.EventHandler], ...] = (
            events.TrainBegin, events.EpochBegin, events.BatchBegin, events.BatchEnd, events.EpochEnd, events.TrainEnd,
        )  # fmt: skip
        return tuple(events.select_kind(event_handlers, kind) for kind in kinds)

    def _prepare_default_handlers(self, val_data: object, event_handlers: object) -> list[events.EventHandler]:
        handlers: list[events.EventHandler] = [
            StoppingHandler(self.max_epoch, self.max_batch), GradientUpdateHandler(), MetricHandler(self.train_metrics),
        ]  # fmt: skip
        if val_data is not None:
            evaluate = self.evaluate_async if self.asynchronous else self.evaluate
            handlers.append(ValidationHandler(val_data, evaluate))
        handlers.append(LoggingHandler(metrics=self.train_metrics))
        return _add_defaults(event_handlers, handlers, [*self.train_metrics, *self.val_metrics])

    def _prepare_default_validation_handlers(self, event_handlers: object) -> list[events.EventHandler]:
        handlers = [MetricHandler(self.val_metrics), LoggingHandler(metrics=self.val_metrics)]
        return _add_defaults(event_handlers, handlers, self.val_metrics)


_EVENTS = ("train_begin", "epoch_begin", "batch_begin", "batch_end", "epoch_end", "train_end")


def _add_defaults(
    event_handlers: object, defaults: Sequence[events.EventHandler], metrics: list[EvalMetric]
) -> list[events.EventHandler]:
    """Return the user's handlers, and the defaults for missing kinds, sorted by priority."""
    handlers = events.check_handlers(event_handlers)
    always = [default for default in defaults if isinstance(default, StoppingHandler)]
    missing = [default for default in defaults if not any(isinstance(h, type(default)) for h in handlers)]
    if handlers and missing:
        for handler in handlers:
            check_metrics_are_updated(handler, metrics)
    handlers += [default for default in defaults if default in always or default in missing]
    return sorted(handlers, key=lambda handler: getattr(handler, "priority", 0))


# -- waiting in ordinary code and in a coroutine ------------------------------------------------------------


class _WaitStrategy(Protocol):
    """The waiting strategy of the training coroutine: blocking, or awaiting."""

    @property
    def source_methods(self) -> Sequence[str]:
        """The methods by which batches are read from a data source, which must have one of them."""

    def batches(self, data: object) -> AsyncIterator[Any]:
        """Iterate over the batches of a source, from its beginning."""

    async def ready(self, arrays: object) -> None:
        """Wait until handlers can read arrays without blocking."""

    async def result(self, value: object) -> Any:
        """Return a handler's result, awaiting it if necessary."""


class _BlockingWaits:
    """Waiting in a plain function, by blocking."""

    source_methods = ("__iter__",)

    async def batches(self, data: Any) -> AsyncIterator[Any]:
        for batch in data:
            yield batch

    async def ready(self, arrays: object) -> None:
        return None

    async def result(self, value: object) -> Any:
        if isinstance(value, Done):  # the result of evaluate() in ordinary code
            return None
        return engine.run(_wait_for(value)) if inspect.isawaitable(value) and not hasattr(value, "asnumpy") else value


class _AwaitedWaits:
    """Waiting in a coroutine, by awaiting."""

    source_methods = ("__iter__", "__aiter__")

    async def batches(self, data: Any) -> AsyncIterator[Any]:
        if hasattr(data, "__aiter__"):
            async for batch in data:
                yield batch
        else:
            for batch in data:
                yield batch

    async def ready(self, arrays: object) -> None:
        await engine.wait_for_capacity()
        await asyncio.sleep(0)  # awaiting an array that is ready does not yield
        for array in _flat(arrays):
            if inspect.isawaitable(array):
                await array

    async def result(self, value: object) -> Any:
        return await value if inspect.isawaitable(value) else value


def _flat(nested: object) -> Iterator[Any]:
    if isinstance(nested, (list, tuple)):
        for item in nested:
            yield from _flat(item)
    else:
        yield nested


async def _wait_for(value: Any) -> Any:
    return await value


def _run_to_completion(coroutine: Coroutine[object, object, None]) -> Done:
    """Run a coroutine that never waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration:
        return Done()
    coroutine.close()
    raise RuntimeError(
        "Estimator: a handler or data source waited for an event loop in ordinary code: use the _async method"
    )


# -- checks of arguments ---------------------------------------------------------------------------------


def _check_data(data: object, methods: Sequence[str]) -> None:
    advice = "a gluon.data.DataLoader, or other batches (data, label)"
    if hasattr(data, "provide_data"):
        raise ValueError(
            f"Estimator: got {type(data).__name__}, whose last batch is padded and would be counted in full; "
            f"expected {advice}: DataLoader(ArrayDataset(data, label), batch_size)"
        )
    if not any(hasattr(data, method) for method in methods):
        raise ValueError(f"Estimator: {data!r} is not iterable, expected {advice}")


def _contexts(context: Any) -> list[Context]:
    if not context:
        return [gpu(0) if num_gpus() else cpu()]
    contexts = [context] if isinstance(context, Context) else list(context)
    if not all(isinstance(device, Context) for device in contexts):
        raise ValueError(f"Estimator: context is {context!r}, expected a context such as mx.cpu(), or a list of them")
    for device in contexts:
        if device.device_type == "gpu" and device.device_id >= num_gpus():
            raise ArgumentError(f"Estimator: {device} is not available: there are {num_gpus()} GPUs here")
    return contexts
