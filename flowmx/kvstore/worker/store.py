"""Distributed stores: the level above the sums over devices of :mod:`flowmx.kvstore.local`."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from flowmx import optimizer as opt
from flowmx import program, settings
from flowmx.comm.errors import Refused
from flowmx.engine import Handle, State
from flowmx.engine.loops import blocks_in_ordinary_code, result_of
from flowmx.engine.runtime import engine
from flowmx.errors import KVStoreError
from flowmx.kvstore import compression, imports
from flowmx.kvstore.base import ASYNC, SYNC, registry
from flowmx.kvstore.roles import run_if_server
from flowmx.kvstore.spaces import suffix
from flowmx.kvstore.wait_log import UNEVEN_ADVICE
from flowmx.kvstore.worker import checkpoint_agreement, state_files
from flowmx.kvstore.worker.coalescing import split_into_runs
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.process import leave_job, process_store
from flowmx.kvstore.worker.push_compression import Packing
from flowmx.kvstore.worker.push_pull import DistValues
from flowmx.kvstore.worker.session import Session
from flowmx.optimizer.update_counts import is_ordered
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import read_whole
from flowmx.serialization.suffixes import check_states_suffix

__all__ = ["DistKVStore"]

log = logging.getLogger("flowmx.kvstore")

_LOG_INTERVAL = 10.0
"""Seconds between log messages while :meth:`DistKVStore.close` waits."""


@registry.alias(*SYNC, *ASYNC)
class DistKVStore(DistValues):
    """Values by key, stored on the servers of a job, to which all its workers push (``mx.kv.create("dist_sync")``).

    Gradients are summed over the devices of this process first. In a synchronous store the pushes of all workers are
    added, in the order of their ranks, and a pull returns the common result. In an asynchronous store (``dist_async``)
    each push updates the value separately; with ``max_staleness`` no worker gets more than this number of pushes ahead
    of the slowest. Every call enqueues its work and returns at once, as in other stores.

    A worker without further batches leaves at the end of its program, or with :meth:`close`; the others continue.

    Args:
        name: the name that the store was created with.
        session: the session in the job.
    """

    _cancelled_barrier: tuple[Handle[Any], int] | None = None
    """A barrier whose wait was cancelled, and the number of pushes at that time."""

    @classmethod
    def open(cls, name: str, **options: Any) -> DistKVStore:
        """Join the job that the environment describes; block until all of its nodes have joined.

        Args:
            name: the kind of store.
            **options: ``max_staleness``, for an asynchronous store.

        Raises:
            TypeError, ValueError: an option is unknown or invalid.
            SettingError: the environment describes no job.
            NodeGone: a node of the job was lost before it began.
            KVStoreError: this process has a store of another kind.
        """
        mode = _parse_mode(name, **options)
        run_if_server()
        return process_store((name, mode), lambda: cls(name, _join_job(mode)))

    @property
    def num_dead_nodes(self) -> int:
        """The number of lost nodes in the newest view."""
        return len(self._session.node.view.lost)

    def get_num_dead_node(self, node_id: int = 0, timeout: float = 60) -> int:
        """MXNet's form of :attr:`num_dead_nodes`; the arguments are ignored."""
        return self.num_dead_nodes

    # -- updating --------------------------------------------------------------------------------------

    def set_updater(self, updater: Callable[[Any, Any, Any], Any] | None) -> None:
        """Raise KVStoreError: a function cannot be sent to the servers of a distributed store.

        Raises:
            KVStoreError: always.
        """
        raise KVStoreError(
            f"set_updater: the servers of a kvstore of type {self.type!r} run no code from workers: "
            "register an optimizer (mx.optimizer.register) in the servers' program too, and call set_optimizer()"
        )

    _set_updater = set_updater

    def _send_command_to_servers(self, head: int, body: str) -> None:
        """MXNet's call for arbitrary commands to servers; refused like :meth:`set_updater`.

        Raises:
            KVStoreError: always.
        """
        raise KVStoreError(
            "send_command_to_servers: servers run no code from workers: use set_optimizer(), "
            "set_gradient_compression() or another method of the store"
        )

    def set_optimizer(self, optimizer: opt.Optimizer) -> None:
        """Set the optimizer that the servers update values with; all workers call it, and rank 0's is used.

        Raises:
            TypeError: `optimizer` is not an optimizer.
        """
        if not isinstance(optimizer, opt.Optimizer):
            raise TypeError(f"set_optimizer: optimizer is {optimizer!r}, expected an mx.optimizer.Optimizer")
        split = [entry.key for entry in self._entries.values() if len(entry.shards) > 1]
        if split and optimizer.whole_array:
            raise KVStoreError(
                f"set_optimizer: {type(optimizer).__name__} needs whole arrays, and the keys {split[:5]} are split "
                "over the servers: call set_optimizer before init, or set FLOWMX_KVSTORE_BIGARRAY_BOUND above that"
            )
        with self._lock:
            self._session.check()
            self._optimizer, self._config = optimizer, optimizer.get_config()
            self._call_count += 1
            self._config_call = self._call_count
            facts = self._family.facts()
            work = self._make_installer(self._session.configure_together, self._make_counter(optimizer))
            self._enqueue_for_all_keys(
                "kvstore set_optimizer", work, (self._config, self._config_call, self._space, facts)
            )

    def _make_installer(
        self, work: Callable[..., Awaitable[None]], then: Callable[[], Awaitable[None]]
    ) -> Callable[..., Coroutine[Any, Any, None]]:
        """Return a coroutine function for set_optimizer; if it fails, later pushes and pulls raise its error."""

        async def install(*arguments: object) -> None:
            try:
                await work(*arguments)
            except Refused as refused:
                is_unknown = any(text in str(refused) for text in ("not defined here", "unknown optimizer"))
                advice = imports.advice(self._optimizer) if is_unknown else ""
                error = KVStoreError(f"set_optimizer was refused by the servers: {advice or refused}")
                self._transfers.broken = error
                raise error from refused
            self._transfers.broken = None
            await then()

        return install

    def _make_counter(self, optimizer: opt.Optimizer) -> Callable[[], Coroutine[Any, Any, None]]:
        """Record the order of pushes from now on, if an optimizer needs it; return a function that fetches the counts.

        Await it after all earlier pushes are answered, and before any later push is sent.
        """
        order, entries, config = self._transfers.order, list(self._entries.values()), self._config
        marker = order.follow(optimizer)

        async def count() -> None:
            if marker is not None and config is not None:
                await self._session.recount(entries)
                order.begin(config, {entry.key: entry.count for entry in entries}, marker)

        return count

    def _install(self, updater: Any) -> None:
        self.set_optimizer(updater.optimizer)

    def _claim(self, names: Sequence[str], by_name: bool) -> DistKVStore:
        # The user of the store itself may use its keys, so the first claim has the plain space, as in MXNet.
        with self._lock:
            number = self._family.claim(names)
            if not by_name and not self._is_claimed and not self._entries:
                self._is_claimed = True
                self._names = names
                return self
            store = type(self)(self._type, self._session, self._family, number)
            store._names = names
            if self._packing is not None:
                store._packing = Packing(self._packing.compression)
            return store

    _is_claimed = False

    def _watch(self) -> None:
        program.install_sigterm_handler()

    def _exchange(self, keys: Sequence[Any], values: Sequence[object], outs: Sequence[object]) -> None:
        sizes = [self._entries[key].nbytes for key in keys]
        for run in split_into_runs(sizes):
            self.pushpull(keys[run], values[run], out=outs[run], priority=-run.start)

    def _refresh(self) -> None:
        with self._lock:
            if self._optimizer is None:
                return
            leads, was_active = self._session.leads, self._transfers.order.active
            if not leads and was_active == is_ordered(self._optimizer):
                return
            config = self._optimizer.get_config()
            if config == self._config:
                return
            self._config = config
            if was_active:
                self._transfers.order.change(config)
                count = self._do_nothing
            else:
                count = self._make_counter(self._optimizer)
            if leads:
                arguments = (config, self._config_call, self._space)
                self._enqueue_for_all_keys(
                    "kvstore set_optimizer", self._make_installer(self._session.configure, count), arguments
                )
            elif not was_active:
                self._enqueue_for_all_keys("kvstore count", count, ())

    async def _do_nothing(self) -> None:
        """Do nothing."""

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Compress the gradients that this worker sends; it adds the residual to its next push.

        Args:
            compression_params: ``{"type": "2bit", "threshold": 0.5}``, ``{"type": "fp16"}`` or ``{"type": "bf16"}``.

        Raises:
            ParameterError: the type or threshold is invalid.
        """
        with self._lock:
            self._packing = Packing(compression.create(compression_params))

    async def ready(self) -> None:
        await self._enqueue_for_all_keys("kvstore ready", None, ())

    def save_optimizer_states(self, fname: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Save the states of the servers' optimizer; block until they are on disk.

        Args:
            fname: the file.
            dump_optimizer: also save the optimizer itself.

        Raises:
            KVStoreError: the store has no optimizer.
        """
        check_states_suffix(fname)
        replace_file(fname, [self._states(dump_optimizer)])

    def _states(self, dump_optimizer: bool) -> bytes:
        if self._optimizer is None:
            raise KVStoreError("save_optimizer_states: the store has no optimizer: call set_optimizer() first")
        with self._lock:
            self._enqueue_for_all_keys("kvstore wait", None, ()).wait()
            entries = list(self._entries.values())
            parts = result_of(self._session.ask(lambda: self._session.save_states(entries)))
            config = self._optimizer.get_config() if dump_optimizer else None
        return state_files.join_states(entries, parts, config)

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Load the states that :meth:`save_optimizer_states` saved; all workers call it, and rank 0's file is used.

        Raises:
            KVStoreError: the store has no optimizer.
            StatesFormatError: the file has a different format, or is damaged.
            OSError: the file cannot be read.
        """
        if self._optimizer is None:
            raise KVStoreError("load_optimizer_states: the store has no optimizer: call set_optimizer() first")
        with self._lock:
            self._session.check()
            self._call_count += 1
            self._load_states(read_whole(fname), f"states {self._call_count}{suffix(self._space)}")

    def _load_states(self, data: bytes | memoryview | None, barrier: str) -> None:
        entries = list(self._entries.values())
        content = {} if data is None else state_files.split_states(entries, data)
        count = self._do_nothing if self._optimizer is None else self._make_counter(self._optimizer)

        async def load() -> None:
            await self._session.load_states_together(entries, content, barrier)
            await count()

        self._enqueue_for_all_keys("kvstore load states", load, ())

    # -- checkpoints -----------------------------------------------------------------------------------

    @property
    def _leads(self) -> bool:
        return self._session.leads

    async def _agree(self, checkpoints: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        if not self._is_synchronous:  # its workers are at different positions anyway
            return checkpoints[0] if checkpoints else None
        family = self._family
        family.agreements += 1
        work = functools.partial(
            checkpoint_agreement.newest_common, self._session, checkpoints, family.fits, family.agreements
        )
        return await asyncio.wrap_future(self._session.ask(work))

    async def _saved_states(self) -> bytes | None:
        await self.ready()
        return await asyncio.to_thread(self._states, False)

    async def _resume_states(self, states: bytes | memoryview | None) -> None:
        await self.ready()
        if not self._steps():  # otherwise the servers are past that point
            self._load_states(states, f"resumed {self._family.fits}{suffix(self._space)}")
            await self.ready()

    # -- workers ---------------------------------------------------------------------------------------

    @blocks_in_ordinary_code
    async def barrier(self) -> None:
        """Wait until every worker has reached the barrier and completed its earlier pushes.

        A waiting worker does not block workers that still have batches: with uneven data, they proceed without it. If
        the wait is cancelled, the next call waits for the same barrier, unless something was pushed in between.
        """
        push_count = sum(sum(entry.numbers) for entry in self._entries.values())
        previous, self._cancelled_barrier = self._cancelled_barrier, None
        meeting = self._meet() if previous is None or previous[1] != push_count else previous[0]
        try:
            await meeting
        except asyncio.CancelledError:
            self._cancelled_barrier = meeting, push_count
            raise

    def _barrier(self) -> None:
        self._meet().wait()

    def _meet(self, then: Callable[[], Awaitable[object]] | None = None) -> Handle[Any]:
        with self._lock:
            self._session.check()
            stores = [store for store in self._family.stores if store._transfers.order.active]
            marks = [(store, store._transfers.order.record(None)) for store in stores]

            async def meet(entries: list[KeyState], then: Callable[[], Awaitable[object]] | None) -> None:
                pushes_before = [max(entry.numbers, default=0) for entry in entries]
                await self._session.barrier(entries, then)
                self._warn_of_missed_rounds(entries, pushes_before)
                for store, at in marks:  # others may have pushed meanwhile
                    counts = {entry.key: entry.count for entry in entries if entry in store._entries.values()}
                    store._transfers.order.begin(store._config or {}, counts, at)

            return self._enqueue_for_all_keys("kvstore barrier", meet, (self._family.entries(), then))

    def _warn_of_missed_rounds(self, entries: Sequence[KeyState], pushes_before: Sequence[int]) -> None:
        """Log that other workers had more batches than this one before a barrier."""
        after = [max(entry.numbers, default=0) for entry in entries]
        missed = max((now - before for now, before in zip(after, pushes_before, strict=True)), default=0)
        if missed > 0 and self._is_synchronous and missed not in self._family.logged_misses:
            self._family.logged_misses.add(missed)
            log.warning(
                "%s ended early: it had %d %s fewer than other workers, whose last updates lack its gradients%s; %s",
                self._session.node.name, missed, "batch" if missed == 1 else "batches",
                "" if self._optimizer is not None else " and are missing here", UNEVEN_ADVICE,
            )  # fmt: skip

    async def _begin_fit(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        await self.ready()
        self._family.fits += 1
        # Otherwise the others could finish this epoch, and the next, before a late worker has finished this one.
        await asyncio.wrap_future(self._session.ask(self._session.attend))
        position = await self._position()
        if position and position[0] > self._family.fits:
            return sys.maxsize, 0  # the others have passed this barrier
        if not position or position[0] < self._family.fits:
            await self._position([self._family.fits, epoch, self._steps() - batch])
            return epoch, batch
        if self._is_synchronous and not self._has_pushed:
            return position[1], max(self._steps() - position[2], 0)
        return position[1], batch if position[1] == epoch else 0

    async def _end_epoch(self, epoch: int) -> int:
        await self.ready()
        steps = self._steps()
        await self._meet(lambda: self._session.position([self._family.fits, epoch, self._steps()]))
        if self._optimizer is None and self._steps() != steps:
            raise KVStoreError(
                f"{self._session.node.name} had {self._steps() - steps} batches fewer than others, and has missed "
                f"their updates: {UNEVEN_ADVICE}, or let the kvstore update the parameters"
            )

        fits, last_epoch, _ = await self._position()
        return last_epoch if fits == self._family.fits else sys.maxsize  # more than `epoch` if it joined late

    async def _position(self, progress: Sequence[int] | None = None) -> list[int]:
        return await asyncio.wrap_future(self._session.ask(lambda: self._session.position(progress)))

    def rest(self) -> None:
        """Enqueue a pause: the others do not wait for this worker until its next :meth:`barrier`."""
        with self._lock:
            self._session.check()
            self._enqueue_for_all_keys("kvstore rest", self._session.rest, (self._family.entries(),))

    def stats(self) -> dict[str, Any]:
        """Return statistics of the servers.

        Returns:
            ``mode`` (the consistency mode), ``largest_lag`` (the maximum number of pushes by which a worker was
            ahead of the slowest), ``keys`` (their number) and ``servers`` (the statistics of each server).
        """
        stats = result_of(self._session.ask(self._session.stats))
        return {
            "mode": stats[0]["mode"],
            "largest_lag": max(server_stats["largest_lag"] for server_stats in stats),
            "keys": len(self._family.entries()),
            "servers": stats,
        }

    def close(self, timeout: float | None = None) -> None:
        """Finish all pushes, and leave the job; this blocks.

        Args:
            timeout: seconds after which unfinished pushes are abandoned; by default, wait as long as the other
                workers need, unless the job fails.
        """
        if self._session.closed or not self._session.is_in_creating_process:
            return
        self._wait_for(self._finish(), timeout)
        self._session.close(settings.get().exit_timeout)

    def _finish(self) -> Handle[Any]:
        """Enqueue an operation that ends after everything pushed so far."""
        with self._lock:
            orders = tuple(entry.order for entry in self._family.entries())
            return self._enqueue("kvstore close", lambda: None, (), (), (*orders, self._control))

    def _wait_for(self, op: Handle[Any], timeout: float | None) -> None:
        """Wait until an operation has ended or failed; log long waits."""
        done = threading.Event()
        with engine.lock:
            if op.state != State.DONE:
                op.add_waiter(done, done.set)
            else:
                done.set()
        start = time.monotonic()
        while not done.wait(_LOG_INTERVAL if timeout is None else timeout):
            if timeout is not None:
                log.warning("unfinished pushes are abandoned after %g s: %s", timeout, self._session.doing())
                return
            log.warning("closing the store has waited %.0f s: %s", time.monotonic() - start, self._session.doing())

    @property
    def closed(self) -> bool:
        """True once the store has left its job."""
        return self._session.closed

    @property
    def lost(self) -> BaseException | None:
        """The error that ended the job before this store left it, or None."""
        return self._session.lost

    def fail(self, why: str) -> None:
        """Report a failure of this program to the job when leaving."""
        self._session.failure = why

    @property
    def unfinished(self) -> bool:
        """True in the middle of a step; the other workers need all of its pushes."""
        session = self._session
        ended = session.closed or session.error is not None or not session.is_in_creating_process
        return not ended and any(store._step.is_partial(len(store._entries)) for store in self._family.stores)

    def __enter__(self) -> DistKVStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        leave_job(self, error)


def _join_job(mode: tuple[str, int | None]) -> Session:
    session = Session.from_settings(mode)
    result_of(session.start())
    return session


def _parse_mode(name: str, max_staleness: int | None = None) -> tuple[str, int | None]:
    """Return the consistency mode of a store's name, and its bound."""
    if max_staleness is None:
        return ("sync" if name in SYNC else "async"), None
    if name in SYNC or type(max_staleness) is not int or max_staleness < 1:
        raise ValueError(
            f"create: max_staleness is {max_staleness!r} for the kvstore {name!r}: only 'dist_async' takes it, an "
            "int of at least 1 (in 'dist_sync' no worker gets ahead)"
        )
    return "stale", max_staleness
