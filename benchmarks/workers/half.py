"""Milliseconds of a prediction, or of a training step, of one model in float32 or bfloat16 on the CPU.

    python half.py SYSTEM DTYPE MODEL [BATCH [TRAIN]]

Image networks are those of ``networks.py`` at 224x224 (Inception-v3 at 299x299), ``bert`` is an encoder of BERT-base's
sizes at length 128, ``lstm`` a language model of two layers of 650 units over 35 steps, ``block`` one encoder layer of
width 512 at length 128. A training step is forward, backward and an update with momentum, with master weights
in 16 bits. PyTorch is measured eagerly, with folded BatchNorm in prediction, in the better of both memory layouts.
"""

from __future__ import annotations

import importlib
import json
import sys
from itertools import pairwise
from typing import Any

import networks  # a module of this folder: the peers cannot import the package
import numpy as np
from timing import best_ms, sizes

WORDS, STEPS, HIDDEN, LENGTH = 10000, 35, 650, 128
SHAPES = {"bert": (12, 768, 12), "block": (1, 512, 8)}
"""Layers, width and heads of the encoders."""


def size_of(name: str) -> int:
    """Return the height and width of an image network's data."""
    return 299 if name == "inception_v3" else 224


# -- flowmx -------------------------------------------------------------------------------------------------


def _encoder(mx: Any, layers: int, width: int, heads: int) -> Any:
    nn = mx.gluon.nn

    class Layer(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.q, self.k, self.v, self.o = (nn.Dense(width, flatten=False, in_units=width) for _ in range(4))
                self.up = nn.Dense(4 * width, flatten=False, in_units=width)
                self.down = nn.Dense(width, flatten=False, in_units=4 * width)
                self.first, self.second = nn.LayerNorm(in_channels=width), nn.LayerNorm(in_channels=width)
                self.act = nn.GELU()

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            def split_heads(x: Any) -> Any:
                x = F.transpose(F.reshape(x, shape=(0, 0, heads, -1)), axes=(0, 2, 1, 3))
                return F.reshape(x, shape=(-3, 0, -1))

            q, k, v = split_heads(self.q(x)), split_heads(self.k(x)), split_heads(self.v(x))
            weights = F.softmax(F.batch_dot(q, k, transpose_b=True) * (width // heads) ** -0.5, axis=-1)
            mixed = F.reshape(F.batch_dot(weights, v), shape=(-4, -1, heads, 0, 0))
            x = self.first(x + self.o(F.reshape(F.transpose(mixed, axes=(0, 2, 1, 3)), shape=(0, 0, -1))))
            return self.second(x + self.down(self.act(self.up(x))))

    net = nn.HybridSequential()
    net.add(*[Layer() for _ in range(layers)])
    return net


def _language_model(mx: Any) -> Any:
    nn = mx.gluon.nn

    class Model(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.embed = nn.Embedding(WORDS, HIDDEN)
                self.rnn = mx.gluon.rnn.LSTM(HIDDEN, 2, input_size=HIDDEN)
                self.out = nn.Dense(WORDS, flatten=False, in_units=HIDDEN)

        def hybrid_forward(self, F: Any, ids: Any) -> Any:
            return self.out(self.rnn(self.embed(ids)))

    return Model()


def flowmx(mx: Any, dtype: str, name: str, batch: int, train: bool) -> float:
    """Return the milliseconds of flowmx."""
    mx.random.seed(0)
    rng = np.random.default_rng(0)
    if name == "lstm":
        net, data = _language_model(mx), mx.nd.array(rng.integers(0, WORDS, (STEPS, batch)))
    elif name in SHAPES:
        net = _encoder(mx, *SHAPES[name])
        data = mx.nd.array(rng.standard_normal((batch, LENGTH, SHAPES[name][1]))).astype(dtype)
    else:
        layers = networks.symbol(mx, (networks.NETWORKS | networks.LATER)[name]).get_internals()
        net = mx.gluon.SymbolBlock(layers[-3] if "label" in layers[-2].name else layers[-2], mx.sym.var("data"))
        data = mx.nd.array(rng.standard_normal((batch, 3, size_of(name), size_of(name)))).astype(dtype)
    vectors = ".*(gamma|beta|mean|var|bias)$"
    net.initialize(mx.init.Mixed([vectors, ".*"], [mx.init.One(), mx.init.Xavier()]))
    if dtype != "float32":
        net.cast(dtype)
    net.hybridize(static_alloc=True, static_shape=True)
    if not train:
        return best_ms(lambda: net(data).wait_to_read())
    options = {"learning_rate": 1e-3, "momentum": 0.9, "multi_precision": dtype != "float32"}
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", options)

    def step() -> None:
        with mx.autograd.record():
            loss = net(data).mean()
        loss.backward()
        trainer.step(1)
        mx.nd.waitall()

    return best_ms(step)


# -- PyTorch ------------------------------------------------------------------------------------------------


def _torch_encoder(torch: Any, layers: int, width: int, heads: int) -> Any:
    nn = torch.nn

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            q, k, v = (each(x).view(batch, length, heads, -1).transpose(1, 2) for each in (self.q, self.k, self.v))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            x = self.first(x + self.o(mixed.transpose(1, 2).reshape(batch, length, width)))
            return self.second(x + self.down(nn.functional.gelu(self.up(x))))

    return nn.Sequential(*[Layer() for _ in range(layers)])


def _torch_language_model(torch: Any) -> Any:
    nn = torch.nn

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn = nn.Embedding(WORDS, HIDDEN), nn.LSTM(HIDDEN, HIDDEN, 2)
            self.out = nn.Linear(HIDDEN, WORDS)

        def forward(self, ids: Any) -> Any:
            return self.out(self.rnn(self.embed(ids))[0])

    return Model()


def _folded(torch: Any, net: Any) -> Any:
    """Fold each BatchNorm into the convolution before it."""
    nn = torch.nn
    for parent in [each for each in net.modules() if isinstance(each, nn.Sequential)]:
        names = list(parent._modules)
        for one, other in pairwise(names):
            first, second = parent._modules[one], parent._modules[other]
            if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
                parent._modules[one] = nn.utils.fusion.fuse_conv_bn_eval(first.eval(), second.eval())
                parent._modules[other] = nn.Identity()
    return net


def pytorch(dtype: str, name: str, batch: int, train: bool) -> float:
    """Return the milliseconds of PyTorch."""
    import torch

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    layouts = [torch.contiguous_format]
    if name == "lstm":
        net, data = _torch_language_model(torch), torch.randint(0, WORDS, (STEPS, batch))
    elif name in SHAPES:
        net, data = _torch_encoder(torch, *SHAPES[name]), torch.randn(batch, LENGTH, SHAPES[name][1], dtype=kind)
    else:
        net = networks.module(torch, (networks.NETWORKS | networks.LATER)[name], size_of(name))
        data = torch.randn(batch, 3, size_of(name), size_of(name), dtype=kind)
        layouts.append(torch.channels_last)
    if not train:
        net = _folded(torch, net.eval())
    net = net.to(kind)
    return min(_torch_ms(torch, net, data, layout, train, len(layouts) > 1) for layout in layouts)


def _torch_ms(torch: Any, net: Any, data: Any, layout: Any, train: bool, is_image: bool) -> float:
    if is_image:
        net, data = net.to(memory_format=layout), data.to(memory_format=layout)
    if not train:

        def predict() -> None:
            with torch.inference_mode():
                net(data)

        return best_ms(predict)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        net(data).float().mean().backward()
        optimizer.step()

    return best_ms(step)


def main() -> None:
    """Measure, and print the figure as JSON."""
    system, dtype, name = sys.argv[1:4]
    batch, train = sizes(sys.argv[4:], (16, 0))
    if system == "torch":
        milliseconds = pytorch(dtype, name, batch, bool(train))
    else:
        milliseconds = flowmx(importlib.import_module(system), dtype, name, batch, bool(train))
    print(json.dumps({"step_ms" if train else "predict_ms": milliseconds}))


if __name__ == "__main__":
    main()
