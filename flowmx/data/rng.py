"""Random generator of the augmentations, which `mx.random.seed` seeds.

MXNet draws from Python's `random` and NumPy's, which `mx.random.seed` leaves alone: its runs repeat only for who seeds
all three.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from flowmx.devices import generator

_shared = random.Random()
_seeding: tuple[int, int | None] = (0, None)
_own: ContextVar[random.Random | None] = ContextVar("augmentation generator", default=None)


@contextmanager
def using(own: random.Random) -> Iterator[None]:
    """Draw from another generator in a ``with`` block: for a batch whose randomness is its own."""
    token = _own.set(own)
    try:
        yield
    finally:
        _own.reset(token)


def current() -> random.Random:
    """The generator to draw from, seeded anew where `mx.random.seed` was called since."""
    global _seeding
    own = _own.get()
    if own is not None:
        return own
    now = generator.seeding()
    if now != _seeding:
        _seeding = now
        _shared.seed(None if now[1] is None else f"flowmx image {now[1]}")
    return _shared


def seeded(*numbers: int) -> np.random.Generator:
    """Make a generator of NumPy's that follows from numbers, of which the lower 64 bits count."""
    return np.random.Generator(np.random.PCG64([number % 2**64 for number in numbers]))


def state() -> list[Any]:
    """The state of the generator, as plain data."""
    version, numbers, normal = current().getstate()
    return [version, list(numbers), normal]


def set_state(state: list[Any]) -> None:
    """Let the generator go on from such a state."""
    version, numbers, normal = state
    current().setstate((version, tuple(numbers), normal))
