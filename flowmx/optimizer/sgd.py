"""Stochastic gradient descent and related optimizers."""

from __future__ import annotations

import math
from typing import Any

from flowmx import random
from flowmx.ndarray import NDArray
from flowmx.optimizer.base_optimizer import Index, Optimizer, State, register, zeros_like
from flowmx.optimizer.fused_optimizer import Call, FusedOptimizer

__all__ = ["DCASGD", "NAG", "SGD", "SGLD", "SignSGD", "Signum", "ccSGD"]


class Momentum(FusedOptimizer):
    """Base class of optimizers with an optional momentum; a subclass names the operators without and with it."""

    master_last = True
    momentum: float
    operators: tuple[str, str] = ("sgd_update", "sgd_mom_update")

    def create_state(self, index: Index, weight: NDArray) -> object:
        return zeros_like(weight, True) if self.momentum else None

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        parameters = self.arguments(lr=lr, wd=wd)
        if state is None:
            return Call(self.operators[0], (), parameters)
        return Call(self.operators[1], (state,), {**parameters, "momentum": self.momentum})

    uniform_call = call


@register
class SGD(Momentum):
    """Stochastic gradient descent with momentum and weight decay.

    ::

        state = momentum * state - lr * (clip(rescale_grad * grad) + wd * weight)
        weight = weight + state

    Args:
        momentum: the momentum; 0 keeps no state.
        lazy_update: with a row_sparse gradient update only its rows, without decay or momentum for other rows.
        **kwargs: as for :class:`Optimizer`.
    """

    by_rows = True

    rates_together = True
    takes_lists = True
    through_update = False

    def __init__(self, momentum: float = 0.0, lazy_update: bool = True, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum
        self.lazy_update = lazy_update

    def create_state(self, index: Index, weight: NDArray) -> object:
        return zeros_like(weight, self.lazy_update) if self.momentum else None

    def arguments(self, **parameters: object) -> dict[str, Any]:
        if not self.lazy_update:
            parameters["lazy_update"] = False
        return super().arguments(**parameters)


@register
class ccSGD(SGD):  # noqa: N801 - MXNet's name
    """An old name of :class:`SGD`.

    Args:
        momentum: the momentum; 0 keeps no state.
        lazy_update: with a row_sparse gradient update only its rows, without decay or momentum for other rows.
        **kwargs: as for :class:`Optimizer`.
    """


@register
class NAG(Momentum):
    """Nesterov's accelerated gradient.

    Sutskever, Martens, Dahl and Hinton, On the importance of initialization and momentum in deep learning,
    ICML 2013. With ``g = clip(rescale_grad * grad) + wd * weight``::

        state = momentum * state - lr * g
        weight = weight + momentum * state - lr * g

    Args:
        momentum: the momentum; 0 keeps no state.
        **kwargs: as for :class:`Optimizer`.
    """

    operators = ("sgd_update", "nag_mom_update")

    through_update = False

    def __init__(self, momentum: float = 0.0, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum


@register
class DCASGD(FusedOptimizer):
    """SGD that compensates for delayed gradients in asynchronous training.

    Zheng et al., Asynchronous Stochastic Gradient Descent with Delay Compensation, ICML 2017. With
    ``g = clip(rescale_grad * grad)``::

        state = momentum * state - lr * (g + wd * weight + lamda * g**2 * (weight - previous))
        previous = weight
        weight = weight + state

    Args:
        momentum: the momentum; 0 keeps only the previous weight.
        lamda: the strength of the compensation of delays (MXNet's spelling).
        **kwargs: as for :class:`Optimizer`.
    """

    def __init__(self, momentum: float = 0.0, lamda: float = 0.04, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum
        self.lamda = lamda

    def create_state(self, index: Index, weight: NDArray) -> object:
        return (zeros_like(weight) if self.momentum else None, weight.copy())

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        momentum, previous = state
        parameters = self.arguments(lr=lr, wd=wd, lamda=self.lamda)
        if momentum is None:
            return Call("_dcasgd_update", (previous,), parameters)
        return Call("_dcasgd_mom_update", (momentum, previous), {**parameters, "momentum": self.momentum})


@register
class Signum(FusedOptimizer):
    """SGD by the sign of the momentum.

    Bernstein, Wang, Azizzadenesheli and Anandkumar, signSGD: Compressed Optimisation for Non-Convex
    Problems, arXiv:1802.04434. ::

        state = momentum * state - (1 - momentum) * (clip(rescale_grad * grad) + wd * weight)
        weight = (1 - lr * wd_lh) * weight + lr * sign(state)

    Args:
        learning_rate: the learning rate.
        momentum: the momentum; 0 takes the sign of the gradient.
        wd_lh: decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101).
        **kwargs: as for :class:`Optimizer`.
    """

    def __init__(
        self, learning_rate: float = 0.01, momentum: float = 0.9, wd_lh: float = 0.0, **kwargs: object
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum = momentum
        self.wd_lh = wd_lh

    def create_state(self, index: Index, weight: NDArray) -> object:
        return zeros_like(weight) if self.momentum else None

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        parameters = self.arguments(lr=lr, wd=wd)
        if state is None:
            return Call("signsgd_update", (), parameters)
        return Call("signum_update", (state,), {**parameters, "momentum": self.momentum, "wd_lh": self.wd_lh})


@register
class SignSGD(Signum):
    """Signum without momentum: ``weight -= lr * sign(clip(rescale_grad * grad) + wd * weight)``.

    Args:
        learning_rate: the learning rate.
        **kwargs: as for :class:`Optimizer`.
    """

    def __init__(self, learning_rate: float = 0.01, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, momentum=0.0, **kwargs)


@register
class SGLD(Optimizer):
    """Stochastic gradient Langevin dynamics: half a gradient step, and noise of variance ``lr``.

    Patterson and Teh, Stochastic Gradient Riemannian Langevin Dynamics on the Probability Simplex, NIPS 2013.

    Args:
        **kwargs: as for :class:`Optimizer`.
    """

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        weight -= lr / 2 * (self.scale_gradient(grad) + wd * weight)
        weight += random.normal(0, math.sqrt(lr), weight.shape, weight.dtype, weight.context)
