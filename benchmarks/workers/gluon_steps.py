"""Milliseconds of a Gluon training step on the CPU: forward, loss, backward, and an update by SGD with momentum.

    python gluon_steps.py SYSTEM NETWORK

Networks, hybridized: ``resnet`` (ResNet-18 for 32x32, batch 64), and ``lstm``, a language model of ``gluon.rnn.LSTM``
with two layers of 512, 35 steps, batch 32, 10,000 words. Imperative and hybridized: ``mlp`` (784-256-128-10,
batch 64), and ``cells``, two LSTM cells of 128 units unrolled over 35 steps, batch 32.
"""

from __future__ import annotations

import sys
from typing import Any

import blocks  # a module of this folder: the peers cannot import the package
import networks
import numpy as np
from timing import best_ms, measure

STEPS, BATCH, HIDDEN, WORDS = 35, 32, 512, 10_000
CELLS = 128
SGD = {"learning_rate": 0.01, "momentum": 0.9}
HYBRIDIZED = {"resnet": "train_ms", "lstm": "train_ms", "mlp": "hybridized_ms", "cells": "hybridized_ms"}


def built(gluon: Any, name: str) -> tuple[Any, tuple[int, ...], int, tuple[int, ...]]:
    """Return a network, the shape of its input, the number of classes, and the shape of its labels."""
    nn, rnn = gluon.nn, gluon.rnn
    if name == "resnet":
        return blocks.network(gluon, blocks.CIFAR_RESNET_18), (64, 3, 32, 32), 10, (64,)
    net = nn.HybridSequential()
    if name == "lstm":
        net.add(nn.Embedding(WORDS, HIDDEN), rnn.LSTM(HIDDEN, 2), nn.Dense(WORDS, flatten=False))
        return net, (STEPS, BATCH), WORDS, (STEPS, BATCH)
    if name == "mlp":
        net.add(nn.Dense(256, activation="relu"), nn.Dense(128, activation="relu"), nn.Dense(10))
        return net, (64, 784), 10, (64,)

    class Cells(gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stack = rnn.HybridSequentialRNNCell()
            for _ in range(2):
                self.stack.add(rnn.LSTMCell(CELLS, input_size=CELLS))
            self.out = nn.Dense(10, flatten=False)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            outputs, _ = self.stack.unroll(STEPS, x, layout="NTC", merge_outputs=True)
            return self.out(outputs)

    return Cells(), (BATCH, STEPS, CELLS), 10, (BATCH, STEPS)


def numbers(name: str, shape: tuple[int, ...], classes: int, labels: tuple[int, ...]) -> tuple[Any, Any]:
    """Return a batch of data and labels."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, WORDS, shape) if name == "lstm" else rng.standard_normal(shape)
    return data.astype("float32"), rng.integers(0, classes, labels).astype("float32")


def mxnet_like(mx: Any, name: str) -> dict[str, float]:
    """Measure flowmx or MXNet, by the same code."""
    from importlib import import_module

    gluon = import_module(f"{mx.__name__}.gluon")
    net, shape, classes, labels = built(gluon, name)
    data, label = (mx.nd.array(each) for each in numbers(name, shape, classes, labels))
    net.initialize(mx.init.Xavier())
    net(data).wait_to_read()
    trainer = gluon.Trainer(net.collect_params(), "sgd", SGD)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def step() -> None:
        with mx.autograd.record():
            value = loss(net(data), label)
        value.backward()
        trainer.step(len(data))
        mx.nd.waitall()

    figures = {}
    if HYBRIDIZED[name] != "train_ms":
        figures["train_ms"] = best_ms(step)
    net.hybridize(static_alloc=True, static_shape=True)
    loss.hybridize(static_alloc=True, static_shape=True)
    return figures | {HYBRIDIZED[name]: best_ms(step)}


def pytorch(name: str) -> dict[str, float]:
    """Measure the same model by ``torch.nn``; images in the better of its two memory layouts."""
    import torch

    nn = torch.nn

    class Lstm(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inputs: int, classes: int) -> None:
            super().__init__()
            words = inputs == WORDS
            self.embed = nn.Embedding(WORDS, HIDDEN) if words else nn.Identity()
            hidden = HIDDEN if words else CELLS
            self.lstm, self.out = nn.LSTM(hidden, hidden, 2, batch_first=not words), nn.Linear(hidden, classes)

        def forward(self, x: Any) -> Any:
            return self.out(self.lstm(self.embed(x))[0])

    shape, classes, labels = {
        "resnet": ((64, 3, 32, 32), 10, (64,)), "lstm": ((STEPS, BATCH), WORDS, (STEPS, BATCH)),
        "mlp": ((64, 784), 10, (64,)), "cells": ((BATCH, STEPS, CELLS), 10, (BATCH, STEPS)),
    }[name]  # fmt: skip
    data, label = (torch.from_numpy(each) for each in numbers(name, shape, classes, labels))
    data, label = data.long() if name == "lstm" else data, label.long()
    linear, relu = nn.Linear, nn.ReLU
    layouts = [torch.contiguous_format] + [torch.channels_last] * (name == "resnet")
    times = []
    for layout in layouts:
        if name == "resnet":
            net = networks.module(torch, blocks.CIFAR_RESNET_18, 32)
        elif name == "mlp":
            net = nn.Sequential(linear(784, 256), relu(), linear(256, 128), relu(), linear(128, 10))
        else:
            net = Lstm(WORDS if name == "lstm" else CELLS, classes)
        net = net.to(memory_format=layout).train()
        x = data.to(memory_format=layout) if name == "resnet" else data
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

        def step(net: Any = net, x: Any = x, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            logits = net(x).reshape(-1, classes)
            nn.functional.cross_entropy(logits, label.reshape(-1)).backward()
            optimizer.step()

        times.append(best_ms(step))
    return {"train_ms": min(times)}


def main() -> None:
    """Measure, and print the figures as JSON."""
    measure(mxnet_like, pytorch, sys.argv[2])


if __name__ == "__main__":
    main()
