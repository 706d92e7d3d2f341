"""List the GPUs of this machine with the driver's API: without CuPy, and without a context, which takes hundreds of MB.

GPUs are numbered by their PCI addresses, so that a number means the same card in every program of a machine. CUDA's
variables ``CUDA_DEVICE_ORDER`` and ``CUDA_VISIBLE_DEVICES`` override this.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any, NamedTuple

_NAMES = ("libcuda.so.1",) if sys.platform != "win32" else ("nvcuda.dll",)
_TEXT = 128


class GPU(NamedTuple):
    """A GPU that this process may use.

    Attributes:
        number: its number in ``mx.gpu(number)``.
        name: its model.
        nbytes: the size of its memory in bytes.
        pci: its PCI address.
    """

    number: int
    name: str
    nbytes: int
    pci: str

    def __str__(self) -> str:
        return f"gpu({self.number}): {self.name}, {self.nbytes / 2**30:.1f} GiB, PCI {self.pci}"


def prefer_pci_order() -> None:
    """Number GPUs by their PCI addresses unless the user has set a different order; call it before CUDA starts."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


@functools.cache
def gpus() -> tuple[GPU, ...]:
    """Return the GPUs that this process may use; empty without a driver."""
    prefer_pci_order()
    library = _load()
    return () if library is None else list_gpus(library)


def _load() -> Any:
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def list_gpus(library: Any) -> tuple[GPU, ...]:
    """Return the GPUs that a driver library lists; empty if it cannot start.

    Args:
        library: the loaded ``libcuda``.
    """
    count = ctypes.c_int()
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_describe(library, index) for index in range(count.value))


def _describe(library: Any, index: int) -> GPU:
    device, nbytes = ctypes.c_int(), ctypes.c_size_t()
    name, pci = ctypes.create_string_buffer(_TEXT), ctypes.create_string_buffer(_TEXT)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, _TEXT, device)
    library.cuDeviceGetPCIBusId(pci, _TEXT, device)
    library.cuDeviceTotalMem_v2(ctypes.byref(nbytes), device)
    return GPU(index, name.value.decode(), nbytes.value, pci.value.decode())
