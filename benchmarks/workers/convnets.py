"""Milliseconds of a training step (forward and backward) and of inference of one network on the CPU.

    python convnets.py SYSTEM NETWORK [BATCH [SIZE]]

PyTorch is measured in both of its memory layouts; the better of each figure counts.
"""

from __future__ import annotations

import sys
from typing import Any

import networks  # a module of this folder: the peers cannot import the package
import numpy as np
from timing import best_ms, measure, sizes


def mxnet_like(mx: Any, name: str, batch: int, size: int) -> dict[str, float]:
    """Measure flowmx or MXNet, by the same code."""
    rng = np.random.default_rng(0)
    net = networks.symbol(mx, networks.NETWORKS[name])
    shape = (batch, 3, size, size)

    def bind(grad_req: str) -> Any:
        requests = {each: "null" if each in ("data", "softmax_label") else grad_req for each in net.list_arguments()}
        bound = net.simple_bind(mx.cpu(), grad_req=requests, data=shape, softmax_label=(batch,))
        for each, array in bound.arg_dict.items():
            if each == "softmax_label":
                array[:] = rng.integers(0, 1000, batch)
            elif each.endswith(("gamma",)):
                array[:] = 1
            else:
                array[:] = rng.standard_normal(array.shape) * 0.05
        for each, array in bound.aux_dict.items():
            array[:] = 1 if each.endswith("var") else 0
        return bound

    training, inference = bind("write"), bind("null")

    def train() -> None:
        training.forward(is_train=True)
        training.backward()
        mx.nd.waitall()

    def predict() -> None:
        inference.forward(is_train=False)
        mx.nd.waitall()

    return {"train_ms": best_ms(train), "infer_ms": best_ms(predict)}


def pytorch(name: str, batch: int, size: int) -> dict[str, float]:
    """Measure both memory layouts; return the better of each figure."""
    import torch

    layouts = (torch.contiguous_format, torch.channels_last)
    figures = [_pytorch(torch, name, batch, size, layout) for layout in layouts]
    return {key: min(each[key] for each in figures) for key in figures[0]}


def _pytorch(torch: Any, name: str, batch: int, size: int, layout: Any) -> dict[str, float]:
    net = networks.module(torch, networks.NETWORKS[name], size).to(memory_format=layout)
    data = torch.randn(batch, 3, size, size).to(memory_format=layout)
    label = torch.randint(0, 1000, (batch,))

    def train() -> None:
        for parameter in net.parameters():
            parameter.grad = None
        torch.nn.functional.cross_entropy(net(data), label).backward()

    def predict() -> None:
        with torch.inference_mode():
            torch.softmax(net(data), 1)

    figures = {"train_ms": best_ms(train)}
    net.eval()
    return figures | {"infer_ms": best_ms(predict)}


def main() -> None:
    """Measure, and print the figures as JSON."""
    measure(mxnet_like, pytorch, sys.argv[2], *sizes(sys.argv[3:], (16, 224)))


if __name__ == "__main__":
    main()
