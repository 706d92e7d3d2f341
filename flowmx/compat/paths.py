"""The table of MXNet 1.9.1's module paths, and the flowmx modules with their names.

Paths are written without the prefix ``mxnet.``. If flowmx has a module at the path, the modules listed here provide the
names that it lacks; otherwise `aliases` creates a module from the listed ones. Names are looked up from left to right.
Paths that neither the table nor flowmx has are not supported; `docs/migration.md` gives the reasons.
"""

from __future__ import annotations

__all__ = ["FUNCTIONS", "LOADED", "PATHS", "WITH_MODULES"]

_AMP = ("flowmx.amp", "flowmx.amp.lists")
_FRONTEND = ("flowmx.compat.frontends", "flowmx.base", "flowmx.compat.shared_names")
_ND = ("flowmx.ndarray", "flowmx.compat.ndarray_helpers", *_FRONTEND)
_SYM = ("flowmx.symbol", "flowmx.compat.symbol_helpers", *_FRONTEND)
_IMAGE = ("flowmx.image", "flowmx.compat.image_helpers", "flowmx.compat.shared_names")
_IO = ("flowmx.io", "flowmx.compat.io_helpers", "flowmx.compat.shared_names")
_MODULE = ("flowmx.module", "flowmx.compat.executor_groups", "flowmx.compat.shared_names")
_RNN = ("flowmx.rnn", "flowmx.compat.shared_names")
_COMMON = ("flowmx.compat.shared_names",)
_NP, _NPX = ("flowmx.numpy",), ("flowmx.numpy_extension",)
_NP_LINALG, _NP_RANDOM = ("flowmx.numpy.linalg",), ("flowmx.numpy.random",)

PATHS: dict[str, tuple[str, ...]] = {
    "attribute": _COMMON,
    "autograd": _COMMON,
    "base": ("flowmx.compat.base_helpers",),
    "callback": _COMMON,
    "context": _COMMON,
    "contrib.amp": ("flowmx.amp", "flowmx.compat.amp_state"),
    "contrib.amp.amp": ("flowmx.compat.amp_state", *_AMP, "flowmx.compat.shared_names"),
    "contrib.amp.lists": ("flowmx.compat.precision",),
    "contrib.amp.lists.symbol_bf16": ("flowmx.compat.precision.bf16",),
    "contrib.amp.lists.symbol_fp16": ("flowmx.compat.precision.fp16",),
    "contrib.amp.loss_scaler": ("flowmx.amp.scaler",),
    "contrib.autograd": ("flowmx.compat.old_autograd",),
    "contrib.io": ("flowmx.compat.io_helpers", "flowmx.compat.shared_names"),
    "contrib.ndarray": ("flowmx.ndarray.contrib",),
    "contrib.symbol": ("flowmx.symbol.contrib",),
    "contrib.tensorboard": ("flowmx.compat.tensorboard",),
    "error": ("flowmx.base", "flowmx.compat.base_helpers"),
    "executor": _COMMON,
    "executor_manager": ("flowmx.compat.executor_groups", "flowmx.compat.shared_names"),
    "gluon": ("flowmx.compat.block_helpers",),
    "gluon.block": ("flowmx.compat.block_helpers", "flowmx.compat.shared_names"),
    "gluon.contrib.estimator.estimator": _COMMON,
    "gluon.contrib.estimator.event_handler": _COMMON,
    "gluon.contrib.nn.basic_layers": _COMMON,
    "gluon.contrib.rnn.rnn_cell": ("flowmx.compat.rnn_cells", "flowmx.gluon.rnn", "flowmx.compat.shared_names"),
    "gluon.data.dataloader": (
        "flowmx.gluon.data",
        "flowmx.gluon.data.batchify",
        "flowmx.compat.dataloader_parts",
        "flowmx.compat.shared_names",
    ),
    "gluon.data.dataset": ("flowmx.compat.dataloader_parts", "flowmx.compat.shared_names"),
    "gluon.data.vision.datasets": ("flowmx.compat.dataloader_parts", "flowmx.compat.shared_names"),
    "gluon.data.vision.transforms": _COMMON,
    "gluon.loss": ("flowmx.compat.loss_helpers", "flowmx.compat.shared_names"),
    "gluon.model_zoo.model_store": ("flowmx.compat.model_store", "flowmx.gluon.utils", "flowmx.compat.base_helpers"),
    "gluon.model_zoo.vision.alexnet": _COMMON,
    "gluon.model_zoo.vision.densenet": _COMMON,
    "gluon.model_zoo.vision.inception": _COMMON,
    "gluon.model_zoo.vision.mobilenet": _COMMON,
    "gluon.model_zoo.vision.resnet": _COMMON,
    "gluon.model_zoo.vision.squeezenet": _COMMON,
    "gluon.model_zoo.vision.vgg": _COMMON,
    "gluon.nn.activations": _COMMON,
    "gluon.nn.basic_layers": ("flowmx.gluon.nn", "flowmx.compat.block_helpers", "flowmx.compat.shared_names"),
    "gluon.nn.conv_layers": ("flowmx.compat.block_helpers", "flowmx.compat.shared_names"),
    "gluon.parameter": ("flowmx.compat.block_helpers", "flowmx.gluon.parameter_dict", "flowmx.compat.shared_names"),
    "gluon.rnn.rnn_cell": ("flowmx.compat.rnn_cells", "flowmx.compat.shared_names"),
    "gluon.rnn.rnn_layer": ("flowmx.gluon.rnn", "flowmx.compat.rnn_cells", "flowmx.compat.shared_names"),
    "gluon.trainer": _COMMON,
    "gluon.utils": ("flowmx.compat.model_store", "flowmx.compat.block_helpers", "flowmx.compat.shared_names"),
    "image": _IMAGE[1:],
    "image.detection": _IMAGE,
    "image.image": _IMAGE,
    "initializer": _COMMON,
    "io": _IO[1:],
    "io.io": _IO,
    "io.utils": _IO,
    "kvstore": ("flowmx.compat.kvstore_server", "flowmx.compat.shared_names"),
    "kvstore.base": ("flowmx.kvstore", "flowmx.compat.shared_names"),
    "kvstore.kvstore": ("flowmx.kvstore", "flowmx.compat.shared_names"),
    "kvstore.kvstore_server": ("flowmx.compat.kvstore_server", "flowmx.compat.shared_names"),
    "libinfo": ("flowmx.compat.libinfo",),
    "metric": _COMMON,
    "misc": ("flowmx.compat.misc",),
    "model": ("flowmx.compat.model_helpers", "flowmx.feedforward", "flowmx.compat.shared_names"),
    "module": _COMMON,
    "module.base_module": _MODULE,
    "module.bucketing_module": _MODULE,
    "module.executor_group": _MODULE,
    "module.module": _MODULE,
    "module.sequential_module": _MODULE,
    "monitor": _COMMON,
    "name": _COMMON,
    "ndarray": _ND[1:],
    "ndarray.ndarray": _ND,
    "ndarray._internal": ("flowmx.ndarray.functions", *_ND),
    "ndarray.gen__internal": ("flowmx.ndarray.functions",),
    "ndarray.gen_contrib": ("flowmx.ndarray.contrib",),
    "ndarray.gen_image": ("flowmx.ndarray.image",),
    "ndarray.gen_linalg": ("flowmx.ndarray.linalg",),
    "ndarray.gen_op": ("flowmx.ndarray.functions",),
    "ndarray.gen_sparse": ("flowmx.ndarray.sparse",),
    "ndarray.numpy": _NP,
    "ndarray.numpy._op": _NP,
    "ndarray.numpy._register": _NP,
    "ndarray.numpy.linalg": _NP_LINALG,
    "ndarray.numpy.random": _NP_RANDOM,
    "ndarray.numpy_extension": _NPX,
    "ndarray.numpy_extension._op": _NPX,
    "ndarray.numpy_extension._register": _NPX,
    "ndarray.numpy_extension.image": ("flowmx.numpy_extension.image",),
    "ndarray.numpy_extension.random": ("flowmx.numpy_extension.random",),
    "ndarray.op": ("flowmx.ndarray.functions",),
    "ndarray.register": _ND,
    "ndarray.utils": _ND,
    "numpy._op": _NP,
    "numpy._register": _NP,
    "numpy.arrayprint": _NP,
    "numpy.fallback": _NP,
    "numpy.fallback_linalg": _NP_LINALG,
    "numpy.function_base": _NP,
    "numpy.io": _NP,
    "numpy.multiarray": _NP,
    "numpy.stride_tricks": _NP,
    "numpy.utils": _NP,
    "numpy_extension._op": _NPX,
    "numpy_extension._register": _NPX,
    "numpy_extension.utils": _NPX,
    "operator": ("flowmx.compat.python_operators", "flowmx.compat.shared_names"),
    "optimizer": ("flowmx.compat.ndarray_helpers", "flowmx.compat.shared_names"),
    "optimizer.contrib": _COMMON,
    "optimizer.optimizer": ("flowmx.optimizer", "flowmx.compat.ndarray_helpers", "flowmx.compat.shared_names"),
    "profiler": _COMMON,
    "random": _COMMON,
    "recordio": _COMMON,
    "rnn": ("flowmx.model", "flowmx.compat.shared_names"),
    "rnn.io": (*_RNN[:1], "flowmx.io", *_RNN[1:]),
    "rnn.rnn": (*_RNN[:1], "flowmx.model", *_RNN[1:]),
    "rnn.rnn_cell": _RNN,
    "symbol": _SYM[1:],
    "symbol._internal": ("flowmx.symbol.functions", *_SYM),
    "symbol.gen__internal": ("flowmx.symbol.functions",),
    "symbol.gen_contrib": ("flowmx.symbol.contrib",),
    "symbol.gen_image": ("flowmx.symbol.image",),
    "symbol.gen_linalg": ("flowmx.symbol.linalg",),
    "symbol.gen_op": ("flowmx.symbol.functions",),
    "symbol.gen_sparse": ("flowmx.symbol.sparse",),
    "symbol.op": ("flowmx.symbol.functions",),
    "symbol.register": _SYM,
    "symbol.symbol": _SYM,
    "test_utils": ("flowmx.compat.test_helpers", "flowmx.compat.shared_names"),
    "util": ("flowmx.compat.base_helpers", "flowmx.compat.shared_names"),
}

_FLOWMX_PATHS = """
    contrib contrib.onnx contrib.quantization contrib.text contrib.text.embedding contrib.text.utils
    contrib.text.vocab engine gluon.contrib gluon.contrib.cnn gluon.contrib.cnn.conv_layers gluon.contrib.data
    gluon.contrib.data.sampler gluon.contrib.data.text gluon.contrib.estimator
    gluon.contrib.estimator.batch_processor gluon.contrib.estimator.utils gluon.contrib.nn gluon.contrib.rnn
    gluon.contrib.rnn.conv_rnn_cell gluon.data gluon.data.sampler gluon.data.vision gluon.model_zoo
    gluon.model_zoo.vision gluon.nn gluon.rnn library log lr_scheduler module.python_module ndarray.contrib
    ndarray.image ndarray.linalg ndarray.random ndarray.sparse numpy numpy.linalg numpy.random numpy_extension
    numpy_extension.image numpy_extension.random onnx registry rtc runtime symbol.contrib symbol.image
    symbol.linalg symbol.random symbol.sparse visualization
"""
LOADED = sorted(
    {*_FLOWMX_PATHS.split(), *PATHS} - {path for path in PATHS if path == "misc" or path.startswith("contrib.amp")}
)
"""The modules that ``import mxnet`` loads in MXNet."""
FUNCTIONS = (
    *(
        f"{package}{name}"
        for package in ("ndarray", "symbol")
        for name in ("", ".op", "._internal", ".contrib", ".image", ".linalg", ".random", ".sparse")
    ),
    "numpy", "numpy.linalg", "numpy.random", "numpy_extension", "numpy_extension.image", "numpy_extension.random",
)  # fmt: skip
"""The modules of functions that packages inspect with ``vars``."""
WITH_MODULES = frozenset(
    [
        "contrib",
        "gluon",
        "gluon.data",
        "gluon.data.vision",
        "gluon.nn",
        "gluon.rnn",
        "image",
        "io",
        "kvstore",
        "module",
        "rnn",
    ]
)
"""The packages whose submodules a star import includes."""
