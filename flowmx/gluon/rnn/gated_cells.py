"""The standard recurrent cells."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.products import fully_connected
from flowmx.gluon.rnn import cell_steps, fused_unroll, sequences
from flowmx.gluon.rnn.cell_steps import StateInfo, StepResult, Unrolled
from flowmx.gluon.rnn.recurrent_cell import HybridRecurrentCell, unrolls
from flowmx.initializer import InitializerLike
from flowmx.ndarray import NDArray, core
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.tensors import Functions, Tensor, Tensors
from flowmx.ops.sparse.shapes import SparseShape
from flowmx.overrides import is_replaced

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]

_FUSED_DTYPES = (FLOAT32, np.dtype(np.float64))
"""The dtypes for which a step is one operator. With 16 bits, separate operators round their results."""


class _GatedCell(HybridRecurrentCell):
    """A cell that transforms its input and its hidden state into gates."""

    kind: ClassVar[cell_steps.CellKind]

    def __init__(
        self, hidden_size: int, i2h_weight_initializer: InitializerLike = None,
        h2h_weight_initializer: InitializerLike = None, i2h_bias_initializer: InitializerLike = "zeros",
        h2h_bias_initializer: InitializerLike = "zeros", input_size: int = 0, prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        self._hidden_size = hidden_size
        rows = len(self.kind.gates) * hidden_size

        def get(name: str, shape: tuple[int, ...], init: InitializerLike) -> Any:
            return self.params.get(name, shape=shape, init=init, allow_deferred_init=True)

        self.i2h_weight = get("i2h_weight", (rows, input_size), i2h_weight_initializer)
        self.h2h_weight = get("h2h_weight", (rows, hidden_size), h2h_weight_initializer)
        self.i2h_bias = get("i2h_bias", (rows,), i2h_bias_initializer)
        self.h2h_bias = get("h2h_bias", (rows,), h2h_bias_initializer)

    def state_info(self, batch_size: int = 0) -> list[StateInfo]:
        """Return the shape and layout of each state."""
        return [{"shape": (batch_size, self._hidden_size), "__layout__": "NC"} for _ in range(self.kind.states)]

    def __repr__(self) -> str:
        rows, inputs = self.i2h_weight.shape
        return f"{type(self).__name__}({inputs or None} -> {rows}{self._activation_repr()})"

    def _activation_repr(self) -> str:
        return ""

    def _mode(self) -> str | None:
        """Return the mode of operator ``RNN`` that computes this kind of cell, or None if the operator cannot."""
        raise NotImplementedError

    @unrolls
    def unroll(
        self, length: int, inputs: object, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: object = None,
    ) -> Unrolled:  # fmt: skip
        """Call the cell for each step; see ``RecurrentCell.unroll``. On arrays, one operator computes all steps."""
        sequences.check_length(inputs, length, layout)
        weights = self._fusible_weights(inputs)
        if weights is None:
            return super().unroll(length, inputs, begin_state, layout, merge_outputs, valid_length)
        self.reset()
        self._counter = length - 1
        states = sequences.zero_states(self.begin_state, inputs, layout) if begin_state is None else begin_state
        return fused_unroll.unroll(self._mode() or "", weights, states, inputs, layout, merge_outputs, valid_length)

    def _fusible_weights(self, inputs: Any) -> list[NDArray] | None:
        """Return the arrays of the weights if all steps can be one operator, else None."""
        first = inputs if isinstance(inputs, sequences.Leaf) else inputs[0]
        is_builtin = type(self).__module__ == __name__ and not self._forward_hooks and not self._forward_pre_hooks
        is_builtin = is_builtin and not any(is_replaced(self, name, method) for name, method in _METHODS.items())
        is_fusible = is_builtin and self._mode() is not None and isinstance(first, NDArray)
        if not is_fusible or self.i2h_weight._deferred is not None:
            return None
        params = (self.i2h_weight, self.h2h_weight, self.i2h_bias, self.h2h_bias)
        return [param.data(first.context) for param in params]

    def _activations(self) -> tuple[Any, Any]:
        """Return the activations of the cell and of its gates."""
        return "tanh", "sigmoid"

    def hybrid_forward(
        self,
        F: Functions,
        inputs: Tensor,
        states: Tensors,
        i2h_weight: Tensor,
        h2h_weight: Tensor,
        i2h_bias: Tensor,
        h2h_bias: Tensor,
    ) -> StepResult:
        prefix, rows = f"t{self._counter}_", len(self.kind.gates) * self._hidden_size
        i2h = fully_connected(F, inputs, i2h_weight, i2h_bias, rows, name=f"{prefix}i2h")
        h2h = fully_connected(F, states[0], h2h_weight, h2h_bias, rows, name=f"{prefix}h2h")
        fused_step = self.kind.fused_step
        if fused_step is not None and self._can_fuse(i2h, h2h, states):
            return fused_step(i2h, h2h, states)
        act, gate = (partial(self._get_activation, F, activation=activation) for activation in self._activations())
        return self.kind.step(cell_steps.CellStep(F, prefix, act, gate, named=True), i2h, h2h, states)

    def _can_fuse(self, i2h: Any, h2h: Any, states: Sequence[Any]) -> bool:
        """Return whether one operator computes a step after its matrix products; graphs use MXNet's operators.

        Arrays of wrong shapes use separate operators, which raise the errors.
        """
        return (
            isinstance(i2h, NDArray)
            and self._activations() == ("tanh", "sigmoid")
            and not is_replaced(self, "_get_activation", _METHODS["_get_activation"])
            and core.casting is None
            and i2h.element_type in _FUSED_DTYPES
            and len(i2h.dims) == 2
            and h2h.dims == i2h.dims
            and all(
                state.element_type is i2h.element_type
                and state.dims == (i2h.dims[0], self._hidden_size)
                and not isinstance(state.dims, SparseShape)
                for state in states
            )
        )


_METHODS = {name: getattr(_GatedCell, name) for name in ("__call__", "_get_activation", "forward", "hybrid_forward")}


class RNNCell(_GatedCell):
    """``output = activation(i2h(input) + h2h(state))`` (Elman).

    Args:
        hidden_size: the number of units.
        activation: the name of an activation, or a block.
        i2h_weight_initializer: the initializer of the input's weight.
        h2h_weight_initializer: the initializer of the state's weight.
        i2h_bias_initializer: the initializer of the input's bias.
        h2h_bias_initializer: the initializer of the state's bias.
        input_size: the number of inputs (default: inferred at the first call).
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    kind = cell_steps.ELMAN

    def __init__(
        self, hidden_size: int, activation: object = "tanh", i2h_weight_initializer: InitializerLike = None,
        h2h_weight_initializer: InitializerLike = None, i2h_bias_initializer: InitializerLike = "zeros",
        h2h_bias_initializer: InitializerLike = "zeros", input_size: int = 0, prefix: str | None = None,
        params: ParameterDict | None = None,
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

    def _activation_repr(self) -> str:
        return f", {self._activation}"

    def _activations(self) -> tuple[Any, Any]:
        return self._activation, "sigmoid"


class LSTMCell(_GatedCell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997); gates in the order input, forget, cell, output.

    Args:
        hidden_size: the number of units.
        i2h_weight_initializer: the initializer of the input's weight.
        h2h_weight_initializer: the initializer of the state's weight.
        i2h_bias_initializer: the initializer of the input's bias.
        h2h_bias_initializer: the initializer of the state's bias.
        input_size: the number of inputs (default: inferred at the first call).
        prefix: as for ``Block``.
        params: as for ``Block``.
        activation: the cell's activation, a name or a block.
        recurrent_activation: the activation of the gates.
    """

    kind = cell_steps.LSTM

    def __init__(
        self, hidden_size: int, i2h_weight_initializer: InitializerLike = None,
        h2h_weight_initializer: InitializerLike = None, i2h_bias_initializer: InitializerLike = "zeros",
        h2h_bias_initializer: InitializerLike = "zeros", input_size: int = 0, prefix: str | None = None,
        params: ParameterDict | None = None, activation: object = "tanh", recurrent_activation: object = "sigmoid",
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
    """The gated recurrent unit in cuDNN's form (Cho et al., 2014); gates in the order reset, update, new.

    Args:
        hidden_size: the number of units.
        i2h_weight_initializer: the initializer of the input's weight.
        h2h_weight_initializer: the initializer of the state's weight.
        i2h_bias_initializer: the initializer of the input's bias.
        h2h_bias_initializer: the initializer of the state's bias.
        input_size: the number of inputs (default: inferred at the first call).
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    kind = cell_steps.GRU

    def _alias(self) -> str:
        return "gru"

    def _mode(self) -> str | None:
        return "gru"
