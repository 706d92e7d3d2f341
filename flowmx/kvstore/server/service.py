"""A server of a distributed store: the service in front of the state machine.

Operations for workers: ``open`` (the consistency mode), ``init``, ``rest``, ``push``, ``give_up`` (a push that will not
arrive), ``pull``, ``pushpull``, ``row_sparse_pull``, ``set_optimizer``, ``save_states``, ``load_states``, ``stats``;
for servers: ``messages``. A request may have many parts; :mod:`flowmx.kvstore.server.requests` decodes the headers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from flowmx import settings
from flowmx.comm.errors import Refused, WireError
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.headers import take
from flowmx.comm.server import Caller, Service
from flowmx.comm.view import Role, View
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server import snapshot
from flowmx.kvstore.server.callers import Callers, identity, identity_of
from flowmx.kvstore.server.coalescing import Groups, JoinedRequest, Layout, compute_layout
from flowmx.kvstore.server.effects import EffectRunner
from flowmx.kvstore.server.fact_check import Facts, read_facts
from flowmx.kvstore.server.inheritance import Inheritance
from flowmx.kvstore.server.links import Connect, Links
from flowmx.kvstore.server.missing_push import MAX_REASON, MissingPush
from flowmx.kvstore.server.modes import Sync
from flowmx.kvstore.server.optimizers import check_optimizer
from flowmx.kvstore.server.pending_calls import Call, JoinedCall, Read, ResponseCounter
from flowmx.kvstore.server.requests import Item, decode_gradient, items_of, mode_of, ranges_of
from flowmx.kvstore.server.shared_windows import Windows
from flowmx.kvstore.server.slot import Slot
from flowmx.kvstore.server.state_machine import Core, Inherit
from flowmx.kvstore.server.store import OrderedGradient, States, Store, Value, ensure_writable, name_of
from flowmx.kvstore.server.wire import unpack
from flowmx.kvstore.shards import Range
from flowmx.kvstore.spaces import PLAIN
from flowmx.kvstore.versions import version

__all__ = ["OPERATIONS", "KVServer", "identity"]

OPERATIONS: Mapping[str, Role | None] = {
    "open": "worker", "set_optimizer": "worker", "init": "worker", "rest": "worker", "push": "worker",
    "pull": "worker", "pushpull": "worker", "row_sparse_pull": "worker", "save_states": "worker",
    "load_states": "worker", "give_up": "worker", "position": "worker", "window": "worker", "stats": None,
    "messages": "server",
}  # fmt: skip
"""The operations of a server, and the role that may call each; None for every authenticated client."""


Ask = Callable[[Call, Item], list[p.Effect]]
"""Passes the request for one part to the state machine."""

Response = Message | Awaitable[Message]
"""The response to a request, or an awaitable for it."""

Push = Callable[[p.Request, str, p.Part, int, Any, int], list[p.Effect]]
"""Passes a push to the state machine; the response is an acknowledgement or the value."""


class KVServer:
    """A server; it answers requests after the first call of :meth:`update_view`.

    Args:
        node: the name of its node in the job.
        incarnation: the number of this start of the node.
        servers: the number of servers of the job.
        service: the service to register its operations with.
        connect: a function that returns a peer for another server.
        store: computes sums and updates.

    Raises:
        ValueError: the service already has such operations.
    """

    def __init__(
        self, node: str, incarnation: int, servers: int, service: Service, connect: Connect, store: Store | None = None
    ) -> None:
        self.identity = identity(node, incarnation)
        self.servers = servers
        self.replicas = settings.get().kvstore_replicas
        self.core = Core(self.identity, Sync(), mode_of)
        self.store = store or Store()
        self.links = Links(connect, {"node": node, "incarnation": incarnation})
        self.callers = Callers()
        self.groups = Groups()
        self.facts = Facts()
        self.ranges: dict[p.Part, Range] = {}
        self.inheritance = Inheritance()
        self.windows = Windows(self.core.state.slots, self._may_read)
        self.effects = EffectRunner(self.core, self.store, self.links, self.windows)
        self.before_return: Callable[[], None] = lambda: None
        """Called before a worker that has rested counts again."""
        for name, role in OPERATIONS.items():
            handler = self.callers.restrict_to(role, getattr(self, f"_{name}"))
            service.operation(name, handler, borrow=name in ("push", "pushpull"))
        self._measure(service)

    # -- the job ---------------------------------------------------------------------------------------

    def update_view(self, view: View) -> None:
        """Use a new view of the job."""
        self.callers.update_view(view)
        servers: list[str | None] = [None] * self.servers
        addresses = {}
        for member in view.alive("server"):
            name = identity(member.id, member.incarnation)
            servers[member.rank] = name
            if name != self.identity:
                addresses[name] = member.address
        self.links.set_addresses(addresses)
        workers = frozenset(identity(member.id, member.incarnation) for member in view.alive("worker"))
        self.groups.keep_only(workers)
        self.windows.invalidate()
        self._update_facts(view)
        self.effects.run(self.core.view(p.View(view.epoch, tuple(servers), workers, self.replicas)))

    def _update_facts(self, view: View) -> None:
        """Set the nodes whose facts are compared, and add the facts of this server."""
        alive = (*view.alive("server"), *view.alive("worker"))
        names = {
            identity(member.id, member.incarnation): f"{member.role} {member.rank} on {member.host}" for member in alive
        }
        self.facts.set_nodes(names)
        if self.identity in names:
            self.facts.add(self.identity, version())

    async def save(self, path: str | os.PathLike[str]) -> None:
        """Write a snapshot.

        Raises:
            OSError: the file cannot be written.
        """
        rows = [(record, 1, span) for record, span in await self.capture_all()]
        await asyncio.to_thread(snapshot.save, path, rows, snapshot.Snapshot(common=self.core.recovery.common))

    async def capture_all(self) -> list[tuple[snapshot.Captured, Range | None]]:
        """Return the current records of all parts, each with its range within the key, if known."""
        parts = [part for part, slot in self.core.state.slots.items() if slot.number and not slot.error]
        captures = [(await self.effects.capture(part), self.ranges.get(part)) for part in parts]
        return [(record, span) for record, span in captures if record is not None]

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Restore a snapshot; call this before the first view.

        Raises:
            SnapshotError: the file is not a snapshot, or is damaged.
            OSError: the file cannot be read.
        """
        content = snapshot.load(path)
        self.restore_records(content.records, content.common)

    def restore_records(self, saved: Sequence[snapshot.SavedRecord], common: tuple[int, Any]) -> None:
        """Restore records and a configuration; call this before the first view."""
        for entry in saved:
            entry.record.value.array = np.array(entry.record.value.array)  # it may be a view of a file
            if entry.range is not None:
                self.ranges[entry.record.part] = entry.range
        self.effects.run(self.core.restore([entry.record for entry in saved], common))

    async def close(self) -> None:
        """Cancel running tasks, and close connections and threads."""
        await self.effects.close()
        self.windows.close()
        await self.links.close()
        self.store.close()

    # -- operations ------------------------------------------------------------------------------------

    async def _open(self, caller: Caller, message: Message) -> Message:
        header = take(
            message.header, {"mode": str}, {"max_staleness": int, "facts": dict, "hints": dict, "tensors": list}
        )
        facts, hints = read_facts(header, "facts"), read_facts(header, "hints")
        mode = [header["mode"], header.get("max_staleness")]
        mode_of({"mode": mode})  # raises if the mode is unknown
        await self._wait_for_recovery()
        config = self.core.recovery.common[1] or {}
        if config.get("mode") not in (None, mode):
            raise Refused(
                f"this job's store is {config['mode']}, not {mode}: all workers must create the same store", "invalid"
            )
        self.facts.add_equal(identity_of(caller), facts)
        response = await self._configure({**config, "mode": mode})
        differences = self.facts.differences(identity_of(caller), hints)
        self.facts.add(identity_of(caller), hints)
        return Message({**response.header, "differences": differences}, [])

    async def _set_optimizer(self, caller: Caller, message: Message) -> Message:
        """Set the optimizer; ignore requests that are not newer than the current one."""
        header = take(message.header, {"optimizer": (dict, type(None))}, {"order": list, "space": str, "tensors": list})
        if header["optimizer"] is not None:
            check_optimizer(header["optimizer"])
        order = header.get("order")
        if order is not None and [type(number) for number in order] != [int] * 3:
            raise Refused(f"an order is {order!r}, expected [number, incarnation, turn], three ints"[:200], "invalid")
        await self._wait_for_recovery()
        config = self.core.recovery.common[1] or {}
        space = header.get("space", PLAIN)
        old = config if space == PLAIN else config.get("spaces", {}).get(space, {})
        if order is not None and order <= old.get("order", []):
            return Message({"version": self.core.recovery.common[0]}, [])
        new = {"optimizer": header["optimizer"]} | ({} if order is None else {"order": order})
        if header["optimizer"] is not None:
            self.inheritance.check_optimizer(space, header["optimizer"]["optimizer"])
        if space != PLAIN:
            new = {"spaces": {**config.get("spaces", {}), space: new}}
        return await self._configure({**config, **new})

    async def _position(self, caller: Caller, message: Message) -> Message:
        """Record the furthest position in the job's data that a worker has reported, for workers that join later."""
        header = take(message.header, {}, {"position": list, "tensors": list})
        position, config = header.get("position"), self.core.recovery.common[1] or {}
        if position is not None and [type(number) for number in position] != [int] * 3:
            raise Refused(f"a position is {position!r}, expected [fit, epoch, step], three ints"[:200], "invalid")
        if position is not None and position > config.get("position", []):
            config = {**config, "position": position}
            await self._configure(config)
        return Message({"position": config.get("position", [])}, [])

    async def _init(self, caller: Caller, message: Message) -> Message:
        items = items_of(
            message, {"turn": int, "rank": int, "joined": int, "exists": bool, "ranges": list}, tensors=None
        )
        ranges = ranges_of(message, items)
        member = p.Member(_field(message, "rank"), _field(message, "joined"))
        if message.header.get("exists"):
            self.before_return()
            await self._wait_until_ready(_homes(items))
            self._check_existing(items)

        def enrol(call: Call, item: Item) -> list[p.Effect]:
            value = None if item.tensor is None else Value(item.tensor.array())
            inherit = None if message.header.get("exists") else self._inherit(item.part)
            return self.core.enrol(
                call, identity_of(caller), _field(message, "turn"), item.part, member, value, inherit
            )

        self.ranges.update(ranges)

        result = self._ask(items, enrol)
        response = result if isinstance(result, Message) else await result
        slots = [self.core.state.slots.get(item.part) for item in items]
        counts = [0 if slot is None else self.store.count(slot.part.key, slot.value) for slot in slots]
        return Message({**response.header, "counts": counts}, response.tensors)

    def _inherit(self, part: p.Part) -> Inherit | None:
        """Return a function that returns the state of a part in an earlier job; None without an earlier job."""
        span = self.ranges.get(part)
        if not self.inheritance:
            return None

        def claim() -> p.Record | p.Refused | None:
            try:
                return self.inheritance.claim(part, span)
            except snapshot.SnapshotError as error:
                return p.Refused("invalid", str(error))

        return claim

    def _rest(self, caller: Caller, message: Message) -> Response:
        items = items_of(message, {"turn": int}, tensors=False)
        turn = _field(message, "turn")
        return self._ask(items, lambda call, item: self.core.rest(call, identity_of(caller), turn, item.part))

    def _push(self, caller: Caller, message: Message) -> Response:
        if message.header.get("joined"):
            return self._push_joined(identity_of(caller), message, pulls=False)
        items = items_of(message, {"joined": bool})
        ask = partial(self._push_one, self.core.push, identity_of(caller))
        return self._when_ready(_homes(items), lambda: self._ask(items, ask))

    def _give_up(self, caller: Caller, message: Message) -> Response:
        """Handle pushes that will not arrive: their rounds end, and pulls are refused with the reason."""
        items = items_of(message, {"why": str}, tensors=False)
        missing = MissingPush(take(message.header, {"why": str}, {"parts": list})["why"][:MAX_REASON])
        worker = identity_of(caller)
        return self._ask(
            items, lambda call, item: self.core.push(call, worker, item.part, item.number, missing, item.acknowledged)
        )

    def _pull(self, caller: Caller, message: Message) -> Response:
        if message.header.get("joined"):
            return self._pull_joined(identity_of(caller), message)
        items = items_of(message, {"joined": bool}, tensors=False)
        return self._ask(items, partial(self._pull_one, identity_of(caller)))

    def _pushpull(self, caller: Caller, message: Message) -> Response:
        if message.header.get("joined"):
            return self._push_joined(identity_of(caller), message, pulls=True)
        items = items_of(message, {"joined": bool})
        ask = partial(self._push_one, self.core.pushpull, identity_of(caller))
        return self._when_ready(_homes(items), lambda: self._ask(items, ask))

    def _row_sparse_pull(self, caller: Caller, message: Message) -> Response:
        items = items_of(message)
        return self._ask(
            items,
            partial(self._pull_one, identity_of(caller)),
            lambda item: lambda value: Tensor.of(value.rows(_tensor(item).array())),
        )

    async def _window(self, caller: Caller, message: Message) -> Message:
        """Return the shared memory in which a process on this machine can read a value."""
        parts = [item.part for item in items_of(message, tensors=False)]
        slot = self.core.state.slots.get(parts[0]) if len(parts) == 1 else None
        if not caller.local or slot is None or not self._may_read(slot) or self.core.state.mode.name == "stale":
            raise Refused("the value has no window now", "no_window")
        if not self.store.has_optimizer(slot.part.key) and slot.round:
            raise Refused("without an optimizer each round replaces the value", "no_window")
        segment, generation = await self.windows.find(slot.part)
        window = [segment.descriptor, segment.inode, segment.size, generation]
        array = slot.value.array
        return Message({"window": window, "dtype": name_of(array.dtype), "shape": list(array.shape)}, [])

    def _may_read(self, slot: Slot) -> bool:
        """Return whether the value may be read now: a pull would be answered at once."""
        is_whole = slot.number > 0 and not slot.error and not slot.value.failure
        return slot.part.home in self.core.state.active and slot.step is None and is_whole

    def _save_states(self, caller: Caller, message: Message) -> Response:
        items = items_of(message, tensors=False)
        return self._ask(
            items,
            partial(self._pull_one, identity_of(caller)),
            lambda item: lambda value: Tensor.of(np.frombuffer(value.get_states(), np.uint8)),
        )

    def _load_states(self, caller: Caller, message: Message) -> Response:
        items, turn = items_of(message, {"turn": int}), _field(message, "turn")

        def load(call: Call, item: Item) -> list[p.Effect]:
            return self.core.load(call, identity_of(caller), turn, item.part, States(_tensor(item).bytes()).check())

        return self._ask(items, load)

    async def _stats(self, caller: Caller, message: Message) -> Message:
        state = self.core.state
        parts = [
            {"part": list(slot.part), "number": slot.number, "round": slot.round, "waits_for": slot.missing()}
            for slot in state.slots.values()
            if slot.part.home in state.active
        ]
        stats = {"epoch": state.epoch, "homes": sorted(state.active), "largest_lag": state.largest_lag, "parts": parts}
        return Message({**stats, "mode": state.mode.name}, [])

    async def _messages(self, caller: Caller, message: Message) -> Message:
        tensors = list(message.tensors)
        for entry in take(message.header, {"messages": list}, {"tensors": list, "shared": list})["messages"]:
            if not isinstance(entry, list) or len(entry) != 2 or type(entry[1]) is not int:
                raise WireError("a message between servers is [header, number of tensors]")
            header, count = entry
            self.effects.run(self.core.deliver(identity_of(caller), unpack(header, tensors[:count])))
            del tensors[:count]
        return Message({}, [])

    # -- parts of a request ----------------------------------------------------------------------------

    def _push_one(self, ask: Push, worker: str, call: Call, item: Item) -> list[p.Effect]:
        slot = self.core.state.slots.get(item.part)
        gradient = None
        if slot is not None and slot.value is not None:
            array = slot.value.array
            gradient = decode_gradient(item, array.shape, name_of(array.dtype))
            if not isinstance(self.core.state.mode, Sync):  # no sum is computed before the response
                gradient = ensure_writable(gradient)
        self._check_updates(item.part)
        if item.before:
            gradient = OrderedGradient(gradient, item.before)
        return ask(call, worker, item.part, item.number, gradient, item.acknowledged)

    def _pull_one(self, worker: str, call: Call, item: Item) -> list[p.Effect]:
        return self.core.pull(call, worker, item.part, item.number, item.acknowledged)

    def _check_updates(self, part: p.Part) -> None:
        if self.core.state.mode.name != "sync" and not self.store.has_optimizer(part.key):
            text = "without an optimizer each push would replace the value: call set_optimizer first, or use dist_sync"
            raise Refused(text, "invalid")

    def _when_ready(self, homes: Collection[int], then: Callable[[], Response]) -> Response:
        """Call `then` once this server has recovered the parts, so that it can check gradients against them."""
        if self._can_respond(homes):
            return then()

        async def respond_when_ready() -> Message:
            await self._wait_until_ready(homes)
            result = then()
            return result if isinstance(result, Message) else await result

        return respond_when_ready()

    async def _wait_for_recovery(self) -> None:
        """Wait until this server has recovered the configuration from the others."""
        await self._wait_until_ready(range(self.servers))

    async def _wait_until_ready(self, homes: Iterable[int]) -> None:
        while not self._can_respond(homes):
            await self.effects.notifier.next()

    def _can_respond(self, homes: Iterable[int]) -> bool:
        return all(map(self.core.can_respond, homes))

    def _check_existing(self, items: list[Item]) -> None:
        """Refuse requests for keys whose values were lost, instead of waiting for initial values."""
        state = self.core.state
        for part in (item.part for item in items):
            if part.home in state.active and (part not in state.slots or not state.slots[part].number):
                raise Refused(
                    f"key {part.key!r} (part {part.piece}) was lost: all servers that had it were lost; restart "
                    "from a checkpoint",
                    "lost",
                )

    async def _configure(self, config: Mapping[str, object]) -> Message:
        version, current = self.core.recovery.common
        if config != current:
            self.effects.run(self.core.configure(None, config))
            version = self.core.recovery.common[0]
        return Message({"version": version}, [])

    def _ask(self, items: list[Item], ask: Ask, read: Callable[[Item], Read] = lambda item: Value.content) -> Response:
        """Pass a request for each part to the state machine; return the joint response.

        Args:
            items: the parts of the request.
            ask: passes the request for one part.
            read: returns for a part the function that extracts the response from its value.

        Raises:
            Refused: one part was refused, at once or later. The requests for the other parts may or may not have
                taken effect; repeating them is safe.
        """
        responses = ResponseCounter(len(items))
        calls = [Call(responses, read(item)) for item in items]
        response = lambda: _response([call.response for call in calls])  # noqa: E731

        def end() -> None:
            for call, item in zip(calls, items, strict=True):
                if not call.done:
                    self.effects.run(self.core.cancel(call, item.part))

        def begin() -> None:
            for call, item in zip(calls, items, strict=True):
                self.effects.run(ask(call, item))

        return responses.make_calls(begin, response, end)

    # -- joined requests -------------------------------------------------------------------------------

    def _push_joined(self, worker: str, message: Message, pulls: bool) -> Response:
        joined = self.groups.read(worker, message, tensors=1)
        return self._with_layout(worker, joined, lambda layout: self._push_with_layout(worker, joined, layout, pulls))

    def _push_with_layout(self, worker: str, joined: JoinedRequest, layout: Layout, pulls: bool) -> Response:
        assert joined.tensor is not None
        gradients: list[object] = list(layout.slices(joined.tensor))
        for position, before in enumerate(joined.before):
            if before:
                gradients[position] = OrderedGradient(gradients[position], before)
        for part in joined.group.parts if not isinstance(self.core.state.mode, Sync) else ():
            self._check_updates(part)
        call = JoinedCall(layout, values=pulls)
        parts, numbers, acknowledged = joined.group.parts, joined.numbers, joined.acknowledged
        ask = partial(self.core.push_all, call.requests, worker, parts, numbers, gradients, acknowledged, pulls)
        return self._respond_jointly(call, joined, ask)

    def _pull_joined(self, worker: str, message: Message) -> Response:
        joined = self.groups.read(worker, message, tensors=0)
        return self._with_layout(worker, joined, lambda layout: self._pull_with_layout(worker, joined, layout))

    def _pull_with_layout(self, worker: str, joined: JoinedRequest, layout: Layout) -> Response:
        call = JoinedCall(layout, values=True)
        parts, numbers, acknowledged = joined.group.parts, joined.numbers, joined.acknowledged
        ask = partial(self.core.pull_all, call.requests, worker, parts, numbers, acknowledged)
        return self._respond_jointly(call, joined, ask)

    def _with_layout(self, worker: str, joined: JoinedRequest, then: Callable[[Layout], Response]) -> Response:
        """Call `then` with the layout of the values of a request's parts in one tensor.

        Raises:
            Refused: this server lacks parts, or they have different dtypes; at once or later.
        """
        group = joined.group
        if group.layout is not None and group.epoch == self.core.state.epoch and self._can_respond(group.homes):
            return then(group.layout)

        async def respond_when_ready() -> Message:
            response = then(await self._layout(worker, joined))
            return response if isinstance(response, Message) else await response

        return respond_when_ready()

    async def _layout(self, worker: str, joined: JoinedRequest) -> Layout:
        group, state = joined.group, self.core.state
        await self._wait_until_ready(group.homes)
        if group.layout is None or group.epoch != state.epoch:
            slots = [state.slots.get(part) for part in group.parts]
            missing = [position for position, slot in enumerate(slots) if slot is None or slot.value is None]
            items = [Item(group.parts[position], acknowledged=joined.acknowledged[position]) for position in missing]
            pull = self._ask(items, partial(self._pull_one, worker))  # if any are missing
            if not isinstance(pull, Message):
                await pull
            group.layout = compute_layout(group.parts, [slot.value.array for slot in slots if slot is not None])
            group.epoch = state.epoch
        return group.layout

    def _respond_jointly(self, call: JoinedCall, joined: JoinedRequest, ask: Callable[[], list[p.Effect]]) -> Response:
        def end() -> None:
            for position in call.unanswered():
                self.effects.run(self.core.cancel(call.requests[position], joined.group.parts[position]))

        return call.responses.make_calls(lambda: self.effects.run(ask()), call.response, end)

    def _measure(self, service: Service) -> None:
        state = self.core.state
        gauge = service.metrics.gauge
        gauge("flowmx_kvserver_parts", "Parts of keys on this server, including backups.").follow(
            lambda: len(state.slots)
        )
        gauge("flowmx_kvserver_updates", "Updates in the values of this server's parts.").follow(
            lambda: sum(slot.round for slot in state.slots.values() if slot.part.home in state.active)
        )
        gauge("flowmx_kvserver_largest_lag", "Maximum number of pushes that a worker was ahead of the slowest.").follow(
            lambda: state.largest_lag
        )


def _response(responses: list[Any]) -> Message:
    return Message(
        {"numbers": [number for number, _ in responses]}, [tensor for _, tensor in responses if tensor is not None]
    )


def _homes(items: Iterable[Item]) -> set[int]:
    return {item.part.home for item in items}


def _field(message: Message, name: str) -> int:
    value = message.header.get(name)
    if type(value) is not int or value < 0:
        raise Refused(f"the header's {name!r} is {value!r}, expected an int from 0", "invalid")
    return value


def _tensor(item: Item) -> Tensor:
    assert item.tensor is not None
    return item.tensor
