"""flowmx: the MXNet programming model on asyncio (``import flowmx as mx``)."""

from flowmx import attribute, autograd, engine, executor, name, ndarray, symbol
from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.attribute import AttrScope
from flowmx.devices import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from flowmx.engine import run
from flowmx.errors import MXNetError

__version__ = "0.1.0"

__all__ = [
    "AttrScope", "Context", "MXNetError", "attribute", "autograd", "cpu", "cpu_pinned", "current_context", "engine",
    "executor", "gpu", "name", "nd", "ndarray", "num_gpus", "run", "sym", "symbol",
]  # fmt: skip
