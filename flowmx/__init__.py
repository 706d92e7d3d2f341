"""flowmx: the MXNet programming model on asyncio (``import flowmx as mx``)."""

from flowmx import (
    attribute,
    autograd,
    callback,
    engine,
    executor,
    gluon,
    image,
    initializer,
    io,
    kvstore,
    lr_scheduler,
    metric,
    model,
    module,
    name,
    ndarray,
    operator,
    optimizer,
    random,
    recordio,
    registry,
    symbol,
    visualization,
)
from flowmx import image as img
from flowmx import initializer as init
from flowmx import kvstore as kv
from flowmx import module as mod
from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx import visualization as viz
from flowmx.attribute import AttrScope
from flowmx.devices import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from flowmx.engine import run
from flowmx.errors import MXNetError

__version__ = "0.1.0"

__all__ = [
    "AttrScope", "Context", "MXNetError", "attribute", "autograd", "callback", "cpu", "cpu_pinned",
    "current_context", "engine", "executor", "gluon", "gpu", "image", "img", "init", "initializer", "io", "kv",
    "kvstore", "lr_scheduler", "metric", "mod", "model", "module", "name", "nd", "ndarray", "num_gpus", "operator",
    "optimizer", "random", "recordio", "registry", "run", "sym", "symbol", "visualization", "viz",
]  # fmt: skip
