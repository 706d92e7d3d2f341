"""Training curves: numbers by name and step, kept from the start of the process.

A curve has at most a few hundred points: when it is full, pairs of neighbors are replaced by their means. It thus
covers the whole run, however long that is, at constant cost.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from flowmx import forks

__all__ = ["Curve", "curves", "log"]

MAX_POINTS = 256
"""Maximum number of points of a curve."""
_MAX_CURVES = 32
"""Maximum number of curves; beyond it, the one whose last value is oldest is removed."""
_RECENT = 60.0


class Curve:
    """Means of a number over runs of equally many calls of :meth:`add`.

    Attributes:
        points: pairs of step and value; the step of a run is that of its last call.
        stride: number of calls per point.
        generation: number of times the points were merged, which replaces all of them.
        count: number of calls so far.
        last: the last value.
        at: time of the last call, by :func:`time.monotonic`.
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self.stride = 1
        self.generation = 0
        self.count = 0
        self.last = float("nan")
        self.at = 0.0
        self._sum = 0.0
        self._in_sum = 0
        self._step = -1.0

    def add(self, value: float, step: float | None = None) -> None:
        """Add a value; the default step is one more than the last."""
        self._step = self._step + 1 if step is None else step
        self.count += 1
        self.last = value
        self.at = monotonic()
        self._sum += value
        self._in_sum += 1
        if self._in_sum == self.stride:
            self.points.append((self._step, self._sum / self._in_sum))
            self._sum, self._in_sum = 0.0, 0
            if len(self.points) >= MAX_POINTS:
                self._merge()

    def _merge(self) -> None:
        pairs = zip(self.points[::2], self.points[1::2], strict=True)
        self.points = [(later[0], (earlier[1] + later[1]) / 2) for earlier, later in pairs]
        self.stride *= 2
        self.generation += 1


curves: dict[str, Curve] = {}
"""All curves, ordered by their last calls, the newest at the end; guarded by :data:`lock`."""

lock = forks.lock()


def log(name: str, value: Any, step: float | None = None) -> None:
    """Add a value to a training curve of the dashboard.

    The dashboard shows it even if it is opened later. A call takes about a microsecond.
    ``Module.fit`` and Gluon's ``Estimator`` log their metrics by themselves.

    Args:
        name: name of the curve, such as ``"loss"``.
        value: a number, or an object that ``float`` accepts. An array that is not computed yet would block: await it
            first.
        step: position on the curve, such as the number of the batch (default: one more than the last).

    Raises:
        TypeError: `name` is not a string, or `value` is not a number.

    Example:
        >>> mx.dashboard.log("loss", (await loss.mean()).asscalar())
    """
    if not isinstance(name, str):
        raise TypeError(f"log: name is {name!r}, expected text such as 'loss'")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"log: the value of {name!r} is {value!r}, expected a number") from None
    with lock:
        curve = curves.pop(name, None) or Curve()
        curve.add(number, None if step is None else float(step))
        curves[name] = curve
        if len(curves) > _MAX_CURVES:
            del curves[next(iter(curves))]


def latest() -> dict[str, float]:
    """Return the last value of each curve to which a value was added in the last minute."""
    now = monotonic()
    with lock:
        return {name: curve.last for name, curve in curves.items() if now - curve.at < _RECENT}
