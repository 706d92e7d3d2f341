"""Convolution and Deconvolution with their gradients, by oneDNN.

The library is fastest where the channels lie beside each other in memory (channels-last). Bound graphs lay their
arrays out like that; arrays in C order are copied on the way in and out. Filters are always copied into the
library's own order, which costs little beside the product.

A deconvolution is the gradient of a convolution for its data, so three primitives serve all six operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx.ops.kernels.onednn.library import Alg, Arg, Handle, Prop, Query
from flowmx.ops.kernels.onednn.primitives import (
    Array,
    Desc,
    Geometry,
    Operand,
    Primitive,
    any_layout,
    attributes,
    channels_last,
    dims,
    geometry,
    loaded,
    plain,
    plan,
    pointer,
    strided,
    suits,
)
from flowmx.ops.nn_convolution import Convolution, Deconvolution
from flowmx.ops.registry import Run, Shape, kernel
from flowmx.ops.windows import Geometry as Windows


def _grouped(windows: Windows, weight: Geometry) -> Geometry:
    """The filters as oneDNN sees them: the groups are an axis of their own."""
    shape, strides = weight
    if windows.groups == 1:
        return weight
    each = shape[0] // windows.groups
    return (windows.groups, each, *shape[1:]), (strides[0] * each, *strides)


def _window_arguments(windows: Windows) -> tuple[Any, ...]:
    pad = dims(windows.pad)
    return dims(windows.stride), dims([each - 1 for each in windows.dilate]), pad, pad


class _Plan:
    """What the three kinds of propagation share: descriptors of data, filters and output."""

    def __init__(self, windows: Windows, data: Shape, weight: Geometry, out: Shape) -> None:
        self.weight_given = _grouped(windows, weight)
        self.data = channels_last(data)
        self.weight = any_layout(self.weight_given[0])
        self.out = channels_last(out)
        self.windows = _window_arguments(windows)

    def forward_desc(self, bias: Desc | None, relu: bool, train: bool) -> Handle:
        lib = loaded()
        return lib.create(
            "convolution_forward_primitive_desc_create", lib.engine,
            int(Prop.FORWARD_TRAINING if train else Prop.FORWARD_INFERENCE), int(Alg.CONVOLUTION_DIRECT),
            self.data.handle, self.weight.handle, None if bias is None else bias.handle, self.out.handle,
            *self.windows, attributes(relu),
        )  # fmt: skip


class Forward(_Plan):
    """Output = data * filters + bias, then a ReLU where wanted."""

    def __init__(
        self, windows: Windows, data: Geometry, weight: Geometry, out: Geometry, has_bias: bool, relu: bool
    ) -> None:
        super().__init__(windows, data[0], weight, out[0])
        bias = plain((out[0][1],)) if has_bias else None
        arguments: dict[int, Desc | Query] = {Arg.SRC: self.data, Arg.WEIGHTS: Query.WEIGHTS, Arg.DST: self.out}
        if bias is not None:
            arguments[Arg.BIAS] = bias
        self._run = Primitive(self.forward_desc(bias, relu, train=False), arguments)
        self._source = Operand("data", strided(*data), self.data)
        self._filters = Operand("filters", strided(*self.weight_given), self._run.descriptor(Arg.WEIGHTS))
        self._target = Operand("output", strided(*out), self.out, is_output=True)

    def __call__(self, data: Array, weight: Array, bias: Array | None, out: Array) -> None:
        where = pointer(out)
        addresses = [
            self._source.before(pointer(data)), self._filters.before(pointer(weight)), self._target.room(where)
        ]  # fmt: skip
        self._run(*addresses, *(() if bias is None else (pointer(bias),)))
        self._target.after(where)


class BackwardData(_Plan):
    """The gradient for the data; also a deconvolution's forward."""

    def __init__(self, windows: Windows, head: Geometry, weight: Geometry, data: Geometry) -> None:
        super().__init__(windows, data[0], weight, head[0])
        lib = loaded()
        hint = lib.own(self, "primitive_desc", self.forward_desc(None, False, train=True))
        desc = lib.create(
            "convolution_backward_data_primitive_desc_create", lib.engine, int(Alg.CONVOLUTION_DIRECT),
            self.data.handle, self.weight.handle, self.out.handle, *self.windows,
            hint, attributes(),
        )  # fmt: skip
        self._run = Primitive(desc, {Arg.DIFF_DST: self.out, Arg.WEIGHTS: Query.WEIGHTS, Arg.DIFF_SRC: self.data})
        self._head = Operand("output", strided(*head), self.out)
        self._filters = Operand("filters", strided(*self.weight_given), self._run.descriptor(Arg.WEIGHTS))
        self._target = Operand("data", strided(*data), self.data, is_output=True)

    def __call__(self, head: Array, weight: Array, data: Array) -> None:
        where = pointer(data)
        self._run(self._head.before(pointer(head)), self._filters.before(pointer(weight)), self._target.room(where))
        self._target.after(where)


class BackwardWeights(_Plan):
    """The gradient for the filters, and for the bias where wanted."""

    def __init__(
        self, windows: Windows, head: Geometry, data: Geometry, weight: Geometry, with_bias: bool = False
    ) -> None:
        super().__init__(windows, data[0], weight, head[0])
        lib = loaded()
        bias = plain((head[0][1],)) if with_bias else None
        hint = lib.own(self, "primitive_desc", self.forward_desc(bias, False, train=True))
        desc = lib.create(
            "convolution_backward_weights_primitive_desc_create", lib.engine, int(Alg.CONVOLUTION_DIRECT),
            self.data.handle, self.weight.handle, None if bias is None else bias.handle, self.out.handle,
            *self.windows, hint, attributes(),
        )  # fmt: skip
        arguments: dict[int, Desc | Query] = {
            Arg.SRC: self.data, Arg.DIFF_DST: self.out, Arg.DIFF_WEIGHTS: Query.DIFF_WEIGHTS
        }  # fmt: skip
        if bias is not None:
            arguments[Arg.DIFF_BIAS] = bias
        self._run = Primitive(desc, arguments)
        self._source = Operand("data", strided(*data), self.data)
        self._head = Operand("output", strided(*head), self.out)
        made = self._run.descriptor(Arg.DIFF_WEIGHTS)
        self._target = Operand("filters", strided(*self.weight_given), made, is_output=True)

    def __call__(self, head: Array, data: Array, weight: Array, bias: Array | None = None) -> None:
        where = pointer(weight)
        addresses = (
            self._source.before(pointer(data)), self._head.before(pointer(head)), self._target.room(where)
        )  # fmt: skip
        self._run(*addresses, *(() if bias is None else (pointer(bias),)))
        self._target.after(where)


def convolve(windows: Windows, data: Array, weight: Array, bias: Array | None, out: Array, relu: bool = False) -> bool:
    """Compute a convolution; False where oneDNN cannot."""
    if not suits(data, weight, out):
        return False
    made = plan(Forward, windows, geometry(data), geometry(weight), geometry(out), bias is not None, relu)
    if made is None:
        return False
    made(data, weight, bias, out)
    return True


def convolve_back(windows: Windows, head: Array, weight: Array, data: Array) -> bool:
    """Compute a convolution's gradient for its data; False where oneDNN cannot."""
    if not suits(head, weight, data):
        return False
    made = plan(BackwardData, windows, geometry(head), geometry(weight), geometry(data))
    if made is None:
        return False
    made(head, weight, data)
    return True


def weigh_back(windows: Windows, head: Array, data: Array, weight: Array, bias: Array | None = None) -> bool:
    """Compute a convolution's gradients for its filters and bias; False where oneDNN cannot."""
    if not suits(head, data, weight):
        return False
    made = plan(BackwardWeights, windows, geometry(head), geometry(data), geometry(weight), bias is not None)
    if made is None:
        return False
    made(head, data, weight, bias)
    return True


Kernel = Callable[[Any, Run, Sequence[Array], Sequence[Array]], None]
Compute = Callable[[Any, Sequence[Array], Sequence[Array]], bool]


def _or_plain(compute: Compute) -> Kernel:
    """A kernel that takes the operator's plain forward where ``compute`` says that oneDNN cannot."""

    def run_it(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if not compute(op, inputs, outputs):
            op.forward(run, inputs, outputs)

    return run_it


def _convolution(op: Convolution, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    return convolve(op.geometry, inputs[0], inputs[1], None if op.no_bias else inputs[2], outputs[0])


def _convolution_relu(op: Convolution, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    return convolve(op.geometry, inputs[0], inputs[1], None if op.no_bias else inputs[2], outputs[0], relu=True)


def _convolution_data(op: Convolution, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    return convolve_back(op.geometry, inputs[0], inputs[1], outputs[0])


def _convolution_weight(op: Convolution, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    return weigh_back(op.geometry, inputs[0], inputs[1], outputs[0])


def _convolution_weight_bias(op: Convolution, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    return weigh_back(op.geometry, inputs[0], inputs[1], outputs[0], outputs[1])


def _deconvolution(op: Deconvolution, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    out = outputs[0]
    if not convolve_back(op.fitted(inputs[0].shape[2:])[0], inputs[0], inputs[1], out):
        return False
    if not op.no_bias:
        out += inputs[2].reshape(-1, *(1,) * (out.ndim - 2))
    return True


def _deconvolution_data(op: Deconvolution, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    return convolve(op.fitted(outputs[0].shape[2:])[0], inputs[0], inputs[1], None, outputs[0])


def _deconvolution_weight(op: Deconvolution, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    return weigh_back(op.fitted(inputs[1].shape[2:])[0], inputs[1], inputs[0], outputs[0])


KERNELS: dict[str, Compute] = {
    "Convolution": _convolution,
    "_relu_Convolution": _convolution_relu,
    "_backward_Convolution_data": _convolution_data,
    "_backward_Convolution_weight": _convolution_weight,
    "_backward_Convolution_weight_bias": _convolution_weight_bias,
    "Deconvolution": _deconvolution,
    "_backward_Deconvolution_data": _deconvolution_data,
    "_backward_Deconvolution_weight": _deconvolution_weight,
}
for _name, _compute in KERNELS.items():
    kernel("cpu", _name)(_or_plain(_compute))
