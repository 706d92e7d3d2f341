"""Output layers. Their backward pass computes the gradient of a loss, and ignores the head gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.arrays.indexing import positions
from flowmx.ops.arrays.linear import shape_of
from flowmx.ops.arrays.shape_arithmetic import expect_elements
from flowmx.ops.nn.activation import softmax_into
from flowmx.ops.nn.common import computing_dtype, expect_rank, expect_shape, non_defaults, product
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe, merge, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise, Passing, Precision

Normalization = Literal["null", "batch", "valid"]


class _LabelLayer(Operator):
    """An operator of data and label, whose dtypes may differ."""

    arguments: ClassVar[tuple[str, ...]] = ("data", "label")

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        data = dtypes[0]
        return [data, data if dtypes[1] is None else dtypes[1]], [data] * len(self.outputs())


class _Backward(Operator, hidden=True, is_loss=False):
    """The gradient of an output layer, computed from its output, its label and, optionally, the head."""

    arguments: ClassVar[tuple[str, ...]] = ("output", "label")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, shapes[:1]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, dtypes[:1]

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return getattr(self, "normalization", "null") != "null"

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # an output layer has no second derivative


# -- softmax -----------------------------------------------------------------------------------------------


@operator("SoftmaxOutput", "Softmax")
class SoftmaxOutput(_LabelLayer, is_loss=True, mirrored=False, precision=Precision.FLOAT32, batch_wise=BatchWise.EACH):
    """Softmax, whose gradient is that of the cross-entropy with the label: output - one_hot(label).

    Shapes: data (batch, classes) and label (batch,) of class numbers; with ``multi_output`` data
    (batch, classes, *positions) and label (batch, *positions), (batch, 1, *positions) or flattened to
    (batch, number of positions), the default for a label of unknown shape; with ``preserve_shape`` data (..., classes)
    and label (...). A label of the data's shape holds probabilities: the gradient is output - label.
    The gradient is multiplied by ``grad_scale`` and divided by the number that ``normalization`` names.
    """

    input_docs = describe(
        data="(batch, classes), (batch, classes, *positions) or (..., classes), float",
        label="the shape of data without the classes, int or float; or the shape of data, of probabilities",
    )
    output_doc = "The shape and dtype of data"
    grad_scale: float = option(1.0, "The gradient's factor.")
    ignore_label: float = option(-1.0, "With use_ignore: the label that gives no gradient.")
    multi_output: bool = option(False, "Softmax along axis 1 at each position.")
    use_ignore: bool = option(False, "Respect ignore_label.")
    preserve_shape: bool = option(False, "Softmax along the last axis.")
    normalization: Normalization = option("null", "Divide the gradient by 1, the batch or the valid labels.")
    out_grad: bool = option(False, "Multiply the gradient by the head gradient.")
    smooth_alpha: float = option(0.0, "Label smoothing.", low=0, high=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data, label = shapes
        if data is None:
            return shapes, [None]
        expect_rank(self, "data", data, 2)
        if label is not None and merge(label, data) is not False:
            return shapes, [data]
        if self.multi_output:
            label_shape = (data[0], *data[2:])
            if label is None or len(label) == 2:
                label_shape = (data[0], product(data[2:]))
            elif len(label) == len(data) and label[1] == 1:
                label_shape = (data[0], 1, *data[2:])
        else:
            label_shape = data[:-1] if self.preserve_shape else data[:1]
        if label is not None and len(label) == len(label_shape) + 1 and label[-1] == 1:
            label_shape = (*label_shape, 1)
        return [data, expect_shape(self, "label", label, label_shape)], [data]

    def axes(self, data: Array) -> int | tuple[int, ...]:
        """Return the axes along which the output sums to 1."""
        if self.multi_output:
            return 1
        return -1 if self.preserve_shape else tuple(range(1, data.ndim))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        softmax_into(run.xp, inputs[0], self.axes(inputs[0]), outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        arrays = [outputs[0], inputs[1], *([heads[0]] if self.out_grad else [])]
        label = shape_of(inputs, 1)
        return [F.op("_backward_SoftmaxOutput", *arrays, **non_defaults(self)), F.zeros_like(label)]


@operator("_backward_SoftmaxOutput")
class BackwardSoftmaxOutput(_Backward, SoftmaxOutput, batch_wise=BatchWise.EACH):
    """Gradient of SoftmaxOutput for its data."""

    arguments = ("output", "label", "head")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments[: 3 if self.out_grad else 2]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (y, label), out = run.xp, inputs[:2], outputs[0]
        if label.shape == y.shape:
            xp.subtract(y, label, out=out, casting="unsafe")
            out *= self.grad_scale
        else:
            # As (rows, classes, positions), with one label per row and position.
            if self.multi_output:
                shape = (y.shape[0], y.shape[1], math.prod(y.shape[2:]))
            elif self.preserve_shape:
                shape = (math.prod(y.shape[:-1]), y.shape[-1], 1)
            else:
                shape = (y.shape[0], math.prod(y.shape[1:]), 1)
            self._from_classes(xp, y.reshape(shape), label.reshape(shape[0], shape[2]), out.reshape(shape))
        if self.out_grad:
            xp.multiply(out, inputs[2], out=out)

    def valid_count(self, xp: ArrayNamespace, label: Array, dtype: DType) -> Array:
        """Return the number of valid labels, at least 1, as a 0-d array."""
        return xp.maximum((label != self.ignore_label).sum(), 1).astype(dtype)

    def _from_classes(self, xp: ArrayNamespace, y: Array, label: Array, out: Array) -> None:
        classes = label.astype(np.int64)[:, None, :]
        # MXNet smooths labels only if there is one per row.
        alpha, others = 0.0 if self.multi_output else self.smooth_alpha, max(1, y.shape[1] - 1)
        xp.subtract(y, y.dtype.type(alpha / others), out=out)
        # A label outside the classes matches no class.
        is_class = (classes >= 0) & (classes < y.shape[1])
        classes = xp.where(is_class, classes, 0)
        at_label = xp.take_along_axis(y, classes, axis=1) - y.dtype.type(1 - alpha)
        at_label = xp.where(is_class, at_label, xp.take_along_axis(out, classes, axis=1))
        rows, columns = xp.arange(y.shape[0])[:, None, None], xp.arange(y.shape[2])
        out[rows, classes, columns] = at_label
        if self.use_ignore:
            out *= (label != self.ignore_label)[:, None, :]
        scale = self.grad_scale
        if self.normalization == "batch":
            scale /= y.shape[0]
        elif self.normalization == "valid":
            xp.divide(out, self.valid_count(xp, label, computing_dtype(out.dtype)), out=out, casting="same_kind")
        if self.normalization != "valid":
            scale /= y.shape[2]
        if scale != 1:
            out *= scale


@operator("softmax_cross_entropy")
class SoftmaxCrossEntropy(_LabelLayer, precision=Precision.FLOAT32):
    """The sum over the batch of the cross-entropy of softmax(data) and the label.

    Shapes: data (batch, classes), label (batch,) of class numbers, output (1,).
    """

    input_docs = describe(
        data="(batch, classes), float",
        label="(batch,), int or float; class indices",
    )
    output_doc = "(1,), the dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data, label = shapes
        expect_rank(self, "data", data, 2, 2)
        if data is not None:
            expect_elements(self, data, [1])
        return [data, label if data is None else expect_shape(self, "label", label, data[:1])], [(1,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (x, label) = run.xp, inputs
        x = x.astype(computing_dtype(x.dtype), copy=False)
        logits = x - x.max(axis=1, keepdims=True)
        index = positions(xp, label, x.shape[1], "raise", self.name)
        at_label = xp.take_along_axis(logits, index[:, None], axis=1)
        outputs[0][...] = (xp.log(xp.exp(logits).sum(axis=1, keepdims=True)) - at_label).sum()

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        data, label = inputs
        probabilities = F.softmax(data)
        step = F.op("_backward_SoftmaxOutput", probabilities, label)
        return [heads[0] * step, F.zeros_like(shape_of(inputs, 1))]


# -- regressions -------------------------------------------------------------------------------------------


class _Regression(NamedTuple):
    """A regression output: its link function, and its loss's derivative with respect to the link's input."""

    name: str
    link: Callable[[Any, Array, Array], Any]
    derive: Callable[[Any, Array, Array, Array], Any]
    """``derive(xp, output, label, out)``."""
    onnx: str
    """The ONNX operator that computes the link."""
    doc: str


def _difference(xp: ArrayNamespace, y: Array, label: Array, out: Array) -> None:
    xp.subtract(y, label, out=out, casting="unsafe")


def _sign(xp: ArrayNamespace, y: Array, label: Array, out: Array) -> None:
    xp.subtract(y, label, out=out, casting="unsafe")
    xp.sign(out, out=out)


def _copy(xp: ArrayNamespace, x: Array, out: Array) -> None:
    xp.copyto(out, x)


def _logistic(xp: ArrayNamespace, x: Array, out: Array) -> None:
    xp.multiply(x, 0.5, out=out)
    xp.tanh(out, out=out)
    xp.multiply(out, 0.5, out=out)
    xp.add(out, 0.5, out=out)


_REGRESSIONS = [
    _Regression("LinearRegressionOutput", _copy, _difference, "Identity",
                "The data, whose gradient is that of half the squared error: output - label."),
    _Regression("MAERegressionOutput", _copy, _sign, "Identity",
                "The data, whose gradient is that of the absolute error: sign(output - label)."),
    _Regression("LogisticRegressionOutput", _logistic, _difference, "Sigmoid",
                "The logistic function of the data, with the cross-entropy's gradient: output - label."),
]  # fmt: skip


def _register(row: _Regression) -> None:
    notes = "\n\nThe gradient is multiplied by grad_scale and divided by the number of outputs of a sample."

    @operator(row.name)
    class Output(_LabelLayer, is_loss=True, precision=Precision.FLOAT32, batch_wise=BatchWise.EACH):
        __doc__ = row.doc + notes

        input_docs = describe(
            data="(batch, ...), float",
            label="the shape of data, or the same number of elements per sample, float",
        )
        output_doc = "The shape and dtype of data"
        onnx = row.onnx
        grad_scale: float = option(1.0, "The gradient's factor.")

        def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
            data, label = shapes
            if data is None:
                return shapes, [None]
            if label is not None and -1 not in (*data, *label):
                # The label of a sample may have any shape with as many elements.
                if label[:1] == data[:1] and math.prod(label) == math.prod(data):
                    return shapes, [data]
                raise ShapeError(f"{self.name}: input label has shape {label}, expected {data}")
            one_each = len(data) == 2 and data[1] == 1
            return [data, data[:1] if one_each and label is None else label or data], [data]

        def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            row.link(run.xp, inputs[0], outputs[0])

        def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
            step = F.op(f"_backward_{row.name}", outputs[0], inputs[1], **non_defaults(self))
            return [step, F.zeros_like(shape_of(inputs, 1))]

    @operator(f"_backward_{row.name}")
    class Backward(_Backward, no_gradient=row.derive is _sign, batch_wise=BatchWise.EACH):
        __doc__ = f"Gradient of {row.name} for its data."

        grad_scale: float = option(1.0, "The gradient's factor.")

        def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            (y, label), out = inputs, outputs[0]
            row.derive(run.xp, y, label.reshape(y.shape), out)
            scale = self.grad_scale * len(y) / max(1, y.size)
            if scale != 1:
                out *= scale


for _row in _REGRESSIONS:
    _register(_row)


# -- margins and plain losses ------------------------------------------------------------------------------


@operator("SVMOutput")
class SVMOutput(_LabelLayer, is_loss=True, precision=Precision.FLOAT32, batch_wise=BatchWise.EACH):
    """The data, whose gradient is that of a support vector machine's hinge loss, squared by default.

    Shapes: data (batch, classes), label (batch,) of class numbers.
    """

    input_docs = describe(
        data="(batch, classes), float",
        label="(batch,), int or float; class indices",
    )
    output_doc = "The shape and dtype of data"
    onnx = "Identity"
    margin: float = option(1.0, "The margin.")
    regularization_coefficient: float = option(1.0, "The gradient's factor.")
    use_linear: bool = option(False, "Use the hinge loss, not its square.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data, label = shapes
        expect_rank(self, "data", data, 2)
        return [data, label if data is None else expect_shape(self, "label", label, data[:1])], [data]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        step = F.op("_backward_SVMOutput", outputs[0], inputs[1], **non_defaults(self))
        return [step, F.zeros_like(shape_of(inputs, 1))]


@operator("_backward_SVMOutput")
class BackwardSVMOutput(_Backward, SVMOutput):
    """Gradient of SVMOutput for its data."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (y, label) = run.xp, inputs
        y = y.reshape(len(y), -1)
        is_label = xp.arange(y.shape[1])[None, :] == label.astype(np.int64)[:, None]
        sign = xp.where(is_label, -1, 1).astype(y.dtype)
        slack = xp.maximum(self.margin + sign * y, 0)
        step = (slack > 0) if self.use_linear else 2 * slack
        outputs[0][...] = (sign * step * self.regularization_coefficient).reshape(outputs[0].shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [None, None] if self.use_linear else super().gradient(F, inputs, outputs, heads)


@operator("MakeLoss")
class MakeLoss(
    Operator,
    is_loss=True,
    passing=Passing.ALWAYS,
    precision=Precision.FLOAT32,
    input_named=True,
    batch_wise=BatchWise.ALL,
):
    """The data as a loss: its gradient is ``grad_scale`` for any head gradient.

    ``normalization`` divides it by the batch size, or by the number of elements above ``valid_thresh``.
    """

    onnx = "Identity"
    grad_scale: float = option(1.0, "The gradient.")
    valid_thresh: float = option(0.0, "Elements above it are valid.")
    normalization: Normalization = option("null", "Divide by 1, the batch or the valid elements.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_MakeLoss", outputs[0], **non_defaults(self))]


@operator("_backward_MakeLoss")
class BackwardMakeLoss(_Backward, MakeLoss, no_gradient=True, passing=Passing.NEVER, batch_wise=BatchWise.EACH):
    """Gradient of MakeLoss."""

    arguments = ("output",)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        scale = self.grad_scale
        if self.normalization == "batch":
            scale /= max(1, len(inputs[0]))
        elif self.normalization == "valid":
            scale = scale / run.xp.maximum((inputs[0] > self.valid_thresh).sum(), 1)
        outputs[0][...] = scale


@operator("make_loss")
class PlainLoss(Operator, is_loss=True, passing=Passing.ALWAYS, precision=Precision.FLOAT32, batch_wise=BatchWise.ALL):
    """The data as a loss: its gradient is 1 for any head gradient."""

    onnx = "Identity"
    output_names = ("loss",)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.ones_like(shape_of(inputs, 0))]
