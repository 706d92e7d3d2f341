"""Watching for values that are not finite, operation by operation.

While a watch is on, each operation that is pushed in its scope is looked through when it has run: what it wrote, and of
a graph the outputs of each step, before a later step overwrites them. While none is, nothing is asked at a push.

A NaN counts always. An infinity counts where no input of the operator holds one: masks are made of infinities.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from flowmx import settings
from flowmx.engine import Origin, describe, origin
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation, Variable
from flowmx.ndarray.core import BaseArray, Storage
from flowmx.ndarray.recording import state
from flowmx.observability.safety import steps
from flowmx.observability.safety.finding import Finding, NonFiniteError
from flowmx.ops.math.finite import all_finite, count
from flowmx.ops.registry.operators import Array

_MOVES = frozenset({"store", "seed", "assign", "fill", "copy", "array"})
"""Operations that compute nothing."""


class Watch:
    """Watch for values that are not finite.

    Args:
        stops: raise at the first, in place of remembering it alone.
        infinity: whether infinities count, or NaN alone.

    Attributes:
        found: the first, where there was one.
    """

    def __init__(self, stops: bool = True, infinity: bool = True) -> None:
        self.stops = stops
        self.infinity = infinity
        self.found: Finding | None = None

    def report(self, make: Callable[[], Finding]) -> None:
        """Report a finding.

        Raises:
            NonFiniteError: the watch stops at it.
        """
        if self.found is None:
            self.found = make()
        elif not self.stops:
            return
        if self.stops:
            raise NonFiniteError(self.found)

    def is_bad(self, array: Array, inputs: Sequence[Array]) -> bool:
        """Tell whether to report an output computed from these inputs: a new NaN, or an infinity that no input had."""
        if all_finite(np, array):
            return False
        nans, infinities = count(np, array)
        return nans > 0 or (self.infinity and infinities > 0 and not any(_holds_infinity(each) for each in inputs))


class Look:
    """The check of one operation under a watch.

    Attributes:
        went_through: True once the steps of a graph in it were looked at.
    """

    def __init__(self, watch: Watch, name: str, origin: Origin | None, step: int, is_backward: bool) -> None:
        self.watch = watch
        self.went_through = False
        self._name, self._origin, self._step, self._is_backward = name, origin, step, is_backward

    def around(self, op: Operation, proceed: Callable[[], Any]) -> Any:
        """A layer: look at what the operation wrote when it has run."""
        outer, _here.look = _here.look, self
        try:
            result = proceed()
        finally:
            _here.look = outer
        if result is None and op.reads and not self.went_through:
            self.at_outputs(*_arrays(op.arguments, op.reads, op.writes))
        return result

    def at_outputs(self, outputs: Sequence[Array], inputs: Sequence[Array]) -> None:
        """Look at what the operation wrote, and read."""
        for array in outputs:
            if self.watch.is_bad(array, inputs):
                layer = self._origin[2] if self._origin is not None else None
                place = describe(self._origin)
                given = tuple([f"input {at}" for at, each in enumerate(inputs) if not all_finite(np, each)])
                self.watch.report(partial(self._finding, self._name, layer, self._is_backward, array, given, place))
                return

    def at_step(
        self, operator: str, node: str, place: str, is_backward: bool, output: Array, inputs: Sequence[Array],
        given: Sequence[str],
    ) -> None:  # fmt: skip
        """Look at an output of a step of a graph; ``given`` names those of its inputs that were not finite."""
        if self.watch.is_bad(output, inputs):
            layer = layer_of(node)
            self.watch.report(partial(self._finding, operator, layer, is_backward, output, tuple(given), place))

    def _finding(
        self, operator: str, layer: str | None, is_backward: bool, array: Array, given: tuple[str, ...], place: str
    ) -> Finding:
        return Finding(operator, layer, self._step, is_backward, *count(np, array), given, place)


def layer_of(node: str) -> str:
    """The layer that a node of a graph belongs to: Gluon's layers call their operator ``<layer>_fwd``."""
    return node.partition("_backward")[0].removesuffix("_fwd")


def _holds_infinity(array: Array) -> bool:
    return not all_finite(np, array) and count(np, array)[1] > 0


# -- what is watched ---------------------------------------------------------------------------------------

_scope: ContextVar[Watch | None] = ContextVar("flowmx_watch", default=None)
_everywhere: list[Watch] = []
_open = 0


class _Here(threading.local):
    look: Look | None = None


_here = _Here()


def current() -> Look | None:
    """The look at the operation that this thread runs; None where nobody watches."""
    return _here.look


@contextmanager
def stop_at_nan(infinity: bool = True) -> Iterator[Watch]:
    """Raise at the first NaN or infinity that an operation pushed inside computes.

    The error is raised where a result is waited for, and by the next ``Trainer.step`` or ``Module.update``. It names
    the operator, the layer and the step. Infinities that come from infinities (masks) are let pass, and so is what
    nothing was computed from: arrays that are filled, or given by the user.

    Args:
        infinity: False looks for NaN alone.

    Raises:
        NonFiniteError: there was one.
    """
    watch = Watch(True, infinity)
    token = _scope.set(watch)
    _begin()
    try:
        yield watch
    finally:
        _end()
        _scope.reset(token)


def everywhere(watch: Watch) -> None:
    """Begin to watch all that is pushed, in whatever scope."""
    _everywhere.append(watch)
    _begin()


def no_longer(watch: Watch) -> None:
    """End :func:`everywhere`."""
    if watch in _everywhere:
        _everywhere.remove(watch)
        _end()


_by_setting = Watch()


def _follow(config: settings.Settings) -> None:
    """Watch all, or no longer, as the settings say."""
    if config.stop_at_nan and _by_setting not in _everywhere:
        everywhere(_by_setting)
    elif not config.stop_at_nan:
        no_longer(_by_setting)


engine.followers.append(_follow)


def _begin() -> None:
    global _open
    _open += 1
    origin.names_layers += 1
    engine.use_watch(_look_at)


def _end() -> None:
    global _open
    _open -= 1
    origin.names_layers -= 1
    if not _open:
        engine.use_watch(None)


def _look_at(op: Operation) -> None:
    """Have an operation looked at when it has run."""
    watch = _scope.get() or (_everywhere[-1] if _everywhere else None)
    if watch is None or op.is_coroutine or op.name in _MOVES:
        return
    look = Look(watch, op.name, op.origin, steps.current_step(), state.get().backward)
    op.wrap(look.around)


def _arrays(
    arguments: tuple[Any, ...], reads: Sequence[Variable], writes: Sequence[Variable]
) -> tuple[list[Array], list[Array]]:
    """The arrays that an operation wrote and, of those that it did not write, read."""
    if len(arguments) == 4 and isinstance(arguments[3], list):  # an operator: of a view only the part that it is of
        written = [each._read() for each in arguments[3] if isinstance(each, BaseArray)]
    else:
        written = [each.array for each in writes if isinstance(each, Storage)]
    read = [each.array for each in reads if isinstance(each, Storage) and each not in writes]
    return [each for each in written if each is not None], [each for each in read if each is not None]


def _check_stopped() -> None:
    """At the end of a step: raise what a watch that stops has found meanwhile."""
    for watch in (_scope.get(), *_everywhere):
        if watch is not None and watch.stops and watch.found is not None:
            raise NonFiniteError(watch.found)


steps.tell(_check_stopped)
