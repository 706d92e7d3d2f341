"""Measured durations: the steps of a network's training, messages, and sums."""

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
        seconds: how long it takes.
        keys: in the forward pass what it reads first, in the backward pass what it makes the gradients of.
    """

    seconds: float
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class Costs:
    """Costs of messages, sums and updates.

    Args:
        request: seconds of a request, on each side.
        byte: seconds of a byte that is sent or received, on each side.
        add: seconds of a byte of a gradient that a server adds.
        update: seconds of a byte of a value that an optimizer updates.
    """

    request: float = 0.0
    byte: float = 0.0
    add: float = 0.0
    update: float = 0.0


@dataclass(frozen=True)
class Profile:
    """The training of one network on one machine.

    Args:
        batch: images of a step.
        shapes: of the parameters, in the order in which the network has them.
        forward: the forward pass.
        backward: the backward pass.
        costs: of the store.
        about: when and where this was measured.

    Raises:
        ValueError: a pass lacks a parameter, or has it twice.
    """

    batch: int
    shapes: Mapping[Key, tuple[int, ...]]
    forward: Sequence[PassStep]
    backward: Sequence[PassStep]
    costs: Costs = Costs()
    about: str = ""

    def __post_init__(self) -> None:
        for name, steps in (("forward", self.forward), ("backward", self.backward)):
            found = [key for step in steps for key in step.keys]
            if sorted(map(str, found)) != sorted(map(str, self.shapes)):
                wrong = set(found) ^ set(self.shapes) or {key for key in found if found.count(key) > 1}
                raise ValueError(f"the {name} pass has not each parameter once: see {sorted(map(str, wrong))[:5]}")

    @property
    def seconds(self) -> float:
        """Duration of a step in seconds on one machine, without a store."""
        return sum(step.seconds for step in (*self.forward, *self.backward))

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters."""
        return 4 * sum(math.prod(shape) for shape in self.shapes.values())

    def at(self, seconds: float) -> Profile:
        """The profile scaled to a machine that takes so many seconds for a step."""
        scale = seconds / self.seconds
        forward, backward = (
            [PassStep(scale * step.seconds, step.keys) for step in each] for each in (self.forward, self.backward)
        )
        return replace(self, forward=forward, backward=backward)

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """The profile of a file.

        Raises:
            OSError: it can not be read.
            ValueError: it holds none.
        """
        return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Profile:
        """The profile of what JSON holds.

        Raises:
            ValueError: it is none.
        """
        try:
            return cls(
                int(found["batch"]),
                {key: tuple(shape) for key, shape in found["shapes"].items()},
                _steps(found["forward"]),
                _steps(found["backward"]),
                Costs(**found.get("costs", {})),
                found.get("about", ""),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no profile: {type(error).__name__}: {error}") from error


def _steps(found: Any) -> list[PassStep]:
    return [PassStep(float(seconds), tuple(keys)) for seconds, keys in found]
