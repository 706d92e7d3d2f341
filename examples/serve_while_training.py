"""A web service whose model learns while it answers: every answer is given by the weights of that moment.

Run ``python examples/serve_while_training.py``: the service trains, and a client in the same process asks for digits
all the while, one after the other. At the end it says how long answers took, how late the loop was, and how the answers
got better. With ``--port 8080`` it serves until it is stopped::

    curl -s -X POST http://127.0.0.1:8080/predict -H 'Content-Type: application/json' \\
         -d "$(python -c 'import digits, json; print(json.dumps(digits.load()[2][0].tolist()))')"

Nothing here locks or copies: the network is called in the handler as in the training, and the engine orders what reads
the weights between the updates that write them.

After eight epochs, in about 4 seconds of processor time, all of the last answers are right.
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
    """The model, in training and in use."""

    def __init__(self, options: argparse.Namespace) -> None:
        mx.random.seed(options.seed)
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
                    await run.batch_done_async()
            await self.progress.end()
            batch = 0
            if run:
                await run.epoch_done_async()

    async def predict(self, request: web.Request) -> web.Response:
        """POST /predict with a 1x28x28 image as nested lists: the digit."""
        try:
            image = np.asarray(await request.json(), np.float32)
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"the body is no JSON array of numbers: {error}") from None
        if image.shape != (1, 28, 28):
            raise web.HTTPUnprocessableEntity(text=f"the image has shape {image.shape}, expected (1, 28, 28)")
        best = self.net(mx.nd.array(image[None])).argmax(axis=1)
        await best
        return web.json_response({"digit": int(best.asscalar()), "epoch": self.progress.epoch + 1})

    async def watch(self) -> None:
        """Note how much later than it should the loop wakes this task."""
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.005)
            self.lags.append(time.perf_counter() - started - 0.005)

    async def live(self, app: web.Application) -> AsyncIterator[None]:
        """Train and watch while the application runs."""
        self.training = asyncio.create_task(self.train())
        tasks = [self.training, asyncio.create_task(self.watch())]
        yield
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def app(self) -> web.Application:
        """The service as an application."""
        app = web.Application()
        app.router.add_post("/predict", self.predict)
        app.cleanup_ctx.append(self.live)
        return app


async def main(options: argparse.Namespace) -> dict[str, float]:
    """Serve and ask until the training is over; returns what the client saw."""
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
    """The options of this example."""
    made = options(__doc__, epochs=8, batch_size=64)
    made.add_argument("--port", type=int, help="serve here, and go on after the training")
    return made


if __name__ == "__main__":
    given = parser().parse_args()
    if given.port:
        web.run_app(Service(given).app(), host="127.0.0.1", port=given.port)
    else:
        for what, value in mx.run(main(given)).items():
            print(f"{what}: {value:.3g}")
