"""The sender of a worker's items to all homes; it delivers the responses to their operations."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from flowmx import settings
from flowmx.comm.errors import CommError, Refused, WireError
from flowmx.comm.frames import Message, Tensor
from flowmx.errors import KVStoreError
from flowmx.kvstore.shards import Key
from flowmx.kvstore.spaces import format_key
from flowmx.kvstore.worker.coalescing import Group, one_or_all
from flowmx.kvstore.worker.outbox import Item, Outbox
from flowmx.kvstore.worker.servers import Servers
from flowmx.observability.flight import messages
from flowmx.ops.registry.operators import Array

__all__ = ["HOLD_DELAY", "LOCAL_FACTOR", "UPLOADS", "Sender", "pushes_of"]

UPLOADS = 2
"""Maximum number of requests that are being sent to one server at a time: an urgent item waits only for these. Requests
that wait for responses do not count: otherwise a worker could wait for rounds that it blocks itself."""

LOCAL_FACTOR = 8
"""Multiplier of the bundle size where memory is shared with the server: copying is faster than sending by about this
factor, and the cost of a request is the same."""

HOLD_DELAY = 5e-4
"""Seconds to wait for more items before sending a request that is not full, while the server has unanswered requests
of this worker: a request costs about as much as copying a megabyte."""


SPLIT_AFTER = 2.0
"""Seconds after which the items of an unanswered request are sent again one by one."""

_MAX_KEYS = 8
"""Maximum number of keys of a request in flight reports."""


class Sender:
    """Sends the items of all homes. It belongs to one event loop.

    Args:
        servers: the servers.
        acknowledged: the highest acknowledged number of every part (key and piece); the sender updates it.
        name: returns the name of this worker, for messages.
    """

    def __init__(
        self, servers: Servers, acknowledged: dict[tuple[Key, int], int], name: Callable[[], str] = lambda: "a worker"
    ) -> None:  # fmt: skip
        self._servers = servers
        self._name = name
        self._failed: dict[tuple[Key, int], tuple[int, Exception]] = {}
        """The last failed push of each part, and its error: pulls of its value get the error."""
        self._acknowledged = acknowledged
        self._limit = settings.get().kvstore_reduce_bucket_size * 1024
        self._boxes: dict[int, Outbox] = {}
        self._uploads: Counter[int] = Counter()
        self._unanswered: Counter[int] = Counter()
        self._hold_timers: dict[int, asyncio.TimerHandle] = {}
        self._sending: dict[asyncio.Task[None], list[Item]] = {}
        self._filled_homes: dict[int, None] = {}
        """The homes whose outboxes got items in this turn of the loop."""

    def put(self, items: Iterable[Item]) -> None:
        """Queue items for sending."""
        for item in items:
            if self._failed and (failure := self._failure_of(item)):
                _fail([item], failure)
                continue
            home = item.shard.home
            if home not in self._boxes:
                self._boxes[home] = Outbox(self._limit)
            self._boxes[home].put(item)
            if not self._filled_homes:
                asyncio.get_running_loop().call_soon(self._pump_filled)
            self._filled_homes[home] = None

    def pending(self) -> list[Item]:
        """Return the items that are sent and unanswered, oldest first; then the waiting ones."""
        unanswered = [item for items in self._sending.values() for item in items]
        return unanswered + [item for box in self._boxes.values() for item in box]

    def fail(self, error: BaseException) -> None:
        """Fail all items."""
        for box in self._boxes.values():
            while bundle := box.take():
                _fail(bundle, error)

    async def close(self) -> None:
        """Cancel all requests."""
        for timer in self._hold_timers.values():
            timer.cancel()
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _pump_filled(self) -> None:
        homes, self._filled_homes = self._filled_homes, {}
        for home in homes:
            self._pump(home)

    def _pump(self, home: int) -> None:
        """Start the requests that may be sent to a server now."""
        box = self._boxes[home]
        box.limit = self._limit * (LOCAL_FACTOR if self._servers.is_local(home) else 1)
        while self._uploads[home] < UPLOADS and box:
            if not box.is_full and self._unanswered[home]:
                self._hold(home)
                break
            self._start(home, box.take())

    def _hold(self, home: int) -> None:
        """Delay the waiting items by HOLD_DELAY."""
        if home not in self._hold_timers:
            self._hold_timers[home] = asyncio.get_running_loop().call_later(HOLD_DELAY, self._release, home)

    def _release(self, home: int) -> None:
        del self._hold_timers[home]
        while self._uploads[home] < UPLOADS and (bundle := self._boxes[home].take()):
            self._start(home, bundle)

    def _start(self, home: int, bundle: list[Item]) -> None:
        self._uploads[home] += 1
        self._unanswered[home] += 1
        task = asyncio.get_running_loop().create_task(self._send(home, bundle))
        self._sending[task] = bundle
        task.add_done_callback(self._sending.pop)

    async def _send(self, home: int, bundle: list[Item]) -> None:
        upload = [home]

        def on_sent() -> None:
            if upload:
                self._uploads[upload.pop()] -= 1
                self._pump(home)

        try:
            with messages.exchange(f"server {home}", bundle[0].operation, **_summarize(bundle)):
                await self._exchange(home, bundle, on_sent)
        except asyncio.CancelledError:
            _fail(bundle, KVStoreError("the store was closed before this was answered"))
            raise
        except CommError as error:
            await self._handle_refusal(home, bundle, error)
        except Exception as error:  # it becomes the error of the operations
            _fail(bundle, _explain(bundle, error))
        finally:
            self._unanswered[home] -= 1
            on_sent()

    async def _call(self, home: int, bundle: list[Item], on_sent: Any) -> Message:
        if bundle[0].group is not None:
            return await self._call_group(bundle[0], bundle[0].group, on_sent)
        parts = [self._encode(item) for item in bundle]
        tensors: list[Tensor] = [item.tensor for item in bundle if item.tensor is not None]
        targets = None if bundle[0].operation == "push" else [_target(item) for item in bundle]
        return await self._servers.call(home, bundle[0].operation, {"parts": parts}, tensors, targets, on_sent)

    async def _exchange(self, home: int, bundle: list[Item], on_sent: Any) -> None:
        """Send items and handle the response; if it takes long, send several items again one by one.

        A request is answered when all of its parts are. If another worker pushes one of the parts only after it has
        seen a later push of another one, the joint response would never arrive.
        """
        if len(bundle) == 1:
            self._deliver(bundle, await self._call(home, bundle, on_sent))
            return
        try:
            async with asyncio.timeout(SPLIT_AFTER):
                response = await self._call(home, bundle, on_sent)
        except TimeoutError:
            on_sent()
            await asyncio.gather(*(self._send_alone(home, item) for item in bundle))
        else:
            self._deliver(bundle, response)

    # -- refused requests ------------------------------------------------------------------------------

    async def _handle_refusal(self, home: int, bundle: list[Item], error: CommError) -> None:
        """Handle a refused request: resend several items one by one, so that the others pass; fail a single item."""
        if len(bundle) > 1:
            await asyncio.gather(*(self._send_alone(home, item) for item in bundle))
            return
        user_error = _explain(bundle, error)
        _fail(bundle, user_error)
        if bundle[0].operation in ("push", "pushpull") and getattr(error, "kind", "") not in _FINAL:
            await self.abandon(home, pushes_of(bundle[0]), user_error)

    async def _send_alone(self, home: int, item: Item) -> None:
        try:
            self._deliver([item], await self._call(home, [item], lambda: None))
        except CommError as error:
            await self._handle_refusal(home, [item], error)
        except Exception as error:  # it becomes the error of the operation
            _fail([item], _explain([item], error))

    async def abandon(self, home: int, pushes: Sequence[tuple[Key, int, int]], error: Exception) -> None:
        """Report pushes that will not arrive to a server, so that no worker waits for their rounds.

        Args:
            home: the home of the parts.
            pushes: the key, piece and number of each push.
            error: the reason.
        """
        for key, piece, number in pushes:
            self._failed[key, piece] = number, error
        for item in [item for items in self._sending.values() for item in items]:
            if failure := self._failure_of(item):
                _fail([item], failure)
        parts = [[key, piece, home, number] for key, piece, number in pushes]
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, KVStoreError) else str(error)
        why = f"{self._name()} could not push key {format_key(pushes[0][0])}: {reason}"
        with suppress(CommError, KVStoreError):  # the server has ended, or does not know the key
            await self._servers.call(home, "give_up", {"parts": parts, "why": why[:1000]})

    def _failure_of(self, item: Item) -> Exception | None:
        """Return the error of the failed push whose value an item pulls, or None."""
        if item.operation not in ("pull", "row_sparse_pull"):
            return None
        for key, piece, number in pushes_of(item):
            failure = self._failed.get((key, piece))
            if failure is not None and failure[0] == number:
                return failure[1]
        return None

    async def _call_group(self, item: Item, group: Group, on_sent: Any) -> Message:
        """Send a group by its number; send its keys too if the server does not know the group."""
        tensors = [] if item.tensor is None else [item.tensor]
        targets = None if item.target is None else [item.target]
        acknowledged = one_or_all([self._acknowledged.get((key, piece), 0) for key, piece, _ in group.parts])
        header: dict[str, object] = {
            "joined": True,
            "group": group.number,
            "numbers": item.number,
            "acknowledged": acknowledged,
        }
        if item.before is not None:
            header["before"] = item.before
        try:
            return await self._servers.call(group.home, item.operation, header, tensors, targets, on_sent)
        except Refused as refused:
            if refused.kind != "unknown_group":
                raise
        header["parts"] = [list(part) for part in group.parts]
        return await self._servers.call(group.home, item.operation, header, tensors, targets, on_sent)

    def _encode(self, item: Item) -> list[Any]:
        key, piece, home, *_ = item.shard
        fields = [key, piece, home, item.number, self._acknowledged.get((key, piece), 0)]
        if item.packing is None and item.before is None:
            return fields
        packing = None if item.packing is None else dict(item.packing)
        return [*fields, packing] if item.before is None else [*fields, packing, item.before]

    def _deliver(self, bundle: list[Item], response: Message) -> None:
        for item in bundle:
            if item.operation in ("push", "pushpull"):
                self._acknowledge(item)
            for exchange in item.exchanges:
                exchange.count_responses()

    def _acknowledge(self, item: Item) -> None:
        parts = [item.shard[:2]] if item.group is None else [(key, piece) for key, piece, _ in item.group.parts]
        numbers = itertools.repeat(item.number) if isinstance(item.number, int) else item.number
        for part, number in zip(parts, numbers):  # noqa: B905 (one number may apply to all)
            self._acknowledged[part] = max(self._acknowledged.get(part, 0), number)


def _summarize(bundle: list[Item]) -> dict[str, object]:
    keys = [key for item in bundle for key in ([item.shard.key] if item.group is None else _keys_of(item.group))]
    names = [str(key) for key in itertools.islice(dict.fromkeys(keys), _MAX_KEYS)]
    response_bytes = sum(item.target.nbytes for item in bundle if item.target is not None)
    return {"keys": names, "count": len(keys), "bytes": sum(item.nbytes for item in bundle) + response_bytes}


def _keys_of(group: Group) -> list[Key]:
    return [part[0] for part in group.parts]


def pushes_of(item: Item) -> list[tuple[Key, int, int]]:
    """Return the key, piece and number of each part of an item."""
    if item.group is None:
        assert isinstance(item.number, int)
        return [(item.shard.key, item.shard.part, item.number)]
    numbers = [item.number] * len(item.group.parts) if isinstance(item.number, int) else item.number
    return [(key, piece, number) for (key, piece, _), number in zip(item.group.parts, numbers, strict=True)]


def _target(item: Item) -> Array:
    assert item.target is not None
    return item.target


def _fail(bundle: list[Item], error: BaseException) -> None:
    for item in bundle:
        for exchange in item.exchanges:
            exchange.end(error)


_FINAL = ("not_counted", "not_member", "not_initialized", "lost", "update_failed")
"""Kinds of refusals after which no worker waits for the push: there is no value, or this worker is not counted."""

_DECLARED_LOST = "this worker was declared lost: restart it, so that it joins again"
_ADVICE: Mapping[str, str] = {
    "not_counted": _DECLARED_LOST,
    "not_member": _DECLARED_LOST,
    "not_initialized": "if init was called, all servers that had the key were lost: restart from a checkpoint",
    "lost": "restart from a checkpoint",
}


def _explain(bundle: list[Item], error: Exception) -> Exception:
    """Convert an error to the exception for user code."""
    if not isinstance(error, Refused | WireError):
        return error
    keys = ", ".join(dict.fromkeys(format_key(item.shard.key) for item in bundle[:5]))
    advice = _ADVICE.get(error.kind, "")
    text = f"{bundle[0].operation} of {keys}{' and more' if len(bundle) > 5 else ''} was refused: {error}"
    user_error = KVStoreError(f"{text} ({advice})" if advice and advice not in str(error) else text)
    user_error.__cause__ = error
    return user_error
