"""The part of an optimizer's progress that depends on the order of the updates of all weights.

In one process an optimizer sees the updates of all weights: a schedule uses the largest count of a weight's updates,
and Nadam keeps a product over all updates. On servers each weight has a separate optimizer: there :class:`Order`
replays the updates without the weights, and provides the state that each update would have seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from flowmx.optimizer.base_optimizer import Optimizer, from_config

__all__ = ["Order", "Progress", "is_ordered", "set_progress"]

Progress = Sequence[Any]
"""The progress of all weights: ``num_update``, then the attributes named in ``Optimizer._shared``."""


def is_ordered(optimizer: Optimizer) -> bool:
    """Return whether an update may depend on the updates of other weights."""
    is_builtin = type(optimizer).__module__.partition(".")[0] == "flowmx"
    return optimizer.lr_scheduler is not None or bool(optimizer._shared) or not is_builtin


def set_progress(optimizer: Optimizer, progress: Progress) -> None:
    """Set the progress of an optimizer to that before an update."""
    optimizer.num_update = max(optimizer.num_update, progress[0])
    for name, value in zip(optimizer._shared, progress[1:], strict=False):
        setattr(optimizer, name, value)


class Order:
    """Replays the order of all weights' updates, without the weights, to provide the progress before each.

    Args:
        config: the optimizer, as ``Optimizer.get_config`` describes it.
        counts: by weight, the number of its updates so far.
    """

    def __init__(self, config: Mapping[str, object], counts: Mapping[Any, int]) -> None:
        self._optimizer = from_config(config)
        self._counts = dict(counts)
        self._optimizer.num_update = max([self._optimizer.begin_num_update, *counts.values()])
        self._optimizer._follow_counts(list(counts.values()))

    def use(self, config: Mapping[str, object]) -> None:
        """Replace the optimizer's description, for example after a change of the learning rate."""
        progress = self._progress()
        self._optimizer = from_config(config)
        set_progress(self._optimizer, progress)

    def add(self, counts: Mapping[Any, int]) -> None:
        """Add weights."""
        self._counts |= counts
        self._optimizer.num_update = max([self._optimizer.num_update, *counts.values()])
        self._optimizer._follow_counts(list(counts.values()))

    def reach(self, num_update: int) -> None:
        """Count updates of other weights, so that ``num_update`` is at least this number."""
        self._optimizer.num_update = max(self._optimizer.num_update, num_update)

    def next(self, weight: Hashable) -> list[Any] | None:
        """Count an update; return the progress before it, or None if it follows from the weight's own updates."""
        optimizer = self._optimizer
        count = self._counts[weight] = self._counts.get(weight, optimizer.begin_num_update) + 1
        before = self._progress()
        optimizer.num_update = max(optimizer.num_update, count)
        optimizer._follow_update(count)
        return before if len(before) > 1 or optimizer.num_update > count else None

    def _progress(self) -> list[Any]:
        return [self._optimizer.num_update, *(getattr(self._optimizer, name) for name in self._optimizer._shared)]
