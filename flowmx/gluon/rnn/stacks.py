"""Recurrent cells on top of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.gluon.rnn import sequences
from flowmx.gluon.rnn.recurrent import HybridRecurrentCell, RecurrentCell
from flowmx.gluon.utils import indented

__all__ = ["HybridSequentialRNNCell", "SequentialRNNCell"]


class _CellStack(RecurrentCell):
    """Cells in a row; its states are theirs, one after another."""

    def add(self, cell: RecurrentCell) -> None:
        """Put a cell on top."""
        self.register_child(cell)

    def _cells(self) -> list[Any]:
        return list(self._children.values())

    def __repr__(self) -> str:
        inner = "\n".join(f"({key}): {indented(repr(cell), 2)}" for key, cell in self._children.items())
        return f"{type(self).__name__}(\n{inner}\n)"

    def __getitem__(self, index: int) -> Any:
        return self._cells()[index]

    def __len__(self) -> int:
        return len(self._children)

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The shape and layout of each state of each cell."""
        return [info for cell in self._cells() for info in cell.state_info(batch_size)]

    def begin_state(self, batch_size: int = 0, func: Callable[..., Any] = nd.zeros, **kwargs: Any) -> list[Any]:
        """The first states of all cells; the arguments are those of ``RecurrentCell.begin_state``."""
        self._refuse_modified()
        return [state for cell in self._cells() for state in cell.begin_state(batch_size, func, **kwargs)]

    def _each(self, states: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over (cell, its part of the states)."""
        start = 0
        for cell in self._cells():
            end = start + len(cell.state_info())
            yield cell, states[start:end]
            start = end

    def _step(self, inputs: Any, states: Any) -> tuple[Any, list[Any]]:
        """Compute a step: each cell reads the output of the one before."""
        following: list[Any] = []
        for cell, own in self._each(states):
            inputs, own = cell(inputs, own)
            following += own
        return inputs, following

    def unroll(
        self, length: int, inputs: Any, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:  # fmt: skip
        """Unroll one cell after another; see ``RecurrentCell.unroll``."""
        self.reset()
        states = sequences.zero_states(self.begin_state, inputs, layout) if begin_state is None else begin_state
        outputs = inputs
        following: list[Any] = []
        for number, (cell, own) in enumerate(self._each(states), 1):
            # Between cells either form is invisible; a graph stays as MXNet would compose it.
            inner = None if sequences.namespace(outputs) is sym else True
            merge = merge_outputs if number == len(self) else inner
            outputs, own = cell.unroll(length, outputs, own, layout, merge, valid_length)
            following += own
        return outputs, following


class SequentialRNNCell(_CellStack):
    """Cells in a row.

    Args:
        prefix: as for ``Block``.
        params: as for ``Block``.

    Example:
        >>> stack = mx.gluon.rnn.SequentialRNNCell()
        >>> stack.add(mx.gluon.rnn.LSTMCell(100))
        >>> stack.add(mx.gluon.rnn.LSTMCell(100))
        >>> outputs, states = stack.unroll(35, x, layout="TNC", merge_outputs=True)
    """

    def forward(self, inputs: Any, states: Any) -> Any:
        """Compute one step of all cells."""
        self._counter += 1
        return self._step(inputs, states)


class HybridSequentialRNNCell(_CellStack, HybridRecurrentCell):
    """Cells in a row that are compiled together.

    Args:
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def hybrid_forward(self, F: Any, inputs: Any, states: Any) -> Any:
        return self._step(inputs, states)
