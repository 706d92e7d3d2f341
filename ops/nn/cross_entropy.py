"""The cross-entropy of logits and class numbers as one operator, which imperative losses call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.ops.arrays.indexing import positions
from flowmx.ops.nn.activation import LogSoftmax
from flowmx.ops.registry.kernels import compute_operator
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, operator
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors

_LOG_SOFTMAX = LogSoftmax.create(axis=-1)


class _Rows(Operator, hidden=True):
    """Base of operators on logits (batch, classes) and a class number per row; numbers out of range are clipped."""

    def infer_type(self, dtypes: list[Any]) -> tuple[list[Any], list[Any]]:
        return dtypes, [dtypes[0]] * len(self.outputs())

    def places(self, xp: ArrayNamespace, label: Array, shape: tuple[int, ...]) -> Array:
        """Return the positions of the labels' elements in a flattened array of this shape."""
        rows, classes = shape
        return xp.arange(0, rows * classes, classes) + positions(xp, label.reshape(-1), classes, "clip", self.name)


@operator("_class_cross_entropy")
class ClassCrossEntropy(_Rows, hidden=True):
    """The negative log-softmax of each row at the row's class; shape (batch,).

    The hidden output is the logarithm of the softmax.
    """

    arguments = ("data", "label")
    output_names = ("output", "log_softmax")
    outputs_visible = 1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data = shapes[0]
        return shapes, [None if data is None else data[:1], data]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        compute_operator(_LOG_SOFTMAX, run, inputs[:1], outputs[1:])
        logs = outputs[1]
        run.xp.negative(logs.reshape(-1)[self.places(run.xp, inputs[1], logs.shape)], out=outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_class_cross_entropy", heads[0], *inputs, outputs[1]), None]


@operator("_backward_class_cross_entropy")
class BackwardClassCrossEntropy(_Rows, hidden=True):
    """The gradient of the logits: head · (softmax - one at the class)."""

    arguments = ("head", "data", "label", "log_softmax")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shapes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (head, _, label, logs), out = run.xp, inputs, outputs[0]
        xp.exp(logs, out=out)
        flat, index = out.reshape(-1), self.places(xp, label, out.shape)
        flat[index] -= 1
        xp.multiply(out, head.reshape(-1, 1), out=out)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        head, data, label, _ = inputs
        probability, expanded_head = F.softmax(data, axis=-1), F.expand_dims(head, axis=1)
        label_head = F.pick(heads[0], label, axis=-1)
        slope = F.op("_backward_softmax", F.broadcast_mul(heads[0], expanded_head), probability, axis=-1, scaling=1.0)
        return [
            F.sum(heads[0] * probability, axis=-1) - label_head,
            slope,
            None,
            None,
        ]  # the last follows from the data
