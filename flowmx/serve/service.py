"""HTTP interface of a service, independent of the HTTP server: routes, access checks, CORS headers.

A request is answered in two steps. :meth:`Service.begin` reads the request head. It answers requests that need no
body, refuses predictions if the queue is full, and otherwise returns a :class:`PendingCall`, which receives the
body. ``docs/serving.md`` lists the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from flowmx.comm.admission import Budget
from flowmx.comm.browser_origins import check_origins, is_cross_site
from flowmx.comm.limits import Limits, limits_for
from flowmx.comm.metrics import CONTENT_TYPE
from flowmx.comm.rate_limits import Throttle
from flowmx.comm.security import host_of, is_address
from flowmx.serve import api_page, open_inference, openapi
from flowmx.serve.access import Access
from flowmx.serve.bodies import (
    MAX_TEXT,
    AskCall,
    Exchange,
    PendingCall,
    PlainExchange,
    PredictCall,
    unavailable,
    unparsed,
    unsupported,
)  # fmt: skip
from flowmx.serve.errors import Overloaded, Unavailable
from flowmx.serve.formats import FORMATS, JSON, NotAcceptable, reply_format
from flowmx.serve.generate_routes import GENERATE_ROUTES, text_metadata
from flowmx.serve.open_inference import Inference
from flowmx.serve.predictor import Predictor
from flowmx.serve.replies import Refusal, Reply, Stream, allow, json_reply
from flowmx.serve.repository import Repository
from flowmx.serve.request_head import Head, Headers, media_type_of, read_head
from flowmx.serve.route import Route
from flowmx.serve.sessions.routes import SESSION_ROUTES, is_upgrade
from flowmx.serve.sessions.socket_call import SocketCall
from flowmx.serve.sessions.stream_call import StreamCall
from flowmx.serve.sources import ModelSource, split
from flowmx.serve.text.routes import TEXT_ROUTES
from flowmx.serve.tracing import tracing
from flowmx.version import __version__

__all__ = ["DRAIN_SECONDS", "ModelSource", "Service"]

DRAIN_SECONDS = 20.0
"""Default number of seconds that requests have to finish at shutdown."""

_SAFE_METHODS = ("GET", "HEAD")
"""Methods without side effects. Browsers hide their responses from pages of other sites."""
_PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": f"Accept, Authorization, Content-Type, Traceparent, {open_inference.HEADER}",
    "Access-Control-Max-Age": "600",
}
_EXPOSED_HEADERS = f"Retry-After, {open_inference.HEADER}"
_UNTRACED = contextlib.nullcontext[Callable[[int], None]](lambda status: None)
_MAX_DIGITS = 20
"""Maximum number of digits of a byte count."""
_MAX_REFUSAL_DELAY = 10.0
"""Maximum delay of a refusal in seconds."""


def _seconds(value: object) -> float:
    """Return the time to drain, or raise ValueError."""
    if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"drain_timeout is {value!r}, expected a number of seconds of at least 0")
    return value


class PoolMembership(Protocol):
    """The pool of workers that a service belongs to; see :class:`flowmx.serve.pool_member.Member`."""

    @property
    def unloaded(self) -> Collection[str]: ...

    @property
    def status(self) -> Mapping[str, int]: ...

    @property
    def is_complete(self) -> bool: ...

    async def metrics(self) -> str: ...

    async def load(self, name: str) -> None: ...

    async def unload(self, name: str) -> None: ...


class Service:
    """The routes of one service, over its predictors or repository.

    Args:
        source: a predictor, a generator, a dict of them by name, or a repository.
        max_body: maximum size of a body in bytes (default: ``limits.total``).
        max_text: maximum size of a JSON body in bytes.
        hosts: host names to accept besides IP addresses; None accepts any.
        limits: limits on requests (default: the current settings).
        access: the tokens to check (default: predictions require no token).
        origins: the sites whose pages may send requests from a browser, such as ``"https://app.example"``, or ``"*"``;
            by default only pages of the service itself may send them.
        default: name of the model that answers ``/predict`` and ``/invocations`` if the request names none (default:
            the only model).
        drain_timeout: seconds that requests have to finish at shutdown.

    Raises:
        ValueError: an origin is malformed, there are no predictors, the default is not one of them, or the timeout is
            negative.
    """

    def __init__(
        self, source: ModelSource, max_body: int | None = None, max_text: int = MAX_TEXT,
        hosts: Collection[str] | None = None, limits: Limits | None = None, access: Access | None = None,
        origins: Collection[str] = (), default: str | None = None, drain_timeout: float = DRAIN_SECONDS,
    ) -> None:  # fmt: skip
        self.drain_timeout = _seconds(drain_timeout)
        self.models, self._repository, self.generators = split(source)
        names = list(self.models) if self._repository is None else self._repository.names()
        if default is not None and default not in names:
            raise ValueError(f"the default model is {default!r}, expected one of {', '.join(names) or 'none'}")
        self.models.default_name = default
        self._routes: Sequence[Route] = [
            *ROUTES,
            *SESSION_ROUTES,
            *GENERATE_ROUTES,
            *(TEXT_ROUTES if self.generators else ()),
        ]
        self._access = access or Access()
        self._hosts = hosts
        self._origins = check_origins(origins)
        self.limits = limits = limits or limits_for("serve")
        self.max_body = limits.total if max_body is None else max_body
        self.max_text = min(max_text, self.max_body)
        self.budget = Budget(limits.in_flight)
        self._throttle = Throttle(limits.refusals, _MAX_REFUSAL_DELAY)
        self._loading: asyncio.Future[None] | None = None
        self._tracing = tracing()
        self._pool: PoolMembership | None = None

    def join(self, pool: PoolMembership) -> None:
        """Answer for all workers of a pool."""
        self._pool = pool

    def start(self) -> None:
        """Start loading and warming up the models, and return immediately."""
        self.models.start()
        if self._repository is not None:
            self._repository.open()
            skip = () if self._pool is None else self._pool.unloaded
            self._loading = asyncio.ensure_future(self._repository.load_all(skip))

    async def loaded(self) -> bool:
        """Wait until the models are warm, or cannot be loaded; return False if the only model failed."""
        if self._loading is not None:
            await self._loading
        ready = (predictor.ready() for predictor in self.models.all())
        results = await asyncio.gather(*ready, return_exceptions=True)
        return self._repository is not None or not any(isinstance(result, BaseException) for result in results)

    async def drain(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Answer pending requests for at most ``timeout`` seconds (default: ``drain_timeout``), then stop."""
        timeout = self.drain_timeout if timeout is None else timeout
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        if self._repository is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._repository.close(), timeout)
        await asyncio.gather(self.models.drain(timeout), self.generators.close())

    def delay_of(self, reply: Reply | Stream, now: float) -> float:
        """Return the delay of a reply in seconds. Refusals of an overloaded service are sent at a limited rate.

        Clients that retry immediately would otherwise take processor time from the requests that are served.
        """
        return self._throttle.delay(now) if "Retry-After" in reply.headers else 0.0

    def trace(
        self, method: str, path: str, headers: Headers
    ) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """Trace a request if the settings enable traces. The context yields a function to call with the reply's status.

        Args:
            method: the HTTP method.
            path: the path, with or without a leading slash.
            headers: a case-insensitive mapping, or one with lower-case names.
        """
        if self._tracing is None:
            return _UNTRACED
        parts = path.strip("/").split("/")
        path_template = next((f"/{route.path}" for route in self._routes if route.match(parts) is not None), "")
        return self._tracing.request(method, f"/{path.lstrip('/')}", path_template, headers)

    def begin(
        self, method: str, path: str, headers: Headers, query: str = ""
    ) -> Reply | PendingCall | SocketCall | StreamCall:
        """Return the reply of a request that needs no body, or the call that receives the body or the messages.

        Args:
            method: the HTTP method.
            path: the path, with a leading slash.
            headers: a case-insensitive mapping, or one with lower-case names.
            query: the part of the address after the question mark, percent-encoded.
        """
        parts = path.strip("/").split("/")
        try:
            self._check_host(headers.get("host", ""))
            if method not in _SAFE_METHODS or is_upgrade(Head(headers)):  # browsers let any page open a WebSocket
                self._check_origin(headers)
            if method == "OPTIONS" and headers.get("origin"):
                return Reply(204, b"", headers=_PREFLIGHT_HEADERS)
            for route in self._routes:
                names = route.match(parts)
                if names is not None:
                    self._access.check(route.access, headers)
                    allow(method, *(("POST",) if route.is_post else ("GET", "HEAD")))
                    return route.answer(self, read_head(headers, query), **names)
            paths = ", ".join(f"/{route.path}" for route in self._routes if "v2" not in route.path)
            raise Refusal(404, f"there is no /{'/'.join(parts)[:200]}, expected {paths}")
        except Refusal as refusal:
            return refusal.reply

    def _check_host(self, header: str) -> None:
        """Refuse unknown host names, as a protection against DNS rebinding by other sites."""
        host = host_of(header)
        if self._hosts is None or not host or is_address(host) or host in self._hosts:
            return
        raise Refusal(
            421, f"the Host header is {header[:80]!r}, expected the service's address or one of "
            f"{', '.join(sorted(self._hosts))}: add names with --host-name",
        )  # fmt: skip

    def _check_origin(self, headers: Headers) -> None:
        """Refuse cross-site requests from browsers; CORS alone does not prevent them."""
        if is_cross_site(headers, self._origins):
            origin = headers.get("origin", "another site")[:80]
            raise Refusal(
                403, f"a page of {origin} sent the request, expected a page of this service: allow other sites with "
                f"--allow-origin {origin}, or origins=[{origin!r}] in a program",
            )  # fmt: skip

    def response_headers(self, reply: Reply | Stream, request: Headers) -> dict[str, str]:
        """Return the headers of a response, including the CORS headers but not Content-Length.

        Args:
            reply: the reply.
            request: headers of the request.
        """
        return {"Content-Type": reply.type, **reply.headers, **self._cors_headers(request)}

    def _cors_headers(self, headers: Headers) -> Mapping[str, str]:
        """Return the headers that allow a page of an allowed site to read the response."""
        origin = headers.get("origin", "")
        if not self._origins or not origin or is_cross_site(headers, self._origins):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": _EXPOSED_HEADERS,
            "Vary": "Origin",
        }

    # -- predictions -----------------------------------------------------------------------------------

    def _predict(self, head: Head, name: str = "") -> PredictCall:
        headers, name = head.headers, name or head.parameters.get("model_name", "")
        find = partial(self.models.find, name) if name else self.models.default
        hooks = find().hooks  # report a missing model before a wrong type of body
        media_type = media_type_of(headers.get("content-type", ""))
        if media_type not in FORMATS and hooks.decoder(media_type) is None:
            raise unsupported(media_type, hooks)
        body_format = FORMATS.get(media_type) or unparsed(media_type)
        try:
            accept = headers.get("accept", "") if hooks.encode is None else ""
            answer = reply_format(accept, FORMATS.get(media_type, JSON))
        except NotAcceptable as error:
            raise Refusal(406, str(error)) from None
        limit = self.max_text if body_format.is_text and hooks.parses_json else self.max_body
        return self._call(find, PlainExchange(body_format, answer), head, limit, has_hooks=True)

    def _infer(self, head: Head, name: str, version: str = "") -> PredictCall:
        if self.models.find(name, version).hooks.reads_head:
            raise Refusal(400, f"{name} is a handler of Multi Model Server: POST its body to /predictions/{name}")
        versions = self.models.versions(name)
        length = head.headers.get(open_inference.HEADER.lower())
        if length is not None and not (length.isdecimal() and len(length) < _MAX_DIGITS):
            raise Refusal(400, f"{open_inference.HEADER} is {length[:40]!r}, expected a number of bytes")
        header = None if length is None else int(length)
        if header is not None and header > self.max_text:
            raise Refusal(413, f"the JSON has {header} bytes, expected at most {self.max_text}")
        exchange = Inference(name, version or next(reversed(versions)), header)
        find = partial(self.models.find, name, version)
        return self._call(find, exchange, head, self.max_text if header is None else self.max_body)

    def _call(
        self, find: Callable[[], Predictor], exchange: Exchange, head: Head, limit: int,
        has_hooks: bool = False,
    ) -> PredictCall:  # fmt: skip
        predictor = find()
        call = PredictCall(predictor, find, exchange, limit, self.limits, head if has_hooks else None)
        length = head.headers.get("content-length", "")
        if length.isdecimal():
            call.check_size(int(length))
        try:
            predictor.check_room()
        except (Overloaded, Unavailable) as error:
            raise unavailable(error) from None
        return call

    # -- descriptions ----------------------------------------------------------------------------------

    def _list(self, head: Head) -> Reply:
        return json_reply(200, {"models": [predictor.describe() for predictor in self.models.all()]})

    def _describe(self, head: Head, name: str) -> Reply:
        return json_reply(200, self.models.find(name).describe())

    def _server(self, head: Head) -> Reply:
        return json_reply(200, open_inference.server(__version__))

    def _metadata(self, head: Head, name: str, version: str = "") -> Reply:
        if name in self.generators.names() and version in ("", "1"):
            return text_metadata(name)
        predictor = self.models.find(name, version)
        versions = list(self.models.versions(name))
        return json_reply(200, open_inference.describe(name, versions, predictor.inputs.specs, predictor.results))

    def metrics(self) -> str:
        """Return the metrics of the models in this process."""
        registries = {id(predictor.metrics): predictor.metrics for predictor in self.models.all()}
        return "".join(metrics.text() for metrics in registries.values()) + self.generators.metrics()

    def _metrics(self, head: Head) -> Reply | PendingCall:
        if self._pool is not None:
            return AskCall(self._pool.metrics, self.limits, _metrics_reply)
        return _metrics_reply(self.metrics())

    def _openapi(self, head: Head) -> Reply:
        return json_reply(200, openapi.document(self._routes, self.models))

    def _page(self, head: Head) -> Reply:
        return Reply(
            200, api_page.page(self._routes, self.models, self.generators).encode(), "text/html; charset=utf-8"
        )

    # -- health ----------------------------------------------------------------------------------------

    def _health(self, head: Head) -> Reply:
        return json_reply(200, {"status": "ok"})

    def _live(self, head: Head) -> Reply:
        return json_reply(200, {"live": True})

    def _ready(self, head: Head) -> Reply:
        waiting = self.models.waiting()
        if self._repository is not None:
            loading = self._loading is None or not self._loading.done()
            waiting = sorted({*waiting, *self._repository.failures, *(self._repository.names() if loading else [])})
        workers = {} if self._pool is None else {"workers": self._pool.status}
        if self._pool is not None and not self._pool.is_complete:
            waiting = [*waiting, "workers"]
        return json_reply(503 if waiting else 200, {"ready": not waiting, "waiting_for": waiting, **workers})

    def _model_ready(self, head: Head, name: str, version: str = "") -> Reply:
        if name in self.generators.names() and version in ("", "1"):
            is_ready = not self.generators.find(name).is_closed
        else:
            is_ready = self.models.find(name, version).is_ready
        return json_reply(200 if is_ready else 503, {"name": name, "ready": is_ready})

    # -- the repository --------------------------------------------------------------------------------

    def _require_repository(self) -> Repository:
        if self._repository is None:
            raise Refusal(400, "this service cannot load or unload models: it was started without a repository")
        return self._repository

    async def load_here(self, name: str) -> None:
        """Load a model in this process."""
        await self._require_repository().load(name)

    async def unload_here(self, name: str) -> None:
        """Unload a model from this process."""
        await self._require_repository().unload(name)

    def _index(self, head: Head) -> AskCall:
        return AskCall(self._require_repository().index, self.limits)

    def _load(self, head: Head, name: str) -> AskCall:
        return AskCall(partial((self._pool or self._require_repository()).load, name), self.limits)

    def _unload(self, head: Head, name: str) -> AskCall:
        return AskCall(partial((self._pool or self._require_repository()).unload, name), self.limits)


def _metrics_reply(text: str) -> Reply:
    return Reply(200, text.encode(), CONTENT_TYPE)


def _versioned(
    path: str, answer: Callable[..., Reply | PendingCall], summary: str, is_post: bool = False
) -> list[Route]:
    """Return the routes below a model and below one of its versions."""
    prefixes = ["v2/models/{name}", "v2/models/{name}/versions/{version}"]
    return [Route(f"{prefix}/{path}".rstrip("/"), answer, summary, is_post) for prefix in prefixes]


ROUTES = [
    Route("predict", Service._predict, "a prediction of the only or default model", is_post=True),
    Route("models", Service._list, "the models: inputs, outputs, batch sizes"),
    Route("models/{name}", Service._describe, "one model"),
    Route("models/{name}/predict", Service._predict, "a prediction of that model", is_post=True),
    Route("models/{name}/invoke", Service._predict, "a prediction of that model, as on SageMaker", is_post=True),
    Route("predictions/{name}", Service._predict, "a prediction of that model, as in Multi Model Server", is_post=True),
    Route("invocations", Service._predict, "a prediction of the only or default model, as on SageMaker", is_post=True),
    Route("ping", Service._ready, "200 if all models are warm and accept requests, else 503", access="all"),
    Route("healthz", Service._health, "200 while the process runs", access="all"),
    Route("readyz", Service._ready, "200 if all models are warm and accept requests, else 503", access="all"),
    Route("metrics", Service._metrics, "metrics in Prometheus' text format"),
    Route("openapi.json", Service._openapi, "the OpenAPI document, with the shapes of the models"),
    Route("docs", Service._page, "the API documentation as a page"),
    Route("health/live", Service._live, "200 while the process runs", access="all"),
    Route("health/ready", Service._ready, "200 if all models are warm and accept requests, else 503", access="all"),
    Route("v2", Service._server, "name, version and extensions of the server"),
    Route("v2/health/live", Service._live, "200 while the process runs", access="all"),
    Route("v2/health/ready", Service._ready, "200 if all models are warm and accept requests, else 503", access="all"),
    *_versioned("", Service._metadata, "inputs and outputs of a model"),
    *_versioned("ready", Service._model_ready, "200 if the model accepts requests, else 503"),
    *_versioned("infer", Service._infer, "a prediction by the Open Inference Protocol", is_post=True),
    Route("v2/repository/index", Service._index, "the models of the repository and their states", True, "admins"),
    Route(
        "v2/repository/models/{name}/load",
        Service._load,
        "load a model, or its changed versions",
        True,
        "admins",
    ),
    Route("v2/repository/models/{name}/unload", Service._unload, "unload a model", True, "admins"),
]
