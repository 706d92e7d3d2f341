"""Differences between predictions in slices, of the whole batch, and in float64.

    python nearness.py NETWORK [BATCH [ROWS]]

NETWORK is one of ``slices.py``, ``densenet``, ``transformer``, or one of those below. All figures are relative to the
largest output, before a softmax. Slices have the default length, then 8 and 1. The first ROWS examples are computed in
float64 without slices.
"""

from __future__ import annotations

import json
import sys
import zlib
from typing import Any

import networks  # a module of this folder: the peers cannot import the package
import numpy as np
import slices

import flowmx as mx
from flowmx import settings

S = mx.sym
LENGTHS = ("auto", 8, 1)


def layer(x: Any, filters: int, kernel: tuple[int, ...] = (3, 3), **more: Any) -> Any:
    """A convolution that keeps sizes, with a norm and a ReLU."""
    dilate = more.get("dilate", (1,) * len(kernel))
    pad = tuple(each // 2 * far for each, far in zip(kernel, dilate, strict=True))
    x = S.Convolution(x, num_filter=filters, kernel=kernel, pad=pad, no_bias=True, **more)
    return S.relu(S.BatchNorm(x, fix_gamma=False))


def classified(x: Any, classes: int) -> Any:
    """Class scores after global pooling."""
    return S.FullyConnected(S.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1)), num_hidden=classes)


def dilated() -> Any:
    """Convolutions with growing dilation."""
    x = S.var("data")
    for far in (1, 1, 2, 2, 4, 4, 8, 8, 1):
        x = layer(x, 48, dilate=(far, far))
    return S.Convolution(x, num_filter=8, kernel=(1, 1))


def transposed() -> Any:
    """Images from a few numbers, by transposed convolutions."""
    x = S.var("data")
    for filters in (256, 128, 64, 32):
        x = S.Deconvolution(x, num_filter=filters, kernel=(4, 4), stride=(2, 2), pad=(1, 1))
        x = S.relu(S.BatchNorm(x, fix_gamma=False))
    return S.tanh(S.Deconvolution(x, num_filter=3, kernel=(4, 4), stride=(2, 2), pad=(1, 1)) * 0.1)


def grouped() -> Any:
    """Bottlenecks with 32 groups."""
    x = layer(S.var("data"), 64, stride=(2, 2))
    for _ in range(4):
        inside = layer(layer(x, 128, (1, 1)), 128, num_group=32)
        x = S.relu(x + S.BatchNorm(S.Convolution(inside, num_filter=64, kernel=(1, 1), no_bias=True), fix_gamma=False))
    return classified(x, 100)


def squeezing() -> Any:
    """Residual layers with squeeze-and-excitation gates on the channels."""
    x = layer(S.var("data"), 128)
    for _ in range(4):
        features = layer(x, 128)
        gate = S.FullyConnected(S.relu(classified(features, 16)), num_hidden=128)
        x = S.relu(x + S.broadcast_mul(features, S.reshape(S.sigmoid(gate), (0, 0, 1, 1))))
    return classified(x, 10)


def windows(filters: tuple[int, ...], kernel: tuple[int, ...], classes: int) -> Any:
    """Convolutions along any number of axes, with pooling after every second one."""
    x, two = S.var("data"), (2,) * len(kernel)
    for at, each in enumerate(filters):
        x = layer(x, each, kernel)
        x = S.Pooling(x, kernel=two, stride=two, pool_type="max") if at % 2 else x
    return S.FullyConnected(x, num_hidden=classes)


def symbol(name: str) -> tuple[Any, tuple[int, ...]]:
    """Return a network and the shape of an example."""
    if name == "transformer":
        return networks.transformer(mx).get_internals()["out_output"], (128, networks.WIDTH)
    if name == "densenet":
        return mx.gluon.model_zoo.vision.densenet121()(S.var("data")), (3, 224, 224)
    if name == "conv1d":
        return windows((64, 64, 128, 128, 256, 256), (9,), 50), (8, 2048)
    if name == "conv3d":
        return windows((16, 32, 32, 64, 64), (3, 3, 3), 10), (1, 24, 24, 24)
    custom_networks = {"dilated": (dilated, 3, 96), "transposed": (transposed, 128, 4), "grouped": (grouped, 3, 128),
           "squeezing": (squeezing, 3, 56)}  # fmt: skip
    if name in custom_networks:
        make, channels, side = custom_networks[name]
        return make(), (channels, side, side)
    net, side = slices.symbol(mx, name)
    return slices.scores(net), (3, side, side)


def predicted(net: Any, shape: tuple[int, ...], how: str | int, dtype: str = "float32") -> Any:
    """Predict a batch, in slices of the setting, from numbers that float32 can represent."""
    types = dict.fromkeys([*net.list_arguments(), *net.list_auxiliary_states()], dtype)
    with settings.override(exec_slice=how):
        executor = net.simple_bind(mx.cpu(), grad_req="null", type_dict=types, data=shape)
    for name, array in [*executor.arg_dict.items(), *executor.aux_dict.items()]:
        random = np.random.default_rng(zlib.crc32(name.encode()))  # the first rows are the same for every batch size
        if array.ndim > 1:
            values = random.normal(
                0, 1 if name == "data" else (2 / max(1, array.size // len(array))) ** 0.5, array.shape
            )
        elif "gamma" in name or "var" in name:
            values = random.uniform(0.5, 1.5, array.shape)
        else:
            values = random.normal(0, 0.2, array.shape)
        array[:] = mx.nd.array(values.astype("float32"), dtype=dtype)
    return executor.forward()[0].asnumpy().astype("float64")


def measure(name: str, batch: int, rows: int) -> dict[str, float]:
    """Return the figures of a network."""
    net, example = symbol(name)
    whole = predicted(net, (batch, *example), "off")
    exact = predicted(net, (rows, *example), "off", "float64")
    largest = np.abs(whole).max()

    def off(output: Any) -> float:
        return float(np.abs(output[:rows] - exact).max() / largest)

    figures = {"whole_off": off(whole)}
    for length in LENGTHS:
        output = predicted(net, (batch, *example), length)
        figures |= {f"{length}_differs": float(np.abs(output - whole).max() / largest), f"{length}_off": off(output)}
    return figures


def main() -> None:
    """Measure, and print the figures as JSON."""
    name, *numbers = sys.argv[1:]
    batch, rows = [*map(int, numbers), *(64, 8)[len(numbers) :]]
    print(json.dumps(measure(name, batch, rows)))


if __name__ == "__main__":
    main()
