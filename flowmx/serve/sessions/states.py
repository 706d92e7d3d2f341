"""The states of sessions: their specifications, and arrays with a row for each session."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flowmx import forks
from flowmx.ops.registry.operators import Array

__all__ = ["State", "StateLike", "StateRows", "StateSpec", "as_state", "read_states"]

_FIRST = 4
"""The number of rows of the first arrays."""


class State(NamedTuple):
    """A state of a model that serves sessions.

    Attributes:
        shape: its shape, without the batch axis.
        dtype: the dtype of its elements.
        axis: the position of the batch axis in the model's array.
        initial: its value when a session begins, which is broadcast to the shape.
        output: for symbols and ONNX files, the name of the output with the next value.

    Example:
        >>> mx.serve.State((2, 128), axis=1)        # the model takes and returns arrays of shape (2, batch, 128)
    """

    shape: tuple[int, ...]
    dtype: Any = "float32"
    axis: int = 0
    initial: Any = 0.0
    output: str | None = None


StateLike = State | Sequence[int] | Mapping[str, Any]
"""A state: its shape alone, or a table of the attributes of :class:`State`."""


class StateSpec(NamedTuple):
    """A validated state.

    Attributes:
        name: its name in messages.
        shape: its shape, without the batch axis.
        dtype: the dtype of its elements.
        axis: the position of the batch axis.
        initial: its initial value, without the batch axis.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axis: int
    initial: Array

    @property
    def nbytes(self) -> int:
        """The size of a row in bytes."""
        return self.initial.nbytes

    def full_shape(self, rows: int) -> tuple[int, ...]:
        """Return the shape of the model's array for a number of rows."""
        return (*self.shape[: self.axis], rows, *self.shape[self.axis :])

    def describe(self) -> dict[str, Any]:
        """Return a JSON-compatible description."""
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype.name}


def read_states(states: Mapping[str, StateLike]) -> list[StateSpec]:
    """Validate states by name; a shape stands for a float32 state of zeros with the batch axis in front.

    Raises:
        ValueError: a shape, dtype, axis or initial value is invalid.
    """
    if not states:
        raise ValueError("states is empty, expected at least one state: omit it for a model without states")
    return [_read_state(name, as_state(name, state)) for name, state in states.items()]


def as_state(name: str, state: StateLike | str) -> State:
    """Return a state, also that of a shape or of a table of its attributes.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(state, State):
        return state
    if isinstance(state, Mapping):
        unknown = [key for key in state if key not in State._fields]
        if unknown or "shape" not in state:
            raise TypeError(
                f"state {name} has {', '.join(state)}, expected shape and some of {', '.join(State._fields)}"
            )
        return State(**{**state, "shape": tuple(state["shape"])})
    if not isinstance(state, (tuple, list)):
        raise TypeError(f"state {name} is {state!r}, expected a shape such as (128,), or mx.serve.State")
    return State(tuple(state))


def _read_state(name: str, state: State) -> StateSpec:
    shape = tuple(state.shape)
    if not all(int(size) == size > 0 for size in shape):
        raise ValueError(f"state {name} has the shape {shape}, expected positive integers without the batch axis")
    if not 0 <= state.axis <= len(shape):
        raise ValueError(f"state {name} has its batch axis at {state.axis}, expected 0 to {len(shape)}")
    try:
        dtype = np.dtype(state.dtype)
        initial = np.array(np.broadcast_to(np.asarray(state.initial, dtype), shape))
    except (TypeError, ValueError) as error:
        raise ValueError(f"state {name} has an invalid dtype or initial value for the shape {shape}: {error}") from None
    return StateSpec(name, tuple(map(int, shape)), dtype, state.axis, initial)


class StateRows:
    """Arrays with the states of all sessions: one array for each state, one row for each slot. Thread-safe.

    Args:
        specs: the states.
        most: the maximum number of rows.

    Attributes:
        capacity: the number of rows.
    """

    def __init__(self, specs: Sequence[StateSpec], most: int) -> None:
        self.specs, self.most, self.capacity = specs, most, 0
        self._lock: threading.RLock = forks.lock()
        self._arrays = [np.empty(spec.full_shape(0), spec.dtype) for spec in specs]

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        return sum(array.nbytes for array in self._arrays)

    def reserve(self, slots: int) -> None:
        """Make room for a number of slots."""
        with self._lock:
            if slots > self.capacity:
                self._resize(max(slots, min(max(2 * self.capacity, _FIRST), self.most)))

    def trim(self, moves: Iterable[tuple[int, int]], slots: int) -> None:
        """Move rows, and release most of the memory above a number of slots.

        Args:
            moves: pairs of slots (from, to).
            slots: the number of slots in use after the moves.
        """
        with self._lock:
            for source, target in moves:
                if source < self.capacity:
                    for spec, array in zip(self.specs, self._arrays, strict=True):
                        array[_at(spec, target)] = array[_at(spec, source)]
            self._resize(0 if not slots else max(2 * slots, _FIRST))

    def _resize(self, capacity: int) -> None:
        count = min(capacity, self.capacity)
        for index, (spec, array) in enumerate(zip(self.specs, self._arrays, strict=True)):
            self._arrays[index] = np.zeros(spec.full_shape(capacity), spec.dtype)
            self._arrays[index][_at(spec, slice(count))] = array[_at(spec, slice(count))]
        self.capacity = capacity

    def gather(self, slots: Sequence[int], new: Sequence[int], size: int) -> list[Array]:
        """Return the states of a batch: one array for each state.

        Args:
            slots: the slots of its sessions.
            new: positions in ``slots`` of sessions that begin with the initial values.
            size: the number of rows; the values of those after the slots are arbitrary.
        """
        rows = np.zeros(size, np.intp)
        rows[: len(slots)] = slots
        with self._lock:
            batch = [np.take(array, rows, spec.axis) for spec, array in zip(self.specs, self._arrays, strict=True)]
        if new:
            for spec, array in zip(self.specs, batch, strict=True):
                array[_at(spec, np.asarray(new, np.intp))] = np.expand_dims(spec.initial, spec.axis)
        return batch

    def scatter(self, slots: Sequence[int], positions: Sequence[int], batch: Sequence[Array]) -> None:
        """Replace states by those of a batch.

        Args:
            slots: the slots of the sessions to write to.
            positions: the positions of these sessions in the batch.
            batch: one array for each state.
        """
        rows = np.asarray(slots, np.intp)
        is_whole = len(positions) and positions[-1] == len(positions) - 1
        for index, (spec, values) in enumerate(zip(self.specs, batch, strict=True)):
            source = values[_at(spec, slice(len(positions)) if is_whole else np.asarray(positions, np.intp))]
            with self._lock:
                self._arrays[index][_at(spec, rows)] = source


def _at(spec: StateSpec, rows: int | slice | npt.NDArray[np.intp]) -> tuple[Any, ...]:
    """Return the index of rows of a state."""
    return (*(slice(None),) * spec.axis, rows)
