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
    """Start the random numbers anew: what is pushed from here on repeats exactly with the same seed.

    Initial values, dropout, and the order and augmentation of data follow from it. In a job of several workers each
    process has numbers of its own: with one seed on all of them, all draw the same numbers in the same order (each for
    its own part of the data), and a worker's rank changes nothing. For numbers that differ, call
    ``mx.random.seed(seed + kv.rank)`` after ``mx.kv.create``; before it, all workers that give a seed must give the
    same. First values of parameters are those of the worker of rank 0 either way.

    Args:
        seed_state: the seed, an int.
        ctx: ``"all"`` seeds every device, those not used yet too, each with a stream of its own; a context
            seeds that device alone, and two devices seeded so with the same number give the same.

    Raises:
        TypeError: ``seed_state`` is not an int, or ``ctx`` neither "all" nor a context.
    """
    if not isinstance(seed_state, int):
        raise ArgumentKindError(f"random.seed: seed_state is {seed_state!r}, expected an int")
    state = seed_state % 2**64  # MXNet takes negative numbers too
    if ctx == "all":
        generator.seed_new(state)
        for device in devices.in_use():
            _reseed(device, state, True)
    elif isinstance(ctx, Context):
        with contextlib.suppress(DeviceError):  # what is not there draws no numbers; MXNet takes a seed for it, too
            _reseed(devices.get(ctx), state, False)
    else:
        raise TypeError(f"random.seed: ctx is {ctx!r}, expected 'all' or a context")


def _reseed(device: devices.Device, state: int, salted: bool) -> None:
    stream = device.generator
    core.push_on(device, stream.reseed, (state, salted), (), (stream,), "seed", light=True, depth=3)
