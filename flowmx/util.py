"""``mx.util``: variables of the environment, what GPUs there are, and NumPy's semantics."""

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
from flowmx.semantics import OFF, Semantics, semantics

__all__ = [
    "get_gpu_count", "get_gpu_memory", "getenv", "is_np_array", "is_np_default_dtype", "is_np_shape", "makedirs",
    "np_array", "np_default_dtype", "np_shape", "np_views", "reset_np", "set_module", "set_np", "set_np_shape",
    "setenv", "use_np", "use_np_array", "use_np_default_dtype", "use_np_shape",
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


# -- NumPy's semantics ----------------------------------------------------------------------------------------


def is_np_array() -> bool:
    """Tell whether Gluon makes arrays of ``mx.np`` in this task."""
    return semantics.get().array


def is_np_shape() -> bool:
    """Tell whether NumPy's shapes are on in this task; arrays without axes or elements are there in any case."""
    return semantics.get().shape


def is_np_default_dtype() -> bool:
    """Tell whether what is given no dtype follows NumPy in this task: float64, and int64 of whole numbers."""
    return semantics.get().dtype


def set_np(shape: bool = True, array: bool = True, dtype: bool = False) -> None:
    """Change this task (or thread) to NumPy's semantics.

    Args:
        shape: NumPy's shapes.
        array: let Gluon make arrays of ``mx.np``.
        dtype: let what is given no dtype follow NumPy, where it is float32 otherwise.

    Raises:
        ValueError: arrays without shapes.
    """
    if array and not shape:
        raise ValueError("set_np: NumPy's arrays need NumPy's shapes, so shape must be true where array is")
    semantics.set(Semantics(bool(shape), bool(array), bool(dtype), semantics.get().views))


def reset_np() -> None:
    """Change this task back to MXNet's classic semantics."""
    semantics.set(OFF)


def set_np_shape(active: bool) -> bool:
    """Turn NumPy's shapes on or off in this task; returns what was before."""
    before = semantics.get()
    semantics.set(before._replace(shape=bool(active)))
    return before.shape


def _scope(**change: bool) -> AbstractContextManager[None]:
    @contextmanager
    def scope() -> Iterator[None]:
        before = semantics.get()
        semantics.set(before._replace(**change))
        try:
            yield
        finally:
            semantics.set(before)

    return scope()


def np_shape(active: bool = True) -> AbstractContextManager[None]:
    """A ``with`` block with NumPy's shapes, or without."""
    return _scope(shape=bool(active))


def np_array(active: bool = True) -> AbstractContextManager[None]:
    """A ``with`` block in which Gluon makes arrays of ``mx.np``, or not."""
    return _scope(array=bool(active))


def np_default_dtype(active: bool = True) -> AbstractContextManager[None]:
    """A ``with`` block in which what is given no dtype follows NumPy, or is float32."""
    return _scope(dtype=bool(active))


def np_views(active: bool = True) -> AbstractContextManager[None]:
    """A ``with`` block in which ``x[:, 0]``, ``x.T`` and the like are views of ``mx.np`` arrays, as in NumPy.

    Elsewhere they are copies, as in MXNet.
    """
    return _scope(views=bool(active))


def use_np(func: T) -> T:
    """Decorate a function, or a class (all its methods and properties), to run with NumPy's shapes and arrays."""
    return _within(func, shape=True, array=True)


def use_np_shape(func: T) -> T:
    """Decorate a function, or a class, to run with NumPy's shapes."""
    return _within(func, shape=True)


def use_np_array(func: T) -> T:
    """Decorate a function, or a class, to run with arrays of ``mx.np``."""
    return _within(func, array=True)


def use_np_default_dtype(func: T) -> T:
    """Decorate a function, or a class, to run with NumPy's dtypes for what is given none."""
    return _within(func, dtype=True)


_LEFT = frozenset([
    "__class_getitem__", "__del__", "__eq__", "__getattr__", "__getattribute__", "__hash__", "__init_subclass__",
    "__new__", "__setattr__",
])  # fmt: skip
"""Methods that no semantics change, and that are called for each attribute or when nobody asked."""


def _within(func: T, **change: bool) -> T:
    """A function in a scope; of a class, each of its functions and properties, inherited ones too.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(func, type):
        members = {name: value for base in func.__mro__[-2::-1] for name, value in vars(base).items()}
        for name, value in members.items():
            if name in _LEFT:
                continue
            if isinstance(value, FunctionType):
                setattr(func, name, _within(value, **change))
            elif isinstance(value, property):
                parts: list[Any] = [each and _within(each, **change) for each in (value.fget, value.fset, value.fdel)]
                setattr(func, name, property(parts[0], parts[1], parts[2], value.__doc__))
        return func
    if not callable(func):
        raise TypeError(f"use_np: {type(func).__name__} was given, expected a function or a class")
    if inspect.iscoroutinefunction(func):

        @functools.wraps(func)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with _scope(**change):
                return await func(*args, **kwargs)

        return cast("T", run_async)

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _scope(**change):
            return func(*args, **kwargs)

    return cast("T", run)
