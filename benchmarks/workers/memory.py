"""Megabytes planned for the internal values of a network, in training and in prediction; nothing is run.

    python memory.py SYSTEM NETWORK [BATCH [SIZE]]

``FLOWMX_EXEC_ENABLE_INPLACE`` and ``FLOWMX_EXEC_MATCH_RANGE`` (MXNet: ``NNVM_EXEC_MATCH_RANGE``) choose the strategy.
The figures come from ``debug_str`` of a bound network. MXNet's include the network's outputs, which flowmx's exclude:
``outputs_mb`` is their size. MXNet's exclude workspaces, which it allocates as it runs.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from typing import Any

import symbols  # a module of this folder: the peers cannot import the package
from timing import sizes


def planned_mb(mx: Any, model: symbols.Model, grad_req: str) -> float:
    """Return the memory in MB that a bound network reports for its plan."""
    bound = model.symbol.simple_bind(mx.cpu(), grad_req=model.requests(grad_req), **model.inputs)
    match = re.search(r"Total ([0-9.e+]+) Mi?B allocated", bound.debug_str())
    assert match is not None
    return float(match.group(1))


def main() -> None:
    """Bind, and print the figures as JSON."""
    system, name = sys.argv[1:3]
    mx = importlib.import_module(system)
    model = symbols.model(mx, name, *sizes(sys.argv[3:], (64, 224)))
    shapes = model.symbol.infer_shape(**model.inputs)[1]
    figures = {
        f"{phase}_mb": planned_mb(mx, model, grad_req) for phase, grad_req in (("train", "write"), ("predict", "null"))
    }
    print(json.dumps(figures | {"outputs_mb": sum(4 * math.prod(shape) for shape in shapes) / 2**20}))


if __name__ == "__main__":
    main()
