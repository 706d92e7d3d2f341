"""Metrics of classifiers from counts of labels and predicted classes: precision, recall, the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any

import numpy as np

from flowmx.metric.eval_metric import Arrays, Host, NamedMetric, alias, check_label_shapes, host, register

_MAX_CLASSES = 8192
"""A larger matrix would take more than half a gigabyte; such labels are probably not classes."""
_AVERAGES = ("binary", "macro", "micro", "weighted", None)


class CountingMetric(NamedMetric):
    """Base class of metrics that count pairs of label and predicted class.

    Labels are whole numbers from 0. Predictions are scores with an axis of classes, of which the largest counts, or
    have the labels' shape: then they are classes, or probabilities of class 1 if there is a ``threshold``.

    Args:
        name: the metric's name.
        output_names: the names of the predictions to read (default: all).
        label_names: the names of the labels to read (default: all).
        axis: the axis of the classes in the predictions.
        threshold: the probability from which a sample is predicted as class 1, for predictions of the labels' shape.
        **kwargs: further arguments of the subclass, for ``get_config``.
    """

    _has_global_stats = True
    _matrix: Host
    _global_matrix: Host

    def __init__(
        self, name: str | None = None, output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None, axis: int = 1, threshold: float | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        if not isinstance(name, (str, NoneType)):
            raise TypeError(
                f"{type(self).__name__}: name is {name!r}, expected a string; the number of classes is no argument, "
                "since the matrix grows with the classes that appear"
            )
        if threshold is not None and not 0 < threshold < 1:
            raise ValueError(
                f"{type(self).__name__}: threshold is {threshold!r}, expected a probability between 0 and 1, or None "
                "if the predictions are classes"
            )
        self.axis = axis
        self.threshold = threshold
        super().__init__(name, output_names, label_names)
        self._kwargs = {"axis": axis, "threshold": threshold, **kwargs}

    @property
    def matrix(self) -> Host:
        """The counts since the last local reset, int64: a row for each label, a column for each predicted class."""
        return self._matrix.copy()

    @property
    def global_matrix(self) -> Host:
        """The counts since :meth:`reset`, int64, of the same form as :attr:`matrix`."""
        return self._global_matrix.copy()

    def update(self, labels: Arrays, preds: Arrays) -> None:
        labels, preds = check_label_shapes(labels, preds, wrap=True)
        for label, pred in zip(labels, preds, strict=True):
            self._count(*self._classes(host(label), host(pred)))

    def _classes(self, label: Host, pred: Host) -> tuple[Host, Host]:
        """Return the labels and the predicted classes of a batch, as flat arrays of int64."""
        if pred.shape != label.shape and pred.ndim == label.ndim + 1 and pred.shape[self.axis] > 1:
            pred = pred.argmax(axis=self.axis)
        elif self.threshold is not None:
            pred = pred >= self.threshold
        if pred.size != label.size:
            raise ValueError(
                f"{type(self).__name__}: the predictions have shape {pred.shape} and the labels {label.shape}, "
                f"expected predictions of the labels' shape, or with one more axis (axis={self.axis}) for the classes"
            )
        advice = "; pass threshold=0.5 if they are probabilities of class 1"
        return self._whole("labels", label), self._whole("predictions", pred, advice)

    def _whole(self, what: str, values: Host, advice: str = "") -> Host:
        flat = values.ravel()
        with np.errstate(invalid="ignore"):  # NaN and infinity are reported below
            classes = flat.astype(np.int64)
        if classes.size and (np.any(classes != flat) or classes.min() < 0 or classes.max() >= _MAX_CLASSES):
            wrong = flat[(classes != flat) | (classes < 0) | (classes >= _MAX_CLASSES)][0]
            raise ValueError(
                f"{type(self).__name__}: the {what} hold {wrong}, expected classes: whole numbers from 0 "
                f"to {_MAX_CLASSES - 1}{advice}"
            )
        return classes

    def _count(self, labels: Host, predicted: Host) -> None:
        classes = max(len(self._global_matrix), labels.max(initial=-1) + 1, predicted.max(initial=-1) + 1)
        counts = np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)
        padding = (0, classes - len(self._global_matrix))
        self._global_matrix = np.pad(self._global_matrix, padding) + counts
        self._matrix = np.pad(self._matrix, (0, classes - len(self._matrix))) + counts
        self.num_inst, self.global_num_inst = int(self._matrix.sum()), int(self._global_matrix.sum())

    def score(self, matrix: Host) -> Any:
        """Return the metric's value, or a list of values, for a matrix of counts."""
        raise NotImplementedError

    def get(self) -> tuple[str, float]:
        return self._named(self._matrix)

    def get_global(self) -> tuple[str, float]:
        return self._named(self._global_matrix)

    def _named(self, matrix: Host) -> tuple[Any, Any]:
        return self.name, self.score(matrix) if matrix.any() else float("nan")

    def reset(self) -> None:
        self._global_matrix = np.zeros((2, 2), np.int64)
        super().reset()

    def reset_local(self) -> None:
        self._matrix = np.zeros_like(self._global_matrix)
        super().reset_local()


@register
@alias("confusion_matrix")
class ConfusionMatrix(CountingMetric):
    """The number of samples of each class by predicted class: :attr:`matrix`.

    Its value in logs is the accuracy, the fraction of samples on the diagonal. The matrix grows with the classes that
    appear. For the predictions and labels it accepts, and its arguments, see :class:`CountingMetric`.

    Raises:
        ValueError: in an update, the shapes do not fit, or values are not classes.

    Example:
        >>> confusion = mx.metric.ConfusionMatrix()
        >>> confusion.update(mx.nd.array([0, 1, 1]), mx.nd.array([0, 1, 0]))
        >>> confusion.matrix
        array([[1, 0],
               [1, 1]])
    """

    default_name = "confusion_matrix"

    def score(self, matrix: Host) -> float:
        return float(np.trace(matrix) / matrix.sum())

    def fractions(self, over: str = "labels") -> Host:
        """Return the matrix as fractions, float64.

        Args:
            over: what sums to 1: ``"labels"`` the rows, ``"predictions"`` the columns, ``"all"`` the whole matrix. A
                class without samples has zeros.

        Raises:
            ValueError: ``over`` has another value.
        """
        axes = {"labels": 1, "predictions": 0, "all": None}
        if over not in axes:
            raise ValueError(f"fractions: over is {over!r}, expected 'labels', 'predictions' or 'all'")
        total = self._matrix.sum(axis=axes[over], keepdims=True)
        return np.asarray(np.divide(self._matrix, total, out=np.zeros(self._matrix.shape), where=total > 0))

    def __str__(self) -> str:
        width = max(len(str(self._matrix.max())), len(str(len(self._matrix) - 1)))
        lines = [range(len(self._matrix)), *self._matrix]
        titles = ["", *range(len(self._matrix))]
        head, *rows = (
            f"{title:>{width}} | " + " ".join(f"{number:>{width}}" for number in line)
            for title, line in zip(titles, lines, strict=True)
        )
        return "\n".join([f"{self.name}: rows are labels, columns predictions", head, *rows])


class _Fraction(CountingMetric):
    """A fraction for each class, averaged over the classes; see the subclasses."""

    def __init__(
        self, average: str | None = "binary", name: str | None = None, output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None, axis: int = 1, threshold: float | None = None,
    ) -> None:  # fmt: skip
        if average not in _AVERAGES:
            raise ValueError(
                f"{type(self).__name__}: average is {average!r}, expected 'binary', 'macro', 'micro', "
                "'weighted' or None"
            )
        self.average = average
        super().__init__(name, output_names, label_names, axis, threshold, average=average)

    def totals(self, matrix: Host) -> Host:
        """Return the number of samples that each class's fraction is of."""
        raise NotImplementedError

    def score(self, matrix: Host) -> Any:
        if self.average == "micro":
            return float(np.trace(matrix) / matrix.sum())
        totals, hits = self.totals(matrix), matrix.diagonal()
        fractions = np.divide(hits, totals, out=np.zeros(len(matrix)), where=totals > 0)
        if self.average == "binary":
            if len(matrix) > 2:
                raise ValueError(
                    f"{type(self).__name__}: there are {len(matrix)} classes, expected 0 and 1 for average='binary'; "
                    "pass average='macro', 'micro', 'weighted', or None for a value of each class"
                )
            return float(fractions[1])
        supports = matrix.sum(axis=1)
        if self.average == "weighted":
            return float(fractions @ supports / supports.sum())
        present = (supports + matrix.sum(axis=0)) > 0
        return float(fractions[present].mean()) if self.average == "macro" else fractions.tolist()

    def _named(self, matrix: Host) -> tuple[Any, Any]:
        if self.average is not None:
            return super()._named(matrix)
        values = self.score(matrix) if matrix.any() else [float("nan")] * len(matrix)
        return [f"{self.name}[{number}]" for number in range(len(matrix))], values


@register
class Precision(_Fraction):
    """The fraction of samples predicted as a class that belong to it, over all samples; 0 without predictions.

    Args:
        average: ``"binary"`` is the value of class 1, of two; ``"macro"`` the mean of the classes; ``"weighted"`` their
            mean weighted by the number of labels; ``"micro"`` counts all classes together; None lists them.
        name: the metric's name.
        output_names: the names of the predictions to read (default: all).
        label_names: the names of the labels to read (default: all).
        axis: the axis of the classes in the predictions.
        threshold: the probability from which a sample is predicted as class 1, if predictions have the labels' shape;
            None if these are classes.

    Raises:
        ValueError: an argument is unknown; or, later, the shapes do not fit, or values are not classes.

    Example:
        >>> precision = mx.metric.Precision(threshold=0.5)
        >>> precision.update(mx.nd.array([0, 1, 1]), mx.nd.array([0.6, 0.9, 0.2]))
        >>> precision.get()
        ('precision', 0.5)
    """

    default_name = "precision"

    def totals(self, matrix: Host) -> Host:
        return np.asarray(matrix.sum(axis=0))


@register
class Recall(_Fraction):
    """The fraction of samples of a class that are predicted as it, over all samples; 0 without samples.

    Args:
        average: ``"binary"`` is the value of class 1, of two; ``"macro"`` the mean of the classes; ``"weighted"`` their
            mean weighted by the number of labels; ``"micro"`` counts all classes together; None lists them.
        name: the metric's name.
        output_names: the names of the predictions to read (default: all).
        label_names: the names of the labels to read (default: all).
        axis: the axis of the classes in the predictions.
        threshold: the probability from which a sample is predicted as class 1, if predictions have the labels' shape;
            None if these are classes.

    Raises:
        ValueError: an argument is unknown; or, later, the shapes do not fit, or values are not classes.

    Example:
        >>> recall = mx.metric.Recall(average="macro")
        >>> recall.update(mx.nd.array([0, 1, 2]), mx.nd.array([[0.9, 0, 0], [0.1, 0.8, 0.1], [0.6, 0.2, 0.2]]))
        >>> round(recall.get()[1], 3)
        0.667
    """

    default_name = "recall"

    def totals(self, matrix: Host) -> Host:
        return np.asarray(matrix.sum(axis=1))
