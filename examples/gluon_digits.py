"""Train a convolutional network on handwritten digits with Gluon, compiled by hybridize(), from a coroutine.

Run ``python examples/gluon_digits.py --epochs 4``. The loop enqueues its work and awaits the loss of the previous
batch, so that the next batch is computed while it reads the last loss."""

from __future__ import annotations

import argparse
import asyncio
import time

import numpy as np
from digits import Images, Labels, load

import flowmx as mx
from flowmx.gluon import Trainer, nn
from flowmx.gluon.loss import SoftmaxCrossEntropyLoss


def network(classes: int = 10) -> nn.HybridSequential:
    """Build two convolutions with batch normalization, and a classifier."""
    net = nn.HybridSequential(prefix="digits_")
    with net.name_scope():
        for channels in (16, 32):
            net.add(nn.Conv2D(channels, 3, use_bias=False), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D())
        net.add(nn.Flatten(), nn.Dense(64, activation="relu"), nn.Dropout(0.3), nn.Dense(classes))
    return net


async def train_epoch(
    net: nn.HybridSequential, trainer: Trainer, images: Images, labels: Labels, order: np.ndarray, batch_size: int
) -> float:
    """Train for one epoch; returns the mean loss."""
    loss_of = SoftmaxCrossEntropyLoss()
    losses: list[mx.nd.NDArray] = []
    for start in range(0, len(order) - batch_size + 1, batch_size):
        rows = order[start : start + batch_size]
        with mx.autograd.record():
            loss = loss_of(net(mx.nd.array(images[rows])), mx.nd.array(labels[rows]))
        loss.backward()
        trainer.step(batch_size)
        losses.append(loss.mean())
        if len(losses) > 1:
            await losses[-2]
    await losses[-1]
    return float(np.mean([loss.asscalar() for loss in losses]))


async def accuracy(net: nn.HybridSequential, images: Images, labels: Labels) -> float:
    """Return the fraction of images that are classified correctly."""
    best = mx.nd.argmax(net(mx.nd.array(images)), axis=1)
    await best
    return float((best.asnumpy() == labels).mean())


async def main(epochs: int, batch_size: int, seed: int) -> None:
    """Train, and print the accuracy on test digits."""
    images, labels, test_images, test_labels = load()
    mx.random.seed(seed)
    random = np.random.default_rng(seed)
    net = network()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 2e-3})
    for epoch in range(epochs):
        started = time.perf_counter()
        loss = await train_epoch(net, trainer, images, labels, random.permutation(len(images)), batch_size)
        rate = len(images) / (time.perf_counter() - started)
        print(f"epoch {epoch:2} loss {loss:.4f} {rate:6.0f} samples/s")
    print(f"test accuracy: {await accuracy(net, test_images, test_labels):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    asyncio.run(main(options.epochs, options.batch_size, options.seed))
