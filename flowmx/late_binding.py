"""Late binding: modules that are looked up when they are used, since they import the module that uses them.

Modules import only from lower layers (see docs/architecture.md). A few methods need a higher layer:
``array.backward()`` needs autograd, and ``symbol.bind()`` needs executors. The table lists all such modules.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

__all__ = ["TARGETS", "late"]

TARGETS = frozenset(
    {
        # Methods of arrays and symbols that belong to higher layers.
        "autograd",
        "compat.tape_symbols",
        "contrib.text.utils",
        "contrib.text.vocab",
        "executor",
        "executor.estimate",
        "numpy.arrays",
        "numpy.symbols",
        "optimizer.footprint",
        "visualization.notebook",
        # Errors install the hooks, which depend on the settings and their errors.
        "process_hooks",
        # Progress bars wait for the arrays that they show.
        "engine",
        "engine.loops",
        # Packages whose modules import the package itself.
        "devices",
        "devices.cuda",
        "devices.sim",
        "ndarray.sparse",
        "numpy",
        "numpy_extension",
        "symbol.sparse",
        # Semantics and operators of NumPy, which most programs never load.
        "numpy.conversion",
        "numpy.gradients",
        "numpy.mxnet_names",
        "numpy.standard",
        # The slow path of a call: gradients of writes, sparse arrays, several devices, files.
        "ndarray.fixing",
        "ndarray.mixed_devices",
        "ndarray.sparse.calls",
        "ndarray.sparse.creation",
        "ndarray.recorded_writes",
        "serialization.formats",
        "serialization.params",
        # Modules that load the kernels of CPUs.
        "ndarray.backward_replay",
        "ops.kernels.native_steps",
        "ops.kernels.recorded_calls",
        # The package `mxnet`, and the attributes that it adds.
        "compat.members",
        "compat.package",
        # Two modules of one package that call each other.
        "numpy.calls",
        "symbol.backends",
        "visualization.svg",
    }
)
"""The modules, without ``flowmx.``."""


@cache
def late(target: str) -> Any:
    """Return a module of flowmx, which is imported at the first call.

    Args:
        target: its name in `TARGETS`.

    Raises:
        KeyError: it is not in the table.
    """
    if target not in TARGETS:
        raise KeyError(f"{target!r} is not in the table of flowmx/late_binding.py: import it, or list it there")
    return importlib.import_module(f"flowmx.{target}")
