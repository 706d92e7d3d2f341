"""Megabytes that a running network keeps in memory at its peak, compared with its plan.

    python resident.py flowmx NETWORK PHASE [BATCH [SIZE]]

``expected_mb`` is the plan's arena with the bound arrays: parameters, gradients, inputs, outputs. ``grown_mb`` is the
growth of peak resident memory since just before the binding, after the libraries were loaded and had run a small
network. ``beyond_mb`` is the resident memory that was not planned.
"""

from __future__ import annotations

import gc
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import symbols  # a module of this folder: the peers cannot import the package
from timing import sizes

MIB = 2**20
STATUS = Path("/proc/self/status")


def resident(field: str) -> int:
    """Return bytes of resident memory: ``VmRSS`` now, ``VmHWM`` at the peak since it was reset."""
    match = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text())
    assert match is not None
    return int(match.group(1)) * 1024


def reset_peak() -> None:
    """Reset the peak to the current resident memory."""
    Path("/proc/self/clear_refs").write_text("5")


def run(mx: Any, model: symbols.Model, train: bool, steps: int = 3) -> Any:
    """Bind a model, touch every array, and run some steps; return the executor."""
    bound = model.symbol.simple_bind(mx.cpu(), grad_req=model.requests("write" if train else "null"), **model.inputs)
    for array in (*bound.arg_dict.values(), *bound.aux_dict.values()):
        array[:] = 0.01
    for _ in range(steps):
        if train:
            bound.forward_backward()
        else:
            bound.forward(is_train=False)
        mx.nd.waitall()
    return bound


def expected(bound: Any) -> tuple[int, int]:
    """Return the bytes of the plan's arena, without and with all bound arrays."""
    planned = bound.plan.internal_bytes()
    arrays = [*bound.arg_dict.values(), *bound.aux_dict.values(), *bound.outputs]
    arrays += [array for array in bound.grad_dict.values() if array is not None]
    return planned, planned + sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


def warm(mx: Any) -> None:
    """Load the libraries and start the threads with a few small operators of each kind."""
    x = mx.sym.Convolution(mx.sym.Variable("data"), num_filter=8, kernel=(3, 3), pad=(1, 1))
    x = mx.sym.Activation(mx.sym.BatchNorm(x), act_type="relu")
    x = mx.sym.Concat(mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2)), mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2)))
    x = mx.sym.LayerNorm(mx.sym.tanh(mx.sym.FullyConnected(x, num_hidden=64)))
    model = symbols.Model(mx.sym.SoftmaxOutput(x, name="softmax"), {"data": (4, 8, 32, 32), "softmax_label": (4,)})
    for train in (True, False):
        run(mx, model, train)


def main() -> None:
    """Run, and print the figures as JSON."""
    system, name, phase = sys.argv[1:4]
    mx = importlib.import_module(system)
    warm(mx)
    gc.collect()
    mx.nd.waitall()
    before = resident("VmRSS")
    reset_peak()
    bound = run(mx, symbols.model(mx, name, *sizes(sys.argv[4:], (16, 224))), phase == "train")
    growth = resident("VmHWM") - before
    planned, whole = expected(bound)
    figures = {"planned": planned, "expected": whole, "grown": growth, "beyond": growth - whole}
    print(json.dumps({f"{each}_mb": value / MIB for each, value in figures.items()} | {"ratio": growth / whole}))


if __name__ == "__main__":
    main()
