"""The base class of key-value stores, the registry of store classes, and ``create``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, cast, overload

from flowmx import event_loops
from flowmx.ndarray import NDArray
from flowmx.registry import Registry

if TYPE_CHECKING:
    from flowmx.kvstore.local import KVStore
    from flowmx.kvstore.worker.store import DistKVStore

    _Distributed: TypeAlias = Literal[
        "dist",
        "dist_sync",
        "dist_async",
        "dist_device_sync",
        "dist_sync_device",
        "dist_device_async",
        "dist_async_device",
    ]

__all__ = ["KVStoreBase", "TestStore", "create", "create_async", "register"]

_UNSUPPORTED = ("horovod", "byteps", "p3")

C = TypeVar("C", bound=type)


class KVStoreBase:
    """Base class of key-value stores, through which devices and machines train together; derive custom stores from it.

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

    # Methods that Trainer and Module call for some parameters; a custom store may lack them.
    barrier: Callable[..., Any]
    init: Callable[..., Any]
    pull: Callable[..., Any]
    push: Callable[..., Any]
    row_sparse_pull: Callable[..., Any]
    set_gradient_compression: Callable[..., Any]

    @classmethod
    def open(cls, name: str, **options: Any) -> Any:
        """Make the store for :func:`create`, under one of the names of this class."""
        return cls(**options)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copy the value of the worker with rank 0 into ``out`` on all workers."""
        raise NotImplementedError(f"{type(self).__name__} has no broadcast()")

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum values over devices and workers, into ``out`` (default: the values themselves)."""
        raise NotImplementedError(f"{type(self).__name__} has no pushpull()")

    def set_optimizer(self, optimizer: Any) -> None:
        """Set the optimizer with which the store updates its values."""
        raise NotImplementedError(f"{type(self).__name__} has no set_optimizer()")

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return whether the store has a capability: ``"optimizer"`` means that it can update weights itself."""
        raise NotImplementedError("is_capable() is not implemented by this store")

    def save_optimizer_states(self, fname: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Save the states of the store's optimizer."""
        raise NotImplementedError(f"{type(self).__name__} has no save_optimizer_states()")

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Load the optimizer's states from a file."""
        raise NotImplementedError(f"{type(self).__name__} has no load_optimizer_states()")

    @property
    def type(self) -> str:
        """The name that the store was created with."""
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
        """Register a store class under its name in lower case; usable as a decorator."""
        return registry.register(klass)

    # Called by Module and Trainer.

    _is_remote: ClassVar[bool] = False
    """True if other processes store the values and the optimizer's states."""

    @property
    def _is_synchronous(self) -> bool:
        """True if a pull returns the sum over all workers' pushes; False if each worker proceeds by itself."""
        return True

    def _share(self, key: Any, arrays: list[NDArray]) -> None:
        """Initialize a key with copies on several devices, which the store updates; or replace its arrays."""
        self.broadcast(key, arrays[0], out=arrays)

    def _install(self, updater: Any) -> None:
        """Set the updater of the weights (None: the store's default)."""
        self.set_optimizer(updater.optimizer)

    def _claim(self, names: Sequence[str], by_name: bool) -> KVStoreBase:
        """Return the store for one more Trainer or Module, with separate keys.

        Args:
            names: the names of its parameters.
            by_name: whether the user gave the name of a store, not a store.
        """
        return self

    def _watch(self) -> None:
        """Deliver signals to the main thread, for a store that was made on another thread."""

    def _exchange(self, keys: Sequence[Any], values: Sequence[Any], outs: Sequence[Any]) -> None:
        """Call :meth:`pushpull` for many keys, in the order of the forward pass: the first is most urgent."""
        for position, (key, value, out) in enumerate(zip(keys, values, outs, strict=True)):
            self.pushpull(key, value, out=out, priority=-position)

    def _arrays(self) -> list[Any]:
        """Return the arrays that the store holds in this process."""
        return []

    def _refresh(self) -> None:
        """Pass changes of the optimizer (learning rate, gradient scale) to the store."""

    async def _begin_fit(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        """Return the epoch and batch to begin with: the arguments, or the position of the other workers."""
        return epoch, batch

    async def _end_epoch(self, epoch: int) -> int:
        """Wait until every worker has finished an epoch; return the next epoch, by default `epoch`."""
        return epoch

    # Called by checkpoints.

    @property
    def _leads(self) -> bool:
        """True on the worker that saves the common state of all workers."""
        return True

    async def _agree(self, places: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """Return the newest position (epoch, batch) that all workers have; in a running job, this worker's newest.

        Args:
            places: the positions that this worker has, the newest first.
        """
        return places[0] if places else None

    async def _saved_states(self) -> bytes | None:
        """Return the states of an optimizer that runs in other processes."""
        raise NotImplementedError(f"{type(self).__name__} keeps no optimizer states in other processes")

    async def _resume_states(self, states: bytes | memoryview | None) -> None:
        """Continue from the leading worker's :meth:`_saved_states`, unless the job is already past that point."""
        raise NotImplementedError(f"{type(self).__name__} keeps no optimizer states in other processes")


registry: Registry[KVStoreBase] = Registry(KVStoreBase, "kvstore")
KVStoreBase.kv_registry = registry.classes

SYNC = ("dist", "dist_sync", "dist_device_sync", "dist_sync_device")
ASYNC = ("dist_async", "dist_device_async", "dist_async_device")
registry.register_lazily("flowmx.kvstore.worker.store", *SYNC, *ASYNC)  # imported lazily: it loads the networking code

register = KVStoreBase.register


@KVStoreBase.register
class TestStore(KVStoreBase):
    """A store without state, which sums and copies the arrays of one process (MXNet's, for tests)."""

    __test__ = False

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        for target in out if isinstance(out, list) else [out]:
            target[:] = value

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        values = value if isinstance(value, list) else [value]
        total = values[0].copy()
        for array in values[1:]:
            total += array.as_in_context(total.context)
        targets = values if out is None else out
        for array in targets if isinstance(targets, list) else [targets]:
            array[:] = total

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
    """Return the result of ``is_capable`` for a store that can (or cannot) run an optimizer.

    Raises:
        ValueError: the capability is unknown.
    """
    if capability.lower() != KVStoreBase.OPTIMIZER:
        raise ValueError(f"is_capable: the capability is {capability!r}, expected {KVStoreBase.OPTIMIZER!r}")
    return optimizer


@overload
def create(name: _Distributed, **options: Any) -> DistKVStore: ...


@overload
def create(name: str = "local", **options: Any) -> KVStore: ...


def create(name: str = "local", **options: Any) -> KVStore:
    """Make a key-value store.

    Args:
        name: in any case: ``"local"`` (also ``"local_update_cpu"``, ``"local_allreduce_cpu"``) sums on the CPU,
            ``"device"`` (also ``"local_allreduce_device"``) on the devices themselves, in their order, so
            that results repeat bit for bit; ``"nccl"`` as ``"device"``, with NCCL where it is installed (NCCL chooses
            the order); or the name of a class registered by :meth:`KVStoreBase.register`.
        **options: further arguments of the class.

    Returns:
        a :class:`KVStore`, or an instance of the registered class.

    Raises:
        TypeError: the name is not a string.
        NotImplementedError: the store needs a library that flowmx does not use.
        SettingError: a distributed store was requested outside a job (``python -m flowmx launch`` starts one).
        ValueError: no store has this name.

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
    if name not in registry.classes and name not in registry.lazy_modules:
        _refuse(name)
    return cast("KVStore", registry.find(name).open(name, **options))


@overload
async def create_async(name: _Distributed, **options: Any) -> DistKVStore: ...


@overload
async def create_async(name: str = "local", **options: Any) -> KVStore: ...


async def create_async(name: str = "local", **options: Any) -> KVStore:
    """Make a store as :func:`create` does, without blocking: a distributed store waits for all nodes of its job.

    Example:
        >>> kv = await mx.kv.create_async("dist_sync")
    """
    store = await event_loops.to_thread(create, name, **options)
    store._watch()
    return store


def _refuse(name: str) -> None:
    """Raise NotImplementedError for a kvstore of MXNet that is not supported."""
    if name in _UNSUPPORTED:
        raise NotImplementedError(f"the kvstore {name!r} needs a library that flowmx does not use: use 'device'")
