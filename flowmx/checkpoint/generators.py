"""The states of all random generators: those of the devices, of ``mx.image``, Python's and NumPy's."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx import devices, engine
from flowmx.data import rng
from flowmx.devices import Context, generator


def push() -> list[tuple[Context, engine.Handle]]:
    """Enqueue reading the generators of all devices, after what draws from them so far."""
    return [(device.context, engine.push(_reader(device.generator), reads=[device.generator], name="read generator"))
            for device in devices.in_use()]  # fmt: skip


def state(found: list[tuple[Context, Any]]) -> dict[str, Any]:
    """The states of all generators, as plain data.

    Args:
        found: the devices, with what was read.
    """
    return {
        "seed": generator.seeding()[1],
        "devices": [[context.device_type, context.device_id, bits] for context, bits in found],
        "image": rng.state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
    }


def set_state(state: Mapping[str, Any]) -> None:
    """Let all generators go on from where they stood; what is pushed from here on draws from there."""
    set_own_state(state)
    version, numbers, normal = state["python"]
    random.setstate((version, tuple(numbers), normal))
    np.random.set_state(state["numpy"])


def set_own_state(state: Mapping[str, Any]) -> None:
    """As :func:`set_state`, but leave Python's and NumPy's generators alone."""
    generator.seed_new(state["seed"])
    for kind, number, bits in state["devices"]:
        stream = devices.get(Context(kind, number)).generator
        engine.push(_writer(stream, bits), writes=[stream], name="set generator")
    rng.set_state(state["image"])


def _reader(stream: generator.Generator) -> Any:
    return lambda: stream.bits.bit_generator.state


def _writer(stream: generator.Generator, bits: Any) -> Any:
    def write() -> None:
        stream.bits.bit_generator.state = bits

    return write
