"""The dashboard on a thread and event loop of its own, so that it answers where the program's are blocked."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType

from aiohttp import web

from flowmx.comm.door import Doorman
from flowmx.comm.limits import in_force
from flowmx.comm.listening import Listener
from flowmx.comm.logs import http_log
from flowmx.observability.dashboard.application import GATE, application
from flowmx.observability.dashboard.guard import check_address
from flowmx.observability.dashboard.job import Job, announcement

__all__ = ["Dashboard", "start", "start_by_setting"]

_log = logging.getLogger("flowmx.observability.dashboard")
_PATIENCE = 10.0


class Dashboard:
    """A dashboard that is being served; :func:`start` makes it. Also a context manager, plain and asynchronous.

    Attributes:
        url: where it is, without its secret.
        socket: that it listens on.
    """

    def __init__(self, host: str, port: int, secret: str | None, job: Job | None = None) -> None:
        self._site = application(secret, job)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.create_server((host, port), family=family)
        self.socket.setblocking(False)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.socket.getsockname()[1]}/"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="flowmx-dashboard", daemon=True)
        self._thread.start()
        self._started.result(_PATIENCE)
        _serving.add(self)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            else:
                _log.exception("the dashboard has ended")

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        runner = web.AppRunner(
            self._site, access_log=None, logger=http_log, handler_cancellation=True, shutdown_timeout=1.0,
            keepalive_timeout=in_force("dashboard").keep_alive,
        )  # fmt: skip
        await runner.setup()

        def make() -> asyncio.Protocol | None:
            return runner.server() if runner.server is not None else None

        gate = self._site[GATE]
        listener = Listener([self.socket], lambda: Doorman(gate, make, None))
        try:
            self._started.set_result(None)
            await self._end.wait()
        finally:
            await listener.close()
            gate.close()
            await runner.cleanup()

    def stop(self) -> None:
        """Stop it; viewers see that it has ended. A second call does nothing."""
        _serving.discard(self)
        if self._loop is not None and self._end is not None and self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._end.set)
            except RuntimeError:  # it has just ended
                pass
            if self._thread is not threading.current_thread():
                self._thread.join(_PATIENCE)

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Dashboard:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def __repr__(self) -> str:
        return f"<Dashboard at {self.url}>"


_serving: set[Dashboard] = set()
"""Running dashboards, so that one whose handle nobody keeps is not collected."""


def start(
    host: str = "127.0.0.1", port: int = 0, secret: str | None = None, *, job: Job | Mapping[str, str] | None = None
) -> Dashboard:
    """Serve the dashboard of this process, or of several, and return at once.

    Nothing can be changed through it. While no browser has it open it costs nothing.

    Args:
        host: an address of this machine. One that others reach takes a secret.
        port: 0 takes a free one.
        secret: what viewers must know, at least 16 letters: they open ``url + "?token=" + secret``.
        job: the processes to show in place of this one: by name, the address of each one's own dashboard.

    Returns:
        the handle: ``url`` says where it is, ``stop()`` ends it; it is a context manager too.

    Raises:
        InsecureAddress: other machines reach the address, and there is no secret.
        OSError: the address is taken, or not of this machine.
        ValueError: the secret is too short, or an address is none.

    Example:
        >>> print(mx.dashboard.start(port=8080).url)
        http://127.0.0.1:8080/
    """
    check_address(host, secret)
    return Dashboard(host, port, secret, Job(job) if isinstance(job, Mapping) else job)


_by_setting: list[Dashboard] = []


def start_by_setting(port: int) -> None:
    """As :func:`start`, once in a process, on another port where this one is taken: processes of a job share settings.

    Args:
        port: 0 takes a free one.
    """
    if _by_setting:
        return
    try:
        made = start(port=port)
    except OSError as error:
        made = start()
        _log.info("port %d is not to be had (%s): another is taken", port, error)
    _by_setting.append(made)
    sys.stderr.write(announcement(os.getpid(), made.url))


def _after_fork() -> None:
    """In the child of a fork there are no threads: close the sockets, which are the parent's."""
    for each in list(_serving):
        each.socket.close()
    _serving.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
