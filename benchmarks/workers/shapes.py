"""Growth of resident memory in megabytes when one hybridized network gets inputs of random shapes.

    python shapes.py SYSTEM PHASE WHICH [COUNT]

PHASE is ``train`` or ``predict``. WHICH is ``many``, for COUNT shapes of which the last is the largest, or ``largest``,
for only that one. The network is convolutional, with images of up to 224x224 in batches of up to 16.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from typing import Any

import blocks  # a module of this folder: the peers cannot import the package
import networks
import resident

LAYERS = [
    networks.conv(32, 3, 1, 1, norm=True), networks.pool(2, 2), networks.residual(32, 1, False),
    networks.residual(64, 2, True), networks.inception(16, 16, 32, 8, 16, 16),
]  # fmt: skip
LARGEST = (16, 3, 224, 224)


def network(mx: Any) -> Any:
    """The network, with global pooling before its last layer."""
    gluon = importlib.import_module(f"{mx.__name__}.gluon")
    net = blocks.network(gluon, LAYERS)
    net.add(gluon.nn.GlobalAvgPool2D())
    net.add(gluon.nn.Dense(10, in_units=80))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def shapes(count: int) -> list[tuple[int, ...]]:
    """Random shapes, the largest last."""
    draw = random.Random(0)
    size = [(draw.randint(1, 16), 3, draw.randint(32, 224), draw.randint(32, 224)) for _ in range(count - 1)]
    return [*size, LARGEST]


def step(mx: Any, net: Any, shape: tuple[int, ...], train: bool) -> None:
    """Run one step on an image batch of this shape."""
    x = mx.nd.ones(shape)
    if train:
        with mx.autograd.record():
            y = net(x)
        y.backward()
    else:
        net(x)
    mx.nd.waitall()


def main() -> None:
    """Run, and print the figures as JSON."""
    system, phase, which = sys.argv[1:4]
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 1000
    mx = importlib.import_module(system)
    net = network(mx)
    step(mx, net, (1, 3, 32, 32), phase == "train")  # load the libraries
    before = resident.resident("VmRSS")
    resident.reset_peak()
    for shape in shapes(count if which == "many" else 1):
        step(mx, net, shape, phase == "train")
    print(json.dumps({"grown_mb": (resident.resident("VmHWM") - before) / resident.MIB}))


if __name__ == "__main__":
    main()
