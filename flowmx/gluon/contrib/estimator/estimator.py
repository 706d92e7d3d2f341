"""An estimator: a model, its loss, metrics and trainer, trained and evaluated without a loop of one's own.

Plain code calls ``fit`` and ``evaluate``, as in MXNet; a coroutine awaits them, or ``fit_async`` and
``evaluate_async``, which are coroutines everywhere. All run one coroutine; what it awaits is there at once in plain
code.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

from flowmx import engine
from flowmx.devices import Context, cpu, gpu, num_gpus
from flowmx.engine.loops import Done, runs_in_plain_code
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
from flowmx.gluon.contrib.estimator.utils import check_known, check_metrics, suggested_metric
from flowmx.gluon.loss import Loss
from flowmx.gluon.trainer import Trainer
from flowmx.metric import EvalMetric
from flowmx.metric import Loss as LossMetric

__all__ = ["Estimator"]


class Estimator:
    """Trains and evaluates a model.

    Args:
        net: the model.
        loss: its loss.
        train_metrics: metrics of the training (default: what suits the loss, and the loss).
        val_metrics: metrics of the evaluation (default: copies of those).
        initializer: of the parameters that are not initialized.
        trainer: updates the parameters (default: plain SGD at 0.001, with a warning).
        context: the device or devices (default: the first GPU, or the CPU).
        val_net: the model that is evaluated, where it is another one that shares parameters.
        val_loss: the loss of the evaluation, where it is another one.
        batch_processor: computes a batch; see :class:`BatchProcessor`.

    Raises:
        ValueError: something of another kind was given.

    Example:
        >>> estimator = Estimator(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), trainer=trainer)
        >>> estimator.fit(train_data, val_data, epochs=3)
        >>> print(estimator.val_metrics)
    """

    def __init__(
        self, net: Any, loss: Loss, train_metrics: Any = None, val_metrics: Any = None, initializer: Any = None,
        trainer: Trainer | None = None, context: Context | Sequence[Context] | None = None, val_net: Any = None,
        val_loss: Loss | None = None, batch_processor: Any = None,
    ) -> None:  # fmt: skip
        self.net = net
        self.loss = _checked_loss(loss)
        self._train_metrics = check_metrics(train_metrics)
        self._val_metrics = check_metrics(val_metrics)
        self._add_default_metrics()
        self.val_loss = self.loss if val_loss is None else _checked_loss(val_loss)
        self.val_net = net if val_net is None else val_net
        self.logger = logging.Logger(name="Estimator", level=logging.INFO)
        self.logger.addHandler(logging.StreamHandler(sys.stdout))
        self.context = _contexts(context)
        self._initialize(initializer)
        self.trainer = self._checked_trainer(trainer)
        self.batch_processor = _checked_processor(batch_processor)
        self.max_epoch: int | None = None
        self.max_batch: int | None = None
        self.batch_axis = 0
        self._waits: _Waits = _Blocking()

    @property
    def train_metrics(self) -> list[EvalMetric]:
        """The metrics of the training."""
        return self._train_metrics

    @property
    def val_metrics(self) -> list[EvalMetric]:
        """The metrics of the evaluation."""
        return self._val_metrics

    @property
    def asynchronous(self) -> bool:
        """True in a coroutine (``fit_async``), where handlers must not block but return awaitables."""
        return isinstance(self._waits, _Awaiting)

    # -- making ----------------------------------------------------------------------------------------

    def _add_default_metrics(self) -> None:
        if not self._train_metrics:
            suggested = suggested_metric(self.loss)
            self._train_metrics = [] if suggested is None else [suggested]
            self._train_metrics.append(LossMetric(self.loss.name.rstrip("0123456789")))
        for metric in self._train_metrics:
            metric.name = f"training {metric.name}"
        if not self._val_metrics:
            self._val_metrics = copy.deepcopy(self._train_metrics)
        for metric in self._val_metrics:
            metric.name = f"validation {metric.name.removeprefix('training ')}"

    def _initialize(self, initializer: Any) -> None:
        if not _is_initialized(self.net):
            self.net.initialize(init=initializer, ctx=self.context)
        elif initializer is not None:
            warnings.warn(
                "Estimator: Network already fully initialized, so the initializer was not used: call "
                "net.initialize(..., force_reinit=True) to initialize it anew",
                stacklevel=3,
            )

    def _checked_trainer(self, trainer: Trainer | None) -> Trainer:
        if trainer is None:
            warnings.warn("Estimator: No trainer specified: SGD with a learning rate of 0.001 is used", stacklevel=3)
            return Trainer(self.net.collect_params(), "sgd", {"learning_rate": 0.001})
        if not isinstance(trainer, Trainer):
            raise ValueError(f"Estimator: trainer is {trainer!r}, expected a mx.gluon.Trainer")
        return trainer

    # -- running ---------------------------------------------------------------------------------------

    def fit(
        self, train_data: Any, val_data: Any = None, epochs: int | None = None, event_handlers: Any = None,
        batches: int | None = None, batch_axis: int = 0,
    ) -> Coroutine[Any, Any, None]:  # fmt: skip
        """Train, for a number of epochs or of batches: in plain code until it is done; a coroutine awaits it.

        Args:
            train_data: gives batches (data, label), such as a ``gluon.data.DataLoader``.
            val_data: likewise, to evaluate after each epoch.
            epochs: the number of passes over the data.
            event_handlers: handlers, which come before those that are always there (updates, metrics, log).
            batches: the number of batches to train on, in the place of epochs.
            batch_axis: along which axis a batch is split over the devices.

        Raises:
            ValueError: neither epochs nor batches are given, or both; or the data can not be iterated, gives other than
                such batches, or is a ``mx.io.DataIter``, whose last batch is filled up with examples of the first.
        """
        given = (train_data, val_data, epochs, event_handlers, batches, batch_axis)
        if asyncio._get_running_loop() is not None:
            return runs_in_plain_code(self.fit_async)(*given)
        return _finished(self._within(_Blocking(), self._fit, *given))

    async def fit_async(
        self, train_data: Any, val_data: Any = None, epochs: int | None = None, event_handlers: Any = None,
        batches: int | None = None, batch_axis: int = 0,
    ) -> None:  # fmt: skip
        """As :meth:`fit`, in a coroutine: gives way to other tasks, and takes data that is to be iterated by it too."""
        await self._within(_Awaiting(), self._fit, train_data, val_data, epochs, event_handlers, batches, batch_axis)

    def evaluate(
        self, val_data: Any, batch_axis: int = 0, event_handlers: Any = None
    ) -> Coroutine[Any, Any, None]:  # fmt: skip
        """Evaluate, into :attr:`val_metrics`: in plain code until it is done; a coroutine awaits it.

        Args:
            val_data: as for :meth:`fit`.
            batch_axis: likewise.
            event_handlers: handlers, which come before those that are always there.

        Raises:
            ValueError: the data is none, as for :meth:`fit`.
        """
        given = (val_data, batch_axis, event_handlers)
        if asyncio._get_running_loop() is not None:
            return runs_in_plain_code(self.evaluate_async)(*given)
        return _finished(self._within(_Blocking(), self._evaluate, *given))

    async def evaluate_async(self, val_data: Any, batch_axis: int = 0, event_handlers: Any = None) -> None:
        """As :meth:`evaluate`, in a coroutine."""
        await self._within(_Awaiting(), self._evaluate, val_data, batch_axis, event_handlers)

    async def _within(self, waits: _Waits, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        before, self._waits = self._waits, waits
        try:
            await work(*args)
        finally:
            self._waits = before

    async def _fit(
        self, train_data: Any, val_data: Any, epochs: int | None, event_handlers: Any, batches: int | None,
        batch_axis: int,
    ) -> None:  # fmt: skip
        if (not epochs) == (not batches):
            raise ValueError(f"fit: epochs is {epochs} and batches is {batches}, expected one of them")
        for data in (train_data, *([] if val_data is None else [val_data])):
            _check_data(data, self._waits.iterates)
        self.max_epoch, self.max_batch, self.batch_axis = epochs, batches, batch_axis
        handlers = self._prepare_default_handlers(val_data, event_handlers)
        await self._tell(handlers, events.TrainBegin, "train_begin")
        done = False
        while not done:
            await self._epoch(train_data, handlers, self.batch_processor.fit_batch, batch_axis)
            done = await self._tell(handlers, events.EpochEnd, "epoch_end")
        await self._tell(handlers, events.TrainEnd, "train_end")

    async def _evaluate(self, val_data: Any, batch_axis: int, event_handlers: Any) -> None:
        _check_data(val_data, self._waits.iterates)
        for metric in self.val_metrics:
            metric.reset()
        handlers = self._prepare_default_validation_handlers(event_handlers)
        await self._epoch(val_data, handlers, self.batch_processor.evaluate_batch, batch_axis)
        for metric in self.val_metrics:
            log_to_curves(metric)
        await self._tell(handlers, events.EpochEnd, "epoch_end")

    async def _epoch(
        self, batches: Any, handlers: list[events.EventHandler], compute: Callable[..., Any], batch_axis: int
    ) -> None:
        await self._tell(handlers, events.EpochBegin, "epoch_begin")
        async for batch in self._waits.batches(batches):
            await self._tell(handlers, events.BatchBegin, "batch_begin", batch=batch)
            _, label, pred, loss = compute(self, batch, batch_axis)
            await self._waits.ready([label, pred, loss])
            details = {"batch": batch, "pred": pred, "label": label, "loss": loss}
            if await self._tell(handlers, events.BatchEnd, "batch_end", **details):
                break

    async def _tell(
        self, handlers: list[events.EventHandler], kind: type[events.EventHandler], event: str, **what: Any
    ) -> bool:
        """Call the handlers that hear of an event; returns whether one of them wants an end."""
        results = [
            await self._waits.result(getattr(each, event)(self, **what)) for each in events.of_kind(handlers, kind)
        ]
        return any(results)

    # -- handlers, under the names that estimators of one's own call in MXNet ---------------------------

    def _categorize_handlers(self, event_handlers: Sequence[events.EventHandler]) -> tuple[list[Any], ...]:
        """The handlers that hear of each event: of training, epoch and batch begins, then of the ends."""
        kinds: tuple[type[events.EventHandler], ...] = (
            events.TrainBegin, events.EpochBegin, events.BatchBegin, events.BatchEnd, events.EpochEnd, events.TrainEnd,
        )  # fmt: skip
        return tuple(events.of_kind(event_handlers, kind) for kind in kinds)

    def _prepare_default_handlers(self, val_data: Any, event_handlers: Any) -> list[events.EventHandler]:
        made: list[events.EventHandler] = [
            StoppingHandler(self.max_epoch, self.max_batch), GradientUpdateHandler(), MetricHandler(self.train_metrics),
        ]  # fmt: skip
        if val_data is not None:
            evaluate = self.evaluate_async if self.asynchronous else self.evaluate
            made.append(ValidationHandler(val_data, evaluate))
        made.append(LoggingHandler(metrics=self.train_metrics))
        return _completed(event_handlers, made, [*self.train_metrics, *self.val_metrics])

    def _prepare_default_validation_handlers(self, event_handlers: Any) -> list[events.EventHandler]:
        made = [MetricHandler(self.val_metrics), LoggingHandler(metrics=self.val_metrics)]
        return _completed(event_handlers, made, self.val_metrics)


def _completed(given: Any, made: Sequence[events.EventHandler], known: list[EvalMetric]) -> list[events.EventHandler]:
    """The handlers given, and those of the kinds that are not among them, in the order of their priorities."""
    handlers = events.checked(given)
    always = [each for each in made if isinstance(each, StoppingHandler)]
    missing = [each for each in made if not any(isinstance(other, type(each)) for other in handlers)]
    if handlers and missing:
        for handler in handlers:
            check_known(handler, known)
    handlers += [each for each in made if each in always or each in missing]
    return sorted(handlers, key=lambda handler: getattr(handler, "priority", 0))


# -- plain and in a coroutine ----------------------------------------------------------------------------


class _Waits(Protocol):
    """The waiting strategy of the training coroutine: blocking, or awaiting."""

    @property
    def iterates(self) -> Sequence[str]:
        """The methods by one of which it can iterate over data."""

    def batches(self, data: Any) -> AsyncIterator[Any]:
        """The batches of a source, from its beginning."""

    async def ready(self, arrays: Any) -> None:
        """Wait until handlers can read arrays without blocking."""

    async def result(self, value: Any) -> Any:
        """Return a handler's result, awaited where it is awaitable."""


class _Blocking:
    """Waiting in a plain function: it blocks."""

    iterates = ("__iter__",)

    async def batches(self, data: Any) -> AsyncIterator[Any]:
        for batch in data:
            yield batch

    async def ready(self, arrays: Any) -> None:
        return None

    async def result(self, value: Any) -> Any:
        if isinstance(value, Done):  # plain code's evaluation
            return None
        return engine.run(_awaited(value)) if inspect.isawaitable(value) and not hasattr(value, "asnumpy") else value


class _Awaiting:
    """Waiting in a coroutine: it awaits."""

    iterates = ("__iter__", "__aiter__")

    async def batches(self, data: Any) -> AsyncIterator[Any]:
        if hasattr(data, "__aiter__"):
            async for batch in data:
                yield batch
        else:
            for batch in data:
                yield batch

    async def ready(self, arrays: Any) -> None:
        await engine.room()
        await asyncio.sleep(0)  # what is ready is awaited without giving way
        for each in _flat(arrays):
            if inspect.isawaitable(each):
                await each

    async def result(self, value: Any) -> Any:
        return await value if inspect.isawaitable(value) else value


def _flat(nested: Any) -> Iterator[Any]:
    if isinstance(nested, (list, tuple)):
        for each in nested:
            yield from _flat(each)
    else:
        yield nested


async def _awaited(value: Any) -> Any:
    return await value


def _finished(coroutine: Coroutine[Any, Any, None]) -> Done:
    """Run a coroutine that never waits for a loop."""
    try:
        coroutine.send(None)
    except StopIteration:
        return Done()
    coroutine.close()
    raise RuntimeError("Estimator: something waited for an event loop in a plain function: use the form with _async")


# -- what was given --------------------------------------------------------------------------------------


def _check_data(data: Any, methods: Sequence[str]) -> None:
    advice = "a gluon.data.DataLoader, or other batches (data, label)"
    if hasattr(data, "provide_data"):
        raise ValueError(
            f"Estimator: {type(data).__name__} was given, whose last batch is filled up and would be counted in full; "
            f"expected {advice}: DataLoader(ArrayDataset(data, label), batch_size)"
        )
    if not any(hasattr(data, method) for method in methods):
        raise ValueError(f"Estimator: {data!r} can not be iterated, expected {advice}")


def _checked_loss(loss: Any) -> Loss:
    if not isinstance(loss, Loss):
        raise ValueError(f"Estimator: loss is {loss!r}, expected a mx.gluon.loss.Loss")
    return loss


def _checked_processor(processor: Any) -> Any:
    if processor is None:
        return BatchProcessor()
    if not all(callable(getattr(processor, name, None)) for name in ("fit_batch", "evaluate_batch")):
        raise ValueError(f"Estimator: batch_processor {processor!r} has no methods fit_batch and evaluate_batch")
    return processor


def _contexts(context: Any) -> list[Context]:
    if not context:
        return [gpu(0) if num_gpus() else cpu()]
    contexts = [context] if isinstance(context, Context) else list(context)
    if not all(isinstance(each, Context) for each in contexts):
        raise ValueError(f"Estimator: context is {context!r}, expected a context such as mx.cpu(), or a list of them")
    for each in contexts:
        if each.device_type == "gpu" and each.device_id >= num_gpus():
            raise ArgumentError(f"Estimator: {each} is not available: there are {num_gpus()} GPUs here")
    return contexts


def _is_initialized(net: Any) -> bool:
    try:
        for param in net.collect_params().values():
            param.list_ctx()
    except RuntimeError:
        return False
    return True
