"""Random generators of data loading and augmentation. A draw uses the same kind of generator as in MXNet.

* :func:`python`: Python's `random`. Augmenters of ``mx.image``, orders of ``ImageIter``, crops of Gluon's transforms.
* :func:`numpy`: NumPy's global generator. Orders of ``RandomSampler``, ``DataLoader`` and ``NDArrayIter``, rotations,
  lighting of ``mx.image``.
* :func:`current`: flowmx's generator, seeded by ``mx.random.seed``, for draws that operators make in MXNet: flips and
  color changes of Gluon's transforms.

``random.seed``, ``numpy.random.seed`` and ``mx.random.seed`` seed the three; the first two produce MXNet's numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from flowmx.devices import generator
from flowmx.scopes import Value, frame_scope

_shared = random.Random()
_seeding: tuple[int, int | None] = (0, None)


class Streams(NamedTuple):
    """Generators for a ``with`` block; None stands for the global generator.

    Attributes:
        flowmx: replaces flowmx's generator.
        python: replaces Python's generator.
        numpy: replaces NumPy's generator.
    """

    flowmx: random.Random
    python: random.Random | None = None
    numpy: np.random.RandomState | None = None


_streams: ContextVar[Value[Streams | None]] = ContextVar("generators of a batch", default=Value(None))  # noqa: B039


@contextmanager
def draw_from(streams: Streams) -> Iterator[None]:
    """Draw from other generators in a ``with`` block, for a batch with independent random numbers."""
    with frame_scope(_streams, Value(streams)):
        yield


def current() -> random.Random:
    """Return flowmx's generator, seeded again if `mx.random.seed` was called since the last call."""
    global _seeding
    streams = _streams.get().value
    if streams is not None:
        return streams.flowmx
    now = generator.seeding()
    if now != _seeding:
        _seeding = now
        _shared.seed(None if now[1] is None else f"flowmx image {now[1]}")
    return _shared


def python() -> Any:
    """Return Python's generator: the module `random`, or a :class:`random.Random` within :func:`draw_from`."""
    streams = _streams.get().value
    return random if streams is None or streams.python is None else streams.python


def numpy() -> Any:
    """Return NumPy's generator: the module `numpy.random`, or a ``RandomState`` within :func:`draw_from`."""
    streams = _streams.get().value
    return np.random if streams is None or streams.numpy is None else streams.numpy


def make_generator(*numbers: int) -> np.random.Generator:
    """Make a NumPy generator, seeded by the lower 64 bits of numbers."""
    return np.random.Generator(np.random.PCG64([number % 2**64 for number in numbers]))


# -- states ------------------------------------------------------------------------------------------------


def state() -> list[Any]:
    """Return the state of flowmx's generator, as plain data."""
    return _plain(current())


def set_state(state: list[Any]) -> None:
    """Restore the state of flowmx's generator."""
    _restore(current(), state)


def numpy_state() -> list[Any]:
    """Return the state of NumPy's generator, as plain data."""
    name, key, *rest = numpy().get_state()
    return [name, key.tolist(), *rest]


def replay_generator(state: list[Any]) -> np.random.RandomState:
    """Make a NumPy generator that repeats the draws of the global one after a state."""
    replay = np.random.RandomState()
    replay.set_state(_tuple(state))
    return replay


def all_states() -> list[Any]:
    """Return the states of the three generators, as plain data."""
    return [state(), _plain(python()), numpy_state()]


def set_all_states(states: list[Any]) -> None:
    """Restore the states of the three generators."""
    set_state(states[0])
    _restore(python(), states[1])
    numpy().set_state(_tuple(states[2]))


def _plain(generator: Any) -> list[Any]:
    version, numbers, normal = generator.getstate()
    return [version, list(numbers), normal]


def _restore(generator: Any, state: list[Any]) -> None:
    version, numbers, normal = state
    generator.setstate((version, tuple(numbers), normal))


def _tuple(state: list[Any]) -> Any:
    name, key, *rest = state
    return (name, np.array(key, np.uint32), *rest)
