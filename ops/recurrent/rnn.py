"""RNN: stacked, bidirectional recurrent layers over whole sequences as one operator.

A layer is one product of the weights with the inputs of all steps, then a loop over time (``time_loops.py``). A hidden
output, ``reserve`` (``layout.py``), saves the values that the gradient needs: activations, cells, the outputs of the
layers, and dropout masks. So the backward neither draws random numbers nor recomputes values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

from flowmx.errors import ParameterError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.math.conversion import as_type, cast
from flowmx.ops.math.matmul import has_mixed_product, matmul_mixed
from flowmx.ops.math.reduce import widen
from flowmx.ops.nn.common import computing_dtype, expect_rank, expect_shape, non_defaults, product, scratch
from flowmx.ops.recurrent import time_loops
from flowmx.ops.recurrent.layer_arrays import LayerArrays
from flowmx.ops.recurrent.layout import CELL_SIZES, Layout, Reserve, Weights
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors, as_list
from flowmx.ops.registry.traits import Precision, Quantization

ROWS = 512
"""Rows of a product to compute at a time, so that they are in the cache when the biases are added."""


class _Inputs(NamedTuple):
    """The inputs by name, states in the computing dtype; None for inputs that the mode does not have."""

    data: Array
    parameters: Array
    state: Array
    state_cell: Array | None
    sequence_mask: Array | None


_ON_BYTES = Quantization("_contrib_quantized_rnn", True, (1, 2, 3), asymmetric=(0,), real_output=True)


@operator("RNN")
class RNN(
    Operator, skips=True, uses_random=True, mode_matters=True, heavy=True, precision=Precision.LOW, quantized=_ON_BYTES
):
    """Recurrent layers over a batch of sequences: Elman's with ReLU or tanh, LSTM or GRU.

    Shapes: data (time, batch, features), parameters (all weights, then all biases, in one vector; see
    ``ops/recurrent/layout.py``), state (layers·directions, batch, units), and for an LSTM state_cell likewise; output
    (time, batch, directions·units). With ``state_outputs`` the last state, and an LSTM's last cell, are further
    outputs. With ``projection_size`` an LSTM's outputs and states (not its cells) have that length.

    With ``use_sequence_length`` sequence_length (batch,) holds the length of each sequence: outputs after the end are
    0, the last state is the one at the end, and the backward direction begins there. MXNet supports sequence lengths
    and the clipping of cells only on GPUs.

    From Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997; Sak et al., 2014 (the projection); Cho et
    al., 2014 (the GRU, with the reset gate after the product, as in cuDNN).
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "parameters", "state", "state_cell", "sequence_length")
    input_docs = describe(
        data="(time, batch, features), float",
        parameters="(number of parameters,), the dtype of data; all weights, then all biases",
        state="(layers·directions, batch, outputs), the dtype of data",
        state_cell="(layers·directions, batch, units), the dtype of data; only for mode 'lstm'",
        sequence_length="(batch,), int or float; only with use_sequence_length",
    )
    output_doc = (
        "(time, batch, directions·outputs); with state_outputs also the last state, and an LSTM's last cell; the "
        "dtype of data"
    )
    state_size: int = required("Units of each layer.", low=1)
    num_layers: int = required("Number of layers.", low=1)
    bidirectional: bool = option(False, "Run each layer in both directions of time.")
    mode: Literal["gru", "lstm", "rnn_relu", "rnn_tanh"] = required("The kind of layer.")
    p: float = option(0.0, "In training: probability of dropping an output between layers.", low=0, high=1)
    state_outputs: bool = option(False, "Also return the last states.")
    projection_size: int | None = option(None, "Length that an LSTM's outputs are projected to.", low=1)
    lstm_state_clip_min: float | None = option(None, "Lower bound of an LSTM's cells.")
    lstm_state_clip_max: float | None = option(None, "Upper bound of an LSTM's cells.")
    lstm_state_clip_nan: bool = option(False, "Also clip NaN, to the lower bound.")
    use_sequence_length: bool = option(False, "Read the lengths from an additional input.")

    def __post_init__(self) -> None:
        if self.mode != "lstm" and self.projection_size is not None:
            raise ParameterError(
                f"{self.name}: projection_size is {self.projection_size}, which mode {self.mode!r} does not support; "
                "expected mode 'lstm'"
            )
        if (self.lstm_state_clip_min is None) != (self.lstm_state_clip_max is None):
            raise ParameterError(
                f"{self.name}: lstm_state_clip_min is {self.lstm_state_clip_min} and lstm_state_clip_max is "
                f"{self.lstm_state_clip_max}, expected both or neither"
            )
        if self.traits.quantized is not None and not self.simple_lstm:
            self.with_traits(quantized=None)

    @property
    def simple_lstm(self) -> bool:
        """True for an LSTM without projection, clipping and sequence lengths."""
        clips = self.lstm_state_clip_min is not None
        return self.mode == "lstm" and not (self.use_sequence_length or self.projection_size is not None or clips)

    @cached_property
    def layout(self) -> Layout:
        """The sizes of the layers."""
        outputs = self.projection_size or self.state_size
        directions = 2 if self.bidirectional else 1
        return Layout(
            CELL_SIZES[self.mode],
            self.num_layers,
            directions,
            self.state_size,
            outputs,
            self.projection_size is not None,
        )

    def inputs(self) -> tuple[str, ...]:
        names = RNN.arguments[:3]
        if self.mode == "lstm":
            names += ("state_cell",)
        return (*names, "sequence_length") if self.use_sequence_length else names

    def draws(self, train: bool) -> bool:
        return self.traits.uses_random and train and self.p > 0

    def outputs(self) -> tuple[str, ...]:
        states = ("state_output", "statecell_output") if self.mode == "lstm" else ("state_output",)
        return ("output", *(states if self.state_outputs else ()), "reserve")

    def visible_outputs(self) -> int:
        return len(RNN.outputs(self)) - 1

    def json_output_count(self) -> int:
        return self.visible_outputs()

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        layout, by_name = self.layout, dict(zip(RNN.inputs(self), shapes, strict=True))
        data = by_name["data"]
        expect_rank(self, "data", data, 3, 3)
        time, batch, features = data or (-1, -1, -1)
        for name in ("state", "state_cell"):
            state = by_name.get(name)
            batch = state[1] if batch == -1 and state is not None and len(state) == 3 else batch
        rows = layout.layers * layout.directions
        expected: dict[str, ShapeOrNone] = {
            "data": (time, batch, features),
            "parameters": (-1 if features == -1 else layout.parameter_count(features),),
            "state": (rows, batch, layout.outputs),
            "state_cell": (rows, batch, layout.units),
            "sequence_length": (batch,),
        }
        completed = [expect_shape(self, name, shape, expected[name]) for name, shape in by_name.items()]
        states = [expected["state"], expected["state_cell"]][: self.visible_outputs() - 1]
        reserve = -1 if -1 in (time, batch) else layout.reserve_size(time, batch, self.p > 0)
        return completed, [(time, batch, layout.width), *states, (reserve,)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        count = len(dtypes) - self.use_sequence_length
        completed, outputs = super().infer_type(dtypes[:count])
        lengths = [completed[0] if dtype is None else dtype for dtype in dtypes[count:]]
        reserve = None if completed[0] is None else computing_dtype(completed[0])
        return [*completed, *lengths], [*outputs[:-1], reserve]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        time, batch = inputs[0][:2]
        return 2 * time * batch * inputs[1][0], sum(map(product, (*inputs, *outputs)))

    # -- computing -------------------------------------------------------------------------------------

    def read_inputs(self, run: Run, arrays: Sequence[Array]) -> _Inputs:
        """Return the inputs in the computing dtype; 16-bit data and parameters stay if the device multiplies them."""
        by_name = dict(zip(RNN.inputs(self), arrays, strict=True))
        time = len(by_name["data"])
        lengths = by_name.pop("sequence_length", None)
        running = None
        if lengths is not None:
            running = run.xp.arange(time)[:, None, None] < lengths[None, :, None]
        dtype = computing_dtype(by_name["data"].dtype)
        unconverted = ("data", "parameters") if has_mixed_product(run.device.kernels, by_name["data"].dtype) else ()
        ready = {name: array if name in unconverted else as_type(run, array, dtype) for name, array in by_name.items()}
        return _Inputs(
            ready["data"], ready["parameters"], ready["state"], ready.get("state_cell"),
            None if running is None else running.astype(dtype),
        )  # fmt: skip

    def layer_arrays(
        self, inputs: _Inputs, reserve: Reserve, weights: Weights, layer: int, direction: int
    ) -> LayerArrays:
        """Return the arrays of one layer in one direction."""
        layout = self.layout
        row, outputs = layer * layout.directions + direction, layout.outputs
        clip = None
        if self.mode == "lstm" and self.lstm_state_clip_min is not None and self.lstm_state_clip_max is not None:
            clip = (self.lstm_state_clip_min, self.lstm_state_clip_max)
        return LayerArrays(
            in_direction(reserve.gates[direction], direction),
            in_direction(reserve.hidden[..., direction * outputs : (direction + 1) * outputs], direction),
            reserve.cell_states[direction][:, :: -1 if direction else 1],
            weights.recurrent,
            widen(weights.recurrent_bias[-layout.units :]),
            inputs.state[row],
            None if inputs.state_cell is None else inputs.state_cell[row],
            None if weights.projection is None else widen(weights.projection),
            None if inputs.sequence_mask is None else in_direction(inputs.sequence_mask, direction),
            clip,
            self.lstm_state_clip_nan,
        )

    def layer_input(self, run: Run, inputs: _Inputs, reserves: Sequence[Reserve], layer: int) -> Array:
        """Return the input of a layer: the data, or the output of the previous layer after dropout."""
        if layer == 0:
            return inputs.data
        x, mask = reserves[layer - 1].hidden, reserves[layer].mask
        if mask is None:
            return x
        result: Array = run.xp.multiply(x, mask, out=scratch(run, "rnn input", x.shape, x.dtype))
        return result

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, values, reserve = run.xp, self.read_inputs(run, inputs), outputs[-1]
        time, batch, features = values.data.shape
        reserves = self.layout.reserve_views(reserve, time, batch, self.p > 0)
        for layer, directions in enumerate(self.layout.unpack(values.parameters, features)):
            self._drop(run, reserves[layer].mask)
            x = self.layer_input(run, values, reserves, layer)
            for direction, weights in enumerate(directions):
                arrays = self.layer_arrays(values, reserves[layer], weights, layer, direction)
                _affine(run, x, weights.input, self._bias(weights), reserves[layer].gates[direction])
                time_loops.forward(self.mode, run, arrays)
                row = layer * len(directions) + direction
                for state, last in zip(outputs[1:-1], (arrays.output_before, arrays.cell_before), strict=False):
                    state[row] = last(time)
        if values.sequence_mask is None:
            cast(run, reserves[-1].hidden, outputs[0])
        else:
            xp.multiply(reserves[-1].hidden, values.sequence_mask, out=outputs[0], casting="unsafe")

    def _bias(self, weights: Weights) -> Array:
        """Return the bias (gates·units,) of every step; a GRU adds the recurrent bias of its new gate in the loop."""
        bias = widen(weights.input_bias)
        total = bias + widen(weights.recurrent_bias)
        if self.mode == "gru":
            total[-self.state_size :] = bias[-self.state_size :]
        return total

    def _drop(self, run: Run, mask: Array | None) -> None:
        """Draw the dropout mask of a layer's input."""
        if mask is None:
            return
        if not run.train:
            mask.fill(1)
            return
        keep = 1 - self.p
        run.xp.less(run.random.random(mask.shape, run.xp.float32), keep, out=mask, casting="unsafe")
        if keep:
            mask /= keep

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        by_name = dict(zip(self.inputs(), list(inputs), strict=True))
        head_names = {f"{name}_head": head for name, head in zip(self.outputs(), heads, strict=False)}
        results = F.op(
            "_backward_RNN", **head_names, **by_name, reserve=outputs[len(self.outputs()) - 1], **non_defaults(self)
        )
        gradients = as_list(results)
        return [*gradients, *[None] * (len(by_name) - len(gradients))]


def in_direction(array: Array, direction: int) -> Array:
    """Return an array in the order of processing: flipped along time for the backward direction."""
    return array[::-1] if direction else array


def _affine(run: Run, x: Array, weight: Array, bias: Array, out: Array) -> None:
    """Compute x Wᵀ + b into ``out``, with x (time, batch, inputs)."""
    rows, out_rows = rows_of(as_type(run, x, weight.dtype)), rows_of(out)
    for start in range(0, len(rows), ROWS):
        part = out_rows[start : start + ROWS]
        matmul_mixed(run, rows[start : start + ROWS], weight.T, part)
        part += bias


def rows_of(array: Array) -> Array:
    """Return an array (time, batch, n) as (time·batch, n)."""
    return array.reshape(array.shape[0] * array.shape[1], array.shape[2])
