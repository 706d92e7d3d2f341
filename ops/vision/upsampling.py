"""UpSampling: images enlarged by integer factors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, Linear, linear, shape_of
from flowmx.ops.nn.common import computing_dtype, expect_rank
from flowmx.ops.nn.convolution import Deconvolution
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, operator, option, required
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise, Precision


@linear("_repeat_pixels")
class RepeatPixels(Linear, hidden=True):
    """Repeat each pixel ``scale`` times along the last two axes."""

    scale: int = option(1, "The number of copies of each pixel on either axis.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        if data is None:
            return shapes, [None]
        return shapes, [(*data[:2], *(-1 if length == -1 else length * self.scale for length in data[2:]))]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _enlarge(inputs[0], _blocks(outputs[0], self.scale))

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        # Rows first: they are contiguous in memory.
        rows = head.reshape(*out.shape[:3], self.scale, head.shape[3])
        total = rows.sum(axis=3, dtype=computing_dtype(out.dtype))
        columns = (total[..., start :: self.scale] for start in range(self.scale))
        run.xp.copyto(out, sum(columns), casting="unsafe")


def _blocks(array: Array, scale: int) -> Array:
    """View (batch, channels, height, width) as (batch, channels, height/scale, scale, width/scale, scale)."""
    batch, channels, height, width = array.shape
    return array.reshape(batch, channels, height // scale, scale, width // scale, scale)


def _enlarge(data: Array, blocks: Array) -> None:
    """Repeat pixels within the first row of each block, then copy that row."""
    for column in range(blocks.shape[5]):
        blocks[:, :, :, 0, :, column] = data
    blocks[:, :, :, 1:] = blocks[:, :, :, :1]


@operator("UpSampling")
class UpSampling(Operator, skips=True, heavy=True, precision=Precision.GIVEN, batch_wise=BatchWise.EACH):
    """Enlarge images ``scale`` times, by repeating pixels or by a transposed convolution.

    Shapes: data (batch, channels, height, width). ``nearest`` takes any number of inputs, each enlarged to the
    first one's size times ``scale``, and joins their channels or adds them up. ``bilinear`` takes one, with
    ``num_filter`` channels, and a weight (num_filter, 1, kernel, kernel) with kernel = 2·scale - scale mod 2,
    which the initializer ``Bilinear`` fills.
    """

    variadic = "num_args"
    arguments = ("data", "weight")
    input_docs = describe(
        data="images (batch, channels, height, width) of the same dtype; for 'bilinear' one image, then the weight"
    )
    output_doc = "(batch, channels, height·scale, width·scale), the dtype of the inputs"
    scale: int = required("The factor by which to enlarge.", low=1)
    num_filter: int = option(0, "Channels of the input, for bilinear.", low=0)
    sample_type: Literal["nearest", "bilinear"] = required("The way to enlarge.")
    multi_input_mode: Literal["concat", "sum"] = option("concat", "Join the inputs' channels, or add them up.")
    num_args: int = option(1, "Number of inputs.", low=1)
    workspace: int = option(512, "Ignored.", low=0)

    def __post_init__(self) -> None:
        if self.sample_type == "bilinear":
            self.with_traits(batch_wise=BatchWise.FIRST)
            if self.num_filter < 1:
                raise ParameterError(f"{self.name}: num_filter is {self.num_filter}, expected the input's channels")
            if self.num_args > 2:
                raise ParameterError(
                    f"{self.name}: num_args is {self.num_args}, but sample_type 'bilinear' takes data and weight"
                )

    @cached_property
    def deconvolution(self) -> Deconvolution:
        """Return the operator behind ``bilinear``: a deconvolution with one group per channel."""
        op = Deconvolution.create(
            kernel=(2 * self.scale - self.scale % 2,) * 2, stride=(self.scale,) * 2, pad=(self.scale // 2,) * 2,
            num_filter=self.num_filter, num_group=self.num_filter,
        )  # fmt: skip
        assert isinstance(op, Deconvolution)
        return op

    def inputs(self) -> tuple[str, ...]:
        return self.arguments if self.sample_type == "bilinear" else super().inputs()

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        first = shapes[0]
        for name, shape in zip(self.inputs(), shapes, strict=True):
            expect_rank(self, name, shape, 4, 4)
        if first is None:
            return shapes, [None]
        if self.sample_type == "bilinear":
            if first[1] not in (-1, self.num_filter):
                raise ShapeError(f"{self.name}: input data has shape {first}, expected {self.num_filter} channels")
            return self.deconvolution.infer_shape(shapes)
        size = tuple(-1 if length == -1 else length * self.scale for length in first[2:])
        for name, shape in zip(self.inputs(), shapes, strict=True):
            if shape is not None and -1 < shape[0] != first[0] > -1:
                raise ShapeError(f"{self.name}: input {name} has shape {shape}, expected {first[0]} images")
            for out_length, length in zip(size, (shape or first)[2:], strict=True):
                if -1 not in (out_length, length) and (length == 0 or out_length % length):
                    raise ShapeError(f"{self.name}: input {name} has shape {shape}, which does not divide {size}")
            if shape is not None and -1 not in (*size, *shape) and size[0] * shape[3] != size[1] * shape[2]:
                raise ShapeError(f"{self.name}: input {name} has shape {shape}, expected the proportions of {size}")
            if self.multi_input_mode == "sum" and shape is not None and -1 < shape[1] != first[1] > -1:
                raise ShapeError(f"{self.name}: input {name} has shape {shape}, expected {first[1]} channels to add up")
        counts = [-1 if shape is None else shape[1] for shape in shapes]
        channels = -1 if -1 in counts else sum(counts)
        return shapes, [(first[0], first[1] if self.multi_input_mode == "sum" else channels, *size)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        if self.sample_type == "bilinear":
            self.deconvolution.forward(run, inputs, outputs)
            return
        start = 0
        for position, image in enumerate(inputs):
            if self.multi_input_mode == "sum":
                target = _blocks(out, self._times(image, out))
                if position:
                    target += image[..., None, :, None]
                    continue
            else:
                target = _blocks(out[:, start : start + image.shape[1]], self._times(image, out))
                start += image.shape[1]
            _enlarge(image, target)

    @staticmethod
    def _times(data: Any, out: Any) -> int:
        """Return the factor by which an input is enlarged, the same for both axes."""
        return int(out.shape[2]) // max(1, int(data.shape[2]))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        head = heads[0]
        if self.sample_type == "bilinear":
            return self.deconvolution.gradient(F, inputs, outputs, heads)
        grads, start = [], 0
        for position in range(len(inputs)):
            like, part = shape_of(inputs, position), head
            if self.multi_input_mode == "concat" and len(inputs) > 1:
                part = F.slice_axis(head, axis=1, begin=start, end=start + like.shape[1])
                start += like.shape[1]
            grads.append(F.op("_backward__repeat_pixels", part, like, scale=self._times(like, head)))
        return grads
