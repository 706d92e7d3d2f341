"""Kernels for the CPU by oneDNN (``onednn-cpu-gomp``). Importing this package registers them; the first kernel that
runs loads the library. Without it every kernel runs its operator's forward.
"""  # noqa: D205

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
