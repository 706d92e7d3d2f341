"""Learning rate schedules (``mx.lr_scheduler``): the learning rate as a function of the number of updates."""

from __future__ import annotations

import itertools
import logging
import math
from typing import Any, ClassVar

from flowmx.registry import RecordsArguments

__all__ = ["CosineScheduler", "FactorScheduler", "LRScheduler", "MultiFactorScheduler", "PolyScheduler"]


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
            raise ValueError(f"step is {step!r}, expected a list of numbers of updates")
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


def _is_count(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and value >= minimum


def _check_factor(factor: float) -> None:
    if factor > 1:
        raise ValueError(f"factor is {factor}, expected at most 1")
