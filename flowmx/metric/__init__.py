"""Evaluation metrics (``mx.metric``): running sums over batches of labels and predictions.

``update`` blocks until the arrays are computed. Inside a coroutine use ``await metric.update_async(labels, preds)``.

Example:
    >>> metric = mx.metric.create(["acc", "ce"])
    >>> metric.update([labels], [predictions])
    >>> metric.get()
    (['accuracy', 'cross-entropy'], [0.5, 0.71])
"""

from flowmx.metric.classification import F1, MCC, PCC, Accuracy, TopKAccuracy
from flowmx.metric.confusion import ConfusionMatrix, CountingMetric, Precision, Recall
from flowmx.metric.eval_metric import (
    CompositeEvalMetric,
    CustomMetric,
    EvalMetric,
    alias,
    check_label_shapes,
    create,
    np,
    register,
)
from flowmx.metric.likelihood import CrossEntropy, NegativeLogLikelihood, Perplexity
from flowmx.metric.ranking import AUC
from flowmx.metric.regression import MAE, MSE, RMSE, Caffe, Loss, PearsonCorrelation, Torch

__all__ = [
    "AUC", "F1", "MAE", "MCC", "MSE", "PCC", "RMSE", "Accuracy", "Caffe", "CompositeEvalMetric", "ConfusionMatrix",
    "CountingMetric", "CrossEntropy", "CustomMetric", "EvalMetric", "Loss", "NegativeLogLikelihood",
    "PearsonCorrelation", "Perplexity", "Precision", "Recall", "TopKAccuracy", "Torch", "alias", "check_label_shapes",
    "create", "np", "register",
]  # fmt: skip
