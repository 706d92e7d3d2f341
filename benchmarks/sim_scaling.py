"""Data-parallel training on several simulated GPUs: the gain from buckets and from overlapping sums with backward.

``python -m benchmarks sim_scaling`` plans ResNet-50 on 1 to 8 devices of two kinds and writes a table into
``docs/simulation.md``. Nothing is measured: all times are virtual.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import flowmx as mx
from flowmx.gluon import Trainer
from flowmx.gluon.loss import SoftmaxCrossEntropyLoss
from flowmx.gluon.model_zoo import vision
from flowmx.gluon.utils import split_and_load

PAGE = Path(__file__).parent.parent / "docs" / "simulation.md"
BEGIN, END = "<!-- several devices: begin -->", "<!-- several devices: end -->"
DEVICES = {"h100": "H100, NVLink", "a10": "A10, PCIe"}
COUNTS = (1, 2, 4, 8)
BATCH, SIDE, STEPS = 32, 224, 4


class Way(NamedTuple):
    """A way to sum gradients.

    Attributes:
        bucket: KiB of small arrays that are summed as one.
        overlaps: whether sums begin before the backward pass is over.
    """

    bucket: int
    overlaps: bool


WAYS = {
    "buckets and overlap": Way(2048, True),
    "only overlap": Way(0, True),
    "only buckets": Way(2048, False),
    "neither": Way(0, False),
}
Figures = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Virtual seconds of a step by device, number of devices and way."""


def train(way: Way, network: str = "resnet50_v1", batch: int = BATCH, side: int = SIDE) -> None:
    """Train without end on all GPUs, with one batch per GPU, by SGD with momentum."""
    contexts = [mx.gpu(index) for index in range(mx.num_gpus())]
    net = vision.get_model(network)
    net.initialize(ctx=contexts)
    net.hybridize(static_alloc=True)
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    loss_of = SoftmaxCrossEntropyLoss()
    images = split_and_load(np.zeros((batch * len(contexts), 3, side, side), np.float32), contexts)
    labels = split_and_load(np.zeros(batch * len(contexts), np.float32), contexts)
    while True:
        with mx.autograd.record():
            losses = [loss_of(net(x), y) for x, y in zip(images, labels, strict=True)]
        mx.autograd.backward(losses)
        if not way.overlaps:
            mx.nd.waitall()
        trainer.step(batch * len(contexts))


def seconds(device: str, count: int, way: Way, network: str = "resnet50_v1", side: int = SIDE) -> float:
    """Return the virtual seconds of a step, with each bound graph launched at once, as CUDA graphs are."""
    with mx.engine.using(kvstore_reduce_bucket_size=way.bucket), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*simulated without numerics")
        duration = mx.plan.run(
            lambda: train(way, network, side=side), f"{device}x{count}", steps=STEPS, graphs=True
        ).seconds  # fmt: skip
    assert duration is not None
    return duration


def measure(devices: Sequence[str] = tuple(DEVICES), counts: Sequence[int] = COUNTS) -> Figures:
    """Plan every setting."""
    return {
        device: {
            count: {name: seconds(device, count, way) for name, way in WAYS.items()} for count in counts
        }
        for device in devices
    }  # fmt: skip


def table(figures: Figures) -> str:
    """Return the figures as a table: milliseconds of a step, and the share of linear scaling."""
    lines = ["| devices | " + " | ".join(WAYS) + " |", "| :-- |" + " ---: |" * len(WAYS)]
    for device, by_count in figures.items():
        one = min(by_count[min(by_count)].values())
        for count, by_way in by_count.items():
            cells = [f"{by_way[name] * 1e3:.1f} ms ({one / by_way[name]:.2f})" for name in WAYS]
            lines.append(f"| {count} × {DEVICES.get(device, device)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run() -> None:
    """Plan every setting, and write the table."""
    lines = table(measure())
    print(lines)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    note = f"Made on {datetime.date.today()} with `python -m benchmarks sim_scaling`; simulated, nothing was measured."
    PAGE.write_text(f"{before}{BEGIN}\n\n{note}\n\n{lines}\n\n{END}{after}", encoding="utf-8")
