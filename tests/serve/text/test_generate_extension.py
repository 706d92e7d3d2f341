"""The generate extension of the Open Inference Protocol, as an aiohttp and as an ASGI application."""

import json

import pytest

from tests.generation.test_generator import Scripted
from tests.serve.sessions.test_session import opened, summing  # noqa: F401 (a fixture)
from tests.serve.test_http import JSON, Client, Gateway, carried, doubling  # noqa: F401 (a fixture)
from tests.serve.text.test_openai import counting
from tests.waiting import until


def events_of(reply):
    return [json.loads(line.removeprefix("data: ")) for line in reply.decode().split("\n\n")[:-1]]


async def ask(client, path, content_type=JSON, **body):
    status, headers, reply = await client("POST", f"/v2/models/{path}", json.dumps(body).encode(), content_type=JSON)
    return status, json.loads(reply) if headers["Content-Type"] == JSON else events_of(reply)


async def test_a_text(carried):  # noqa: F811
    async with carried(counting()) as client:
        for path in ("tiny/generate", "tiny/versions/1/generate"):
            reply = await ask(client, path, text_input="7", parameters={"max_tokens": 3, "temperature": 0})
            assert reply == (200, {"model_name": "tiny", "model_version": "1", "text_output": "GHI"})
        status, reply = await ask(client, "tiny/generate", text_input="7", max_tokens=2, temperature=0, stream=False)
        assert (status, reply["text_output"]) == (200, "GH")  # as in Triton, parameters may be fields


async def test_a_stream_of_tokens(carried):  # noqa: F811
    async with carried(counting()) as client:
        body = {"text_input": "7", "parameters": {"max_tokens": 3, "temperature": 0, "stop": ["zzz"]}}
        status, events = await ask(client, "tiny/generate_stream", **body)
    assert status == 200
    assert [(event["text_output"], event["done"]) for event in events] == [("G", False), ("H", False), ("I", True)]
    assert {(event["model_name"], event["model_version"]) for event in events} == {("tiny", "1")}


async def test_wrong_requests_are_refused_as_json(carried):  # noqa: F811
    async with carried(counting()) as client:
        for path in ("tiny/generate", "tiny/generate_stream"):
            for body, message in (
                ({}, "text_input is missing, expected a string"),
                ({"text_input": 3}, "text_input is 3"),
                ({"text_input": "7", "parameters": 3}, "parameters is 3, expected an object"),
                ({"text_input": "7", "parameters": {"temprature": 1}}, "'temprature' is unknown"),
                ({"text_input": "7", "parameters": {"temperature": -1}}, "temperature"),
                ({"text_input": "7", "parameters": {"best_of": 3}}, "best_of is 3, which is not supported"),
            ):
                status, reply = await ask(client, path, **body)
                assert (status, list(reply)) == (400, ["error"])
                assert message in reply["error"]
        assert (await ask(client, "tiny/versions/2/generate", text_input="7"))[0] == 404
        assert (await ask(client, "huge/generate", text_input="7"))[0] == 404


async def test_an_error_of_the_model_is_a_status_or_an_event():
    class Failing(Scripted):
        def step(self, batch):
            if max(batch.positions) >= self.fails_at:
                raise ArithmeticError("no")
            return super().step(batch)

    decoder = Failing(pages=60)
    async with Client(counting(decoder)) as client:
        decoder.fails_at = 0
        for path in ("tiny/generate", "tiny/generate_stream"):
            assert (await ask(client, path, text_input="7"))[0] == 500
        decoder.fails_at = 2
        status, events = await ask(client, "tiny/generate_stream", text_input="7", temperature=0)
        assert status == 200
        assert events[-1] == {"error": "the model failed: ArithmeticError"}
        assert [event["text_output"] for event in events[:-1]] == ["G", "H"]


async def test_the_description_and_readiness_of_a_generator(carried):  # noqa: F811
    async with carried(counting()) as client:
        assert "generate" in json.loads((await client("GET", "/v2"))[2])["extensions"]
        status, _, reply = await client("GET", "/v2/models/tiny")
        assert (status, json.loads(reply)["inputs"][0]["name"]) == (200, "text_input")
        assert (await client("GET", "/v2/models/tiny/ready"))[0] == 200
        await client.service.generators.close()
        assert (await client("GET", "/v2/models/tiny/ready"))[0] == 503
        assert (await ask(client, "tiny/generate", text_input="7"))[0] == 503


@pytest.mark.usefixtures("opened")
async def test_a_stream_of_results_of_a_session(carried):  # noqa: F811
    predictor = summing()
    async with carried(predictor) as client:
        status, events = await ask(client, "model/generate_stream", id="a", data=[[1, 0], [2, 0]])
        assert status == 200
        (name,) = predictor.outputs
        assert events == [
            {"model_name": "model", "model_version": "0", name: [1, 0, 1]},
            {"model_name": "model", "model_version": "0", name: [3, 0, 2]},
        ]
        for path in ("model/generate", "model/generate_stream"):
            assert (await ask(client, path, text_input="7"))[0] == 400
        assert (await client("POST", "/v2/models/model/generate_stream", b"[]", content_type=JSON))[0] == 400


async def test_a_model_without_states_has_no_streams():
    async with Client(doubling()) as client:
        status, reply = await ask(client, "model/generate_stream", data=[[1, 0]])
        assert status == 400
        assert "model generates no text, expected a request to /v2/models/model/infer" in reply["error"]


@pytest.mark.parametrize("path", ["/v2/models/tiny/generate_stream", "/v1/completions"])
async def test_a_client_that_leaves_before_the_first_chunk_ends_its_generation(path):
    generator = counting(Scripted(pages=3000))
    body = {"text_input": "7", "max_tokens": 10000, "logit_bias": {str(number): -100 for number in range(3)}}
    if path.startswith("/v1"):
        body |= {"model": "tiny", "prompt": body.pop("text_input"), "stream": True}
    async with Gateway(generator) as gateway:
        service = gateway.service
        call = service.begin("POST", path, {"content-type": JSON})
        stream = await call.reply(json.dumps(body).encode())
        assert len(generator) == 1
        await stream.chunks.aclose()
        await until(lambda: len(generator) == 0)
