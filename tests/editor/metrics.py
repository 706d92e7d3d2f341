"""Metrics, one of them custom."""

import numpy as np

import flowmx as mx
from flowmx.ndarray import NDArray


class Largest(mx.metric.EvalMetric):
    def update(self, labels: list[NDArray], preds: list[NDArray]) -> None:
        for pred in preds:
            self.sum_metric += float(pred.max().asscalar())
            self.num_inst += 1


def distance(label: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]", pred: object) -> float:
    return float(np.abs(label - np.asarray(pred)[:, 0]).mean())


metric = mx.metric.CompositeEvalMetric([mx.metric.Accuracy(), Largest("largest"), mx.metric.np(distance)])
metric.update([mx.nd.array([0, 1])], [mx.nd.array([[0.9, 0.1], [0.8, 0.2]])])
values = dict(metric.get_name_value())
assert values["accuracy"] == 0.5
top = mx.metric.create("top_k_accuracy", top_k=2)
top.reset()
assert top.get()[0] == "top_k_accuracy_2"
