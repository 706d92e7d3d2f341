"""Helpers of metrics that estimator and handlers share."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from flowmx.gluon.loss import Loss, SoftmaxCrossEntropyLoss
from flowmx.metric import Accuracy, CompositeEvalMetric, EvalMetric


def check_metrics(metrics: Any) -> list[EvalMetric]:
    """A metric, or several, or None, as a list; a composite one becomes its parts.

    Raises:
        ValueError: something is no metric.
    """
    if isinstance(metrics, CompositeEvalMetric):
        return [part for metric in metrics.metrics for part in check_metrics(metric)]
    if isinstance(metrics, EvalMetric):
        return [metrics]
    found = metrics or []
    wrong = [each for each in found if not isinstance(each, EvalMetric)]
    if wrong:
        raise ValueError(f"metrics holds {wrong[0]!r}, expected metrics such as mx.metric.Accuracy()")
    return found if isinstance(found, list) else list(found)


def check_known(handler: Any, known: Collection[EvalMetric]) -> None:
    """Check that every metric of a handler is one that the estimator updates.

    Raises:
        ValueError: it does.
    """
    for attribute in dir(handler):
        if "metric" not in attribute:
            continue
        value = getattr(handler, attribute)
        for metric in value if isinstance(value, list) else [value]:
            if isinstance(metric, EvalMetric) and not any(metric is each for each in known):
                raise ValueError(
                    f"{type(handler).__name__} looks at the metric {metric.name!r}, which the estimator does not "
                    "update: use those of estimator.train_metrics and estimator.val_metrics"
                )


def suggested_metric(loss: Loss) -> EvalMetric | None:
    """The metric that usually goes with a loss."""
    return Accuracy() if isinstance(loss, SoftmaxCrossEntropyLoss) else None


def better(mode: str, metric: EvalMetric) -> tuple[Callable[[float, float], bool], float]:
    """The comparison that is True where a new value is better than the best one, and the worst possible value.

    Args:
        mode: ``"min"``, ``"max"`` or ``"auto"``: more is better of accuracies and F1, less of all others.
        metric: the metric.

    Raises:
        ValueError: another mode.
    """
    if mode not in ("auto", "min", "max"):
        raise ValueError(f"mode is {mode!r}, expected 'auto', 'min' or 'max'")
    name = str(metric.get()[0]).lower()
    more = mode == "max" or (mode == "auto" and ("acc" in name or "f1" in name))
    return (float.__gt__, -math.inf) if more else (float.__lt__, math.inf)
