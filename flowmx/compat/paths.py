"""The table of MXNet 1.9.1's module paths, and of the flowmx modules that hold what MXNet has there.

A path is written without ``mxnet.`` before it. Where flowmx has a module of that path itself, what stands here holds
the names that it lacks; elsewhere the path is a module of names alone (`aliases`). Names are looked for from left to
right. A path that is not here and that flowmx has not either is missing, which `docs/migration.md` says why.
"""

from __future__ import annotations

__all__ = ["PATHS"]

_AMP = ("flowmx.amp", "flowmx.amp.lists")
_FRONTEND = ("flowmx.compat.frontends", "flowmx.base", "flowmx.compat.common")
_ND = ("flowmx.ndarray", "flowmx.compat.arrays", *_FRONTEND)
_SYM = ("flowmx.symbol", "flowmx.compat.symbols", *_FRONTEND)
_IMAGE = ("flowmx.image", "flowmx.compat.images", "flowmx.compat.common")
_IO = ("flowmx.io", "flowmx.compat.io", "flowmx.compat.common")
_MODULE = ("flowmx.module", "flowmx.compat.modules", "flowmx.compat.common")
_RNN = ("flowmx.rnn", "flowmx.compat.common")
_COMMON = ("flowmx.compat.common",)

PATHS: dict[str, tuple[str, ...]] = {
    "attribute": _COMMON,
    "autograd": ("flowmx.compat.gradients", "flowmx.compat.common"),
    "base": ("flowmx.compat.base",),
    "callback": _COMMON,
    "context": _COMMON,
    "contrib.amp": ("flowmx.amp", "flowmx.compat.mixed"),
    "contrib.amp.amp": ("flowmx.compat.mixed", *_AMP, "flowmx.compat.common"),
    "contrib.amp.lists": ("flowmx.compat.precision",),
    "contrib.amp.lists.symbol_bf16": ("flowmx.compat.precision.bf16",),
    "contrib.amp.lists.symbol_fp16": ("flowmx.compat.precision.fp16",),
    "contrib.amp.loss_scaler": ("flowmx.amp.scaler",),
    "contrib.autograd": ("flowmx.compat.old_autograd",),
    "contrib.io": ("flowmx.compat.io", "flowmx.compat.common"),
    "contrib.ndarray": ("flowmx.ndarray.contrib",),
    "contrib.symbol": ("flowmx.symbol.contrib",),
    "contrib.tensorboard": ("flowmx.compat.tensorboard",),
    "error": ("flowmx.base", "flowmx.compat.base"),
    "executor": _COMMON,
    "executor_manager": ("flowmx.compat.modules", "flowmx.compat.common"),
    "gluon": ("flowmx.compat.blocks",),
    "gluon.block": ("flowmx.compat.blocks", "flowmx.compat.common"),
    "gluon.contrib.estimator.estimator": _COMMON,
    "gluon.contrib.estimator.event_handler": _COMMON,
    "gluon.contrib.nn.basic_layers": _COMMON,
    "gluon.contrib.rnn.rnn_cell": ("flowmx.compat.cells", "flowmx.gluon.rnn", "flowmx.compat.common"),
    "gluon.data.dataloader": (
        "flowmx.gluon.data",
        "flowmx.gluon.data.batchify",
        "flowmx.compat.loading",
        "flowmx.compat.common",
    ),
    "gluon.data.dataset": ("flowmx.compat.loading", "flowmx.compat.common"),
    "gluon.data.vision.datasets": ("flowmx.compat.loading", "flowmx.compat.common"),
    "gluon.data.vision.transforms": _COMMON,
    "gluon.loss": ("flowmx.compat.losses", "flowmx.compat.common"),
    "gluon.model_zoo.model_store": ("flowmx.compat.stores", "flowmx.gluon.utils", "flowmx.compat.base"),
    "gluon.model_zoo.vision.alexnet": _COMMON,
    "gluon.model_zoo.vision.densenet": _COMMON,
    "gluon.model_zoo.vision.inception": _COMMON,
    "gluon.model_zoo.vision.mobilenet": _COMMON,
    "gluon.model_zoo.vision.resnet": _COMMON,
    "gluon.model_zoo.vision.squeezenet": _COMMON,
    "gluon.model_zoo.vision.vgg": _COMMON,
    "gluon.nn.activations": _COMMON,
    "gluon.nn.basic_layers": ("flowmx.gluon.nn", "flowmx.compat.blocks", "flowmx.compat.common"),
    "gluon.nn.conv_layers": ("flowmx.compat.blocks", "flowmx.compat.common"),
    "gluon.parameter": ("flowmx.compat.blocks", "flowmx.gluon.parameter_dict", "flowmx.compat.common"),
    "gluon.rnn.rnn_cell": ("flowmx.compat.cells", "flowmx.compat.common"),
    "gluon.rnn.rnn_layer": ("flowmx.gluon.rnn", "flowmx.compat.cells", "flowmx.compat.common"),
    "gluon.trainer": _COMMON,
    "gluon.utils": ("flowmx.compat.stores", "flowmx.compat.blocks", "flowmx.compat.common"),
    "image": _IMAGE[1:],
    "image.detection": _IMAGE,
    "image.image": _IMAGE,
    "initializer": _COMMON,
    "io": _IO[1:],
    "io.io": _IO,
    "io.utils": _IO,
    "kvstore": ("flowmx.compat.servers", "flowmx.compat.common"),
    "kvstore.base": ("flowmx.kvstore", "flowmx.compat.common"),
    "kvstore.kvstore": ("flowmx.kvstore", "flowmx.compat.common"),
    "kvstore.kvstore_server": ("flowmx.compat.servers", "flowmx.compat.common"),
    "libinfo": ("flowmx.compat.libinfo",),
    "metric": _COMMON,
    "misc": ("flowmx.compat.misc",),
    "model": ("flowmx.compat.models", "flowmx.feedforward", "flowmx.compat.common"),
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
    "ndarray._internal": _ND,
    "ndarray.op": ("flowmx.ndarray.functions",),
    "ndarray.register": _ND,
    "ndarray.utils": _ND,
    "operator": ("flowmx.compat.operators", "flowmx.compat.common"),
    "optimizer": ("flowmx.compat.arrays", "flowmx.compat.common"),
    "optimizer.contrib": _COMMON,
    "optimizer.optimizer": ("flowmx.optimizer", "flowmx.compat.arrays", "flowmx.compat.common"),
    "profiler": _COMMON,
    "random": _COMMON,
    "recordio": _COMMON,
    "rnn": ("flowmx.model", "flowmx.compat.common"),
    "rnn.io": (*_RNN[:1], "flowmx.io", *_RNN[1:]),
    "rnn.rnn": (*_RNN[:1], "flowmx.model", *_RNN[1:]),
    "rnn.rnn_cell": _RNN,
    "symbol": _SYM[1:],
    "symbol._internal": _SYM,
    "symbol.op": ("flowmx.symbol.functions",),
    "symbol.register": _SYM,
    "symbol.symbol": _SYM,
    "test_utils": ("flowmx.compat.checks", "flowmx.compat.common"),
    "util": ("flowmx.compat.base", "flowmx.compat.common"),
}
