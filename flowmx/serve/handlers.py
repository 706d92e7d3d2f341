"""The hooks of ``flowmx serve --handler``: a module, or an object in it, with ``decode`` and ``encode``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from flowmx.serve.hooks import Hooks, check_hook

__all__ = ["load_handler"]

_ADVICE = "define decode(body, content_type) or encode(result), or name the object that has them, MODULE:NAME"


def load_handler(text: str) -> Hooks:
    """Load hooks.

    Args:
        text: ``module`` or ``module:name``; instead of a module, also the path of a ``.py`` file. The module, or the
            object of that name in it, has the functions ``decode`` and ``encode``, or one of them. A class is called
            without arguments, and its instance has them as methods.

    Raises:
        ImportError: there is no such module.
        ValueError: the module has no such name, or the object has neither function.
        Exception: the module failed.
    """
    module_name, _, name = text.partition(":")
    handler: Any = _module(module_name)
    for part in name.split(".") if name else ():
        if not hasattr(handler, part):
            raise ValueError(f"--handler is {text!r}, and {module_name} has no {name!r}")
        handler = getattr(handler, part)
    if isinstance(handler, type):
        handler = handler()
    decode, encode = getattr(handler, "decode", None), getattr(handler, "encode", None)
    if decode is None and encode is None:
        is_of_mms = hasattr(handler, "handle")
        advice = "call preprocess in decode, and postprocess in encode" if is_of_mms else _ADVICE
        kind = ": it is one of Multi Model Server" if is_of_mms else ""
        raise ValueError(f"the handler {text!r} has neither decode nor encode{kind}; {advice} (docs/serving.md)")
    check_hook("decode", decode, "body, content_type")
    check_hook("encode", encode, "result")
    return Hooks(decode, encode)


def _module(name: str) -> ModuleType:
    """Import a module, from the working directory too, or from a file."""
    if not name.endswith(".py"):
        with _importable(Path.cwd()):
            return importlib.import_module(name)
    path = Path(name).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no handler file {name}")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise ImportError(f"{name} is not a Python file")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(specification)
    with _importable(path.parent):
        specification.loader.exec_module(module)
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Import modules of a folder, too."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
