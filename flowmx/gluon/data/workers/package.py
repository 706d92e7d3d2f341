"""The start-up package of a worker process: the data set, the batch function, and the location of the main program.

The two are pickled once, into memory that all workers of a loader map; they write to copies of their own.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from flowmx.gluon.data.workers import shared

_MAIN = "__main__"

Main = tuple[str, str]
"""The origin of the main program: ``("name", module name)`` or ``("path", file)``."""


class PackageError(TypeError):
    """Something can not be handed to another process."""


class Package:
    """Memory with an object for other processes.

    Args:
        content: the object.

    Raises:
        PackageError: it can not be pickled, or what it is made of can not be found by another process.
    """

    def __init__(self, content: Any) -> None:
        self.descriptor = -1
        self.main = main_file()
        try:
            parts = shared.apart(content)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise PackageError(str(error)) from error
        if self.main is None and _MAIN.encode() in parts.pickled:
            raise PackageError("it uses what the program's main module defines, which is no file (a notebook, say)")
        self.size = parts.size
        self.descriptor = shared.new_file(parts.size, "flowmx-dataset")
        with shared.mapped(self.descriptor, parts.size) as memory:
            shared.write(parts, memory)

    def close(self) -> None:
        """Give the memory back."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


def main_file() -> Main | None:
    """The origin of this process's main program; None where it is neither a module nor a file."""
    main = sys.modules[_MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return "name", spec.name
    path = getattr(main, "__file__", None)
    return ("path", str(Path(path).resolve())) if path and Path(path).exists() else None


# -- in the worker -----------------------------------------------------------------------------------------


class Enough(BaseException):
    """Ends a program that is run for what it defines, where it begins to load data itself."""


_running_main = False


def stop_main() -> None:
    """Stop the main program where a worker process runs it for its definitions; else do nothing.

    So a program needs no ``if __name__ == "__main__":``.

    Raises:
        Enough: this is such a worker process.
    """
    if _running_main:
        raise Enough


class _Main(ModuleType):
    """The program's module, which is run when something of it is asked for; its name is not ``__main__`` then."""

    def __getattr__(self, name: str) -> Any:
        origin = self.__dict__.pop("_origin", None)
        if origin is None or name.startswith("__"):
            if origin is not None:
                self.__dict__["_origin"] = origin
            raise AttributeError(f"the program's main module has no {name!r} before it makes its first DataLoader")
        _run_main(origin, self)
        return getattr(self, name)


def _run_main(origin: Main, module: ModuleType) -> None:
    global _running_main
    kind, place = origin
    if kind == "name":
        spec = importlib.util.find_spec(place)
        assert spec is not None and isinstance(spec.loader, importlib.abc.InspectLoader), f"{place} was not found"
        code, module.__package__ = spec.loader.get_code(place), spec.parent
        module.__file__ = spec.origin
    else:
        code, module.__file__ = compile(Path(place).read_bytes(), place, "exec"), place
    _running_main = True
    try:
        exec(code, module.__dict__)  # type: ignore[arg-type]  # get_code gives None for what has no source
    except Enough:
        pass
    finally:
        _running_main = False


def opened(descriptor: int, size: int, main: Main | None) -> Any:
    """The content of a package."""
    module = _Main("__mp_main__")
    module.__dict__["_origin"] = main
    sys.modules[_MAIN] = sys.modules["__mp_main__"] = module
    memory = shared.mapped(descriptor, size, private=True)
    os.close(descriptor)
    return shared.read(memory)
