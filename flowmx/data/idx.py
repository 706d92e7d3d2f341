"""IDX files, the format of MNIST and similar data sets."""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from flowmx.errors import DataError, raised_as_mxnet
from flowmx.serialization.reading import read_whole
from flowmx.shape_limits import ShapeError, read_shape

_GZIP = b"\x1f\x8b"
_UINT8 = 8
"""IDX's code for the element type uint8."""


@raised_as_mxnet(OSError)
def read_idx(path: str | os.PathLike[str], axes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read the uint8 array of an IDX file, compressed with gzip or not.

    Args:
        path: the file; if it is missing, ``path`` + ``.gz`` is read.
        axes: the number of axes that the array must have.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has a different format, or is damaged or truncated.
    """
    file_path = Path(path)
    compressed = file_path.with_name(file_path.name + ".gz")
    raw = read_whole(compressed if not file_path.exists() and compressed.exists() else file_path)
    file = gzip.GzipFile(fileobj=io.BytesIO(raw)) if raw[:2] == _GZIP else io.BytesIO(raw)
    try:
        return _read(file, str(file_path), axes)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{str(file_path)!r} is truncated, or not an IDX file: {error}") from error


def _read(file: io.BufferedIOBase, name: str, axes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read one array; data after it in a compressed file is not decompressed."""
    expected = struct.pack(">HBB", 0, _UINT8, axes)
    head = file.read(4 + 4 * axes)
    if len(head) < len(expected):
        raise DataError(f"{name!r} is truncated, or not an IDX file: it has {len(head)} bytes")
    if head[:4] != expected:
        raise DataError(
            f"{name!r} begins with {head[:4].hex()}, expected {expected.hex()}: an IDX file of bytes with {axes} axes"
        )
    if len(head) < 4 + 4 * axes:
        raise DataError(f"{name!r} is truncated, or not an IDX file: it has {len(head)} bytes")
    try:
        shape = read_shape(struct.unpack_from(f">{axes}I", head, 4))
    except ShapeError as error:
        raise DataError(f"the shape in {name!r} {error}") from None
    size = math.prod(shape)
    content = file.read(size)
    if len(content) < size:
        raise DataError(f"{name!r} has {len(content)} bytes of content, expected {size} for {shape}: it is truncated")
    return np.frombuffer(content, np.uint8, size).reshape(shape)


def read_mnist(images: str | os.PathLike[str], labels: str | os.PathLike[str]) -> tuple[Any, Any]:
    """Read the images (number, height, width) and the labels (number,) of MNIST's two files, uint8.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file has a different format, is damaged or truncated, or their lengths differ.
    """
    pixels, classes = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(classes):
        raise DataError(
            f"{os.fspath(images)!r} has {len(pixels)} images and {os.fspath(labels)!r} {len(classes)} labels"
        )
    return pixels, classes
