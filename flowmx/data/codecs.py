"""Image files and arrays: JPEG, PNG and what else Pillow reads, as OpenCV would decode them.

JPEG goes through simplejpeg where it is installed (libjpeg-turbo, as OpenCV has it: the same pixels, without the
interpreter's lock), and through Pillow otherwise. Neither is imported before the first image comes.
"""

from __future__ import annotations

import io
import struct
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from flowmx.errors import DataError

Image = npt.NDArray[np.uint8]
"""(height, width, channels), red first."""

_JPEG = b"\xff\xd8"
_JPEG_NAMES, _PNG_NAMES = (".jpg", ".jpeg"), (".png",)
_CHANNELS = {1: "RGB", 0: "GRAY"}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@lru_cache(maxsize=1)
def _turbo() -> Any:
    """The module simplejpeg, or None."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise ImportError(
            "images are decoded with Pillow and simplejpeg, and neither is installed: pip install 'flowmx[image]'"
        ) from error
    return PIL.Image


def decode(raw: bytes | bytearray | memoryview | Image, flag: int = 1) -> Image:
    """The image in a file's bytes.

    Args:
        raw: the bytes.
        flag: 1 for three channels, 0 for one, -1 for as many as the file has.

    Returns:
        an array of shape (height, width, channels), red first, turned as the file's Exif entry says (but for -1, as in
        OpenCV).

    Raises:
        ValueError: it is empty, damaged, or of a kind that is not known.
        ImportError: there is no decoder.
    """
    if flag not in (-1, 0, 1):
        raise DataError(f"imdecode: flag is {flag}, expected 1 (three channels), 0 (one) or -1 (as the file has)")
    if type(raw) is bytes and flag >= 0 and raw.startswith(_JPEG) and _EXIF not in raw:  # most images, in few steps
        return _decode_jpeg(raw, flag)
    view: Any = memoryview(raw)  # type: ignore[arg-type]  # an array is a buffer too
    view = view.cast("B")
    if not view.nbytes:
        raise DataError("imdecode: there are no bytes: the file is empty")
    if view[:2] != _JPEG or flag < 0:
        return _decode_any(view, flag)
    image = _decode_jpeg(view, flag)
    turned = _orientation(view)
    return image if turned == 1 else np.ascontiguousarray(_TURNS[turned](image))


def _decode_jpeg(view: Any, flag: int) -> Image:
    turbo = _turbo()
    if turbo is None:
        return _decode_any(memoryview(view), flag)
    try:
        image: Image = turbo.decode_jpeg(view, _CHANNELS[flag])
    except ValueError:  # four colours, or damaged: Pillow knows the first, and says more of the second
        return _decode_any(memoryview(view), flag)
    return image


def _decode_any(view: Any, flag: int) -> Image:
    pillow = _pillow()
    try:
        with pillow.open(io.BytesIO(view)) as opened:
            if view[:2] == _JPEG and flag == 0:
                opened.draft("L", opened.size)  # its brightness as it is stored
            opened.load()
            return _array(opened, flag)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise DataError(
            f"imdecode: these {view.nbytes} bytes, which begin with {bytes(view[:8]).hex()}, are no image that can be "
            f"decoded: {error}"
        ) from error


def _array(opened: Any, flag: int) -> Image:
    if flag < 0:
        has_alpha = "A" in opened.getbands() or "transparency" in opened.info
        mode = "L" if opened.mode in ("1", "L") else "RGBA" if has_alpha else "RGB"
    else:
        mode = "RGB" if flag else "L"
        if opened.mode in ("RGBA", "LA", "PA"):  # OpenCV drops the transparency
            opened = opened.convert("RGBA" if opened.mode != "LA" else "LA").convert("RGB" if flag else "L")
    image = np.array(opened if opened.mode == mode else opened.convert(mode))
    return image[:, :, None] if image.ndim == 2 else image


def encode(image: Image, img_fmt: str = ".jpg", quality: int = 95) -> bytes:
    """An image as the bytes of a file.

    Args:
        image: an array of bytes, of shape (height, width) or (height, width, 1, 3 or 4), red first.
        img_fmt: ``".jpg"`` or ``".png"``.
        quality: of JPEG, 1 to 100; of PNG, how hard to compress, 0 to 9 (and what is above).

    Raises:
        ValueError: the image, the format or the quality is none.
        ImportError: there is no encoder.
    """
    kind = img_fmt.lower()
    if kind not in (*_JPEG_NAMES, *_PNG_NAMES):
        raise DataError(f"the image format is {img_fmt!r}, expected '.jpg' or '.png'")
    if not 1 <= quality <= 100 and (kind in _JPEG_NAMES or quality < 0):
        raise DataError(f"the quality is {quality}, expected 1 to 100 for JPEG, 0 to 9 for PNG")
    if image.ndim == 2:
        image = image[:, :, None]
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in _MODES:
        raise DataError(
            f"the image has shape {image.shape} and dtype {image.dtype}, expected uint8 and (height, width, 1, 3 or 4)"
        )
    image = np.ascontiguousarray(image)
    return _encode_jpeg(image, quality) if kind in _JPEG_NAMES else _encode_png(image, quality)


def _encode_jpeg(image: Image, quality: int) -> bytes:
    image = np.ascontiguousarray(image[:, :, :3])
    turbo = _turbo()
    if turbo is not None:
        colours, sampling = ("GRAY", "Gray") if image.shape[2] == 1 else ("RGB", "420")
        encoded: bytes = turbo.encode_jpeg(image, quality, colours, sampling)
        return encoded
    return _saved(image, format="JPEG", quality=quality)


def _encode_png(image: Image, level: int) -> bytes:
    return _saved(image, format="PNG", compress_level=min(level, 9))


def _saved(image: Image, **options: Any) -> bytes:
    file = io.BytesIO()
    _pillow().fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, **options)
    return file.getvalue()


def swapped(image: Image) -> Image:
    """The image with red and blue exchanged (OpenCV has blue first)."""
    if image.ndim < 3 or image.shape[2] < 3:
        return image
    return np.ascontiguousarray(image[:, :, [2, 1, 0, 3][: image.shape[2]]])


# -- how a photograph was held -----------------------------------------------------------------------------

_TURNS: dict[int, Any] = {
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: image.transpose(1, 0, 2)[:, ::-1],
    7: lambda image: image[::-1, ::-1].transpose(1, 0, 2),
    8: lambda image: image.transpose(1, 0, 2)[::-1],
}
"""Functions that turn an (H, W, C) image upright, by the value of Exif's orientation tag (2 to 8)."""
_ORIENTATION = 0x0112
_EXIF = b"Exif\0\0"


def _orientation(view: Any) -> int:
    """Exif's number of a JPEG file's orientation; 1, upright, where it has none."""
    at = 2
    while at + 4 <= len(view) and view[at] == 0xFF and view[at + 1] != 0xDA:
        length = view[at + 2] << 8 | view[at + 3]
        if view[at + 1] == 0xE1 and view[at + 4 : at + 10] == _EXIF:
            return _tag(view[at + 10 : at + 2 + length])
        at += 2 + length
    return 1


def _tag(tiff: Any) -> int:
    """The orientation in the block of an Exif entry."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(tiff[:2]))
    try:
        if order is None:
            return 1
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for entry in range(count):
            tag, _, _, value = struct.unpack_from(order + "HHIH", tiff, start + 2 + 12 * entry)
            if tag == _ORIENTATION:
                return value if value in _TURNS else 1
    except struct.error:
        pass  # a damaged entry says nothing
    return 1
