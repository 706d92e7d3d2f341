"""One step of a recurrent cell after its two products, as one operator; for code that runs cell by cell.

The backward operators recompute the gates from the inputs, so nothing is saved for them. Their gradients are composed
of other operators. Gates are concatenated on the last axis, in MXNet's order. The arguments of a formula are sigmoid,
tanh and the pieces of the inputs (arrays, or expressions of a loop); it returns the pieces of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.math.special import sigmoid
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, operator
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors


def split_gates(values: Any, count: int) -> list[Any]:
    """Return the gates in an array (batch, count·units)."""
    units = values.shape[-1] // count
    return [values[:, index * units : (index + 1) * units] for index in range(count)]


class CellOperator(Operator, hidden=True):
    """Base of steps and their gradients.

    Attributes:
        gates: the number of gates.
        summands: the positions of the inputs whose sums are the gates.
        formula: the computation.
    """

    formula: ClassVar[Callable[..., list[Any]]]
    gates: ClassVar[int]
    summands: ClassVar[tuple[int, int]] = (0, 1)

    def pieces(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
        """Return all arrays (batch, units), inputs first, with a separate array for each gate."""
        pieces: list[Array] = []
        for index, array in enumerate(inputs):
            pieces += split_gates(array, self.gates) if index in self.summands else [array]
        for array in outputs:
            pieces += [array] if array.shape[-1] == pieces[-1].shape[-1] else split_gates(array, self.gates)
        return pieces

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp = run.xp

        def gate(x: Array) -> Array:
            out: Array = xp.empty_like(x)
            sigmoid(xp, x, out)
            return out

        pieces = self.pieces(inputs, outputs)
        values = type(self).formula(gate, xp.tanh, pieces)
        for target, value in zip(pieces[-len(values) :], values, strict=True):
            target[...] = value


# -- GRU ---------------------------------------------------------------------------------------------------


def _gru(sigmoid: Any, tanh: Any, pieces: Sequence[Any]) -> list[Any]:
    """Return the output."""
    i_r, i_z, i_n, h_r, h_z, h_n, state = pieces[:7]
    r, z = sigmoid(i_r + h_r), sigmoid(i_z + h_z)
    n = tanh(i_n + r * h_n)
    return [(1.0 - z) * n + z * state]


def _gru_backward(sigmoid: Any, tanh: Any, pieces: Sequence[Any]) -> list[Any]:
    """Return the gradients of i2h, h2h and the state."""
    head, i_r, i_z, i_n, h_r, h_z, h_n, state = pieces[:8]
    r, z = sigmoid(i_r + h_r), sigmoid(i_z + h_z)
    n = tanh(i_n + r * h_n)
    d_n = head * (1.0 - z) * (1.0 - n * n)
    d_r, d_z = d_n * h_n * r * (1.0 - r), head * (state - n) * z * (1.0 - z)
    return [d_r, d_z, d_n, d_r, d_z, d_n * r, head * z]


@operator("_gru_step")
class GRUStep(CellOperator, hidden=True):
    """The next state of a GRU: (1 - z)·n + z·state, where n = tanh(i_n + r·h_n)."""

    arguments = ("i2h", "h2h", "state")
    formula = _gru
    gates = 3

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[2]]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return list(F.op("_backward_gru_step", heads[0], *inputs))


@operator("_backward_gru_step")
class BackwardGRUStep(CellOperator, hidden=True):
    """The gradients of both products and of the state."""

    arguments = ("head", "i2h", "h2h", "state")
    output_names = ("i2h_grad", "h2h_grad", "state_grad")
    formula = _gru_backward
    gates = 3
    summands = (1, 2)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, shapes[1:]

    def infer_type(self, dtypes: list[Any]) -> tuple[list[Any], list[Any]]:
        return dtypes, dtypes[1:]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        # The operator computes head · J. For heads p, the gradient of head is J p; the others are those of head·(J p).
        head, i2h, h2h, state = inputs
        i_r, i_z, i_n = F.split(i2h, num_outputs=3, axis=1)
        h_r, h_z, h_n = F.split(h2h, num_outputs=3, axis=1)
        r, z = F.sigmoid(i_r + h_r), F.sigmoid(i_z + h_z)
        n = F.tanh(i_n + r * h_n)
        (p_r, p_z, p_n), (q_r, q_z, q_n) = (F.split(head_part, num_outputs=3, axis=1) for head_part in heads[:2])
        p_r, p_z, p_s = p_r + q_r, p_z + q_z, heads[2]
        slope_r, slope_z, slope_n = r * (1.0 - r), z * (1.0 - z), 1.0 - n * n
        inner = p_n + q_n * r + p_r * h_n * slope_r
        along = (1.0 - z) * slope_n * inner + (state - n) * slope_z * p_z + p_s * z
        d_n = head * ((1.0 - z) * n * inner * -2.0 - slope_z * p_z) * slope_n
        d_z = head * ((state - n) * (1.0 - 2.0 * z) * p_z + p_s - slope_n * inner) * slope_z
        reset = head * (1.0 - z) * slope_n
        d_r = (reset * (q_n + p_r * h_n * (1.0 - 2.0 * r)) + d_n * h_n) * slope_r
        d_h = d_n * r + reset * p_r * slope_r
        return [
            along,
            F.concat(d_r, d_z, d_n, dim=1),
            F.concat(d_r, d_z, d_h, dim=1),
            head * slope_z * p_z,
        ]


# -- LSTM --------------------------------------------------------------------------------------------------


def _lstm(sigmoid: Any, tanh: Any, pieces: Sequence[Any]) -> list[Any]:
    """Return the output and the next cell."""
    i, f, o = (sigmoid(pieces[index] + pieces[index + 4]) for index in (0, 1, 3))
    cell = f * pieces[8] + i * tanh(pieces[2] + pieces[6])
    return [o * tanh(cell), cell]


def _lstm_backward(sigmoid: Any, tanh: Any, pieces: Sequence[Any]) -> list[Any]:
    """Return the gradients of the gates' sums and of the cell."""
    head, cell_head, *sums, cell = pieces[:11]
    i, f, o = (sigmoid(sums[index] + sums[index + 4]) for index in (0, 1, 3))
    g = tanh(sums[2] + sums[6])
    squashed = tanh(f * cell + i * g)
    d_cell = cell_head + head * o * (1.0 - squashed * squashed)
    return [d_cell * g * i * (1.0 - i), d_cell * cell * f * (1.0 - f), d_cell * i * (1.0 - g * g),
            head * squashed * o * (1.0 - o), d_cell * f]  # fmt: skip


@operator("_lstm_step")
class LSTMStep(CellOperator, hidden=True):
    """The next hidden state and cell of an LSTM: o·tanh(cell'), and cell' = f·cell + i·g."""

    arguments = ("i2h", "h2h", "cell")
    output_names = ("output", "next_cell")
    formula = _lstm
    gates = 4

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[2], shapes[2]]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        gates, cell = F.op("_backward_lstm_step", *heads, *inputs)
        return [gates, gates, cell]


@operator("_backward_lstm_step")
class BackwardLSTMStep(CellOperator, hidden=True):
    """The gradients of the sum of both products, and of the cell."""

    arguments = ("head", "cell_head", "i2h", "h2h", "cell")
    output_names = ("gates_grad", "cell_grad")
    formula = _lstm_backward
    gates = 4
    summands = (2, 3)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[2], shapes[4]]

    def infer_type(self, dtypes: list[Any]) -> tuple[list[Any], list[Any]]:
        return dtypes, [dtypes[2], dtypes[4]]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        # As for the GRU.
        head, cell_head, i2h, h2h, cell = inputs
        i, f, g, o = F.split(i2h + h2h, num_outputs=4, axis=1)
        i, f, g, o = F.sigmoid(i), F.sigmoid(f), F.tanh(g), F.sigmoid(o)
        squashed = F.tanh(f * cell + i * g)
        p_i, p_f, p_g, p_o = F.split(heads[0], num_outputs=4, axis=1)
        p_c = heads[1]
        slope_i, slope_f, slope_o = i * (1.0 - i), f * (1.0 - f), o * (1.0 - o)
        slope_g, slope = 1.0 - g * g, 1.0 - squashed * squashed
        inner = cell * slope_f * p_f + g * slope_i * p_i + i * slope_g * p_g + f * p_c
        along = o * slope * inner + squashed * slope_o * p_o
        d_cell = cell_head + head * o * slope
        changed = head * (slope_o * p_o - 2.0 * squashed * o * inner) * slope
        d_o = head * (slope * inner + squashed * (1.0 - 2.0 * o) * p_o) * slope_o
        d_f = (d_cell * (cell * (1.0 - 2.0 * f) * p_f + p_c) + changed * cell) * slope_f
        d_i = (d_cell * (g * (1.0 - 2.0 * i) * p_i + slope_g * p_g) + changed * g) * slope_i
        d_g = (d_cell * (slope_i * p_i - 2.0 * g * i * p_g) + changed * i) * slope_g
        both = F.concat(d_i, d_f, d_g, d_o, dim=1)
        return [along, inner, both, both, d_cell * slope_f * p_f + changed * f]
