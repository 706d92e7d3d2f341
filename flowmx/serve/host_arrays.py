"""Inputs of predictors as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from flowmx.ndarray import NDArray

__all__ = ["ModelInput", "on_host"]

ModelInput = npt.ArrayLike | NDArray | Mapping[str, npt.ArrayLike | NDArray]
"""An input of a predictor: one array, or several by name."""


async def on_host(x: Any) -> Any:
    """Return the input with its NDArrays awaited and converted to NumPy arrays."""
    if isinstance(x, NDArray):
        await x
        return x.asnumpy()
    if isinstance(x, Mapping):
        return {name: await on_host(value) for name, value in x.items()}
    return x
