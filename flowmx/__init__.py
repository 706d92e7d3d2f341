"""flowmx: the MXNet programming model on asyncio (``import flowmx as mx``)."""

from flowmx import autograd, engine
from flowmx import ndarray as nd
from flowmx.devices import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from flowmx.engine import run
from flowmx.errors import MXNetError

__version__ = "0.1.0"

__all__ = [
    "Context", "MXNetError", "autograd", "cpu", "cpu_pinned", "current_context", "engine", "gpu", "nd", "num_gpus",
    "run",
]  # fmt: skip
