"""Randomness of data loading as a function of a seed: orders of samples, and random augmentation of each batch.

A loader or sampler draws one seed. With the number of the epoch (and of the batch) all else follows from it, whichever
process or thread makes the batch, and in whatever order they are made.
"""

from __future__ import annotations

import hashlib
import random
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


def seeded() -> bool:
    """True where ``mx.random.seed`` was called or the setting ``FLOWMX_SEED`` is set."""
    return generator.seeding()[1] is not None or settings.get().seed is not None


class Seed:
    """A seed that is drawn when it is first needed, and again after ``mx.random.seed``.

    Without any seed of flowmx's it comes from NumPy's generator, from which MXNet draws orders: ``np.random.seed``
    then makes them repeat, as it does there.
    """

    def __init__(self) -> None:
        self._value: int | None = None
        self._drawn_at = -1

    def value(self) -> tuple[int, bool]:
        """The seed, and whether it was drawn just now."""
        now = generator.seeding()[0]
        if self._value is not None and self._drawn_at == now:
            return self._value, False
        self.set(_draw())
        assert self._value is not None
        return self._value, True

    def set(self, value: int) -> None:
        """Give it a value, until ``mx.random.seed`` is called next."""
        self._value, self._drawn_at = value, generator.seeding()[0]


_counted = (-1, 0)


def _draw() -> int:
    """A seed: the first, second, ... since ``mx.random.seed`` was called."""
    global _counted
    times, given = generator.seeding()
    base = settings.get().seed if given is None else given
    if base is None:
        return int(np.random.randint(2**31))
    _counted = (times, _counted[1] + 1 if _counted[0] == times else 0)
    return derive(base, _counted[1])


def derive(*numbers: int) -> int:
    """A seed of 63 bits that follows from other numbers."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


# -- generators of a batch ---------------------------------------------------------------------------------


@contextmanager
def seeded_process(seed: int) -> Iterator[None]:
    """Seed all generators of a process that makes nothing but batches: they are not restored."""
    np.random.seed(seed % 2**32)
    random.seed(seed)
    device = device_of(current_context())
    core.push_on(device, device.generator.reseed, (seed, True), (), (device.generator,), "seed", light=True)
    with rng.using(random.Random(seed)):
        yield


@contextmanager
def seeded_block(seed: int) -> Iterator[None]:
    """Seed all generators for a ``with`` block, and restore their states behind it."""
    before = random.getstate(), np.random.get_state()
    device = device_of(current_context()).generator
    kept: list[Any] = []
    _on_generator(partial(_save, device, kept))
    try:
        with seeded_process(seed):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        _on_generator(partial(_restore, device, kept))


def seeded_thread(seed: int) -> Any:
    """Seed the augmentations of this thread for a ``with`` block: the other generators belong to all threads."""
    return rng.using(random.Random(seed))


def _save(device: generator.Generator, kept: list[Any]) -> None:
    kept.append(device.bits)


def _restore(device: generator.Generator, kept: list[Any]) -> None:
    device.bits = kept.pop()


def _on_generator(function: Any) -> None:
    device = device_of(current_context())
    core.push_on(device, function, (), (), (device.generator,), "seed", light=True)
