"""Measuring the ranges of a network's values on data, for :mod:`flowmx.contrib.quantization`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.io import DataBatch, DataDesc, DataIter
from flowmx.ndarray import NDArray

Histogram = tuple[Any, Any, Any, Any, Any]
"""Counts, edges, the minimum, the maximum, and the end of the range around 0."""
Ranges = dict[str, tuple[Any, Any]]


def combine_histogram(old_hist: Histogram, arr: Any, new_min: object, new_max: object, new_th: object) -> Histogram:
    """Add the values of an array to a histogram around 0, extending it by whole bins if necessary.

    Args:
        old_hist: counts, edges, the minimum, the maximum, and the end of the range.
        arr: the values.
        new_min: their minimum.
        new_max: their maximum.
        new_th: the larger absolute value of the two.
    """
    counts, edges, low, high, end = old_hist
    ends = min(low, new_min), max(high, new_max)
    if new_th <= end:
        added, _ = np.histogram(arr, bins=len(counts), range=(-end, end))
        return (counts + added, edges, *ends, end)
    step = 2 * end / len(counts)
    more = int((new_th - end) // step + 1)
    wide = more * step + end
    total, edges = np.histogram(arr, bins=2 * more + len(counts), range=(-wide, wide))
    total[more : len(total) - more] += counts
    return (total, edges, *ends, wide)


class _Collector:
    """Base of the collectors of a network's values.

    Args:
        include_layer: the names of the values to collect (None: all).
        logger: a logger for debug messages.
    """

    def __init__(self, include_layer: Iterable[str] | None = None, logger: Any = None) -> None:
        self.include_layer = include_layer
        self.logger = logger

    def collect(self, name: str, arr: NDArray) -> None:
        """Collect a value."""
        if self.include_layer is None or name in self.include_layer:
            self._add(name, arr)

    def _add(self, name: str, arr: NDArray) -> None:
        raise NotImplementedError


class _LayerHistogramCollector(_Collector):
    """A collector of histograms in ``hist_dict``, for thresholds by entropy.

    Args:
        num_bins: an odd number of bins.
        include_layer: the names of the values to collect (None: all).
        logger: a logger for debug messages.
    """

    def __init__(self, num_bins: int = 8001, include_layer: Iterable[str] | None = None, logger: object = None) -> None:
        super().__init__(include_layer, logger)
        self.hist_dict: dict[str, Histogram] = {}
        self.num_bins = num_bins

    def _add(self, name: str, arr: NDArray) -> None:
        values = arr.asnumpy()
        if self.logger:
            self.logger.debug(f"Collecting layer {name} histogram of shape {arr.shape}")
        low, high = np.min(values), np.max(values)
        end = max(abs(low), abs(high))
        if name in self.hist_dict:
            self.hist_dict[name] = combine_histogram(self.hist_dict[name], values, low, high, end)
        else:
            counts, edges = np.histogram(values, bins=self.num_bins, range=(-end, end))
            self.hist_dict[name] = (counts, edges, low, high, end)


class _LayerOutputMinMaxCollector(_Collector):
    """A collector of minima and maxima in ``min_max_dict``.

    Args:
        quantized_dtype: unused.
        include_layer: the names of the values to collect (None: all).
        logger: a logger for debug messages.
    """

    def __init__(
        self, quantized_dtype: str = "int8", include_layer: Iterable[str] | None = None, logger: object = None
    ) -> None:  # fmt: skip
        super().__init__(include_layer, logger)
        self.min_max_dict: Ranges = {}
        self.quantized_dtype = quantized_dtype

    def _add(self, name: str, arr: NDArray) -> None:
        values = arr.asnumpy()
        low, high = values.min(), values.max()
        if name in self.min_max_dict:
            before = self.min_max_dict[name]
            low, high = min(before[0], low), max(before[1], high)
        self.min_max_dict[name] = (low, high)
        if self.logger:
            self.logger.debug(f"Collecting layer {name} min_range={low:f}, max_range={high:f}")


def _collect_layer_statistics(
    mod: Any, data: Any, collector: Any, max_num_examples: int | None = None, logger: Any = None
) -> int:
    """Run a module on data with a collector and return the number of examples.

    Raises:
        ValueError: the data is not a DataIter.
    """
    if not isinstance(data, DataIter):
        raise ValueError(f"calib_data is {type(data).__name__}, expected a DataIter")
    for executor in mod._executors("calibration").execs:
        executor.set_monitor_callback(collector.collect, monitor_all=True)
    batches = examples = 0
    for batch in data:
        mod.forward(data_batch=batch, is_train=False)
        batches += 1
        examples += data.batch_size
        if max_num_examples is not None and examples >= max_num_examples:
            break
    if logger is not None:
        logger.info(f"Collected statistics from {batches} batches with batch_size={data.batch_size}")
    return examples


def _collect_layer_output_min_max(
    mod: object, data: object, quantized_dtype: str, include_layer: Iterable[str] | None = None,
    max_num_examples: int | None = None, logger: object = None,
) -> tuple[Ranges, int]:  # fmt: skip
    """Collect minima and maxima of a module's values. Return them and the number of examples."""
    collector = _LayerOutputMinMaxCollector(quantized_dtype, include_layer, logger)
    examples = _collect_layer_statistics(mod, data, collector, max_num_examples, logger)
    return collector.min_max_dict, examples


def _collect_layer_histogram(
    mod: object, data: object, include_layer: Iterable[str] | None = None, max_num_examples: int | None = None,
    logger: object = None,
) -> tuple[dict[str, Histogram], int]:  # fmt: skip
    """Collect histograms of a module's values. Return them and the number of examples."""
    collector = _LayerHistogramCollector(include_layer=include_layer, logger=logger)
    examples = _collect_layer_statistics(mod, data, collector, max_num_examples, logger)
    return collector.hist_dict, examples


def _smooth_distribution(p: Any, eps: float = 0.0001) -> Any:
    """Move a little of a distribution's weight to where it is 0.

    Raises:
        ValueError: it is 0 everywhere, or at too many points.
    """
    is_zero = p == 0
    zeros = int(is_zero.sum())
    if zeros == p.size:
        raise ValueError("_smooth_distribution: the distribution is 0 everywhere, expected some positive numbers")
    reduction = eps * zeros / (p.size - zeros)
    if reduction >= 1:
        raise ValueError(f"_smooth_distribution: eps is {eps}, too large where {zeros} of {p.size} numbers are 0")
    return (p + np.where(is_zero, eps, -reduction)).astype(np.float32)


def _get_optimal_threshold(
    hist_data: Histogram, quantized_dtype: str, num_quantized_bins: int = 255
) -> tuple[Any, Any, Any, Any]:
    """Return the minimum and maximum of a histogram, the threshold of least divergence, and the divergence.

    Raises:
        ValueError: the number of bins is even.
    """
    counts, edges, low, high, _ = hist_data
    if len(counts) % 2 == 0:
        raise ValueError(f"_get_optimal_threshold: the histogram has {len(counts)} bins, expected an odd number")
    if low >= 0 and quantized_dtype in ("auto", "uint8"):
        num_quantized_bins = num_quantized_bins * 2 + 1  # the bins below 0 are empty
    threshold, divergence = nd.contrib.calibrate_entropy(
        nd.array(counts, dtype="float32"), nd.array(edges, dtype="float32"), num_quantized_bins=num_quantized_bins
    )
    return low, high, threshold.asnumpy(), divergence.asnumpy()


def _get_optimal_thresholds(
    hist_dict: dict[str, Histogram], quantized_dtype: str, num_quantized_bins: int = 255, logger: Any = None
) -> Ranges:
    """Return the ranges of values by entropy. Their histograms are removed from the dict."""
    if logger is not None:
        logger.info(f"Calculating optimal thresholds with num_quantized_bins={num_quantized_bins}")
    ranges: Ranges = {}
    for name in list(hist_dict):
        low, high, end, divergence = _get_optimal_threshold(hist_dict.pop(name), quantized_dtype, num_quantized_bins)
        ranges[name] = (0, end) if low >= 0 and quantized_dtype in ("auto", "uint8") else (-end, end)
        if logger:
            logger.debug(f"layer={name}, min_val={low}, max_val={high}, th={end}, divergence={divergence}")
    return ranges


class _DataIterWrapper(DataIter):
    """A DataIter over the batches of a loader.

    Raises:
        TypeError: the loader is not iterable.
        ValueError: it is empty.
    """

    def __init__(self, calib_data: Any) -> None:
        self._data = calib_data
        try:
            first = next(iter(calib_data), None)
        except TypeError:
            raise TypeError(f"calib_data is {type(calib_data).__name__}, expected a DataIter or a DataLoader") from None
        if first is None:
            raise ValueError("calib_data is empty, expected at least one batch")
        arrays = _as_images(first)
        names = [f"data{index}" for index in range(len(arrays))]
        if len(arrays) < 3:  # data and label
            names = ["data", *(f"data{index}" for index in range(len(arrays) - 1))]
        self.provide_data = [DataDesc(name, array.shape) for name, array in zip(names, arrays, strict=True)]
        self.provide_label = []
        super().__init__(arrays[0].shape[0])
        self.reset()

    def reset(self) -> None:
        self._batches = iter(self._data)

    def next(self) -> DataBatch:
        return DataBatch(data=_as_images(next(self._batches))[: len(self.provide_data)])


def _as_images(batch: Any) -> list[NDArray]:
    """Return the arrays of a batch. If the first is a batch of batches, its leading axes are merged."""
    arrays = list(batch) if isinstance(batch, (list, tuple)) else [batch]
    if arrays[0].ndim > 4:
        arrays[0] = arrays[0].reshape((-1, *arrays[0].shape[2:]))
    return arrays


def _as_data_iter(calib_data: object) -> tuple[DataIter, Any]:
    """Return the data as a DataIter, and the descriptions of its arrays."""
    data = calib_data if isinstance(calib_data, DataIter) else _DataIterWrapper(calib_data)
    return data, data.provide_data


def collector_of(calib_mode: str, quantized_dtype: str, names: Iterable[str], custom: object, logger: object) -> Any:
    """Return the collector of a mode.

    Raises:
        ValueError: the mode is unknown, or requires a custom collector.
    """
    if calib_mode == "entropy":
        return _LayerHistogramCollector(include_layer=names, logger=logger)
    if calib_mode == "naive":
        return _LayerOutputMinMaxCollector(quantized_dtype, names, logger)
    if calib_mode == "customize" and custom is not None:
        return custom
    raise ValueError(
        f"calib_mode is {calib_mode!r}, expected 'none', 'naive', 'entropy', or 'customize' with a LayerOutputCollector"
    )


def ranges_of(collector: Any, calib_mode: str, quantized_dtype: str, logger: Any = logging) -> Mapping[str, object]:
    """Return the ranges that a collector measured.

    Raises:
        ValueError: the mode is unknown.
    """
    if calib_mode == "entropy":
        return _get_optimal_thresholds(collector.hist_dict, quantized_dtype, logger=logger)
    if calib_mode in ("naive", "customize"):
        ranges: Mapping[str, Any] = collector.min_max_dict
        return ranges
    raise ValueError(f"calib_mode is {calib_mode!r}, expected 'naive', 'entropy' or 'customize'")
