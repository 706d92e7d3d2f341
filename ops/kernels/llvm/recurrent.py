"""The steps of an LSTM and of a GRU: what follows the product with the recurrent weight, as one loop over the units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from flowmx.ops.formulas.expressions import Expr, placeholder, steps
from flowmx.ops.kernels.llvm.code import FLOAT
from flowmx.ops.kernels.llvm.functions import sigmoid, tanh
from flowmx.ops.kernels.llvm.walks import Walk, axes_of, vectors
from flowmx.ops.nn.common import scratch
from flowmx.ops.recurrent import loops
from flowmx.ops.recurrent.track import Track
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import Array, Run


def _step() -> list[Expr]:
    """The gates i, f, g and o, the cell, its tanh and the output: of both summands of each gate, and the last cell."""
    given = [placeholder(at) for at in range(9)]
    i, f, o = (sigmoid(given[at] + given[at + 4]) for at in (0, 1, 3))
    g = tanh(given[2] + given[6])
    cell = f * given[8] + i * g
    squashed = tanh(cell)
    return [i, f, g, o, cell, squashed, o * squashed]


def _gru_step() -> list[Expr]:
    """The gates r, z and n, and the output: of both summands of r and z, those of n, and the last output."""
    r_in, z_in, n_in, r_more, z_more, n_more, before = (placeholder(at) for at in range(7))
    r, z = sigmoid(r_in + r_more), sigmoid(z_in + z_more)
    n = tanh(n_in + r * n_more)
    return [r, z, n, n + z * (before - n)]


@cache
def _walk(step: Callable[[], list[Expr]], still: tuple[bool, ...], rank: int, size: int) -> Walk:
    outputs = step()
    return Walk(outputs, FLOAT, still, rank, False, vectors(steps(outputs), size))


class _Loop:
    """A loop over the units of a step, compiled for the arrays of the first one."""

    def __init__(self, step: Callable[[], list[Expr]]) -> None:
        self._step = step
        self._walk: Walk | None = None

    def run(self, arrays: Sequence[Array]) -> bool:
        """Compute a step; False at the first one where there is no loop for such arrays, or none yet.

        Raises:
            RuntimeError: at a later one.
        """
        is_first = self._walk is None
        if self._walk is None:
            axes = axes_of(arrays) if arrays[0].dtype == FLOAT32 else None
            if axes is None or any(axes.still):
                return False
            self._walk = _walk(self._step, axes.still, len(axes.lengths), math.prod(axes.lengths))
            self._threads = self._walk.threads(axes)
            self._words = self._walk.words(axes, (), self._threads)
        if self._walk.run(self._words, arrays, self._threads):
            return True
        if not is_first:
            raise RuntimeError("a loop that was compiled is not any more")
        return False


@loops.loop("cpu", "lstm")
def lstm(run: Run, track: Track) -> None:
    """Run a track through all its steps."""
    loop = _Loop(_step)
    total = scratch(run, "lstm gates", track.gates.shape[1:], track.gates.dtype)
    recur = track.recurrence(run)
    cells, squashed = track.more
    for step, gates in enumerate(track.gates):
        recur(track.before(step), total)
        four = _apart(gates, 4)
        made = (*four, cells[step], squashed[step], track.hidden[step])
        if not loop.run([*_apart(total, 4), *four, track.cell_before(step), *made]):
            loops.lstm_forward(run, track)
            return


@loops.loop("cpu", "gru")
def gru(run: Run, track: Track) -> None:
    """Run a track through all its steps."""
    loop, units = _Loop(_gru_step), track.more.shape[-1]
    total = scratch(run, "gru gates", track.gates.shape[1:], track.gates.dtype)
    recur = track.recurrence(run)
    (inner,) = track.more
    # The loop is compiled for strides, and outputs lie otherwise than the first state.
    before = scratch(run, "gru before", track.more.shape[2:], track.gates.dtype)
    for step, gates in enumerate(track.gates):
        before[...] = track.before(step)
        recur(before, total)
        run.xp.add(total[:, 2 * units :], track.bias, out=inner[step])
        three = _apart(gates, 3)
        if not loop.run([*three, *_apart(total, 3)[:2], inner[step], before, *three, track.hidden[step]]):
            loops.gru_forward(run, track)
            return


def _apart(gates: Array, count: int) -> list[Array]:
    """The gates in an array (batch, gates·units)."""
    units = gates.shape[-1] // count
    return [gates[:, at * units : (at + 1) * units] for at in range(count)]
