"""The random numbers of a loader's batches, determined by one seed.

A loader draws one seed. The seed, the epoch's number and the batch's number determine a batch's random numbers,
whichever process or thread makes the batch, and in whatever order. The upper bits of a seed are for flowmx's
generators, and derive from ``mx.random.seed``; the lower 32 bits are for Python's and NumPy's generators in workers,
and derive from the states of the main process's generators, without changing them.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from flowmx import settings
from flowmx.data import rng
from flowmx.devices import current_context, generator
from flowmx.devices import get as device_of
from flowmx.ndarray import core


class Seed:
    """A seed that is drawn at the first use, and again after ``mx.random.seed``.

    Args:
        salt: numbers that distinguish loaders that draw from the same state.
    """

    def __init__(self, *salt: int) -> None:
        self._salt = salt
        self._value: int | None = None
        self._drawn_at = -1

    def value(self) -> tuple[int, bool]:
        """Return the seed, and whether this call has drawn it."""
        seed_count = generator.seeding()[0]
        if self._value is not None and self._drawn_at == seed_count:
            return self._value, False
        self.set(_draw(self._salt))
        assert self._value is not None
        return self._value, True

    def set(self, value: int) -> None:
        """Set the seed, until the next call of ``mx.random.seed``."""
        self._value, self._drawn_at = value, generator.seeding()[0]


_draws = (-1, 0)


def _draw(salt: tuple[int, ...]) -> int:
    """Draw a seed; its upper bits depend on the number of draws since ``mx.random.seed`` was called."""
    global _draws
    seed_count, user_seed = generator.seeding()
    base = settings.get().seed if user_seed is None else user_seed
    lower = derive(*salt, zlib.crc32(repr((random.getstate(), rng.numpy_state())).encode()))
    if base is None:
        return _combine(derive(lower), lower)
    _draws = (seed_count, _draws[1] + 1 if _draws[0] == seed_count else 0)
    return _combine(derive(base, _draws[1]), lower)


def _combine(upper: int, lower: int) -> int:
    return upper >> 32 << 32 | lower & _LOW


_LOW = 0xFFFFFFFF


def batch_seed(seed: int, epoch: int, number: int) -> int:
    """Return the seed of a batch of a loader."""
    return _combine(derive(seed >> 32, epoch, number), derive(seed & _LOW, epoch, number))


def derive(*numbers: int) -> int:
    """Derive a seed of 63 bits from other numbers."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


# -- generators of a batch ---------------------------------------------------------------------------------


@contextmanager
def seed_process(seed: int) -> Iterator[None]:
    """Seed all generators of a process that only makes batches, without restoring them."""
    np.random.seed(seed & _LOW)
    random.seed(seed & _LOW)
    with _seeded_flowmx(seed):
        yield


@contextmanager
def seeded_block(seed: int) -> Iterator[None]:
    """Seed flowmx's generators for a ``with`` block, and restore their states after it.

    Python's and NumPy's generators are not seeded, because in MXNet a loader without workers draws from them too.
    """
    stream = device_of(current_context()).generator
    saved: list[object] = []
    _push_on_generator(partial(_save, stream, saved))
    try:
        with _seeded_flowmx(seed):
            yield
    finally:
        _push_on_generator(partial(_restore, stream, saved))


@contextmanager
def _seeded_flowmx(seed: int) -> Iterator[None]:
    upper = seed >> 32
    device = device_of(current_context())
    core.push_on(device, device.generator.reseed, (upper, True), (), (device.generator,), "seed", light=True)
    with rng.draw_from(rng.Streams(random.Random(upper))):
        yield


def seeded_thread(seed: int) -> Any:
    """Seed the augmentations of this thread for a ``with`` block; the other generators are shared by all threads."""
    lower = seed & _LOW
    return rng.draw_from(rng.Streams(random.Random(seed >> 32), random.Random(lower), np.random.RandomState(lower)))


def _save(stream: generator.Generator, saved: list[Any]) -> None:
    saved.append(stream.bits)


def _restore(stream: generator.Generator, saved: list[Any]) -> None:
    stream.bits = saved.pop()


def _push_on_generator(function: Any) -> None:
    device = device_of(current_context())
    core.push_on(device, function, (), (), (device.generator,), "seed", light=True)
