"""The parameters of `ImageRecordIter` and `ImageDetRecordIter`, in groups; names and defaults are MXNet's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar, get_type_hints

from flowmx.errors import ParameterError
from flowmx.ops.registry.parameters import literal
from flowmx.suggestions import did_you_mean

_IGNORED = {"verbose", "device_id", "ctx", "data_name", "label_name"}
"""Arguments in MXNet's scripts that have no effect, or that the iterator's constructor reads."""
_FALSE = {"0", "false", "no"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of the groups of parameters."""

    iterator: ClassVar[str] = "ImageRecordIter"
    """The name of the iterator, for messages."""

    def error(self, text: str) -> ParameterError:
        """Return the error for an invalid value."""
        return ParameterError(f"{self.iterator}: {text}")


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(Options):
    """Options of the input files and of the batches."""

    augmenter: ClassVar[str] = "aug_default"
    min_label_width: ClassVar[int] = 1

    path_imgrec: str = ""
    path_imgidx: str = ""
    path_imglist: str = ""
    data_shape: tuple[int, ...] = ()
    batch_size: int = 0
    label_width: int = 1
    shuffle: bool = False
    seed: int = 0
    seed_aug: int | None = None
    num_parts: int = 1
    part_index: int = 0
    round_batch: bool = True
    preprocess_threads: int = 4
    prefetch_buffer: int = 4
    dtype: str = "float32"
    aug_seq: str = "aug_default"
    shuffle_chunk_size: int = 0
    shuffle_chunk_seed: int = 0
    damaged_images: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of ``data_shape``."""
        return self.data_shape[1], self.data_shape[2]

    def __post_init__(self) -> None:
        if not self.path_imgrec:
            raise self.error("path_imgrec is missing: the .rec file to read")
        if len(self.data_shape) != 3 or self.data_shape[0] not in (1, 3, 4) or min(self.data_shape) < 1:
            raise self.error(
                f"data_shape is {self.data_shape}, expected (channels, height, width) with 1, 3 or 4 channels"
            )
        for name, minimum in (("batch_size", 1), ("label_width", self.min_label_width), ("preprocess_threads", 1)):
            if getattr(self, name) < minimum:
                raise self.error(f"{name} is {getattr(self, name)}, expected at least {minimum}")
        if self.aug_seq not in (self.augmenter, ""):
            raise self.error(f"aug_seq is {self.aug_seq!r}, expected {self.augmenter!r}")


@dataclass(frozen=True, kw_only=True)
class AugmentOptions(Options):
    """Options of the augmentation; see MXNet's documentation of `ImageRecordIter`."""

    resize: int = -1
    rand_crop: bool = False
    random_resized_crop: bool = False
    max_rotate_angle: int = 0
    max_aspect_ratio: float = 0.0
    min_aspect_ratio: float | None = None
    max_shear_ratio: float = 0.0
    max_crop_size: int = -1
    min_crop_size: int = -1
    max_random_scale: float = 1.0
    min_random_scale: float = 1.0
    max_random_area: float = 1.0
    min_random_area: float = 1.0
    max_img_size: float = 1e10
    min_img_size: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    pca_noise: float = 0.0
    random_h: int = 0
    random_s: int = 0
    random_l: int = 0
    rotate: int = -1
    rotate_list: tuple[int, ...] = ()
    fill_value: int = 255
    inter_method: int = 1
    pad: int = 0

    def __post_init__(self) -> None:
        if self.inter_method not in (0, 1, 2, 3, 4, 9, 10):
            raise self.error(f"inter_method is {self.inter_method}, expected 0 to 4, 9 or 10")
        if self.random_resized_crop:
            conflicts = {
                "rand_crop": self.rand_crop, "max_crop_size": self.max_crop_size != -1,
                "min_crop_size": self.min_crop_size != -1, "max_random_scale": self.max_random_scale != 1,
                "min_random_scale": self.min_random_scale != 1,
            }  # fmt: skip
            names = [name for name, is_set in conflicts.items() if is_set]
            if names:
                raise self.error(f"random_resized_crop=True conflicts with {', '.join(names)}")
        for name in ("crop_size", "random_scale", "random_area"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low > high:
                raise self.error(f"min_{name} is {low}, more than max_{name}, which is {high}")

    @cached_property
    def aspect_ratios(self) -> tuple[float, float]:
        """The minimum and the maximum of width divided by height."""
        if self.min_aspect_ratio is not None:
            return self.min_aspect_ratio, self.max_aspect_ratio
        return 1 - self.max_aspect_ratio, 1 + self.max_aspect_ratio

    @cached_property
    def is_affine(self) -> bool:
        """True if images are rotated, sheared or scaled."""
        return bool(
            self.max_rotate_angle > 0
            or self.max_shear_ratio > 0
            or self.rotate > 0
            or self.rotate_list
            or (self.max_random_scale, self.min_random_scale) != (1, 1)
            or (not self.random_resized_crop and self.aspect_ratios != (1, 1))
            or self.max_img_size != 1e10
            or self.min_img_size != 0
        )

    @cached_property
    def changes_colors(self) -> bool:
        """True if colors are changed at random."""
        factors = (self.brightness, self.contrast, self.saturation, self.pca_noise)
        return max(factors) > 0 or any((self.random_h, self.random_s, self.random_l))


@dataclass(frozen=True, kw_only=True)
class NormalizeOptions(Options):
    """Options of the normalization: ``((value - mean) * contrast + illumination) * scale / std``."""

    mirror: bool = False
    rand_mirror: bool = False
    mean_img: str = ""
    mean_r: float = 0.0
    mean_g: float = 0.0
    mean_b: float = 0.0
    mean_a: float = 0.0
    std_r: float = 1.0
    std_g: float = 1.0
    std_b: float = 1.0
    std_a: float = 1.0
    scale: float = 1.0
    max_random_contrast: float = 0.0
    max_random_illumination: float = 0.0

    def __post_init__(self) -> None:
        for name in ("std_r", "std_g", "std_b", "std_a"):
            if not getattr(self, name):
                raise self.error(f"{name} is 0, expected a number other than 0")


CLASSIFICATION = (ReadingOptions, AugmentOptions, NormalizeOptions)

# -- boxes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DetReadingOptions(ReadingOptions):
    """Options of the input files and batches of images with boxes."""

    iterator: ClassVar[str] = "ImageDetRecordIter"
    augmenter: ClassVar[str] = "det_aug_default"
    min_label_width: ClassVar[int] = -1

    label_width: int = -1
    label_pad_width: int = 0
    label_pad_value: float = -1.0
    aug_seq: str = "det_aug_default"


@dataclass(frozen=True, kw_only=True)
class DetAugmentOptions(Options):
    """Options of the augmentation of images with boxes; see MXNet's documentation of `ImageDetRecordIter`.

    Options of crops have one value, or ``num_crop_sampler`` values.
    """

    iterator: ClassVar[str] = "ImageDetRecordIter"

    resize: int = -1
    rand_crop_prob: float = 0.0
    min_crop_scales: tuple[float, ...] = (0.0,)
    max_crop_scales: tuple[float, ...] = (1.0,)
    min_crop_aspect_ratios: tuple[float, ...] = (1.0,)
    max_crop_aspect_ratios: tuple[float, ...] = (1.0,)
    min_crop_overlaps: tuple[float, ...] = (0.0,)
    max_crop_overlaps: tuple[float, ...] = (1.0,)
    min_crop_sample_coverages: tuple[float, ...] = (0.0,)
    max_crop_sample_coverages: tuple[float, ...] = (1.0,)
    min_crop_object_coverages: tuple[float, ...] = (0.0,)
    max_crop_object_coverages: tuple[float, ...] = (1.0,)
    num_crop_sampler: int = 1
    crop_emit_mode: str = "center"
    emit_overlap_thresh: float = 0.3
    max_crop_trials: tuple[int, ...] = (25,)
    rand_pad_prob: float = 0.0
    max_pad_scale: float = 1.0
    max_random_hue: int = 0
    random_hue_prob: float = 0.0
    max_random_saturation: int = 0
    random_saturation_prob: float = 0.0
    max_random_illumination: int = 0
    random_illumination_prob: float = 0.0
    max_random_contrast: float = 0.0
    random_contrast_prob: float = 0.0
    rand_mirror_prob: float = 0.0
    fill_value: int = 127
    inter_method: int = 1
    resize_mode: str = "force"

    def __post_init__(self) -> None:
        choices = (("crop_emit_mode", ("center", "overlap")), ("resize_mode", ("force", "shrink", "fit")))
        for name, expected in choices:
            if getattr(self, name) not in expected:
                raise self.error(f"{name} is {getattr(self, name)!r}, expected {' or '.join(map(repr, expected))}")
        if self.inter_method not in (0, 1, 2, 3, 4, 9, 10):
            raise self.error(f"inter_method is {self.inter_method}, expected 0 to 4, 9 or 10")
        if self.emit_overlap_thresh < 0:
            raise self.error(f"emit_overlap_thresh is {self.emit_overlap_thresh}, expected at least 0")
        count = self.num_crop_sampler
        for name in ("max_crop_trials", *(f"{end}_{kind}" for kind in _CROPS for end in ("min", "max"))):
            values = getattr(self, name)
            if count > 0 and len(values) not in (1, count):
                raise self.error(f"{name} has {len(values)} values, expected one or num_crop_sampler, which is {count}")
        for sampler in self.samplers:
            sampler.check(self)

    @cached_property
    def samplers(self) -> list[CropSampler]:
        """The samplers of crops."""
        samplers = []
        for index in range(max(0, self.num_crop_sampler)):
            ranges: list[object] = [
                (self._option(f"min_{kind}", index), self._option(f"max_{kind}", index)) for kind in _CROPS
            ]
            samplers.append(CropSampler._make([*ranges, self._option("max_crop_trials", index)]))
        return samplers

    def _option(self, name: str, sampler: int) -> Any:
        values = getattr(self, name)
        return values[sampler if len(values) > 1 else 0]

    @cached_property
    def changes_colors(self) -> bool:
        """True if colors are changed at random."""
        probabilities = (self.random_hue_prob, self.random_saturation_prob, self.random_illumination_prob)
        return max(*probabilities, self.random_contrast_prob) > 0


_CROPS = ("crop_scales", "crop_aspect_ratios", "crop_overlaps", "crop_sample_coverages", "crop_object_coverages")
Range = tuple[float, float]


class CropSampler(NamedTuple):
    """The ranges to draw crops from, and the ranges that at least one object in a crop must satisfy."""

    scales: Range
    aspect_ratios: Range
    overlaps: Range
    sample_coverages: Range
    object_coverages: Range
    trials: int

    def check(self, options: Options) -> None:
        """Check the ranges.

        Raises:
            ParameterError: a range is empty.
        """
        for kind, (low, high) in zip(_CROPS, self[:5], strict=True):
            if low > high or (kind == "crop_scales" and not 0 <= low < high <= 1):
                raise options.error(f"min_{kind} is {low} and max_{kind} is {high}, an empty range")


@dataclass(frozen=True, kw_only=True)
class DetNormalizeOptions(Options):
    """Options of the normalization of images with boxes: ``(value - mean) / std * scale``; a std of 0 is ignored."""

    iterator: ClassVar[str] = "ImageDetRecordIter"

    mean_img: str = ""
    mean_r: float = 0.0
    mean_g: float = 0.0
    mean_b: float = 0.0
    mean_a: float = 0.0
    std_r: float = 0.0
    std_g: float = 0.0
    std_b: float = 0.0
    std_a: float = 0.0
    scale: float = 1.0


DETECTION = (DetReadingOptions, DetAugmentOptions, DetNormalizeOptions)

# -- reading ---------------------------------------------------------------------------------------------------

T1 = TypeVar("T1", bound=ReadingOptions)
T2 = TypeVar("T2", bound=Options)
T3 = TypeVar("T3", bound=Options)


def parse(
    arguments: Mapping[str, object], reading: type[T1], augmenting: type[T2], normalizing: type[T3]
) -> tuple[T1, T2, T3]:
    """Parse the arguments of a call into groups of parameters; strings are parsed as in MXNet.

    An unknown argument is ignored with a warning (MXNet does not warn).

    Raises:
        ValueError: an argument is missing, or has an invalid value.
    """
    names = {field.name for group in (reading, augmenting, normalizing) for field in fields(group)}
    for name in arguments:
        if name not in names and name not in _IGNORED:
            hint = did_you_mean(name, names)
            warnings.warn(f"{reading.iterator}: unknown argument {name!r} is ignored{hint}", stacklevel=4)
    return _group(reading, arguments), _group(augmenting, arguments), _group(normalizing, arguments)


def _group(group: type[T2], arguments: Mapping[str, object]) -> T2:
    return group(
        **{
            field.name: _read(group.iterator, field.name, arguments[field.name], types[field.name])
            for types in [get_type_hints(group)]
            for field in fields(group)
            if _is_set(arguments.get(field.name))
        }
    )


def _is_set(value: object) -> bool:
    return value is not None and not (isinstance(value, str) and value == "None")


def _read(iterator: str, name: str, value: object, kind: object) -> Any:
    try:
        return _READERS.get(kind, kind)(value)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ParameterError(f"{iterator}: {name} is {value!r}, expected {getattr(kind, '__name__', kind)}") from error


def _tuple_reader(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    def read(value: object) -> tuple[Any, ...]:
        result = literal(value) if isinstance(value, str) else value
        return tuple(kind(element) for element in (result if isinstance(result, (list, tuple)) else [result]))

    return read


def _text(value: object) -> str:
    return str(getattr(value, "__name__", value))  # a dtype may be a NumPy class


_READERS: dict[Any, Any] = {
    bool: lambda value: value.lower() not in _FALSE if isinstance(value, str) else bool(value),
    str: _text,
    tuple[int, ...]: _tuple_reader(int),
    tuple[float, ...]: _tuple_reader(float),
    int | None: int,
    float | None: float,
}
