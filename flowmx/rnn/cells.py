"""The usual cells: Elman's, LSTM, GRU."""

from __future__ import annotations

from typing import Any

from flowmx import initializer as init
from flowmx import symbol as sym
from flowmx.rnn.base import BaseRNNCell, RNNParams
from flowmx.symbol import Symbol


class _Gated(BaseRNNCell):
    """A cell that transforms its input and its first state into all gates at once."""

    _states = 1

    def __init__(self, num_hidden: int, prefix: str, params: RNNParams | None, bias_init: Any = None) -> None:
        super().__init__(prefix, params)
        self._num_hidden = num_hidden
        get = self.params.get
        self._iW, self._hW = get("i2h_weight"), get("h2h_weight")
        self._iB = get("i2h_bias") if bias_init is None else get("i2h_bias", init=bias_init)
        self._hB = get("h2h_bias")

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [{"shape": (0, self._num_hidden), "__layout__": "NC"} for _ in range(self._states)]

    def _transformed(self, inputs: Any, state: Any, name: str) -> tuple[Symbol, Symbol]:
        rows = self._num_hidden * len(self._gate_names)
        i2h = sym.FullyConnected(inputs, self._iW, self._iB, num_hidden=rows, name=f"{name}i2h")
        h2h = sym.FullyConnected(state, self._hW, self._hB, num_hidden=rows, name=f"{name}h2h")
        return i2h, h2h


class RNNCell(_Gated):
    """``output = activation(i2h(input) + h2h(state))`` (Elman).

    Args:
        num_hidden: the number of units.
        activation: its name, or a function of symbols.
        prefix: of names.
        params: those to share with other cells.
    """

    def __init__(
        self, num_hidden: int, activation: Any = "tanh", prefix: str = "rnn_", params: RNNParams | None = None
    ) -> None:
        super().__init__(num_hidden, prefix, params)
        self._activation = activation

    @property
    def _gate_names(self) -> tuple[str, ...]:
        return ("",)

    def __call__(self, inputs: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        name = self._step_name()
        i2h, h2h = self._transformed(inputs, states[0], name)
        output = self._get_activation(i2h + h2h, self._activation, name=f"{name}out")
        return output, [output]


class LSTMCell(_Gated):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), with a forget gate; states are output and memory.

    Args:
        num_hidden: the number of units.
        prefix: of names.
        params: those to share with other cells.
        forget_bias: the initial bias of the forget gates.
    """

    _states = 2

    def __init__(
        self, num_hidden: int, prefix: str = "lstm_", params: RNNParams | None = None, forget_bias: float = 1.0
    ) -> None:
        super().__init__(num_hidden, prefix, params, init.LSTMBias(forget_bias=forget_bias))

    @property
    def _gate_names(self) -> tuple[str, ...]:
        return ("_i", "_f", "_c", "_o")

    def __call__(self, inputs: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        name = self._step_name()
        i2h, h2h = self._transformed(inputs, states[0], name)
        return lstm_step(i2h + h2h, states[1], name, 1, lambda x, **names: sym.Activation(x, act_type="tanh", **names))


class GRUCell(_Gated):
    """Gated recurrent unit (Cho et al. 2014), in cuDNN's form: the reset gate acts on the transformed state.

    Args:
        num_hidden: the number of units.
        prefix: of names.
        params: those to share with other cells.
    """

    def __init__(self, num_hidden: int, prefix: str = "gru_", params: RNNParams | None = None) -> None:
        super().__init__(num_hidden, prefix, params)

    @property
    def _gate_names(self) -> tuple[str, ...]:
        return ("_r", "_z", "_o")

    def __call__(self, inputs: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        name = self._step_name()
        i2h, h2h = self._transformed(inputs, states[0], f"{name}_")
        return gru_step(i2h, h2h, states[0], name, 1, lambda x, **names: sym.Activation(x, act_type="tanh", **names))


def lstm_step(gates: Any, memory: Any, name: str, axis: int, activation: Any) -> tuple[Any, list[Any]]:
    """Output and states of an LSTM, from its gates side by side on an axis."""
    parts = sym.SliceChannel(gates, num_outputs=4, axis=axis, name=f"{name}slice")
    enter = sym.Activation(parts[0], act_type="sigmoid", name=f"{name}i")
    keep = sym.Activation(parts[1], act_type="sigmoid", name=f"{name}f")
    change = activation(parts[2], name=f"{name}c")
    leave = sym.Activation(parts[3], act_type="sigmoid", name=f"{name}o")
    memory = sym.elemwise_add(keep * memory, enter * change, name=f"{name}state")
    output = sym.elemwise_mul(leave, activation(memory), name=f"{name}out")
    return output, [output, memory]


def gru_step(i2h: Any, h2h: Any, state: Any, name: str, axis: int, activation: Any) -> tuple[Any, list[Any]]:
    """Output and state of a GRU, from its gates side by side on an axis."""
    i_reset, i_update, i_change = sym.SliceChannel(i2h, num_outputs=3, axis=axis, name=f"{name}_i2h_slice")
    h_reset, h_update, h_change = sym.SliceChannel(h2h, num_outputs=3, axis=axis, name=f"{name}_h2h_slice")
    reset = sym.Activation(i_reset + h_reset, act_type="sigmoid", name=f"{name}_r_act")
    update = sym.Activation(i_update + h_update, act_type="sigmoid", name=f"{name}_z_act")
    change = activation(i_change + reset * h_change, name=f"{name}_h_act")
    output = sym.elemwise_add((1.0 - update) * change, update * state, name=f"{name}out")
    return output, [output]
