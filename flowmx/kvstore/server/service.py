"""A server of a distributed store: the state machine behind a service.

Operations for workers: ``open`` (the kind of consistency), ``init``, ``rest``, ``push``, ``pull``, ``pushpull``,
``row_sparse_pull``, ``set_optimizer``, ``save_states``, ``load_states``, ``stats``; for servers: ``messages``. Each
takes many parts at once; :mod:`flowmx.kvstore.server.requests` has their headers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from flowmx import settings
from flowmx.comm.errors import Refused, WireError
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.headers import take
from flowmx.comm.notifier import Notifier
from flowmx.comm.server import Caller, Service
from flowmx.comm.view import Role, View
from flowmx.kvstore.facts import version
from flowmx.kvstore.rows import ByRows, summed
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server import snapshot
from flowmx.kvstore.server.callers import Callers, identity
from flowmx.kvstore.server.calls import Answers, Call, JoinedCall, Read
from flowmx.kvstore.server.coalesced import Groups, Joined, Layout, lay_out
from flowmx.kvstore.server.core import Core
from flowmx.kvstore.server.facts import Facts, facts_of
from flowmx.kvstore.server.links import Connect, Links
from flowmx.kvstore.server.modes import Sync
from flowmx.kvstore.server.requests import Item, items_of, mode_of, uncompressed
from flowmx.kvstore.server.slot import Slot
from flowmx.kvstore.server.store import Array, States, Store, Value, as_array, check_optimizer, name_of, owned
from flowmx.kvstore.server.windows import Windows
from flowmx.kvstore.server.wire import pack, unpack

__all__ = ["OPERATIONS", "KVServer", "identity"]

log = logging.getLogger("flowmx.kvstore")

OPERATIONS: Mapping[str, Role | None] = {
    "open": "worker", "set_optimizer": "worker", "init": "worker", "rest": "worker", "push": "worker",
    "pull": "worker", "pushpull": "worker", "row_sparse_pull": "worker", "save_states": "worker",
    "load_states": "worker", "position": "worker", "window": "worker", "stats": None, "messages": "server",
}  # fmt: skip
"""The operations of a server, and the role of those who may call each; None is anybody whom the transport lets in."""


Ask = Callable[[Call, Item], list[p.Effect]]
"""Passes the request for one part to the state machine."""

Answer = Message | Awaitable[Message]
"""The answer to a request, or what comes to it."""

Push = Callable[[p.Request, str, p.Part, int, Any, int], list[p.Effect]]
"""Passes a push to the state machine, which answers with an acknowledgement or with the value."""


class KVServer:
    """A server; it answers once :meth:`know` was called with the first view.

    Args:
        node: its name in the job.
        incarnation: which start of the node this is.
        servers: how many servers the job has.
        service: where its operations go.
        connect: makes peers of the other servers.
        store: keeps the values.

    Raises:
        ValueError: the service has such operations already.
    """

    def __init__(
        self, node: str, incarnation: int, servers: int, service: Service, connect: Connect, store: Store | None = None
    ) -> None:
        self.me = identity(node, incarnation)
        self.servers = servers
        self.replicas = settings.get().kvstore_replicas
        self.core = Core(self.me, Sync(), mode_of)
        self.store = store or Store()
        self.links = Links(connect, {"node": node, "incarnation": incarnation})
        self._notifier = Notifier()
        self._effects: deque[p.Effect] = deque()
        self._carrying_out = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._merging: list[tuple[p.Merge, list[Array]]] = []
        self._captures: dict[p.Part, list[asyncio.Future[snapshot.Captured | None]]] = {}
        self.callers = Callers()
        self.groups = Groups()
        self.facts = Facts()
        self.windows = Windows(self.core.state.slots, self._may_read)
        for name, role in OPERATIONS.items():
            handler = self.callers.only(role, getattr(self, f"_{name}"))
            service.operation(name, handler, borrow=name in ("push", "pushpull"))
        self._measure(service)

    # -- the job ---------------------------------------------------------------------------------------

    def know(self, view: View) -> None:
        """Take a view of the job."""
        self.callers.know(view)
        servers: list[str | None] = [None] * self.servers
        addresses = {}
        for member in view.alive("server"):
            name = identity(member.id, member.incarnation)
            servers[member.rank] = name
            if name != self.me:
                addresses[name] = member.address
        self.links.know(addresses)
        workers = frozenset(identity(member.id, member.incarnation) for member in view.alive("worker"))
        self.groups.keep(workers)
        self.windows.forget()
        self._compare(view)
        self._do(self.core.view(p.View(view.epoch, tuple(servers), workers, self.replicas)))

    def _compare(self, view: View) -> None:
        """Compare the facts of a view's nodes with each other and with this server's."""
        alive = (*view.alive("server"), *view.alive("worker"))
        names = {identity(each.id, each.incarnation): f"{each.role} {each.rank} on {each.host}" for each in alive}
        self.facts.know(names)
        if self.me in names:
            self.facts.note(self.me, version())

    async def save(self, path: str | os.PathLike[str]) -> None:
        """Write a snapshot.

        Raises:
            OSError: the file can not be written.
        """
        parts = [part for part, slot in self.core.state.slots.items() if slot.number and not slot.error]
        captured = [await self._capture(part) for part in parts]
        found = [record for record in captured if record is not None]
        common = self.core.recovery.common
        await asyncio.get_running_loop().run_in_executor(None, snapshot.save, path, found, common)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Begin with a snapshot; before the first view.

        Raises:
            SnapshotError: the file is none, or damaged.
            OSError: it can not be read.
        """
        found = snapshot.load(path)
        self._do(self.core.restore(found.records, found.common))

    async def close(self) -> None:
        """Cancel running tasks, and close connections and threads."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.windows.close()
        await self.links.close()
        self.store.close()

    # -- operations ------------------------------------------------------------------------------------

    async def _open(self, caller: Caller, message: Message) -> Message:
        header = take(
            message.header, {"mode": str}, {"max_staleness": int, "facts": dict, "hints": dict, "tensors": list}
        )
        facts, hints = facts_of(header, "facts"), facts_of(header, "hints")
        wanted = [header["mode"], header.get("max_staleness")]
        mode_of({"mode": wanted})  # raises where there is none
        await self._recovered()
        config = self.core.recovery.common[1] or {}
        if config.get("mode") not in (None, wanted):
            raise Refused(f"this job's store is {config['mode']}, not {wanted}: all workers create the same", "invalid")
        self.facts.say(_worker(caller), facts)
        answer = await self._configure({**config, "mode": wanted})
        differences = self.facts.differences(_worker(caller), hints)
        self.facts.note(_worker(caller), hints)
        return Message({**answer.header, "differences": differences}, [])

    async def _set_optimizer(self, caller: Caller, message: Message) -> Message:
        """Update by an optimizer from now on; an older order than one that came before changes nothing."""
        header = take(message.header, {"optimizer": (dict, type(None))}, {"order": list, "tensors": list})
        if header["optimizer"] is not None:
            check_optimizer(header["optimizer"])
        order = header.get("order")
        if order is not None and [type(each) for each in order] != [int] * 3:
            raise Refused(f"an order is [number, incarnation, turn], three ints, not {order!r}"[:200], "invalid")
        await self._recovered()
        config = self.core.recovery.common[1] or {}
        if order is not None and order <= config.get("order", []):
            return Message({"version": self.core.recovery.common[0]}, [])
        more = {} if order is None else {"order": order}
        return await self._configure({**config, "optimizer": header["optimizer"], **more})

    async def _position(self, caller: Caller, message: Message) -> Message:
        """Keep the furthest position in the job's data that a worker has reported, for workers that join later."""
        header = take(message.header, {}, {"position": list, "tensors": list})
        given, config = header.get("position"), self.core.recovery.common[1] or {}
        if given is not None and [type(each) for each in given] != [int] * 3:
            raise Refused(f"a position is [fit, epoch, step], three ints, not {given!r}"[:200], "invalid")
        if given is not None and given > config.get("position", []):
            config = {**config, "position": given}
            await self._configure(config)
        return Message({"position": config.get("position", [])}, [])

    async def _init(self, caller: Caller, message: Message) -> Message:
        items = items_of(message, {"turn": int, "rank": int, "joined": int, "exists": bool}, tensors=None)
        member = p.Member(_field(message, "rank"), _field(message, "joined"))
        if message.header.get("exists"):
            await self._settle(_homes(items))
            self._check_exist(items)

        def enrol(call: Call, item: Item) -> list[p.Effect]:
            value = None if item.tensor is None else Value(item.tensor.array())
            return self.core.enrol(call, _worker(caller), _field(message, "turn"), item.part, member, value)

        found = self._ask(items, enrol)
        return found if isinstance(found, Message) else await found

    def _rest(self, caller: Caller, message: Message) -> Answer:
        items = items_of(message, {"turn": int}, tensors=False)
        turn = _field(message, "turn")
        return self._ask(items, lambda call, item: self.core.rest(call, _worker(caller), turn, item.part))

    def _push(self, caller: Caller, message: Message) -> Answer:
        if message.header.get("joined"):
            return self._push_joined(_worker(caller), message, pulls=False)
        items = items_of(message, {"joined": bool})
        ask = partial(self._push_one, self.core.push, _worker(caller))
        return self._once_settled(_homes(items), lambda: self._ask(items, ask))

    def _pull(self, caller: Caller, message: Message) -> Answer:
        if message.header.get("joined"):
            return self._pull_joined(_worker(caller), message)
        items = items_of(message, {"joined": bool}, tensors=False)
        return self._ask(items, partial(self._pull_one, _worker(caller)))

    def _pushpull(self, caller: Caller, message: Message) -> Answer:
        if message.header.get("joined"):
            return self._push_joined(_worker(caller), message, pulls=True)
        items = items_of(message, {"joined": bool})
        ask = partial(self._push_one, self.core.pushpull, _worker(caller))
        return self._once_settled(_homes(items), lambda: self._ask(items, ask))

    def _row_sparse_pull(self, caller: Caller, message: Message) -> Answer:
        items = items_of(message)
        return self._ask(
            items,
            partial(self._pull_one, _worker(caller)),
            lambda item: lambda value: Tensor.of(value.rows(_tensor(item).array())),
        )

    async def _window(self, caller: Caller, message: Message) -> Message:
        """Tell where a process of this machine may read a value for itself."""
        parts = [item.part for item in items_of(message, tensors=False)]
        slot = self.core.state.slots.get(parts[0]) if len(parts) == 1 else None
        if not caller.local or slot is None or not self._may_read(slot) or self.core.state.mode.name == "stale":
            raise Refused("there is no window to this value now", "no_window")
        if not self.store.updates and slot.round:
            raise Refused("without an optimizer the value is another one after each round", "no_window")
        segment, generation = await self.windows.find(slot.part)
        found = [segment.descriptor, segment.inode, segment.size, generation]
        array = slot.value.array
        return Message({"window": found, "dtype": name_of(array.dtype), "shape": list(array.shape)}, [])

    def _may_read(self, slot: Slot) -> bool:
        """Tell whether the value may be read as it is: a pull would be answered at once."""
        return slot.part.home in self.core.state.active and slot.step is None and slot.number > 0 and not slot.error

    def _save_states(self, caller: Caller, message: Message) -> Answer:
        items = items_of(message, tensors=False)
        return self._ask(
            items,
            partial(self._pull_one, _worker(caller)),
            lambda item: lambda value: Tensor.of(np.frombuffer(value.get_states(), np.uint8)),
        )

    def _load_states(self, caller: Caller, message: Message) -> Answer:
        items, turn = items_of(message, {"turn": int}), _field(message, "turn")

        def load(call: Call, item: Item) -> list[p.Effect]:
            return self.core.load(call, _worker(caller), turn, item.part, States(_tensor(item).bytes()).check())

        return self._ask(items, load)

    async def _stats(self, caller: Caller, message: Message) -> Message:
        state = self.core.state
        parts = [
            {"part": list(slot.part), "number": slot.number, "round": slot.round, "waits_for": slot.missing()}
            for slot in state.slots.values()
            if slot.part.home in state.active
        ]
        found = {"epoch": state.epoch, "homes": sorted(state.active), "largest_lag": state.largest_lag, "parts": parts}
        return Message({**found, "mode": state.mode.name}, [])

    async def _messages(self, caller: Caller, message: Message) -> Message:
        left = list(message.tensors)
        for entry in take(message.header, {"messages": list}, {"tensors": list, "shared": list})["messages"]:
            if not isinstance(entry, list) or len(entry) != 2 or type(entry[1]) is not int:
                raise WireError("a message between servers is [header, number of tensors]")
            header, count = entry
            self._do(self.core.deliver(_worker(caller), unpack(header, left[:count])))
            del left[:count]
        return Message({}, [])

    # -- parts of a request ----------------------------------------------------------------------------

    def _push_one(self, ask: Push, worker: str, call: Call, item: Item) -> list[p.Effect]:
        slot = self.core.state.slots.get(item.part)
        gradient = None
        if slot is not None and slot.value is not None:
            array = slot.value.array
            gradient = uncompressed(item, array.shape, name_of(array.dtype))
            if not isinstance(self.core.state.mode, Sync):  # where no sum takes its place before the answer
                gradient = owned(gradient)
        self._check_updates()
        return ask(call, worker, item.part, item.number, gradient, item.acknowledged)

    def _pull_one(self, worker: str, call: Call, item: Item) -> list[p.Effect]:
        return self.core.pull(call, worker, item.part, item.number, item.acknowledged)

    def _check_updates(self) -> None:
        if self.core.state.mode.name != "sync" and not self.store.updates:
            text = "without an optimizer each push would replace the value: call set_optimizer first, or use dist_sync"
            raise Refused(text, "invalid")

    def _once_settled(self, homes: Collection[int], then: Callable[[], Answer]) -> Answer:
        """Go on once this server knows what it has of the parts, so that gradients can be compared with it."""
        if self._are_settled(homes):
            return then()

        async def later() -> Message:
            await self._settle(homes)
            found = then()
            return found if isinstance(found, Message) else await found

        return later()

    async def _recovered(self) -> None:
        """Wait until this server knows the others' configuration."""
        await self._settle(range(self.servers))

    async def _settle(self, homes: Iterable[int]) -> None:
        while not self._are_settled(homes):
            await self._notifier.next()

    def _are_settled(self, homes: Iterable[int]) -> bool:
        return all(map(self.core.is_settled, homes))

    def _check_exist(self, items: list[Item]) -> None:
        """Refuse to wait for first values of keys that had theirs."""
        state = self.core.state
        for part in (item.part for item in items):
            if part.home in state.active and (part not in state.slots or not state.slots[part].number):
                raise Refused(
                    f"key {part.key!r} (part {part.piece}) was lost: the servers that had it died together; start "
                    "again from a checkpoint",
                    "lost",
                )

    async def _configure(self, config: dict[str, Any]) -> Message:
        version, current = self.core.recovery.common
        if config != current:
            self._do(self.core.configure(None, config))
            version = self.core.recovery.common[0]
        return Message({"version": version}, [])

    def _ask(self, items: list[Item], ask: Ask, read: Callable[[Item], Read] = lambda item: Value.lease) -> Answer:
        """Pass a request for each part to the state machine; the answer is there when all answers are.

        Args:
            items: what the request says of the parts.
            ask: puts the question.
            read: for a part, what is taken of its value as the answer.

        Raises:
            Refused: one of them is a refusal, at once or later. What else was asked for may be done or not: who asks
                again is recognised.
        """
        answers = Answers(len(items))
        calls = [Call(answers, read(item)) for item in items]
        answer = lambda: _answer([call.answer for call in calls])  # noqa: E731

        def end() -> None:
            for call, item in zip(calls, items, strict=True):
                if not call.done:
                    self._do(self.core.cancel(call, item.part))

        def begin() -> None:
            for call, item in zip(calls, items, strict=True):
                self._do(ask(call, item))

        return answers.give(begin, answer, end)

    # -- joined requests -------------------------------------------------------------------------------

    def _push_joined(self, worker: str, message: Message, pulls: bool) -> Answer:
        found = self.groups.read(worker, message, tensors=1)
        return self._with_layout(worker, found, lambda layout: self._push_laid_out(worker, found, layout, pulls))

    def _push_laid_out(self, worker: str, found: Joined, layout: Layout, pulls: bool) -> Answer:
        assert found.tensor is not None
        gradients = layout.slices(found.tensor)
        self._check_updates()
        call = JoinedCall(layout, values=pulls)
        parts, numbers, acknowledged = found.group.parts, found.numbers, found.acknowledged
        ask = partial(self.core.push_all, call.requests, worker, parts, numbers, gradients, acknowledged, pulls)
        return self._answer_joined(call, found, ask)

    def _pull_joined(self, worker: str, message: Message) -> Answer:
        found = self.groups.read(worker, message, tensors=0)
        return self._with_layout(worker, found, lambda layout: self._pull_laid_out(worker, found, layout))

    def _pull_laid_out(self, worker: str, found: Joined, layout: Layout) -> Answer:
        call = JoinedCall(layout, values=True)
        parts, numbers, acknowledged = found.group.parts, found.numbers, found.acknowledged
        ask = partial(self.core.pull_all, call.requests, worker, parts, numbers, acknowledged)
        return self._answer_joined(call, found, ask)

    def _with_layout(self, worker: str, found: Joined, then: Callable[[Layout], Answer]) -> Answer:
        """Go on with the layout of the values of a request's parts in one tensor.

        Raises:
            Refused: this server does not have them all, or they are of more than one dtype; at once or later.
        """
        group = found.group
        if group.layout is not None and group.epoch == self.core.state.epoch and self._are_settled(group.homes):
            return then(group.layout)

        async def later() -> Message:
            answer = then(await self._layout(worker, found))
            return answer if isinstance(answer, Message) else await answer

        return later()

    async def _layout(self, worker: str, found: Joined) -> Layout:
        group, state = found.group, self.core.state
        await self._settle(group.homes)
        if group.layout is None or group.epoch != state.epoch:
            slots = [state.slots.get(part) for part in group.parts]
            missing = [i for i, slot in enumerate(slots) if slot is None or slot.value is None]
            items = [Item(group.parts[i], acknowledged=found.acknowledged[i]) for i in missing]
            refused = self._ask(items, partial(self._pull_one, worker))  # if there are any
            if not isinstance(refused, Message):
                await refused
            group.layout = lay_out(group.parts, [slot.value.array for slot in slots if slot is not None])
            group.epoch = state.epoch
        return group.layout

    def _answer_joined(self, call: JoinedCall, found: Joined, ask: Callable[[], list[p.Effect]]) -> Answer:
        def end() -> None:
            for position in call.open():
                self._do(self.core.cancel(call.requests[position], found.group.parts[position]))

        return call.answers.give(lambda: self._do(ask()), call.answer, end)

    # -- effects ---------------------------------------------------------------------------------------

    def _do(self, effects: Iterable[p.Effect]) -> None:
        """Carry effects out in their order, and those that follow from them."""
        self._effects.extend(effects)
        self.windows.settle()
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self._effects:
                effect = self._effects.popleft()
                _CARRY_OUT[type(effect)](self, effect)
        finally:
            self._carrying_out = False
        self._notifier.notify()

    def _reply(self, effect: p.Reply) -> None:
        self._reply_all(p.Replies([effect]))

    def _reply_all(self, effect: p.Replies) -> None:
        joined: set[JoinedCall] = set()
        for request, answer in effect.answers:
            if isinstance(request, tuple):
                call, position = request
                call.put(position, answer)
                joined.add(call)
            elif isinstance(request, Call):
                request.take(answer)
        for call in joined:
            call.flush()

    def _send(self, effect: p.Send) -> None:
        self.links.send(effect.to, pack(effect.message))

    def _use(self, effect: p.Configure) -> None:
        self.store.use((effect.config or {}).get("optimizer"))

    def _merge(self, effect: p.Merge) -> None:
        gradients = effect.gradients
        if all(isinstance(each, ByRows) for each in gradients):
            self._do(self.core.merged(effect.part, effect.ticket, summed(gradients)))
            return
        gradients = [each.dense() if isinstance(each, ByRows) else as_array(each) for each in gradients]
        if self.store.is_small(gradients):
            merged = self.store.merge_now(gradients)
            self._do(self.core.merged(effect.part, effect.ticket, merged))
            return
        if not self._merging:  # in this turn of the loop there may come more, and fewer hops to threads do for them all
            asyncio.get_running_loop().call_soon(self._merge_together)
        self._merging.append((effect, gradients))

    def _merge_all(self, effect: p.Merges) -> None:
        by_rows = any(isinstance(each, ByRows) for found in effect.gradients for each in found)
        if not by_rows and self.store.are_small(effect.gradients):
            self._do(self.core.merged_all(effect.parts, effect.tickets, self.store.merge_all(effect.gradients)))
            return
        for part, ticket, gradients in zip(*effect, strict=True):
            self._merge(p.Merge(part, ticket, gradients))

    def _merge_together(self) -> None:
        """Begin the sums that wait."""
        waiting, self._merging = self._merging, []
        self._start(self._merge_waiting(waiting), [effect for effect, _ in waiting])

    async def _merge_waiting(self, waiting: Sequence[tuple[p.Merge, list[Array]]]) -> None:
        merged = await self.store.merge([gradients for _, gradients in waiting])
        for (effect, _), total in zip(waiting, merged, strict=True):
            self._do(self.core.merged(effect.part, effect.ticket, total))

    def _update(self, effect: p.Update) -> None:
        found = self._update_soon(effect)
        if found is not None:
            self._updated(effect, found)

    def _update_soon(self, effect: p.Update) -> Value | None:
        """The new value; None where it takes longer or fails: the state machine then gets the result separately."""
        try:
            found = self.store.update(effect.part.key, effect.value, effect.merged)
        except Exception as error:
            self._fail(effect, error)
            return None
        if isinstance(found, Value):
            return found
        self._start(self._update_in_task(effect, found), [effect])
        return None

    def _update_all(self, effect: p.Updates) -> None:
        parts, tickets, values = effect.parts, effect.tickets, self.store.replace(effect.merged)
        if values is None:
            parts, tickets, values = [], [], []
            for part, ticket, value, merged in zip(*effect, strict=True):
                found = self._update_soon(p.Update(part, ticket, value, merged))
                if found is not None:
                    parts.append(part)
                    tickets.append(ticket)
                    values.append(found)
        effects = self.core.updated_all(parts, tickets, values)
        for part in parts if self._captures else ():
            self._capture_now(part)
        self._do(effects)

    async def _update_in_task(self, effect: p.Update, update: Coroutine[Any, Any, Value]) -> None:
        self._updated(effect, await update)

    def _updated(self, effect: p.Update, value: Value) -> None:
        effects = self.core.updated(effect.part, effect.ticket, value)
        if self._captures:
            self._capture_now(effect.part)
        self._do(effects)

    def _fail(self, effect: p.Merge | p.Update, error: Exception) -> None:
        log.error("key %r can not be updated", effect.part.key, exc_info=error)
        why = f"key {effect.part.key!r} could not be updated: {type(error).__name__}: {error}"
        self._do(self.core.failed(effect.part, effect.ticket, why))
        self._capture_now(effect.part)

    def _start(self, work: Coroutine[Any, Any, None], effects: Sequence[p.Merge | p.Update]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                for effect in effects:
                    self._fail(effect, error)

        task = asyncio.create_task(guarded(), name=f"update of {effects[0].part.key!r}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- snapshots -------------------------------------------------------------------------------------

    async def _capture(self, part: p.Part) -> snapshot.Captured | None:
        """The record of a part, taken between two updates."""
        await asyncio.sleep(0)  # others may have a turn: there may be many parts, with much to copy
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

    def _measure(self, service: Service) -> None:
        state = self.core.state
        gauge = service.metrics.gauge
        gauge("flowmx_kvserver_parts", "Parts of keys on this server, copies of others' included.").follow(
            lambda: len(state.slots)
        )
        gauge("flowmx_kvserver_updates", "Updates in the values of this server's parts.").follow(
            lambda: sum(slot.round for slot in state.slots.values() if slot.part.home in state.active)
        )
        gauge("flowmx_kvserver_largest_lag", "Most pushes that a worker was ahead of the slowest.").follow(
            lambda: state.largest_lag
        )


_CARRY_OUT: dict[type[p.Effect], Callable[[KVServer, Any], None]] = {
    p.Reply: KVServer._reply,
    p.Replies: KVServer._reply_all,
    p.Send: KVServer._send,
    p.Configure: KVServer._use,
    p.Merge: KVServer._merge,
    p.Merges: KVServer._merge_all,
    p.Update: KVServer._update,
    p.Updates: KVServer._update_all,
}


def _answer(answers: list[Any]) -> Message:
    return Message({"numbers": [number for number, _ in answers]}, [found for _, found in answers if found is not None])


def _homes(items: Iterable[Item]) -> set[int]:
    return {item.part.home for item in items}


def _worker(caller: Caller) -> str:
    if not caller.node:
        raise Refused("a request must name its node: the header's 'node', with its 'incarnation'", "invalid")
    return identity(caller.node, caller.incarnation)


def _field(message: Message, name: str) -> int:
    found = message.header.get(name)
    if type(found) is not int or found < 0:
        raise Refused(f"the header's {name!r} is {found!r}, expected an int from 0", "invalid")
    return found


def _tensor(item: Item) -> Tensor:
    assert item.tensor is not None
    return item.tensor
