"""Slices of small networks, whose memory and time are not worth it."""

import contextlib

from flowmx.graph.planning import cost, slices


@contextlib.contextmanager
def eager_slices(byte=0.0):
    """A ``with`` block in which predictions are sliced wherever that saves anything.

    Args:
        byte: the nanoseconds that each byte of a weight costs, which moves the ends of regions.
    """
    chosen = (
        (slices, "LEAST", 1), (slices, "_MOST_LOSS", 1.0), (cost, "_STEP_NS", 0), (cost, "_LOOSE_NS", 0),
        (cost, "_ORDER_NS", 0), (cost, "_NS_A_BYTE", byte), (slices, "_HEAVY", 1),
    )  # fmt: skip
    before = [(module, name, getattr(module, name)) for module, name, _ in chosen]
    for module, name, value in chosen:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
