"""What the profiler and the flight recorder cost: LeNet's training step with and without, in turns in one process."""

from __future__ import annotations

from benchmarks import turns

PROFILER, FLIGHT = 1.10, 1.02
"""The most that a step may take with each, of what it takes without."""


def compare(rounds: int) -> None:
    """Measure, and print the ratios."""
    for kind in ("symbolic", "gluon", "imperative"):
        figures = turns.compare("profiling", [], rounds, [kind])
        bars = {"profiler_ratio": [("one", PROFILER)], "flight_ratio": [("one", FLIGHT)]}
        figures["one"] = dict.fromkeys(bars, 1.0)
        turns.report(f"LeNet training step, {kind} (milliseconds, batch 64; first quartiles of turns)", figures, bars)
    figures = turns.compare("profiling", [], rounds, ["tiny"], min)
    turns.report("Operations of 16 floats (microseconds), with the flight recorder and without", figures)
