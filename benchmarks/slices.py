"""Predictions in slices of the batch: planned memory and time beside those of the whole batch, and beside MXNet's plan.

``python -m benchmarks slices`` writes the table into ``docs/memory.md``.
"""

from __future__ import annotations

import datetime
import statistics
from pathlib import Path

from benchmarks import turns

PAGE = Path(__file__).parent.parent / "docs" / "memory.md"
NETWORKS = ["alexnet", "vgg_a", "vgg_16", "googlenet", "resnet_50", "inception_v3", "mobilenet_v2", "unet"]
BEGIN, END = "<!-- slices: begin -->", "<!-- slices: end -->"

Figures = dict[str, dict[str, float]]


def measure(rounds: int) -> Figures:
    """The figures of each network, with MXNet's plan where it is installed."""
    found: Figures = {}
    for name in NETWORKS:
        found[name] = turns.run("slices", "flowmx", [name, "64", str(rounds)])
        if turns.python_of("mxnet"):
            found[name]["mxnet_mb"] = turns.run("slices", "mxnet", [name, "64"])["planned_mb"]
    return found


def table(figures: Figures) -> str:
    """The figures as a table."""
    rows = [
        ["", "bound, MiB", "whole, MiB", "in slices, MiB", "of the bound", "time of the whole's", "MXNet, MiB"],
        ["---", *["---:"] * 6],
    ]
    for name, each in figures.items():
        sizes = [each[label] for label in ("bound_mb", "whole_mb", "sliced_mb")]
        peer = f"{each['mxnet_mb']:.0f}" if "mxnet_mb" in each else ""
        rows.append(
            [name, *[f"{size:.1f}" for size in sizes], f"{each['part']:.3f}", f"{each['time_ratio']:.2f}", peer]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def summary(figures: Figures) -> str:
    """The means and the largest."""
    parts = [each["part"] for each in figures.values()]
    times = [each["time_ratio"] for each in figures.values()]
    binds = [each["sliced_bind_ms"] / each["whole_bind_ms"] for each in figures.values()]
    apart = max(each["difference"] for each in figures.values())
    return "\n".join(
        [
            f"* memory: {statistics.mean(parts):.2f} of the bound in the mean, at most {max(parts):.3f}",
            f"* time: {statistics.mean(times):.2f} of the whole batch's in the mean, at most {max(times):.2f}",
            f"* binding: {statistics.mean(binds):.2f} of the whole batch's in the mean",
            f"* outputs differ by at most {apart:.0e} of the largest"
            if apart
            else "* outputs are the same to the last bit",
        ]
    )


def write(figures: Figures, page: Path = PAGE) -> None:
    """Put the table where the documentation has it."""
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    today = datetime.date.today().isoformat()
    parts = [BEGIN, f"Measured on {today} with `python -m benchmarks slices`.", table(figures), summary(figures), END]
    page.write_text(before + "\n\n".join(parts) + after)
