"""The base of optimizers whose step is one update operator: many weights are updated by one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from flowmx.ndarray import NDArray
from flowmx.ops.sparse.shapes import SparseShape
from flowmx.optimizer.base import Index, Optimizer, State, each_update
from flowmx.optimizer.grouped import Group, Update, operator_of, push

_MIXED = {
    "_multi_lamb_update": "_multi_mp_lamb_update",
    **{
        f"_{kind}_{name}": f"_mp_{kind}_{name}"
        for kind in ("lars", "lbsgd")
        for name in ("sgd_update", "sgd_mom_update")
    },
}
"""Operators that need more than the float32 copy in mixed precision; the others take that in the weight's place."""
_BY_ROWS = {"_adagrad_update": "_sparse_adagrad_update"}
"""Operators that sparse gradients take in the place of others."""

_MOST_GROUPS = 256


class Call(NamedTuple):
    """An update operator's name, the states in its order, and its own parameters."""

    operator: str
    states: tuple[NDArray, ...]
    parameters: dict[str, Any]


class Fused(Optimizer):
    """Base of optimizers whose step is one update operator, which a subclass names in :meth:`call`.

    As in MXNet, the state under ``multi_precision`` is (float32 weight, state), or, where ``master_last``, (state,
    float32 weight).
    """

    master_last: ClassVar[bool] = False
    through_update: ClassVar[bool] = True
    """True where steps go through a subclass's :meth:`update`, as MXNet's do but for SGD, NAG, LARS and LAMB."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.aggregate_num = 64
        self._groups: dict[Any, Group | None] = {}
        """Groups that were pushed, by the first weight's index and the device."""

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_groups": {}}

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        """The operator of one step.

        Args:
            index: the weight's index, an int or str.
            state: the result of :meth:`create_state`.
            lr: this weight's learning rate.
            wd: this weight's decay.
            t: the number of updates of this weight, this one included.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement call()")

    def create_state_multi_precision(self, index: Index, weight: NDArray) -> State:
        made = super().create_state_multi_precision(index, weight)
        return made[::-1] if self.master_last and self._has_master(weight) else made

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._update_together([(*each, None) for each in each_update(index, weight, grad, state)])

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if self.through_update and type(self).update is not Fused.update:
            super().update_multi_precision(index, weight, grad, state)
            return
        self._update_together([(i, w, g, *self._parts(w, s)) for i, w, g, s in each_update(index, weight, grad, state)])

    def _parts(self, weight: NDArray, state: State) -> tuple[State, NDArray | None]:
        """The state itself, and the float32 copy where there is one."""
        if not self.multi_precision or not self._has_master(weight):
            return state, None
        one, other = state
        return (one, other) if self.master_last else (other, one)

    def _update_together(self, items: Sequence[tuple[Index, NDArray, NDArray, State, NDArray | None]]) -> None:
        indices = [item[0] for item in items]
        self._update_count(indices)
        counts = self._index_update_count
        updates: list[Update] = []
        known: list[Any] = ["", None, None]
        for (index, weight, grad, state, master), (lr, wd) in zip(items, self.rates(indices), strict=False):
            call = self.call(index, state, lr, wd, counts[index])
            updates.append(_made(call, weight, grad, master, known))
        key = indices[0], updates[0].weight._storage.device
        if len(self._groups) >= _MOST_GROUPS and key not in self._groups:
            self._groups.clear()
        self._groups[key] = push(updates, self._groups.get(key))

    def push_one(self, call: Call, weight: NDArray, grad: NDArray, master: NDArray | None) -> None:
        """Enqueue one update."""
        push([_made(call, weight, grad, master, ["", None, None])])


def _made(call: Call, weight: NDArray, grad: NDArray, master: NDArray | None, known: list[Any]) -> Update:
    """The update of a weight; ``known`` has the last operator's name and parameters, and the operator."""
    name, states, parameters = call
    if isinstance(grad._shape, SparseShape):
        name = _BY_ROWS.get(name, name)
    if master is not None and name in _MIXED:
        name, states, master = _MIXED[name], (*states, master), None
    if name != known[0] or parameters != known[1]:
        known[:] = name, parameters, operator_of(name, tuple(parameters.items()))
    return Update(known[2], weight, grad, states, master)
