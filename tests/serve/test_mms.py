"""Handlers of Multi Model Server, unchanged: their batches, contexts, bodies and responses, over HTTP."""

import asyncio
import json
import re
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx import cli
from flowmx.comm.metrics import Metrics
from flowmx.data.codecs import encode
from flowmx.serve import Handler, InvalidInput, Predictor, Repository, Unavailable
from flowmx.serve.handlers import load_handler
from flowmx.serve.metrics import Instruments
from flowmx.serve.mms_context import Context, RequestProcessor
from tests.serve.test_http import JSON, Client, carried  # noqa: F401 (a fixture)
from tests.serve.test_predictor import answers, network
from tests.waiting import until

SERVICE = '''
"""A service as the tutorials of MMS have it: it loads a checkpoint in its folder, and labels numbers."""
import json
import os

import mxnet as mx
from labels import LABELS


class ModelHandler(object):
    def __init__(self):
        self.error = None
        self._context = None
        self._batch_size = 0
        self.initialized = False

    def initialize(self, context):
        self._context = context
        self._batch_size = context.system_properties["batch_size"]
        prefix = os.path.join(context.system_properties.get("model_dir"), "model")
        sym, arg_params, aux_params = mx.model.load_checkpoint(prefix, 0)
        gpu_id = context.system_properties.get("gpu_id")
        ctx = mx.cpu() if gpu_id is None else mx.gpu(gpu_id)
        self.module = mx.mod.Module(sym, data_names=["data"], label_names=None, context=ctx)
        self.module.bind(for_training=False, data_shapes=[("data", (1, 5))])
        self.module.set_params(arg_params, aux_params, allow_missing=True)
        self.initialized = True

    def preprocess(self, batch):
        rows = []
        for request in batch:
            value = request.get("data")
            if value is None:
                value = request.get("body")
            if isinstance(value, (bytes, bytearray)):
                value = json.loads(value.decode())
            rows.append(value)
        return mx.nd.array(rows)

    def inference(self, model_input):
        self.module.forward(mx.io.DataBatch([model_input]), is_train=False)
        return self.module.get_outputs()[0]

    def postprocess(self, inference_output):
        scores = inference_output.asnumpy()
        return [{"label": LABELS[int(row.argmax())], "scores": row.tolist()} for row in scores]

    def handle(self, data, context):
        return self.postprocess(self.inference(self.preprocess(data)))


_service = ModelHandler()


def handle(data, context):
    if not _service.initialized:
        _service.initialize(context)
    if data is None:
        return None
    return _service.handle(data, context)
'''
ROWS = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Return a folder with a checkpoint, a service and a manifest, and what its model computes."""
    folder = tmp_path / "digits"
    (folder / "MAR-INF").mkdir(parents=True)
    net = network()
    net.hybridize()
    expected = answers(net, ROWS)
    net.export(folder / "model")
    (folder / "service.py").write_text(SERVICE)
    (folder / "labels.py").write_text("LABELS = ['cat', 'dog', 'horse']")
    manifest = {"model": {"modelName": "digits", "handler": "service.py:handle"}}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = set(sys.modules)
    yield folder, expected
    for name in {"service", "labels", "echo"} - modules:
        sys.modules.pop(name, None)


def form(**fields):
    parts = [
        f'--XX\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\nContent-Type: {kind}\r\n\r\n'.encode()
        + value
        for name, (kind, value) in fields.items()
    ]
    return b"\r\n".join([*parts, b"--XX--\r\n"]), "multipart/form-data; boundary=XX"


@pytest.mark.parametrize("named", ["service.py:handle", "service:ModelHandler", "service.py", "service:_service"])
@pytest.mark.parametrize("path", ["/predictions/digits", "/predict", "/invocations", "/models/digits/predict"])
async def test_a_service_of_mms_runs_as_it_is(carried, archive, named, path):  # noqa: F811
    folder, expected = archive
    predictor = Predictor(Handler(named, folder), name="digits", metrics=Metrics())
    row = json.dumps(ROWS[0].tolist()).encode()
    async with carried(predictor) as ask:
        await predictor.ready()
        assert (await ask("GET", "/ping"))[0] == 200
        body, kind = form(data=("application/octet-stream", row))
        for each, its_type in [(row, JSON), (row, "image/jpeg"), (body, kind)]:
            status, headers, answer = await ask("POST", path, each, Content_Type=its_type)
            assert (status, headers["Content-Type"].split(";")[0]) == (200, JSON)
            document = json.loads(answer)
            assert document["label"] == ["cat", "dog", "horse"][expected[0].argmax()]
            np.testing.assert_allclose(document["scores"], expected[0], rtol=1e-4, atol=1e-5)


class Echo:
    """Shows what handlers get, and answers as its requests say."""

    entered, leave = threading.Semaphore(0), threading.Event()

    def initialize(self, context):
        self.batches = context.batches = []

    def handle(self, data, context):
        self.entered.release()
        assert self.leave.wait(30)
        self.batches.append(len(data))
        context.metrics.add_counter("seen", len(data))
        context.metrics.add_time("inference", 1.5)
        answers = []
        for index, request in enumerate(data):
            body = request.get("body")
            if body == "fail":
                raise KeyError("secret")
            if body == "leave":
                raise SystemExit(1)
            if body == "refuse":
                raise PredictionError("no cat", 422)
            if body == "short":
                return []
            if body == "none":
                return None
            if body == "created":
                context.set_response_status(201, "Created", index)
                context.set_response_header(index, "X-Cat", "yes")
                context.set_response_content_type(index, "text/csv")
                answers.append("a,b")
            elif body == "png":
                answers.append(b"\x89PNG")
            elif body == "context":
                properties = context.system_properties
                answers.append([
                    context.get_request_header(index, "X-Mine"), properties["batch_size"], properties["gpu_id"],
                    context.model_name, len(context.get_request_id(index)),
                ])  # fmt: skip
            else:
                answers.append({name: [type(value).__name__, str(value)] for name, value in request.items()})
        return answers


class PredictionError(Exception):
    def __init__(self, message, error_code):
        super().__init__(message)
        self.message, self.error_code = message, error_code


@pytest.fixture
def echo():
    Echo.entered, Echo.leave = threading.Semaphore(0), threading.Event()
    Echo.leave.set()
    return Predictor(Handler(Echo), max_batch=4, max_queue=8, metrics=Metrics())


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b'{"a": 1}', JSON, {"body": ["dict", "{'a': 1}"]}),
        ("größer".encode(), "text/plain; charset=utf-8", {"body": ["str", "größer"]}),
        (b"\xff\x00", "image/jpeg", {"body": ["bytearray", "bytearray(b'\\xff\\x00')"]}),
        (b"1,2", "", {"body": ["bytearray", "bytearray(b'1,2')"]}),
        (
            *form(data=("image/png", b"\r\n--X\r\n\r\nbytes\r\n"), name=("text/plain", b"cat"), more=(JSON, b"[1]")),
            {
                "data": ["bytearray", "bytearray(b'\\r\\n--X\\r\\n\\r\\nbytes\\r\\n')"], "name": ["str", "cat"],
                "more": ["list", "[1]"],
            },
        ),
    ],
)  # fmt: skip
async def test_bodies_reach_the_handler_as_from_mms(carried, echo, body, kind, expected):  # noqa: F811
    async with carried(echo) as ask:
        status, _, answer = await ask("POST", "/predict", body, Content_Type=kind)
        assert status == 200, answer
        assert json.loads(answer) == expected


@pytest.mark.parametrize("path", ["/predictions/model", "/invocations"])
async def test_parameters_of_the_query_reach_the_handler(carried, echo, path):  # noqa: F811
    async with carried(echo) as ask:
        query = "?top=3&name=gr%C3%B6%C3%9Fer+Hund&top=5&body=no&empty="
        answer = json.loads((await ask("POST", path + query, b"[1]", Content_Type=JSON))[2])
        assert answer == {
            "top": ["bytearray", "bytearray(b'5')"], "empty": ["bytearray", "bytearray(b'')"],
            "name": ["bytearray", str(bytearray("größer Hund".encode()))], "body": ["list", "[1]"],
        }  # fmt: skip
        body, kind = form(data=("text/plain", b"cat"))
        answer = json.loads((await ask("POST", f"{path}?data=dog&top=3", body, Content_Type=kind))[2])
        assert answer == {"data": ["str", "cat"], "top": ["bytearray", "bytearray(b'3')"]}


async def test_the_context_has_headers_and_sets_statuses(carried, echo):  # noqa: F811
    async with carried(echo) as ask:
        status, headers, answer = await ask("POST", "/predict", b"created", Content_Type="text/plain")
        assert (status, headers["Content-Type"].split(";")[0], headers["X-Cat"], answer) == (
            201, "text/csv", "yes", b"a,b",
        )  # fmt: skip
        status, headers, answer = await ask("POST", "/predict", b"png", Content_Type="text/plain")
        assert (status, headers["Content-Type"], answer) == (200, "application/octet-stream", b"\x89PNG")
        answer = (await ask("POST", "/predict", b"context", Content_Type="text/plain", X_Mine="me"))[2]
        assert json.loads(answer) == ["me", 4, None, "model", 32]
    text = echo.metrics.text()
    assert 'flowmx_serve_handler_total{model="model",name="seen"} 3' in text
    assert 'flowmx_serve_handler_value{model="model",name="inference",unit="ms"} 1.5' in text


@pytest.mark.parametrize(
    ("body", "status", "message", "result"),
    [
        (b"fail", 500, "the model failed: KeyError", "failed"),
        (b"leave", 500, "the model failed: RuntimeError", "failed"),
        (b"refuse", 422, "no cat", "invalid"),
        (b"short", 500, "the model failed: ValueError", "failed"),
        (b"none", 500, "the model failed: TypeError", "failed"),
    ],
)
async def test_failures_of_handlers(carried, echo, body, status, message, result):  # noqa: F811
    async with carried(echo) as ask:
        actual, _, answer = await ask("POST", "/predict", body, Content_Type="text/plain")
        assert (actual, json.loads(answer)["error"]) == (status, message)
        assert (await ask("POST", "/predict", b"x", Content_Type="text/plain"))[0] == 200
    assert f'result="{result}"}} 1' in echo.metrics.text()
    assert 'result="answered"} 1' in echo.metrics.text()


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"[1", JSON, "not valid JSON"),
        (b"--XX\r\n\r\n", "multipart/form-data; boundary=XX", "the form has no end"),
        (b"--XX\r\n\r\n", "multipart/form-data; boundary=\xe9", "the form has no end"),
        (b"--XX--", "multipart/form-data", "boundary="),
        (b"--XX\r\nContent-Type: a/b\r\n\r\n1\r\n--XX--", "multipart/form-data; boundary=XX", "has no name"),
        (b"--XX\r\n1\r\n--XX--", "multipart/form-data; boundary=XX", "has no header"),
        (b"--XX\r\na\r\n\r\n" * 300, "multipart/form-data; boundary=XX", "256 parts or more"),
    ],
)
async def test_malformed_bodies_are_refused(carried, echo, body, kind, message):  # noqa: F811
    async with carried(echo) as ask:
        status, _, answer = await ask("POST", "/predict", body, Content_Type=kind)
        assert status == 400
        assert message in json.loads(answer)["error"]


async def test_requests_share_batches_and_cancelled_ones_leave_them(echo):
    async with echo as predictor:
        Echo.leave.clear()
        first = asyncio.create_task(predictor({"body": "a"}))
        await asyncio.to_thread(Echo.entered.acquire)
        others = [asyncio.create_task(predictor({"body": str(i)})) for i in range(5)]
        await until(lambda: predictor._runner.queue.rows == 5)
        others[1].cancel()
        await until(lambda: predictor._runner.queue.rows == 4)
        Echo.leave.set()
        responses = [(await task).value["body"][1] for task in [first, *others[:1], *others[2:]]]
        assert responses == ["a", "0", "2", "3", "4"]
        assert predictor._runner.model._context.batches == [1, 4]
    with pytest.raises(Unavailable):
        await predictor({"body": "a"})


async def test_a_swap_loses_no_request():
    def first(data, context):
        return [1] * len(data or ())

    def second(data, context):
        return [2] * len(data or ())

    async with Predictor(Handler(first), max_queue=64, metrics=Metrics()) as predictor:
        asking = [asyncio.create_task(predictor({"body": ""})) for _ in range(10)]
        await predictor.swap(Handler(second))
        assert {(await task).value for task in asking} <= {1, 2}
        assert (await predictor({"body": ""})).value == 2
        with pytest.raises(ValueError, match="do not replace each other"):
            await predictor.swap(network(), params=None)
        with pytest.raises(InvalidInput, match="expected a dict such as"):
            await predictor([1, 2])


async def test_the_open_inference_protocol_names_the_route(carried, echo):  # noqa: F811
    async with carried(echo) as ask:
        status, _, answer = await ask("POST", "/v2/models/model/infer", b"{}", Content_Type=JSON)
        assert status == 400
        assert "/predictions/model" in json.loads(answer)["error"]
        for path in ("/docs", "/openapi.json", "/v2/models/model", "/models"):
            assert (await ask("GET", path))[0] == 200


async def test_models_of_a_repository_have_handlers_with_modules_of_the_same_names(archive, tmp_path):
    folder, expected = archive
    other = tmp_path / "other"
    other.mkdir()
    (folder / "model.toml").write_text('handler = "service.py:handle"\nmax_batch = 4')
    (other / "model.toml").write_text('handler = "service.py:handle"')
    (other / "labels.py").write_text("LABELS = ['other']")
    (other / "service.py").write_text("from labels import LABELS\n\ndef handle(data, context):\n    return LABELS\n")
    async with Client(Repository(tmp_path)) as ask:
        await until_ready(ask)
        body = json.dumps(ROWS[1].tolist()).encode()
        answer = json.loads((await ask("POST", "/predictions/digits", body, Content_Type=JSON))[2])
        assert answer["label"] == ["cat", "dog", "horse"][expected[1].argmax()]
        assert (await ask("POST", "/predictions/other", body, Content_Type=JSON))[2] == b"other"


async def until_ready(ask):
    async with asyncio.timeout(60):
        while (await ask("GET", "/readyz"))[0] != 200:
            await asyncio.sleep(0.01)


async def test_a_repository_has_images_and_hooks(tmp_path):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.GlobalAvgPool2D(), mx.gluon.nn.Flatten())
    net.initialize()
    net.hybridize()
    net(mx.nd.zeros((1, 3, 4, 4)))
    (tmp_path / "photos").mkdir()
    net.export(tmp_path / "photos" / "model")
    options = 'shape = [3, 4, 4]\nhandler = "hooks.py"\n[image]\nmean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.5, 0.5]\n'
    (tmp_path / "photos" / "model.toml").write_text(options)
    (tmp_path / "photos" / "hooks.py").write_text("def encode(result):\n    return {'mean': result}\n")
    repository = Repository(tmp_path)
    async with Client(repository) as ask:
        await until_ready(ask)
        png = encode(np.full((8, 8, 3), 255, np.uint8), ".png")
        status, _, answer = await ask("POST", "/models/photos/predict", png, Content_Type="image/png")
        assert (status, json.loads(answer)) == (200, {"mean": [1.0, 1.0, 1.0]})
        (tmp_path / "photos" / "model.toml").write_text(options.replace("mean", "middle"))
        with pytest.raises(Exception, match="middle"):
            await repository.load("photos")


def test_the_command_line_says_what_to_do(archive, capsys):
    folder, _ = archive
    assert cli.main(["serve", str(folder), "--shape", "5"]) == 1
    assert "pass --handler service.py:handle to run it" in capsys.readouterr().err
    assert cli.main(["serve", str(folder), "--shape", "5", "--handler", "service.py:handle"]) == 1
    assert "leave out --shape" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is not a handler"):
        Handler(object())
    with pytest.raises(ValueError, match="for models, and this is a handler"):
        Predictor(Handler(Echo), shape=(5,))
    assert isinstance(load_handler("service.py:handle", folder), Handler)


async def test_a_handler_that_cannot_load_its_model_is_not_ready(tmp_path):
    source = """
    def handle(data, context):
        raise FileNotFoundError(f"no model in {context.system_properties['model_dir']}")
    """
    (tmp_path / "echo.py").write_text(textwrap.dedent(source))
    predictor = Predictor(Handler("echo.py:handle", tmp_path), metrics=Metrics())
    with pytest.raises(FileNotFoundError, match="no model in"):
        await predictor.ready()
    assert not predictor.is_ready


def test_a_handler_sets_the_status_of_all_requests():
    processors = [RequestProcessor({}), RequestProcessor({})]
    context = Context.__new__(Context)
    context.request_processor = processors
    context.set_all_response_status(400, "ClientError")
    assert [(each.get_response_status_code(), each.get_response_status_phrase()) for each in processors] == [
        (400, "ClientError")
    ] * 2
    processors[0].add_response_property("X-Cat", "yes")
    assert processors[0].get_response_header("X-Cat") == "yes"
    assert processors[0].get_response_header() == {"X-Cat": "yes"}


def test_the_page_lists_the_attributes_and_methods_of_the_context():
    page = (Path(__file__).parent.parent.parent / "docs" / "serving.md").read_text(encoding="utf-8")
    rows = page.split("| attribute or method | meaning |")[1].split("\n\n")[0]
    listed = set(re.findall(r"\w+", " ".join(row.split("|")[1] for row in rows.splitlines() if "|" in row)))
    context = Context("name", None, 1, None, Instruments(Metrics()))
    members = {name for owner in (context, context.metrics) for name in dir(owner) if not name.startswith("_")}
    assert members - {"begin", "response"} <= listed  # these two are for the service
