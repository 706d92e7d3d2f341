"""Kernels for the CPU by oneDNN (``onednn-cpu-gomp``): importing this registers them; the library itself is
loaded when the first of them runs. Without it every kernel takes its operator's plain forward.
"""  # noqa: D205

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
