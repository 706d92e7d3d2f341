"""Image transforms (``mx.nd.image``): conversion to tensors, crops, resizing, flips and random color changes.

An image has the shape (height, width, channels), a batch one more axis in front. Random operators draw the same numbers
for the whole image; as in MXNet, their gradient is the head gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from flowmx.engine.origin import warn_user
from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Linear, linear
from flowmx.ops.nn.common import computing_dtype
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
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
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors
from flowmx.ops.vision import color, opencv_resize
from flowmx.ops.vision.color import ADJUSTMENTS

Inferred = tuple[list[ShapeOrNone], list[ShapeOrNone]]
InferredTypes = tuple[list[DType | None], list[DType | None]]


def expect_image(op: Operator, shape: ShapeOrNone, batches: bool = True) -> None:
    """Check that a shape is that of an image or a batch of images.

    Raises:
        ShapeError: the shape is not that of an image.
    """
    if shape is None or len(shape) == 3 or (batches and len(shape) == 4):
        return
    expected = "(height, width, channels)" + (" with or without a batch axis in front" if batches else "")
    raise ShapeError(f"{op.name}: input data has shape {shape}, expected {expected}")


def _store(xp: ArrayNamespace, out: Array, values: Array) -> None:
    """Store computed colors in an image, clipped to 0 ... 255 for bytes."""
    if out.dtype == np.uint8:
        values = xp.clip(values, 0, 255)
    xp.copyto(out, values, casting="unsafe")


# -- geometry ----------------------------------------------------------------------------------------------


@linear("_image_to_tensor")
class ToTensor(Linear, input_named=True):
    """Convert an image with values up to 255 to a float32 tensor with values up to 1, channels first."""

    input_docs = describe(data="(height, width, channels) or (batch, height, width, channels), any dtype")
    output_doc = "(channels, height, width) or (batch, channels, height, width), float32"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        expect_image(self, shape)
        if shape is None:
            return shapes, [None]
        return shapes, [(*shape[:-3], shape[-1], *shape[-3:-1])]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.divide(run.xp.moveaxis(inputs[0], -1, -3), 255, out=outputs[0], casting="unsafe")

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        run.xp.divide(run.xp.moveaxis(head, -3, -1), 255, out=out, casting="unsafe")


_warned_lines: set[tuple[str, int]] = set()
"""The user's lines with a warning about integers."""


@operator("_image_normalize")
class Normalize(Operator, in_place=((0, 0),), input_named=True):
    """(data - mean)/std for each channel of tensors of shape (..., channels, height, width).

    Integers are truncated, and wrap.
    """

    input_docs = describe(data="(channels, height, width) or (batch, channels, height, width), any dtype")
    output_doc = "The shape and dtype of data"
    mean: tuple[float, ...] = option((0.0,), "The mean of each channel, or of all.")
    std: tuple[float, ...] = option((1.0,), "The standard deviation of each channel, or of all.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is not None and len(shape) not in (3, 4):
            raise ShapeError(
                f"{self.name}: input data has shape {shape}, expected (channels, height, width) with or without a "
                "batch axis in front"
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if shape is not None and shape[-3] not in (-1, len(values)) and len(values) != 1:
                raise ShapeError(f"{self.name}: {name} has {len(values)} values, input data {shape[-3]} channels")
        return shapes, [shape]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        if dtypes[0] is not None and dtypes[0].kind in "biu":
            warn_user(
                f"{self.name}: input data has dtype {name_of(dtypes[0])}, so the result is truncated to integers, as "
                "in MXNet: apply ToTensor() before, or astype('float32')", _warned_lines,
            )  # fmt: skip
        return dtypes, dtypes

    def _channels(self, xp: ArrayNamespace, values: tuple[float, ...]) -> Array:
        return xp.asarray(values, np.float32).reshape(-1, 1, 1)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp = run.xp
        is_integer = inputs[0].dtype.kind in "biu"
        dtype = FLOAT32 if is_integer else computing_dtype(inputs[0].dtype)
        centered = inputs[0].astype(dtype, copy=False) - self._channels(xp, self.mean)
        if is_integer:  # wrap on every machine
            xp.copyto(outputs[0], (centered / self._channels(xp, self.std)).astype(np.int64), casting="unsafe")
        else:
            xp.divide(centered, self._channels(xp, self.std), out=outputs[0], casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op(self.name, heads[0], std=self.std)]


@linear("_image_crop")
class Crop(Linear):
    """Crop images to a region of this width and height, from column x and row y."""

    input_docs = describe(data="(height, width, channels) or (batch, height, width, channels), any dtype")
    output_doc = "The axes of data with the new height and width, the dtype of data"
    x: int = required("The first column.", low=0)
    y: int = required("The first row.", low=0)
    width: int = required("The number of columns.", low=1)
    height: int = required("The number of rows.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        expect_image(self, shape)
        if shape is None:
            return shapes, [None]
        for axis, start, length in ((-2, self.x, self.width), (-3, self.y, self.height)):
            if -1 < shape[axis] < start + length:
                raise ShapeError(f"{self.name}: input data has shape {shape}, too small for {self!r}")
        return shapes, [(*shape[:-3], self.height, self.width, shape[-1])]

    def _part(self, image: Array) -> Array:
        return image[..., self.y : self.y + self.height, self.x : self.x + self.width, :]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = self._part(inputs[0])

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        out[...] = 0
        self._part(out)[...] = head


@operator("_image_resize")
class Resize(Operator):
    """Resize images like OpenCV; there is no gradient."""

    input_docs = describe(data="(height, width, channels) or (batch, height, width, channels), any dtype")
    output_doc = "The axes of data with the new height and width, the dtype of data"
    size: Shape = option((), "(width, height), or one number for both.")
    keep_ratio: bool = option(False, "With a size of one number: set the shorter side, and keep the ratio.")
    interp: int = option(1, "0: nearest, 1: bilinear, 2: bicubic, 3: area, 4: Lanczos.", low=0, high=4)

    def __post_init__(self) -> None:
        if len(self.size) not in (1, 2) or min(self.size) < 1:
            raise ParameterError(
                f"{self.name}: parameter size is {self.size}, expected one or two lengths of at least 1"
            )

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        expect_image(self, shape)
        if shape is None:
            return shapes, [None]
        if 0 in shape[-3:-1]:
            raise ShapeError(f"{self.name}: input data has shape {shape}, expected images of at least one pixel")
        width, height = self.size * 2 if len(self.size) == 1 else self.size
        if len(self.size) == 1 and self.keep_ratio:
            if -1 in shape[-3:-1]:
                return shapes, [None]
            height, width = opencv_resize.with_shorter_side(shape[-3:-1], width)
        return shapes, [(*shape[:-3], height, width, shape[-1])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        opencv_resize.resize(run.xp, inputs[0], outputs[0], self.interp)


# -- flips -------------------------------------------------------------------------------------------------


class _Augmentation(Operator, in_place=((0, 0),)):
    """Base of transforms that keep the shape of an image."""

    input_docs = describe(data="(height, width, channels) with 1 or 3 channels, any dtype")
    output_doc = "The shape and dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        expect_image(self, shape, batches=False)
        if shape is not None and shape[-1] not in (-1, 1, 3):
            raise ShapeError(f"{self.name}: input data has shape {shape}, expected 1 or 3 channels at the end")
        return shapes, [shape]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.identity(heads[0])]


class _Flip(_Augmentation, in_place=()):
    axis: ClassVar[int]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.flip(inputs[0], self.axis)


class _RandomFlip(_Flip, uses_random=True):
    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if run.random.random() < 0.5:
            super().forward(run, inputs, outputs)
        else:
            run.xp.copyto(outputs[0], inputs[0])


def _flip_gradient(self: Operator, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> list[Tensor]:
    return [F.op(self.name, heads[0])]


for _name, _axis, _doc in (("left_right", 1, "left and right"), ("top_bottom", 0, "top and bottom")):
    for _prefix, _base, _how in (("flip", _Flip, ""), ("random_flip", _RandomFlip, ", or not, at random")):
        _body: dict[str, Any] = {
            "__doc__": f"The image with {_doc} exchanged{_how}.",
            "__module__": __name__,
            "axis": _axis,
        }
        if _base is _Flip:
            _body["gradient"] = _flip_gradient
        operator(f"_image_{_prefix}_{_name}")(type(f"{_prefix}_{_name}", (_base,), _body))


# -- colors -----------------------------------------------------------------------------------------------


def _to_float(xp: ArrayNamespace, image: Array) -> Array:
    result: Array = image.astype(np.float64 if image.dtype == np.float64 else np.float32, copy=False)
    return result


class _RandomFactor(_Augmentation, uses_random=True):
    adjust: ClassVar[Callable[[Any, Array, float], Array]]
    min_factor: float
    max_factor: float

    def __post_init__(self) -> None:
        if self.max_factor < self.min_factor:
            raise ParameterError(
                f"{self.name}: parameter max_factor is {self.max_factor}, expected at least min_factor, "
                f"{self.min_factor}"
            )

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        factor = run.random.uniform(self.min_factor, self.max_factor)
        _store(run.xp, outputs[0], type(self).adjust(run.xp, _to_float(run.xp, inputs[0]), factor))


for _name, _adjust in ADJUSTMENTS.items():
    operator(f"_image_random_{_name}")(
        type(
            f"random_{_name}",
            (_RandomFactor,),
            {
                "__doc__": f"The image with its {_name} changed by a random factor.",
                "__module__": __name__,
                "adjust": staticmethod(_adjust),
                "__annotations__": {"min_factor": float, "max_factor": float},
                "min_factor": required("The minimum factor.", low=0),
                "max_factor": required("The maximum factor.", low=0),
            },
        )
    )


@operator("_image_random_color_jitter")
class RandomColorJitter(_Augmentation, uses_random=True):
    """The image with brightness, contrast, saturation and hue changed at random, in random order."""

    brightness: float = required("The maximum difference of the brightness factor from 1.")
    contrast: float = required("The maximum difference of the contrast factor from 1.")
    saturation: float = required("The maximum difference of the saturation factor from 1.")
    hue: float = required("The maximum rotation of the hue, as a fraction of the circle.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, out = run.xp, outputs[0]
        xp.copyto(out, inputs[0])
        names = list(ADJUSTMENTS)
        for position in run.random.permutation(len(names)).tolist():
            name = names[position]
            most = getattr(self, name)
            if most > 0:
                factor = run.random.uniform(-most, most) + (name != "hue")
                _store(xp, out, ADJUSTMENTS[name](xp, _to_float(xp, out), factor))


def _light(xp: ArrayNamespace, image: Array, out: Array, alpha: Sequence[float]) -> None:
    _store(xp, out, color.lighting(xp, _to_float(xp, image), alpha))


@operator("_image_adjust_lighting")
class AdjustLighting(_Augmentation):
    """Shift the principal components of the image's colors, as in the training of AlexNet."""

    alpha: tuple[float, ...] = required("The shift along each of the three components.")

    def __post_init__(self) -> None:
        if len(self.alpha) != 3:
            raise ParameterError(f"{self.name}: parameter alpha is {self.alpha}, expected three numbers")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _light(run.xp, inputs[0], outputs[0], self.alpha)


@operator("_image_random_lighting")
class RandomLighting(_Augmentation, uses_random=True):
    """Shift the principal components of the image's colors at random (Krizhevsky et al., 2012)."""

    alpha_std: float = option(0.05, "The standard deviation of the shifts.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _light(run.xp, inputs[0], outputs[0], [run.random.standard_normal() * self.alpha_std for _ in range(3)])
