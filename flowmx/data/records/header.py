"""Records of images: a header, optional labels, and the image file."""

from __future__ import annotations

import struct
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from flowmx.data import codecs
from flowmx.data.records.framing import RecordFormatError

HEADER = struct.Struct("<IfQQ")


class IRHeader(NamedTuple):
    """The header of an image's record.

    Attributes:
        flag: 0, or the number of labels after the header.
        label: the label, or an array of labels.
        id: the number of the image.
        id2: the upper part of the number; 0 in most files.
    """

    flag: int
    label: Any
    id: int
    id2: int


if TYPE_CHECKING:

    class _UnpackedHeader(IRHeader):
        """The header of a record, whose label is a number or an array."""

        label: float | npt.NDArray[Any]


def pack(header: IRHeader | tuple[int, Any, int, int], s: bytes) -> bytes:
    """Pack a header and bytes into a record; an array of labels is stored between them, as float32.

    Args:
        header: the header; its flag is derived from the label.
        s: the bytes, usually an image file.

    Raises:
        ValueError: the label is neither a number nor an array of numbers, or an id is negative or too large.
    """
    parsed = IRHeader(*header)
    extra = b""
    flag, label = 0, parsed.label
    if not isinstance(label, Number):
        values = np.asarray(label, np.float32)
        extra, flag, label = values.tobytes(), values.size, 0.0
    try:
        return HEADER.pack(flag, label, parsed.id, parsed.id2) + extra + s
    except struct.error as error:
        raise ValueError(f"recordio.pack: the header is {tuple(parsed)}, which cannot be written: {error}") from error


def unpack(s: bytes) -> tuple[_UnpackedHeader, bytes]:
    """Split a record into its header and bytes.

    Raises:
        RecordFormatError: the record is too short.
    """
    if len(s) < HEADER.size:
        raise RecordFormatError(f"recordio.unpack: the record has {len(s)} bytes, expected a header of {HEADER.size}")
    header = cast("_UnpackedHeader", IRHeader(*HEADER.unpack_from(s)))
    start = HEADER.size + 4 * header.flag
    if not header.flag:
        return header, s[start:]
    if len(s) < start:
        raise RecordFormatError(
            f"recordio.unpack: the header says that {header.flag} labels follow, but the record has {len(s)} bytes"
        )
    return header._replace(label=np.frombuffer(s, "<f4", header.flag, HEADER.size)), s[start:]


def pack_img(
    header: IRHeader | tuple[int, Any, int, int], img: object, quality: int = 95, img_fmt: str = ".jpg"
) -> bytes:
    """Pack a header and an image into a record.

    Args:
        header: the header.
        img: the image, uint8 of shape (height, width) or (height, width, channels), blue first as in OpenCV.
        quality: the quality of a JPEG file, 1 to 100; the compression level of a PNG file, 0 to 9.
        img_fmt: ``".jpg"`` or ``".png"``.

    Raises:
        ValueError: the image, the quality or the format is invalid.
    """
    return pack(header, codecs.encode(codecs.swap_channels(np.asarray(img)), img_fmt, quality))


def unpack_img(s: bytes, iscolor: int = -1) -> tuple[_UnpackedHeader, npt.NDArray[np.uint8]]:
    """Split a record into its header and its decoded image.

    Args:
        s: the record.
        iscolor: 1 for three channels, 0 for one, -1 for as many as the file has.

    Returns:
        The header, and a NumPy array of shape (height, width, channels), blue first as in OpenCV, or (height, width).

    Raises:
        RecordFormatError: the record is too short.
        ValueError: the image cannot be decoded.
    """
    header, raw = unpack(s)
    image = codecs.decode(raw, iscolor, upright=True)
    return header, image[:, :, 0] if image.shape[2] == 1 else codecs.swap_channels(image)
