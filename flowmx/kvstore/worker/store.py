"""Stores of a job of several machines: level 2, above the sums of :mod:`flowmx.kvstore.local`."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from flowmx import optimizer as opt
from flowmx import program, settings
from flowmx.engine import Handle, State
from flowmx.engine.loops import result_of, runs_in_plain_code
from flowmx.engine.runtime import engine
from flowmx.errors import KVStoreError
from flowmx.kvstore import compression
from flowmx.kvstore.base import ASYNC, SYNC, registry
from flowmx.kvstore.roles import run_if_server
from flowmx.kvstore.worker import agreement, states
from flowmx.kvstore.worker.groups import runs
from flowmx.kvstore.worker.packing import Packing
from flowmx.kvstore.worker.process import end_with, of_process
from flowmx.kvstore.worker.session import Session
from flowmx.kvstore.worker.values import DistValues
from flowmx.serialization.atomic import replace_file

__all__ = ["DistKVStore"]

log = logging.getLogger("flowmx.kvstore")

_PATIENCE = 10.0
"""Seconds of waiting after which the log shows what is waited for."""


@registry.alias(*SYNC, *ASYNC)
class DistKVStore(DistValues):
    """Values by key, kept by the servers of a job, to which all its workers push (``mx.kv.create("dist_sync")``).

    Gradients are summed over the devices of this process first. In a synchronous store a push is over when every
    worker's was added, in the order of their ranks, and a pull gives what all of them made. In an asynchronous one
    (``dist_async``) each push updates the value by itself; with ``max_staleness`` no worker gets more than so many
    pushes ahead of the slowest. Everything is enqueued and returns at once, as in other stores.

    A worker that has no more batches leaves at the end of its program, or with :meth:`close`, and holds nobody up.

    Args:
        name: the name that it was created by.
        session: the job.
    """

    @classmethod
    def open(cls, name: str, **options: Any) -> DistKVStore:
        """Join the job that the environment describes; blocks until all of its nodes are there.

        Args:
            name: the kind of store.
            **options: ``max_staleness``, for an asynchronous one.

        Raises:
            TypeError, ValueError: an option is none that there is.
            SettingError: there is no job.
            NodeGone: a node of the job was lost before it began.
            KVStoreError: this process has a store of another kind.
        """
        mode = _mode(name, **options)
        run_if_server()
        return of_process((name, mode), lambda: cls(name, _joined(mode)))

    @property
    def num_dead_nodes(self) -> int:
        """Number of nodes in the newest view's list of lost ones."""
        return len(self._session.node.view.gone)

    def get_num_dead_node(self, node_id: int = 0, timeout: float = 60) -> int:
        """MXNet's form of :attr:`num_dead_nodes`; the arguments are ignored."""
        return self.num_dead_nodes

    # -- updating --------------------------------------------------------------------------------------

    def set_updater(self, updater: Callable[[Any, Any, Any], Any] | None) -> None:
        """Not for a store of several machines: a function can not be sent to its servers.

        Raises:
            KVStoreError: always.
        """
        raise KVStoreError(
            f"set_updater: the servers of a kvstore of type {self.type!r} run nothing that a worker sends them: "
            "register an optimizer (mx.optimizer.register) in the servers' program too, and call set_optimizer()"
        )

    _set_updater = set_updater

    def _send_command_to_servers(self, head: int, body: str) -> None:
        """MXNet's way to send servers anything at all; refused as :meth:`set_updater` is.

        Raises:
            KVStoreError: always.
        """
        raise KVStoreError(
            "send_command_to_servers: servers run nothing that a worker sends them: use set_optimizer(), "
            "set_gradient_compression() or what else the store offers by name"
        )

    def set_optimizer(self, optimizer: opt.Optimizer) -> None:
        """Let the servers update values by an optimizer; all workers call it, and that of rank 0 counts.

        Raises:
            TypeError: it is no optimizer.
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
            self._optimizer, self._configured = optimizer, optimizer.get_config()
            self._starts += 1
            work = self._session.configure_together
            self._control_by("kvstore set_optimizer", work, (self._configured, self._starts))

    def _install(self, updater: Any) -> None:
        self.set_optimizer(updater.optimizer)

    def _watch(self) -> None:
        program.heed_sigterm()

    def _exchange(self, keys: Sequence[Any], values: Sequence[Any], outs: Sequence[Any]) -> None:
        sizes = [self._entries[key].nbytes for key in keys]
        for run in runs(sizes):
            self.pushpull(keys[run], values[run], out=outs[run], priority=-run.start)

    def _refresh(self) -> None:
        with self._lock:
            if self._optimizer is None or not self._session.leads:
                return
            config = self._optimizer.get_config()
            if config != self._configured:
                self._configured = config
                self._control_by("kvstore set_optimizer", self._session.configure, (config, self._starts))

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Let gradients travel in fewer bits; this worker keeps what they leave out, for its next push.

        Args:
            compression_params: ``{"type": "2bit", "threshold": 0.5}``, ``{"type": "fp16"}`` or ``{"type": "bf16"}``.

        Raises:
            ParameterError: the type or threshold is none that there is.
        """
        with self._lock:
            self._packing = Packing(compression.create(compression_params))

    async def ready(self) -> None:
        await self._control_by("kvstore ready", None, ())

    def save_optimizer_states(self, fname: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Save the states of the servers' optimizer; blocks until they are on disk.

        Args:
            fname: the file.
            dump_optimizer: put the optimizer in too.

        Raises:
            KVStoreError: there is no optimizer.
        """
        replace_file(fname, [self._states(dump_optimizer)])

    def _states(self, dump_optimizer: bool) -> bytes:
        if self._optimizer is None:
            raise KVStoreError("save_optimizer_states: the store has no optimizer: call set_optimizer() first")
        with self._lock:
            self._control_by("kvstore wait", None, ()).wait()
            entries = list(self._entries.values())
            found = result_of(self._session.ask(lambda: self._session.save_states(entries)))
            config = self._optimizer.get_config() if dump_optimizer else None
        return states.joined(entries, found, config)

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Go on from what :meth:`save_optimizer_states` saved; all workers call it, and what rank 0 reads counts.

        Raises:
            KVStoreError: there is no optimizer.
            StatesFormatError: the file is something else, or damaged.
            OSError: it can not be read.
        """
        if self._optimizer is None:
            raise KVStoreError("load_optimizer_states: the store has no optimizer: call set_optimizer() first")
        with self._lock:
            self._session.check()
            self._starts += 1
            self._load_states(Path(fname).read_bytes(), f"states {self._starts}")

    def _load_states(self, data: bytes | None, barrier: str) -> None:
        entries = list(self._entries.values())
        content = {} if data is None else states.split(entries, data)
        work = self._session.load_states_together
        self._control_by("kvstore load states", work, (entries, content, barrier))

    # -- checkpoints -----------------------------------------------------------------------------------

    @property
    def _leads(self) -> bool:
        return self._session.leads

    async def _agree(self, places: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        if not self._is_synchronous:  # its workers are at different places anyway
            return places[0] if places else None
        self._agreements += 1
        work = functools.partial(agreement.newest_common, self._session, places, self._fits, self._agreements)
        return await asyncio.wrap_future(self._session.ask(work))

    async def _saved_states(self) -> bytes | None:
        await self.ready()
        return await asyncio.to_thread(self._states, False)

    async def _resume_states(self, states: bytes | None) -> None:
        await self.ready()
        if not self._steps():  # else the servers are past that point
            self._load_states(states, f"resumed {self._fits}")
            await self.ready()

    # -- workers ---------------------------------------------------------------------------------------

    @runs_in_plain_code
    async def barrier(self) -> None:
        """Await that every worker has come here, all it pushed before included.

        Who waits here holds nobody up who still has batches left: with uneven data, the others go on without it.
        """
        await self._meet()

    def _barrier(self) -> None:
        self._meet().wait()

    def _meet(self, then: Callable[[], Awaitable[object]] | None = None) -> Handle:
        with self._lock:
            self._session.check()
            return self._control_by("kvstore barrier", self._session.barrier, (list(self._entries.values()), then))

    async def _begin_fit(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        await self.ready()
        self._fits += 1
        # Else the others could end this epoch, and the next, before a worker that joined late comes to the end of it.
        await asyncio.wrap_future(self._session.ask(self._session.attend))
        found = await self._position()
        if found and found[0] > self._fits:
            return sys.maxsize, 0  # the others are past this barrier
        if not found or found[0] < self._fits:
            await self._position([self._fits, epoch, self._steps() - batch])
            return epoch, batch
        if self._is_synchronous and not self._has_pushed:
            return found[1], max(self._steps() - found[2], 0)
        return found[1], batch if found[1] == epoch else 0

    async def _end_epoch(self, epoch: int) -> int:
        await self.ready()
        own = self._steps()
        await self._meet(lambda: self._session.position([self._fits, epoch, self._steps()]))
        if self._optimizer is None and self._steps() != own:
            raise KVStoreError(
                f"this worker had {self._steps() - own} batches less than others, whose updates it has missed: give "
                "all workers the same number of batches, or let the kvstore update the parameters"
            )

        fits, reached, _ = await self._position()
        return reached if fits == self._fits else sys.maxsize  # more than asked for where it joined late

    async def _position(self, reached: Sequence[int] | None = None) -> list[int]:
        return await asyncio.wrap_future(self._session.ask(lambda: self._session.position(reached)))

    def rest(self) -> None:
        """Enqueue that the others need not wait for this worker until its next :meth:`barrier`: it has no more data."""
        with self._lock:
            self._session.check()
            self._control_by("kvstore rest", self._session.rest, (list(self._entries.values()),))

    def stats(self) -> dict[str, Any]:
        """Statistics of the servers.

        Returns:
            ``mode`` (the consistency mode), ``largest_lag`` (pushes by which a worker was ever ahead of the slowest),
            ``keys`` (their number) and ``servers`` (the statistics of each).
        """
        found = result_of(self._session.ask(self._session.stats))
        return {
            "mode": found[0]["mode"],
            "largest_lag": max(each["largest_lag"] for each in found),
            "keys": len(self._entries),
            "servers": found,
        }

    def close(self, timeout: float | None = None) -> None:
        """Finish what was pushed, and leave the job; blocks.

        Args:
            timeout: seconds after which what is not finished is given up; by default that takes as long as the other
                workers need, unless the job fails.
        """
        if self._session.closed or not self._session.is_own:
            return
        with self._lock:
            orders = tuple(entry.order for entry in self._entries.values())
            last = self._operate("kvstore close", lambda: None, (), (), (*orders, self._control))
        self._wait(last, timeout)
        self._session.close(settings.get().exit_timeout)

    def _wait(self, op: Handle, timeout: float | None) -> None:
        """Wait for an operation to end, well or not, and log now and then for whom."""
        done = threading.Event()
        with engine.lock:
            if op.state != State.DONE:
                op.tell(done, done.set)
            else:
                done.set()
        start = time.monotonic()
        while not done.wait(_PATIENCE if timeout is None else timeout):
            if timeout is not None:
                log.warning("what was pushed is given up after %g s: %s", timeout, self._session.doing())
                return
            log.warning("closing the store has waited %.0f s: %s", time.monotonic() - start, self._session.doing())

    @property
    def closed(self) -> bool:
        """True once the store has left its job."""
        return self._session.closed

    @property
    def lost(self) -> BaseException | None:
        """The end of the job, where that came before this store had left it."""
        return self._session.lost

    def fail(self, why: str) -> None:
        """Tell the job, when leaving it, that this program has failed."""
        self._session.failed = why

    @property
    def unfinished(self) -> bool:
        """True in the middle of a step, which the other workers need all of."""
        session = self._session
        ended = session.closed or session.error is not None or not session.is_own
        return not ended and self._step.is_partial(len(self._entries))

    def __enter__(self) -> DistKVStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        end_with(self, error)


def _joined(mode: tuple[str, int | None]) -> Session:
    session = Session.from_settings(mode)
    result_of(session.start())
    return session


def _mode(name: str, max_staleness: int | None = None) -> tuple[str, int | None]:
    """The kind of consistency that a name means."""
    if max_staleness is None:
        return ("sync" if name in SYNC else "async"), None
    if name in SYNC or type(max_staleness) is not int or max_staleness < 1:
        raise ValueError(
            f"create: max_staleness is {max_staleness!r} for the kvstore {name!r}: only 'dist_async' takes one, a "
            "int of at least 1 (none may get ahead in 'dist_sync')"
        )
    return "stale", max_staleness
