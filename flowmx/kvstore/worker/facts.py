"""Facts that a worker reports at the start of a job, which must equal those of the other workers.

Versions, the seed and settings are reported at the start, the shapes and dtypes of keys when they are started. A
server compares them, and refuses the worker that differs from those before it: no step has been made then.
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
from flowmx.kvstore.facts import DIFFER, version
from flowmx.kvstore.worker.keys import KeyState

__all__ = ["of_keys", "of_process", "tell"]

log = logging.getLogger("flowmx.kvstore")

_SETTINGS = ("kvstore_bigarray_bound", "num_workers", "num_servers", "update_on_kvstore")
"""Those that decide where values lie and who updates them."""

_ADVICE = (
    "(workers must agree before the first step: let all run the same code, versions and settings, and call "
    "mx.random.seed with kv.rank, if each shall have its own seed, after mx.kv.create; "
    "FLOWMX_KVSTORE_AGREEMENT=warn goes on nevertheless)"
)


class Calling(Protocol):
    """The method of :class:`flowmx.kvstore.worker.servers.Servers` that is used here."""

    async def call(self, home: int, operation: str, header: dict[str, Any]) -> Message:
        """Call an operation of the server of a home."""


def of_process() -> tuple[dict[str, str], dict[str, str]]:
    """Facts of this process that must be equal on all workers, and hints that should be, each by name."""
    config = settings.get()
    facts = version() | {settings.TABLE[name].variable: str(getattr(config, name)) for name in _SETTINGS}
    seed = generator.seeding()[1]
    seed = config.seed if seed is None else seed
    if seed is not None:
        facts["the seed of mx.random"] = str(seed)
    hints = {
        "the version of Python": platform.python_version(),
        "the version of NumPy": np.__version__,
        "the seed of mx.random, whatever it is,": "unset" if seed is None else "set",
    }
    return facts, hints


def of_keys(entries: Sequence[KeyState]) -> dict[str, str]:
    """Facts on keys: their dtypes and shapes, as text."""
    return {
        f"the value of key {entry.key!r}": f"{np.dtype(entry.dtype).name} {tuple(entry.shape)}" for entry in entries
    }


async def tell(
    servers: Calling, home: int, header: Mapping[str, Any], facts: Mapping[str, str], hints: Mapping[str, str]
) -> None:  # fmt: skip
    """Open a server's store with this worker's facts; differences in hints are logged.

    Raises:
        KVStoreError: another worker says something else.
        Refused: the store is of another kind.
    """
    if settings.get().kvstore_agreement == "warn":
        facts, hints = {}, {**facts, **hints}
    try:
        answer = await servers.call(home, "open", {**header, "facts": dict(facts), "hints": dict(hints)})
    except Refused as refused:
        if str(refused).startswith(DIFFER):
            raise KVStoreError(f"{refused} {_ADVICE}") from None
        raise
    for text in answer.header.get("differences", ()):
        log.warning("%s%s", DIFFER, text)
