"""The sizes of a model in the metadata of a GGUF file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowmx.errors import DataError
from flowmx.serialization.gguf import GGUFFile

__all__ = ["Metadata"]

_FREQUENCIES = "rope_freqs.weight"


class Metadata:
    """The metadata of a file, with checks of the values.

    Args:
        file: the file.
        source: its name, for messages.

    Attributes:
        architecture: the name of the architecture, with which the names of the sizes begin.
    """

    def __init__(self, file: GGUFFile, source: str) -> None:
        self._file, self.source = file, source
        name = file.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise DataError(f"{source}: general.architecture is {name!r}, expected the name of an architecture")
        self.architecture = name

    def count(self, name: str, default: int | None = None) -> int:
        """Return an integer of 1 or more.

        Raises:
            DataError: it is missing or invalid.
        """
        value = self._value(name, default)
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not 0 < value < 1 << 31:
            self._refuse(name, value, "an integer of 1 or more")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number above 0; see :meth:`count`."""
        value = self._value(name, default)
        if not isinstance(value, (int, float, np.number)) or not 0 < value < math.inf:
            self._refuse(name, value, "a number above 0")
        return float(value)

    def has(self, name: str) -> bool:
        """Return whether there is a value."""
        return f"{self.architecture}.{name}" in self._file.metadata

    def scaling(self, size: int) -> dict[str, Any] | None:
        """Return the scaling of rotary positions, for heads of this size; see :class:`RotaryPositions`.

        Raises:
            DataError: it is unsupported.
        """
        if _FREQUENCIES in self._file.tensors:
            return self._llama3_scaling(size)
        kind = self._value("rope.scaling.type", "none")
        if kind == "none":
            return None
        if kind not in ("linear", "yarn"):
            self._refuse("rope.scaling.type", kind, "none, linear or yarn")
        length = self.count("rope.scaling.original_context_length", self.count("context_length"))
        return {
            "rope_type": kind, "factor": self.number("rope.scaling.factor"), "original_max_position_embeddings": length,
        }  # fmt: skip

    def _llama3_scaling(self, size: int) -> dict[str, Any]:
        """Return the scaling of Llama 3, of which the file has the factor of each pair of features."""
        factors = self._file.tensors[_FREQUENCIES].to_numpy()
        scaling: dict[str, Any] = {
            "rope_type": "llama3", "factor": float(factors.max(initial=1.0)), "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        }  # fmt: skip
        speeds = self.number("rope.freq_base", 10000.0) ** (-np.arange(size // 2) * 2 / size)
        turns = speeds * scaling["original_max_position_embeddings"] / (2 * math.pi)
        slowed = 1 - np.clip((turns - 1) / 3, 0, 1)
        expected = 1 / (1 - slowed + slowed / scaling["factor"])
        if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
            raise DataError(f"{self.source}: {_FREQUENCIES} are not those of Llama 3: nothing else is supported")
        return scaling

    def _value(self, name: str, default: Any) -> Any:
        return self._file.metadata.get(f"{self.architecture}.{name}", default)

    def _refuse(self, name: str, value: object, expected: str) -> None:
        raise DataError(f"{self.source}: {self.architecture}.{name} is {repr(value)[:80]}, expected {expected}")
