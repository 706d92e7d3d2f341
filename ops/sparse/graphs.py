"""Graphs as csr matrices: subgraphs, sampled and given, and edges by their ends."""

from __future__ import annotations

import logging
from typing import cast

import numpy as np

from flowmx.errors import DataError, IndexOutOfRange, ParameterError
from flowmx.ops.arrays import graphs
from flowmx.ops.registry.operators import Run
from flowmx.ops.sparse.content import INDEX, Array, Csr, row_numbers
from flowmx.ops.sparse.parts import chosen, kept, rows_of
from flowmx.ops.sparse.ways import Call, Raw, Way, way

_log = logging.getLogger("flowmx.graphs")


def _expect(call: Call, matrices: int = 1) -> None:
    """Raise where the first inputs are not csr, or the others are not dense.

    Raises:
        ParameterError: so it is.
    """
    expected = ("csr",) * matrices + ("default",) * (len(call.stypes) - matrices)
    if call.stypes != expected:
        raise ParameterError(
            f"{call.op.name}: the inputs are {', '.join(call.stypes)}, expected {', '.join(expected)}; "
            "a graph is a csr matrix"
        )


def _expect_vertices(name: str, vertices: Array, count: int) -> None:
    wrong = (vertices < 0) | (vertices >= count)
    if wrong.any():
        raise IndexOutOfRange(f"{name}: there is no vertex {vertices[wrong][0]}, only 0 to {count - 1}")


# -- sampled -----------------------------------------------------------------------------------------------


@way("_contrib_dgl_csr_neighbor_uniform_sample", "_contrib_dgl_csr_neighbor_non_uniform_sample")
def _sample(call: Call) -> Way:
    _expect(call)
    op = cast("graphs._Sampling", call.op)

    def compute(run: Run, graph: Csr, *given: Array) -> list[Raw]:
        chances = given[0] if op.before == 2 else None
        if chances is not None and not (chances >= 0).all():
            raise DataError(f"{op.name}: probability has {chances[~(chances >= 0)][0]}, expected no negative number")
        found = [_Sample(op, run.random, graph, chances).around(seeds) for seeds in given[op.before - 1 :]]
        return [part for kind in zip(*found, strict=True) for part in kind]

    further = ("default",) * (op.count - 1) + ("csr",) * op.count + ("default",) * (op.before * op.count)
    return Way("default", compute, further=further)


class _Sample:
    """A subgraph that is being sampled, hop by hop.

    Args:
        op: how large it may become.
        random: draws neighbors.
        graph: the graph.
        chances: the probability of each vertex; None where all are as likely.
    """

    def __init__(self, op: graphs._Sampling, random: np.random.Generator, graph: Csr, chances: Array | None) -> None:
        self._op, self._random, self._graph, self._chances = op, random, graph, chances
        self._hops: dict[int, int] = {}
        self._places: dict[int, Array] = {}
        """By vertex, the places of its sampled edges in the graph."""

    def around(self, seeds: Array) -> list[Raw]:
        """The vertices, the edges, the probabilities (if there are any), and the hops."""
        op, most = self._op, self._op.max_num_vertices
        _expect_vertices(op.name, seeds, len(self._graph.indptr) - 1)
        self._hops = dict.fromkeys(seeds.tolist(), 0)
        queue = list(self._hops)
        asked = 0
        while asked < len(queue) and len(queue) < most:
            vertex = queue[asked]
            asked += 1
            hop = self._hops[vertex]
            if hop >= op.num_hops:
                break  # as all that come after it
            places = self._places[vertex] = self._drawn(vertex)
            for neighbor in self._graph.indices[places].tolist():
                if len(queue) == most:
                    break
                if neighbor not in self._hops:
                    self._hops[neighbor] = hop + 1
                    queue.append(neighbor)
        if asked < len(queue) and self._hops[queue[asked]] < op.num_hops:
            _log.warning(
                "%s: the subgraph has max_num_vertices=%d vertices, so that neighbors of some were not sampled: "
                "give fewer seeds or a smaller num_neighbor, or allow for more vertices",
                op.name,
                most,
            )
        return self._result()

    def _drawn(self, vertex: int) -> Array:
        """The places of some edges of a vertex in the graph, ascending."""
        begin, end = self._graph.indptr[vertex : vertex + 2].tolist()
        count, wanted = end - begin, self._op.num_neighbor
        if count <= wanted:
            return np.arange(begin, end)
        if self._chances is None:
            drawn: Array = self._random.choice(count, wanted, replace=False, shuffle=False)
        else:
            # The first of several exponential clocks with these rates: as drawing one after the other by probability.
            rates = self._chances[self._graph.indices[begin:end]].astype(np.float64)
            possible = np.flatnonzero(rates)
            times = self._random.standard_exponential(len(possible)) / rates[possible]
            drawn = possible[np.argsort(times)[:wanted]]
        drawn += begin
        drawn.sort()
        return drawn

    def _result(self) -> list[Raw]:
        most, graph = self._op.max_num_vertices, self._graph
        found = sorted(self._hops)
        vertices, hops = np.zeros(most + 1, INDEX), np.zeros(most, INDEX)
        vertices[: len(found)] = found
        vertices[most] = len(found)
        hops[: len(found)] = [self._hops[each] for each in found]
        none = np.empty(0, INDEX)
        by_row = [self._places.get(each, none) for each in found]
        indptr = np.zeros(most + 1, INDEX)
        indptr[1 : len(found) + 1] = np.cumsum([len(each) for each in by_row])
        indptr[len(found) + 1 :] = indptr[len(found)]
        places = np.concatenate([none, *by_row])
        made: list[Raw] = [vertices, Csr(graph.data[places], graph.indices[places], indptr)]
        if self._chances is not None:
            chances = np.zeros(most, self._chances.dtype)
            chances[: len(found)] = self._chances[found]
            made.append(chances)
        return [*made, hops]


# -- of given vertices -------------------------------------------------------------------------------------


@way("_contrib_dgl_subgraph")
def _subgraph(call: Call) -> Way:
    _expect(call)
    op = cast("graphs.Subgraph", call.op)

    def compute(run: Run, graph: Csr, *given: Array) -> list[Raw]:
        return _numbered([_induced(graph, vertices) for vertices in given], op.return_mapping)

    return Way("csr", compute, further=("csr",) * (len(op.outputs()) - 1))


def _induced(graph: Csr, vertices: Array) -> Csr:
    """The edges between some vertices, which are numbered by their places."""
    if (vertices[1:] < vertices[:-1]).any():
        raise DataError("_contrib_dgl_subgraph: the vertices are not in ascending order; sort them")
    _expect_vertices("_contrib_dgl_subgraph", vertices, len(graph.indptr) - 1)
    return _among(chosen(graph, vertices), vertices)


def _among(graph: Csr, vertices: Array) -> Csr:
    """The elements in the columns of some vertices, ascending, at the places of these."""
    if not len(vertices):
        return kept(graph, np.zeros(len(graph.indices), bool), graph.indices[:0])
    at = np.searchsorted(vertices, graph.indices, "right") - 1
    inside = vertices[at.clip(0)] == graph.indices
    return kept(graph, inside, at[inside])


def _numbered(found: list[Csr], with_elements: bool) -> list[Raw]:
    """Graphs with their edges counted from 0; also as they are."""
    counted: list[Raw] = [each._replace(data=np.arange(len(each.data)).astype(each.data.dtype)) for each in found]
    return [*counted, *found] if with_elements else counted


@way("_contrib_dgl_graph_compact")
def _compact(call: Call) -> Way:
    op = cast("graphs.GraphCompact", call.op)
    _expect(call, op.count)

    def compute(run: Run, *given: Raw) -> list[Raw]:
        matrices, vectors = cast("tuple[Csr, ...]", given[: op.count]), cast("tuple[Array, ...]", given[op.count :])
        found = [_sampled(*each) for each in zip(matrices, vectors, op.graph_sizes, strict=True)]
        return _numbered(found, op.return_mapping)

    return Way("csr", compute, further=("csr",) * (len(op.outputs()) - 1))


def _sampled(graph: Csr, vertices: Array, size: int) -> Csr:
    if vertices[-1] != size:
        raise DataError(
            f"_contrib_dgl_graph_compact: graph_sizes has {size}, and the vertices end with {vertices[-1]}, expected "
            "the number of sampled vertices in both"
        )
    known, wanted = vertices[:size], rows_of(graph, 0, size)
    order = np.argsort(known, kind="stable")
    made = _among(wanted, known[order])
    if len(made.data) != len(wanted.data):
        unknown = np.setdiff1d(wanted.indices, known)[0]
        raise DataError(
            f"_contrib_dgl_graph_compact: there is an edge to vertex {unknown}, which is none of the graph's: it was "
            "sampled up to max_num_vertices; allow for more vertices there"
        )
    return made._replace(indices=order[made.indices])


# -- edges -------------------------------------------------------------------------------------------------


@way("_contrib_edge_id")
def _edge_id(call: Call) -> Way:
    _expect(call)
    count = call.shapes[0][0]

    def compute(run: Run, graph: Csr, u: Array, v: Array) -> Raw:
        begins = u.astype(INDEX)
        _expect_vertices("_contrib_edge_id", begins, count)
        candidates = chosen(graph, begins)
        owners = row_numbers(candidates)
        found = np.flatnonzero(candidates.indices == v.astype(INDEX)[owners])[::-1]  # the first one is written last
        made = np.full(len(u), -1, graph.data.dtype)
        made[owners[found]] = candidates.data[found]
        return made

    return Way("default", compute)


@way("_contrib_dgl_adjacency")
def _adjacency(call: Call) -> Way:
    _expect(call)
    return Way("csr", lambda run, x: x._replace(data=np.ones(len(x.data), np.float32)))
