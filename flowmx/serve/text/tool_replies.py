"""Replies with calls of tools: tokens to the messages and deltas of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flowmx.generation import Completion, Generator, Token
from flowmx.serve.text.responses import Message, Value
from flowmx.serve.text.tool_formats import ToolFormat, find_format
from flowmx.serve.text.tool_parser import Call, CallBegin, CallPart, Event, Text, ToolParser
from flowmx.serve.text.tools import Tools

__all__ = ["ToolReplies"]


class ToolReplies(NamedTuple):
    """The calls in the texts of one request.

    Attributes:
        tools: the tools of the request.
        form: how the model writes calls.
        markers: the texts of control tokens that begin a call, by number.
    """

    tools: Tools
    form: ToolFormat
    markers: Mapping[int, str]

    @classmethod
    def of(cls, tools: Tools, generator: Generator) -> ToolReplies:
        """Return those of a generator."""
        form = find_format(generator.template)
        form = form.forced if tools.forced else form
        return cls(tools, form, _control_tokens(generator, form))

    def parser(self) -> ToolParser:
        """Return the parser of a new text."""
        return ToolParser(self.form, self.tools.parameters, bool(self.tools.forced))

    def message(self, completion: Completion) -> Message:
        """Return the message of a completion."""
        parser = self.parser()
        events = parser.push("".join(map(self._text, completion.tokens))) + parser.flush()
        texts = [event.text for event in events if isinstance(event, Text)]
        calls = [_call(call) for call in parser.calls]
        reason = _reason(completion.finish_reason, parser)
        text = "".join(texts)
        return Message((text.strip() or None) if calls else text, calls, reason)

    def deltas(self, parser: ToolParser, token: Token) -> tuple[list[Value], str | None]:
        """Return the changes of a message by a token, and why it ends, or None."""
        events = parser.push(self._text(token))
        if token.finish_reason is not None:
            events += parser.flush()
        return [_delta(event) for event in events], _reason(token.finish_reason, parser)

    def _text(self, token: Token) -> str:
        return self.markers.get(token.number, "") + token.text


def _control_tokens(generator: Generator, form: ToolFormat) -> dict[int, str]:
    """Return the markers that are control tokens, which texts do not have, by number."""
    tokenizer = generator.tokenizer
    find = getattr(tokenizer, "token_bytes", None)
    if tokenizer is None or find is None:
        return {}
    numbers = {marker: tokenizer.encode(marker, special=False) for marker in (*form.markers, *form.separators)}
    try:
        return {each[0]: marker for marker, each in numbers.items() if len(each) == 1 and not find(each[0])}
    except TypeError:  # the tokenizer's decoder does not join bytes
        return {}


def _reason(reason: str | None, parser: ToolParser) -> str | None:
    return "tool_calls" if reason == "stop" and parser.calls else reason


def _call(call: Call) -> Value:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _delta(event: Event) -> Value:
    if isinstance(event, CallBegin):
        call: Value = {"index": event.place, **_call(Call(event.id, event.name, ""))}
        return {"tool_calls": [call]}
    if isinstance(event, CallPart):
        return {"tool_calls": [{"index": event.place, "function": {"arguments": event.text}}]}
    return {"content": event.text}
