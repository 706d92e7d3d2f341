"""The memory plan as a picture: the place of each value, over the steps of a run.

A place in an arena is a bar: horizontally its steps, vertically its bytes. A line shows the bytes alive at each step,
another one their maximum, the lower bound. SVG is written here; PNG needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flowmx.graph.node import Node
from flowmx.graph.planning.arena_packing import Life
from flowmx.graph.reports.occupancy import Occupancy
from flowmx.graph.reports.sizes import format_bytes
from flowmx.graph.reports.unfolded import unfold
from flowmx.serialization.atomic import replace_file

if TYPE_CHECKING:
    from flowmx.graph.plan import Plan

COLORS = {"forward": "#4477aa", "gradient": "#ee7733", "workspace": "#228833"}
_FONT = 'font-family="sans-serif" font-size="12"'
_LINE, _BOUND = "#222222", "#bb2222"
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1000, 380, 90, 20, 40, 40


class Bar(NamedTuple):
    """A place in an arena: its steps, its bytes, and its values."""

    life: Life
    offset: int
    kind: str
    values: tuple[str, ...]


class Panel(NamedTuple):
    """The arena of one device.

    Attributes:
        device: the name of the device.
        bars: the places in the arena.
        alive: the bytes alive at each step, and after the last one.
        size: the size of the arena in bytes.
    """

    device: str
    bars: list[Bar]
    alive: list[int]
    size: int

    @property
    def bound(self) -> int:
        """Maximum number of bytes alive at one step."""
        return max(self.alive, default=0)


def panels(plan: Plan) -> list[Panel]:
    """Return the panels of the picture, one for each device."""
    occupancy = Occupancy(unfold(plan))
    plan = occupancy.plan
    return [
        Panel(
            str(context or "device"),
            [_bar(occupancy, place) for place in occupancy.places(context)],
            occupancy.alive(context),
            size,
        )
        for context, size in plan.arenas.items()
    ]


def _bar(occupancy: Occupancy, place: int) -> Bar:
    life = occupancy.plan.lives[place]
    kind = "workspace" if not occupancy.members[place] else "forward" if life.first < occupancy.forward else "gradient"
    return Bar(life, occupancy.plan.arena.offsets[place], kind, tuple(occupancy.names(place)))


def draw(plan: Plan, path: str | Path | None = None) -> str:
    """Draw a plan; see :func:`flowmx.viz.plot_memory`."""
    text = _svg(plan)
    if path is None:
        return text
    ending = Path(path).suffix.lower()
    if ending == ".svg":
        replace_file(path, [text.encode()])
    elif ending == ".png":
        _png(plan, path)
    else:
        raise ValueError(f"plot_memory: the path {str(path)!r} ends in {ending or 'nothing'}, expected .svg or .png")
    return text


# -- SVG ---------------------------------------------------------------------------------------------------


def _svg(plan: Plan) -> str:
    plan = unfold(plan)
    occupancy, all_panels = Occupancy(plan), panels(plan)
    height = max(1, len(all_panels)) * _HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(all_panels):
        lines.append(f'<g transform="translate(0 {number * _HEIGHT})">')
        lines += _svg_panel(panel, occupancy.steps, occupancy.forward)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _svg_panel(panel: Panel, steps: Sequence[Node], forward: int) -> Iterator[str]:
    wide = (_WIDTH - _LEFT - _RIGHT) / (len(steps) + 1)
    high = (_HEIGHT - _TOP - _BOTTOM) / max(panel.size, panel.bound, 1)
    floor = _HEIGHT - _BOTTOM

    def rectangle(first: float, last: float, low: float, top: float, color: str, title: str) -> str:
        return (
            f'<rect x="{_LEFT + first * wide:.2f}" y="{floor - top * high:.2f}" width="{(last - first) * wide:.2f}" '
            f'height="{(top - low) * high:.2f}" fill="{color}"><title>{escape(title, quote=False)}</title></rect>'
        )

    yield f'<text x="{_LEFT}" y="18">{escape(_heading(panel), quote=False)}</text>'
    yield from _legend()
    yield '<g stroke="white" stroke-width="0.4">'
    for bar in panel.bars:
        yield rectangle(
            bar.life.first, bar.life.last + 1, bar.offset, bar.offset + bar.life.size, COLORS[bar.kind],
            _title(bar, steps),
        )  # fmt: skip
    yield "</g>"
    for step, node in enumerate(steps):
        title = f"step {step}: {node.name} ({node.op.name if node.op is not None else ''})"
        color = COLORS["forward" if step < forward else "gradient"]
        yield rectangle(step, step + 0.9, -14 / high, -4 / high, color, title)
    points = " ".join(
        f"{_LEFT + (step + side) * wide:.2f},{floor - nbytes * high:.2f}"
        for step, nbytes in enumerate(panel.alive) for side in (0, 1)
    )  # fmt: skip
    yield f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="1.2"/>'
    level = floor - panel.bound * high
    yield (
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{level:.2f}" y2="{level:.2f}" stroke="{_BOUND}" '
        f'stroke-dasharray="6 4"><title>lower bound: {format_bytes(panel.bound)}</title></line>'
    )
    for part in range(5):
        nbytes = panel.size * part / 4
        y = floor - nbytes * high + 4
        yield f'<text x="{_LEFT - 6}" y="{y:.2f}" text-anchor="end">{format_bytes(nbytes)}</text>'
    yield f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{len(steps)} steps</text>'


def _legend() -> Iterator[str]:
    for number, (name, color) in enumerate([*COLORS.items(), ("alive", _LINE), ("lower bound", _BOUND)]):
        x = _WIDTH - _RIGHT - 90 * (5 - number)
        yield f'<rect x="{x}" y="9" width="10" height="10" fill="{color}"/><text x="{x + 14}" y="18">{name}</text>'


def _heading(panel: Panel) -> str:
    return f"{panel.device}: {format_bytes(panel.size)}, at most {format_bytes(panel.bound)} alive"


def _title(bar: Bar, steps: Sequence[Node]) -> str:
    life = bar.life
    until = f"{life.last} ({steps[life.last].name})" if life.last < len(steps) else "the end"
    return (
        f"{', '.join(bar.values)}: {format_bytes(life.size)} at {bar.offset}, "
        f"from step {life.first} ({steps[life.first].name}) to {until}"
    )


# -- PNG ---------------------------------------------------------------------------------------------------


def _png(plan: Plan, path: str | Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "plot_memory: PNG needs matplotlib: pip install matplotlib; a path that ends in .svg needs nothing"
        ) from None
    all_panels = panels(plan)
    figure: Any = Figure(figsize=(12, 4.5 * max(1, len(all_panels))), layout="constrained")
    for number, panel in enumerate(all_panels):
        axes = figure.add_subplot(len(all_panels), 1, number + 1)
        axes.bar(
            [bar.life.first for bar in panel.bars],
            [bar.life.size / (1 << 20) for bar in panel.bars],
            [bar.life.last + 1 - bar.life.first for bar in panel.bars],
            [bar.offset / (1 << 20) for bar in panel.bars],
            color=[COLORS[bar.kind] for bar in panel.bars], align="edge", edgecolor="white", linewidth=0.3,
        )  # fmt: skip
        axes.stairs([nbytes / (1 << 20) for nbytes in panel.alive], color=_LINE, label="alive")
        axes.axhline(panel.bound / (1 << 20), color=_BOUND, linestyle="--", label="lower bound")
        for kind, color in COLORS.items():
            axes.plot([], [], color=color, linewidth=6, label=kind)
        axes.set(xlabel="step", ylabel="MiB", title=_heading(panel))
        axes.legend(loc="upper right", fontsize="small")
    figure.savefig(path, format="png")
