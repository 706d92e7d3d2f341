"""Adam and its kin: steps scaled by running moments of the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flowmx import ndarray as nd
from flowmx.ndarray import NDArray
from flowmx.optimizer.base import Index, Optimizer, State, register, zeros_like


class _Moments(Optimizer):
    """Keeps the first and a second moment of the gradient."""

    def __init__(self, learning_rate: float, beta1: float, beta2: float, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1 = beta1
        self.beta2 = beta2

    def create_state(self, index: Index, weight: NDArray) -> State:
        return (zeros_like(weight), zeros_like(weight))


@register
class Adam(_Moments):
    """Adam.

    Kingma and Ba, Adam: A Method for Stochastic Optimization, arXiv:1412.6980. With
    ``g = clip(rescale_grad * grad + wd * weight)``::

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        weight -= lr * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(v) + epsilon)

    Args:
        learning_rate: the learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: avoids a division by 0.
        lazy_update: kept for MXNet's scripts (it concerns sparse gradients).
        **kwargs: as for :class:`Optimizer`.
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        lazy_update: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, **kwargs)
        self.epsilon = epsilon
        self.lazy_update = lazy_update

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        mean, variance = state
        lr *= math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)
        parameters = self.fused(lr=lr, wd=wd, beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon)
        nd.op.adam_update(weight, grad, mean, variance, out=weight, **parameters)


@register
class Adamax(_Moments):
    """Adam with the infinity norm.

    Kingma and Ba, arXiv:1412.6980, section 7. With ``g = clip(rescale_grad * grad + wd * weight)``::

        m = beta1 * m + (1 - beta1) * g
        u = maximum(beta2 * u, abs(g))
        weight -= lr / (1 - beta1**t) * m / u

    Args:
        learning_rate: the learning rate.
        beta1: decay of the first moment.
        beta2: decay of the norm.
        **kwargs: as for :class:`Optimizer`.
    """

    def __init__(self, learning_rate: float = 0.002, beta1: float = 0.9, beta2: float = 0.999, **kwargs: Any) -> None:
        super().__init__(learning_rate, beta1, beta2, **kwargs)

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        mean, norm = state
        grad = self.scaled(grad, weight, wd)
        mean *= self.beta1
        mean += (1 - self.beta1) * grad
        nd.op.broadcast_maximum(self.beta2 * norm, abs(grad)).copyto(norm)
        weight -= lr / (1 - self.beta1**t) * mean / norm


@register
class Nadam(_Moments):
    """Adam with Nesterov's momentum.

    Dozat, Incorporating Nesterov Momentum into Adam, 2015 (cs229.stanford.edu/proj2015/054_report.pdf).

    Args:
        learning_rate: the learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: avoids a division by 0.
        schedule_decay: decay of the momentum's schedule.
        **kwargs: as for :class:`Optimizer`.
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        schedule_decay: float = 0.004,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, **kwargs)
        self.epsilon = epsilon
        self.schedule_decay = schedule_decay
        self.m_schedule = 1.0

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        mean, variance = state
        grad = self.scaled(grad, weight, wd)
        momentum, following = (self.beta1 * (1 - 0.5 * 0.96 ** (n * self.schedule_decay)) for n in (t, t + 1))
        # As MXNet has it, the product runs over all weights' updates, not over one weight's.
        self.m_schedule *= momentum
        mean *= self.beta1
        mean += (1 - self.beta1) * grad
        variance *= self.beta2
        variance += (1 - self.beta2) * grad * grad
        ahead = (1 - momentum) / (1 - self.m_schedule) * grad
        ahead += following / (1 - self.m_schedule * following) * mean
        weight -= lr * ahead / (nd.op.sqrt(variance / (1 - self.beta2**t)) + self.epsilon)

    def progress(self) -> dict[str, Any]:
        return {**super().progress(), "m_schedule": self.m_schedule}

    def set_progress(self, progress: Mapping[str, Any]) -> None:
        super().set_progress(progress)
        self.m_schedule = progress["m_schedule"]
