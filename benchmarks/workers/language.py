"""Milliseconds of a training step (forward and backward) of a two-layer LSTM language model on the CPU.

python language.py SYSTEM [HIDDEN STEPS BATCH VOCABULARY]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from timing import best_ms, measure, sizes  # a module of this folder: the peers cannot import the package


def mxnet_like(mx: Any, hidden: int, steps: int, batch: int, words: int) -> dict[str, float]:
    """Measure flowmx or MXNet, by the same code."""
    data = mx.sym.Variable("data")
    x = mx.sym.Embedding(data, input_dim=words, output_dim=hidden, name="embed")
    x = mx.sym.RNN(x, mode="lstm", state_size=hidden, num_layers=2, name="lstm")
    x = mx.sym.FullyConnected(mx.sym.Reshape(x, shape=(-1, hidden)), num_hidden=words, name="decode")
    net = mx.sym.SoftmaxOutput(x, mx.sym.Reshape(mx.sym.Variable("label"), shape=(-1,)), name="softmax")
    requests = {
        name: "null" if name in ("data", "label") or "state" in name else "write" for name in net.list_arguments()
    }
    bound = net.simple_bind(mx.cpu(), grad_req=requests, data=(steps, batch), label=(steps, batch))
    rng = np.random.default_rng(0)
    for name, array in bound.arg_dict.items():
        whole = name in ("data", "label")
        array[:] = rng.integers(0, words, array.shape) if whole else rng.standard_normal(array.shape) * 0.05

    def train() -> None:
        bound.forward(is_train=True)
        bound.backward()
        mx.nd.waitall()

    return {"train_ms": best_ms(train)}


def pytorch(hidden: int, steps: int, batch: int, words: int) -> dict[str, float]:
    """Measure the same model by ``torch.nn``."""
    import torch

    nn = torch.nn
    embed, lstm, decode = nn.Embedding(words, hidden), nn.LSTM(hidden, hidden, 2), nn.Linear(hidden, words)
    parameters = [*embed.parameters(), *lstm.parameters(), *decode.parameters()]
    data = torch.randint(0, words, (steps, batch))
    label = torch.randint(0, words, (steps, batch))

    def train() -> None:
        for parameter in parameters:
            parameter.grad = None
        logits = decode(lstm(embed(data))[0].reshape(-1, hidden))
        nn.functional.cross_entropy(logits, label.reshape(-1), reduction="sum").backward()

    return {"train_ms": best_ms(train)}


def main() -> None:
    """Measure, and print the figures as JSON."""
    measure(mxnet_like, pytorch, *sizes(sys.argv[2:], (512, 35, 32, 10000)))


if __name__ == "__main__":
    main()
