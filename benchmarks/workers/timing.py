"""Common code of the workers: timing of a step, and running one system's side of a measurement."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Figures = dict[str, float]


def best_ms(step: Callable[[], Any], seconds: float = 3.0, least: int = 3) -> float:
    """The fastest of the runs that fit into the time, after two to warm up.

    With CPU_TIME in the environment it is the processor's time, which other work on the machine adds less to: sensible
    on one core (``taskset``), where no thread waits busily for another.
    """
    clock = time.process_time if os.environ.get("CPU_TIME") else time.perf_counter
    step()
    step()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = clock()
        step()
        times.append(clock() - start)
    return 1000 * min(times)


def sizes(given: Sequence[str], defaults: Sequence[int]) -> list[int]:
    """The sizes on the command line, then the defaults of those that are not there."""
    return [*map(int, given), *defaults[len(given) :]]


def measure(mxnet_like: Callable[..., Figures], pytorch: Callable[..., Figures], *arguments: Any) -> None:
    """Run the side of the system that the command line names first, and print its figures as JSON.

    Args:
        mxnet_like: called with the module and the arguments, for flowmx and MXNet, which run the same code.
        pytorch: called with the arguments.
        *arguments: what to measure.
    """
    system = sys.argv[1]
    figures = pytorch(*arguments) if system == "torch" else mxnet_like(importlib.import_module(system), *arguments)
    print(json.dumps(figures))
