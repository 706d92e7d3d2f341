"""Measured durations of training steps, messages and sums."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from flowmx.kvstore.shards import Key

__all__ = ["Costs", "PassStep", "Profile"]


class PassStep(NamedTuple):
    """A step of a pass.

    Attributes:
        seconds: its duration.
        keys: in the forward pass the parameters that it reads first, in the backward pass those whose gradients it
            computes.
    """

    seconds: float
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class Costs:
    """Costs of messages, sums and updates.

    Args:
        request: seconds per request, on each side.
        byte: seconds per byte sent or received, on each side.
        add: seconds per byte of a gradient that a server adds.
        update: seconds per byte of a value that an optimizer updates.
    """

    request: float = 0.0
    byte: float = 0.0
    add: float = 0.0
    update: float = 0.0


@dataclass(frozen=True)
class Profile:
    """The training of one network on one machine.

    Args:
        batch: images per step.
        shapes: the shapes of the parameters, in the order of the network.
        forward: the forward pass.
        backward: the backward pass.
        costs: the costs of the store.
        about: when and where this was measured.

    Raises:
        ValueError: a pass lacks a parameter, or lists it twice.
    """

    batch: int
    shapes: Mapping[Key, tuple[int, ...]]
    forward: Sequence[PassStep]
    backward: Sequence[PassStep]
    costs: Costs = Costs()
    about: str = ""

    def __post_init__(self) -> None:
        for name, steps in (("forward", self.forward), ("backward", self.backward)):
            keys = [key for step in steps for key in step.keys]
            if sorted(map(str, keys)) != sorted(map(str, self.shapes)):
                invalid = set(keys) ^ set(self.shapes) or {key for key in keys if keys.count(key) > 1}
                raise ValueError(f"the {name} pass must list each parameter once: see {sorted(map(str, invalid))[:5]}")

    @property
    def seconds(self) -> float:
        """Duration of a step in seconds on one machine, without a store."""
        return sum(step.seconds for step in (*self.forward, *self.backward))

    @property
    def nbytes(self) -> int:
        """The size of all parameters in bytes."""
        return 4 * sum(math.prod(shape) for shape in self.shapes.values())

    def at(self, seconds: float) -> Profile:
        """Return the profile scaled to a machine with steps of this duration."""
        scale = seconds / self.seconds
        forward, backward = (
            [PassStep(scale * step.seconds, step.keys) for step in steps] for steps in (self.forward, self.backward)
        )
        return replace(self, forward=forward, backward=backward)

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Load a profile from a file.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file does not contain a profile.
        """
        return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Profile:
        """Make a profile from parsed JSON.

        Raises:
            ValueError: a field is missing or wrong.
        """
        try:
            return cls(
                int(fields["batch"]),
                {key: tuple(shape) for key, shape in fields["shapes"].items()},
                _steps(fields["forward"]),
                _steps(fields["backward"]),
                Costs(**fields.get("costs", {})),
                fields.get("about", ""),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not a profile: {type(error).__name__}: {error}") from error


def _steps(pairs: Any) -> list[PassStep]:
    return [PassStep(float(seconds), tuple(keys)) for seconds, keys in pairs]
