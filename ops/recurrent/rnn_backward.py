"""The gradient of the fused RNN operator: a backward loop over time, then one product for each weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.math.conversion import as_type
from flowmx.ops.math.matmul import matmul, matmul_mixed
from flowmx.ops.nn.common import product, scratch
from flowmx.ops.recurrent import time_loops
from flowmx.ops.recurrent.layer_arrays import GateGradients, LayerArrays
from flowmx.ops.recurrent.layout import Weights
from flowmx.ops.recurrent.rnn import RNN, ROWS, in_direction, rows_of
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, operator
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors


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

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        heads = RNN.visible_outputs(self)
        return shapes, shapes[heads : heads + len(self.outputs())]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]] * len(self.outputs())

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        time, batch = inputs[0][:2]
        return 4 * time * batch * outputs[1][0], sum(map(product, (*inputs, *outputs)))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, count = run.xp, RNN.visible_outputs(self)
        heads, values, layout = inputs[:count], self.read_inputs(run, inputs[count:-1]), self.layout
        time, batch, features = values.data.shape
        dtype = inputs[-1].dtype
        reserves = layout.reserve_views(inputs[-1], time, batch, self.p > 0)
        weights = layout.unpack(values.parameters, features)
        parameter_grads = outputs[1] if outputs[1].dtype == dtype else xp.empty(outputs[1].shape, dtype)
        grads = layout.unpack(parameter_grads, features)
        head = heads[0] if values.sequence_mask is None else heads[0] * values.sequence_mask
        head = head.astype(dtype, copy=False)
        for layer in reversed(range(layout.layers)):
            x = self.layer_input(run, values, reserves, layer)
            x_grad = outputs[0] if layer == 0 and outputs[0].dtype == dtype else None
            if x_grad is None:
                x_grad = scratch(run, f"rnn head {layer % 2}", x.shape, dtype)
            for direction, direction_weights in enumerate(weights[layer]):
                arrays = self.layer_arrays(values, reserves[layer], direction_weights, layer, direction)
                row = layer * layout.directions + direction
                shapes = (arrays.state.shape, (batch, layout.units))
                # Without heads for the last states, their gradients are 0 at first.
                states = [state_head[row].astype(dtype) for state_head in heads[1:]]
                states += [xp.zeros(shape, dtype) for shape in shapes[len(states) :]]
                part = head[..., direction * layout.outputs : (direction + 1) * layout.outputs]
                gate_grads = self._run_backward(run, arrays, in_direction(part, direction), states, direction)
                for out, state in zip(outputs[2:], states, strict=False):
                    out[row] = state
                outer = as_type(run, gate_grads.outer, direction_weights.input.dtype)
                self._add_weight_gradients(run, arrays, gate_grads, outer, direction, x, grads[layer][direction])
                _input_gradient(run, outer, direction_weights.input, x_grad, add=direction > 0)
            mask = reserves[layer].mask
            head = x_grad if mask is None else xp.multiply(x_grad, mask, out=x_grad)
        if head is not outputs[0]:
            xp.copyto(outputs[0], head, casting="unsafe")
        if parameter_grads is not outputs[1]:
            outputs[1][...] = parameter_grads

    def _run_backward(
        self, run: Run, arrays: LayerArrays, heads: Array, states: list[Array], direction: int
    ) -> GateGradients:
        """Run the backward loop; return the gradients of the gates in the data's time order."""
        shape, dtype = arrays.gates.shape, arrays.gates.dtype
        outer = scratch(run, "rnn outer", shape, dtype)
        inner = scratch(run, "rnn inner", shape, dtype) if self.mode == "gru" else outer
        projected = None
        if arrays.projection is not None:
            projected = scratch(run, "rnn projected", arrays.hidden.shape, dtype)
        in_order = GateGradients(
            in_direction(outer, direction),
            in_direction(inner, direction),
            None if projected is None else in_direction(projected, direction),
        )
        time_loops.backward(self.mode, run, arrays, heads, states[0], states[1], in_order)
        return GateGradients(outer, inner, projected)

    def _add_weight_gradients(
        self, run: Run, arrays: LayerArrays, gate_grads: GateGradients, outer: Array, direction: int, x: Array,
        grads: Weights,
    ) -> None:  # fmt: skip
        """Compute the gradients of a layer's parameters; ``outer`` is ``gate_grads.outer`` in the weights' dtype."""
        dtype = outer.dtype
        matmul_mixed(run, rows_of(outer).T, rows_of(as_type(run, x, dtype)), grads.input)
        inner, hidden = in_direction(gate_grads.inner, direction), arrays.hidden
        factor = in_direction(
            outer if gate_grads.inner is gate_grads.outer else as_type(run, gate_grads.inner, dtype), direction
        )
        # Reorder to the data's time order, so that the rows of all steps are contiguous.
        later, before = (in_direction(rows, direction) for rows in (factor[1:], hidden[:-1]))
        matmul_mixed(run, rows_of(later).T, as_type(run, rows_of(before), dtype), grads.recurrent)
        if len(inner):
            grads.recurrent[...] += inner[0].T @ arrays.state
        rows_of(gate_grads.outer).sum(axis=0, out=grads.input_bias)
        rows_of(gate_grads.inner).sum(axis=0, out=grads.recurrent_bias)
        if grads.projection is not None:
            unprojected = arrays.gates[..., -self.state_size :] * arrays.cell_states[1]
            unprojected, projected = in_direction(unprojected, direction), gate_grads.projected
            matmul(run, rows_of(cast("Array", projected)).T, rows_of(unprojected), grads.projection)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # no second order


def _input_gradient(run: Run, gates: Array, weight: Array, out: Array, add: bool) -> None:
    """Compute the gradient of a layer's input from that of its gates; write it to ``out``, or add it."""
    rows, out_rows = rows_of(gates), rows_of(out)
    for start in range(0, len(rows), ROWS):
        part = out_rows[start : start + ROWS]
        product = run.xp.empty(part.shape, part.dtype) if add else part
        matmul_mixed(run, rows[start : start + ROWS], weight, product)
        if add:
            part += product
