"""Faster forwards for particular devices, beside the plain ones of the operators, which stay their reference.

Each package here registers its own with :func:`flowmx.ops.registry.kernel` when it is imported. Importing it
loads no library: that waits for the first call, and where the library is missing the plain forward runs.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def like_channels_last(device_type: str) -> bool:
    """Whether a device's kernels are faster with the channels beside each other in memory."""
    from flowmx.ops.kernels.onednn.library import library

    return device_type == "cpu" and library() is not None
