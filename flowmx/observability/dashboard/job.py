"""The processes of a job on one page: one row per process, and the full dashboard of the selected one.

Every process has its dashboard. While there are viewers, the page's process reads the feeds of these dashboards and
forwards them. Browsers connect only to the page's process, so its access control applies.
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

__all__ = ["Job", "Member", "announced_address", "announcement"]

INTERVAL = 0.5
"""Seconds between updates of the rows."""
RETRY_AFTER = 1.0
"""Seconds until a process that does not respond is tried again."""
TIMEOUT = 5.0
"""Seconds of silence after which a process counts as not responding."""
MAX_FRAME = 1 << 26
"""Maximum size of a frame in bytes."""
COLUMNS = ("operations", "steps", "samples", "resident", "lag")


_ANNOUNCEMENT = re.compile(r"flowmx: the dashboard of process \d+ is at (http://\S+)")


def announcement(process: int, address: str) -> str:
    """Return the line of output in which a process announces its dashboard."""
    return f"flowmx: the dashboard of process {process} is at {address}\n"


def announced_address(line: str) -> str | None:
    """Return the address of the dashboard that a line of output announces, if it does."""
    match = _ANNOUNCEMENT.fullmatch(line.strip())
    return match[1] if match else None


class Member:
    """A process of the job, with its latest state. It belongs to the event loop of the page.

    Args:
        name: name in the job, such as ``worker 0``.
        address: URL of its dashboard, with ``?token=SECRET`` if it has a secret.

    Raises:
        ValueError: the address is not an HTTP URL.
    """

    def __init__(self, name: str, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the dashboard of {name} is at {address!r}, expected http://host:port/")
        self.name = name
        self.url = parts._replace(query="", fragment="").geturl().rstrip("/") + "/"
        token = parse_qs(parts.query).get("token", [""])[0]
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._last_seen = -TIMEOUT
        self._error = ""
        self._values: dict[str, float] = {}
        self._warnings: list[Mapping[str, Any]] = []

    async def follow(self, session: aiohttp.ClientSession) -> None:
        """Read its feed and keep the latest values, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async for text in self.frames(session):
                    self._update(json.loads(text))
                    self._last_seen = loop.time()
                self._error = "its dashboard has stopped"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                self._error = str(error) or type(error).__name__
            await asyncio.sleep(RETRY_AFTER)

    async def feed(self) -> AsyncGenerator[bytes]:
        """Yield the frames of its feed for one viewer; end if it does not respond."""
        with contextlib.suppress(aiohttp.ClientError, OSError, ValueError):
            async with aiohttp.ClientSession() as session:
                async for text in self.frames(session):
                    yield text

    async def frames(self, session: aiohttp.ClientSession) -> AsyncGenerator[bytes]:
        """Yield the frames of its feed: first the whole state, then the changes.

        Raises:
            ClientError, OSError: the process cannot be reached.
            ValueError: the response is not the feed of a dashboard.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT)
        async with session.get(self.url + "events", headers=self._headers, timeout=timeout) as response:
            if response.status != 200 or response.content_type != "text/event-stream":
                raise ValueError(f"it responded {response.status} {response.reason}, expected the feed of a dashboard")
            buffer = b""
            async for chunk in response.content.iter_any():
                *events, buffer = (buffer + chunk).split(b"\n\n")
                if len(buffer) > MAX_FRAME:
                    raise ValueError(f"a frame is larger than {MAX_FRAME} bytes")
                for event in events:
                    if event.startswith(b"data: "):
                        yield event.removeprefix(b"data: ")

    def row(self) -> dict[str, Any]:
        """Return its row: whether it responds, its newest values, and the number of its warnings."""
        is_live = asyncio.get_running_loop().time() - self._last_seen < TIMEOUT
        present = [warning for warning in self._warnings if warning.get("present")]
        return {
            "name": self.name, "url": self.url, "live": is_live, "why": "" if is_live else self._error,
            "values": {name: self._values.get(name) for name in COLUMNS}, "warnings": len(present),
            "serious": any(warning.get("serious") for warning in present),
        }  # fmt: skip

    def _update(self, frame: Mapping[str, Any]) -> None:
        if frame.get("whole"):
            self._values = {name: column[-1] for name, column in frame["series"].items() if column}
        else:
            self._values = dict(frame["values"])
        self._warnings = frame["now"].get("warnings", [])


def _sort_key(member: Member) -> tuple[bool, list[Any]]:
    """Sort workers first, and numbers numerically."""
    parts = [(word.isdecimal(), int(word) if word.isdecimal() else word) for word in member.name.split()]
    return not member.name.startswith("worker"), parts


class Job:
    """The processes of a job; processes may be added and replaced at any time.

    :meth:`add` may be called from any thread.

    Args:
        addresses: URLs of the processes' dashboards, by name.

    Raises:
        ValueError: an address is not an HTTP URL.
    """

    def __init__(self, addresses: Mapping[str, str] | None = None) -> None:
        self._members = {name: Member(name, address) for name, address in (addresses or {}).items()}
        self._tasks: dict[Member, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._viewers = 0

    def add(self, name: str, address: str) -> None:
        """Add a process, or replace the one of this name.

        Raises:
            ValueError: the address is not an HTTP URL.
        """
        self._members = {**self._members, name: Member(name, address)}

    async def rows(self) -> AsyncGenerator[bytes]:
        """Yield the rows of all processes twice a second, and follow the processes meanwhile."""
        async with self._following():
            while True:
                self._follow_new()
                rows = [member.row() for member in sorted(self._members.values(), key=_sort_key)]
                yield json.dumps(rows, separators=(",", ":"), default=str).encode()
                await asyncio.sleep(INTERVAL)

    def find(self, name: str) -> Member:
        """Return the process of this name.

        Raises:
            HTTPNotFound: there is no such process.
        """
        member = self._members.get(name)
        if member is None:
            raise web.HTTPNotFound(
                text=f"there is no process {name!r}, expected one of {', '.join(self._members) or 'none'}"
            )
        return member

    @contextlib.asynccontextmanager
    async def _following(self) -> AsyncIterator[None]:
        self._viewers += 1
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                await self._stop_following()

    def _follow_new(self) -> None:
        """Follow new processes, and stop following replaced ones."""
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        members = set(self._members.values())
        for old in self._tasks.keys() - members:
            self._tasks.pop(old).cancel()
        for new in members - self._tasks.keys():
            self._tasks[new] = asyncio.create_task(new.follow(self._session))

    async def _stop_following(self) -> None:
        tasks, session = list(self._tasks.values()), self._session
        self._tasks, self._session = {}, None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if session is not None:
            await session.close()
