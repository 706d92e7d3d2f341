"""Executors: a symbol bound to arrays, run through the engine."""

from flowmx.executor.binding import bind, simple_bind
from flowmx.executor.describe import describe_graph
from flowmx.executor.executor import Executor
from flowmx.graph.running.arenas import Arena

__all__ = ["Arena", "Executor", "bind", "describe_graph", "simple_bind"]
