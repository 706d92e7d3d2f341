"""The updater: an optimizer with the states of all weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowmx import ndarray as nd
from flowmx.devices import Context, cpu
from flowmx.ndarray import NDArray
from flowmx.optimizer import mxnet_states, states_file
from flowmx.optimizer.base_optimizer import Index, Optimizer, State, from_config

__all__ = ["Updater", "get_updater"]

Update: TypeAlias = tuple[Index, NDArray, NDArray]
"""Index, gradient and weight."""


class _LastCall(NamedTuple):
    """The weights of the last call, and their groups: (indices, gradients, weights)."""

    max_group: int
    indices: list[Index]
    grads: list[NDArray]
    weights: list[NDArray]
    groups: Sequence[Any]

    def matches(
        self, indices: list[Index], grads: Sequence[NDArray], weights: Sequence[NDArray], max_group: int
    ) -> bool:
        """Return whether a call has the same weights and gradients."""
        return (
            max_group == self.max_group
            and indices == self.indices
            and len(grads) == len(self.grads)
            and len(weights) == len(self.weights)
            and all(map(is_, grads, self.grads))
            and all(map(is_, weights, self.weights))
        )


class Updater:
    """An optimizer with the state of each weight, which is created when the weight is first updated.

    Example:
        >>> update = mx.optimizer.get_updater(mx.optimizer.SGD(momentum=0.9))
        >>> update(0, gradient, weight)

    Attributes:
        optimizer: the optimizer.
        states: states by index.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.states: dict[Index, State] = {}
        self._last_call = _LastCall(0, [], [], [], [])
        self._unplaced: set[Index] = set()
        """Indices of loaded states that may have to move to their weight's device."""

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update a weight, or a list of weights, in place by its gradient.

        Weights of a list that share a dtype are updated in groups of the optimizer's ``aggregate_num``, with one
        operation per group, if the optimizer supports it.
        """
        if not isinstance(index, (list, tuple)):
            index, grad, weight = [index], [grad], [weight]
        indices = [i.decode() if isinstance(i, bytes) else i for i in index]
        optimizer = self.optimizer
        call = self._last_call
        if not call.matches(indices, grad, weight, optimizer.aggregate_num):
            groups = list(_groups(list(zip(indices, grad, weight, strict=True)), optimizer.aggregate_num))
            call = self._last_call = _LastCall(
                optimizer.aggregate_num, indices, list(grad), list(weight),
                [tuple(map(list, zip(*group, strict=True))) for group in groups],
            )  # fmt: skip
        for names, grads, weights in call.groups:
            optimizer._set_current_context(weights[0].storage.device.context.device_id)
            states = [self._state(index, weight) for index, weight in zip(names, weights, strict=True)]
            if len(names) == 1:
                optimizer.update_multi_precision(names[0], weights[0], grads[0], states[0])
            else:
                optimizer.update_multi_precision(list(names), list(weights), list(grads), states)

    def _state(self, index: Index, weight: NDArray) -> State:
        """Return the state of a weight, creating it if necessary."""
        if index not in self.states:
            self.states[index] = self.optimizer.create_state_multi_precision(index, weight)
        elif self._unplaced and index in self._unplaced:
            self.states[index] = self.sync_state_context(self.states[index], weight.context)
            self._unplaced.discard(index)
        return self.states[index]

    def sync_state_context(self, state: State, context: Context) -> State:
        """Return a state with its arrays on a device."""
        return _map_arrays(state, NDArray, lambda array: array.as_in_context(context))

    def get_states(self, dump_optimizer: bool = False, format: str = "flowmx") -> bytes:
        """Return the states as bytes, with the update counts, so that an updater that loads them continues exactly.

        Blocks until the states are computed; in a coroutine, await :meth:`ready` first.

        Args:
            dump_optimizer: include the optimizer: its name, arguments and schedule.
            format: ``"mxnet"`` for MXNet's ``set_states``, where the counts are part of the optimizer.

        Raises:
            TypeError: a state, or an optimizer's argument, cannot be saved.
            ValueError: the format's name is unknown.
        """
        if format not in ("flowmx", "mxnet"):
            raise ValueError(f"get_states: format is {format!r}, expected 'flowmx' or 'mxnet'")
        if format == "mxnet":
            return mxnet_states.dumps(self.states, self.optimizer if dump_optimizer else None)
        config = self.optimizer.get_config(may_omit_schedule=True) if dump_optimizer else None
        return states_file.dumps(self.states, self.optimizer.progress(), config)

    def states_in_pieces(self) -> list[bytes | memoryview]:
        """Return the bytes of :meth:`get_states` as a list of pieces; blocks until the states are computed."""
        return states_file.chunks(self.states, self.optimizer.progress(), None)

    def set_states(self, states: bytes | memoryview) -> None:
        """Restore the result of :meth:`get_states`, from flowmx or MXNet.

        MXNet's files are pickles: the arrays and the optimizer's attributes are read, but no code runs.

        Raises:
            StatesFormatError: the data has a different format, or is damaged.
            ValueError: the optimizer's or the schedule's class is not defined here.
        """
        if states_file.is_pickle(states):
            saved_states, optimizer = mxnet_states.loads(bytes(states))
            self.optimizer = optimizer or self.optimizer
        else:
            content = states_file.loads(states)
            saved_states = content.states
            if content.optimizer is not None:
                self.optimizer = from_config(content.optimizer, self.optimizer)
            self.optimizer.set_progress(content.progress)
        self.states = {
            index: _map_arrays(state, np.ndarray, lambda array: nd.array(array, cpu(), array.dtype))
            for index, state in saved_states.items()
        }
        self._unplaced = set(self.states)

    def rename(self, names: Mapping[Index, Index]) -> None:
        """Rename the indices of weights, for example from numbers to names."""
        self.states = {names.get(index, index): state for index, state in self.states.items()}
        self._unplaced = {names.get(index, index) for index in self._unplaced}
        self.optimizer.rename(names)

    async def ready(self) -> None:
        """Await all states."""
        for array in self.arrays():
            await array

    def arrays(self) -> list[NDArray]:
        """Return the arrays of all states."""
        return arrays_in(list(self.states.values()))


def _groups(updates: list[Update], max_group: int) -> Iterator[list[Update]]:
    """Iterate over groups of updates for single calls; a group's weights share a dtype and a device."""
    if max_group < 2 or len(updates) == 1:
        yield from ([update] for update in updates)
        return
    by_kind: dict[Any, list[Update]] = {}
    for update in updates:
        by_kind.setdefault((update[2].element_type, update[2].storage.device), []).append(update)
    for group in by_kind.values():
        for start in range(0, len(group), max_group):
            yield group[start : start + max_group]


def get_updater(optimizer: Optimizer) -> Updater:
    """Return the function ``update(index, gradient, weight)`` of an optimizer."""
    return Updater(optimizer)


def arrays_in(state: State) -> list[NDArray]:
    """Return the arrays of a state."""
    arrays: list[NDArray] = []
    _map_arrays(state, NDArray, arrays.append)
    return arrays


def _map_arrays(state: State, kind: type, change: Callable[[Any], Any]) -> State:
    if isinstance(state, kind):
        return change(state)
    if isinstance(state, (tuple, list)):
        return type(state)(_map_arrays(item, kind, change) for item in state)
    return state
