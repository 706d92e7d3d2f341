"""Replies of OpenAI's API: tokens and completions of a generator to JSON."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.generation import Completion, Token

__all__ = ["DONE", "Message", "ReplyHead", "Value", "event"]

DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""

Value = dict[str, object]


def event(value: Mapping[str, object]) -> bytes:
    """Return a server-sent event with a JSON value."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


class Message(NamedTuple):
    """The message of a choice.

    Attributes:
        content: its text.
        tool_calls: its calls of tools.
        finish_reason: why it has ended.
    """

    content: str | None
    tool_calls: Sequence[Value]
    finish_reason: str | None


class ReplyHead(NamedTuple):
    """The values that all parts of one reply have in common.

    Attributes:
        id: the number of the reply.
        model: the name of the model.
        is_chat: whether the reply is a message of a chat.
        created: seconds since 1970.
    """

    id: str
    model: str
    is_chat: bool
    created: int

    @classmethod
    def create(cls, model: str, is_chat: bool) -> ReplyHead:
        """Return the head of a new reply."""
        prefix = "chatcmpl" if is_chat else "cmpl"
        return cls(f"{prefix}-{uuid.uuid4().hex}", model, is_chat, int(time.time()))

    def whole(self, completions: Sequence[Completion], prefixes: Sequence[str], messages: Sequence[Message]) -> Value:
        """Return a reply with all choices.

        Args:
            completions: those of each choice.
            prefixes: a text to put before each.
            messages: the message of each.
        """
        choices = [
            self._choice(index, *parts) for index, parts in enumerate(zip(completions, prefixes, messages, strict=True))
        ]
        kind = "chat.completion" if self.is_chat else "text_completion"
        version = max((completion.tokens[-1].version for completion in completions if completion.tokens), default=0)
        return {**self._head(kind, version), "choices": choices, "usage": usage(completions)}

    def first(self, index: int, prefix: str) -> Value:
        """Return the part of a stream that begins a choice."""
        return self._part(index, {"role": "assistant", "content": ""} if self.is_chat else prefix, None, None, 0)

    def token(self, index: int, token: Token) -> Value:
        """Return the part of a stream with one token of a choice."""
        delta: Value = {"content": token.text} if token.text or token.finish_reason is None else {}
        return self._part(index, delta if self.is_chat else token.text, token.finish_reason, token, token.version)

    def deltas(self, index: int, deltas: Sequence[Value], finish_reason: str | None, token: Token) -> list[Value]:
        """Return the parts of a stream for a token that changes a message in several ways, or not at all."""
        if not deltas and finish_reason is None and token.logprob is not None:
            deltas = [{"content": ""}]
        parts = [
            self._part(index, delta, None, None if place else token, token.version)
            for place, delta in enumerate(deltas)
        ]
        if finish_reason is not None:
            parts.append(self._part(index, {}, finish_reason, None if deltas else token, token.version))
        return parts

    def usage(self, counts: Value) -> Value:
        """Return the part of a stream with the numbers of tokens."""
        return {**self._head(self._kind, 0), "choices": [], "usage": counts}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _head(self, kind: str, version: int) -> Value:
        return {
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "system_fingerprint": f"weights-{version}",
        }  # fmt: skip

    def _part(
        self, index: int, content: Value | str, finish_reason: str | None, token: Token | None, version: int
    ) -> Value:
        logprobs = None if token is None or token.logprob is None else self._logprobs([token])
        choice: Value = {"index": index, "finish_reason": finish_reason, "logprobs": logprobs}
        choice["delta" if self.is_chat else "text"] = content
        return {**self._head(self._kind, version), "choices": [choice]}

    def _choice(self, index: int, completion: Completion, prefix: str, message: Message) -> Value:
        tokens = completion.tokens
        has_logprobs = bool(tokens) and tokens[0].logprob is not None
        choice: dict[str, Any] = {
            "index": index, "finish_reason": message.finish_reason,
            "logprobs": self._logprobs(tokens) if has_logprobs else None,
        }  # fmt: skip
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": message.content, "refusal": None}
            if message.tool_calls:
                choice["message"]["tool_calls"] = message.tool_calls
        else:
            choice["text"] = prefix + completion.text
        return choice

    def _logprobs(self, tokens: Sequence[Token]) -> Value:
        if self.is_chat:
            return {"content": [_chat_logprob(token) for token in tokens], "refusal": None}
        offsets, offset = [], 0
        for token in tokens:
            offsets.append(offset)
            offset += len(token.text)
        return {
            "tokens": [token.text for token in tokens], "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{each.text: each.logprob for each in token.top_logprobs} for token in tokens],
            "text_offset": offsets,
        }  # fmt: skip


def usage(completions: Sequence[Completion]) -> Value:
    """Return the numbers of tokens of completions."""
    prompt = sum(completion.usage.prompt_tokens for completion in completions)
    generated = sum(completion.usage.completion_tokens for completion in completions)
    cached = sum(completion.usage.cached_tokens for completion in completions)
    return {
        "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip


def _chat_logprob(token: Token) -> Value:
    top = [_token_logprob(each.text, each.logprob, each.bytes) for each in token.top_logprobs]
    return {**_token_logprob(token.name, token.logprob, token.bytes), "top_logprobs": top}


def _token_logprob(text: str, logprob: float | None, content: bytes | None) -> Value:
    return {"token": text, "logprob": logprob, "bytes": None if content is None else list(content)}
