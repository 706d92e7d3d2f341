"""Follow the regularised leader."""

from __future__ import annotations

from typing import Any

from flowmx import ndarray as nd
from flowmx.ndarray import NDArray
from flowmx.optimizer.base import Index, Optimizer, State, register, zeros_like


@register
class Ftrl(Optimizer):
    """FTRL-Proximal, which makes weights exactly 0.

    McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013. With
    ``g = clip(rescale_grad * grad)``::

        z += g - (sqrt(n + g**2) - sqrt(n)) * weight / lr
        n += g**2
        weight = (sign(z) * lamda1 - z) / ((beta + sqrt(n)) / lr + wd) * (abs(z) > lamda1)

    Args:
        lamda1: weight of the L1 norm (MXNet's spelling).
        learning_rate: the learning rate.
        beta: slows down the first steps.
        **kwargs: as for :class:`Optimizer`.
    """

    def __init__(self, lamda1: float = 0.01, learning_rate: float = 0.1, beta: float = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lamda1 = lamda1
        self.beta = beta
        self.lr = learning_rate

    def create_state(self, index: Index, weight: NDArray) -> State:
        return (zeros_like(weight), zeros_like(weight))

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        parameters = self.fused(lr=lr, wd=wd, lamda1=self.lamda1, beta=self.beta)
        nd.op.ftrl_update(weight, grad, *state, out=weight, **parameters)
