"""The training examples learn, plot, and resume; their full results are tested with `soak`."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flowmx as mx

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LOSS = re.compile(r"epoch +(\d+)/\d+ .* loss +([0-9.]+)")

TINY = {
    "char_lstm": "--characters 16000 --units 32 --layers 1 --steps 32 --batch-size 16 --write 20",
    "small_gpt": "--characters 12000 --width 32 --layers 1 --heads 2 --context 32 --batch-size 16 --workers 0",
    "resnet_rec": "--limit 16 --copies 1 --blocks 1 --batch-size 16 --epochs 3",
    "vae_digits": "--hidden 32 --lines 1",
    "multi_device": "--limit 320 --batch-size 32",
    "serve_while_training": "",
}
"""Enough to learn something in seconds."""


@pytest.fixture(autouse=True)
def _examples(monkeypatch):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    mx.amp.deinit()


def run(name, *arguments):
    """Run an example with tiny options. Return the result of its main."""
    example = importlib.import_module(name)
    options = ["--epochs", "2", *TINY[name].split(), *map(str, arguments)]
    return mx.run(example.main(example.parser().parse_args(options)))


def losses(text):
    """The losses of the epochs, as an example printed them."""
    return [float(loss) for _, loss in LOSS.findall(text)]


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG")


def reached(folder):
    """The place and the bits of the parameters of the newest checkpoint."""
    newest = mx.checkpoint.Checkpoints(folder).newest()
    return newest.place, {name: value.tobytes() for name, value in newest.arrays.items()}


class Killed(Exception):
    """Stands for the end of the process in the middle of an epoch."""


def killed(batches, monkeypatch, name, *arguments):
    """Run an example until so many batches are under way."""
    progress = importlib.import_module("progress").Progress
    left = [batches]

    async def batch(self, loss, samples, real=progress.batch):
        left[0] -= 1
        if not left[0]:
            raise Killed
        await real(self, loss, samples)

    with monkeypatch.context() as patch:
        patch.setattr(progress, "batch", batch)
        with pytest.raises(Killed):
            run(name, *arguments)


@pytest.mark.parametrize(
    ("name", "batches", "better_than", "sign"),
    [("char_lstm", 40, 60, 1), ("small_gpt", 35, 60, 1), ("resnet_rec", 17, 0.05, -1), ("vae_digits", 30, -40, -1)],
)
def test_it_learns_and_resumes(name, batches, better_than, sign, tmp_path, monkeypatch, capsys):
    output = run(name, "--plot", tmp_path / "drawn" / "plot.png", "--checkpoint", tmp_path / "whole")
    first, *_, last = losses(capsys.readouterr().out)
    assert last < first
    assert output * sign < better_than * sign
    assert is_picture(tmp_path / "drawn" / "plot.png")
    again = ["--checkpoint", tmp_path / "run", "--every", 4]
    killed(batches, monkeypatch, name, *again)
    mx.random.seed(1)  # another process would begin so
    assert run(name, *again) == output
    assert reached(tmp_path / "run") == reached(tmp_path / "whole")


def test_several_devices_train_as_one(tmp_path, monkeypatch, capsys):
    again = ["--checkpoint", tmp_path / "run", "--every", 4, "--plot", tmp_path / "plot.png"]
    killed(36, monkeypatch, "multi_device", *again)  # the first 20 batches are those of one device
    capsys.readouterr()
    output = run("multi_device", *again)
    one, several = re.findall(r"epoch +2/2 .* loss +([0-9.]+) .* with Gluon on (\d)", capsys.readouterr().out)
    assert one[1] == "1" and several[1] == "2"
    apart = [value for name, value in output.items() if name.endswith("apart")]
    assert len(apart) == 3 and 0 < max(apart) < 1e-5
    assert output["test accuracy"] > 0.5
    assert is_picture(tmp_path / "plot.png")


def test_a_checker_of_parameters_tells_different_ones():
    difference = importlib.import_module("multi_device").largest_difference
    ones = {"weight": mx.nd.ones((2, 2)).asnumpy()}
    assert difference(ones, ones) == 0 and difference(ones, {"weight": 0.5 * ones["weight"]}) == 0.5


def test_answers_get_better_while_the_model_learns(tmp_path, capsys):
    output = run("serve_while_training", "--plot", tmp_path / "plot.png", "--checkpoint", tmp_path / "run")
    first, last = losses(capsys.readouterr().out)
    assert last < first
    assert output["answers"] > 10
    assert output["right among the last answers"] > output["right among the first answers"]
    assert is_picture(tmp_path / "plot.png") and list((tmp_path / "run").iterdir())


async def test_the_service_refuses_what_is_no_image():
    from aiohttp.test_utils import TestClient, TestServer

    example = importlib.import_module("serve_while_training")
    service = example.Service(example.parser().parse_args(["--epochs", "1"]))
    async with TestClient(TestServer(service.app())) as client:
        assert (await client.post("/predict", data=b"nonsense")).status == 400
        assert (await client.post("/predict", json=[1, 2])).status == 422


def test_mixed_precision_follows_float32(tmp_path, capsys):
    for dtype in ("float32", "bfloat16"):
        run("resnet_rec", "--data", tmp_path, "--limit", 8, "--epochs", 1, "--dtype", dtype)
    full, mixed = losses(capsys.readouterr().out)
    assert mixed != full and mixed == pytest.approx(full, rel=0.05)


def test_the_text():
    text = importlib.import_module("stdlib_text")
    train, test = text.load(5000)
    assert len(train) == 5000 and len(test) == 250
    assert max(train) < len(text.ALPHABET) == 96
    assert text.decode(text.encode("def f():\n\treturn 'é'")) == "def f():\n    return '?'"


def test_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match=r"pip install matplotlib"):
        importlib.import_module("progress").draw(tmp_path / "plot.png", "title", {})


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "last_line", "least", "most"),
    [
        ("resnet_rec", "test accuracy: ", 0.9, 1),
        ("char_lstm", "test perplexity: ", 2, 5),
        ("small_gpt", "test perplexity: ", 2, 6),
        ("vae_digits", "test ELBO: ", -24, -22),
        ("multi_device", "Gluon and Module apart: ", 0, 1e-4),
        ("serve_while_training", "right among the last answers: ", 0.9, 1),
    ],
)
@pytest.mark.timeout(3600)
def test_what_it_reaches(name, last_line, least, most):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, timeout=3600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    last = done.stdout.splitlines()[-1]
    assert last.startswith(last_line)
    assert least <= float(last.removeprefix(last_line)) <= most
