"""Random numbers for arrays of a device: drawn by the host's generator, so that they are the same on every device.

A mask of Dropout takes longer to draw here than on a GPU; what it gives is that a run repeats exactly wherever it is
moved to, and that a test on the CPU says something of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Drawing:
    """A generator of NumPy's whose methods give arrays of another namespace, and take them as parameters.

    Args:
        bits: the generator.
        xp: the namespace, such as cupy.
    """

    def __init__(self, bits: np.random.Generator, xp: Any) -> None:
        self._bits = bits
        self._xp = xp

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._bits, name)

        def draw(*args: Any, **kwargs: Any) -> Any:
            drawn = method(*map(_of_host, args), **{key: _of_host(value) for key, value in kwargs.items()})
            return self._xp.asarray(drawn) if isinstance(drawn, np.ndarray) else drawn

        return draw


def drawing(bits: Any, xp: Any) -> Any:
    """The generator itself for NumPy's arrays, or where it is one of the device's own."""
    return bits if xp is np or not isinstance(bits, np.random.Generator) else Drawing(bits, xp)


def _of_host(value: Any) -> Any:
    return value.get() if hasattr(value, "get") and hasattr(value, "dtype") else value
