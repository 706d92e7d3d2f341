"""The generate extension of the Open Inference Protocol: streams of texts, and of the results of sessions.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/generate_rest.yaml, and Triton's
extension of the same name. A request is an object with the inputs by name: ``text_input`` for a generator of text. A
model with states has its own inputs, along the first axis, as the calls of a new session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from flowmx.serve.bodies import PendingCall
from flowmx.serve.errors import InvalidInput
from flowmx.serve.formats import JSON, Format, parsed
from flowmx.serve.inputs import Array
from flowmx.serve.large_bodies import text_of
from flowmx.serve.replies import Refusal, Reply, json_reply
from flowmx.serve.request_head import Head
from flowmx.serve.route import Route
from flowmx.serve.sessions.routes import SessionService
from flowmx.serve.sessions.stream_call import StreamCall
from flowmx.serve.text.generate_calls import GenerateCall
from flowmx.serve.text.routes import TextService

__all__ = ["GENERATE_ROUTES", "text_metadata"]

_OPTIONS = ("id", "parameters")
"""Names in a request that are not inputs."""


class GenerateService(SessionService, TextService, Protocol):
    """A service with models that have states, and with generators of text."""


def _generate(
    service: GenerateService, head: Head, name: str, version: str = "", is_streamed: bool = False
) -> PendingCall | StreamCall:  # fmt: skip
    if name not in service.generators.names():
        return _session_stream(service, head, name, version, is_streamed)
    if version not in ("", "1"):
        raise Refusal(404, f"there is no version {version[:80]} of {name}, expected 1")
    call = GenerateCall(name, is_streamed, service.generators, service.max_text, service.limits)
    _check_length(call.check_size, head)
    return call


def _session_stream(
    service: GenerateService, head: Head, name: str, version: str, is_streamed: bool
) -> StreamCall:  # fmt: skip
    predictor = service.models.find(name, version)
    if not predictor.has_sessions or not is_streamed:
        raise Refusal(400, f"{name} generates no text, expected a request to /v2/models/{name}/infer")
    form = _form(name, version or next(reversed(service.models.versions(name))))
    call = StreamCall(predictor, form, form, service.max_text, service.limits, service.budget)
    _check_length(call.check_size, head)
    return call


def _check_length(check_size: Callable[[int], None], head: Head) -> None:
    length = head.headers.get("content-length", "")
    if length.isdecimal():
        check_size(int(length))


def _form(name: str, version: str) -> Format:
    """Return the format of requests and results of a model with states."""

    def read(body: bytes) -> Mapping[str, Any]:
        request = parsed(body)
        if not isinstance(request, dict):
            raise InvalidInput(f"the body is a {type(request).__name__}, expected an object with the inputs by name")
        return {key: value for key, value in request.items() if key not in _OPTIONS}

    def write(outputs: Mapping[str, Array]) -> bytes:
        size = sum(array.size for array in outputs.values())
        return text_of({"model_name": name, "model_version": version, **outputs}, size)

    return JSON._replace(read=read, write=write)


def text_metadata(name: str) -> Reply:
    """Return the description of a generator of text."""
    text = {"datatype": "BYTES", "shape": [1]}
    return json_reply(200, {
        "name": name, "versions": ["1"], "platform": "flowmx",
        "inputs": [{"name": "text_input", **text}], "outputs": [{"name": "text_output", **text}],
    })  # fmt: skip


_STREAM = partial(_generate, is_streamed=True)
_PREFIXES = ("v2/models/{name}", "v2/models/{name}/versions/{version}")
GENERATE_ROUTES = [
    *(Route(f"{prefix}/generate", _generate, "the continuation of a text", True) for prefix in _PREFIXES),
    *(Route(f"{prefix}/generate_stream", _STREAM, "a text, or the results of a session, as a stream of events", True)
      for prefix in _PREFIXES),
]  # fmt: skip
