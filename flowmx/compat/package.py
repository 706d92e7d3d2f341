"""The package ``mxnet``, which is flowmx under its other name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["VERSION", "install_as_mxnet"]

VERSION = "1.9.1"
"""The version of MXNet that flowmx stands in for."""


def install_as_mxnet() -> None:
    """Have ``import mxnet`` import flowmx, from here on, in this process.

    Every module path of MXNet 1.9.1 leads to flowmx's own module: there is one copy of each module and of each class,
    so ``mxnet.gluon.Block is flowmx.gluon.Block``. Only the package ``mxnet`` itself is an object of its own, since its
    ``__version__`` is MXNet's. Calling it again does nothing.

    Raises:
        ImportError: the real MXNet has been imported in this process already.

    Example:
        >>> import flowmx
        >>> flowmx.install_as_mxnet()
        >>> import mxnet
        >>> mxnet.nd is flowmx.nd
        True
    """
    known = sys.modules.get("mxnet")
    if isinstance(known, _Package):
        return
    if known is not None and not hasattr(
        known, "__flowmx__"
    ):  # which the distribution `mxnet` has while it is imported
        raise ImportError(
            f"install_as_mxnet: another mxnet was imported already, from {getattr(known, '__file__', None)}: call "
            "install_as_mxnet() before whatever imports it"
        )
    importlib.import_module("multiprocessing.pool")  # packages use it without importing it, since MXNet does
    package = _Package("mxnet")
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    package.__spec__ = ModuleSpec("mxnet", _Loader(), is_package=True)
    package.__path__ = []
    sys.modules["mxnet"] = package


class _Package(ModuleType):
    """The module ``mxnet``: flowmx's names, and MXNet's version."""

    __version__ = VERSION

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":
            return sys.modules["flowmx"].__file__
        return getattr(sys.modules["flowmx"], name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(sys.modules["flowmx"])})


class _Finder(MetaPathFinder):
    """Finds ``mxnet`` and what is below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith("mxnet."):
            return ModuleSpec(fullname, _Loader())
        return None


class _Loader(Loader):
    """Gives a module of flowmx under MXNet's name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = "flowmx" + spec.name.removeprefix("mxnet")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ModuleNotFoundError(
                f"no module named {spec.name!r}: mxnet is flowmx here, which has no {name!r}", name=spec.name
            ) from None
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Take back what the import system has written over: the module is, and stays, flowmx's.

        The modules below it are given MXNet's names too: the import system would else, at an import of one of them,
        make it an attribute here, in the place of a function of its name (``vision.alexnet``).
        """
        module.__spec__ = self.spec
        for name, below in list(sys.modules.items()):
            if name.startswith(f"{module.__name__}."):
                sys.modules.setdefault(f"mxnet{name.removeprefix('flowmx')}", below)
