"""Cells whose transformations are convolutions (Shi et al. 2015)."""

from __future__ import annotations

import functools
from typing import Any

from flowmx import symbol as sym
from flowmx.gluon.rnn import cell_steps
from flowmx.rnn.base_cell import RNNParams
from flowmx.rnn.standard_cells import GatedCell
from flowmx.symbol import Symbol

_LEAKY = functools.partial(sym.LeakyReLU, act_type="leaky", slope=0.2)
_Pair = tuple[int, int]


class BaseConvRNNCell(GatedCell):
    """Base class of cells that transform input and state by convolutions.

    Args:
        input_shape: the shape of a step's input, including the batch axis.
        num_hidden: the number of channels of the states.
        h2h_kernel: the kernel size of the state's convolution; odd numbers.
        h2h_dilate: its dilation.
        i2h_kernel: the kernel size of the input's convolution.
        i2h_stride: its stride.
        i2h_pad: its padding.
        i2h_dilate: its dilation.
        i2h_weight_initializer: the initializer of the input's weight.
        h2h_weight_initializer: the initializer of the state's weight.
        i2h_bias_initializer: the initializer of the input's bias.
        h2h_bias_initializer: the initializer of the state's bias.
        activation: the name of an activation, or a function of symbols.
        prefix: the prefix of names (default: by class).
        params: parameters to share with other cells.
        conv_layout: the layout of input and states.

    Raises:
        ValueError: ``h2h_kernel`` has an even number, which would change the shape of the states.
    """

    _prefix = ""

    def __init__(
        self, input_shape: tuple[int, ...], num_hidden: int, h2h_kernel: _Pair = (3, 3), h2h_dilate: _Pair = (1, 1),
        i2h_kernel: _Pair = (3, 3), i2h_stride: _Pair = (1, 1), i2h_pad: _Pair = (1, 1), i2h_dilate: _Pair = (1, 1),
        i2h_weight_initializer: object = None, h2h_weight_initializer: object = None,
        i2h_bias_initializer: object = "zeros", h2h_bias_initializer: object = "zeros", activation: object = _LEAKY,
        prefix: str | None = None, params: RNNParams | None = None, conv_layout: str = "NCHW",
    ) -> None:  # fmt: skip
        super().__init__(
            num_hidden, self._prefix if prefix is None else prefix, params, i2h_weight=i2h_weight_initializer,
            h2h_weight=h2h_weight_initializer, i2h_bias=i2h_bias_initializer, h2h_bias=h2h_bias_initializer,
        )  # fmt: skip
        if any(size % 2 == 0 for size in h2h_kernel):
            raise ValueError(f"{type(self).__name__}: h2h_kernel is {h2h_kernel}, expected odd numbers")
        self._activation = activation
        self._conv_layout, self._axis = conv_layout, conv_layout.find("C")
        pad = tuple(step * (size - 1) // 2 for size, step in zip(h2h_kernel, h2h_dilate, strict=True))
        self._h2h: dict[str, Any] = {"kernel": h2h_kernel, "dilate": h2h_dilate, "pad": pad, "stride": (1, 1)}
        self._i2h: dict[str, Any] = {"kernel": i2h_kernel, "dilate": i2h_dilate, "pad": i2h_pad, "stride": i2h_stride}
        self._state_shape = self._shape_of_state(input_shape)

    def _shape_of_state(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        output = sym.Convolution(
            data=sym.Variable("data"), num_filter=self._num_hidden, layout=self._conv_layout, **self._i2h
        )
        shapes = output.infer_shape(data=input_shape)[1]
        assert shapes is not None, "the shape of a convolution is inferred from that of its data"
        return (0, *shapes[0][1:])

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [{"shape": self._state_shape, "__layout__": self._conv_layout} for _ in range(self.kind.states)]

    def _transform(self, inputs: Any, state: Any, name: str) -> tuple[Symbol, Symbol]:
        filters = self._num_hidden * len(self._gate_names)
        common: dict[str, Any] = {"num_filter": filters, "layout": self._conv_layout}
        i2h = sym.Convolution(inputs, self._iW, self._iB, name=f"{name}i2h", **common, **self._i2h)
        h2h = sym.Convolution(state, self._hW, self._hB, name=f"{name}h2h", **common, **self._h2h)
        return i2h, h2h


class ConvRNNCell(BaseConvRNNCell):
    """An :class:`RNNCell` with convolutions; see :class:`BaseConvRNNCell`."""

    kind = cell_steps.ELMAN
    _prefix = "ConvRNN_"


class ConvLSTMCell(BaseConvRNNCell):
    """An :class:`LSTMCell` with convolutions; see :class:`BaseConvRNNCell`."""

    kind = cell_steps.LSTM
    _prefix = "ConvLSTM_"


class ConvGRUCell(BaseConvRNNCell):
    """A :class:`GRUCell` with convolutions; see :class:`BaseConvRNNCell`."""

    kind = cell_steps.GRU
    _prefix, _inner = "ConvGRU_", "_"
