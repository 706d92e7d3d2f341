"""Milliseconds of a training step (forward and backward) of a pre-norm Transformer block on the CPU.

    python transformer.py SYSTEM [WIDTH HEADS TOKENS BATCH]

flowmx is measured bound as a symbol (``train_ms``) and under autograd (``tape_ms``), PyTorch eagerly, in the better
of its two attentions.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from timing import best_ms, measure, sizes  # a module of this folder: the peers cannot import the package


def block(F: Any, x: Any, weights: dict[str, Any], width: int, heads: int, tokens: int, batch: int) -> Any:
    """Build the block on data (batch, tokens, width), from symbols or arrays."""

    def linear(x: Any, name: str, units: int) -> Any:
        return F.FullyConnected(
            x, weights[f"{name}_weight"], weights[f"{name}_bias"], num_hidden=units, flatten=False, name=name
        )

    def norm(x: Any, name: str) -> Any:
        return F.LayerNorm(x, weights[f"{name}_gamma"], weights[f"{name}_beta"], name=name)

    def split_heads(x: Any) -> Any:
        x = F.transpose(F.Reshape(x, shape=(batch, tokens, heads, -1)), axes=(0, 2, 1, 3))
        return F.Reshape(x, shape=(batch * heads, tokens, -1))

    hidden = norm(x, "norm1")
    query, key, value = (split_heads(linear(hidden, name, width)) for name in ("query", "key", "value"))
    scores = F.batch_dot(query, key, transpose_b=True) * (width // heads) ** -0.5
    mixed = F.batch_dot(F.softmax(scores, axis=-1), value)
    mixed = F.transpose(F.Reshape(mixed, shape=(batch, heads, tokens, -1)), axes=(0, 2, 1, 3))
    x = x + linear(F.Reshape(mixed, shape=(batch, tokens, width)), "project", width)
    hidden = F.LeakyReLU(linear(norm(x, "norm2"), "up", 4 * width), act_type="gelu")
    return x + linear(hidden, "down", width)


def shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters."""
    sizes: dict[str, tuple[int, ...]] = {}
    for name, units, inputs in [
        *((each, width, width) for each in ("query", "key", "value", "project")),
        ("up", 4 * width, width), ("down", width, 4 * width),
    ]:  # fmt: skip
        sizes |= {f"{name}_weight": (units, inputs), f"{name}_bias": (units,)}
    for name in ("norm1", "norm2"):
        sizes |= {f"{name}_gamma": (width,), f"{name}_beta": (width,)}
    return sizes


def mxnet_like(mx: Any, width: int, heads: int, tokens: int, batch: int) -> dict[str, float]:
    """Measure flowmx or MXNet, by the same code."""
    rng = np.random.default_rng(0)
    sizes = (width, heads, tokens, batch)
    variables = {name: mx.sym.Variable(name) for name in shapes(width)}
    net = block(mx.sym, mx.sym.Variable("data"), variables, *sizes)
    bound = net.simple_bind(mx.cpu(), grad_req="write", data=(batch, tokens, width))
    for array in bound.arg_dict.values():
        array[:] = rng.standard_normal(array.shape) * 0.05
    head = mx.nd.ones((batch, tokens, width))

    def train() -> None:
        bound.forward(is_train=True)
        bound.backward(head)
        mx.nd.waitall()

    arrays = {name: mx.nd.array(rng.standard_normal(shape) * 0.05) for name, shape in shapes(width).items()}
    for array in arrays.values():
        array.attach_grad()
    data = mx.nd.array(rng.standard_normal((batch, tokens, width)))
    data.attach_grad()

    def tape() -> None:
        with mx.autograd.record():
            y = block(mx.nd, data, arrays, *sizes)
        y.backward(head)
        mx.nd.waitall()

    return {"train_ms": best_ms(train), "tape_ms": best_ms(tape)}


def pytorch(width: int, heads: int, tokens: int, batch: int) -> dict[str, float]:
    """Measure the same block by ``torch.nn``."""
    import torch

    nn, functional = torch.nn, torch.nn.functional
    query, key, value, project = (nn.Linear(width, width) for _ in range(4))
    up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    norm1, norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
    modules = [query, key, value, project, up, down, norm1, norm2]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    data = torch.randn(batch, tokens, width, requires_grad=True)
    head = torch.ones(batch, tokens, width)

    def step(fused: bool) -> None:
        for parameter in (*parameters, data):
            parameter.grad = None
        hidden = norm1(data)
        q, k, v = (each(hidden).view(batch, tokens, heads, -1).transpose(1, 2) for each in (query, key, value))
        if fused:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.softmax(q @ k.transpose(-1, -2) * (width // heads) ** -0.5, -1) @ v
        x = data + project(mixed.transpose(1, 2).reshape(batch, tokens, width))
        (x + down(functional.gelu(up(norm2(x))))).backward(head)

    best = min(best_ms(lambda: step(True)), best_ms(lambda: step(False)))
    return {"train_ms": best, "tape_ms": best}


def main() -> None:
    """Measure, and print the figures as JSON."""
    measure(mxnet_like, pytorch, *sizes(sys.argv[2:], (512, 8, 128, 8)))


if __name__ == "__main__":
    main()
