"""The base of all metrics, and those made of other metrics or of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy

from flowmx.ndarray import NDArray
from flowmx.registry import Registry

Host: TypeAlias = numpy.ndarray[Any, Any]
Arrays: TypeAlias = Any
"""A list of arrays, or one array."""


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> tuple[Any, Any]:
    """Check that labels and predictions belong together; returns both.

    Args:
        labels: labels.
        preds: predictions.
        wrap: put single arrays into lists.
        shape: compare the shapes; otherwise only the lengths.

    Raises:
        ValueError: they do not fit.
    """
    given, expected = (preds.shape, labels.shape) if shape else (len(preds), len(labels))
    if given != expected:
        raise ValueError(
            f"metric: the predictions have {'shape' if shape else 'length'} {given}, expected {expected} as the labels "
            "have; choose among several outputs with output_names, among several labels with label_names"
        )
    return (listed(labels), listed(preds)) if wrap else (labels, preds)


def listed(arrays: Arrays) -> Sequence[Any]:
    """Arrays as a list, where a single one was given."""
    return [arrays] if isinstance(arrays, (NDArray, numpy.ndarray)) else arrays


def host(array: Any) -> Host:
    """An array's content; waits for it."""
    content: Host = array.asnumpy() if hasattr(array, "asnumpy") else numpy.asarray(array)
    return content


class EvalMetric:
    """Base of the metrics.

    A subclass implements :meth:`measure` for one pair of arrays. One that overrides :meth:`update`, as
    MXNet's do, works as well.

    Every metric keeps two running means: a global one since :meth:`reset`, and a local one that
    :meth:`reset_local` restarts (``Speedometer`` does after each line it logs).

    Args:
        name: its name in logs.
        output_names: the names of the predictions that :meth:`update_dict` reads (default: all).
        label_names: the names of the labels that it reads.
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
        own = self._has_global_stats or type(self).update is EvalMetric.update
        self._has_global_stats = kwargs.pop("has_global_stats", own)
        self._kwargs = kwargs
        self.reset()

    # -- updating --------------------------------------------------------------------------------------

    def measure(self, label: Host, pred: Host) -> tuple[float, float]:
        """Measure one pair of arrays: what to add to the sum, and how many instances it counts for."""
        raise NotImplementedError(f"{type(self).__name__} must implement measure() or update()")

    def update(self, labels: Arrays, preds: Arrays) -> None:
        """Count a batch in; waits for the arrays.

        Args:
            labels: one array of labels for each output, or a single one.
            preds: one array of predictions for each output, or a single one.

        Raises:
            ValueError: labels and predictions do not fit each other.
        """
        labels, preds = check_label_shapes(labels, preds, wrap=True)
        for label, pred in zip(labels, preds, strict=True):
            self.accumulate(*self.measure(host(label), host(pred)))

    def accumulate(self, total: float, count: float) -> None:
        """Add to the sum of values and to the number of instances."""
        self.sum_metric += total
        self.global_sum_metric += total
        self.num_inst += count
        self.global_num_inst += count

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Count a batch in, whose arrays have names; waits for the arrays.

        Raises:
            KeyError: a name of ``output_names`` or ``label_names`` is not among them.
        """
        self.update(_chosen("label_names", self.label_names, label), _chosen("output_names", self.output_names, pred))

    async def update_async(self, labels: Arrays, preds: Arrays) -> None:
        """As :meth:`update`, awaiting the arrays: the form for coroutines."""
        await _ready((*listed(labels), *listed(preds)))
        self.update(labels, preds)

    async def update_dict_async(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """As :meth:`update_dict`, awaiting the arrays: the form for coroutines."""
        await _ready((*label.values(), *pred.values()))
        self.update_dict(label, pred)

    # -- reading ---------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Start over."""
        self.global_num_inst: float = 0
        self.global_sum_metric: float = 0.0
        self.reset_local()

    def reset_local(self) -> None:
        """Start the local mean over."""
        self.num_inst: float = 0
        self.sum_metric: float = 0.0

    def get(self) -> tuple[Any, Any]:
        """Name and value of the local mean (NaN of nothing); lists of them for composite metrics."""
        return self.name, self.value(self.sum_metric, self.num_inst)

    def get_global(self) -> tuple[Any, Any]:
        """Name and value of the mean since :meth:`reset`."""
        if not self._has_global_stats:
            return self.get()
        return self.name, self.value(self.global_sum_metric, self.global_num_inst)

    def value(self, total: float, count: float) -> float:
        """The metric's value for a sum over a number of instances."""
        return total / count if count else float("nan")

    def get_name_value(self) -> list[tuple[str, float]]:
        """Pairs of name and value of the local mean."""
        return _pairs(*self.get())

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """Pairs of name and value of the global mean."""
        return _pairs(*self.get_global())

    def get_config(self) -> dict[str, Any]:
        """The configuration from which :func:`create` makes the metric again."""
        return {
            **self._kwargs,
            "metric": type(self).__name__,
            "name": self.name,
            "output_names": self.output_names,
            "label_names": self.label_names,
        }

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"


class NamedMetric(EvalMetric):
    """A metric without further arguments, whose class has a default name."""

    default_name: ClassVar[str]

    def __init__(
        self,
        name: str | None = None,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(self.default_name if name is None else name, output_names, label_names)


class AveragedMetric(EvalMetric):
    """A metric of batches (``average="macro"``) or of all that was counted over the batches (``"micro"``).

    Raises:
        ValueError: ``average`` is another one.
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


def _chosen(argument: str, names: Sequence[str] | None, arrays: Mapping[str, Any]) -> list[Any]:
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
    """Make a metric.

    Args:
        metric: a name such as ``"acc"``, a function of label and prediction (as NumPy arrays), a metric, a
            dict from ``get_config``, or a list of those, which makes a composite metric.
        *args: arguments of the metric.
        **kwargs: arguments of the metric.

    Raises:
        ValueError: there is no metric of that name.
    """
    if callable(metric):
        return CustomMetric(metric, *args, **kwargs)
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric([create(each, *args, **kwargs) for each in metric])
    return _registry.create(metric, *args, **kwargs)


@register
@alias("composite")
class CompositeEvalMetric(EvalMetric):
    """Several metrics as one.

    Args:
        metrics: metrics, or what :func:`create` makes them from.
        name: its name.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
    """

    _has_global_stats = True

    def __init__(
        self,
        metrics: Iterable[Any] | None = None,
        name: str = "composite",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        self.metrics = [create(each) for each in metrics or ()]
        super().__init__(name, output_names, label_names)

    def add(self, metric: Any) -> None:
        """Add a metric, or what :func:`create` makes one from."""
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> EvalMetric:
        """The metric at a position.

        Raises:
            IndexError: there are fewer.
        """
        if not -len(self.metrics) <= index < len(self.metrics):
            raise IndexError(f"get_metric: there is no metric {index}, there are {len(self.metrics)}")
        return self.metrics[index]

    def update(self, labels: Arrays, preds: Arrays) -> None:
        for metric in self.metrics:
            metric.update(labels, preds)

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        for names, arrays in ((self.label_names, label), (self.output_names, pred)):
            _chosen("label_names" if arrays is label else "output_names", names, arrays)
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

    def get(self) -> tuple[list[str], list[float]]:
        return self._gathered([metric.get() for metric in self.metrics])

    def get_global(self) -> tuple[list[str], list[float]]:
        return self._gathered([metric.get_global() for metric in self.metrics])

    def _gathered(self, parts: list[tuple[Any, Any]]) -> tuple[list[str], list[float]]:
        pairs = [pair for part in parts for pair in _pairs(*part)]
        return [name for name, _ in pairs], [value for _, value in pairs]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "metrics": [metric.get_config() for metric in self.metrics]}


@register
class CustomMetric(EvalMetric):
    """A metric made of a function.

    Args:
        feval: called with label and prediction as NumPy arrays; returns the value of the batch, or a sum and
            the number of instances in it.
        name: its name (default: the function's name).
        allow_extra_outputs: do not mind more predictions than labels, or fewer.
        output_names: the names of the predictions that it reads (default: all).
        label_names: the names of the labels that it reads.
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
            count = min(len(listed(labels)), len(listed(preds)))
            labels, preds = listed(labels)[:count], listed(preds)[:count]
        super().update(labels, preds)

    def measure(self, label: Host, pred: Host) -> tuple[float, float]:
        value = self._feval(label, pred)
        return value if isinstance(value, tuple) else (value, 1)

    def get_config(self) -> dict[str, Any]:
        raise TypeError(f"get_config: the metric {self.name!r} is made of a function, which is no plain data")


def np(
    numpy_feval: Callable[[Host, Host], Any], name: str | None = None, allow_extra_outputs: bool = False
) -> CustomMetric:
    """Make a metric of a function of label and prediction as NumPy arrays; see :class:`CustomMetric`."""
    return CustomMetric(numpy_feval, name, allow_extra_outputs)
