"""Metrics of predicted probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flowmx.metric.eval_metric import EvalMetric, Host, alias, register


class _LogLikelihood(EvalMetric):
    """The mean of ``-log(p + eps)``, where p is the predicted probability of the label."""

    default_name: ClassVar[str]

    def __init__(
        self,
        eps: float = 1e-12,
        name: str | None = None,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(self.default_name if name is None else name, output_names, label_names, eps=eps)
        self.eps = eps

    def measure(self, label: Host, pred: Host) -> tuple[float, float]:
        labels = label.ravel().astype(np.int64)
        if pred.ndim != 2 or len(labels) != len(pred):
            raise ValueError(
                f"{type(self).__name__}: the predictions have shape {pred.shape}, expected ({len(labels)}, classes) "
                f"for labels of shape {label.shape}"
            )
        probabilities = pred[np.arange(len(labels)), labels]
        return float(-np.log(probabilities + self.eps).sum()), len(labels)


@register
@alias("ce")
class CrossEntropy(_LogLikelihood):
    """The cross entropy of predicted probabilities, per sample.

    Args:
        eps: avoids the logarithm of 0.
        name: the metric's name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "cross-entropy"


@register
@alias("nll_loss")
class NegativeLogLikelihood(_LogLikelihood):
    """The negative log-likelihood of the labels, per sample.

    Args:
        eps: avoids the logarithm of 0.
        name: the metric's name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "nll-loss"


@register
class Perplexity(EvalMetric):
    """The perplexity of a language model: e to the mean negative log-likelihood.

    Args:
        ignore_label: samples with this label are ignored; None counts all.
        axis: the axis of the classes in the predictions.
        name: the metric's name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    def __init__(
        self,
        ignore_label: int | None,
        axis: int = -1,
        name: str = "perplexity",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names, label_names, ignore_label=ignore_label, axis=axis)
        self.ignore_label = ignore_label
        self.axis = axis

    def measure(self, label: Host, pred: Host) -> tuple[float, float]:
        rows = np.moveaxis(pred, self.axis, -1).reshape(-1, pred.shape[self.axis])
        labels = label.ravel().astype(np.int64)
        if len(labels) != len(rows):
            raise ValueError(
                f"Perplexity: labels of shape {label.shape} do not match predictions of shape {pred.shape} with the "
                f"classes on axis {self.axis}"
            )
        counted = np.ones(len(labels), bool) if self.ignore_label is None else labels != self.ignore_label
        last = rows.shape[1] - 1
        probabilities = rows[np.arange(len(labels)), np.clip(labels, 0, last)][counted]
        return float(-np.log(np.maximum(1e-10, probabilities)).sum()), int(counted.sum())

    def value(self, total: float, count: float) -> float:
        return math.exp(total / count) if count else float("nan")
