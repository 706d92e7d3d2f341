"""Branches: steps of a graph that may run at the same time, on several workers of one device.

Steps are gathered into *chains*, in which each waits for nothing but the one before it, and chains into *stages*:
the chains of a stage run at the same time, the stages one after the other. Branches that take too little to be worth
a worker of their own run in a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.graph.graph import Graph, predecessors
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.order import LATE

WORTH_NS = 150_000
"""Nanoseconds from which a chain is worth a worker of its own."""

_FLOPS_A_NS = 60
_ELEMENTS_A_NS = 1

Stage = list[list[int]]
"""Chains of positions of steps; one chain where nothing runs at the same time."""


def branch(graph: Graph, nodes: Sequence[Node]) -> list[list[list[Node]]]:
    """The operators of a pass as stages of chains.

    Args:
        graph: their graph.
        nodes: the operators, in a legal order.
    """
    before = predecessors(nodes)
    for at, node in enumerate(nodes):
        if LATE in node.attributes and at:
            before[at] = sorted({*before[at], at - 1})  # it may not run earlier, together with what comes before it
    found = stages(before, [nanoseconds(graph, node) for node in nodes], WORTH_NS)
    return [[[nodes[at] for at in chain] for chain in stage] for stage in found]


def nanoseconds(graph: Graph, node: Node) -> float:
    """About how long an operator takes."""
    assert node.op is not None
    inputs = [graph.shapes[entry] for entry in node.inputs]
    flops, elements = node.op.cost(inputs, [graph.shapes[Entry(node, i)] for i in range(node.outputs())])
    return max(flops / _FLOPS_A_NS, elements / _ELEMENTS_A_NS)


def stages(before: Sequence[Sequence[int]], costs: Sequence[float], worth: float) -> list[Stage]:
    """Cut steps into stages.

    Args:
        before: for each step the positions of those that must run before it, all of them earlier.
        costs: about how many nanoseconds each step takes.
        worth: nanoseconds from which a chain runs concurrently with others.

    Returns:
        stages which hold every step once. What a step waits for is in an earlier stage, or earlier in its chain.
    """
    chains, chain_of = _chains(before)
    depth: list[int] = []
    for chain in chains:
        above = {chain_of[p] for step in chain for p in before[step]} - {chain_of[chain[0]]}
        depth.append(1 + max((depth[each] for each in above), default=-1))
    levels: list[list[list[int]]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for level, chain in zip(depth, chains, strict=True):
        levels[level].append(chain)
    made: list[Stage] = []
    for level_chains in levels:
        big = [chain for chain in level_chains if sum(costs[step] for step in chain) >= worth]
        small = sorted(step for chain in level_chains if chain not in big for step in chain)
        if len(big) > 1:
            made.append([*big[:-1], sorted([*big[-1], *small])] if small else big)
        else:
            row = sorted(step for chain in level_chains for step in chain)
            if made and len(made[-1]) == 1:
                made[-1][0] += row
            else:
                made.append([row])
    return made


def _chains(before: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Steps in rows without forks and joins, and the row of each step."""
    followers = [0] * len(before)
    for each in before:
        for earlier in each:
            followers[earlier] += 1
    chains: list[list[int]] = []
    chain_of: list[int] = []
    for step, needed in enumerate(before):
        if len(needed) == 1 and followers[needed[0]] == 1:
            chain_of.append(chain_of[needed[0]])
            chains[chain_of[step]].append(step)
        else:
            chain_of.append(len(chains))
            chains.append([step])
    return chains, chain_of
