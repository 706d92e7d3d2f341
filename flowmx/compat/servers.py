"""``mxnet.kvstore.kvstore_server``: the server of a distributed job."""

from __future__ import annotations

from typing import Any

__all__ = ["KVStoreServer"]


class KVStoreServer:
    """The server of a distributed job, as old launch scripts start it.

    Args:
        kvstore: the result of ``mx.kv.create``. In a process whose role is a server, that call has run the server
            already, and its end was the process's.
    """

    def __init__(self, kvstore: Any) -> None:
        self.kvstore = kvstore

    def run(self) -> None:
        """Return: a worker has nothing to serve."""
