"""Stochastic gradient descent and its kin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx import random
from flowmx.ndarray import NDArray
from flowmx.optimizer.base import Index, Optimizer, State, register, zeros_like


class _Momentum(Optimizer):
    """Shared by those with an optional momentum and fused operators for float16 weights.

    As in MXNet, the state under ``multi_precision`` is (momentum, float32 weight), in this order.
    """

    momentum: float

    def create_state(self, index: Index, weight: NDArray) -> State:
        return zeros_like(weight) if self.momentum else None

    def create_state_multi_precision(self, index: Index, weight: NDArray) -> State:
        made = super().create_state_multi_precision(index, weight)
        return made[::-1] if self._has_master(weight) else made

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self.update(index, weight, grad, state)

    def _has_master(self, weight: NDArray) -> bool:
        return self.multi_precision and weight.dtype is np.float16

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        parameters = self.fused(lr=lr, wd=wd)
        master = None
        if self._has_master(weight) and isinstance(state, (tuple, list)):
            state, master = state
        name = "sgd_update"
        inputs = [weight, grad]
        if state is not None:
            name = self.momentum_operator
            parameters["momentum"] = self.momentum
            inputs.append(state)
        if master is not None:
            name = f"mp_{name}"
            inputs.append(master)
        nd.op.op(name, *inputs, out=weight, **parameters)

    momentum_operator = "sgd_mom_update"


@register
class SGD(_Momentum):
    """Stochastic gradient descent with momentum and weight decay.

    ::

        state = momentum * state - lr * (clip(rescale_grad * grad) + wd * weight)
        weight = weight + state

    Args:
        momentum: the momentum; 0 keeps no state.
        lazy_update: kept for MXNet's scripts (it concerns sparse gradients).
        **kwargs: as for :class:`Optimizer`.
    """

    def __init__(self, momentum: float = 0.0, lazy_update: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum
        self.lazy_update = lazy_update


@register
class NAG(_Momentum):
    """Nesterov's accelerated gradient.

    Sutskever, Martens, Dahl and Hinton, On the importance of initialization and momentum in deep learning,
    ICML 2013. With ``g = clip(rescale_grad * grad) + wd * weight``::

        state = momentum * state - lr * g
        weight = weight + momentum * state - lr * g

    Args:
        momentum: the momentum; 0 keeps no state.
        **kwargs: as for :class:`Optimizer`.
    """

    momentum_operator = "nag_mom_update"

    def __init__(self, momentum: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum


@register
class Signum(Optimizer):
    """The sign of the momentum, as the direction of a step.

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

    def __init__(self, learning_rate: float = 0.01, momentum: float = 0.9, wd_lh: float = 0.0, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum = momentum
        self.wd_lh = wd_lh

    def create_state(self, index: Index, weight: NDArray) -> State:
        return zeros_like(weight) if self.momentum else None

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        parameters = self.fused(lr=lr, wd=wd)
        if state is None:
            nd.op.signsgd_update(weight, grad, out=weight, **parameters)
        else:
            parameters |= {"momentum": self.momentum, "wd_lh": self.wd_lh}
            nd.op.signum_update(weight, grad, state, out=weight, **parameters)


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
    """Stochastic gradient Langevin dynamics: half a step down, and noise of variance ``lr``.

    Patterson and Teh, Stochastic Gradient Riemannian Langevin Dynamics on the Probability Simplex, NIPS 2013.

    Args:
        **kwargs: as for :class:`Optimizer`.
    """

    def step(self, weight: NDArray, grad: NDArray, state: State, lr: float, wd: float, t: int) -> None:
        weight -= lr / 2 * (self.scaled(grad) + wd * weight)
        weight += random.normal(0, math.sqrt(lr), weight.shape, weight.dtype, weight.context)
