"""The processes of a job on one page: a row for each, and the whole dashboard of the one that is looked at.

Each process has a dashboard of its own; the page's process asks those for their frames while somebody looks, and passes
on what they say. Browsers talk to the page's process alone, so that what guards a dashboard guards this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
from aiohttp import web

__all__ = ["Job", "Member", "announced", "announcement"]

EVERY = 0.5
"""Seconds between rows."""
AGAIN = 1.0
"""Seconds until a process that does not answer is asked again."""
LATE = 5.0
"""Seconds of silence after which a process counts as not answering."""
LARGEST = 1 << 26
"""Bytes of a frame."""
SHOWN = ("operations", "steps", "samples", "resident", "lag")


_ANNOUNCED = re.compile(r"flowmx: the dashboard of process \d+ is at (http://\S+)")


def announcement(process: int, address: str) -> str:
    """The line in which a process says where its dashboard is."""
    return f"flowmx: the dashboard of process {process} is at {address}\n"


def announced(line: str) -> str | None:
    """The address of a dashboard that a line of output announces."""
    found = _ANNOUNCED.fullmatch(line.strip())
    return found[1] if found else None


class Member:
    """A process of the job, as far as the page knows it. Belongs to the event loop of the page.

    Args:
        name: in the job, such as ``worker 0``.
        address: of its dashboard, with ``?token=SECRET`` where that has one.

    Raises:
        ValueError: that is no address of a dashboard.
    """

    def __init__(self, name: str, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the dashboard of {name} is at {address!r}, expected http://host:port/")
        self.name = name
        self.url = parts._replace(query="", fragment="").geturl().rstrip("/") + "/"
        token = parse_qs(parts.query).get("token", [""])[0]
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._heard = -LATE
        self._why = ""
        self._values: dict[str, float] = {}
        self._warnings: list[Mapping[str, Any]] = []

    async def follow(self, session: aiohttp.ClientSession) -> None:
        """Keep what it says, for as long as this is not cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async for text in self.frames(session):
                    self._take(json.loads(text))
                    self._heard = loop.time()
                self._why = "its dashboard has ended"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                self._why = str(error) or type(error).__name__
            await asyncio.sleep(AGAIN)

    async def feed(self) -> AsyncGenerator[bytes]:
        """The frames of its feed for one viewer; ends where it does not answer."""
        with contextlib.suppress(aiohttp.ClientError, OSError, ValueError):
            async with aiohttp.ClientSession() as session:
                async for text in self.frames(session):
                    yield text

    async def frames(self, session: aiohttp.ClientSession) -> AsyncGenerator[bytes]:
        """The frames of its feed, as they come: first all, then what is new.

        Raises:
            ClientError, OSError: it can not be reached.
            ValueError: what answers there is no dashboard.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=LATE)
        async with session.get(self.url + "events", headers=self._headers, timeout=timeout) as answer:
            if answer.status != 200 or answer.content_type != "text/event-stream":
                raise ValueError(f"it answered {answer.status} {answer.reason}, expected the feed of a dashboard")
            left = b""
            async for piece in answer.content.iter_any():
                *whole, left = (left + piece).split(b"\n\n")
                if len(left) > LARGEST:
                    raise ValueError(f"a frame is larger than {LARGEST} bytes")
                for each in whole:
                    if each.startswith(b"data: "):
                        yield each.removeprefix(b"data: ")

    def row(self) -> dict[str, Any]:
        """Its row: whether it answers, its newest values, and how many warnings it has."""
        is_live = asyncio.get_running_loop().time() - self._heard < LATE
        present = [each for each in self._warnings if each.get("present")]
        return {
            "name": self.name, "url": self.url, "live": is_live, "why": "" if is_live else self._why,
            "values": {name: self._values.get(name) for name in SHOWN}, "warnings": len(present),
            "serious": any(each.get("serious") for each in present),
        }  # fmt: skip

    def _take(self, frame: Mapping[str, Any]) -> None:
        if frame.get("whole"):
            self._values = {name: column[-1] for name, column in frame["series"].items() if column}
        else:
            self._values = dict(frame["values"])
        self._warnings = frame["now"].get("warnings", [])


def _place(member: Member) -> tuple[bool, list[Any]]:
    """Its place among others: workers first, numbers by size."""
    parts = [(each.isdecimal(), int(each) if each.isdecimal() else each) for each in member.name.split()]
    return not member.name.startswith("worker"), parts


class Job:
    """The processes of a job, which come and go.

    :meth:`add` may be called from any thread.

    Args:
        addresses: by name, where the dashboard of each is; more can be added later.

    Raises:
        ValueError: one is no address of a dashboard.
    """

    def __init__(self, addresses: Mapping[str, str] | None = None) -> None:
        self._members = {name: Member(name, address) for name, address in (addresses or {}).items()}
        self._tasks: dict[Member, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._viewers = 0

    def add(self, name: str, address: str) -> None:
        """Add a process, or one that was started in place of another.

        Raises:
            ValueError: that is no address of a dashboard.
        """
        self._members = {**self._members, name: Member(name, address)}

    async def rows(self) -> AsyncGenerator[bytes]:
        """The rows of all processes, twice a second; they are followed meanwhile."""
        async with self._followed():
            while True:
                self._follow_new()
                rows = [each.row() for each in sorted(self._members.values(), key=_place)]
                yield json.dumps(rows, separators=(",", ":"), default=str).encode()
                await asyncio.sleep(EVERY)

    def find(self, name: str) -> Member:
        """The process of a name.

        Raises:
            HTTPNotFound: there is none.
        """
        found = self._members.get(name)
        if found is None:
            raise web.HTTPNotFound(text=f"there is no process {name!r}, only {', '.join(self._members) or 'none'}")
        return found

    @contextlib.asynccontextmanager
    async def _followed(self) -> AsyncIterator[None]:
        self._viewers += 1
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                await self._leave()

    def _follow_new(self) -> None:
        """Follow the processes that there are, and leave those in whose place others were started."""
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        members = set(self._members.values())
        for left in self._tasks.keys() - members:
            self._tasks.pop(left).cancel()
        for new in members - self._tasks.keys():
            self._tasks[new] = asyncio.create_task(new.follow(self._session))

    async def _leave(self) -> None:
        tasks, session = list(self._tasks.values()), self._session
        self._tasks, self._session = {}, None
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if session is not None:
            await session.close()
