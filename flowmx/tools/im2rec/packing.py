"""Conversion of an image file to a record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowmx.data import codecs
from flowmx.data.augmentation.geometry import center_crop, resize_image
from flowmx.data.image_lists import Item
from flowmx.ops.vision import opencv_resize
from flowmx.recordio import IRHeader, pack


@dataclass(frozen=True)
class Options:
    """The options for converting images, which the command line's help describes."""

    root: str
    pass_through: bool = False
    resize: int = 0
    center_crop: bool = False
    quality: int = 95
    color: int = 1
    encoding: str = ".jpg"
    pack_label: bool = False


def make_record(item: Item, options: Options) -> bytes | str:
    """Return the record of an image, or an error message, so that one bad image does not stop the run."""
    label: Any = item.labels[0]
    if len(item.labels) > 1 and options.pack_label:
        label = np.array(item.labels, np.float32)
    header = IRHeader(0, label, item.number, 0)
    path = Path(options.root, item.path)
    try:
        raw = path.read_bytes()
        if not options.pass_through:
            image = _transform(codecs.decode(raw, options.color, upright=True), options)
            raw = codecs.encode(image, options.encoding, options.quality)
        return pack(header, raw)
    except (OSError, ValueError) as error:
        return f"{path}: {error}"


def _transform(image: Any, options: Options) -> Any:
    if options.center_crop:
        side = min(image.shape[:2])
        image = center_crop(image, (side, side))
    if options.resize:
        image = resize_image(
            image, opencv_resize.with_shorter_side(image.shape[:2], options.resize), opencv_resize.LINEAR
        )
    return image
