"""An optimizer for stores that keep the full gradients of SVRG beside the weights; our module needs none."""

from __future__ import annotations

from typing import Any

from flowmx.ndarray import NDArray
from flowmx.optimizer import Optimizer, create

__all__: list[str] = []

_SHARED = (
    "rescale_grad", "param_idx2name", "wd", "clip_gradient", "learning_rate", "lr_scheduler", "sym", "begin_num_update",
    "multi_precision", "param_dict",
)  # fmt: skip
"""The arguments that every optimizer takes."""


class _AssignmentOptimizer(Optimizer):
    """Lets sums of pushes take the values' place."""

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        weight[:] = grad


class _SVRGOptimizer(Optimizer):
    """Updates weights by another optimizer; values with ``full`` in their names become the sums that are pushed.

    Args:
        default_optimizer: the optimizer of the weights, or its name.
        kwargs: its arguments, where it is named; ``param_idx2name`` has the names of integer keys.

    Raises:
        KeyError: while updating: a key has no name.
    """

    def __init__(self, default_optimizer: str | Optimizer, **kwargs: Any) -> None:
        super().__init__(**{name: value for name, value in kwargs.items() if name in _SHARED})
        named = isinstance(default_optimizer, str)
        self.default_opt = create(default_optimizer, **kwargs) if named else default_optimizer
        self.aux_opt = _AssignmentOptimizer()

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._for(index).update(index, weight, grad, state)

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return self._for(index).create_state(index, weight)

    def _for(self, index: Any) -> Optimizer:
        """The optimizer of a key."""
        name = index if index in self.idx2name.values() else self.idx2name[index]
        chosen = self.aux_opt if "full" in name else self.default_opt
        assert isinstance(chosen, Optimizer)
        return chosen
