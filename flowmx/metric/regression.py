"""Metrics of predicted numbers, and of losses."""

from __future__ import annotations

import math

import numpy as np

from flowmx.metric.base import (
    Arrays,
    AveragedMetric,
    Host,
    NamedMetric,
    alias,
    check_label_shapes,
    host,
    listed,
    register,
)


class _Difference(NamedMetric):
    """The mean over batches of a function of the differences."""

    def measure(self, label: Host, pred: Host) -> tuple[float, float]:
        columns = [array.reshape(-1, 1) if array.ndim == 1 else array for array in (label, pred)]
        return float(self.of_difference(columns[0] - columns[1])), 1

    def of_difference(self, difference: Host) -> float:
        """The value of one batch."""
        raise NotImplementedError


@register
class MAE(_Difference):
    """The mean absolute error; the mean of the batches' means.

    Args:
        name: its name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "mae"

    def of_difference(self, difference: Host) -> float:
        return float(np.abs(difference).mean())


@register
class MSE(_Difference):
    """The mean squared error; the mean of the batches' means.

    Args:
        name: its name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "mse"

    def of_difference(self, difference: Host) -> float:
        return float(np.square(difference).mean())


@register
class RMSE(_Difference):
    """The root of the mean squared error; the mean of the batches' values.

    Args:
        name: its name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "rmse"

    def of_difference(self, difference: Host) -> float:
        return math.sqrt(np.square(difference).mean())


@register
@alias("pearsonr")
class PearsonCorrelation(AveragedMetric):
    """Pearson's correlation of predictions and labels.

    Args:
        name: its name.
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
    """Means and sums of products of two variables, over all that was included."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = np.zeros(2)
        self.products = np.zeros((2, 2))

    def include(self, pair: Host) -> None:
        count = pair.shape[1]
        mean = pair.mean(axis=1)
        centred = pair - mean[:, None]
        apart = mean - self.mean
        total = self.count + count
        self.products += centred @ centred.T + np.outer(apart, apart) * (self.count * count / total)
        self.mean += apart * (count / total)
        self.count = total

    def correlation(self) -> float:
        spread = self.products[0, 0] * self.products[1, 1]
        return float(self.products[0, 1] / math.sqrt(spread)) if spread else float("nan")


@register
class Loss(NamedMetric):
    """The mean of the predictions, which are losses; labels do not matter.

    Args:
        name: its name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "loss"
    _has_global_stats = True

    def update(self, labels: Arrays, preds: Arrays) -> None:
        for pred in listed(preds):
            self.accumulate(float(host(pred).sum(dtype=np.float64)), pred.size)


@register
class Torch(Loss):
    """:class:`Loss` under the name that MXNet's plugin for Torch gave it.

    Args:
        name: its name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "torch"


@register
class Caffe(Loss):
    """:class:`Loss` under the name that MXNet's plugin for Caffe gave it.

    Args:
        name: its name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    default_name = "caffe"
