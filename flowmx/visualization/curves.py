"""Learning curves: metrics over batches and epochs, drawn as SVG without matplotlib."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from html import escape
from itertools import cycle
from typing import Any

__all__ = ["Curves"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _RIGHT = 460, 200, 72, 26, 12
_ROW, _LETTER = 14, 6.6
"""The height of a line of text, and the width of a letter, estimated generously."""
_COLORS = ("#2980b9", "#e67e22", "#27ae60", "#c0392b", "#8e44ad", "#7f8c8d")
_POINTS = 400
"""The maximum number of points drawn per curve."""

Points = list[tuple[float, float]]


class Curves:
    """Curves of metrics that grow during training. A notebook displays and updates them, once in each cell.

    Attributes:
        values: by metric and curve (``train``, ``validation``), the points (epochs done, value).

    Example:
        >>> curves = mx.viz.Curves(batches=len(batches))
        >>> mod.fit(batches, eval_data=held_out, num_epoch=5, batch_end_callback=curves.batch,
        ...         eval_end_callback=curves.evaluation)
        >>> curves                          # displays them again in another cell of a notebook
        >>> curves.save("curves.svg")
    """

    def __init__(self, batches: int | None = None, unit: str = "epochs") -> None:
        """Create empty curves.

        Args:
            batches: the number of batches per epoch; without it only the last batch of an epoch is a point.
            unit: the unit of the horizontal axis. Epochs begin at 0, others at the first point.
        """
        self._unit = unit
        self.values: dict[str, dict[str, Points]] = {}
        self._batches = batches
        self._display: Any = None
        self._cell: int | None = None
        """The number of the cell that displays the curves."""

    def log(self, name: str, value: float, epochs: float, curve: str = "train") -> None:
        """Add a point.

        Args:
            name: the name of the metric.
            value: its value; values that are not finite are dropped.
            epochs: the number of completed epochs, such as 1.5.
            curve: the name of the curve.
        """
        if math.isfinite(value):
            self.values.setdefault(name, {}).setdefault(curve, []).append((float(epochs), float(value)))

    def batch(self, param: Any) -> None:
        """Add the metrics of a batch (a ``batch_end_callback``)."""
        if self._batches is None:
            epochs, replaces = float(param.epoch + 1), True
        else:
            epochs, replaces = param.epoch + (param.nbatch + 1) / self._batches, False
        for name, value in _read(param.eval_metric):
            points = self.values.setdefault(name, {}).setdefault("train", [])
            if replaces and points and points[-1][0] == epochs:
                points.pop()
            points.append((epochs, float(value)))
        if self._batches is not None and param.nbatch + 1 == self._batches:
            self.show()

    def evaluation(self, param: Any) -> None:
        """Add the metrics of an evaluation (an ``eval_end_callback``)."""
        for name, value in _read(param.eval_metric):
            self.log(name, value, param.epoch + 1, "validation")
        self.show()

    evaluated = evaluation
    """An alias of :meth:`evaluation`."""

    def show(self) -> None:
        """Display or update the curves in a notebook; do nothing elsewhere."""
        if self._display is None:
            self._ipython_display_()
        else:
            self._display.update(self._content(), raw=True)

    def _ipython_display_(self) -> None:
        """Display the curves in the current cell of a notebook, or update them if they are there."""
        display = getattr(sys.modules.get("IPython.display"), "display", None)
        if display is None:
            return
        if self._display is not None and self._cell == _current_cell():
            self._display.update(self._content(), raw=True)
        else:
            self._display, self._cell = display(self._content(), raw=True, display_id=True), _current_cell()

    def _content(self) -> dict[str, str]:
        return {"text/html": self.svg(), "text/plain": repr(self)}

    def save(self, path: Any) -> None:
        """Write the curves to an ``.svg`` file."""
        from flowmx.serialization.atomic import replace_file

        replace_file(path, [self.svg().encode()])

    def svg(self) -> str:
        """Return an SVG image of all metrics, one below the other."""
        parts, height = [], 0
        for name, curves in self.values.items():
            legend = _legend(curves)
            top = _ROW * (1 + len(legend)) + 8
            parts.append(f'<g transform="translate(0,{height})">{_panel(name, curves, legend, top, self._unit)}</g>')
            height += top + _HEIGHT
        height = height or _HEIGHT
        empty = '<text x="12" y="24" fill="gray">no points yet</text>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} '
            f'{height}" font-family="sans-serif" font-size="11" role="img" aria-label="learning curves">'
            f"{''.join(parts) or empty}</svg>"
        )

    _repr_html_ = svg


def _read(metric: Any) -> Iterable[tuple[str, float]]:
    pairs = [] if metric is None else metric.get_name_value()
    return [(name, value) for name, value in pairs if math.isfinite(value)]


def _current_cell() -> int | None:
    """Return the number of the notebook's current cell; None outside IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "execution_count", None)


def _panel(name: str, curves: dict[str, Points], legend: list[str], top: int, unit: str) -> str:
    all_points = [point for points in curves.values() for point in points]
    first = 0 if unit == "epochs" else None
    (left, right), (low, high) = _range([x for x, _ in all_points], first), _range([y for _, y in all_points])

    def place(x: float, y: float) -> str:
        across = _LEFT + (x - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)
        down = top + (high - y) / (high - low) * (_HEIGHT - _BOTTOM)
        return f"{across:.1f},{down:.1f}"

    lines = [_axes(name, (left, right), (low, high), top, unit)]
    for points, color in zip(curves.values(), cycle(_COLORS), strict=False):
        path = " ".join(place(*point) for point in _subsample(points))
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        x, _, y = place(*points[-1]).partition(",")
        lines.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{color}"/>')
    return "".join([*lines, *legend])


def _axes(name: str, across: tuple[float, float], upwards: tuple[float, float], top: int, unit: str) -> str:
    bottom = top + _HEIGHT - _BOTTOM
    texts = [
        (_LEFT, _ROW, "start", _shorten(name)), (_LEFT - 6, top + 4, "end", f"{upwards[1]:.4g}"),
        (_LEFT - 6, bottom + 4, "end", f"{upwards[0]:.4g}"), (_LEFT, bottom + 16, "middle", f"{across[0]:.4g}"),
        (_WIDTH - _RIGHT, bottom + 16, "end", f"{across[1]:.4g} {unit}"),
    ]  # fmt: skip
    labels = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{at}" fill="gray">{escape(t)}</text>' for x, y, at, t in texts
    )
    return f'<path d="M{_LEFT} {top}V{bottom}H{_WIDTH - _RIGHT}" fill="none" stroke="gray"/>{labels}'


def _legend(curves: dict[str, Points]) -> list[str]:
    """Return the rows between the title and the plot: the name and the last value of each curve."""
    rows: list[str] = []
    x = float(_WIDTH)
    for (curve, points), color in zip(curves.items(), cycle(_COLORS), strict=False):
        text = _shorten(f"{curve} {points[-1][1]:.4g}")
        if x + len(text) * _LETTER > _WIDTH - _RIGHT:
            rows.append("")
            x = _LEFT
        y = _ROW * (1 + len(rows))
        rows[-1] += f'<text x="{x:.0f}" y="{y}" text-anchor="start" fill="{color}">{escape(text)}</text>'
        x += (len(text) + 3) * _LETTER
    return rows


def _shorten(text: str) -> str:
    """Cut the middle out of a text that is wider than the plot."""
    limit = int((_WIDTH - _RIGHT - _LEFT) / _LETTER)
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-(limit // 2 - 1) :]}"


def _range(values: Sequence[float], first: float | None = None) -> tuple[float, float]:
    low, high = min([*values, *([] if first is None else [first])]), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _subsample(points: Points) -> Points:
    """Subsample a curve to at most ``_POINTS`` points, including the last one."""
    step = math.ceil(len(points) / _POINTS)
    return points if step <= 1 else [*points[:-1:step], points[-1]]
