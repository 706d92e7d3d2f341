"""Adam and related optimizers: steps scaled by running moments of the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowmx.ndarray import NDArray
from flowmx.optimizer.base_optimizer import Index, State, register, zeros_like
from flowmx.optimizer.fused_optimizer import Call, FusedOptimizer

__all__ = ["AdaBelief", "Adam", "AdamW", "Adamax", "Nadam"]


class _Moments(FusedOptimizer):
    """An optimizer with the first and a second moment of the gradient as its state."""

    def __init__(self, learning_rate: float, beta1: float, beta2: float, **kwargs: object) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1 = beta1
        self.beta2 = beta2

    def create_state(self, index: Index, weight: NDArray) -> object:
        return (zeros_like(weight), zeros_like(weight))

    def moments(self, operator: str, state: State, **parameters: object) -> Call:
        """Return the call of an operator that takes both decays."""
        return Call(operator, tuple(state), self.arguments(beta1=self.beta1, beta2=self.beta2, **parameters))

    def unbiased_lr(self, lr: float, t: int) -> float:
        """Return the learning rate, corrected for the moments' initial value of 0."""
        return lr * math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)


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
        lazy_update: for a row_sparse gradient, update only its rows, without decay or moments for other rows.
        **kwargs: as for :class:`Optimizer`.
    """

    by_rows = True

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        lazy_update: bool = True,
        **kwargs: object,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, **kwargs)
        self.epsilon = epsilon
        self.lazy_update = lazy_update

    def create_state(self, index: Index, weight: NDArray) -> object:
        return (zeros_like(weight, self.lazy_update), zeros_like(weight, self.lazy_update))

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        # As in MXNet's kernel, 1 - beta is a difference of float32 numbers: 1 - 0.999 is smaller by 1.3e-5.
        beta1, beta2 = float(np.float32(self.beta1)), float(np.float32(self.beta2))
        parameters = self.arguments(lr=self.unbiased_lr(lr, t), wd=wd, epsilon=self.epsilon, beta1=beta1, beta2=beta2)
        if not self.lazy_update:
            parameters["lazy_update"] = False
        return Call("adam_update", tuple(state), parameters)

    uniform_call = call


class _BiasCorrected(_Moments):
    """An optimizer with optional correction of the moments' bias."""

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        correct_bias: bool = True,
        use_fused_step: bool = True,
        **kwargs: object,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, **kwargs)
        self.epsilon = epsilon
        self.correct_bias = correct_bias
        self.use_fused_step = use_fused_step

    def corrected_lr(self, lr: float, t: int) -> float:
        """Return the learning rate, corrected for the moments' initial value of 0 if ``correct_bias`` is set."""
        return self.unbiased_lr(lr, t) if self.correct_bias else lr


@register
class AdamW(_BiasCorrected):
    """Adam with weight decay decoupled from the gradient.

    Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101. With
    ``g = clip(rescale_grad * grad)``::

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        weight -= lr * sqrt(1 - beta2**t) / (1 - beta1**t) * (m / (sqrt(v) + epsilon) + wd * weight)

    Args:
        learning_rate: the learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: avoids a division by 0.
        correct_bias: correct the moments' bias, by the factor with ``t``.
        use_fused_step: ignored; accepted for MXNet's scripts.
        **kwargs: as for :class:`Optimizer`.
    """

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        return self.moments("_adamw_step", state, lr=1.0, eta=self.corrected_lr(lr, t), wd=wd, epsilon=self.epsilon)

    uniform_call = call


@register
class AdaBelief(_BiasCorrected):
    """Adam with the second moment of the difference between a gradient and its running mean.

    Zhuang et al., AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed Gradients, arXiv:2010.07468. With
    ``g = clip(rescale_grad * grad + wd * weight)``::

        m = beta1 * m + (1 - beta1) * g
        s = beta2 * s + (1 - beta2) * (g - m)**2 + epsilon
        weight -= lr * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(s) + epsilon)

    Args:
        learning_rate: the learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: avoids a division by 0.
        correct_bias: correct the moments' bias, by the factor with ``t``.
        use_fused_step: ignored; accepted for MXNet's scripts.
        **kwargs: as for :class:`Optimizer`.
    """

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        return self.moments("_adabelief_update", state, lr=self.corrected_lr(lr, t), wd=wd, epsilon=self.epsilon)


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

    def __init__(
        self, learning_rate: float = 0.002, beta1: float = 0.9, beta2: float = 0.999, **kwargs: object
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, **kwargs)

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        return self.moments("_adamax_update", state, lr=lr / (1 - self.beta1**t), wd=wd)


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
        **kwargs: object,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, **kwargs)
        self.epsilon = epsilon
        self.schedule_decay = schedule_decay
        self.m_schedule = 1.0

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        momentum, next_momentum = self._momentum(t), self._momentum(t + 1)
        self._follow_update(t)
        return self.moments(
            "_nadam_update", state, lr=lr, wd=wd, epsilon=self.epsilon, momentum=momentum, following=next_momentum,
            product=self.m_schedule, t=t,
        )  # fmt: skip

    _shared = ("m_schedule",)

    def _momentum(self, t: Any) -> Any:
        return self.beta1 * (1 - 0.5 * 0.96 ** (t * self.schedule_decay))

    def _follow_update(self, t: int) -> None:
        # As in MXNet, the product runs over the updates of all weights, not of one weight.
        self.m_schedule *= self._momentum(t)

    def _follow_counts(self, counts: Sequence[int]) -> None:
        max_count = max(counts, default=0)
        products = np.cumprod([1.0, *self._momentum(np.arange(1, max_count + 1))])
        self.m_schedule *= float(np.prod(products[list(counts)]))

    def progress(self) -> dict[str, Any]:
        return {**super().progress(), "m_schedule": self.m_schedule}

    def set_progress(self, progress: Mapping[str, Any]) -> None:
        super().set_progress(progress)
        self.m_schedule = progress["m_schedule"]
