"""Every endpoint under almost valid input: no crash, no leak, and no unsigned request has an effect."""

import asyncio
import gc
import random
import resource
from collections import Counter
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from flowmx.comm import shared_memory
from flowmx.comm.client import Peer
from flowmx.comm.frames import Message, Tensor, encode, pack
from flowmx.comm.limits import Limits
from flowmx.comm.security import REQUEST, Security, digest_of
from flowmx.comm.server import Service
from flowmx.comm.transfer import CONTENT_TYPE, _hash

SECRET = Security("the fuzzer does not know it")
COUNTS = [300, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
PATHS = ["/v1/op", "/v1/local", "/v1/op", "/v1/", "/v1/%00", "/healthz", "/metrics", "/v2/x", "/v1/ö/../op"]
SMALL = Limits(header=2000, total=5000, idle=0.05)


def resident():
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def body(source):
    """A frame, possibly damaged."""
    header = {"id": source.choice(["x", 5, None, "y" * 3000]), "host": source.choice(["", "z", 5])}
    if source.random() < 0.3:
        header = {}
    whole = b"".join(encode(Message(header, [Tensor.of(np.arange(source.choice([0, 1, 300, 700])))])))
    if source.random() < 0.3:
        whole = whole.replace(
            b"\xa7tensors", source.choice([b"\xa6shared\x93\x01\x02\x03", b"\xa7tensor\xff", b"\xc1"]), 1
        )
    if source.random() < 0.5:
        at = source.randrange(len(whole))
        whole = whole[:at] + source.randbytes(source.randrange(5)) + whole[at + source.randrange(5) :]
    return whole


def request(source):
    """Method, path, headers and body of a request."""
    data = body(source)
    path = source.choice(
        ["/v1/op", "/v1/local", "/v1/op", "/v1/", "/v1/%00", "/healthz", "/metrics", "/v2/x", "/v1/ö/../op"]
    )
    headers = {"Content-Type": source.choice([CONTENT_TYPE, CONTENT_TYPE, "text/plain", "a/b;c=\xff"])}
    wrong = Security("what the fuzzer takes it for")
    digest = digest_of([_hash(data)])
    value = wrong.sign_request("POST", path, source.choice(["", "w", "a"]), digest)[1]
    at = source.randrange(len(value))
    changed = value[:at] + source.choice(["", "0", ",", "\xe9"]) + value[at + 1 :]
    headers[REQUEST] = source.choice([value, changed, "", "Bearer x", "x" * 3000])
    return source.choice(["POST", "POST", "POST", "GET", "PUT", "OPTIONS", "X"]), path, headers, data


async def alive(service, security):
    async with Peer(service.address, security=security, node="sane") as peer:
        answer = await peer.call("op", {}, [np.arange(3.0)])
    assert answer.tensors[0].shape == (3,)
    assert service.admission.requests == service.admission.nbytes == 0


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("security", [None, SECRET])
async def test_endpoints_refuse_invalid_input(count, security):
    callers, source, statuses = [], random.Random(count), set()

    async def handler(caller, message):
        callers.append(caller.node)
        return message

    service = Service("fuzzed", security=security, limits=SMALL)
    service.operation("op", handler)
    await service.start()
    try:
        before = 0
        async with aiohttp.ClientSession(service.address) as session:
            for number in range(count):
                method, path, headers, data = request(source)
                async with session.request(method, path, headers=headers, data=data) as response:
                    await response.read()
                    statuses.add(response.status)
                if number == count // 4:
                    gc.collect()
                    before = resident()
        gc.collect()
        assert resident() - before < 50 << 20
        if security is not None:
            assert callers == []
        await alive(service, security)
    finally:
        await service.stop()
    assert statuses <= {200, 400, 401, 404, 405, 409, 413, 415}
    assert {400, 401, 404} & statuses


@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
async def test_connections_that_break_or_stall_are_cleaned_up(count, caplog):
    source = random.Random(count)

    async def handler(caller, message):
        return message

    service = Service("fuzzed", limits=SMALL)
    service.operation("op", handler)
    await service.start()
    port = int(service.address.rpartition(":")[2])
    start = f"POST /v1/op HTTP/1.1\r\nHost: localhost\r\nContent-Type: {CONTENT_TYPE}\r\n".encode()

    async def one():
        data = body(source)
        length = source.choice(
            [f"Content-Length: {len(data) + source.randrange(3)}", "Transfer-Encoding: chunked", "X: y"]
        )
        whole = start + length.encode() + b"\r\n\r\n" + data
        if source.random() < 0.3:
            whole = source.randbytes(source.randrange(1, 300))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(whole[: source.randrange(1, len(whole) + 1)])
        if source.random() < 0.5:
            writer.transport.abort()
            return
        writer.write_eof()
        try:
            await reader.read(100)
        except ConnectionResetError:
            pass
        writer.close()

    try:
        for _ in range(count // 20):
            await asyncio.gather(*(one() for _ in range(20)))
        await alive(service, None)
    finally:
        await service.stop()
    assert "Traceback" not in caplog.text  # invalid requests are answered, not logged


def shared(source, segment):
    """The header of a request that names shared memory, in most cases wrongly."""
    numbers = [0, 1, 8, 64, segment.size, segment.size - 8, 1 << 40, 1 << 62, -1, 1.5, "1", None, True]
    named = [segment.descriptor, segment.inode, segment.size, 64, 64]
    if source.random() < 0.5:
        named[source.randrange(5)] = source.choice(numbers)
    tensors = [
        [source.choice(["int8", "float64", "x"]), [source.choice(numbers)], source.choice(numbers)]
        for _ in range(source.randrange(4))
    ]
    return {"shared": named[: source.choice([5, 5, 5, 3, 4, 0])], "tensors": tensors}


@pytest.mark.skipif(not shared_memory.AVAILABLE, reason="needs Linux's sealed memory")
@pytest.mark.parametrize("count", [500, pytest.param(200_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
async def test_wrong_memory_names_are_refused(count):
    async def handler(caller, message):
        return message._replace(tensors=[Tensor.of(tensor.array()) for tensor in message.tensors])

    source, statuses, segment = random.Random(count), Counter(), shared_memory.Segment(8192)
    service = Service("fuzzed", limits=SMALL)
    service.operation("op", handler)
    service.operation("borrow", handler, borrow=True)
    await service.start()
    connector = shared_memory.Connector(f"\0{service._socket}")
    try:
        async with aiohttp.ClientSession("http://localhost", connector=connector) as session:
            for _ in range(count):
                data, path = pack(shared(source, segment)), source.choice(["/v1/op", "/v1/borrow", "/v1/local"])
                async with session.post(path, data=data, headers={"Content-Type": CONTENT_TYPE}) as response:
                    await response.read()
                    statuses[response.status] += 1
        await alive(service, None)
    finally:
        await service.stop()
    assert {*statuses} - {408} == {200, 400, 409, 413}  # 408: the machine was busy
