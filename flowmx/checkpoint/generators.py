"""The states of all random generators: those of the devices, of ``mx.image``, Python's and NumPy's."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx import devices, engine
from flowmx.data import rng
from flowmx.devices import Context, generator


def push() -> list[tuple[Context, engine.Handle[Any]]]:
    """Enqueue reads of all devices' generators, after the operations so far that draw from them."""
    return [(device.context, engine.push(_reader(device.generator), reads=[device.generator], name="read generator"))
            for device in devices.in_use()]  # fmt: skip


def state(device_states: list[tuple[Context, Any]]) -> dict[str, Any]:
    """Return the states of all generators, as plain data.

    Args:
        device_states: the devices and the results of :func:`push`.
    """
    return {
        "seed": generator.seeding()[1],
        "devices": [[context.device_type, context.device_id, bits] for context, bits in device_states],
        "image": rng.state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
    }


def set_state(state: Mapping[str, Any]) -> None:
    """Restore the states of all generators. Operations pushed later draw from them."""
    set_flowmx_state(state)
    version, numbers, normal = state["python"]
    random.setstate((version, tuple(numbers), normal))
    np.random.set_state(state["numpy"])


def set_flowmx_state(state: Mapping[str, Any]) -> None:
    """Restore the states of flowmx's generators, and leave Python's and NumPy's unchanged."""
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
