"""Recurrent cells that convolve: over sequences of images, or of lines or volumes.

A kind of cell says how gates become outputs, and is made for one, two and three axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from flowmx.gluon.rnn import HybridRecurrentCell, steps

__all__ = [
    "Conv1DGRUCell", "Conv1DLSTMCell", "Conv1DRNNCell", "Conv2DGRUCell", "Conv2DLSTMCell", "Conv2DRNNCell",
    "Conv3DGRUCell", "Conv3DLSTMCell", "Conv3DRNNCell",
]  # fmt: skip

Lengths = int | Sequence[int]
_LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


class _ConvCell(HybridRecurrentCell):
    """A cell whose input and state are convolved into all gates.

    Args:
        input_shape: of one step of one instance, such as (channels, height, width).
        hidden_channels: the number of channels of outputs and states.
        i2h_kernel: the lengths of the kernel for the input, one number or one for each axis.
        h2h_kernel: that for the state, odd lengths.
        i2h_pad: zeros added at each side of the input. States are padded so that their lengths stay.
        i2h_dilate: the distance of the elements of the kernel for the input.
        h2h_dilate: that of the one for the state.
        i2h_weight_initializer: of the weight for the input.
        h2h_weight_initializer: of the weight for the state.
        i2h_bias_initializer: of the bias for the input.
        h2h_bias_initializer: of the bias for the state.
        conv_layout: the order of the axes (default: channels after the batch).
        activation: that of the output, a name or a block.
        prefix: as for ``Block``.
        params: as for ``Block``.

    Raises:
        ValueError: lengths or a layout that do not fit.
    """

    axes: ClassVar[int]
    kind: ClassVar[steps.CellKind]

    def __init__(
        self, input_shape: Sequence[int], hidden_channels: int, i2h_kernel: Lengths, h2h_kernel: Lengths,
        i2h_pad: Lengths = 0, i2h_dilate: Lengths = 1, h2h_dilate: Lengths = 1, i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None, i2h_bias_initializer: Any = "zeros", h2h_bias_initializer: Any = "zeros",
        conv_layout: str | None = None, activation: Any = "tanh", prefix: str | None = None, params: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        layout = _LAYOUTS[self.axes][0] if conv_layout is None else conv_layout
        if layout not in _LAYOUTS[self.axes]:
            raise ValueError(f"{type(self).__name__}: conv_layout is {layout!r}, expected {_LAYOUTS[self.axes]}")
        self._hidden_channels, self._conv_layout, self._activation = hidden_channels, layout, activation
        self._channel_axis = layout.index("C")
        self._i2h = self._geometry("i2h", i2h_kernel, i2h_dilate, i2h_pad)
        self._h2h = self._geometry("h2h", h2h_kernel, h2h_dilate, None)
        *lengths, channels = self._last(tuple(input_shape))
        self._state_shape = self._first((*self._lengths_after(lengths), hidden_channels))
        rows = len(self.kind.gates) * hidden_channels

        def get(name: str, shape: tuple[int, ...], init: Any) -> Any:
            return self.params.get(name, shape=shape, init=init, allow_deferred_init=True)

        i2h_shape = (rows, *self._first((*self._i2h["kernel"], channels)))
        h2h_shape = (rows, *self._first((*self._h2h["kernel"], hidden_channels)))
        self.i2h_weight = get("i2h_weight", i2h_shape, i2h_weight_initializer)
        self.h2h_weight = get("h2h_weight", h2h_shape, h2h_weight_initializer)
        self.i2h_bias = get("i2h_bias", (rows,), i2h_bias_initializer)
        self.h2h_bias = get("h2h_bias", (rows,), h2h_bias_initializer)

    def _geometry(self, which: str, kernel: Lengths, dilate: Lengths, pad: Lengths | None) -> dict[str, Any]:
        """The parameters of a convolution; without padding, such that lengths stay."""
        kernels, dilates = self._each(f"{which}_kernel", kernel), self._each(f"{which}_dilate", dilate)
        if pad is None and not all(length % 2 for length in kernels):
            raise ValueError(f"{type(self).__name__}: {which}_kernel is {kernels}, expected odd lengths")
        kept = tuple(d * (k - 1) // 2 for d, k in zip(dilates, kernels, strict=True))
        pads = kept if pad is None else self._each(f"{which}_pad", pad)
        return {"kernel": kernels, "stride": (1,) * self.axes, "pad": pads, "dilate": dilates}

    def _each(self, name: str, value: Lengths) -> tuple[int, ...]:
        made = (value,) * self.axes if isinstance(value, int) else tuple(value)
        if len(made) != self.axes:
            raise ValueError(f"{type(self).__name__}: {name} is {value!r}, expected a number or {self.axes} of them")
        return made

    def _lengths_after(self, lengths: Sequence[int]) -> list[int]:
        given = self._i2h
        parts = zip(lengths, given["kernel"], given["pad"], given["dilate"], strict=True)
        return [n + 2 * pad - dilate * (kernel - 1) if n else 0 for n, kernel, pad, dilate in parts]

    def _last(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape of one instance with the channels at the end."""
        return (*shape[1:], shape[0]) if self._channel_axis == 1 else shape

    def _first(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One with the channels at the end, as the layout has it."""
        return (shape[-1], *shape[:-1]) if self._channel_axis == 1 else shape

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The shape and layout of each state."""
        info = {"shape": (batch_size, *self._state_shape), "__layout__": self._conv_layout}
        return [dict(info) for _ in range(self.kind.states)]

    def __repr__(self) -> str:
        shape = self.i2h_weight.shape
        inputs = shape[1 if self._channel_axis == 1 else -1]
        return f"{type(self).__name__}({inputs or None} -> {shape[0]}, {self._activation}, {self._conv_layout})"

    def hybrid_forward(
        self, F: Any, inputs: Any, states: Any, i2h_weight: Any, h2h_weight: Any, i2h_bias: Any, h2h_bias: Any
    ) -> Any:
        t = f"t{self._counter}_"
        i2h, h2h = (
            F.Convolution(
                data, weight, bias, layout=self._conv_layout, name=t + group,
                num_filter=len(self.kind.gates) * self._hidden_channels, **geometry,
            )
            for group, data, weight, bias, geometry in (
                ("i2h", inputs, i2h_weight, i2h_bias, self._i2h), ("h2h", states[0], h2h_weight, h2h_bias, self._h2h),
            )
        )  # fmt: skip
        act = partial(self._get_activation, F, activation=self._activation)
        return self.kind.step(steps.CellStep(F, t, act, axis=self._channel_axis), i2h, h2h, states)


class _ConvRNN(_ConvCell):
    kind = steps.ELMAN

    def _alias(self) -> str:
        return "conv_rnn"


class _ConvLSTM(_ConvCell):
    kind = steps.LSTM

    def _alias(self) -> str:
        return "conv_lstm"


class _ConvGRU(_ConvCell):
    kind = steps.GRU

    def _alias(self) -> str:
        return "conv_gru"


class Conv1DRNNCell(_ConvRNN):
    """Elman's cell with convolutions over one axis; the arguments are those of all cells here."""

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
