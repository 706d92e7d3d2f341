"""The base class of optimizers whose step is one update operator; one operation updates many weights."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any, ClassVar, NamedTuple

from flowmx.bounded_tables import make_room
from flowmx.ndarray import NDArray
from flowmx.ops.registry.operators import Operator
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


class _LastStep(NamedTuple):
    """The last step of some weights, cached so that their next step can repeat it.

    Attributes:
        group: the pushed updates.
        weights, grads, states: its arrays, as they were passed.
        call: the call of all its operators, except the states.
        op: the operator.
    """

    group: Group
    weights: Sequence[NDArray]
    grads: Sequence[NDArray]
    states: Sequence[State]
    call: Call
    op: Operator

    def has(self, weights: Sequence[NDArray], grads: Sequence[NDArray], states: Sequence[State]) -> bool:
        """Return whether these are the same arrays."""
        return (
            len(weights) == len(grads) == len(states) == len(self.weights)
            and all(map(is_, weights, self.weights))
            and all(map(is_, grads, self.grads))
            and all(map(is_, states, self.states))
        )

    def operator_of(self, call: Call) -> Operator | None:
        """Return the operator of a call; None if it is of another kind."""
        name, _, parameters = call
        last = self.call.parameters
        if name != self.call.operator or parameters.keys() != last.keys():
            return None
        changes = {key: value for key, value in parameters.items() if value is not last[key] and value != last[key]}
        return self.op.varied(changes) if changes else self.op


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
        self._last_steps: dict[Any, _LastStep] = {}
        """Steps with one operator for all weights, by the same keys."""

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_groups": {}, "_last_steps": {}}

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

    def create_state_multi_precision(self, index: Index, weight: NDArray) -> object:
        states: State = super().create_state_multi_precision(index, weight)
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
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        self._update_together(index, weight, grad, state, multi_precision)

    def _update_together(
        self, index: Sequence[Index], weight: Sequence[NDArray], grad: Sequence[NDArray], state: Sequence[State],
        multi_precision: bool,
    ) -> None:  # fmt: skip
        """Update weights; a subclass overrides this method if a step is not a single operator."""
        self._update_count(index)
        counts = self._index_update_count
        forms = [(lr, wd, counts[i]) for i, (lr, wd) in zip(index, self.rates(index), strict=False)]
        is_uniform = (
            type(self).call is type(self).uniform_call
            and "call" not in vars(self)
            and forms.count(forms[0]) == len(forms)
        )
        key = index[0], weight[0].storage.device
        if is_uniform:
            last = self._last_steps.get(key)
            call = self.call(index[0], state[0], *forms[0])
            if last is not None and last.has(weight, grad, state) and self._repeat(key, last, call):
                return
        items = list(each_update(index, weight, grad, state))
        self._push_each(key, items, forms, is_uniform, multi_precision)

    def _repeat(self, key: Any, last: _LastStep, call: Call) -> bool:
        """Push the last step's updates with the operator of a call; return False if it cannot repeat the step."""
        op = last.operator_of(call)
        if op is None or not last.group.repeat(op):
            return False
        if op is not last.op:
            self._last_steps[key] = last._replace(call=call, op=op)
        return True

    def _parts(self, weight: NDArray, state: State) -> tuple[State, NDArray | None]:
        """Return the state without the float32 copy, and the copy or None."""
        if not self.multi_precision or not self._has_master(weight):
            return state, None
        first, second = state
        return (first, second) if self.master_last else (second, first)

    def _push_each(
        self, key: Any, items: Sequence[tuple[Index, NDArray, NDArray, State]],
        forms: Sequence[tuple[float, float, int]], is_uniform: bool, multi_precision: bool,
    ) -> None:  # fmt: skip
        """Push updates of weights with these learning rates, decays and counts."""
        updates: list[Update] = []
        last: list[object] = ["", None, None]
        form, call = None, None
        for (index, weight, grad, whole_state), rates in zip(items, forms, strict=True):
            state, master = self._parts(weight, whole_state) if multi_precision else (whole_state, None)
            if is_uniform and call is not None and form == (rates, type(state)):
                call = Call(call.operator, _states_in(state), call.parameters)
            else:
                call = self.call(index, state, *rates)
                form = rates, type(state)
            updates.append(_prepare(call, weight, grad, master, last))
        group = self._groups.get(key)
        if group is None:
            make_room(self._groups, _MAX_GROUPS)
        self._groups[key] = group = push(updates, group)
        self._last_steps.pop(key, None)
        op = updates[0].op
        is_one_kind = is_uniform and all(update.op is op for update in updates)
        if is_one_kind and call is not None and group is not None and group.can_repeat(len(updates)):
            make_room(self._last_steps, _MAX_GROUPS)
            _, weights, grads, states = map(list, zip(*items, strict=True))
            self._last_steps[key] = _LastStep(group, weights, grads, states, call, op)

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
