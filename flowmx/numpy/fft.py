"""``mx.np.fft``: Fourier transforms."""

from __future__ import annotations

from typing import Any

from flowmx.numpy import conversion as _conversion
from flowmx.numpy import table as _table
from flowmx.numpy.functions import finder, make_call
from flowmx.ops.registry.dtypes import DTypeLike

__all__ = ["fftfreq", "rfftfreq"]


def fftfreq(n: int, d: float = 1.0, *, dtype: object = None, device: object = None) -> Any:
    """Return the frequencies of the results of a transform of ``n`` samples with spacing ``d``."""
    return _frequencies("fftfreq", n, d, dtype, device)


def rfftfreq(n: int, d: float = 1.0, *, dtype: object = None, device: object = None) -> Any:
    """Return the frequencies of the results of a real-input transform of ``n`` samples with spacing ``d``."""
    return _frequencies("rfftfreq", n, d, dtype, device)


def _frequencies(name: str, n: int, d: float, dtype: DTypeLike, device: Any) -> Any:
    import numpy

    from flowmx.semantics import default_float

    content = getattr(numpy.fft, name)(n, d)
    return _conversion.wrap(content.astype(_conversion.parse_dtype(dtype) or default_float()), device)


_KINDS = {"calls": (_table.FFT, lambda name: make_call(f"fft.{name}"))}
_find = finder(__name__, _KINDS)


def __getattr__(name: str) -> Any:
    function = globals()[name] = _find(name)
    return function


def __dir__() -> list[str]:
    return sorted({*__all__, *_table.FFT})
