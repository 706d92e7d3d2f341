"""RNN: stacked, bidirectional recurrent layers over whole sequences as one operator.

A layer is one product of the weights with the inputs of all steps, then a loop over time (``loops.py``).
What the gradient needs stays in a hidden output, ``reserve`` (``rnn_layout.py``): activations, cells, the
layers' outputs, and for dropout what each layer's input was multiplied with, so that the backward neither draws
nor computes anything again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

from flowmx.errors import ParameterError
from flowmx.ops.math.conversion import as_type, cast
from flowmx.ops.math.products import has_product, summed
from flowmx.ops.math.reduce import wide
from flowmx.ops.nn.common import bound, computing_dtype, expect_rank, expect_shape, product, scratch
from flowmx.ops.recurrent import loops
from flowmx.ops.recurrent.layout import KINDS, Kept, Layout, Weights
from flowmx.ops.recurrent.track import Track
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    described,
    operator,
    option,
    required,
)
from flowmx.ops.registry.traits import Precision, Quantization

ROWS = 512
"""Rows of a product to add the biases to while they are in the cache."""


class _Inputs(NamedTuple):
    """The inputs by name, states in the computing dtype; what an instance does not take is None."""

    data: Array
    parameters: Array
    state: Array
    state_cell: Array | None
    running: Array | None


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

    With ``use_sequence_length`` sequence_length (batch,) holds the length of each sequence: outputs behind it are
    0, the last state is that at the end, and the backward direction begins there. This and the clipping of cells
    MXNet has on GPUs only.

    From Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997; Sak et al., 2014 (the projection); Cho et
    al., 2014 (the GRU, with the reset gate after the product, as in cuDNN).
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "parameters", "state", "state_cell", "sequence_length")
    input_docs = described(
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
    state_outputs: bool = option(False, "Give the last states as further outputs.")
    projection_size: int | None = option(None, "Length that an LSTM's outputs are projected to.", low=1)
    lstm_state_clip_min: float | None = option(None, "Least value of an LSTM's cells.")
    lstm_state_clip_max: float | None = option(None, "Greatest value of an LSTM's cells.")
    lstm_state_clip_nan: bool = option(False, "Clip NaN too, to the least value.")
    use_sequence_length: bool = option(False, "Take the lengths from a further input.")

    def __post_init__(self) -> None:
        if self.mode != "lstm" and self.projection_size is not None:
            raise ParameterError(
                f"{self.name}: projection_size is {self.projection_size}, which mode {self.mode!r} does not have; "
                "expected mode 'lstm'"
            )
        if (self.lstm_state_clip_min is None) != (self.lstm_state_clip_max is None):
            raise ParameterError(
                f"{self.name}: lstm_state_clip_min is {self.lstm_state_clip_min} and lstm_state_clip_max is "
                f"{self.lstm_state_clip_max}, expected both or none"
            )
        if self.traits.quantized is not None and not self.simple_lstm:
            self.with_traits(quantized=None)

    @property
    def simple_lstm(self) -> bool:
        """True for an LSTM without projection, clipping and lengths."""
        clips = self.lstm_state_clip_min is not None
        return self.mode == "lstm" and not (self.use_sequence_length or self.projection_size is not None or clips)

    @cached_property
    def layout(self) -> Layout:
        """The sizes of the layers."""
        outputs = self.projection_size or self.state_size
        directions = 2 if self.bidirectional else 1
        return Layout(
            KINDS[self.mode], self.num_layers, directions, self.state_size, outputs, self.projection_size is not None
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

    def counted_outputs(self) -> int:
        return self.visible_outputs()

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        layout, given = self.layout, dict(zip(RNN.inputs(self), shapes, strict=True))
        data = given["data"]
        expect_rank(self, "data", data, 3, 3)
        time, batch, features = data or (-1, -1, -1)
        for name in ("state", "state_cell"):
            known = given.get(name)
            batch = known[1] if batch == -1 and known is not None and len(known) == 3 else batch
        rows = layout.layers * layout.directions
        expected: dict[str, ShapeOrNone] = {
            "data": (time, batch, features),
            "parameters": (-1 if features == -1 else layout.parameters(features),),
            "state": (rows, batch, layout.outputs),
            "state_cell": (rows, batch, layout.units),
            "sequence_length": (batch,),
        }
        completed = [expect_shape(self, name, shape, expected[name]) for name, shape in given.items()]
        states = [expected["state"], expected["state_cell"]][: self.visible_outputs() - 1]
        reserve = -1 if -1 in (time, batch) else layout.reserved(time, batch, self.p > 0)
        return completed, [(time, batch, layout.width), *states, (reserve,)]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        count = len(dtypes) - self.use_sequence_length
        main, outputs = super().infer_type(dtypes[:count])
        lengths = [main[0] if each is None else each for each in dtypes[count:]]
        reserve = None if main[0] is None else computing_dtype(main[0])
        return [*main, *lengths], [*outputs[:-1], reserve]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        time, batch = inputs[0][:2]
        return 2 * time * batch * inputs[1][0], sum(map(product, (*inputs, *outputs)))

    # -- computing -------------------------------------------------------------------------------------

    def read(self, run: Run, arrays: Sequence[Array]) -> _Inputs:
        """The inputs, ready to compute with; data and parameters stay in 16 bits where the device multiplies them."""
        given = dict(zip(RNN.inputs(self), arrays, strict=True))
        time = len(given["data"])
        lengths = given.pop("sequence_length", None)
        running = None
        if lengths is not None:
            running = run.xp.arange(time)[:, None, None] < lengths[None, :, None]
        dtype = computing_dtype(given["data"].dtype)
        stay = ("data", "parameters") if has_product(run.device.kernels, given["data"].dtype) else ()
        ready = {name: array if name in stay else as_type(run, array, dtype) for name, array in given.items()}
        return _Inputs(
            ready["data"], ready["parameters"], ready["state"], ready.get("state_cell"),
            None if running is None else running.astype(dtype),
        )  # fmt: skip

    def track(self, given: _Inputs, kept: Kept, weights: Weights, layer: int, direction: int) -> Track:
        """One layer in one direction."""
        layout = self.layout
        row, outputs = layer * layout.directions + direction, layout.outputs
        clip = None
        if self.mode == "lstm" and self.lstm_state_clip_min is not None and self.lstm_state_clip_max is not None:
            clip = (self.lstm_state_clip_min, self.lstm_state_clip_max)
        return Track(
            along(kept.gates[direction], direction),
            along(kept.hidden[..., direction * outputs : (direction + 1) * outputs], direction),
            kept.more[direction][:, :: -1 if direction else 1],
            weights.recurrent,
            wide(weights.recurrent_bias[-layout.units :]),
            given.state[row],
            None if given.state_cell is None else given.state_cell[row],
            None if weights.projection is None else wide(weights.projection),
            None if given.running is None else along(given.running, direction),
            clip,
            self.lstm_state_clip_nan,
        )

    def layer_input(self, run: Run, given: _Inputs, kept: Sequence[Kept], layer: int) -> Array:
        """The input of a layer: the data, or the output of the layer below with its dropout."""
        if layer == 0:
            return given.data
        below, mask = kept[layer - 1].hidden, kept[layer].mask
        if mask is None:
            return below
        return run.xp.multiply(below, mask, out=scratch(run, "rnn input", below.shape, below.dtype))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, given, reserve = run.xp, self.read(run, inputs), outputs[-1]
        time, batch, features = given.data.shape
        kept = self.layout.kept(reserve, time, batch, self.p > 0)
        for layer, sides in enumerate(self.layout.unpack(given.parameters, features)):
            self._drop(run, kept[layer].mask)
            x = self.layer_input(run, given, kept, layer)
            for direction, weights in enumerate(sides):
                track = self.track(given, kept[layer], weights, layer, direction)
                _affine(run, x, weights.input, self._bias(weights), kept[layer].gates[direction])
                loops.forward(self.mode, run, track)
                row = layer * len(sides) + direction
                for state, last in zip(outputs[1:-1], (track.before, track.cell_before), strict=False):
                    state[row] = last(time)
        if given.running is None:
            cast(run, kept[-1].hidden, outputs[0])
        else:
            xp.multiply(kept[-1].hidden, given.running, out=outputs[0], casting="unsafe")

    def _bias(self, weights: Weights) -> Array:
        """The bias (gates·units,) of every step; a GRU adds the recurrent bias of its new gate by itself."""
        given = wide(weights.input_bias)
        total = given + wide(weights.recurrent_bias)
        if self.mode == "gru":
            total[-self.state_size :] = given[-self.state_size :]
        return total

    def _drop(self, run: Run, mask: Array | None) -> None:
        """Draw what a layer's input is multiplied with."""
        if mask is None:
            return
        if not run.train:
            mask.fill(1)
            return
        keep = 1 - self.p
        run.xp.less(run.random.random(mask.shape, run.xp.float32), keep, out=mask, casting="unsafe")
        if keep:
            mask /= keep

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        given = dict(zip(self.inputs(), list(inputs), strict=True))
        named = {f"{name}_head": head for name, head in zip(self.outputs(), heads, strict=False)}
        found = F.op("_backward_RNN", **named, **given, reserve=outputs[len(self.outputs()) - 1], **bound(self))
        return [*found, *[None] * (len(given) - len(found))]


def along(array: Array, direction: int) -> Array:
    """The array in the order of processing: flipped along time for the backward direction."""
    return array[::-1] if direction else array


def _affine(run: Run, x: Array, weight: Array, bias: Array, out: Array) -> None:
    """Compute x Wᵀ + b into ``out``, with x (time, batch, inputs)."""
    rows, made = rows_of(as_type(run, x, weight.dtype)), rows_of(out)
    for start in range(0, len(rows), ROWS):
        part = made[start : start + ROWS]
        summed(run, rows[start : start + ROWS], weight.T, part)
        part += bias


def rows_of(array: Array) -> Array:
    """(time, batch, n) as (time·batch, n)."""
    return array.reshape(array.shape[0] * array.shape[1], array.shape[2])
