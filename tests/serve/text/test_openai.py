"""OpenAI's API over generators, as an aiohttp and as an ASGI application."""

import asyncio
import json

import pytest

import flowmx as mx
from flowmx.generation import Generator, Tokenizer
from flowmx.serve import app
from flowmx.serve.replies import Stream
from flowmx.serve.streams import SlowReader, send
from tests.generation.test_generator import Scripted, Words
from tests.generation.test_tokenizer import trained
from tests.serve.test_http import JSON, Client, Gateway, carried, doubling  # noqa: F401 (a fixture)


class Template:
    def render(self, messages, add_generation_prompt=True, tools=None):
        return "".join(message["content"] for message in messages)


class Uniform(Scripted):
    """A decoder whose tokens are equally probable."""

    def step(self, batch):
        return mx.nd.zeros((len(batch.rows), 400))


def counting(decoder=None, **options):
    """Return a generator whose tokens count up: after F come G, H, I, up to x, and the end."""
    options = {"name": "tiny"} | options
    return Generator(decoder or Scripted(pages=60), Words(), Template(), **options)


def chat(content="7", **fields):
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": content}]} | fields).encode()


def completion(prompt="7", **fields):
    return json.dumps({"model": "tiny", "prompt": prompt} | fields).encode()


async def ask(client, path, body):
    status, _, reply = await client("POST", f"/v1/{path}", body, Content_Type=JSON)
    return status, json.loads(reply)


async def stream(client, path, body):
    status, headers, reply = await client("POST", f"/v1/{path}", body, Content_Type=JSON)
    assert (status, headers["Content-Type"], headers["Cache-Control"]) == (200, "text/event-stream", "no-cache")
    *events, done, end = reply.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_a_chat(carried):  # noqa: F811
    async with carried(counting()) as client:
        status, reply = await ask(client, "chat/completions", chat(max_tokens=3, temperature=0))
        assert status == 200
        assert reply["object"] == "chat.completion"
        (choice,) = reply["choices"]
        assert choice["message"]["content"] == "GHI"
        assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
        assert reply["usage"]["total_tokens"] == 4
        assert reply["system_fingerprint"] == "weights-0"


async def test_a_stream_has_the_same_text(carried):  # noqa: F811
    body = chat(max_tokens=3, temperature=0, stream=True, stream_options={"include_usage": True}, logprobs=True)
    async with carried(counting()) as client:
        first, *parts, last = await stream(client, "chat/completions", body)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [part["choices"][0]["delta"]["content"] for part in parts] == ["G", "H", "I"]
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None, None, "length"]
    assert parts[0]["choices"][0]["logprobs"]["content"][0]["token"] == "G"
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)
    assert len({part["id"] for part in [first, *parts, last]}) == 1


async def test_completions_of_several_prompts_and_choices(carried):  # noqa: F811
    async with carried(counting()) as client:
        body = completion(["7", "<"], max_tokens=2, temperature=0, n=2, echo=True)
        status, reply = await ask(client, "completions", body)
        assert status == 200
        assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == [
            (0, "7GH"), (1, "7GH"), (2, "<LM"), (3, "<LM"),
        ]  # fmt: skip
        events = await stream(client, "completions", completion(["7", "<"], max_tokens=2, temperature=0, stream=True))
        texts = ["", ""]
        for event in events:
            texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert texts == ["GH", "LM"]
        status, reply = await ask(client, "completions", completion([5], max_tokens=2, temperature=0, logprobs=1))
        logprobs = reply["choices"][0]["logprobs"]
        assert (logprobs["tokens"], logprobs["text_offset"]) == (["G", "H"], [0, 1])


async def test_models_and_the_chat_page(carried):  # noqa: F811
    async with carried({"tiny": counting(), "double": doubling()}) as client:
        status, _, reply = await client("GET", "/v1/models")
        assert [model["id"] for model in json.loads(reply)["data"]] == ["tiny"]
        assert json.loads((await client("GET", "/v1/models/tiny"))[2])["id"] == "tiny"
        status, _, reply = await client("GET", "/v1/models/large")
        assert (status, json.loads(reply)["error"]["code"]) == (404, "model_not_found")
        status, headers, page = await client("GET", "/chat")
        assert (status, b"<option>tiny</option>" in page) == (200, True)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert b"vllm:num_requests_running" in (await client("GET", "/metrics"))[2]
        assert "/v1/chat/completions" in json.loads((await client("GET", "/openapi.json"))[2])["paths"]
        assert (await client("POST", "/predict", b"[1, 2]", Content_Type=JSON))[0] == 200
    async with carried(doubling()) as client:
        assert (await client("GET", "/v1/models"))[0] == 404


@pytest.mark.parametrize(
    ("body", "status", "field", "message"),
    [
        (b"{", 400, None, "not valid JSON"),
        (chat(model="huge"), 404, "model", "there is no model 'huge', expected one of tiny"),
        (chat(temperature=-1), 400, None, "temperature is -1"),
        (chat("7" * 300), 400, None, "the prompt has 300 tokens, expected at most 239"),
        (chat(response_format={"type": "json_object"}), 400, "response_format", "token_bytes"),
        (chat(response_format={"type": "xml"}), 400, "response_format", "expected the type text, json_object"),
        (chat(messages="hello"), 400, "messages", "expected a list of messages"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_errors_name_the_field(carried, body, status, field, message, streamed):  # noqa: F811
    if streamed and body != b"{":
        body = json.dumps(json.loads(body) | {"stream": True}).encode()
    async with carried(counting()) as client:
        answer, reply = await ask(client, "chat/completions", body)
        assert (answer, reply["error"]["param"]) == (status, field)
        assert message in reply["error"]["message"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_chats_in_a_json_format(carried, streamed):  # noqa: F811
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "count", "strict": True, "schema": schema}}
    async with carried(Generator(Uniform(pages=60), Tokenizer(trained(), eos=1), Template(), name="tiny")) as client:
        body = chat(response_format=form, seed=0, stream=streamed, logprobs=True, max_tokens=100)
        if streamed:
            choices = [part["choices"][0] for part in await stream(client, "chat/completions", body)]
            text = "".join(choice["delta"].get("content", "") for choice in choices)
            logprobs = [each for choice in choices[1:] for each in choice["logprobs"]["content"]]
        else:
            choices = (await ask(client, "chat/completions", body))[1]["choices"]
            text, logprobs = choices[0]["message"]["content"], choices[0]["logprobs"]["content"]
        assert choices[-1]["finish_reason"] == "stop"
        assert list(json.loads(text)) == ["n"]
        assert b"".join(bytes(each["bytes"] or []) for each in logprobs) == text.encode()
        form["json_schema"]["schema"] = {"type": "array", "uniqueItems": True}
        status, reply = await ask(client, "chat/completions", chat(response_format=form, stream=streamed))
        assert (status, reply["error"]["param"]) == (400, "response_format")
        assert "uniqueItems" in reply["error"]["message"]


async def test_a_full_generator_and_a_failing_model(carried):  # noqa: F811
    decoder = Scripted(pages=60)
    async with carried(counting(decoder, max_requests=1)) as client:
        status, headers, reply = await client("POST", "/v1/completions", completion(n=2), Content_Type=JSON)
        assert (status, json.loads(reply)["error"]["type"]) == (503, "overloaded_error")
        assert headers["Retry-After"] == "1"
        decoder.failures.append(OSError("disk"))
        status, reply = await ask(client, "completions", completion())
        assert (status, reply["error"]["message"]) == (500, "the model failed: OSError")
        decoder.failures.append(OSError("disk"))
        body = completion(stream=True)
        status, _, reply = await client("POST", "/v1/completions", body, Content_Type=JSON)
        assert (status, b'"message": "the model failed: OSError"' in reply) == (200, True)
        assert (await ask(client, "completions", completion(max_tokens=1)))[0] == 200


async def test_a_client_that_disconnects_frees_its_pages():
    generator = counting(Scripted(pages=3000))
    body = completion(max_tokens=5000, temperature=0, stream=True, stop=["never"], logit_bias={"0": -100})
    async with Client(generator) as client:
        async with client.session.post("/ml/v1/completions", data=body) as reply:
            await reply.content.readany()
            assert len(generator) == 1
        while len(generator):
            await asyncio.sleep(0)

    gateway = Gateway(generator2 := counting(Scripted(pages=3000)))
    events = asyncio.Queue()
    events.put_nowait({"type": "http.request", "body": body})
    count = 0

    async def receive_some(event):
        nonlocal count
        count += 1
        if count == 5:
            events.put_nowait({"type": "http.disconnect"})

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    await gateway.application(scope, events.get, receive_some)
    while len(generator2):
        await asyncio.sleep(0)


async def test_a_reader_that_stops_is_dropped():
    async def chunks():
        try:
            while True:
                yield b"data"
        finally:
            ended.set()

    async def write(chunk):
        await asyncio.Event().wait()

    ended = asyncio.Event()
    with pytest.raises(SlowReader):
        await send(Stream(chunks()), write, 0.01)
    assert ended.is_set()


async def test_the_openai_client():
    openai = pytest.importorskip("openai")
    async with Client(counting()) as client:
        address = str(client.session._base_url)
        async with openai.AsyncOpenAI(base_url=f"{address}/ml/v1".replace("//ml", "/ml"), api_key="none") as user:
            reply = await user.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "7"}], max_tokens=2, temperature=0
            )
            assert reply.choices[0].message.content == "GH"
            parts = await user.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "7"}], max_tokens=2, temperature=0, stream=True
            )
            assert "".join([part.choices[0].delta.content or "" async for part in parts]) == "GH"
            reply = await user.completions.create(model="tiny", prompt="7", max_tokens=2, temperature=0)
            assert reply.choices[0].text == "GH"
            assert [model.id async for model in user.models.list()] == ["tiny"]
            with pytest.raises(openai.NotFoundError, match="there is no model 'huge'"):
                await user.chat.completions.create(model="huge", messages=[{"role": "user", "content": "7"}])
            with pytest.raises(openai.BadRequestError, match="temperature"):
                await user.completions.create(model="tiny", prompt="7", temperature=3000)


def test_an_application_needs_a_model():
    with pytest.raises(ValueError, match="no predictors"):
        app({})
