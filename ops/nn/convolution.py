"""Convolution and Deconvolution in one, two or three spatial dimensions, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.nn.common import Linear, LinearData, LinearWeight, expect_rank, expect_shape, product
from flowmx.ops.nn.windows import Geometry, correlate, spread, weight_gradient
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    operator,
    option,
    required,
)
from flowmx.ops.registry.traits import BatchWise, Precision, Quantization

Tune = Literal["off", "limited_workspace", "fastest"]
LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def check_layout(op: Operator, layout: str | None, dimensions: int, channels_last: bool = False) -> None:
    """Check that the layout is channels-first, or channels-last if that is allowed.

    Raises:
        ParameterError: the layout is not supported, or the number of spatial dimensions is not 1 to 3.
    """
    if dimensions not in LAYOUTS:
        raise ParameterError(f"{op.name}: kernel has {dimensions} numbers, expected 1, 2 or 3 (one per spatial axis)")
    layouts = [LAYOUTS[dimensions]]
    if channels_last:
        layouts.append(LAYOUTS[dimensions].replace("C", "") + "C")
    if layout is not None and layout not in layouts:
        raise ParameterError(f"{op.name}: layout is {layout!r}, expected {' or '.join(map(repr, layouts))} or None")


def per_axis(op: Operator, name: str, values: Shape, default: int, dimensions: int) -> Shape:
    """Return a parameter with one number per spatial axis; empty means the default for all.

    Raises:
        ParameterError: the count of numbers differs.
    """
    if values and len(values) != dimensions:
        raise ParameterError(
            f"{op.name}: {name} is {values}, expected {dimensions} numbers as kernel {getattr(op, 'kernel', ())} has"
        )
    return values or (default,) * dimensions


def _check(op: Convolution | Deconvolution) -> None:
    check_layout(op, op.layout, len(op.kernel))
    assert op.geometry
    if op.num_filter % op.num_group:
        raise ParameterError(
            f"{op.name}: num_filter is {op.num_filter}, expected a multiple of num_group {op.num_group}"
        )


def _geometry(op: Convolution | Deconvolution) -> Geometry:
    count = len(op.kernel)
    return Geometry(
        op.kernel,
        per_axis(op, "stride", op.stride, 1, count),
        per_axis(op, "dilate", op.dilate, 1, count),
        per_axis(op, "pad", op.pad, 0, count),
        op.num_group,
    )


def _channels(op: Convolution | Deconvolution, data: ShapeOrNone) -> int:
    """Return the data's channels (-1: unknown), checked against num_group."""
    dimensions = len(op.kernel)
    expect_rank(op, "data", data, dimensions + 2, dimensions + 2)
    channels = -1 if data is None else data[1]
    if channels != -1 and channels % op.num_group:
        raise ShapeError(
            f"{op.name}: input data has shape {data}, expected a multiple of num_group {op.num_group} channels"
        )
    return channels


@operator("Convolution", "Convolution_v1")
class Convolution(
    Linear, makes_channels_last=True, precision=Precision.LOW,
    quantized=Quantization("_contrib_quantized_conv", always=True), batch_wise=BatchWise.FIRST,
):  # fmt: skip
    """Convolve data with filters (as a correlation: the kernel is not flipped).

    Shapes: data (batch, channels, *size), weight (num_filter, channels/num_group, *kernel), bias
    (num_filter,), output (batch, num_filter, *out) with
    out = (size + 2·pad - dilate·(kernel - 1) - 1)//stride + 1, in one to three spatial dimensions.
    """

    input_docs = describe(
        data="(batch, channels, *size), float; 1 to 3 spatial axes",
        weight="(num_filter, channels/num_group, *kernel), the dtype of data",
        bias="(num_filter,), the dtype of data; not with no_bias",
    )
    output_doc = "(batch, num_filter, *out), the dtype of data"
    kernel: Shape = required("Lengths of the window.", low=1)
    stride: Shape = option((), "Steps of the window; 1 each by default.", low=1)
    dilate: Shape = option((), "Distances between the window's taps; 1 each by default.", low=1)
    pad: Shape = option((), "Zeros on either side; 0 each by default.", low=0)
    num_filter: int = required("Number of output channels.", low=1)
    num_group: int = option(1, "Groups of channels that are convolved separately.", low=1)
    workspace: int = option(1024, "Ignored.", low=0)
    no_bias: bool = option(False, "Leave the bias out.")
    cudnn_tune: Tune | None = option(None, "Ignored.")
    cudnn_off: bool = option(False, "Ignored.")
    layout: str | None = option(None, "Only NCW, NCHW and NCDHW.")

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def geometry(self) -> Geometry:
        """The windows' geometry, with the defaults filled in."""
        return _geometry(self)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data, weight, *bias = shapes
        if data is None:
            return shapes, [None]
        channels = _channels(self, data)
        inputs = channels // self.num_group if channels >= 0 else -1
        weight = expect_shape(self, "weight", weight, (self.num_filter, inputs, *self.kernel), data)
        bias = [expect_shape(self, "bias", shape, (self.num_filter,)) for shape in bias]
        return [data, weight, *bias], [self.output_shape(data)]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        # The begin states of a convolutional cell get their batch size from the other summand.
        data, output = shapes[0], outputs[0]
        if data is None or output is None or len(output) != len(data):
            return shapes
        size = [
            self.geometry.input(axis, windows) if length == -1 else length
            for axis, (length, windows) in enumerate(zip(data[2:], output[2:], strict=True))
        ]
        return [(output[0] if data[0] == -1 else data[0], data[1], *size), *shapes[1:]]

    def output_shape(self, data: ShapeOrNone) -> ShapeOrNone:
        """Return the output's shape.

        Raises:
            ShapeError: the data is smaller than one window.
        """
        if data is None:
            return None
        size = tuple(self.geometry.output(axis, length) for axis, length in enumerate(data[2:]))
        if any(length >= 0 and windows < 1 for length, windows in zip(data[2:], size, strict=True)):
            raise ShapeError(
                f"{self.name}: input data has shape {data}, smaller than one window: kernel {self.kernel}, "
                f"dilate {self.geometry.dilate}, pad {self.geometry.pad}"
            )
        return (data[0], self.num_filter, *size)

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return 2 * product(outputs[0]) * product(inputs[1][1:]), sum(map(product, (*inputs, *outputs)))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        bias = None if self.no_bias else inputs[2]
        correlate(run, self.geometry, inputs[0], inputs[1], outputs[0], bias)


@operator("_backward_Convolution_data")
class ConvolutionData(LinearData, Convolution, quantized=None, batch_wise=BatchWise.OWN):
    """Gradient of Convolution for its data."""

    infer_back = Operator.infer_back

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        spread(run, self.geometry, inputs[0], inputs[1], outputs[0])


@operator("_backward_Convolution_weight")
class ConvolutionWeight(LinearWeight, Convolution, quantized=None, batch_wise=BatchWise.SUM):
    """Gradient of Convolution for its weight."""

    infer_back = Operator.infer_back

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        channels = _channels(self, shapes[1])
        inputs = channels // self.num_group if channels >= 0 else -1
        return shapes, [(self.num_filter, inputs, *self.kernel)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight_gradient(run, self.geometry, inputs[0], inputs[1], outputs[0])


@operator("Deconvolution")
class Deconvolution(Linear, makes_channels_last=True, precision=Precision.LOW, batch_wise=BatchWise.FIRST):
    """Transposed convolution: Convolution's gradient with respect to its data, as a forward.

    Shapes: data (batch, channels, *size), weight (channels, num_filter/num_group, *kernel), bias
    (num_filter,), output (batch, num_filter, *out) with
    out = stride·(size - 1) + dilate·(kernel - 1) + 1 - 2·pad + adj, or ``target_shape``, from which pad
    and adj then follow.
    """

    input_docs = describe(
        data="(batch, channels, *size), float; 1 to 3 spatial axes",
        weight="(channels, num_filter/num_group, *kernel), the dtype of data",
        bias="(num_filter,), the dtype of data; not with no_bias",
    )
    output_doc = "(batch, num_filter, *out), the dtype of data"
    kernel: Shape = required("Lengths of the window.", low=1)
    stride: Shape = option((), "Steps of the window; 1 each by default.", low=1)
    dilate: Shape = option((), "Distances between the window's taps; 1 each by default.", low=1)
    pad: Shape = option((), "Elements cut off on either side; 0 each by default.", low=0)
    adj: Shape = option((), "Elements added at the end of each axis, fewer than stride; 0 by default.", low=0)
    target_shape: Shape = option((), "The output's spatial lengths; overrides pad and adj.", low=0)
    num_filter: int = required("Number of output channels.", low=1)
    num_group: int = option(1, "Groups of channels that are convolved separately.", low=1)
    workspace: int = option(512, "Ignored.", low=0)
    no_bias: bool = option(True, "Leave the bias out.")
    cudnn_tune: Tune | None = option(None, "Ignored.")
    cudnn_off: bool = option(False, "Ignored.")
    layout: str | None = option(None, "Only NCW, NCHW and NCDHW.")

    def __post_init__(self) -> None:
        _check(self)
        count = len(self.kernel)
        per_axis(self, "target_shape", self.target_shape, 0, count)
        adj = per_axis(self, "adj", self.adj, 0, count)
        if not any(self.target_shape) and any(a >= s for a, s in zip(adj, self.geometry.stride, strict=True)):
            raise ParameterError(f"{self.name}: adj is {self.adj}, expected less than stride {self.geometry.stride}")

    @cached_property
    def geometry(self) -> Geometry:
        """The windows' geometry, with the defaults filled in and ``target_shape`` ignored."""
        return _geometry(self)

    def fit(self, size: Shape) -> tuple[Geometry, Shape]:
        """Return the geometry and the output's spatial lengths for data of these spatial lengths.

        Raises:
            ShapeError: ``target_shape`` is larger than the windows' reach, or the output would be empty.
        """
        g = self.geometry
        full = tuple(
            -1 if length == -1 else g.stride[axis] * (length - 1) + g.reach(axis) for axis, length in enumerate(size)
        )
        if any(self.target_shape):
            if any(f != -1 and f < t for f, t in zip(full, self.target_shape, strict=True)):
                raise ShapeError(
                    f"{self.name}: target_shape is {self.target_shape}, expected at most {full}, "
                    "the reach of the windows"
                )
            spare = [0 if f == -1 else f - t for f, t in zip(full, self.target_shape, strict=True)]
            return g._replace(pad=tuple((n + 1) // 2 for n in spare)), self.target_shape
        adj = self.adj or (0,) * len(size)
        out = tuple(-1 if f == -1 else f - 2 * p + a for f, p, a in zip(full, g.pad, adj, strict=True))
        if any(f != -1 and length < 1 for f, length in zip(full, out, strict=True)):
            raise ShapeError(f"{self.name}: the output's shape would be {out}: pad {g.pad} is too large")
        return g, out

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data, weight, *bias = shapes
        filters = self.num_filter // self.num_group
        weight = expect_shape(self, "weight", weight, (_channels(self, data), filters, *self.kernel), data)
        bias = [expect_shape(self, "bias", shape, (self.num_filter,)) for shape in bias]
        out = None if data is None else (data[0], self.num_filter, *self.fit(data[2:])[1])
        return [data, weight, *bias], [out]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return 2 * product(inputs[0]) * product(inputs[1][1:]), sum(map(product, (*inputs, *outputs)))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        spread(run, self.fit(inputs[0].shape[2:])[0], inputs[0], inputs[1], outputs[0])
        if not self.no_bias:
            out = outputs[0]
            run.xp.add(out, inputs[2].reshape(-1, *(1,) * (out.ndim - 2)), out=out)


@operator("_backward_Deconvolution_data")
class DeconvolutionData(LinearData, Deconvolution, batch_wise=BatchWise.OWN):
    """Gradient of Deconvolution for its data."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        correlate(run, self.fit(outputs[0].shape[2:])[0], inputs[0], inputs[1], outputs[0])


@operator("_backward_Deconvolution_weight")
class DeconvolutionWeight(LinearWeight, Deconvolution, batch_wise=BatchWise.SUM):
    """Gradient of Deconvolution for its weight."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [(_channels(self, shapes[1]), self.num_filter // self.num_group, *self.kernel)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight_gradient(run, self.fit(inputs[1].shape[2:])[0], inputs[1], inputs[0], outputs[0])
