"""Drawings of networks without graphviz: boxes in layers from the inputs down, connected by lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from flowmx.graph.node import Node
from flowmx.symbol import Symbol
from flowmx.visualization.network_plot import color_of, is_weight, label_of
from flowmx.visualization.symbol_facts import kind

__all__ = ["MAX_BOXES", "network"]

MAX_BOXES = 120
"""The maximum number of boxes; larger networks are not drawn."""

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 150, 40, 26, 26, 12
_LETTERS = 22


class _Box(NamedTuple):
    x: float
    y: float

    @property
    def middle(self) -> float:
        return self.x + _WIDTH / 2


def network(symbol: Symbol) -> str | None:
    """Draw a network without its weights as SVG, or return None if it is too large."""
    nodes = [node for node in symbol.nodes() if not is_weight(node)]
    return draw(nodes) if 0 < len(nodes) <= MAX_BOXES else None


def draw(nodes: Sequence[Node]) -> str:
    """Draw nodes of a network, at least one, in the order of a run, as SVG."""
    boxes = _place(_layers(nodes))
    width = max(box.x for box in boxes.values()) + _WIDTH + 3 * _MARGIN
    height = max(box.y for box in boxes.values()) + _HEIGHT + _MARGIN
    shapes = [*_lines(nodes, boxes), *(_box(node, boxes[node]) for node in nodes)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="drawing of a network" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:100%;height:auto" '
        f'font-family="sans-serif" font-size="11">{"".join(shapes)}</svg>'
    )


def _layers(nodes: Sequence[Node]) -> dict[int, list[Node]]:
    """Assign nodes to layers by the longest path from an input, and inputs to the layer above their first reader."""
    depth: dict[Node, int] = {}
    for node in nodes:
        depth[node] = 1 + max((depth[value.node] for value in node.inputs if value.node in depth), default=-1)
    readers: defaultdict[Node, list[int]] = defaultdict(list)
    for node in nodes:
        for entry in node.inputs:
            readers[entry.node].append(depth[node])
    layers: defaultdict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        layers[min(readers[node], default=1) - 1 if node.is_variable else depth[node]].append(node)
    return layers


def _place(layers: Mapping[int, Sequence[Node]]) -> dict[Node, _Box]:
    widest = max(len(nodes) for nodes in layers.values())
    boxes = {}
    for number, nodes in layers.items():
        left = _MARGIN + (widest - len(nodes)) * (_WIDTH + _GAP_X) / 2
        for i, node in enumerate(nodes):
            boxes[node] = _Box(left + i * (_WIDTH + _GAP_X), _MARGIN + number * (_HEIGHT + _GAP_Y))
    return boxes


def _lines(nodes: Sequence[Node], boxes: Mapping[Node, _Box]) -> Iterator[str]:
    for node in nodes:
        for entry in node.inputs:
            if entry.node in boxes:
                path = _path(boxes[entry.node], boxes[node], boxes.values())
                yield f'<path d="{path}" fill="none" stroke="gray" stroke-width="1.2"/>'


def _path(above: _Box, below: _Box, boxes: Collection[_Box]) -> str:
    """Return the path between two boxes, to the right of the boxes between them."""
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
    lines = [_truncate(line) for line in label_of(node).split("\n")]
    top = box.y + _HEIGHT / 2 + 4 - 7 * (len(lines) - 1)
    texts = "".join(
        f'<text x="{box.middle:.0f}" y="{top + 14 * i:.0f}" text-anchor="middle" fill="#111">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    title = f"<title>{escape(node.name)} ({escape(kind(node))})</title>"
    return (
        f'<g>{title}<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'rx="{20 if node.is_variable else 4}" fill="{color_of(node)}"/>{texts}</g>'
    )


def _truncate(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
