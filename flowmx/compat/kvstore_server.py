"""``mxnet.kvstore.kvstore_server``: the server of a distributed job."""

from __future__ import annotations

__all__ = ["KVStoreServer"]


class KVStoreServer:
    """The server of a distributed job, in the form that old launch scripts start it.

    Args:
        kvstore: the result of ``mx.kv.create``. In a server process, that call runs the server and exits the process.
    """

    def __init__(self, kvstore: object) -> None:
        self.kvstore = kvstore

    def run(self) -> None:
        """Do nothing: a worker has no server to run."""
