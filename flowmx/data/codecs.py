"""Decoding and encoding of JPEG, PNG and the other image files that Pillow reads, with OpenCV's results.

simplejpeg decodes JPEG files if it is installed (it uses libjpeg-turbo, like OpenCV, so it returns the same
pixels, and it releases the GIL); otherwise Pillow does. They are imported at the first image.
"""

from __future__ import annotations

import io
import struct
from functools import lru_cache
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt

from flowmx import settings
from flowmx.errors import DataError, ParameterError
from flowmx.settings import DamagedImages

Image = npt.NDArray[np.uint8]
"""(height, width, channels), red first."""

_JPEG = b"\xff\xd8"
_JPEG_NAMES, _PNG_NAMES = (".jpg", ".jpeg"), (".png",)
_CHANNELS = {1: "RGB", 0: "GRAY"}
_END = b"\xff\xd9"
"""JPEG's end-of-image marker."""
_SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose integers in Pillow's mode "I" have 16 bits."""
_MAX_PIXELS = 1 << 30
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class DamagedImageError(DataError):
    """A file is damaged, or is not an image; the message has the decoder's reason."""


def damaged_policy(choice: str | None, caller: str) -> DamagedImages:
    """Return the policy for damaged images: an iterator's choice, or else the setting.

    Raises:
        ParameterError: the choice is unknown.
    """
    if not choice:
        return settings.get().damaged_images
    if choice not in get_args(DamagedImages):
        raise ParameterError(f"{caller}: damaged_images is {choice!r}, expected one of {get_args(DamagedImages)}")
    return cast("DamagedImages", choice)


@lru_cache(maxsize=1)
def _turbo() -> Any:
    """Return the module simplejpeg, or None."""
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
            "images are decoded with Pillow, which is not installed: pip install pillow simplejpeg"
        ) from error
    return PIL.Image


def require_decoder() -> None:
    """Import the libraries that decode images of all formats.

    Raises:
        ImportError: one is missing.
    """
    _turbo()
    _pillow()


def decode(
    raw: bytes | bytearray | memoryview | Image,
    flag: int = 1,
    upright: bool = False,
    damaged: DamagedImages | None = None,
) -> Image:
    """Decode an image from a file's bytes, as MXNet's OpenCV does.

    The readable part of a truncated or damaged JPEG file is decoded; the rest is grey. 16-bit elements are reduced to
    their upper byte.

    Args:
        raw: the bytes.
        flag: 1 for three channels, 0 for one, -1 for as many as the file has.
        upright: apply the Exif orientation of a JPEG image (not with flag -1).
        damaged: decode a damaged JPEG file, or raise an error for it; defaults to the setting ``damaged_images``.

    Returns:
        An array of shape (height, width, channels), red first.

    Raises:
        DamagedImageError: the bytes are empty, damaged, or of an unknown format.
        ValueError: the flag is unknown.
        ImportError: no decoder is installed.
    """
    lenient = (damaged or settings.get().damaged_images) == "decode"
    if flag not in (-1, 0, 1):
        raise DataError(f"imdecode: flag is {flag}, expected 1 (three channels), 0 (one) or -1 (as the file has)")
    if type(raw) is bytes and flag >= 0 and raw.startswith(_JPEG) and not upright:  # the fast path for most images
        return _decode_jpeg(raw, flag, lenient)
    view: Any = memoryview(raw)  # type: ignore[arg-type]  # an array is a buffer too
    view = view.cast("B")
    if not view.nbytes:
        raise DamagedImageError("imdecode: there are no bytes: the file is empty")
    if view[:2] != _JPEG or flag < 0:
        return _decode_any(view, flag, lenient)
    image = _decode_jpeg(view, flag, lenient)
    orientation = _orientation(view) if upright else 1
    return image if orientation == 1 else np.ascontiguousarray(_TURNS[orientation](image))


def _decode_jpeg(view: Any, flag: int, lenient: bool) -> Image:
    turbo = _turbo()
    if turbo is None:
        return _decode_any(memoryview(view), flag, lenient)
    _check_size(turbo, view)
    try:
        image: Image = turbo.decode_jpeg(view, _CHANNELS[flag])
    except ValueError as error:  # CMYK, which Pillow supports; or damaged, which Pillow explains better
        if not lenient and not _has_four_colors(view):
            raise DamagedImageError(f"imdecode: this JPEG file of {len(view)} bytes is damaged: {error}") from error
        return _decode_any(memoryview(view), flag, lenient)
    return image


def _check_size(turbo: Any, view: Any) -> None:
    """Raise DamagedImageError if a header announces gigabytes of pixels, as OpenCV does."""
    try:
        height, width, *_ = turbo.decode_jpeg_header(view, strict=False)
    except (ValueError, KeyError):  # damaged: the decoder will raise
        return
    if height * width > _MAX_PIXELS:
        raise DamagedImageError(f"imdecode: the image has {height} x {width} pixels, expected at most {_MAX_PIXELS}")


def _has_four_colors(view: object) -> bool:
    try:
        return _turbo().decode_jpeg_header(view, strict=False)[2] in ("CMYK", "YCCK")
    except (ValueError, KeyError):
        return False


def _decode_any(view: object, flag: int, lenient: bool) -> Image:
    try:
        return _decode_with_pillow(view, flag)
    except DamagedImageError:
        image = _decode_damaged(view, flag) if lenient else None
        if image is None:
            raise
        return image


def _decode_with_pillow(view: Any, flag: int) -> Image:
    pillow = _pillow()
    try:
        with pillow.open(io.BytesIO(view)) as file:
            if view[:2] == _JPEG and flag == 0:
                file.draft("L", file.size)  # its stored luminance
            orientation = file.getexif().get(_ORIENTATION, 1) if file.format == "TIFF" else 1
            file.load()
            image = _to_array(file, flag)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise DamagedImageError(
            f"imdecode: these {view.nbytes} bytes, which begin with {bytes(view[:8])!r}, cannot be decoded as an "
            f"image: {_reason(error)}"
        ) from error
    mirror = _MIRRORED.get(orientation)
    return image if mirror is None else np.ascontiguousarray(mirror(image))


def _reason(error: Exception) -> str:
    """Return the reason of an error of Pillow, which shows an object in memory for unknown formats."""
    text = str(error)
    return "expected a JPEG, PNG or another image file" if "BytesIO" in text else text


def _decode_damaged(view: Any, flag: int) -> Image | None:
    """Decode the readable part of a JPEG file whose pixels are truncated or damaged; None if none is readable."""
    if view[:2] != _JPEG or not _has_scan(view):
        return None
    turbo = _turbo() if flag >= 0 else None
    if turbo is not None:
        try:
            image: Image = turbo.decode_jpeg(view, _CHANNELS[flag], strict=False)
        except ValueError:  # CMYK, or no readable pixels
            pass
        else:
            return image
    try:
        return _decode_with_pillow(memoryview(bytes(view) + _END), flag)
    except DamagedImageError:
        return None


def _has_scan(view: Any) -> bool:
    """Return whether a JPEG file reaches its first scan, where the pixels begin."""
    at = 2
    while at + 4 <= len(view):
        if view[at] != 0xFF:  # damaged; the decoder searches for the next marker
            at += 1
        elif view[at + 1] == 0xDA:
            return bool(at + 2 + (view[at + 2] << 8 | view[at + 3]) <= len(view))
        elif view[at + 1] in (0x00, 0x01, 0xFF) or 0xD0 <= view[at + 1] <= 0xD8:  # markers without a length
            at += 1
        else:
            at += 2 + (view[at + 2] << 8 | view[at + 3])
    return False


def _to_array(file: Any, flag: int) -> Image:
    if file.mode.startswith("I;16") or (file.mode == "I" and file.format in _SIXTEEN_BITS):
        file = _pillow().fromarray((np.asarray(file) >> 8).astype(np.uint8))
    elif file.mode in ("I", "F"):
        raise ValueError("its elements have 32 bits, expected 8 or 16")
    if flag >= 0 and file.format == "JPEG" and file.mode in ("L", "RGB", "CMYK"):
        image = _convert(file, "RGB" if flag else "L")
    elif flag > 0:
        image = _colors(file)
    elif flag == 0 and file.mode not in ("1", "L", "LA"):
        image = _to_gray(_colors(file), file.format)
    elif flag == 0:
        image = _convert(file, "L")
    else:
        has_alpha = "A" in file.getbands() or "transparency" in file.info
        image = _convert(file, "L" if file.mode in ("1", "L") else "RGBA" if has_alpha else "RGB")
    return image[:, :, None] if image.ndim == 2 else image


def _convert(file: Any, mode: str) -> Image:
    return np.array(file if file.mode == mode else file.convert(mode))


def _colors(file: Any) -> Image:
    """Return the three color channels. OpenCV drops transparency, but multiplies the colors by it in TIFF files."""
    if file.mode not in ("RGBA", "PA"):
        return _convert(file, "RGB")
    image = _convert(file, "RGBA")
    if file.format != "TIFF":
        return np.ascontiguousarray(image[:, :, :3])
    return ((image[:, :, :3].astype(np.uint32) * image[:, :, 3:] + 127) // 255).astype(np.uint8)


def _to_gray(image: Image, format: str) -> Image:
    """Return the luminance of colors, with the weights and the rounding of OpenCV's libraries."""
    weights, shift, half = ((9797, 19234, 3737), 15, 0) if format == "PNG" else ((4899, 9617, 1868), 14, 1 << 13)
    return ((image.astype(np.uint32) @ np.array(weights, np.uint32) + half) >> shift).astype(np.uint8)


def encode(image: Image, img_fmt: str = ".jpg", quality: int = 95) -> bytes:
    """Encode an image as the bytes of a file.

    Args:
        image: uint8, of shape (height, width) or (height, width, 1, 3 or 4), red first.
        img_fmt: ``".jpg"`` or ``".png"``.
        quality: the quality of JPEG, 1 to 100; the compression level of PNG, 0 to 9 (higher numbers mean 9).

    Raises:
        ValueError: the image, the format or the quality is invalid.
        ImportError: no encoder is installed.
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
        colors, sampling = ("GRAY", "Gray") if image.shape[2] == 1 else ("RGB", "420")
        raw: bytes = turbo.encode_jpeg(image, quality, colors, sampling)
        return raw
    return _save_with_pillow(image, format="JPEG", quality=quality)


def _encode_png(image: Image, level: int) -> bytes:
    return _save_with_pillow(image, format="PNG", compress_level=min(level, 9))


def _save_with_pillow(image: Image, **options: object) -> bytes:
    file = io.BytesIO()
    _pillow().fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, **options)
    return file.getvalue()


def swap_channels(image: Image) -> Image:
    """Return an image with red and blue exchanged (OpenCV has blue first)."""
    if image.ndim < 3 or image.shape[2] < 3:
        return image
    return np.ascontiguousarray(image[:, :, [2, 1, 0, 3][: image.shape[2]]])


# -- orientation of photographs ----------------------------------------------------------------------------

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
_MIRRORED: dict[int, Any] = {
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: image[::-1, ::-1].transpose(1, 0, 2),
    7: lambda image: image.transpose(1, 0, 2),
    8: lambda image: image[::-1, ::-1].transpose(1, 0, 2),
}
"""Functions that turn an upright TIFF image, as Pillow reads it, into the mirrored image that OpenCV reads."""
_ORIENTATION = 0x0112
_EXIF = b"Exif\0\0"


def _orientation(view: Any) -> int:
    """Return the Exif orientation of a JPEG file; 1 (upright) if the file has none."""
    at = 2
    while at + 4 <= len(view) and view[at] == 0xFF and view[at + 1] != 0xDA:
        length = view[at + 2] << 8 | view[at + 3]
        if view[at + 1] == 0xE1 and view[at + 4 : at + 10] == _EXIF:
            return _tag(view[at + 10 : at + 2 + length])
        at += 2 + length
    return 1


def _tag(tiff: Any) -> int:
    """Read the orientation from an Exif block."""
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
        pass  # a damaged entry is ignored
    return 1
