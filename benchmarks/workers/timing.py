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
    """Return the milliseconds of the fastest run within the time, after two runs to warm up.

    With CPU_TIME in the environment, processor time is measured, which other work on the machine affects less. Use
    it on one core (``taskset``), where no thread busy-waits for another.
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


def sizes(texts: Sequence[str], defaults: Sequence[int]) -> list[int]:
    """Return the sizes on the command line, with defaults for those that are missing."""
    return [*map(int, texts), *defaults[len(texts) :]]


def measure(mxnet_like: Callable[..., Figures], pytorch: Callable[..., Figures], *arguments: Any) -> None:
    """Measure the system that the command line names first, and print its figures as JSON.

    Args:
        mxnet_like: called with the module and the arguments, for flowmx and MXNet.
        pytorch: called with the arguments.
        *arguments: the arguments of both.
    """
    system = sys.argv[1]
    figures = pytorch(*arguments) if system == "torch" else mxnet_like(importlib.import_module(system), *arguments)
    print(json.dumps(figures))
