"""LSTM layers in prediction by compiled loops: a product for the inputs of all steps, and one call for each step.

This is faster than oneDNN's layers in float32 on processors with AVX-512, because a step prefetches the weights, and
finds a part of them in the second-level cache (``llvm/lstm_step.py``).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.kernels.llvm import compiler, lstm_step
from flowmx.ops.kernels.llvm.matrix_product import LANES, PANEL
from flowmx.ops.kernels.onednn import panels
from flowmx.ops.kernels.onednn.epilogue import Epilogue
from flowmx.ops.kernels.onednn.layouts import Array, Geometry, Shape, strided
from flowmx.ops.kernels.onednn.library import DType, Unsupported
from flowmx.ops.kernels.onednn.loops import ProgramLoop, array_at
from flowmx.ops.kernels.onednn.primitives import Call, Reorder
from flowmx.ops.kernels.onednn.work import Work
from flowmx.ops.math.reduce import widen
from flowmx.ops.recurrent.layout import Layout, Weights

_GATES = PANEL // LANES
_DEEPEST, _SHALLOWEST = 2048, 128
"""The limits of the number of units: the weights of a panel fit into the second-level cache; smaller layers are as fast
in oneDNN."""
_ENDS = Epilogue(has_bias=True)


class Sizes(NamedTuple):
    """The sizes of a layer in one direction: its inputs, its units, and the gates in panels."""

    inputs: int
    units: int

    @property
    def gates(self) -> int:
        """The number of gates in whole panels."""
        return -(-self.units // LANES) * PANEL

    @property
    def lengths(self) -> tuple[int, int, int]:
        """The numbers of packed input weights, recurrent weights and biases."""
        return self.gates * self.inputs, self.gates * self.units, self.gates


def supports(layout: Layout, dtype: DType) -> bool:
    """Return whether the loops compute LSTM layers of these sizes on this machine."""
    is_fitting = _SHALLOWEST <= layout.units <= _DEEPEST and not layout.projected
    return is_fitting and dtype == DType.F32 and "avx512f" in compiler.features()


def _sizes(layout: Layout, features: int) -> list[Sizes]:
    return [Sizes(layout.width if layer else features, layout.units) for layer in range(layout.layers)]


def packed_length(layout: Layout, features: int) -> int:
    """Return the number of packed parameters."""
    return layout.directions * sum(sum(sizes.lengths) for sizes in _sizes(layout, features))


def pack(layout: Layout, vector: Array, features: int, packed: Array) -> None:
    """Copy a vector of parameters in the order of the loops."""
    place = 0
    for sizes, sides in zip(_sizes(layout, features), layout.unpack(vector, features), strict=True):
        for side in sides:
            place = _pack_side(sizes, side, packed, place)


def _pack_side(sizes: Sizes, side: Weights, packed: Array, place: int) -> int:
    bias = widen(side.input_bias) + widen(side.recurrent_bias)
    depths = (panels.DEEPEST, sizes.units)
    for weight, length, depth in zip((side.input, side.recurrent), sizes.lengths, depths, strict=False):
        panels.pack(_panel_rows(weight, sizes.units), packed[place : place + length], depth)
        place += length
    packed[place : place + sizes.gates] = _panel_rows(bias, sizes.units)
    return place + sizes.gates


def _panel_rows(weight: Array, units: int) -> Array:
    """Return the rows of gates in the order of panels: four gates of 16 units; missing units are 0."""
    rest = weight.shape[1:]
    padded = np.zeros((_GATES, -(-units // LANES) * LANES, *rest), np.float32)
    padded[:, :units] = weight.reshape(_GATES, units, *rest)
    return padded.reshape(_GATES, -1, LANES, *rest).swapaxes(0, 1).reshape(-1, *rest)


class Layers(Work):
    """All layers, in order; see ``rnn.Layers``.

    Args:
        layout: the sizes of the layers.
        data: the shape of the data (time, batch, features).
    """

    def __init__(self, layout: Layout, data: Shape) -> None:
        super().__init__()
        if not supports(layout, DType.F32):
            raise Unsupported("the compiled loops do not compute these layers")
        self._layout, self._data = layout, data
        time, batch, features = data
        workspace, units, width = self.workspace, layout.units, layout.width
        self._sizes = _sizes(layout, features)
        self._gates = workspace.take(4 * time * batch * self._sizes[0].gates)
        self._between = [workspace.take(4 * time * batch * width) for _ in range(min(2, layout.layers - 1))]
        self._inputs = [
            panels.product_loop(time * batch, (sizes.gates, sizes.inputs), _ENDS, self.threads) for sizes in self._sizes
        ]
        self._steps = {
            (is_first, is_backward): self._step(units if is_first else width, is_backward)
            for is_first in (False, True) for is_backward in (False, True)
        }  # fmt: skip
        last = Geometry((batch, units), (width, 1), DType.F32)
        self._last = Reorder(workspace, strided(*last), strided((batch, units), (units, 1), DType.F32))

    def _step(self, data_step: int, is_backward: bool) -> ProgramLoop:
        """Return the loop of a step whose previous outputs have rows at this distance."""
        batch, units, width, gates = self._data[1], self._layout.units, self._layout.width, self._sizes[0].gates
        rows = panels.Rows.of(batch)
        count = gates // PANEL
        groups = min(count, self.threads)
        words = (
            rows.large, rows.blocks, rows.blocks, units, units, units, 1, data_step, width, groups, -(-count // groups),
            count, int(is_backward), gates, units,
        )  # fmt: skip
        fallback = partial(_step_at, batch, units, data_step, width)
        return ProgramLoop(lstm_step.program(rows.of_block, rows.lines), groups, words, self.threads, fallback)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        """Return the calls for data, packed parameters, states, cells, output, last states and last cells."""
        data, packed, states, cells, output, last_states, last_cells = addresses
        calls: list[Call] = []
        layout, side = self._layout, 4 * self._data[1] * self._layout.units
        for layer, sizes in enumerate(self._sizes):
            is_last = layer == layout.layers - 1
            target = output if is_last else base + self._between[layer % 2]
            for direction in range(layout.directions):
                at = (layer * layout.directions + direction) * side
                state_addresses = (states + at, cells + at, last_states + at, last_cells + at)
                calls += self._side(base, layer, direction, data, packed, target, state_addresses)
                packed += 4 * sum(sizes.lengths)
            data = target
        return calls

    def _side(
        self, base: int, layer: int, direction: int, data: int, packed: int, output: int,
        state_addresses: tuple[int, ...],
    ) -> list[Call]:  # fmt: skip
        """Return the calls of a layer in one direction."""
        sizes, (time, batch, _) = self._sizes[layer], self._data
        state, cell, last_state, last_cell = state_addresses
        recurrent = packed + 4 * sizes.lengths[0]
        bias = recurrent + 4 * sizes.lengths[1]
        gates = base + self._gates
        calls: list[Call] = [self._inputs[layer].at(data, packed, gates, bias)]
        output += 4 * direction * sizes.units
        out_step, gate_step = 4 * batch * self._layout.width, 4 * batch * sizes.gates
        for number in range(time):
            step = time - 1 - number if direction else number
            out = output + step * out_step
            loop = self._steps[not number, bool(number % 2)]
            calls.append(loop.at(state, recurrent, gates + step * gate_step, cell, last_cell, out))
            state, cell = out, last_cell
        return [*calls, self._last.at(base, state, last_state)]


def _step_at(
    batch: int, units: int, data_step: int, out_step: int, data: int, weights: int, gates: int, before: int, after: int,
    out: int,
) -> None:  # fmt: skip
    """Compute a step in NumPy."""
    sizes = Sizes(units, units)
    weight = panels.unpacked(array_at(weights, (sizes.lengths[1],)), sizes.gates, units, units)
    previous = np.lib.stride_tricks.as_strided(
        array_at(data, ((batch - 1) * data_step + units,)), (batch, units), (4 * data_step, 4)
    )
    target = np.lib.stride_tricks.as_strided(
        array_at(out, ((batch - 1) * out_step + units,)), (batch, units), (4 * out_step, 4)
    )
    sums = array_at(gates, (batch, sizes.gates)) + previous @ weight.T
    i, f, g, o = (
        sums.reshape(batch, -1, _GATES, LANES)[:, :, gate].reshape(batch, -1)[:, :units] for gate in range(_GATES)
    )
    cell = _sigmoid(f) * array_at(before, (batch, units)) + _sigmoid(i) * np.tanh(g)
    array_at(after, (batch, units))[...] = cell
    target[...] = _sigmoid(o) * np.tanh(cell)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))
