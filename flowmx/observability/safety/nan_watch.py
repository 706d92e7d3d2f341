"""The NaN watch: checks the outputs of operations for NaN and infinities.

A watch checks the outputs of every operation pushed in its scope after the operation has run, and the outputs of the
steps of a graph before a later step overwrites them. Without a watch, pushing has no overhead.

A NaN is always reported. An infinity is reported only if no input of the operator has one, because masks consist of
infinities.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, TypeVar, cast

import numpy as np

from flowmx import settings
from flowmx.engine import Origin, describe, origin
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation, Variable
from flowmx.ndarray.core import BaseArray, Storage
from flowmx.ndarray.recording import differentiated, state
from flowmx.observability.safety import step_counter
from flowmx.observability.safety.finding import Finding, NonFiniteError
from flowmx.ops.math.finite import all_finite, count_nonfinite
from flowmx.ops.registry.operators import Array
from flowmx.scopes import Value, enter, leave

F = TypeVar("F", bound=Callable[..., Any])

_MOVES = frozenset({"store", "seed", "assign", "fill", "copy", "array"})
"""Operations without a computation."""


Forward = tuple[str, Origin | None]
"""An operator of the forward pass, and the line that called it."""


class Watch:
    """A watch for NaN and infinities.

    Args:
        stops: whether to raise at the first finding, instead of only storing it.
        infinity: whether to report infinities too.

    Attributes:
        finding: the first finding, if any.
    """

    def __init__(self, stops: bool = True, infinity: bool = True) -> None:
        self.stops = stops
        self.infinity = infinity
        self.finding: Finding | None = None

    def report(self, make_finding: Callable[[], Finding]) -> None:
        """Store the first finding.

        Raises:
            NonFiniteError: the watch stops at findings.
        """
        if self.finding is None:
            self.finding = make_finding()
        elif not self.stops:
            return
        if self.stops:
            raise NonFiniteError(self.finding)

    def is_bad(self, array: Array, inputs: Sequence[Array]) -> bool:
        """Return whether to report an output: it has a NaN, or an infinity that no input has."""
        if all_finite(np, array):
            return False
        nans, infinities = count_nonfinite(np, array)
        return nans > 0 or (self.infinity and infinities > 0 and not any(_has_infinity(array) for array in inputs))


class OutputCheck:
    """The check of one operation under a watch.

    Attributes:
        steps_checked: whether the steps of the operation's graph were checked.
    """

    def __init__(
        self, watch: Watch, name: str, origin: Origin | None, step: int, is_backward: bool, forward: Forward | None
    ) -> None:
        self.watch = watch
        self.steps_checked = False
        self.is_backward, self.forward = is_backward, forward
        self._name, self._origin, self._step = name, origin, step

    def around(self, op: Operation, proceed: Callable[[], object]) -> Any:
        """Run the operation, then check its outputs."""
        outer, _local.check = _local.check, self
        try:
            result = proceed()
        finally:
            _local.check = outer
        if result is None and op.reads and not self.steps_checked:
            self.show_outputs(*_arrays(op.arguments, op.reads, op.writes))
        return result

    def show_outputs(self, outputs: Sequence[Array], inputs: Sequence[Array]) -> None:
        """Check the outputs of the operation."""
        outputs, inputs = list(map(_stored, outputs)), list(map(_stored, inputs))
        for array in outputs:
            if self.watch.is_bad(array, inputs):
                layer = self._origin[2] if self._origin is not None else None
                place = describe(self._origin)
                bad_inputs = tuple([f"input {at}" for at, value in enumerate(inputs) if not all_finite(np, value)])
                name, called = (None, None) if self.forward is None else self.forward
                forward = (name, None if called is None else describe(called))
                self.watch.report(
                    partial(self._finding, self._name, layer, self.is_backward, array, bad_inputs, place, *forward)
                )
                return

    def at_step(
        self, operator: str, node: str, place: str, is_backward: bool, output: Array, inputs: Sequence[Array],
        bad_inputs: Sequence[str],
    ) -> None:  # fmt: skip
        """Check an output of a graph's step; ``bad_inputs`` names its inputs with NaN or infinities."""
        if self.watch.is_bad(output, inputs):
            layer = layer_of(node)
            forward = (layer, place) if is_backward else (None, None)
            self.watch.report(
                partial(self._finding, operator, layer, is_backward, output, tuple(bad_inputs), place, *forward)
            )

    def _finding(
        self, operator: str, layer: str | None, is_backward: bool, array: Array, bad_inputs: tuple[str, ...],
        place: str, forward: str | None, forward_place: str | None,
    ) -> Finding:  # fmt: skip
        counts = count_nonfinite(np, array)
        return Finding(operator, layer, self._step, is_backward, *counts, bad_inputs, place, forward, forward_place)


def layer_of(node: str) -> str:
    """Return the layer of a graph's node; Gluon's layers name their operators ``<layer>_fwd``."""
    return node.partition("_backward")[0].removesuffix("_fwd")


def _stored(array: Array) -> Array:
    """Return the stored elements of an array; the other elements of a sparse array are zero."""
    return array if hasattr(array, "dtype") else cast("Array", array.data)


def _has_infinity(array: Array) -> bool:
    return not all_finite(np, array) and count_nonfinite(np, array)[1] > 0


# -- active watches ----------------------------------------------------------------------------------------

_scope: ContextVar[Value[Watch | None]] = ContextVar("flowmx_watch", default=Value(None))  # noqa: B039
_global_watches: list[Watch] = []
_open_count = 0


class _Local(threading.local):
    check: OutputCheck | None = None


_local = _Local()


def current() -> OutputCheck | None:
    """Return the check of the operation that this thread runs, if there is a watch."""
    return _local.check


class _Scope(AbstractContextManager[Watch]):
    """The context of :func:`stop_at_nan`; it warns if it is never entered."""

    def __init__(self, infinity: bool) -> None:
        self._watch = Watch(True, infinity)
        self._frames: list[Any] = []
        self._is_entered = False

    def __enter__(self) -> Watch:
        self._is_entered = True
        self._frames.append(enter(_scope, Value(self._watch)))
        _begin()
        return self._watch

    def __exit__(self, *error: object) -> None:
        _end()
        leave(_scope, self._frames.pop())

    def __call__(self, function: F) -> F:
        """Watch the calls of a function: a decorator."""
        self._is_entered = True

        @wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with stop_at_nan(self._watch.infinity):
                return function(*args, **kwargs)

        return watched  # type: ignore[return-value]

    def __del__(self) -> None:
        if not self._is_entered:
            warnings.warn(
                "stop_at_nan() watches nothing without `with`: write `with mx.anomaly.stop_at_nan():`, or set "
                "FLOWMX_STOP_AT_NAN=1 for the whole program",
                stacklevel=2,
            )


def stop_at_nan(infinity: bool = True) -> AbstractContextManager[Watch]:
    """Raise at the first NaN or infinity computed by an operation pushed in the context.

    The error is raised where a result is awaited, and by the next ``Trainer.step`` or ``Module.update``. It names the
    operator, the layer and the step. Infinities computed from infinities (masks) are not reported, nor are arrays that
    are filled or provided by the user. A call without ``with`` watches nothing, and warns.

    Args:
        infinity: whether to report infinities too.

    Raises:
        NonFiniteError: an operation computed such a value.
    """
    return _Scope(infinity)


def watch_all(watch: Watch) -> None:
    """Watch the operations of all scopes."""
    _global_watches.append(watch)
    _begin()


def unwatch_all(watch: Watch) -> None:
    """Undo :func:`watch_all`."""
    if watch in _global_watches:
        _global_watches.remove(watch)
        _end()


_setting_watch = Watch()


def _on_settings_changed(config: settings.Settings) -> None:
    """Apply the setting ``stop_at_nan``."""
    if config.stop_at_nan and _setting_watch not in _global_watches:
        watch_all(_setting_watch)
    elif not config.stop_at_nan:
        unwatch_all(_setting_watch)


engine.settings_listeners.append(_on_settings_changed)


def _begin() -> None:
    global _open_count
    _open_count += 1
    origin.layer_name_users += 1
    engine.use_watch(_wrap)


def _end() -> None:
    global _open_count
    _open_count -= 1
    origin.layer_name_users -= 1
    if not _open_count:
        engine.use_watch(None)


def _wrap(op: Operation) -> None:
    """Check an operation after it has run."""
    watch = _scope.get().value or (_global_watches[-1] if _global_watches else None)
    if watch is None or op.is_coroutine or op.name in _MOVES:
        return
    is_backward, forward, outer = state.get().backward, None, _local.check
    if is_backward and (node := differentiated.get()) is not None:
        forward = (node.name, node.origin)
    elif outer is not None:  # user code in an operation, such as Custom
        is_backward, forward = is_backward or outer.is_backward, outer.forward
    check = OutputCheck(watch, op.name, op.origin, step_counter.current_step(), is_backward, forward)
    op.wrap(check.around)


def _arrays(
    arguments: tuple[object, ...], reads: Sequence[Variable], writes: Sequence[Variable]
) -> tuple[list[Array], list[Array]]:
    """Return the arrays that an operation wrote, and those that it only read."""
    if len(arguments) == 4 and isinstance(arguments[3], list):  # an operator: only the viewed part of a view
        outputs = [array.raw() for array in arguments[3] if isinstance(array, BaseArray)]
    else:
        outputs = [storage.array for storage in writes if isinstance(storage, Storage)]
    inputs = [storage.array for storage in reads if isinstance(storage, Storage) and storage not in writes]
    return [array for array in outputs if array is not None], [array for array in inputs if array is not None]


def _raise_finding() -> None:
    """Raise the finding of a stopping watch at the end of a step."""
    for watch in (_scope.get().value, *_global_watches):
        if watch is not None and watch.stops and watch.finding is not None:
            raise NonFiniteError(watch.finding)


step_counter.on_step_end(_raise_finding)
