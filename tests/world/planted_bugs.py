"""Bugs that flowmx has had, or could have, to put back one at a time: the world must find each of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from flowmx.comm.barriers import Barriers
from flowmx.kvstore.server.part_steps import Steps
from flowmx.kvstore.server.recovery import Recovery
from flowmx.kvstore.server.slot import Slot
from flowmx.kvstore.worker.session import Session

__all__ = ["BUGS", "planted"]


async def _wait_for_leader_alone(self: Session, task: asyncio.Task[None]) -> bool:
    await task
    return True


def _confirm_before_backup(self: Steps, slot: Slot) -> None:
    replicate(self, slot)
    slot.confirmed = True


replicate = Steps.replicate


def _fetch_nothing(self: Recovery, collecting: Any) -> None:
    collecting.fetching = set()


def _patch(owner: object, name: str, value: object) -> Callable[[], AbstractContextManager[object]]:
    return lambda: mock.patch.object(owner, name, value)


BUGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "d9583072c: nobody stands in for a leading worker that is lost before it sent values": _patch(
        Session, "_unless_leading", _wait_for_leader_alone
    ),
    "a push is answered before the backup has it": _patch(Steps, "replicate", _confirm_before_backup),
    "a round waits for a worker that is lost": _patch(Steps, "evict", lambda *_: None),
    "a new primary has an old copy": _patch(Recovery, "_fetch", _fetch_nothing),
    "nodes do not learn the rounds of barriers from each other": _patch(Barriers, "learn", lambda *_: False),
}
"""Patches, by what they break, with the commit that fixed it."""


@contextmanager
def planted(text: str) -> Iterator[None]:
    """Put back the bug whose description contains a text, or none if the text is empty.

    Raises:
        ValueError: not exactly one description contains it.
    """
    names = [name for name in BUGS if text in name] if text else []
    if text and len(names) != 1:
        raise ValueError(f"{text!r} is in {len(names)} descriptions, expected one of: " + "; ".join(BUGS))
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(BUGS[name]())
        yield
