"""The base class of all metrics, composite metrics, and metrics from functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias

import numpy

from flowmx.foreign_names import METRIC_OBJECTS, raise_missing
from flowmx.keywords import ChecksKeywords
from flowmx.metric.values import NoNumber
from flowmx.ndarray import NDArray
from flowmx.registry import Registry

Host: TypeAlias = numpy.ndarray[Any, Any]
Arrays: TypeAlias = Any
"""A list of arrays, or one array."""


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> tuple[Any, Any]:
    """Check that labels and predictions match; return both.

    Args:
        labels: the labels.
        preds: the predictions.
        wrap: put single arrays into lists.
        shape: compare the shapes, not only the lengths.

    Raises:
        ValueError: they do not match.
    """
    actual, expected = (preds.shape, labels.shape) if shape else (len(preds), len(labels))
    if actual != expected:
        raise ValueError(
            f"metric: the predictions have {'shape' if shape else 'length'} {actual}, expected {expected} as the "
            "labels have; select outputs with output_names and labels with label_names"
        )
    return (as_list(labels), as_list(preds)) if wrap else (labels, preds)


def as_list(arrays: Arrays) -> Sequence[Any]:
    """Return arrays as a list; wrap a single array."""
    return [arrays] if isinstance(arrays, (NDArray, numpy.ndarray)) else arrays


def host(array: Any) -> Host:
    """Return an array as a NumPy array; blocks until it is computed."""
    values: Host = array.asnumpy() if hasattr(array, "asnumpy") else numpy.asarray(array)
    return values


class EvalMetric(ChecksKeywords, NoNumber):
    """Base class of metrics.

    A subclass implements :meth:`measure` for one pair of arrays. A subclass that overrides :meth:`update`, as in
    MXNet, works as well.

    Every metric has two running means: a global one since :meth:`reset`, and a local one that
    :meth:`reset_local` restarts (``Speedometer`` calls it after each log line).

    Args:
        name: the metric's name in logs.
        output_names: the names of the predictions that :meth:`update_dict` reads (default: all).
        label_names: the names of the labels to read (default: all).
        **kwargs: further arguments of the subclass, for :meth:`get_config`.
    """

    _has_global_stats = False

    def __init__(
        self,
        name: str,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.name = str(name)
        self.output_names = output_names
        self.label_names = label_names
        has_global_stats = self._has_global_stats or type(self).update is EvalMetric.update
        self._has_global_stats = kwargs.pop("has_global_stats", has_global_stats)
        self._kwargs = kwargs
        self.reset()

    # -- updating --------------------------------------------------------------------------------------

    def measure(self, label: Host, pred: Host) -> tuple[float, float]:
        """Measure one pair of arrays; return the sum of the values and the number of samples."""
        raise NotImplementedError(f"{type(self).__name__} must implement measure() or update()")

    def update(self, labels: Arrays, preds: Arrays) -> None:
        """Update the metric with a batch; blocks until the arrays are computed.

        Args:
            labels: an array of labels for each output, or one array.
            preds: an array of predictions for each output, or one array.

        Raises:
            ValueError: labels and predictions do not match.
        """
        labels, preds = check_label_shapes(labels, preds, wrap=True)
        for label, pred in zip(labels, preds, strict=True):
            self.accumulate(*self.measure(host(label), host(pred)))

    def accumulate(self, total: float, count: float) -> None:
        """Add ``total`` to the sum of values and ``count`` to the number of samples."""
        self.sum_metric += total
        self.global_sum_metric += total
        self.num_inst += count
        self.global_num_inst += count

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Update the metric with a batch of named arrays; blocks until they are computed.

        Raises:
            KeyError: a name of ``output_names`` or ``label_names`` is unknown.
        """
        self.update(_select("label_names", self.label_names, label), _select("output_names", self.output_names, pred))

    async def update_async(self, labels: Arrays, preds: Arrays) -> None:
        """Await the arrays of a batch, then call :meth:`update`, for coroutines."""
        await _ready((*as_list(labels), *as_list(preds)))
        self.update(labels, preds)

    async def update_dict_async(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Await the arrays of a batch, then call :meth:`update_dict`, for coroutines."""
        await _ready((*label.values(), *pred.values()))
        self.update_dict(label, pred)

    # -- reading ---------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Reset both means."""
        self.global_num_inst: float = 0
        self.global_sum_metric: float = 0.0
        self.reset_local()

    def reset_local(self) -> None:
        """Reset the local mean."""
        self.num_inst: float = 0
        self.sum_metric: float = 0.0

    def get(self) -> tuple[str, float]:
        """Return name and value of the local mean (NaN without samples); lists of them for composite metrics."""
        return self.name, self.value(self.sum_metric, self.num_inst)

    def get_global(self) -> tuple[str, float]:
        """Return name and value of the mean since :meth:`reset`."""
        if not self._has_global_stats:
            return self.get()
        return self.name, self.value(self.global_sum_metric, self.global_num_inst)

    def value(self, total: float, count: float) -> float:
        """Return the metric's value for a sum and a number of samples."""
        return total / count if count else float("nan")

    def get_name_value(self) -> list[tuple[str, float]]:
        """Return pairs of name and value of the local mean."""
        return _pairs(*self.get())

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """Return pairs of name and value of the global mean."""
        return _pairs(*self.get_global())

    def get_config(self) -> dict[str, Any]:
        """Return a configuration for :func:`create`."""
        return {
            **self._kwargs,
            "metric": type(self).__name__,
            "name": self.name,
            "output_names": self.output_names,
            "label_names": self.label_names,
        }

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise_missing(self, name, METRIC_OBJECTS)


class NamedMetric(EvalMetric):
    """Base class of metrics with a default name and no other arguments."""

    default_name: ClassVar[str]

    def __init__(
        self,
        name: str | None = None,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(self.default_name if name is None else name, output_names, label_names)


class AveragedMetric(EvalMetric):
    """A metric averaged over batches (``average="macro"``) or computed over all batches (``"micro"``).

    Raises:
        ValueError: ``average`` is unknown.
    """

    default_name: ClassVar[str]
    _has_global_stats = True

    def __init__(
        self,
        name: str | None = None,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        if average not in ("macro", "micro"):
            raise ValueError(f"{type(self).__name__}: average is {average!r}, expected 'macro' or 'micro'")
        self.average = average
        super().__init__(self.default_name if name is None else name, output_names, label_names, average=average)


def _select(argument: str, names: Sequence[str] | None, arrays: Mapping[str, Any]) -> list[Any]:
    if names is None:
        return list(arrays.values())
    missing = [name for name in names if name not in arrays]
    if missing:
        raise KeyError(f"metric: {argument} names {missing[0]!r}, but there are only {', '.join(arrays) or 'none'}")
    return [arrays[name] for name in names]


async def _ready(arrays: Iterable[Any]) -> None:
    for array in arrays:
        if hasattr(array, "__await__"):
            await array


def _pairs(name: Any, value: Any) -> list[tuple[str, float]]:
    return list(zip(_as_list(name), _as_list(value), strict=True))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


_registry: Registry[EvalMetric] = Registry(EvalMetric, "metric")
register = _registry.register
alias = _registry.alias


def create(metric: Any = None, *args: Any, **kwargs: Any) -> EvalMetric:
    """Create a metric.

    Args:
        metric: a name such as ``"acc"``, a function of label and prediction (as NumPy arrays), a metric, a
            dict from ``get_config``, or a list of these for a composite metric.
        *args: arguments of the metric.
        **kwargs: arguments of the metric.

    Raises:
        ValueError: the metric's name is unknown.
    """
    if callable(metric):
        return CustomMetric(metric, *args, **kwargs)
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric([create(part, *args, **kwargs) for part in metric])
    return _registry.create(metric, *args, **kwargs)


@register
@alias("composite")
class CompositeEvalMetric(EvalMetric):
    """Several metrics as one.

    Args:
        metrics: metrics, or arguments of :func:`create`.
        name: the metric's name.
        output_names: the names of the predictions to read (default: all).
        label_names: the names of the labels to read (default: all).
    """

    _has_global_stats = True

    def __init__(
        self,
        metrics: Iterable[Any] | None = None,
        name: str = "composite",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        self.metrics = [create(metric) for metric in metrics or ()]
        super().__init__(name, output_names, label_names)

    def add(self, metric: Any) -> None:
        """Add a metric, or an argument of :func:`create`."""
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> EvalMetric:
        """Return the metric at a position.

        Raises:
            IndexError: the position is out of range.
        """
        if not -len(self.metrics) <= index < len(self.metrics):
            raise IndexError(f"get_metric: there is no metric {index}, there are {len(self.metrics)}")
        return self.metrics[index]

    def update(self, labels: Arrays, preds: Arrays) -> None:
        for metric in self.metrics:
            metric.update(labels, preds)

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        for names, arrays in ((self.label_names, label), (self.output_names, pred)):
            _select("label_names" if arrays is label else "output_names", names, arrays)
        if self.label_names is not None:
            label = {name: array for name, array in label.items() if name in self.label_names}
        if self.output_names is not None:
            pred = {name: array for name, array in pred.items() if name in self.output_names}
        for metric in self.metrics:
            metric.update_dict(label, pred)

    def reset(self) -> None:
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        for metric in self.metrics:
            metric.reset_local()

    def get(self) -> tuple[list[str], list[float]]:  # type: ignore[override]
        return self._flatten([metric.get() for metric in self.metrics])

    def get_global(self) -> tuple[list[str], list[float]]:  # type: ignore[override]
        return self._flatten([metric.get_global() for metric in self.metrics])

    def _flatten(self, parts: list[tuple[Any, Any]]) -> tuple[list[str], list[float]]:
        pairs = [pair for part in parts for pair in _pairs(*part)]
        return [name for name, _ in pairs], [value for _, value in pairs]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "metrics": [metric.get_config() for metric in self.metrics]}


@register
class CustomMetric(EvalMetric):
    """A metric from a function.

    Args:
        feval: called with label and prediction as NumPy arrays; returns the value of the batch, or a sum and
            the number of samples.
        name: the metric's name (default: the function's name).
        allow_extra_outputs: allow the numbers of predictions and labels to differ.
        output_names: the names of the predictions to read (default: all).
        label_names: the names of the labels to read (default: all).
    """

    _has_global_stats = True

    def __init__(
        self,
        feval: Callable[[Host, Host], Any],
        name: str | None = None,
        allow_extra_outputs: bool = False,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        if name is None:
            name = getattr(feval, "__name__", type(feval).__name__)
            name = f"custom({name})" if "<" in name else name
        super().__init__(name, output_names, label_names, feval=feval, allow_extra_outputs=allow_extra_outputs)
        self._feval = feval
        self._allow_extra_outputs = allow_extra_outputs

    def update(self, labels: Arrays, preds: Arrays) -> None:
        if self._allow_extra_outputs:
            count = min(len(as_list(labels)), len(as_list(preds)))
            labels, preds = as_list(labels)[:count], as_list(preds)[:count]
        super().update(labels, preds)

    def measure(self, label: Host, pred: Host) -> tuple[float, float]:
        value = self._feval(label, pred)
        return value if isinstance(value, tuple) else (value, 1)

    def get_config(self) -> dict[str, Any]:
        raise TypeError(f"get_config: the metric {self.name!r} is a function, which cannot be saved")


def np(
    numpy_feval: Callable[[Host, Host], Any], name: str | None = None, allow_extra_outputs: bool = False
) -> CustomMetric:
    """Create a metric from a function of label and prediction as NumPy arrays; see :class:`CustomMetric`."""
    return CustomMetric(numpy_feval, name, allow_extra_outputs)
