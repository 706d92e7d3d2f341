"""Metrics of predicted probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flowmx.metric.base import EvalMetric, Host, alias, register


class _LogLikelihood(EvalMetric):
    """The mean of ``-log(p + eps)``, p being the probability that was given to the label."""

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
        right = label.ravel().astype(np.int64)
        if pred.ndim != 2 or len(right) != len(pred):
            raise ValueError(
                f"{type(self).__name__}: the predictions have shape {pred.shape}, expected ({len(right)}, classes) for "
                f"labels of shape {label.shape}"
            )
        given = pred[np.arange(len(right)), right]
        return float(-np.log(given + self.eps).sum()), len(right)


@register
@alias("ce")
class CrossEntropy(_LogLikelihood):
    """The cross entropy of predicted probabilities, per instance.

    Args:
        eps: avoids the logarithm of 0.
        name: its name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "cross-entropy"


@register
@alias("nll_loss")
class NegativeLogLikelihood(_LogLikelihood):
    """The negative log-likelihood of the labels, per instance.

    Args:
        eps: avoids the logarithm of 0.
        name: its name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "nll-loss"


@register
class Perplexity(EvalMetric):
    """The perplexity of a language model: e to the mean negative log-likelihood.

    Args:
        ignore_label: instances with this label do not count; None counts all.
        axis: the axis of the predictions that holds the classes.
        name: its name.
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
        given = np.moveaxis(pred, self.axis, -1).reshape(-1, pred.shape[self.axis])
        right = label.ravel().astype(np.int64)
        if len(right) != len(given):
            raise ValueError(
                f"Perplexity: labels of shape {label.shape} do not fit predictions of shape {pred.shape} with the "
                f"classes on axis {self.axis}"
            )
        counted = np.ones(len(right), bool) if self.ignore_label is None else right != self.ignore_label
        last = given.shape[1] - 1
        chosen = given[np.arange(len(right)), np.clip(right, 0, last)][counted]
        return float(-np.log(np.maximum(1e-10, chosen)).sum()), int(counted.sum())

    def value(self, total: float, count: float) -> float:
        return math.exp(total / count) if count else float("nan")
