"""The arrays of one layer in one direction, as read and written by the time loops of the fused RNN operator."""

from __future__ import annotations

from typing import NamedTuple, cast

from flowmx.ops.math.matmul import FixedFactorProduct, fixed_factor_product
from flowmx.ops.registry.operators import Array, Run
from flowmx.ops.registry.tensors import ArrayNamespace


class LayerArrays(NamedTuple):
    """One layer in one direction. The order of time is that of processing: for the backward direction, a flipped view.

    Attributes:
        gates: (time, batch, gates·units). Before the forward: the part of each gate that the input contributes, plus
            the biases. After it: the activations of the gates.
        hidden: (time, batch, outputs), the outputs, written by the forward.
        cell_states: (arrays, time, batch, units), written by the forward: an LSTM's cells and their tanh; the recurrent
            part of a GRU's new gate, with its bias.
        weight: the recurrent weight (gates·units, outputs); it may have 16 bits where gates are float32.
        bias: the recurrent bias of a GRU's new gate (units,); ``gates`` includes all other biases.
        state: the initial output (batch, outputs).
        cell: an LSTM's initial cell (batch, units), else None.
        projection: an LSTM's projection (outputs, units), or None.
        sequence_mask: (time, batch, 1): 1 within a sequence, 0 after its end, where the state does not change; or None.
        clip: the lower and upper bound of an LSTM's cells, or None.
        clip_nan: whether clipping replaces NaN by the lower bound.
    """

    gates: Array
    hidden: Array
    cell_states: Array
    weight: Array
    bias: Array
    state: Array
    cell: Array | None
    projection: Array | None
    sequence_mask: Array | None
    clip: tuple[float, float] | None
    clip_nan: bool

    @property
    def is_plain(self) -> bool:
        """True without projection, clipping and lengths; registered loops support only this case."""
        return self.projection is None and self.sequence_mask is None and self.clip is None

    def recurrent_product(self, run: Run) -> FixedFactorProduct:
        """Return the product of an output with the recurrent weight, for all steps."""
        return fixed_factor_product(run, self.weight.T, self.gates.shape[1], self.gates.dtype, len(self.gates))

    def gradient_product(self, run: Run) -> FixedFactorProduct:
        """Return the product of the gates' gradients with the recurrent weight, for all steps."""
        return fixed_factor_product(run, self.weight, self.gates.shape[1], self.gates.dtype, len(self.gates))

    def output_before(self, step: int) -> Array:
        """Return the output before a step."""
        return self.hidden[step - 1] if step else self.state

    def cell_before(self, step: int) -> Array:
        """Return an LSTM's cell before a step."""
        cell = self.cell_states[0, step - 1] if step else self.cell
        return cast("Array", cell)


class GateGradients(NamedTuple):
    """The results of a backward loop, in the shape and order of time of the layer's arrays.

    Attributes:
        outer: the gradient of the input's part of the gates.
        inner: the gradient of the recurrent part of the gates; the same array except for a GRU.
        projected: with a projection, the total gradient of ``hidden``; else None.
    """

    outer: Array
    inner: Array
    projected: Array | None


def keep_ended(xp: ArrayNamespace, layer: LayerArrays, step: int, *pairs: tuple[Array, Array]) -> None:
    """Keep the old values where a sequence has ended (pairs of new and old)."""
    if layer.sequence_mask is not None:
        ended = layer.sequence_mask[step] == 0
        for new, old in pairs:
            xp.copyto(new, old, where=ended)


def take_ended_gradients(xp: ArrayNamespace, layer: LayerArrays, step: int, *grads: Array) -> list[Array]:
    """Remove and return the gradients of ended sequences, which bypass the step."""
    if layer.sequence_mask is None:
        return []
    is_running = layer.sequence_mask[step]
    ended = [grad * (1 - is_running) for grad in grads]
    for grad in grads:
        xp.multiply(grad, is_running, out=grad)
    return ended


def restore_ended_gradients(grads: tuple[Array, ...], ended: list[Array]) -> None:
    """Add the gradients that :func:`take_ended_gradients` removed."""
    for grad, part in zip(grads, ended, strict=False):
        grad += part
