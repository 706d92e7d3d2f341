"""The setup of a training: settings, device, seed, profile, checkpoints."""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from flowmx import checkpoint, engine, profiler, settings
from flowmx.devices import Context
from flowmx.random import seed as seed_generators
from flowmx.tools.usage import port

__all__ = ["add_arguments", "apply_options", "devices"]

_DASHBOARD = "flowmx.observability.dashboard"
_DEVICE = re.compile(r"(cpu|gpu|sim)(?:\((\d+)\)|:?(\d+))?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser."""
    group = parser.add_argument_group("setup of the training")
    group.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
        help="a setting, such as ENGINE_TYPE=NaiveEngine (flowmx info lists them); may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--device", type=devices, help="the device: cpu, gpu(0), or several, such as gpu(0),gpu(1) (default: cpu)"
    )
    group.add_argument("--seed", type=int, help="seed of the random generators of flowmx, NumPy and Python")
    group.add_argument(
        "--stop-at-nan",
        action="store_true",
        help="stop at the first NaN or infinity, and name the operation that computed it",
    )
    group.add_argument("--profile", metavar="FILE", help="record a trace, and print a summary at the end")
    group.add_argument(
        "--checkpoint", metavar="FOLDER", help="write checkpoints to the folder, and resume from the latest one"
    )
    if find_spec(_DASHBOARD) is not None:
        about = "serve the dashboard on this port of 127.0.0.1 (default: a free one)"
        group.add_argument("--dashboard", type=port, nargs="?", const=0, metavar="PORT", help=about)
    group.add_argument(
        "--every",
        type=int,
        metavar="N",
        help="number of batches between checkpoints, in addition to one at the end of each epoch",
    )


def devices(text: str) -> list[Context]:
    """Parse ``gpu(0),gpu1`` as contexts."""
    matches = [_DEVICE.fullmatch(part.strip()) for part in text.split(",")]
    if not all(matches):
        raise argparse.ArgumentTypeError(f"{text!r}, expected devices such as cpu, gpu(0), or gpu(0),gpu(1)")
    return [Context(match[1], int(match[2] or match[3] or 0)) for match in matches if match]


@contextmanager
def apply_options(arguments: argparse.Namespace) -> Iterator[None]:
    """Apply the settings, seed, device, profiler, checkpoints and dashboard for the context.

    Raises:
        SettingError: a setting is unknown or its value invalid.
        ValueError: a setting is not of the form NAME=VALUE.
    """
    values = _values([*arguments.settings, *(["STOP_AT_NAN=1"] if arguments.stop_at_nan else [])])
    if arguments.seed is not None:
        _seed(arguments.seed)
    with ExitStack() as stack:
        if values:
            stack.enter_context(engine.using(**values))
        if arguments.device:
            stack.enter_context(arguments.device[0])
        if arguments.checkpoint:
            stack.enter_context(checkpoint.scope(arguments.checkpoint, arguments.every))
        if getattr(arguments, "dashboard", None) is not None:
            stack.callback(_start_dashboard(arguments.dashboard).stop)
        if arguments.profile:
            stack.enter_context(_profiled(arguments.profile))
        yield


def _values(pairs: Sequence[str]) -> dict[str, object]:
    """Parse settings of the form ``NAME=VALUE``, with or without the prefix."""
    values: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {pair}: expected NAME=VALUE, such as ENGINE_TYPE=NaiveEngine")
        name = key.strip().upper().removeprefix(settings.PREFIX).lower()
        if name not in settings.TABLE:
            raise settings.SettingError(f"--set {pair}: unknown setting {key}; flowmx info lists them")
        values[name] = settings.TABLE[name].parse(value)
    return values


def _seed(number: int) -> None:
    seed_generators(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def _start_dashboard(number: int) -> Any:
    """Start the dashboard."""
    dashboard = import_module(_DASHBOARD).start(port=number)
    sys.stderr.write(f"dashboard: {dashboard.url}\n")
    return dashboard


@contextmanager
def _profiled(path: str) -> Iterator[None]:
    profiler.set_config(filename=path)
    profiler.set_state("run")
    try:
        yield
    finally:
        profiler.set_state("stop")
        sys.stderr.write(f"{profiler.dumps(by='layer')}\ntrace: {path} (open it at https://ui.perfetto.dev)\n")
        profiler.dump()
