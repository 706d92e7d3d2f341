"""``python -m flowmx serve``: serve a folder until SIGTERM, without losing a request."""

import asyncio
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from aiohttp import ClientConnectionError, ClientSession

import flowmx as mx
from flowmx import cli
from flowmx.serve import command
from flowmx.tools import usage
from tests.comm.test_security import certificates
from tests.serve.test_predictor import answers, network


@pytest.fixture
def folder(tmp_path):
    net = network()
    net.hybridize()
    rows = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    expected = answers(net, rows)
    net.export(tmp_path / "model")
    return tmp_path, rows, expected


async def test_sigterm_under_load_loses_no_request(folder):
    path, rows, expected = folder
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "flowmx", "serve", str(path), "--shape", "5", "--port", "0",
        "--max-batch", "4", "--max-queue", "64",
        env={**os.environ, "PYTHONWARNINGS": "error"}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    line = (await process.stderr.readline()).decode()
    address = re.search(r"http://\S+", line)
    assert address, line + (await process.stderr.read()).decode()
    outcomes, ends, done = [], [], 0

    async def client(session, row):
        nonlocal done
        while True:
            try:
                async with session.post(f"{address[0]}/predict", json=rows[row].tolist()) as reply:
                    document = await reply.json()
                    outcomes.append(reply.status)
                    np.testing.assert_allclose(document["outputs"], expected[row], rtol=1e-4, atol=1e-5)
                    done += 1
                    if done == 100:
                        process.send_signal(signal.SIGTERM)
            except ClientConnectionError as error:
                ends.append(str(error))
                return

    async with asyncio.timeout(60), ClientSession() as session:
        await asyncio.gather(*(client(session, i % 4) for i in range(16)))
        assert await process.wait() == 0
    assert set(outcomes) == {200}
    # A refused connection does not count: the service has not accepted the request.
    assert all("Connect call failed" in each for each in ends), ends
    assert done >= 100


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
async def test_a_repository_over_tls_for_those_with_a_token_and_a_certificate(folder):
    path, rows, expected = folder
    certificates(path)
    models = path / "models"
    (models / "net").mkdir(parents=True)
    for each in [*path.glob("model-*")]:
        each.rename(models / "net" / each.name)
    (models / "net" / "model.toml").write_text("shape = [5]")
    token = path / "token"
    token.touch(0o600)
    token.write_text("the token of those who may ask")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "flowmx", "serve", "--repository", str(models), "--port", "0", "--token-file", str(token),
        "--tls-cert", str(path / "node.pem"), "--tls-key", str(path / "node.key"), "--tls-ca", str(path / "ca.pem"),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    address = re.search(r"https://\S+", (await process.stderr.readline()).decode())[0]
    member, other = (ssl.create_default_context(cafile=path / "ca.pem") for _ in range(2))
    member.load_cert_chain(path / "node.pem", path / "node.key")
    async with asyncio.timeout(60), ClientSession() as session:
        with pytest.raises(ClientConnectionError):
            await session.get(f"{address}/health/live", ssl=other)
        while (await session.get(f"{address}/health/ready", ssl=member)).status != 200:
            pass
        headers = {"Authorization": f"Bearer {token.read_text()}"}
        assert (await session.post(f"{address}/models/net/predict", ssl=member, json=rows.tolist())).status == 401
        reply = await session.post(f"{address}/models/net/predict", ssl=member, json=rows.tolist(), headers=headers)
        np.testing.assert_allclose((await reply.json())["outputs"], expected, rtol=1e-4, atol=1e-5)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "expected a model, or --repository FOLDER"),
        (["model", "--repository", "models"], "expected a model, or --repository FOLDER"),
        (["model", "--tls-cert", "node.pem"], "expected both of --tls-cert and --tls-key"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_errors_are_reported_in_one_line(folder, capsys, tmp_path):
    from flowmx import cli

    path, _, _ = folder
    assert cli.main(["serve", str(path)]) == 1
    assert "the shape of a sample of data is unknown" in capsys.readouterr().err
    assert cli.main(["serve", str(path), "--shape", "x"]) == 1
    assert "expected sizes such as 3,32,32" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert cli.main(["serve", str(empty), "--shape", "5"]) == 1
    assert "must hold one model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "shape"),
    [(None, None), (["3,32,32"], (3, 32, 32)), (["?,8"], (None, 8)), (["a=2", "b=3,4"], {"a": (2,), "b": (3, 4)})],
)
def test_shapes_of_the_command_line(value, shape):
    assert usage.shapes(value) == shape


def test_the_module_is_loaded_on_first_use():
    assert mx.serve.Predictor is command.Predictor


def test_the_page_runs():
    page = (Path(__file__).parent.parent.parent / "docs" / "serving.md").read_text(encoding="utf-8")
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/serving.md", "exec"), names)
    assert names["one"].shape == (3,)
    assert names["several"].shape == (20, 3)
    np.testing.assert_allclose(names["many"][0], names["many"][7], rtol=1e-6)


def test_the_example_serves_the_trained_model(tmp_path):
    pytest.importorskip("sklearn")
    script = Path(__file__).parent.parent.parent / "examples" / "serve_digits.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), "--epochs", "3", "--export", str(tmp_path)],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.9
    assert {path.name for path in tmp_path.iterdir()} == {"digits-symbol.json", "digits-0000.params"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nowhere"],
            r"there is no model '.*nowhere': expected a folder .* nowhere-symbol\.json and nowhere-0000\.params",
        ),
        (["model"], r"the shape of a sample of data is unknown: pass --shape 3,32,32, or --shape data=3,32,32"),
        (["model-symbol.json"], "the shape of a sample of data is unknown: pass --shape"),
        (["model-0000.params"], "the shape of a sample of data is unknown: pass --shape"),
        (
            ["model", "--shape", "?"],
            "an input has a variable length: pass the lengths to compile for, --lengths 16,32,64",
        ),
    ],
)
def test_errors_advise_in_the_syntax_of_the_command_line(folder, arguments, message, capsys):
    path, *_ = folder
    assert cli.main(["serve", str(path / arguments[0]), *arguments[1:]]) == 1
    assert re.search(f"flowmx: error: {message}", capsys.readouterr().err)


def test_programs_get_the_same_advice_in_python(folder):
    path, *_ = folder
    with pytest.raises(ValueError, match=r"the shape of a sample of data is unknown: pass shape=\(3, 32, 32\)"):
        mx.serve.Predictor(path / "model")
