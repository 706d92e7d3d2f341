"""Figure 7 of MXNet's paper, redrawn: memory for internal values under each strategy, compared with MXNet's.

``python -m benchmarks figure7`` plans every network under every strategy, writes the table into
``docs/memory.md`` and the picture into the same folder. Networks are planned, not run.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks import turns
from benchmarks.bars import Group, picture

DOCS = Path(__file__).parent.parent / "docs"
NETWORKS = ["alexnet", "googlenet", "vgg_a", "resnet_18", "resnet_50", "inception_bn", "lstm", "transformer"]
PHASES = {"predict": "prediction", "train": "training"}
BEGIN, END = "<!-- figure 7: begin -->", "<!-- figure 7: end -->"


class Strategy(NamedTuple):
    """A way to share memory, and the settings that choose it."""

    label: str
    system: str
    worker: str
    environment: dict[str, str]
    color: str


def _flowmx(label: str, in_place: int, match_range: int, color: str) -> Strategy:
    settings = {"FLOWMX_EXEC_ENABLE_INPLACE": str(in_place), "FLOWMX_EXEC_MATCH_RANGE": str(match_range)}
    settings["FLOWMX_EXEC_SLICE"] = "off"  # the paper's strategies take the whole batch at once
    return Strategy(label, "flowmx", "memory", settings, color)


_UNFUSED = {"MXNET_SUBGRAPH_BACKEND": "NONE"}
STRATEGIES = [
    Strategy("unshared, unfused", "flowmx", "unshared", {}, "#d9d9d9"),
    _flowmx("naive", 0, 0, "#9ecae1"),
    _flowmx("in place", 1, 0, "#6baed6"),
    _flowmx("sharing", 0, 16, "#3182bd"),
    _flowmx("both", 1, 16, "#08519c"),
    Strategy("MXNet unshared", "mxnet", "unshared", _UNFUSED, "#e6e6e6"),
    Strategy("MXNet in place", "mxnet", "memory", {**_UNFUSED, "NNVM_EXEC_MATCH_RANGE": "0"}, "#fdae6b"),
    Strategy("MXNet both", "mxnet", "memory", _UNFUSED, "#e6550d"),
    Strategy("MXNet both, fused", "mxnet", "memory", {}, "#a63603"),
]
"""MXNet 1.9.1 cannot disable in-place operators, so two of the paper's four bars stay empty."""

Figures = dict[str, dict[str, dict[str, float]]]
"""Megabytes by network, strategy and name."""


def measure() -> Figures:
    """Plan every network under every strategy, each in a separate process."""
    installed = [each for each in STRATEGIES if turns.python_of(each.system)]
    return {
        name: {each.label: turns.run(each.worker, each.system, [name], each.environment) for each in installed}
        for name in NETWORKS
    }


def table(figures: Figures, phase: str) -> str:
    """Return the figures of training or prediction as a table."""
    labels = [each.label for each in STRATEGIES if each.label in next(iter(figures.values()))]
    rows = [["MiB", *labels], ["---", *["---:"] * len(labels)]]
    for name, strategies in figures.items():
        rows.append([name, *(_number(strategies[label][f"{phase}_mb"]) for label in labels)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def summary(figures: Figures) -> str:
    """Return the means over the networks."""
    lines = []
    for phase, label in PHASES.items():
        for base in ("unshared, unfused", "naive", "MXNet both"):
            parts = [
                strategies["both"][f"{phase}_mb"] / strategies[base][f"{phase}_mb"]
                for strategies in figures.values()
                if base in strategies
            ]
            if parts:
                lines.append(
                    f"* {label}: {sum(parts) / len(parts):.2f}x the memory of *{base}*, at most {max(parts):.2f}x"
                )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def draw(figures: Figures) -> str:
    """Return the picture, with prediction left and training right as in the paper."""
    panels = {}
    for phase, label in PHASES.items():
        panels[f"{label}, batch 64"] = [
            Group(name, [(each.label, strategies[each.label][f"{phase}_mb"], each.color) for each in STRATEGIES
                         if each.label in strategies])
            for name, strategies in figures.items()
        ]  # fmt: skip
    return picture("Memory for internal values (MiB)", panels)


def write(figures: Figures, folder: Path = DOCS) -> None:
    """Write the tables and the picture into the documentation."""
    (folder / "figure7.svg").write_text(draw(figures))
    page = folder / "memory.md"
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    today = datetime.date.today().isoformat()
    parts = [
        BEGIN, f"Measured on {today} with `python -m benchmarks figure7`.", "![Figure 7](figure7.svg)", "Prediction:",
        table(figures, "predict"), "Training (forward and backward):", table(figures, "train"),
        "*Both* (flowmx's default), on average over the networks:", summary(figures), END,
    ]  # fmt: skip
    page.write_text(before + "\n\n".join(parts) + after)
