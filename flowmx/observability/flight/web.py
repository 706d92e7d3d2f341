"""The doctor's endpoint in a service: ``GET /flowmx/doctor`` returns a snapshot of the process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial

from aiohttp import web

from flowmx.observability.flight.observation import observe
from flowmx.observability.flight.watcher import start

__all__ = ["PATH", "add_to"]

PATH = "/flowmx/doctor"


def add_to(
    application: web.Application, may: Callable[[Mapping[str, str]], object] | None = None, path: str = PATH
) -> None:
    """Add the endpoint to an aiohttp application that does not run yet.

    Its responses have names, lines of code and numbers, but no contents of arrays. Restrict access to it nevertheless.

    Args:
        application: the application.
        may: called with the headers of each request; if it raises, the request is refused with status 403.
        path: path of the endpoint.
    """

    async def handle(request: web.Request) -> web.Response:
        try:
            if may is not None:
                may(request.headers)
        except Exception as error:  # the application's check may raise anything
            return web.Response(status=403, text=str(error))
        try:
            seconds = float(request.query.get("seconds", "1"))
        except ValueError:
            return web.Response(status=400, text=f"seconds is {request.query['seconds']!r}, expected a number")
        values = request.query.get("values", "1") != "0"
        snapshot = await asyncio.to_thread(observe, seconds, values)
        return web.json_response(snapshot, dumps=partial(json.dumps, default=str))

    application.router.add_get(path, handle)
    start()
