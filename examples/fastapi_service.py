"""A FastAPI application with a model inside: shared batches, errors, streams of results, a clean shutdown.

Run ``uvicorn fastapi_service:api`` in the folder ``examples``, and open http://127.0.0.1:8000/docs. It needs
``pip install fastapi uvicorn scikit-learn``. ``docs/fastapi.md`` explains it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import fastapi
import numpy as np
from fastapi.responses import JSONResponse, StreamingResponse
from sklearn.datasets import load_digits

import flowmx as mx
from flowmx.ndarray import NDArray

PIXELS = 64


def digits_network() -> mx.gluon.nn.HybridSequential:
    """Return a small network, trained on scikit-learn's digits."""
    images, labels = load_digits(return_X_y=True)
    x, y = mx.nd.array(images / 16), mx.nd.array(labels)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(64, activation="relu"), mx.gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(60):
        with mx.autograd.record():
            loss: NDArray = loss_of(net(x), y)
        loss.backward()
        trainer.step(len(x))
    return net


@contextlib.asynccontextmanager
async def lifespan(api: fastapi.FastAPI) -> AsyncIterator[None]:
    """Compile the model before the first request, and answer the last ones before the end."""
    net = await asyncio.to_thread(digits_network)
    async with mx.serve.Predictor(net, shape=(PIXELS,), max_batch=32, max_queue=256) as predictor:
        api.state.predictor = predictor
        yield


api = fastapi.FastAPI(lifespan=lifespan)


def _predictor(request: fastapi.Request) -> mx.serve.Predictor:
    predictor: mx.serve.Predictor = request.app.state.predictor
    return predictor


@api.exception_handler(mx.serve.InvalidInput)
async def refuse(request: fastapi.Request, error: mx.serve.InvalidInput) -> JSONResponse:
    """Answer a request whose input does not fit the model."""
    return JSONResponse({"detail": str(error)}, 422)


@api.exception_handler(mx.serve.Overloaded)
async def shed(request: fastapi.Request, error: mx.serve.Overloaded) -> JSONResponse:
    """Answer a request for which there is no place in the queue."""
    return JSONResponse({"detail": str(error)}, 503, {"Retry-After": str(max(1, round(error.retry_after)))})


@api.exception_handler(mx.serve.Unavailable)
async def unavailable(request: fastapi.Request, error: mx.serve.Unavailable) -> JSONResponse:
    """Answer a request during the shutdown."""
    return JSONResponse({"detail": str(error)}, 503)


@api.post("/digit")
async def digit(request: fastapi.Request, image: list[float]) -> dict[str, int]:
    """Return the digit in an image of 64 pixels. Requests at the same time share a batch."""
    scores = await _predictor(request)(image)
    return {"digit": int(scores.argmax())}


@api.post("/digits")
async def digits(request: fastapi.Request, images: list[list[float]]) -> StreamingResponse:
    """Return a line of JSON for each image, as soon as it is known."""
    predictor = _predictor(request)

    async def one(number: int, image: list[float]) -> bytes:
        result: dict[str, int | str]
        try:
            result = {"image": number, "digit": int((await predictor(image)).argmax())}
        except (mx.serve.InvalidInput, mx.serve.Overloaded) as error:  # the status has been sent already
            result = {"image": number, "error": str(error)}
        return json.dumps(result).encode() + b"\n"

    async def lines() -> AsyncIterator[bytes]:
        tasks = [asyncio.ensure_future(one(number, image)) for number, image in enumerate(images)]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:  # the client has disconnected, or all lines are sent
            for each in tasks:
                each.cancel()

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@api.get("/ready")
async def ready(request: fastapi.Request) -> dict[str, object]:
    """Return the state of the model, for probes."""
    predictor = _predictor(request)
    return {"ready": predictor.is_ready, "version": predictor.version, "inputs": predictor.inputs.describe()}


if __name__ == "__main__":
    from fastapi.testclient import TestClient

    with TestClient(api) as client:
        print(client.post("/digit", json=np.zeros(PIXELS).tolist()).json())
