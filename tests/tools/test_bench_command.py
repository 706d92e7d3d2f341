"""``python -m flowmx bench``: benchmarks of this machine."""

import json
import os

import pytest

from flowmx import cli
from flowmx.tools.commands import bench_measurements
from flowmx.tools.commands.bench_measurements import MEASURES, Options


def test_every_measure_gives_figures(capsys):
    assert cli.main(["bench", "--seconds", "0", "--batch", "2", "3", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["machine"]["cores"] == len(os.sched_getaffinity(0)) and document["machine"]["processor"]
    named = {row["what"]: row for row in document["results"]}
    for title in (
        "a + b, independent, 16 floats", "x = x + 1, a chain, 16 floats", "lenet, 1x28x28, batch 2, prediction",
        "lenet, 1x28x28, batch 3, training", "lenet, batch 3, planned for training",
    ):  # fmt: skip
        assert named[title]["value"] > 0
    assert "measuring" in captured.err


def test_a_model_of_the_zoo_as_a_table(capsys):
    options = ["--model", "squeezenet1.1", "--shape", "3,224,224", "--batch", "1", "--hybridize", "--seconds", "0"]
    assert cli.main(["bench", "model", *options]) == 0
    shown = capsys.readouterr().out
    assert "squeezenet1.1, 3x224x224, batch 1, prediction" in shown and "samples/s" in shown
    assert shown.startswith("processor")


def test_the_best_run_counts(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(bench_measurements.time, "perf_counter", lambda: now[0])
    durations = iter([9, 3, 2, 4, 5])  # the first warms up

    def run():
        now[0] += next(durations)

    assert bench_measurements.best(run, 8) == 2


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["speed"], 2, "unknown measurement 'speed', expected some of tiny"),
        (["model", "--batch", "0"], 1, "--batch is 0"),
        (["--model", "resnet19"], 1, "unknown model 'resnet19'"),
        (["--model", "lenett"], 1, "did you mean 'lenet'?"),
        (["--shape", "a"], 2, "expected sizes"),
    ],
)
def test_wrong_arguments(arguments, status, message, capsys):
    try:
        exit_code = cli.main(["bench", *arguments])
    except SystemExit as ended:
        exit_code = ended.code
    assert exit_code == status and message in capsys.readouterr().err


def test_memory_of_each_batch():
    one, two, peak = MEASURES["memory"](Options("mlp", batches=(64, 6400)))
    assert one.value < two.value and peak.unit == "MiB"
