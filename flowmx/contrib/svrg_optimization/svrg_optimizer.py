"""An optimizer for stores with the full gradients of SVRG in addition to the weights, for compatibility with MXNet."""

from __future__ import annotations

from typing import Any

from flowmx.ndarray import NDArray
from flowmx.optimizer import Optimizer, create

__all__: list[str] = []

_SHARED = (
    "rescale_grad", "param_idx2name", "wd", "clip_gradient", "learning_rate", "lr_scheduler", "sym", "begin_num_update",
    "multi_precision", "param_dict",
)  # fmt: skip
"""The arguments of every optimizer."""


class _AssignmentOptimizer(Optimizer):
    """An optimizer that replaces values by the sums of pushes."""

    def update(self, index: object, weight: Any, grad: Any, state: object) -> None:
        weight[:] = grad


class _SVRGOptimizer(Optimizer):
    """Update weights with another optimizer, and replace values with ``full`` in their names by the pushed sums.

    Args:
        default_optimizer: the optimizer of the weights, or its name.
        kwargs: its arguments if it is a name; ``param_idx2name`` has the names of integer keys.

    Raises:
        KeyError: in an update: a key has no name.
    """

    def __init__(self, default_optimizer: str | Optimizer, **kwargs: Any) -> None:
        super().__init__(**{name: value for name, value in kwargs.items() if name in _SHARED})
        is_name = isinstance(default_optimizer, str)
        self.default_opt = create(default_optimizer, **kwargs) if is_name else default_optimizer
        self.aux_opt = _AssignmentOptimizer()

    def update(self, index: object, weight: object, grad: object, state: object) -> None:
        self._optimizer_of(index).update(index, weight, grad, state)

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return self._optimizer_of(index).create_state(index, weight)

    def _optimizer_of(self, index: Any) -> Optimizer:
        """Return the optimizer of a key."""
        name = index if index in self.idx2name.values() else self.idx2name[index]
        optimizer = self.aux_opt if "full" in name else self.default_opt
        assert isinstance(optimizer, Optimizer)
        return optimizer
