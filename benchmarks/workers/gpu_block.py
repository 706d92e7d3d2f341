"""Milliseconds of a training step of a pre-norm Transformer block on a GPU, in float32 and in bfloat16.

python gpu_block.py SYSTEM [WIDTH HEADS TOKENS BATCH]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from gpu_networks import DTYPES  # a module of this folder: the peers cannot import the package
from timing import best_ms, measure, sizes
from transformer import block, shapes


def mxnet_like(mx: Any, *sizes: int) -> dict[str, float]:
    """Measure the block, bound as a symbol."""
    return {figure: _bound_ms(mx, dtype, *sizes) for figure, dtype in DTYPES.items()}


def _bound_ms(mx: Any, dtype: str, width: int, heads: int, tokens: int, batch: int) -> float:
    rng = np.random.default_rng(0)
    variables = {name: mx.sym.Variable(name) for name in shapes(width)}
    net = block(mx.sym, mx.sym.Variable("data"), variables, width, heads, tokens, batch)
    shape = (batch, tokens, width)
    bound = net.simple_bind(mx.gpu(0), grad_req="write", type_dict={"data": dtype}, data=shape)
    for array in bound.arg_dict.values():
        array[:] = rng.standard_normal(array.shape) * 0.05
    head = mx.nd.ones(shape, ctx=mx.gpu(0), dtype=dtype)

    def train() -> None:
        bound.forward(is_train=True)
        bound.backward(head)
        mx.nd.waitall()

    return best_ms(train)


def pytorch(*sizes: int) -> dict[str, float]:
    """Measure the same block by ``torch.nn``, with its fused attention."""
    import torch

    return {figure: _torch_ms(torch, getattr(torch, dtype), *sizes) for figure, dtype in DTYPES.items()}


def _torch_ms(torch: Any, dtype: Any, width: int, heads: int, tokens: int, batch: int) -> float:
    nn, functional = torch.nn, torch.nn.functional
    place = {"device": "cuda", "dtype": dtype}
    query, key, value, project = (nn.Linear(width, width, **place) for _ in range(4))
    up, down = nn.Linear(width, 4 * width, **place), nn.Linear(4 * width, width, **place)
    norm1, norm2 = nn.LayerNorm(width, **place), nn.LayerNorm(width, **place)
    modules = [query, key, value, project, up, down, norm1, norm2]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    data = torch.randn(batch, tokens, width, requires_grad=True, **place)
    head = torch.ones(batch, tokens, width, **place)

    def train() -> None:
        for parameter in (*parameters, data):
            parameter.grad = None
        hidden = norm1(data)
        q, k, v = (each(hidden).view(batch, tokens, heads, -1).transpose(1, 2) for each in (query, key, value))
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = data + project(mixed.transpose(1, 2).reshape(batch, tokens, width))
        (x + down(functional.gelu(up(norm2(x))))).backward(head)
        torch.cuda.synchronize()

    return best_ms(train)


def main() -> None:
    """Measure, and print the figures as JSON."""
    measure(mxnet_like, pytorch, *sizes(sys.argv[2:], (1024, 16, 512, 16)))


if __name__ == "__main__":
    main()
