"""MXNet's default augmenter of images with boxes, as a function of an image, its label and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.data.augmentation import color_jitter
from flowmx.data.augmentation.geometry import Size, crop, padded, resized
from flowmx.data.augmentation.options import CropSampler, DetAugmenting
from flowmx.data.codecs import Image
from flowmx.errors import DataError
from flowmx.ops.vision import resize

Label = Any
"""Numbers of a record: ``[n, k, ..., objects]``: n in front, of which the first two are n and k, then k for each."""
Box = tuple[float, float, float, float]
"""(left, top, width, height) as shares of an image's."""
_NO_PAD = 1.05
"""The scale below which nothing is padded."""


def objects_of(label: Label) -> tuple[Any, Any]:
    """Split a label into the numbers in front and the objects that have an area, float32 (number, k).

    Raises:
        DataError: it is no such label.
    """
    start, width = map(int, label[:2]) if len(label) >= 7 and np.isfinite(label[:2]).all() else (0, 0)
    if start < 2 or width < 5 or len(label) < start or (len(label) - start) % width:
        raise DataError(
            f"its label has {len(label)} numbers which begin with {list(label[:2])}, expected n (2 or more), k (5 or "
            "more), further numbers up to n, then k for each object: class, left, top, right, bottom, ..."
        )
    objects = label[start:].reshape(-1, width)
    return label[:start], objects[(objects[:, 3] > objects[:, 1]) & (objects[:, 4] > objects[:, 2])]


def augment(
    image: Image, label: Label, options: DetAugmenting, size: Size, random: np.random.Generator
) -> tuple[Image, Label]:
    """The image and its label, changed, mirrored, padded, cut and brought to a size.

    Args:
        image: bytes, (height, width, channels), red first.
        label: float32.
        options: the augmentations.
        size: the height and width that it gets; the most of them unless ``resize_mode`` is "force".
        random: random numbers for this image.

    Raises:
        DataError: the label is none.
    """
    front, objects = objects_of(label)
    if options.resize != -1:
        image = _resized(image, resize.with_shorter_side(image.shape[:2], options.resize), options, random)
    if options.changes_colors:
        image = _colored(image, options, random)
    if options.rand_mirror_prob > 0 and random.random() < options.rand_mirror_prob:
        image, objects = image[:, ::-1], objects.copy()
        objects[:, [1, 3]] = 1 - objects[:, [3, 1]]
    if options.rand_pad_prob > 0 and options.max_pad_scale > 1 and random.random() < options.rand_pad_prob:
        image, objects = _padded(image, objects, options, random)
    if options.rand_crop_prob > 0 and options.samplers and random.random() < options.rand_crop_prob:
        image, objects = _cropped(image, objects, options, random)
    return _fitted(np.ascontiguousarray(image), options, size, random), np.concatenate([front, objects.ravel()])


# -- sizes -------------------------------------------------------------------------------------------------


def _resized(image: Image, new: Size, options: DetAugmenting, random: np.random.Generator) -> Image:
    method = options.inter_method
    if method == 9:
        method = resize.by_size(image.shape[:2], new)
    elif method == 10:
        method = int(random.integers(5))
    return resized(image, new, method)


def _fitted(image: Image, options: DetAugmenting, size: Size, random: np.random.Generator) -> Image:
    rows, columns = image.shape[:2]
    if options.resize_mode == "force":
        return _resized(image, size, options, random)
    if options.resize_mode == "shrink" and rows <= size[0] and columns <= size[1]:
        return image
    ratio = min(np.float32(size[0]) / np.float32(rows), np.float32(size[1]) / np.float32(columns))
    new = max(1, int(ratio * np.float32(rows))), max(1, int(ratio * np.float32(columns)))
    return _resized(image, new, options, random)


# -- colours -----------------------------------------------------------------------------------------------


def _colored(image: Image, options: DetAugmenting, random: np.random.Generator) -> Image:
    most = options.max_random_hue, options.max_random_illumination, options.max_random_saturation
    chances = options.random_hue_prob, options.random_illumination_prob, options.random_saturation_prob
    by = np.trunc((2 * random.random(3) - 1) * most) * (random.random(3) < chances)
    contrast = (2 * random.random() - 1) * options.max_random_contrast
    contrasts = random.random() < options.random_contrast_prob
    if by.any() and image.shape[2] == 3:
        image = color_jitter.shifted(image, by)
    if contrasts and abs(contrast) > 1e-3:
        image = color_jitter.as_bytes(image * np.float32(1 + contrast))
    return image


# -- padding and cutting -----------------------------------------------------------------------------------


def _inside(objects: Any, box: Box) -> Any:
    """Objects with places as shares of a box, cut off at its edges."""
    left, top, width, height = box
    out = objects.copy()
    out[:, [1, 3]] = (out[:, [1, 3]] - left) / width
    out[:, [2, 4]] = (out[:, [2, 4]] - top) / height
    out[:, 1:3] = np.maximum(out[:, 1:3], 0)
    out[:, 3:5] = np.minimum(out[:, 3:5], 1)
    return out


def _padded(image: Image, objects: Any, options: DetAugmenting, random: np.random.Generator) -> tuple[Image, Any]:
    """The image somewhere in a larger one."""
    scale = random.uniform(1, options.max_pad_scale)
    if scale < _NO_PAD:
        return image, objects
    left, top = random.uniform(0, scale - 1, 2)
    rows, columns = image.shape[:2]
    around = int(top * rows), int((scale - top - 1) * rows)
    beside = int(left * columns), int((scale - left - 1) * columns)
    image = padded(image, around, beside, options.fill_value)
    return image, _inside(objects, (-left, -top, scale, scale))


def _cropped(image: Image, objects: Any, options: DetAugmenting, random: np.random.Generator) -> tuple[Image, Any]:
    """The first part that a sampler finds to suit; the whole image, where none does."""
    rows, columns = image.shape[:2]
    for at in random.permutation(len(options.samplers)):
        sampler = options.samplers[at]
        for _ in range(sampler.trials):
            box = _drawn(sampler, columns / rows, random)
            kept = _kept(objects, box, sampler, options)
            if kept is not None:
                left, top, width, height = box
                size = max(1, int(height * rows)), max(1, int(width * columns))
                return crop(image, int(top * rows), int(left * columns), size), kept
    return image, objects


def _drawn(sampler: CropSampler, aspect_ratio: float, random: np.random.Generator) -> Box:
    """A box of random scale and proportions, somewhere in an image whose width is so many times its height."""
    scale = random.uniform(*sampler.scales) + 1e-12
    low = max(sampler.aspect_ratios[0] / aspect_ratio, scale * scale)
    high = min(sampler.aspect_ratios[1] / aspect_ratio, 1 / (scale * scale))
    ratio = np.sqrt(low + random.random() * (high - low))  # as in MXNet, high may be less
    width, height = min(1.0, scale * ratio), min(1.0, scale / ratio)
    left, top = random.random(2) * (1 - width, 1 - height)
    return left, top, width, height


def _kept(objects: Any, box: Box, sampler: CropSampler, options: DetAugmenting) -> Any:
    """The objects that a crop keeps; None where it does not suit."""
    if not len(objects):
        return objects
    common, own, whole = _areas(objects, box)
    measures = (
        (sampler.overlaps, common / (own + whole - common)),
        (sampler.sample_coverages, common / whole),
        (sampler.object_coverages, common / own),
    )
    suits = np.ones(len(objects), bool)
    for (low, high), measure in measures:
        if low > 0 or high < 1:
            suits &= (low <= measure) & (measure <= high)
    if options.crop_emit_mode == "center":
        left, top, width, height = box
        x, y = (objects[:, 1] + objects[:, 3]) / 2, (objects[:, 2] + objects[:, 4]) / 2
        stays = (left <= x) & (x < left + width) & (top <= y) & (y < top + height)
    else:
        stays = common / own > options.emit_overlap_thresh
    return _inside(objects[stays], box) if suits.any() and stays.any() else None


def _areas(objects: Any, box: Box) -> tuple[Any, Any, float]:
    """Areas that objects and a box have in common, of each object, and of the box."""
    left, top, width, height = box
    across = np.minimum(objects[:, 3], left + width) - np.maximum(objects[:, 1], left)
    down = np.minimum(objects[:, 4], top + height) - np.maximum(objects[:, 2], top)
    own = (objects[:, 3] - objects[:, 1]) * (objects[:, 4] - objects[:, 2])
    return np.maximum(across, 0) * np.maximum(down, 0), own, width * height
