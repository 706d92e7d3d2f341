"""The time that a service has to drain: requests, streams and sessions that take longer are refused or closed."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading

import pytest
from aiohttp import ClientError, ClientSession, WSMsgType

import flowmx as mx
from flowmx import cli
from flowmx.serve import Predictor, SessionClosed, Unavailable, aiohttp_app, app, run
from tests.generation.test_generator import Scripted
from tests.serve.sessions import test_session
from tests.serve.sessions.test_session import opened, summing  # noqa: F401 (a fixture)
from tests.serve.test_http import JSON
from tests.serve.test_predictor import Gate, closed, gated  # noqa: F401 (a fixture)
from tests.serve.text.test_openai import completion, counting
from tests.waiting import until

SECONDS = 0.2


@contextlib.asynccontextmanager
async def served(models, monkeypatch, seconds=SECONDS):
    """Run a service; yield its address, and the event that begins to drain it."""
    stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()
    monkeypatch.setattr(aiohttp_app, "_on_shutdown_signal", lambda: stop)
    running = asyncio.create_task(run(app(models, drain_timeout=seconds), port=0, started=address.set_result))
    async with ClientSession(await address) as session:
        yield session, stop, running
        stop.set()
        await running


@pytest.mark.parametrize("seconds", [SECONDS, 0.0])
async def test_requests_that_take_longer_get_a_503(gated, monkeypatch, seconds):  # noqa: F811
    await gated.ready()
    async with served(gated, monkeypatch, seconds) as (session, stop, running):
        Gate.let.clear()
        Gate.batches.clear()
        requests = [asyncio.create_task(session.post("/predict", json=[0, 0])) for _ in range(3)]
        await until(lambda: Gate.batches and gated._runner.pending == 3)
        stop.set()
        for request in requests:
            response = await request
            assert (response.status, response.headers["Retry-After"], response.headers["Connection"]) == (
                503, "1", "close",
            )  # fmt: skip
            assert f"has not answered within {seconds:g} s" in (await response.json())["error"]
        assert not await running
    Gate.let.set()


async def test_requests_that_end_in_time_are_answered(gated, monkeypatch):  # noqa: F811
    await gated.ready()
    async with served(gated, monkeypatch, 30) as (session, stop, running):
        Gate.let.clear()
        Gate.batches.clear()
        request = asyncio.create_task(session.post("/predict", json=[1, 2]))
        await until(lambda: Gate.batches)
        stop.set()
        await until(lambda: not running.done())
        Gate.let.set()
        assert await (await request).json() == {"outputs": [1.0, 2.0]}
        assert await running


async def test_sessions_are_closed(monkeypatch):
    predictor = summing()
    await predictor.ready()
    async with served(predictor, monkeypatch) as (session, stop, running):
        test_session.Sums.let.clear()
        async with session.ws_connect("/session") as socket:
            await socket.send_str("[1, 1]")
            await until(lambda: test_session.Sums.batches)
            stop.set()
            message = await socket.receive()
            assert (message.type, message.data) == (WSMsgType.CLOSE, 1001)
        assert not await running
    test_session.Sums.let.set()


class Gated(Scripted):
    """A decoder whose steps after the first wait until a test opens the gate."""

    let = threading.Event()

    def is_new(self, batch):
        return True  # a step runs on a thread

    def step(self, batch):
        if self.steps:
            assert self.let.wait(30)
        return super().step(batch)


async def test_streams_of_text_end(monkeypatch):
    Gated.let.clear()
    async with served({"tiny": counting(Gated(pages=60))}, monkeypatch) as (session, stop, running):
        body = completion(max_tokens=40, temperature=0, stream=True)
        async with session.post("/v1/completions", data=body, headers={"Content-Type": JSON}) as response:
            assert response.status == 200
            assert b"data:" in await response.content.readany()
            stop.set()
            with pytest.raises(ClientError):
                await response.read()
        Gated.let.set()
        assert not await running


async def test_a_predictor_that_drains_too_long_fails_its_requests(gated):  # noqa: F811
    first = await closed(gated)
    waiting = asyncio.create_task(gated([1, 1]))
    await asyncio.sleep(0)
    await gated.drain(timeout=0.01)
    for request in (first, waiting):
        with pytest.raises(Unavailable, match=r"was not answered within the 0\.01 s that model had to drain"):
            await request
    Gate.let.set()
    await gated.ready()
    assert list(await gated([2, 2])) == [2, 2]
    await gated.drain()


async def test_a_predictor_that_drains_too_long_closes_its_sessions():
    predictor = summing()
    session = predictor.session()
    call = await test_session.closed(predictor, session)
    await predictor.drain(timeout=0.01)
    with pytest.raises(SessionClosed, match="was closed because model was drained"):
        await call
    test_session.Sums.let.set()


HANDLER = """
import sys
import time

def handle(data, context):
    print("begun" if data else "", file=sys.stderr, flush=True)
    while data:
        time.sleep(0.01)
"""


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_process_ends_though_its_code_does_not(tmp_path, workers):
    (tmp_path / "endless.py").write_text(HANDLER)
    command = ["serve", str(tmp_path), "--handler", "endless.py", "--port", "0", "--drain-timeout", "0.1"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "flowmx", *command, "--workers", workers, env=dict(os.environ), stderr=-1
    )
    log = ""
    async with asyncio.timeout(100), ClientSession() as session:
        while (address := re.search(r"http://\S+", log)) is None:
            log += (await process.stderr.readline()).decode()
        request = asyncio.create_task(session.post(f"{address[0]}/invocations", json=[1]))
        while "begun" not in log:
            log += (await process.stderr.readline()).decode()
        process.send_signal(signal.SIGTERM)
        assert (await request).status == 503
        log += (await process.stderr.read()).decode()
        assert await process.wait() == 0, log
    assert "1 requests were not answered within 0.1 s" in log


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "soon"])
def test_the_time_to_drain_is_a_number_of_seconds(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "model", "--drain-timeout", text])
    assert f"{text!r}, expected a number of seconds of at least 0" in capsys.readouterr().err


@pytest.mark.parametrize("timeout", ["20", None, -1, float("nan")])
def test_an_application_checks_its_time_to_drain(gated, timeout):  # noqa: F811
    with pytest.raises(
        ValueError, match=re.escape(f"drain_timeout is {timeout!r}, expected a number of seconds of at")
    ):
        app(gated, drain_timeout=timeout)


async def test_a_wrong_time_to_drain_does_not_stop_a_predictor(gated):  # noqa: F811
    async with gated as predictor:
        with pytest.raises(TypeError, match="timeout is '20', expected a number"):
            await predictor.drain(timeout="20")
        assert list(await predictor([1, 2])) == [1, 2]


@pytest.mark.parametrize("wrong", [{"max_batch": "8"}, {"max_latency": "1"}, {"max_queue": [1]}, {"budget": 3}])
def test_arguments_of_other_types_are_named(wrong):
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} is .*, expected"):
        Predictor(mx.gluon.nn.Dense(1), (2,), **wrong)
