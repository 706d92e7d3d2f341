"""One generation: the tokens of a request, as they come and as a whole."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, NamedTuple, Protocol

from flowmx.errors import EngineError
from flowmx.generation.prompt_lookup import PromptLookup
from flowmx.generation.results import Completion, Token, TokenLogprob, Usage
from flowmx.generation.sampling import Choice, Sampler
from flowmx.generation.scheduling import TokenSequence
from flowmx.generation.schemas import Schema
from flowmx.generation.stopping import StopStrings

__all__ = ["Generation", "Request", "TextStream", "Vocabulary"]

_MAX_UNREAD = 64
"""The number of unread tokens at which a sequence pauses."""


class TextStream(Protocol):
    """The text of tokens, as complete characters."""

    def push(self, token: int) -> str:
        """Add a token; return the characters that it completes."""


class Vocabulary(Protocol):
    """The part of a tokenizer that a generation uses."""

    @property
    def end_tokens(self) -> frozenset[int]: ...

    def stream(self) -> TextStream: ...

    def token_text(self, number: int) -> str: ...


class Ending(NamedTuple):
    """The conditions that end a generation.

    Attributes:
        max_tokens: the maximum number of tokens.
        tokens: the tokens that end it.
        strings: the strings that end it.
    """

    max_tokens: int
    tokens: frozenset[int]
    strings: StopStrings


class Request:
    """A request inside a generator.

    Args:
        sequence: its tokens.
        sampler: chooses them.
        ending: when it ends.
        vocabulary: the tokenizer; None if tokens have no text.
        lookup: guesses the next tokens, if it is not None.
        wake: called when the generator has something to do for the request.
        loop: the event loop on which its tokens are read.

    Attributes:
        tokens: the tokens generated so far.
        finish_reason: why the generation has ended, else None.
        started: the time of the request, in seconds of a monotonic clock.
        latest: the time of the latest token, or None.
    """

    def __init__(
        self, sequence: TokenSequence, sampler: Sampler, ending: Ending, vocabulary: Vocabulary | None,
        lookup: PromptLookup | None, wake: Callable[[], None], loop: asyncio.AbstractEventLoop,
    ) -> None:  # fmt: skip
        self.sequence, self.sampler, self._ending = sequence, sampler, ending
        self._vocabulary, self._lookup, self._wake, self._loop = vocabulary, lookup, wake, loop
        self._token_bytes: Callable[[int], bytes] | None = getattr(vocabulary, "token_bytes", None)
        self._stream = None if vocabulary is None else vocabulary.stream()
        self.tokens: list[Token] = []
        self.finish_reason: str | None = None
        self.started = time.monotonic()
        self.latest: float | None = None
        self._unread: deque[Token] = deque()
        self._error: BaseException | None = None
        self._is_read, self._is_ready = True, True
        self._changed: set[asyncio.Future[None]] = set()

    # -- the generator's side --------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether no further token comes."""
        return self.finish_reason is not None or self._error is not None

    def add(self, choice: Choice, version: int) -> None:
        """Add a token; afterwards the request may have ended."""
        text, reason = self._text(choice)
        top = tuple(
            TokenLogprob(number, self._name(number), logprob, self._bytes(number)) for number, logprob in choice.top
        )
        token = Token(choice.number, text, choice.logprob, top, version, reason)
        if choice.logprob is not None:
            token = token._replace(name=self._name(choice.number), bytes=self._bytes(choice.number))
        self.tokens.append(token)
        if self._is_read:
            self._unread.append(token)
        self.latest = time.monotonic()
        self.finish_reason = reason
        self._limit_unread()
        self._notify()

    def fail(self, error: BaseException) -> None:
        """End the request with an error."""
        if not self.has_ended:
            self._error = error
            self._notify()

    def next_drafts(self) -> list[int]:
        """Return guesses of the next tokens."""
        if self._lookup is None:
            return []
        room = self._ending.max_tokens - len(self.tokens) - 1
        return self._lookup.drafts(self.sequence.tokens)[: max(room, 0)]

    def _text(self, choice: Choice) -> tuple[str, str | None]:
        """Return the text that a token completes, and why the generation ends with it, or None."""
        ending = self._ending
        if choice.number in ending.tokens:
            return ending.strings.flush(), "stop"
        text = ending.strings.push("" if self._stream is None else self._stream.push(choice.number))
        if ending.strings.is_reached:
            return text, "stop"
        if choice.is_last:
            return text + ending.strings.flush(), "stop"
        if len(self.tokens) + 1 >= ending.max_tokens:
            return text + ending.strings.flush(), "length"
        return text, None

    def _name(self, number: int) -> str:
        return "" if self._vocabulary is None else self._vocabulary.token_text(number)

    def _bytes(self, number: int) -> bytes | None:
        if self._token_bytes is None:
            return None
        try:
            return self._token_bytes(number) or None
        except TypeError:  # the tokenizer's decoder does not join bytes
            return None

    def hold(self) -> None:
        """Keep the request out of steps until :meth:`begin`."""
        self._is_ready = False
        self._limit_unread()

    def begin(self, schema: Schema) -> None:
        """Allow the request to run, with texts that fit a schema."""
        self.sampler.constraint = schema.begin()
        self._is_ready = True
        self._limit_unread()

    # -- the reader's side -----------------------------------------------------------------------------

    def cancel(self) -> None:
        """End the request at the next step."""
        if not self.has_ended:
            self.finish_reason = "cancelled"
            self.sequence.cancelled = True
            self._notify()
            self._wake()

    async def next_token(self) -> Token | None:
        """Return the next unread token, or None at the end."""
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self.finish_reason is not None:
                return None
            await self._change()
        token = self._unread.popleft()
        self._limit_unread()
        return token

    async def whole(self) -> Completion:
        """Wait for the end, and return all tokens. Unread tokens do not pause the request any more."""
        self._is_read = False
        self._limit_unread()
        while self.finish_reason is None:
            if self._error is not None:
                raise self._error
            await self._change()
        text = "".join(token.text for token in self.tokens)
        return Completion(text, tuple(self.tokens), self.finish_reason, self.usage())

    def usage(self) -> Usage:
        """Return the numbers of tokens so far."""
        return Usage(self.sequence.prompt_length, len(self.tokens), self.sequence.cached or 0)

    def _limit_unread(self) -> None:
        """Pause the sequence while its reader is slow."""
        paused = not self._is_ready or (self._is_read and len(self._unread) >= _MAX_UNREAD)
        if self.sequence.paused and not paused:
            self.sequence.paused = False
            self._wake()
        self.sequence.paused = paused

    async def _change(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise EngineError("the generation belongs to another event loop: read it where it was requested")
        future = self._loop.create_future()
        self._changed.add(future)
        try:
            await future
        finally:
            self._changed.discard(future)

    def _notify(self) -> None:
        for future in self._changed:
            if not future.done():
                future.set_result(None)


class Generation:
    """A generation: iterate over its tokens with ``async for``, or await the whole :class:`Completion`.

    If it is closed, cancelled or deleted before its end, the generator stops computing it at the next step.

    Example:
        >>> async for token in generator("Once upon a time", max_tokens=50):
        ...     print(token.text, end="")
        >>> completion = await generator("Once upon a time", max_tokens=50)
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._end = weakref.finalize(self, request.cancel)
        self._end.atexit = False

    def __aiter__(self) -> AsyncIterator[Token]:
        return self

    async def __anext__(self) -> Token:
        token = await self._request.next_token()
        if token is None:
            raise StopAsyncIteration
        return token

    def __await__(self) -> Generator[Any, None, Completion]:
        return self._whole().__await__()

    async def _whole(self) -> Completion:
        try:
            return await self._request.whole()
        except asyncio.CancelledError:
            self.cancel()
            raise

    @property
    def usage(self) -> Usage:
        """The numbers of tokens so far."""
        return self._request.usage()

    def cancel(self) -> None:
        """Stop at the next step: iteration ends, and the completion has the finish reason ``"cancelled"``."""
        self._request.cancel()

    async def aclose(self) -> None:
        """Stop at the next step."""
        self.cancel()
