"""``mx.util``: environment variables, GPUs, and NumPy semantics."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

from flowmx import settings
from flowmx.context import gpu_memory_info
from flowmx.devices import num_gpus
from flowmx.scopes import assign, frame_scope
from flowmx.semantics import Semantics, semantics

__all__ = [
    "get_gpu_count", "get_gpu_memory", "getenv", "is_np_array", "is_np_default_dtype", "is_np_shape", "makedirs",
    "np_array", "np_default_dtype", "np_shape", "np_views", "reset_np", "set_module", "set_np", "set_np_shape",
    "setenv", "use_np", "use_np_array", "use_np_default_dtype", "use_np_shape",
]  # fmt: skip

T = TypeVar("T")


def getenv(name: str) -> str | None:
    """Return the value of an environment variable, or None."""
    return os.environ.get(name)


def setenv(name: str, value: str | None) -> None:
    """Set or remove an environment variable, and reload flowmx's settings.

    Raises:
        SettingError: the variable is a setting, and the value is invalid.
    """
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
    settings.reload()


def makedirs(d: str | os.PathLike[str]) -> None:
    """Create a folder and its parents, unless it exists."""
    Path(d).expanduser().mkdir(parents=True, exist_ok=True)


def get_gpu_count() -> int:
    """Return the number of usable GPUs."""
    return num_gpus()


def get_gpu_memory(gpu_dev_id: int) -> tuple[int, int]:
    """Return the free and the total memory of a GPU in bytes.

    Raises:
        DeviceError: the GPU does not exist.
    """
    return gpu_memory_info(gpu_dev_id)


def set_module(module: str) -> Callable[[T], T]:
    """Return a decorator that sets the module of a function or class."""

    def decorate(target: T) -> T:
        target.__module__ = module
        return target

    return decorate


# -- NumPy's semantics ----------------------------------------------------------------------------------------


def is_np_array() -> bool:
    """Return whether Gluon creates ``mx.np`` arrays in this task."""
    return semantics.get().array


def is_np_shape() -> bool:
    """Return whether NumPy's shapes are on in this task. Zero-dimensional and empty arrays are always supported."""
    return semantics.get().shape


def is_np_default_dtype() -> bool:
    """Return whether default dtypes follow NumPy in this task: float64, and int64 for integers."""
    return semantics.get().dtype


def set_np(shape: bool = True, array: bool = True, dtype: bool = False) -> None:
    """Switch this task (or thread) to NumPy semantics.

    Args:
        shape: whether to use NumPy's shapes.
        array: whether Gluon creates ``mx.np`` arrays.
        dtype: whether default dtypes follow NumPy instead of float32.

    Raises:
        ValueError: ``array`` is true and ``shape`` is false.
    """
    if array and not shape:
        raise ValueError("set_np: NumPy's arrays need NumPy's shapes: shape must be true if array is true")
    assign(semantics, Semantics(bool(shape), bool(array), bool(dtype), semantics.get().views))


def reset_np() -> None:
    """Switch this task back to MXNet's classic semantics."""
    assign(semantics, Semantics())


def set_np_shape(active: bool) -> bool:
    """Switch NumPy's shapes on or off in this task; return the previous state."""
    before = semantics.get()
    assign(semantics, before.with_changes(shape=bool(active)))
    return before.shape


def _scope(**change: bool) -> AbstractContextManager[None]:
    @contextmanager
    def scope() -> Iterator[None]:
        with frame_scope(semantics, semantics.get().with_changes(**change)):
            yield

    return scope()


def np_shape(active: bool = True) -> AbstractContextManager[None]:
    """Return a context manager with NumPy's shapes on or off."""
    return _scope(shape=bool(active))


def np_array(active: bool = True) -> AbstractContextManager[None]:
    """Return a context manager in which Gluon creates ``mx.np`` arrays, or does not."""
    return _scope(array=bool(active))


def np_default_dtype(active: bool = True) -> AbstractContextManager[None]:
    """Return a context manager in which default dtypes follow NumPy, or are float32."""
    return _scope(dtype=bool(active))


def np_views(active: bool = True) -> AbstractContextManager[None]:
    """Return a context manager in which ``x[:, 0]``, ``x.T`` and so on are views of ``mx.np`` arrays, as in NumPy.

    By default they are copies, as in MXNet.
    """
    return _scope(views=bool(active))


def use_np(func: T) -> T:
    """Decorate a function, or a class (all its methods and properties), to run with NumPy's shapes and arrays."""
    return _run_in_scope(func, shape=True, array=True)


def use_np_shape(func: T) -> T:
    """Decorate a function, or a class, to run with NumPy's shapes."""
    return _run_in_scope(func, shape=True)


def use_np_array(func: T) -> T:
    """Decorate a function, or a class, to run with ``mx.np`` arrays."""
    return _run_in_scope(func, array=True)


def use_np_default_dtype(func: T) -> T:
    """Decorate a function, or a class, to run with NumPy's default dtypes."""
    return _run_in_scope(func, dtype=True)


_UNCHANGED = frozenset([
    "__class_getitem__", "__del__", "__eq__", "__getattr__", "__getattribute__", "__hash__", "__init_subclass__",
    "__new__", "__setattr__",
])  # fmt: skip
"""Methods that are not decorated: they do not depend on the semantics, and run implicitly or for every attribute."""


def _run_in_scope(func: T, **change: bool) -> T:
    """Return a function that runs in a scope. For a class, wrap all its functions and properties, also inherited ones.

    Raises:
        TypeError: ``func`` is neither a function nor a class.
    """
    if isinstance(func, type):
        members = {name: value for base in func.__mro__[-2::-1] for name, value in vars(base).items()}
        for name, value in members.items():
            if name in _UNCHANGED:
                continue
            if isinstance(value, FunctionType):
                setattr(func, name, _run_in_scope(value, **change))
            elif isinstance(value, property):
                methods = (value.fget, value.fset, value.fdel)
                wrapped: list[Any] = [method and _run_in_scope(method, **change) for method in methods]
                setattr(func, name, property(wrapped[0], wrapped[1], wrapped[2], value.__doc__))
        return func
    if not callable(func):
        raise TypeError(f"use_np: expected a function or a class, not {type(func).__name__}")
    if inspect.iscoroutinefunction(func):

        @functools.wraps(func)
        async def run_async(*args: object, **kwargs: object) -> Any:
            with _scope(**change):
                return await func(*args, **kwargs)

        return cast("T", run_async)

    @functools.wraps(func)
    def run(*args: object, **kwargs: object) -> Any:
        with _scope(**change):
            return func(*args, **kwargs)

    return cast("T", run)
