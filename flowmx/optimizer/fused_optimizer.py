"""The base class of optimizers whose step is one update operator; one operation updates many weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from flowmx.bounded_tables import make_room
from flowmx.ndarray import NDArray
from flowmx.ops.sparse.shapes import SparseShape
from flowmx.optimizer.base_optimizer import Index, Optimizer, State, each_update
from flowmx.optimizer.grouped_updates import Group, Update, find_operator, push
from flowmx.overrides import is_replaced

_MIXED_VARIANTS = {
    "_multi_lamb_update": "_multi_mp_lamb_update",
    **{
        f"_{kind}_{name}": f"_mp_{kind}_{name}"
        for kind in ("lars", "lbsgd")
        for name in ("sgd_update", "sgd_mom_update")
    },
}
"""Operators with a variant for mixed precision; the others update the float32 copy instead of the weight."""
_SPARSE_VARIANTS = {"_adagrad_update": "_sparse_adagrad_update"}
"""Operators with a variant for sparse gradients."""

_MAX_GROUPS = 256


class Call(NamedTuple):
    """An update operator's name, states and parameters."""

    operator: str
    states: tuple[NDArray, ...]
    parameters: dict[str, Any]


class FusedOptimizer(Optimizer):
    """Base class of optimizers whose step is one update operator, returned by :meth:`call` of the subclass.

    As in MXNet, the state under ``multi_precision`` is (float32 weight, state), or, with ``master_last``, (state,
    float32 weight).
    """

    master_last: ClassVar[bool] = False
    through_update: ClassVar[bool] = True
    """True if steps call an overridden :meth:`update`; False for SGD, NAG, LARS and LAMB, as in MXNet."""
    uniform_call: ClassVar[Any] = None
    """The :meth:`call` of a class if its name and parameters depend only on the rates and the number of updates."""
    takes_lists: ClassVar[bool] = False
    """True if an overridden `_update_impl` takes lists of weights, as in MXNet's SGD, LARS and LAMB."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.aggregate_num = 64
        self._groups: dict[Any, Group | None] = {}
        """Groups that were pushed, by the first weight's index and the device."""

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_groups": {}}

    def call(self, index: Index, state: State, lr: float, wd: float, t: int) -> Call:
        """Return the operator call of one step.

        Args:
            index: the weight's index, an int or str.
            state: the result of :meth:`create_state`.
            lr: this weight's learning rate.
            wd: this weight's decay.
            t: the number of updates of this weight, including this one.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement call()")

    def create_state_multi_precision(self, index: Index, weight: NDArray) -> State:
        states = super().create_state_multi_precision(index, weight)
        return states[::-1] if self.master_last and self._has_master(weight) else states

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if is_replaced(self, "_update_impl", _update_impl) and not self.takes_lists:
            for update in each_update(index, weight, grad, state):
                self._update_impl(*update)
        else:
            self._update_impl(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        is_overridden = is_replaced(self, "_update_impl", _update_impl)
        if self.through_update and (is_overridden or is_replaced(self, "update", _update)):
            super().update_multi_precision(index, weight, grad, state)
        elif not is_overridden:
            self._update_impl(index, weight, grad, state, self.multi_precision)
        elif self.takes_lists and isinstance(index, (list, tuple)):
            self._update_impl(index, weight, grad, state, multi_precision=self._has_master(weight[0]))
        else:
            for i, w, g, s in each_update(index, weight, grad, state):
                self._update_impl(i, w, g, s, multi_precision=self._has_master(w))

    def _update_impl(self, index: Any, weight: Any, grad: Any, state: Any, multi_precision: bool = False) -> None:
        """Update a weight, or a list of weights, with :meth:`call`; scripts override this method, as in MXNet."""
        items = each_update(index, weight, grad, state)
        self._update_together(
            [(i, w, g, *(self._parts(w, s) if multi_precision else (s, None))) for i, w, g, s in items]
        )

    def _parts(self, weight: NDArray, state: State) -> tuple[State, NDArray | None]:
        """Return the state without the float32 copy, and the copy or None."""
        if not self.multi_precision or not self._has_master(weight):
            return state, None
        first, second = state
        return (first, second) if self.master_last else (second, first)

    def _update_together(self, items: Sequence[tuple[Index, NDArray, NDArray, State, NDArray | None]]) -> None:
        indices = [item[0] for item in items]
        self._update_count(indices)
        counts = self._index_update_count
        updates: list[Update] = []
        last: list[Any] = ["", None, None]
        is_uniform = type(self).call is type(self).uniform_call and "call" not in vars(self)
        form, call = None, None
        for (index, weight, grad, state, master), (lr, wd) in zip(items, self.rates(indices), strict=False):
            count = counts[index]
            if is_uniform and call is not None and form == (lr, wd, count, type(state)):
                call = Call(call.operator, _states_in(state), call.parameters)
            else:
                call = self.call(index, state, lr, wd, count)
                form = lr, wd, count, type(state)
            updates.append(_prepare(call, weight, grad, master, last))
        key = indices[0], updates[0].weight.storage.device
        group = self._groups.get(key)
        if group is None:
            make_room(self._groups, _MAX_GROUPS)
        self._groups[key] = push(updates, group)

    def push_one(self, call: Call, weight: NDArray, grad: NDArray, master: NDArray | None) -> None:
        """Enqueue one update."""
        push([_prepare(call, weight, grad, master, ["", None, None])])


_update, _update_impl = FusedOptimizer.update, FusedOptimizer._update_impl


def _states_in(state: State) -> tuple[NDArray, ...]:
    """Return the arrays of a state."""
    return () if state is None else (state,) if isinstance(state, NDArray) else tuple(state)


def _prepare(call: Call, weight: NDArray, grad: NDArray, master: NDArray | None, last: list[Any]) -> Update:
    """Return the update of a weight; ``last`` caches the last operator's name, its parameters, and the operator."""
    name, states, parameters = call
    if isinstance(grad.dims, SparseShape):
        name = _SPARSE_VARIANTS.get(name, name)
    if master is not None and name in _MIXED_VARIANTS:
        name, states, master = _MIXED_VARIANTS[name], (*states, master), None
    if name != last[0] or (parameters is not last[1] and parameters != last[1]):
        last[:] = name, parameters, find_operator(name, tuple(parameters.items()))
    return Update(last[2], weight, grad, states, master)
