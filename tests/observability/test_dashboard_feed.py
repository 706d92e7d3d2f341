"""The dashboard over HTTP: frames for many, slow and disconnecting viewers; rejected requests."""

import asyncio
import contextlib
import json
import os
import re
import socket
import threading
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

import flowmx as mx
from flowmx import cli, settings
from flowmx.comm.limits import DASHBOARD
from flowmx.comm.security import InsecureAddress
from flowmx.engine.runtime import engine
from flowmx.observability.dashboard import sampler_thread, server
from flowmx.observability.dashboard.feed import Viewer
from flowmx.observability.dashboard.sampler_thread import SamplingThread, sampling_thread
from flowmx.observability.dashboard.series import Frame
from flowmx.observability.dashboard.web_app import MAX_VIEWERS
from flowmx.observability.flight import curves
from flowmx.observability.safety.step_counter import step_counts
from tests.waiting import until

SECRET = "a secret of some letters"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(sampler_thread, "INTERVAL", 0.05)


@pytest.fixture
def dashboard(monkeypatch):
    monkeypatch.setattr(curves, "curves", {})
    with mx.dashboard.start() as instance:
        yield instance


async def frames(response):
    """Yield the frames of a feed."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def sampling_threads():
    return [each for each in threading.enumerate() if each.name == "flowmx-dashboard-sampling"]


# -- viewers -----------------------------------------------------------------------------------------------------


async def test_viewers_share_one_sampling_and_the_last_ends_it(dashboard):
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{dashboard.url}events") as one, session.get(f"{dashboard.url}events") as two:
            assert one.headers["Content-Type"].startswith("text/event-stream")
            sequences = [[frame async for frame, _ in _zip(frames(each), 4)] for each in (one, two)]
            assert len(sampling_threads()) == 1 and sampling_thread.viewers == 2
        for each in sequences:
            assert each[0]["whole"] and not any("whole" in frame for frame in each[1:])
            assert [frame["seq"] for frame in each] == list(range(each[0]["seq"], each[0]["seq"] + 4))
        await until(lambda: not sampling_thread.viewers and not sampling_threads())
    assert "lines" not in engine.watches and "values" not in engine.watches


async def _zip(source, count):
    number = 0
    async for each in source:
        yield each, number
        number += 1
        if number == count:
            return


async def test_without_viewers_there_is_no_thread_and_no_watch(dashboard):
    await mx.nd.ones((300, 300))
    assert not sampling_threads() and not sampling_thread.viewers
    seq = sampling_thread.seq
    async with aiohttp.ClientSession() as session, session.get(dashboard.url) as response:
        assert response.status == 200 and "flowmx" in await response.text()
    assert sampling_thread.seq == seq


class DemandSampler(SamplingThread):
    """A thread that samples on demand."""

    def join(self, wake):
        self._wakes.add(wake)

    def leave(self, wake):
        self._wakes.discard(wake)

    def beat(self):
        self._sampler.seq += 1
        self._delta = Frame(self._sampler.seq, {"seq": self._sampler.seq})
        for wake in self._wakes:
            wake()


async def test_a_slow_viewer_gets_the_newest_state_and_no_queue():
    source = DemandSampler()
    with Viewer(source) as slow, Viewer(source) as quick:
        source.beat()
        assert [json.loads(await each.next()).get("whole") for each in (slow, quick)] == [True, True]
        for _ in range(50):
            source.beat()
            assert json.loads(await quick.next()) == {"seq": source.seq}
        document = json.loads(await slow.next())
        assert document["whole"] and document["seq"] == source.seq
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow.next(), 0.05)
    assert not source.viewers


async def test_a_viewer_that_is_closed_ends():
    source = DemandSampler()
    with Viewer(source) as viewer:
        waiting = asyncio.ensure_future(viewer.next())
        await asyncio.sleep(0)
        viewer.close()
        assert await waiting is None


async def test_a_viewer_that_reads_nothing_is_disconnected(dashboard, monkeypatch):
    monkeypatch.setattr("flowmx.observability.dashboard.feed._WRITE_TIMEOUT", 0.2)
    huge = Frame(1, {"seq": 1, "filler": "x" * 30_000_000})
    monkeypatch.setattr("flowmx.observability.dashboard.series.Sampler.whole", lambda self: huge)
    host, port = dashboard.url[7:-1].split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await until(lambda: sampling_thread.viewers == 1)
    reader._transport.pause_reading()
    await until(lambda: sampling_thread.viewers == 0)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_the_oldest_viewer_is_dropped_when_there_are_too_many(dashboard):
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        answers = [await session.get(f"{dashboard.url}events") for _ in range(MAX_VIEWERS + 1)]
        assert [each.status for each in answers] == [200] * (MAX_VIEWERS + 1)
        async with asyncio.timeout(20):
            async for _ in answers[0].content:  # it ends
                pass
        await anext(frames(answers[-1]))
        assert sampling_thread.viewers <= MAX_VIEWERS
        for each in answers:
            each.close()


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_idle_connections_take_few_descriptors_and_keep_no_viewer_out(dashboard):
    host, port = dashboard.url.removeprefix("http://").rstrip("/").split(":")
    before = open_files()
    idle = [socket.create_connection((host, int(port))) for _ in range(300)]
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{dashboard.url}events") as response:
            assert response.status == 200
            await anext(frames(response))
            # Both ends are in this process: 300 descriptors of the clients, and few of the dashboard.
            await until(lambda: open_files() - before < 300 + DASHBOARD.unauthenticated + 10)
    finally:
        for each in idle:
            each.close()


async def test_a_stopped_dashboard_tells_its_viewers():
    instance = mx.dashboard.start()
    async with aiohttp.ClientSession() as session, session.get(f"{instance.url}events") as response:
        async for _ in _zip(frames(response), 2):
            pass
        await asyncio.to_thread(instance.stop)
        async for _ in frames(response):
            pass  # and comes to an end
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(instance.url)
    instance.stop()


async def test_it_answers_while_the_loop_and_the_engine_are_blocked(dashboard):
    gate = threading.Event()
    mx.engine.push(gate.wait, name="stuck", device=mx.cpu())

    async def look():
        async with aiohttp.ClientSession() as session, session.get(f"{dashboard.url}events") as response:
            async for frame in frames(response):
                running_now = [each["running"] for each in frame["now"]["actors"] if each["running"]]
                if running_now:
                    return running_now[0]["name"]
            return None

    results = []
    other = threading.Thread(target=lambda: results.append(asyncio.run(look())))
    other.start()
    while other.is_alive():
        other.join(0.1)  # this event loop is blocked meanwhile
    gate.set()
    assert results == ["stuck"]


# -- its input ----------------------------------------------------------------------------------------------------


async def test_a_training_shows_its_curves_and_memory(dashboard):
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=300, name="seen")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(data, name="softmax"))
    batches = mx.io.NDArrayIter(mx.nd.ones((256, 400)), mx.nd.zeros((256,)), 64)
    ended = asyncio.Event()

    async def train():
        while not ended.is_set():
            await module.fit(batches, eval_data=batches, num_epoch=1, eval_metric="acc")
            mx.dashboard.log("mine", float("nan"))

    training = asyncio.create_task(train())
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{dashboard.url}events") as response:
            async for frame in frames(response):
                now = frame["now"]
                held = now.get("holders", {})
                if now["steps"] and held.get("roles") and "validation accuracy" in now["curves"]:
                    rates = frame.get("values", {})
                    if rates.get("samples"):
                        break
    finally:
        ended.set()
        await training
    assert now["curves"]["train accuracy"] >= 0 and now["curves"]["mine"] == "nan"
    assert rates["samples"] == pytest.approx(64 * rates["steps"], rel=1e-3)
    assert dict(held["layers"])["seen"] == 4 * (400 * 300 + 300) == dict(held["roles"])["weights"]
    assert dict(held["roles"])["activations, by the plan"] > 0
    assert now["memory"][0]["device"] == "cpu"


# -- who may look ------------------------------------------------------------------------------------------------


def test_samples_are_samples():
    steps, samples = step_counts()
    line = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1)
    module = mx.mod.Module(mx.sym.LinearRegressionOutput(line, name="out"), label_names=("out_label",))
    batches = mx.io.NDArrayIter(mx.nd.ones((10, 3)), mx.nd.ones((10, 1)), 4, label_name="out_label")
    mx.run(module.fit(batches, num_epoch=2, eval_metric="mse"))
    assert step_counts() == (steps + 6, samples + 20)  # without the two padding rows of each last batch
    net = mx.gluon.nn.Dense(1)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    for size, expected in ((1, 20), (8, 28)):  # after a mean, step(1) does not give the number of samples
        with mx.autograd.record():
            loss = net(mx.nd.ones((8, 3))).mean()
        loss.backward()
        trainer.step(size)
        assert step_counts()[1] == samples + expected


async def test_foreign_names_are_refused(dashboard):
    async with aiohttp.ClientSession() as session:
        for path in ("", "events", "main.js", "nothing"):
            async with session.get(dashboard.url + path, headers={"Host": "evil.example"}) as response:
                assert response.status == 403 and "expected localhost" in await response.text()
        assert not sampling_thread.viewers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
async def test_it_only_reads(dashboard, method):
    async with aiohttp.ClientSession() as session:
        for path in ("", "events", "nothing"):
            async with session.request(method, dashboard.url + path) as response:
                assert response.status == 405 and response.headers["Allow"] == "GET"


async def test_responses_forbid_foreign_content(dashboard):
    async with aiohttp.ClientSession() as session:
        for path in ("", "index.html", "style.css", "main.js", "icon.svg", "events"):
            async with session.get(dashboard.url + path) as response:
                assert response.status == 200
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                assert "Access-Control-Allow-Origin" not in response.headers
        for path in ("../application.py", "%2e%2e/application.py", "page/", "nothing"):
            async with session.get(dashboard.url + path) as response:
                assert response.status == 404


def test_other_addresses_require_a_secret():
    with pytest.raises(InsecureAddress, match="requires a secret"):
        mx.dashboard.start("0.0.0.0")
    with pytest.raises(ValueError, match="expected at least 16"):
        mx.dashboard.start(secret="short")


async def test_a_browser_shows_the_secret_once():
    async with mx.dashboard.start("0.0.0.0", secret=SECRET) as instance:
        url = instance.url.replace("0.0.0.0", "127.0.0.1")
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            assert [(await session.get(url + path)).status for path in ("", "events", "?token=wrong")] == [
                401,
                401,
                403,
            ]
            async with session.get(f"{url}?token={SECRET}") as response:
                assert response.status == 200 and SECRET not in str(response.url)
            assert (await session.get(f"{url}main.js")).status == 200
        async with aiohttp.ClientSession() as session:
            answer = await session.get(url, headers={"Authorization": f"Bearer {SECRET}"})
            assert answer.status == 200


# -- ways to start it --------------------------------------------------------------------------------------------


async def test_it_can_be_mounted_in_another_application():
    site = web.Application()
    site.add_subapp("/watch", mx.dashboard.application())
    async with TestClient(TestServer(site)) as client:
        answer = await client.get("/watch/")
        assert answer.status == 200 and "style.css" in await answer.text()
        answer = await client.get("/watch/events")
        async for frame, _ in _zip(frames(answer), 1):
            assert frame["whole"] and frame["now"]["pid"] == os.getpid()
        answer.close()
        assert (await client.get("/watch/", headers={"Host": "evil.example"})).status == 403


def test_the_pages_example_runs(capsys):
    page = (Path(__file__).parent.parent.parent / "docs" / "dashboard.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/dashboard.md", "exec"), {})
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("command", ["serve", "launch"])
def test_commands_have_an_option_for_it(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert "--dashboard [PORT]" in capsys.readouterr().out


def test_a_port_that_is_taken_is_an_error(dashboard):
    port = int(dashboard.url.rstrip("/").rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        mx.dashboard.start(port=port)


def test_a_setting_starts_it_on_another_port_where_its_own_is_taken(dashboard, monkeypatch, capsys):
    monkeypatch.setattr(server, "_by_setting", [])
    port = int(dashboard.url.rstrip("/").rpartition(":")[2])
    with settings.override(dashboard=port):
        engine.configure(settings.get())
        engine.configure(settings.get())
    (instance,) = server._by_setting
    assert instance.url in capsys.readouterr().err and instance.url != dashboard.url
    instance.stop()
