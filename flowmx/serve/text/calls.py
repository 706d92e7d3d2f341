"""Requests for text: the reply to one, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from typing import NamedTuple

from flowmx.comm.admission import AdmittedRequest
from flowmx.comm.limits import Limits
from flowmx.comm.logs import requests_log
from flowmx.comm.offload import offload
from flowmx.generation import Generation, SchemaError, Token
from flowmx.serve.bodies import receive_body, too_large, unavailable
from flowmx.serve.errors import Overloaded, Unavailable
from flowmx.serve.replies import Reply, Stream, json_reply
from flowmx.serve.streams import begun
from flowmx.serve.text.errors import BadRequest, error_reply, error_value
from flowmx.serve.text.generators import Generators
from flowmx.serve.text.requests import TextRequest
from flowmx.serve.text.responses import DONE, Message, ReplyHead, event, usage
from flowmx.serve.text.tool_formats import find_format
from flowmx.serve.text.tool_replies import ToolReplies

__all__ = ["COST", "TextCall", "begin"]

COST = 64
"""Parsing and tokenizing a byte takes about as long as copying this many bytes."""
_EVENTS = 64
"""Number of events that wait for a slow reader before the generation pauses."""


class TextCall(NamedTuple):
    """A request for text.

    Attributes:
        parse: parses the body.
        generators: the generators of the service.
        limit: maximum size of the body in bytes.
        limits: limits on the speed and memory of the transfer.
    """

    parse: Callable[[bytes], TextRequest]
    generators: Generators
    limit: int
    limits: Limits

    async def receive(self, chunks: AsyncIterable[bytes], entry: AdmittedRequest) -> bytes | Reply:
        """Return the body, or its refusal."""
        return await receive_body(chunks, entry, self.limits, self.check_size, lambda chunk: None)

    def check_size(self, size: int) -> None:
        """Refuse a body that is too large."""
        if size > self.limit:
            raise too_large(size, self.limit)

    async def reply(self, body: bytes) -> Reply | Stream:
        """Return the reply; cancelling ends the generation at its next step."""
        try:
            request = await offload(COST * len(body), self.parse, body)
            replies = self._tool_replies(request)
            request = await self._with_schema(request, replies)
            generations = await begin(self.generators, request, len(body))
        except (Overloaded, Unavailable) as error:
            headers = unavailable(error).reply.headers
            return error_reply(503, str(error), headers=headers)
        except BadRequest as error:
            return error_reply(error.status, str(error), error.field)
        except (ValueError, TypeError) as error:  # the generator's checks of the prompt and the settings
            return error_reply(400, str(error))
        except ImportError as error:  # llguidance is not installed
            return error_reply(501, str(error), "response_format")
        head = ReplyHead.create(request.model, request.is_chat)
        if request.is_streamed:
            return Stream(await begun(_events(head, request, generations, replies)))
        try:
            completions = await asyncio.gather(*generations)
        except Exception as error:  # the model may raise anything
            return self._failure(request.model, error)
        finally:
            _cancel(generations)
        messages = [
            Message(each.text, (), each.finish_reason) if replies is None else replies.message(each)
            for each in completions
        ]
        return json_reply(200, head.whole(completions, _prefixes(request), messages))

    def _tool_replies(self, request: TextRequest) -> ToolReplies | None:
        """Return the calls of tools in the replies of a request, or None if it has no tools."""
        return None if request.tools is None else ToolReplies.of(request.tools, self.generators.find(request.model))

    async def _with_schema(self, request: TextRequest, replies: ToolReplies | None) -> TextRequest:
        """Return the request with a compiled schema, if it has one, or has to call a tool."""
        schema, field = request.settings.get("schema"), "response_format"
        if replies is not None and replies.tools.forced:
            schema, field = replies.tools.schema(replies.form), "tools"
        if not isinstance(schema, str):
            return request
        try:
            compiled = await self.generators.find(request.model).compile(schema)
        except (SchemaError, TypeError) as error:
            raise BadRequest(str(error), field) from None
        return request._replace(settings={**request.settings, "schema": compiled})

    def _failure(self, model: str, error: Exception) -> Reply:
        """Return the reply to a request whose generation failed."""
        if self.generators.find(model).is_closed:
            error = Unavailable(f"{model} has stopped")
        if isinstance(error, (Overloaded, Unavailable)):
            return error_reply(503, str(error), headers=unavailable(error).reply.headers)
        if isinstance(error, SchemaError):
            return error_reply(400, str(error), "response_format")
        requests_log.error("generating text with %s failed", model, exc_info=error)
        return error_reply(500, f"the model failed: {type(error).__name__}")


async def begin(generators: Generators, request: TextRequest, size: int) -> list[Generation]:
    """Begin the generation of each choice of each prompt; if one is refused, cancel the others.

    Args:
        generators: the generators of the service.
        request: the request.
        size: number of bytes of its body.

    Raises:
        BadRequest: the model is unknown.
        Unavailable: it is draining.
        Exception: of the generator.
    """
    generator, adapter = generators.resolve(request.model)
    if generator.is_closed:
        raise Unavailable(f"{request.model} is draining: it accepts no further requests")
    tools = request.tools
    values = None if tools is None else tools.values
    opening = find_format(generator.template).opening if tools is not None and tools.forced else ""
    prompts = [await offload(COST * size, generator.tokens, prompt, values, opening) for prompt in request.prompts]
    generations: list[Generation] = []
    try:
        for tokens in prompts:
            for choice in range(request.choices):
                generations.append(generator(tokens, adapter=adapter, **request.choice_settings(choice)))
    except BaseException:  # whatever the reason
        _cancel(generations)
        raise
    return generations


def _prefixes(request: TextRequest) -> list[str]:
    """Return what precedes the text of each choice."""
    texts = [prompt if request.has_echo and isinstance(prompt, str) else "" for prompt in request.prompts]
    return [text for text in texts for _ in range(request.choices)]


def _cancel(generations: Sequence[Generation]) -> None:
    for generation in generations:
        generation.cancel()


async def _events(
    head: ReplyHead, request: TextRequest, generations: Sequence[Generation], replies: ToolReplies | None
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream; closing it ends the generations."""
    parsers = [] if replies is None else [replies.parser() for _ in generations]
    try:
        for index, prefix in enumerate(_prefixes(request)):
            yield event(head.first(index, prefix))
        async with contextlib.aclosing(_merged(generations)) as tokens:
            async for index, token in tokens:
                if replies is None:
                    yield event(head.token(index, token))
                    continue
                for part in head.deltas(index, *replies.deltas(parsers[index], token), token):
                    yield event(part)
        if request.has_usage:
            yield event(head.usage(usage([await generation for generation in generations])))
        yield DONE
    except SchemaError as error:
        yield event(error_value(400, str(error), "response_format"))
    except Exception as error:  # the model may raise anything, and the status has been sent
        requests_log.error("generating text with %s failed", request.model, exc_info=error)
        yield event(error_value(500, f"the model failed: {type(error).__name__}"))
    finally:
        _cancel(generations)


async def _merged(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Token], None]:
    """Yield the tokens of several generations as they come, each with the index of its generation."""
    if len(generations) == 1:
        async for token in generations[0]:
            yield 0, token
        return
    queue: asyncio.Queue[tuple[int, Token] | None] = asyncio.Queue(_EVENTS)

    async def copy(index: int, generation: Generation) -> None:
        async for token in generation:
            await queue.put((index, token))

    async def copy_all() -> None:
        try:
            await asyncio.gather(*(copy(index, generation) for index, generation in enumerate(generations)))
        finally:
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    copying = asyncio.create_task(copy_all())
    try:
        while not (copying.done() and queue.empty()):
            item = await queue.get()
            if item is not None:
                yield item
        await copying
    finally:
        copying.cancel()
        await asyncio.wait([copying])
