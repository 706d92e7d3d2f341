"""The estimator: training and evaluation, in ordinary code and in a coroutine; its handlers."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest

import flowmx as mx
from flowmx import gluon
from flowmx.gluon.contrib import estimator as est
from flowmx.observability.flight import curves
from flowmx.observability.safety.step_counter import step_counts

RNG = np.random.default_rng(3)
X = RNG.standard_normal((48, 5)).astype("float32")
Y = (X.sum(1) > 0).astype("float32")
BATCHES = [(mx.nd.array(X[i : i + 16]), mx.nd.array(Y[i : i + 16])) for i in range(0, 48, 16)]


def network():
    mx.random.seed(1)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="relu", in_units=5), gluon.nn.Dense(2, in_units=8))
    net.initialize(mx.init.Xavier())
    return net


def make_estimator(net=None, **kwargs):
    """Return an estimator that collects its log lines in a list."""
    net = network() if net is None else net
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
    arguments = {"trainer": trainer, "context": mx.cpu(), **kwargs}
    estimator = est.Estimator(net, gluon.loss.SoftmaxCrossEntropyLoss(), **arguments)
    estimator.logger.handlers.clear()
    estimator.lines = lines = []
    estimator.logger.addFilter(lambda record: lines.append(record.getMessage()))
    return estimator


def weights(estimator):
    return [param.data().asnumpy() for param in estimator.net.collect_params().values()]


def train_by_hand(epochs, net=None):
    """Return the parameters after a hand-written training loop."""
    net = network() if net is None else net
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
    for _ in range(epochs):
        for x, y in BATCHES:
            with mx.autograd.record():
                loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(x), y)
            loss.backward()
            trainer.step(len(x))
    return [param.data().asnumpy() for param in net.collect_params().values()]


class Events(est.TrainBegin, est.TrainEnd, est.EpochBegin, est.EpochEnd, est.BatchBegin, est.BatchEnd):
    """Records its events."""

    def __init__(self):
        self.events = []

    def __getattribute__(self, name):
        if name in ("train_begin", "train_end", "epoch_begin", "epoch_end", "batch_begin", "batch_end"):
            return lambda estimator, **kwargs: self.events.append((name, *sorted(kwargs)))
        return super().__getattribute__(name)


def test_fit_trains_like_a_loop():
    estimator = make_estimator()
    estimator.fit(BATCHES, epochs=4)
    for ours, expected in zip(weights(estimator), train_by_hand(4), strict=True):
        np.testing.assert_array_equal(ours, expected)
    accuracy, loss = estimator.train_metrics
    assert (accuracy.name, loss.name) == ("training accuracy", "training softmaxcrossentropyloss")
    assert accuracy.get()[1] > 0.8


def test_fit_logs_its_metrics_and_counts_its_samples_for_the_dashboard(monkeypatch):
    monkeypatch.setattr(curves, "curves", {})
    steps, samples = step_counts()
    estimator = make_estimator()
    estimator.fit(BATCHES, val_data=BATCHES, epochs=2)
    assert step_counts() == (steps + 6, samples + 96)
    points = {name: [step - steps for step, _ in curve.points] for name, curve in curves.curves.items()}
    assert points["training accuracy"] == [1, 2, 3, 4, 5, 6] and points["validation accuracy"] == [3, 6]
    assert curves.latest()["validation accuracy"] == estimator.val_metrics[0].get()[1]


async def test_fit_in_a_coroutine_is_the_same_and_yields_to_other_tasks():
    estimator, turns = make_estimator(), 0

    async def other_task():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other_task())
    await estimator.fit_async(BATCHES, BATCHES, epochs=4)
    await mx.nd.waitall_async()
    task.cancel()
    assert turns > 4
    for ours, expected in zip(weights(estimator), await asyncio.to_thread(train_by_hand, 4), strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert estimator.val_metrics[0].get()[1] > 0.8


async def test_a_coroutine_accepts_asynchronous_data():
    async def batches():
        for batch in BATCHES:
            await asyncio.sleep(0)
            yield batch

    class Loader:
        def __aiter__(self):
            return batches()

    estimator = make_estimator()
    await estimator.fit_async(Loader(), epochs=2)
    await mx.nd.waitall_async()
    for ours, expected in zip(weights(estimator), await asyncio.to_thread(train_by_hand, 2), strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (mx.io.NDArrayIter(X, Y, 16), "got NDArrayIter, whose last batch is padded"),
        (
            [mx.nd.ones((10, 3))],
            r"got a batch that is an array of shape \(10, 3\), expected a list or tuple of data and label",
        ),
        ([[mx.nd.ones((10, 3))]], "a list of 1, without labels, expected a list or tuple of data and label"),
        ([(mx.nd.ones((10, 3)), None)], "a tuple of 2, without labels"),
        (
            [mx.io.DataBatch([mx.nd.ones((10, 3))])],
            "got a batch that is .*DataBatch",
        ),
        ([{"data": 1}], "got a batch that is {'data': 1}, expected a list or tuple"),
    ],
)
def test_refuses_other_than_batches_of_data_and_labels(data, message):
    for call in (lambda it: it.fit(data, epochs=1), lambda it: it.evaluate(data)):
        with pytest.raises(ValueError, match=message):
            call(make_estimator())


def test_several_devices_share_a_batch():
    net = network()
    net.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])
    estimator = make_estimator(net, context=[mx.cpu(0), mx.cpu(1)])
    estimator.fit(BATCHES, epochs=2)
    expected = train_by_hand(2)
    for param, value in zip(net.collect_params().values(), expected, strict=True):
        for copy in param.list_data():
            np.testing.assert_allclose(copy.asnumpy(), value, rtol=1e-4, atol=1e-6)


def test_events_come_in_order():
    handler, estimator = Events(), make_estimator()
    estimator.fit(BATCHES[:2], epochs=1, event_handlers=handler)
    batch_end = ("batch_end", "batch", "label", "loss", "pred")
    assert handler.events == [
        ("train_begin",), ("epoch_begin",), ("batch_begin", "batch"), batch_end, ("batch_begin", "batch"), batch_end,
        ("epoch_end",), ("train_end",),
    ]  # fmt: skip


def test_batches_end_within_an_epoch():
    handler, estimator = Events(), make_estimator()
    estimator.fit(BATCHES, batches=5, event_handlers=[handler])
    assert sum(event[0] == "batch_end" for event in handler.events) == 5
    assert sum(event[0] == "epoch_end" for event in handler.events) == 2


def test_handlers_are_called_by_priority_and_may_be_awaitable():
    order = []

    def handler(name, priority):
        class Handler(est.BatchEnd):
            def batch_end(self, estimator, *args, **kwargs):
                async def later():
                    order.append(name)

                return later()

        created = Handler()
        created.priority = priority
        return created

    handlers = [handler("last", 5), handler("first", -3000)]
    make_estimator().fit(BATCHES[:1], epochs=1, event_handlers=handlers)
    mx.run(make_estimator().fit_async(BATCHES[:1], epochs=1, event_handlers=handlers))
    assert order == ["first", "last"] * 2


def test_the_log_has_metrics_and_times():
    estimator = make_estimator()
    estimator.fit(BATCHES, BATCHES, epochs=1, event_handlers=est.LoggingHandler(2, estimator.train_metrics))
    lines = [re.sub(r"\d+\.\d+", "#", line) for line in estimator.lines]
    metrics = "accuracy: #, {} softmaxcrossentropyloss: #"
    training = "training " + metrics.format("training")
    assert lines == [
        "Training begin: using optimizer Adam with current learning rate # ",
        "Train for 1 epochs.",
        "[Epoch 0] Begin, current learning rate: #",
        f"[Epoch 0][Batch 0][Samples 16] time/interval: #s {training}",
        f"[Epoch 0][Batch 2][Samples 48] time/interval: #s {training}",
        "Validation Begin",
        "[Epoch 0] Finished in #s, validation " + metrics.format("validation"),
        f"[Epoch 0] Finished in #s, {training}",
        f"Train finished using total 0s with 1 epochs. {training}",
    ]


class Falling(mx.metric.EvalMetric):
    """A metric with the values of a list."""

    def __init__(self, values, name="loss"):
        super().__init__(name)
        self.values = iter(values)

    def get(self):
        return self.name, next(self.values, 0.0)


@pytest.mark.parametrize(
    ("name", "mode", "values", "epochs"),
    [
        ("loss", "auto", [0, 3, 2, 2, 2, 1], 4),  # the handler reads the first when it is created
        ("accuracy", "auto", [0, 0.3, 0.4, 0.4, 0.4, 0.9], 4),
        ("loss", "max", [3, 4, 4, 4, 5], 3),
        ("accuracy", "min", [3, 4, 4, 4, 5], 3),
    ],
)
def test_stops_early_without_improvement(name, mode, values, epochs):
    metric, recorder = Falling(values, name), Events()
    handler = est.EarlyStoppingHandler(metric, patience=2, mode=mode)
    make_estimator().fit(BATCHES[:1], epochs=20, event_handlers=[handler, recorder])
    assert sum(event[0] == "epoch_end" for event in recorder.events) == epochs


async def fit(asynchronous, estimator, *args, **kwargs):
    if asynchronous:
        await estimator.fit_async(*args, **kwargs)
    else:
        await asyncio.to_thread(estimator.fit, *args, **kwargs)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_training_resumes_from_its_checkpoint(tmp_path, asynchronous):
    complete = make_estimator()
    await fit(asynchronous, complete, BATCHES, epochs=4)
    first = make_estimator()
    await fit(asynchronous, first, BATCHES, epochs=2, event_handlers=est.CheckpointHandler(tmp_path))
    second = make_estimator()
    handler = est.CheckpointHandler(tmp_path, resume_from_checkpoint=True)
    await fit(asynchronous, second, BATCHES, epochs=4, event_handlers=[handler])
    for ours, expected in zip(weights(second), weights(complete), strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert sorted(path.name for path in tmp_path.glob("*.params")) == [
        "model-epoch0batch3.params", "model-epoch1batch6.params", "model-epoch2batch9.params",
        "model-epoch3batch12.params",
    ]  # fmt: skip


def test_the_last_and_the_best_checkpoints_are_kept(tmp_path):
    net = network()
    net.hybridize()
    estimator = make_estimator(net)
    best = Falling([0, 5, 3, 4, 6])
    handler = est.CheckpointHandler(tmp_path, "net", best, save_best=True, max_checkpoints=2, verbose=1)
    estimator.fit(BATCHES[:1], epochs=4, event_handlers=[handler])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "net-best.params", "net-best.states", "net-epoch2batch3.params", "net-epoch2batch3.states",
        "net-epoch3batch4.params", "net-epoch3batch4.states", "net-symbol.json",
    ]  # fmt: skip
    second = mx.nd.load(str(tmp_path / "net-best.params"))
    third = mx.nd.load(str(tmp_path / "net-epoch3batch4.params"))
    assert not np.array_equal(second["0.weight"].asnumpy(), third["0.weight"].asnumpy())
    assert any("improved from 5.00000 to 3.00000" in line for line in estimator.lines)


def test_completed_training_does_not_resume(tmp_path):
    make_estimator().fit(BATCHES, epochs=2, event_handlers=est.CheckpointHandler(tmp_path))
    with pytest.raises(ValueError, match="already has 2 of 2 epochs"):
        make_estimator().fit(
            BATCHES, epochs=2, event_handlers=est.CheckpointHandler(tmp_path, resume_from_checkpoint=True)
        )
    with pytest.raises(ValueError, match="that count batches only"):
        make_estimator().fit(
            BATCHES, batches=2, event_handlers=est.CheckpointHandler(tmp_path, resume_from_checkpoint=True)
        )


def test_refuses_invalid_arguments():
    loss, net = gluon.loss.L2Loss(), network()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    for kwargs, message in [
        ({"loss": 3}, "loss is 3"), ({"trainer": 3}, "trainer is 3"), ({"context": "cpu"}, "context is 'cpu'"),
        ({"train_metrics": [3]}, "metrics holds 3"), ({"batch_processor": 3}, "no methods fit_batch"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            est.Estimator(**{"net": net, "loss": loss, "trainer": trainer, **kwargs})
    estimator = make_estimator()
    for kwargs, message in [
        ({}, "expected one of them"), ({"epochs": 1, "batches": 1}, "expected one of them"),
        ({"epochs": 1, "event_handlers": [3]}, "event_handlers holds 3"),
        ({"epochs": 1, "train_data": 3}, "is not iterable"),
        ({"epochs": 1, "event_handlers": est.MetricHandler([mx.metric.Accuracy()])}, "does not update"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            estimator.fit(**{"train_data": BATCHES, **kwargs})
    with pytest.raises(ValueError, match="expected 'auto', 'min' or 'max'"):
        est.EarlyStoppingHandler(mx.metric.Accuracy(), mode="best")
    with pytest.raises(ValueError, match="expected a metric for save_best"):
        est.CheckpointHandler("unused", save_best=True)


def test_a_net_is_initialized_and_has_a_trainer_by_default():
    net = gluon.nn.Dense(2)
    with pytest.warns(UserWarning, match=r"SGD with a learning rate of 0.001"):
        estimator = est.Estimator(net, gluon.loss.L2Loss())
    estimator.logger.handlers.clear()
    estimator.fit([(mx.nd.ones((2, 3)), mx.nd.ones((2, 2)))], batches=1)
    assert [metric.name for metric in estimator.train_metrics] == ["training l2loss"]
    with pytest.warns(UserWarning, match="already fully initialized"):
        est.Estimator(net, gluon.loss.L2Loss(), initializer=mx.init.Xavier(), trainer=estimator.trainer)


def test_custom_estimators_sort_handlers_by_mxnets_names():
    estimator, stopping = make_estimator(), est.EarlyStoppingHandler(monitor=mx.metric.Accuracy())
    estimator.max_epoch, estimator.max_batch = 1, None
    stopping.monitor = estimator.val_metrics[0]
    handlers = estimator._prepare_default_handlers(val_data=None, event_handlers=[stopping])
    kinds = [type(handler) for handler in handlers]
    assert (kinds[:2], kinds[-1]) == ([est.GradientUpdateHandler, est.MetricHandler], est.LoggingHandler)
    assert len(kinds) == 5
    by_event = estimator._categorize_handlers(handlers)
    assert [[type(handler) for handler in group] for group in by_event] == [
        [kind for kind in kinds if issubclass(kind, event)]
        for event in (est.TrainBegin, est.EpochBegin, est.BatchBegin, est.BatchEnd, est.EpochEnd, est.TrainEnd)
    ]


def test_a_missing_gpu_is_refused():
    with pytest.raises(AssertionError, match=r"gpu\(100\) is not available"):
        make_estimator(context=[mx.cpu(), mx.gpu(100)])


def test_a_loader_without_labels_is_refused():
    with pytest.raises(ValueError, match=r"an array of shape \(16, 5\), expected"):
        make_estimator().fit(gluon.data.DataLoader(gluon.data.ArrayDataset(X), batch_size=16), epochs=1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_plateau_of_a_metric_reduces_the_learning_rate(asynchronous):
    net = network()
    schedule = mx.lr_scheduler.ReduceLROnPlateau(
        factor=0.5, patience=1, threshold=1e9, threshold_mode="abs", base_lr=0.1
    )
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})
    estimator = make_estimator(net, trainer=trainer)
    handlers = [est.PlateauHandler(schedule, estimator.val_metrics[-1])]
    if asynchronous:
        asyncio.run(estimator.fit_async(BATCHES, BATCHES, epochs=5, event_handlers=handlers))
    else:
        estimator.fit(BATCHES, BATCHES, epochs=5, event_handlers=handlers)
    assert trainer.learning_rate == 0.025  # the values of epochs 2 and 3, and of 4 and 5, are no improvement


def test_metrics_of_each_class_and_matrices_are_logged():
    metrics = [mx.metric.Precision(average=None), mx.metric.ConfusionMatrix(), mx.metric.AUC()]
    estimator = make_estimator(train_metrics=metrics)
    estimator.fit(BATCHES, epochs=1)
    names = re.findall(r"(\S+(?: \S+)?): \d\.\d{4}", estimator.lines[-1])
    assert [name.removeprefix("training ") for name in names] == [
        "precision[0]", "precision[1]", "confusion_matrix", "auc",
    ]  # fmt: skip


def test_an_average_follows_the_updates_of_an_estimator():
    net = network()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, accumulate=2)
    average = gluon.ExponentialMovingAverage(net, 0.5)
    estimator = make_estimator(net, trainer=trainer)
    estimator.fit(BATCHES, epochs=4, event_handlers=[est.AverageHandler(average)])
    assert trainer.optimizer.num_update == average.updates == 6
    with average.average_parameters():
        estimator.evaluate(BATCHES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: est.PlateauHandler(None, mx.metric.Loss()), "schedule is NoneType, expected a ReduceLROnPlateau"),  # type: ignore[arg-type]
        (
            lambda: est.PlateauHandler(mx.lr_scheduler.ReduceLROnPlateau(), "loss"),
            "monitor is 'loss', expected one metric",
        ),
        (lambda: est.AverageHandler(0.9), "average is float, expected a gluon.ExponentialMovingAverage"),  # type: ignore[arg-type]
    ],
)
def test_handlers_of_schedules_refuse_other_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
