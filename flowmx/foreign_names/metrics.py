"""Names of metrics in Keras, torchmetrics and scikit-learn, and their equivalents in flowmx."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["METRICS", "METRIC_OBJECTS", "SpelledNames"]

_PREFIXES = ("binary", "multiclass", "multilabel")
"""The prefixes of torchmetrics' names for a task."""


class SpelledNames(dict[str, str]):
    """A table of names in all spellings: ``F1Score``, ``f1_score``, and ``MulticlassF1Score`` have the same entry.

    Args:
        table: the equivalents, by one spelling.
    """

    def __init__(self, table: Mapping[str, str]) -> None:
        super().__init__(table)
        self._by_key = {_key(name): text for name, text in table.items()}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __getitem__(self, name: str) -> str:
        text = self._find(name)
        if text is None:
            raise KeyError(name)
        return text

    def _find(self, name: str) -> str | None:
        key = _key(name)
        stems = [key, *(key.removeprefix(prefix) for prefix in _PREFIXES)]
        return next((self._by_key[stem] for stem in stems if stem in self._by_key), None)


def _key(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()


_ACCURACY, _AUC, _F1, _MCC, _RECALL = "Accuracy()", "AUC()", "F1()", "MCC()", "Recall()"
_CROSS_ENTROPY = "CrossEntropy(), whose predictions are probabilities"
_MAE, _MSE, _RMSE = "MAE()", "MSE()", "RMSE()"
_MEAN = "Loss(), the mean of values"
_TOP_K = "TopKAccuracy(k)"
_COUNTS = "ConfusionMatrix().matrix, which has the counts"
_CUSTOM = "mx.metric.np(function), of label and prediction as NumPy arrays"

METRICS: Mapping[str, str] = SpelledNames({
    "Acc": _ACCURACY, "BLEU": _CUSTOM, "ROUGE": _CUSTOM, "WER": _CUSTOM, "AUROC": _AUC,
    "AveragePrecision": _AUC, "BalancedAccuracyScore": "Recall('macro')", "BLEUScore": _CUSTOM,
    "BinaryAccuracy": _ACCURACY, "BinaryCrossentropy": _CROSS_ENTROPY, "BinaryIoU": _COUNTS,
    "CalibrationError": _CUSTOM, "CategoricalAccuracy": _ACCURACY, "CategoricalCrossentropy": _CROSS_ENTROPY,
    "CategoricalHinge": _CUSTOM, "CohenKappa": _COUNTS, "CohenKappaScore": _COUNTS, "CosineSimilarity": _CUSTOM,
    "Dice": _COUNTS, "ExactMatch": _CUSTOM, "F1Score": _F1, "FBetaScore": _F1, "FalseNegatives": _COUNTS,
    "FalsePositives": _COUNTS, "HammingDistance": _CUSTOM, "Hinge": _CUSTOM, "HingeLoss": _CUSTOM, "IoU": _COUNTS,
    "JaccardIndex": _COUNTS, "JaccardScore": _COUNTS, "KLDivergence": _CUSTOM, "LogCoshError": _CUSTOM,
    "LogLoss": _CROSS_ENTROPY, "MAPE": _CUSTOM, "MatthewsCorrCoef": _MCC, "Mean": _MEAN,
    "MeanAbsoluteError": _MAE, "MeanAbsolutePercentageError": _CUSTOM, "MeanIoU": _COUNTS, "MeanMetric": _MEAN,
    "MeanSquaredError": _MSE, "MeanSquaredLogError": _CUSTOM, "MeanSquaredLogarithmicError": _CUSTOM,
    "OneHotIoU": _COUNTS, "PearsonCorrCoef": "PearsonCorrelation()", "Poisson": _CUSTOM,
    "PrecisionScore": "Precision()", "R2": "PearsonCorrelation(), whose square it is for linear fits",
    "R2Score": "PearsonCorrelation(), whose square it is for linear fits", "ROUGEScore": _CUSTOM,
    "RecallScore": _RECALL, "RocAucScore": _AUC, "RootMeanSquaredError": _RMSE, "Sensitivity": _RECALL,
    "SensitivityAtSpecificity": _CUSTOM, "SparseCategoricalAccuracy": _ACCURACY,
    "SparseCategoricalCrossentropy": _CROSS_ENTROPY, "SparseTopKCategoricalAccuracy": _TOP_K,
    "SpearmanCorrCoef": _CUSTOM, "Specificity": _COUNTS, "SquaredHinge": _CUSTOM, "Sum": f"{_MEAN} and their number",
    "SumMetric": f"{_MEAN} and their number", "TopKCategoricalAccuracy": _TOP_K, "TrueNegatives": _COUNTS,
    "TruePositives": _COUNTS, "WordErrorRate": _CUSTOM, "AccuracyScore": _ACCURACY,
})  # fmt: skip
"""By name of a class or function."""

METRIC_OBJECTS: Mapping[str, str] = {
    "add_state": "attributes of a subclass, which resets them in reset()", "asnumpy": "metric.get()[1]",
    "asscalar": "metric.get()[1]", "compute": "metric.get()[1]", "count": "metric.num_inst",
    "forward": "metric.update(labels, preds)", "item": "metric.get()[1]", "numpy": "metric.get()[1]",
    "plot": "mx.viz.Curves", "reset_state": "metric.reset()", "reset_states": "metric.reset()",
    "result": "metric.get()[1]", "to": "no call: metrics are computed on the host",
    "total": "metric.sum_metric", "update_state": "metric.update(labels, preds)",
}  # fmt: skip
"""By attribute of metrics."""
