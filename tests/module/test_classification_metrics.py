"""Precision, recall, the confusion matrix and the area under the ROC curve, compared with scikit-learn."""

import math

import numpy as np
import pytest
from sklearn import metrics as sk

import flowmx as mx
from flowmx.checkpoint import attributes

RANDOM = np.random.default_rng(3)
LABELS = [RANDOM.integers(0, 4, size) for size in (7, 20, 13)]
SCORES = [RANDOM.random((len(labels), 4)).astype(np.float32) for labels in LABELS]
BITS = [labels % 2 for labels in LABELS]
PROBABILITIES = [scores[:, 0].round(1) for scores in SCORES]  # rounded, so that some are equal


def updated(metric, labels, preds):
    for label, pred in zip(labels, preds, strict=True):
        metric.update(mx.nd.array(label), mx.nd.array(pred))
    return metric


@pytest.mark.parametrize("average", ["macro", "micro", "weighted", None])
@pytest.mark.parametrize("name", ["precision", "recall"])
def test_averages_over_classes_are_scikit_learns(name, average):
    metric = updated(mx.metric.create(name, average=average), LABELS, SCORES)
    expected = getattr(sk, f"{name}_score")(np.concatenate(LABELS), np.concatenate(SCORES).argmax(1), average=average)
    np.testing.assert_allclose(metric.get()[1], expected)
    if average is None:
        assert metric.get()[0] == [f"{name}[{number}]" for number in range(4)]
    assert mx.metric.create(metric.get_config()).get_config() == metric.get_config()


@pytest.mark.parametrize("name", ["precision", "recall"])
def test_a_threshold_turns_probabilities_into_classes(name):
    metric = updated(mx.metric.create(name, threshold=0.3), BITS, PROBABILITIES)
    predicted = np.concatenate(PROBABILITIES) >= np.float32(0.3)
    assert metric.get()[1] == pytest.approx(getattr(sk, f"{name}_score")(np.concatenate(BITS), predicted))


def test_a_macro_average_ignores_classes_that_appear_nowhere():
    metric = updated(mx.metric.Precision("macro"), [np.array([0, 3])], [np.array([0, 3])])
    assert metric.get()[1] == sk.precision_score([0, 3], [0, 3], average="macro") == 1.0


def test_the_confusion_matrix_grows_with_the_classes():
    metric = updated(mx.metric.ConfusionMatrix(), [[0, 1], *LABELS], [[1, 1], *SCORES])
    labels, predicted = np.concatenate([[0, 1], *LABELS]), np.concatenate([[1, 1], np.concatenate(SCORES).argmax(1)])
    np.testing.assert_array_equal(metric.matrix, sk.confusion_matrix(labels, predicted))
    assert metric.get() == ("confusion_matrix", pytest.approx(sk.accuracy_score(labels, predicted)))
    for over, normalize in (("labels", "true"), ("predictions", "pred"), ("all", "all")):
        expected = sk.confusion_matrix(labels, predicted, normalize=normalize)
        np.testing.assert_allclose(metric.fractions(over), expected)
    assert str(metric).splitlines()[1].split() == ["|", "0", "1", "2", "3"]


def test_counts_have_local_and_global_values():
    metric = updated(mx.metric.ConfusionMatrix(), LABELS[:2], SCORES[:2])
    metric.reset_local()
    assert math.isnan(metric.get()[1])
    updated(metric, LABELS[2:], SCORES[2:])
    assert metric.matrix.sum() == 13
    assert metric.global_matrix.sum() == 40


def test_a_pixelwise_prediction_has_its_classes_on_axis_1():
    labels, scores = RANDOM.integers(0, 3, (2, 4, 5)), RANDOM.random((2, 3, 4, 5)).astype(np.float32)
    metric = updated(mx.metric.ConfusionMatrix(), [labels], [scores])
    np.testing.assert_array_equal(metric.matrix, sk.confusion_matrix(labels.ravel(), scores.argmax(1).ravel()))


def test_the_area_under_the_curve_is_scikit_learns():
    metric = updated(mx.metric.create("auc"), BITS, PROBABILITIES)
    labels, scores = np.concatenate(BITS), np.concatenate(PROBABILITIES)
    assert metric.get() == ("auc", pytest.approx(sk.roc_auc_score(labels, scores)))
    curve, expected = metric.roc_curve(), sk.roc_curve(labels, scores, drop_intermediate=False)
    for values, reference in zip(curve, expected, strict=True):
        np.testing.assert_allclose(values, reference)
    metric.reset_local()
    updated(metric, BITS[:1], PROBABILITIES[:1])
    assert metric.get()[1] == pytest.approx(sk.roc_auc_score(BITS[0], PROBABILITIES[0]))
    both = np.concatenate([labels, BITS[0]]), np.concatenate([scores, PROBABILITIES[0]])
    assert metric.get_global()[1] == pytest.approx(sk.roc_auc_score(*both))


def test_two_columns_are_scores_of_the_two_classes_and_more_are_averaged():
    columns = [np.stack([1 - scores, scores], 1) for scores in PROBABILITIES]
    metric = updated(mx.metric.AUC(), BITS, columns)
    assert metric.get()[1] == pytest.approx(sk.roc_auc_score(np.concatenate(BITS), np.concatenate(PROBABILITIES)))
    scores = np.concatenate(SCORES)
    scores /= scores.sum(1, keepdims=True)
    several = updated(mx.metric.AUC(), [np.concatenate(LABELS)], [scores])
    expected = sk.roc_auc_score(np.concatenate(LABELS), scores, multi_class="ovr")
    assert several.get()[1] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["precision", "confusion_matrix", "auc"])
def test_a_checkpoint_restores_the_metric(name):
    metric = updated(mx.metric.create(name), BITS[:2], [labels[::-1].copy() for labels in BITS[:2]])
    restored = mx.metric.create(name)
    attributes.set_state(restored, attributes.state(metric))
    for each in (metric, restored):
        updated(each, BITS[2:], BITS[2:])
    assert restored.get() == metric.get()


async def test_the_metrics_are_awaited_in_coroutines():
    metric = mx.metric.create(["precision", "recall", "auc", "confusion_matrix"])
    await metric.update_async(mx.nd.array([0, 1]) * 1, mx.nd.array([0, 1]) * 1)
    assert metric.get()[1] == [1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: m.Precision("mean"), "average is 'mean', expected 'binary'"),
        (lambda m: m.Recall(threshold=50), "threshold is 50, expected a probability"),
        (lambda m: updated(m.Recall(), [[0, 1]], [[0.2, 0.9]]), "pass threshold=0.5"),
        (lambda m: updated(m.Recall(), [[0, -1]], [[0, 1]]), "the labels hold -1"),
        (lambda m: updated(m.Recall(), [[0, math.nan]], [[0, 1]]), "labels hold nan, expected classes: whole numbers"),
        (lambda m: updated(m.AUC(), [[0, math.inf]], [[0, 1]]), "labels hold inf, expected whole numbers from 0 to 1"),
        (lambda m: updated(m.Recall(), [[0, 1]], [np.zeros((2, 3, 2))]), r"have shape \(2, 3, 2\)"),
        (lambda m: updated(m.Recall(), [[0, 2]], [[0, 1]]).get(), "pass average='macro'"),
        (lambda m: m.ConfusionMatrix().fractions("rows"), "over is 'rows'"),
        (lambda m: updated(m.AUC(), [[0, 2]], [[0, 1]]), "the labels hold 2.0, expected whole numbers from 0 to 1"),
        (lambda m: updated(m.AUC(), [[0, 1]], [[0, math.nan]]), "a score is NaN"),
        (lambda m: updated(m.AUC(), [[0, 1]], [np.zeros((2, 3, 2))]), "one score for each label"),
        (lambda m: updated(m.AUC(), [[1, 1]], [[0, 1]]).roc_curve(), "all labels are of one class"),
    ],
)
def test_refuses_what_it_cannot_measure(make, message):
    with pytest.raises(ValueError, match=message):
        make(mx.metric)
