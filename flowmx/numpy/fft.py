"""``mx.np.fft``: Fourier transforms, by the table of ``mx.np``."""

from __future__ import annotations

from typing import Any

from flowmx.numpy import conversion as _conversion
from flowmx.numpy import table as _table
from flowmx.numpy.functions import call_of, finder

__all__ = ["fftfreq", "rfftfreq"]


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of a transform's results, for ``n`` points at the distance ``d``."""
    return _frequencies("fftfreq", n, d, dtype, device)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of a transform of real numbers, for ``n`` points at the distance ``d``."""
    return _frequencies("rfftfreq", n, d, dtype, device)


def _frequencies(name: str, n: int, d: float, dtype: Any, device: Any) -> Any:
    import numpy

    from flowmx.semantics import default_float

    content = getattr(numpy.fft, name)(n, d)
    return _conversion.wrap(content.astype(_conversion.given_dtype(dtype) or default_float()), device)


_KINDS = {"calls": (_table.FFT, lambda name: call_of(f"fft.{name}"))}
_find = finder(__name__, _KINDS)


def __getattr__(name: str) -> Any:
    found = globals()[name] = _find(name)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *_table.FFT})
