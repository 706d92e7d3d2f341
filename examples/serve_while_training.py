"""A web service whose model trains while it answers: each prediction uses the current weights.

Run ``python examples/serve_while_training.py``: the service trains, and a client in the same process requests digits
one after another. At the end it prints the latency, the lag of the event loop, and how the accuracy improved. With
``--port 8080`` it serves until it is stopped::

    curl -s -X POST http://127.0.0.1:8080/predict -H 'Content-Type: application/json' \\
         -d "$(python -c 'import digits, json; print(json.dumps(digits.load()[2][0].tolist()))')"

There are no locks and no copies: the handler calls the network like the training does, and the engine orders reads of
the weights between the updates.

After eight epochs, in about 4 seconds of processor time, all of the last predictions are correct.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import numpy as np
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from digits import load
from gluon_digits import network
from progress import Progress, draw, options

import flowmx as mx
from flowmx.gluon import Trainer, data
from flowmx.gluon.loss import SoftmaxCrossEntropyLoss


class Service:
    """The model, in training and in service."""

    def __init__(self, options: argparse.Namespace) -> None:
        mx.random.seed(options.seed)
        np.random.seed(options.seed)
        images, labels, self.test_images, self.test_labels = load()
        self.loader = data.DataLoader(data.ArrayDataset(images, labels), options.batch_size, shuffle=True)
        self.net = network()
        self.net.initialize(mx.init.Xavier())
        self.net.hybridize()
        self.trainer = Trainer(self.net.collect_params(), "adam", {"learning_rate": 1e-3})
        self.progress = Progress(options.epochs, len(self.loader))
        self.options = options
        self.lags: list[float] = []

    async def train(self) -> None:
        """Train to the end, concurrently with everything else on this loop."""
        loss_of, folder = SoftmaxCrossEntropyLoss(), self.options.checkpoint
        run = folder and mx.checkpoint.Run(folder, self.net, self.trainer, self.loader, every=self.options.every)
        start, batch = await run.resume_async() if run else (0, 0)
        for epoch in range(start, self.options.epochs):
            self.progress.begin(epoch, batch)
            async for images, labels in self.loader:
                with mx.autograd.record():
                    loss = loss_of(self.net(images), labels)
                loss.backward()
                self.trainer.step(len(images))
                await self.progress.batch(loss.mean(), len(images))
                if run:
                    await run.batch_end_async()
            await self.progress.end()
            batch = 0
            if run:
                await run.epoch_end_async()

    async def predict(self, request: web.Request) -> web.Response:
        """POST /predict with a 1x28x28 image as nested lists: the digit."""
        try:
            image = np.asarray(await request.json(), np.float32)
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"the body is not a JSON array of numbers: {error}") from None
        if image.shape != (1, 28, 28):
            raise web.HTTPUnprocessableEntity(text=f"the image has shape {image.shape}, expected (1, 28, 28)")
        best = self.net(mx.nd.array(image[None])).argmax(axis=1)
        await best
        return web.json_response({"digit": int(best.asscalar()), "epoch": self.progress.epoch + 1})

    async def watch(self) -> None:
        """Measure how late the loop wakes this task."""
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.005)
            self.lags.append(time.perf_counter() - started - 0.005)

    async def live(self, app: web.Application) -> AsyncIterator[None]:
        """Train and measure the lag while the application runs."""
        self.training = asyncio.create_task(self.train())
        tasks = [self.training, asyncio.create_task(self.watch())]
        yield
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def app(self) -> web.Application:
        """Build the service as an application."""
        app = web.Application()
        app.router.add_post("/predict", self.predict)
        app.cleanup_ctx.append(self.live)
        return app


async def main(options: argparse.Namespace) -> dict[str, float]:
    """Serve and send requests until the training ends; returns the client's results."""
    service = Service(options)
    random = np.random.default_rng(options.seed)
    times: list[float] = []
    right: list[bool] = []
    async with TestClient(TestServer(service.app())) as client:
        while not service.training.done():
            index = random.integers(len(service.test_images))
            started = time.perf_counter()
            reply = await client.post("/predict", json=service.test_images[index].tolist())
            right.append((await reply.json())["digit"] == service.test_labels[index])
            times.append(time.perf_counter() - started)
        await service.training
        latest = np.array(service.lags)
    window = max(1, min(100, len(right) // 4))
    shares = np.convolve(right, np.ones(window) / window, "valid")
    ends = np.linspace(0, options.epochs, len(shares))
    draw(options.plot, "Answers while training", {"right answers": list(zip(ends, shares, strict=True))}, "share")
    return {
        "answers": len(times),
        "median time of an answer (ms)": 1e3 * float(np.median(times)),
        "99 % are answered within (ms)": 1e3 * float(np.quantile(times, 0.99)),
        "99 % of the loop's turns are late by less than (ms)": 1e3 * float(np.quantile(latest, 0.99)),
        "right among the first answers": float(shares[0]),
        "right among the last answers": float(shares[-1]),
    }


def parser() -> argparse.ArgumentParser:
    """Build the parser of this example's options."""
    arguments = options(__doc__, epochs=8, batch_size=64)
    arguments.add_argument("--port", type=int, help="serve on this port, also after the training")
    return arguments


if __name__ == "__main__":
    options_ = parser().parse_args()
    if options_.port:
        web.run_app(Service(options_).app(), host="127.0.0.1", port=options_.port)
    else:
        for what, value in mx.run(main(options_)).items():
            print(f"{what}: {value:.3g}")
