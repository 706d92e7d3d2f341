"""The updater: an optimizer, and the states that it keeps for each weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowmx import ndarray as nd
from flowmx.devices import Context, cpu
from flowmx.ndarray import NDArray
from flowmx.optimizer import mxnet_states
from flowmx.optimizer import states as states_file
from flowmx.optimizer.base import Index, Optimizer, State, from_config

__all__ = ["Updater", "get_updater"]

Update: TypeAlias = tuple[Index, NDArray, NDArray]
"""Index, gradient and weight."""


class _Known(NamedTuple):
    """The weights of the last call, and their groups: of each the indexes, the gradients and the weights."""

    most: int
    indices: list[Index]
    grads: list[NDArray]
    weights: list[NDArray]
    groups: Sequence[Any]

    def is_of(self, indices: list[Index], grads: Sequence[NDArray], weights: Sequence[NDArray], most: int) -> bool:
        """Tell whether a call is for the same."""
        return (
            most == self.most
            and indices == self.indices
            and len(grads) == len(self.grads)
            and len(weights) == len(self.weights)
            and all(map(is_, grads, self.grads))
            and all(map(is_, weights, self.weights))
        )


class Updater:
    """Updates weights by an optimizer, with states made at the first update of each.

    Example:
        >>> update = mx.optimizer.get_updater(mx.optimizer.SGD(momentum=0.9))
        >>> update(0, gradient, weight)

    Attributes:
        optimizer: the optimizer.
        states: from index to state.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.states: dict[Index, State] = {}
        self._known = _Known(0, [], [], [], [])
        self._elsewhere: set[Index] = set()
        """Indexes of states that were loaded, and may have to move to their weight's device."""

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update a weight in place by its gradient, or each of a list of weights.

        Weights of a list that share a dtype are updated in groups of the optimizer's ``aggregate_num``, each group by
        one operation, where the optimizer can.
        """
        if not isinstance(index, (list, tuple)):
            index, grad, weight = [index], [grad], [weight]
        indices = [each.decode() if isinstance(each, bytes) else each for each in index]
        optimizer = self.optimizer
        known = self._known
        if not known.is_of(indices, grad, weight, optimizer.aggregate_num):
            groups = list(_groups(list(zip(indices, grad, weight, strict=True)), optimizer.aggregate_num))
            known = self._known = _Known(
                optimizer.aggregate_num, indices, list(grad), list(weight),
                [tuple(map(list, zip(*group, strict=True))) for group in groups],
            )  # fmt: skip
        for names, grads, weights in known.groups:
            optimizer._set_current_context(weights[0]._storage.device.context.device_id)
            states = [self._state(index, weight) for index, weight in zip(names, weights, strict=True)]
            if len(names) == 1:
                optimizer.update_multi_precision(names[0], weights[0], grads[0], states[0])
            else:
                optimizer.update_multi_precision(list(names), list(weights), list(grads), states)

    def _state(self, index: Index, weight: NDArray) -> State:
        """The state of a weight, made now where there was none."""
        if index not in self.states:
            self.states[index] = self.optimizer.create_state_multi_precision(index, weight)
        elif self._elsewhere and index in self._elsewhere:
            self.states[index] = self.sync_state_context(self.states[index], weight.context)
            self._elsewhere.discard(index)
        return self.states[index]

    def sync_state_context(self, state: State, context: Context) -> State:
        """A state with its arrays on a device."""
        return _mapped(state, NDArray, lambda array: array.as_in_context(context))

    def get_states(self, dump_optimizer: bool = False, format: str = "flowmx") -> bytes:
        """The states as bytes, with the update counts, so that an updater that loads them goes on exactly.

        Blocks until they are computed; in a coroutine, await :meth:`ready` first.

        Args:
            dump_optimizer: put the optimizer in too: its name, arguments and schedule.
            format: ``"mxnet"`` gives what MXNet's ``set_states`` reads; there the counts are part of the optimizer.

        Raises:
            TypeError: a state, or an optimizer's argument, can not be saved.
            ValueError: there is no such format.
        """
        if format not in ("flowmx", "mxnet"):
            raise ValueError(f"get_states: format is {format!r}, expected 'flowmx' or 'mxnet'")
        if format == "mxnet":
            return mxnet_states.dumps(self.states, self.optimizer if dump_optimizer else None)
        config = self.optimizer.get_config(leaves_schedule=True) if dump_optimizer else None
        return states_file.dumps(self.states, self.optimizer.progress(), config)

    def set_states(self, states: bytes) -> None:
        """Go on from what :meth:`get_states` gave, here or in MXNet.

        MXNet's files are pickles, of which the arrays are read, and the optimizer's attributes; no code is run.

        Raises:
            StatesFormatError: it is something else, or damaged.
            ValueError: it names an optimizer or schedule that does not exist here.
        """
        if states_file.is_pickle(states):
            found, optimizer = mxnet_states.loads(states)
            self.optimizer = optimizer or self.optimizer
        else:
            content = states_file.loads(states)
            found = content.states
            if content.optimizer is not None:
                self.optimizer = from_config(content.optimizer, self.optimizer)
            self.optimizer.set_progress(content.progress)
        self.states = {
            index: _mapped(state, np.ndarray, lambda array: nd.array(array, cpu(), array.dtype))
            for index, state in found.items()
        }
        self._elsewhere = set(self.states)

    def rename(self, names: Mapping[Index, Index]) -> None:
        """Know weights by other indexes from here on, such as by name in place of number."""
        self.states = {names.get(index, index): state for index, state in self.states.items()}
        self._elsewhere = {names.get(index, index) for index in self._elsewhere}
        self.optimizer.rename(names)

    async def ready(self) -> None:
        """Await that all states are computed."""
        for array in self.arrays():
            await array

    def arrays(self) -> list[NDArray]:
        """The arrays of all states."""
        return arrays_in(list(self.states.values()))


def _groups(updates: list[Update], most: int) -> Iterator[list[Update]]:
    """Updates that one call may make: of weights of one dtype on one device, in their order."""
    if most < 2 or len(updates) == 1:
        yield from ([update] for update in updates)
        return
    alike: dict[Any, list[Update]] = {}
    for update in updates:
        alike.setdefault((update[2]._dtype, update[2]._storage.device), []).append(update)
    for group in alike.values():
        for start in range(0, len(group), most):
            yield group[start : start + most]


def get_updater(optimizer: Optimizer) -> Updater:
    """The function ``update(index, gradient, weight)`` of an optimizer."""
    return Updater(optimizer)


def arrays_in(state: State) -> list[NDArray]:
    """The arrays of a state."""
    found: list[NDArray] = []
    _mapped(state, NDArray, found.append)
    return found


def _mapped(state: State, kind: type, change: Callable[[Any], Any]) -> State:
    if isinstance(state, kind):
        return change(state)
    if isinstance(state, (tuple, list)):
        return type(state)(_mapped(each, kind, change) for each in state)
    return state
