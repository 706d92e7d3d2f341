"""The dashboard as an aiohttp application: the page, its files, and the feed. It accepts only GET."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib import resources

from aiohttp import web

from flowmx.comm.connections import ConnectionLimiter, Phase
from flowmx.comm.limits import limits_for
from flowmx.observability.dashboard.access_control import COOKIE, Guard
from flowmx.observability.dashboard.feed import Viewer, send, stream
from flowmx.observability.dashboard.job import Job
from flowmx.observability.dashboard.sampler_thread import sampling_thread

__all__ = ["application"]

MAX_VIEWERS = 32
"""Maximum number of viewers; a further viewer replaces the oldest one."""
_PAGE = resources.files("flowmx.observability.dashboard") / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
}  # fmt: skip
GUARD = web.AppKey("flowmx_dashboard_guard", Guard)
CONNECTIONS = web.AppKey("flowmx_dashboard_connections", ConnectionLimiter)
VIEWERS = web.AppKey("flowmx_dashboard_viewers", dict[Viewer, None])
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(secret: str | None = None, job: Job | None = None) -> web.Application:
    """Return the dashboard of this process, or of a job, for mounting in an aiohttp application.

    It runs on the application's event loop, so it does not respond while that loop is blocked.
    :func:`flowmx.observability.dashboard.start` runs the dashboard on a separate loop.

    Args:
        secret: the viewers' secret (``?token=SECRET`` once, or ``Authorization: Bearer SECRET``), at least 16
            characters; None admits only local viewers.
        job: the processes to show instead of this one.

    Raises:
        ValueError: the secret is too short.

    Example:
        >>> site.add_subapp("/dashboard", mx.dashboard.application())
    """
    site = web.Application(middlewares=[_guarded])
    site[GUARD], site[CONNECTIONS], site[VIEWERS] = Guard(secret), ConnectionLimiter(limits_for("dashboard")), {}
    for part in sorted(_PAGE.iterdir(), key=lambda file: file.name):
        name = part.name
        suffix = name[name.rfind(".") :]
        if suffix in _TYPES:
            site.router.add_get(f"/{name}", _static_file(part.read_bytes(), _TYPES[suffix]), allow_head=False)
    page = (_PAGE / "index.html").read_bytes()
    site.router.add_get("/", _static_file(page if job is None else _job_page(page), "text/html"), allow_head=False)
    site.router.add_get("/events", _events if job is None else _events_handler(job), allow_head=False)
    if job is not None:
        site.router.add_get("/members", _members_handler(job), allow_head=False)
    site.on_shutdown.append(_close)
    return site


def _static_file(body: bytes, content_type: str) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return handle


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse unauthorized viewers, and add the security headers to every response."""
    connections = request.config_dict[CONNECTIONS]
    with connections.track_request(request.transport) as note:
        return await _checked(request, handler, connections, note)


async def _checked(
    request: web.Request, handler: Handler, connections: ConnectionLimiter, note: Callable[[Phase], None]
) -> web.StreamResponse:
    guard = request.config_dict[GUARD]
    verdict = guard.judge(request.remote, request.headers, request.query.get("token"))
    if verdict.status == 302:
        redirect = web.Response(status=302, headers={**_HEADERS, "Location": request.path})
        redirect.set_cookie(COOKIE, guard.cookie, httponly=True, samesite="Strict")
        return redirect
    if verdict.status != 200:
        await asyncio.sleep(connections.refusal_delay(request.transport))
        return web.Response(status=verdict.status, text=verdict.text + "\n", headers=_HEADERS)
    if request.method != "GET":
        allowed = {"Allow": "GET"}
        return web.Response(status=405, text="the dashboard accepts only GET\n", headers={**_HEADERS, **allowed})
    connections.mark_authenticated(request.transport)
    note(Phase.WORKING)
    response = await handler(request)
    if not response.prepared:
        response.headers.update(_HEADERS)
    return response


async def _events(request: web.Request) -> web.StreamResponse:
    viewers = request.config_dict[VIEWERS]
    if len(viewers) >= min(MAX_VIEWERS, request.config_dict[CONNECTIONS].table.max_connections // 2):
        oldest = next(iter(viewers))  # probably a forgotten page
        del viewers[oldest]
        oldest.close()
    response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"retry: 1000\n\n")
    with Viewer(sampling_thread) as viewer:
        viewers[viewer] = None
        try:
            await stream(response, viewer)
        finally:
            viewers.pop(viewer, None)
    return response


def _job_page(page: bytes) -> bytes:
    """Return the page with the panel of the job's processes."""
    return page.replace(b"<body>", b"<body data-job>").replace(b'id="job" hidden', b'id="job"')


def _events_handler(job: Job) -> Handler:
    async def events(request: web.Request) -> web.StreamResponse:
        return await _forward(request, job.find(request.query.get("member", "")).feed())

    return events


def _members_handler(job: Job) -> Handler:
    async def members(request: web.Request) -> web.StreamResponse:
        return await _forward(request, job.rows())

    return members


async def _forward(request: web.Request, texts: AsyncGenerator[bytes]) -> web.StreamResponse:
    """Send texts as events until they end or the viewer disconnects."""
    response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
    async with contextlib.aclosing(texts):
        await response.prepare(request)
        await send(response, texts)
    return response


async def _close(site: web.Application) -> None:
    viewers: dict[Viewer, None] = site[VIEWERS]
    for viewer in list(viewers):
        viewer.close()
