"""Cells made of other cells: a stack of layers, or one cell for each direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx import symbol as sym
from flowmx.ndarray import NDArray
from flowmx.rnn.base_cell import BaseRNNCell, RNNParams, StepResult, Weights, split, time_axis
from flowmx.symbol import Symbol


class _Stack(BaseRNNCell):
    """A cell with inner cells, whose states are concatenated in one list."""

    def __init__(self, params: RNNParams | None) -> None:
        self._cells: list[BaseRNNCell] = []
        super().__init__("", params)
        self._shares = params is not None

    def _take(self, cell: BaseRNNCell) -> None:
        if self._shares:
            if not cell._own_params:
                raise ValueError(
                    f"{type(self).__name__}: both this cell and an inner cell have params: pass params to one of them"
                )
            cell.params._params.update(self.params._params)
        self.params._params.update(cell.params._params)
        self._cells.append(cell)

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [info for cell in self._cells for info in cell.state_info]

    def begin_state(self, **kwargs: Any) -> list[Any]:  # type: ignore[override]
        self._check_unmodified()
        return [state for cell in self._cells for state in cell.begin_state(**kwargs)]

    def unpack_weights(self, args: Weights) -> dict[str, NDArray]:
        for cell in self._cells:
            args = cell.unpack_weights(args)
        return dict(args)

    def pack_weights(self, args: Weights) -> dict[str, NDArray]:
        for cell in self._cells:
            args = cell.pack_weights(args)
        return dict(args)

    def _split_states(self, states: Sequence[object]) -> list[list[Any]]:
        """Split a list of states by inner cell."""
        parts, start = [], 0
        for cell in self._cells:
            stop = start + len(cell.state_info)
            parts.append(list(states[start:stop]))
            start = stop
        return parts


class SequentialRNNCell(_Stack):
    """Stacked cells: the output of one is the input of the next.

    Args:
        params: parameters that all cells share.
    """

    def __init__(self, params: RNNParams | None = None) -> None:
        super().__init__(params)

    def add(self, cell: BaseRNNCell) -> None:
        """Add a cell on top.

        Raises:
            ValueError: both this stack and the cell have ``params``.
        """
        self._take(cell)

    def __call__(self, inputs: Any, states: list[Any]) -> StepResult:
        self._counter += 1
        after: list[Any] = []
        for cell, cell_states in zip(self._cells, self._split_states(states), strict=True):
            inputs, new_states = cell(inputs, cell_states)
            after += new_states
        return inputs, after

    def _unroll(self, length: int, inputs: Any, begin_state: Any, layout: str, merge: bool | None) -> StepResult:
        states = self.begin_state() if begin_state is None else begin_state
        after: list[object] = []
        for position, (cell, cell_states) in enumerate(zip(self._cells, self._split_states(states), strict=True)):
            cell_merge = merge if position == len(self._cells) - 1 else None
            inputs, new_states = cell.unroll(length, inputs, cell_states, layout, cell_merge)
            after += new_states
        return inputs, after


class BidirectionalCell(_Stack):
    """Two cells, which process the sequence from its beginning and from its end; outputs are concatenated.

    Args:
        l_cell: the cell from the beginning.
        r_cell: the cell from the end.
        params: parameters that both share.
        output_prefix: the prefix of the names of the outputs.
    """

    def __init__(
        self, l_cell: BaseRNNCell, r_cell: BaseRNNCell, params: RNNParams | None = None, output_prefix: str = "bi_"
    ) -> None:
        super().__init__(params)
        self._output_prefix = output_prefix
        self._take(l_cell)
        self._take(r_cell)

    def _unroll(self, length: int, inputs: object, begin_state: Any, layout: str, merge: bool | None) -> StepResult:
        steps = split(length, inputs, layout)
        states = self._split_states(self.begin_state() if begin_state is None else begin_state)
        left, right = self._cells
        forward, l_states = left.unroll(length, steps, states[0], layout, merge)
        backward, r_states = right.unroll(length, steps[::-1], states[1], layout, merge)
        if merge is None:
            merge = isinstance(forward, Symbol) and isinstance(backward, Symbol)
        if merge:
            backward = sym.reverse(backward, axis=time_axis(layout))
            outputs: Any = sym.concat(forward, backward, dim=2, name=f"{self._output_prefix}out")
        else:
            pairs = zip(split(length, forward, layout), split(length, backward, layout)[::-1], strict=True)
            outputs = [sym.concat(*pair, dim=1, name=f"{self._output_prefix}t{i}") for i, pair in enumerate(pairs)]
        return outputs, [l_states, r_states]
