"""The steps of an LSTM: what follows the product with the recurrent weight, as one loop over the units."""

from __future__ import annotations

import math
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


@cache
def _walk(still: tuple[bool, ...], rank: int, size: int) -> Walk:
    outputs = _step()
    return Walk(outputs, FLOAT, still, rank, False, vectors(steps(outputs), size))


@loops.loop("cpu", "lstm")
def lstm(run: Run, track: Track) -> None:
    """Run a track through all its steps."""
    walk = None
    total = scratch(run, "lstm gates", track.gates.shape[1:], track.gates.dtype)
    recur = track.recurrence(run)
    cells, squashed = track.more
    for step, gates in enumerate(track.gates):
        recur(track.before(step), total)
        four = _apart(gates)
        arrays = [
            *_apart(total),
            *four,
            track.cell_before(step),
            *four,
            cells[step],
            squashed[step],
            track.hidden[step],
        ]
        if walk is None:
            axes = axes_of(arrays) if track.gates.dtype == FLOAT32 else None
            if axes is None or any(axes.still):
                loops.lstm_forward(run, track)
                return
            walk = _walk(axes.still, len(axes.lengths), math.prod(axes.lengths))
            threads = walk.threads(axes)
            words = walk.words(axes, (), threads)
        if not walk.run(words, arrays, threads):
            if step:
                raise RuntimeError("a loop that was compiled is not any more")
            loops.lstm_forward(run, track)
            return


def _apart(gates: Array) -> list[Array]:
    """The four gates in an array (batch, 4·units)."""
    units = gates.shape[-1] // 4
    return [gates[:, at * units : (at + 1) * units] for at in range(4)]
