"""Cells made of cells: one above the other, or one in each direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx import symbol as sym
from flowmx.gluon.rnn.steps import Stepped
from flowmx.ndarray import NDArray
from flowmx.rnn.base import BaseRNNCell, RNNParams, Weights, split, time_axis
from flowmx.symbol import Symbol


class _Stack(BaseRNNCell):
    """Cells whose states follow each other in one list."""

    def __init__(self, params: RNNParams | None) -> None:
        self._cells: list[BaseRNNCell] = []
        super().__init__("", params)
        self._shares = params is not None

    def _take(self, cell: BaseRNNCell) -> None:
        if self._shares:
            if not cell._own_params:
                raise ValueError(
                    f"{type(self).__name__}: it was made with params, and a cell in it too: give params to one of them"
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

    def _divided(self, states: Sequence[Any]) -> list[list[Any]]:
        """The states of each cell."""
        found, start = [], 0
        for cell in self._cells:
            stop = start + len(cell.state_info)
            found.append(list(states[start:stop]))
            start = stop
        return found


class SequentialRNNCell(_Stack):
    """Cells above each other: the output of one is the input of the next.

    Args:
        params: those that all of them share.
    """

    def __init__(self, params: RNNParams | None = None) -> None:
        super().__init__(params)

    def add(self, cell: BaseRNNCell) -> None:
        """Put a cell on top.

        Raises:
            ValueError: parameters were given both to this stack and to the cell.
        """
        self._take(cell)

    def __call__(self, inputs: Any, states: list[Any]) -> Stepped:
        self._counter += 1
        after: list[Any] = []
        for cell, own in zip(self._cells, self._divided(states), strict=True):
            inputs, own = cell(inputs, own)
            after += own
        return inputs, after

    def _unrolled(self, length: int, inputs: Any, begin_state: Any, layout: str, merge: bool | None) -> Stepped:
        states = self.begin_state() if begin_state is None else begin_state
        after: list[Any] = []
        for position, (cell, own) in enumerate(zip(self._cells, self._divided(states), strict=True)):
            own_merge = merge if position == len(self._cells) - 1 else None
            inputs, own = cell.unroll(length, inputs, own, layout, own_merge)
            after += own
        return inputs, after


class BidirectionalCell(_Stack):
    """Two cells: one goes through the sequence from its beginning, one from its end; outputs are put side by side.

    Args:
        l_cell: the one from the beginning.
        r_cell: the one from the end.
        params: those that both share.
        output_prefix: of the names of the outputs.
    """

    def __init__(
        self, l_cell: BaseRNNCell, r_cell: BaseRNNCell, params: RNNParams | None = None, output_prefix: str = "bi_"
    ) -> None:
        super().__init__(params)
        self._output_prefix = output_prefix
        self._take(l_cell)
        self._take(r_cell)

    def _unrolled(self, length: int, inputs: Any, begin_state: Any, layout: str, merge: bool | None) -> Stepped:
        steps = split(length, inputs, layout)
        states = self._divided(self.begin_state() if begin_state is None else begin_state)
        left, right = self._cells
        ahead, l_states = left.unroll(length, steps, states[0], layout, merge)
        back, r_states = right.unroll(length, steps[::-1], states[1], layout, merge)
        if merge is None:
            merge = isinstance(ahead, Symbol) and isinstance(back, Symbol)
        if merge:
            back = sym.reverse(back, axis=time_axis(layout))
            outputs: Any = sym.concat(ahead, back, dim=2, name=f"{self._output_prefix}out")
        else:
            pairs = zip(split(length, ahead, layout), split(length, back, layout)[::-1], strict=True)
            outputs = [sym.concat(*pair, dim=1, name=f"{self._output_prefix}t{i}") for i, pair in enumerate(pairs)]
        return outputs, [l_states, r_states]
