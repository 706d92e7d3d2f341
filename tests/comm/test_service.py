"""Services and peers: calls over every transport, refusals, limits, and cleanup after a failure."""

import asyncio
import gc
import logging
import socket
import weakref

import aiohttp
import numpy as np
import pytest
import uvloop
from aiohttp import web

from flowmx.comm.client import Peer
from flowmx.comm.errors import Busy, Failed, PeerGone, Refused, TooLarge, TooSlow, Unauthorized, Unknown, WireError
from flowmx.comm.frames import Message, Parser, Tensor, decode, encode
from flowmx.comm.limits import Limits
from flowmx.comm.security import Security
from flowmx.comm.server import Service
from flowmx.comm.transfer import CONTENT_TYPE, receive
from tests.waiting import until

SECRET = "sixteen bytes or more"
HEADERS = {"Content-Type": CONTENT_TYPE}
WAYS = {
    "tcp": {"local": False},
    "local": {"local": True},
    "signed tcp": {"local": False, "security": Security(SECRET)},
    "signed local": {"local": True, "security": Security(SECRET)},
}
SIZES = [0, 3, 5_000, 300_000]


async def echo(caller, message):
    return Message({"seen": dict(message.header), "node": caller.node, "local": caller.local}, message.tensors)


@pytest.fixture
async def serve():
    """Starts services that end with the test."""
    started = []

    async def start(handler=echo, place=None, borrow=False, **options):
        service = Service("tested", **options)
        service.operation("op", handler, place, borrow=borrow)
        started.append(service)
        await service.start()
        return service

    yield start
    for service in started:
        await service.stop()


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


async def exchange(way, serve):
    service = await serve(security=way.get("security"))
    async with Peer(service.address, node="worker-1", **way) as peer:
        for size in SIZES:
            arrays = [np.random.default_rng(size).random(size), np.arange(7, dtype=np.int16), np.zeros((3, 0))]
            answer = await peer.call("op", {"id": "a", "incarnation": 3}, arrays)
            assert answer.header["seen"] == {"id": "a", "incarnation": 3, "node": "worker-1"}
            assert answer.header["node"] == "worker-1"
            assert answer.header["local"] == way["local"]
            assert [np.array_equal(t.array(), a) for t, a in zip(answer.tensors, arrays, strict=True)] == [True] * 3
            targets = [np.empty_like(array) for array in arrays]
            await peer.call("op", {}, arrays, into=targets)
            assert [np.array_equal(t, a) for t, a in zip(targets, arrays, strict=True)] == [True] * 3


async def test_calls_are_answered_over_every_transport(way, serve):
    await exchange(way, serve)


@pytest.mark.parametrize("name", WAYS)
def test_calls_answer_on_uvloop_too(name):
    async def main():
        service = Service("tested", security=WAYS[name].get("security"))
        service.operation("op", echo)

        async def serve(**_):
            await service.start()
            return service

        try:
            await exchange(WAYS[name], serve)
        finally:
            await service.stop()

    uvloop.run(main())


async def test_answers_do_not_change_while_referenced(way, serve):
    service = await serve(security=way.get("security"))
    async with Peer(service.address, **way) as peer:
        answers = []
        for number in range(6):
            answers.append(await peer.call("op", {}, [np.full(50_000, number, np.float32)]))
        assert [float(answer.tensors[0].array().max()) for answer in answers] == [0, 1, 2, 3, 4, 5]


async def test_many_calls_at_once(way, serve):
    service = await serve(security=way.get("security"))
    async with Peer(service.address, **way) as peer:
        arrays = [np.full(size, size, np.float32) for size in (10, 20_000, 60_000) * 8]
        answers = await asyncio.gather(*(peer.call("op", {}, [array]) for array in arrays))
        assert all(np.array_equal(m.tensors[0].array(), a) for m, a in zip(answers, arrays, strict=True))


async def test_requests_are_received_into_their_place(way, serve):
    stored = np.zeros(40_000)

    def place(caller, header):
        assert header["tensors"][0][0] == "float64"
        return [stored.view(np.uint8).data, None]

    service = await serve(place=place, security=way.get("security"))
    async with Peer(service.address, **way) as peer:
        await peer.call("op", {}, [np.arange(40_000.0), np.ones(2)])
        assert np.array_equal(stored, np.arange(40_000.0))
        with pytest.raises(WireError, match="1 tensors, but there are 2 targets"):
            await peer.call("op", {}, [np.arange(40_000.0)])
        with pytest.raises(WireError, match="its destination is 320000 bytes"):
            await peer.call("op", {}, [np.arange(4_000.0), np.arange(9000.0)])


@pytest.mark.parametrize("local", [False, True])
async def test_borrowed_memory_stays_valid_while_the_handler_runs(serve, local):
    async def total(caller, message):
        return Message({"sum": float(message.tensors[0].array().sum())}, [])

    service = await serve(total, borrow=True)
    async with Peer(service.address, local=local) as peer:
        for number in range(3):
            answer = await peer.call("op", {}, [np.full(50_000, number, np.float32)])
            assert answer.header == {"sum": 50_000.0 * number}


@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (Refused("rank 3 is taken", "taken"), Refused, "^rank 3 is taken$"),
        (Unauthorized("not you"), Unauthorized, "^not you$"),
        (ValueError("key 7 is not there"), Refused, "^key 7 is not there$"),
        (KeyError("inner"), Failed, "operation 'op' on tested failed: KeyError: 'inner'"),
        (RuntimeError("first line\nsecond"), Failed, "RuntimeError: first line$"),
        (TimeoutError("inside"), Failed, "TimeoutError: inside"),
        (ConnectionResetError("inside"), Failed, "ConnectionResetError"),
    ],
)
async def test_an_exception_of_a_handler_becomes_a_refusal_with_its_text(way, serve, raised, expected, text, caplog):
    async def handler(caller, message):
        if "fail" in message.header:
            raise raised
        return message._replace(header={})

    service = await serve(handler, security=way.get("security"))
    async with Peer(service.address, **way) as peer:
        for tensors in ([], [np.zeros(30_000)]):
            with pytest.raises(expected, match=text) as caught:
                await peer.call("op", {"fail": 1}, tensors)
            assert caught.value.kind == getattr(raised, "kind", expected.kind)
            assert "File" not in str(caught.value)
        await peer.call("op", {}, [np.zeros(30_000)])
    assert ("Traceback" in caplog.text) == (expected is Failed)


async def test_a_handler_must_return_a_valid_message(serve):
    async def handler(caller, message):
        return Message({"shared": 1}, []) if "reserved" in message.header else None

    service = await serve(handler)
    async with Peer(service.address) as peer:
        with pytest.raises(WireError, match="is reserved for the transport"):
            await peer.call("op", {"reserved": 1})
        with pytest.raises(Failed, match="must return a Message, not None"):
            await peer.call("op", {})


async def test_unknown_operations_are_named(way, serve):
    service = await serve(security=way.get("security"))
    async with Peer(service.address, **way) as peer:
        with pytest.raises(Unknown, match="tested has no operation 'pop'; it has local, op"):
            await peer.call("pop", {})
    with pytest.raises(ValueError, match="already has an operation 'op'"):
        service.operation("op", echo)


async def raw(service, data, path="/v1/op", headers=HEADERS, method="POST"):
    """A service's answer to a body: status, and the error's kind or the text."""
    async with (
        aiohttp.ClientSession(skip_auto_headers=["Content-Type"]) as session,
        session.request(method, service.address + path, data=data, headers=headers) as response,
    ):
        body = await response.read()
        if response.content_type == CONTENT_TYPE:
            return response.status, decode([body]).header.get("error")
        return response.status, body.decode()


GOOD = b"".join(encode(Message({}, [Tensor.of(np.arange(4.0))])))


@pytest.mark.parametrize(
    ("data", "headers", "status", "text"),
    [
        (GOOD, HEADERS, 200, None),
        (GOOD[:-1], HEADERS, 400, "ends after 31 of the 32 bytes"),
        (GOOD + b"x", HEADERS, 400, "1 bytes follow"),
        (b"nonsense", HEADERS, 400, "begins with"),
        (b"", HEADERS, 400, "before the end of its header"),
        (b"FMX1\xff\xff\xff\xff", HEADERS, 413, "Limits.header"),
        (GOOD, {"Content-Type": "text/plain"}, 415, "a body must be application/x-flowmx"),
        (GOOD, {}, 415, "a body must be"),
        (GOOD, {**HEADERS, "Content-Encoding": "gzip"}, 415, "without a content encoding"),
        (GOOD, {**HEADERS, "Host": "evil.example:80"}, 401, "answers only this machine"),
        (GOOD, {**HEADERS, "Host": "evil.example"}, 401, "answers only this machine"),
        (GOOD, {**HEADERS, "Host": "[]:x:"}, 401, "answers only this machine"),
        (GOOD, {**HEADERS, "Host": "localhost"}, 200, None),
        (GOOD, {**HEADERS, "Host": "[::1]"}, 200, None),
        (b"".join(encode(Message({"id": 7}, []))), HEADERS, 400, "'id' is 7, and must be str"),
    ],
)
async def test_invalid_requests_are_refused_and_the_service_continues(serve, data, headers, status, text):
    service = await serve()
    actual_status, error = await raw(service, data, headers=headers)
    assert actual_status == status
    assert error is None or text in error["text"]
    assert (await raw(service, GOOD))[0] == 200
    assert service.admission.requests == service.admission.nbytes == 0


async def test_shared_memory_is_refused_by_tcp(serve):
    service = await serve()
    data = encode(Message({}, []))[0].replace(b"\x81\xa7tensors\x90", b"\x82\xa7tensors\x90\xa6shared\x90")
    data = data[:4] + (len(data) - 8).to_bytes(4, "little") + data[8:]
    status, error = await raw(service, data)
    assert (status, error["kind"]) == (409, "not_local")


async def test_other_methods_and_paths_are_not_found(serve):
    service = await serve()
    assert (await raw(service, None, method="GET"))[0] == 405
    assert (await raw(service, GOOD, path="/v2/op"))[0] == 404


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_says_that_it_is_too_large_is_not_read(serve, chunked):
    service = await serve(limits=Limits(total=1000, header=500))

    whole = b"".join(encode(Message({}, [Tensor.of(np.zeros(1000))])))

    async def body():
        yield whole

    status, error = await raw(
        service, body() if chunked else b"".join([*encode(Message({}, [Tensor.of(np.zeros(1000))]))])
    )
    assert (status, error["kind"]) == (413, "too_large")
    async with Peer(service.address, local=False) as peer:
        with pytest.raises(TooLarge, match=r"Limits\.total"):
            await peer.call("op", {}, [np.zeros(1000)])


async def test_a_sender_that_pauses_is_cut_off(serve):
    service = await serve(limits=Limits(idle=0.05))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(service.address.rpartition(":")[2]))
    writer.write(f"POST /v1/op HTTP/1.1\r\nHost: localhost\r\nContent-Type: {CONTENT_TYPE}\r\n".encode())
    writer.write(f"Content-Length: {len(GOOD)}\r\n\r\n".encode() + GOOD[:20])
    answer = await reader.readuntil(b"\r\n")
    assert b"408" in answer
    writer.close()
    assert service.admission.requests == 0


async def test_a_sender_that_is_too_slow_is_cut_off():
    class Dripping:
        async def readchunk(self):
            await asyncio.sleep(0)
            return b"F", False

        def at_eof(self):
            return False

    class Sink(Parser):
        def feed(self, data):
            pass

    with pytest.raises(TooSlow, match=r"the minimum is 1e\+12 bytes a second"):
        await receive(Dripping(), Sink(Limits()), Limits(idle=1.0, rate=1e12))


class Gate:
    """A handler that waits until the test releases it."""

    def __init__(self):
        self.entered, self.go, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.seen = None

    async def __call__(self, caller, message):
        if message.tensors:
            self.seen = weakref.ref(message.tensors[0].data.obj)
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Message({}, [])


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Limits(requests=1), "1 requests are in progress"),
        (Limits(requests_by_peer=1), "1 requests of worker-1 are in progress"),
        (Limits(in_flight=400_010), "bytes are being received"),
    ],
)
async def test_the_bytes_of_concurrent_requests_are_limited(serve, limits, text):
    gate = Gate()
    service = await serve(gate, limits=limits, security=Security(SECRET))
    async with Peer(service.address, local=False, security=Security(SECRET), node="worker-1") as peer:
        first = asyncio.create_task(peer.call("op", {}, [np.zeros(50_000)]))
        await gate.entered.wait()
        with pytest.raises(Busy, match=text):
            await peer.call("op", {}, [np.zeros(50_000)])
        gate.go.set()
        await first
        await peer.call("op", {}, [np.zeros(50_000)])


async def test_an_excess_connection_is_refused_with_the_reason(serve):
    gate = Gate()
    service = await serve(gate, limits=Limits(peers=1))
    async with Peer(service.address, local=False) as one, Peer(service.address, local=False) as two:
        first = asyncio.create_task(one.call("op", {}))
        await gate.entered.wait()
        with pytest.raises(Busy, match="503"):
            await two.call("op", {})
        gate.go.set()
        await first


@pytest.mark.parametrize("end", ["cancel", "timeout", "close"])
async def test_a_disconnected_caller_ends_the_call_and_frees_its_buffers(way, serve, end):
    gate = Gate()
    service = await serve(gate, security=way.get("security"))
    peer = Peer(service.address, **way)
    timeout = 1.0 if end == "timeout" else None  # long enough for the call to arrive
    call = asyncio.create_task(peer.call("op", {}, [np.zeros(50_000)], timeout=timeout))
    await gate.entered.wait()
    if end == "cancel":
        call.cancel()
    elif end == "close":
        await peer.close()
    with pytest.raises((asyncio.CancelledError, TimeoutError, PeerGone)) as caught:
        await call
    assert end != "timeout" or "op on http://127.0.0.1" in str(caught.value)
    await gate.cancelled.wait()
    await peer.close()
    await service.stop()
    del caught, call
    await until(
        lambda: gc.collect() >= 0 and gate.seen() is None
    )  # the transport releases it in a later iteration of the loop
    assert service.admission.requests == service.admission.nbytes == service.mappings.nbytes == 0


async def test_calls_to_a_missing_peer_raise_peer_gone(way, serve):
    service = await serve(security=way.get("security"))
    async with Peer(service.address, **way) as peer:
        await peer.call("op", {})
        await service.stop()
        with pytest.raises(PeerGone, match=rf"{service.address} is gone \(op\)"):
            await peer.call("op", {})
        again = Service("again", security=way.get("security"))
        again.operation("op", echo)
        await again.start(port=int(service.address.rpartition(":")[2]))
        try:
            answer = await peer.call("op", {}, [np.ones(20_000)])
            assert answer.header["local"] == way["local"]
        finally:
            await again.stop()


async def test_a_call_whose_peer_was_closed_before_it_was_sent_finds_it_gone(way, serve, monkeypatch):
    service = await serve(security=way.get("security"))
    peer = Peer(service.address, **way)
    route = await peer._routes.best()

    async def chosen():
        await peer.close()
        return route

    monkeypatch.setattr(peer._routes, "best", chosen)
    with pytest.raises(PeerGone, match="the client closed its connections"):
        await peer.call("op", {})


async def test_a_service_that_stops_ends_its_calls(way, serve):
    gate = Gate()
    service = await serve(gate, security=way.get("security"))
    async with Peer(service.address, **way) as peer:
        call = asyncio.create_task(peer.call("op", {}))
        await gate.entered.wait()
        await service.stop()
        with pytest.raises(PeerGone):
            await call
    assert gate.cancelled.is_set()


async def test_a_service_is_started_once(serve):
    service = await serve()
    with pytest.raises(RuntimeError, match="is already started"):
        await service.start()


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("security", [None, Security(SECRET)])
async def test_a_service_may_be_mounted_in_an_application(local, security):
    service = Service("mounted", security=security)
    service.operation("op", echo)
    outer = web.Application()
    outer.add_subapp("/inner/", service.application)
    runner = web.AppRunner(outer, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        address = f"127.0.0.1:{runner.addresses[0][1]}/inner"
        async with Peer(address, local=local, security=security) as peer:
            answer = await peer.call("op", {}, [np.arange(200_000.0)])
            assert np.array_equal(answer.tensors[0].array(), np.arange(200_000.0))
            assert answer.header["local"] == local
        async with Peer(address.removesuffix("/inner"), local=local, security=security) as peer:
            with pytest.raises(Refused, match=r"404 Not Found .*is this the address of a flowmx service"):
                await peer.call("op", {})
    finally:
        await runner.cleanup()


async def test_health_and_metrics(serve):
    service = await serve()
    async with Peer(service.address, local=False) as peer:
        await peer.call("op", {}, [np.zeros(10)])
        with pytest.raises(Unknown):
            await peer.call("other", {})
    async with aiohttp.ClientSession(service.address) as session:
        async with session.get("/healthz") as response:
            assert await response.json() == {"status": "ok", "name": "tested"}
        async with session.get("/metrics") as response:
            text = await response.text()
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = text.splitlines()
    assert 'flowmx_requests_total{operation="op",result="ok"} 1' in lines
    assert 'flowmx_requests_total{operation="unknown",result="unknown"} 1' in lines
    assert 'flowmx_request_seconds_count{operation="op"} 1' in lines
    assert "flowmx_requests_under_way 0" in lines


async def test_without_a_local_transport_calls_use_tcp(serve, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "flowmx.comm")
    service = await serve()
    async with Peer(service.address) as peer:
        assert (await peer.call("op", {}, [np.ones(50_000)])).header["local"]

        def refuse(*_):
            from flowmx.comm.shared_memory import NotLocal

            raise NotLocal("gone")

        monkeypatch.setattr(service.mappings, "get", refuse)
        for _ in range(3):
            answer = await peer.call("op", {}, [np.ones(50_000)])
            assert not answer.header["local"]
    assert caplog.text.count("use TCP") == 1


@pytest.mark.parametrize("address", ["", "host", "ftp://host:1", "http://host"])
def test_a_wrong_address_is_named(address):
    with pytest.raises(ValueError, match="a peer's address is"):
        Peer(address)


async def test_answers_in_another_protocol_are_refused():
    async def page(request):
        return web.Response(text="<html>")

    application = web.Application()
    application.router.add_post("/v1/op", page)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Peer(f"127.0.0.1:{runner.addresses[0][1]}", local=False) as peer:
            with pytest.raises(Refused, match="is this the address of a flowmx service"):
                await peer.call("op", {})
    finally:
        await runner.cleanup()


async def test_an_address_without_a_listener():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        async with Peer(f"127.0.0.1:{sock.getsockname()[1]}") as peer:
            with pytest.raises(PeerGone, match="is gone"):
                await peer.call("op", {})


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_while_the_service_stops_is_closed(turns, monkeypatch):
    """Each number of turns of the loop stops it at another moment of the connection's acceptance."""
    errors = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: errors.append(unraisable.exc_value))
    service = Service("tested", local=False)
    address = await service.start()
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as caller:
        for _ in range(turns):
            await asyncio.sleep(0)
        await service.stop()
        for _ in range(10):
            await asyncio.sleep(0)
        gc.collect()
        assert not errors
        caller.setblocking(False)
        try:
            answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(caller, 100), 5)
        except ConnectionError:
            answer = b""
        assert not answer or b"503" in answer


async def test_a_service_whose_stop_is_cancelled_takes_no_more_connections():
    service = Service("tested", local=False)
    address = await service.start()
    stop = asyncio.ensure_future(service.stop())
    await asyncio.sleep(0)
    stop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stop
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    await service.stop()
