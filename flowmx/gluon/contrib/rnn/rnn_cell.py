"""Cells with dropout masks that are constant over time, and cells that project their outputs."""

from __future__ import annotations

from functools import partial
from typing import Any

from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.rnn import BidirectionalCell, HybridRecurrentCell, RecurrentCell, cell_steps, sequences
from flowmx.gluon.rnn.cell_steps import StateInfo, StepResult, Unrolled
from flowmx.gluon.rnn.modifiers import _StatefulModifier, unmodified
from flowmx.gluon.rnn.recurrent_cell import unrolls
from flowmx.initializer import InitializerLike
from flowmx.ops.registry.tensors import Functions, Tensor, Tensors

__all__ = ["LSTMPCell", "VariationalDropoutCell"]


class VariationalDropoutCell(_StatefulModifier):
    """Dropout with the same mask at all steps, until :meth:`reset`.

    Gal and Ghahramani, A Theoretically Grounded Application of Dropout in Recurrent Neural Networks, NIPS 2016.

    Args:
        base_cell: the wrapped cell.
        drop_inputs: the fraction of the inputs that becomes zero.
        drop_states: the fraction of the first state that becomes zero.
        drop_outputs: the fraction of the outputs that becomes zero.

    Raises:
        ValueError: ``drop_states`` is set for a bidirectional cell, which cannot compute single steps.
    """

    def __init__(
        self, base_cell: RecurrentCell, drop_inputs: float = 0.0, drop_states: float = 0.0, drop_outputs: float = 0.0
    ) -> None:
        if drop_states and isinstance(base_cell, BidirectionalCell):
            raise ValueError(
                "VariationalDropoutCell: a BidirectionalCell cannot compute single steps, so its states cannot be "
                "dropped: wrap each of the two cells inside it instead"
            )
        super().__init__(base_cell)
        self.drop_inputs, self.drop_states, self.drop_outputs = drop_inputs, drop_states, drop_outputs
        self._masks: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p_out = {self.drop_outputs}, p_state = {self.drop_states})"

    def _alias(self) -> str:
        return "vardrop"

    def reset(self) -> None:
        """Reset the cell, and discard the masks."""
        super().reset()
        self._masks = {}

    @property
    def drop_inputs_mask(self) -> Any:
        """The mask of the inputs since the last reset, or None."""
        return self._masks.get("inputs")

    @property
    def drop_states_mask(self) -> Any:
        """The mask of the first state since the last reset, or None."""
        return self._masks.get("states")

    @property
    def drop_outputs_mask(self) -> Any:
        """The mask of the outputs since the last reset, or None."""
        return self._masks.get("outputs")

    def _make_mask(self, F: Functions, name: str, rate: float, values: object) -> None:
        if rate and name not in self._masks:
            self._masks[name] = F.Dropout(F.ones_like(values), p=rate)

    def _initialize_input_masks(self, F: Functions, inputs: Tensor, states: Tensors) -> None:
        """Draw the masks of the first state and of the inputs, unless this was done since the last reset."""
        if states:
            self._make_mask(F, "states", self.drop_states, states[0])
        self._make_mask(F, "inputs", self.drop_inputs, inputs)

    def _initialize_output_mask(self, F: Functions, output: Tensor) -> None:
        """Draw the mask of the outputs, unless this was done since the last reset."""
        self._make_mask(F, "outputs", self.drop_outputs, output)

    def hybrid_forward(self, F: Functions, inputs: Tensor, states: Tensors) -> StepResult:
        self._initialize_input_masks(F, inputs, states)
        masks = self._masks
        if "states" in masks and states:
            states = [states[0] * masks["states"], *states[1:]]
        output, next_states = self.base_cell(inputs * masks["inputs"] if "inputs" in masks else inputs, states)
        self._initialize_output_mask(F, output)
        return (output * masks["outputs"] if "outputs" in masks else output), next_states

    @unrolls
    def unroll(
        self, length: int, inputs: Any, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: object = None,
    ) -> Unrolled:  # fmt: skip
        """Unroll the wrapped cell; without dropout of states, mask inputs and outputs as whole sequences."""
        if self.drop_states:
            return super().unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        self.reset()
        sequence = inputs if isinstance(inputs, sequences.Leaf) else sequences.merge_steps(inputs, layout)
        F, time = sequences.namespace(sequence), sequences.time_axis(layout)
        states = sequences.zero_states(self.begin_state, sequence, layout) if begin_state is None else begin_state
        if self.drop_inputs:
            sequence = F.Dropout(sequence, p=self.drop_inputs, axes=(time,))
        with unmodified(self.base_cell) as cell:
            outputs, states = cell.unroll(length, sequence, states, layout, True, valid_length)
        if self.drop_outputs:
            outputs = F.Dropout(outputs, p=self.drop_outputs, axes=(time,))
        return (sequences.steps(outputs, length, layout) if merge_outputs is False else outputs), states


class LSTMPCell(HybridRecurrentCell):
    """Long short-term memory whose output is projected to another length.

    Sak et al., Long Short-Term Memory Based Recurrent Neural Network Architectures for Large Vocabulary Speech
    Recognition, 2014.

    Args:
        hidden_size: the number of units.
        projection_size: the length of the outputs.
        i2h_weight_initializer: initializes the weight for the input.
        h2h_weight_initializer: initializes the weight for the state.
        h2r_weight_initializer: initializes the weight of the projection.
        i2h_bias_initializer: initializes the bias for the input.
        h2h_bias_initializer: initializes the bias for the state.
        input_size: the number of inputs (default: inferred at the first call).
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def __init__(
        self, hidden_size: int, projection_size: int, i2h_weight_initializer: InitializerLike = None,
        h2h_weight_initializer: InitializerLike = None, h2r_weight_initializer: InitializerLike = None,
        i2h_bias_initializer: InitializerLike = "zeros", h2h_bias_initializer: InitializerLike = "zeros",
        input_size: int = 0, prefix: str | None = None, params: ParameterDict | None = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        self._hidden_size, self._projection_size = hidden_size, projection_size
        rows = 4 * hidden_size

        def get(name: str, shape: tuple[int, ...], init: InitializerLike) -> Any:
            return self.params.get(name, shape=shape, init=init, allow_deferred_init=True)

        self.i2h_weight = get("i2h_weight", (rows, input_size), i2h_weight_initializer)
        self.h2h_weight = get("h2h_weight", (rows, projection_size), h2h_weight_initializer)
        self.h2r_weight = get("h2r_weight", (projection_size, hidden_size), h2r_weight_initializer)
        self.i2h_bias = get("i2h_bias", (rows,), i2h_bias_initializer)
        self.h2h_bias = get("h2h_bias", (rows,), h2h_bias_initializer)

    def state_info(self, batch_size: int = 0) -> list[StateInfo]:
        """Return the shape and layout of each state."""
        lengths = (self._projection_size, self._hidden_size)
        return [{"shape": (batch_size, length), "__layout__": "NC"} for length in lengths]

    def _alias(self) -> str:
        return "lstmp"

    def __repr__(self) -> str:
        rows, inputs = self.i2h_weight.shape
        return f"{type(self).__name__}({inputs or None} -> {rows} -> {self._projection_size})"

    def hybrid_forward(
        self, F: Functions, inputs: Tensor, states: Tensors, i2h_weight: Tensor, h2h_weight: Tensor, h2r_weight: Tensor,
        i2h_bias: Tensor, h2h_bias: Tensor,
    ) -> StepResult:  # fmt: skip
        prefix, rows = f"t{self._counter}_", 4 * self._hidden_size
        i2h = F.FullyConnected(inputs, i2h_weight, i2h_bias, num_hidden=rows, name=prefix + "i2h")
        h2h = F.FullyConnected(states[0], h2h_weight, h2h_bias, num_hidden=rows, name=prefix + "h2h")
        step = cell_steps.CellStep(F, prefix, partial(F.Activation, act_type="tanh"), out=f"{prefix}hidden")
        hidden, (_, memory) = cell_steps.lstm(step, i2h, h2h, states)
        output = F.FullyConnected(
            hidden, h2r_weight, no_bias=True, num_hidden=self._projection_size, name=prefix + "out"
        )
        return output, [output, memory]
