"""Progress bars with values: in plain loops, in coroutines, and of an estimator."""

import asyncio
import contextlib
import io
import logging
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon.contrib.estimator import Estimator, ProgressBarHandler


def last_line(out):
    return out.getvalue().splitlines()[-1]


def test_a_loop_over_batches_shows_the_last_values():
    out = io.StringIO()
    metric = mx.metric.Accuracy()
    metric.update(mx.nd.array([0, 1]), mx.nd.array([0, 0]))
    items = []
    for item in (bar := mx.progress.track([1, 2, 3], "epoch 1", stream=out)):
        items.append(item)
        bar.show(loss=mx.nd.array([item, item + 1]), rate=0.25, metric=metric)
    assert items == [1, 2, 3]
    assert last_line(out).startswith("epoch 1  3/3")
    assert last_line(out).endswith("loss 3.5  rate 0.25  accuracy 0.5")


def test_a_value_that_is_not_computed_does_not_delay_the_loop():
    """The loop ends, although no loss is computed before a gate opens."""
    out = io.StringIO()
    gate, opened, shown = mx.engine.Variable("gate"), threading.Event(), []
    mx.engine.push(opened.wait, writes=[gate])
    bar = mx.progress.track(range(3), "x", stream=out)
    for item in bar:
        loss = mx.nd.array([item])
        mx.engine.push(lambda: None, reads=[gate], writes=[loss])
        bar.show(loss=loss)
        shown.append(bar.line())
        if item == 2:
            opened.set()
    assert all("loss" not in line for line in shown[:2])
    assert last_line(out).endswith("loss 2")


def test_losses_of_several_devices_are_averaged():
    out = io.StringIO()
    with mx.progress.Bar(1, "x", out) as bar:
        bar.show(loss=[mx.nd.array([1.0], mx.cpu(0)), mx.nd.array([2.0], mx.cpu(1))])
        bar.step()
    assert last_line(out).endswith("loss 1.5")


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_coroutine_awaits_the_last_value(is_async):
    """A blocking read in a coroutine would warn, and warnings are errors."""
    out = io.StringIO()
    data = mx.gluon.data.ArrayDataset(np.arange(6, dtype="f4"))
    loader = mx.gluon.data.DataLoader(data, 2) if is_async else list(mx.gluon.data.DataLoader(data, 2))
    bar = mx.progress.track(loader, "x", stream=out)
    for _ in range(2):  # each loop starts again
        async for batch in bar:
            bar.show(loss=batch * 2)
        assert last_line(out).startswith("x  3/3")
        assert last_line(out).endswith("loss 9")


def test_an_error_in_the_loop_does_not_wait():
    out = io.StringIO()
    opened, loss = threading.Event(), mx.nd.ones(1)
    mx.engine.push(opened.wait, writes=[loss])
    with contextlib.suppress(ArithmeticError), mx.progress.Bar(2, "x", out) as bar:
        bar.show(loss=loss)
        raise ArithmeticError
    opened.set()
    assert last_line(out) == "x  0/2"


def test_a_failed_loss_raises_its_own_error():
    def fail():
        raise ArithmeticError("no loss")

    loss = mx.nd.ones(1)
    mx.engine.push(fail, writes=[loss])
    with pytest.raises(ArithmeticError, match="no loss"), mx.progress.Bar(1, "x", io.StringIO()) as bar:
        bar.show(loss=loss)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_estimator_shows_its_metrics(asynchronous):
    out = io.StringIO()
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    estimator = Estimator(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), trainer=trainer, context=mx.cpu())
    estimator.logger.setLevel(logging.ERROR)
    batches = [(mx.nd.ones((4, 3)), mx.nd.array([0, 1, 0, 1]))] * 3
    arguments = {"epochs": 2, "event_handlers": [ProgressBarHandler(stream=out)]}
    if asynchronous:
        await estimator.fit_async(batches, **arguments)
    else:
        await asyncio.to_thread(estimator.fit, batches, **arguments)
    lines = out.getvalue().splitlines()
    assert [line[:14] for line in lines] == ["epoch 1/2  3/3", "epoch 2/2  3/3"]
    assert "training accuracy 0.5  training softmaxcrossentropyloss" in lines[-1]


def test_refuses_what_it_cannot_show():
    bar = mx.progress.Bar(1, "x", io.StringIO())
    with pytest.raises(TypeError, match="show: loss is str, expected a number, an array or a metric"):
        bar.show(loss="low")
    with pytest.raises(TypeError, match="track: items is int, expected something to loop over"):
        mx.progress.track(3)
