"""The routes of text generation: OpenAI's API and the chat page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flowmx.comm.limits import Limits
from flowmx.serve.replies import Reply, json_reply
from flowmx.serve.request_head import Head
from flowmx.serve.route import Route
from flowmx.serve.text import chat_page
from flowmx.serve.text.calls import TextCall
from flowmx.serve.text.errors import BadRequest, error_reply
from flowmx.serve.text.generators import Generators
from flowmx.serve.text.requests import TextRequest, chat_request, completion_request

__all__ = ["TEXT_ROUTES", "TextService"]


class TextService(Protocol):
    """A service that generates text."""

    @property
    def generators(self) -> Generators: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def max_text(self) -> int: ...


def _call(parse: Callable[[bytes], TextRequest]) -> Callable[[TextService, Head], TextCall]:
    """Return the answer of a route whose body is parsed by a function."""

    def answer(service: TextService, head: Head) -> TextCall:
        call = TextCall(parse, service.generators, service.max_text, service.limits)
        length = head.headers.get("content-length", "")
        if length.isdecimal():
            call.check_size(int(length))
        return call

    return answer


def _models(service: TextService, head: Head) -> Reply:
    return json_reply(200, {"object": "list", "data": [_model(service, name) for name in service.generators.names()]})


def _one_model(service: TextService, head: Head, name: str) -> Reply:
    try:
        service.generators.find(name)
    except BadRequest as error:
        return error_reply(error.status, str(error), error.field)
    return json_reply(200, _model(service, name))


def _model(service: TextService, name: str) -> dict[str, object]:
    adapter = service.generators.resolve(name)[1]
    parent = {} if adapter is None else {"parent": name.removesuffix(f":{adapter}")}
    return {"id": name, "object": "model", "created": 0, "owned_by": "flowmx"} | parent


def _page(service: TextService, head: Head) -> Reply:
    page = chat_page.page(service.generators.names())
    return Reply(200, page.encode(), "text/html; charset=utf-8", {"Content-Security-Policy": chat_page.POLICY})


TEXT_ROUTES = [
    Route("v1/chat/completions", _call(chat_request), "the reply to a chat, as in OpenAI's API", is_post=True),
    Route("v1/completions", _call(completion_request), "the continuation of a text, as in OpenAI's API", True),
    Route("v1/models", _models, "the models that generate text"),
    Route("v1/models/{name}", _one_model, "one model that generates text"),
    Route("chat", _page, "a page to chat with a model", access="all"),
]
