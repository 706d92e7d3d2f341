"""The start-up package of a worker process: the data set, the batch function, and the location of the main program.

Data set and function are pickled once, into memory that all workers of a loader map copy-on-write.
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

from flowmx.gluon.data.workers import shared_memory

_MAIN = "__main__"

Main = tuple[str, str]
"""The origin of the main program: ``("name", module name)`` or ``("path", file)``."""


class PackageError(TypeError):
    """An object cannot be sent to another process."""


class Package:
    """Shared memory with an object for other processes.

    Args:
        content: the object.

    Raises:
        PackageError: the object cannot be pickled, or another process cannot import its classes or functions.
    """

    def __init__(self, content: object) -> None:
        self.descriptor = -1
        self.main = main_file()
        try:
            parts = shared_memory.split(content)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise PackageError(str(error)) from error
        if self.main is None and _MAIN.encode() in parts.pickled:
            raise PackageError("it uses definitions of the main module, which is not a file (a notebook, for example)")
        self.size = parts.size
        self.descriptor = shared_memory.new_file(parts.size, "flowmx-dataset")
        with shared_memory.map_memory(self.descriptor, parts.size) as memory:
            shared_memory.write(parts, memory)

    def close(self) -> None:
        """Release the memory."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


def main_file() -> Main | None:
    """Return the origin of this process's main program; None if it is neither a module nor a file."""
    main = sys.modules[_MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return "name", spec.name
    path = getattr(main, "__file__", None)
    return ("path", str(Path(path).resolve())) if path and Path(path).exists() else None


# -- in the worker -----------------------------------------------------------------------------------------


class StopMain(BaseException):
    """Stops the main program in a worker process, which runs it only for its definitions."""


_running_main = False


def stop_main() -> None:
    """Stop the main program if a worker process runs it for its definitions; otherwise do nothing.

    Because of this, a program needs no ``if __name__ == "__main__":``.

    Raises:
        StopMain: this is such a worker process.
    """
    if _running_main:
        raise StopMain


class _Main(ModuleType):
    """The program's main module. It runs at the first access to an attribute, and is not named ``__main__``."""

    def __getattr__(self, name: str) -> Any:
        origin = self.__dict__.pop("_origin", None)
        if origin is None or name.startswith("__"):
            if origin is not None:
                self.__dict__["_origin"] = origin
            raise AttributeError(f"the main module does not define {name!r} before it creates its first DataLoader")
        _run_main(origin, self)
        return getattr(self, name)


def _run_main(origin: Main, module: ModuleType) -> None:
    global _running_main
    kind, location = origin
    if kind == "name":
        spec = importlib.util.find_spec(location)
        assert spec is not None and isinstance(spec.loader, importlib.abc.InspectLoader), f"{location} not found"
        code, module.__package__ = spec.loader.get_code(location), spec.parent
        module.__file__ = spec.origin
    else:
        code, module.__file__ = compile(Path(location).read_bytes(), location, "exec"), location
    _running_main = True
    try:
        exec(code, module.__dict__)  # type: ignore[arg-type]  # get_code may return None
    except StopMain:
        pass
    finally:
        _running_main = False


def open_package(descriptor: int, size: int, main: Main | None) -> Any:
    """Return the content of a package."""
    module = _Main("__mp_main__")
    module.__dict__["_origin"] = main
    sys.modules[_MAIN] = sys.modules["__mp_main__"] = module
    memory = shared_memory.map_memory(descriptor, size, private=True)
    os.close(descriptor)
    return shared_memory.read(memory)
