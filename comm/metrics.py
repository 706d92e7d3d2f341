"""Metrics in Prometheus' text format: counters, gauges and histograms with labels. Thread-safe."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from flowmx import forks

__all__ = ["Counter", "Gauge", "Histogram", "Metrics", "merge", "totals"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
Labels = tuple[str, ...]


class Metric:
    """One metric: a value for each combination of labels.

    Args:
        name: letters, digits and underscores, as Prometheus requires.
        doc: a description.
        labels: the names of the labels.
    """

    kind = "untyped"

    def __init__(self, name: str, doc: str, labels: Sequence[str] = ()) -> None:
        self.name, self.doc, self.labels = name, doc, tuple(labels)
        self._lock = forks.lock()

    def lines(self) -> Iterator[str]:
        """Iterate over the lines in `/metrics`."""
        raise NotImplementedError

    def _check(self, labels: Labels) -> Labels:
        if len(labels) != len(self.labels):
            raise TypeError(f"{self.name} takes the labels {self.labels}, not {labels}")
        return labels

    def _line(self, name: str, labels: Labels, value: float, *more: tuple[str, str]) -> str:
        pairs = [*zip(self.labels, labels, strict=True), *more]
        text = ",".join(f'{key}="{_escape(str(label))}"' for key, label in pairs)
        return f"{name}{{{text}}} {value:.17g}" if pairs else f"{name} {value:.17g}"


class Counter(Metric):
    """A counter: a value that only grows."""

    kind = "counter"

    def __init__(self, name: str, doc: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, doc, labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Add 1, or `by`."""
        with self._lock:
            self._values[self._check(labels)] = self._values.get(labels, 0.0) + by

    def value(self, *labels: str) -> float:
        """Return the current value."""
        return self._values.get(labels, 0.0)

    def lines(self) -> Iterator[str]:
        for labels, value in sorted(self._values.copy().items()):
            yield self._line(self.name, labels, value)


class Gauge(Counter):
    """A gauge: a value that goes up and down, set or read when the metrics are exported."""

    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        """Replace the value."""
        with self._lock:
            self._values[self._check(labels)] = value

    def follow(self, read: Callable[[], float]) -> None:
        """Call `read` for the value whenever the metric is exported; the metric must have no labels."""
        self._check(())
        self._read = read

    _read: Callable[[], float] | None = None

    def lines(self) -> Iterator[str]:
        if self._read is not None:
            self.set(self._read())
        return super().lines()


class Histogram(Metric):
    """A histogram: counts of values by upper bound; cumulative in the export, as Prometheus defines it.

    Args:
        name: as for `Metric`.
        doc: as for `Metric`.
        labels: as for `Metric`.
        bounds: upper bounds, increasing; infinity is added.
    """

    kind = "histogram"

    def __init__(self, name: str, doc: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS) -> None:
        super().__init__(name, doc, labels)
        self.bounds = tuple(bounds)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Count a value."""
        with self._lock:
            counts = self._counts.setdefault(self._check(labels), [0] * (len(self.bounds) + 1))
            counts[bisect_left(self.bounds, value)] += 1
            self._sums[labels] = self._sums.get(labels, 0.0) + value

    def observe_all(self, values: Iterable[float], *labels: str) -> None:
        """Count several values."""
        with self._lock:
            counts, total = self._counts.setdefault(self._check(labels), [0] * (len(self.bounds) + 1)), 0.0
            for value in values:
                counts[bisect_left(self.bounds, value)] += 1
                total += value
            self._sums[labels] = self._sums.get(labels, 0.0) + total

    def counts(self, *labels: str) -> list[int]:
        """Return the number of values in each bucket, not cumulative; the last bucket is above all bounds."""
        return list(self._counts.get(labels, ()))

    def lines(self) -> Iterator[str]:
        with self._lock:
            snapshot = [(labels, list(counts), self._sums[labels]) for labels, counts in sorted(self._counts.items())]
        for labels, counts, total in snapshot:
            below = 0
            for bound, count in zip((*map(str, self.bounds), "+Inf"), counts, strict=True):
                below += count
                yield self._line(f"{self.name}_bucket", labels, below, ("le", bound))
            yield self._line(f"{self.name}_sum", labels, total)
            yield self._line(f"{self.name}_count", labels, below)


M = TypeVar("M", bound=Metric)


class Metrics:
    """The metrics of one process or service.

    Example:
        >>> metrics = Metrics()
        >>> pushes = metrics.counter("flowmx_pushes_total", "Pushes that were applied.", ["mode"])
        >>> pushes.add("sync")
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def counter(self, name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
        """Return the counter of a name, creating it at its first use."""
        return self._get(Counter(name, doc, labels))

    def gauge(self, name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
        """Return the gauge of a name, creating it at its first use."""
        return self._get(Gauge(name, doc, labels))

    def histogram(
        self, name: str, doc: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS
    ) -> Histogram:
        """Return the histogram of a name, creating it at its first use."""
        return self._get(Histogram(name, doc, labels, bounds))

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        lines = []
        for metric in list(self._metrics.values()):
            lines += [f"# HELP {metric.name} {_escape(metric.doc)}", f"# TYPE {metric.name} {metric.kind}"]
            lines += metric.lines()
        return "\n".join(lines) + "\n"

    def _get(self, new: M) -> M:
        metric = self._metrics.setdefault(new.name, new)
        if type(metric) is not type(new) or metric.labels != new.labels:
            raise ValueError(
                f"{new.name} is a {metric.kind} with labels {metric.labels}, and cannot be a {new.kind} with labels "
                f"{new.labels}"
            )
        return metric


def merge(texts: Iterable[str], largest: Collection[str] = ()) -> str:
    """Return the metrics of several processes as those of one: the sum of each value.

    Args:
        texts: their metrics, as :meth:`Metrics.text` returns them.
        largest: names of metrics that are merged to their largest value.
    """
    values: dict[str, dict[str, float | None]] = {}
    for name, line, value in (sample for text in texts for sample in _samples(text)):
        samples = values.setdefault(name, {})
        earlier = samples.get(line)
        if value is None or earlier is None:
            samples[line] = value
        else:
            samples[line] = max(earlier, value) if name in largest else earlier + value
    lines = [
        line if value is None else f"{line} {value:.17g}"
        for samples in values.values()
        for line, value in samples.items()
    ]
    return "\n".join(lines) + "\n" if lines else ""


def totals(text: str) -> str:
    """Return only the metrics that stay valid when their process has ended: counters and histograms."""
    kinds = {words[2]: words[3] for words in map(str.split, text.splitlines()) if words[:2] == ["#", "TYPE"]}
    lines = [
        line for (name, _, _), line in zip(_samples(text), text.splitlines(), strict=True) if kinds[name] != "gauge"
    ]
    return "\n".join(lines) + "\n" if lines else ""


def _samples(text: str) -> Iterator[tuple[str, str, float | None]]:
    """Iterate over the lines of a text: the name of the metric, the line, and its value; None for comments."""
    name = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
        if line.startswith("#"):
            yield name, line, None
        else:
            label, _, value = line.rpartition(" ")
            yield name, label, float(value)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
