"""``flowmx serve --workers``: processes that share a socket, and are replaced when they end."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from aiohttp import ClientConnectionError, ClientSession

from flowmx.comm.metrics import Metrics, merge, totals
from flowmx.serve import command
from flowmx.serve.pool_channel import Channel, ChannelClosed
from flowmx.serve.replies import Refusal
from tests.serve.test_predictor import answers, network

ROWS = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)


def metrics(answered, queued, version, latencies):
    registry = Metrics()
    registry.counter("requests_total", "Requests by result.", ["model", "result"]).add("a b", "answered", by=answered)
    registry.gauge("queued", "Queued.", ["model"]).set(queued, "a b")
    registry.gauge("version", "Version.", ["model"]).set(version, "a b")
    histogram = registry.histogram("seconds", "Seconds.", ["model"], (1.0, 2.0))
    for seconds in latencies:
        histogram.observe(seconds, "a b")
    return registry


def test_metrics_of_processes_are_merged_to_those_of_one():
    parts = [metrics(3, 1, 2, [0.5, 1.5]), metrics(4, 2, 5, [1.25])]
    together = metrics(7, 3, 5, [0.5, 1.5, 1.25])
    assert merge((each.text() for each in parts), ["version"]) == together.text()
    assert merge([]) == ""
    assert merge([together.text()]) == together.text()
    assert merge(["", totals(parts[0].text()), parts[1].text()]).count("requests_total{") == 1
    assert "queued" not in totals(together.text())
    assert 'seconds_count{model="a b"} 3' in totals(together.text())


class Service:
    """A running ``flowmx serve``; reads its log."""

    def __init__(self, process):
        self.process, self.log, self.address = process, [], asyncio.get_running_loop().create_future()
        self.reading = asyncio.create_task(self._read())

    async def _read(self):
        async for line in self.process.stderr:
            self.log.append(line.decode())
            match = re.search(r"https?://\S+", self.log[-1])
            if match and not self.address.done():
                self.address.set_result(match[0])
        if not self.address.done():
            self.address.set_exception(AssertionError("".join(self.log)))

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, *options, folder):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "flowmx", "serve", *options, "--port", "0", "--workers", "2", cwd=folder,
            env={**os.environ, "PYTHONWARNINGS": "error"}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        service = cls(process)
        try:
            async with asyncio.timeout(90), ClientSession(await service.address) as session:
                service.session = session
                yield service
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await service.reading

    async def post(self, path, **options):
        async with self.session.post(path, **options) as reply:
            return reply.status, await reply.json() if reply.content_type == "application/json" else None

    async def once(self, path, **options):
        """Post on a new connection, which any worker may accept."""
        async with ClientSession(await self.address) as session, session.post(path, **options) as reply:
            return reply.status, await reply.json()

    async def get(self, path):
        async with self.session.get(path) as reply:
            return await reply.text()

    async def ready(self, **expected):
        """Wait until the service is ready, with these numbers of workers."""
        while True:
            async with self.session.get("/readyz") as reply:
                document = await reply.json()
                if reply.status == 200 and document["workers"].items() >= expected.items():
                    return document
            await asyncio.sleep(0.01)

    def workers(self):
        """Return the process ids of the workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children if b"--member" in Path(f"/proc/{child}/cmdline").read_bytes()]

    async def end(self):
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@pytest.fixture
def repository(tmp_path):
    """Return a repository of two models, and what they compute: a net with two versions, and a handler of MMS."""
    expected = []
    for number in (1, 2):
        net = network(number)
        net.hybridize()
        expected.append(answers(net, ROWS))
        (tmp_path / "models" / "net" / str(number)).mkdir(parents=True)
        net.export(tmp_path / "models" / "net" / str(number) / "model")
    (tmp_path / "models" / "net" / "model.toml").write_text("shape = [5]\nmax_batch = 4\nmax_queue = 256\nweight = 2")
    (tmp_path / "models" / "net" / "2").rename(tmp_path / "2")
    handler = tmp_path / "models" / "pids"
    handler.mkdir()
    (handler / "model.toml").write_text('handler = "pids.py:handle"')
    (handler / "pids.py").write_text("import os\n\ndef handle(data, context):\n    return data and [[os.getpid()]]\n")
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("the token of those who may load")
    return tmp_path, expected


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
async def test_workers_share_requests_survive_kills_swap_and_drain(repository):
    path, (first, second) = repository
    admin = {"Authorization": "Bearer the token of those who may load"}
    options = ["--repository", "models", "--admin-token-file", "token"]
    async with Service.start(*options, folder=path) as service:
        await service.ready(expected=2, running=2, replaced=0)
        assert "2 workers serve at http" in "".join(service.log)
        workers = service.workers()
        assert len(workers) == 2

        # Both workers answer, and the metrics of either are those of both.
        async def pid():
            return (await service.once("/predictions/pids", data=b"x"))[1][0]

        pids = Counter(await asyncio.gather(*(pid() for _ in range(60))))
        while set(pids) != set(workers):  # another task may have used all time of one of them
            pids.update(await asyncio.gather(*(pid() for _ in range(20))))
        counts = re.findall(r'requests_total\{model="pids:1",result="answered"\} (\d+)', await service.get("/metrics"))
        assert counts == [str(pids.total())]

        # A killed worker is replaced, and loses only requests that it had accepted.
        os.kill(workers[0], signal.SIGKILL)
        outcomes = Counter()
        for _ in range(30):
            try:
                await pid()
                outcomes["answered"] += 1
            except ClientConnectionError:
                outcomes["lost"] += 1
        assert outcomes["lost"] <= 1
        await service.ready(expected=2, running=2, replaced=1)
        assert any("worker 0 ended: killed by SIGKILL" in line or "worker 1 ended" in line for line in service.log)
        text = await service.get("/metrics")
        counts = re.findall(r'requests_total\{model="pids:1",result="answered"\} (\d+)', text)
        assert int(counts[0]) >= pids.total()
        assert "flowmx_serve_worker_restarts_total 1" in text

        # A new version is loaded in all workers while clients ask, and no request is lost.
        stop, is_new_by_answer = asyncio.Event(), set()

        async def ask():
            async with ClientSession(await service.address) as session:
                while not stop.is_set():
                    async with session.post("/models/net/predict", json=ROWS[0].tolist()) as reply:
                        assert reply.status == 200, await reply.text()
                        outputs = (await reply.json())["outputs"]
                    is_new = np.allclose(outputs, second[0], rtol=1e-4, atol=1e-5)
                    assert is_new or np.allclose(outputs, first[0], rtol=1e-4, atol=1e-5)
                    is_new_by_answer.add(is_new)

        clients = [asyncio.create_task(ask()) for _ in range(8)]
        (path / "2").rename(path / "models" / "net" / "2")
        while not is_new_by_answer:
            await asyncio.sleep(0.01)
        status, _ = await service.post("/v2/repository/models/net/load", headers=admin)
        assert status == 200
        stop.set()
        await asyncio.gather(*clients)
        for _ in range(10):  # whichever worker answers
            _, document = await service.once("/models/net/predict", json=ROWS[1].tolist())
            np.testing.assert_allclose(document["outputs"], second[1], rtol=1e-4, atol=1e-5)

        # A model that is unloaded stays unloaded in a new worker; a failed load is an answer.
        assert (await service.post("/v2/repository/models/pids/unload", headers=admin))[0] == 200
        os.kill(service.workers()[1], signal.SIGKILL)
        await service.ready(running=2, replaced=2)
        for _ in range(10):
            assert (await service.once("/predictions/pids", data=b"x"))[0] == 404
        (path / "models" / "pids" / "pids.py").write_text("fail")
        status, document = await service.post("/v2/repository/models/pids/load", headers=admin)
        assert (status, "NameError" in document["error"]) == (400, True)

        # Cancelled requests leave the queues, and SIGTERM drains both workers.
        async def impatient():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    await service.post("/models/net/predict", json=ROWS.tolist())

        await asyncio.gather(*(impatient() for _ in range(20)))
        late = [asyncio.create_task(service.post("/models/net/predict", json=ROWS[2].tolist())) for _ in range(20)]
        await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
        assert await service.end() == 0, "".join(service.log)
        for outcome in await asyncio.gather(*late, return_exceptions=True):
            # A connection whose request has not been read gets a 503 with Retry-After.
            is_fine = (
                outcome[0] in (200, 503) if isinstance(outcome, tuple) else isinstance(outcome, ClientConnectionError)
            )
            assert is_fine, repr(outcome)


@linux
def test_workers_that_cannot_start_end_the_service(tmp_path):
    run = [sys.executable, "-m", "flowmx", "serve", "--workers", "2", "--port", "0"]
    ended = subprocess.run([*run, "nowhere", "--shape", "5"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "there is no model 'nowhere'" in ended.stderr
    assert "did not start: exit status 1" in ended.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["m", "--workers", "0"], "--workers is 0, expected at least 1"),
        (["m", "--workers", "2", "--dashboard", "8000"], "--dashboard takes no port with --workers"),
    ],
)
def test_options_of_workers_that_contradict_each_other_are_refused(options, message, capsys):
    with pytest.raises(SystemExit):
        command.main(options)
    assert message in capsys.readouterr().err


async def test_a_call_between_pool_and_worker_always_ends(caplog):
    async def refuse():
        raise ValueError("no")

    async def wait():
        await asyncio.Event().wait()

    pool, worker = [await Channel.open(end, {"refuse": refuse, "wait": wait}) for end in socket.socketpair()]
    for method, reason in (("refuse", "ValueError: no"), ("unknown", "KeyError")):
        with pytest.raises(Refusal, match=reason):
            await pool.call(method)
        assert f"calling {method} failed" in caplog.text
    call = asyncio.create_task(pool.call("wait"))
    await asyncio.sleep(0)
    await worker.close()
    with pytest.raises(ChannelClosed):
        await call
    with pytest.raises(ChannelClosed):
        await pool.call("refuse")
    await pool.close()
