"""Metrics, compared with MXNet's values; the awaitable methods."""

import json
import math

import numpy as np
import pytest

import flowmx as mx
from tests.fixtures import record_training as recorded

EXPECTED = json.loads((recorded.FOLDER / "metrics.json").read_text())


def batch(kind="classes"):
    label, pred = recorded.metric_batches(kind)[0]
    return [mx.nd.array(label)], [mx.nd.array(pred)]


@pytest.mark.parametrize("case", recorded.METRICS)
def test_matches_the_recorded_values(case):
    results = recorded.run_metric(mx, case)
    for position, (expected, values) in enumerate(zip(EXPECTED[case], results, strict=True)):
        for scope in (0, 1):
            if case == "pearson micro" and (scope or position == 2):
                continue  # MXNet has no global value for it, and does not reset its local one
            if case == "pcc" and scope == 0 and position == 2:
                assert math.isfinite(values[scope][0][1])
            assert [name for name, _ in values[scope]] == [name for name, _ in expected[scope]]
            np.testing.assert_allclose(
                [value for _, value in values[scope]], [value for _, value in expected[scope]], rtol=2e-5
            )


def test_a_correlation_over_all_batches_has_a_global_value():
    metric = mx.metric.PearsonCorrelation(average="micro")
    labels, preds = [], []
    for label, pred in recorded.metric_batches("numbers"):
        metric.update([label], [pred])
        labels.append(label)
        preds.append(pred)
    expected = np.corrcoef(np.concatenate(labels), np.concatenate(preds))[0, 1]
    assert metric.get()[1] == pytest.approx(expected)
    metric.reset_local()
    assert math.isnan(metric.get()[1])
    assert metric.get_global()[1] == pytest.approx(expected)


def test_a_metric_without_updates_is_nan():
    assert math.isnan(mx.metric.Accuracy().get()[1])
    assert math.isnan(mx.metric.create("perplexity", ignore_label=None).get()[1])


def test_create_accepts_names_functions_lists_and_configurations():
    assert isinstance(mx.metric.create("acc"), mx.metric.Accuracy)
    assert mx.metric.create("top_k_acc", top_k=2).name == "top_k_accuracy_2"
    composite = mx.metric.create(["acc", mx.metric.MSE()])
    assert composite.get()[0] == ["accuracy", "mse"]
    for metric in (mx.metric.TopKAccuracy(top_k=3, output_names=["o"]), composite, mx.metric.F1(average="micro")):
        assert mx.metric.create(metric.get_config()).get_config() == metric.get_config()
    with pytest.raises(ValueError, match="unknown metric 'accc'; did you mean 'acc'"):
        mx.metric.create("accc")


def test_custom_metrics_of_functions():
    def distance(label, pred):
        assert isinstance(label, np.ndarray)
        return float(np.abs(label - pred).sum()), label.size

    metric = mx.metric.create(distance)
    metric.update(*batch("numbers"))
    label, pred = recorded.metric_batches("numbers")[0]
    name, value = metric.get()
    assert name == "distance"
    assert value == pytest.approx(np.abs(label - pred).mean())
    assert mx.metric.np(lambda label, pred: 1).name == "custom(<lambda>)"
    extra = mx.metric.CustomMetric(lambda label, pred: 2.0, "two", allow_extra_outputs=True)
    extra.update([label], [pred, pred])
    assert extra.get() == ("two", 2.0)
    with pytest.raises(TypeError, match="is a function"):
        metric.get_config()


def test_custom_metrics_may_override_update():
    @mx.metric.register
    class Count(mx.metric.EvalMetric):
        def __init__(self):
            super().__init__("count")

        def update(self, labels, preds):
            self.sum_metric += len(preds)
            self.num_inst += 1

    metric = mx.metric.create("count")
    metric.update([], [1, 2])
    assert metric.get_global_name_value() == [("count", 2.0)]


def test_names_select_labels_and_predictions():
    labels, preds = batch()
    metric = mx.metric.Accuracy(output_names=["good"], label_names=["right"])
    named = {"wrong": mx.nd.array([1]), "right": labels[0]}, {"good": preds[0], "bad": mx.nd.array([2])}
    metric.update_dict(*named)
    plain = mx.metric.Accuracy()
    plain.update(labels, preds)
    assert metric.get() == plain.get()
    composite = mx.metric.CompositeEvalMetric(["acc"], output_names=["good"], label_names=["right"])
    composite.update_dict(*named)
    assert composite.get()[1] == [plain.get()[1]]
    with pytest.raises(KeyError, match="output_names names 'good', but there are only bad"):
        metric.update_dict({"right": labels[0]}, {"bad": preds[0]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mx.metric.Accuracy().update([1, 2], [3]), "predictions have length 1, expected 2"),
        (lambda: mx.metric.Accuracy().update([np.zeros(3)], [np.zeros((2, 2))]), "length 2, expected 3"),
        (lambda: mx.metric.TopKAccuracy(), "top_k is 1, expected at least 2"),
        (lambda: mx.metric.TopKAccuracy(2).update([np.zeros(3)], [np.zeros(3)]), r"expected \(samples, classes\)"),
        (lambda: mx.metric.F1(average="x"), "expected 'macro' or 'micro'"),
        (lambda: mx.metric.F1().update([np.arange(3)], [np.zeros((3, 2))]), r"labels hold \[0, 1, 2\]"),
        (lambda: mx.metric.CrossEntropy().update([np.zeros(3)], [np.zeros((2, 2))]), r"expected \(3, classes\)"),
        (lambda: mx.metric.Perplexity(None).update([np.zeros(3)], [np.zeros((2, 2))]), "do not match"),
        (lambda: mx.metric.PearsonCorrelation().update([np.zeros(3)], [np.zeros((3, 1))]), "have shape"),
    ],
)
def test_refuses_invalid_batches(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_composites_name_a_missing_metric():
    composite = mx.metric.create(["acc"])
    assert composite.get_metric(0).name == "accuracy"
    with pytest.raises(IndexError, match="there is no metric 1, there are 1"):
        composite.get_metric(1)


@pytest.mark.parametrize("case", recorded.METRICS)
async def test_the_awaitable_methods_never_block(case):
    """Arrays that are not computed yet are awaited: a blocking read would warn, and warnings are errors."""
    name, arguments, kind = recorded.METRICS[case]
    metric, plain = (mx.metric.create(name, **arguments) for _ in range(2))
    gate = mx.engine.Variable("gate")
    for label, pred in recorded.metric_batches(kind):
        plain.update([label], [pred])
        arrays = [mx.nd.array(label), mx.nd.array(pred)]

        async def wait():
            pass

        mx.engine.push(wait, reads=[gate], writes=arrays)
        await metric.update_async([arrays[0] * 1], [arrays[1] * 1])
    assert metric.get() == plain.get()
    second = mx.metric.create(name, **arguments)
    for label, pred in recorded.metric_batches(kind):
        await second.update_dict_async({"l": mx.nd.array(label) * 1}, {"p": mx.nd.array(pred) * 1})
    assert second.get() == plain.get()


async def test_a_failed_array_raises_its_error():
    def fail():
        raise ArithmeticError("no prediction")

    array = mx.nd.array([1.0])
    mx.engine.push(fail, writes=[array])
    with pytest.raises(ArithmeticError, match="no prediction"):
        await mx.metric.Loss().update_async([], [array])
