"""The gradient of the fused RNN operator: a loop back over time, then a product for each of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.ops.math.conversion import as_type
from flowmx.ops.math.products import matmul, summed
from flowmx.ops.nn.common import product, scratch
from flowmx.ops.recurrent import loops
from flowmx.ops.recurrent.layout import Weights
from flowmx.ops.recurrent.operator import RNN, ROWS, along, rows_of
from flowmx.ops.recurrent.track import GateGradients, Track
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, operator


@operator("_backward_RNN")
class BackwardRNN(RNN, hidden=True, skips=False, uses_random=False, mode_matters=False):
    """Gradients of RNN for data, parameters and states."""

    arguments = ("output_head", "state_output_head", "statecell_output_head", *RNN.arguments, "reserve")

    def inputs(self) -> tuple[str, ...]:
        return (*(f"{name}_head" for name in RNN.outputs(self)[:-1]), *super().inputs(), "reserve")

    def outputs(self) -> tuple[str, ...]:
        return ("data_grad", "parameters_grad", "state_grad", "cell_grad")[: 4 if self.mode == "lstm" else 3]

    def visible_outputs(self) -> int:
        return len(self.outputs())

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        heads = RNN.visible_outputs(self)
        return shapes, shapes[heads : heads + len(self.outputs())]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, [dtypes[0]] * len(self.outputs())

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        time, batch = inputs[0][:2]
        return 4 * time * batch * outputs[1][0], sum(map(product, (*inputs, *outputs)))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, count = run.xp, RNN.visible_outputs(self)
        heads, given, layout = inputs[:count], self.read(run, inputs[count:-1]), self.layout
        time, batch, features = given.data.shape
        dtype = inputs[-1].dtype
        kept = layout.kept(inputs[-1], time, batch, self.p > 0)
        weights = layout.unpack(given.parameters, features)
        total = outputs[1] if outputs[1].dtype == dtype else xp.empty(outputs[1].shape, dtype)
        grads = layout.unpack(total, features)
        head = heads[0] if given.running is None else heads[0] * given.running
        head = head.astype(dtype, copy=False)
        for layer in reversed(range(layout.layers)):
            x = self.layer_input(run, given, kept, layer)
            below = outputs[0] if layer == 0 and outputs[0].dtype == dtype else None
            if below is None:
                below = scratch(run, f"rnn head {layer % 2}", x.shape, dtype)
            for direction, sides in enumerate(weights[layer]):
                track = self.track(given, kept[layer], sides, layer, direction)
                row = layer * layout.directions + direction
                shapes = (track.state.shape, (batch, layout.units))
                # Without heads for the last states their gradients begin as zeros.
                states = [each[row].astype(dtype) for each in heads[1:]]
                states += [xp.zeros(shape, dtype) for shape in shapes[len(states) :]]
                part = head[..., direction * layout.outputs : (direction + 1) * layout.outputs]
                made = self._go_back(run, track, along(part, direction), states, direction)
                for out, state in zip(outputs[2:], states, strict=False):
                    out[row] = state
                outer = as_type(run, made.outer, sides.input.dtype)
                self._weigh(run, track, made, outer, direction, x, grads[layer][direction])
                _spread(run, outer, sides.input, below, add=direction > 0)
            mask = kept[layer].mask
            head = below if mask is None else xp.multiply(below, mask, out=below)
        if head is not outputs[0]:
            xp.copyto(outputs[0], head, casting="unsafe")
        if total is not outputs[1]:
            outputs[1][...] = total

    def _go_back(self, run: Run, track: Track, heads: Array, states: list[Array], direction: int) -> GateGradients:
        """Run the backward loop; returns what it left, in the data's order of time."""
        shape, dtype = track.gates.shape, track.gates.dtype
        outer = scratch(run, "rnn outer", shape, dtype)
        inner = scratch(run, "rnn inner", shape, dtype) if self.mode == "gru" else outer
        projected = None
        if track.projection is not None:
            projected = scratch(run, "rnn projected", track.hidden.shape, dtype)
        turned = [None if each is None else along(each, direction) for each in (outer, inner, projected)]
        loops.backward(self.mode, run, track, heads, states[0], states[1], GateGradients(*turned))
        return GateGradients(outer, inner, projected)

    def _weigh(
        self, run: Run, track: Track, made: GateGradients, outer: Array, direction: int, x: Array, grads: Weights
    ) -> None:  # fmt: skip
        """The gradients of one layer's parameters in one direction; ``outer`` is that of ``made`` as a factor."""
        dtype = outer.dtype
        summed(run, rows_of(outer).T, rows_of(as_type(run, x, dtype)), grads.input)
        inner, hidden = along(made.inner, direction), track.hidden
        factor = along(outer if made.inner is made.outer else as_type(run, made.inner, dtype), direction)
        # In the data's order of time, where the rows of all steps lie one behind the other.
        later, before = (along(each, direction) for each in (factor[1:], hidden[:-1]))
        summed(run, rows_of(later).T, as_type(run, rows_of(before), dtype), grads.recurrent)
        if len(inner):
            grads.recurrent[...] += inner[0].T @ track.state
        rows_of(made.outer).sum(axis=0, out=grads.input_bias)
        rows_of(made.inner).sum(axis=0, out=grads.recurrent_bias)
        if grads.projection is not None:
            unprojected = track.gates[..., -self.state_size :] * track.more[1]
            unprojected, projected = along(unprojected, direction), made.projected
            matmul(run, rows_of(projected).T, rows_of(unprojected), grads.projection)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        raise NotImplementedError  # no second order


def _spread(run: Run, gates: Array, weight: Array, out: Array, add: bool) -> None:
    """The gradient of a layer's input from that of its gates, into ``out`` or added to it."""
    rows, made = rows_of(gates), rows_of(out)
    for start in range(0, len(rows), ROWS):
        part = made[start : start + ROWS]
        product = run.xp.empty(part.shape, part.dtype) if add else part
        summed(run, rows[start : start + ROWS], weight, product)
        if add:
            part += product
