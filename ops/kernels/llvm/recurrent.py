"""Steps of an LSTM and a GRU: all operations after the recurrent product, as one loop over the units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from flowmx.ops.formulas.expressions import Expr, instruction_count, placeholder
from flowmx.ops.kernels.llvm.assembly import FLOAT
from flowmx.ops.kernels.llvm.math_functions import sigmoid, tanh
from flowmx.ops.kernels.llvm.strided_loops import StridedLoop, axes_of, vectors
from flowmx.ops.nn.common import scratch
from flowmx.ops.recurrent import time_loops
from flowmx.ops.recurrent.layer_arrays import LayerArrays
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import Array, Run


def _step() -> list[Expr]:
    """Return gates i, f, g, o, cell, its tanh and output, from both summands of each gate and the previous cell."""
    inputs = [placeholder(at) for at in range(9)]
    i, f, o = (sigmoid(inputs[at] + inputs[at + 4]) for at in (0, 1, 3))
    g = tanh(inputs[2] + inputs[6])
    cell = f * inputs[8] + i * g
    squashed = tanh(cell)
    return [i, f, g, o, cell, squashed, o * squashed]


def _gru_step() -> list[Expr]:
    """Return gates r, z and n, and output, from both summands of each gate and the previous output."""
    r_in, z_in, n_in, r_more, z_more, n_more, before = (placeholder(at) for at in range(7))
    r, z = sigmoid(r_in + r_more), sigmoid(z_in + z_more)
    n = tanh(n_in + r * n_more)
    return [r, z, n, n + z * (before - n)]


@cache
def _strided_loop(step: Callable[[], list[Expr]], is_constant: tuple[bool, ...], rank: int, size: int) -> StridedLoop:
    outputs = step()
    return StridedLoop(outputs, FLOAT, is_constant, rank, False, vectors(instruction_count(outputs), size))


class _Loop:
    """A loop over the units of a step, compiled for the arrays of the first one."""

    def __init__(self, step: Callable[[], list[Expr]]) -> None:
        self._step = step
        self._strided_loop: StridedLoop | None = None

    def run(self, arrays: Sequence[Array]) -> bool:
        """Compute a step; return False at the first step if the arrays are unsupported or the loop is not compiled yet.

        Raises:
            RuntimeError: the loop is missing at a later step.
        """
        is_first = self._strided_loop is None
        if self._strided_loop is None:
            axes = axes_of(arrays) if arrays[0].dtype == FLOAT32 else None
            if axes is None or any(axes.is_constant):
                return False
            self._strided_loop = _strided_loop(self._step, axes.is_constant, len(axes.lengths), math.prod(axes.lengths))
            self._threads = self._strided_loop.threads(axes)
            self._words = self._strided_loop.words(axes, (), self._threads)
        if self._strided_loop.run(self._words, arrays, self._threads):
            return True
        if not is_first:
            raise RuntimeError("a compiled loop is no longer available")
        return False


@time_loops.loop("cpu", "lstm")
def lstm(run: Run, layer: LayerArrays) -> None:
    """Run all steps of a layer."""
    loop = _Loop(_step)
    total = scratch(run, "lstm gates", layer.gates.shape[1:], layer.gates.dtype)
    recur = layer.recurrent_product(run)
    cells, squashed = layer.cell_states
    for step, gates in enumerate(layer.gates):
        recur(layer.output_before(step), total)
        four = _split_gates(gates, 4)
        results = (*four, cells[step], squashed[step], layer.hidden[step])
        if not loop.run([*_split_gates(total, 4), *four, layer.cell_before(step), *results]):
            time_loops.lstm_forward(run, layer)
            return


@time_loops.loop("cpu", "gru")
def gru(run: Run, layer: LayerArrays) -> None:
    """Run all steps of a layer."""
    loop, units = _Loop(_gru_step), layer.cell_states.shape[-1]
    total = scratch(run, "gru gates", layer.gates.shape[1:], layer.gates.dtype)
    recur = layer.recurrent_product(run)
    (inner,) = layer.cell_states
    # The loop is compiled for fixed strides, and the outputs' strides differ from the first state's.
    before = scratch(run, "gru before", layer.cell_states.shape[2:], layer.gates.dtype)
    for step, gates in enumerate(layer.gates):
        before[...] = layer.output_before(step)
        recur(before, total)
        run.xp.add(total[:, 2 * units :], layer.bias, out=inner[step])
        three = _split_gates(gates, 3)
        if not loop.run([*three, *_split_gates(total, 3)[:2], inner[step], before, *three, layer.hidden[step]]):
            time_loops.gru_forward(run, layer)
            return


def _split_gates(gates: Array, count: int) -> list[Array]:
    """Return views of the single gates in an array (batch, gates·units)."""
    units = gates.shape[-1] // count
    return [gates[:, at * units : (at + 1) * units] for at in range(count)]
