"""Key-value stores (``mx.kv``): values that devices push to and pull from, with sums and updates.

Example:
    >>> kv = mx.kv.create("device")
    >>> kv.init("weight", mx.nd.zeros((2, 3)))
    >>> kv.pushpull("weight", gradients, out=weights)
"""

from typing import TYPE_CHECKING

from flowmx.kvstore.base import KVStoreBase, TestStore, create, create_async, register
from flowmx.kvstore.launching import launch
from flowmx.kvstore.local import KVStore
from flowmx.lazy import lazy_attributes

if TYPE_CHECKING:
    from flowmx.kvstore.worker.store import DistKVStore

__all__ = ["DistKVStore", "KVStore", "KVStoreBase", "TestStore", "create", "create_async", "launch", "register"]

__getattr__, __dir__ = lazy_attributes(__name__, {"DistKVStore": "flowmx.kvstore.worker.store:DistKVStore"})
