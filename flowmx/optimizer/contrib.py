"""Optimizers of MXNet's ``mx.optimizer.contrib``."""

from __future__ import annotations

from flowmx import ndarray as nd
from flowmx.ndarray import NDArray
from flowmx.optimizer.base_optimizer import Index, State, register
from flowmx.optimizer.fused_optimizer import Call, FusedOptimizer

__all__ = ["GroupAdaGrad"]


@register
class GroupAdaGrad(FusedOptimizer):
    """AdaGrad with one learning rate for each row of a matrix, such as an embedding.

    With ``g = clip(rescale_grad * grad)``::

        history += mean(g**2, axis=1, keepdims=True)
        weight -= lr * g / sqrt(history + eps)

    Args:
        eps: avoids a division by 0.
        **kwargs: as for :class:`Optimizer`; there is no weight decay.

    Raises:
        ValueError: in an update, a weight is not a matrix, or has weight decay.
    """

    whole_array = True

    by_rows = True

    def __init__(self, eps: float = 1e-5, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.float_stable_eps = eps

    def create_state(self, index: Index, weight: NDArray) -> object:
        if len(weight.shape) != 2:
            raise ValueError(f"GroupAdaGrad: weight {index!r} has shape {weight.shape}, expected a matrix")
        return nd.zeros((weight.shape[0], 1), weight.context, weight.dtype, weight.stype)

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        if wd:
            raise ValueError(
                f"GroupAdaGrad: weight {index!r} has weight decay {wd}, expected 0: this optimizer has none; "
                "set its wd_mult to 0"
            )
        return Call("_contrib_group_adagrad_update", (state,), self.arguments(lr=lr, epsilon=self.float_stable_eps))
