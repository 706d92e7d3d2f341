"""``python -m flowmx serve``: a service of a folder, until SIGTERM, which loses no request."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from aiohttp import ClientConnectionError, ClientSession

import flowmx as mx
from flowmx.serve import command
from flowmx.tools import usage
from tests.test_serve import answers, network


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
        "--max-batch", "4", "--queue", "64",
        env={**os.environ, "PYTHONWARNINGS": "error"}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said = (await process.stderr.readline()).decode()
    address = re.search(r"http://\S+", said)
    assert address, said + (await process.stderr.read()).decode()
    outcomes, ends, done = [], [], 0

    async def client(session, row):
        nonlocal done
        while True:
            try:
                async with session.post(f"{address[0]}/predict", json=rows[row].tolist()) as reply:
                    found = await reply.json()
                    outcomes.append(reply.status)
                    np.testing.assert_allclose(found["outputs"], expected[row], rtol=1e-4, atol=1e-5)
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
    # A connection that is refused is no request that was accepted.
    assert all("Connect call failed" in each for each in ends), ends
    assert done >= 100


def test_what_is_wrong_is_said_in_a_line(folder, capsys, tmp_path):
    from flowmx import cli

    path, _, _ = folder
    assert cli.main(["serve", str(path)]) == 1
    assert "the shape of a row of data is not known" in capsys.readouterr().err
    assert cli.main(["serve", str(path), "--shape", "x"]) == 1
    assert "expected sizes such as 3,32,32" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert cli.main(["serve", str(empty), "--shape", "5"]) == 1
    assert "must hold one model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "shape"),
    [(None, None), (["3,32,32"], (3, 32, 32)), (["?,8"], (None, 8)), (["a=2", "b=3,4"], {"a": (2,), "b": (3, 4)})],
)
def test_shapes_of_the_command_line(given, shape):
    assert usage.shapes(given) == shape


def test_the_module_is_there_when_it_is_asked_for():
    assert mx.serve.Predictor is command.Predictor


def test_the_page_runs():
    page = (Path(__file__).parent.parent / "docs" / "serving.md").read_text(encoding="utf-8")
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/serving.md", "exec"), names)
    assert names["one"].shape == (3,)
    assert names["several"].shape == (20, 3)
    np.testing.assert_allclose(names["many"][0], names["many"][7], rtol=1e-6)


def test_the_example_serves_what_it_has_learnt(tmp_path):
    pytest.importorskip("sklearn")
    script = Path(__file__).parent.parent / "examples" / "serve_digits.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), "--epochs", "3", "--export", str(tmp_path)],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.9
    assert {path.name for path in tmp_path.iterdir()} == {"digits-symbol.json", "digits-0000.params"}
