"""Metrics of classifiers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.metric.eval_metric import (
    Arrays,
    AveragedMetric,
    EvalMetric,
    Host,
    NamedMetric,
    alias,
    check_label_shapes,
    host,
    register,
)


def _expect_classes(metric: EvalMetric, label: Host, pred: Host, axis: int) -> None:
    """Check that predictions have an axis of classes.

    Raises:
        ValueError: they do not; perhaps labels and predictions are swapped.
    """
    if not -pred.ndim <= axis < pred.ndim:
        is_swapped = label.ndim == pred.ndim + 1
        raise ValueError(
            f"{type(metric).__name__}: the predictions have shape {pred.shape} and the labels {label.shape}, expected "
            f"predictions with the classes along axis {axis}"
            + ("; the labels are the first argument: metric.update(labels, preds)" if is_swapped else "")
        )


@register
@alias("acc")
class Accuracy(EvalMetric):
    """The fraction of samples whose predicted class is the label.

    Args:
        axis: the axis of the classes in the predictions. Predictions of the labels' shape are taken
            as classes.
        name: the metric's name.
        output_names: the names of the predictions to read (default: all).
        label_names: the names of the labels to read (default: all).
    """

    def __init__(
        self,
        axis: int = 1,
        name: str = "accuracy",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names, label_names, axis=axis)
        self.axis = axis

    def measure(self, label: Host, pred: Host) -> tuple[float, float]:
        if pred.shape != label.shape:
            _expect_classes(self, label, pred, self.axis)
            pred = pred.argmax(axis=self.axis)
        labels, predicted = label.astype(np.int32).ravel(), pred.astype(np.int32).ravel()
        check_label_shapes(labels, predicted)
        return int(np.count_nonzero(labels == predicted)), labels.size


@register
@alias("top_k_accuracy", "top_k_acc")
class TopKAccuracy(EvalMetric):
    """The fraction of samples whose label is among the ``top_k`` most probable classes.

    Args:
        top_k: at least 2 (for 1 use :class:`Accuracy`).
        name: the metric's name; ``_<top_k>`` is appended.
        output_names: the names of the predictions to read (default: all).
        label_names: the names of the labels to read (default: all).

    Raises:
        ValueError: ``top_k`` is below 2; or, in an update, predictions are not (samples, classes).
    """

    def __init__(
        self,
        top_k: int = 1,
        name: str = "top_k_accuracy",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        if top_k < 2:
            raise ValueError(f"TopKAccuracy: top_k is {top_k}, expected at least 2; use Accuracy instead")
        super().__init__(f"{name}_{top_k}", output_names, label_names, top_k=top_k)
        self.top_k = top_k

    def measure(self, label: Host, pred: Host) -> tuple[float, float]:
        if pred.ndim != 2:
            raise ValueError(f"TopKAccuracy: the predictions have shape {pred.shape}, expected (samples, classes)")
        labels = label.astype(np.int32).ravel()
        check_label_shapes(labels, pred)
        k = min(self.top_k, pred.shape[1])
        top = np.argpartition(pred.astype(np.float32), -k, axis=1)[:, -k:]
        return int(np.count_nonzero(top == labels[:, None])), labels.size

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {**config, "name": config["name"].removesuffix(f"_{self.top_k}")}


class _Binary(AveragedMetric):
    """A score from the numbers of true and false positives and negatives, per batch or over all batches."""

    def score(self, true_pos: int, false_pos: int, false_neg: int, true_neg: int) -> float:
        """Return the score for these numbers."""
        raise NotImplementedError

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, wrap=True)
        counts = sum(
            (self._count(host(label), host(pred)) for label, pred in zip(labels, preds, strict=True)),
            np.zeros(4, np.int64),
        )
        if self.average == "macro":
            self.accumulate(self.score(*counts.tolist()), 1)
            return
        self._counts += counts
        self._global_counts += counts
        self.num_inst, self.sum_metric = self._weighted_score(self._counts)
        self.global_num_inst, self.global_sum_metric = self._weighted_score(self._global_counts)

    def _count(self, label: Host, pred: Host) -> Host:
        check_label_shapes(label, pred)
        _expect_classes(self, label, pred, 1)
        label = label.astype(np.int32).ravel()
        if len(np.unique(label)) > 2:
            raise ValueError(
                f"{type(self).__name__}: the labels hold {np.unique(label).tolist()}, expected only 0 and 1 (PCC "
                "supports more classes)"
            )
        predicted, true = pred.argmax(axis=1) == 1, label == 1
        return np.array(
            [
                (predicted & true).sum(), (predicted & ~true).sum(), (~predicted & true).sum(),
                (~predicted & ~true).sum(),
            ]
        )  # fmt: skip

    def _weighted_score(self, counts: Host) -> tuple[float, float]:
        total = int(counts.sum())
        return total, self.score(*counts.tolist()) * total

    def reset(self) -> None:
        self._global_counts = np.zeros(4, np.int64)
        super().reset()

    def reset_local(self) -> None:
        self._counts = np.zeros(4, np.int64)
        super().reset_local()


@register
class F1(_Binary):
    """The harmonic mean of precision and recall, for two classes.

    Args:
        name: the metric's name.
        output_names: the names of the predictions to read (default: all).
        label_names: the names of the labels to read (default: all).
        average: ``"macro"``, the mean of the batches' scores, or ``"micro"``, one score over all batches.
    """

    default_name = "f1"

    def score(self, true_pos: int, false_pos: int, false_neg: int, true_neg: int) -> float:
        return 2 * true_pos / (2 * true_pos + false_pos + false_neg) if true_pos else 0.0


@register
class MCC(_Binary):
    """Matthews' correlation coefficient, for two classes: 1 is perfect, 0 is chance, -1 is inverse.

    Matthews, Comparison of the predicted and observed secondary structure of T4 phage lysozyme, 1975.

    Args:
        name: the metric's name.
        output_names: the names of the predictions to read (default: all).
        label_names: the names of the labels to read (default: all).
        average: ``"macro"``, the mean of the batches' scores, or ``"micro"``, one score over all batches.
    """

    default_name = "mcc"

    def score(self, true_pos: int, false_pos: int, false_neg: int, true_neg: int) -> float:
        terms = (true_pos + false_pos, true_pos + false_neg, true_neg + false_pos, true_neg + false_neg)
        product = math.prod(term for term in terms if term)
        return (true_pos * true_neg - false_pos * false_neg) / math.sqrt(product)


@register
class PCC(NamedMetric):
    """Pearson's correlation of labels and predicted classes: Matthews' coefficient for any number of classes.

    Gorodkin, Comparing two K-category assignments by a K-category correlation coefficient, 2004.

    Args:
        name: the metric's name.
        output_names: the names of the predictions to read (default: all).
        label_names: the names of the labels to read (default: all).
    """

    _matrix: Host
    _global_matrix: Host
    default_name = "pcc"
    _has_global_stats = True

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, wrap=True)
        for label, pred in zip(labels, preds, strict=True):
            actual, predicted = host(label), host(pred)
            if predicted.shape != actual.shape:
                predicted = predicted.argmax(axis=1)
            self._count(actual.astype(np.int64).ravel(), predicted.astype(np.int64).ravel())
        self.num_inst += 1
        self.global_num_inst += 1

    def _count(self, actual: Host, predicted: Host) -> None:
        check_label_shapes(actual, predicted)
        classes = max(len(self._matrix), int(actual.max(initial=-1)) + 1, int(predicted.max(initial=-1)) + 1)
        padding = ((0, classes - len(self._matrix)),) * 2
        self._matrix = np.pad(self._matrix, padding)
        self._global_matrix = np.pad(self._global_matrix, padding)
        np.add.at(self._matrix, (predicted, actual), 1)
        np.add.at(self._global_matrix, (predicted, actual), 1)

    def _calc_mcc(self, cmat: Host) -> float:
        return _correlation(cmat)

    def get(self) -> tuple[str, float]:
        return self.name, self._calc_mcc(self._matrix)

    def get_global(self) -> tuple[str, float]:
        return self.name, self._calc_mcc(self._global_matrix)

    def reset(self) -> None:
        self._global_matrix = np.zeros((2, 2))
        super().reset()

    def reset_local(self) -> None:
        self._matrix = np.zeros_like(self._global_matrix)
        super().reset_local()


def _correlation(matrix: Host) -> float:
    """Return Matthews' correlation of a confusion matrix; NaN if all predictions or all labels are one class."""
    total = matrix.sum()
    predicted, actual = matrix.sum(axis=1), matrix.sum(axis=0)
    variances = np.sum(predicted * (total - predicted)) * np.sum(actual * (total - actual))
    if not variances:
        return float("nan")
    return float(np.sum(matrix.diagonal() * total - predicted * actual) / math.sqrt(variances))
