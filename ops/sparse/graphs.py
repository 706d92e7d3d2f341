"""Graphs as csr matrices: subgraphs, sampled and given, and edges by their ends."""

from __future__ import annotations

import logging
from typing import Any, cast

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
    """A subgraph that is being sampled, a hop at a time.

    Args:
        op: how large it may become.
        random: draws neighbors.
        graph: the graph.
        chances: the probability of each vertex; None where all are as likely.
    """

    def __init__(self, op: graphs._Sampling, random: np.random.Generator, graph: Csr, chances: Array | None) -> None:
        self._op, self._random, self._graph, self._chances = op, random, graph, chances

    def around(self, seeds: Array) -> list[Raw]:
        """The vertices, the edges, the probabilities (if there are any), and the hops."""
        op, most = self._op, self._op.max_num_vertices
        _expect_vertices(op.name, seeds, len(self._graph.indptr) - 1)
        seen = _Seen(len(self._graph.indptr) - 1)
        front = seeds[seen.new(seeds)]
        fronts, counts, drawn, size, is_cut = [front], [], [], len(front), False
        for _ in range(op.num_hops):
            room = most - size
            is_cut = is_cut or (room <= 0 < len(front))
            if room <= 0 or not len(front):
                break
            edges, places = self._drawn(front)
            neighbors = self._graph.indices[places]
            new = seen.new(neighbors)
            if len(new) >= room:
                # The vertex that fills the subgraph is the last one whose neighbors are sampled.
                new = new[:room]
                last = np.searchsorted(np.cumsum(edges), new[-1], "right")
                is_cut = bool(last + 1 < len(edges))
                edges[last + 1 :] = 0
                places = places[: edges.sum()]
            front = neighbors[new]
            size += len(front)
            fronts.append(front)
            counts.append(edges)
            drawn.append(places)
        if is_cut:
            _log.warning(
                "%s: the subgraph has max_num_vertices=%d vertices, so that neighbors of some were not sampled: "
                "give fewer seeds or a smaller num_neighbor, or allow for more vertices",
                op.name,
                most,
            )
        return self._result(fronts, counts, drawn)

    def _drawn(self, front: Array) -> tuple[Array, Array]:
        """For each vertex the number of sampled edges; their places in the graph, ascending for each vertex."""
        begins = self._graph.indptr[front]
        degrees = self._graph.indptr[front + 1] - begins
        wanted = self._op.num_neighbor
        large = np.flatnonzero(degrees > wanted)
        if not len(large):
            return degrees, _spread(begins, degrees)
        draw = self._drawn_evenly if self._chances is None else self._drawn_by_chance
        taken, chosen_ones = draw(begins[large], degrees[large])
        counts = degrees.copy()
        counts[large] = taken
        places = np.empty(counts.sum(), INDEX)
        is_large = np.zeros(len(front), bool)
        is_large[large] = True
        of_large = np.repeat(is_large, counts)
        places[of_large] = chosen_ones
        few = ~is_large
        places[~of_large] = _spread(begins[few], degrees[few])
        return counts, places

    def _drawn_evenly(self, begins: Array, degrees: Array) -> tuple[Any, Array]:
        """As :meth:`_drawn`, of vertices that have more edges than are wanted."""
        wanted = self._op.num_neighbor
        drawn = np.empty((len(begins), wanted), INDEX)
        few = degrees <= _FEW * wanted
        for rows, draw in ((few, _by_order), (~few, _by_repetition)):
            if rows.any():
                drawn[rows] = draw(self._random, degrees[rows], wanted)
        drawn += begins[:, None]
        return wanted, drawn.ravel()

    def _drawn_by_chance(self, begins: Array, degrees: Array) -> tuple[Array, Array]:
        """As :meth:`_drawn_evenly`: the first of exponential clocks, as drawing one after the other by probability."""
        assert self._chances is not None
        places = _spread(begins, degrees)
        rates = self._chances[self._graph.indices[places]].astype(np.float64)
        possible = np.flatnonzero(rates)
        places, rates = places[possible], rates[possible]
        numbers = np.arange(len(begins), dtype=np.min_scalar_type(len(begins)))  # few bits are sorted fast
        owners = np.repeat(numbers, degrees)[possible]
        times = self._random.standard_exponential(len(places)) / rates
        order = np.argsort(times)
        order = order[np.argsort(owners[order], kind="stable")]
        available = np.bincount(owners, minlength=len(begins))
        counts = np.minimum(available, self._op.num_neighbor)
        is_first = np.zeros(len(places), bool)
        is_first[order[_spread(np.cumsum(available) - available, counts)]] = True
        return counts, places[is_first]

    def _result(self, fronts: list[Array], counts: list[Array], drawn: list[Array]) -> list[Raw]:
        """The subgraph of the vertices of each hop, the numbers of their edges, and the places of these."""
        most, graph = self._op.max_num_vertices, self._graph
        found = np.concatenate(fronts)
        order, size = np.argsort(found), len(found)
        found = found[order]
        edges = np.zeros(size, INDEX)
        asked = sum(map(len, counts))
        edges[:asked] = np.concatenate([*counts, edges[:0]])
        begins = np.cumsum(edges) - edges
        edges = edges[order]
        places = np.concatenate([*drawn, edges[:0]])[_spread(begins[order], edges)]
        vertices, hops, indptr = np.zeros(most + 1, INDEX), np.zeros(most, INDEX), np.zeros(most + 1, INDEX)
        vertices[:size] = found
        vertices[most] = size
        hops[:size] = np.repeat(np.arange(len(fronts)), [len(each) for each in fronts])[order]
        np.cumsum(edges, out=indptr[1 : size + 1])
        indptr[size + 1 :] = indptr[size]
        made: list[Raw] = [vertices, Csr(graph.data[places], graph.indices[places], indptr)]
        if self._chances is not None:
            chances = np.zeros(most, self._chances.dtype)
            chances[:size] = self._chances[found]
            made.append(chances)
        return [*made, hops]


class _Seen:
    """The vertices that are in a subgraph; what is kept of the others is never written, nor takes memory."""

    def __init__(self, count: int) -> None:
        self._is_seen = np.zeros(count, bool)
        self._place = np.empty(count, INDEX)

    def new(self, vertices: Array) -> Array:
        """The places, ascending, where vertices come that have not been seen; from now on they have."""
        places: Array = np.flatnonzero(~self._is_seen[vertices])
        unseen = vertices[places]
        self._place[unseen[::-1]] = places[::-1]  # the first one is written last
        places = places[self._place[unseen] == places]
        self._is_seen[vertices[places]] = True
        return places


_FEW = 2
"""Up to so many times the wanted edges, all are put in a random order; of more, repeated ones are drawn again."""


def _spread(begins: Array, counts: Array) -> Array:
    """Ranges of numbers one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    found: Array = np.arange(total) + np.repeat(begins - (ends - counts), counts)
    return found


def _by_order(random: np.random.Generator, degrees: Array, wanted: int) -> Array:
    """For each row some different numbers below its degree, ascending: the first ones in a random order."""
    columns = np.arange(degrees.max())
    keys = random.random((len(degrees), len(columns)))
    keys[columns >= degrees[:, None]] = 2.0  # behind all others
    drawn: Array = np.argpartition(keys, wanted - 1, axis=1)[:, :wanted]
    drawn.sort(axis=1)
    return drawn


def _by_repetition(random: np.random.Generator, degrees: Array, wanted: int) -> Array:
    """As :func:`_by_order`: the first different ones of a sequence of random numbers."""
    drawn = (random.random((len(degrees), wanted)) * degrees[:, None]).astype(INDEX)
    drawn.sort(axis=1)
    rows = np.arange(len(drawn))
    while len(rows):
        part = drawn[rows]
        again = np.zeros(part.shape, bool)
        again[:, 1:] = part[:, 1:] == part[:, :-1]
        some = again.any(axis=1)
        rows, part, again = rows[some], part[some], again[some]
        part[again] = (random.random(int(again.sum())) * np.repeat(degrees[rows], again.sum(axis=1))).astype(INDEX)
        part.sort(axis=1)
        drawn[rows] = part
    return drawn


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
