"""IDX files, in which MNIST and data sets like it are kept."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from flowmx.errors import DataError, raised_as_mxnet
from flowmx.serialization.reading import read_whole

_GZIP = b"\x1f\x8b"
_BYTES = 8
"""IDX's number of the element type uint8."""


@raised_as_mxnet(OSError)
def read_idx(path: str | os.PathLike[str], axes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The array of bytes in an IDX file, compressed with gzip or not.

    Args:
        path: the file; where it is missing and one with ``.gz`` behind its name is there, that.
        axes: the number of axes that the array must have.

    Raises:
        OSError: it can not be read.
        ValueError: it is in another format, damaged or cut off.
    """
    found = Path(path)
    compressed = found.with_name(found.name + ".gz")
    raw = read_whole(compressed if not found.exists() and compressed.exists() else found)
    try:
        if raw[:2] == _GZIP:
            raw = gzip.decompress(raw)
        zero, kind, count = struct.unpack_from(">HBB", raw)
        shape = struct.unpack_from(f">{count}I", raw, 4)
    except (struct.error, EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{str(found)!r} is cut off, or no IDX file: {error}") from error
    if zero or kind != _BYTES or count != axes:
        raise DataError(
            f"{str(found)!r} begins with {raw[:4].hex()}, expected 000008{axes:02x}: an IDX file of bytes with {axes} "
            "axes"
        )
    size, start = int(np.prod(shape, dtype=np.int64)), 4 + 4 * count
    if len(raw) - start < size:
        raise DataError(f"{str(found)!r} has {len(raw) - start} bytes of content, expected {size} for {shape}: cut off")
    return np.frombuffer(raw, np.uint8, size, start).reshape(shape)


def read_mnist(images: str | os.PathLike[str], labels: str | os.PathLike[str]) -> tuple[Any, Any]:
    """The images (number, height, width) and the labels (number,) of MNIST's two files, uint8.

    Raises:
        OSError: one can not be read.
        ValueError: one is in another format, damaged or cut off, or they differ in number.
    """
    pixels, classes = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(classes):
        raise DataError(
            f"{os.fspath(images)!r} has {len(pixels)} images and {os.fspath(labels)!r} {len(classes)} labels"
        )
    return pixels, classes
