"""Sessions that are opened, broken and cancelled in every state leak no tasks, files, slots or memory."""

import asyncio
import contextlib
import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from flowmx import settings
from flowmx.serve import Overloaded, SessionClosed
from tests.serve.sessions.test_session import Sums, opened, summing  # noqa: F401 (a fixture)
from tests.serve.test_http import Client
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("opened")
ERRORS = (ArithmeticError, SessionClosed, Overloaded, TimeoutError)


async def endless():
    while True:
        yield [1, 1]
        await asyncio.sleep(0)


async def close_while_calls_run(predictor, client, rng):
    session = predictor.session()
    calls = [asyncio.create_task(session([1, k])) for k in range(rng.integers(0, 6))]
    for _ in range(rng.integers(0, 3)):
        await asyncio.sleep(0)
    session.close()
    await asyncio.gather(*calls, return_exceptions=True)


async def cancel_calls(predictor, client, rng):
    async with predictor.session() as session:
        calls = [asyncio.create_task(session([1, k])) for k in range(5)]
        await asyncio.wait(calls, timeout=0.001 * rng.random())
        for call in calls[:: rng.integers(1, 3)]:
            call.cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        counts = [int(result[2]) for result in done if isinstance(result, np.ndarray)]
        assert counts == sorted(counts)


async def break_a_stream(predictor, client, rng):
    async with predictor.session() as session, contextlib.aclosing(session.stream(endless())) as results:
        number = 0
        async for y in results:
            number += 1
            assert y[2] == number
            if number > rng.integers(0, 6):
                break


async def fail(predictor, client, rng):
    async with predictor.session() as session:
        inputs = [[1, 1]] * int(rng.integers(0, 4)) + [[np.nan, 0]] + [[1, 1]] * int(rng.integers(0, 4))
        async for _ in session.stream(inputs):
            pass


async def delete(predictor, client, rng):
    await predictor.session()([1, 1])


async def time_out(predictor, client, rng):
    async with asyncio.timeout(0.001 * rng.random()), predictor.session() as session:
        async for _ in session.stream(endless()):
            pass


async def become_idle(predictor, client, rng):
    session = predictor.session(idle=0.001)
    await until(lambda: session.is_closed)
    await session([1, 1])


async def drop_a_websocket(predictor, client, rng):
    async with client.session.ws_connect("/ml/session") as socket:
        messages = rng.integers(0, 4)
        for _ in range(messages):
            await socket.send_str("[1, 1]")
        if messages and rng.random() < 0.5:
            await socket.receive()
        if rng.random() < 0.5:
            socket._writer.transport.abort()


async def drop_a_response(predictor, client, rng):
    body = b"[" + b", ".join([b"[1, 1]"] * 50) + b"]"
    async with client.session.post("/ml/stream", data=body, headers={"Content-Type": "application/json"}) as reply:
        await reply.content.readany()
        if rng.random() < 0.5:
            reply.close()


FATES = (
    close_while_calls_run, cancel_calls, break_a_stream, fail, delete, time_out, become_idle, drop_a_websocket,
    drop_a_response,
)  # fmt: skip


async def session_of(fate, *args):
    with contextlib.suppress(*ERRORS):
        await fate(*args)


def alive(kind):
    """Return whether an object of a class exists."""
    return any(type(each) is kind for each in gc.get_objects())


@pytest.mark.parametrize("sessions", [300, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_sessions_broken_in_every_state_leak_nothing(sessions):
    predictor, rng = summing(sessions={"calls": 16}), np.random.default_rng(1)
    places = predictor.describe
    with settings.override(serve_limits="idle=0.5"):
        client = Client(predictor)
    async with client:
        await predictor.ready()

        async def run(count):
            for start in range(0, count, 50):
                chosen = rng.integers(0, len(FATES), min(50, count - start))
                await asyncio.gather(*(session_of(FATES[fate], predictor, client, rng) for fate in chosen))
            gc.collect()
            await until(lambda: not places()["sessions"]["open"] and not places()["sessions"]["bytes"])
            await client.session.close()
            client.connect()
            await until(lambda: not client.runner.server.connections)
            await until(lambda: len(asyncio.all_tasks()) <= tasks)
            Sums.batches.clear()
            await until(lambda: not gc.collect() and not alive(web.WebSocketResponse))  # until their timers are due
            return len(list(Path("/proc/self/fd").iterdir())), tracemalloc.get_traced_memory()[0]

        tasks = len(asyncio.all_tasks())
        tracemalloc.start()
        try:
            files, memory = await run(sessions // 3)
            more_files, more_memory = await run(sessions - sessions // 3)
        finally:
            tracemalloc.stop()
    assert more_files <= files + 2
    assert more_memory - memory < 300_000
    assert not predictor._sessions._table.nbytes
    text = predictor.metrics.text()
    for reason in ("closed", "deleted", "idle"):
        assert f'closed_sessions_total{{model="model",reason="{reason}"}}' in text
