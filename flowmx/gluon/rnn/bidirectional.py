"""Two cells that process a sequence in opposite directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flowmx import ndarray as nd
from flowmx.gluon.rnn import sequences
from flowmx.gluon.rnn.cell_steps import StateInfo, Unrolled
from flowmx.gluon.rnn.recurrent_cell import HybridRecurrentCell, RecurrentCell, begins_state, unrolls

__all__ = ["BidirectionalCell"]


class BidirectionalCell(HybridRecurrentCell):
    """Concatenates the outputs of two cells, one for each direction.

    Args:
        l_cell: the cell that runs from the first step to the last.
        r_cell: the cell that runs from the last step to the first.
        output_prefix: the prefix of the names of the outputs in a graph.
    """

    def __init__(self, l_cell: RecurrentCell, r_cell: RecurrentCell, output_prefix: str = "bi_") -> None:
        super().__init__(prefix="", params=None)
        self.register_child(l_cell, "l_cell")
        self.register_child(r_cell, "r_cell")
        self._output_prefix = output_prefix

    def __call__(self, inputs: object, states: object, /) -> NoReturn:
        """Refuse to compute single steps, because the backward direction needs the merged sequence.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "a BidirectionalCell cannot compute single steps, because it reads the merged sequence: use unroll"
        )

    def __repr__(self) -> str:
        forward, backward = self._cells
        return f"{type(self).__name__}(forward={forward!r}, backward={backward!r})"

    @property
    def _cells(self) -> list[Any]:
        return list(self._children.values())

    def state_info(self, batch_size: int = 0) -> list[StateInfo]:
        """Return the shape and layout of each state of both cells."""
        return [info for cell in self._cells for info in cell.state_info(batch_size)]

    @begins_state
    def begin_state(self, batch_size: int = 0, func: Callable[..., object] = nd.zeros, **kwargs: object) -> list[Any]:
        """Return the initial states of both cells; the arguments are those of ``RecurrentCell.begin_state``."""
        self._check_unmodified()
        return [state for cell in self._cells for state in cell.begin_state(batch_size, func=func, **kwargs)]

    @unrolls
    def unroll(
        self, length: int, inputs: object, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: object = None,
    ) -> Unrolled:  # fmt: skip
        """Unroll both cells; see ``RecurrentCell.unroll``. The second begins at the end of each sequence."""
        self.reset()
        steps = sequences.steps(inputs, length, layout)
        states = sequences.zero_states(self.begin_state, steps) if begin_state is None else begin_state
        l_cell, r_cell = self._cells
        count = len(l_cell.state_info())
        forward, forward_states = l_cell.unroll(length, steps, states[:count], layout, merge_outputs, valid_length)
        backward, backward_states = r_cell.unroll(
            length, sequences.reverse_time(steps, valid_length), states[count:], layout, False, valid_length
        )
        backward = sequences.reverse_time(backward, valid_length)
        merge = isinstance(forward, sequences.Leaf) if merge_outputs is None else merge_outputs
        outputs = self._concatenate(forward, backward, layout, merge)
        if valid_length is not None:
            merged = outputs if merge else sequences.merge_steps(outputs, layout)
            merged = sequences.mask(merged, valid_length, layout)
            outputs = merged if merge else sequences.steps(merged, length, layout)
        return outputs, forward_states + backward_states

    def _concatenate(self, forward: object, backward: Sequence[object], layout: str, merge: bool) -> Any:
        F, prefix = sequences.namespace(backward), self._output_prefix
        if merge:
            return F.concat(forward, sequences.merge_steps(backward, layout), dim=2, name=f"{prefix}out")
        pairs = zip(sequences.steps(forward, len(backward), layout), backward, strict=True)
        return [F.concat(one, other, dim=1, name=f"{prefix}t{step}") for step, (one, other) in enumerate(pairs)]
