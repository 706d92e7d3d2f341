"""The state of optimizers before updates: from the workers, or from the order in which pushes arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowmx.kvstore.server.machine_state import State
from flowmx.kvstore.server.modes import Sync
from flowmx.kvstore.server.protocol import Part
from flowmx.kvstore.server.store import OrderedGradient, Store
from flowmx.kvstore.spaces import space_of
from flowmx.optimizer.base_optimizer import from_config
from flowmx.optimizer.update_counts import Order, is_ordered

__all__ = ["UpdateOrders"]


class UpdateOrders:
    """The order of updates in each key space.

    In rounds all workers push in the same order, and send the optimizer's state in that order. Where each worker
    proceeds by itself, the order is that of the pushes' arrival at this server; for keys on other servers, this one
    knows which pushes the workers have sent.

    Args:
        state: the state of the state machine.
        store: counts the updates of each value.
    """

    def __init__(self, state: State, store: Store) -> None:
        self._state = state
        self._store = store
        self._configs: dict[str, tuple[Mapping[str, Any], int]] = {}
        self._orders: dict[str, Order] = {}

    def __bool__(self) -> bool:
        """Return whether the order of updates is the order of their arrival."""
        return bool(self._configs) and not isinstance(self._state.mode, Sync)

    def use(self, configs: Mapping[str, tuple[Any, int]]) -> None:
        """Set the optimizer of each space, and its number."""
        needed_configs = {
            space: entry
            for space, entry in configs.items()
            if entry[0] is not None and is_ordered(from_config(entry[0]))
        }
        for space, (config, number) in needed_configs.items():
            if space in self._orders and self._configs[space][1] == number:
                self._orders[space].use(config)
            else:
                self._orders.pop(space, None)
        self._configs = needed_configs

    def split(self, part: Part, gradients: Sequence[object]) -> tuple[Sequence[Any], list[Any]]:
        """Return the optimizer's state before an update by gradients, and the gradients without it.

        The state is empty where the part's counts are sufficient. Among several workers the furthest state is used,
        since a worker that joined late may know less.
        """
        states = [gradient.before for gradient in gradients if isinstance(gradient, OrderedGradient)]
        plain_gradients = [
            gradient.gradient if isinstance(gradient, OrderedGradient) else gradient for gradient in gradients
        ]
        before: Sequence[Any] = max(states, key=lambda gradient: gradient[0]) if states else ()
        if self and space_of(part.key) in self._configs:
            before = self._advance(part, before)
        return before, plain_gradients

    def _advance(self, part: Part, state: Sequence[Any]) -> Sequence[Any]:
        space = space_of(part.key)
        order = self._orders.get(space)
        if order is None:
            counts = {
                other: self._store.count(other.key, slot.value)
                for other, slot in self._state.slots.items()
                if space_of(other.key) == space and slot.number and other.home in self._state.active
            }
            order = self._orders[space] = Order(self._configs[space][0], counts)
        if state:
            order.reach(state[0])
        return order.next(part) or ()
