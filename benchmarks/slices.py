"""Predictions in slices of the batch: planned memory and time, compared with the whole batch and with MXNet's plan.

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
    """Return the figures of each network, with MXNet's plan where MXNet is installed."""
    figures: Figures = {}
    for name in NETWORKS:
        figures[name] = turns.run("slices", "flowmx", [name, "64", str(rounds)])
        if turns.python_of("mxnet"):
            figures[name]["mxnet_mb"] = turns.run("slices", "mxnet", [name, "64"])["planned_mb"]
    return figures


def table(figures: Figures) -> str:
    """Return the figures as a table."""
    rows = [
        [
            "network",
            "bound, MiB",
            "whole batch, MiB",
            "in slices, MiB",
            "slices / bound",
            "time / whole batch",
            "MXNet, MiB",
        ],
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
    """Return the means and the maxima."""
    parts = [each["part"] for each in figures.values()]
    times = [each["time_ratio"] for each in figures.values()]
    binds = [each["sliced_bind_ms"] / each["whole_bind_ms"] for each in figures.values()]
    difference = max(each["difference"] for each in figures.values())
    return "\n".join(
        [
            f"* memory: {statistics.mean(parts):.2f}x the bound on average, at most {max(parts):.3f}x",
            f"* time: {statistics.mean(times):.2f}x that of the whole batch on average, at most {max(times):.2f}x",
            f"* time of binding: {statistics.mean(binds):.2f}x that of the whole batch on average",
            f"* outputs differ by at most {difference:.0e} of the largest output"
            if difference
            else "* outputs are bit-identical",
        ]
    )


def write(figures: Figures, page: Path = PAGE) -> None:
    """Write the table into the documentation."""
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    today = datetime.date.today().isoformat()
    parts = [BEGIN, f"Measured on {today} with `python -m benchmarks slices`.", table(figures), summary(figures), END]
    page.write_text(before + "\n\n".join(parts) + after)
