"""Branches: steps of a graph that may run concurrently, on several workers of one device.

Steps are grouped into *chains*, in which each step waits only for the one before it, and chains into *stages*: the
chains of a stage run concurrently, the stages in order. Branches too short to be worth a worker run in sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.graph.graph import Graph, predecessors
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.order import LATE

WORTH_NS = 150_000
"""The shortest chain, in nanoseconds, that is worth a separate worker."""

_FLOPS_PER_NS = 60
_ELEMENTS_PER_NS = 1

Stage = list[list[int]]
"""Chains of positions of steps; a single chain if nothing runs concurrently."""


def branch(graph: Graph, nodes: Sequence[Node]) -> list[list[list[Node]]]:
    """Return the operators of a pass as stages of chains.

    Args:
        graph: the graph.
        nodes: the operators, in a valid order.
    """
    before = predecessors(nodes)
    for index, node in enumerate(nodes):
        if LATE in node.attributes and index:
            # It must not run earlier, concurrently with its predecessor.
            before[index] = sorted({*before[index], index - 1})
    groups = stages(before, [nanoseconds(graph, node) for node in nodes], WORTH_NS)
    return [[[nodes[index] for index in chain] for chain in stage] for stage in groups]


def nanoseconds(graph: Graph, node: Node) -> float:
    """Return the approximate time of an operator."""
    assert node.op is not None
    inputs = [graph.shapes[entry] for entry in node.inputs]
    flops, elements = node.op.cost(inputs, [graph.shapes[Entry(node, i)] for i in range(node.outputs())])
    return max(flops / _FLOPS_PER_NS, elements / _ELEMENTS_PER_NS)


def stages(before: Sequence[Sequence[int]], costs: Sequence[float], threshold: float) -> list[Stage]:
    """Group steps into stages.

    Args:
        before: for each step, the positions of the steps that must run before it, all of them earlier.
        costs: the approximate nanoseconds of each step.
        threshold: the shortest chain, in nanoseconds, that runs concurrently with others.

    Returns:
        stages that contain every step once. The predecessors of a step are in an earlier stage, or earlier in its
        chain.
    """
    chains, chain_of = _chains(before)
    depth: list[int] = []
    for chain in chains:
        above = {chain_of[p] for step in chain for p in before[step]} - {chain_of[chain[0]]}
        depth.append(1 + max((depth[number] for number in above), default=-1))
    levels: list[list[list[int]]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for level, chain in zip(depth, chains, strict=True):
        levels[level].append(chain)
    result: list[Stage] = []
    for level_chains in levels:
        big = [chain for chain in level_chains if sum(costs[step] for step in chain) >= threshold]
        small = sorted(step for chain in level_chains if chain not in big for step in chain)
        if len(big) > 1:
            result.append([*big[:-1], sorted([*big[-1], *small])] if small else big)
        else:
            row = sorted(step for chain in level_chains for step in chain)
            if result and len(result[-1]) == 1:
                result[-1][0] += row
            else:
                result.append([row])
    return result


def _chains(before: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Return the steps in chains without forks and joins, and the chain of each step."""
    followers = [0] * len(before)
    for predecessors_ in before:
        for earlier in predecessors_:
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
