"""The standard cells: Elman, LSTM, GRU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, cast

from flowmx import initializer as init
from flowmx import symbol as sym
from flowmx.gluon.rnn import cell_steps
from flowmx.ops.registry.tensors import Tensor
from flowmx.rnn.base_cell import BaseRNNCell, RNNParams, StepResult
from flowmx.symbol import Symbol


class GatedCell(BaseRNNCell):
    """A cell that transforms its input and its first state into all gates at once.

    Args:
        num_hidden: the number of units.
        prefix: the prefix of names.
        params: parameters to share with other cells.
        **initializers: initializers of the parameters, such as ``i2h_bias``.
    """

    kind: ClassVar[cell_steps.CellKind]
    _activation: Any = "tanh"
    _axis = 1
    _inner = ""

    def __init__(self, num_hidden: int, prefix: str, params: RNNParams | None, **initializers: object) -> None:
        super().__init__(prefix, params)
        self._num_hidden = num_hidden
        self._iW, self._hW, self._iB, self._hB = (
            self.params.get(name, init=initializers.get(name))
            for name in ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
        )

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [{"shape": (0, self._num_hidden), "__layout__": "NC"} for _ in range(self.kind.states)]

    @property
    def _gate_names(self) -> tuple[str, ...]:
        return self.kind.gates

    def _transform(self, inputs: Any, state: Any, name: str) -> tuple[Symbol, Symbol]:
        rows = self._num_hidden * len(self._gate_names)
        i2h = sym.FullyConnected(inputs, self._iW, self._iB, num_hidden=rows, name=f"{name}i2h")
        h2h = sym.FullyConnected(state, self._hW, self._hB, num_hidden=rows, name=f"{name}h2h")
        return i2h, h2h

    def __call__(self, inputs: object, states: list[Any]) -> StepResult:
        name = self._step_name()
        i2h, h2h = self._transform(inputs, states[0], name)
        act = partial(self._get_activation, activation=self._activation)
        step = cell_steps.CellStep(
            sym, name + self._inner, cast("Callable[..., Tensor]", act), out=f"{name}out", axis=self._axis
        )
        return cast("StepResult", self.kind.step(step, cast("Tensor", i2h), cast("Tensor", h2h), states))


class RNNCell(GatedCell):
    """``output = activation(i2h(input) + h2h(state))`` (Elman).

    Args:
        num_hidden: the number of units.
        activation: the name of an activation, or a function of symbols.
        prefix: the prefix of names.
        params: parameters to share with other cells.
    """

    kind = cell_steps.ELMAN

    def __init__(
        self, num_hidden: int, activation: object = "tanh", prefix: str = "rnn_", params: RNNParams | None = None
    ) -> None:
        super().__init__(num_hidden, prefix, params)
        self._activation = activation


class LSTMCell(GatedCell):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), with a forget gate.

    The states are the hidden state and the cell state.

    Args:
        num_hidden: the number of units.
        prefix: the prefix of names.
        params: parameters to share with other cells.
        forget_bias: the initial bias of the forget gates.
    """

    kind = cell_steps.LSTM

    def __init__(
        self, num_hidden: int, prefix: str = "lstm_", params: RNNParams | None = None, forget_bias: float = 1.0
    ) -> None:
        super().__init__(num_hidden, prefix, params, i2h_bias=init.LSTMBias(forget_bias=forget_bias))


class GRUCell(GatedCell):
    """Gated recurrent unit (Cho et al. 2014), in cuDNN's form: the reset gate acts on the transformed state.

    Args:
        num_hidden: the number of units.
        prefix: the prefix of names.
        params: parameters to share with other cells.
    """

    kind = cell_steps.GRU
    _inner = "_"

    def __init__(self, num_hidden: int, prefix: str = "gru_", params: RNNParams | None = None) -> None:
        super().__init__(num_hidden, prefix, params)

    def _transform(self, inputs: object, state: object, name: str) -> tuple[Symbol, Symbol]:
        return super()._transform(inputs, state, name + self._inner)
