"""A network as a picture without graphviz: boxes in layers from the inputs down, and lines between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from flowmx.graph.node import Node
from flowmx.symbol import Symbol
from flowmx.visualization.common import kind
from flowmx.visualization.drawing import colour_of, is_weight, label_of

__all__ = ["MOST", "network"]

MOST = 120
"""Boxes that are drawn; of larger networks there is no picture."""

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 150, 40, 26, 26, 12
_LETTERS = 22


class _Box(NamedTuple):
    x: float
    y: float

    @property
    def middle(self) -> float:
        return self.x + _WIDTH / 2


def network(symbol: Symbol) -> str | None:
    """The drawing of a network as SVG, without its weights; None where it would be too large."""
    nodes = [node for node in symbol._nodes() if not is_weight(node)]
    return drawn(nodes) if 0 < len(nodes) <= MOST else None


def drawn(nodes: Sequence[Node]) -> str:
    """The drawing of some nodes of a network, in the order of a run, as SVG; at least one."""
    boxes = _placed(_layers(nodes))
    width = max(box.x for box in boxes.values()) + _WIDTH + 3 * _MARGIN
    height = max(box.y for box in boxes.values()) + _HEIGHT + _MARGIN
    drawn = [*_lines(nodes, boxes), *(_box(node, boxes[node]) for node in nodes)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="drawing of a network" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:100%;height:auto" '
        f'font-family="sans-serif" font-size="11">{"".join(drawn)}</svg>'
    )


def _layers(nodes: Sequence[Node]) -> dict[int, list[Node]]:
    """By the longest way from an input, and inputs just above who reads them first; nodes are in the order of a run."""
    depth: dict[Node, int] = {}
    for node in nodes:
        depth[node] = 1 + max((depth[each.node] for each in node.inputs if each.node in depth), default=-1)
    readers: defaultdict[Node, list[int]] = defaultdict(list)
    for node in nodes:
        for entry in node.inputs:
            readers[entry.node].append(depth[node])
    found: defaultdict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        found[min(readers[node], default=1) - 1 if node.is_variable else depth[node]].append(node)
    return found


def _placed(layers: Mapping[int, Sequence[Node]]) -> dict[Node, _Box]:
    widest = max(len(nodes) for nodes in layers.values())
    found = {}
    for number, nodes in layers.items():
        left = _MARGIN + (widest - len(nodes)) * (_WIDTH + _GAP_X) / 2
        for i, node in enumerate(nodes):
            found[node] = _Box(left + i * (_WIDTH + _GAP_X), _MARGIN + number * (_HEIGHT + _GAP_Y))
    return found


def _lines(nodes: Sequence[Node], boxes: Mapping[Node, _Box]) -> Iterator[str]:
    for node in nodes:
        for entry in node.inputs:
            if entry.node in boxes:
                way = _way(boxes[entry.node], boxes[node], boxes.values())
                yield f'<path d="{way}" fill="none" stroke="gray" stroke-width="1.2"/>'


def _way(above: _Box, below: _Box, boxes: Collection[_Box]) -> str:
    """A line down; to the right of the boxes between where it passes layers."""
    start, end = (above.middle, above.y + _HEIGHT), (below.middle, below.y)
    between = [box.x + _WIDTH for box in boxes if above.y < box.y < below.y]
    if not between:
        return f"M{start[0]:.0f} {start[1]:.0f}L{end[0]:.0f} {end[1]:.0f}"
    aside = max(between) + _MARGIN
    top, bottom = start[1] + _GAP_Y, end[1] - _GAP_Y
    return (
        f"M{start[0]:.0f} {start[1]:.0f}C{start[0]:.0f} {top:.0f} {aside:.0f} {start[1]:.0f} {aside:.0f} {top:.0f}"
        f"V{bottom:.0f}C{aside:.0f} {end[1]:.0f} {end[0]:.0f} {bottom:.0f} {end[0]:.0f} {end[1]:.0f}"
    )


def _box(node: Node, box: _Box) -> str:
    lines = [_cut(line) for line in label_of(node).split("\n")]
    top = box.y + _HEIGHT / 2 + 4 - 7 * (len(lines) - 1)
    texts = "".join(
        f'<text x="{box.middle:.0f}" y="{top + 14 * i:.0f}" text-anchor="middle" fill="#111">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    title = f"<title>{escape(node.name)} ({escape(kind(node))})</title>"
    return (
        f'<g>{title}<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'rx="{20 if node.is_variable else 4}" fill="{colour_of(node)}"/>{texts}</g>'
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
