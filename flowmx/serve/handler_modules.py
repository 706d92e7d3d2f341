"""Loads the objects that ``--handler MODULE:NAME`` names, as Multi Model Server (MMS) does.

Modules are found in the model's folder, too. Models of a repository may have modules of the same name, such as
``model_handler``: each model imports those of its folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from flowmx.compat.package import install_as_mxnet

__all__ = ["load_object"]

_folders: set[Path] = set()
"""The folders that handlers were loaded from."""
_loading = threading.RLock()


def load_object(text: str, folder: Path | None = None) -> object:
    """Load a module, or an object in it. ``import mxnet`` imports flowmx, unless MXNet has been imported.

    Args:
        text: ``module`` or ``module:name``; instead of a module, also the path of a ``.py`` file, relative to the
            working directory or to ``folder``.
        folder: the folder of the model, if any.

    Raises:
        ImportError: there is no such module.
        FileNotFoundError: there is no such file.
        ValueError: the module has no such name.
        Exception: the module failed.
    """
    module_name, _, name = text.partition(":")
    with _loading:
        if "mxnet" not in sys.modules:
            install_as_mxnet()
        try:
            value: object = _module(module_name, folder)
        except ModuleNotFoundError as error:
            if error.name is not None and module_name.partition(".")[0] == error.name.partition(".")[0]:
                advice = "expected a .py file, or a module on the path"
            else:
                advice = f"{module_name} imports it: install it, or put it next to the handler"
            raise ModuleNotFoundError(f"--handler {text}: {error}; {advice}", name=error.name) from error
    for part in name.split(".") if name else ():
        if not hasattr(value, part):
            raise ValueError(f"--handler is {text!r}, and {module_name} has no {name!r}")
        value = getattr(value, part)
    return value


def _module(name: str, folder: Path | None) -> ModuleType:
    """Import a module, or a file."""
    if not name.endswith(".py"):
        with _importable(Path.cwd()), _importable(Path.cwd() if folder is None else folder):
            return importlib.import_module(name)
    path = _file(name, folder)
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise ImportError(f"{name} is not a Python file")
    with _importable(path.parent):
        module = sys.modules[path.stem] = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    return module


def _file(name: str, folder: Path | None) -> Path:
    """Return the path of a handler's file."""
    candidates = [Path(name)] if folder is None else [folder / name, Path(name)]
    for path in candidates:
        if path.is_file():
            return path.resolve()
    where = "" if folder is None else f" in {folder} or in the working directory"
    raise FileNotFoundError(f"there is no handler file {name}{where}")


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Import modules of a folder first. Later, in functions, they are imported last, as from MMS's path."""
    folder = folder.resolve()
    _forget_namesakes(folder)
    _folders.add(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _forget_namesakes(folder: Path) -> None:
    """Forget modules of other handlers' folders that have the names of modules in this folder."""
    paths = folder.iterdir() if folder.is_dir() else ()
    names = {path.stem for path in paths if path.suffix == ".py" or path.is_dir()}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] not in names or not isinstance(file, str):
            continue
        parents = set(Path(file).resolve().parents)
        if folder not in parents and parents & _folders:
            del sys.modules[name]
