"""Streams, which carry small calls: messages, refusals, limits, and cleanup when a stream ends."""

import asyncio
import random
import struct

import aiohttp
import numpy as np
import pytest

from flowmx import settings
from flowmx.comm import stream, websocket
from flowmx.comm.client import Peer
from flowmx.comm.errors import Busy, CommError, PeerGone, Refused, TooLarge, Unauthorized, Unknown, WireError
from flowmx.comm.frames import Message, Tensor, decode, encode
from flowmx.comm.limits import Limits
from flowmx.comm.security import REQUEST, Security, digest_of
from flowmx.comm.server import Service
from flowmx.comm.stream import ANSWER, CALL, CANCEL, NONCE, PREFIX, PROTOCOL, StreamMac
from flowmx.comm.websocket import BINARY, CLOSE, PING, PONG, accept_key, frame_head, read_head, unmask
from tests.waiting import until

SECRET = Security("sixteen bytes or more")
WAYS = [
    {"local": local, "security": security} for local in (False, True) for security in (None, SECRET)
]  # fmt: skip
KEY = "dGhlIHNhbXBsZSBub25jZQ=="


async def echo(caller, message):
    return Message({"node": caller.node, "local": caller.local, **message.header}, message.tensors)


@pytest.fixture
async def serve():
    started = []

    async def start(handler=echo, **options):
        service = Service("tested", **options)
        service.operation("op", handler)
        started.append(service)
        await service.start()
        return service

    yield start
    for service in started:
        await service.stop()


# Calls


@pytest.mark.parametrize("way", WAYS)
async def test_many_calls_share_a_connection_and_are_answered_in_any_order(way, serve):
    gates, order = [asyncio.Event() for _ in range(20)], []

    async def handler(caller, message):
        await gates[message.header["number"]].wait()
        return Message({"number": message.header["number"]}, message.tensors)

    service = await serve(handler, security=way["security"])
    async with Peer(service.address, node="a", **way) as peer:

        async def one(number):
            answer = await peer.call("op", {"number": number}, [np.full(3, number)])
            assert answer.header == {"number": number}
            assert answer.tensors[0].array().tolist() == [number] * 3
            order.append(number)

        calls = [asyncio.create_task(one(number)) for number in range(20)]
        await until(lambda: service.admission.requests == 20)
        assert peer.is_streaming
        assert len(service.connections.table) <= 2 + way["local"]  # the stream, and the request for a local socket
        for number in reversed(range(20)):
            gates[number].set()
            await calls[number]
        assert order == list(reversed(range(20)))
    assert service.admission.requests == service.admission.nbytes == 0


async def test_a_setting_leaves_streams_out(serve):
    service = await serve()
    with settings.override(kvstore_streams=False):
        peer = Peer(service.address)
    async with peer:
        assert (await peer.call("op", {"x": 1})).header["x"] == 1
        assert not peer.is_streaming


async def test_immediate_answers_of_a_handler_need_no_task(serve):
    tasks = []

    def handler(caller, message):
        tasks.append(asyncio.current_task())
        return message

    service = await serve(handler)
    async with Peer(service.address, local=False) as peer:
        assert (await peer.call("op", {"a": 1})).header == {"a": 1}
        assert tasks == [None]
    async with Peer(service.address, local=False, stream=False) as peer:
        assert (await peer.call("op", {"a": 2})).header == {"a": 2}
        assert not peer.is_streaming


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [0, 3, 20_000, 200_000, 1_000_000])
async def test_answers_of_any_size_come(way, count, serve):
    """The size need not be known in advance: a long answer is sent in parts, with others in between."""

    def handler(caller, message):
        return Message({}, [Tensor.of(np.arange(message.header["count"])), Tensor.of(np.ones(2, np.int8))])

    service = await serve(handler, security=way["security"])
    async with Peer(service.address, node="a", **way) as peer:
        await peer.call("op", {"count": 0})
        long, short = await asyncio.gather(peer.call("op", {"count": count}), peer.call("op", {"count": 1}))
        assert [each.array().tolist() for each in long.tensors] == [list(range(count)), [1, 1]]
        assert short.tensors[0].array().tolist() == [0]
        target = [np.zeros(count, np.int64), np.zeros(2, np.int8)]
        await peer.call("op", {"count": count}, into=target)
        assert target[0].tolist() == list(range(count))
    assert service.admission.requests == service.admission.nbytes == 0


@pytest.mark.parametrize("later", [False, True])
async def test_an_invalid_answer_is_a_failure_of_the_service(later, serve, caplog):
    wrong = [5, Message({"x": object()}, []), Message({}, ["tensor"]), None]

    def at_once(caller, message):
        return wrong[message.header["number"]]

    async def slowly(caller, message):
        return at_once(caller, message)

    service = await serve(slowly if later else at_once)
    async with Peer(service.address, local=False) as peer:
        for number in range(len(wrong)):
            with pytest.raises(CommError):
                await peer.call("op", {"number": number})
        assert peer.is_streaming
    assert service.admission.requests == 0


@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (Refused("no", "own"), Refused, "^no$"), (ValueError("bad"), Refused, "^bad$"),
        (RuntimeError("broke"), Refused, "operation 'op' on tested failed: RuntimeError: broke"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("later", [False, True])
async def test_refusals_come_with_their_text(raised, expected, text, later, serve, caplog):
    async def slowly(caller, message):
        await asyncio.sleep(0)
        raise raised

    def at_once(caller, message):
        raise raised

    service = await serve(slowly if later else at_once)
    async with Peer(service.address, local=False) as peer:
        with pytest.raises(expected, match=text):
            await peer.call("op", {})
        with pytest.raises(Unknown, match="no operation 'other'"):
            await peer.call("other", {})
        assert peer.is_streaming
    assert service.admission.requests == 0


async def test_limits_hold_for_the_calls_of_a_stream(serve):
    gate = asyncio.Event()

    async def handler(caller, message):
        await gate.wait()
        return message

    service = await serve(handler, limits=Limits(requests_by_peer=2, header=200))
    async with Peer(service.address, local=False) as peer:
        first = [asyncio.create_task(peer.call("op", {})) for _ in range(2)]
        await until(lambda: service.admission.requests == 2)
        with pytest.raises(Busy, match="requests_by_peer"):
            await peer.call("op", {})
        gate.set()
        await asyncio.gather(*first)
        with pytest.raises(TooLarge, match=r"Limits\.header"):
            await peer.call("op", {"x": "y" * 300})
        assert (await peer.call("op", {"x": 1})).header == {"x": 1}
    metrics = service.metrics.text()
    assert 'flowmx_requests_total{operation="op",result="busy"} 1' in metrics
    assert 'flowmx_requests_total{operation="op",result="ok"} 3' in metrics


async def test_the_node_of_a_header_is_the_one_that_opened_the_stream(serve):
    service = await serve(security=SECRET)
    async with Peer(service.address, security=SECRET, node="a", local=False) as peer:
        assert (await peer.call("op", {})).header["node"] == "a"
        with pytest.raises(Unauthorized, match="names node 'b', but another node signed"):
            await peer.call("op", {"node": "b"})
        assert peer.is_streaming


# Ends


@pytest.mark.parametrize("way", WAYS)
async def test_an_abandoned_call_ends_at_the_service_and_the_others_continue(way, serve):
    gate, ended = asyncio.Event(), []

    async def handler(caller, message):
        try:
            await gate.wait()
        except asyncio.CancelledError:
            ended.append(message.header["number"])
            raise
        return message

    service = await serve(handler, security=way["security"])
    async with Peer(service.address, node="a", **way) as peer:
        calls = [asyncio.create_task(peer.call("op", {"number": number})) for number in range(3)]
        await until(lambda: service.admission.requests == 3)
        calls[1].cancel()
        await until(lambda: ended == [1])
        with pytest.raises(TimeoutError, match=r"op on .* took longer than"):
            await peer.call("op", {"number": 3}, timeout=0.05)
        await until(lambda: ended == [1, 3])
        gate.set()  # no further calls use the stream, but those in progress get their answers
        assert (await calls[0]).header["number"] == 0
        assert (await calls[2]).header["number"] == 2
        assert (await peer.call("op", {"number": 4})).header["number"] == 4
    assert service.admission.requests == 0


@pytest.mark.parametrize("way", WAYS)
async def test_a_service_that_stops_during_calls_can_be_restarted(way, serve):
    gate, ended = asyncio.Event(), []

    async def handler(caller, message):
        try:
            await gate.wait()
        finally:
            ended.append(caller.operation)

    service = await serve(handler, security=way["security"])
    port = int(service.address.rpartition(":")[2])
    async with Peer(service.address, node="a", **way) as peer:
        calls = [asyncio.create_task(peer.call("op", {})) for _ in range(5)]
        await until(lambda: service.admission.requests == 5)
        await service.stop()
        for call in calls:
            with pytest.raises(PeerGone, match=rf"{service.address} is gone \(op\)"):
                await call
        assert ended == ["op"] * 5
        again = Service("again", security=Security("sixteen bytes or more") if way["security"] else None)
        again.operation("op", echo)
        await again.start(port=port)
        try:
            assert (await peer.call("op", {"x": 1})).header["x"] == 1
            assert peer.is_streaming
        finally:
            await again.stop()


async def test_what_a_handler_began_at_once_it_ends_although_the_call_is_given_up_in_the_same_turn(serve):
    begun, ended = [], []

    def handler(caller, message):
        begun.append(1)

        async def rest():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)

        return rest()

    service = await serve(handler)
    async with Raw(service) as raw:
        raw.send(call(1), PREFIX.pack(CANCEL, 1))
        await until(lambda: ended)
    assert begun == ended == [1]


async def test_an_older_service_and_one_that_is_full_are_asked_by_post(serve, monkeypatch):
    async def other(service, request):
        return await service._healthz(request)

    monkeypatch.setattr(Service, "_respond_by_stream", other)
    service = await serve()
    async with Peer(service.address, local=False) as peer:
        for number in range(3):
            assert (await peer.call("op", {"x": number})).header["x"] == number
        assert not peer.is_streaming


async def test_an_idle_stream_is_closed_and_opened_again(serve):
    service = await serve(limits=Limits(keep_alive=0.05))
    async with Peer(service.address, local=False) as peer:
        await peer.call("op", {})
        await until(lambda: not peer.is_streaming)
        assert (await peer.call("op", {"x": 1})).header["x"] == 1
        assert peer.is_streaming


# Invalid and unauthenticated clients


class Raw:
    """A raw connection after the handshake."""

    def __init__(self, service, **headers):
        self.port = int(service.address.rpartition(":")[2])
        self.headers = headers

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        fields = {
            "Host": "localhost", "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": KEY, "Sec-WebSocket-Protocol": PROTOCOL, **self.headers,
        }  # fmt: skip
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
        self.writer.write(f"GET /v1/stream HTTP/1.1\r\n{lines}\r\n".encode())
        self.head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        return self

    async def __aexit__(self, *_):
        self.writer.transport.abort()

    def send(self, *messages):
        self.writer.write(b"".join(frame_head(BINARY, len(each), masked=True) + each for each in messages))

    async def read(self):
        """Return the next frame."""
        data = await self.reader.readexactly(2)
        wide = {126: 2, 127: 8}.get(data[1], 0)
        length = int.from_bytes(await self.reader.readexactly(wide), "big") if wide else data[1]
        return data[0] & 0xF, await self.reader.readexactly(length)

    async def answer(self):
        opcode, payload = await self.read()
        assert opcode == BINARY and payload[0] == ANSWER
        return PREFIX.unpack_from(payload)[1], decode([payload[PREFIX.size :]])


def call(number, name=b"op", header=None, tensors=()):
    frame = b"".join(encode(Message(header or {}, list(tensors))))
    return PREFIX.pack(CALL, number) + bytes([len(name)]) + name + frame


async def test_any_client_of_websocket_can_call(serve):
    service = await serve()
    async with aiohttp.ClientSession() as session:
        url = f"{service.address}/v1/stream"
        async with session.ws_connect(url, protocols=[PROTOCOL], autoping=False) as socket:
            await socket.ping(b"x")
            assert (await socket.receive()).data == b"x"
            await socket.send_bytes(call(7, header={"a": 1}, tensors=[Tensor.of(np.arange(5.0))]))
            data = (await socket.receive()).data
            assert PREFIX.unpack_from(data) == (ANSWER, 7)
            answer = decode([data[PREFIX.size :]])
            assert answer.header["a"] == 1
            assert answer.tensors[0].array().tolist() == [0, 1, 2, 3, 4]
            await socket.close()
            assert socket.close_code == 1000


@pytest.mark.parametrize(
    "headers",
    [
        {"Upgrade": "h2c"}, {"Sec-WebSocket-Version": "8"}, {"Sec-WebSocket-Protocol": ""}, {"Sec-WebSocket-Key": ""},
        {"Content-Length": "3"},
    ],
)  # fmt: skip
async def test_another_handshake_is_refused(serve, headers):
    service = await serve()
    async with Raw(service, **headers) as raw:
        assert raw.head.startswith("HTTP/1.1 400 ")


async def test_web_pages_and_those_without_the_secret_get_no_stream(serve):
    async with Raw(await serve(), Host="evil.example") as raw:
        assert raw.head.startswith("HTTP/1.1 401 ")
    service = await serve(security=SECRET)
    path, digest = "/v1/stream", digest_of([])
    right = SECRET.sign_request("GET", path, "a", digest)[1]
    wrong = Security("another secret altogether").sign_request("GET", path, "a", digest)[1]
    other = SECRET.sign_request("POST", path, "a", digest)[1]
    body = SECRET.sign_request("GET", path, "a", "0" * 64)[1]
    for value in ("", wrong, other, body):
        async with Raw(service, **{REQUEST: value}) as raw:
            assert raw.head.startswith("HTTP/1.1 401 ")
    async with Raw(service, **{REQUEST: right}) as raw:
        assert raw.head.startswith("HTTP/1.1 101 ")
    async with Raw(service, **{REQUEST: right}) as raw:
        assert raw.head.startswith("HTTP/1.1 401 ")  # it was here before


def masked(first, second, payload=b"", mask=bytes(4)):
    return bytes([first, second]) + mask + payload


ODD = {
    "no mask": (bytes([0x82, 5]) + call(1)[:5], b"has a mask"),
    "text": (masked(0x81, 0x80), b"unfragmented binary WebSocket"),
    "a part": (masked(0x02, 0x80), b"unfragmented binary WebSocket"),
    "the rest of one": (masked(0x80, 0x80), b"unfragmented binary WebSocket"),
    "reserved bits": (masked(0xC2, 0x80), b"unfragmented binary WebSocket"),
    "another opcode": (masked(0x83, 0x80), b"unfragmented binary WebSocket"),
    "a long ping": (bytes([0x89, 0xFE, 0, 126]) + bytes(4), b"at most 125 bytes"),
    "a ping in parts": (masked(0x09, 0x80), b"unfragmented binary WebSocket"),
    "too long": (bytes([0x82, 0xFF]) + struct.pack(">Q", stream.MAX_MESSAGE + 1) + bytes(4), b"at most 1048576 bytes"),
    "far too long": (bytes([0x82, 0xFF]) + b"\xff" * 8 + bytes(4), b"at most 1048576 bytes"),
    "an empty message": (masked(0x82, 0x80), b"at least 5 bytes"),
    "another kind": (masked(0x82, 0x85, PREFIX.pack(9, 1)), b"no messages of kind 9"),
    "no name": (masked(0x82, 0x85, PREFIX.pack(CALL, 1)), b"length of its operation's name"),
    "half a name": (masked(0x82, 0x87, PREFIX.pack(CALL, 1) + b"\x05o"), b"length of its operation's name"),
    "a name in other letters": (masked(0x82, 0x87, PREFIX.pack(CALL, 1) + b"\x01\xff"), b"in ASCII"),
}


@pytest.mark.parametrize("name", ODD)
async def test_an_invalid_message_ends_the_stream_and_the_service_continues(name, serve):
    data, why = ODD[name]
    service = await serve()
    async with Raw(service) as raw:
        raw.send(call(1, header={"a": 1}))
        assert (await raw.answer())[1].header["a"] == 1
        raw.writer.write(data)
        opcode, payload = await raw.read()
        assert opcode == CLOSE and payload[:2] == (1002).to_bytes(2, "big")
        assert why in payload
        assert await raw.reader.read() == b""
    await until(lambda: not service.connections.table)
    async with Peer(service.address, local=False) as peer:
        await peer.call("op", {})


async def test_a_call_with_a_number_that_is_under_way_ends_the_stream(serve):
    ended = []

    async def handler(caller, message):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    async with Raw(await serve(handler)) as raw:
        raw.send(call(1), call(2), call(1))
        assert b"call 1 of the stream is already in progress" in (await raw.read())[1]
        await until(lambda: ended == [1, 1])


async def test_a_damaged_frame_is_refused_and_the_stream_continues(serve):
    async with Raw(await serve()) as raw:
        raw.send(call(1)[:-1], call(2) + b"x", PREFIX.pack(CALL, 3) + b"\x02op", call(4, header={"a": 4}))
        answers = dict([await raw.answer() for _ in range(4)])
    assert [answers[number].header.get("error", {}).get("kind") for number in (1, 2, 3, 4)] == ["malformed"] * 3 + [
        None
    ]


async def test_shared_memory_is_refused_by_tcp(serve):
    async with Raw(await serve()) as raw:
        frame = encode(Message({}, []))[0].replace(b"\xa7tensors\x90", b"\xa6shared\x93\x01\x02\x03")
        frame = frame.replace(b"\x81", b"\x81", 1)
        frame = frame[:4] + struct.pack("<I", len(frame) - 8) + frame[8:]
        raw.send(PREFIX.pack(CALL, 1) + b"\x02op" + frame)
        assert (await raw.answer())[1].header["error"]["kind"] == "not_local"


async def test_masks_and_pings_follow_the_websocket_standard(serve):
    async with Raw(await serve()) as raw:
        payload, mask = call(1, header={"a": 1}), b"\x01\x02\x03\xff"
        hidden = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
        raw.writer.write(masked(0x82, 0x80 | len(payload), hidden, mask))
        assert (await raw.answer())[1].header["a"] == 1
        raw.writer.write(masked(0x80 | PING, 0x83, b"abc"))
        assert await raw.read() == (PONG, b"abc")
        raw.writer.write(masked(0x80 | PONG, 0x83, b"abc"))
        raw.writer.write(masked(0x80 | CLOSE, 0x82, b"\x03\xe8"))
        assert (await raw.read())[0] == CLOSE
        assert await raw.reader.read() == b""


async def test_a_peer_that_pauses_in_a_message_is_disconnected(serve):
    service = await serve(limits=Limits(idle=0.05))
    async with Raw(service) as raw:
        raw.writer.write(frame_head(BINARY, 30, masked=True) + b"abc")
        assert b"paused for 0.05 s" in (await raw.read())[1]
        assert await raw.reader.read() == b""
    await until(lambda: not service.connections.table)


async def test_a_peer_that_reads_no_answers_is_disconnected(serve):
    calls = []

    def handler(caller, message):
        calls.append(1)
        return Message({}, [Tensor.of(np.zeros(100_000, np.uint8))])

    service = await serve(handler, limits=Limits(idle=0.3))
    async with Raw(service) as raw:
        raw.reader._transport.pause_reading()
        raw.send(*(call(number) for number in range(3000)))
        await until(lambda: not service.connections.table)
    assert 0 < len(calls) < 3000
    assert service.admission.requests == 0


async def test_a_peer_silent_after_the_handshake_is_unauthenticated(serve):
    service = await serve(limits=Limits(head=0.2))
    async with Raw(service) as raw:
        assert service.connections.table.unauthenticated == 1
        assert await raw.reader.read() == b""


# Authentication codes


@pytest.fixture
def macs():
    return lambda: StreamMac(SECRET, "client", ("aa", "bb"))


def test_a_code_fits_its_message_in_its_place_alone(macs):
    out = macs()
    messages = [body + out.sign([body]) for body in (b"one", b"two", b"two")]
    into = macs()
    assert [bytes(into.verify(memoryview(each))) for each in messages] == [b"one", b"two", b"two"]
    wrong = [messages[1:], [messages[0], messages[0]], [messages[0], messages[2]], [b"one"], [b""], [bytes(40)]]
    wrong += [[messages[0][:at] + b"\0" + messages[0][at + 1 :]] for at in range(len(messages[0]))]
    for sent in wrong:
        into = macs()
        with pytest.raises(Unauthorized, match="authentication code of a stream message is wrong"):
            [into.verify(memoryview(each)) for each in sent]
    for way, nonces in (("service", ("aa", "bb")), ("client", ("bb", "aa")), ("client", ("aa", "bc"))):
        with pytest.raises(Unauthorized):
            StreamMac(SECRET, way, nonces).verify(memoryview(messages[0]))


async def signed_stream(service):
    value = SECRET.sign_request("GET", "/v1/stream", "a", digest_of([]))
    raw = Raw(service, **{REQUEST: value[1]})
    await raw.__aenter__()
    nonce = next(line.partition(": ")[2] for line in raw.head.split("\r\n") if line.startswith(NONCE))
    return raw, StreamMac(SECRET, "client", (value[0], nonce)), StreamMac(SECRET, "service", (value[0], nonce))


@pytest.mark.parametrize("change", ["nothing", "a byte", "again", "left out", "none"])
async def test_no_message_of_a_stream_can_be_changed_repeated_or_left_out(change, serve):
    calls = []

    def handler(caller, message):
        calls.append((caller.node, message.header["number"]))
        return message

    service = await serve(handler, security=SECRET)
    raw, out, into = await signed_stream(service)
    signed = [each + out.sign([each]) for each in (call(number, header={"number": number}) for number in (1, 2, 3))]
    raw.send(signed[0])
    opcode, payload = await raw.read()
    assert (opcode, PREFIX.unpack_from(into.verify(memoryview(payload)))) == (BINARY, (ANSWER, 1))
    second = {
        "nothing": signed[1], "a byte": signed[1].replace(b"number\x02", b"number\x03"), "again": signed[0],
        "left out": signed[2], "none": signed[1][:-32],
    }[change]  # fmt: skip
    raw.send(second)
    opcode, payload = await raw.read()
    if change == "nothing":
        assert opcode == BINARY and calls == [("a", 1), ("a", 2)]
    else:
        assert opcode == CLOSE and payload[:2] == (1008).to_bytes(2, "big") and b"authentication code" in payload
        assert calls == [("a", 1)]
    raw.writer.transport.abort()


async def test_a_service_without_the_secret_is_rejected(serve, monkeypatch):
    """A service with a made-up nonce receives a call, but its answer has a wrong authentication code."""
    service = await serve(security=SECRET)
    async with Peer(service.address, security=SECRET, node="a", local=False) as peer:
        await peer.call("op", {})
        opened = peer._routes._tcp._stream
        opened._macs = (opened._macs[0], StreamMac(SECRET, "service", ("aa", "bb")))
        with pytest.raises(Unauthorized, match="authentication code of a stream message is wrong"):
            await peer.call("op", {})
        assert not peer.is_streaming
        await peer.call("op", {})


@pytest.mark.parametrize("count", [150, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("security", [None, SECRET])
async def test_damaged_streams_do_no_harm(count, security, serve):
    source, messages = random.Random(count), []

    async def handler(caller, message):
        messages.append(message)
        if source.random() < 0.3:
            await asyncio.sleep(0)
        return message

    service = await serve(handler, security=security, limits=Limits(header=2000, total=5000, idle=0.05, head=1.0))
    for _ in range(count):
        raw = await (signed_stream(service) if security else _plain(service))
        raw, out = (raw[0], raw[1]) if security else (raw, None)
        whole = b""
        for number in range(source.randrange(4)):
            body = call(number, source.choice([b"op", b"local", b"x" * 200]), {"x": source.choice([1, "y", None])},
                        [Tensor.of(np.arange(source.choice([0, 1, 300])))])  # fmt: skip
            if security is None and source.random() < 0.3:
                at = source.randrange(len(body))
                body = body[:at] + source.randbytes(source.randrange(4)) + body[at + source.randrange(4) :]
            whole += (
                frame_head(BINARY, len(body) + 32 * bool(out), masked=True) + body + (out.sign([body]) if out else b"")
            )
        if whole and source.random() < 0.6:
            at = source.randrange(len(whole))
            whole = whole[:at] + source.randbytes(source.randrange(1, 9)) + whole[at + source.randrange(9) :]
        raw.writer.write(whole[: source.randrange(len(whole) + 1)] if source.random() < 0.3 else whole)
        if source.random() < 0.5:
            raw.writer.write_eof()
            async with asyncio.timeout(5):
                await raw.reader.read()
        raw.writer.transport.abort()
    await until(lambda: not service.connections.table)
    assert messages
    assert service.admission.requests == service.admission.nbytes == 0
    async with Peer(service.address, security=security, node="sane", local=False) as peer:
        assert (await peer.call("op", {"x": 1})).header["x"] == 1


async def _plain(service):
    raw = Raw(service)
    return await raw.__aenter__()


# Frames of WebSocket


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65535, 65536, 1 << 20])
@pytest.mark.parametrize("is_client", [False, True])
def test_heads_round_trip(length, is_client):
    head = frame_head(BINARY, length, masked=is_client)
    for cut in range(len(head)):
        assert read_head(memoryview(head[:cut]), masked=is_client, max_length=1 << 20) is None
    parsed = read_head(memoryview(head + b"more"), masked=is_client, max_length=1 << 20)
    assert (parsed.opcode, parsed.length, parsed.size) == (BINARY, length, len(head))
    with pytest.raises(WireError):
        read_head(memoryview(head), masked=not is_client, max_length=1 << 20)
    if length:
        with pytest.raises(TooLarge):
            read_head(memoryview(head), masked=is_client, max_length=length - 1)


def test_the_example_of_the_standard():
    assert accept_key(KEY) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    hello = bytes([0x37, 0xFA, 0x21, 0x3D])
    assert bytes(unmask(memoryview(bytes([0x7F, 0x9F, 0x4D, 0x51, 0x58])), hello)) == b"Hello"
    assert bytes(4) == websocket.NO_MASK
