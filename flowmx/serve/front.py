"""HTTP interface of a service, independent of any server: routes, refusals, bodies.

=============================  ====================================================================
``POST /predict``              a prediction of the only model, or of the first
``POST /models/NAME/predict``  a prediction of that model
``GET /models``                the models: inputs, outputs, sizes of batches
``GET /models/NAME``           one model
``GET /healthz``               200 while the process lives
``GET /readyz``                200 when every model is warm and takes requests, else 503
``GET /metrics``               Prometheus' text
=============================  ====================================================================

A request is answered in two steps. :meth:`Front.begin` looks at its head, and answers or refuses what needs no body,
such as requests for which there is no room. What it returns otherwise takes the body.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from flowmx.comm.metrics import CONTENT_TYPE
from flowmx.serve.errors import InvalidInput, Overloaded, Unavailable
from flowmx.serve.formats import FORMATS, JSON, Format, NotAcceptable, accepted
from flowmx.serve.predictor import Predictor

__all__ = ["Call", "Front", "Reply", "predictors_of"]

_log = logging.getLogger("flowmx.serve")
MAX_BODY = 64 << 20
MAX_TEXT = 1 << 20
"""Bytes of a JSON body: reading it holds the interpreter, ten milliseconds for a megabyte."""

Predictors = Predictor | Mapping[str, Predictor]


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    type: str = JSON.type
    headers: Mapping[str, str] = {}


class Refusal(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] = {}, **more: Any) -> None:
        super().__init__(message)
        self.reply = Reply(status, json.dumps({"error": message, **more}).encode(), headers=headers)


def predictors_of(given: Predictors) -> dict[str, Predictor]:
    """Predictors by name.

    Raises:
        TypeError: it holds something else.
        ValueError: there are none.
    """
    found = {given.name: given} if isinstance(given, Predictor) else dict(given)
    for name, each in found.items():
        if not isinstance(each, Predictor):
            raise TypeError(f"{name!r} is a {type(each).__name__}, expected a Predictor")
    if not found:
        raise ValueError("no predictors were given, expected one or a dict of some by name")
    return found


class Front:
    """The service of some predictors.

    Args:
        predictors: by name; the first answers ``/predict``.
        max_body: bytes of a body.
        max_text: bytes of a JSON body.
    """

    def __init__(self, predictors: Predictors, max_body: int = MAX_BODY, max_text: int = MAX_TEXT) -> None:
        self.predictors = predictors_of(predictors)
        self.max_body, self.max_text = max_body, min(max_text, max_body)

    def begin(self, method: str, path: str, headers: Mapping[str, str]) -> Reply | Call:
        """Answer what needs no body, or say what takes the body.

        Args:
            method: such as POST.
            path: with the slash at its beginning.
            headers: found whatever the case of the name, or with lower-case names.
        """
        try:
            return self._begin(method, path.strip("/").split("/"), headers)
        except Refusal as refusal:
            return refusal.reply

    def _begin(self, method: str, parts: list[str], headers: Mapping[str, str]) -> Reply | Call:
        match parts:
            case ["predict"]:
                _allow(method, "POST")
                return self._call(next(iter(self.predictors.values())), headers)
            case ["models", name, "predict"]:
                predictor = self._find(name)
                _allow(method, "POST")
                return self._call(predictor, headers)
            case ["models", name]:
                _allow(method, "GET", "HEAD")
                return _json(200, self._find(name).described())
            case [page] if page in _PAGES:
                _allow(method, "GET", "HEAD")
                return _PAGES[page](self)
        raise Refusal(
            404, f"there is no /{'/'.join(parts)[:200]}, expected /predict, /models, /models/NAME/predict, /healthz, "
            "/readyz or /metrics"
        )  # fmt: skip

    def _find(self, name: str) -> Predictor:
        if name not in self.predictors:
            raise Refusal(404, f"there is no model {name[:80]!r}, expected one of {', '.join(self.predictors)}")
        return self.predictors[name]

    def _call(self, predictor: Predictor, headers: Mapping[str, str]) -> Call:
        given = headers.get("content-type", "").partition(";")[0].strip().lower()
        if given not in FORMATS:
            raise Refusal(415, f"Content-Type is {given[:80]!r}, expected one of {', '.join(FORMATS)}")
        form = FORMATS[given]
        try:
            answer = accepted(headers.get("accept", ""), form)
        except NotAcceptable as error:
            raise Refusal(406, str(error)) from None
        call = Call(predictor, form, answer, self.max_text if form.is_text else self.max_body)
        length = headers.get("content-length", "")
        if length.isdecimal():
            call.check_size(int(length))
        try:
            predictor.check_room()
        except (Overloaded, Unavailable) as error:
            raise _unavailable(error) from None
        return call

    def _models(self) -> Reply:
        return _json(200, {"models": [each.described() for each in self.predictors.values()]})

    def _ready(self) -> Reply:
        waiting = [name for name, each in self.predictors.items() if not each.is_ready]
        return _json(503 if waiting else 200, {"ready": not waiting, "waiting_for": waiting})

    def _metrics(self) -> Reply:
        texts = {id(each.metrics): each.metrics for each in self.predictors.values()}
        return Reply(200, "".join(each.text() for each in texts.values()).encode(), CONTENT_TYPE)

    def _health(self) -> Reply:
        return _json(200, {"status": "ok"})


_PAGES = {
    "models": Front._models, "readyz": Front._ready, "healthz": Front._health, "metrics": Front._metrics,
}  # fmt: skip


class Call(NamedTuple):
    """A prediction that was asked for.

    Attributes:
        predictor: of which model.
        form: of the body.
        answer: the form of the answer.
        limit: bytes of the body.
    """

    predictor: Predictor
    form: Format
    answer: Format
    limit: int

    def too_large(self, size: int) -> Reply | None:
        """The refusal of a body of so many bytes, if it is too large."""
        try:
            self.check_size(size)
        except Refusal as refusal:
            return refusal.reply
        return None

    def check_size(self, size: int) -> None:
        """Refuse a body that is too large."""
        if size > self.limit:
            hint = ": send large arrays as application/x-npy or application/msgpack" if self.form.is_text else ""
            raise Refusal(413, f"the body has {size} bytes or more, expected at most {self.limit}{hint}")

    async def reply(self, body: bytes) -> Reply:
        """The answer to the body; cancelling it takes the rows back that have not started."""
        predictor = self.predictor
        try:
            found = await predictor(self.form.read(body))
            outputs = found if isinstance(found, list) else [found]
            named = dict(zip(predictor.outputs, map(np.asarray, outputs), strict=True))
            return Reply(200, self.answer.write(named), self.answer.type)
        except InvalidInput as error:
            return Refusal(400, str(error), expected=predictor.inputs.described()).reply
        except NotAcceptable as error:
            return Refusal(406, str(error)).reply
        except (Overloaded, Unavailable) as error:
            return _unavailable(error).reply
        except Exception as error:
            _log.exception("a prediction of %s failed", predictor.name)
            return Refusal(500, f"the model failed: {type(error).__name__}").reply


def _allow(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise Refusal(405, f"the method is {method[:20]}, expected {allowed[0]}", {"Allow": ", ".join(allowed)})


def _unavailable(error: Overloaded | Unavailable) -> Refusal:
    seconds = error.retry_after if isinstance(error, Overloaded) else 1.0
    return Refusal(503, str(error), {"Retry-After": str(max(1, math.ceil(seconds)))})


def _json(status: int, value: Any) -> Reply:
    return Reply(status, json.dumps(value).encode())
