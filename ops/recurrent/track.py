"""The arrays of one layer in one direction, on which a loop over time of the fused RNN operator works."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowmx.ops.math.products import Once, repeated
from flowmx.ops.registry.operators import Array, Run


class Track(NamedTuple):
    """One layer in one direction; time runs in the order of processing (a flipped view where that is backward).

    Attributes:
        gates: (time, batch, gates·units). Before the forward: what the input gives each gate, with the biases;
            after it: the gates' activations.
        hidden: (time, batch, outputs), the outputs; written by the forward.
        more: (kept, time, batch, units), written by the forward: an LSTM's cells and their tanh; what the
            recurrence gives a GRU's new gate, with its bias.
        weight: the recurrent weight (gates·units, outputs), perhaps of 16 bits beside gates of float32.
        bias: the recurrent bias of a GRU's new gate (units,); all other biases are in the gates already.
        state: the initial output (batch, outputs).
        cell: an LSTM's initial cell (batch, units), else None.
        projection: an LSTM's projection (outputs, units), or None.
        running: (time, batch, 1): 1 while a sequence lasts, 0 behind its end, where the state stays; or None.
        clip: an LSTM's least and greatest cell, or None.
        clip_nan: whether clipping turns NaN into the least cell.
    """

    gates: Array
    hidden: Array
    more: Array
    weight: Array
    bias: Array
    state: Array
    cell: Array | None
    projection: Array | None
    running: Array | None
    clip: tuple[float, float] | None
    clip_nan: bool

    @property
    def plain(self) -> bool:
        """True without projection, clipping and lengths: what registered loops are asked for."""
        return self.projection is None and self.running is None and self.clip is None

    def recurrence(self, run: Run) -> Once:
        """The product of an output and the recurrent weight, for all steps."""
        return repeated(run, self.weight.T, self.gates.shape[1], self.gates.dtype, len(self.gates))

    def spreading(self, run: Run) -> Once:
        """The product of the gates' gradients and the recurrent weight, for all steps."""
        return repeated(run, self.weight, self.gates.shape[1], self.gates.dtype, len(self.gates))

    def before(self, step: int) -> Array:
        """The output before a step."""
        return self.hidden[step - 1] if step else self.state

    def cell_before(self, step: int) -> Array:
        """An LSTM's cell before a step."""
        return self.more[0, step - 1] if step else self.cell


class GateGradients(NamedTuple):
    """The results of a backward loop; each is shaped and ordered as its track's arrays.

    Attributes:
        outer: the gradient of what the input gives the gates.
        inner: that of what the recurrence gives them: the same array but for a GRU.
        projected: with a projection: the whole gradient of ``hidden``.
    """

    outer: Array
    inner: Array
    projected: Array | None


def hold(xp: Any, track: Track, step: int, *pairs: tuple[Array, Array]) -> None:
    """Behind a sequence's end, keep what was before (pairs of new and old)."""
    if track.running is not None:
        ended = track.running[step] == 0
        for new, old in pairs:
            xp.copyto(new, old, where=ended)


def split(xp: Any, track: Track, step: int, *grads: Array) -> list[Array]:
    """Behind a sequence's end, gradients pass by the step: take them out, and return them to be added later."""
    if track.running is None:
        return []
    here = track.running[step]
    passing = [grad * (1 - here) for grad in grads]
    for grad in grads:
        xp.multiply(grad, here, out=grad)
    return passing


def join(grads: tuple[Array, ...], passing: list[Array]) -> None:
    """Add what :func:`split` took out."""
    for grad, passed in zip(grads, passing, strict=False):
        grad += passed
