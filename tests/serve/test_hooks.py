"""Hooks before and after a model: bodies and responses in the user's formats, over HTTP."""

import asyncio
import json
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx import cli
from flowmx.serve import handlers
from flowmx.serve.service import Service
from tests.serve.test_http import JSON, NPY, Client, carried, doubling, npy  # noqa: F401 (a fixture)
from tests.serve.test_predictor import Gate, closed, gated, network  # noqa: F401 (a fixture)
from tests.waiting import until

TEXT = "text/plain; charset=utf-8"


def from_text(body, content_type):
    """Decode rows of numbers."""
    if content_type != TEXT:
        raise ValueError(f"Content-Type is {content_type}, expected {TEXT}")
    rows = [[float(number) for number in line.split()] for line in body.decode().splitlines()]
    return rows if len(rows) > 1 else rows[0]


def to_label(result):
    return {"label": int(np.argmax(result)), "scores": result, "best": result.max(), "size": (result.size, None)}


async def from_text_later(body, content_type):
    await asyncio.sleep(0)
    return from_text(body, content_type)


async def to_label_later(result):
    await asyncio.sleep(0)
    return to_label(result)


class FromText:
    """A decoder with state, which returns a flowmx array."""

    def __call__(self, body, content_type):
        return mx.nd.array(from_text(body, content_type))


@pytest.mark.parametrize("decode", [from_text, from_text_later, FromText()], ids=["function", "coroutine", "object"])
@pytest.mark.parametrize("encode", [to_label, to_label_later, lambda x: to_label_later(x)])
async def test_hooks_read_the_body_and_write_the_response(carried, decode, encode):  # noqa: F811
    predictor = doubling(decode=decode, encode=encode)
    async with carried(predictor) as ask:
        await predictor.ready()
        status, headers, answer = await ask("POST", "/predict", b"1 2", Content_Type=TEXT, Accept="text/html")
        assert (status, headers["Content-Type"].split(";")[0]) == (200, JSON)
        assert json.loads(answer) == {"label": 1, "scores": [2, 4], "best": 4, "size": [2, None]}


async def test_a_decoder_gets_the_value_of_json_and_the_response_is_arrays(carried):  # noqa: F811
    predictor = doubling(decode=lambda body, kind: [row["values"] for row in body["rows"]])
    async with carried(predictor) as ask:
        body = json.dumps({"rows": [{"values": [1, 2]}, {"values": [3, 4]}]}).encode()
        assert json.loads((await ask("POST", "/predict", body, Content_Type=JSON))[2]) == {"outputs": [[2, 4], [6, 8]]}
        answer = (await ask("POST", "/predict", body, Content_Type=JSON, Accept=NPY))[2]
        assert answer == npy([[2, 4], [6, 8]])
        status, _, answer = await ask("POST", "/predict", b"[1, ", Content_Type=JSON)
        assert status == 400
        assert "not valid JSON" in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("value", "kind", "body"),
    [
        ((b"\x89PNG", "image/png"), "image/png", b"\x89PNG"),
        (b"abc", "application/octet-stream", b"abc"),
        (["x", float("nan"), np.float32("inf"), np.int64(3)], JSON, b'["x", null, null, 3]'),
        ({1: np.array([1.5, np.nan]), "names": np.array(["a", "b"])}, JSON, b'{"1": [1.5, null], "names": ["a", "b"]}'),
        ({"large": np.zeros(5000, np.int8), "x": "ü"}, JSON, json.dumps({"large": [0] * 5000, "x": "ü"}).encode()),
    ],
)
async def test_responses_are_json_or_bytes(carried, value, kind, body):  # noqa: F811
    async with carried(doubling(encode=lambda result: value)) as ask:
        status, headers, answer = await ask("POST", "/predict", b"[1, 2]", Content_Type=JSON)
        assert (status, headers["Content-Type"].split(";")[0], answer) == (200, kind, body)


def refuse(*arguments):
    raise ValueError("expected a cat")


def fail(*arguments):
    raise KeyError("secret")


async def fail_later(*arguments):
    raise KeyError("secret")


def leave(*arguments):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("hooks", "status", "message"),
    [
        ({"decode": refuse}, 400, "expected a cat"),
        ({"encode": refuse}, 400, "expected a cat"),
        ({"decode": lambda body, kind: [1, 2, 3]}, 400, "shape (3,), expected (2,)"),
        ({"decode": lambda body, kind: body.decode("ascii")}, 500, "the decode hook of model failed: AttributeError"),
        ({"decode": fail}, 500, "the decode hook of model failed: KeyError"),
        ({"decode": leave}, 500, "the decode hook of model failed: RuntimeError"),
        ({"encode": fail}, 500, "the encode hook of model failed: KeyError"),
        ({"encode": fail_later}, 500, "the encode hook of model failed: KeyError"),
        (
            {"encode": lambda result: {"a": object()}},
            500,
            "the encode hook of model returned a value that cannot be sent",
        ),
        ({"encode": lambda result: (b"", None)}, 500, "returned a value that cannot be sent"),
    ],
)
async def test_a_hook_refuses_with_value_error_and_fails_with_others(carried, hooks, status, message):  # noqa: F811
    async with carried(doubling(**hooks)) as ask:
        answer_status, _, answer = await ask("POST", "/predict", b"[1, 2]", Content_Type=JSON)
        assert answer_status == status
        assert message in json.loads(answer)["error"]
        assert b"secret" not in answer
        assert (await ask("GET", "/healthz"))[0] == 200


async def test_refused_bodies_are_counted():
    predictor = doubling(decode=refuse)
    async with Client(predictor) as ask:
        await ask("POST", "/predict", b"1", Content_Type=TEXT)
        assert 'result="invalid"} 1' in predictor.metrics.text()


async def test_requests_that_are_decoded_share_batches_and_blocking_hooks_block_nothing():
    entered, leave_hook = threading.Semaphore(0), threading.Event()

    def decode(body, kind):
        entered.release()
        assert leave_hook.wait(30)
        return from_text(body, kind)

    async with Client(doubling(decode=decode, encode=lambda result: (str(result[0]).encode(), TEXT))) as ask:
        asking = [asyncio.create_task(ask("POST", "/predict", b"%d 0" % i, Content_Type=TEXT)) for i in range(4)]
        while not entered.acquire(blocking=False):
            assert (await ask("GET", "/healthz"))[0] == 200  # the loop answers while the hook blocks its thread
        leave_hook.set()
        assert [float(answer) for _, _, answer in await asyncio.gather(*asking)] == [0, 2, 4, 6]


async def test_a_full_queue_refuses_before_the_hook_runs(gated):  # noqa: F811
    bodies = []
    predictor = gated
    predictor.hooks = predictor.hooks._replace(decode=lambda body, kind: bodies.append(body))
    async with Client(predictor) as ask:
        first = await closed(predictor)
        waiting = [asyncio.create_task(predictor([i, i])) for i in range(6)]
        await asyncio.sleep(0)
        status, headers, _ = await ask("POST", "/predict", b"[1, 2]", Content_Type=JSON)
        assert (status, bodies) == (503, [])
        assert int(headers["Retry-After"]) >= 1
        Gate.let.set()
        await asyncio.gather(first, *waiting)


async def test_bodies_in_a_hook_count_as_queued(carried):  # noqa: F811
    entered, leave = [], asyncio.Event()

    async def decode(body, kind):
        entered.append(body)
        await leave.wait()
        return from_text(body, kind)

    predictor = doubling(decode=decode, max_queue=3)
    async with carried(predictor) as ask:
        await predictor.ready()
        asking = [asyncio.create_task(ask("POST", "/predict", b"%d 0" % i, Content_Type=TEXT)) for i in range(3)]
        await until(lambda: len(entered) == 3)
        status, headers, answer = await ask("POST", "/predict", b"1 2", Content_Type=TEXT)
        assert (status, len(entered), int(headers["Retry-After"])) == (503, 3, 1)
        assert "0 samples are queued and 3 bodies are being decoded, expected at most 3" in json.loads(answer)["error"]
        asking.pop().cancel()  # a client that disconnects leaves its place to another one
        await until(lambda: predictor._runner.queue.decoding == 2)
        asking.append(asyncio.create_task(ask("POST", "/predict", b"3 0", Content_Type=TEXT)))
        await until(lambda: len(entered) == 4)
        leave.set()
        assert [status for status, _, _ in await asyncio.gather(*asking)] == [200] * 3
        assert (await ask("POST", "/predict", b"1 0\n" * 3, Content_Type=TEXT))[0] == 200  # as many rows as the limit
    assert predictor._runner.queue.decoding == 0
    assert 'result="refused"} 1' in predictor.metrics.text()


async def test_bodies_that_are_received_together_do_not_exceed_the_queue():
    entered, leave = [], asyncio.Event()

    async def decode(body, kind):
        entered.append(body)
        await leave.wait()
        return [1, 2]

    predictor = doubling(decode=decode, max_queue=2)
    await predictor.ready()
    service = Service(predictor)
    calls = [service.begin("POST", "/predict", {"content-type": TEXT}) for _ in range(5)]  # all while there is room
    replies = [asyncio.create_task(call.reply(b"1 2")) for call in calls]
    await until(lambda: len(entered) == 2)
    leave.set()
    statuses = [reply.status for reply in await asyncio.gather(*replies)]
    assert (sorted(statuses), len(entered)) == ([200, 200, 503, 503, 503], 2)
    await predictor.drain()


async def test_a_client_that_disconnects_cancels_its_hook(carried):  # noqa: F811
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def decode(body, kind):
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with carried(doubling(decode=decode)) as ask:
        asking = asyncio.create_task(ask("POST", "/predict", b"1 2", Content_Type=TEXT))
        await entered.wait()
        asking.cancel()
        await asyncio.wait_for(cancelled.wait(), 30)


async def test_a_client_that_disconnects_releases_its_decoded_rows(gated):  # noqa: F811
    predictor = gated
    predictor.hooks = predictor.hooks._replace(decode=from_text)
    async with Client(predictor) as ask:
        first = await closed(predictor)
        asking = asyncio.create_task(ask("POST", "/predict", b"1 1\n" * 5, Content_Type=TEXT))
        await until(lambda: predictor._runner.queue.rows == 5)
        asking.cancel()
        await until(lambda: predictor._runner.queue.rows == 0)
        Gate.let.set()
        await first


async def test_hooks_stay_when_the_model_is_swapped():
    predictor = doubling(decode=from_text, encode=to_label)
    async with Client(predictor) as ask:
        await predictor.ready()
        await predictor.swap(mx.gluon.nn.HybridLambda(lambda F, x: x * -2))
        answer = (await ask("POST", "/predict", b"1 2", Content_Type=TEXT))[2]
        assert json.loads(answer)["scores"] == [-2, -4]


async def test_tensors_of_the_open_inference_protocol_and_calls_pass_no_hook(carried):  # noqa: F811
    predictor = doubling(decode=fail, encode=fail)
    async with carried(predictor) as ask:
        tensor = {"name": "data", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
        body = json.dumps({"inputs": [tensor]}).encode()
        answer = json.loads((await ask("POST", "/v2/models/model/infer", body))[2])
        assert answer["outputs"][0]["data"] == [2, 4]
        assert list(await predictor([1, 2])) == [2, 4]


async def test_a_hook_can_await_another_predictor():
    first = doubling(name="first")

    async def decode(body, kind):
        return await first(from_text(body, kind))

    second = doubling(name="second", decode=decode)
    async with Client({"second": second, "first": first}, default="second") as ask:
        assert json.loads((await ask("POST", "/predict", b"1 2", Content_Type=TEXT))[2]) == {"outputs": [4, 8]}
        await first.drain()
        assert (await ask("POST", "/predict", b"1 2", Content_Type=TEXT))[0] == 503


async def test_the_handlers_of_the_page_answer_requests():
    page = (Path(__file__).parent.parent.parent / "docs" / "serving.md").read_text(encoding="utf-8")
    names = {"mx": mx, "np": np, "net": network()}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if "def decode" in block or "migrated = " in block:
            exec(compile(block, "docs/serving.md", "exec"), names)
    async with Client({"labelled": names["labelled"], "migrated": names["migrated"]}) as ask:
        status, _, answer = await ask("POST", "/models/labelled/predict", b"1,2,3,4,5", Content_Type="text/csv")
        labelled = json.loads(answer)
        assert (status, len(labelled["scores"])) == (200, 3)
        assert (await ask("POST", "/models/labelled/predict", b"1", Content_Type="text/plain"))[0] == 400
        _, _, answer = await ask("POST", "/models/migrated/predict", b"[1, 2, 3, 4, 5]", Content_Type=JSON)
        assert json.loads(answer) == {"label": labelled["label"]}


def test_hooks_that_are_not_functions_are_refused():
    with pytest.raises(TypeError, match=r"decode is a str, expected a function decode\(body, content_type\)"):
        doubling(decode="json")
    with pytest.raises(TypeError, match=r"encode is a int, expected a function encode\(result\)"):
        doubling(encode=3)


# -- handlers of the command line ------------------------------------------------------------------------------

HANDLER = """
import helper_of_handler

def decode(body, content_type):
    return [float(number) for number in body.split()]

class Labels:
    def __init__(self):
        self.names = helper_of_handler.NAMES
    def encode(self, result):
        return self.names[int(result.argmax())]

class OfMMS:
    def initialize(self, context):
        pass
    def handle(self, data, context):
        return data

nothing = object()
"""


@pytest.fixture
def handler(tmp_path, monkeypatch):
    (tmp_path / "my_handler.py").write_text(HANDLER)
    (tmp_path / "helper_of_handler.py").write_text("NAMES = ['cat', 'dog']")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("my_handler", "helper_of_handler"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("module", ["my_handler", "my_handler.py"])
async def test_a_handler_is_a_module_or_a_class_in_it(handler, module):
    functions, labels = handlers.load_handler(module), handlers.load_handler(f"{module}:Labels")
    assert functions.encode is None
    assert labels.decode is None
    predictor = doubling(decode=functions.decode, encode=labels.encode)
    async with Client(predictor) as ask:
        assert (await ask("POST", "/predict", b"1 2", Content_Type="text/plain"))[2] == b'"dog"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_module", "No module named 'no_such_module'"),
        ("missing.py", "there is no handler file missing.py"),
        ("my_handler:other", "my_handler has no 'other'"),
        ("my_handler:nothing", "has neither decode nor encode, and is no handler of Multi Model Server"),
    ],
)
def test_a_wrong_handler_is_refused_in_one_line(handler, text, message, capsys):
    assert cli.main(["serve", "model", "--handler", text]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_repository_takes_no_handler(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--repository", str(tmp_path), "--handler", "my_handler"])
    assert "--handler needs a model" in capsys.readouterr().err
