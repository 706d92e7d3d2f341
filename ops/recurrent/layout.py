"""Memory layouts of the fused RNN operator: the packed parameters, and the values saved for the gradient.

The parameter vector holds all weights, then all biases, ordered by layer and direction. The weights of a layer are
the input weight (gates·units, inputs), the recurrent weight (gates·units, outputs) and, if the layer has a projection,
its weight (outputs, units). The biases are the input bias and the recurrent bias (gates·units,). The order of the gates
is input, forget, cell, output for an LSTM, and reset, update, new for a GRU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flowmx.ops.registry.operators import Array, Shape


class CellSizes(NamedTuple):
    """The sizes of a cell, which depend on the mode.

    Attributes:
        gates: the number of gates of a unit.
        saved: the number of values that a unit saves at each step for the gradient, besides its gates and output.
    """

    gates: int
    saved: int


GATES = {"rnn_relu": ("",), "rnn_tanh": ("",), "lstm": ("_i", "_f", "_c", "_o"), "gru": ("_r", "_z", "_o")}
"""The name suffixes of the gates' arrays by mode, as in MXNet's cells."""

CELL_SIZES = {mode: CellSizes(len(gates), {"lstm": 2, "gru": 1}.get(mode, 0)) for mode, gates in GATES.items()}


class PackedWeights(NamedTuple):
    """The packed vector of layers without projection, split into arrays of single gates; ``directions`` is l or lr."""

    mode: str
    units: int
    layers: int
    directions: str

    def parts(self, inputs: int) -> Iterator[tuple[str, Shape]]:
        """Yield the name (such as ``l0_i2h_f_weight``) and shape of each array, in order, for ``inputs`` features."""
        for kind in ("weight", "bias"):
            for layer in range(self.layers):
                columns = {"i2h": self.units * len(self.directions) if layer else inputs, "h2h": self.units}
                for direction in self.directions:
                    for group, width in columns.items():
                        for gate in GATES[self.mode]:
                            shape = (self.units, width) if kind == "weight" else (self.units,)
                            yield f"{direction}{layer}_{group}{gate}_{kind}", shape

    def size(self, inputs: int) -> int:
        """Return the length of the vector."""
        return sum(math.prod(shape) for _, shape in self.parts(inputs))

    def inputs(self, size: int) -> int | None:
        """Return the number of input features for which the vector has ``size`` elements; None if no number matches."""
        per_input = len(self.directions) * len(GATES[self.mode]) * self.units
        inputs, remainder = divmod(size - self.size(0), per_input)
        return None if remainder or inputs < 1 else inputs


class Weights(NamedTuple):
    """The parameters of one layer in one direction, or their gradients, as views into the packed vector."""

    input: Array
    recurrent: Array
    projection: Array | None
    input_bias: Array
    recurrent_bias: Array


class Reserve(NamedTuple):
    """The values of one layer that the forward pass saves for the backward pass, as views into the output ``reserve``.

    Attributes:
        hidden: the outputs of all directions, concatenated (time, batch, directions·outputs); after the end of a
            sequence the last output is repeated.
        mask: the dropout mask of the layer's input, or None.
        gates: for each direction, the activations of the gates (time, batch, gates·units).
        cell_states: for each direction (arrays, time, batch, units): an LSTM's cells and their tanh; the recurrent
            part of a GRU's new gate.
    """

    hidden: Array
    mask: Array | None
    gates: list[Array]
    cell_states: list[Array]


class Layout(NamedTuple):
    """The sizes of a stack of recurrent layers; ``outputs`` is the projection's size, or ``units``."""

    cell: CellSizes
    layers: int
    directions: int
    units: int
    outputs: int
    projected: bool

    @property
    def width(self) -> int:
        """The length of a layer's output, with all directions."""
        return self.directions * self.outputs

    def _weight_shapes(self, inputs: int) -> Iterator[Shape]:
        rows = self.cell.gates * self.units
        for layer in range(self.layers):
            for _ in range(self.directions):
                yield (rows, self.width if layer else inputs)
                yield (rows, self.outputs)
                if self.projected:
                    yield (self.outputs, self.units)

    def parameter_count(self, inputs: int) -> int:
        """Return the length of the packed vector for data with ``inputs`` features."""
        biases = 2 * self.layers * self.directions * self.cell.gates * self.units
        return sum(map(math.prod, self._weight_shapes(inputs))) + biases

    def unpack(self, vector: Array, inputs: int) -> list[list[Weights]]:
        """Return the views into a packed vector, by layer and direction."""
        rows = self.cell.gates * self.units
        biases: list[Shape] = [(rows,)] * (2 * self.layers * self.directions)
        views = iter(carve(vector, [*self._weight_shapes(inputs), *biases]))
        pairs = [
            [(next(views), next(views), next(views) if self.projected else None) for _ in range(self.directions)]
            for _ in range(self.layers)
        ]
        return [[Weights(*pair, next(views), next(views)) for pair in layer] for layer in pairs]

    def _reserve_shapes(self, time: int, batch: int, dropout: bool) -> Iterator[list[Shape]]:
        for layer in range(self.layers):
            output = (time, batch, self.width)
            direction: list[Shape] = [
                (time, batch, self.cell.gates * self.units),
                (self.cell.saved, time, batch, self.units),
            ]
            yield [output, *([output] if layer and dropout else []), *direction * self.directions]

    def reserve_size(self, time: int, batch: int, dropout: bool) -> int:
        """Return the number of elements that the forward saves for the gradient."""
        return sum(math.prod(shape) for layer in self._reserve_shapes(time, batch, dropout) for shape in layer)

    def reserve_views(self, vector: Array, time: int, batch: int, dropout: bool) -> list[Reserve]:
        """Return the views into the output ``reserve``, by layer."""
        shapes = list(self._reserve_shapes(time, batch, dropout))
        views = iter(carve(vector, [shape for layer in shapes for shape in layer]))
        reserves = []
        for layer in range(self.layers):
            hidden, mask = next(views), next(views) if layer and dropout else None
            pairs = [(next(views), next(views)) for _ in range(self.directions)]
            reserves.append(
                Reserve(hidden, mask, [gates for gates, _ in pairs], [cell_states for _, cell_states in pairs])
            )
        return reserves


def carve(vector: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Return consecutive views of these shapes into a vector."""
    views, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        views.append(vector[start:stop].reshape(shape))
        start = stop
    return views
