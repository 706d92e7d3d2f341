"""Convolutional recurrent cells, for sequences of lines, images or volumes.

Each kind of cell has versions for one, two and three axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.rnn import HybridRecurrentCell, cell_steps
from flowmx.gluon.rnn.cell_steps import StateInfo, StepResult
from flowmx.initializer import InitializerLike
from flowmx.ops.registry.tensors import Functions, Tensor, Tensors

__all__ = [
    "Conv1DGRUCell", "Conv1DLSTMCell", "Conv1DRNNCell", "Conv2DGRUCell", "Conv2DLSTMCell", "Conv2DRNNCell",
    "Conv3DGRUCell", "Conv3DLSTMCell", "Conv3DRNNCell",
]  # fmt: skip

Lengths = int | Sequence[int]
_LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


class _ConvCell(HybridRecurrentCell):
    """A cell whose gates are convolutions of its input and state.

    Args:
        input_shape: the shape of one step of one sample, such as (channels, height, width).
        hidden_channels: the number of channels of outputs and states.
        i2h_kernel: the lengths of the kernel for the input, one number or one for each axis.
        h2h_kernel: the lengths of the kernel for the state; they must be odd.
        i2h_pad: zeros added at each side of the input. States are padded so that their lengths do not change.
        i2h_dilate: the distance between the elements of the kernel for the input.
        h2h_dilate: the distance between the elements of the kernel for the state.
        i2h_weight_initializer: initializes the weight for the input.
        h2h_weight_initializer: initializes the weight for the state.
        i2h_bias_initializer: initializes the bias for the input.
        h2h_bias_initializer: initializes the bias for the state.
        conv_layout: the order of the axes (default: channels after the batch).
        activation: the activation of the output, a name or a block.
        prefix: as for ``Block``.
        params: as for ``Block``.

    Raises:
        ValueError: a length or the layout is invalid.
    """

    axes: ClassVar[int]
    kind: ClassVar[cell_steps.CellKind]

    def __init__(
        self, input_shape: Sequence[int], hidden_channels: int, i2h_kernel: Lengths, h2h_kernel: Lengths,
        i2h_pad: Lengths = 0, i2h_dilate: Lengths = 1, h2h_dilate: Lengths = 1,
        i2h_weight_initializer: InitializerLike = None, h2h_weight_initializer: InitializerLike = None,
        i2h_bias_initializer: InitializerLike = "zeros", h2h_bias_initializer: InitializerLike = "zeros",
        conv_layout: str | None = None, activation: object = "tanh", prefix: str | None = None,
        params: ParameterDict | None = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        layout = _LAYOUTS[self.axes][0] if conv_layout is None else conv_layout
        if layout not in _LAYOUTS[self.axes]:
            raise ValueError(f"{type(self).__name__}: conv_layout is {layout!r}, expected {_LAYOUTS[self.axes]}")
        self._hidden_channels, self._conv_layout, self._activation = hidden_channels, layout, activation
        self._channel_axis = layout.index("C")
        self._i2h = self._geometry("i2h", i2h_kernel, i2h_dilate, i2h_pad)
        self._h2h = self._geometry("h2h", h2h_kernel, h2h_dilate, None)
        *lengths, channels = self._channels_last(tuple(input_shape))
        self._state_shape = self._layout_order((*self._output_lengths(lengths), hidden_channels))
        rows = len(self.kind.gates) * hidden_channels

        def get(name: str, shape: tuple[int, ...], init: InitializerLike) -> Any:
            return self.params.get(name, shape=shape, init=init, allow_deferred_init=True)

        i2h_shape = (rows, *self._layout_order((*self._i2h["kernel"], channels)))
        h2h_shape = (rows, *self._layout_order((*self._h2h["kernel"], hidden_channels)))
        self.i2h_weight = get("i2h_weight", i2h_shape, i2h_weight_initializer)
        self.h2h_weight = get("h2h_weight", h2h_shape, h2h_weight_initializer)
        self.i2h_bias = get("i2h_bias", (rows,), i2h_bias_initializer)
        self.h2h_bias = get("h2h_bias", (rows,), h2h_bias_initializer)

    def _geometry(self, group: str, kernel: Lengths, dilate: Lengths, pad: Lengths | None) -> dict[str, Any]:
        """Return the parameters of a convolution; without ``pad``, pad so that lengths do not change."""
        kernels, dilates = self._per_axis(f"{group}_kernel", kernel), self._per_axis(f"{group}_dilate", dilate)
        if pad is None and not all(length % 2 for length in kernels):
            raise ValueError(f"{type(self).__name__}: {group}_kernel is {kernels}, expected odd lengths")
        same_pads = tuple(d * (k - 1) // 2 for d, k in zip(dilates, kernels, strict=True))
        pads = same_pads if pad is None else self._per_axis(f"{group}_pad", pad)
        return {"kernel": kernels, "stride": (1,) * self.axes, "pad": pads, "dilate": dilates}

    def _per_axis(self, name: str, value: Lengths) -> tuple[int, ...]:
        lengths = (value,) * self.axes if isinstance(value, int) else tuple(value)
        if len(lengths) != self.axes:
            raise ValueError(f"{type(self).__name__}: {name} is {value!r}, expected a number or {self.axes} of them")
        return lengths

    def _output_lengths(self, lengths: Sequence[int]) -> list[int]:
        geometry = self._i2h
        parts = zip(lengths, geometry["kernel"], geometry["pad"], geometry["dilate"], strict=True)
        return [n + 2 * pad - dilate * (kernel - 1) if n else 0 for n, kernel, pad, dilate in parts]

    def _channels_last(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a sample with the channels at the end."""
        return (*shape[1:], shape[0]) if self._channel_axis == 1 else shape

    def _layout_order(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape with the channels at the end, in the order of the layout."""
        return (shape[-1], *shape[:-1]) if self._channel_axis == 1 else shape

    def state_info(self, batch_size: int = 0) -> list[StateInfo]:
        """Return the shape and layout of each state."""
        info = {"shape": (batch_size, *self._state_shape), "__layout__": self._conv_layout}
        return [dict(info) for _ in range(self.kind.states)]

    def __repr__(self) -> str:
        shape = self.i2h_weight.shape
        inputs = shape[1 if self._channel_axis == 1 else -1]
        return f"{type(self).__name__}({inputs or None} -> {shape[0]}, {self._activation}, {self._conv_layout})"

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
        prefix = f"t{self._counter}_"
        i2h, h2h = self._conv_forward(F, inputs, states, i2h_weight, h2h_weight, i2h_bias, h2h_bias, prefix)
        act = partial(self._get_activation, F, activation=self._activation)
        return self.kind.step(cell_steps.CellStep(F, prefix, act, axis=self._channel_axis), i2h, h2h, states)

    def _conv_forward(
        self, F: Functions, inputs: Tensor, states: Tensors, i2h_weight: Tensor, h2h_weight: Tensor, i2h_bias: Tensor,
        h2h_bias: Tensor, prefix: str,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Compute the convolutions of the input and of the first state for all gates."""
        i2h, h2h = (
            F.Convolution(
                data, weight, bias, layout=self._conv_layout, name=prefix + group,
                num_filter=len(self.kind.gates) * self._hidden_channels, **geometry,
            )
            for group, data, weight, bias, geometry in (
                ("i2h", inputs, i2h_weight, i2h_bias, self._i2h), ("h2h", states[0], h2h_weight, h2h_bias, self._h2h),
            )
        )  # fmt: skip
        return i2h, h2h


class _ConvRNN(_ConvCell):
    kind = cell_steps.ELMAN

    def _alias(self) -> str:
        return "conv_rnn"


class _ConvLSTM(_ConvCell):
    kind = cell_steps.LSTM

    def _alias(self) -> str:
        return "conv_lstm"


class _ConvGRU(_ConvCell):
    kind = cell_steps.GRU

    def _alias(self) -> str:
        return "conv_gru"


class Conv1DRNNCell(_ConvRNN):
    """Elman's cell with convolutions over one axis; all cells of this module take the same arguments."""

    axes = 1


class Conv2DRNNCell(_ConvRNN):
    """Elman's cell with convolutions over two axes."""

    axes = 2


class Conv3DRNNCell(_ConvRNN):
    """Elman's cell with convolutions over three axes."""

    axes = 3


class Conv1DLSTMCell(_ConvLSTM):
    """An LSTM with convolutions over one axis (Shi et al., Convolutional LSTM Network, NIPS 2015)."""

    axes = 1


class Conv2DLSTMCell(_ConvLSTM):
    """An LSTM with convolutions over two axes."""

    axes = 2


class Conv3DLSTMCell(_ConvLSTM):
    """An LSTM with convolutions over three axes."""

    axes = 3


class Conv1DGRUCell(_ConvGRU):
    """A gated recurrent unit with convolutions over one axis."""

    axes = 1


class Conv2DGRUCell(_ConvGRU):
    """A gated recurrent unit with convolutions over two axes."""

    axes = 2


class Conv3DGRUCell(_ConvGRU):
    """A gated recurrent unit with convolutions over three axes."""

    axes = 3
