"""Services over HTTP: bodies, refusals, disconnecting clients; as an aiohttp and as an ASGI application."""

import asyncio
import io
import json
import os
import signal
import threading
import tracemalloc

import msgpack
import numpy as np
import pytest
from aiohttp import ClientSession, web

import flowmx as mx
from flowmx.comm.limits import Limits
from flowmx.comm.metrics import Metrics
from flowmx.comm.rate_limits import Throttle
from flowmx.serve import Predictor, app, asgi
from flowmx.serve.aiohttp_app import CONNECTIONS, SERVICE, run
from flowmx.serve.service import Service
from tests.serve.test_predictor import Gate, closed, gated  # noqa: F401 (a fixture)
from tests.waiting import until

JSON, MSGPACK, NPY = "application/json", "application/msgpack", "application/x-npy"


def doubling(**options):
    return Predictor(mx.gluon.nn.HybridLambda(lambda F, x: x * 2), (2,), max_batch=4, metrics=Metrics(), **options)


def npy(array):
    stream = io.BytesIO()
    np.save(stream, np.asarray(array, np.float32))
    return stream.getvalue()


def packed(array):
    array = np.asarray(array, np.float32)
    return {"shape": list(array.shape), "dtype": "float32", "data": array.tobytes()}


class Client:
    """Speaks to predictors through aiohttp, on a real socket."""

    def __init__(self, predictors, **options):
        self.application = web.Application()
        below = app(predictors, **options)
        self.service = below[SERVICE]
        self.application.add_subapp("/ml", below)

    async def __aenter__(self):
        self.runner = web.AppRunner(self.application, handler_cancellation=True)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.connect()
        return self

    def connect(self):
        self.session = ClientSession(f"http://127.0.0.1:{self.runner.addresses[0][1]}")

    async def __aexit__(self, *error):
        await self.session.close()
        await self.runner.cleanup()

    async def __call__(self, method, path, body=b"", **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, f"/ml{path}", data=body, headers=named) as reply:
            return reply.status, dict(reply.headers), await reply.read()


class Gateway:
    """Speaks to predictors through ASGI, by hand, mounted below /ml."""

    def __init__(self, predictors, **options):
        self.application = asgi(predictors, **options)
        self.service = self.application.service

    async def __aenter__(self):
        self.events, self.sent = asyncio.Queue(), asyncio.Queue()
        self.life = asyncio.create_task(self.application({"type": "lifespan"}, self.events.get, self.sent.put))
        await self.events.put({"type": "lifespan.startup"})
        assert await self.sent.get() == {"type": "lifespan.startup.complete"}
        return self

    async def __aexit__(self, *error):
        await self.events.put({"type": "lifespan.shutdown"})
        assert await self.sent.get() == {"type": "lifespan.shutdown.complete"}
        await self.life

    async def __call__(self, method, path, body=b"", **headers):
        named = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
        path, _, query = f"/ml{path}".partition("?")
        scope = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(), "root_path": "/ml",
            "headers": named,
        }  # fmt: skip
        events, sent = asyncio.Queue(), []
        events.put_nowait({"type": "http.request", "body": body[:5], "more_body": True})
        events.put_nowait({"type": "http.request", "body": body[5:]})

        async def send(event):
            sent.append(event)

        await self.application(scope, events.get, send)
        start, *parts = sent
        assert not parts[-1].get("more_body")
        fields = {name.decode().title(): value.decode() for name, value in start["headers"]}
        return start["status"], fields, b"".join(part["body"] for part in parts)


@pytest.fixture(params=[Client, Gateway])
def carried(request):
    return request.param


BODIES = {
    "lists": (JSON, json.dumps([1, 2]).encode()),
    "inputs": (JSON, json.dumps({"inputs": [1, 2]}).encode()),
    "named": (JSON, json.dumps({"inputs": {"data": [1, 2]}}).encode()),
    "msgpack": (MSGPACK, msgpack.packb({"inputs": packed([1, 2])})),
    "bare": ("application/x-msgpack", msgpack.packb(packed([1, 2]))),
    "npy": (NPY, npy([1, 2])),
}


async def test_every_kind_of_body_and_answer(carried):
    predictor = doubling()
    async with carried(predictor) as ask:
        await predictor.ready()
        for name, (kind, body) in BODIES.items():
            status, headers, answer = await ask("POST", "/predict", body, Content_Type=kind, Accept=JSON)
            assert (status, headers["Content-Type"].split(";")[0]) == (200, JSON), name
            assert json.loads(answer) == {"outputs": [2.0, 4.0]}
        _, _, answer = await ask("POST", "/models/model/predict", npy([[1, 2], [3, 4]]), Content_Type=NPY)
        np.testing.assert_array_equal(np.load(io.BytesIO(answer)), [[2, 4], [6, 8]])
        _, _, answer = await ask("POST", "/predict", npy([1, 2]), Content_Type=NPY, Accept=f"text/html, {MSGPACK};q=1")
        assert msgpack.unpackb(answer) == {"outputs": packed([2, 4])}


@pytest.mark.parametrize(
    ("path", "kind", "body", "status", "message"),
    [
        ("/predict", JSON, b"[1, 2, 3]", 400, "shape (3,), expected (2,)"),
        ("/predict", JSON, b"[1, ", 400, "not valid JSON"),
        ("/predict", JSON, b"[" * 900, 400, "too large"),
        ("/predict", NPY, b"\x93NUMPY", 400, "not a valid .npy"),
        ("/predict", NPY, npy([1, 2])[:-1], 400, "7 bytes after its header, expected 8"),
        ("/predict", MSGPACK, b"\xc1", 400, "not valid msgpack"),
        ("/predict", MSGPACK, msgpack.packb({**packed([1, 2]), "dtype": "object"}), 400, "dtype"),
        ("/predict", MSGPACK, msgpack.packb({**packed([1, 2]), "shape": [1 << 60]}), 400, "bytes"),
        ("/predict", "text/plain", b"1 2", 415, "expected one of application/json"),
        ("/predict", JSON, b"[" + b" " * 2000 + b"1, 2]", 413, "application/x-npy"),
        ("/models/other/predict", JSON, b"[1, 2]", 404, "no model 'other', expected one of model"),
        ("/elsewhere", JSON, b"[1, 2]", 404, "expected /predict"),
    ],
)
async def test_a_wrong_request_gets_the_reason(carried, path, kind, body, status, message):
    async with carried(doubling(), max_text=1000) as ask:
        answer_status, _, answer = await ask("POST", path, body, Content_Type=kind)
        assert answer_status == status
        content = json.loads(answer)
        assert message in content["error"]
        if status == 400:
            assert content["expected"] == [{"name": "data", "shape": [2], "dtype": "float32"}]


async def test_other_methods_and_formats(carried):
    async with carried(doubling()) as ask:
        status, headers, _ = await ask("GET", "/predict")
        assert (status, headers["Allow"]) == (405, "POST")
        status, _, answer = await ask("POST", "/predict", b"[1, 2]", Content_Type=JSON, Accept="image/png")
        assert status == 406, answer


async def test_the_pages(carried):
    first, second = doubling(name="first"), doubling(name="second")
    async with carried({"first": first, "second": second}) as ask:
        assert (await ask("GET", "/healthz"))[0] == 200
        await first.ready()
        await second.ready()
        assert (await ask("GET", "/readyz"))[0] == 200
        _, _, answer = await ask("GET", "/models")
        assert [each["name"] for each in json.loads(answer)["models"]] == ["first", "second"]
        _, _, answer = await ask("GET", "/models/second")
        assert json.loads(answer)["batch_sizes"] == [1, 2, 4]
        assert (await ask("POST", "/models/first/predict", b"[1, 2]", Content_Type=JSON))[0] == 200
        _, headers, answer = await ask("GET", "/metrics")
        assert headers["Content-Type"].startswith("text/plain")
        assert 'flowmx_serve_requests_total{model="first",result="answered"} 1' in answer.decode()
        second.refuse()
        status, _, answer = await ask("GET", "/readyz")
        assert (status, json.loads(answer)["waiting_for"]) == (503, ["second"])


def named_models():
    factors = {"first": 1, "second": 2}
    nets = {name: mx.gluon.nn.HybridLambda(lambda F, x, by=by: x * by) for name, by in factors.items()}
    return {name: Predictor(net, (1,), name=name, max_batch=1, metrics=Metrics()) for name, net in nets.items()}


@pytest.mark.parametrize("path", ["/predict", "/invocations"])
async def test_a_request_without_a_name_gets_the_default_of_several_models(carried, path):
    async with carried(named_models()) as ask:
        status, _, answer = await ask("POST", path, b"[3]", Content_Type=JSON)
        error = json.loads(answer)["error"]
        assert status == 400
        for part in ("first, second", "/models/first/predict", "/invocations?model_name=first", "--default first"):
            assert part in error
        answer = (await ask("POST", f"{path}?model_name=second", b"[3]", Content_Type=JSON))[2]
        assert json.loads(answer) == {"outputs": [6.0]}
        assert (await ask("POST", f"{path}?model_name=third", b"[3]", Content_Type=JSON))[0] == 404
        assert (await ask("POST", f"{path}?" + "a&" * 300, b"[3]", Content_Type=JSON))[0] == 400
        assert "/predict" not in json.loads((await ask("GET", "/openapi.json"))[2])["paths"]
    async with carried(named_models(), default="second") as ask:
        assert json.loads((await ask("POST", path, b"[3]", Content_Type=JSON))[2]) == {"outputs": [6.0]}
        assert "/predict" in json.loads((await ask("GET", "/openapi.json"))[2])["paths"]
    with pytest.raises(ValueError, match="the default model is 'third', expected one of first, second"):
        carried(named_models(), default="third")


async def test_models_answer_at_the_addresses_of_sagemaker(carried):
    async with carried(named_models()) as ask:
        answer = (await ask("POST", "/models/second/invoke", b"[3]", Content_Type=JSON))[2]
        assert json.loads(answer) == {"outputs": [6.0]}


async def test_overload_is_503_with_retry_after(carried, gated):  # noqa: F811
    async with carried(gated) as ask:
        first = await closed(gated)
        waiting = [asyncio.create_task(gated([i, i])) for i in range(6)]
        await asyncio.sleep(0)
        status, headers, answer = await ask("POST", "/predict", b"[1, 2]", Content_Type=JSON)
        assert status == 503
        assert int(headers["Retry-After"]) >= 1
        assert "6 samples are queued" in json.loads(answer)["error"]
        Gate.let.set()
        await asyncio.gather(first, *waiting)


async def test_a_client_that_disconnects_releases_its_rows(gated):  # noqa: F811
    async with Client(gated) as ask:
        first = await closed(gated)
        asking = asyncio.create_task(ask("POST", "/predict", npy([[1, 1]] * 5), Content_Type=NPY))
        await until(lambda: gated._runner.queue.rows == 5)
        asking.cancel()
        await until(lambda: gated._runner.queue.rows == 0)
        Gate.let.set()
        await first
        assert (await ask("POST", "/predict", b"[1, 2]", Content_Type=JSON))[0] == 200


async def test_an_asgi_client_that_disconnects_releases_its_rows(gated):  # noqa: F811
    application, events, sent = asgi(gated), asyncio.Queue(), []
    first = await closed(gated)
    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [(b"content-type", NPY.encode())]}
    events.put_nowait({"type": "http.request", "body": npy([[1, 1]] * 5)})
    asking = asyncio.create_task(application(scope, events.get, sent.append))
    await until(lambda: gated._runner.queue.rows == 5)
    events.put_nowait({"type": "http.disconnect"})
    await asking
    assert gated._runner.queue.rows == 0
    assert not sent
    Gate.let.set()
    await first
    await gated.drain()


async def test_an_asgi_server_of_something_else_is_refused():
    predictor = doubling()
    with pytest.raises(ValueError, match="unsupported scope type 'webtransport'"):
        await asgi(predictor)({"type": "webtransport"}, None, None)


@pytest.mark.parametrize("requests", [400, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_disconnecting_clients_leak_nothing(requests):
    predictor = doubling(max_queue=200)
    async with Client(predictor) as ask:
        await predictor.ready()
        rng = np.random.default_rng(0)
        outcomes = {"left": 0, 200: 0, 503: 0}

        async def client(count):
            for _ in range(count):
                leaves = rng.random() < 0.3
                try:
                    async with asyncio.timeout(0.002 * rng.random() if leaves else 60):
                        status, _, _ = await ask("POST", "/predict", npy([1, 2]), Content_Type=NPY)
                except TimeoutError:
                    assert leaves
                    outcomes["left"] += 1
                else:
                    outcomes[status] += 1

        before = len(asyncio.all_tasks())
        await asyncio.gather(*(client(requests // 40) for _ in range(40)))
        await until(lambda: not predictor._runner.pending)
        await until(lambda: len(asyncio.all_tasks()) <= before + 45)  # idle connections
        assert sum(outcomes.values()) == requests
        assert outcomes["left"] > requests / 20
        assert outcomes[200] > requests / 2
        assert not predictor._runner.queue.rows
        assert not predictor._runner._pending_of


# -- unauthenticated clients -------------------------------------------------------------------------------


class Served:
    """Serve predictors like the command, but in this process; SIGTERM ends the service."""

    def __init__(self, predictors, **options):
        self.application = app(predictors, **options)

    async def __aenter__(self):
        address = asyncio.get_running_loop().create_future()
        self.running = asyncio.create_task(run(self.application, port=0, started=address.set_result))
        self.address = await address
        return self

    async def __aexit__(self, *error):
        if not self.running.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await self.running

    async def connect(self, *data):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.address.rpartition(":")[2]))
        writer.write(b"".join(data))
        return reader, writer


def head(length, kind=MSGPACK, host="localhost"):
    return (
        f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n".encode()
    )


HUGE = {
    "lists of msgpack": (MSGPACK, b"\xdd\x03\xc1\x4a\x40" + b"\x90" * 63_000_000),
    "maps of msgpack": (MSGPACK, b"\xdd\x03\xc1\x4a\x40" + b"\x80" * 10_000_000),
    "lists in lists": (MSGPACK, b"\x91" * 100_000),
    "lists of JSON": (JSON, b"[" + b"[]," * 330_000 + b"[]]"),
    "brackets": (JSON, b"[" * 500_000),
    "a header": (NPY, b"\x93NUMPY\x02\x00\x00\x87\x93\x03" + b" " * 60_000_000),
}


@pytest.mark.parametrize(("kind", "body"), HUGE.values(), ids=HUGE)
async def test_oversized_arrays_are_refused_before_they_are_built(kind, body):
    predictor = doubling()
    call = Service(predictor).begin("POST", "/predict", {"content-type": kind})
    tracemalloc.start()
    try:
        reply = await call.reply(body)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert reply.status == 400


async def test_bodies_with_an_oversized_header_are_not_received():
    async with Served(doubling()) as served:
        reader, writer = await served.connect(head(63_000_005), HUGE["lists of msgpack"][1][:1000])
        answer = await asyncio.wait_for(reader.readuntil(b"}"), 10)
        assert b"400 Bad Request" in answer
        assert b"elements of lists and maps" in answer
        writer.close()


async def test_large_bodies_are_read_on_another_thread(monkeypatch):
    threads = []
    read = Predictor.read

    def record_thread(self, content):
        threads.append(threading.current_thread() is threading.main_thread())
        return read(self, content)

    monkeypatch.setattr(Predictor, "read", record_thread)
    async with Client(doubling(), max_text=10_000) as ask:
        for padding in (0, 8000):
            assert (await ask("POST", "/predict", b"[1, 2" + b" " * padding + b"]", Content_Type=JSON))[0] == 200
        many = msgpack.packb([[1.0] * 2] * 400)
        assert (await ask("POST", "/predict", many, Content_Type=MSGPACK))[0] == 400
        assert (await ask("POST", "/predict", npy([1, 2]), Content_Type=NPY))[0] == 200
    assert threads == [True, False, False, True]


async def test_bodies_share_a_budget_of_bytes(carried):
    predictor = doubling()
    async with carried(predictor) as ask:
        service = ask.service
        service.budget.limit = 100
        with service.budget.enter() as other:
            other.announce(60)
            status, headers, answer = await ask("POST", "/predict", b"[1, 2" + b" " * 60 + b"]", Content_Type=JSON)
            assert (status, headers["Retry-After"]) == (503, "1")
            assert "bytes are being received, of at most 100 " in json.loads(answer)["error"]
        assert (await ask("POST", "/predict", b"[1, 2" + b" " * 60 + b"]", Content_Type=JSON))[0] == 200
        assert service.budget.nbytes == 0


async def test_a_sender_that_pauses_gets_an_error():
    served = Served(doubling())
    served.application[SERVICE].limits = Limits(idle=0.05)
    async with served:
        reader, writer = await served.connect(head(100, JSON), b"[1, ")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 408")
        writer.close()


async def test_sigterm_does_not_wait_for_the_rest_of_a_body():
    async with Served(doubling()) as served:
        halves = [await served.connect(head(1000, JSON), b"[1, ") for _ in range(3)]
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await served.running
        for _, writer in halves:
            writer.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("models.example:1", 200), ("", 200),
        ("evil.example", 421), ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421), ("[evil", 421),
    ],
)  # fmt: skip
async def test_it_answers_only_for_its_host_names(carried, host, status):
    async with carried(doubling(), hosts=["localhost", "models.example"]) as ask:
        answer = await ask("GET", "/healthz", Host=host)
        assert answer[0] == status


def test_refusals_are_sent_at_a_bounded_rate():
    throttle = Throttle(rate=10.0, max_delay=2.0)
    waits = [throttle.delay(100.0) for _ in range(50)]
    assert waits[:10] == [0.0] * 10
    assert waits[11] == pytest.approx(0.2, abs=0.11)
    assert waits == sorted(waits)
    assert max(waits) == 2.0
    assert throttle.delay(200.0) == 0.0


async def test_idle_clients_do_not_block_others():
    served = Served(doubling())
    served.application[CONNECTIONS].table.max_unauthenticated = 10
    async with served:
        idle = [await served.connect() for _ in range(100)]
        async with ClientSession(served.address) as session, session.post("/predict", json=[1, 2]) as reply:
            assert await reply.json() == {"outputs": [2.0, 4.0]}
        for _, writer in idle:
            writer.close()


async def test_a_client_that_sent_only_wrong_requests_stays_unauthenticated():
    async with Served(doubling()) as served, ClientSession(served.address) as session:
        for path, body, status, unauthenticated in (
            ("/predict", b"[1, ", 400, 1), ("/nowhere", b"[1, 2]", 404, 1), ("/predict", b"[1, 2]", 200, 0),
            ("/predict", b"[1, ", 400, 0),
        ):  # fmt: skip
            async with session.post(path, data=body, headers={"Content-Type": JSON}) as reply:
                await reply.read()
                assert (reply.status, served.application[CONNECTIONS].table.unauthenticated) == (
                    status,
                    unauthenticated,
                )
