"""Side effects of operators (BatchNorm's running mean, Dropout's draw), which every pass must preserve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps

from flowmx.graph.graph import Graph, Options, is_pure

__all__ = ["preserving_effects"]

Pass = Callable[[Graph, Options], Graph]


def preserving_effects(simplify: Pass) -> Pass:
    """Make a pass return the old graph if the new one would lose an effect.

    If only the shape of an operator's output is read, a pass removes the operator, except in the few graphs in which it
    would have changed a state or drawn numbers.
    """

    @wraps(simplify)
    def checked(graph: Graph, options: Options) -> Graph:
        result = simplify(graph, options)
        return result if result is graph or _effects(result) == _effects(graph) else graph

    return checked


def _effects(graph: Graph) -> int:
    counts = Counter([node.op for node in graph.nodes()])
    return sum(count for op, count in counts.items() if op is not None and not is_pure(op, graph.train))
