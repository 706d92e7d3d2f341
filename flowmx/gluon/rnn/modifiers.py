"""Cells that change what other cells compute: dropout, zoneout, residual connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from flowmx import ndarray as nd
from flowmx.gluon.rnn import sequences
from flowmx.gluon.rnn.bidirectional import BidirectionalCell
from flowmx.gluon.rnn.recurrent import HybridRecurrentCell, RecurrentCell

__all__ = ["DropoutCell", "ModifierCell", "ResidualCell", "ZoneoutCell"]

C = TypeVar("C", bound=Any)


class DropoutCell(HybridRecurrentCell):
    """Dropout of the input, with no states; for stacks of cells.

    Args:
        rate: the part that becomes zero in training.
        axes: axes along which one decision counts.
        prefix: as for ``Block``.
        params: as for ``Block``.

    Raises:
        TypeError: the rate is no number.
    """

    def __init__(self, rate: float, axes: tuple[int, ...] = (), prefix: str | None = None, params: Any = None) -> None:
        if not isinstance(rate, (int, float)):
            raise TypeError(f"DropoutCell: rate is {rate!r}, expected a number")
        super().__init__(prefix, params)
        self._rate, self._axes = rate, axes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rate={self._rate}, axes={self._axes})"

    def _alias(self) -> str:
        return "dropout"

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """Return an empty list: the cell has no states."""
        return []

    def hybrid_forward(self, F: Any, inputs: Any, states: Any) -> Any:
        if self._rate > 0:
            inputs = F.Dropout(inputs, p=self._rate, axes=self._axes, name=f"t{self._counter}_fwd")
        return inputs, states

    def unroll(
        self, length: int, inputs: Any, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:  # fmt: skip
        """Drop inputs of a whole sequence, which stays one array or a list unless ``merge_outputs`` says otherwise."""
        self.reset()
        merge = isinstance(inputs, sequences.Leaf) if merge_outputs is None else merge_outputs
        states = [] if begin_state is None else begin_state
        if merge:
            whole = inputs if isinstance(inputs, sequences.Leaf) else sequences.merged(inputs, layout)
            dropped: tuple[Any, list[Any]] = self.hybrid_forward(sequences.namespace(whole), whole, states)
            return dropped
        return super().unroll(length, inputs, states, layout, merge_outputs)


@contextmanager
def unmodified(cell: C) -> Iterator[C]:
    """Let the cell inside a modifier be called as its own user may call it."""
    cell._modified = False
    try:
        yield cell
    finally:
        cell._modified = True


class ModifierCell(HybridRecurrentCell):
    """Base of cells around another cell, whose parameters and states they have. Only the outer one is called.

    Args:
        base_cell: the cell inside.

    Raises:
        ValueError: the cell is inside another one already.
    """

    def __init__(self, base_cell: RecurrentCell) -> None:
        if base_cell._modified:
            raise ValueError(f"{type(self).__name__}: the cell {base_cell.name!r} is inside a modifier already")
        super().__init__(prefix=base_cell.prefix + self._alias(), params=None)
        base_cell._modified = True
        self.base_cell = base_cell

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_cell!r})"

    @property
    def params(self) -> Any:
        """Those of the cell inside."""
        return self.base_cell.params

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The state descriptions of the wrapped cell."""
        return self.base_cell.state_info(batch_size)

    def begin_state(self, batch_size: int = 0, func: Callable[..., Any] = nd.zeros, **kwargs: Any) -> list[Any]:
        """The first states of the cell inside (arrays by default, where MXNet makes symbols)."""
        self._refuse_modified()
        with unmodified(self.base_cell) as cell:
            return cell.begin_state(batch_size, func=func, **kwargs)


class _RememberingCell(ModifierCell):
    """A modifier that keeps arrays from step to step, so its own steps are not compiled: those of the cell inside are.

    Inside a hybridized block that unrolls it, all steps are part of one graph.
    """

    def hybridize(self, active: bool = True, *args: Any, **kwargs: Any) -> None:
        """Hybridize the cell inside."""
        super().hybridize(active, *args, **kwargs)
        self._active = False


class ZoneoutCell(_RememberingCell):
    """Zoneout: in training, random elements of outputs and states keep their value of the previous step.

    Krueger et al., Zoneout: Regularizing RNNs by Randomly Preserving Hidden Activations, 2016.

    Args:
        base_cell: the cell inside.
        zoneout_outputs: the part of the outputs that stays.
        zoneout_states: the part of the states that stays.

    Raises:
        ValueError: the cell can not make single steps, since it is bidirectional.
    """

    def __init__(self, base_cell: RecurrentCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        if isinstance(base_cell, BidirectionalCell):
            raise ValueError("ZoneoutCell: a BidirectionalCell makes no single steps: put the cells inside it in these")
        super().__init__(base_cell)
        self.zoneout_outputs, self.zoneout_states = zoneout_outputs, zoneout_states
        self._prev_output: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p_out={self.zoneout_outputs}, p_state={self.zoneout_states}, {self.base_cell!r})"

    def _alias(self) -> str:
        return "zoneout"

    def reset(self) -> None:
        """Forget the last output too."""
        super().reset()
        self._prev_output = None

    def hybrid_forward(self, F: Any, inputs: Any, states: Any) -> Any:
        output, following = self.base_cell(inputs, states)
        before = F.zeros_like(output) if self._prev_output is None else self._prev_output
        output = mixed(F, self.zoneout_outputs, output, before)
        following = [mixed(F, self.zoneout_states, new, old) for new, old in zip(following, states, strict=True)]
        self._prev_output = output
        return output, following


def mixed(F: Any, rate: float, new: Any, old: Any) -> Any:
    """Something new, but what was there before in random places, of that rate."""
    return F.where(F.Dropout(F.ones_like(new), p=rate), new, old) if rate else new


class ResidualCell(ModifierCell):
    """Adds the input to the output (Wu et al., Google's Neural Machine Translation System, 2016).

    Args:
        base_cell: the cell inside, whose outputs are as long as its inputs.
    """

    def hybrid_forward(self, F: Any, inputs: Any, states: Any) -> Any:
        output, states = self.base_cell(inputs, states)
        return F.elemwise_add(output, inputs, name=f"t{self._counter}_fwd"), states

    def unroll(
        self, length: int, inputs: Any, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:  # fmt: skip
        """Unroll the cell inside, and add the inputs; see ``RecurrentCell.unroll``."""
        self.reset()
        with unmodified(self.base_cell) as cell:
            outputs, states = cell.unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        F = sequences.namespace(outputs)
        if not isinstance(outputs, sequences.Leaf):
            each = sequences.steps(self._added(inputs, layout, valid_length), length, layout)
            return [F.elemwise_add(one, other) for one, other in zip(outputs, each, strict=True)], states
        return F.elemwise_add(outputs, self._added(inputs, layout, valid_length, merge=True)), states

    def _added(self, inputs: Any, layout: str, valid_length: Any, merge: bool = False) -> Any:
        """The inputs, with zeros behind the end of each instance."""
        if (merge or valid_length is not None) and not isinstance(inputs, sequences.Leaf):
            inputs = sequences.merged(inputs, layout)
        return inputs if valid_length is None else sequences.masked(inputs, valid_length, layout)
