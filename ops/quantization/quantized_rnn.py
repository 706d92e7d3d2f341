"""Quantized recurrent layers: an LSTM with uint8 data and states, int8 weights, and cells in floating point.

Data and states are uint8 with one range, which need not be symmetric: byte = real · scale + shift. Weights are int8
with a scale per unit of each gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flowmx.errors import ParameterError
from flowmx.ops.compiled.packed_rnn import Packing
from flowmx.ops.math.matmul import matmul
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
from flowmx.ops.recurrent.rnn import RNN, in_direction, rows_of
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, describe, option
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision

__all__ = [
    "PackQuantizedRNN", "PackedQuantizedRNN", "QuantizeAsymmetrically", "QuantizeForStates", "QuantizedRNN", "steps_of",
    "with_states",
]  # fmt: skip

_LARGEST = np.float32(255)
_STATES = (np.float32(-1), np.float32(1))
"""The range of an LSTM's states."""


def with_states(low: float, high: float) -> tuple[float, float]:
    """Return the common range of data and states of an LSTM, from the range of the data."""
    return min(low, float(_STATES[0])), max(high, float(_STATES[1]))


@operator("_contrib_quantize_asym")
class QuantizeAsymmetrically(Quantized, calibrates="input"):
    """Quantize floating-point data by a range that need not be symmetric.

    The output is data · scale + shift, rounded, with scale = 255 / (high - low) and shift = 255 - high · scale.
    """

    arguments = ("data",)
    output_names: ClassVar[tuple[str, ...]] = ("output", "scale", "shift")
    input_docs = describe(data="any shape, float32")
    output_doc = "The shape of data, uint8; scale and shift, (1,), float32"
    min_calib_range: float | None = option(None, "The lower end of the range (by default that of the data).")
    max_calib_range: float | None = option(None, "The upper end of the range.")

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return backwards(shapes, outputs)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(FLOAT32,)], UINT8)

    def ends(self, data: Array) -> Range:
        """Return the calibrated range, or otherwise the range of the data."""
        low, high = self.min_calib_range, self.max_calib_range
        if low is not None and high is not None:
            return np.float32(low), np.float32(high)
        if not data.size:
            return _STATES
        return number(data.min()), number(data.max())

    def steps(self, data: Array) -> Range:
        """Return scale and shift."""
        low, high = self.ends(data)
        if not high > low:  # a single number: let the other end of the range be 0
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
    """Quantize the data of an LSTM by its range, extended to contain the states.

    Kernels are made for each range, so the ends are rounded up to powers of the fourth root of 2.
    """

    def ends(self, data: Array) -> Range:
        low, high = with_states(*map(float, super().ends(data)))
        return -_round_up(-low), _round_up(high)


def _round_up(size: float) -> np.float32:
    return np.float32(2 ** (np.ceil(4 * np.log2(size)) / 4)) if np.isfinite(size) else np.float32(size)


@operator("_contrib_quantized_rnn")
class QuantizedRNN(
    RNN, no_gradient=True, uses_random=False, mode_matters=False, precision=Precision.GIVEN, quantized=None
):
    """An LSTM over a batch of uint8 sequences: int8 products, with cells and outputs in floating point.

    Weights are rounded to int8 with a scale from the largest weight of each unit in each gate. The states are rounded
    with the scale and shift of the data, and clipped to its range. For prediction only.
    """

    input_docs = describe(
        data="(time, batch, features), uint8: real · scale + shift, as from quantize_asym",
        parameters="(number of parameters,), float32; as for RNN",
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
            raise ParameterError(f"{self.name}: mode is {self.mode!r}, expected 'lstm', the only quantized mode")
        if not self.simple_lstm:
            raise ParameterError(
                f"{self.name}: use_sequence_length, projection_size and lstm_state_clip_min need a floating-point "
                "layer, expected none of them"
            )

    def inputs(self) -> tuple[str, ...]:
        return self.arguments

    def outputs(self) -> tuple[str, ...]:
        return self.output_names[: 3 if self.state_outputs else 1]

    def visible_outputs(self) -> int:
        return len(self.outputs())

    def json_output_count(self) -> int:
        return self.visible_outputs()

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        in_shapes, outputs = super().infer_shape(shapes[:4])
        ends = [
            expect_shape(self, name, shape, RANGE) for name, shape in zip(self.inputs()[4:], shapes[4:], strict=True)
        ]
        return [*in_shapes, *ends], outputs[: len(self.outputs())]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        expected = [(UINT8,), *[(FLOAT32,)] * 5]
        return known_types(self, dtypes, expected), [FLOAT32] * len(self.outputs())

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return RNN.cost(self, inputs[:4], outputs)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (x, parameters, state, cell, *ends) = run.xp, inputs
        scale, shift = map(number, ends)
        for layer, sides in enumerate(self.layout.unpack(parameters, x.shape[2])):
            steps, states = steps_of(xp, sides), []
            for direction, weights in enumerate(sides):
                row = layer * len(sides) + direction
                side = _Direction(run, weights, steps, scale, shift)
                hidden, last = side.run_steps(in_direction(x, direction), state[row], cell[row])
                states.append(in_direction(hidden, direction))
                for out, value in zip(outputs[1:], last, strict=False):
                    out[row] = value
            x = xp.concatenate(states, axis=2)
        outputs[0][...] = _real(x, scale, shift)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError


def steps_of(xp: ArrayNamespace, sides: Sequence[Weights]) -> Array:
    """Return the quantization steps of the weights per unit of each gate, from the largest weight in any direction."""
    sizes = [xp.abs(weight).max(axis=1) for side in sides for weight in (side.input, side.recurrent)]
    largest = xp.stack(sizes).max(axis=0)
    return xp.where(largest > 0, np.float32(127) / xp.where(largest > 0, largest, 1), 1).astype(np.float32)


def _real(numbers: Array, scale: np.float32, shift: np.float32) -> Array:
    return (numbers - shift) / scale


class _Direction:
    """One layer in one direction, with integer weights."""

    def __init__(self, run: Run, weights: Weights, steps: Array, scale: np.float32, shift: np.float32) -> None:
        xp = self._xp = run.xp
        self._run, self._scale, self._shift = run, scale, shift
        self._input, self._recurrent = (
            xp.clip(xp.rint(weight * steps[:, None]), -128, 127) for weight in (weights.input, weights.recurrent)
        )
        self._unit = steps * scale
        self._bias = weights.input_bias + weights.recurrent_bias

    def run_steps(self, x: Array, state: Array, cell: Array) -> tuple[Array, tuple[Array, Array]]:
        """Return the states of all steps as uint8, and the last state and cell in floating point."""
        xp = self._xp
        projections = self._product(rows_of(x), self._input).reshape(*x.shape[:2], -1)
        hidden = xp.empty((*x.shape[:2], state.shape[1]), UINT8)
        before = self._bytes(state)
        for step, gates in enumerate(projections):
            gates = gates + self._product(before, self._recurrent) + self._bias
            i, f, g, o = xp.split(gates, 4, axis=1)
            cell = _sigmoid(xp, f) * cell + _sigmoid(xp, i) * xp.tanh(g)
            hidden[step] = before = self._bytes(_sigmoid(xp, o) * xp.tanh(cell))
        return hidden, (_real(before, self._scale, self._shift), cell)

    def _product(self, numbers: Array, weight: Array) -> Array:
        """Return a product in floating point; its integer sums are exact in float64."""
        out = self._xp.empty((len(numbers), len(weight)), np.float64)
        matmul(self._run, numbers.astype(np.float64), weight.T.astype(np.float64), out)
        out -= weight.sum(axis=1, dtype=np.float64) * float(self._shift)
        result: Array = (out / self._unit).astype(np.float32)
        return result

    def _bytes(self, values: Array) -> Array:
        out: Array = self._xp.empty(values.shape, UINT8)
        round_into(self._xp, values * self._scale + self._shift, out)
        return out


def _sigmoid(xp: ArrayNamespace, x: Array) -> Array:
    return xp.tanh(x * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5)


@operator("_packed_quantized_RNN")
class PackedQuantizedRNN(QuantizedRNN, hidden=True):
    """A quantized LSTM with parameters packed in a kernel's layout."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        in_shapes, outputs = super().infer_shape([shapes[0], None, *shapes[2:]])
        return [in_shapes[0], shapes[1], *in_shapes[2:]], outputs

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        in_dtypes, outputs = super().infer_type([dtypes[0], None, *dtypes[2:]])
        return [in_dtypes[0], UINT8, *in_dtypes[2:]], outputs

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return super().cost([inputs[0], (self.layout.parameter_count(inputs[0][2]),), *inputs[2:]], outputs)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, packed, *rest = inputs
        count = self.layout.parameter_count(data.shape[2])
        super().forward(run, [data, packed[: count * FLOAT32.itemsize].view(FLOAT32), *rest], outputs)


@operator("_pack_quantized_RNN")
class PackQuantizedRNN(Packing, QuantizedRNN):
    """The packed parameters of a quantized LSTM: its integer weights."""
