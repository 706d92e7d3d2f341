"""The message of a device that is out of memory: what was requested, and the operations that hold the most."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.engine.origin import Origin, describe

_LARGEST = 5
"""The number of holders that a message lists."""


def message(
    device: str, nbytes: int, size: int, *, used: int, limit: int, total: int, holders: Sequence[tuple[str, int]]
) -> str:
    """Return the message of an allocation that failed.

    Args:
        device: the device's name.
        nbytes: the requested size in bytes.
        size: the size of the block for it, in bytes.
        used: the total size of the blocks in use, in bytes.
        limit: the number of bytes that the pool may use.
        total: the size of the device's memory in bytes.
        holders: the operations that hold memory, as pairs (description, size in bytes), the largest first.
    """
    largest = "".join(f"\n  {count / 2**20:10.1f} MiB: {holder}" for holder, count in holders[:_LARGEST])
    return (
        f"{device} is out of memory: {nbytes} bytes were requested (a block of {size}), "
        f"{limit - used} of {total} are free; {total - limit} are reserved for other uses "
        f"(FLOWMX_GPU_MEM_POOL_RESERVE). Use a smaller batch, or recompute values "
        f"(FLOWMX_BACKWARD_DO_MIRROR=1). The largest holders:{largest or ' none'}"
    )


def describe_holder(holder: tuple[str, Origin | None] | None) -> str:
    """Describe a block's holder as text."""
    if holder is None:
        return "arrays created outside operations"
    name, origin = holder
    layer = f"layer {origin[2]!r}, " if origin is not None and origin[2] else ""
    place = f", enqueued at {describe(origin)}" if origin is not None else ""
    return f"{layer}operation {name!r}{place}"
