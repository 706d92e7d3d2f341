"""Train a small network on handwritten digits, serve it, and send requests: in one process, on one event loop.

Run ``python examples/serve_digits.py``: it trains for some seconds, serves, and many concurrent clients request
predictions of the test digits over HTTP. Their samples share batches. With ``--port 8080`` it keeps serving::

    curl -s http://127.0.0.1:8080/models

``python -m flowmx serve FOLDER --shape 1,28,28`` serves what ``--export FOLDER`` wrote.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp.test_utils import TestClient, TestServer
from digits import load
from gluon_digits import network, train_epoch

import flowmx as mx


async def train(epochs: int, seed: int) -> tuple[mx.gluon.HybridBlock, np.ndarray, np.ndarray]:
    """Train a network; returns it with the test digits."""
    images, labels, test_images, test_labels = load()
    mx.random.seed(seed)
    net = network()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 2e-3})
    random = np.random.default_rng(seed)
    for _ in range(epochs):
        await train_epoch(net, trainer, images, labels, random.permutation(len(images)), 64)
    return net, test_images, test_labels


async def ask(client: TestClient[Any, Any], image: np.ndarray) -> int:
    """Request the prediction for an image."""
    while True:
        async with client.post("/predict", json=image.tolist()) as reply:
            if reply.status == 503:  # overloaded: retry when it says
                await asyncio.sleep(float(reply.headers["Retry-After"]))
                continue
            return int(np.argmax((await reply.json())["outputs"]))


async def main(options: argparse.Namespace) -> dict[str, float]:
    """Train, serve and send requests; returns the results."""
    net, images, labels = await train(options.epochs, options.seed)
    if options.export:
        await asyncio.to_thread(net.export, Path(options.export) / "digits")
    predictor = mx.serve.Predictor(net, shape=images.shape[1:], max_batch=32, max_queue=1024, name="digits")
    application = mx.serve.app(predictor)
    if options.port:
        await mx.serve.run(application, port=options.port, started=lambda address: print(f"serving at {address}"))
        return {}
    async with TestClient(TestServer(application)) as client:
        await predictor.ready()
        started = time.perf_counter()
        predictions = await asyncio.gather(*(ask(client, image) for image in images))
        seconds = time.perf_counter() - started
    return {"digits a second": len(images) / seconds, "right": float(np.mean(np.array(predictions) == labels))}


def parser() -> argparse.ArgumentParser:
    """Build the parser of this example's options."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--epochs", type=int, default=4)
    arguments.add_argument("--seed", type=int, default=7)
    arguments.add_argument("--export", help="write the trained network into this folder")
    arguments.add_argument("--port", type=int, help="keep serving on this port")
    return arguments


if __name__ == "__main__":
    for what, value in mx.run(main(parser().parse_args())).items():
        print(f"{what}: {value:.3g}")
