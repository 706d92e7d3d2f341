"""The usual recurrent cells."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from flowmx.gluon.rnn import fused, sequences, steps
from flowmx.gluon.rnn.recurrent import HybridRecurrentCell
from flowmx.ndarray import NDArray, core
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.sparse.shapes import SparseShape

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]

_AT_ONCE = (FLOAT32, np.dtype(np.float64))
"""The dtypes of which a step is one operator: of 16 bits each operator rounds by itself."""


class _GatedCell(HybridRecurrentCell):
    """A cell that transforms its input and its hidden state into so many gates."""

    kind: ClassVar[steps.CellKind]

    def __init__(
        self, hidden_size: int, i2h_weight_initializer: Any = None, h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros", h2h_bias_initializer: Any = "zeros", input_size: int = 0,
        prefix: str | None = None, params: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        self._hidden_size = hidden_size
        rows = len(self.kind.gates) * hidden_size

        def get(name: str, shape: tuple[int, ...], init: Any) -> Any:
            return self.params.get(name, shape=shape, init=init, allow_deferred_init=True)

        self.i2h_weight = get("i2h_weight", (rows, input_size), i2h_weight_initializer)
        self.h2h_weight = get("h2h_weight", (rows, hidden_size), h2h_weight_initializer)
        self.i2h_bias = get("i2h_bias", (rows,), i2h_bias_initializer)
        self.h2h_bias = get("h2h_bias", (rows,), h2h_bias_initializer)

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The shape and layout of each state."""
        return [{"shape": (batch_size, self._hidden_size), "__layout__": "NC"} for _ in range(self.kind.states)]

    def __repr__(self) -> str:
        rows, inputs = self.i2h_weight.shape
        return f"{type(self).__name__}({inputs or None} -> {rows}{self._shown_activation()})"

    def _shown_activation(self) -> str:
        return ""

    def _mode(self) -> str | None:
        """The mode of operator ``RNN`` that computes this kind of cell, or None where there is none."""
        raise NotImplementedError

    def unroll(
        self, length: int, inputs: Any, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:  # fmt: skip
        """Call the cell for each step; see ``RecurrentCell.unroll``. On arrays it is one operator for all steps."""
        sequences.check_length(inputs, length, layout)
        weights = self._fusible(inputs)
        if weights is None:
            return super().unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        self.reset()
        self._counter = length - 1
        states = sequences.zero_states(self.begin_state, inputs, layout) if begin_state is None else begin_state
        return fused.unrolled(self._mode() or "", weights, states, inputs, layout, merge_outputs, valid_length)

    def _fusible(self, inputs: Any) -> list[NDArray] | None:
        """The arrays of its weights, where steps need not be made one by one; None where they must."""
        first = inputs if isinstance(inputs, sequences.Leaf) else inputs[0]
        own = type(self).__module__ == __name__ and not self._forward_hooks and not self._forward_pre_hooks
        if not own or self._mode() is None or not isinstance(first, NDArray) or self.i2h_weight._deferred is not None:
            return None
        params = (self.i2h_weight, self.h2h_weight, self.i2h_bias, self.h2h_bias)
        return [param.data(first.context) for param in params]

    def _activations(self) -> tuple[Any, Any]:
        """The activations of the cell and of its gates."""
        return "tanh", "sigmoid"

    def hybrid_forward(
        self, F: Any, inputs: Any, states: Any, i2h_weight: Any, h2h_weight: Any, i2h_bias: Any, h2h_bias: Any
    ) -> Any:
        t, rows = f"t{self._counter}_", len(self.kind.gates) * self._hidden_size
        i2h = F.FullyConnected(inputs, i2h_weight, i2h_bias, num_hidden=rows, name=f"{t}i2h")
        h2h = F.FullyConnected(states[0], h2h_weight, h2h_bias, num_hidden=rows, name=f"{t}h2h")
        at_once = self.kind.at_once
        if at_once is not None and self._is_one_operator(i2h, h2h, states):
            return at_once(i2h, h2h, states)
        act, gate = (partial(self._get_activation, F, activation=each) for each in self._activations())
        return self.kind.step(steps.CellStep(F, t, act, gate, named=True), i2h, h2h, states)

    def _is_one_operator(self, i2h: Any, h2h: Any, states: Sequence[Any]) -> bool:
        """Tell whether a step on these arrays is one operator, from its products on; graphs have MXNet's operators.

        Arrays that do not fit together are left to those, which say so.
        """
        return (
            isinstance(i2h, NDArray)
            and self._activations() == ("tanh", "sigmoid")
            and type(self)._get_activation is HybridRecurrentCell._get_activation
            and core.casting is None
            and i2h._dtype in _AT_ONCE
            and len(i2h._shape) == 2
            and h2h._shape == i2h._shape
            and all(
                each._dtype is i2h._dtype
                and each._shape == (i2h._shape[0], self._hidden_size)
                and not isinstance(each._shape, SparseShape)
                for each in states
            )
        )


class RNNCell(_GatedCell):
    """``output = activation(i2h(input) + h2h(state))`` (Elman).

    Args:
        hidden_size: the number of units.
        activation: its name, or a block.
        i2h_weight_initializer: of the weight for the input.
        h2h_weight_initializer: of the weight for the state.
        i2h_bias_initializer: of the bias for the input.
        h2h_bias_initializer: of the bias for the state.
        input_size: the number of inputs (default: seen at the first call).
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    kind = steps.ELMAN

    def __init__(
        self, hidden_size: int, activation: Any = "tanh", i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None, i2h_bias_initializer: Any = "zeros", h2h_bias_initializer: Any = "zeros",
        input_size: int = 0, prefix: str | None = None, params: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            hidden_size, i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer,
            input_size, prefix, params,
        )  # fmt: skip
        self._activation = activation

    def _alias(self) -> str:
        return "rnn"

    def _mode(self) -> str | None:
        return f"rnn_{self._activation}" if self._activation in ("tanh", "relu") else None

    def _shown_activation(self) -> str:
        return f", {self._activation}"

    def _activations(self) -> tuple[Any, Any]:
        return self._activation, "sigmoid"


class LSTMCell(_GatedCell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997); gates in the order input, forget, cell, output.

    Args:
        hidden_size: the number of units.
        i2h_weight_initializer: of the weight for the input.
        h2h_weight_initializer: of the weight for the state.
        i2h_bias_initializer: of the bias for the input.
        h2h_bias_initializer: of the bias for the state.
        input_size: the number of inputs (default: seen at the first call).
        prefix: as for ``Block``.
        params: as for ``Block``.
        activation: that of the cell, a name or a block.
        recurrent_activation: that of the gates.
    """

    kind = steps.LSTM

    def __init__(
        self, hidden_size: int, i2h_weight_initializer: Any = None, h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros", h2h_bias_initializer: Any = "zeros", input_size: int = 0,
        prefix: str | None = None, params: Any = None, activation: Any = "tanh", recurrent_activation: Any = "sigmoid",
    ) -> None:  # fmt: skip
        super().__init__(
            hidden_size, i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer,
            input_size, prefix, params,
        )  # fmt: skip
        self._activation, self._recurrent_activation = activation, recurrent_activation

    def _alias(self) -> str:
        return "lstm"

    def _mode(self) -> str | None:
        return "lstm" if self._activations() == ("tanh", "sigmoid") else None

    def _activations(self) -> tuple[Any, Any]:
        return self._activation, self._recurrent_activation


class GRUCell(_GatedCell):
    """The gated recurrent unit as cuDNN has it (Cho et al., 2014); gates in the order reset, update, new.

    Args:
        hidden_size: the number of units.
        i2h_weight_initializer: of the weight for the input.
        h2h_weight_initializer: of the weight for the state.
        i2h_bias_initializer: of the bias for the input.
        h2h_bias_initializer: of the bias for the state.
        input_size: the number of inputs (default: seen at the first call).
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    kind = steps.GRU

    def _alias(self) -> str:
        return "gru"

    def _mode(self) -> str | None:
        return "gru"
