"""CuPy, imported when the first GPU is used, and the classification of its errors."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import Any

from flowmx.devices.cuda import driver
from flowmx.errors import DeviceError

EXTRAS = "pip install flowmx[cuda13] (for drivers of CUDA 13; flowmx[cuda12] for older ones)"
OUT_OF_MEMORY = 2
_DEADLY = frozenset({4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999})
"""Errors after which CUDA answers nothing more in this process: bad addresses, assertions, broken memory, ..."""

_warned = False


def load() -> Any:
    """The module ``cupy``.

    Raises:
        DeviceError: CuPy is not installed, or does not work here.
    """
    driver.prefer_pci_order()
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise DeviceError(f"GPUs need CuPy, which can not be imported ({error}): {EXTRAS}") from error


def usable() -> tuple[driver.GPU, ...]:
    """The GPUs that ``mx.gpu(i)`` can be; warns once where there are some and CuPy is missing."""
    global _warned
    found = driver.gpus()
    if found and importlib.util.find_spec("cupy") is None:
        if not _warned:
            _warned = True
            warnings.warn(f"there are GPUs here that can not be used without CuPy: {EXTRAS}", stacklevel=3)
        return ()
    return found


def check(index: int, found: tuple[driver.GPU, ...]) -> None:
    """Check that there is a GPU of a number.

    Raises:
        DeviceError: there is none; the message lists those that there are.
    """
    if not found:
        raise DeviceError(
            f"gpu({index}) was asked for, but there is no GPU here, or no driver for it (libcuda): use mx.cpu(), or "
            "mx.sim() for a simulated one; mx.num_gpus() tells how many there are"
        )
    if index >= len(found):
        raise DeviceError(
            f"gpu({index}) was asked for, but the GPUs that this process sees are:\n  "
            + "\n  ".join(map(str, found))
            + "\n(CUDA_VISIBLE_DEVICES chooses among them)"
        )


def errors(cp: Any) -> tuple[type[Exception], ...]:
    """The exception types that CuPy raises for errors of CUDA."""
    return (cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError)


def is_deadly(error: Exception) -> bool:
    """Tell whether an error of CUDA is one from which the device does not recover."""
    return getattr(error, "status", None) in _DEADLY
