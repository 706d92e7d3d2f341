"""The examples run, and behave as documented."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def test_training_learns_the_digits(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_digits.py"), "--epochs", "2", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=110, check=False, env={**os.environ, "MPLBACKEND": "Agg"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    last = done.stdout.splitlines()[-1]
    assert last.startswith("test accuracy: 0.")
    assert float(last.split()[-1]) > 0.95
    assert {path.name for path in tmp_path.iterdir()} == {
        "lenet-0002.params", "lenet-0002.states", "lenet-symbol.json", "learning_curve.png", "test_digits.png",
    }  # fmt: skip


async def test_the_service_answers_while_it_trains(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    async_service = pytest.importorskip("async_service")
    from aiohttp.test_utils import TestClient, TestServer

    app = async_service.make_app(epochs=3)
    async with TestClient(TestServer(app)) as client:
        model = app[async_service.MODEL]
        image = model.test_images[0].tolist()
        answered_in_training = 0
        while (await (await client.get("/")).json())["state"] != "trained":
            reply = await client.post("/predict", json=image)
            assert reply.status == 200
            answer = await reply.json()
            assert abs(sum(answer["probabilities"]) - 1) < 1e-4
            answered_in_training += 1
            await asyncio.sleep(0)
        assert answered_in_training > 5
        assert (await client.post("/predict", data=b"nonsense")).status == 400
        assert (await client.post("/predict", json=[1, 2])).status == 422
        right = 0
        for index in range(20):
            reply = await client.post("/predict", json=model.test_images[index].tolist())
            right += (await reply.json())["digit"] == int(model.test_labels[index])
        assert right >= 17


def test_gluon_learns_the_digits():
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "gluon_digits.py"), "--epochs", "3"],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    last = done.stdout.splitlines()[-1]
    assert last.startswith("test accuracy: 0.")
    assert float(last.split()[-1]) > 0.9


def test_distributed_training_matches_one_process():
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "train_distributed.py"), "--epochs", "1"],
        capture_output=True, text=True, timeout=110, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_KVSTORE", "DMLC_"))},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    lines = [line.removeprefix("[worker 0] ") for line in done.stdout.splitlines() if line.startswith("[worker 0] ")]
    assert lines[-2] == "largest difference from one process: 0.0"
    assert float(lines[-1].removeprefix("test accuracy: ")) > 0.9
