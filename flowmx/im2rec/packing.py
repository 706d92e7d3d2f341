"""Conversion of an image file to a record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import codecs
from flowmx.im2rec.lists import Item
from flowmx.io.images.resizing import resized
from flowmx.recordio import IRHeader, pack

_LINEAR = 1


@dataclass(frozen=True)
class Options:
    """Changes to images while they are packed; see the command line's help."""

    root: str
    pass_through: bool = False
    resize: int = 0
    center_crop: bool = False
    quality: int = 95
    color: int = 1
    encoding: str = ".jpg"
    pack_label: bool = False


def make_record(item: Item, options: Options) -> bytes | str:
    """The record of an image, or what was wrong with it (a text, since one bad image ends nothing)."""
    label: Any = item.labels[0]
    if len(item.labels) > 1 and options.pack_label:
        label = np.array(item.labels, np.float32)
    header = IRHeader(0, label, item.number, 0)
    path = Path(options.root, item.path)
    try:
        raw = path.read_bytes()
        if not options.pass_through:
            image = _changed(codecs.decode(raw, options.color), options)
            raw = codecs.encode(image, options.encoding, options.quality)
        return pack(header, raw)
    except (OSError, ValueError) as error:
        return f"{path}: {error}"


def _changed(image: Any, options: Options) -> Any:
    rows, columns = image.shape[:2]
    if options.center_crop:
        side = min(rows, columns)
        top, left = (rows - side) // 2, (columns - side) // 2
        image = image[top : top + side, left : left + side]
        rows = columns = side
    if options.resize:
        size = options.resize
        new = (rows * size // columns, size) if rows > columns else (size, columns * size // rows)
        image = resized(image, new, _LINEAR)
    return image
