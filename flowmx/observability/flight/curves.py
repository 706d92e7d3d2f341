"""Training curves: numbers by name and step, kept from the start of the process.

A curve holds at most some hundred points: when it is full, neighbours become their mean, so that however long a run is,
all of it is there, and what it costs stays the same.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

__all__ = ["Curve", "curves", "log"]

MOST = 256
"""Points of a curve."""
_CURVES = 32
"""Curves that are kept; of more the one that was added to longest ago goes."""
_LATELY = 60.0


class Curve:
    """Means of a number over runs of equally many calls.

    Attributes:
        points: pairs of step and value; a run's step is that of its last call.
        stride: calls that make up a point.
        generation: how often points were merged, so that they are others than before.
        count: calls so far.
        last: the last value.
        at: when that came, by :func:`time.monotonic`.
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
        """Add a value; without a step, at one more than the last."""
        self._step = self._step + 1 if step is None else step
        self.count += 1
        self.last = value
        self.at = monotonic()
        self._sum += value
        self._in_sum += 1
        if self._in_sum == self.stride:
            self.points.append((self._step, self._sum / self._in_sum))
            self._sum, self._in_sum = 0.0, 0
            if len(self.points) >= MOST:
                self._merge()

    def _merge(self) -> None:
        pairs = zip(self.points[::2], self.points[1::2], strict=True)
        self.points = [(later[0], (earlier[1] + later[1]) / 2) for earlier, later in pairs]
        self.stride *= 2
        self.generation += 1


curves: dict[str, Curve] = {}
"""All curves, the one that was added to last at the end; :data:`lock` guards them."""

lock = threading.RLock()


def log(name: str, value: Any, step: float | None = None) -> None:
    """Add a value to a training curve of the dashboard.

    What it was logged for shows even where the dashboard is opened later; it costs about a microsecond.
    ``Module.fit`` and Gluon's ``Estimator`` log their metrics by themselves.

    Args:
        name: of the curve, such as ``"loss"``.
        value: a number, or what ``float`` makes one of. An array that is not computed yet would block: await it first.
        step: where on the curve, such as the number of the batch (default: one more than the last).

    Raises:
        TypeError: the name is no text, or the value no number.

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
        if len(curves) > _CURVES:
            del curves[next(iter(curves))]


def latest() -> dict[str, float]:
    """The last value of each curve that was added to in the last minute."""
    now = monotonic()
    with lock:
        return {name: curve.last for name, curve in curves.items() if now - curve.at < _LATELY}
