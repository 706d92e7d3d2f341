"""``mx.util``: variables of the environment, what GPUs there are, and MXNet's NumPy semantics, which are off here."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from flowmx import settings
from flowmx.context import gpu_memory_info
from flowmx.devices import num_gpus

__all__ = [
    "get_gpu_count", "get_gpu_memory", "getenv", "is_np_array", "is_np_shape", "makedirs", "np_array", "np_shape",
    "reset_np", "set_module", "set_np", "set_np_shape", "setenv", "use_np", "use_np_array", "use_np_shape",
]  # fmt: skip

T = TypeVar("T")


def getenv(name: str) -> str | None:
    """The value of a variable of the environment, or None."""
    return os.environ.get(name)


def setenv(name: str, value: str | None) -> None:
    """Set a variable of the environment, or take it away; flowmx's settings follow.

    Raises:
        SettingError: it is a setting, and does not take this value.
    """
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
    settings.reload()


def makedirs(d: str | os.PathLike[str]) -> None:
    """Make a folder, and those that it is in; one that is there is left."""
    Path(d).expanduser().mkdir(parents=True, exist_ok=True)


def get_gpu_count() -> int:
    """The number of usable GPUs."""
    return num_gpus()


def get_gpu_memory(gpu_dev_id: int) -> tuple[int, int]:
    """The free and the total bytes of a GPU's memory.

    Raises:
        DeviceError: this machine has no such GPU.
    """
    return gpu_memory_info(gpu_dev_id)


def set_module(module: str) -> Callable[[T], T]:
    """Decorate a function or class so that it says that it is of another module."""

    def decorate(found: T) -> T:
        found.__module__ = module
        return found

    return decorate


# -- mx.np ----------------------------------------------------------------------------------------------------


def is_np_array() -> bool:
    """Return False: Gluon's blocks never make arrays of ``mx.np``."""
    return False


def is_np_shape() -> bool:
    """Return False: 0 in the shape of a symbol always means that the length is unknown."""
    return False


def set_np(shape: bool = True, array: bool = True, dtype: bool = False) -> None:
    """Change to NumPy's semantics.

    Raises:
        NotImplementedError: always, unless all is off.
    """
    if shape or array or dtype:
        raise _no_numpy("set_np")


def reset_np() -> None:
    """Change back to the usual semantics, which are always on."""


def set_np_shape(active: bool) -> bool:
    """Change to NumPy's shapes; returns what was before, False.

    Raises:
        NotImplementedError: always, unless ``active`` is false.
    """
    if active:
        raise _no_numpy("set_np_shape")
    return False


@contextmanager
def np_shape(active: bool = True) -> Iterator[None]:
    """A ``with`` block with NumPy's shapes, or without.

    Raises:
        NotImplementedError: always, unless ``active`` is false.
    """
    if active:
        raise _no_numpy("np_shape")
    yield


@contextmanager
def np_array(active: bool = True) -> Iterator[None]:
    """A ``with`` block with arrays of ``mx.np``, or without.

    Raises:
        NotImplementedError: always, unless ``active`` is false.
    """
    if active:
        raise _no_numpy("np_array")
    yield


def use_np(func: T) -> T:
    """Decorate a function or class that needs NumPy's semantics: it is refused when it is called, not before."""
    return _refused(func, "use_np")


def use_np_shape(func: T) -> T:
    """Decorate a function or class that needs NumPy's shapes: it is refused when it is called, not before."""
    return _refused(func, "use_np_shape")


def use_np_array(func: T) -> T:
    """Decorate a function or class that needs arrays of ``mx.np``: it is refused when it is called, not before."""
    return _refused(func, "use_np_array")


def _refused(func: T, what: str) -> T:
    """Replace a function (or the constructor of a class) by one that raises NotImplementedError."""
    named: Any = func.__init__ if isinstance(func, type) else func  # type: ignore[misc]

    @functools.wraps(named)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise _no_numpy(f"{what} on {func.__qualname__}")  # type: ignore[attr-defined]

    if isinstance(func, type):
        func.__init__ = refuse  # type: ignore[misc]
        return func
    return refuse  # type: ignore[return-value]


def _no_numpy(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"{what}: there is no mx.np here, and arrays keep MXNet's classic semantics: write the code with mx.nd (an "
        "mx.nd.NDArray may be a scalar or empty without this)"
    )
