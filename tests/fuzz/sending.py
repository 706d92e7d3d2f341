"""HTTP by hand, since many of the fuzzer's requests are malformed on purpose."""

import asyncio
import hashlib
import socket
import time
from functools import cache
from typing import Any, NamedTuple

import msgpack

from flowmx.comm import shared_memory
from flowmx.comm.errors import CommError
from flowmx.comm.frames import decode
from flowmx.comm.headers import unpack
from flowmx.comm.security import REQUEST, Security, digest_of
from flowmx.comm.transfer import CONTENT_TYPE
from tests.fuzz.target import SECRET

__all__ = ["Answer", "Endpoint", "Sender"]

AFTER = 0.15  # seconds to wait for an answer that may be missing
LATEST = 5.0  # seconds within which any other answer must arrive
SPAN = 24 << 10

OURS = Security(SECRET)
OTHERS = Security("a secret that is not the right one")
PAST = Security(SECRET, clock=lambda: time.time() - 61)
FUTURE = Security(SECRET, clock=lambda: time.time() + 61)
SIGNERS = {"wrong": OTHERS, "old": PAST, "future": FUTURE}
CHANGES = {
    "node": lambda value, at: value.replace("node=", "node=z", 1),
    "garbled": lambda value, at: value[: at % len(value)] + "\xe9" + value[at % len(value) + 1 :],
    "header": lambda value, at: ["Bearer x", "", "FMX1-HMAC-SHA256", "x" * 4000, "Basic eDp4"][at % 5],
}


class Endpoint(NamedTuple):
    """An endpoint's addresses."""

    port: int
    path: str
    socket: str
    signed: bool


class Answer(NamedTuple):
    """An answer: status and header of the frame; status 0 if the connection closed without one, -1 after a timeout.

    `fault` says what is wrong with it.
    """

    status: int
    header: dict[str, Any]
    fault: str = ""


class Sender:
    """Sends actions, and keeps the connections of one conversation.

    Args:
        endpoints: the endpoints by name.
        genuine: a correctly signed request for each endpoint, to be repeated; an action whose signature is "record" is
            signed correctly and stored there.
    """

    def __init__(self, endpoints, genuine):
        self.endpoints = {name: Endpoint(*fields) for name, fields in endpoints.items()}
        self.genuine = genuine
        self._open = {}

    async def close(self):
        for _, writer in self._open.values():
            writer.transport.abort()
        self._open.clear()

    async def send(self, action):
        """Send a request and read the answer."""
        endpoint = self.endpoints[action.endpoint]
        path = f"{endpoint.path if not action.local else ''}/v1/{action.operation}"
        body = action.body if action.shared is None else _completed(action)
        headers = {"Host": "localhost", "Content-Type": CONTENT_TYPE}
        if endpoint.signed and action.signature == "replayed" and action.endpoint in self.genuine:
            path, body, headers = self.genuine[action.endpoint]
        elif endpoint.signed:
            headers |= _signature(action, path, body)
        if action.signature == "tampered":
            body = body[:-1] + bytes([(body[-1] + 1) % 256]) if body else b"x"
        if action.signature == "record":
            self.genuine[action.endpoint] = path, body, headers
        whole, pause, ends = _http(action, path, headers, body)
        try:
            reader, writer = await self._connection(action.endpoint, endpoint, action.local)
            writer.write(whole[:pause])
            if pause < len(whole):
                await _drained(writer)
                writer.write(whole[pause:])
            if ends:
                await self._drop(action)
                return Answer(0, {})
            async with asyncio.timeout(AFTER if action.may_wait else LATEST):
                answer = await _read(reader, action)
        except TimeoutError:
            await self._drop(action)
            return Answer(0 if action.may_wait else -1, {})
        except (OSError, asyncio.IncompleteReadError):
            await self._drop(action)
            return Answer(0, {})
        if action.http not in ("plain", "chunked", "split") or answer.status != 200:
            await self._drop(action)
        return answer

    async def _connection(self, name, endpoint, is_local):
        connection = self._open.get((name, is_local))
        if connection is None:
            if is_local and endpoint.socket:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                try:
                    sock.connect(f"\0{endpoint.socket}")
                except OSError:
                    sock.close()
                    raise
                connection = await asyncio.open_unix_connection(sock=sock)
            else:
                connection = await asyncio.open_connection("127.0.0.1", endpoint.port)
            self._open[name, is_local] = connection
        return connection

    async def _drop(self, action):
        connection = self._open.pop((action.endpoint, action.local), None)
        if connection is not None:
            connection[1].transport.abort()


@cache
def _segment():
    return shared_memory.Segment(SPAN)


def _completed(action):
    """The frame of a request with shared memory, which has to name a segment of this process."""
    real = {"descriptor": _segment().descriptor, "inode": _segment().inode, "size": SPAN}
    header = msgpack.unpackb(action.body, strict_map_key=False)
    header["shared"] = [real.get(value, value) if isinstance(value, str) else value for value in action.shared]
    packed = msgpack.packb(header)
    return b"FMX1" + len(packed).to_bytes(4, "little") + packed


def _signature(action, path, body):
    kind = action.signature
    if kind in ("none", "replayed"):
        return {}
    signed = path + "x" if kind == "path" else path
    _, value = SIGNERS.get(kind, OURS).sign_request("POST", signed, action.node, _digest(body))
    return {REQUEST: CHANGES[kind](value, action.number) if kind in CHANGES else value}


def _digest(body):
    """Return the digest of a frame. For an invalid frame any value will do, since the service refuses it earlier."""
    try:
        tensors = decode([body]).tensors
    except (CommError, ValueError):
        return digest_of([hashlib.sha256(body[: 8 + int.from_bytes(body[4:8], "little")]).digest()])
    size = sum(tensor.data.nbytes for tensor in tensors)
    parts = [body[: len(body) - size], *(tensor.bytes() for tensor in tensors)]
    return digest_of([hashlib.sha256(part).digest() for part in parts])


def _request(method, target, headers, version="HTTP/1.1"):
    lines = [f"{method} {target} {version}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape")


def _http(action, path, headers, body):
    """Return the bytes of a request, the positions of pauses, and whether to cut the connection at the end."""
    kind, number = action.http, action.number
    length = {"Content-Length": str(len(body))}
    start = _request("POST", path, {**headers, **length})
    whole = start + body
    if kind == "chunked":
        size = 1 + number % 700
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        whole = _request("POST", path, {**headers, "Transfer-Encoding": "chunked"}) + chunks + b"0\r\n\r\n"
    elif kind in ("short", "long"):
        wrong = max(len(body) + (1 + number % 9) * (1 if kind == "short" else -1), 0)
        whole = _request("POST", path, {**headers, "Content-Length": str(wrong)}) + body
    elif kind == "none":
        whole = _request("POST", path, headers) + body
    elif kind == "twice":
        extra = ["Content-Length: 5", "Transfer-Encoding: chunked", "Content-Length: -1", "Content-Length: 9" * 9]
        whole = start[:-2] + extra[number % 4].encode() + b"\r\n\r\n" + body
    elif kind == "encoding":
        whole = (
            _request("POST", path, {**headers, **length, "Content-Encoding": ["gzip", "br", "x"][number % 3]}) + body
        )
    elif kind == "type":
        kinds = ["text/plain", "application/x-flowmx; x=\xff", "", "application/json", "multipart/form-data"]
        whole = _request("POST", path, {**headers, **length, "Content-Type": kinds[number % 5]}) + body
    elif kind == "method":
        whole = _request(["GET", "PUT", "HEAD", "OPTIONS", "X", "post"][number % 6], path, {**headers, **length}) + body
    elif kind == "expect":
        whole = _request("POST", path, {**headers, **length, "Expect": ["100-continue", "x"][number % 2]}) + body
    elif kind == "old":
        whole = (
            _request("POST", path, {**headers, **length}, ["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "X/1"][number % 4])
            + body
        )
    elif kind == "pipeline":
        whole = whole * 2
    elif kind == "target":
        targets = [
            "/v1/%00",
            "/v1/",
            "/../v1/push",
            "*",
            "http://x/v1/push",
            "/v1/push?x=1",
            "/" + "x" * 9000,
            "/v2/push",
        ]
        whole = _request("POST", targets[number % 8], {**headers, **length}) + body
    elif kind == "header":
        extra = [
            "A: " + "x" * 9000,
            "A:b\r\n" * 200 + "A: b",
            "A\0: b",
            ": b",
            "A : b",
            "\xff: \xfe",
            "Flowmx-Signature: x",
        ]
        whole = start[:-2] + extra[number % 7].encode("latin-1") + b"\r\n\r\n" + body
    elif kind == "host":
        hosts = ["evil.example", "", "localhost:99999", "[::1", "127.0.0.1.evil.example", "[::1]:1", "a\tb"]
        whole = _request("POST", path, {**headers, **length, "Host": hosts[number % 7]}) + body
    elif kind == "fields":
        whole = start.replace(b"\r\n", [b"\n", b"\r", b"\r\n "][number % 3]) + body
    elif kind == "garbage":
        starts = [b"\x16\x03\x01\x02\0\x01\0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0" * 500, b"GET", b"\r\n" * 50]
        whole = starts[number % 5] + whole[:number]
    pause = number % (len(whole) + 1) if kind in ("abort", "split", "slow") else len(whole)
    return (whole[:pause] if kind in ("abort", "slow") else whole), pause, kind == "abort"


async def _drained(writer):
    await writer.drain()
    await asyncio.sleep(0)


async def _read(reader, action):
    """Read an answer, and check that it is valid HTTP with a valid frame where the wire requires one."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    while head.startswith("HTTP/1.1 100"):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = int(first.split(" ")[1])
    if fields.get("transfer-encoding") == "chunked" or "content-length" not in fields:
        return Answer(status, {}, "" if status in (400, 404, 405) else f"status {status} without a length")
    body = b"" if action.http == "method" else await reader.readexactly(int(fields["content-length"]))
    if fields.get("content-type") != CONTENT_TYPE:
        return Answer(status, {}, "an answer of status 200 that is no frame" * (status == 200 and bool(body)))
    return _frame(status, body)


def _frame(status, body):
    try:
        header = unpack(memoryview(body)[8 : 8 + int.from_bytes(body[4:8], "little")])
    except (CommError, ValueError) as error:
        return Answer(status, {}, f"an answer that is no frame: {error}")
    reported = header.get("error")
    is_error = isinstance(reported, dict) and isinstance(reported.get("kind"), str) and bool(reported.get("text"))
    return Answer(
        status, header, "" if is_error != (status == 200) else f"status {status} with the header {header!r:.200}"
    )
