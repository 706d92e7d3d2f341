"""AdaGrad and related optimizers: steps scaled by a running sum of squared gradients."""

from __future__ import annotations

from flowmx.ndarray import NDArray
from flowmx.optimizer.base_optimizer import Index, State, register, zeros_like
from flowmx.optimizer.fused_optimizer import Call, FusedOptimizer

__all__ = ["AdaDelta", "AdaGrad", "RMSProp"]


@register
class AdaGrad(FusedOptimizer):
    """AdaGrad.

    Duchi, Hazan and Singer, Adaptive Subgradient Methods for Online Learning and Stochastic Optimization,
    JMLR 12, 2011. With ``g = clip(rescale_grad * grad)``::

        history += g**2
        weight -= lr * (g / sqrt(history + eps) + wd * weight)

    Args:
        eps: avoids a division by 0.
        **kwargs: as for :class:`Optimizer`.
    """

    by_rows = True

    def __init__(self, eps: float = 1e-7, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.float_stable_eps = eps

    def create_state(self, index: Index, weight: NDArray) -> object:
        return zeros_like(weight, True)

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        return Call("_adagrad_update", (state,), self.arguments(lr=lr, wd=wd, epsilon=self.float_stable_eps))


@register
class AdaDelta(FusedOptimizer):
    """AdaDelta.

    Zeiler, ADADELTA: An Adaptive Learning Rate Method, arXiv:1212.5701. With
    ``g = clip(rescale_grad * grad)``::

        squares = rho * squares + (1 - rho) * g**2
        delta = sqrt(deltas + epsilon) / sqrt(squares + epsilon) * g
        deltas = rho * deltas + (1 - rho) * delta**2
        weight -= delta + wd * weight

    Args:
        rho: decay of both running means.
        epsilon: avoids a division by 0.
        **kwargs: as for :class:`Optimizer`; the learning rate is ignored.
    """

    def __init__(self, rho: float = 0.90, epsilon: float = 1e-5, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.rho = rho
        self.epsilon = epsilon

    def create_state(self, index: Index, weight: NDArray) -> object:
        return (zeros_like(weight), zeros_like(weight))

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        return Call("_adadelta_update", tuple(state), self.arguments(lr=lr, wd=wd, rho=self.rho, epsilon=self.epsilon))


@register
class RMSProp(FusedOptimizer):
    """RMSProp.

    Plain: Tieleman and Hinton, Neural Networks for Machine Learning, lecture 6, 2012. Centered: Graves,
    Generating Sequences With Recurrent Neural Networks, arXiv:1308.0850, equations 38 to 45.

    Args:
        learning_rate: the learning rate.
        gamma1: decay of the running means.
        gamma2: the momentum; only used if ``centered``.
        epsilon: avoids a division by 0.
        centered: use the centered form, with a running mean of the gradient.
        clip_weights: bound on the absolute value of each element of the weight.
        **kwargs: as for :class:`Optimizer`.
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        gamma1: float = 0.9,
        gamma2: float = 0.9,
        epsilon: float = 1e-8,
        centered: bool = False,
        clip_weights: float | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.gamma1 = gamma1
        self.gamma2 = gamma2
        self.epsilon = epsilon
        self.centered = centered
        self.clip_weights = clip_weights

    def create_state(self, index: Index, weight: NDArray) -> object:
        return tuple(zeros_like(weight, True) for _ in range(3 if self.centered else 1))

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        parameters = self.arguments(lr=lr, wd=wd, gamma1=self.gamma1, epsilon=self.epsilon)
        if self.clip_weights:
            parameters["clip_weights"] = self.clip_weights
        if not self.centered:
            return Call("rmsprop_update", tuple(state), parameters)
        return Call("rmspropalex_update", tuple(state), {**parameters, "gamma2": self.gamma2})
