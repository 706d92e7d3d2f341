"""``mx.random``: the seed, and the functions of ``mx.nd.random``.

Example:
    >>> mx.random.seed(7)
    >>> a = mx.random.uniform(shape=(2, 3))
"""

from __future__ import annotations

import contextlib

from flowmx import devices
from flowmx.devices import Context, generator
from flowmx.errors import ArgumentKindError, DeviceError
from flowmx.ndarray import core
from flowmx.ndarray.random import (
    bernoulli,
    exponential,
    gamma,
    generalized_negative_binomial,
    multinomial,
    negative_binomial,
    normal,
    poisson,
    randint,
    randn,
    shuffle,
    uniform,
)

__all__ = [
    "bernoulli", "exponential", "gamma", "generalized_negative_binomial", "multinomial", "negative_binomial", "normal",
    "poisson", "randint", "randn", "seed", "shuffle", "uniform",
]  # fmt: skip


def seed(seed_state: int, ctx: str | Context = "all") -> None:
    """Seed the random generators. Operations pushed afterwards are reproducible with the same seed.

    The seed determines initial values, dropout, and the order and augmentation of data. In a distributed job every
    process has separate generators: with the same seed, all workers draw the same numbers in the same order,
    independent of their rank, and use them for their parts of the data. For different numbers, call
    ``mx.random.seed(seed + kv.rank)`` after ``mx.kv.create``; seeds set before it must be equal on all workers. The
    initial values of parameters are always those of the worker of rank 0.

    Args:
        seed_state: the seed, an int.
        ctx: ``"all"`` seeds all devices, including those that are not used yet, with different streams. A context
            seeds only that device; devices seeded with the same number draw the same numbers.

    Raises:
        TypeError: ``seed_state`` is not an int, or ``ctx`` neither "all" nor a context.
    """
    if not isinstance(seed_state, int):
        raise ArgumentKindError(f"random.seed: seed_state is {seed_state!r}, expected an int")
    state = seed_state % 2**64  # MXNet accepts negative numbers
    if ctx == "all":
        generator.seed_new(state)
        for device in devices.in_use():
            _reseed(device, state, True)
    elif isinstance(ctx, Context):
        with contextlib.suppress(DeviceError):  # MXNet accepts missing devices
            _reseed(devices.get(ctx), state, False)
    else:
        raise TypeError(f"random.seed: ctx is {ctx!r}, expected 'all' or a context")


def _reseed(device: devices.Device, state: int, salted: bool) -> None:
    stream = device.generator
    core.push_on(device, stream.reseed, (state, salted), (), (stream,), "seed", light=True, depth=3)
