"""The dashboard server, on a separate thread and event loop: it responds while the program's loops are blocked."""

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

from flowmx import process_hooks
from flowmx.comm.connection_handler import ConnectionHandler
from flowmx.comm.limits import limits_for
from flowmx.comm.listening import Listener
from flowmx.comm.logs import http_log
from flowmx.observability.dashboard.access_control import check_address
from flowmx.observability.dashboard.job import Job, announcement
from flowmx.observability.dashboard.web_app import CONNECTIONS, application

__all__ = ["Dashboard", "start", "start_by_setting"]

_log = logging.getLogger("flowmx.observability.dashboard")
_TIMEOUT = 10.0


class Dashboard:
    """A running dashboard server; :func:`start` returns it. Also a synchronous and asynchronous context manager.

    Attributes:
        url: its URL, without the secret.
        socket: its listening socket.
    """

    def __init__(self, host: str, port: int, secret: str | None, job: Job | None = None) -> None:
        self._site = application(secret, job)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.create_server((host, port), family=family)
        self.socket.setblocking(False)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.socket.getsockname()[1]}/"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="flowmx-dashboard", daemon=True)
        self._thread.start()
        self._started.result(_TIMEOUT)
        _serving.add(self)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # the thread that waits for the start raises it
            if not self._started.done():
                self._started.set_exception(error)
            else:
                _log.exception("the dashboard has failed")

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        runner = web.AppRunner(
            self._site, access_log=None, logger=http_log, handler_cancellation=True, shutdown_timeout=1.0,
            keepalive_timeout=limits_for("dashboard").keep_alive,
        )  # fmt: skip
        await runner.setup()

        def make_protocol() -> asyncio.Protocol | None:
            return runner.server() if runner.server is not None else None

        connections = self._site[CONNECTIONS]
        listener = Listener([self.socket], lambda: ConnectionHandler(connections, make_protocol, None))
        try:
            self._started.set_result(None)
            await self._stopped.wait()
        finally:
            await listener.close()
            connections.close()
            await runner.cleanup()

    def stop(self) -> None:
        """Stop the server. Further calls do nothing."""
        _serving.discard(self)
        if self._loop is not None and self._stopped is not None and self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._stopped.set)
            except RuntimeError:  # the loop was closed meanwhile
                pass
            if self._thread is not threading.current_thread():
                self._thread.join(_TIMEOUT)

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
"""Running dashboards; keeps those without another reference alive."""


def start(
    host: str = "127.0.0.1", port: int = 0, secret: str | None = None, *, job: Job | Mapping[str, str] | None = None
) -> Dashboard:
    """Serve the dashboard of this process, or of several processes; return immediately.

    The dashboard is read-only. It costs nothing while no browser shows it.

    Args:
        host: a local address. An address that other machines can reach requires a secret.
        port: a port; 0 picks a free one.
        secret: the viewers' secret, at least 16 characters; they open ``url + "?token=" + secret``.
        job: the processes to show instead of this one: the URLs of their dashboards by name.

    Returns:
        the server, with its ``url`` and ``stop()``; also a context manager.

    Raises:
        InsecureAddress: other machines can reach the address, and there is no secret.
        OSError: the address is in use or not local.
        ValueError: the secret is too short, or the URL of a process is invalid.

    Example:
        >>> print(mx.dashboard.start(port=8080).url)
        http://127.0.0.1:8080/
    """
    check_address(host, secret)
    return Dashboard(host, port, secret, Job(job) if isinstance(job, Mapping) else job)


_by_setting: list[Dashboard] = []


def start_by_setting(port: int) -> None:
    """Start one dashboard per process, on a free port if ``port`` is in use: the processes of a job share settings.

    Args:
        port: a port; 0 picks a free one.
    """
    if _by_setting:
        return
    try:
        dashboard = start(port=port)
    except OSError as error:
        dashboard = start()
        _log.info("port %d is not available (%s): using another port", port, error)
    _by_setting.append(dashboard)
    sys.stderr.write(announcement(os.getpid(), dashboard.url))


def _after_fork() -> None:
    """Close the parent's sockets in the child of a fork, which has no server threads."""
    for dashboard in list(_serving):
        dashboard.socket.close()
    _serving.clear()


process_hooks.at_fork(after_in_child=_after_fork)
