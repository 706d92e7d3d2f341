"""The set-up of a training: settings, device, seed, profile, checkpoints."""

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

from flowmx import engine, profiler, settings
from flowmx.checkpoint import using
from flowmx.devices import Context
from flowmx.random import seed as seed_generators
from flowmx.tools.usage import port

__all__ = ["add_arguments", "around", "devices"]

_DASHBOARD = "flowmx.observability.dashboard"
_DEVICE = re.compile(r"(cpu|gpu|sim)(?:\((\d+)\)|:?(\d+))?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("around the training")
    group.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
        help="a setting, such as ENGINE_TYPE=NaiveEngine (flowmx info lists them); again for each",
    )  # fmt: skip
    group.add_argument("--device", type=devices, help="cpu, gpu(0), or gpu(0),gpu(1) (default: cpu)")
    group.add_argument("--seed", type=int, help="of the generators of flowmx, NumPy and Python")
    group.add_argument("--stop-at-nan", action="store_true", help="stop at the first NaN, and say what computed it")
    group.add_argument("--profile", metavar="FILE", help="record a trace, and show where the time went at the end")
    group.add_argument("--checkpoint", metavar="FOLDER", help="write checkpoints there, and go on from what is there")
    if find_spec(_DASHBOARD) is not None:
        about = "show the training in a browser, at this port of this machine (default: a free one)"
        group.add_argument("--dashboard", type=port, nargs="?", const=0, metavar="PORT", help=about)
    group.add_argument(
        "--every", type=int, metavar="N", help="batches between checkpoints, in addition to those of epochs"
    )


def devices(text: str) -> list[Context]:
    """``gpu(0),gpu1`` as contexts."""
    found = [_DEVICE.fullmatch(part.strip()) for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r}, expected devices such as cpu, gpu(0), or gpu(0),gpu(1)")
    return [Context(each[1], int(each[2] or each[3] or 0)) for each in found if each]


@contextmanager
def around(given: argparse.Namespace) -> Iterator[None]:
    """Put settings in force, seed, and record while the context lasts.

    Raises:
        SettingError: there is no such setting, or it takes no such value.
        ValueError: a setting is not written as NAME=VALUE.
    """
    values = _values([*given.settings, *(["STOP_AT_NAN=1"] if given.stop_at_nan else [])])
    if given.seed is not None:
        _seed(given.seed)
    with ExitStack() as stack:
        if values:
            stack.enter_context(engine.using(**values))
        if given.device:
            stack.enter_context(given.device[0])
        if given.checkpoint:
            stack.enter_context(using(given.checkpoint, given.every))
        if getattr(given, "dashboard", None) is not None:
            stack.callback(_shown(given.dashboard).stop)
        if given.profile:
            stack.enter_context(_profiled(given.profile))
        yield


def _values(pairs: Sequence[str]) -> dict[str, object]:
    """Settings written as ``NAME=VALUE``, with or without their prefix."""
    found: dict[str, object] = {}
    for pair in pairs:
        given, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {pair}: expected NAME=VALUE, such as ENGINE_TYPE=NaiveEngine")
        name = given.strip().upper().removeprefix(settings.PREFIX).lower()
        if name not in settings.TABLE:
            raise settings.SettingError(f"--set {pair}: there is no setting {given}; flowmx info lists them")
        found[name] = settings.TABLE[name].parse(value)
    return found


def _seed(number: int) -> None:
    seed_generators(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def _shown(number: int) -> Any:
    """The dashboard, started."""
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
