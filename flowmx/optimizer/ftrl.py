"""Follow the regularized leader (FTRL), and follow the moving leader (FTML)."""

from __future__ import annotations

from flowmx.ndarray import NDArray
from flowmx.optimizer.base_optimizer import Index, State, register, zeros_like
from flowmx.optimizer.fused_optimizer import Call, FusedOptimizer

__all__ = ["FTML", "Ftrl"]


@register
class Ftrl(FusedOptimizer):
    """FTRL-Proximal, which sets small weights to exactly 0.

    McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013. With
    ``g = clip(rescale_grad * grad)``::

        z += g - (sqrt(n + g**2) - sqrt(n)) * weight / lr
        n += g**2
        weight = (sign(z) * lamda1 - z) / ((beta + sqrt(n)) / lr + wd) * (abs(z) > lamda1)

    Args:
        lamda1: the factor of the L1 norm (MXNet's spelling).
        learning_rate: the learning rate.
        beta: slows down the first steps.
        **kwargs: as for :class:`Optimizer`.
    """

    def __init__(self, lamda1: float = 0.01, learning_rate: float = 0.1, beta: float = 1, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.lamda1 = lamda1
        self.beta = beta
        self.lr = learning_rate

    def create_state(self, index: Index, weight: NDArray) -> object:
        return (zeros_like(weight, True), zeros_like(weight, True))

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        return Call("ftrl_update", tuple(state), self.arguments(lr=lr, wd=wd, lamda1=self.lamda1, beta=self.beta))


@register
class FTML(FusedOptimizer):
    """Follow the moving leader.

    Zheng and Kwok, Follow the Moving Leader in Deep Learning, ICML 2017. With
    ``g = clip(rescale_grad * grad + wd * weight)``::

        v = beta2 * v + (1 - beta2) * g**2
        before, d = d, (1 - beta1**t) / lr * (sqrt(v / (1 - beta2**t)) + epsilon)
        z = beta1 * z + (1 - beta1) * g - (d - beta1 * before) * weight
        weight = -z / d

    Args:
        beta1: from 0 to 1; near 0.5 in the paper.
        beta2: decay of the second moment.
        epsilon: avoids a division by 0.
        **kwargs: as for :class:`Optimizer`.
    """

    def __init__(self, beta1: float = 0.6, beta2: float = 0.999, epsilon: float = 1e-8, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def create_state(self, index: Index, weight: NDArray) -> object:
        return (zeros_like(weight), zeros_like(weight), zeros_like(weight))

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        parameters = self.arguments(lr=lr, wd=wd, beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, t=t)
        if "clip_gradient" in parameters:
            parameters["clip_grad"] = parameters.pop("clip_gradient")
        return Call("ftml_update", tuple(state), parameters)
