"""The random stream of the augmentations, which `mx.random.seed` restarts.

MXNet draws from Python's `random` and NumPy's, which `mx.random.seed` leaves alone: its runs repeat only for who seeds
all three.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from flowmx.devices import generator

_stream = random.Random()
_seeding: tuple[int, int | None] = (0, None)
_own: ContextVar[random.Random | None] = ContextVar("own stream", default=None)


@contextmanager
def using(own: random.Random) -> Iterator[None]:
    """A ``with`` block in which the stream is another one: for a batch whose randomness is its own."""
    token = _own.set(own)
    try:
        yield
    finally:
        _own.reset(token)


def stream() -> random.Random:
    """The stream, seeded anew where `mx.random.seed` was called since."""
    global _seeding
    own = _own.get()
    if own is not None:
        return own
    now = generator.seeding()
    if now != _seeding:
        _seeding = now
        _stream.seed(None if now[1] is None else f"flowmx image {now[1]}")
    return _stream


def state() -> list[Any]:
    """The state of the stream, as plain data."""
    version, numbers, normal = stream().getstate()
    return [version, list(numbers), normal]


def set_state(state: list[Any]) -> None:
    """Let the stream go on from where it stood."""
    version, numbers, normal = state
    stream().setstate((version, tuple(numbers), normal))
