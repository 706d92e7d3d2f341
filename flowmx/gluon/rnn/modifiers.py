"""Cells that modify other cells: dropout, zoneout, residual connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from flowmx import ndarray as nd
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.rnn import sequences
from flowmx.gluon.rnn.bidirectional import BidirectionalCell
from flowmx.gluon.rnn.cell_steps import StateInfo, StepResult, Unrolled
from flowmx.gluon.rnn.recurrent_cell import HybridRecurrentCell, RecurrentCell, begins_state, unrolls
from flowmx.ops.registry.tensors import Functions, Tensor, Tensors

__all__ = ["DropoutCell", "ModifierCell", "ResidualCell", "ZoneoutCell"]

C = TypeVar("C", bound=Any)


class DropoutCell(HybridRecurrentCell):
    """Dropout of the input, without states; for stacks of cells.

    Args:
        rate: the fraction to drop in training.
        axes: axes that share one random mask.
        prefix: as for ``Block``.
        params: as for ``Block``.

    Raises:
        TypeError: the rate is not a number.
    """

    def __init__(
        self, rate: float, axes: tuple[int, ...] = (), prefix: str | None = None, params: ParameterDict | None = None
    ) -> None:
        if not isinstance(rate, (int, float)):
            raise TypeError(f"DropoutCell: rate is {rate!r}, expected a number")
        super().__init__(prefix, params)
        self._rate, self._axes = rate, axes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rate={self._rate}, axes={self._axes})"

    def _alias(self) -> str:
        return "dropout"

    def state_info(self, batch_size: int = 0) -> list[StateInfo]:
        """Return an empty list: the cell has no states."""
        return []

    def hybrid_forward(self, F: Functions, inputs: Tensor, states: Tensors) -> StepResult:
        if self._rate > 0:
            inputs = F.Dropout(inputs, p=self._rate, axes=self._axes, name=f"t{self._counter}_fwd")
        return inputs, states

    @unrolls
    def unroll(
        self, length: int, inputs: Any, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: object = None,
    ) -> Unrolled:  # fmt: skip
        """Drop inputs of a whole sequence, which stays an array or a list unless ``merge_outputs`` is set."""
        self.reset()
        merge = isinstance(inputs, sequences.Leaf) if merge_outputs is None else merge_outputs
        states = [] if begin_state is None else begin_state
        if merge:
            sequence = inputs if isinstance(inputs, sequences.Leaf) else sequences.merge_steps(inputs, layout)
            result: tuple[Any, Any] = self.hybrid_forward(
                sequences.namespace(sequence), cast("Tensor", sequence), states
            )
            return result
        return super().unroll(length, inputs, states, layout, merge_outputs)


@contextmanager
def unmodified(cell: C) -> Iterator[C]:
    """Allow direct calls of the cell inside a modifier, in a ``with`` block."""
    cell._modified = False
    try:
        yield cell
    finally:
        cell._modified = True


class ModifierCell(HybridRecurrentCell):
    """Base class of cells that wrap another cell, with its parameters and states. Only the outer cell is called.

    Args:
        base_cell: the inner cell.

    Raises:
        ValueError: the cell is already inside another modifier.
    """

    def __init__(self, base_cell: RecurrentCell) -> None:
        if base_cell._modified:
            raise ValueError(f"{type(self).__name__}: the cell {base_cell.name!r} is already inside a modifier")
        super().__init__(prefix=base_cell.prefix + self._alias(), params=None)
        base_cell._modified = True
        self.base_cell = base_cell

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_cell!r})"

    @property
    def params(self) -> Any:
        """The parameters of the inner cell."""
        return self.base_cell.params

    def state_info(self, batch_size: int = 0) -> list[StateInfo]:
        """Return the shape and layout of each state of the inner cell."""
        return self.base_cell.state_info(batch_size)

    @begins_state
    def begin_state(self, batch_size: int = 0, func: Callable[..., object] = nd.zeros, **kwargs: object) -> list[Any]:
        """Return the initial states of the inner cell (arrays by default, where MXNet makes symbols)."""
        self._check_unmodified()
        with unmodified(self.base_cell) as cell:
            return cell.begin_state(batch_size, func=func, **kwargs)


class _StatefulModifier(ModifierCell):
    """A modifier that keeps arrays between steps, so only the inner cell's steps are compiled.

    If a hybridized block unrolls the modifier, all steps are part of one graph.
    """

    def hybridize(self, active: bool = True, *args: Any, **kwargs: Any) -> None:
        """Hybridize the inner cell."""
        super().hybridize(active, *args, **kwargs)
        self._active = False


class ZoneoutCell(_StatefulModifier):
    """Zoneout: in training, random elements of outputs and states keep their value of the previous step.

    Krueger et al., Zoneout: Regularizing RNNs by Randomly Preserving Hidden Activations, 2016.

    Args:
        base_cell: the inner cell.
        zoneout_outputs: the fraction of the outputs that keep their value.
        zoneout_states: the fraction of the states that keep their value.

    Raises:
        ValueError: the cell is bidirectional, and cannot compute single steps.
    """

    def __init__(self, base_cell: RecurrentCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        if isinstance(base_cell, BidirectionalCell):
            raise ValueError(
                "ZoneoutCell: a BidirectionalCell cannot compute single steps: wrap each of the two cells inside it"
            )
        super().__init__(base_cell)
        self.zoneout_outputs, self.zoneout_states = zoneout_outputs, zoneout_states
        self._prev_output: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p_out={self.zoneout_outputs}, p_state={self.zoneout_states}, {self.base_cell!r})"

    def _alias(self) -> str:
        return "zoneout"

    def reset(self) -> None:
        """Reset the counters, and drop the last output."""
        super().reset()
        self._prev_output = None

    def hybrid_forward(self, F: Functions, inputs: Tensor, states: Tensors) -> StepResult:
        output, next_states = self.base_cell(inputs, states)
        previous = F.zeros_like(output) if self._prev_output is None else self._prev_output
        output = mix(F, self.zoneout_outputs, output, previous)
        next_states = [mix(F, self.zoneout_states, new, old) for new, old in zip(next_states, states, strict=True)]
        self._prev_output = output
        return output, next_states


def mix(F: Functions, rate: float, new: Tensor, old: Tensor) -> Tensor:
    """Return new values, with a random fraction ``rate`` replaced by the old ones."""
    return F.where(F.Dropout(F.ones_like(new), p=rate), new, old) if rate else new


class ResidualCell(ModifierCell):
    """Adds the input to the output (Wu et al., Google's Neural Machine Translation System, 2016).

    Args:
        base_cell: the inner cell, whose outputs have the shape of its inputs.
    """

    def hybrid_forward(self, F: Functions, inputs: Tensor, states: Tensors) -> StepResult:
        output, states = self.base_cell(inputs, states)
        return F.elemwise_add(output, inputs, name=f"t{self._counter}_fwd"), states

    @unrolls
    def unroll(
        self, length: int, inputs: object, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: object = None,
    ) -> Unrolled:  # fmt: skip
        """Unroll the inner cell, and add the inputs; see ``RecurrentCell.unroll``."""
        self.reset()
        with unmodified(self.base_cell) as cell:
            outputs, states = cell.unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        F = sequences.namespace(outputs)
        if not isinstance(outputs, sequences.Leaf):
            steps = sequences.steps(self._mask_inputs(inputs, layout, valid_length), length, layout)
            return [F.elemwise_add(output, step) for output, step in zip(outputs, steps, strict=True)], states
        return F.elemwise_add(outputs, self._mask_inputs(inputs, layout, valid_length, merge=True)), states

    def _mask_inputs(self, inputs: Any, layout: str, valid_length: object, merge: bool = False) -> Any:
        """Return the inputs, with zeros after the end of each sequence."""
        if (merge or valid_length is not None) and not isinstance(inputs, sequences.Leaf):
            inputs = sequences.merge_steps(inputs, layout)
        return inputs if valid_length is None else sequences.mask(inputs, valid_length, layout)
