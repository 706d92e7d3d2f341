"""The GPUs of this machine, from the driver's API: without CuPy, and without a context, which takes hundreds of MB.

GPUs are numbered in the order of their PCI addresses, so that a number means the same card in every program of a
machine; ``CUDA_DEVICE_ORDER`` and ``CUDA_VISIBLE_DEVICES`` are CUDA's own, and what the user has set there counts.
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
    """A card that this process may use.

    Attributes:
        number: as in ``mx.gpu(number)``.
        name: the model.
        nbytes: of its memory.
        pci: the address of its slot.
    """

    number: int
    name: str
    nbytes: int
    pci: str

    def __str__(self) -> str:
        return f"gpu({self.number}): {self.name}, {self.nbytes / 2**30:.1f} GiB, PCI {self.pci}"


def prefer_pci_order() -> None:
    """Number GPUs by their PCI addresses, unless the user has set another order; to be called before CUDA starts."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


@functools.cache
def gpus() -> tuple[GPU, ...]:
    """The GPUs that this process may use; none where there is no driver."""
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
    """The GPUs that a driver library lists; none where it can not start.

    Args:
        library: ``libcuda``, loaded.
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
