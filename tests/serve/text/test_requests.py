"""Requests of OpenAI's API: which are accepted, and what the errors of the others say."""

import json

import pytest

from flowmx.serve.text.errors import BadRequest
from flowmx.serve.text.requests import chat_request, completion_request

MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "tiny", "messages": MESSAGES}
COMPLETION = {"model": "tiny", "prompt": "Once"}


def chat(**fields):
    return chat_request(json.dumps(CHAT | fields).encode())


def completion(**fields):
    return completion_request(json.dumps(COMPLETION | fields).encode())


def test_a_plain_request_has_the_defaults_of_the_generator():
    request = chat()
    assert (request.model, request.prompts, request.settings) == ("tiny", [MESSAGES], {})
    assert (request.choices, request.is_chat, request.is_streamed, request.has_usage) == (1, True, False, False)
    assert completion().settings == {"max_tokens": 16}


def test_all_settings_are_passed_on():
    numbers = {
        "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1, "frequency_penalty": 0.2,
        "presence_penalty": 0.3, "top_k": 40, "seed": 7, "priority": 1,
    }  # fmt: skip
    request = chat(
        **numbers, stop="END", max_completion_tokens=9, logprobs=True, top_logprobs=2, logit_bias={"5": -1},
        stream=True, stream_options={"include_usage": True}, user="someone", n=2, response_format={"type": "text"},
        tools=[{"type": "function", "function": {"name": "f"}}],
    )  # fmt: skip
    assert request.settings == numbers | {"stop": ["END"], "max_tokens": 9, "logprobs": 2, "logit_bias": {5: -1.0}}
    assert request.is_streamed
    assert request.has_usage
    assert [request.choice_settings(choice)["seed"] for choice in range(2)] == [7, 8]


TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]


def test_tools_and_the_choice_of_one():
    assert chat().tools is None
    assert chat(tools=TOOLS, tool_choice="none").tools is None
    tools = chat(tools=TOOLS).tools
    assert (tools.values, list(tools.parameters), tools.forced) == (TOOLS, ["f", "g"], ())
    assert chat(tools=TOOLS, tool_choice="required").tools.forced == ["f", "g"]
    choice = {"type": "function", "function": {"name": "g"}}
    assert chat(tools=TOOLS, tool_choice=choice).tools.forced == ["g"]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])],
)
def test_prompts_are_texts_or_tokens(prompt, prompts):
    assert list(completion(prompt=prompt).prompts) == prompts


def test_messages_become_those_of_chat_templates():
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": '{"a": [1]}'}},
            {"id": "2", "function": {"name": "f", "arguments": "{"}}, {"id": "3"},
        ]},
    ]  # fmt: skip
    system, assistant = chat(messages=messages).prompts[0]
    assert (system, assistant["content"]) == ({"role": "system", "content": "ab"}, "")
    one, two, three = assistant["tool_calls"]
    assert one["function"] == {"name": "f", "arguments": {"a": [1]}}  # what chat templates expect
    assert (two["function"]["arguments"], three) == ("{", {"id": "3"})


@pytest.mark.parametrize(
    ("parse", "fields", "field", "message"),
    [
        (chat, {"temprature": 1}, "temprature", "did you mean 'temperature'"),
        (chat, {"model": None}, "model", "model is missing, expected a string"),
        (chat, {"messages": []}, "messages", r"messages is \[\], expected a list of messages"),
        (chat, {"messages": ["a"]}, "messages[0]", "is not an object"),
        (chat, {"messages": [{"role": "robot"}]}, "messages[0].role", "'robot', expected one of"),
        (chat, {"messages": [MESSAGES[0] | {"content": [{"type": "image_url"}]}]}, "messages[0].content", "image_url"),
        (chat, {"temperature": "hot"}, "temperature", 'temperature is "hot", expected a number'),
        (chat, {"temperature": True}, "temperature", "expected a number"),
        (chat, {"seed": 1.5}, "seed", "expected an integer"),
        (chat, {"n": 17}, "n", "expected an integer from 1 to 16"),
        (chat, {"max_tokens": 0}, "max_tokens", "expected an integer from 1"),
        (chat, {"stop": [""]}, "stop", "strings that are not empty"),
        (chat, {"stop": 5}, "stop", "a string or a list of strings"),
        (chat, {"logit_bias": {"a": 1}}, "logit_bias", "numbers of tokens"),
        (chat, {"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        (chat, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        (chat, {"tool_choice": "required"}, "tool_choice", "needs tools"),
        (chat, {"tools": {}}, "tools", "expected a list of 1 to 128 objects"),
        (chat, {"tools": []}, "tools", "expected a list of 1 to 128 objects"),
        (chat, {"tools": ["f"]}, "tools[0]", "is not a function"),
        (chat, {"tools": [{"type": "custom"}]}, "tools[0]", "is not a function"),
        (chat, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0]", "the name of"),
        (
            chat,
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]},
            "tools[0]",
            "expected a JSON schema",
        ),
        (chat, {"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "one of f, g"),
        (chat, {"tools": TOOLS, "tool_choice": {"function": {"name": "h"}}}, "tool_choice", "one of f, g"),
        (chat, {"response_format": {"type": "xml"}}, "response_format", "expected the type text"),
        (chat, {"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        (completion, {"prompt": []}, "prompt", "expected a string, a list"),
        (completion, {"prompt": [1, "a"]}, "prompt", "expected a string, a list"),
        (completion, {"prompt": ["a"] * 9, "n": 2}, "n", "18 texts, expected at most 16"),
        (completion, {"echo": True, "logprobs": 1}, "echo", "not supported"),
        (completion, {"echo": True, "prompt": [1]}, "echo", "needs prompts that are text"),
        (completion, {"best_of": 2}, "best_of", "not supported"),
    ],
)
def test_a_wrong_field_is_named(parse, fields, field, message):
    with pytest.raises(BadRequest, match=message) as error:
        parse(**fields)
    assert error.value.field == field


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(BadRequest, match="the body is"):
        chat_request(body)
