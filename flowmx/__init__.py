"""flowmx: the MXNet programming model on asyncio (``import flowmx as mx``)."""

from typing import TYPE_CHECKING, Any

from flowmx import _checkout  # noqa: F401  # before the first module of comm/, devices/ or ops/

# isort: split
from flowmx.compat import aliases as _aliases  # noqa: F401  # before the first module that it adds to

# isort: split
from flowmx import (
    attribute,
    autograd,
    base,
    callback,
    checkpoint,
    context,
    engine,
    executor,
    gluon,
    initializer,
    io,
    kvstore,
    log,
    lr_scheduler,
    metric,
    model,
    module,
    monitor,
    name,
    ndarray,
    operator,
    optimizer,
    profiler,
    random,
    registry,
    runtime,
    settings,
    symbol,
    util,
    visualization,
)
from flowmx import initializer as init
from flowmx import kvstore as kv
from flowmx import module as mod
from flowmx import monitor as mon
from flowmx import ndarray as nd
from flowmx import random as rnd
from flowmx import symbol as sym
from flowmx import visualization as viz
from flowmx.attribute import AttrScope
from flowmx.compat import members as _members  # noqa: F401
from flowmx.compat.package import install_as_mxnet
from flowmx.compat.paths import PATHS
from flowmx.context import gpu_memory_info
from flowmx.devices import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from flowmx.devices.context import sim
from flowmx.engine import run
from flowmx.errors import MXNetError
from flowmx.lazy import later
from flowmx.observability import flight, safety
from flowmx.util import (
    is_np_array,
    is_np_shape,
    np_array,
    np_shape,
    set_np_shape,
    use_np,
    use_np_array,
    use_np_shape,
)

if TYPE_CHECKING:
    from flowmx import (
        amp,
        contrib,
        image,
        library,
        numpy,
        numpy_extension,
        onnx,
        recordio,
        rnn,
        rtc,
        serve,
        sklearn,
        test_utils,
    )
    from flowmx import image as img
    from flowmx import numpy as np
    from flowmx import numpy_extension as npx
    from flowmx.observability import dashboard
    from flowmx.tools import plan

__version__ = "0.1.0"

__all__ = [
    "AttrScope", "Context", "MXNetError", "amp", "attribute", "autograd", "base", "callback", "checkpoint",
    "context", "contrib", "cpu", "cpu_pinned", "current_context", "dashboard", "engine", "executor", "flight",
    "gluon", "gpu", "gpu_memory_info", "image", "img", "init", "initializer", "install_as_mxnet", "io",
    "is_np_array", "is_np_shape", "kv", "kvstore", "library", "log", "lr_scheduler", "metric", "mod", "model",
    "module", "mon", "monitor", "name", "nd", "ndarray", "np", "np_array", "np_shape", "npx", "num_gpus", "numpy",
    "numpy_extension", "onnx", "operator", "optimizer", "plan", "profiler", "random", "recordio", "registry", "rnd",
    "rnn", "rtc", "run", "runtime", "safety", "serve", "set_np_shape", "sim", "sklearn", "sym", "symbol",
    "test_utils", "use_np", "use_np_array", "use_np_shape", "util", "visualization", "viz",
]  # fmt: skip

_LATER = {
    *(
        "amp",
        "contrib",
        "image",
        "library",
        "numpy",
        "numpy_extension",
        "onnx",
        "recordio",
        "rnn",
        "rtc",
        "serve",
        "sklearn",
        "test_utils",
    ),
    *(path for path in PATHS if "." not in path),
}
__getattr__, __dir__ = later(
    __name__,
    {
        "dashboard": "flowmx.observability.dashboard",
        "img": "flowmx.image",
        "np": "flowmx.numpy",
        "npx": "flowmx.numpy_extension",
        "plan": "flowmx.tools.plan",
        **{each: f"flowmx.{each}" for each in _LATER},
    },
    others={"optim": "optimizer"},
)


def load_ipython_extension(shell: Any) -> None:
    """Give a shell the magic ``%%engine``, and fold flowmx's frames in its tracebacks, as importing flowmx does too."""
    from flowmx import tracebacks
    from flowmx.observability.flight import cell

    tracebacks.fold_in_ipython(shell)
    cell.add_to(shell)


def _follow(config: settings.Settings) -> None:
    """Serve the dashboard where the settings say so; what it needs is imported only then."""
    if config.dashboard is not None:
        from flowmx.observability.dashboard.running import start_by_setting

        start_by_setting(config.dashboard)


engine.runtime.engine.followers.append(_follow)
