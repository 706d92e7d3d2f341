"""``mx.npx.image``: the functions of ``mx.nd.image`` on arrays of ``mx.np``."""

from __future__ import annotations

from typing import Any

from flowmx.ndarray import image as _classic
from flowmx.numpy import conversion as _conversion

__all__ = _classic.__all__


def __getattr__(name: str) -> Any:
    original = getattr(_classic, name)
    if not callable(original) or name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def function(*args: object, **kwargs: object) -> Any:
        return _conversion.to_np_nested(original(*args, **kwargs))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = original.__doc__
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    return dir(_classic)
