"""Random numbers for arrays of a device, drawn by a generator on the host, so that every device gets the same numbers.

A Dropout mask takes longer to draw on the host than on a GPU. In return, a run can be repeated exactly on another
device, and tests on the CPU cover GPUs too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from flowmx.ops.registry.tensors import ArrayNamespace


class HostGenerator:
    """A NumPy generator whose methods return arrays of another namespace, and accept them as parameters.

    Args:
        generator: the generator.
        xp: the namespace, such as cupy.
    """

    def __init__(self, generator: np.random.Generator, xp: ArrayNamespace) -> None:
        self._generator = generator
        self._xp = xp

    def __getattr__(self, name: str) -> Callable[..., object]:
        method = getattr(self._generator, name)

        def draw(*args: object, **kwargs: object) -> Any:
            sample = method(*map(_to_host, args), **{key: _to_host(value) for key, value in kwargs.items()})
            return self._xp.asarray(sample) if isinstance(sample, np.ndarray) else sample

        return draw


def generator_for(generator: np.random.Generator, xp: ArrayNamespace) -> np.random.Generator:
    """Return a generator for a namespace: a :class:`HostGenerator` if a NumPy generator serves a device."""
    if xp is np or not isinstance(generator, np.random.Generator):
        return generator
    return cast("np.random.Generator", HostGenerator(generator, xp))


def _to_host(value: object) -> Any:
    return value.get() if hasattr(value, "get") and hasattr(value, "dtype") else value
