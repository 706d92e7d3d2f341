"""Requests whose inputs are sent while results come back."""

import asyncio
import json

import msgpack
import numpy as np
import pytest

from flowmx.comm.admission import Budget
from flowmx.comm.limits import Limits
from flowmx.serve.formats import FORMATS
from flowmx.serve.replies import Refusal
from flowmx.serve.sessions.body_values import BodyValues
from flowmx.serve.sessions.messages import MSGPACK as FORM
from flowmx.serve.sessions.stream_call import StreamCall
from tests.serve.sessions.test_session import opened, summing  # noqa: F401 (a fixture)
from tests.serve.test_http import JSON, MSGPACK, Client, Gateway, packed
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("opened")


def step(*data):
    return msgpack.packb({"inputs": packed([data])})


def first_outputs(reply):
    unpacker = msgpack.Unpacker()
    unpacker.feed(reply)
    return [
        float(np.frombuffer(each["outputs"]["data"], np.float32)[0]) if "outputs" in each else each for each in unpacker
    ]


async def test_a_client_sends_an_input_after_each_result():
    predictor = summing()
    async with Client(predictor) as client:
        inputs = asyncio.Queue()

        async def body():
            while (data := await inputs.get()) is not None:
                for place in range(0, len(data), 7):  # values in parts
                    yield data[place : place + 7]

        inputs.put_nowait(step(1, 0))
        async with client.session.post("/ml/stream", data=body(), headers={"Content-Type": MSGPACK}) as reply:
            assert reply.status == 200
            unpacker, sums = msgpack.Unpacker(), []
            async for chunk in reply.content.iter_any():
                unpacker.feed(chunk)
                for value in unpacker:
                    sums.append(np.frombuffer(value["outputs"]["data"], np.float32)[0])
                    inputs.put_nowait(step(len(sums), 0) if len(sums) < 5 else None)
        assert sums == [1, 2, 4, 7, 11]
        await until(lambda: predictor.describe()["sessions"]["open"] == 0)
        assert client.service.budget.nbytes == 0


@pytest.mark.parametrize("kind", [Client, Gateway])
async def test_each_value_may_have_several_inputs(kind):
    body = step(1, 0) + msgpack.packb({"inputs": packed([[2, 0], [3, 0]])}) + step(4, 0)
    async with kind(summing()) as client:
        status, _, reply = await client("POST", "/stream", body, content_type=MSGPACK)
        assert (status, first_outputs(reply)) == (200, [1, 3, 6, 10])
        status, _, reply = await client("POST", "/stream", body, content_type=MSGPACK, accept="text/event-stream")
        assert [json.loads(line[6:])["outputs"][0] for line in reply.decode().split("\n\n")[:-1]] == [1, 3, 6, 10]


@pytest.mark.parametrize(
    ("end", "status", "message"),
    [
        (step(1, 0)[:-3], 400, "the body is not valid msgpack"),
        (b"\xc1", 400, "the body is not valid msgpack"),
        (b"\x91" * 100 + b"\x00", 400, "the msgpack of the body is too large: there are 65 nested containers"),
        (b"\xdd\x7f\xff\xff\xff", 400, "the msgpack of the body is too large: there are 2147483647 elements"),
        (msgpack.packb(b"a" * 2000), 413, "expected at most 1000"),
    ],
)
async def test_a_malformed_value_ends_the_stream_after_the_results_before_it(end, status, message):
    predictor = summing()
    async with Client(predictor, max_body=1000) as client:

        async def body(*parts):  # a body without Content-Length
            for part in parts:
                yield part

        for before in ([], [step(1, 0)]):
            code, _, reply = await client("POST", "/stream", body(*before, end), content_type=MSGPACK)
            *results, error = first_outputs(reply) if before else [json.loads(reply)]
            assert results == [1.0] * len(before)
            assert code == (200 if before else status)
            assert not before or error["status"] == status
            assert message in error["error"]
        await until(lambda: predictor.describe()["sessions"]["open"] == 0)
        assert client.service.budget.nbytes == 0


async def test_a_client_that_does_not_read_its_results_is_not_read():
    chunks = []

    async def body():
        for _ in range(1000):
            chunks.append(step(1, 1))
            yield chunks[-1]

    async with summing() as predictor:
        call = StreamCall(predictor, FORM, FORM, 1000, Limits(), Budget(1 << 20))
        stream = await call.run(body(), asyncio.Event())
        async with predictor.session() as other:
            assert [(await other([1, 0]))[0] for _ in range(5)] == [1, 2, 3, 4, 5]
        assert len(chunks) < 20
        await stream.chunks.aclose()  # although nothing has been read
        await until(lambda: predictor.describe()["sessions"]["open"] == 0)
        assert call.budget.nbytes == 0


async def endless(*chunks):
    for chunk in chunks:
        yield chunk
    await asyncio.Event().wait()


@pytest.mark.parametrize("is_closing", [True, False])
async def test_a_shutdown_and_a_closed_session_end_a_stream_that_waits_for_its_client(is_closing):
    async with summing() as predictor:
        closing = asyncio.Event()
        call = StreamCall(predictor, FORM, FORM, 1000, Limits(), Budget(1 << 20))
        stream = await call.run(endless(step(1, 0)), closing)
        if is_closing:
            closing.set()
        else:
            await predictor.drain()
        first, error = first_outputs(b"".join([chunk async for chunk in stream.chunks]))
        assert first == 1
        assert error["status"] == (503 if is_closing else 410)
        assert ("the service is stopping" if is_closing else "session 1") in error["error"]


async def test_a_client_that_pauses_within_a_value_is_refused():
    async with summing() as predictor:
        call = StreamCall(predictor, FORM, FORM, 1000, Limits(idle=0.05), Budget(1 << 20))
        reply = await call.run(endless(step(1, 0)[:-1]), asyncio.Event())
        assert reply.status == 408
        assert predictor.describe()["sessions"]["open"] == 0


async def test_bytes_that_exceed_the_memory_are_refused():
    async with summing() as predictor:
        call = StreamCall(predictor, FORM, FORM, 1000, Limits(), Budget(10))
        reply = await call.run(endless(step(1, 0)), asyncio.Event())
        assert (reply.status, reply.headers["Retry-After"]) == (503, "1")


async def test_a_gateway_that_disconnects_within_a_body_ends_the_session():
    predictor = summing()
    async with Gateway(predictor) as gateway:
        events, sent = asyncio.Queue(), asyncio.Queue()
        scope = {
            "type": "http", "method": "POST", "path": "/stream", "headers": [(b"content-type", MSGPACK.encode())],
        }  # fmt: skip
        events.put_nowait({"type": "http.request", "body": step(1, 0), "more_body": True})
        running = asyncio.create_task(gateway.application(scope, events.get, sent.put))
        assert (await sent.get())["status"] == 200
        assert first_outputs((await sent.get())["body"]) == [1]
        events.put_nowait({"type": "http.disconnect"})
        await running
        assert predictor.describe()["sessions"]["open"] == 0


async def values_of(parts, form=FORM, limit=1000):
    async def chunks():
        for part in parts:
            yield part

    with Budget(1 << 20).enter() as entry:
        return [value async for value in BodyValues(chunks(), form, limit, Limits(), entry)]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_values_do_not_depend_on_the_chunks(size):
    values = [[1, 2], "text", {"a": [3]}, b"bytes" * 30, None, 5]
    body = b"".join(map(msgpack.packb, values))
    parts = [body[place : place + size] for place in range(0, len(body), size)]
    assert await values_of(parts) == values
    assert await values_of([b"[1, ", b"2]"], FORMATS[JSON]) == [[1, 2]]
    assert await values_of([body] * 20, limit=152) == values * 20  # the limit is that of a value
    with pytest.raises(Refusal, match="the body has 152 bytes"):
        await values_of(parts, limit=151)
