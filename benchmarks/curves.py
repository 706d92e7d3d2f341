"""Line charts as SVG: panels side by side, with a shared legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

SIZE, GAP, MARGIN, TOP = 260, 30, 40, 70

Curve = tuple[str, str, Sequence[tuple[float, float]]]
"""A label, a color, and points."""


def picture(title: str, axes: tuple[str, str], panels: Mapping[str, Sequence[Curve]]) -> str:
    """Return the chart. Both axes of a panel have the same scale, from 0 to its largest value."""
    width, height = GAP + len(panels) * (SIZE + MARGIN + GAP), TOP + SIZE + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(GAP, 24, title, 'font-size="15" font-weight="bold"'),
    ]
    legend = {label: color for curves in panels.values() for label, color, _ in curves}
    for number, (label, color) in enumerate(legend.items()):
        x = GAP + 190 * number
        parts += [_line([(x, 40), (x + 20, 40)], color), _text(x + 26, 44, label)]
    for number, (name, curves) in enumerate(panels.items()):
        parts += _panel(GAP + MARGIN + number * (SIZE + MARGIN + GAP), name, axes, curves)
    return "\n".join([*parts, "</svg>\n"])


def _panel(left: float, name: str, axes: tuple[str, str], curves: Sequence[Curve]) -> list[str]:
    largest = max(value for _, _, points in curves for point in points for value in point)
    bottom = TOP + SIZE

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return left + SIZE * point[0] / largest, bottom - SIZE * point[1] / largest

    parts = [
        _text(left, TOP - 6, name, 'font-size="11" font-weight="bold"'),
        _line([(left, TOP), (left, bottom), (left + SIZE, bottom)], "#888"),
        _text(left + SIZE / 2, bottom + 32, axes[0], 'font-size="11" text-anchor="middle"'),
        _text(left, TOP + 12, f" {axes[1]}"),
    ]
    for part in range(1, 6):
        value = largest * part / 5
        (x, _), (_, y) = at((value, 0)), at((0, value))
        parts.append(_text(x, bottom + 14, f"{value:g}", 'font-size="9" text-anchor="middle"'))
        parts.append(_text(left - 4, y + 3, f"{value:g}", 'font-size="9" text-anchor="end"'))
    for label, color, points in curves:
        parts.append(_line([at(point) for point in points], color))
        for point in points:
            x, y = at(point)
            tip = f"<title>{escape(label)}: {point[1]:.2f} at {point[0]:g}</title>"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}">{tip}</circle>')
    return parts


def _line(points: Sequence[tuple[float, float]], color: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'


def _text(x: float, y: float, text: str, more: str = 'font-size="11"') -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'
