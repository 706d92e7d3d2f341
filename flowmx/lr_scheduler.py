"""Learning rate schedules (``mx.lr_scheduler``): the learning rate as a function of the number of updates."""

from __future__ import annotations

import itertools
import logging
import math
from typing import Any, ClassVar

from flowmx.lazy import lazy_attributes
from flowmx.registry import RecordsArguments

__all__ = [
    "CosineScheduler", "FactorScheduler", "LRScheduler", "MultiFactorScheduler", "OneCycleScheduler", "PolyScheduler",
    "ReduceLROnPlateau",
]  # fmt: skip

__getattr__, __dir__ = lazy_attributes(__name__)


class LRScheduler(RecordsArguments):
    """Base class of schedules.

    A subclass implements :meth:`rate`; a subclass that overrides ``__call__``, as in MXNet, works as well.

    Args:
        base_lr: the learning rate after the warm-up.
        warmup_steps: the number of updates of the warm-up.
        warmup_begin_lr: the initial learning rate of the warm-up.
        warmup_mode: ``"linear"`` increases linearly, ``"constant"`` stays at ``warmup_begin_lr``.

    Raises:
        ValueError: an argument is out of its range.
    """

    classes: ClassVar[dict[str, type[LRScheduler]]] = {}
    """All schedules by class name, for optimizers loaded from a file."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        LRScheduler.classes[cls.__name__] = cls

    def __init__(
        self,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        if not _is_count(warmup_steps, 0):
            raise ValueError(f"warmup_steps is {warmup_steps!r}, expected a non-negative int")
        if warmup_begin_lr > base_lr:
            raise ValueError(f"warmup_begin_lr is {warmup_begin_lr}, expected at most base_lr, {base_lr}")
        if warmup_mode not in ("linear", "constant"):
            raise ValueError(f"warmup_mode is {warmup_mode!r}, expected 'linear' or 'constant'")
        self.base_lr = base_lr
        self.warmup_steps = warmup_steps
        self.warmup_begin_lr = warmup_begin_lr
        self.warmup_final_lr = base_lr
        self.warmup_mode = warmup_mode

    def get_warmup_lr(self, num_update: int) -> float:
        """Return the learning rate of an update in the warm-up."""
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        rise = self.warmup_final_lr - self.warmup_begin_lr
        return self.warmup_begin_lr + rise * num_update / self.warmup_steps

    def __call__(self, num_update: int) -> float:
        """Return the learning rate; ``num_update`` is the largest number of updates of a weight."""
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        return self.rate(num_update)

    def rate(self, num_update: int) -> float:
        """Return the learning rate after the warm-up."""
        raise NotImplementedError(f"{type(self).__name__} must implement rate(num_update)")


class FactorScheduler(LRScheduler):
    """Multiplies the learning rate by ``factor`` every ``step`` updates: ``base_lr * factor**(n // step)``.

    Args:
        step: the number of updates between two changes.
        factor: the factor, at most 1.
        stop_factor_lr: the smallest learning rate.
        base_lr, warmup_steps, warmup_begin_lr, warmup_mode: as for :class:`LRScheduler`.
    """

    def __init__(
        self,
        step: int,
        factor: float = 1,
        stop_factor_lr: float = 1e-8,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if step < 1:
            raise ValueError(f"step is {step}, expected at least 1")
        _check_factor(factor)
        self.step = step
        self.factor = factor
        self.stop_factor_lr = stop_factor_lr
        self.count = 0

    def rate(self, num_update: int) -> float:
        # A loop, because resumed training starts at a late update.
        while num_update > self.count + self.step:
            self.count += self.step
            self.base_lr *= self.factor
            if self.base_lr < self.stop_factor_lr:
                self.base_lr = self.stop_factor_lr
                logging.info(
                    "Update[%d]: now learning rate arrived at %0.5e, will not change in the future",
                    num_update, self.base_lr,
                )  # fmt: skip
            else:
                logging.info("Update[%d]: Change learning rate to %0.5e", num_update, self.base_lr)
        return self.base_lr


class MultiFactorScheduler(LRScheduler):
    """Multiplies the learning rate by ``factor`` after each of the listed updates.

    Args:
        step: numbers of updates, increasing, from 1.
        factor: the factor, at most 1.
        base_lr, warmup_steps, warmup_begin_lr, warmup_mode: as for :class:`LRScheduler`.
    """

    def __init__(
        self,
        step: list[int],
        factor: float = 1,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if not step:
            raise ValueError(f"step is {step!r}, expected a list of update counts")
        if step[0] < 1 or any(later <= earlier for earlier, later in itertools.pairwise(step)):
            raise ValueError(f"step is {step}, expected increasing numbers from 1")
        _check_factor(factor)
        self.step = step
        self.factor = factor
        self.cur_step_ind = 0
        self.count = 0

    def rate(self, num_update: int) -> float:
        while self.cur_step_ind < len(self.step) and num_update > self.step[self.cur_step_ind]:
            self.count = self.step[self.cur_step_ind]
            self.cur_step_ind += 1
            self.base_lr *= self.factor
            logging.info("Update[%d]: Change learning rate to %0.5e", num_update, self.base_lr)
        return self.base_lr


class _Descent(LRScheduler):
    """A schedule that decreases from ``base_lr`` to ``final_lr`` until ``max_update``, and stays there."""

    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if not _is_count(max_update, 1):
            raise ValueError(f"max_update is {max_update!r}, expected a positive int")
        if max_update <= warmup_steps:
            raise ValueError(f"max_update is {max_update}, expected more than the {warmup_steps} warmup_steps")
        self.base_lr_orig = base_lr
        self.final_lr = final_lr
        self.max_update = max_update
        self.max_steps = max_update - warmup_steps

    def rate(self, num_update: int) -> float:
        done = (min(num_update, self.max_update) - self.warmup_steps) / self.max_steps
        self.base_lr = self.final_lr + (self.base_lr_orig - self.final_lr) * self.remaining(done)
        return self.base_lr

    def remaining(self, done: float) -> float:
        """Return the remaining fraction of the decrease at a fraction of the updates; from 1 at 0 to 0 at 1."""
        raise NotImplementedError


class PolyScheduler(_Descent):
    """Decreases the learning rate as a polynomial: ``final_lr + (base_lr - final_lr) * (1 - n / max_update)**pwr``.

    Args:
        max_update: the update at which ``final_lr`` is reached.
        base_lr: the learning rate at the start.
        pwr: the power.
        final_lr: the learning rate at the end.
        warmup_steps, warmup_begin_lr, warmup_mode: as for :class:`LRScheduler`.
    """

    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        pwr: float = 2,
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(max_update, base_lr, final_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        self.power = pwr

    def remaining(self, done: float) -> float:
        return float((1 - done) ** self.power)


class CosineScheduler(_Descent):
    """Decreases the learning rate as half a cosine.

    The learning rate is ``final_lr + (base_lr - final_lr) * (1 + cos(pi * n / max_update)) / 2``.

    Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, arXiv:1608.03983.

    Args:
        max_update: the update at which ``final_lr`` is reached.
        base_lr: the learning rate at the start.
        final_lr: the learning rate at the end.
        warmup_steps, warmup_begin_lr, warmup_mode: as for :class:`LRScheduler`.
    """

    def remaining(self, done: float) -> float:
        return (1 + math.cos(math.pi * done)) / 2


class OneCycleScheduler(LRScheduler):
    """Increases the learning rate to ``base_lr`` and decreases it far below the beginning, in one cycle.

    The learning rates are those of PyTorch's ``OneCycleLR``; the momentum stays the same.

    Smith and Topin, Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates,
    arXiv:1708.07120.

    Args:
        max_update: the number of updates of the cycle; later updates have its last learning rate.
        base_lr: the highest learning rate.
        pct_start: the fraction of the updates in which the learning rate increases.
        anneal_strategy: ``"cos"`` changes along half a cosine, ``"linear"`` along a line.
        div_factor: the first learning rate is ``base_lr / div_factor``.
        final_div_factor: the last learning rate is the first one divided by this.
        three_phase: decrease to the first learning rate as fast as it increased, and only then to the last one.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> schedule = mx.lr_scheduler.OneCycleScheduler(epochs * len(loader), base_lr=0.4)
        >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})
    """

    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        super().__init__(base_lr)
        if not _is_count(max_update, 1):
            raise ValueError(f"max_update is {max_update!r}, expected a positive int, such as epochs * len(loader)")
        if not 0 < pct_start < 1:
            raise ValueError(f"pct_start is {pct_start!r}, expected a fraction between 0 and 1")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy is {anneal_strategy!r}, expected 'cos' or 'linear'")
        for name, value in (("div_factor", div_factor), ("final_div_factor", final_div_factor)):
            if not value > 0:
                raise ValueError(f"{name} is {value!r}, expected a positive number")
        self.max_update = max_update
        self.pct_start = pct_start
        self.anneal_strategy = anneal_strategy
        self.div_factor = div_factor
        self.final_div_factor = final_div_factor
        self.three_phase = three_phase

    def rate(self, num_update: int) -> float:
        first = self.base_lr / self.div_factor
        rise = self.pct_start * self.max_update - 1
        phases = [(rise, first, self.base_lr)]
        if self.three_phase:
            phases.append((2 * self.pct_start * self.max_update - 2, self.base_lr, first))
        phases.append((self.max_update - 1, phases[-1][2], first / self.final_div_factor))
        position = min(max(num_update, 1), self.max_update) - 1  # updates count from 1
        number = next((number for number, phase in enumerate(phases[:-1]) if position <= phase[0]), len(phases) - 1)
        begin = phases[number - 1][0] if number else 0.0
        end, low, high = phases[number]
        done = (position - begin) / (end - begin) if end > begin else 1.0
        if self.anneal_strategy == "cos":
            return high + (low - high) / 2 * (1 + math.cos(math.pi * done))
        return low + (high - low) * done


class ReduceLROnPlateau(LRScheduler):
    """Reduces the learning rate when a metric stops improving: call :meth:`step` with it, usually once per epoch.

    The rules are those of PyTorch's class. The state is saved with the optimizer, by ``Trainer.save_states`` and
    ``mx.checkpoint``.

    Args:
        mode: ``"min"`` if lower values are better, ``"max"`` if higher ones are.
        factor: the factor of a reduction, below 1.
        patience: the number of values without an improvement that are ignored; the next one reduces the learning rate.
        threshold: the smallest change that counts as an improvement.
        threshold_mode: ``"rel"``: the threshold is a fraction of the best value; ``"abs"``: a difference.
        cooldown: the number of values after a reduction that do not count.
        min_lr: the smallest learning rate.
        eps: smaller reductions are not made.
        base_lr, warmup_steps, warmup_begin_lr, warmup_mode: as for :class:`LRScheduler`.

    Attributes:
        best: the best value so far.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> schedule = mx.lr_scheduler.ReduceLROnPlateau(factor=0.5, patience=2, base_lr=0.1)
        >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})
        >>> for epoch in range(30):
        ...     train(net, trainer)
        ...     schedule.step(validation_loss(net))     # a number; for an array, await schedule.step_async(loss)
    """

    def __init__(
        self,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0,
        eps: float = 1e-8,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if mode not in ("min", "max"):
            raise ValueError(f"mode is {mode!r}, expected 'min' or 'max'")
        if not 0 < factor < 1:
            raise ValueError(f"factor is {factor!r}, expected a number between 0 and 1")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold_mode is {threshold_mode!r}, expected 'rel' or 'abs'")
        for name, value in (("patience", patience), ("cooldown", cooldown)):
            if not _is_count(value, 0):
                raise ValueError(f"{name} is {value!r}, expected a non-negative int")
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lr = min_lr
        self.eps = eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = 0
        self.cooldown_counter = 0

    def rate(self, num_update: int) -> float:
        return self.base_lr

    def step(self, metrics: Any) -> float:
        """Take a value of the metric into account; return the learning rate.

        Args:
            metrics: a number, or an array of one element, which blocks until it is computed. NaN is no improvement.

        Raises:
            TypeError: the value is not a number.
        """
        try:
            value = float(metrics)
        except (TypeError, ValueError):
            raise TypeError(
                f"ReduceLROnPlateau.step: metrics is {metrics!r}, expected a number, such as metric.get()[1]"
            ) from None
        if self._is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
        return self.base_lr

    async def step_async(self, metrics: Any) -> float:
        """Await a value that is an array, then call :meth:`step`, for coroutines."""
        if hasattr(metrics, "__await__"):
            await metrics
        return self.step(metrics)

    def _is_better(self, value: float) -> bool:
        margin = self.threshold
        if self.threshold_mode == "rel":
            margin = 0.0 if math.isinf(self.best) else self.threshold * self.best
        if self.mode == "min":
            return value < self.best - margin
        return value > self.best + margin

    def _reduce(self) -> None:
        self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        reduced = max(self.base_lr * self.factor, self.min_lr)
        if self.base_lr - reduced > self.eps:
            self.base_lr = self.warmup_final_lr = reduced
            logging.info("ReduceLROnPlateau: Change learning rate to %0.5e", reduced)


def _is_count(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and value >= minimum


def _check_factor(factor: float) -> None:
    if factor > 1:
        raise ValueError(f"factor is {factor}, expected at most 1")
