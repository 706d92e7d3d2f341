"""Sessions of a model with a state, and pushed functions with their variables."""

import asyncio
from typing import assert_type

import numpy as np
import numpy.typing as npt

import flowmx as mx

cell = mx.gluon.rnn.LSTMCell(3, input_size=2)
cell.initialize()


async def listen(predictor: mx.serve.Predictor) -> list[float]:
    peaks: list[float] = []
    async with predictor.session("microphone") as session:
        first = await session([1.0, 2.0])
        peaks.append(float(first.max()))
        async for y in session.stream(np.ones((4, 2), np.float32)):
            peaks.append(float(y.max()))
    return peaks


async def count() -> int:
    log, lines = mx.engine.Variable("log"), list[str]()
    written = mx.engine.push(lambda: lines.append("written"), writes=[log])
    length = mx.engine.push(lambda: len(lines), reads=[log])

    async def read() -> str:
        return lines[-1]

    text = mx.engine.push(read, reads=log)
    for number in range(2):
        mx.engine.push(lambda number=number: lines.append(f"{number}"), writes=[log])
    await written
    assert assert_type(await text, str) == "written"
    assert assert_type(length.wait(), int) == 1
    return await length


async def main() -> None:
    async with mx.serve.Predictor(cell, (2,), states=True, max_batch=2) as predictor:
        assert len(await listen(predictor)) == 5
        result: npt.NDArray[np.float32] = await predictor.session()(mx.nd.ones((2,)))
        assert result.shape == (3,)
    assert await count() == 1


asyncio.run(main())
