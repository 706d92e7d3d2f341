"""Sessions over HTTP: WebSockets and streams, as an aiohttp and as an ASGI application."""

import asyncio
import json

import aiohttp
import msgpack
import numpy as np
import pytest

from flowmx.comm.limits import Limits
from flowmx.serve import asgi
from flowmx.serve.sessions.socket_call import SocketCall
from tests.serve.sessions.test_session import Sums, opened, summing  # noqa: F401 (a fixture)
from tests.serve.test_http import JSON, MSGPACK, Client, Gateway, packed
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("opened")


class Socket:
    """A WebSocket of an ASGI application, by hand."""

    def __init__(self, application, path="/ml/session", headers=(), extensions=()):
        self.events, self.sent = asyncio.Queue(), asyncio.Queue()
        scope = {
            "type": "websocket", "path": path, "root_path": "/ml", "headers": list(headers),
            "extensions": {name: {} for name in extensions},
        }  # fmt: skip
        self.events.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(application(scope, self.events.get, self.sent.put))

    def send(self, **event):
        self.events.put_nowait({"type": "websocket.receive", **event})

    async def get(self):
        return await asyncio.wait_for(self.sent.get(), 30)


async def test_a_websocket_is_a_session_and_answers_in_order_and_in_the_format_of_the_message():
    async with Client(summing()) as client, client.session.ws_connect("/ml/session") as socket:
        await socket.send_str("[1, 2]")
        await socket.send_str('{"inputs": [3, 4]}')
        await socket.send_bytes(msgpack.packb({"inputs": packed([5, 6])}))
        assert json.loads((await socket.receive()).data) == {"outputs": [1, 2, 1]}
        assert json.loads((await socket.receive()).data) == {"outputs": [4, 6, 2]}
        reply = msgpack.unpackb((await socket.receive()).data)["outputs"]
        assert np.frombuffer(reply["data"], np.float32).tolist() == [9, 12, 3]


async def test_an_asgi_websocket_is_a_session():
    async with Gateway(summing()) as gateway:
        socket = Socket(gateway.application, "/ml/models/model/session")
        assert (await socket.get())["type"] == "websocket.accept"
        socket.send(text="[1, 2]")
        socket.send(bytes=msgpack.packb([3, 4]))
        assert json.loads((await socket.get())["text"]) == {"outputs": [1, 2, 1]}
        assert msgpack.unpackb((await socket.get())["bytes"])["outputs"]["shape"] == [3]
        socket.events.put_nowait({"type": "websocket.disconnect"})
        await socket.task
        assert gateway.service.models.default().describe()["sessions"]["open"] == 0


async def test_a_cancelled_asgi_websocket_ends_with_the_reason_of_its_canceller():
    async with Gateway(summing()) as gateway:
        socket = Socket(gateway.application, "/ml/models/model/session")
        assert (await socket.get())["type"] == "websocket.accept"
        socket.send(text="[1, 2]")
        await socket.get()
        while not socket.task.done():  # anyio cancels again and again
            socket.task.cancel("by a scope")
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError, match="by a scope"):
            await socket.task
    assert gateway.service.models.default().describe()["sessions"]["open"] == 0


async def test_an_error_of_a_message_leaves_the_session_open():
    async with Client(summing()) as client, client.session.ws_connect("/ml/session") as socket:
        replies = []
        for text in ("[1, 2]", "[1, 2, 3]", "nonsense", "[null, 0]", "[NaN, 0]", "[10, 10]"):
            await socket.send_str(text)
            replies.append(json.loads((await socket.receive()).data))
    assert [reply.get("status", 200) for reply in replies] == [200, 400, 400, 400, 500, 200]
    assert "session 1: input data has shape (3,)" in replies[1]["error"]
    assert replies[4]["error"] == "the model failed: ArithmeticError"
    assert replies[5] == {"outputs": [11, 12, 2]}


async def test_a_websocket_that_cannot_open_a_session_says_why():
    predictor = summing(sessions={"sessions": 1})
    async with Client(predictor) as client:
        first = predictor.session()
        async with client.session.ws_connect("/ml/session") as socket:
            reply = json.loads((await socket.receive()).data)
            assert reply["status"] == 503
            assert "1 sessions are open, at most 1 may be" in reply["error"]
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
            assert socket.close_code == 1013
        first.close()


async def test_other_requests_and_pages_of_other_sites_are_refused():
    async with Client(summing()) as client:
        assert (await client("GET", "/session"))[0] == 426
        for headers, status in (({"Origin": "https://evil.example"}, 403), ({}, 101)):
            if status == 101:
                await (await client.session.ws_connect("/ml/session", headers=headers)).close()
                continue
            with pytest.raises(aiohttp.WSServerHandshakeError) as info:
                await client.session.ws_connect("/ml/session", headers=headers)
            assert info.value.status == status
    application = asgi(summing())
    for extensions, reply in (((), "websocket.close"), (("websocket.http.response",), "websocket.http.response.start")):
        socket = Socket(application, "/ml/models/absent/session", extensions=extensions)
        assert (await socket.get())["type"] == reply
        await socket.task


async def test_a_client_that_disconnects_frees_its_session():
    predictor = summing()
    async with Client(predictor) as client:
        socket = await client.session.ws_connect("/ml/session")
        await socket.send_str("[1, 2]")
        await socket.receive()
        Sums.let.clear()
        await socket.send_str("[1, 2]")
        await until(lambda: predictor._sessions._table.running)
        await socket.close()
        await until(lambda: predictor.describe()["sessions"]["open"] == 0)
        Sums.let.set()
        await until(lambda: predictor.describe()["sessions"]["bytes"] == 0)


async def test_an_idle_session_closes_its_websocket():
    async with Client(summing(sessions={"idle": 0.05})) as client, client.session.ws_connect("/ml/session") as socket:
        message = await socket.receive()
        assert message.type is aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 1001


async def test_a_shutdown_answers_received_messages_and_closes_websockets():
    predictor = summing()
    client = Client(predictor)
    async with client:
        socket = await client.session.ws_connect("/ml/session")
        await socket.send_str("[1, 1]")
        assert json.loads((await socket.receive()).data) == {"outputs": [1, 1, 1]}
        Sums.let.clear()
        await socket.send_str("[1, 1]")
        await until(lambda: predictor._sessions._table.running)
        closing = asyncio.create_task(client.runner.cleanup())
        await asyncio.wait([closing], timeout=0.01)
        Sums.let.set()
        assert json.loads((await socket.receive()).data) == {"outputs": [2, 2, 2]}
        await socket.receive()
        assert socket.close_code == 1001
        await closing


async def test_a_slow_reader_is_not_read_then_dropped_and_delays_no_other():
    predictor, sent, is_slow = summing(), [], asyncio.Event()
    closing, read = asyncio.Event(), []

    async def messages():
        for number in range(1000):
            read.append(number)
            yield "[1, 1]"

    async def send(message):
        sent.append(message)
        if len(sent) > 3:
            is_slow.set()
            await asyncio.Event().wait()  # the client reads no more

    async with predictor:
        call = SocketCall(predictor, 1000, Limits(idle=0.2))
        running = asyncio.create_task(call.run(messages(), send, closing))
        await is_slow.wait()
        async with predictor.session() as other:
            assert [(await other([1, 0]))[0] for _ in range(5)] == [1, 2, 3, 4, 5]
        assert await running == 1008
        assert len(sent) == 4
        assert len(read) <= 4 + 16
        assert predictor.describe()["sessions"]["open"] == 0
        assert 'closed_sessions_total{model="model",reason="slow"} 1' in predictor.metrics.text()


@pytest.mark.parametrize("kind", [Client, Gateway])
async def test_a_stream_sends_the_results_of_a_session(kind):
    async with kind(summing()) as client:
        body = json.dumps({"inputs": [[1, 0], [2, 0], [3, 0]]}).encode()
        status, headers, reply = await client("POST", "/stream", body, content_type=JSON)
        assert status == 200
        assert headers["Content-Type"] == "text/event-stream"
        assert [json.loads(event.removeprefix(b"data: ")) for event in reply.split(b"\n\n")[:-1]] == [
            {"outputs": [1, 0, 1]}, {"outputs": [3, 0, 2]}, {"outputs": [6, 0, 3]},
        ]  # fmt: skip
        body = msgpack.packb({"inputs": packed([[1, 0], [2, 0]])})
        status, _, reply = await client("POST", "/models/model/stream", body, content_type=MSGPACK)
        unpacker = msgpack.Unpacker()
        unpacker.feed(reply)
        assert [np.frombuffer(each["outputs"]["data"], np.float32)[0] for each in unpacker] == [1, 3]


async def test_streams_that_fail():
    predictor = summing()
    async with Client(predictor) as client:
        for body, status in ((b"[[1, 2, 3]]", 400), (b"3", 400), (b"[[NaN, 0]]", 500), (b"[]", 200), (b"{", 400)):
            assert (await client("POST", "/stream", body, content_type=JSON))[0] == status
        assert (await client("POST", "/stream", b"[]", content_type="text/csv"))[0] == 415
        assert (await client("POST", "/stream", b"[]", content_type=JSON, accept="image/png"))[0] == 406
        status, _, reply = await client("POST", "/stream", b"[[1, 0], [NaN, 0], [1, 0]]", content_type=JSON)
        events = [json.loads(event.removeprefix(b"data: ")) for event in reply.split(b"\n\n")[:-1]]
        assert events == [{"outputs": [1, 0, 1]}, {"error": "the model failed: ArithmeticError", "status": 500}]
        await until(lambda: predictor.describe()["sessions"]["open"] == 0)


async def test_models_without_states_have_no_sessions():
    from tests.serve.test_http import doubling

    async with Client(doubling()) as client:
        for method, path in (("GET", "/session"), ("POST", "/stream")):
            status, _, reply = await client(method, path, b"[]" if method == "POST" else b"", content_type=JSON)
            assert status == 400
            assert b"model has no states" in reply
