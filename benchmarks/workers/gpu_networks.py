"""Milliseconds of a training step (forward and backward) of one network on a GPU, in float32 and in bfloat16.

    python gpu_networks.py SYSTEM NETWORK [BATCH [SIZE]]

float32 follows PyTorch's defaults: TF32 in convolutions, full precision in matrix products. PyTorch is measured
eagerly, in both of its memory layouts; the better figure counts. flowmx captures CUDA graphs where
FLOWMX_CUDA_GRAPHS is set.
"""

from __future__ import annotations

import sys
from typing import Any

import networks  # a module of this folder: the peers cannot import the package
import numpy as np
from timing import best_ms, measure, sizes

DTYPES = {"fp32_ms": "float32", "bf16_ms": "bfloat16"}


def mxnet_like(mx: Any, name: str, batch: int, size: int) -> dict[str, float]:
    """Measure the network, bound as a symbol."""
    return {figure: _bound_ms(mx, name, batch, size, dtype) for figure, dtype in DTYPES.items()}


def _bound_ms(mx: Any, name: str, batch: int, size: int, dtype: str) -> float:
    rng = np.random.default_rng(0)
    net = networks.symbol(mx, networks.NETWORKS[name])
    inputs = {"data": (batch, 3, size, size), "softmax_label": (batch,)}
    requests = {each: "null" if each in inputs else "write" for each in net.list_arguments()}
    bound = net.simple_bind(mx.gpu(0), grad_req=requests, type_dict={"data": dtype}, **inputs)
    for each, array in bound.arg_dict.items():
        if each == "softmax_label":
            array[:] = rng.integers(0, 128, batch)  # numbers that bfloat16 represents exactly
        else:
            array[:] = 1 if each.endswith("gamma") else rng.standard_normal(array.shape) * 0.05
    for each, array in bound.aux_dict.items():
        array[:] = each.endswith("var")

    def train() -> None:
        bound.forward(is_train=True)
        bound.backward()
        mx.nd.waitall()

    return best_ms(train)


def pytorch(name: str, batch: int, size: int) -> dict[str, float]:
    """Measure the same network by ``torch.nn``, eagerly."""
    import torch

    layouts = (torch.contiguous_format, torch.channels_last)
    return {
        figure: min(_torch_ms(torch, name, batch, size, getattr(torch, dtype), layout) for layout in layouts)
        for figure, dtype in DTYPES.items()
    }


def _torch_ms(torch: Any, name: str, batch: int, size: int, dtype: Any, layout: Any) -> float:
    net = networks.module(torch, networks.NETWORKS[name], size).to("cuda", dtype).to(memory_format=layout)
    data = torch.randn(batch, 3, size, size, device="cuda", dtype=dtype).to(memory_format=layout)
    label = torch.randint(0, 128, (batch,), device="cuda")

    def train() -> None:
        for parameter in net.parameters():
            parameter.grad = None
        torch.nn.functional.cross_entropy(net(data), label).backward()
        torch.cuda.synchronize()

    return best_ms(train)


def main() -> None:
    """Measure, and print the figures as JSON."""
    measure(mxnet_like, pytorch, sys.argv[2], *sizes(sys.argv[3:], (32, 224)))


if __name__ == "__main__":
    main()
