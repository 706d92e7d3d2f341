"""Megabytes planned for a prediction in slices of the batch, and its time, compared with the whole batch at once.

    python slices.py SYSTEM NETWORK [BATCH [ROUNDS]]

``bound_mb`` is the peak of live values if each layer takes the whole batch. For MXNet the plan of its fused operators
is printed, which includes the network's outputs and excludes workspaces. ``difference`` is the largest difference of
outputs before a softmax, relative to the largest output. Runs take turns, and the fastest of each counts. With
``CPU=1`` in the environment, processor time on one thread is measured, which is more reliable on a busy machine.
``DEVICE=gpu`` (or ``sim``) measures on that device, with a budget of a quarter of the live values.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from typing import Any

import networks  # a module of this folder: the peers cannot import the package
import numpy as np

MIB = 2**20
DEVICE = os.environ.get("DEVICE", "cpu")
ZOO = {"vgg_16": "vgg16", "inception_v3": "inceptionv3", "mobilenet_v2": "mobilenetv2_1.0"}


def unet(mx: Any) -> Any:
    """The network of O. Ronneberger et al., 2015, with BatchNorm, padded, and half as wide."""
    sym = mx.sym

    def block(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = sym.Convolution(x, num_filter=filters, kernel=(3, 3), pad=(1, 1), no_bias=True)
            x = sym.Activation(sym.BatchNorm(x, fix_gamma=False), act_type="relu")
        return x

    x, skips, widths = sym.Variable("data"), [], (32, 64, 128, 256)
    for filters in widths:
        skips.append(block(x, filters))
        x = sym.Pooling(skips[-1], kernel=(2, 2), stride=(2, 2), pool_type="max")
    x = block(x, 512)
    for filters, skip in zip(widths[::-1], skips[::-1]):  # noqa: B905 (the peers' Python is old)
        up = sym.Deconvolution(x, num_filter=filters, kernel=(2, 2), stride=(2, 2))
        x = block(sym.Concat(up, skip, dim=1), filters)
    return sym.Convolution(x, num_filter=2, kernel=(1, 1))


def symbol(mx: Any, name: str) -> tuple[Any, int]:
    """Return a network and the side of its images."""
    if name == "unet":
        return unet(mx), 128
    if name in networks.NETWORKS:
        return networks.symbol(mx, networks.NETWORKS[name]), 224
    net = mx.gluon.model_zoo.vision.get_model(ZOO[name])
    return net(mx.sym.Variable("data")), 299 if name == "inception_v3" else 224


def scores(net: Any) -> Any:
    """Return a network without its last softmax, whose ones and zeros would hide differences."""
    return net.get_children()[0] if net.list_outputs() == ["softmax_output"] else net


def bind(mx: Any, net: Any, side: int, batch: int) -> Any:
    """Bind an executor for prediction."""
    return net.simple_bind(mx.Context(DEVICE), grad_req="null", data=(batch, 3, side, side))


def planned(executor: Any) -> float:
    """Return the megabytes that an executor reports."""
    match = re.search(r"Total ([0-9.e+]+) Mi?B allocated", executor.debug_str())
    assert match is not None
    return float(match.group(1))


def fill(executor: Any) -> None:
    """Fill in random images, and weights that keep the scale of values from layer to layer."""
    rng = np.random.default_rng(0)
    for name, array in [*executor.arg_dict.items(), *executor.aux_dict.items()]:
        if array.ndim > 1:
            spread = 1.0 if name == "data" else (2 / max(1, array.size // array.shape[0])) ** 0.5
            array[:] = rng.normal(0, spread, array.shape)
        else:
            array[:] = float("gamma" in name or "var" in name)


def measure(mx: Any, net: Any, side: int, batch: int, rounds: int) -> dict[str, float]:
    """Return the figures of flowmx."""
    from flowmx import settings

    executors, seconds, bind_seconds = {}, {}, {}
    clock = time.process_time if os.environ.get("CPU") else time.perf_counter
    for _ in range(2):  # the first call compiles kernels
        for label, slices in (("whole", "off"), ("sliced", "auto")):
            # Other devices compute whole batches if they fit.
            is_asked = DEVICE != "cpu" and label == "sliced"
            budget = executors["whole"].plan.lower_bound() // 4 if is_asked else 0
            with settings.override(exec_slice=slices, exec_memory_budget=budget):
                start = clock()
                executors[label] = bind(mx, net, side, batch)
                bind_seconds[label] = clock() - start
    for executor in executors.values():
        fill(executor)
    for _ in range(rounds):
        for label, executor in executors.items():
            start = clock()
            executor.forward()
            mx.nd.waitall()
            seconds[label] = min(seconds.get(label, 9e9), clock() - start)
    bytes_planned = {label: executor.plan.internal_bytes() for label, executor in executors.items()}
    bound = executors["whole"].plan.lower_bound()
    return {
        "bound_mb": bound / MIB,
        **{f"{label}_mb": nbytes / MIB for label, nbytes in bytes_planned.items()},
        "part": bytes_planned["sliced"] / bound,
        **{f"{label}_ms": each * 1e3 for label, each in seconds.items()},
        "time_ratio": seconds["sliced"] / seconds["whole"],
        **{f"{label}_bind_ms": each * 1e3 for label, each in bind_seconds.items()},
        "difference": difference(mx, scores(net), side, batch),
    }


def difference(mx: Any, net: Any, side: int, batch: int) -> float:
    """Return the largest difference between outputs in slices and of the whole batch, over the largest output."""
    from flowmx import settings

    outputs = []
    for slices in ("off", "auto"):
        with settings.override(exec_slice=slices):
            executor = bind(mx, net, side, batch)
        fill(executor)
        outputs.append(executor.forward()[0].asnumpy())
    whole, sliced = outputs
    return float(np.abs(sliced - whole).max() / np.abs(whole).max())


def main() -> None:
    """Measure, and print the figures as JSON."""
    system, name = sys.argv[1:3]
    batch, rounds = (int(each) for each in (*sys.argv[3:5], *("64", "5")[len(sys.argv[3:5]) :]))
    mx = importlib.import_module(system)
    net, side = symbol(mx, name)
    if system == "flowmx":
        print(json.dumps(measure(mx, net, side, batch, rounds)))
    else:
        print(json.dumps({"planned_mb": planned(bind(mx, net, side, batch))}))


if __name__ == "__main__":
    main()
