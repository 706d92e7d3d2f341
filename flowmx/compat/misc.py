"""``mxnet.misc``: learning rate schedulers that precede ``mx.lr_scheduler``."""

from __future__ import annotations

import logging

__all__ = ["FactorScheduler", "LearningRateScheduler"]


class LearningRateScheduler:
    """Base class of learning rate schedulers; ``base_lr`` is the initial rate."""

    def __init__(self) -> None:
        self.base_lr = 0.01

    def __call__(self, iteration: int) -> float:
        """Return the learning rate of an iteration; subclasses override it."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__()")


class FactorScheduler(LearningRateScheduler):
    """Multiplies the learning rate by a factor every ``step`` iterations.

    Args:
        step: the number of iterations.
        factor: the factor, less than 1.

    Raises:
        ValueError: ``step`` is less than 1, or ``factor`` is not less than 1.
    """

    def __init__(self, step: int, factor: float = 0.1) -> None:
        super().__init__()
        if step < 1 or factor >= 1.0:
            raise ValueError(f"FactorScheduler: step is {step} and factor {factor}, expected step >= 1 and factor < 1")
        self.step, self.factor = step, factor
        self._last: float | None = None

    def __call__(self, iteration: int) -> float:
        rate = self.base_lr * self.factor ** (iteration // self.step)
        if self._last not in (None, rate):
            logging.info("iteration %d: the learning rate is %.5f from here on", iteration, rate)
        self._last = rate
        return rate
