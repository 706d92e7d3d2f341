"""Carrying out the effects of a server's state machine: answers, messages, sums, updates, and copies for snapshots."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from flowmx.comm.notifier import Notifier
from flowmx.kvstore.row_sparse_wire import RowSparseGradient, add_gradients
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server import snapshot
from flowmx.kvstore.server.links import Links
from flowmx.kvstore.server.missing_push import MissingPush, find_missing
from flowmx.kvstore.server.optimizers import configs_of
from flowmx.kvstore.server.pending_calls import Call, JoinedCall
from flowmx.kvstore.server.shared_windows import Windows
from flowmx.kvstore.server.state_machine import Core
from flowmx.kvstore.server.store import Array, OrderedGradient, Store, Value, as_array
from flowmx.kvstore.server.update_order import UpdateOrders
from flowmx.kvstore.server.wire import pack

__all__ = ["EffectRunner"]

log = logging.getLogger("flowmx.kvstore")


class EffectRunner:
    """Carries out the effects of a server's state machine, and passes the results of computations back to it.

    Args:
        core: the state machine.
        store: computes sums and updates.
        links: send messages to the other servers.
        windows: refreshed before the effects of each event.

    Attributes:
        notifier: notified after the effects of each event.
    """

    def __init__(self, core: Core, store: Store, links: Links, windows: Windows) -> None:
        self.core = core
        self.store = store
        self.links = links
        self.windows = windows
        self.notifier = Notifier()
        self._effects: deque[p.Effect] = deque()
        self._is_running = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._merging: list[tuple[p.Merge, list[Array], Sequence[Any]]] = []
        self._orders = UpdateOrders(core.state, store)
        self._captures: dict[p.Part, list[asyncio.Future[snapshot.Captured | None]]] = {}

    async def close(self) -> None:
        """Cancel running computations."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def run(self, effects: Iterable[p.Effect]) -> None:
        """Carry out effects in their order, and the effects that they cause."""
        self._effects.extend(effects)
        self.windows.refresh()
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._effects:
                effect = self._effects.popleft()
                _CARRY_OUT[type(effect)](self, effect)
        finally:
            self._is_running = False
        self.notifier.notify()

    def _reply(self, effect: p.Reply) -> None:
        self._reply_all(p.Replies([effect]))

    def _reply_all(self, effect: p.Replies) -> None:
        joined: set[JoinedCall] = set()
        for request, response in effect.responses:
            if isinstance(request, tuple):
                call, position = request
                call.put(position, response)
                joined.add(call)
            elif isinstance(request, Call):
                request.set_response(response)
        for call in joined:
            call.flush()

    def _send(self, effect: p.Send) -> None:
        self.links.send(effect.to, pack(effect.message))

    def _use(self, effect: p.Configure) -> None:
        for space, (config, number) in configs_of(effect.config).items():
            self.store.use(config, space, number)
        self._orders.use(configs_of(effect.config))

    def _merge(self, effect: p.Merge) -> None:
        gradients = effect.gradients
        if missing := find_missing(gradients):
            self.run(self.core.merged(effect.part, effect.ticket, missing))
            return
        before, gradients = self._orders.split(effect.part, gradients)
        if all(isinstance(gradient, RowSparseGradient) for gradient in gradients):
            self._finish_merge(effect, add_gradients(gradients), before)
            return
        gradients = [
            gradient.dense() if isinstance(gradient, RowSparseGradient) else as_array(gradient)
            for gradient in gradients
        ]
        if self.store.is_small(gradients):
            self._finish_merge(effect, self.store.merge_now(gradients), before)
            return
        if not self._merging:  # more may follow in this turn of the loop: wake the threads once for all
            asyncio.get_running_loop().call_soon(self._start_merges)
        self._merging.append((effect, gradients, before))

    def _finish_merge(self, effect: p.Merge, total: object, before: Sequence[object]) -> None:
        merged = OrderedGradient(total, before) if before else total
        self.run(self.core.merged(effect.part, effect.ticket, merged))

    def _merge_all(self, effect: p.Merges) -> None:
        special = any(
            isinstance(gradient, (RowSparseGradient, MissingPush, OrderedGradient))
            for round_gradients in effect.gradients
            for gradient in round_gradients
        )
        if not special and not self._orders and self.store.are_small(effect.gradients):
            self.run(self.core.merged_all(effect.parts, effect.tickets, self.store.merge_all(effect.gradients)))
            return
        for part, ticket, gradients in zip(*effect, strict=True):
            self._merge(p.Merge(part, ticket, gradients))

    def _start_merges(self) -> None:
        """Start all waiting sums."""
        waiting, self._merging = self._merging, []
        self._start(self._merge_waiting(waiting), [effect for effect, _, _ in waiting])

    async def _merge_waiting(self, waiting: Sequence[tuple[p.Merge, list[Array], Sequence[Any]]]) -> None:
        merged = await self.store.merge([gradients for _, gradients, _ in waiting])
        for (effect, _, before), total in zip(waiting, merged, strict=True):
            self._finish_merge(effect, total, before)

    def _update(self, effect: p.Update) -> None:
        value = self._try_update(effect)
        if value is not None:
            self._finish_update(effect, value)

    def _try_update(self, effect: p.Update) -> Value | None:
        """Return the new value; None if it takes longer or fails: the state machine then gets the result separately."""
        try:
            value = self.store.update(effect.part.key, effect.value, effect.merged)
        except Exception as error:  # the optimizer may be user code
            self._fail(effect, error)
            return None
        if isinstance(value, Value):
            return value
        self._start(self._await_update(effect, value), [effect])
        return None

    def _update_all(self, effect: p.Updates) -> None:
        parts, tickets, values = effect.parts, effect.tickets, self.store.replace(effect.merged)
        if values is None:
            parts, tickets, values = [], [], []
            for part, ticket, value, merged in zip(*effect, strict=True):
                new_value = self._try_update(p.Update(part, ticket, value, merged))
                if new_value is not None:
                    parts.append(part)
                    tickets.append(ticket)
                    values.append(new_value)
        effects = self.core.updated_all(parts, tickets, values)
        for part in parts if self._captures else ():
            self._capture_now(part)
        self.run(effects)

    async def _await_update(self, effect: p.Update, update: Coroutine[Any, Any, Value]) -> None:
        self._finish_update(effect, await update)

    def _finish_update(self, effect: p.Update, value: Value) -> None:
        effects = self.core.updated(effect.part, effect.ticket, value)
        if self._captures:
            self._capture_now(effect.part)
        self.run(effects)

    def _fail(self, effect: p.Merge | p.Update, error: Exception) -> None:
        log.error("key %r cannot be updated", effect.part.key, exc_info=error)
        why = f"key {effect.part.key!r} could not be updated: {type(error).__name__}: {error}"
        self.run(self.core.failed(effect.part, effect.ticket, why))
        self._capture_now(effect.part)

    def _start(self, work: Coroutine[object, object, None], effects: Sequence[p.Merge | p.Update]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # the optimizer may be user code
                for effect in effects:
                    self._fail(effect, error)

        task = asyncio.create_task(guarded(), name=f"update of {effects[0].part.key!r}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def capture(self, part: p.Part) -> snapshot.Captured | None:
        """Return the record of a part, captured between two updates."""
        await asyncio.sleep(0)  # let other tasks run: many parts may have to be copied
        record = self.core.record(part)
        if record is not None:
            return snapshot.capture(record)
        waiting: asyncio.Future[snapshot.Captured | None] = asyncio.get_running_loop().create_future()
        self._captures.setdefault(part, []).append(waiting)
        return await waiting

    def _capture_now(self, part: p.Part) -> None:
        for waiting in self._captures.pop(part, []):
            if not waiting.done():
                record = self.core.record(part)
                broken = record is None or self.core.state.slots[part].error
                waiting.set_result(None if broken or record is None else snapshot.capture(record))


_CARRY_OUT: dict[type[p.Effect], Callable[[EffectRunner, Any], None]] = {
    p.Reply: EffectRunner._reply,
    p.Replies: EffectRunner._reply_all,
    p.Send: EffectRunner._send,
    p.Configure: EffectRunner._use,
    p.Merge: EffectRunner._merge,
    p.Merges: EffectRunner._merge_all,
    p.Update: EffectRunner._update,
    p.Updates: EffectRunner._update_all,
}
