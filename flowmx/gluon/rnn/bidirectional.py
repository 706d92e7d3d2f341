"""Two cells that go through a sequence in opposite directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from flowmx import ndarray as nd
from flowmx.gluon.rnn import sequences
from flowmx.gluon.rnn.recurrent import HybridRecurrentCell, RecurrentCell

__all__ = ["BidirectionalCell"]


class BidirectionalCell(HybridRecurrentCell):
    """Joins the outputs of a cell from the first step to the last, and of one from the last to the first.

    Args:
        l_cell: from the first step to the last.
        r_cell: from the last to the first.
        output_prefix: comes before the names of the joined outputs in a graph.
    """

    def __init__(self, l_cell: RecurrentCell, r_cell: RecurrentCell, output_prefix: str = "bi_") -> None:
        super().__init__(prefix="", params=None)
        self.register_child(l_cell, "l_cell")
        self.register_child(r_cell, "r_cell")
        self._output_prefix = output_prefix

    def __call__(self, inputs: Any, states: Any) -> NoReturn:
        """Refuse a single step: the backward direction needs the whole sequence.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a BidirectionalCell makes no single steps, since it needs the end first: use unroll")

    def __repr__(self) -> str:
        forward, backward = self._cells
        return f"{type(self).__name__}(forward={forward!r}, backward={backward!r})"

    @property
    def _cells(self) -> list[Any]:
        return list(self._children.values())

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The shape and layout of each state of both cells."""
        return [info for cell in self._cells for info in cell.state_info(batch_size)]

    def begin_state(self, batch_size: int = 0, func: Callable[..., Any] = nd.zeros, **kwargs: Any) -> list[Any]:
        """The first states of both cells; the arguments are those of ``RecurrentCell.begin_state``."""
        self._refuse_modified()
        return [state for cell in self._cells for state in cell.begin_state(batch_size, func=func, **kwargs)]

    def unroll(
        self, length: int, inputs: Any, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:  # fmt: skip
        """Unroll both cells; see ``RecurrentCell.unroll``. The second begins at the end of each instance."""
        self.reset()
        each = sequences.steps(inputs, length, layout)
        states = sequences.zero_states(self.begin_state, each) if begin_state is None else begin_state
        forward, backward = self._cells
        own = len(forward.state_info())
        ahead, ahead_states = forward.unroll(length, each, states[:own], layout, merge_outputs, valid_length)
        back, back_states = backward.unroll(
            length, sequences.reversed_in_time(each, valid_length), states[own:], layout, False, valid_length
        )
        back = sequences.reversed_in_time(back, valid_length)
        merge = isinstance(ahead, sequences.Leaf) if merge_outputs is None else merge_outputs
        outputs = self._joined(ahead, back, layout, merge)
        if valid_length is not None:
            whole = outputs if merge else sequences.merged(outputs, layout)
            whole = sequences.masked(whole, valid_length, layout)
            outputs = whole if merge else sequences.steps(whole, length, layout)
        return outputs, ahead_states + back_states

    def _joined(self, ahead: Any, back: list[Any], layout: str, merge: bool) -> Any:
        F, prefix = sequences.namespace(back), self._output_prefix
        if merge:
            return F.concat(ahead, sequences.merged(back, layout), dim=2, name=f"{prefix}out")
        pairs = zip(sequences.steps(ahead, len(back), layout), back, strict=True)
        return [F.concat(one, other, dim=1, name=f"{prefix}t{step}") for step, (one, other) in enumerate(pairs)]
