"""Strangers cost little: their heads are judged before anything is made for them, and refusals wait their turn."""

import asyncio
import contextlib
import logging
import socket
import sys
from pathlib import Path

import pytest
import uvloop

from flowmx.comm.client import Peer
from flowmx.comm.door import Doorman
from flowmx.comm.errors import Unauthorized
from flowmx.comm.frames import Message
from flowmx.comm.gate import Gate
from flowmx.comm.heads import Asked, Head, asked, look
from flowmx.comm.limits import Limits
from flowmx.comm.listening import AT_ONCE, Listener, listen
from flowmx.comm.logs import SPAN, Summary, http_log
from flowmx.comm.security import Security
from flowmx.comm.server import Service

SECRET = "a secret of more than sixteen letters"
HEAD = (
    b"POST /v1/echo?x=1 HTTP/1.1\r\nHost: h\r\nauthorization:  FMX1 a=b \r\nContent-Length: 12\r\nAccept: */*\r\n\r\n"
)
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


# -- heads, pure -----------------------------------------------------------------------------------------------


def test_a_head_is_whole_when_its_last_byte_is_there():
    assert {look(HEAD[:size]) for size in range(len(HEAD))} == {Head.PART}
    assert look(HEAD) is look(b"\r\n" + HEAD) is look(HEAD + b"\0" * 100_000) is Head.WHOLE
    assert asked(HEAD) == Asked("POST", "/v1/echo", "FMX1 a=b")
    assert asked(HEAD.replace(b"POST /", b"GET http://h:1/")) == Asked("GET", "/v1/echo", "FMX1 a=b")
    assert asked(b"GET / HTTP/1.0\r\n\r\nAuthorization: body\r\n\r\n") == Asked("GET", "/", "")
    assert asked(b"OPTIONS * HTTP/1.1\r\n\r\n") is None


@pytest.mark.parametrize(
    "said",
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
def test_what_becomes_no_head_is_known_at_once(said):
    assert look(said) is Head.NONE


# -- logs, pure ------------------------------------------------------------------------------------------------


def record(text, *arguments, error=None):
    info = (type(error), error, None) if error else None
    return logging.LogRecord("any", logging.ERROR, "file", 1, text, arguments, info)


def test_a_log_has_one_record_of_a_kind_in_a_while_and_their_number():
    now = [0.0]
    summary = Summary(clock=lambda: now[0])
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


async def say(service, said):
    """The answer to what is said, until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(service.address.rpartition(":")[2]))
    try:
        writer.write(said)
        return await reader.read()
    finally:
        writer.close()


def of_aiohttp(service):
    """The number of requests that aiohttp was given."""
    return service._runner.server.requests_count


async def refusals():
    async with served() as service:
        big = HEAD.replace(b"12", b"1000000") + b"\0" * 1_000_000
        answers = [await say(service, said) for said in (HEAD + b"\0" * 12, big, b"\0" * 300_000)]
        assert [each.split(b" ", 2)[1] for each in answers] == [b"401", b"401", b"400"]
        assert of_aiohttp(service) == 0
        async with Peer(
            service.address, local=False, security=Security("another of the same length"), node="n"
        ) as peer:
            with pytest.raises(Unauthorized, match="not that of this request with the service's secret"):
                await peer.call("echo", {})
        assert of_aiohttp(service) == 0
        assert 'flowmx_requests_total{operation="echo",result="unauthorized"} 3' in service.metrics.text()
        async with Peer(service.address, local=False, security=Security(SECRET), node="n") as peer:
            assert (await peer.call("echo", {})).header == {"node": "n"}
        assert of_aiohttp(service) == 1


@LOOPS
def test_strangers_are_refused_before_anything_is_made_for_them(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(refusals())


async def turns():
    async with served(limits=Limits(refusals=1.0, strangers=8)) as service:
        assert b"400" in await say(service, b"\0")
        waiting = [asyncio.ensure_future(say(service, b"\0")) for _ in range(50)]
        while len(service.gate.places) < 8:
            await asyncio.sleep(0)
        async with Peer(service.address, local=False, security=Security(SECRET), node="n") as peer:
            for _ in range(10):
                assert (await peer.call("echo", {})).header == {"node": "n"}
            assert len(service.gate.places) <= 9
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(each, bytes) and b"400" in each for each in answers) <= 4
    assert len(service.gate.places) == 0


def files():
    """The number of files that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def crowd():
    """Connections that came before a listener began, of which none has its place yet."""
    sockets, before, most = await listen("127.0.0.1", 0), files(), [0]
    clients = [socket.create_connection(sockets[0].getsockname()) for _ in range(200)]
    gate, own = Gate(Limits(strangers=4)), len(clients)

    class Counted(Doorman):
        def connection_made(self, transport):
            most[0] = max(most[0], files() - before - own)
            super().connection_made(transport)

    listener = Listener(sockets, lambda: Counted(gate, lambda: None, None))
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
    assert len(gate.places) == 4
    await listener.close()
    gate.close()
    for each in clients:
        each.close()
    return most[0]


async def undelayed():
    made = asyncio.get_running_loop().create_future()

    class Noting(asyncio.Protocol):
        def connection_made(self, transport):
            made.set_result(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.abort()

    listener = Listener(await listen("127.0.0.1", 0), Noting)
    with socket.create_connection(listener.sockets[0].getsockname()):
        assert await made
    await listener.close()


@LOOPS
def test_small_answers_wait_for_no_others(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(undelayed(), 30))


@pytest.mark.skipif(sys.platform != "linux", reason="counts the files of /proc")
@LOOPS
def test_a_crowd_takes_no_more_files_than_it_has_places(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(asyncio.wait_for(crowd(), 30)) <= 4 + 2 * AT_ONCE


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
        "strangers were refused, the last one at 127.0.0.1: no HTTP"
    ]
