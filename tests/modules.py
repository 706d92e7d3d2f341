"""The surface of MXNet 1.9.1's modules and classes (tests/fixtures/mxnet_modules.json), and the reasons of omissions.

python -m tests.modules        lists the missing names without a reason
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "fixtures" / "mxnet_modules.json"

NAMES: dict[str, list[str]] = {key: text.split() for key, text in json.loads(FILE.read_text()).items()}
"""By module (``""`` is `mx` itself) its functions and classes, and by ``module:Class`` what a class defines."""

_REASONS: dict[str, str] = {
    "mx.np and mx.npx, NumPy's functions under NumPy's semantics: another interface of the size of mx.nd": """
        .np_symbol .numpy_dispatch_protocol .numpy_op_fallback .numpy_op_signature
        util.np_ufunc_legal_option util.wrap_np_binary_func util.wrap_np_unary_func
    """,
    "access to MXNet's shared library, which flowmx does not have": """
        .api .tvmop .ndarray_doc .symbol_doc io.MXDataIter:debug_skip_load
    """,
    "Lua's Torch, which MXNet itself no longer builds with": ".th .torch",
    "asks CUDA, by MXNet's library": "util.get_cuda_compute_capability",
    "progress shown by Bokeh in notebooks: mx.callback and an estimator's handlers do without": ".notebook notebook",
    "downloads what only MXNet's own tests take": "test_utils.download_model test_utils.get_mnist_pkl",
    "asks about MXNet's own build": "test_utils.get_im2rec_path",
    "refuses, in MXNet too": "optimizer.Optimizer:set_lr_scale",
    "of the inside of MXNet's class": """
        gluon.utils.HookHandle:attach metric.PCC:global_sum_metric metric.PCC:sum_metric
        metric.PearsonCorrelation:reset_micro metric.PearsonCorrelation:update_cov
        metric.PearsonCorrelation:update_variance runtime.Features:instance
    """,
    "there, as an attribute of each object": """
        executor.Executor:arg_dict executor.Executor:aux_dict executor.Executor:grad_dict context.Context:device_type
        gluon.contrib.estimator.Estimator:logger
    """,
}

EXCLUDED: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Modules, their names (``module.name``, of `mx` itself ``.name``) and attributes of classes, each with its reason."""

COMING: set[str] = {
    ".contrib", ".mon", ".monitor", ".onnx", ".rnn", "contrib", "contrib.amp", "contrib.io", "contrib.onnx",
    "contrib.tensorboard", "contrib.text", "contrib.text.embedding", "contrib.text.utils", "contrib.text.vocab",
    "executor.Executor:set_monitor_callback", "gluon.Block:register_op_hook", "gluon.HybridBlock:register_op_hook",
    "gluon.contrib.data", "gluon.data", "gluon.data.vision", "gluon.data.vision.datasets",
    "gluon.data.vision.transforms", "model.FeedForward", "module.BaseModule:get_states", "module.BaseModule:set_states",
    "module.BucketingModule", "module.BucketingModule:load_dict", "module.PythonLossModule", "module.PythonModule",
    "module.SequentialModule", "monitor", "rnn",
}  # fmt: skip
"""Paths that are planned, but not there yet."""


def find(path: str) -> Any:
    """Look up a dotted path in flowmx, or None if it is missing."""
    target: Any = import_module("flowmx")
    for name in filter(None, path.split(".")):
        target = getattr(target, name, None)
    return target


def missing() -> Iterator[str]:
    """Iterate over the names that MXNet has and flowmx has not, whatever the reason."""
    for key, names in NAMES.items():
        module, _, cls = key.partition(":")
        owner = find(f"{module}.{cls}" if cls else module)
        if owner is None:
            if not cls:
                yield module
            continue
        for name in names:
            if not hasattr(owner, name):
                yield f"{module}.{cls}:{name}" if cls else f"{module}.{name}"


def _covers(entries: set[str], name: str) -> bool:
    return name in entries or name.rpartition(".")[0] in entries


def unexplained(missing_names: Iterator[str]) -> list[str]:
    """Those of some missing names that have no reason."""
    return [name for name in missing_names if not _covers({*EXCLUDED, *COMING}, name)]


if __name__ == "__main__":
    print("\n".join(unexplained(missing())))
