"""Recurrent layers on bytes: an LSTM whose data, states and weights are bytes and whose cells are real numbers.

Data and states are uint8 numbers of one range that need not lie around 0: byte = real · scale + shift. Weights are int8
with a scale for each unit of each gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from flowmx.errors import ParameterError
from flowmx.ops.compiled.recurrent import Packing
from flowmx.ops.math.products import matmul
from flowmx.ops.nn.common import expect_shape
from flowmx.ops.quantization.ranges import (
    RANGE,
    UINT8,
    Inferred,
    InferredTypes,
    Quantized,
    Range,
    backwards,
    known_types,
    number,
    operator,
    put_range,
    round_into,
)
from flowmx.ops.recurrent.layout import Weights
from flowmx.ops.recurrent.operator import RNN, along, rows_of
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, described, option
from flowmx.ops.registry.traits import Precision

__all__ = [
    "PackQuantizedRNN", "PackedQuantizedRNN", "QuantizeAsymmetrically", "QuantizeForStates", "QuantizedRNN", "steps_of",
    "with_states",
]  # fmt: skip

_LARGEST = np.float32(255)
_STATES = (np.float32(-1), np.float32(1))
"""The range of an LSTM's states."""


def with_states(low: float, high: float) -> tuple[float, float]:
    """The range of data and of an LSTM's states, from that of the data."""
    return min(low, float(_STATES[0])), max(high, float(_STATES[1]))


@operator("_contrib_quantize_asym")
class QuantizeAsymmetrically(Quantized, calibrates="input"):
    """Quantize real numbers by a range that need not lie around 0.

    The output is data · scale + shift, rounded, with scale = 255 / (high - low) and shift = 255 - high · scale.
    """

    arguments = ("data",)
    output_names: ClassVar[tuple[str, ...]] = ("output", "scale", "shift")
    input_docs = described(data="any shape, float32")
    output_doc = "The shape of data, uint8; scale and shift, (1,), float32"
    min_calib_range: float | None = option(None, "The lower end of the range (by default that of the data).")
    max_calib_range: float | None = option(None, "The upper end of the range.")

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return backwards(shapes, outputs)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(FLOAT32,)], UINT8)

    def ends(self, data: Array) -> Range:
        """The range: the one that is known before, or else that of the data."""
        low, high = self.min_calib_range, self.max_calib_range
        if low is not None and high is not None:
            return np.float32(low), np.float32(high)
        if not data.size:
            return _STATES
        return number(data.min()), number(data.max())

    def steps(self, data: Array) -> Range:
        """Scale and shift."""
        low, high = self.ends(data)
        if not high > low:  # one number, which the other end of the range may be 0 for
            low, high = min(low, np.float32(0)), max(high, np.float32(0))
        scale = _LARGEST / np.float32(high - low) if high > low else np.float32(1)
        return scale, np.float32(_LARGEST - high * scale)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        scale, shift = self.steps(inputs[0])
        values = inputs[0] * scale
        values += shift
        round_into(run.xp, values, outputs[0])
        put_range(outputs, scale, shift)


@operator("_quantize_for_states")
class QuantizeForStates(QuantizeAsymmetrically, hidden=True):
    """Quantize the data of an LSTM by a range of its own that also holds the states.

    Of the ranges of all calls only few are told apart, since kernels are made for each: its ends are powers of the
    fourth root of 2.
    """

    def ends(self, data: Array) -> Range:
        low, high = with_states(*map(float, super().ends(data)))
        return -_rounded_up(-low), _rounded_up(high)


def _rounded_up(size: float) -> np.float32:
    return np.float32(2 ** (np.ceil(4 * np.log2(size)) / 4)) if np.isfinite(size) else np.float32(size)


@operator("_contrib_quantized_rnn")
class QuantizedRNN(
    RNN, no_gradient=True, uses_random=False, mode_matters=False, precision=Precision.GIVEN, quantized=None
):
    """An LSTM over a batch of sequences of bytes: products of bytes, cells and outputs of real numbers.

    Weights are rounded to int8 by the largest of each unit's in each gate. The states are rounded by the scale and
    shift of the data: what is outside of that range is cut off. For prediction alone.
    """

    input_docs = described(
        data="(time, batch, features), uint8: real · scale + shift, as from quantize_asym",
        parameters="(number of parameters,), float32; as those of RNN",
        state="(layers·directions, batch, units), float32",
        state_cell="(layers·directions, batch, units), float32",
        min_data="(1,), float32; the scale of the data",
        max_data="(1,), float32; the shift of the data",
    )
    output_doc = (
        "(time, batch, directions·units), float32; with state_outputs also the last state and the last cell, float32"
    )
    arguments: ClassVar[tuple[str, ...]] = ("data", "parameters", "state", "state_cell", "min_data", "max_data")
    output_names: ClassVar[tuple[str, ...]] = ("output", "state_output", "statecell_output")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode != "lstm":
            raise ParameterError(f"{self.name}: mode is {self.mode!r}, expected 'lstm', the only one on bytes")
        if not self.simple_lstm:
            raise ParameterError(
                f"{self.name}: use_sequence_length, projection_size and lstm_state_clip_min are for layers of real "
                "numbers alone, expected none of them"
            )

    def inputs(self) -> tuple[str, ...]:
        return self.arguments

    def outputs(self) -> tuple[str, ...]:
        return self.output_names[: 3 if self.state_outputs else 1]

    def visible_outputs(self) -> int:
        return len(self.outputs())

    def counted_outputs(self) -> int:
        return self.visible_outputs()

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        found, outputs = super().infer_shape(shapes[:4])
        ends = [
            expect_shape(self, name, shape, RANGE) for name, shape in zip(self.inputs()[4:], shapes[4:], strict=True)
        ]
        return [*found, *ends], outputs[: len(self.outputs())]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        expected = [(UINT8,), *[(FLOAT32,)] * 5]
        return known_types(self, dtypes, expected), [FLOAT32] * len(self.outputs())

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return RNN.cost(self, inputs[:4], outputs)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (x, parameters, state, cell, *ends) = run.xp, inputs
        scale, shift = map(number, ends)
        for layer, sides in enumerate(self.layout.unpack(parameters, x.shape[2])):
            steps, made = steps_of(xp, sides), []
            for direction, weights in enumerate(sides):
                row = layer * len(sides) + direction
                side = _Side(run, weights, steps, scale, shift)
                hidden, last = side.run_through(along(x, direction), state[row], cell[row])
                made.append(along(hidden, direction))
                for out, value in zip(outputs[1:], last, strict=False):
                    out[row] = value
            x = xp.concatenate(made, axis=2)
        outputs[0][...] = _real(x, scale, shift)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> Any:
        raise NotImplementedError


def steps_of(xp: Any, sides: Sequence[Weights]) -> Array:
    """The steps of a layer's weights for each unit of each gate, by the largest weight in both directions."""
    sizes = [xp.abs(each).max(axis=1) for side in sides for each in (side.input, side.recurrent)]
    most = xp.stack(sizes).max(axis=0)
    return xp.where(most > 0, np.float32(127) / xp.where(most > 0, most, 1), 1).astype(np.float32)


def _real(numbers: Array, scale: np.float32, shift: np.float32) -> Array:
    return (numbers - shift) / scale


class _Side:
    """One layer in one direction, with weights in whole numbers."""

    def __init__(self, run: Run, weights: Weights, steps: Array, scale: np.float32, shift: np.float32) -> None:
        xp = self._xp = run.xp
        self._run, self._scale, self._shift = run, scale, shift
        self._input, self._recurrent = (
            xp.clip(xp.rint(each * steps[:, None]), -128, 127) for each in (weights.input, weights.recurrent)
        )
        self._unit = steps * scale
        self._bias = weights.input_bias + weights.recurrent_bias

    def run_through(self, x: Array, state: Array, cell: Array) -> tuple[Array, tuple[Array, Array]]:
        """The states of all steps as bytes, and the last state and cell as real numbers."""
        xp = self._xp
        given = self._product(rows_of(x), self._input).reshape(*x.shape[:2], -1)
        hidden = xp.empty((*x.shape[:2], state.shape[1]), UINT8)
        before = self._bytes(state)
        for step, gates in enumerate(given):
            gates = gates + self._product(before, self._recurrent) + self._bias
            i, f, g, o = xp.split(gates, 4, axis=1)
            cell = _sigmoid(xp, f) * cell + _sigmoid(xp, i) * xp.tanh(g)
            hidden[step] = before = self._bytes(_sigmoid(xp, o) * xp.tanh(cell))
        return hidden, (_real(before, self._scale, self._shift), cell)

    def _product(self, numbers: Array, weight: Array) -> Array:
        """A product in real numbers; its sums of whole numbers are exact in float64."""
        out = self._xp.empty((len(numbers), len(weight)), np.float64)
        matmul(self._run, numbers.astype(np.float64), weight.T.astype(np.float64), out)
        out -= weight.sum(axis=1, dtype=np.float64) * float(self._shift)
        return (out / self._unit).astype(np.float32)

    def _bytes(self, values: Array) -> Array:
        out = self._xp.empty(values.shape, UINT8)
        round_into(self._xp, values * self._scale + self._shift, out)
        return out


def _sigmoid(xp: Any, x: Array) -> Array:
    return xp.tanh(x * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5)


@operator("_packed_quantized_RNN")
class PackedQuantizedRNN(QuantizedRNN, hidden=True):
    """An LSTM on bytes by a copy of its parameters in a kernel's order."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        found, outputs = super().infer_shape([shapes[0], None, *shapes[2:]])
        return [found[0], shapes[1], *found[2:]], outputs

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        found, outputs = super().infer_type([dtypes[0], None, *dtypes[2:]])
        return [found[0], UINT8, *found[2:]], outputs

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return super().cost([inputs[0], (self.layout.parameters(inputs[0][2]),), *inputs[2:]], outputs)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, packed, *rest = inputs
        count = self.layout.parameters(data.shape[2])
        super().forward(run, [data, packed[: count * FLOAT32.itemsize].view(FLOAT32), *rest], outputs)


@operator("_pack_quantized_RNN")
class PackQuantizedRNN(Packing, QuantizedRNN):
    """The parameters of an LSTM on bytes: its weights in whole numbers."""
