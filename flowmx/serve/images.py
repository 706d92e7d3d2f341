"""JPEG and PNG images as request bodies of models with an image input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.data.codecs import DamagedImageError, decode, require_decoder
from flowmx.gluon.data.vision import transforms
from flowmx.ndarray import NDArray
from flowmx.serve.errors import InvalidInput
from flowmx.serve.inputs import Array, Input
from flowmx.serve.replies import Refusal

__all__ = ["IMAGE_TYPES", "ImageReader", "ImageTransform"]

ImageTransform = Callable[[Any], Any] | Mapping[str, Any]
"""A function of an image (height, width, channels) that returns a sample, or the options of the standard one."""

JPEG_TYPE, PNG_TYPE = "image/jpeg", "image/png"
IMAGE_TYPES = (JPEG_TYPE, PNG_TYPE)
_OPTIONS = ("resize", "mean", "std", "max_pixels")
_MAX_PIXELS = 1 << 25
"""Default limit of an image in pixels: 100 MB in three channels."""
_SIGNATURES = {JPEG_TYPE: b"\xff\xd8\xff", PNG_TYPE: b"\x89PNG\r\n\x1a\n"}
_CHANNELS = (1, 3)


class ImageReader:
    """Turns the bytes of an image into a sample. It is called on threads.

    Args:
        specs: the inputs of the model: one, of an image in the layout (channels, height, width) or (height, width,
            channels), with 1 or 3 channels.
        transform: a function of an image (height, width, channels), an NDArray of uint8, that returns a sample, such as
            ``Compose`` of :mod:`flowmx.gluon.data.vision.transforms`. Or options: ``resize``, the length of the shorter
            side before the centre is cropped (default: the image is resized to the input's size); ``mean`` and ``std``
            for values from 0 to 1; ``max_pixels``, the limit of an image (default: 33,554,432).

    Raises:
        ValueError: the model has no image input, or an option is unknown or invalid.
        TypeError: the transform is neither callable nor a mapping.
        ImportError: Pillow is not installed.
    """

    def __init__(self, specs: Sequence[Input], transform: ImageTransform) -> None:
        require_decoder()
        options = dict(transform) if isinstance(transform, Mapping) else {}
        if not callable(transform) and not isinstance(transform, Mapping):
            raise TypeError(
                f"image is a {type(transform).__name__}, expected a transform, or a dict of some of "
                f"{', '.join(_OPTIONS)}"
            )
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown:
            raise ValueError(f"image has the options {', '.join(unknown)}, expected some of {', '.join(_OPTIONS)}")
        if len(specs) != 1:
            raise ValueError(
                f"the model has the inputs {', '.join(s.name for s in specs)}, and image= needs exactly one"
            )
        self._max_pixels = options.pop("max_pixels", _MAX_PIXELS)
        if type(self._max_pixels) is not int or self._max_pixels < 1:
            raise ValueError(f"max_pixels is {self._max_pixels!r}, expected a number of pixels")
        self._channels = _channels(specs[0])
        self._transform = transform if callable(transform) else _standard(specs[0], **options)

    def __call__(self, body: bytes, content_type: str) -> Array:
        """Return the sample of an image.

        Args:
            body: the bytes of a JPEG or PNG file.
            content_type: ``image/jpeg`` or ``image/png``.

        Raises:
            InvalidInput: the image is damaged, or of a different format.
            Refusal: 413, the image has too many pixels.
        """
        media_type = content_type.partition(";")[0].strip().lower()
        if not body.startswith(_SIGNATURES[media_type]):
            raise InvalidInput(f"the body begins with {body[:8].hex() or 'nothing'}, which is no {media_type} file")
        height, width = (_png_size if media_type == PNG_TYPE else _jpeg_size)(body)
        if height * width > self._max_pixels:
            raise Refusal(413, f"the image has {height} x {width} pixels, expected at most {self._max_pixels} pixels")
        try:
            image = decode(body, 0 if self._channels == 1 else 1, upright=media_type == JPEG_TYPE, damaged="raise")
        except DamagedImageError as error:
            raise InvalidInput(str(error).removeprefix("imdecode: ")) from error
        sample = self._transform(nd.array(image, dtype=np.uint8))
        return sample.asnumpy() if isinstance(sample, NDArray) else np.asarray(sample)


def _channels(spec: Input) -> int:
    """Return the number of channels of an image input; 3 if the input has another layout."""
    ends = (spec.shape[0], spec.shape[-1]) if len(spec.shape) == 3 else (None,)
    return next((size for size in ends if size in _CHANNELS), 3) or 3


def _standard(
    spec: Input, resize: int | None = None, mean: object = None, std: object = None
) -> Callable[[NDArray], Array]:  # fmt: skip
    """Return the function that resizes an image to the size of an input, and normalizes it."""
    shape, is_float = [size for size in spec.shape if size is not None], np.dtype(spec.dtype).kind in "fV"
    is_last = len(shape) == 3 and shape[0] not in _CHANNELS and shape[-1] in _CHANNELS
    if len(shape) != len(spec.shape) or len(shape) != 3 or not (is_last or shape[0] in _CHANNELS):
        raise ValueError(
            f"input {spec.name} is {spec}, and images need (channels, height, width) or (height, width, channels) with "
            "1 or 3 channels: pass a function as image=, which returns a sample of the input's shape"
        )
    if not is_float and (mean is not None or std is not None):
        raise ValueError(f"input {spec.name} is {spec}: mean and std need a floating point input")
    height, width = shape[:2] if is_last else shape[1:]
    steps: list[Any] = [transforms.Resize((width, height))]
    if resize is not None:
        if type(resize) is not int or resize < 1:
            raise ValueError(f"resize is {resize!r}, expected the length of the shorter side in pixels")
        steps = [transforms.Resize(resize, keep_ratio=True), transforms.CenterCrop((width, height))]
    if is_float:
        steps.append(transforms.ToTensor())
    if mean is not None or std is not None:
        steps.append(transforms.Normalize(0.0 if mean is None else mean, 1.0 if std is None else std))
    compose = transforms.Compose(steps)

    def transform(image: NDArray) -> Array:
        sample: Array = np.asarray(compose(image).asnumpy())
        if is_float == is_last:  # ToTensor has moved the channels to the front
            sample = np.moveaxis(sample, 0, -1) if is_last else np.moveaxis(sample, -1, 0)
        return sample

    return transform


def _png_size(body: bytes) -> tuple[int, int]:
    """Return the height and width in a PNG file's header."""
    if body[12:16] != b"IHDR" or len(body) < 24:
        raise InvalidInput("the PNG file is damaged: its header is not complete")
    return int.from_bytes(body[20:24], "big"), int.from_bytes(body[16:20], "big")


def _jpeg_size(body: bytes) -> tuple[int, int]:
    """Return the height and width in a JPEG file's frame header, the first one that a decoder uses."""
    at = 2
    while at + 9 <= len(body):
        if body[at] != 0xFF or body[at + 1] in (0x00, 0x01, 0xFF) or 0xD0 <= body[at + 1] <= 0xD8:
            at += 1
        elif 0xC0 <= body[at + 1] <= 0xCF and body[at + 1] not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(body[at + 5 : at + 7], "big"), int.from_bytes(body[at + 7 : at + 9], "big")
        else:
            at += 2 + int.from_bytes(body[at + 2 : at + 4], "big")
    raise InvalidInput("the JPEG file is damaged: it has no frame header")
