"""Passes: pure functions from graph to graph, run in the order of ``compiler.PASSES``."""
