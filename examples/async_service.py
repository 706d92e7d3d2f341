"""A web service that trains in the background and answers predictions, all on one event loop.

Run ``python examples/async_service.py`` and open http://127.0.0.1:8080/ for its state. A prediction::

    curl -s -X POST http://127.0.0.1:8080/predict -H 'Content-Type: application/json' \
         -d "$(python -c 'import digits, json; print(json.dumps(digits.load()[2][0].tolist()))')"

Training enqueues work and awaits it; it never blocks the loop, so requests are answered during training.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np
from aiohttp import web
from digits import lenet, load

import flowmx as mx


class Model:
    """LeNet in training, and an executor for predictions that shares its parameters."""

    def __init__(self, epochs: int, batch_size: int = 64) -> None:
        self.epochs = epochs
        self.images, self.labels, self.test_images, self.test_labels = load()
        self.train = mx.io.NDArrayIter(self.images, self.labels, batch_size, shuffle=True, last_batch_handle="discard")
        self.module = mx.mod.Module(lenet(), context=mx.cpu())
        self.module.bind(self.train.provide_data, self.train.provide_label)
        self.module.init_params(mx.init.Xavier())
        parameters, _ = self.module.get_params()
        self.predictor = lenet().simple_bind(mx.cpu(), grad_req="null", data=(1, 1, 28, 28), softmax_label=(1,))
        self.parameters = parameters
        self.lock = asyncio.Lock()
        self.state: dict[str, float | int | str] = {"state": "waiting", "epoch": 0}

    async def fit(self) -> None:
        """Train for all epochs; the state is updated after each."""
        self.state["state"] = "training"

        def after_epoch(epoch: int, symbol: object, arguments: dict[str, mx.nd.NDArray], auxiliary: object) -> None:
            self.parameters = arguments
            self.state["epoch"] = epoch + 1

        def after_batch(param: mx.model.BatchEndParam) -> None:
            self.state.update({name: float(value) for name, value in param.eval_metric.get_name_value()})

        await self.module.fit(
            self.train,
            optimizer_params={"learning_rate": 0.1, "momentum": 0.9},
            num_epoch=self.epochs,
            batch_end_callback=after_batch,
            epoch_end_callback=after_epoch,
        )
        self.state["state"] = "trained"

    async def predict(self, image: np.ndarray) -> list[float]:
        """Compute the probabilities of the ten digits, with the parameters of the last finished epoch."""
        async with self.lock:  # one executor: one prediction at a time
            self.predictor.copy_params_from(self.parameters)
            scores = self.predictor.forward(data=mx.nd.array(image[None]))[0].copy()
        await scores
        return [float(p) for p in scores.asnumpy()[0]]


MODEL = web.AppKey("model", Model)


async def status(request: web.Request) -> web.Response:
    """GET /: the progress of the training."""
    return web.json_response(request.app[MODEL].state)


async def predict(request: web.Request) -> web.Response:
    """POST /predict with a 1x28x28 image as nested lists: the digit and its probabilities."""
    try:
        image = np.asarray(await request.json(), np.float32)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"the body is not a JSON array of numbers: {error}") from None
    if image.shape != (1, 28, 28):
        raise web.HTTPUnprocessableEntity(text=f"the image has shape {image.shape}, expected (1, 28, 28)")
    scores = await request.app[MODEL].predict(image)
    return web.json_response({"digit": int(np.argmax(scores)), "probabilities": scores})


async def training(app: web.Application) -> AsyncIterator[None]:
    """Train while the application runs; stop when it stops."""
    task = asyncio.create_task(app[MODEL].fit())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def make_app(epochs: int = 20) -> web.Application:
    """Build the service as an application, to run or to mount in another."""
    app = web.Application()
    app[MODEL] = Model(epochs)
    app.router.add_get("/", status)
    app.router.add_post("/predict", predict)
    app.cleanup_ctx.append(training)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    web.run_app(make_app(options.epochs), host="127.0.0.1", port=options.port)
