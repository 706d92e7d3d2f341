"""Facts of a worker that must equal those of the other workers.

A worker reports versions, the seed and settings at its start, and the shapes and dtypes of keys when it initializes
them. A server compares them, and rejects a worker that differs from earlier ones, before the first step.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from flowmx import settings
from flowmx.comm.errors import Refused
from flowmx.comm.frames import Message
from flowmx.devices import generator
from flowmx.errors import KVStoreError
from flowmx.kvstore.spaces import format_key
from flowmx.kvstore.versions import DIFFER, version
from flowmx.kvstore.worker.keys import KeyState

__all__ = ["key_facts", "open_with_facts", "process_facts"]

log = logging.getLogger("flowmx.kvstore")

_SETTINGS = ("kvstore_bigarray_bound", "num_workers", "num_servers", "update_on_kvstore")
"""The settings that determine where values are stored and updated."""

_ADVICE = (
    "(workers must agree before the first step: run the same code, versions and settings on all of them; to use "
    "different seeds, call mx.random.seed with kv.rank after mx.kv.create; FLOWMX_KVSTORE_AGREEMENT=warn only warns)"
)


class Caller(Protocol):
    """The used method of :class:`flowmx.kvstore.worker.servers.Servers`."""

    async def call(self, home: int, operation: str, header: dict[str, Any]) -> Message:
        """Call an operation of the server of a home."""


def process_facts() -> tuple[dict[str, str], dict[str, str]]:
    """Return the facts of this process that must be equal on all workers, and hints that should be, by name."""
    config = settings.get()
    facts = version() | {settings.TABLE[name].variable: str(getattr(config, name)) for name in _SETTINGS}
    seed = generator.seeding()[1]
    seed = config.seed if seed is None else seed
    if seed is not None:
        facts["the seed of mx.random"] = str(seed)
    hints = {
        "the version of Python": platform.python_version(),
        "the version of NumPy": np.__version__,
        "whether the seed of mx.random is set": "no" if seed is None else "yes",
    }
    return facts, hints


def key_facts(entries: Sequence[KeyState]) -> dict[str, str]:
    """Return the facts of keys: their dtypes and shapes as strings."""
    return {
        f"the value of key {format_key(entry.shards[0].key)}": f"{np.dtype(entry.dtype).name} {tuple(entry.shape)}"
        for entry in entries
    }


async def open_with_facts(
    servers: Caller, home: int, header: Mapping[str, object], facts: Mapping[str, str], hints: Mapping[str, str]
) -> None:  # fmt: skip
    """Open a server's store with this worker's facts; log differences in hints.

    Raises:
        KVStoreError: facts of another worker differ.
        Refused: the store has another consistency mode.
    """
    if settings.get().kvstore_agreement == "warn":
        facts, hints = {}, {**facts, **hints}
    try:
        response = await servers.call(home, "open", {**header, "facts": dict(facts), "hints": dict(hints)})
    except Refused as refused:
        if str(refused).startswith(DIFFER):
            raise KVStoreError(f"{refused} {_ADVICE}") from None
        raise
    for text in response.header.get("differences", ()):
        log.warning("%s%s", DIFFER, text)
