"""The doctor's endpoint in a service: ``GET /flowmx/doctor`` says what its process does. It changes nothing there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial

from aiohttp import web

from flowmx.observability.flight.observing import observe
from flowmx.observability.flight.watcher import start

__all__ = ["PATH", "add_to"]

PATH = "/flowmx/doctor"


def add_to(
    application: web.Application, may: Callable[[Mapping[str, str]], object] | None = None, path: str = PATH
) -> None:
    """Add the endpoint to an aiohttp application that does not run yet.

    What it tells are names, lines of code and numbers, no contents of arrays; keep it from strangers nevertheless.

    Args:
        application: where to.
        may: is given the headers of each request; what it raises refuses that with status 403.
        path: where.
    """

    async def answer(request: web.Request) -> web.Response:
        try:
            if may is not None:
                may(request.headers)
        except Exception as error:
            return web.Response(status=403, text=str(error))
        try:
            seconds = float(request.query.get("seconds", "1"))
        except ValueError:
            return web.Response(status=400, text=f"seconds is {request.query['seconds']!r}, expected a number")
        values = request.query.get("values", "1") != "0"
        found = await asyncio.to_thread(observe, seconds, values)
        return web.json_response(found, dumps=partial(json.dumps, default=str))

    application.router.add_get(path, answer)
    start()
