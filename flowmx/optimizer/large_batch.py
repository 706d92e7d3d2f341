"""Optimizers for large batches: LARS, LAMB and LBSGD, whose steps depend on the norms of whole weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from flowmx.ndarray import NDArray, array
from flowmx.optimizer.base_optimizer import Index, State, each_update, register, zeros_like
from flowmx.optimizer.fused_optimizer import Call, FusedOptimizer
from flowmx.optimizer.sgd import Momentum
from flowmx.serialization import params

__all__ = ["LAMB", "LARS", "LBSGD"]

_EXCLUDED = ("gamma", "beta", "bias")
"""Suffixes of the names of parameters that LARS updates as SGD does."""


@register
class LARS(Momentum):
    """SGD with a learning rate for each layer.

    You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks, arXiv:1708.03888. The learning rate of a
    weight is multiplied by ``eta * norm(weight) / (norm(grad) + wd * norm(weight) + eps)``; except for
    parameters whose names end in gamma, beta or bias. Weight decay applies only to names that end in ``_weight``.

    Args:
        momentum: the momentum; 0 keeps no state.
        lazy_update: ignored; accepted for MXNet's scripts (it concerns sparse gradients).
        eta: the trust coefficient.
        eps: avoids a division by 0.
        momentum_correction: multiply the momentum by the ratio of the new learning rate to the old one in the update
            after a change. (MXNet does so only for the first parameters of that update.)
        **kwargs: as for :class:`Optimizer`.
    """

    whole_array = True
    rates_together = True
    takes_lists = True
    through_update = False

    def __init__(
        self,
        momentum: float = 0.0,
        lazy_update: bool = True,
        eta: float = 0.001,
        eps: float = 0,
        momentum_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum
        self.lazy_update = lazy_update
        self.eta = eta
        self.eps = eps
        self.momentum_correction = momentum_correction
        self.last_lr: float | None = None
        self.cur_lr: float | None = None
        self._lr_update = -1
        """The number of the update that set ``cur_lr``."""

    def set_wd_mult(self, args_wd_mult: Mapping[Index, float]) -> None:
        zeros: dict[Index, float] = {name: 0.0 for name in self.idx2name.values() if not name.endswith("_weight")}
        super().set_wd_mult({**zeros, **self._attribute("__wd_mult__"), **args_wd_mult})

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        self._follow(self.learning_rate)
        name, states, parameters = super().call(index, state, lr, wd, t)
        if "momentum" in parameters and self.momentum_correction and self.last_lr and self.cur_lr is not None:
            parameters["momentum"] *= self.cur_lr / self.last_lr
        if self.idx2name.get(index, str(index)).endswith(_EXCLUDED):
            return Call(name, states, parameters)
        return Call(f"_lars_{name}", states, {**parameters, "eta": self.eta, "eps": self.eps})

    _shared = ("last_lr", "cur_lr", "_lr_update")

    def _follow_update(self, t: int) -> None:
        self._follow(self.learning_rate)

    def _follow(self, lr: float) -> None:
        if self.num_update != self._lr_update:
            self.last_lr, self.cur_lr = (lr if self.cur_lr is None else self.cur_lr), lr
            self._lr_update = self.num_update

    def progress(self) -> dict[str, Any]:
        return {**super().progress(), "rates": [self.last_lr, self.cur_lr, self._lr_update]}

    def set_progress(self, progress: Mapping[str, Any]) -> None:
        super().set_progress(progress)
        self.last_lr, self.cur_lr, self._lr_update = progress["rates"]


@register
class LAMB(FusedOptimizer):
    """Adam's direction, with a step length proportional to the weight's norm.

    You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, arXiv:1904.00962. With
    ``g = clip(rescale_grad * grad)``::

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        d = m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + epsilon) + wd * weight
        weight -= lr * norm(weight) / norm(d) * d

    Args:
        learning_rate: the learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: avoids a division by 0.
        lower_bound: the lower bound of the weight's norm.
        upper_bound: the upper bound of the weight's norm.
        bias_correction: divide the moments by ``1 - beta**t``.
        **kwargs: as for :class:`Optimizer`.
    """

    whole_array = True
    takes_lists = True
    through_update = False

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
        bias_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound
        self.bias_correction = bias_correction

    def create_state(self, index: Index, weight: NDArray) -> object:
        return (zeros_like(weight), zeros_like(weight))

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        parameters = self.arguments(
            learning_rates=(lr,), wds=(wd,), step_count=(t,), beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon,
            bias_correction=self.bias_correction, lower_bound=self.lower_bound or -1.0,
            upper_bound=self.upper_bound or -1.0,
        )  # fmt: skip
        return Call("_multi_lamb_update", tuple(state), parameters)


@register
class LBSGD(Momentum):
    """SGD that accumulates the gradients of several batches for an update, with a warm-up of the learning rate.

    You, Gitman and Ginsburg, arXiv:1708.03888, as in MXNet. Every ``batch_scale`` calls the mean of the gradients
    updates the weight with ``lr`` times a factor, which increases from 1 to ``batch_scale`` during the warm-up or, with
    the strategy ``"lars"``, depends on the norms of weight and gradient.

    Args:
        momentum: the momentum; 0 keeps no state.
        multi_precision: as for :class:`Optimizer`.
        warmup_strategy: ``"linear"``, ``"power2"``, ``"sqrt"`` or ``"lars"``; with another strategy the factor is 1.
        warmup_epochs: the epochs of the warm-up.
        batch_scale: the number of gradients per update.
        updates_per_epoch: the number of calls per epoch.
        begin_epoch: the first epoch of training.
        num_epochs: ignored; accepted for MXNet's scripts.
        **kwargs: as for :class:`Optimizer`.
    """

    whole_array = True
    master_last = False

    def __init__(
        self,
        momentum: float = 0.0,
        multi_precision: bool = False,
        warmup_strategy: str = "linear",
        warmup_epochs: int = 5,
        batch_scale: int = 1,
        updates_per_epoch: int = 32,
        begin_epoch: int = 0,
        num_epochs: int = 60,
        **kwargs: Any,
    ) -> None:
        super().__init__(multi_precision=multi_precision, **kwargs)
        self.aggregate_num = 0
        self.momentum = momentum
        self.warmup_strategy = warmup_strategy
        self.warmup_epochs = warmup_epochs
        self.batch_scale = batch_scale
        self.updates_per_epoch = updates_per_epoch
        self.init_updates = begin_epoch * updates_per_epoch
        self.num_epochs = num_epochs
        self.cumgrads: dict[Index, dict[str, Any]] = {}
        """By index, the sum of gradients since the last update (or 0), and the number of all gradients."""

    _shared = ("num_update",)  # the learning rate is read before the update

    def _update_together(
        self, index: Sequence[Index], weight: Sequence[NDArray], grad: Sequence[NDArray], state: Sequence[State],
        multi_precision: bool,
    ) -> None:  # fmt: skip
        for i, w, g, s in each_update(index, weight, grad, state):
            self._update_one_weight(i, w, g, *(self._parts(w, s) if multi_precision else (s, None)))

    def _update_one_weight(self, index: Index, weight: NDArray, grad: NDArray, state: State, master: Any) -> None:
        lr = self._get_lr(index)
        self._update_count(index)
        total = self._accumulate(index, grad if master is None else grad.astype(np.float32))
        if total["num_cums"] % self.batch_scale == 0:
            mean = total["cum_grad"] / self.batch_scale
            self._push(index, lr, weight, mean, state, master)
            total["cum_grad"] = 0

    def _accumulate(self, index: Index, grad: NDArray) -> dict[str, Any]:
        total = self.cumgrads.setdefault(index, {"cum_grad": 0, "num_cums": self.init_updates})
        previous = total["cum_grad"]
        total["cum_grad"] = (
            previous.as_in_context(grad.context) + grad if isinstance(previous, NDArray) else grad.copy()
        )
        total["num_cums"] += 1
        return total

    def _push(self, index: Index, lr: float, weight: NDArray, grad: NDArray, state: State, master: Any) -> None:
        by_norms = self.warmup_strategy == "lars"
        factor = 1.0 if by_norms else self._get_lbmult(self.cumgrads[index]["num_cums"])
        call = self.call(index, state, lr * factor, self._get_wd(index), 0)
        self.push_one(call._replace(operator=f"_lbsgd_{call.operator}") if by_norms else call, weight, grad, master)

    def _get_lbmult(self, nup: int) -> float:
        """Return the learning rate's factor after a number of gradients."""
        warmup = self.warmup_epochs * self.updates_per_epoch
        if nup >= warmup:
            return float(self.batch_scale)
        progress = nup / warmup
        factors = {"linear": progress, "power2": progress * progress, "sqrt": math.sqrt(progress)}
        if warmup <= 1 or self.warmup_strategy not in factors:
            return 1.0
        return 1.0 + (self.batch_scale - 1) * factors[self.warmup_strategy]

    def progress(self) -> dict[str, Any]:
        sums = [[index, total["num_cums"], _pack(total["cum_grad"])] for index, total in self.cumgrads.items()]
        return {**super().progress(), "gathered": sums}

    def set_progress(self, progress: Mapping[str, Any]) -> None:
        super().set_progress(progress)
        self.cumgrads = {
            index: {"cum_grad": _unpack(packed), "num_cums": number} for index, number, packed in progress["gathered"]
        }

    def rename(self, names: Mapping[Index, Index]) -> None:
        super().rename(names)
        self.cumgrads = {names.get(index, index): total for index, total in self.cumgrads.items()}


def _pack(total: Any) -> bytes | None:
    return params.dumps([total.asnumpy()]) if isinstance(total, NDArray) else None


def _unpack(packed: bytes | None) -> Any:
    if packed is None:
        return 0
    content = cast("list[Any]", params.loads(packed, source="accumulated gradients"))[0]
    return array(content, dtype=content.dtype)
