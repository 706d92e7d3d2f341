"""Requests of the Open Inference Protocol for text: ``generate`` and ``generate_stream``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from functools import partial
from typing import NamedTuple

from flowmx.comm.admission import AdmittedRequest
from flowmx.comm.limits import Limits
from flowmx.comm.logs import requests_log
from flowmx.comm.offload import offload
from flowmx.generation import Generation
from flowmx.serve.bodies import receive_body, too_large, unavailable
from flowmx.serve.errors import Overloaded, Unavailable
from flowmx.serve.replies import Refusal, Reply, Stream, json_reply
from flowmx.serve.streams import begun
from flowmx.serve.text.calls import COST, begin
from flowmx.serve.text.errors import BadRequest
from flowmx.serve.text.generators import Generators
from flowmx.serve.text.requests import generate_request
from flowmx.serve.text.responses import event

__all__ = ["GenerateCall"]


class GenerateCall(NamedTuple):
    """A request for the continuation of a text.

    Attributes:
        name: the name of the model.
        is_streamed: whether each token is sent as soon as it is known.
        generators: the generators of the service.
        limit: maximum size of the body in bytes.
        limits: limits on the speed and memory of the transfer.
    """

    name: str
    is_streamed: bool
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
            request = await offload(COST * len(body), partial(generate_request, self.name, self.is_streamed), body)
            (generation,) = await begin(self.generators, request, len(body))
            if self.is_streamed:
                return Stream(await begun(self._events(generation)))
            try:
                text = (await generation).text
            finally:
                generation.cancel()
        except Exception as error:  # the model may raise anything
            return self._refusal(error).reply
        return json_reply(200, self._value(text))

    def _value(self, text: str, **more: object) -> dict[str, object]:
        return {"model_name": self.name, "model_version": "1", "text_output": text, **more}

    def _refusal(self, error: Exception) -> Refusal:
        if isinstance(error, BadRequest):
            return Refusal(error.status, str(error))
        if self.generators.find(self.name).is_closed:
            error = Unavailable(f"{self.name} has stopped")
        if isinstance(error, (Overloaded, Unavailable)):
            return unavailable(error)
        if isinstance(error, (ValueError, TypeError)):  # the generator's checks of the prompt and the settings
            return Refusal(400, str(error))
        requests_log.error("generating text with %s failed", self.name, exc_info=error)
        return Refusal(500, f"the model failed: {type(error).__name__}")

    async def _events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream; closing it ends the generation."""
        has_begun = False
        try:
            async for token in generation:
                yield event(self._value(token.text, done=token.finish_reason is not None))
                has_begun = True
        except Exception as error:  # the model may raise anything
            if not has_begun:
                raise
            yield event({"error": str(self._refusal(error))})
        finally:
            generation.cancel()
