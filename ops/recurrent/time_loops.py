"""The loops over time of the fused RNN operator: one layer in one direction, forward and backward.

The input's part of the gates is computed before the loop, for all steps in one product; a forward step only adds the
recurrent part. The backward loop computes the gradients of all gates; the gradient of each weight is then one product.
A backend registers a faster forward with :func:`loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from flowmx.ops.math.matmul import matmul
from flowmx.ops.nn.common import scratch
from flowmx.ops.recurrent.layer_arrays import (
    GateGradients,
    LayerArrays,
    keep_ended,
    restore_ended_gradients,
    take_ended_gradients,
)
from flowmx.ops.registry.operators import Array, Run
from flowmx.ops.registry.tensors import ArrayNamespace

_FACTOR_BYTES = 1 << 19
"""Bytes of gates that the backward loop prepares at a time, so that they are in the cache."""

Forward = Callable[[Run, LayerArrays], None]
_loops: dict[tuple[str, str], Forward] = {}


def loop(device_type: str, mode: str) -> Callable[[Forward], Forward]:
    """Register a faster forward loop ``function(run, layer)`` of a mode, for plain layers on one device type.

    It reads ``gates``, ``weight``, ``bias``, ``state`` and ``cell`` of the layer, and writes ``gates``, ``hidden`` and
    ``cell_states``, all in the computing dtype. Arrays may be flipped along time, and ``hidden`` is part of a wider
    array.
    """

    def register(function: Forward) -> Forward:
        _loops[device_type, mode] = function
        return function

    return register


def forward(mode: str, run: Run, layer: LayerArrays) -> None:
    """Run all steps of a layer."""
    loop = _loops.get((run.device.kernels, mode)) if layer.is_plain else None
    (loop or _FORWARD[mode])(run, layer)


def backward(
    mode: str, run: Run, layer: LayerArrays, heads: Array, state: Array, cell: Array, grads: GateGradients
) -> None:
    """Run the backward loop of a layer.

    Args:
        mode: the operator's mode.
        run: where it runs.
        layer: the arrays, as written by the forward.
        heads: the gradient of ``hidden``.
        state: the gradient of the last output; becomes the gradient of the initial one.
        cell: the same for an LSTM's cell.
        grads: the arrays to write.
    """
    _BACKWARD[mode](run, layer, heads, state, cell, grads)


def _sigmoid(xp: ArrayNamespace, x: Array) -> None:
    """Compute the sigmoid in place by tanh, which is vectorized."""
    x *= 0.5
    xp.tanh(x, out=x)
    x *= 0.5
    x += 0.5


def _step_slices(steps: int, array: Array) -> Iterator[slice]:
    """Yield slices of steps from the last to the first, small enough for the cache."""
    count = max(1, _FACTOR_BYTES // max(1, array[:1].nbytes))
    for stop in range(steps, 0, -count):
        yield slice(max(0, stop - count), stop)


def _split_gates(gates: Array, count: int) -> Array:
    """Return an array (..., gates·units) as (..., gates, units)."""
    return gates.reshape(*gates.shape[:-1], count, gates.shape[-1] // count)


# -- one gate ----------------------------------------------------------------------------------------------


def _simple_forward(activate: Callable[[ArrayNamespace, Array], None], run: Run, layer: LayerArrays) -> None:
    product = layer.recurrent_product(run)
    for step, gates in enumerate(layer.gates):
        hidden = layer.hidden[step]
        product(layer.output_before(step), hidden)
        hidden += gates
        activate(run.xp, hidden)
        keep_ended(run.xp, layer, step, (hidden, layer.output_before(step)))


def _relu(xp: ArrayNamespace, x: Array) -> None:
    xp.maximum(x, 0, out=x)


def _tanh(xp: ArrayNamespace, x: Array) -> None:
    xp.tanh(x, out=x)


def _relu_slope(xp: ArrayNamespace, y: Array, out: Array) -> None:
    xp.greater(y, 0, out=out, casting="unsafe")


def _tanh_slope(xp: ArrayNamespace, y: Array, out: Array) -> None:
    xp.multiply(y, y, out=out)
    xp.subtract(1, out, out=out)


def _simple_backward(
    slope: Callable[[ArrayNamespace, Array, Array], None], run: Run, layer: LayerArrays, heads: Array, state: Array,
    cell: Array, grads: GateGradients,
) -> None:  # fmt: skip
    xp, outer = run.xp, grads.outer
    to_state = layer.gradient_product(run)
    for step in reversed(range(len(outer))):
        state += heads[step]
        ended = take_ended_gradients(xp, layer, step, state)
        slope(xp, layer.hidden[step], outer[step])
        outer[step] *= state
        to_state(outer[step], state)
        restore_ended_gradients((state,), ended)


# -- LSTM --------------------------------------------------------------------------------------------------


def lstm_forward(run: Run, layer: LayerArrays) -> None:
    """Run an LSTM: cell c = f·c + i·g, output h = o·tanh(c); i, f, o are sigmoids and g is the tanh of the gates."""
    xp, units = run.xp, layer.cell_states.shape[-1]
    # Compute all four activations with one tanh: sigmoid(x) = tanh(x/2)/2 + 1/2.
    scale = xp.full((4, units), 0.5, layer.gates.dtype)
    scale[2] = 1
    scale = scale.reshape(-1)
    offset = 1 - scale
    total = scratch(run, "lstm gates", layer.gates.shape[1:], layer.gates.dtype)
    product = scratch(run, "lstm product", layer.cell_states.shape[2:], layer.gates.dtype)
    cells, squashed = layer.cell_states
    recur = layer.recurrent_product(run)
    for step, gates in enumerate(layer.gates):
        recur(layer.output_before(step), total)
        total += gates
        total *= scale
        xp.tanh(total, out=total)
        total *= scale
        xp.add(total, offset, out=gates)
        i, f, g, o = (gates[:, index : index + units] for index in range(0, 4 * units, units))
        xp.multiply(f, layer.cell_before(step), out=cells[step])
        xp.multiply(i, g, out=product)
        cells[step] += product
        if layer.clip is not None:
            _clip(xp, cells[step], layer)
        xp.tanh(cells[step], out=squashed[step])
        if layer.projection is None:
            xp.multiply(o, squashed[step], out=layer.hidden[step])
        else:
            xp.multiply(o, squashed[step], out=product)
            matmul(run, product, layer.projection.T, layer.hidden[step])
        keep_ended(
            xp, layer, step, (cells[step], layer.cell_before(step)), (layer.hidden[step], layer.output_before(step))
        )


def _clip(xp: ArrayNamespace, cell: Array, layer: LayerArrays) -> None:
    assert layer.clip is not None
    low, high = layer.clip
    # fmax and fmin ignore NaN.
    maximum, minimum = (xp.fmax, xp.fmin) if layer.clip_nan else (xp.maximum, xp.minimum)
    maximum(cell, low, out=cell)
    minimum(cell, high, out=cell)


def _lstm_factors(run: Run, layer: LayerArrays, part: slice, out: Array) -> tuple[Array, Array]:
    """Write the factors of the gates' gradients into ``out``; return dh/dc, and dc/d(previous c)."""
    xp, (cells, squashed) = run.xp, layer.cell_states
    gates, factors = _split_gates(layer.gates[part], 4), _split_gates(out[part], 4)
    i, f, g, o = (gates[..., n, :] for n in range(4))
    xp.subtract(1, gates, out=factors)
    factors *= gates
    factors[..., 0, :] *= g
    factors[0, :, 1, :] *= layer.cell_before(part.start)
    factors[1:, :, 1, :] *= cells[part.start : part.stop - 1]
    xp.multiply(g, g, out=factors[..., 2, :])
    xp.subtract(1, factors[..., 2, :], out=factors[..., 2, :])
    factors[..., 2, :] *= i
    factors[..., 3, :] *= squashed[part]
    slope = scratch(run, "lstm slope", squashed[part].shape, out.dtype)
    xp.multiply(squashed[part], squashed[part], out=slope)
    xp.subtract(1, slope, out=slope)
    slope *= o
    if layer.clip is not None:
        low, high = layer.clip
        # A clipped cell depends neither on its gates nor on the previous cell.
        free = (cells[part] > low) & (cells[part] < high)
        factors[..., :3, :] *= free[..., None, :]
        f = f * free
    return slope, f


def _lstm_backward(run: Run, layer: LayerArrays, heads: Array, state: Array, cell: Array, grads: GateGradients) -> None:
    xp, outer = run.xp, grads.outer
    product = scratch(run, "lstm product", cell.shape, cell.dtype)
    to_state = layer.gradient_product(run)
    for part in _step_slices(len(outer), outer):
        slope, forget = _lstm_factors(run, layer, part, outer)
        for step in reversed(range(part.start, part.stop)):
            index = step - part.start
            state += heads[step]
            ended = take_ended_gradients(xp, layer, step, state, cell)
            cell_head = state
            if layer.projection is not None:
                assert grads.projected is not None
                grads.projected[step] = state
                cell_head = xp.matmul(state, layer.projection)
            xp.multiply(cell_head, slope[index], out=product)
            cell += product
            gates = _split_gates(outer[step], 4)
            gates[:, :3] *= cell[:, None]
            gates[:, 3] *= cell_head
            cell *= forget[index]
            to_state(outer[step], state)
            restore_ended_gradients((state, cell), ended)


# -- GRU ---------------------------------------------------------------------------------------------------


def gru_forward(run: Run, layer: LayerArrays) -> None:
    """Run a GRU: output h = (1 - z)·n + z·h, n = tanh(input + r·recurrent); r and z are sigmoids of their gates."""
    xp, units = run.xp, layer.cell_states.shape[-1]
    total = scratch(run, "gru gates", layer.gates.shape[1:], layer.gates.dtype)
    (inner,) = layer.cell_states
    recur = layer.recurrent_product(run)
    for step, gates in enumerate(layer.gates):
        hidden, before = layer.hidden[step], layer.output_before(step)
        recur(before, total)
        xp.add(total[:, 2 * units :], layer.bias, out=inner[step])
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
        keep_ended(xp, layer, step, (hidden, before))


def _gru_factors(run: Run, layer: LayerArrays, part: slice, out: Array) -> Array:
    """Write the factors of the gates' gradients into ``out``, and return the gates.

    The factor of the reset gate is relative to the gradient of the new gate.
    """
    xp, (inner,) = run.xp, layer.cell_states
    gates, factors = _split_gates(layer.gates[part], 3), _split_gates(out[part], 3)
    reset, update, new = (gates[..., n, :] for n in range(3))
    reset_factor, update_factor, new_factor = (factors[..., n, :] for n in range(3))
    xp.subtract(1, reset, out=reset_factor)
    reset_factor *= reset
    reset_factor *= inner[part]
    xp.subtract(layer.output_before(part.start), new[0], out=update_factor[0])
    xp.subtract(layer.hidden[part.start : part.stop - 1], new[1:], out=update_factor[1:])
    xp.subtract(1, update, out=new_factor)
    update_factor *= new_factor
    update_factor *= update
    new_factor *= 1 - new * new
    return gates


def _gru_backward(run: Run, layer: LayerArrays, heads: Array, state: Array, cell: Array, grads: GateGradients) -> None:
    xp, (outer, inner, _) = run.xp, grads
    product = scratch(run, "gru product", state.shape, state.dtype)
    to_state = layer.gradient_product(run)
    for part in _step_slices(len(outer), outer):
        gates = _gru_factors(run, layer, part, outer)
        for step in reversed(range(part.start, part.stop)):
            reset, update = (gates[step - part.start, :, n] for n in range(2))
            state += heads[step]
            ended = take_ended_gradients(xp, layer, step, state)
            gate_grads = _split_gates(outer[step], 3)
            gate_grads[:, 1:] *= state[:, None]
            gate_grads[:, 0] *= gate_grads[:, 2]
            inner[step] = outer[step]
            _split_gates(inner[step], 3)[:, 2] *= reset
            to_state(inner[step], product)
            state *= update
            state += product
            restore_ended_gradients((state,), ended)


Backward = Callable[[Run, LayerArrays, Array, Array, Array, GateGradients], None]
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
