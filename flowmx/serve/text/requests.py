"""Requests of OpenAI's API for chats and completions: JSON to prompts and settings of a generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

from flowmx.generation import Schema
from flowmx.generation.schemas import requested_schema
from flowmx.serve.text.errors import BadRequest
from flowmx.serve.text.fields import Fields, is_texts, is_tokens, parse_object
from flowmx.serve.text.tools import Tools, parse_tools, with_parsed_arguments

__all__ = ["Message", "Prompt", "Settings", "TextRequest", "chat_request", "completion_request", "generate_request"]

_MAX_CHOICES = 16
"""Maximum number of choices of a request."""
_MAX_STOPS = 16
_MAX_LOGPROBS = 20
_DEFAULT_GENERATE = 20
"""Number of tokens of a text that does not specify it, as in the Open Inference Protocol."""
_DEFAULT_COMPLETION = 16
"""Number of tokens of a completion that does not specify it, as in OpenAI's API."""

Message = dict[str, object]
Prompt = str | list[int] | list[Message]
"""A text, tokens, or the messages of a chat."""


class Settings(TypedDict, total=False):
    """The settings of one generation; those that are missing have the generator's defaults."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: Sequence[str]
    logprobs: int
    priority: int
    schema: str | Schema


class TextRequest(NamedTuple):
    """A request for text.

    Attributes:
        model: the name of the model.
        prompts: the prompts; one for a chat.
        settings: the settings of each generation.
        choices: the number of choices for each prompt.
        is_chat: whether the reply is a message of a chat.
        is_streamed: whether each token is sent as soon as it is known.
        has_usage: whether a stream ends with the numbers of tokens.
        has_echo: whether a completion begins with its prompt.
        tools: the functions that the model may call, or None.
    """

    model: str
    prompts: Sequence[Prompt]
    settings: Settings
    choices: int
    is_chat: bool
    is_streamed: bool
    has_usage: bool
    has_echo: bool = False
    tools: Tools | None = None

    def choice_settings(self, choice: int) -> Settings:
        """Return the settings of one choice; with a seed, each choice has another one."""
        settings = self.settings.copy()
        if "seed" in settings:
            settings["seed"] += choice
        return settings


_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
_INTEGERS = ("top_k", "seed", "priority")
_COMMON = ("model", "max_tokens", "n", "stop", "stream", "stream_options", "logprobs", "logit_bias", "response_format")
_IGNORED = ("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key")
"""Fields about the client's account, without effect on the text."""
_CHAT_NAMES = (
    *_COMMON, *_NUMBERS, *_INTEGERS, "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice",
    "parallel_tool_calls", "modalities",
)  # fmt: skip
_COMPLETION_NAMES = (*_COMMON, *_NUMBERS, *_INTEGERS, "prompt", "echo", "suffix", "best_of")
_GENERATE_NAMES = (
    *_NUMBERS, *_INTEGERS, "max_tokens", "stop", "logit_bias", "best_of", "exclude_input_in_output",
)  # fmt: skip
_GENERATE_IGNORED = ("stream",)
"""Parameters of models of Triton, whose meaning is in the path here."""


def chat_request(body: bytes) -> TextRequest:
    """Parse the body of ``POST /v1/chat/completions``.

    Raises:
        BadRequest: the JSON or a field is malformed; the error names the field.
    """
    fields = Fields(parse_object(body), _CHAT_NAMES, _IGNORED)
    fields.expect("modalities", ["text"])
    settings = _settings(fields)
    for name in ("max_tokens", "max_completion_tokens"):
        if fields.get(name) is not None:
            settings["max_tokens"] = fields.count(name, 0, 1, 1 << 30)
    if fields.flag("logprobs"):
        settings["logprobs"] = fields.count("top_logprobs", 0, 0, _MAX_LOGPROBS)
    elif fields.get("top_logprobs") is not None:
        raise BadRequest("top_logprobs needs logprobs: true", "top_logprobs")
    return _request(fields, [_messages(fields)], settings, is_chat=True)._replace(tools=parse_tools(fields))


def completion_request(body: bytes) -> TextRequest:
    """Parse the body of ``POST /v1/completions``.

    Raises:
        BadRequest: the JSON or a field is malformed; the error names the field.
    """
    fields = Fields(parse_object(body), _COMPLETION_NAMES, _IGNORED)
    fields.expect("suffix", "")
    fields.expect("best_of", 1)
    settings = _settings(fields)
    settings["max_tokens"] = fields.count("max_tokens", _DEFAULT_COMPLETION, 1, 1 << 30)
    if fields.get("logprobs") is not None:
        settings["logprobs"] = fields.count("logprobs", 0, 0, _MAX_LOGPROBS)
    has_echo = fields.flag("echo")
    if has_echo and "logprobs" in settings:
        raise BadRequest("echo with logprobs is not supported: leave one of them out", "echo")
    prompts = _prompts(fields)
    if has_echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise BadRequest("echo needs prompts that are text", "echo")
    return _request(fields, prompts, settings, is_chat=False)._replace(has_echo=has_echo)


def generate_request(model: str, is_streamed: bool, body: bytes) -> TextRequest:
    """Parse the body of ``POST /v2/models/MODEL/generate`` or ``generate_stream``.

    Fields besides ``text_input`` and ``parameters`` are parameters too, as in Triton.

    Args:
        model: the name of the model.
        is_streamed: whether each token is sent as soon as it is known.
        body: the body.

    Raises:
        BadRequest: the JSON or a field is malformed; the error names the field.
    """
    values = parse_object(body)
    common = ("text_input", "parameters", "id")
    parameters = Fields(values, values).mapping("parameters") or {}
    more = {name: value for name, value in values.items() if name not in common}
    fields = Fields({**more, **parameters}, _GENERATE_NAMES, _GENERATE_IGNORED)
    fields.expect("best_of", 1)
    fields.expect("exclude_input_in_output", True)
    settings = _settings(fields)
    settings["max_tokens"] = fields.count("max_tokens", _DEFAULT_GENERATE, 1, 1 << 30)
    text = Fields(values, values).text("text_input")
    return TextRequest(model, [text], settings, 1, is_chat=False, is_streamed=is_streamed, has_usage=False)


def _request(fields: Fields, prompts: Sequence[Prompt], settings: Settings, is_chat: bool) -> TextRequest:
    choices = fields.count("n", 1, 1, _MAX_CHOICES)
    if choices * len(prompts) > _MAX_CHOICES:
        raise BadRequest(
            f"{len(prompts)} prompts with {choices} choices each are {choices * len(prompts)} texts, expected at most "
            f"{_MAX_CHOICES}", "n",
        )  # fmt: skip
    is_streamed = fields.flag("stream")
    options = fields.mapping("stream_options") or {}
    if options and not is_streamed:
        raise BadRequest("stream_options needs stream: true", "stream_options")
    has_usage = options.get("include_usage", False) is True
    return TextRequest(fields.text("model"), prompts, settings, choices, is_chat, is_streamed, has_usage)


def _settings(fields: Fields) -> Settings:
    """Return the settings that chats and completions have in common. The generator checks their ranges."""
    settings: Settings = {}
    numbers = {name: fields.number(name) for name in _NUMBERS} | {name: fields.integer(name) for name in _INTEGERS}
    settings.update({name: value for name, value in numbers.items() if value is not None})  # type: ignore[typeddict-item]
    if stops := fields.texts("stop"):
        if len(stops) > _MAX_STOPS or "" in stops:
            raise fields.wrong("stop", f"at most {_MAX_STOPS} strings that are not empty")
        settings["stop"] = stops
    if (bias := fields.mapping("logit_bias")) is not None:
        settings["logit_bias"] = _logit_bias(fields, bias)
    if (schema := _schema(fields.mapping("response_format"))) is not None:
        settings["schema"] = schema
    return settings


def _schema(response_format: Mapping[str, object] | None) -> str | Schema | None:
    """Return the schema of a format, or None."""
    try:
        return requested_schema(None, response_format)
    except ValueError as error:
        raise BadRequest(str(error), "response_format") from None


def _logit_bias(fields: Fields, values: Mapping[str, object]) -> dict[int, float]:
    bias = {}
    for token, value in values.items():
        if not token.isdecimal() or len(token) > 9 or not isinstance(value, (int, float)) or isinstance(value, bool):
            raise fields.wrong("logit_bias", "an object with numbers of tokens as names and numbers as values")
        bias[int(token)] = float(value)
    return bias


def _prompts(fields: Fields) -> Sequence[Prompt]:
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if is_tokens(prompt):
        return [prompt]
    if is_texts(prompt) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(is_tokens(each) for each in prompt):
        return prompt
    raise fields.wrong("prompt", "a string, a list of strings, a list of tokens, or a list of lists of tokens")


def _messages(fields: Fields) -> list[Message]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", 'a list of messages such as {"role": "user", "content": "Hello"}')
    return [_message(index, message) for index, message in enumerate(messages)]


_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""The roles of messages, and those that chat templates know."""


def _message(index: int, message: object) -> Message:
    field = f"messages[{index}]"
    if not isinstance(message, dict):
        raise BadRequest(f"{field} is not an object", field)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRequest(f"the role of {field} is {role!r}, expected one of {', '.join(_ROLES)}", f"{field}.role")
    content = _content(f"{field}.content", message.get("content"))
    return {**with_parsed_arguments(message), "role": _ROLES[role], "content": content}


def _content(field: str, content: object) -> str:
    """Return the text of a message: a string, or a list of parts."""
    if isinstance(content, str) or content is None:
        return content or ""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise BadRequest(f"{field} has a part of the type {kind!r}, expected a string or parts of text", field)
        texts.append(text)
    return "".join(texts)
