"""The scaling of rotary positions, with which a model reads longer texts than those that it was first trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from flowmx.errors import ParameterError
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["RotaryScaling", "scaling_of"]


class RotaryScaling:
    """No scaling: the base of the others.

    Attributes:
        amplitude: the factor of the cosines and sines.
    """

    amplitude = 1.0

    def scaled(self, F: Functions, speeds: Tensor, indices: Tensor) -> Tensor:
        """Return the speeds, in radians a position, of the pairs with these indices."""
        return speeds


class _Linear(RotaryScaling):
    """Linear scaling: positions are divided by a factor."""

    def __init__(self, numbers: _Numbers) -> None:
        self._factor = numbers.positive("factor")

    def scaled(self, F: Functions, speeds: Tensor, indices: Tensor) -> Tensor:
        return speeds * (1 / self._factor)


class _Llama3(RotaryScaling):
    """Pairs that turn rarely in the original length are slower by a factor; those that turn often are not."""

    def __init__(self, numbers: _Numbers) -> None:
        self._factor = numbers.positive("factor")
        self._low, self._high = numbers.positive("low_freq_factor"), numbers.positive("high_freq_factor")
        self._length = numbers.positive("original_max_position_embeddings")
        if self._low >= self._high:
            raise ParameterError(f"rotary scaling: low_freq_factor is {self._low}, expected less than {self._high}")

    def scaled(self, F: Functions, speeds: Tensor, indices: Tensor) -> Tensor:
        turns = speeds * (self._length / (2 * math.pi))
        slowed = 1 - F.clip((turns - self._low) * (1 / (self._high - self._low)), 0, 1)
        return speeds * (1 - slowed + slowed * (1 / self._factor))


class _Yarn(RotaryScaling):
    """As for Llama 3, with a ramp over the indices of the pairs, and larger products of queries and keys."""

    def __init__(self, numbers: _Numbers, size: int, base: float) -> None:
        self._factor = numbers.positive("factor")
        length = numbers.positive("original_max_position_embeddings")
        default = 0.1 * math.log(self._factor) + 1 if self._factor > 1 else 1.0
        self.amplitude = numbers.positive("attention_factor", default)

        def index(turns: float) -> float:
            """Return the index of the pair that turns this often in the original length."""
            return size * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))

        self._first = max(0, math.floor(index(numbers.positive("beta_fast", 32.0))))
        self._last = min(size - 1, math.ceil(index(numbers.positive("beta_slow", 1.0))))

    def scaled(self, F: Functions, speeds: Tensor, indices: Tensor) -> Tensor:
        width = max(self._last - self._first, 0.001)
        slowed = F.clip((indices - self._first) * (1 / width), 0, 1)
        return speeds * (1 - slowed + slowed * (1 / self._factor))


class _Numbers:
    """The numbers of a scaling."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def positive(self, name: str, default: float | None = None) -> float:
        """Return a number above 0.

        Raises:
            ParameterError: it is missing, or not such a number.
        """
        value = self._values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ParameterError(f"rotary scaling: {name} is {value!r}, expected a number above 0")
        return float(value)


_KINDS: dict[str, Callable[[_Numbers, int, float], RotaryScaling]] = {
    "default": lambda numbers, size, base: RotaryScaling(),
    "linear": lambda numbers, size, base: _Linear(numbers),
    "llama3": lambda numbers, size, base: _Llama3(numbers),
    "yarn": _Yarn,
}


def scaling_of(values: Mapping[str, object] | None, size: int, base: float) -> RotaryScaling:
    """Return the scaling that a dict describes.

    Args:
        values: the kind and the numbers, under the names of Hugging Face's configs; None for no scaling.
        size: the number of rotated features.
        base: the base of the rotations.

    Raises:
        ParameterError: the kind is unknown, or a number is missing or invalid.
    """
    if values is None:
        return RotaryScaling()
    kind = values.get("rope_type", values.get("type", "default"))
    if kind not in _KINDS:
        raise ParameterError(f"rotary scaling: rope_type is {kind!r}, expected one of {', '.join(_KINDS)}")
    return _KINDS[str(kind)](_Numbers(values), size, base)
