"""Callbacks: their log lines, and awaitable results."""

import inspect
import io
import sys

import pytest

import flowmx as mx
from flowmx import callback
from flowmx.model import BatchEndParam


@pytest.fixture
def log_lines(caplog):
    caplog.set_level("INFO")
    return lambda: [record.getMessage() for record in caplog.records]


class Clock:
    """Advances by half a second at each reading."""

    now = 0.0

    def perf_counter(self):
        self.now += 0.5
        return self.now


def make_metric(value):
    metric = mx.metric.Loss()
    metric.accumulate(value, 1)
    return metric


def run(function, batches, metric, epoch=1):
    for nbatch in batches:
        function(BatchEndParam(epoch, nbatch, metric, None))


def test_speedometer_logs_as_mxnet_does(log_lines, monkeypatch):
    monkeypatch.setattr(callback, "time", Clock())
    metric = make_metric(2.0)
    run(mx.callback.Speedometer(4, 3, auto_reset=False), range(7), metric)
    assert log_lines() == [
        "Epoch[1] Batch [0-3]\tSpeed: 8.00 samples/sec\tloss=2.000000",
        "Epoch[1] Batch [0-6]\tSpeed: 8.00 samples/sec\tloss=2.000000",
    ]


def test_speedometer_resets_the_local_mean(log_lines, monkeypatch):
    monkeypatch.setattr(callback, "time", Clock())
    metric = make_metric(2.0)
    run(mx.callback.Speedometer(4, 3), range(7), metric)
    assert [line.split("\t")[0] for line in log_lines()] == ["Epoch[1] Batch [0-3]", "Epoch[1] Batch [3-6]"]
    assert log_lines()[1].endswith("loss=nan")
    assert metric.get_global()[1] == 2.0


def test_speedometer_notices_a_new_epoch_and_needs_no_metric(log_lines):
    speedometer = mx.callback.Speedometer(4, 2)
    run(speedometer, range(4), None)
    run(speedometer, range(3), None, epoch=2)
    assert [line.split("\t")[0] for line in log_lines()] == ["Iter[1] Batch [2]", "Iter[2] Batch [2]"]


def test_log_train_metric(log_lines):
    metric = make_metric(2.0)
    run(mx.callback.log_train_metric(2, auto_reset=True), range(3), metric)
    assert log_lines() == ["Iter[1] Batch[0] Train-loss=2.000000", "Iter[1] Batch[2] Train-loss=nan"]


def test_log_validation_metrics(log_lines):
    mx.callback.LogValidationMetricsCallback()(BatchEndParam(3, 0, make_metric(0.5), None))
    assert log_lines() == ["Epoch[3] Validation-loss=0.500000"]


def test_progress_bar_logs_without_a_terminal(log_lines):
    run(mx.callback.ProgressBar(4, 8), [0, 3], None)
    assert log_lines() == ["[==------] 25%", "[========] 100%"]


def test_progress_bar_is_drawn_in_place_on_a_terminal(log_lines, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    run(mx.callback.ProgressBar(2, 4), [0, 1], None)
    assert terminal.getvalue() == "\r[==--] 50%\r[====] 100%\n"
    assert log_lines() == []


def test_do_checkpoint_saves_periodically(tmp_path):
    save = mx.callback.do_checkpoint(str(tmp_path / "net"), 2)
    for epoch in range(4):
        save(epoch, None, {"w": mx.nd.array([epoch])}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net-0002.params", "net-0004.params"]
    assert mx.model.load_params(str(tmp_path / "net"), 4)[0]["w"].asnumpy() == 3


async def test_inside_a_loop_a_checkpoint_is_awaited(tmp_path):
    saving = mx.callback.do_checkpoint(str(tmp_path / "net"))(0, None, {"w": mx.nd.array([5.0])}, {})
    assert inspect.isawaitable(saving)
    await saving
    assert (tmp_path / "net-0001.params").exists()


def test_module_checkpoint_saves_the_module():
    calls = []

    class Fake:
        def save_checkpoint(self, *args):
            calls.append(args)

    save = mx.callback.module_checkpoint(Fake(), "p", 2, save_optimizer_states=True)
    for epoch in range(4):
        save(epoch)
    assert calls == [("p", 2, True), ("p", 4, True)]
