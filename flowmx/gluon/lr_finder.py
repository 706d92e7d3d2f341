"""`LRFinder`: the range test of learning rates."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx import autograd
from flowmx.engine.loops import blocks_in_ordinary_code
from flowmx.errors import ArgumentError, ArgumentKindError, StateError
from flowmx.gluon.base_block import Block
from flowmx.gluon.trainer import Trainer
from flowmx.gluon.utils import split_and_load
from flowmx.ndarray import NDArray
from flowmx.optimizer.base_optimizer import from_config

if TYPE_CHECKING:
    from flowmx.visualization import Curves

__all__ = ["LRFinder"]


class LRFinder:
    """Finds a learning rate: trains with exponentially growing ones, and records the loss of each step.

    The weights and running means are restored at the end, and the trainer never changes: a copy of its optimizer
    trains. In a notebook the last line of a cell displays the curve.

    Smith, Cyclical Learning Rates for Training Neural Networks, arXiv:1506.01186.

    Args:
        net: the network, on one device or several.
        loss: a function of predictions and labels, such as a ``gluon.loss.Loss``.
        trainer: the trainer to find a learning rate for.

    Attributes:
        learning_rates: the learning rates of the last :meth:`run`.
        losses: the losses, smoothed as :meth:`run` describes.

    Raises:
        TypeError: an argument has the wrong type.

    Example:
        >>> finder = mx.gluon.LRFinder(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
        >>> finder.run(loader)                              # in a coroutine: await finder.run(loader)
        >>> trainer.set_learning_rate(finder.suggestion)
    """

    def __init__(self, net: Block, loss: Callable[[Any, Any], Any], trainer: Trainer) -> None:
        for name, value, kind in (("net", net, Block), ("trainer", trainer, Trainer)):
            if not isinstance(value, kind):
                raise ArgumentKindError(
                    f"LRFinder: {name} is {type(value).__name__}, expected a gluon.{kind.__name__}"
                )  # fmt: skip
        if not callable(loss):
            raise ArgumentKindError(
                f"LRFinder: loss is {type(loss).__name__}, expected a function such as a gluon loss"
            )
        self._net, self._loss, self._trainer = net, loss, trainer
        self.learning_rates: list[float] = []
        self.losses: list[float] = []

    @blocks_in_ordinary_code
    async def run(
        self, data: object, start_lr: float = 1e-7, end_lr: float = 10.0, num_steps: int = 100, beta: float = 0.9,
        diverge: float = 4.0,
    ) -> None:  # fmt: skip
        """Train with learning rates from ``start_lr`` to ``end_lr``, until the loss diverges.

        Each step waits for its loss: ordinary code blocks, a coroutine awaits this method. If there are too few
        batches, they are read from the start of the data again.

        Args:
            data: yields batches (data, label), such as a ``gluon.data.DataLoader``.
            start_lr: the first learning rate.
            end_lr: the last one; each step multiplies the learning rate by the same factor.
            num_steps: the number of steps.
            beta: the smoothing of losses, from 0 for none: an exponential average, corrected for its start.
            diverge: stop when the smoothed loss is this many times the smallest one, or not finite.

        Raises:
            ValueError: an argument is out of its range, or there are no batches.
            RuntimeError: the trainer scales losses (``amp.init_trainer``), or has accumulated gradients.
        """
        self._check(start_lr, end_lr, num_steps, beta)
        trial = self._make_trial()
        saved: list[tuple[NDArray, NDArray]] = []
        self.learning_rates, self.losses = [], []
        average, factor = 0.0, (end_lr / start_lr) ** (1 / (num_steps - 1))
        try:
            async for number, batch in _batches(data, num_steps):
                parts = self._split(batch)
                saved = saved or self._copy_weights(parts[0])
                trial.set_learning_rate(start_lr * factor**number)
                loss = await self._step(trial, *parts)
                average = beta * average + (1 - beta) * loss
                smooth = average / (1 - beta ** (number + 1))
                self.learning_rates.append(trial.learning_rate)
                self.losses.append(smooth)
                if not math.isfinite(loss) or smooth > diverge * min(self.losses):
                    break
        finally:
            with autograd.pause():
                for array, copy in saved:
                    array[:] = copy

    def _copy_weights(self, data: list[NDArray]) -> list[tuple[NDArray, NDArray]]:
        """Return the arrays of all parameters, and copies; first initialize those whose shape is not known yet."""
        params = self._net.collect_params().values()
        with autograd.pause():
            if any(param._deferred is not None for param in params):
                for part in data:
                    self._net(part)
            return [(array, array.copy()) for param in params for array in param.list_data()]

    def _check(self, start_lr: float, end_lr: float, num_steps: int, beta: float) -> None:
        if not 0 < start_lr < end_lr:
            raise ArgumentError(f"LRFinder: start_lr is {start_lr} and end_lr {end_lr}, expected 0 < start_lr < end_lr")
        if num_steps < 2:
            raise ArgumentError(f"LRFinder: num_steps is {num_steps}, expected at least 2")
        if not 0 <= beta < 1:
            raise ArgumentError(f"LRFinder: beta is {beta}, expected at least 0 and below 1")
        if self._trainer._amp_loss_scaler is not None:
            raise StateError("LRFinder: the trainer scales losses: find the learning rate before amp.init_trainer()")
        if self._trainer._accumulation.count:
            raise StateError(
                "LRFinder: the trainer has accumulated gradients, which would be lost: call trainer.flush() before"
            )

    def _make_trial(self) -> Trainer:
        """Return a trainer of the same parameters with a copy of the optimizer, without a schedule."""
        trainer = self._trainer
        optimizer = from_config(trainer.optimizer.get_config())
        optimizer.lr_scheduler, optimizer.rescale_grad = None, trainer._scale
        return Trainer(
            trainer._params, optimizer, kvstore="device", max_grad_norm=trainer._max_grad_norm,
            update_on_kvstore=None if trainer._max_grad_norm is not None else False,
        )  # fmt: skip

    def _split(self, batch: object) -> tuple[list[NDArray], list[NDArray]]:
        """Return the data and the labels of a batch on each device."""
        if not isinstance(batch, (list, tuple)) or len(batch) < 2:
            raise ArgumentError(
                f"LRFinder: a batch is {type(batch).__name__}, expected (data, label), such as those of a DataLoader "
                "over ArrayDataset(data, label)"
            )
        data, labels = (split_and_load(part, self._trainer._contexts, even_split=False) for part in batch[:2])
        return data, labels

    async def _step(self, trial: Trainer, data: list[NDArray], labels: list[NDArray]) -> float:
        """Train on a batch, and return its mean loss before the update."""
        with autograd.record():
            losses = [self._loss(self._net(x), y) for x, y in zip(data, labels, strict=True)]
        autograd.backward(losses)
        values: list[NDArray] = [loss.mean() for loss in losses]
        sizes = [len(part) for part in data]
        is_mean = losses[0].size == 1 and sizes[0] > 1
        trial.step(len(losses) if is_mean else sum(sizes), ignore_stale_grad=True)
        means = [float((await value).asscalar()) for value in values]
        return sum(mean * count for mean, count in zip(means, sizes, strict=True)) / sum(sizes)

    @property
    def suggestion(self) -> float:
        """The learning rate at which the loss decreases fastest, before it diverges.

        It is in the middle of the fifth of the steps through which the steepest line is fitted: batches differ, so the
        slope between two steps says little.

        Raises:
            RuntimeError: :meth:`run` was not called, or had fewer than four steps.
            ValueError: the loss never decreased.
        """
        if len(self.losses) < 4:
            raise StateError(
                f"LRFinder: there are {len(self.losses)} losses, expected at least 4: call run(), with a smaller "
                "start_lr"
            )
        end = len(self.losses) - (not math.isfinite(self.losses[-1]))
        width = max(3, end // 5)
        slopes = np.lib.stride_tricks.sliding_window_view(self.losses[:end], width) @ (
            np.arange(width) - (width - 1) / 2
        )
        if slopes.min() >= 0:
            raise ArgumentError(
                f"LRFinder: the loss never decreased at learning rates from {self.learning_rates[0]:.3g} to "
                f"{self.learning_rates[end - 1]:.3g}: check that the network can learn the data, or set "
                "start_lr and end_lr"
            )
        return self.learning_rates[int(slopes.argmin()) + width // 2]

    def curves(self) -> Curves:
        """Return the losses as a curve over the logarithm of the learning rate."""
        from flowmx.visualization import Curves

        curves = Curves(unit="log10(learning rate)")
        for rate, loss in zip(self.learning_rates, self.losses, strict=True):
            curves.log("smoothed loss", loss, math.log10(rate), "loss")
        return curves

    def _repr_html_(self) -> str:
        return self.curves().svg()


async def _batches(data: Any, count: int) -> AsyncIterator[tuple[int, Any]]:
    """Yield numbered batches, from the start of the data again when it ends."""
    number = 0
    while number < count:
        before = number
        if hasattr(data, "__aiter__"):
            async for batch in data:
                yield number, batch
                number += 1
                if number == count:
                    return
        else:
            for batch in data:
                yield number, batch
                number += 1
                if number == count:
                    return
        if number == before:
            raise ArgumentError("LRFinder: data has no batches (or no more: pass a loader, not an iterator)")
