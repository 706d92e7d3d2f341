"""Scripts of SageMaker's MXNet containers, unchanged: their functions, defaults, bodies and failures, over HTTP."""

import io
import json
import tarfile
import textwrap

import numpy as np
import pytest

from flowmx import cli
from flowmx.artifacts import inspect
from flowmx.comm.metrics import Metrics
from flowmx.serve import Handler, Predictor, Repository
from flowmx.serve.folders import create_predictor
from tests.serve.test_http import JSON, Client, carried  # noqa: F401 (a fixture)
from tests.serve.test_mms import until_ready
from tests.serve.test_predictor import answers, network

ROWS = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
LOADING = """
    import json
    import os

    import mxnet as mx

    print("executed")


    def model_fn(model_dir):
        files = [os.path.join(model_dir, name) for name in ("model-symbol.json", "model-0000.params")]
        return mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
"""
TRANSFORM = """
    from labels import LABELS


    def transform_fn(net, data, input_content_type, output_content_type):
        assert input_content_type == "application/json"
        return json.dumps([LABELS[int(row)] for row in net(mx.nd.array(json.loads(data))).argmax(1).asnumpy()])
"""
STEPS = """
    def input_fn(data, content_type):
        assert isinstance(data, bytearray), type(data)
        return mx.nd.array([float(number) for number in data.decode().split()]).reshape((1, -1))


    def predict_fn(data, net, context):
        context.metrics.add_counter("seen", len(data))
        return net(data)


    def output_fn(prediction, accept):
        return " ".join(map(str, prediction.asnumpy()[0])), "text/plain"
"""
FAILURES = """
    class BaseInferenceToolkitError(Exception):
        def __init__(self, status_code, message):
            self.status_code, self.message = status_code, message


    def model_fn(model_dir):
        return {}


    def transform_fn(model, data, content_type, accept):
        if data == b"refuse":
            raise BaseInferenceToolkitError(422, "no cat")
        if data == b"leave":
            raise SystemExit
        return {"size": len(data)}[data.decode()]
"""


@pytest.fixture
def checkpoint(tmp_path):
    """Return a folder with a checkpoint as SageMaker's training saves it, and what its model computes."""
    folder = tmp_path / "digits"
    (folder / "code").mkdir(parents=True)
    net = network()
    net.hybridize()
    expected = answers(net, ROWS)
    net.export(folder / "model")
    (folder / "model-shapes.json").write_text('[{"shape": [8, 5], "name": "data"}]')
    return folder, expected


def write(folder, *parts, name="inference.py"):
    (folder / "code" / name).write_text("".join(textwrap.dedent(part) for part in parts))
    (folder / "code" / "labels.py").write_text("LABELS = ['cat', 'dog', 'horse']")
    return folder


def pack(folder):
    path = folder.with_suffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for file in folder.iterdir():
            archive.add(file, f"./{file.name}")
    return path


def numbers(answer):
    return np.array(json.loads(answer))


@pytest.mark.parametrize("form", ["archive", "folder", "script", "--handler"])
async def test_a_script_answers_requests(carried, checkpoint, form):  # noqa: F811
    folder, expected = checkpoint
    write(folder, LOADING, TRANSFORM)
    models = {
        "archive": lambda: Predictor(pack(folder), metrics=Metrics()),
        "folder": lambda: Predictor(folder, metrics=Metrics()),
        "script": lambda: Predictor(Handler("code/inference.py", folder), metrics=Metrics()),
        "--handler": lambda: create_predictor(pack(folder), "code/inference.py", metrics=Metrics()),
    }
    async with carried(models[form]()) as ask:
        assert (await ask("GET", "/ping"))[0] in (200, 503)
        status, headers, answer = await ask(
            "POST", "/invocations", json.dumps(ROWS.tolist()).encode(), Content_Type=JSON
        )
        assert (status, headers["Content-Type"].split(";")[0]) == (200, JSON)
        assert json.loads(answer) == [["cat", "dog", "horse"][row] for row in expected.argmax(1)]


async def test_the_steps_of_a_script_get_bytes_and_the_context(carried, checkpoint):  # noqa: F811
    folder, expected = checkpoint
    predictor = Predictor(write(folder, LOADING, STEPS), metrics=Metrics(), max_batch=4)
    async with carried(predictor) as ask:
        status, headers, answer = await ask("POST", "/invocations", b" ".join(b"%f" % x for x in ROWS[0]))
        assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
        np.testing.assert_allclose([float(x) for x in answer.split()], expected[0], rtol=1e-4, atol=1e-5)
    assert 'name="seen"} 1' in predictor.metrics.text()


@pytest.mark.parametrize("script", ["", LOADING], ids=["module", "block"])
async def test_functions_that_a_script_leaves_out_are_those_of_the_container(carried, checkpoint, script):  # noqa: F811
    folder, expected = checkpoint
    npy, csv = io.BytesIO(), "\n".join(",".join(map(str, row)) for row in ROWS).encode()
    np.save(npy, ROWS)
    async with carried(Predictor(write(folder, script), metrics=Metrics())) as ask:
        for body, kind in [(json.dumps(ROWS.tolist()).encode(), JSON), (npy.getvalue(), "application/x-npy")]:
            status, _, answer = await ask("POST", "/invocations", body, Content_Type=kind)
            assert status == 200, answer
            np.testing.assert_allclose(numbers(answer), expected, rtol=1e-4, atol=1e-5)
        _, _, answer = await ask("POST", "/invocations", body, Content_Type=kind, Accept="image/png, application/x-npy")
        np.testing.assert_allclose(np.load(io.BytesIO(answer)), expected, rtol=1e-4, atol=1e-5)
        status, _, answer = await ask("POST", "/invocations", csv, Content_Type="text/csv", Accept="text/csv")
        if script:
            assert status == 415 and "need input_fn in the script" in answer.decode()
        else:
            np.testing.assert_allclose(np.loadtxt(io.BytesIO(answer), delimiter=","), expected, rtol=1e-4, atol=1e-5)
        status, _, answer = await ask("POST", "/invocations", body, Content_Type=kind, Accept="image/png")
        assert status == 406 and "need output_fn in the script" in answer.decode()
        assert (await ask("POST", "/invocations", b"[[1", Content_Type=JSON))[0] == 400


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [(b"refuse", 422, "no cat"), (b"leave", 500, "RuntimeError"), (b"x", 500, "the script failed: KeyError")],
)
async def test_failures_of_scripts(carried, checkpoint, body, status, message):  # noqa: F811
    folder, _ = checkpoint
    predictor = Predictor(write(folder, FAILURES), metrics=Metrics())
    async with carried(predictor) as ask:
        actual, _, answer = await ask("POST", "/invocations", body)
        assert actual == status and message in json.loads(answer)["error"]
        assert (await ask("POST", "/invocations", b"size"))[0::2] == (200, b"4")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("def model_fn(model_dir):\n    return {}\n", "model_fn returned a dict, expected a Module or a Gluon block"),
        ("def model_fn():\n    return {}\n", "model_fn has 0 parameters, and SageMaker calls it with 1"),
        (
            "def transform_fn(a, b, c, d): pass\ndef input_fn(a, b): pass\n",
            "transform_fn and input_fn, expected either",
        ),
        ("import absent_package_x\n", "No module named 'absent_package_x'"),
    ],
)
async def test_scripts_that_cannot_be_served(checkpoint, script, message):
    folder, _ = checkpoint
    with pytest.raises(Exception, match=message):
        await Predictor(write(folder, script), metrics=Metrics()).ready()


async def test_a_script_without_a_checkpoint_names_the_function_to_define(checkpoint):
    folder, _ = checkpoint
    (folder / "model-shapes.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-shapes.json is missing.*define model_fn\(model_dir\)"):
        await Predictor(write(folder, ""), metrics=Metrics()).ready()


def test_inspect_names_the_script_and_does_not_run_it(checkpoint, capsys):
    folder, _ = checkpoint
    (folder / "code" / "requirements.txt").write_text("gluoncv==0.10  # detection\n\n")
    path = pack(write(folder, LOADING, TRANSFORM))
    report = inspect(path)
    assert report.facts["script"] == "code/inference.py (model_fn, transform_fn); flowmx serve runs it"
    assert (report.facts["needs"], report.commands) == ("gluoncv==0.10", [f"flowmx serve {path}"])
    assert inspect(folder).commands == [f"flowmx serve {folder}"]
    assert cli.main(["convert", str(path), str(folder / "written")]) == 0
    assert "executed" not in capsys.readouterr().out


def test_the_script_is_the_only_one_or_that_of_the_environment(checkpoint, monkeypatch):
    folder, _ = checkpoint
    write(folder, LOADING, name="entry.py")
    assert "code/entry.py" in inspect(folder).facts["script"]
    write(folder, FAILURES, name="other.py")
    assert "script" not in inspect(folder).facts
    monkeypatch.setenv("SAGEMAKER_PROGRAM", "other.py")
    assert "code/other.py" in inspect(folder).facts["script"]


def test_options_of_models_are_refused(checkpoint, capsys):
    folder, _ = checkpoint
    assert cli.main(["serve", str(write(folder, LOADING, TRANSFORM)), "--shape", "5"]) == 1
    assert "leave out --shape, or name the model's files without their code" in capsys.readouterr().err
    with pytest.raises(ValueError, match="reads bodies and loads its model itself"):
        Predictor(folder, shape=(5,))
    assert isinstance(Predictor(folder / "model", shape=(5,)), Predictor)


async def test_a_repository_serves_scripts(checkpoint, tmp_path):
    folder, expected = checkpoint
    write(folder, LOADING, TRANSFORM)
    async with Client(Repository(tmp_path)) as ask:
        await until_ready(ask)
        body = json.dumps(ROWS[:1].tolist()).encode()
        status, _, answer = await ask("POST", "/models/digits/invoke", body, Content_Type=JSON)
        assert (status, json.loads(answer)) == (200, [["cat", "dog", "horse"][expected[0].argmax()]])


async def test_a_request_of_a_program_needs_no_headers(checkpoint):
    folder, expected = checkpoint
    async with Predictor(
        write(folder, LOADING, TRANSFORM.replace("assert", "assert 1 or")), metrics=Metrics()
    ) as script:
        response = await script({"body": json.dumps(ROWS[:1].tolist())})
        assert json.loads(response.value) == [["cat", "dog", "horse"][expected[0].argmax()]]
