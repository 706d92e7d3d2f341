"""The types of arrays and element types of devices."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""An array of a device, typed as NumPy's: CuPy's has the same methods."""
DType: TypeAlias = np.dtype[Any]
"""The dtype of an array."""
