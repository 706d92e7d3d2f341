"""Train a network of the model zoo on random images, data parallel on all GPUs: an example for ``flowmx plan``.

``python -m flowmx plan examples/plan_resnet.py --batch-size 64 --device a10x2`` estimates its needs on two A10s; run
directly, it trains on the available GPUs, or on the CPU.
"""

from __future__ import annotations

import argparse

import numpy as np

import flowmx as mx
from flowmx.gluon import Trainer
from flowmx.gluon.loss import SoftmaxCrossEntropyLoss
from flowmx.gluon.model_zoo import vision
from flowmx.gluon.utils import split_and_load


def main(options: argparse.Namespace) -> None:
    """Train for some steps, each on a batch from the host."""
    contexts = [mx.gpu(index) for index in range(mx.num_gpus())] or [mx.cpu()]
    net = vision.get_model(options.network, classes=1000)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    if not options.imperative:
        net.hybridize(static_alloc=True)
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    loss_of = SoftmaxCrossEntropyLoss()
    count = options.batch_size * len(contexts)
    rng = np.random.default_rng(0)
    images = mx.nd.array(rng.standard_normal((count, 3, options.side, options.side), np.float32))
    labels = mx.nd.array(rng.integers(0, 1000, count))
    for _ in range(options.steps):
        parts = zip(split_and_load(images, contexts), split_and_load(labels, contexts), strict=True)
        with mx.autograd.record():
            losses = [loss_of(net(x), y) for x, y in parts]
        mx.autograd.backward(losses)
        trainer.step(count)
    mx.nd.waitall()


def parser() -> argparse.ArgumentParser:
    """Build the parser of this example's options."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--network", default="resnet50_v1", help="a name of the model zoo")
    arguments.add_argument("--batch-size", type=int, default=32, help="samples on each device")
    arguments.add_argument("--side", type=int, default=224, help="side length of the images")
    arguments.add_argument("--steps", type=int, default=10, help="number of steps")
    arguments.add_argument("--imperative", action="store_true", help="do not hybridize")
    return arguments


if __name__ == "__main__":
    main(parser().parse_args())
