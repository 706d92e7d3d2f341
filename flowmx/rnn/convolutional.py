"""Cells whose transformations are convolutions (Shi et al. 2015)."""

from __future__ import annotations

import functools
from typing import Any

from flowmx import symbol as sym
from flowmx.rnn.base import BaseRNNCell, RNNParams
from flowmx.rnn.cells import gru_step, lstm_step
from flowmx.symbol import Symbol

_LEAKY = functools.partial(sym.LeakyReLU, act_type="leaky", slope=0.2)
_Pair = tuple[int, int]


class BaseConvRNNCell(BaseRNNCell):
    """Base of the cells that transform input and state by convolutions.

    Args:
        input_shape: of the input of one step, with a number for the batch too.
        num_hidden: channels of the states.
        h2h_kernel: of the convolution of the state; odd numbers.
        h2h_dilate: of the same.
        i2h_kernel: of the convolution of the input.
        i2h_stride: of the same.
        i2h_pad: of the same.
        i2h_dilate: of the same.
        i2h_weight_initializer: of its weight.
        h2h_weight_initializer: of the weight for the state.
        i2h_bias_initializer: of the bias for the input.
        h2h_bias_initializer: of the bias for the state.
        activation: its name, or a function of symbols.
        prefix: of names.
        params: those to share with other cells.
        conv_layout: of input and states.

    Raises:
        ValueError: an even ``h2h_kernel``, with which states would not keep their shape.
    """

    _states = 1

    def __init__(
        self, input_shape: tuple[int, ...], num_hidden: int, h2h_kernel: _Pair = (3, 3), h2h_dilate: _Pair = (1, 1),
        i2h_kernel: _Pair = (3, 3), i2h_stride: _Pair = (1, 1), i2h_pad: _Pair = (1, 1), i2h_dilate: _Pair = (1, 1),
        i2h_weight_initializer: Any = None, h2h_weight_initializer: Any = None, i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros", activation: Any = _LEAKY, prefix: str = "",
        params: RNNParams | None = None, conv_layout: str = "NCHW",
    ) -> None:  # fmt: skip
        super().__init__(prefix, params)
        if any(size % 2 == 0 for size in h2h_kernel):
            raise ValueError(f"{type(self).__name__}: h2h_kernel is {h2h_kernel}, expected odd numbers")
        self._num_hidden = num_hidden
        self._activation = activation
        self._conv_layout = conv_layout
        pad = tuple(step * (size - 1) // 2 for size, step in zip(h2h_kernel, h2h_dilate, strict=True))
        self._h2h: dict[str, Any] = {"kernel": h2h_kernel, "dilate": h2h_dilate, "pad": pad, "stride": (1, 1)}
        self._i2h: dict[str, Any] = {"kernel": i2h_kernel, "dilate": i2h_dilate, "pad": i2h_pad, "stride": i2h_stride}
        self._state_shape = self._shape_of_state(input_shape)
        get = self.params.get
        self._iW, self._hW = (
            get("i2h_weight", init=i2h_weight_initializer), get("h2h_weight", init=h2h_weight_initializer),
        )  # fmt: skip
        self._iB, self._hB = (
            get("i2h_bias", init=i2h_bias_initializer), get("h2h_bias", init=h2h_bias_initializer),
        )  # fmt: skip

    def _shape_of_state(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        made = sym.Convolution(
            data=sym.Variable("data"), num_filter=self._num_hidden, layout=self._conv_layout, **self._i2h
        )
        shapes = made.infer_shape(data=input_shape)[1]
        assert shapes is not None, "the shape of a convolution follows from that of its data"
        return (0, *shapes[0][1:])

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [{"shape": self._state_shape, "__layout__": self._conv_layout} for _ in range(self._states)]

    def _conv_forward(self, inputs: Any, states: list[Any], name: str) -> tuple[Symbol, Symbol]:
        filters = self._num_hidden * len(self._gate_names)
        common: dict[str, Any] = {"num_filter": filters, "layout": self._conv_layout}
        i2h = sym.Convolution(
            data=inputs, weight=self._iW, bias=self._iB, name=f"{name}i2h", **common, **self._i2h
        )  # fmt: skip
        h2h = sym.Convolution(
            data=states[0], weight=self._hW, bias=self._hB, name=f"{name}h2h", **common, **self._h2h
        )  # fmt: skip
        return i2h, h2h

    @property
    def _channels(self) -> int:
        return self._conv_layout.find("C")

    def _activated(self, inputs: Symbol, **names: Any) -> Symbol:
        return self._get_activation(inputs, self._activation, **names)


class ConvRNNCell(BaseConvRNNCell):
    """As :class:`RNNCell`, with convolutions; see :class:`BaseConvRNNCell`."""

    def __init__(self, input_shape: tuple[int, ...], num_hidden: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(input_shape, num_hidden, *args, **{"prefix": "ConvRNN_", **kwargs})

    @property
    def _gate_names(self) -> tuple[str, ...]:
        return ("",)

    def __call__(self, inputs: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        name = self._step_name()
        i2h, h2h = self._conv_forward(inputs, states, name)
        output = self._activated(i2h + h2h, name=f"{name}out")
        return output, [output]


class ConvLSTMCell(BaseConvRNNCell):
    """As :class:`LSTMCell`, with convolutions; see :class:`BaseConvRNNCell`."""

    _states = 2

    def __init__(self, input_shape: tuple[int, ...], num_hidden: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(input_shape, num_hidden, *args, **{"prefix": "ConvLSTM_", **kwargs})

    @property
    def _gate_names(self) -> tuple[str, ...]:
        return ("_i", "_f", "_c", "_o")

    def __call__(self, inputs: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        name = self._step_name()
        i2h, h2h = self._conv_forward(inputs, states, name)
        return lstm_step(i2h + h2h, states[1], name, self._channels, self._activated)


class ConvGRUCell(BaseConvRNNCell):
    """As :class:`GRUCell`, with convolutions; see :class:`BaseConvRNNCell`."""

    def __init__(self, input_shape: tuple[int, ...], num_hidden: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(input_shape, num_hidden, *args, **{"prefix": "ConvGRU_", **kwargs})

    @property
    def _gate_names(self) -> tuple[str, ...]:
        return ("_r", "_z", "_o")

    def __call__(self, inputs: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        name = self._step_name()
        i2h, h2h = self._conv_forward(inputs, states, name)
        return gru_step(i2h, h2h, states[0], name, self._channels, self._activated)
