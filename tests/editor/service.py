"""An asynchronous program: arrays are awaited, not read."""

import asyncio

import flowmx as mx
from flowmx.ndarray import NDArray


async def total(x: NDArray) -> float:
    y = (x * 2).sum()
    await y
    return float(y.asscalar())


async def main() -> list[float]:
    result = await asyncio.gather(*(total(mx.nd.full((3,), value)) for value in range(3)))
    await mx.nd.waitall_async()
    return list(result)


assert mx.run(main()) == [0, 6, 12]
