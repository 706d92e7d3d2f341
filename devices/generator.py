"""Random numbers: a generator whose state is an engine variable, so that runs are reproducible.

Sampling operators declare their device's generator as a variable that they write. So they draw in the order in which
they were pushed, with any engine, and never concurrently.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

import numpy as np
import numpy.random  # imported now: the child of a fork would hang if a thread of the parent was importing it

from flowmx import settings
from flowmx.engine.scheduler import Variable

_new_seed: int | None = None
_seedings = 0


def seed_new(seed: int | None) -> None:
    """Seed the generators of devices that are created later."""
    global _new_seed, _seedings
    _new_seed = seed
    _seedings += 1


def seeding() -> tuple[int, int | None]:
    """Return the number of global seedings and the last seed: a generator reseeds itself when the number changes."""
    return _seedings, _new_seed


class Generator(Variable):
    """A device's random generator (NumPy's SFC64, seeded from the seed and a checksum of the device's name)."""

    can_be_restored = True
    """Whether the state can be read and restored."""

    def __init__(self, name: str, seed: int | None = None) -> None:
        super().__init__(f"generator {name}")
        self.salt = zlib.crc32(name.encode())
        self.reseed(_new_seed if seed is None else seed)

    def reseed(self, seed: int | None, salted: bool = True) -> None:
        """Restart the sequence of numbers.

        Args:
            seed: the seed; None: the setting's, or a random one.
            salted: whether to combine the seed with the device's name, so that devices draw different numbers.
        """
        if seed is None:
            seed = settings.get().seed
        entropy = [int.from_bytes(os.urandom(8), "little")] if seed is None else [seed]
        if salted:
            entropy.append(self.salt)
        self.bits = np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))

    @property
    def state(self) -> Any:
        """The bit generator's state, a dict; assign it to draw the same numbers again."""
        return self.bits.bit_generator.state

    @state.setter
    def state(self, state: Any) -> None:
        self.bits.bit_generator.state = state
