"""Metric helpers shared by the estimator and its handlers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from flowmx.gluon.loss import Loss, SoftmaxCrossEntropyLoss
from flowmx.metric import Accuracy, CompositeEvalMetric, EvalMetric


def check_metrics(metrics: Any) -> list[EvalMetric]:
    """Return one metric, several or None as a list; expand composite metrics.

    Raises:
        ValueError: an element is not a metric.
    """
    if isinstance(metrics, CompositeEvalMetric):
        return [part for metric in metrics.metrics for part in check_metrics(metric)]
    if isinstance(metrics, EvalMetric):
        return [metrics]
    items = metrics or []
    wrong = [item for item in items if not isinstance(item, EvalMetric)]
    if wrong:
        raise ValueError(f"metrics holds {wrong[0]!r}, expected metrics such as mx.metric.Accuracy()")
    return items if isinstance(items, list) else list(items)


def check_metrics_are_updated(handler: object, metrics: Collection[EvalMetric]) -> None:
    """Check that the estimator updates every metric of a handler.

    Raises:
        ValueError: the estimator does not update one of them.
    """
    for attribute in dir(handler):
        if "metric" not in attribute:
            continue
        value = getattr(handler, attribute)
        for metric in value if isinstance(value, list) else [value]:
            if isinstance(metric, EvalMetric) and not any(metric is updated for updated in metrics):
                raise ValueError(
                    f"{type(handler).__name__} reads the metric {metric.name!r}, which the estimator does not "
                    "update: use those of estimator.train_metrics and estimator.val_metrics"
                )


def default_metric(loss: Loss) -> EvalMetric | None:
    """Return the usual metric for a loss."""
    return Accuracy() if isinstance(loss, SoftmaxCrossEntropyLoss) else None


def better(mode: str, metric: EvalMetric) -> tuple[Callable[[float, float], bool], float]:
    """Return a function (new value, best value) that is True for an improvement, and the worst possible value.

    Args:
        mode: ``"min"``, ``"max"`` or ``"auto"``: higher is better for accuracies and F1, lower for all others.
        metric: the metric.

    Raises:
        ValueError: the mode is unknown.
    """
    if mode not in ("auto", "min", "max"):
        raise ValueError(f"mode is {mode!r}, expected 'auto', 'min' or 'max'")
    name = str(metric.get()[0]).lower()
    higher_is_better = mode == "max" or (mode == "auto" and ("acc" in name or "f1" in name))
    return (float.__gt__, -math.inf) if higher_is_better else (float.__lt__, math.inf)
