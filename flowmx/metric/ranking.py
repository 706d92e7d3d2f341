"""`AUC`: the area under the receiver operating characteristic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.metric.eval_metric import Arrays, Host, NamedMetric, alias, check_label_shapes, host, register


@register
@alias("roc_auc")
class AUC(NamedMetric):
    """The area under the ROC curve: the probability that a sample of class 1 has a higher score than one of class 0.

    It is exact, so the scores of all samples are stored: 8 bytes each. Equal scores count half. With more than two
    classes it is the mean over the classes, each against the others.

    Hanley and McNeil, The meaning and use of the area under a receiver operating characteristic (ROC) curve, 1982.

    Args:
        name: the metric's name.
        output_names: the names of the predictions to read (default: all).
        label_names: the names of the labels to read (default: all).

    Raises:
        ValueError: in an update, predictions are neither (samples, classes) nor one score for each label, a score is
            NaN, or labels are not classes.

    Example:
        >>> auc = mx.metric.AUC()
        >>> auc.update(mx.nd.array([0, 0, 1, 1]), mx.nd.array([0.1, 0.4, 0.35, 0.8]))
        >>> auc.get()
        ('auc', 0.75)
    """

    default_name = "auc"
    _has_global_stats = True
    _labels: Host
    _scores: Host

    def __init__(
        self, name: str | None = None, output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, output_names, label_names)

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, wrap=True)
        for label, pred in zip(labels, preds, strict=True):
            self._add(*_check(host(label), host(pred)))

    def _add(self, labels: Host, scores: Host) -> None:
        if self.global_num_inst and scores.shape[1] != self._scores.shape[1]:
            raise ValueError(
                f"AUC: the predictions have {scores.shape[1]} classes, expected {self._scores.shape[1]} as before"
            )
        begin = int(self.global_num_inst)
        end = begin + len(labels)
        if end > len(self._labels) or not begin:
            room = max(end, 2 * begin) - begin
            self._labels = np.concatenate([self._labels[:begin], np.zeros(room, np.int32)])
            empty = np.zeros((room, scores.shape[1]), np.float32)
            self._scores = np.concatenate([self._scores[:begin], empty]) if begin else empty
        self._labels[begin:end], self._scores[begin:end] = labels, scores
        self.global_num_inst = end
        self.num_inst += len(labels)

    def _window(self, count: float) -> tuple[Host, Host]:
        """Return the labels and scores of the last ``count`` samples."""
        end = int(self.global_num_inst)
        return self._labels[end - int(count) : end], self._scores[end - int(count) : end]

    def roc_curve(self) -> tuple[Host, Host, Host]:
        """Return the ROC curve of class 1, since the last local reset.

        Returns:
            The false positive rates, the true positive rates and the thresholds, float64 of the same shape: one point
            for each different score, from (0, 0) with an infinite threshold.

        Raises:
            ValueError: there are more than two classes, or only labels of one class.
        """
        labels, scores = self._window(self.num_inst)
        if scores.shape[1] > 1:
            raise ValueError(f"roc_curve: the predictions have {scores.shape[1]} classes, expected two")
        order = np.argsort(-scores[:, 0], kind="stable")
        ranked, is_positive = scores[order, 0].astype(np.float64), labels[order] == 1
        last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1) if len(ranked) else np.zeros(0, int)
        hits = np.cumsum(is_positive)[last]
        misses = 1 + last - hits
        if not len(last) or not hits[-1] or not misses[-1]:
            raise ValueError("roc_curve: all labels are of one class, expected samples of class 0 and of class 1")
        return (
            np.concatenate([[0.0], misses / misses[-1]]),
            np.concatenate([[0.0], hits / hits[-1]]),
            np.concatenate([[np.inf], ranked[last]]),
        )

    def get(self) -> tuple[str, float]:
        return self.name, _area(*self._window(self.num_inst))

    def get_global(self) -> tuple[str, float]:
        return self.name, _area(*self._window(self.global_num_inst))

    def reset(self) -> None:
        self._labels = np.zeros(0, np.int32)
        self._scores = np.zeros((0, 1), np.float32)
        super().reset()


def _check(label: Host, pred: Host) -> tuple[Host, Host]:
    """Return flat labels, and scores of shape (samples, 1) or (samples, more than two classes)."""
    labels = label.ravel()
    scores = pred.reshape(-1, 1) if pred.size == labels.size else pred
    if scores.ndim != 2 or len(scores) != len(labels):
        raise ValueError(
            f"AUC: the predictions have shape {pred.shape} and the labels {label.shape}, expected (samples, classes), "
            "or one score for each label"
        )
    scores = scores[:, 1:] if scores.shape[1] == 2 else scores
    if np.isnan(scores).any():
        raise ValueError("AUC: a score is NaN, expected numbers; find its cause with mx.anomaly.stop_at_nan()")
    with np.errstate(invalid="ignore"):  # NaN and infinity are reported below
        classes = labels.astype(np.int32)
    wrong = labels[(classes != labels) | (classes < 0) | (classes >= max(2, scores.shape[1]))]
    if len(wrong):
        count = max(2, scores.shape[1])
        raise ValueError(f"AUC: the labels hold {wrong[0]}, expected whole numbers from 0 to {count - 1}")
    return classes, scores.astype(np.float32)


def _area(labels: Host, scores: Host) -> float:
    """Return the area under the curve; its mean over the classes with labels; NaN if all labels are of one class."""
    if scores.shape[1] == 1:
        return _area_of(labels == 1, scores[:, 0])
    areas = [_area_of(labels == number, scores[:, number]) for number in np.unique(labels)]
    return float(np.mean(areas)) if areas else float("nan")


def _area_of(is_positive: Host, scores: Host) -> float:
    positives = int(np.count_nonzero(is_positive))
    negatives = len(scores) - positives
    if not positives or not negatives:
        return float("nan")
    _, groups, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[groups]  # equal scores share the mean of their ranks
    return float((ranks[is_positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))
