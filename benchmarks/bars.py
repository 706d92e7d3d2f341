"""Bar charts as SVG: panels side by side, each with groups of bars; every group has its scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, LABEL, GAP, BAR, SPACE = 460, 110, 30, 9, 12
NUMBER = 46  # the width left for a number after the longest bar


class Group(NamedTuple):
    """Bars of a chart under one name, as (label, value, color)."""

    name: str
    bars: Sequence[tuple[str, float, str]]


def picture(title: str, panels: Mapping[str, Sequence[Group]]) -> str:
    """Return the chart. The longest bar of each group has the full width; values are printed after the bars."""
    legend = {label: color for groups in panels.values() for group in groups for label, _, color in group.bars}
    top = 44 + 16 * -(-len(legend) // 5)
    height = top + 24 + max(sum(_height(group) for group in groups) for groups in panels.values())
    width = GAP + len(panels) * (WIDTH + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(GAP, 24, title, 'font-size="15" font-weight="bold"'),
    ]
    for number, (label, color) in enumerate(legend.items()):
        x, y = GAP + 180 * (number % 5), 44 + 16 * (number // 5)
        parts += [_bar(x, y - 9, 10, 10, color), _text(x + 15, y, label)]
    for number, (name, groups) in enumerate(panels.items()):
        parts += _panel(GAP + number * (WIDTH + GAP), top, name, groups)
    return "\n".join([*parts, "</svg>\n"])


def _height(group: Group) -> int:
    return BAR * len(group.bars) + SPACE


def _panel(x: float, y: float, name: str, groups: Sequence[Group]) -> list[str]:
    parts = [_text(x, y + 8, name, 'font-size="11" font-weight="bold"')]
    y += 20
    for group in groups:
        largest = max(value for _, value, _ in group.bars)
        parts.append(_text(x, y + BAR * len(group.bars) / 2 + 4, group.name))
        for number, (label, value, color) in enumerate(group.bars):
            long, at = (WIDTH - LABEL - NUMBER) * value / largest, y + BAR * number
            parts.append(_bar(x + LABEL, at, long, BAR - 1, color, f"{group.name}, {label}: {value:.1f}"))
            shown = f"{value:.0f}" if value >= 100 else f"{value:.1f}"
            parts.append(_text(x + LABEL + long + 4, at + BAR - 2, shown, 'font-size="8"'))
        y += _height(group)
    return parts


def _bar(x: float, y: float, width: float, height: float, color: str, tip: str = "") -> str:
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{color}">{inside}</rect>'


def _text(x: float, y: float, text: str, more: str = 'font-size="11"') -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'
