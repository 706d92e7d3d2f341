"""The cross-entropy of rows of logits with class numbers as one operator: what imperative losses call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.ops.arrays.indexing import positions
from flowmx.ops.nn.activation import LogSoftmax
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, kernel_for, operator

_LOG_SOFTMAX = LogSoftmax.create(axis=-1)


class _Rows(Operator, hidden=True):
    """The base: rows (batch, classes) of logits and a class number for each, where those outside are clipped."""

    def infer_type(self, dtypes: list[Any]) -> tuple[list[Any], list[Any]]:
        return dtypes, [dtypes[0]] * len(self.outputs())

    def places(self, xp: Any, label: Array, shape: tuple[int, ...]) -> Array:
        """The positions of the chosen elements in an array of that shape, made flat."""
        rows, classes = shape
        return xp.arange(0, rows * classes, classes) + positions(xp, label.reshape(-1), classes, "clip", self.name)


@operator("_class_cross_entropy")
class ClassCrossEntropy(_Rows, hidden=True):
    """Minus the logarithm of the softmax of each row, at the row's class; shape (batch,).

    The hidden output is the logarithm of the softmax.
    """

    arguments = ("data", "label")
    output_names = ("output", "log_softmax")
    outputs_visible = 1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data = shapes[0]
        return shapes, [None if data is None else data[:1], data]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        fast = kernel_for(run.device.kernels, _LOG_SOFTMAX.name)
        if fast is None:
            _LOG_SOFTMAX.forward(run, inputs[:1], outputs[1:])
        else:
            fast(_LOG_SOFTMAX, run, inputs[:1], outputs[1:])
        logs = outputs[1]
        run.xp.negative(logs.reshape(-1)[self.places(run.xp, inputs[1], logs.shape)], out=outputs[0])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
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
        flat, chosen = out.reshape(-1), self.places(xp, label, out.shape)
        flat[chosen] -= 1
        xp.multiply(out, head.reshape(-1, 1), out=out)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        head, data, label, _ = inputs
        probability, wide = F.softmax(data, axis=-1), F.expand_dims(head, axis=1)
        chosen = F.pick(heads[0], label, axis=-1)
        slope = F.op("_backward_softmax", F.broadcast_mul(heads[0], wide), probability, axis=-1, scaling=1.0)
        return [F.sum(heads[0] * probability, axis=-1) - chosen, slope, None, None]  # the last follows from the data
