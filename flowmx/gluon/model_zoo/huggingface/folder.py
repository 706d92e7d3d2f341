"""Folders of Hugging Face's Transformers: ``config.json``, and weights in one file or in shards."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from flowmx.errors import DataError
from flowmx.ops.registry.operators import Array
from flowmx.serialization import formats

__all__ = ["Arrays", "Config", "is_model", "read_arrays", "read_config"]

Arrays = dict[str, Array]
_CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_COUNT, _PROBABILITY = "an integer of 1 or more", "a probability from 0 to below 1"
_NUMBER = "a number above 0"
_EPSILON = "a number above 0 and below 1"
_MAX_JSON = 64 << 20
"""The maximum size in bytes of a JSON file; an index of a thousand layers takes one MB."""


class Config:
    """The content of ``config.json``, with checks of its values.

    Args:
        values: the values by name.
        source: the name of the file, for messages.
    """

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self.values, self.source = values, source

    def text(self, name: str, default: str = "") -> str:
        """Return a string, or a default for a missing or null value.

        Raises:
            DataError: the value has a different type.
        """
        value: str = self._value(name, default, str, "a string")
        return value

    def probability(self, name: str, default: float) -> float:
        """Return a number from 0 to below 1; see :meth:`text`."""
        value = self._value(name, default, (int, float), _PROBABILITY)
        if not 0 <= value < 1:
            self.refuse(name, _PROBABILITY)
        return float(value)

    def epsilon(self, name: str, default: float) -> float:
        """Return a number above 0 and below 1; see :meth:`text`."""
        value = self._value(name, default, (int, float), _EPSILON)
        if not 0 < value < 1:
            self.refuse(name, _EPSILON)
        return float(value)

    def number(self, name: str, default: float | None) -> float | None:
        """Return a number above 0, or a default for a missing or null value; see :meth:`text`."""
        value: float | None = self._value(name, default, (int, float), _NUMBER)
        if value is not None and not 0 < value < math.inf:
            self.refuse(name, _NUMBER)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false; see :meth:`text`."""
        value: bool = self._value(name, default, bool, "true or false")
        return value

    def part(self, name: str) -> Config:
        """Return the object with this name as a config; an empty one if it is missing or null; see :meth:`text`."""
        return Config(self._value(name, {}, dict, "an object"), f"{self.source}: {name}")

    def count(self, name: str, default: int) -> int:
        """Return an integer of 1 or more; see :meth:`text`."""
        value: int = self._value(name, default, int, _COUNT)
        if value < 1:
            self.refuse(name, _COUNT)
        return value

    def choice(self, name: str, default: str, choices: dict[str, str]) -> str:
        """Return the value of ``choices`` for a string.

        Raises:
            DataError: the string is not among the choices.
        """
        value = self.text(name, default)
        if value not in choices:
            self.refuse(name, f"one of {', '.join(choices)}")
        return choices[value]

    def expect(self, **values: Any) -> None:
        """Check that values are the supported ones, or missing.

        Raises:
            DataError: a value differs.
        """
        for name, value in values.items():
            if self.values.get(name, value) != value:
                self.refuse(name, f"{value!r}: nothing else is supported")

    def _value(self, name: str, default: Any, kinds: type | tuple[type, ...], expected: str) -> Any:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            self.refuse(name, expected)
        return value

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raise a DataError that says what was expected."""
        raise DataError(f"{self.source}: {name} is {repr(self.values.get(name))[:80]}, expected {expected}")


def is_model(path: Path) -> bool:
    """Return whether a folder has the config and the weights of a model."""
    return (path / _CONFIG).is_file() and any(map(Path.is_file, _files(path)))


def read_config(path: Path) -> Config:
    """Return the config of a model's folder.

    Raises:
        FileNotFoundError: it is not a folder with a config.
        DataError: the file is not a JSON object.
    """
    if not (path / _CONFIG).is_file():
        raise FileNotFoundError(
            f"{path} has no {_CONFIG}: expected a local folder with the files of a model, as save_pretrained() of "
            "Hugging Face's Transformers writes it; names of models are not downloaded"
        )
    return Config(read_json(path / _CONFIG), str(path / _CONFIG))


def read_arrays(path: Path) -> Arrays:
    """Return all weights of a model's folder by name.

    Raises:
        FileNotFoundError: there are no weights, or a shard is missing.
        DataError: the index of the shards is invalid, or two of them have an array of the same name.
        FileFormatError: a file of weights is damaged (also a ValueError).
    """
    for file in _files(path):
        if file.is_file():
            return _read_shards(file) if file.suffix == ".json" else _read_file(file)
    raise FileNotFoundError(
        f"{path} has no weights: expected {' or '.join(each.name for each in _files(path))}"
    )  # fmt: skip


def _files(path: Path) -> list[Path]:
    """Return where weights may be, the best first."""
    return [path / f"{name}{ending}" for name in _WEIGHTS for ending in ("", ".index.json")]


def _read_file(path: Path) -> Arrays:
    arrays = formats.load(path)
    if isinstance(arrays, dict):
        return arrays
    raise DataError(f"{path} holds a list of arrays without names, expected names")


def _read_shards(index: Path) -> Arrays:
    """Return the arrays of the files that an index lists by the name of each array."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise DataError(f"{index}: weight_map is {repr(places)[:80]}, expected the file of each array")
    arrays: Arrays = {}
    for file in dict.fromkeys(places.values()):
        if Path(file).name != file:
            raise DataError(f"{index}: weight_map has the file {file!r}, expected a file in the same folder")
        part = _read_file(index.parent / file)
        twice = part.keys() & arrays.keys()
        missing = [name for name, place in places.items() if place == file and name not in part]
        if twice or missing:
            name, problem = (min(twice), "is in two files") if twice else (missing[0], f"is not in {file}")
            raise DataError(f"{index}: the array {name!r} {problem}, expected each array in the file of weight_map")
        arrays |= part
    return arrays


def read_json(path: Path, max_bytes: int = _MAX_JSON) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        DataError: the file is larger than `max_bytes`, or is not a JSON object.
        OSError: it cannot be read.
    """
    if path.stat().st_size > max_bytes:
        raise DataError(f"{path} has {path.stat().st_size} bytes, expected at most {max_bytes} of JSON")
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON: {str(error)[:100]}") from None
    if not isinstance(values, dict):
        raise DataError(f"{path} holds {repr(values)[:80]}, expected a JSON object")
    return values
