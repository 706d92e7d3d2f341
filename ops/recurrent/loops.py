"""The loops over time of the fused RNN operator: one layer in one direction, forward and backward.

What the input gives the gates is computed before, for all steps in one product, so a forward step only adds
what the recurrence gives. The backward loop leaves the gradients of all gates behind, from which the weights'
follow in one product each. A backend registers a faster forward with :func:`loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from flowmx.ops.math.products import matmul
from flowmx.ops.nn.common import scratch
from flowmx.ops.recurrent.track import GateGradients, Track, hold, join, split
from flowmx.ops.registry.operators import Array, Run

_FACTOR_BYTES = 1 << 19
"""Bytes of gates to prepare at a time for the backward loop, so that it finds them in the cache."""

Forward = Callable[[Run, Track], None]
_loops: dict[tuple[str, str], Forward] = {}


def loop(device_type: str, mode: str) -> Callable[[Forward], Forward]:
    """Register a faster forward loop ``function(run, track)`` of a mode, for plain tracks on one device type.

    It reads ``gates``, ``weight``, ``bias``, ``state`` and ``cell`` of the track and writes ``gates``, ``hidden``
    and ``more``, all in the computing dtype; arrays may be flipped along time, and ``hidden`` is part of a
    wider array.
    """

    def register(function: Forward) -> Forward:
        _loops[device_type, mode] = function
        return function

    return register


def forward(mode: str, run: Run, track: Track) -> None:
    """Run a track through all its steps."""
    fast = _loops.get((run.device.kernels, mode)) if track.plain else None
    (fast or _FORWARD[mode])(run, track)


def backward(mode: str, run: Run, track: Track, heads: Array, state: Array, cell: Array, grads: GateGradients) -> None:
    """Go back over a track.

    Args:
        mode: the operator's mode.
        run: where it runs.
        track: what the forward left.
        heads: the gradient of ``hidden``.
        state: the gradient of the last output; becomes that of the initial one.
        cell: likewise of an LSTM's cell.
        grads: what to write.
    """
    _BACKWARD[mode](run, track, heads, state, cell, grads)


def _sigmoid(xp: Any, x: Array) -> None:
    """In place, by way of tanh, which is vectorised."""
    x *= 0.5
    xp.tanh(x, out=x)
    x *= 0.5
    x += 0.5


def _parts(steps: int, array: Array) -> Iterator[slice]:
    """Slices of steps from the last to the first, each small enough for the cache."""
    count = max(1, _FACTOR_BYTES // max(1, array[:1].nbytes))
    for stop in range(steps, 0, -count):
        yield slice(max(0, stop - count), stop)


def _by_gate(gates: Array, count: int) -> Array:
    """(..., gates·units) as (..., gates, units)."""
    return gates.reshape(*gates.shape[:-1], count, gates.shape[-1] // count)


# -- one gate ----------------------------------------------------------------------------------------------


def _simple_forward(activate: Callable[[Any, Array], None], run: Run, track: Track) -> None:
    product = track.recurrence(run)
    for step, gates in enumerate(track.gates):
        hidden = track.hidden[step]
        product(track.before(step), hidden)
        hidden += gates
        activate(run.xp, hidden)
        hold(run.xp, track, step, (hidden, track.before(step)))


def _relu(xp: Any, x: Array) -> None:
    xp.maximum(x, 0, out=x)


def _tanh(xp: Any, x: Array) -> None:
    xp.tanh(x, out=x)


def _relu_slope(xp: Any, y: Array, out: Array) -> None:
    xp.greater(y, 0, out=out, casting="unsafe")


def _tanh_slope(xp: Any, y: Array, out: Array) -> None:
    xp.multiply(y, y, out=out)
    xp.subtract(1, out, out=out)


def _simple_backward(
    slope: Callable[[Any, Array, Array], None], run: Run, track: Track, heads: Array, state: Array, cell: Array,
    grads: GateGradients,
) -> None:  # fmt: skip
    xp, outer = run.xp, grads.outer
    spread = track.spreading(run)
    for step in reversed(range(len(outer))):
        state += heads[step]
        passing = split(xp, track, step, state)
        slope(xp, track.hidden[step], outer[step])
        outer[step] *= state
        spread(outer[step], state)
        join((state,), passing)


# -- LSTM --------------------------------------------------------------------------------------------------


def lstm_forward(run: Run, track: Track) -> None:
    """The cell is c = f·c + i·g and the output h = o·tanh(c), with i, f, o sigmoids and g tanh of the gates."""
    xp, units = run.xp, track.more.shape[-1]
    # All four activations are one tanh: sigmoid(x) = tanh(x/2)/2 + 1/2.
    scale = xp.full((4, units), 0.5, track.gates.dtype)
    scale[2] = 1
    scale = scale.reshape(-1)
    offset = 1 - scale
    total = scratch(run, "lstm gates", track.gates.shape[1:], track.gates.dtype)
    product = scratch(run, "lstm product", track.more.shape[2:], track.gates.dtype)
    cells, squashed = track.more
    recur = track.recurrence(run)
    for step, gates in enumerate(track.gates):
        recur(track.before(step), total)
        total += gates
        total *= scale
        xp.tanh(total, out=total)
        total *= scale
        xp.add(total, offset, out=gates)
        i, f, g, o = (gates[:, at : at + units] for at in range(0, 4 * units, units))
        xp.multiply(f, track.cell_before(step), out=cells[step])
        xp.multiply(i, g, out=product)
        cells[step] += product
        if track.clip is not None:
            _clip(xp, cells[step], track)
        xp.tanh(cells[step], out=squashed[step])
        if track.projection is None:
            xp.multiply(o, squashed[step], out=track.hidden[step])
        else:
            xp.multiply(o, squashed[step], out=product)
            matmul(run, product, track.projection.T, track.hidden[step])
        hold(xp, track, step, (cells[step], track.cell_before(step)), (track.hidden[step], track.before(step)))


def _clip(xp: Any, cell: Array, track: Track) -> None:
    assert track.clip is not None
    low, high = track.clip
    # fmax and fmin take the number where the other is NaN.
    raise_to, lower_to = (xp.fmax, xp.fmin) if track.clip_nan else (xp.maximum, xp.minimum)
    raise_to(cell, low, out=cell)
    lower_to(cell, high, out=cell)


def _lstm_factors(run: Run, track: Track, part: slice, out: Array) -> tuple[Array, Array]:
    """Write the factors of the gates' gradients into ``out``; return the slopes of h by c, and of c by the last c."""
    xp, (cells, squashed) = run.xp, track.more
    gates, factors = _by_gate(track.gates[part], 4), _by_gate(out[part], 4)
    i, f, g, o = (gates[..., n, :] for n in range(4))
    xp.subtract(1, gates, out=factors)
    factors *= gates
    factors[..., 0, :] *= g
    factors[0, :, 1, :] *= track.cell_before(part.start)
    factors[1:, :, 1, :] *= cells[part.start : part.stop - 1]
    xp.multiply(g, g, out=factors[..., 2, :])
    xp.subtract(1, factors[..., 2, :], out=factors[..., 2, :])
    factors[..., 2, :] *= i
    factors[..., 3, :] *= squashed[part]
    slope = scratch(run, "lstm slope", squashed[part].shape, out.dtype)
    xp.multiply(squashed[part], squashed[part], out=slope)
    xp.subtract(1, slope, out=slope)
    slope *= o
    if track.clip is not None:
        low, high = track.clip
        # A clipped cell answers neither to its gates nor to the cell before.
        free = (cells[part] > low) & (cells[part] < high)
        factors[..., :3, :] *= free[..., None, :]
        f = f * free
    return slope, f


def _lstm_backward(run: Run, track: Track, heads: Array, state: Array, cell: Array, grads: GateGradients) -> None:
    xp, outer = run.xp, grads.outer
    product = scratch(run, "lstm product", cell.shape, cell.dtype)
    spread = track.spreading(run)
    for part in _parts(len(outer), outer):
        slope, forget = _lstm_factors(run, track, part, outer)
        for step in reversed(range(part.start, part.stop)):
            at = step - part.start
            state += heads[step]
            passing = split(xp, track, step, state, cell)
            made = state
            if track.projection is not None:
                assert grads.projected is not None
                grads.projected[step] = state
                made = xp.matmul(state, track.projection)
            xp.multiply(made, slope[at], out=product)
            cell += product
            gates = _by_gate(outer[step], 4)
            gates[:, :3] *= cell[:, None]
            gates[:, 3] *= made
            cell *= forget[at]
            spread(outer[step], state)
            join((state, cell), passing)


# -- GRU ---------------------------------------------------------------------------------------------------


def gru_forward(run: Run, track: Track) -> None:
    """The output is h = (1 - z)·n + z·h with n = tanh(input + r·recurrence), r and z sigmoids of their gates."""
    xp, units = run.xp, track.more.shape[-1]
    total = scratch(run, "gru gates", track.gates.shape[1:], track.gates.dtype)
    (inner,) = track.more
    recur = track.recurrence(run)
    for step, gates in enumerate(track.gates):
        hidden, before = track.hidden[step], track.before(step)
        recur(before, total)
        xp.add(total[:, 2 * units :], track.bias, out=inner[step])
        switches, new = gates[:, : 2 * units], gates[:, 2 * units :]
        reset, update = gates[:, :units], gates[:, units : 2 * units]
        switches += total[:, : 2 * units]
        _sigmoid(xp, switches)
        xp.multiply(reset, inner[step], out=hidden)
        new += hidden
        xp.tanh(new, out=new)
        xp.subtract(before, new, out=hidden)
        hidden *= update
        hidden += new
        hold(xp, track, step, (hidden, before))


def _gru_factors(run: Run, track: Track, part: slice, out: Array) -> Array:
    """Write the factors of the gates' gradients (the reset gate's: of the new one's) into ``out``; return the gates."""
    xp, (inner,) = run.xp, track.more
    gates, factors = _by_gate(track.gates[part], 3), _by_gate(out[part], 3)
    reset, update, new = (gates[..., n, :] for n in range(3))
    first, second, third = (factors[..., n, :] for n in range(3))
    xp.subtract(1, reset, out=first)
    first *= reset
    first *= inner[part]
    xp.subtract(track.before(part.start), new[0], out=second[0])
    xp.subtract(track.hidden[part.start : part.stop - 1], new[1:], out=second[1:])
    xp.subtract(1, update, out=third)
    second *= third
    second *= update
    third *= 1 - new * new
    return gates


def _gru_backward(run: Run, track: Track, heads: Array, state: Array, cell: Array, grads: GateGradients) -> None:
    xp, (outer, inner, _) = run.xp, grads
    product = scratch(run, "gru product", state.shape, state.dtype)
    spread = track.spreading(run)
    for part in _parts(len(outer), outer):
        gates = _gru_factors(run, track, part, outer)
        for step in reversed(range(part.start, part.stop)):
            reset, update = (gates[step - part.start, :, n] for n in range(2))
            state += heads[step]
            passing = split(xp, track, step, state)
            mine = _by_gate(outer[step], 3)
            mine[:, 1:] *= state[:, None]
            mine[:, 0] *= mine[:, 2]
            inner[step] = outer[step]
            _by_gate(inner[step], 3)[:, 2] *= reset
            spread(inner[step], product)
            state *= update
            state += product
            join((state,), passing)


Backward = Callable[[Run, Track, Array, Array, Array, GateGradients], None]
_FORWARD: dict[str, Forward] = {
    "rnn_relu": partial(_simple_forward, _relu),
    "rnn_tanh": partial(_simple_forward, _tanh),
    "lstm": lstm_forward,
    "gru": gru_forward,
}
_BACKWARD: dict[str, Backward] = {
    "rnn_relu": partial(_simple_backward, _relu_slope),
    "rnn_tanh": partial(_simple_backward, _tanh_slope),
    "lstm": _lstm_backward,
    "gru": _gru_backward,
}
