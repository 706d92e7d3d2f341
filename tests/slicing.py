"""Slicing of small networks, which is not worthwhile outside tests."""

import contextlib

from flowmx.graph.planning import cost, slices


@contextlib.contextmanager
def eager_slices(byte=0.0):
    """Slice predictions wherever that saves memory, inside the ``with`` block.

    Args:
        byte: the estimated nanoseconds per byte of a weight, which affect where regions end.
    """
    chosen = (
        (slices, "MIN_SAVED", 1), (slices, "_MAX_LOSS", 1.0), (cost, "_STEP_NS", 0), (cost, "_LOOSE_NS", 0),
        (cost, "_REORDER_NS", 0), (cost, "_NS_PER_BYTE", byte), (slices, "_MIN_WEIGHT_BYTES", 1),
    )  # fmt: skip
    before = [(module, name, getattr(module, name)) for module, name, _ in chosen]
    for module, name, value in chosen:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
