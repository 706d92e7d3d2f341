"""Metrics of predicted numbers, and of losses."""

from __future__ import annotations

import math

import numpy as np

from flowmx.metric.eval_metric import (
    Arrays,
    AveragedMetric,
    Host,
    NamedMetric,
    alias,
    as_list,
    check_label_shapes,
    host,
    register,
)


class _Difference(NamedMetric):
    """The mean over batches of a function of the differences."""

    def measure(self, label: Host, pred: Host) -> tuple[float, float]:
        columns = [array.reshape(-1, 1) if array.ndim == 1 else array for array in (label, pred)]
        return float(self.batch_value(columns[0] - columns[1])), 1

    def batch_value(self, difference: Host) -> float:
        """Return the value of one batch."""
        raise NotImplementedError


@register
class MAE(_Difference):
    """The mean absolute error; the mean of the batches' means.

    Args:
        name: the metric's name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "mae"

    def batch_value(self, difference: Host) -> float:
        return float(np.abs(difference).mean())


@register
class MSE(_Difference):
    """The mean squared error; the mean of the batches' means.

    Args:
        name: the metric's name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "mse"

    def batch_value(self, difference: Host) -> float:
        return float(np.square(difference).mean())


@register
class RMSE(_Difference):
    """The root of the mean squared error; the mean of the batches' values.

    Args:
        name: the metric's name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "rmse"

    def batch_value(self, difference: Host) -> float:
        return math.sqrt(np.square(difference).mean())


@register
@alias("pearsonr")
class PearsonCorrelation(AveragedMetric):
    """Pearson's correlation of predictions and labels.

    Args:
        name: the metric's name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
        average: ``"macro"``, the mean of the batches' correlations, or ``"micro"``, the correlation over all
            batches (Chan, Golub and LeVeque's pairwise update of means and squares, 1979).
    """

    default_name = "pearsonr"

    def measure(self, label: Host, pred: Host) -> tuple[float, float]:
        check_label_shapes(label, pred, shape=True)
        pair = np.stack([label.ravel(), pred.ravel()]).astype(np.float64)
        if self.average == "macro":
            correlations: Host = np.asarray(np.corrcoef(pair))
            return float(correlations[0, 1]), 1
        for moments in (self._moments, self._global_moments):
            moments.include(pair)
        return 0.0, 1

    def get(self) -> tuple[str, float]:
        return super().get() if self.average == "macro" else (self.name, self._moments.correlation())

    def get_global(self) -> tuple[str, float]:
        return super().get_global() if self.average == "macro" else (self.name, self._global_moments.correlation())

    def reset(self) -> None:
        self._global_moments = _Moments()
        super().reset()

    def reset_local(self) -> None:
        self._moments = _Moments()
        super().reset_local()


class _Moments:
    """Means and sums of products of two variables, over all included pairs."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = np.zeros(2)
        self.products = np.zeros((2, 2))

    def include(self, pair: Host) -> None:
        count = pair.shape[1]
        mean = pair.mean(axis=1)
        centred = pair - mean[:, None]
        shift = mean - self.mean
        total = self.count + count
        self.products += centred @ centred.T + np.outer(shift, shift) * (self.count * count / total)
        self.mean += shift * (count / total)
        self.count = total

    def correlation(self) -> float:
        variances = self.products[0, 0] * self.products[1, 1]
        return float(self.products[0, 1] / math.sqrt(variances)) if variances else float("nan")


@register
class Loss(NamedMetric):
    """The mean of the predictions, which are losses; labels are ignored.

    Args:
        name: the metric's name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "loss"
    _has_global_stats = True

    def update(self, labels: Arrays, preds: Arrays) -> None:
        for pred in as_list(preds):
            self.accumulate(float(host(pred).sum(dtype=np.float64)), pred.size)


@register
class Torch(Loss):
    """:class:`Loss` under the name that MXNet's plugin for Torch gave it.

    Args:
        name: the metric's name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "torch"


@register
class Caffe(Loss):
    """:class:`Loss` under the name that MXNet's plugin for Caffe gave it.

    Args:
        name: the metric's name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "caffe"
