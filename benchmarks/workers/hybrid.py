"""Milliseconds of an inference step and of a training step of a Gluon network at batch 1, imperative and hybridized.

    python hybrid.py SYSTEM NETWORK

Networks: ``resnet_18`` (224x224), ``cifar_resnet_18`` (32x32), ``alexnet`` and the two-layer ``lstm_HIDDEN``, unrolled
over 35 steps. PyTorch is measured eagerly, in the better of its two memory layouts; inference only.
"""

from __future__ import annotations

import sys
from typing import Any

import blocks  # a module of this folder: the peers cannot import the package
import networks
import numpy as np
from timing import best_ms, measure

STEPS = 35
TABLES = {
    "resnet_18": (networks.RESNET_18, 224),
    "cifar_resnet_18": (blocks.CIFAR_RESNET_18, 32),
    "alexnet": (networks.ALEXNET, 224),
}


def built(mx: Any, name: str) -> tuple[Any, list[Any]]:
    """Return an initialized network and its inputs."""
    from importlib import import_module

    gluon = import_module(f"{mx.__name__}.gluon")
    rng = np.random.default_rng(0)
    if name in TABLES:
        layers, size = TABLES[name]
        net, shapes = blocks.network(gluon, layers), [(1, 3, size, size)]
    else:
        hidden = int(name.split("_")[1])
        net, shapes = blocks.lstm(gluon, hidden, STEPS), [(1, STEPS, hidden), *[(1, hidden)] * 4]
    net.initialize(mx.init.Xavier())
    arrays = [mx.nd.array(rng.standard_normal(shape)) for shape in shapes]
    net(*arrays).wait_to_read()
    return net, arrays


def mxnet_like(mx: Any, name: str) -> dict[str, float]:
    """Measure flowmx or MXNet, by the same code."""
    net, arrays = built(mx, name)

    def infer() -> None:
        net(*arrays).wait_to_read()

    def train() -> None:
        with mx.autograd.record():
            y = net(*arrays)
        y.backward()
        mx.nd.waitall()

    figures = {"imperative_infer_ms": best_ms(infer), "imperative_train_ms": best_ms(train)}
    net.hybridize(static_alloc=True, static_shape=True)
    return figures | {"infer_ms": best_ms(infer), "train_ms": best_ms(train)}


def pytorch(name: str) -> dict[str, float]:
    """Measure inference of the same network by ``torch.nn``."""
    import torch

    if name not in TABLES:
        hidden = int(name.split("_")[1])
        net, data = torch.nn.LSTM(hidden, hidden, 2, batch_first=True).eval(), torch.randn(1, STEPS, hidden)
        with torch.inference_mode():
            return {"infer_ms": best_ms(lambda: net(data))}
    layers, size = TABLES[name]
    times = []
    for layout in (torch.contiguous_format, torch.channels_last):
        net = networks.module(torch, layers, size).eval().to(memory_format=layout)
        data = torch.randn(1, 3, size, size).to(memory_format=layout)
        with torch.inference_mode():
            times.append(best_ms(lambda net=net, data=data: net(data)))
    return {"infer_ms": min(times)}


def main() -> None:
    """Measure, and print the figures as JSON."""
    measure(mxnet_like, pytorch, sys.argv[2])


if __name__ == "__main__":
    main()
