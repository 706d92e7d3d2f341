"""The package ``mxnet`` as an alias of flowmx."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from flowmx.compat import aliases
from flowmx.compat.paths import FUNCTIONS, LOADED

__all__ = ["VERSION", "install_as_mxnet"]

VERSION = "1.9.1"
"""The version of MXNet that flowmx is compatible with."""
_SHORT_NAMES = ("AttrScope", "img", "init", "kv", "mod", "mon", "np", "npx", "sym", "viz")


def install_as_mxnet() -> None:
    """Make ``mxnet`` an alias of flowmx in this process.

    Every module path of MXNet 1.9.1 leads to a module of flowmx. There is only one copy of a module or class, so
    ``mxnet.gluon.Block is flowmx.gluon.Block``. Only the package ``mxnet`` is a separate object, because its
    ``__version__`` is MXNet's. Further calls do nothing.

    Raises:
        ImportError: another ``mxnet`` was already imported in this process.

    Example:
        >>> import flowmx
        >>> flowmx.install_as_mxnet()
        >>> import mxnet
        >>> mxnet.nd is flowmx.nd
        True
    """
    loaded = sys.modules.get("mxnet")
    if isinstance(loaded, _Package):
        return
    # flowmx's distribution `mxnet` has the attribute `__flowmx__` while it is imported.
    if loaded is not None and not hasattr(loaded, "__flowmx__"):
        raise ImportError(
            f"install_as_mxnet: another mxnet was already imported, from {getattr(loaded, '__file__', None)}: call "
            "install_as_mxnet() before it is imported"
        )
    importlib.import_module("multiprocessing.pool")  # packages use it without importing it, because MXNet imports it
    package = _Package("mxnet")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    package.__spec__ = ModuleSpec("mxnet", _Loader(), is_package=True)
    package.__path__ = []
    sys.modules["mxnet"] = package
    _load(package)


def _load(package: ModuleType) -> None:
    """Load the modules that MXNet loads, and fill the namespaces that packages inspect.

    einops looks up ``mxnet.ndarray`` in `sys.modules`, minpy looks up operators in ``vars(mx.nd)``.
    """
    for path in LOADED:
        parent, _, name = f"mxnet.{path}".rpartition(".")
        names = vars(importlib.import_module(parent))
        before = names.get(name)
        importlib.import_module(f"mxnet.{path}")
        aliases.complete(path)
        if before is not None:  # a function of this name (`vision.alexnet`), or the module itself (`nd.op`)
            names[name] = before
    for path in FUNCTIONS:
        aliases.fill(path)
    flowmx = sys.modules["flowmx"]
    names = {name: getattr(flowmx, name) for name in (*vars(flowmx), *_SHORT_NAMES) if not name.startswith("_")}
    vars(package).update({name: value for name, value in names.items() if name not in vars(package)})
    vars(package)["__all__"] = sorted({*vars(flowmx)["__all__"], "error", "executor_manager", "libinfo"})


class _Package(ModuleType):
    """The module ``mxnet``: the names of flowmx and the version of MXNet."""

    __version__ = VERSION

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":
            return sys.modules["flowmx"].__file__
        return getattr(sys.modules["flowmx"], name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(sys.modules["flowmx"])})


class _Finder(MetaPathFinder):
    """Finds the submodules of ``mxnet``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith("mxnet."):
            return ModuleSpec(fullname, _Loader())
        return None


class _Loader(Loader):
    """Loads a module of flowmx under MXNet's name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = "flowmx" + spec.name.removeprefix("mxnet")
        aliases.ensure(name)
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ModuleNotFoundError(
                f"no module named {spec.name!r}: mxnet is an alias of flowmx, which has no {name!r}", name=spec.name
            ) from None
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's spec, which the import system has overwritten.

        Its submodules are registered under MXNet's names too. Otherwise, importing a submodule would set it as an
        attribute here and hide a function of the same name (``vision.alexnet``).
        """
        module.__spec__ = self.spec
        for name, submodule in list(sys.modules.items()):
            if name.startswith(f"{module.__name__}."):
                sys.modules.setdefault(f"mxnet{name.removeprefix('flowmx')}", submodule)
