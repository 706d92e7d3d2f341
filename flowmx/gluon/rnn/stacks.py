"""Stacks of recurrent cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.gluon.rnn import sequences
from flowmx.gluon.rnn.cell_steps import StateInfo, StepResult, Unrolled
from flowmx.gluon.rnn.recurrent_cell import HybridRecurrentCell, RecurrentCell, begins_state, unrolls
from flowmx.gluon.utils import indent
from flowmx.ops.registry.tensors import Functions, Tensor, Tensors

__all__ = ["HybridSequentialRNNCell", "SequentialRNNCell"]


class _CellStack(RecurrentCell):
    """Stacked cells, whose states are concatenated."""

    def add(self, cell: RecurrentCell) -> None:
        """Add a cell on top."""
        self.register_child(cell)

    def _cells(self) -> list[Any]:
        return list(self._children.values())

    def __repr__(self) -> str:
        inner = "\n".join(f"({key}): {indent(repr(cell), 2)}" for key, cell in self._children.items())
        return f"{type(self).__name__}(\n{inner}\n)"

    def __getitem__(self, index: int) -> Any:
        return self._cells()[index]

    def __len__(self) -> int:
        return len(self._children)

    def state_info(self, batch_size: int = 0) -> list[StateInfo]:
        """Return the shape and layout of each state of each cell."""
        return [info for cell in self._cells() for info in cell.state_info(batch_size)]

    @begins_state
    def begin_state(self, batch_size: int = 0, func: Callable[..., object] = nd.zeros, **kwargs: object) -> list[Any]:
        """Return the initial states of all cells; the arguments are those of ``RecurrentCell.begin_state``."""
        self._check_unmodified()
        return [state for cell in self._cells() for state in cell.begin_state(batch_size, func, **kwargs)]

    def _cells_and_states(self, states: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over (cell, the cell's states)."""
        start = 0
        for cell in self._cells():
            end = start + len(cell.state_info())
            yield cell, states[start:end]
            start = end

    def _step(self, inputs: object, states: object) -> Unrolled:
        """Compute a step: the input of a cell is the output of the previous one."""
        next_states: list[object] = []
        for cell, cell_states in self._cells_and_states(states):
            inputs, new_states = cell(inputs, cell_states)
            next_states += new_states
        return inputs, next_states

    @unrolls
    def unroll(
        self, length: int, inputs: object, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: object = None,
    ) -> Unrolled:  # fmt: skip
        """Unroll one cell after another; see ``RecurrentCell.unroll``."""
        self.reset()
        states = sequences.zero_states(self.begin_state, inputs, layout) if begin_state is None else begin_state
        outputs = inputs
        next_states: list[Any] = []
        for number, (cell, cell_states) in enumerate(self._cells_and_states(states), 1):
            # Between the cells, merged outputs give the same result as lists; but a graph must match MXNet's.
            merge_inner = None if sequences.namespace(outputs) is sym else True
            merge = merge_outputs if number == len(self) else merge_inner
            outputs, new_states = cell.unroll(length, outputs, cell_states, layout, merge, valid_length)
            next_states += new_states
        return outputs, next_states


class SequentialRNNCell(_CellStack):
    """Stacked cells.

    Args:
        prefix: as for ``Block``.
        params: as for ``Block``.

    Example:
        >>> stack = mx.gluon.rnn.SequentialRNNCell()
        >>> stack.add(mx.gluon.rnn.LSTMCell(100))
        >>> stack.add(mx.gluon.rnn.LSTMCell(100))
        >>> outputs, states = stack.unroll(35, x, layout="TNC", merge_outputs=True)
    """

    def forward(self, inputs: Tensor, states: Any) -> Any:
        """Compute one step of all cells."""
        self._counter += 1
        return self._step(inputs, states)


class HybridSequentialRNNCell(_CellStack, HybridRecurrentCell):
    """Stacked cells that are compiled together.

    Args:
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def hybrid_forward(self, F: Functions, inputs: Tensor, states: Tensors) -> StepResult:
        return self._step(inputs, states)
