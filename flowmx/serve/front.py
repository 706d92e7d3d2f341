"""HTTP interface of a service, independent of any server: routes, refusals, bodies.

A request is answered in two steps. :meth:`Front.begin` looks at its head, and answers or refuses what needs no body,
such as requests for which there is no room. What it returns otherwise takes the body. ``docs/serving.md`` lists the
routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from flowmx.comm.admission import Admitted, Budget
from flowmx.comm.errors import Busy, CommError
from flowmx.comm.limits import Limits, in_force
from flowmx.comm.logs import requests_log
from flowmx.comm.metrics import CONTENT_TYPE
from flowmx.comm.offload import LARGE, offload
from flowmx.comm.rates import Turns
from flowmx.comm.security import host_of, is_address
from flowmx.comm.transfer import Pace
from flowmx.serve import open_inference, openapi
from flowmx.serve.access import Access
from flowmx.serve.errors import InvalidInput, Overloaded, Unavailable
from flowmx.serve.formats import FORMATS, Format, NotAcceptable, accepted
from flowmx.serve.inputs import Array, Rows
from flowmx.serve.models import Models, Predictors
from flowmx.serve.open_inference import Inference
from flowmx.serve.predictor import Predictor
from flowmx.serve.replies import Refusal, Reply, allow, json_reply
from flowmx.serve.repository import Repository
from flowmx.serve.tracing import tracing

__all__ = ["Front", "Pending", "Served"]

MAX_TEXT = 1 << 20
"""Bytes of a JSON body: reading it holds the interpreter, ten milliseconds for a megabyte."""

_UNTRACED = contextlib.nullcontext[Callable[[int], None]](lambda status: None)
_DIGITS = 20
"""Digits that no number of bytes has."""
_LONGEST_WAIT = 10.0
"""Seconds that a refusal waits for its turn at most."""
_WRITTEN = 64
"""Bytes of an array that are handled in the time in which one number is written as text."""

Served = Predictors | Repository
Headers = Mapping[str, str]


class Pending(Protocol):
    """A request that takes a body."""

    async def receive(self, chunks: AsyncIterable[bytes], entry: Admitted) -> bytes | Reply:
        """The body, or the refusal of one that is too large, comes too slowly, or for which there is no memory."""

    async def reply(self, body: bytes) -> Reply:
        """The answer to the body."""


class Exchange(Protocol):
    """The form of one request and its answer.

    Attributes:
        hint: a way to send larger bodies.
    """

    @property
    def hint(self) -> str: ...

    def scan(self, chunk: bytes) -> None:
        """Refuse bytes that begin a body of more than may be built; raises InvalidInput."""

    def is_quick(self, body: bytes) -> bool:
        """Tell whether reading a body takes no longer than handing it to another thread."""

    def read(self, body: bytes) -> Any:
        """The inputs; raises InvalidInput."""

    def is_text(self, name: str) -> bool:
        """Tell whether an output is written as text."""

    def write(self, outputs: Mapping[str, Array]) -> Reply:
        """The answer with these outputs; raises InvalidInput or NotAcceptable."""


class Front:
    """The service of some predictors.

    Args:
        served: predictors by name, of which the first answers ``/predict``, or a repository.
        max_body: bytes of a body; by default those of the limits.
        max_text: bytes of a JSON body.
        hosts: the names that it may be asked for by, besides addresses; None: any.
        limits: on what clients send; by default those in force.
        access: who may ask what (default: everybody for predictions).
    """

    def __init__(
        self, served: Served, max_body: int | None = None, max_text: int = MAX_TEXT,
        hosts: Collection[str] | None = None, limits: Limits | None = None, access: Access | None = None,
    ) -> None:  # fmt: skip
        self._repository = served if isinstance(served, Repository) else None
        self.models = served.models if isinstance(served, Repository) else Models(served)
        if self._repository is None and not list(self.models):
            raise ValueError("no predictors were given, expected one or a dict of some by name")
        self._access = access or Access()
        self._hosts = hosts
        self.limits = limits = limits or in_force("serve")
        self.max_body = limits.total if max_body is None else max_body
        self.max_text = min(max_text, self.max_body)
        self.budget = Budget(limits.in_flight)
        self._turns = Turns(limits.refusals, _LONGEST_WAIT)
        self._loading: asyncio.Future[None] | None = None
        self._tracing = tracing()

    def start(self) -> None:
        """Begin to load and to warm up what is served; returns at once."""
        self.models.start()
        if self._repository is not None:
            self._loading = asyncio.ensure_future(self._repository.load_all())

    async def drain(self) -> None:
        """Answer what waits, and end."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        if self._repository is not None:
            await self._repository.close()
        await self.models.drain()

    def wait_of(self, reply: Reply, now: float) -> float:
        """Seconds after which a reply is to be sent: refusals for want of room are sent at a bounded rate.

        Clients who come again at once would otherwise take the processor from those who are answered.
        """
        return self._turns.take(now) if "Retry-After" in reply.headers else 0.0

    def traced(
        self, method: str, path: str, headers: Headers
    ) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """Trace a request, where the settings ask for that; what the context returns takes the answer's status.

        Args:
            method: such as POST.
            path: with or without the slash at its beginning.
            headers: found whatever the case of the name, or with lower-case names.
        """
        if self._tracing is None:
            return _UNTRACED
        parts = path.strip("/").split("/")
        route = next((f"/{each.path}" for each in ROUTES if each.match(parts) is not None), "")
        return self._tracing.request(method, f"/{path.lstrip('/')}", route, headers)

    def begin(self, method: str, path: str, headers: Headers) -> Reply | Pending:
        """Answer what needs no body, or return what takes the body.

        Args:
            method: such as POST.
            path: with the slash at its beginning.
            headers: found whatever the case of the name, or with lower-case names.
        """
        parts = path.strip("/").split("/")
        try:
            self._check_host(headers.get("host", ""))
            for route in ROUTES:
                names = route.match(parts)
                if names is not None:
                    self._access.check(route.access, headers)
                    allow(method, *(("POST",) if route.is_post else ("GET", "HEAD")))
                    return route.answer(self, headers, **names)
            known = ", ".join(f"/{route.path}" for route in ROUTES if "v2" not in route.path)
            raise Refusal(404, f"there is no /{'/'.join(parts)[:200]}, expected {known}")
        except Refusal as refusal:
            return refusal.reply

    def _check_host(self, given: str) -> None:
        """Refuse names that are not this service's: a page of another site may have its own name lead here."""
        host = host_of(given)
        if self._hosts is None or not host or is_address(host) or host in self._hosts:
            return
        raise Refusal(
            421, f"the service was asked for as {given[:80]!r}, expected its address or one of "
            f"{', '.join(sorted(self._hosts))}: name others with --host-name",
        )  # fmt: skip

    # -- predictions -----------------------------------------------------------------------------------

    def _predict(self, headers: Headers, name: str = "") -> Call:
        find = partial(self.models.find, name) if name else self.models.first
        find()  # a model that is not there is told before a wrong type of body
        given = _media_type(headers)
        if given not in FORMATS:
            raise Refusal(415, f"Content-Type is {given[:80]!r}, expected one of {', '.join(FORMATS)}")
        form = FORMATS[given]
        try:
            answer = accepted(headers.get("accept", ""), form)
        except NotAcceptable as error:
            raise Refusal(406, str(error)) from None
        return self._call(find, Plain(form, answer), headers, self.max_text if form.is_text else self.max_body)

    def _infer(self, headers: Headers, name: str, version: str = "") -> Call:
        self.models.find(name, version)
        versions = self.models.versions(name)
        length = headers.get(open_inference.HEADER.lower())
        if length is not None and not (length.isdecimal() and len(length) < _DIGITS):
            raise Refusal(400, f"{open_inference.HEADER} is {length[:40]!r}, expected a number of bytes")
        header = None if length is None else int(length)
        if header is not None and header > self.max_text:
            raise Refusal(413, f"the JSON has {header} bytes, expected at most {self.max_text}")
        exchange = Inference(name, version or next(reversed(versions)), header)
        find = partial(self.models.find, name, version)
        return self._call(find, exchange, headers, self.max_text if header is None else self.max_body)

    def _call(self, find: Callable[[], Predictor], exchange: Exchange, headers: Headers, limit: int) -> Call:
        predictor = find()
        call = Call(predictor, find, exchange, limit, self.limits)
        length = headers.get("content-length", "")
        if length.isdecimal():
            call.check_size(int(length))
        try:
            predictor.check_room()
        except (Overloaded, Unavailable) as error:
            raise _unavailable(error) from None
        return call

    # -- what is served --------------------------------------------------------------------------------

    def _list(self, headers: Headers) -> Reply:
        return json_reply(200, {"models": [each.described() for each in self.models.all()]})

    def _describe(self, headers: Headers, name: str) -> Reply:
        return json_reply(200, self.models.find(name).described())

    def _server(self, headers: Headers) -> Reply:
        from flowmx import __version__  # which imports this module

        return json_reply(200, open_inference.server(__version__))

    def _metadata(self, headers: Headers, name: str, version: str = "") -> Reply:
        found = self.models.find(name, version)
        return json_reply(
            200, open_inference.described(name, list(self.models.versions(name)), found.inputs.specs, found.results)
        )

    def _metrics(self, headers: Headers) -> Reply:
        texts = {id(each.metrics): each.metrics for each in self.models.all()}
        return Reply(200, "".join(each.text() for each in texts.values()).encode(), CONTENT_TYPE)

    def _openapi(self, headers: Headers) -> Reply:
        return json_reply(200, openapi.document(ROUTES, self.models))

    def _page(self, headers: Headers) -> Reply:
        return Reply(200, openapi.page(ROUTES, self.models).encode(), "text/html; charset=utf-8")

    # -- health ----------------------------------------------------------------------------------------

    def _health(self, headers: Headers) -> Reply:
        return json_reply(200, {"status": "ok"})

    def _live(self, headers: Headers) -> Reply:
        return json_reply(200, {"live": True})

    def _ready(self, headers: Headers) -> Reply:
        waiting = self.models.waiting()
        if self._repository is not None:
            loading = self._loading is None or not self._loading.done()
            waiting = sorted({*waiting, *self._repository.failures, *(self._repository.names() if loading else [])})
        return json_reply(503 if waiting else 200, {"ready": not waiting, "waiting_for": waiting})

    def _model_ready(self, headers: Headers, name: str, version: str = "") -> Reply:
        is_ready = self.models.find(name, version).is_ready
        return json_reply(200 if is_ready else 503, {"name": name, "ready": is_ready})

    # -- the repository --------------------------------------------------------------------------------

    def _managed(self) -> Repository:
        if self._repository is None:
            raise Refusal(400, "the models of this service stay as they are: it was not started on a repository")
        return self._repository

    def _index(self, headers: Headers) -> Change:
        return Change(self._managed().index, self.limits)

    def _load(self, headers: Headers, name: str) -> Change:
        return Change(partial(self._managed().load, name), self.limits)

    def _unload(self, headers: Headers, name: str) -> Change:
        return Change(partial(self._managed().unload, name), self.limits)


class Plain(NamedTuple):
    """A request and an answer that hold arrays alone.

    Attributes:
        form: of the body.
        answer: the form of the answer.
    """

    form: Format
    answer: Format

    @property
    def hint(self) -> str:
        """A way to send larger bodies."""
        return ": send large arrays as application/x-npy or application/msgpack" if self.form.is_text else ""

    def scan(self, chunk: bytes) -> None:
        """Refuse bytes that begin a body of more than may be built."""
        self.form.scan(chunk)

    def is_quick(self, body: bytes) -> bool:
        """Tell whether reading a body takes no longer than handing it to another thread."""
        return self.form.is_quick(body)

    def read(self, body: bytes) -> Any:
        """The inputs."""
        return self.form.read(body)

    def is_text(self, name: str) -> bool:
        """Tell whether an output is written as text."""
        return self.answer.is_text

    def write(self, outputs: Mapping[str, Array]) -> Reply:
        """The answer with these outputs."""
        return Reply(200, self.answer.write(outputs), self.answer.type)


class Call(NamedTuple):
    """A prediction that was asked for.

    Attributes:
        predictor: of which model.
        find: finds it again, where another version has taken its place.
        exchange: the form of request and answer.
        limit: bytes of the body.
        limits: on the way that it comes.
    """

    predictor: Predictor
    find: Callable[[], Predictor]
    exchange: Exchange
    limit: int
    limits: Limits

    async def receive(self, chunks: AsyncIterable[bytes], entry: Admitted) -> bytes | Reply:
        """The body, or its refusal."""
        try:
            return await _received(chunks, entry, self.limits, self.check_size, self.exchange.scan)
        except InvalidInput as error:
            return self._invalid(error)

    def check_size(self, size: int) -> None:
        """Refuse a body that is too large."""
        if size > self.limit:
            raise _too_large(size, self.limit, self.exchange.hint)

    async def reply(self, body: bytes) -> Reply:
        """The answer to the body; cancelling it takes the rows back that have not started."""
        predictor, exchange = self.predictor, self.exchange
        try:
            found = await predictor.predict(await offload(0 if exchange.is_quick(body) else LARGE, self._read, body))
            outputs = found if isinstance(found, list) else [found]
            named = dict(zip(predictor.outputs, map(np.asarray, outputs), strict=True))
            sizes = (each.size * _WRITTEN if exchange.is_text(name) else each.nbytes for name, each in named.items())
            return await offload(sum(sizes), exchange.write, named)
        except InvalidInput as error:
            return self._invalid(error)
        except NotAcceptable as error:
            return Refusal(406, str(error)).reply
        except Overloaded as error:
            return _unavailable(error).reply
        except Unavailable as error:
            return await self._again(body, error)
        except Exception as error:
            requests_log.exception("a prediction of %s failed", predictor.name)
            return Refusal(500, f"the model failed: {type(error).__name__}").reply

    async def _again(self, body: bytes, error: Unavailable) -> Reply:
        """The answer of the predictor that has taken the place of this one since the request began, if one has."""
        try:
            predictor = self.find()
        except Refusal as refusal:
            return refusal.reply
        if predictor is self.predictor:
            return _unavailable(error).reply
        return await self._replace(predictor=predictor).reply(body)

    def _invalid(self, error: InvalidInput) -> Reply:
        return Refusal(400, str(error), expected=self.predictor.inputs.described()).reply

    def _read(self, body: bytes) -> Rows:
        return self.predictor.read(self.exchange.read(body))


class Change(NamedTuple):
    """A request to the repository.

    Attributes:
        carry_out: does it; returns what the answer holds.
        limits: on the way that its body comes, which is not read.
    """

    carry_out: Callable[[], Coroutine[Any, Any, Any]]
    limits: Limits

    async def receive(self, chunks: AsyncIterable[bytes], entry: Admitted) -> bytes | Reply:
        """The body, or its refusal."""
        return await _received(chunks, entry, self.limits, self.check_size, lambda chunk: None)

    def check_size(self, size: int) -> None:
        """Refuse a body that is too large."""
        if size > _OPTIONS_BYTES:
            raise _too_large(size, _OPTIONS_BYTES)

    async def reply(self, body: bytes) -> Reply:
        """The answer; the change goes on where the client leaves."""
        try:
            return json_reply(200, await asyncio.shield(asyncio.ensure_future(self.carry_out())) or {})
        except Refusal as refusal:
            return refusal.reply


_OPTIONS_BYTES = 1 << 16


async def _received(
    chunks: AsyncIterable[bytes], entry: Admitted, limits: Limits, check_size: Callable[[int], None],
    scan: Callable[[bytes], None],
) -> bytes | Reply:  # fmt: skip
    """The body, or the refusal of one that is too large, comes too slowly, or for which there is no memory."""
    parts, size = list[bytes](), 0
    try:
        async with Pace(limits, "the client") as pace:
            async for chunk in chunks:
                size += len(chunk)
                check_size(size)
                entry.announce(len(chunk))
                pace.moved(len(chunk))
                if not parts:
                    scan(chunk)  # what is far too much says so at its beginning
                parts.append(chunk)
    except Refusal as refusal:
        return refusal.reply
    except CommError as error:
        return Refusal(error.status, str(error), {"Retry-After": "1"} if isinstance(error, Busy) else {}).reply
    return parts[0] if len(parts) == 1 else await offload(size, b"".join, parts)


def _too_large(size: int, limit: int, hint: str = "") -> Refusal:
    return Refusal(413, f"the body has {size} bytes or more, expected at most {limit}{hint}")


@dataclass(frozen=True)
class Route:
    """One path of the service.

    Attributes:
        path: its parts; those in braces are parameters.
        answer: what answers.
        summary: its purpose, in a few words.
        is_post: asked for by POST instead of GET.
        access: those who may ask: ``all``, ``users`` or ``admins``.
    """

    path: str
    answer: Callable[..., Reply | Pending]
    summary: str
    is_post: bool = False
    access: str = "users"

    def match(self, parts: list[str]) -> dict[str, str] | None:
        """The parameters, where these are the parts of the path."""
        mine = self.path.split("/")
        if len(mine) != len(parts):
            return None
        pairs = list(zip(mine, parts, strict=True))
        if any(own != given for own, given in pairs if not own.startswith("{")):
            return None
        return {own.strip("{}"): given for own, given in pairs if own.startswith("{")}


def _each_version(
    path: str, answer: Callable[..., Reply | Pending], summary: str, is_post: bool = False
) -> list[Route]:
    """A path below a model, and below each of its versions."""
    below = ["v2/models/{name}", "v2/models/{name}/versions/{version}"]
    return [Route(f"{each}/{path}".rstrip("/"), answer, summary, is_post) for each in below]


ROUTES = [
    Route("predict", Front._predict, "a prediction of the only model, or of the first", is_post=True),
    Route("models", Front._list, "the models: inputs, outputs, sizes of batches"),
    Route("models/{name}", Front._describe, "one model"),
    Route("models/{name}/predict", Front._predict, "a prediction of that model", is_post=True),
    Route("healthz", Front._health, "200 while the process lives", access="all"),
    Route("readyz", Front._ready, "200 when all models are warm and take requests, else 503", access="all"),
    Route("metrics", Front._metrics, "Prometheus' text"),
    Route("openapi.json", Front._openapi, "the routes and the models' shapes, as OpenAPI"),
    Route("docs", Front._page, "the same as a page"),
    Route("health/live", Front._live, "200 while the process lives", access="all"),
    Route("health/ready", Front._ready, "200 when all models are warm and take requests, else 503", access="all"),
    Route("v2", Front._server, "name, version and extensions of the server"),
    Route("v2/health/live", Front._live, "200 while the process lives", access="all"),
    Route("v2/health/ready", Front._ready, "200 when all models are warm and take requests, else 503", access="all"),
    *_each_version("", Front._metadata, "inputs and outputs of a model"),
    *_each_version("ready", Front._model_ready, "200 when the model takes requests, else 503"),
    *_each_version("infer", Front._infer, "a prediction, as the Open Inference Protocol has it", is_post=True),
    Route("v2/repository/index", Front._index, "the models of the repository, and their state", True, "admins"),
    Route("v2/repository/models/{name}/load", Front._load, "load a model, or what has changed of it", True, "admins"),
    Route("v2/repository/models/{name}/unload", Front._unload, "take a model out of service", True, "admins"),
]


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _unavailable(error: Overloaded | Unavailable) -> Refusal:
    seconds = error.retry_after if isinstance(error, Overloaded) else 1.0
    return Refusal(503, str(error), {"Retry-After": str(max(1, math.ceil(seconds)))})
