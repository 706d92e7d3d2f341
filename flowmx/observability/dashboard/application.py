"""The dashboard as an aiohttp application: the page, its parts, and the feed. It answers GET alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib import resources

from aiohttp import web

from flowmx.comm.gate import Gate, Phase
from flowmx.comm.limits import in_force
from flowmx.observability.dashboard.feed import Viewer, send, stream
from flowmx.observability.dashboard.guard import COOKIE, Guard
from flowmx.observability.dashboard.job import Job
from flowmx.observability.dashboard.sampler_thread import sampling_thread

__all__ = ["application"]

MOST = 32
"""Viewers at one time; where one more comes, the one that has looked for longest goes."""
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
GATE = web.AppKey("flowmx_dashboard_gate", Gate)
VIEWERS = web.AppKey("flowmx_dashboard_viewers", dict[Viewer, None])
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(secret: str | None = None, job: Job | None = None) -> web.Application:
    """The dashboard of this process, or of a job, to be mounted in an aiohttp application.

    It is served by that application's loop, and so does not answer while that is blocked;
    :func:`flowmx.observability.dashboard.start` has a loop of its own.

    Args:
        secret: what viewers must know (``?token=SECRET`` once, or ``Authorization: Bearer SECRET``), at least 16
            letters; None: only this machine may look.
        job: the processes to show in place of this one.

    Raises:
        ValueError: the secret is too short.

    Example:
        >>> site.add_subapp("/dashboard", mx.dashboard.application())
    """
    made = web.Application(middlewares=[_guarded])
    made[GUARD], made[GATE], made[VIEWERS] = Guard(secret), Gate(in_force("dashboard")), {}
    for part in sorted(_PAGE.iterdir(), key=lambda each: each.name):
        name = part.name
        suffix = name[name.rfind(".") :]
        if suffix in _TYPES:
            made.router.add_get(f"/{name}", _answer(part.read_bytes(), _TYPES[suffix]), allow_head=False)
    page = (_PAGE / "index.html").read_bytes()
    made.router.add_get("/", _answer(page if job is None else _of_job(page), "text/html"), allow_head=False)
    made.router.add_get("/events", _events if job is None else _events_of(job), allow_head=False)
    if job is not None:
        made.router.add_get("/members", _members_of(job), allow_head=False)
    made.on_shutdown.append(_close)
    return made


def _answer(body: bytes, content_type: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return answer


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse who may not look, and put the headers on every answer."""
    gate = request.config_dict[GATE]
    with gate.request(request.transport) as note:
        return await _judged(request, handler, gate, note)


async def _judged(
    request: web.Request, handler: Handler, gate: Gate, note: Callable[[Phase], None]
) -> web.StreamResponse:
    guard = request.config_dict[GUARD]
    verdict = guard.judge(request.remote, request.headers, request.query.get("token"))
    if verdict.status == 302:
        redirect = web.Response(status=302, headers={**_HEADERS, "Location": request.path})
        redirect.set_cookie(COOKIE, guard.cookie, httponly=True, samesite="Strict")
        return redirect
    if verdict.status != 200:
        await asyncio.sleep(gate.wait_of(request.transport))
        return web.Response(status=verdict.status, text=verdict.text + "\n", headers=_HEADERS)
    if request.method != "GET":
        allowed = {"Allow": "GET"}
        return web.Response(status=405, text="the dashboard answers GET alone\n", headers={**_HEADERS, **allowed})
    gate.prove(request.transport)
    note(Phase.WORKING)
    response = await handler(request)
    if not response.prepared:
        response.headers.update(_HEADERS)
    return response


async def _events(request: web.Request) -> web.StreamResponse:
    viewers = request.config_dict[VIEWERS]
    if len(viewers) >= min(MOST, request.config_dict[GATE].places.most // 2):
        oldest = next(iter(viewers))  # rather a page that somebody left open than who comes now
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


def _of_job(page: bytes) -> bytes:
    """The page with the panel of the job's processes."""
    return page.replace(b"<body>", b"<body data-job>").replace(b'id="job" hidden', b'id="job"')


def _events_of(job: Job) -> Handler:
    async def events(request: web.Request) -> web.StreamResponse:
        return await _passed_on(request, job.find(request.query.get("member", "")).feed())

    return events


def _members_of(job: Job) -> Handler:
    async def members(request: web.Request) -> web.StreamResponse:
        return await _passed_on(request, job.rows())

    return members


async def _passed_on(request: web.Request, texts: AsyncGenerator[bytes]) -> web.StreamResponse:
    """Send texts as events, until there are no more or the viewer goes."""
    response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
    async with contextlib.aclosing(texts):
        await response.prepare(request)
        await send(response, texts)
    return response


async def _close(made: web.Application) -> None:
    viewers: dict[Viewer, None] = made[VIEWERS]
    for viewer in list(viewers):
        viewer.close()
