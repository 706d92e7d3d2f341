"""The accuracy of mixed precision: digits and a character LSTM in float32, float16 and bfloat16.

Run ``python benchmarks/mixed_precision.py``. Each network is trained from the same initial values, on the same batches,
in the three precisions, for several seeds; the means are compared. The bars are 0.5 points of accuracy, and 1 % of
perplexity.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import char_lstm
import digits
import gluon_digits
import stdlib_text

import flowmx as mx
from flowmx import amp
from flowmx.gluon import Trainer, utils
from flowmx.gluon.loss import SoftmaxCrossEntropyLoss

PRECISIONS = ("float32", "float16", "bfloat16")


class Training:
    """A trainer in the current precision."""

    def __init__(self, net: mx.gluon.Block, rate: float, is_mixed: bool, clip: float = 0.0) -> None:
        self.net, self.clip, self.is_mixed = net, clip, is_mixed
        self.trainer = Trainer(net.collect_params(), "adam", {"learning_rate": rate}, update_on_kvstore=False)
        self.loss_of = SoftmaxCrossEntropyLoss()
        if is_mixed:
            amp.init_trainer(self.trainer)

    def backward(self, loss: mx.nd.NDArray) -> None:
        """Compute the gradients of a loss inside record(), scaled if the precision needs it."""
        if not self.is_mixed:
            mx.autograd.backward(loss)
            return
        with amp.scale_loss(loss, self.trainer) as scaled:
            mx.autograd.backward(scaled)

    async def step(self, batch_size: int) -> None:
        """Update the parameters."""
        if self.clip:
            if self.is_mixed:
                amp.unscale(self.trainer)
            grads = [param.grad() for param in self.net.collect_params().values()]
            utils.clip_global_norm(grads, self.clip, check_isfinite=False)
        await self.trainer.step_async(batch_size)


async def train_digits(seed: int, is_mixed: bool, epochs: int) -> float:
    """Train, and return the accuracy in percent on held-out digits."""
    images, labels, test_images, test_labels = digits.load()
    mx.random.seed(seed)
    random = np.random.default_rng(seed)
    net = gluon_digits.network()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    training = Training(net, 2e-3, is_mixed)
    for _ in range(epochs):
        order = random.permutation(len(images))
        for start in range(0, len(order) - 63, 64):
            rows = order[start : start + 64]
            with mx.autograd.record():
                loss = training.loss_of(net(mx.nd.array(images[rows])), mx.nd.array(labels[rows]))
                training.backward(loss)
            await training.step(64)
    return 100 * await gluon_digits.accuracy(net, test_images, test_labels)


async def train_lstm(seed: int, is_mixed: bool, characters: int) -> float:
    """Train, and return the perplexity of held-out text."""
    mx.random.seed(seed)
    train_text, test_text = stdlib_text.load(characters)
    net = char_lstm.CharLSTM(len(stdlib_text.ALPHABET), 128, 1)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    train, test = (char_lstm.Streams(text, 32, 32, net) for text in (train_text, test_text))
    training = Training(net, 4e-3, is_mixed, clip=1.0)
    for inputs, targets in train:
        with mx.autograd.record():
            scores, hidden = net(inputs, train.hidden)
            loss = training.loss_of(scores, targets).mean()
            training.backward(loss)
        await training.step(1)
        train.hidden = [each.detach() for each in hidden]
    return await char_lstm.perplexity(net, test)


async def compare(options: argparse.Namespace) -> bool:
    """Train everything, print the means, and return whether the bars are met."""
    results: dict[str, dict[str, list[float]]] = {"digits": {}, "lstm": {}}
    for precision in PRECISIONS:
        is_mixed = precision != "float32"
        if is_mixed:
            amp.init(precision)
        for name, train, size in (
            ("digits", train_digits, options.epochs),
            ("lstm", train_lstm, options.characters),
        ):
            started = time.perf_counter()
            scores = [await train(seed, is_mixed, size) for seed in range(options.seeds)]
            results[name][precision] = scores
            seconds = (time.perf_counter() - started) / options.seeds
            print(
                f"{name:7} {precision:9} {np.mean(scores):8.3f} of {np.round(scores, 3)}, {seconds:.1f} s each",
                flush=True,
            )
        amp.deinit()
    is_kept = True
    for precision in PRECISIONS[1:]:
        points = np.mean(results["digits"]["float32"]) - np.mean(results["digits"][precision])
        ratio = np.mean(results["lstm"][precision]) / np.mean(results["lstm"]["float32"]) - 1
        print(f"{precision}: {points:+.3f} points of accuracy lost, perplexity {100 * ratio:+.2f} %")
        is_kept &= bool(points <= 0.5 and ratio <= 0.01)
    return is_kept


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--characters", type=int, default=400_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--log", action="store_true", help="show log messages about overflows")
    options = parser.parse_args()
    if options.log:
        logging.basicConfig(level=logging.INFO)
    sys.exit(0 if asyncio.run(compare(options)) else "the bars are missed")
