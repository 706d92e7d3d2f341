"""Unauthenticated connections use few resources: their heads are checked first, and refusals are throttled."""

import asyncio
import contextlib
import logging
import socket
import sys
from pathlib import Path

import pytest
import uvloop

from flowmx.comm.client import Peer
from flowmx.comm.connection_handler import ConnectionHandler
from flowmx.comm.connections import ConnectionLimiter
from flowmx.comm.errors import Unauthorized
from flowmx.comm.frames import Message
from flowmx.comm.limits import Limits
from flowmx.comm.listening import ACCEPT_LIMIT, Listener, listen
from flowmx.comm.logs import SPAN, LogThrottle, http_log
from flowmx.comm.request_head import HeadState, RequestHead, classify, parse_head
from flowmx.comm.security import Security
from flowmx.comm.server import Service

SECRET = "a secret of more than sixteen letters"
HEAD = (
    b"POST /v1/echo?x=1 HTTP/1.1\r\nHost: h\r\nauthorization:  FMX1 a=b \r\nContent-Length: 12\r\nAccept: */*\r\n\r\n"
)
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


# -- heads, pure -----------------------------------------------------------------------------------------------


def test_a_head_is_whole_when_its_last_byte_is_there():
    assert {classify(HEAD[:size]) for size in range(len(HEAD))} == {HeadState.PARTIAL}
    assert classify(HEAD) is classify(b"\r\n" + HEAD) is classify(HEAD + b"\0" * 100_000) is HeadState.COMPLETE
    assert parse_head(HEAD) == RequestHead("POST", "/v1/echo", "FMX1 a=b")
    assert parse_head(HEAD.replace(b"POST /", b"GET http://h:1/")) == RequestHead("GET", "/v1/echo", "FMX1 a=b")
    assert parse_head(b"GET / HTTP/1.0\r\n\r\nAuthorization: body\r\n\r\n") == RequestHead("GET", "/", "")
    assert parse_head(b"OPTIONS * HTTP/1.1\r\n\r\n") is None


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01", b"get / HTTP/1.1\r\n\r\n", b"\0", b"GET / HTTP/2\r\n\r\n", b"GET / HTTP/1.1\n\n",
        b"GET / HTTP/1.1\r\nX" + b"a" * 9000, b"GET /" + b"a" * 9000, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 12_000,
        HEAD.replace(b"*/*", b"a" * 9000), HEAD.replace(b"v1", b"v" * 9000), HEAD.replace(b"*/*", b"\0"),
        HEAD.replace(b"\r\n\r\n", b"\r\n" + b"x: y\r\n" * 129 + b"\r\n"), HEAD.replace(b"Accept", b" Accept"),
        HEAD.replace(b"12", b"-1"), HEAD.replace(b"12", b"1" * 30), HEAD.replace(b"12", b""),
        HEAD.replace(b"12", b"12\r\nContent-length: 12"), HEAD.replace(b"12", b"12\r\nTransfer-Encoding: chunked"),
        HEAD.replace(b"Content-Length: 12", b"Transfer-Encoding: gzip"),
    ],
)  # fmt: skip
def test_an_invalid_head_is_detected_at_once(head):
    assert classify(head) is HeadState.INVALID


# -- logs, pure ------------------------------------------------------------------------------------------------


def record(text, *arguments, error=None):
    info = (type(error), error, None) if error else None
    return logging.LogRecord("any", logging.ERROR, "file", 1, text, arguments, info)


def test_a_log_has_one_record_of_a_kind_in_a_while_and_their_number():
    now = [0.0]
    summary = LogThrottle(clock=lambda: now[0])
    assert summary.filter(record("%s failed", "one"))
    assert not any(summary.filter(record("%s failed", n)) for n in range(1000))
    assert summary.filter(record("another"))
    assert summary.filter(record("%s failed", "one", error=KeyError("x")))
    now[0] = SPAN
    last = record("%s failed", "two")
    assert summary.filter(last)
    assert last.getMessage() == "two failed (and 1000 more in the 60 s before)"


# -- on sockets ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def served(**options):
    async def echo(caller, message):
        return Message({"node": caller.node}, message.tensors)

    service = Service("tested", local=False, security=Security(SECRET), **options)
    service.operation("echo", echo)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


async def say(service, head):
    """Send a request; return everything received until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(service.address.rpartition(":")[2]))
    try:
        writer.write(head)
        return await reader.read()
    finally:
        writer.close()


def of_aiohttp(service):
    """Return the number of requests that were passed to aiohttp."""
    return service._runner.server.requests_count


async def refusals():
    async with served() as service:
        big = HEAD.replace(b"12", b"1000000") + b"\0" * 1_000_000
        answers = [await say(service, head) for head in (HEAD + b"\0" * 12, big, b"\0" * 300_000)]
        assert [each.split(b" ", 2)[1] for each in answers] == [b"401", b"401", b"400"]
        assert of_aiohttp(service) == 0
        async with Peer(
            service.address, local=False, security=Security("another of the same length"), node="n"
        ) as peer:
            with pytest.raises(Unauthorized, match="does not match this request and the service's secret"):
                await peer.call("echo", {})
        assert of_aiohttp(service) == 0
        assert 'flowmx_requests_total{operation="echo",result="unauthorized"} 3' in service.metrics.text()
        async with Peer(service.address, local=False, security=Security(SECRET), node="n") as peer:
            assert (await peer.call("echo", {})).header == {"node": "n"}
        assert of_aiohttp(service) == 1


@LOOPS
def test_refusals_come_before_any_object_is_created(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(refusals())


async def turns():
    async with served(limits=Limits(refusals=1.0, unauthenticated=8)) as service:
        assert b"400" in await say(service, b"\0")
        waiting = [asyncio.ensure_future(say(service, b"\0")) for _ in range(50)]
        while len(service.connections.table) < 8:
            await asyncio.sleep(0)
        async with Peer(service.address, local=False, security=Security(SECRET), node="n") as peer:
            for _ in range(10):
                assert (await peer.call("echo", {})).header == {"node": "n"}
            assert len(service.connections.table) <= 9
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(each, bytes) and b"400" in each for each in answers) <= 4
    assert len(service.connections.table) == 0


def files():
    """Return the number of open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def crowd():
    """Connections made before the listener started; none has been admitted yet."""
    sockets, before, most = await listen("127.0.0.1", 0), files(), [0]
    clients = [socket.create_connection(sockets[0].getsockname()) for _ in range(200)]
    connections, own = ConnectionLimiter(Limits(unauthenticated=4)), len(clients)

    class Counted(ConnectionHandler):
        def connection_made(self, transport):
            most[0] = max(most[0], files() - before - own)
            super().connection_made(transport)

    listener = Listener(sockets, lambda: Counted(connections, lambda: None, None))
    for each in clients[:-4]:
        each.setblocking(False)
        while True:
            try:
                assert each.recv(1) == b""
            except BlockingIOError:
                await asyncio.sleep(0.001)
                continue
            except ConnectionResetError:
                pass
            break
    assert len(connections.table) == 4
    await listener.close()
    connections.close()
    for each in clients:
        each.close()
    return most[0]


async def undelayed():
    nodelay = asyncio.get_running_loop().create_future()

    class Noting(asyncio.Protocol):
        def connection_made(self, transport):
            nodelay.set_result(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.abort()

    listener = Listener(await listen("127.0.0.1", 0), Noting)
    with socket.create_connection(listener.sockets[0].getsockname()):
        assert await nodelay
    await listener.close()


@LOOPS
def test_small_answers_wait_for_no_others(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(undelayed(), 30))


@pytest.mark.skipif(sys.platform != "linux", reason="counts the files of /proc")
@LOOPS
def test_many_connections_use_at_most_their_descriptor_limit(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(asyncio.wait_for(crowd(), 30)) <= 4 + 2 * ACCEPT_LIMIT


@LOOPS
def test_refusals_wait_their_turn_members_do_not_and_the_end_of_a_service_ends_them(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(turns(), 30))


async def test_refusals_do_not_fill_the_log(caplog):
    http_log.filters[0]._kinds.clear()
    async with served() as service:
        for _ in range(20):
            await say(service, b"\0")
    assert [each.getMessage() for each in caplog.records if each.name == http_log.name] == [
        "rejected unauthenticated connections (latest: 127.0.0.1): invalid HTTP"
    ]
