"""The interface of key-value stores, the registry of their kinds, and ``create``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from flowmx.ndarray import NDArray
from flowmx.registry import Registry

__all__ = ["KVStoreBase", "TestStore", "create", "create_async", "register"]

_ELSEWHERE = ("horovod", "byteps", "p3")

C = TypeVar("C", bound=type)


class KVStoreBase:
    """Base class of key-value stores, through which devices and machines train together; derive your own from it.

    Example:
        >>> @mx.kvstore.KVStoreBase.register
        ... class MyStore(mx.kvstore.KVStoreBase):
        ...     def broadcast(self, key, value, out, priority=0): ...
        ...     def pushpull(self, key, value, out=None, priority=0): ...
        >>> kv = mx.kv.create("mystore")
    """

    OPTIMIZER: ClassVar[str] = "optimizer"
    """The capability of updating weights in the store; see :meth:`is_capable`."""

    kv_registry: ClassVar[dict[str, Any]] = {}
    """The classes of stores, by name."""

    @classmethod
    def open(cls, name: str, **options: Any) -> Any:
        """Make the store that :func:`create` was asked for, under one of the names of this class."""
        return cls(**options)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Give the value of the worker of rank 0 to all workers, in ``out``."""
        raise NotImplementedError(f"{type(self).__name__} has no broadcast()")

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum values over devices and workers, into ``out`` (default: the values themselves)."""
        raise NotImplementedError(f"{type(self).__name__} has no pushpull()")

    def set_optimizer(self, optimizer: Any) -> None:
        """Let the store update its values by an optimizer."""
        raise NotImplementedError(f"{type(self).__name__} has no set_optimizer()")

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Tell whether the store can do more than sum: ``"optimizer"`` means that it can update weights itself."""
        raise NotImplementedError("is_capable() is not implemented by this store")

    def save_optimizer_states(self, fname: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Save the states of the store's optimizer."""
        raise NotImplementedError(f"{type(self).__name__} has no save_optimizer_states()")

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Load the optimizer's states from a file."""
        raise NotImplementedError(f"{type(self).__name__} has no load_optimizer_states()")

    @property
    def type(self) -> str:
        """The name that it was created by."""
        raise NotImplementedError(f"{type(self).__name__} has no type")

    @property
    def rank(self) -> int:
        """The number of this worker, from 0."""
        raise NotImplementedError(f"{type(self).__name__} has no rank")

    @property
    def num_workers(self) -> int:
        """Number of workers in the job."""
        raise NotImplementedError(f"{type(self).__name__} has no num_workers")

    @staticmethod
    def register(klass: C) -> C:
        """Make a class of stores known by its name in lower case; usable as a decorator."""
        return registry.register(klass)

    # What Module and Trainer call.

    _is_remote: ClassVar[bool] = False
    """True if other processes keep the values and the optimizer's states."""

    @property
    def _is_synchronous(self) -> bool:
        """True if a pull returns the sum over all workers' pushes; False where each worker proceeds by itself."""
        return True

    def _share(self, key: Any, arrays: list[NDArray]) -> None:
        """Start a key whose value lives on several devices, and is updated by the store; or go on with other arrays."""
        self.broadcast(key, arrays[0], out=arrays)

    def _install(self, updater: Any) -> None:
        """Set the updater of the weights (None: the store's own)."""
        self.set_optimizer(updater.optimizer)

    def _watch(self) -> None:
        """Arrange for signals to the main thread, where the store was made on another one."""

    def _exchange(self, keys: Sequence[Any], values: Sequence[Any], outs: Sequence[Any]) -> None:
        """:meth:`pushpull` of many keys, in the order in which a forward pass uses them: the first is most urgent."""
        for place, (key, value, out) in enumerate(zip(keys, values, outs, strict=True)):
            self.pushpull(key, value, out=out, priority=-place)

    def _arrays(self) -> list[Any]:
        """The arrays that it keeps in this process."""
        return []

    def _refresh(self) -> None:
        """Pass changes of the optimizer (learning rate, gradient scale) to the store."""

    async def _begin_fit(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        """The epoch and the batch to begin with: the given ones, or those that other workers have come to."""
        return epoch, batch

    async def _end_epoch(self, epoch: int) -> int:
        """Await that every worker has come to the end of an epoch; return the next, by default `epoch`."""
        return epoch

    # What checkpoints need of a store.

    @property
    def _leads(self) -> bool:
        """True on the worker that saves the state that all workers share."""
        return True

    async def _agree(self, places: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """The newest of places (epoch, batch) that all workers have; in a job that runs already, this one's newest.

        Args:
            places: those that this worker has, the newest first.
        """
        return places[0] if places else None

    async def _saved_states(self) -> bytes | None:
        """The states of an optimizer that other processes keep."""
        raise NotImplementedError(f"{type(self).__name__} keeps no states of an optimizer elsewhere")

    async def _resume_states(self, states: bytes | None) -> None:
        """Continue from the leading worker's :meth:`_saved_states`, unless the job is already past that point."""
        raise NotImplementedError(f"{type(self).__name__} keeps no states of an optimizer elsewhere")


registry: Registry[KVStoreBase] = Registry(KVStoreBase, "kvstore")
KVStoreBase.kv_registry = registry.classes

SYNC = ("dist", "dist_sync", "dist_device_sync", "dist_sync_device")
ASYNC = ("dist_async", "dist_device_async", "dist_async_device")
registry.later("flowmx.kvstore.worker.store", *SYNC, *ASYNC)  # with all that talks to other machines

register = KVStoreBase.register


@KVStoreBase.register
class TestStore(KVStoreBase):
    """A store without state, which sums and copies the arrays of one process (MXNet's, for tests)."""

    __test__ = False

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        for each in out if isinstance(out, list) else [out]:
            each[:] = value

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        values = value if isinstance(value, list) else [value]
        total = values[0].copy()
        for each in values[1:]:
            total += each.as_in_context(total.context)
        targets = values if out is None else out
        for each in targets if isinstance(targets, list) else [targets]:
            each[:] = total

    @staticmethod
    def is_capable(capability: str) -> bool:
        return capable(capability, False)

    @property
    def type(self) -> str:
        return "teststore"

    @property
    def rank(self) -> int:
        return 0

    @property
    def num_workers(self) -> int:
        return 1


def capable(capability: str, optimizer: bool) -> bool:
    """Answer ``is_capable`` for a store that can (or can not) run an optimizer.

    Raises:
        ValueError: nothing is known of such a capability.
    """
    if capability.lower() != KVStoreBase.OPTIMIZER:
        raise ValueError(f"is_capable: the capability is {capability!r}, expected {KVStoreBase.OPTIMIZER!r}")
    return optimizer


def create(name: str = "local", **options: Any) -> Any:
    """Make a key-value store.

    Args:
        name: in any case: ``"local"`` (also ``"local_update_cpu"``, ``"local_allreduce_cpu"``) sums on the CPU,
            ``"device"`` (also ``"local_allreduce_device"``) on the devices themselves, in their order, so
            that results repeat bit for bit; ``"nccl"`` as ``"device"``, by NCCL where it is installed, in an order of
            NCCL's; or the name of a class registered by :meth:`KVStoreBase.register`.
        **options: what the class takes besides.

    Returns:
        a :class:`KVStore`, or an instance of the registered class.

    Raises:
        TypeError: the name is no string.
        NotImplementedError: a store of a library that is not used here.
        SettingError: a store of several machines outside a job (``python -m flowmx launch`` starts one).
        ValueError: there is none of this name.

    Example:
        >>> kv = mx.kv.create("device")
        >>> kv.init("weight", mx.nd.zeros((2, 3)))
        >>> kv.push("weight", [mx.nd.ones((2, 3), ctx=mx.cpu(i)) for i in range(4)])
        >>> out = mx.nd.empty((2, 3))
        >>> kv.pull("weight", out=out)
        >>> out.asnumpy()[0]
        array([4., 4., 4.], dtype=float32)
    """
    if not isinstance(name, str):
        raise TypeError(f"create: name is {name!r}, expected the name of a kvstore, such as 'local'")
    name = name.lower()
    if name not in registry.classes and name not in registry.coming:
        _refuse(name)
    return registry.find(name).open(name, **options)


async def create_async(name: str = "local", **options: Any) -> Any:
    """As :func:`create`, awaited: a store of several machines is there when all of its job's nodes are.

    Example:
        >>> kv = await mx.kv.create_async("dist_sync")
    """
    store = await asyncio.to_thread(create, name, **options)
    store._watch()
    return store


def _refuse(name: str) -> None:
    """Raise the reason why a kvstore of MXNet's is not supported."""
    if name in _ELSEWHERE:
        raise NotImplementedError(f"the kvstore {name!r} needs a library that is not used here: use 'device'")
