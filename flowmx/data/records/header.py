"""Records of images: a header with labels, and the image's file."""

from __future__ import annotations

import struct
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from flowmx.data import codecs
from flowmx.data.records.framing import RecordFormatError

HEADER = struct.Struct("<IfQQ")


class IRHeader(NamedTuple):
    """The header before an image in its record.

    Attributes:
        flag: 0, or how many labels follow the header.
        label: the label, or an array of several.
        id: the number of the image.
        id2: more of it; 0 in most files.
    """

    flag: int
    label: Any
    id: int
    id2: int


def pack(header: IRHeader | tuple[int, Any, int, int], s: bytes) -> bytes:
    """A record of a header and bytes; labels of an array go between the two, as float32.

    Args:
        header: the header; its flag is set by what the label is.
        s: the bytes, an image's file mostly.

    Raises:
        ValueError: the label is neither a number nor an array of numbers, or an id is negative or too large.
    """
    given = IRHeader(*header)
    extra = b""
    flag, label = 0, given.label
    if not isinstance(label, Number):
        values = np.asarray(label, np.float32)
        extra, flag, label = values.tobytes(), values.size, 0.0
    try:
        return HEADER.pack(flag, label, given.id, given.id2) + extra + s
    except struct.error as error:
        raise ValueError(f"recordio.pack: the header is {tuple(given)}, which can not be written: {error}") from error


def unpack(s: bytes) -> tuple[IRHeader, bytes]:
    """The header and the bytes of a record.

    Raises:
        RecordFormatError: it is too short to be one.
    """
    if len(s) < HEADER.size:
        raise RecordFormatError(f"recordio.unpack: the record has {len(s)} bytes, expected a header of {HEADER.size}")
    header = IRHeader(*HEADER.unpack_from(s))
    start = HEADER.size + 4 * header.flag
    if not header.flag:
        return header, s[start:]
    if len(s) < start:
        raise RecordFormatError(
            f"recordio.unpack: the header says that {header.flag} labels follow, but the record has {len(s)} bytes"
        )
    return header._replace(label=np.frombuffer(s, "<f4", header.flag, HEADER.size)), s[start:]


def pack_img(header: IRHeader | tuple[int, Any, int, int], img: Any, quality: int = 95, img_fmt: str = ".jpg") -> bytes:
    """A record of a header and an image.

    Args:
        header: the header.
        img: the image, bytes of shape (height, width) or (height, width, channels), blue first as in OpenCV.
        quality: of a JPEG file, 1 to 100; of a PNG file, how hard to compress it, 0 to 9.
        img_fmt: ``".jpg"`` or ``".png"``.

    Raises:
        ValueError: the image, the quality or the format is none.
    """
    return pack(header, codecs.encode(codecs.swapped(np.asarray(img)), img_fmt, quality))


def unpack_img(s: bytes, iscolor: int = -1) -> tuple[IRHeader, Any]:
    """The header and the image of a record.

    Args:
        s: the record.
        iscolor: 1 for three channels, 0 for one, -1 for what the file has.

    Returns:
        the header, and a NumPy array of shape (height, width, channels), blue first as in OpenCV, or (height, width).

    Raises:
        RecordFormatError: the record is too short.
        ValueError: it holds no image that can be decoded.
    """
    header, raw = unpack(s)
    image = codecs.decode(raw, iscolor)
    return header, image[:, :, 0] if image.shape[2] == 1 else codecs.swapped(image)
