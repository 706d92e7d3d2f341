"""MXNet's default augmenter of images with boxes, as a function of an image, its label and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.data.augmentation import box_geometry, color_jitter
from flowmx.data.augmentation.geometry import Size, crop, interpolation, pad, resize_image
from flowmx.data.augmentation.options import CropSampler, DetAugmentOptions
from flowmx.data.codecs import Image
from flowmx.errors import DataError
from flowmx.ops.vision import opencv_resize

Label = Any
"""The label of a record: ``[n, k, ..., objects]``. It has n numbers before the objects, and k numbers per object."""
Box = tuple[float, float, float, float]
"""(left, top, width, height) as fractions of an image's size."""
_MIN_PAD_SCALE = 1.05
"""Images are not padded if the random scale is smaller."""


def split_label(label: Label) -> tuple[Any, Any]:
    """Split a label into its header and the objects that have an area, float32 (number, k).

    Raises:
        DataError: the label is invalid.
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
    image: Image, label: Label, options: DetAugmentOptions, size: Size, random: np.random.Generator
) -> tuple[Image, Label]:
    """Change an image and its label at random: colors, mirroring, padding, cropping, and the size.

    Args:
        image: uint8, (height, width, channels), red first.
        label: float32.
        options: the augmentations.
        size: the height and width of the result; with a ``resize_mode`` other than "force", their maximum.
        random: random numbers for this image.

    Raises:
        DataError: the label is invalid.
    """
    header, objects = split_label(label)
    if options.resize != -1:
        image = _resize(image, opencv_resize.with_shorter_side(image.shape[:2], options.resize), options, random)
    if options.changes_colors:
        image = _change_colors(image, options, random)
    if options.rand_mirror_prob > 0 and random.random() < options.rand_mirror_prob:
        image, objects = image[:, ::-1], objects.copy()
        box_geometry.mirror(objects[:, 1:5])
    if options.rand_pad_prob > 0 and options.max_pad_scale > 1 and random.random() < options.rand_pad_prob:
        image, objects = _expand(image, objects, options, random)
    if options.rand_crop_prob > 0 and options.samplers and random.random() < options.rand_crop_prob:
        image, objects = _crop_box(image, objects, options, random)
    return _fit_size(np.ascontiguousarray(image), options, size, random), np.concatenate([header, objects.ravel()])


# -- sizes -------------------------------------------------------------------------------------------------


def _resize(image: Image, new: Size, options: DetAugmentOptions, random: np.random.Generator) -> Image:
    interp = interpolation(options.inter_method, image.shape[:2], new, lambda: int(random.integers(5)))
    return resize_image(image, new, interp)


def _fit_size(image: Image, options: DetAugmentOptions, size: Size, random: np.random.Generator) -> Image:
    rows, columns = image.shape[:2]
    if options.resize_mode == "force":
        return _resize(image, size, options, random)
    if options.resize_mode == "shrink" and rows <= size[0] and columns <= size[1]:
        return image
    ratio = min(np.float32(size[0]) / np.float32(rows), np.float32(size[1]) / np.float32(columns))
    new = max(1, int(ratio * np.float32(rows))), max(1, int(ratio * np.float32(columns)))
    return _resize(image, new, options, random)


# -- colors -----------------------------------------------------------------------------------------------


def _change_colors(image: Image, options: DetAugmentOptions, random: np.random.Generator) -> Image:
    limits = options.max_random_hue, options.max_random_illumination, options.max_random_saturation
    probabilities = options.random_hue_prob, options.random_illumination_prob, options.random_saturation_prob
    shift = np.trunc((2 * random.random(3) - 1) * limits) * (random.random(3) < probabilities)
    contrast = (2 * random.random() - 1) * options.max_random_contrast
    changes_contrast = random.random() < options.random_contrast_prob
    if shift.any() and image.shape[2] == 3:
        image = color_jitter.shift_hls(image, shift)
    if changes_contrast and abs(contrast) > 1e-3:
        image = color_jitter.as_bytes(image * np.float32(1 + contrast))
    return image


# -- padding and cropping ----------------------------------------------------------------------------------


def _relative_to(objects: Any, box: Box) -> Any:
    """Return objects with their boxes relative to a box, clipped to its edges."""
    left, top, width, height = box
    out = objects.copy()
    out[:, [1, 3]] = (out[:, [1, 3]] - left) / width
    out[:, [2, 4]] = (out[:, [2, 4]] - top) / height
    out[:, 1:3] = np.maximum(out[:, 1:3], 0)
    out[:, 3:5] = np.minimum(out[:, 3:5], 1)
    return out


def _expand(
    image: Image, objects: object, options: DetAugmentOptions, random: np.random.Generator
) -> tuple[Image, Any]:
    """Place an image at a random position in a larger one."""
    scale = random.uniform(1, options.max_pad_scale)
    if scale < _MIN_PAD_SCALE:
        return image, objects
    left, top = random.uniform(0, scale - 1, 2)
    rows, columns = image.shape[:2]
    vertical = int(top * rows), int((scale - top - 1) * rows)
    horizontal = int(left * columns), int((scale - left - 1) * columns)
    image = pad(image, vertical, horizontal, options.fill_value)
    return image, _relative_to(objects, (-left, -top, scale, scale))


def _crop_box(
    image: Image, objects: object, options: DetAugmentOptions, random: np.random.Generator
) -> tuple[Image, Any]:
    """Crop the first box that satisfies its sampler; return the whole image if no box does."""
    rows, columns = image.shape[:2]
    for index in random.permutation(len(options.samplers)):
        sampler = options.samplers[index]
        for _ in range(sampler.trials):
            box = _draw_box(sampler, columns / rows, random)
            remaining = _remaining_objects(objects, box, sampler, options)
            if remaining is not None:
                left, top, width, height = box
                size = max(1, int(height * rows)), max(1, int(width * columns))
                return crop(image, int(top * rows), int(left * columns), size), remaining
    return image, objects


def _draw_box(sampler: CropSampler, image_ratio: float, random: np.random.Generator) -> Box:
    """Draw a box of random scale and proportions in an image with this ratio of width to height."""
    scale = random.uniform(*sampler.scales) + 1e-12
    low = max(sampler.aspect_ratios[0] / image_ratio, scale * scale)
    high = min(sampler.aspect_ratios[1] / image_ratio, 1 / (scale * scale))
    ratio = np.sqrt(low + random.random() * (high - low))  # high may be less than low, as in MXNet
    width, height = min(1.0, scale * ratio), min(1.0, scale / ratio)
    left, top = random.random(2) * (1 - width, 1 - height)
    return left, top, width, height


def _remaining_objects(objects: Any, box: Box, sampler: CropSampler, options: DetAugmentOptions) -> Any:
    """Return the objects that remain in a crop; None if the crop violates the sampler's constraints."""
    if not len(objects):
        return objects
    left, top, width, height = box
    boxes = objects[:, 1:5]
    intersections = box_geometry.intersection_areas(boxes, left, top, left + width, top + height)
    object_areas, box_area = box_geometry.areas(boxes), width * height
    measures = (
        (sampler.overlaps, intersections / (object_areas + box_area - intersections)),
        (sampler.sample_coverages, intersections / box_area),
        (sampler.object_coverages, intersections / object_areas),
    )
    is_valid = np.ones(len(objects), bool)
    for (low, high), measure in measures:
        if low > 0 or high < 1:
            is_valid &= (low <= measure) & (measure <= high)
    if options.crop_emit_mode == "center":
        x, y = (objects[:, 1] + objects[:, 3]) / 2, (objects[:, 2] + objects[:, 4]) / 2
        remains = (left <= x) & (x < left + width) & (top <= y) & (y < top + height)
    else:
        remains = intersections / object_areas > options.emit_overlap_thresh
    return _relative_to(objects[remains], box) if is_valid.any() and remains.any() else None
