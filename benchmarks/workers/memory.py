"""Megabytes planned for the internal values of a network, in training and in prediction; nothing is run.

    python memory.py SYSTEM NETWORK [BATCH [SIZE]]

``FLOWMX_EXEC_ENABLE_INPLACE`` and ``FLOWMX_EXEC_MATCH_RANGE`` (MXNet: the same with ``MXNET_``) choose the strategy.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import Any

import networks  # these two lie beside this file; the peers know nothing of the package
from timing import sizes


def planned_mb(mx: Any, name: str, batch: int, size: int, grad_req: str) -> float:
    """What a bound network says of itself."""
    net = networks.symbol(mx, networks.NETWORKS[name])
    requests = {each: "null" if each in ("data", "softmax_label") else grad_req for each in net.list_arguments()}
    bound = net.simple_bind(mx.cpu(), grad_req=requests, data=(batch, 3, size, size), softmax_label=(batch,))
    found = re.search(r"Total ([0-9.e+]+) Mi?B allocated", bound.debug_str())
    assert found is not None
    return float(found.group(1))


def main() -> None:
    """Bind, and print the figures as JSON."""
    system, name = sys.argv[1:3]
    batch, size = sizes(sys.argv[3:], (64, 224))
    mx = importlib.import_module(system)
    figures = {
        f"{phase}_mb": planned_mb(mx, name, batch, size, grad_req)
        for phase, grad_req in (("train", "write"), ("predict", "null"))
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
