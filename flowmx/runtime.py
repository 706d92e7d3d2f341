"""``mx.runtime``: the features of this installation, under MXNet's names.

Example:
    >>> mx.runtime.Features().is_enabled("DIST_KVSTORE")
    True
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, NamedTuple

from flowmx.devices import num_gpus
from flowmx.lazy import lazy_attributes

__all__ = ["Feature", "Features", "feature_list"]

__getattr__, __dir__ = lazy_attributes(__name__)


class Feature(NamedTuple):
    """An optional feature of an installation, and whether it is enabled.

    Attributes:
        name: its name in MXNet.
        enabled: whether it is available.
    """

    name: str
    enabled: bool

    def __repr__(self) -> str:
        return f"{'✔' if self.enabled else '✖'} {self.name}"


def _installed(*names: str) -> bool:
    return any(find_spec(name) is not None for name in names)


@cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags from ``/proc/cpuinfo``; empty if there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    return frozenset(flags.partition(":")[2].split())


def _on_gpu() -> bool:
    return num_gpus() > 0


def _onednn() -> bool:
    from flowmx.ops.kernels.onednn import library

    return library.library() is not None


_CPU = {
    "CPU_SSE": "sse", "CPU_SSE2": "sse2", "CPU_SSE3": "pni", "CPU_SSE4_1": "sse4_1", "CPU_SSE4_2": "sse4_2",
    "CPU_SSE4A": "sse4a", "CPU_AVX": "avx", "CPU_AVX2": "avx2", "SSE": "sse", "F16C": "f16c",
}  # fmt: skip
"""MXNet's features that stand for compiler settings, and Linux's names of the CPU flags that they require."""

_FEATURES: Mapping[str, bool | Callable[[], bool]] = {
    "CUDA": _on_gpu,
    "CUDNN": _on_gpu,
    "NCCL": _on_gpu,
    "CUDA_RTC": _on_gpu,
    "TENSORRT": False,
    **dict.fromkeys(_CPU, False),
    "OPENMP": True,
    "JEMALLOC": False,
    "BLAS_OPEN": True,  # NumPy includes it
    "BLAS_ATLAS": False,
    "BLAS_MKL": False,
    "BLAS_APPLE": False,
    "LAPACK": True,
    "MKLDNN": _onednn,
    "OPENCV": lambda: _installed("PIL", "simplejpeg"),  # the readers of image files
    "CAFFE": False,
    "PROFILER": lambda: _installed("flowmx.profiler"),
    "DIST_KVSTORE": lambda: _installed("aiohttp"),
    "CXX14": False,
    "INT64_TENSOR_SIZE": True,
    "SIGNAL_HANDLER": False,
    "DEBUG": False,
    "TVM_OP": False,
}


def _enabled(name: str) -> bool:
    if name in _CPU:
        return _CPU[name] in cpu_flags()
    feature = _FEATURES[name]
    return feature() if callable(feature) else feature


def feature_list() -> list[Feature]:
    """Return all features."""
    return [Feature(name, _enabled(name)) for name in _FEATURES]


class Features(OrderedDict[str, Feature]):
    """All features by name; a singleton."""

    _instance: ClassVar[Features | None] = None

    def __new__(cls) -> Features:
        """Return the singleton."""
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __init__(self) -> None:
        super().__init__((feature.name, feature) for feature in feature_list())

    def __repr__(self) -> str:
        return str(list(self.values()))

    def is_enabled(self, feature_name: str) -> bool:
        """Return whether a feature is enabled.

        Args:
            feature_name: its name, case-insensitive.

        Raises:
            RuntimeError: the feature is unknown.
        """
        feature = self.get(feature_name.upper())
        if feature is None:
            raise RuntimeError(f"unknown feature {feature_name!r}: expected one of {list(self)}")
        return feature.enabled
