"""Cells with dropout that stays the same over time, and cells that project their outputs."""

from __future__ import annotations

from functools import partial
from typing import Any

from flowmx.gluon.rnn import BidirectionalCell, HybridRecurrentCell, RecurrentCell, sequences, steps
from flowmx.gluon.rnn.modifiers import _RememberingCell, unmodified

__all__ = ["LSTMPCell", "VariationalDropoutCell"]


class VariationalDropoutCell(_RememberingCell):
    """Dropout whose decisions are the same at all steps, until :meth:`reset`.

    Gal and Ghahramani, A Theoretically Grounded Application of Dropout in Recurrent Neural Networks, NIPS 2016.

    Args:
        base_cell: the cell inside.
        drop_inputs: the part of the inputs that becomes zero.
        drop_states: the part of the first state that does.
        drop_outputs: the part of the outputs that does.

    Raises:
        ValueError: states of a bidirectional cell, which makes no single steps, were to be dropped.
    """

    def __init__(
        self, base_cell: RecurrentCell, drop_inputs: float = 0.0, drop_states: float = 0.0, drop_outputs: float = 0.0
    ) -> None:
        if drop_states and isinstance(base_cell, BidirectionalCell):
            raise ValueError(
                "VariationalDropoutCell: a BidirectionalCell makes no single steps, so its states can not be dropped: "
                "put the cells inside it in these"
            )
        super().__init__(base_cell)
        self.drop_inputs, self.drop_states, self.drop_outputs = drop_inputs, drop_states, drop_outputs
        self._masks: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p_out = {self.drop_outputs}, p_state = {self.drop_states})"

    def _alias(self) -> str:
        return "vardrop"

    def reset(self) -> None:
        """Forget the decisions too."""
        super().reset()
        self._masks = {}

    @property
    def drop_inputs_mask(self) -> Any:
        """The factors of the inputs since the last reset, or None."""
        return self._masks.get("inputs")

    @property
    def drop_states_mask(self) -> Any:
        """The factors of the first state since the last reset, or None."""
        return self._masks.get("states")

    @property
    def drop_outputs_mask(self) -> Any:
        """The factors of the outputs since the last reset, or None."""
        return self._masks.get("outputs")

    def _dropped(self, F: Any, which: str, rate: float, values: Any) -> Any:
        if not rate:
            return values
        if which not in self._masks:
            self._masks[which] = F.Dropout(F.ones_like(values), p=rate)
        return values * self._masks[which]

    def hybrid_forward(self, F: Any, inputs: Any, states: Any) -> Any:
        first = self._dropped(F, "states", self.drop_states, states[0]) if states else None
        inputs = self._dropped(F, "inputs", self.drop_inputs, inputs)
        output, following = self.base_cell(inputs, [first, *states[1:]] if states else states)
        return self._dropped(F, "outputs", self.drop_outputs, output), following

    def unroll(
        self, length: int, inputs: Any, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:  # fmt: skip
        """Unroll the cell inside; without dropout of states, inputs and outputs are dropped as whole sequences."""
        if self.drop_states:
            return super().unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        self.reset()
        whole = inputs if isinstance(inputs, sequences.Leaf) else sequences.merged(inputs, layout)
        F, time = sequences.namespace(whole), sequences.time_axis(layout)
        states = sequences.zero_states(self.begin_state, whole, layout) if begin_state is None else begin_state
        if self.drop_inputs:
            whole = F.Dropout(whole, p=self.drop_inputs, axes=(time,))
        with unmodified(self.base_cell) as cell:
            outputs, states = cell.unroll(length, whole, states, layout, True, valid_length)
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
        i2h_weight_initializer: of the weight for the input.
        h2h_weight_initializer: of the weight for the state.
        h2r_weight_initializer: of the weight of the projection.
        i2h_bias_initializer: of the bias for the input.
        h2h_bias_initializer: of the bias for the state.
        input_size: the number of inputs (default: seen at the first call).
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def __init__(
        self, hidden_size: int, projection_size: int, i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None, h2r_weight_initializer: Any = None, i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros", input_size: int = 0, prefix: str | None = None, params: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        self._hidden_size, self._projection_size = hidden_size, projection_size
        rows = 4 * hidden_size

        def get(name: str, shape: tuple[int, ...], init: Any) -> Any:
            return self.params.get(name, shape=shape, init=init, allow_deferred_init=True)

        self.i2h_weight = get("i2h_weight", (rows, input_size), i2h_weight_initializer)
        self.h2h_weight = get("h2h_weight", (rows, projection_size), h2h_weight_initializer)
        self.h2r_weight = get("h2r_weight", (projection_size, hidden_size), h2r_weight_initializer)
        self.i2h_bias = get("i2h_bias", (rows,), i2h_bias_initializer)
        self.h2h_bias = get("h2h_bias", (rows,), h2h_bias_initializer)

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The shape and layout of each state."""
        lengths = (self._projection_size, self._hidden_size)
        return [{"shape": (batch_size, length), "__layout__": "NC"} for length in lengths]

    def _alias(self) -> str:
        return "lstmp"

    def __repr__(self) -> str:
        rows, inputs = self.i2h_weight.shape
        return f"{type(self).__name__}({inputs or None} -> {rows} -> {self._projection_size})"

    def hybrid_forward(
        self, F: Any, inputs: Any, states: Any, i2h_weight: Any, h2h_weight: Any, h2r_weight: Any, i2h_bias: Any,
        h2h_bias: Any,
    ) -> Any:  # fmt: skip
        t, rows = f"t{self._counter}_", 4 * self._hidden_size
        i2h = F.FullyConnected(inputs, i2h_weight, i2h_bias, num_hidden=rows, name=t + "i2h")
        h2h = F.FullyConnected(states[0], h2h_weight, h2h_bias, num_hidden=rows, name=t + "h2h")
        act = partial(F.Activation, act_type="tanh")
        hidden, (_, memory) = steps.lstm(steps.CellStep(F, t, act, out=f"{t}hidden"), i2h, h2h, states)
        projected = F.FullyConnected(hidden, h2r_weight, no_bias=True, num_hidden=self._projection_size, name=t + "out")
        return projected, [projected, memory]
