"""Sends the items of all homes, and passes the answers to their operations."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from flowmx import settings
from flowmx.comm.errors import Refused
from flowmx.comm.frames import Message, Tensor
from flowmx.errors import KVStoreError
from flowmx.kvstore.shards import Key
from flowmx.kvstore.worker.groups import Group, one_or_all
from flowmx.kvstore.worker.outbox import Item, Outbox
from flowmx.kvstore.worker.servers import Servers
from flowmx.observability.flight import messages

__all__ = ["HOLD", "LOCAL", "UPLOADS", "Sender"]

UPLOADS = 2
"""Requests that are on their way to one server at a time: what is urgent then waits for no more than these. Requests
that wait for their answers do not count: a worker could otherwise wait for rounds of which it holds others up."""

LOCAL = 8
"""So many times the bytes go together where memory is shared: copying them takes that much less than sending them, and
a request costs the same."""

HOLD = 5e-4
"""Seconds that a request which could take more waits for it, where the server is at work for this worker already: a
request costs about as much as copying a megabyte."""


_SHOWN = 8
"""Keys of a request that are named to people."""


class Sender:
    """Belongs to one loop.

    Args:
        servers: whom to send to.
        acknowledged: of every part (key and piece) the highest number that was acknowledged; kept up to date.
    """

    def __init__(self, servers: Servers, acknowledged: dict[tuple[Key, int], int]) -> None:
        self._servers = servers
        self._acknowledged = acknowledged
        self._limit = settings.get().kvstore_reduce_bucket_size * 1024
        self._boxes: dict[int, Outbox] = {}
        self._uploads: Counter[int] = Counter()
        self._unanswered: Counter[int] = Counter()
        self._held: dict[int, asyncio.TimerHandle] = {}
        self._sending: dict[asyncio.Task[None], list[Item]] = {}
        self._filled: dict[int, None] = {}
        """Whose boxes were given something in this turn of the loop."""

    def put(self, items: Iterable[Item]) -> None:
        """Send items, in this turn of the loop or later."""
        for item in items:
            home = item.shard.home
            if home not in self._boxes:
                self._boxes[home] = Outbox(self._limit)
            self._boxes[home].put(item)
            if not self._filled:
                asyncio.get_running_loop().call_soon(self._pump_filled)
            self._filled[home] = None

    def under_way(self) -> list[Item]:
        """Items that are sent and not answered, oldest first; then those that wait."""
        sent = [item for items in self._sending.values() for item in items]
        return sent + [item for box in self._boxes.values() for item in box]

    def fail(self, error: BaseException) -> None:
        """Fail all items."""
        for box in self._boxes.values():
            while bundle := box.take():
                _fail(bundle, error)

    async def close(self) -> None:
        """Cancel the requests under way."""
        for timer in self._held.values():
            timer.cancel()
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _pump_filled(self) -> None:
        filled, self._filled = self._filled, {}
        for home in filled:
            self._pump(home)

    def _pump(self, home: int) -> None:
        """Send the requests that a server may get now."""
        box = self._boxes[home]
        box.limit = self._limit * (LOCAL if self._servers.is_local(home) else 1)
        while self._uploads[home] < UPLOADS and box:
            if not box.is_full and self._unanswered[home]:
                self._hold(home)
                break
            self._start(home, box.take())

    def _hold(self, home: int) -> None:
        """Delay the waiting items a little."""
        if home not in self._held:
            self._held[home] = asyncio.get_running_loop().call_later(HOLD, self._release, home)

    def _release(self, home: int) -> None:
        del self._held[home]
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

        def sent() -> None:
            if upload:
                self._uploads[upload.pop()] -= 1
                self._pump(home)

        try:
            with messages.exchange(f"server {home}", bundle[0].operation, **_described_for_people(bundle)):
                self._answer(bundle, await self._call(home, bundle, sent))
        except asyncio.CancelledError:
            _fail(bundle, KVStoreError("the store was closed before this was answered"))
            raise
        except Exception as error:
            _fail(bundle, _explained(bundle, error))
        finally:
            self._unanswered[home] -= 1
            sent()

    async def _call(self, home: int, bundle: list[Item], sent: Any) -> Message:
        if bundle[0].group is not None:
            return await self._call_group(bundle[0], bundle[0].group, sent)
        parts = [self._described(item) for item in bundle]
        tensors: list[Tensor] = [item.tensor for item in bundle if item.tensor is not None]
        into = None if bundle[0].operation == "push" else [_target(item) for item in bundle]
        return await self._servers.call(home, bundle[0].operation, {"parts": parts}, tensors, into, sent)

    async def _call_group(self, item: Item, group: Group, sent: Any) -> Message:
        """Send a group by its number; with its keys where the server does not know them under that."""
        tensors = [] if item.tensor is None else [item.tensor]
        into = None if item.target is None else [item.target]
        acknowledged = one_or_all([self._acknowledged.get((key, piece), 0) for key, piece, _ in group.parts])
        header: dict[str, Any] = {
            "joined": True,
            "group": group.number,
            "numbers": item.number,
            "acknowledged": acknowledged,
        }
        try:
            return await self._servers.call(group.home, item.operation, header, tensors, into, sent)
        except Refused as refused:
            if refused.kind != "unknown_group":
                raise
        header["parts"] = [list(part) for part in group.parts]
        return await self._servers.call(group.home, item.operation, header, tensors, into, sent)

    def _described(self, item: Item) -> list[Any]:
        key, piece, home, *_ = item.shard
        found = [key, piece, home, item.number, self._acknowledged.get((key, piece), 0)]
        return found if item.packing is None else [*found, dict(item.packing)]

    def _answer(self, bundle: list[Item], answer: Message) -> None:
        for item in bundle:
            if item.operation in ("push", "pushpull"):
                self._acknowledge(item)
            for exchange in item.exchanges:
                exchange.answered()

    def _acknowledge(self, item: Item) -> None:
        parts = [item.shard[:2]] if item.group is None else [(key, piece) for key, piece, _ in item.group.parts]
        numbers = itertools.repeat(item.number) if isinstance(item.number, int) else item.number
        for part, number in zip(parts, numbers):  # noqa: B905 (one number may stand for all)
            self._acknowledged[part] = max(self._acknowledged.get(part, 0), number)


def _described_for_people(bundle: list[Item]) -> dict[str, Any]:
    keys = [key for item in bundle for key in ([item.shard.key] if item.group is None else _keys_of(item.group))]
    shown = [str(key) for key in itertools.islice(dict.fromkeys(keys), _SHOWN)]
    received = sum(item.target.nbytes for item in bundle if item.target is not None)
    return {"keys": shown, "count": len(keys), "bytes": sum(item.nbytes for item in bundle) + received}


def _keys_of(group: Group) -> list[Key]:
    return [part[0] for part in group.parts]


def _target(item: Item) -> np.ndarray[Any, Any]:
    assert item.target is not None
    return item.target


def _fail(bundle: list[Item], error: BaseException) -> None:
    for item in bundle:
        for exchange in item.exchanges:
            exchange.end(error)


_ADVICE: Mapping[str, str] = {
    "not_counted": "this worker was taken for lost: start it again, so that it joins anew",
    "not_initialized": "it was lost: the servers that had it died together; start again from a checkpoint",
    "lost": "start again from a checkpoint",
}


def _explained(bundle: list[Item], error: Exception) -> Exception:
    """The error as the user's code sees it."""
    if not isinstance(error, Refused):
        return error
    keys = ", ".join(dict.fromkeys(repr(item.shard.key) for item in bundle[:5]))
    advice = _ADVICE.get(error.kind, "")
    text = f"{bundle[0].operation} of {keys}{' and more' if len(bundle) > 5 else ''} was refused: {error}"
    made = KVStoreError(f"{text} ({advice})" if advice and advice not in str(error) else text)
    made.__cause__ = error
    return made
