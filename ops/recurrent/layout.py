"""Memory layouts of the fused RNN operator: the packed parameters, and the values kept for the gradient.

The parameter vector holds all weights, then all biases, each by layer and within it by direction: the weight of
the input (gates·units, inputs), the recurrent one (gates·units, outputs), that of the projection
(outputs, units) where there is one; then the biases of input and recurrence (gates·units,). The gates come in
the order input, forget, new, output for an LSTM and reset, update, new for a GRU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flowmx.ops.registry.operators import Array, Shape


class Kind(NamedTuple):
    """The sizes by which the modes differ.

    Attributes:
        gates: how many gates each unit has.
        kept: how many numbers a unit keeps at each step for the gradient, besides its gates and its output.
    """

    gates: int
    kept: int


GATES = {"rnn_relu": ("",), "rnn_tanh": ("",), "lstm": ("_i", "_f", "_c", "_o"), "gru": ("_r", "_z", "_o")}
"""The suffix of each gate's arrays by mode, in the names of MXNet's cells."""

KINDS = {mode: Kind(len(gates), {"lstm": 2, "gru": 1}.get(mode, 0)) for mode, gates in GATES.items()}


class PackedWeights(NamedTuple):
    """The packed vector of layers without projection, as arrays of single gates; ``directions`` is l or lr."""

    mode: str
    units: int
    layers: int
    directions: str

    def parts(self, inputs: int) -> Iterator[tuple[str, Shape]]:
        """Name and shape of each array, in order, for ``inputs`` features; the name is as in ``l0_i2h_f_weight``."""
        for kind in ("weight", "bias"):
            for layer in range(self.layers):
                columns = {"i2h": self.units * len(self.directions) if layer else inputs, "h2h": self.units}
                for side in self.directions:
                    for group, width in columns.items():
                        for gate in GATES[self.mode]:
                            shape = (self.units, width) if kind == "weight" else (self.units,)
                            yield f"{side}{layer}_{group}{gate}_{kind}", shape

    def size(self, inputs: int) -> int:
        """Length of the vector."""
        return sum(math.prod(shape) for _, shape in self.parts(inputs))

    def inputs(self, size: int) -> int | None:
        """The number of features for which the vector is so long, or None if there is none."""
        per_input = len(self.directions) * len(GATES[self.mode]) * self.units
        inputs, rest = divmod(size - self.size(0), per_input)
        return None if rest or inputs < 1 else inputs


class Weights(NamedTuple):
    """The parameters of one layer in one direction, or their gradients, as views into the packed vector."""

    input: Array
    recurrent: Array
    projection: Array | None
    input_bias: Array
    recurrent_bias: Array


class Kept(NamedTuple):
    """The values of one layer that the forward keeps for the backward, as views into the reserved output.

    Attributes:
        hidden: the outputs of all directions side by side (time, batch, directions·outputs); behind the end of
            a sequence the last one is repeated.
        mask: what dropout multiplied the layer's input with, or None.
        gates: for each direction the activations of the gates (time, batch, gates·units).
        more: for each direction (kept, time, batch, units): an LSTM's cells and their tanh; what the recurrence
            gives a GRU's new gate.
    """

    hidden: Array
    mask: Array | None
    gates: list[Array]
    more: list[Array]


class Layout(NamedTuple):
    """The sizes of a stack of recurrent layers; ``outputs`` is the projection's size, or ``units``."""

    kind: Kind
    layers: int
    directions: int
    units: int
    outputs: int
    projected: bool

    @property
    def width(self) -> int:
        """Length of a layer's output: that of all directions."""
        return self.directions * self.outputs

    def _weight_shapes(self, inputs: int) -> Iterator[Shape]:
        rows = self.kind.gates * self.units
        for layer in range(self.layers):
            for _ in range(self.directions):
                yield (rows, self.width if layer else inputs)
                yield (rows, self.outputs)
                if self.projected:
                    yield (self.outputs, self.units)

    def parameters(self, inputs: int) -> int:
        """Length of the packed vector for data of ``inputs`` features."""
        biases = 2 * self.layers * self.directions * self.kind.gates * self.units
        return sum(map(math.prod, self._weight_shapes(inputs))) + biases

    def unpack(self, vector: Array, inputs: int) -> list[list[Weights]]:
        """The views into a packed vector, by layer and direction."""
        rows = self.kind.gates * self.units
        biases: list[Shape] = [(rows,)] * (2 * self.layers * self.directions)
        views = iter(carve(vector, [*self._weight_shapes(inputs), *biases]))
        pairs = [
            [(next(views), next(views), next(views) if self.projected else None) for _ in range(self.directions)]
            for _ in range(self.layers)
        ]
        return [[Weights(*pair, next(views), next(views)) for pair in layer] for layer in pairs]

    def _kept_shapes(self, time: int, batch: int, dropout: bool) -> Iterator[list[Shape]]:
        for layer in range(self.layers):
            wide = (time, batch, self.width)
            each: list[Shape] = [
                (time, batch, self.kind.gates * self.units),
                (self.kind.kept, time, batch, self.units),
            ]
            yield [wide, *([wide] if layer and dropout else []), *each * self.directions]

    def reserved(self, time: int, batch: int, dropout: bool) -> int:
        """The number of elements that the forward keeps for the gradient."""
        return sum(math.prod(shape) for layer in self._kept_shapes(time, batch, dropout) for shape in layer)

    def kept(self, vector: Array, time: int, batch: int, dropout: bool) -> list[Kept]:
        """The views into what the forward keeps, by layer."""
        shapes = list(self._kept_shapes(time, batch, dropout))
        views = iter(carve(vector, [shape for layer in shapes for shape in layer]))
        made = []
        for layer in range(self.layers):
            hidden, mask = next(views), next(views) if layer and dropout else None
            pairs = [(next(views), next(views)) for _ in range(self.directions)]
            made.append(Kept(hidden, mask, [gates for gates, _ in pairs], [more for _, more in pairs]))
        return made


def carve(vector: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Views of these shapes, one behind the other, into a vector."""
    views, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        views.append(vector[start:stop].reshape(shape))
        start = stop
    return views
