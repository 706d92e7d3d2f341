"""Calls of tools: how models write them, their deltas in streams, and calls that are forced."""

import codecs
import json
import random

import jsonschema
import numpy as np
import pytest

import flowmx as mx
from flowmx.generation import ChatTemplate, Generator
from flowmx.serve.text.tool_formats import HERMES, LLAMA, MISTRAL, MISTRAL_NAMES, find_format
from flowmx.serve.text.tool_parser import CallBegin, CallPart, Text, ToolParser
from tests.generation.test_generator import Scripted
from tests.serve.test_http import JSON, Client

END, MARKER = 256, 257

# -- parsing -----------------------------------------------------------------------------------------------

CASES = {
    "two calls": (
        HERMES,
        (
            'Hi.\n<tool_call>\n{"name": "f", "arguments": {"a": "}<", "b": [1, {"c": "\\"}"}]}}\n</tool_call>\n'
            '<tool_call>{"arguments": {"x":1}, "name":"g"}</tool_call>'
        ),
        "Hi.\n",
        [("f", '{"a": "}<", "b": [1, {"c": "\\"}"}]}'), ("g", '{"x":1}')],
    ),
    "a name that is unknown": (HERMES, '<tool_call>{"name": "h", "arguments": {}}</tool_call>', "", [("h", "{}")]),
    "text after a call": (HERMES, '<tool_call>{"name": "f", "arguments": {}}</tool_call>\nDone', "Done", [("f", "{}")]),
    "JSON in JSON": (
        HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\":1}"}</tool_call>', "", [("f", '{"a":1}')],
    ),
    "a beginning of a marker": (HERMES, "a < b <tool", "a < b <tool", []),
    "no name": (HERMES, '<tool_call>{"name": 5}</tool_call> x', '<tool_call>{"name": 5}</tool_call> x', []),
    "no object": (HERMES, "<tool_call>f(x)</tool_call>", "<tool_call>f(x)</tool_call>", []),
    "arguments that are a number": (HERMES, '<tool_call>{"name": "f", "arguments": 1}', None, []),
    "cut before the arguments": (HERMES, '<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', []),
    "cut inside the arguments": (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
    "a list": (
        MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1, 2]}}, {"name": "g", "arguments": {}}]', "",
        [("f", '{"a": [1, 2]}'), ("g", "{}")],
    ),
    "no list": (MISTRAL, "[1, 2]", "[1, 2]", []),
    "calls by name": (
        MISTRAL_NAMES, 'Hi[TOOL_CALLS]f[ARGS]{"a": "}[ARGS]", "b": {"c": 1}}[TOOL_CALLS] g [CALL_ID]x1[ARGS] {}', "Hi",
        [("f", '{"a": "}[ARGS]", "b": {"c": 1}}'), ("g", "{}")],
    ),
    "a name without arguments": (MISTRAL_NAMES, "[TOOL_CALLS]f", "[TOOL_CALLS]f", []),
    "a list after a name": (MISTRAL_NAMES, "[TOOL_CALLS]f[ARGS][1]", "[TOOL_CALLS]f[ARGS][1]", []),
    "arguments that are cut": (MISTRAL_NAMES, '[TOOL_CALLS]f[ARGS]{"a": [1', "", [("f", '{"a": [1')]),
    "no name before arguments": (MISTRAL_NAMES, "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS][ARGS]{}", []),
    "a long name": (MISTRAL_NAMES, "[TOOL_CALLS]" + 500 * "f", "[TOOL_CALLS]" + 500 * "f", []),
    "a bare object": (LLAMA, '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    "two bare objects": (
        LLAMA, '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "",
        [("f", "{}"), ("g", "{}")],
    ),
    "no function": (LLAMA, ' {"name": "h", "parameters": {}} x', ' {"name": "h", "parameters": {}} x', []),
    "an object inside text": (LLAMA, 'So: {"name": "f", "parameters": {}}', 'So: {"name": "f", "parameters": {}}', []),
    "white space": (LLAMA, " " * 500, " " * 500, []),
}  # fmt: skip


def read(parser, pieces):
    """Return the text, and the name and the arguments of each call, from the events of a stream."""
    events = [event for piece in pieces for event in parser.push(piece)] + parser.flush()
    calls = {event.place: [event.name, ""] for event in events if isinstance(event, CallBegin)}
    for event in events:
        if isinstance(event, CallPart):
            calls[event.place][1] += event.text
    text = "".join(event.text for event in events if isinstance(event, Text))
    assert [(call.name, call.arguments) for call in parser.calls] == [tuple(call) for call in calls.values()]
    return text, [tuple(call) for call in calls.values()]


@pytest.mark.parametrize("name", CASES)
def test_calls_are_read_from_pieces_of_any_size(name):
    form, text, expected, calls = CASES[name]
    source = random.Random(0)
    sizes = [[1] * len(text), [len(text)], *([source.randint(1, 9) for _ in text] for _ in range(20))]
    for each in sizes:
        pieces, place = [], 0
        for size in each:
            pieces.append(text[place : place + size])
            place += size
        assert read(ToolParser(form, ["f", "g"]), pieces) == (text if expected is None else expected, calls)


def test_a_forced_call_begins_at_once():
    for form, text in [
        (HERMES, '{"name": "f", "arguments": {"a": 1}}'), (MISTRAL, '[{"name": "f", "arguments": {"a": 1}}]'),
        (LLAMA, '{"name": "f", "parameters": {"a": 1}}'),
    ]:  # fmt: skip
        assert read(ToolParser(form, ["f"], is_forced=True), text) == ("", [("f", '{"a": 1}')])


def test_random_texts_are_read_without_an_error():
    source = random.Random(1)
    words = [
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", ',
        '"arguments": {',
        "}",
        "[",
        "]",
        '"',
        "\\",
        ":",
        ",",
        " x",
    ]
    for form in (HERMES, MISTRAL, MISTRAL_NAMES, LLAMA):
        for _ in range(500):
            pieces = source.choices([*words, *form.markers, *form.separators], k=12)
            read(ToolParser(form, ["f"]), pieces)


def test_formats_by_chat_template():
    sources = {
        "{{ '<tool_call>' }}": HERMES, "{{ '[TOOL_CALLS]' }}": MISTRAL, "{{ '<|python_tag|>' }}": LLAMA, "": HERMES,
        "{{ '[TOOL_CALLS]' }}f{{ '[ARGS]' }}": MISTRAL_NAMES,
    }  # fmt: skip
    for source, form in sources.items():
        assert find_format(ChatTemplate(source)) is form
    assert find_format(None) is HERMES
    assert MISTRAL_NAMES.forced is MISTRAL  # forced calls are JSON
    assert HERMES.forced is HERMES


# -- over HTTP ---------------------------------------------------------------------------------------------

TEMPLATE = """{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for call in m.tool_calls or [] %}CALL
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
{% endfor %}{% endfor %}"""
WEATHER = {
    "type": "object", "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"], "additionalProperties": False, "$defs": {"city": {"enum": ["Paris", "Rome"]}},
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "time"}},
]
MESSAGES = [{"role": "user", "content": "How is it?"}]


class Bytes:
    """A tokenizer whose tokens are bytes, a token that ends a text, and a control token of Mistral."""

    size, end_tokens = 258, frozenset([END])

    def encode(self, text, special=True):
        pieces = text.split("[TOOL_CALLS]")
        return [*pieces[0].encode(), *(token for piece in pieces[1:] for token in (MARKER, *piece.encode()))]

    def token_bytes(self, number):
        return bytes([number]) if number < END else b""

    def token_text(self, number):
        return self.token_bytes(number).decode(errors="replace")

    def stream(self):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        class Stream:
            def push(stream, number):  # noqa: N805
                return decoder.decode(self.token_bytes(number))

        return Stream()


class Reciting(Scripted):
    """A decoder that continues any prompt with the same text; equally probable tokens without one."""

    def __init__(self, text=None):
        super().__init__(pages=3000, page_size=16)
        self.prompts = []
        self._script = None if text is None else [*Bytes().encode(text), END]
        self._begin = None

    def step(self, batch):
        logits = np.zeros((len(batch.rows), 258), np.float32)
        logits[:, ord('"')] = 2  # otherwise random texts are long
        if self._script is not None:
            positions = batch.positions[batch.rows]
            if len(positions):
                self._begin = positions.min() if self._begin is None else self._begin
                logits[np.arange(len(positions)), [self._script[place - self._begin] for place in positions]] = 99
        return mx.nd.array(logits)


class Recorded(ChatTemplate):
    """A template that records the prompts."""

    def render(self, *arguments, **options):
        self.prompt = super().render(*arguments, **options)
        return self.prompt


def generator(text, marker="<tool_call>"):
    template = Recorded(TEMPLATE.replace("CALL", marker))
    return Generator(Reciting(text), Bytes(), template, name="tiny")


async def ask(client, **fields):
    body = json.dumps({"model": "tiny", "messages": MESSAGES, "tools": TOOLS} | fields).encode()
    status, _, reply = await client("POST", "/v1/chat/completions", body, Content_Type=JSON)
    return status, json.loads(reply)


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ("<tool_call>", 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "é"}}\n</tool_call>'),
        ("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "é"}}]'),
        ("<|python_tag|>", '{"name": "weather", "parameters": {"city": "é"}}'),
    ],
)
async def test_calls_in_replies_and_streams(marker, text):
    openai = pytest.importorskip("openai")
    content = "I look." if "look" in text else None
    for streamed in (False, True):
        async with Client(model := generator(text, marker)) as client:
            address = str(client.session._base_url).rstrip("/")
            async with openai.AsyncOpenAI(base_url=f"{address}/ml/v1", api_key="none") as user:
                create = user.chat.completions.create
                if not streamed:
                    reply = await create(model="tiny", messages=MESSAGES, tools=TOOLS, temperature=0)
                    choice = reply.choices[0]
                    (call,) = choice.message.tool_calls
                    assert choice.message.content == content
                    name, arguments, reason = call.function.name, call.function.arguments, choice.finish_reason
                else:
                    parts = await create(model="tiny", messages=MESSAGES, tools=TOOLS, temperature=0, stream=True)
                    choices = [part.choices[0] async for part in parts]
                    calls = [call for choice in choices for call in choice.delta.tool_calls or []]
                    assert "".join(choice.delta.content or "" for choice in choices).strip() == (content or "")
                    assert len(calls) > 3
                    call, name, reason = calls[0], calls[0].function.name, choices[-1].finish_reason
                    arguments = "".join(call.function.arguments for call in calls)
                    assert {each.index for each in calls} == {0}
                assert (name, json.loads(arguments), reason) == ("weather", {"city": "é"}, "tool_calls")
                assert model.template.prompt.count('"description": "The weather"') == 1
                answer = [
                    *MESSAGES,
                    {"role": "assistant", "content": None, "tool_calls": [
                        {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}},
                    ]},
                    {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
                ]  # fmt: skip
                model.decoder._begin = None
                await create(model="tiny", messages=answer, tools=TOOLS, temperature=0)
                assert '"arguments": {"city": ' in model.template.prompt
                assert model.template.prompt.endswith("[tool]sunny")


async def test_texts_without_a_call_and_without_tools():
    async with Client(generator("It is <b>fine</b>.")) as client:
        choice = (await ask(client, temperature=0))[1]["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("It is <b>fine</b>.", "stop")
        assert "tool_calls" not in choice["message"]
    text = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    async with Client(model := generator(text)) as client:
        choice = (await ask(client, temperature=0, tool_choice="none"))[1]["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
        assert "description" not in model.template.prompt


@pytest.mark.parametrize("marker", ["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_forced_calls_fit_the_schema(marker, choice):
    async with Client(model := generator(None, marker)) as client:
        for seed in range(8):
            status, reply = await ask(client, tool_choice=choice, seed=seed, max_tokens=2000)
            assert status == 200
            (answer,) = reply["choices"]
            assert (answer["message"]["content"], answer["finish_reason"]) == (None, "tool_calls")
            for call in answer["message"]["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                if call["function"]["name"] == "weather":
                    jsonschema.validate(arguments, WEATHER)
                else:
                    assert choice == "required"
        opening = {"<tool_call>": 12, "[TOOL_CALLS]": 1, "<|python_tag|>": 0}[marker]
        assert reply["usage"]["prompt_tokens"] == len(Bytes().encode(model.template.prompt)) + opening
        nested = {}
        for _ in range(400):
            nested = {"items": {"items": nested}}
        tools = [{"type": "function", "function": {"name": "f", "parameters": nested}}]
        status, reply = await ask(client, tools=tools, tool_choice="required")
        assert (status, reply["error"]["type"]) == (400, "invalid_request_error")
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]
        status, reply = await ask(client, tools=tools, tool_choice="required")
        assert (status, reply["error"]["param"]) == (400, "tools")
