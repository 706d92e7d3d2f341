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


# -- streams of a batch ------------------------------------------------------------------------------------


@contextmanager
def process_streams(seed: int) -> Iterator[None]:
    """Start all streams of a process from a seed, for the process's own good: nothing is put back."""
    np.random.seed(seed % 2**32)
    random.seed(seed)
    device = device_of(current_context())
    core.push_on(device, device.generator.reseed, (seed, True), (), (device.generator,), "seed", light=True)
    with rng.using(random.Random(seed)):
        yield


@contextmanager
def borrowed_streams(seed: int) -> Iterator[None]:
    """Start all streams from a seed, and put them back at the end where they were."""
    before = random.getstate(), np.random.get_state()
    stream = device_of(current_context()).generator
    kept: list[Any] = []
    _on_generator(partial(_keep, stream, kept))
    try:
        with process_streams(seed):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        _on_generator(partial(_put_back, stream, kept))


def thread_streams(seed: int) -> Any:
    """A ``with`` block in which the augmentations of this thread draw from a seed: it has no other streams."""
    return rng.using(random.Random(seed))


def _keep(stream: generator.Generator, kept: list[Any]) -> None:
    kept.append(stream.bits)


def _put_back(stream: generator.Generator, kept: list[Any]) -> None:
    stream.bits = kept.pop()


def _on_generator(function: Any) -> None:
    device = device_of(current_context())
    core.push_on(device, function, (), (), (device.generator,), "seed", light=True)
