"""The page /docs: its examples are complete requests that the service answers."""

import html
import json
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

import flowmx as mx
from flowmx.comm.metrics import Metrics
from flowmx.data.codecs import encode
from flowmx.generation import ChatTemplate, Generator
from flowmx.serve import Predictor
from tests.generation.test_generator import Scripted, Words
from tests.serve.test_http import Client


class Copies(mx.gluon.HybridBlock):
    """Returns its inputs."""

    def hybrid_forward(self, F, *inputs):
        copies = [x * 1 for x in inputs]
        return copies if len(copies) > 1 else copies[0]


def served(shape, **options):
    return Predictor(Copies(), shape, max_batch=1, metrics=Metrics(), **options)


def read_csv(body, content_type):
    """Read <numbers> with commas."""
    return [float(number) for number in body.decode().split(",")]


async def examples(ask):
    page = (await ask("GET", "/docs"))[2].decode()
    return page, [html.unescape(example) for example in re.findall("<pre>(.*?)</pre>", page, re.DOTALL)]


async def carry_out(ask, example, folder):
    """Run the commands of an example; return the status and the body of the reply."""
    script, _, curl = example.partition("curl ")
    if script:
        words = shlex.split(script)
        assert words[:2] == ["python", "-c"]
        done = subprocess.run([sys.executable, "-c", words[2]], cwd=folder, check=True, capture_output=True, text=True)
        if ">" in words:
            (folder / words[-1]).write_text(done.stdout)
    *words, url = shlex.split(curl.replace("\\\n", " "))
    options = list(zip(words[::2], words[1::2], strict=True))
    headers = dict(value.split(": ") for name, value in options if name == "-H")
    (body,) = (value for name, value in options if name != "-H")
    body = (folder / body[1:]).read_bytes() if body.startswith("@") else body.encode()
    reply = await ask("POST", url.removeprefix("http://HOST"), body, **headers)
    return reply[0], reply[2]


@pytest.mark.parametrize(
    "shape", [(2,), (), (3, 64, 64), {"a": (2,), "b": (3, 1)}, {"a": (2,), "b": (30, 30)}, {"a": (40, 40), "b": ()}]
)
async def test_the_examples_are_short_and_get_answers(shape, tmp_path):
    name = "it's a <model>"
    async with Client({name: served(shape, name=name)}) as ask:
        page, (example,) = await examples(ask)
        assert "it&#x27;s a &lt;model&gt;" in page
        assert max(map(len, example.splitlines())) < 120
        assert "..." not in example
        status, answer = await carry_out(ask, example, tmp_path)
        assert status == 200, answer
        outputs = json.loads(answer)["outputs"]
        first, output = (shape, outputs) if isinstance(shape, tuple) else (shape["a"], outputs["output0"])
        assert np.shape(output) in (first, (1, *first))


async def test_images_and_hooks_are_documented(tmp_path):
    predictor = served((3, 8, 8), image={}, decode=read_csv, encode=lambda result: float(result.max()))
    (tmp_path / "image.jpg").write_bytes(encode(np.full((4, 4, 3), 255, np.uint8), ".jpg"))
    async with Client(predictor) as ask:
        page, (image, other) = await examples(ask)
        assert "The service decodes bodies: Read &lt;numbers&gt; with commas." in page
        assert "The service encodes responses." in page
        assert await carry_out(ask, image, tmp_path) == (200, b"1.0")
        assert other.startswith("curl --data-binary @FILE -H 'Content-Type: TYPE'")
        operation = json.loads((await ask("GET", "/openapi.json"))[2])["paths"]["/predict"]["post"]
        assert set(operation["requestBody"]["content"]) == {"*/*", "image/jpeg", "image/png"}
        assert set(operation["responses"]["200"]["content"]) == {"*/*", "application/json"}


async def test_examples_of_models_that_generate_text(tmp_path):
    template = ChatTemplate("{{ messages[0].content }}")
    generators = {
        "it's a chat": Generator(Scripted(pages=40), Words(), template),
        "plain": Generator(Scripted(pages=40), Words()),
    }
    async with Client(generators) as ask:
        page, (chat, program, completion, other) = await examples(ask)
        assert "No model is loaded" not in page
        assert page.count("It has no chat template") == 1
        assert "at most 160 tokens" in page
        for example, kind in ((chat, "chat.completion"), (completion, "text_completion"), (other, "text_completion")):
            status, reply = await carry_out(ask, example, tmp_path)
            assert (status, json.loads(reply)["object"]) == (200, kind)
        assert 'model="it\'s a chat", stream=True' in program
        compile(program, "program", "exec")
