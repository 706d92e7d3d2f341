"""CuPy, which is imported when the first GPU is used, and the classification of its errors."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import Any

from flowmx.devices.cuda import driver
from flowmx.errors import DeviceError

EXTRAS = (
    "pip install cupy-cuda13x nvidia-cudnn-cu13 'nvidia-cudnn-frontend<1.29' (for drivers of CUDA 13; cupy-cuda12x and "
    "nvidia-cudnn-cu12 for older ones)"
)
OUT_OF_MEMORY = 2
_FATAL = frozenset({4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999})
"""Errors after which CUDA cannot be used in this process: invalid addresses, assertions, memory errors, ..."""

_warned = False


def load() -> Any:
    """Import and return the module ``cupy``.

    Raises:
        DeviceError: CuPy is not installed, or does not work here.
    """
    driver.prefer_pci_order()
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise DeviceError(f"GPUs need CuPy, which cannot be imported ({error}): {EXTRAS}") from error


def usable_gpus() -> tuple[driver.GPU, ...]:
    """Return the GPUs that ``mx.gpu(i)`` can use; warn once if there are GPUs but no CuPy."""
    global _warned
    gpus = driver.gpus()
    if gpus and importlib.util.find_spec("cupy") is None:
        if not _warned:
            _warned = True
            warnings.warn(f"this machine has GPUs, which cannot be used without CuPy: {EXTRAS}", stacklevel=3)
        return ()
    return gpus


def check(index: int, gpus: tuple[driver.GPU, ...]) -> None:
    """Check that a GPU exists.

    Raises:
        DeviceError: it does not; the message lists the existing ones.
    """
    if not gpus:
        raise DeviceError(
            f"gpu({index}) does not exist: this machine has no GPU, or no driver for it (libcuda); use mx.cpu(), or "
            "mx.sim() for a simulated one; mx.num_gpus() returns the number of GPUs"
        )
    if index >= len(gpus):
        raise DeviceError(
            f"gpu({index}) does not exist; the GPUs that this process can use are:\n  "
            + "\n  ".join(map(str, gpus))
            + "\n(CUDA_VISIBLE_DEVICES chooses among them)"
        )


def errors(cp: Any) -> tuple[type[Exception], ...]:
    """Return the exception types that CuPy raises for CUDA errors."""
    return (cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError)


def is_fatal(error: Exception) -> bool:
    """Return whether the device does not recover from a CUDA error."""
    return getattr(error, "status", None) in _FATAL
