"""The facilities of a machine, replaced by simulated ones: clocks, random bytes, sockets, file locks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import aiohappyeyeballs

from flowmx.kvstore.server import snapshot_folder
from tests.world.loop import START, Loop
from tests.world.processes import CURRENT

__all__ = ["simulated"]

PACKAGES = ("aiohttp", "flowmx")
"""The packages whose modules may have bound a clock by its name."""


@contextlib.contextmanager
def simulated(loop: Loop, seed: object) -> Iterator[None]:
    """Replace the sources of time and randomness, and the ways to connections, while a world runs."""
    entropy = random.Random(f"{seed} entropy")
    with contextlib.ExitStack() as stack:
        for function, replacement in _clocks(loop).items():
            for owner, name in _places(function, len(sys.modules)):
                value: Any = replacement
                if name == "__defaults__":
                    value = tuple(replacement if default is function else default for default in owner.__defaults__)
                stack.enter_context(mock.patch.object(owner, name, value))
        locks = _Locks()
        for owner, name, value in (
            (os, "urandom", entropy.randbytes),
            (random, "_urandom", entropy.randbytes),
            (uuid, "uuid4", partial(_uuid, entropy)),
            (socket, "create_server", partial(_listen, loop)),
            (socket, "gethostname", _host),
            (aiohappyeyeballs, "start_connection", _connect),
            (snapshot_folder, "hold", locks.hold),
            (snapshot_folder, "is_held", locks.is_held),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        random.seed(entropy.getrandbits(64))
        yield


def _clocks(loop: Loop) -> dict[Callable[[], float], Callable[[], float]]:
    return {
        time.monotonic: loop.time,
        time.perf_counter: loop.time,
        time.monotonic_ns: lambda: int(loop.time() * 1e9),
        time.time: loop.date,
        time.time_ns: lambda: int(START) * 10**9 + int(loop.time() * 1e9),
    }


@functools.cache
def _places(function: Callable[[], float], modules: int) -> list[tuple[Any, str]]:
    """Return what refers to a function: an object and its attribute, in so many loaded modules."""
    places: list[tuple[Any, str]] = []
    for name, module in list(sys.modules.items()):
        if module is time or name.partition(".")[0] in PACKAGES:
            for attribute, value in list(vars(module).items()):
                if value is function:
                    places.append((module, attribute))
                if isinstance(value, type) and value.__module__ == name:
                    places += [(method, "__defaults__") for method in vars(value).values() if _has(method, function)]
    return places


def _has(method: Any, function: Callable[[], float]) -> bool:
    """Return whether a method has a function as the default of an argument."""
    return function in (getattr(method, "__defaults__", None) or ())


def _uuid(entropy: random.Random) -> uuid.UUID:
    return uuid.UUID(int=entropy.getrandbits(128), version=4)


def _listen(loop: Loop, address: tuple[str, int], **_: Any) -> Any:
    return loop.network.listen(address)


def _host() -> str:
    return CURRENT.get().host


async def _connect(addr_infos: Any, **_: Any) -> Any:
    loop: Any = asyncio.get_running_loop()
    return await loop.network.connect(addr_infos[0][4])


class _Locks:
    """The locks on files that processes hold; they end with the process."""

    def __init__(self) -> None:
        self._holders: dict[Path, Any] = {}

    @contextlib.contextmanager
    def hold(self, path: Path) -> Iterator[None]:
        path.touch()
        self._holders[path] = CURRENT.get()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            self._holders.pop(path, None)

    def is_held(self, path: Path) -> bool:
        holder = self._holders.get(path)
        if holder is not None and holder.is_alive:
            return True
        path.unlink(missing_ok=True)
        return False
