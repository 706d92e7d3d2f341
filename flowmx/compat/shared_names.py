"""Names that MXNet's modules import from each other, and that packages import from any of these modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowmx import (
    autograd,
    context,
    executor,
    initializer,
    io,
    kvstore,
    lr_scheduler,
    metric,
    name,
    ndarray,
    optimizer,
    profiler,
    random,
    recordio,
    symbol,
    util,
)  # fmt: skip
from flowmx import initializer as init
from flowmx import ndarray as nd
from flowmx import optimizer as opt
from flowmx import symbol as sym
from flowmx.attribute import AttrScope
from flowmx.base import MXNetError, NotImplementedForSymbol, mx_real_t, numeric_types, string_types
from flowmx.compat.base_helpers import _as_list, _Null, c_array, c_str, check_call, classproperty, data_dir, py_str
from flowmx.devices import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from flowmx.executor import Executor
from flowmx.initializer import InitDesc, Initializer, Uniform
from flowmx.io import DataBatch, DataDesc, DataIter
from flowmx.lazy import lazy_attributes
from flowmx.metric import EvalMetric
from flowmx.name import NameManager
from flowmx.name import Prefix as NamePrefix
from flowmx.ndarray import NDArray, array
from flowmx.optimizer import Optimizer
from flowmx.symbol import Symbol
from flowmx.util import is_np_array, is_np_shape, np_array, np_shape, set_np_shape, use_np

__all__ = [
    "AttrScope", "Context", "DataBatch", "DataDesc", "DataIter", "EvalMetric", "Executor", "InitDesc", "Initializer",
    "MXNetError", "NDArray", "NameManager", "NamePrefix", "NotImplementedForSymbol", "Optimizer", "Symbol", "Uniform",
    "_Null", "_as_list", "array", "autograd", "c_array", "c_str", "check_call", "classproperty", "context", "cpu",
    "cpu_pinned", "current_context", "data_dir", "executor", "gpu", "init", "initializer", "io", "is_np_array",
    "is_np_shape", "kvstore", "lr_scheduler", "metric", "mx_real_t", "name", "nd", "ndarray", "np_array", "np_shape",
    "num_gpus", "numeric_types", "opt", "optimizer", "profiler", "py_str", "random", "recordio", "set_np_shape",
    "string_types", "sym", "symbol", "use_np", "util",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            **{cls: f"flowmx.gluon:{cls}" for cls in ("Block", "HybridBlock", "SymbolBlock", "Parameter")},
            **{cls: f"flowmx.gluon:{cls}" for cls in ("ParameterDict", "Trainer", "Constant")},
            **{
                module: f"flowmx.gluon.{module}"
                for module in ("block", "loss", "nn", "utils", "parameter", "rnn", "trainer")
            },
            **{cls: f"flowmx.gluon.nn:{cls}" for cls in ("HybridSequential", "Sequential", "Dense", "BatchNorm")},
            "DeferredInitializationError": "flowmx.gluon:DeferredInitializationError",
            "HookHandle": "flowmx.gluon.utils:HookHandle",
            "tensor_types": "flowmx.compat.block_helpers:tensor_types",
            "_indent": "flowmx.compat.block_helpers:_indent",
            "check_sha1": "flowmx.gluon.utils:check_sha1",
            "download": "flowmx.gluon.utils:download",
            "replace_file": "flowmx.gluon.utils:replace_file",
            "gluon": "flowmx.gluon",
            "image": "flowmx.image",
            "model": "flowmx.model",
            "base": "flowmx.base",
        },
    )
