"""Side effects of operators (BatchNorm's running mean, Dropout's draw), which every pass must keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps

from flowmx.graph.graph import Graph, Options, is_pure

__all__ = ["keeping_effects"]

Pass = Callable[[Graph, Options], Graph]


def keeping_effects(simplify: Pass) -> Pass:
    """A pass that leaves a graph as it is where it would lose an effect.

    An operator of whose output only the shape is wanted is not needed for the outputs. It is left out, but for the few
    graphs where it would have changed a state or drawn numbers.
    """

    @wraps(simplify)
    def kept(graph: Graph, options: Options) -> Graph:
        found = simplify(graph, options)
        return found if found is graph or _effects(found) == _effects(graph) else graph

    return kept


def _effects(graph: Graph) -> int:
    counts = Counter([node.op for node in graph.nodes()])
    return sum(count for op, count in counts.items() if op is not None and not is_pure(op, graph.train))
