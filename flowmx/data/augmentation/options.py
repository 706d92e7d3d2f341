"""The parameters of `ImageRecordIter`, in groups; names and defaults are MXNet's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar, get_type_hints

from flowmx.errors import ParameterError
from flowmx.ops.registry.parameters import literal
from flowmx.suggestions import did_you_mean

T = TypeVar("T")

_IGNORED = {"verbose", "device_id", "ctx", "data_name", "label_name"}
"""Arguments that scripts pass and that have no effect here, or are read elsewhere."""
_FALSE = {"0", "false", "no"}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options of the files that are read, and of the batches."""

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

    def __post_init__(self) -> None:
        if not self.path_imgrec:
            raise ParameterError("ImageRecordIter: path_imgrec is missing: the .rec file to read")
        if len(self.data_shape) != 3 or self.data_shape[0] not in (1, 3, 4) or min(self.data_shape) < 1:
            raise ParameterError(
                f"ImageRecordIter: data_shape is {self.data_shape}, expected (channels, height, width) with 1, 3 or 4 "
                "channels"
            )
        for name in ("batch_size", "label_width", "preprocess_threads"):
            if getattr(self, name) < 1:
                raise ParameterError(f"ImageRecordIter: {name} is {getattr(self, name)}, expected at least 1")
        if self.aug_seq not in ("aug_default", ""):
            raise ParameterError(
                f"ImageRecordIter: aug_seq is {self.aug_seq!r}, expected 'aug_default', which there is"
            )


@dataclass(frozen=True, kw_only=True)
class Augmenting:
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
            raise ParameterError(f"ImageRecordIter: inter_method is {self.inter_method}, expected 0 to 4, 9 or 10")
        if self.random_resized_crop:
            conflicts = {
                "rand_crop": self.rand_crop, "max_crop_size": self.max_crop_size != -1,
                "min_crop_size": self.min_crop_size != -1, "max_random_scale": self.max_random_scale != 1,
                "min_random_scale": self.min_random_scale != 1,
            }  # fmt: skip
            found = [name for name, given in conflicts.items() if given]
            if found:
                raise ParameterError(f"ImageRecordIter: random_resized_crop=True conflicts with {', '.join(found)}")
        for name in ("crop_size", "random_scale", "random_area"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low > high:
                raise ParameterError(f"ImageRecordIter: min_{name} is {low}, more than max_{name}, which is {high}")

    @cached_property
    def aspect_ratios(self) -> tuple[float, float]:
        """The least and the most of width divided by height."""
        if self.min_aspect_ratio is not None:
            return self.min_aspect_ratio, self.max_aspect_ratio
        return 1 - self.max_aspect_ratio, 1 + self.max_aspect_ratio

    @cached_property
    def is_affine(self) -> bool:
        """True where images are rotated, sheared or scaled."""
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
        """True where colours are changed at random."""
        shares = (self.brightness, self.contrast, self.saturation, self.pca_noise)
        return max(shares) > 0 or any((self.random_h, self.random_s, self.random_l))


@dataclass(frozen=True, kw_only=True)
class Normalizing:
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
                raise ParameterError(f"ImageRecordIter: {name} is 0, and numbers are divided by it")


GROUPS = (Reading, Augmenting, Normalizing)


def parse(given: Mapping[str, Any]) -> tuple[Reading, Augmenting, Normalizing]:
    """The groups of parameters from the arguments of a call; texts are read as MXNet does.

    An unknown argument is ignored with a warning (MXNet says nothing).

    Raises:
        ValueError: an argument is missing, or has a value that it does not take.
    """
    known = {field.name for group in GROUPS for field in fields(group)}
    for name in given:
        if name not in known and name not in _IGNORED:
            hint = did_you_mean(name, known)
            warnings.warn(f"ImageRecordIter: unknown argument {name!r} is ignored{hint}", stacklevel=4)
    return _group(Reading, given), _group(Augmenting, given), _group(Normalizing, given)


def _group(group: type[T], given: Mapping[str, Any]) -> T:
    types = get_type_hints(group)
    return group(**{name: _read(name, given[name], kind) for name, kind in types.items() if _is_given(given.get(name))})


def _is_given(value: Any) -> bool:
    return value is not None and not (isinstance(value, str) and value == "None")


def _read(name: str, value: Any, kind: Any) -> Any:
    try:
        return _READERS.get(kind, kind)(value)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ParameterError(
            f"ImageRecordIter: {name} is {value!r}, expected {getattr(kind, '__name__', kind)}"
        ) from error


def _integers(value: Any) -> tuple[int, ...]:
    parsed = literal(value) if isinstance(value, str) else value
    return tuple(int(each) for each in (parsed if isinstance(parsed, (list, tuple)) else [parsed]))


def _text(value: Any) -> str:
    return str(getattr(value, "__name__", value))  # a dtype may be given as NumPy's class


_READERS: dict[Any, Any] = {
    bool: lambda value: value.lower() not in _FALSE if isinstance(value, str) else bool(value),
    str: _text,
    tuple[int, ...]: _integers,
    int | None: int,
    float | None: float,
}
