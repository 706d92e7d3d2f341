"""The cost of profiler, flight recorder and dashboard: LeNet's step with and without each, in turns."""

from __future__ import annotations

from benchmarks import turns

PROFILER, FLIGHT, DASHBOARD = 1.10, 1.02, 1.03
"""The largest permitted ratio of a step's time with each to its time without."""


def compare(rounds: int) -> None:
    """Measure, and print the ratios."""
    for kind in ("symbolic", "gluon", "imperative"):
        figures = turns.compare("profiling", [], rounds, [kind])
        bars = {"profiler_ratio": [("one", PROFILER)], "flight_ratio": [("one", FLIGHT)]}
        figures["one"] = dict.fromkeys(bars, 1.0)
        turns.report(f"LeNet training step, {kind} (milliseconds, batch 64; first quartiles of turns)", figures, bars)
        figures = turns.compare("dashboard", [], 1, [kind])
        figures["one"] = {"dashboard_ratio": 1.0}
        bars = {"dashboard_ratio": [("one", DASHBOARD)]}
        turns.report(f"LeNet training step, {kind}, with a viewer of the dashboard (median of turns)", figures, bars)
    figures = turns.compare("profiling", [], rounds, ["tiny"], min)
    turns.report("Operations of 16 floats (microseconds), with the flight recorder and without", figures)
