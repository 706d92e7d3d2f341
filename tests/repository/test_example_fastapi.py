"""The example of a FastAPI application: shared batches, errors, streams, disconnected clients, shutdown."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from tests.serve.test_predictor import Gate, closed, gated  # noqa: F401 (a fixture)
from tests.waiting import until

fastapi = pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGES = np.random.default_rng(0).random((20, 64)).tolist()


@pytest.fixture
def service(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import fastapi_service

    return fastapi_service


@pytest.fixture
async def client(service):
    """A client of the application, between its startup and its shutdown."""
    transport = httpx.ASGITransport(service.api)
    async with service.lifespan(service.api), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def batches(service):
    """Return the number of batches so far."""
    text = service.api.state.predictor.metrics.text()
    return int((text.partition('flowmx_serve_batch_rows_count{model="model"} ')[2].split() or [0])[0])


def queued(predictor):
    """Return the number of samples that wait."""
    return predictor._runner.queue.rows


async def test_requests_at_the_same_time_share_batches(service, client):
    before = batches(service)
    replies = await asyncio.gather(*(client.post("/digit", json=image) for image in IMAGES))
    assert {reply.status_code for reply in replies} == {200}
    assert batches(service) - before < len(IMAGES)
    scores = await service.api.state.predictor(IMAGES)
    assert [reply.json()["digit"] for reply in replies] == scores.argmax(axis=1).tolist()


async def test_the_network_knows_digits(client):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    reply = await client.post("/digits", json=(images[:50] / 16).tolist())
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert sorted(line["image"] for line in lines) == list(range(50))
    assert sum(line["digit"] == labels[line["image"]] for line in lines) > 45


async def test_errors_have_their_status(client):
    wrong = await client.post("/digit", json=[1.0, 2.0])
    assert wrong.status_code == 422 and "64" in wrong.json()["detail"]
    assert (await client.post("/digit", json="no image")).status_code == 422


async def test_requests_without_a_place_in_the_queue_are_refused(service, client, gated):  # noqa: F811
    service.api.state.predictor = gated
    first = await closed(gated)
    waiting = [asyncio.ensure_future(client.post("/digit", json=[0.0, 1.0])) for _ in range(6)]
    await until(lambda: queued(gated) == 6)
    refused = await client.post("/digit", json=[0.0, 1.0])
    assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1
    Gate.let.set()
    await first
    assert {(await each).status_code for each in waiting} == {200}
    await gated.drain()


async def test_a_disconnected_client_withdraws_its_images(service, client, gated):  # noqa: F811
    service.api.state.predictor = gated
    first = await closed(gated)
    stream = service.digits(fastapi.Request({"type": "http", "app": service.api}), [[0.0, 1.0]] * 3)
    lines = (await stream).body_iterator
    reading = asyncio.ensure_future(anext(lines))
    await until(lambda: queued(gated) == 3)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await until(lambda: queued(gated) == 0)
    Gate.let.set()
    await first
    await gated.drain()


async def test_a_line_with_an_error_does_not_end_the_stream(client):
    reply = await client.post("/digits", json=[IMAGES[0], [1.0], IMAGES[1]])
    lines = {line["image"]: line for line in map(json.loads, reply.text.splitlines())}
    assert "digit" in lines[0] and "digit" in lines[2] and "64" in lines[1]["error"]


async def test_during_the_shutdown_requests_are_refused(service, client):
    assert (await client.get("/ready")).json()["ready"] is True
    await service.api.state.predictor.drain()
    reply = await client.post("/digit", json=IMAGES[0])
    assert reply.status_code == 503
    assert (await client.get("/ready")).json()["ready"] is False


async def test_the_last_requests_are_answered(service):
    async with service.lifespan(service.api):
        predictor = service.api.state.predictor
        waiting = [asyncio.ensure_future(predictor(image)) for image in IMAGES]
        await asyncio.sleep(0)
    assert all(task.done() and task.exception() is None for task in waiting)
    with pytest.raises(mx.serve.Unavailable):
        await predictor(IMAGES[0])
