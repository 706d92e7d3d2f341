"""flowmx: the MXNet programming model on asyncio (``import flowmx as mx``).

Importing it loads arrays, autograd, the engine and the operators; other modules are loaded when first used. An
import changes nothing in the process; the first operation installs the hooks of `process_hooks`.
"""

from typing import TYPE_CHECKING

from flowmx import _checkout  # noqa: F401  # before the first module of comm/, devices/ or ops/

# isort: split
from flowmx.compat import aliases as _aliases  # noqa: F401  # before the modules that it extends

# isort: split
from flowmx import autograd, base, context, engine, ndarray, random, settings, util
from flowmx import ndarray as nd
from flowmx import random as rnd
from flowmx.compat.paths import PATHS
from flowmx.context import gpu_memory_info
from flowmx.devices import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from flowmx.devices.context import sim
from flowmx.engine import run
from flowmx.errors import MXNetError
from flowmx.lazy import lazy_attributes
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
from flowmx.version import __version__ as __version__

if TYPE_CHECKING:
    from flowmx import (
        amp,
        attribute,
        callback,
        checkpoint,
        contrib,
        executor,
        generation,
        gluon,
        image,
        initializer,
        io,
        kvstore,
        library,
        log,
        lr_scheduler,
        metric,
        model,
        module,
        monitor,
        name,
        numpy,
        numpy_extension,
        onnx,
        operator,
        optimizer,
        profiler,
        progress,
        recordio,
        registry,
        rnn,
        rtc,
        runtime,
        serve,
        symbol,
        test_utils,
        visualization,
    )
    from flowmx import image as img
    from flowmx import initializer as init
    from flowmx import kvstore as kv
    from flowmx import module as mod
    from flowmx import monitor as mon
    from flowmx import numpy as np
    from flowmx import numpy_extension as npx
    from flowmx import symbol as sym
    from flowmx import visualization as viz
    from flowmx.attribute import AttrScope
    from flowmx.compat.package import install_as_mxnet
    from flowmx.observability import dashboard
    from flowmx.observability import flight as flight_recorder
    from flowmx.observability import safety as anomaly
    from flowmx.tools import plan

__all__ = [
    "AttrScope", "Context", "MXNetError", "amp", "anomaly", "attribute", "autograd", "base", "callback", "checkpoint",
    "context", "contrib", "cpu", "cpu_pinned", "current_context", "dashboard", "engine", "executor", "flight_recorder",
    "generation", "gluon", "gpu", "gpu_memory_info", "image", "img", "init", "initializer", "install_as_mxnet", "io",
    "is_np_array", "is_np_shape", "kv", "kvstore", "library", "log", "lr_scheduler", "metric", "mod", "model",
    "module", "mon", "monitor", "name", "nd", "ndarray", "np", "np_array", "np_shape", "npx", "num_gpus", "numpy",
    "numpy_extension", "onnx", "operator", "optimizer", "plan", "profiler", "progress", "random", "recordio",
    "registry", "rnd", "rnn", "rtc", "run", "runtime", "serve", "set_np_shape", "sim", "sym", "symbol",
    "test_utils", "use_np", "use_np_array", "use_np_shape", "util", "visualization", "viz",
]  # fmt: skip

_MODULES = (
    "amp", "attribute", "callback", "checkpoint", "contrib", "executor", "generation", "gluon", "image", "initializer",
    "io", "kvstore", "library", "log", "lr_scheduler", "metric", "model", "module", "monitor", "name", "numpy",
    "numpy_extension", "onnx", "operator", "optimizer", "profiler", "progress", "recordio", "registry", "rnn", "rtc",
    "runtime", "serve", "sklearn", "symbol", "test_utils", "visualization",
    *(path for path in PATHS if "." not in path),
)  # fmt: skip
_SHORT_NAMES = {
    "img": "image", "init": "initializer", "kv": "kvstore", "mod": "module", "mon": "monitor", "np": "numpy",
    "npx": "numpy_extension", "sym": "symbol", "viz": "visualization",
}  # fmt: skip
__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        **{module: f"flowmx.{module}" for module in _MODULES},
        **{short: f"flowmx.{module}" for short, module in _SHORT_NAMES.items()},
        "AttrScope": "flowmx.attribute:AttrScope",
        "anomaly": "flowmx.observability.safety",
        "dashboard": "flowmx.observability.dashboard",
        "flight_recorder": "flowmx.observability.flight",
        "install_as_mxnet": "flowmx.compat.package:install_as_mxnet",
        "plan": "flowmx.tools.plan",
    },
    others={"optim": "optimizer"},
    old_names={"flight": "flight_recorder", "safety": "anomaly"},
)


def load_ipython_extension(shell: object) -> None:
    """Add the magic ``%%engine`` to an IPython shell, and collapse flowmx's frames in its tracebacks."""
    from flowmx import tracebacks
    from flowmx.observability.flight import ipython_magic

    tracebacks.fold_in_ipython(shell)
    ipython_magic.add_to(shell)


def _load_services(config: settings.Settings) -> None:
    """Load the modules that the settings enable. Later changes of settings are applied by the modules themselves."""
    if config.flight_recorder:
        from flowmx.observability import flight  # noqa: F401
    if config.stop_at_nan:
        from flowmx.observability import safety  # noqa: F401
    if config.profiler_autostart:
        from flowmx import profiler  # noqa: F401
    if config.dashboard is not None:
        from flowmx.observability.dashboard.server import start_by_setting

        start_by_setting(config.dashboard)


engine.runtime.engine.settings_listeners.append(_load_services)
