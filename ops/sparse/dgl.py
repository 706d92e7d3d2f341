"""DGL's graph operators on csr matrices: sampled and induced subgraphs, and edge lookups."""

from __future__ import annotations

import logging
from typing import Any, cast

import numpy as np

from flowmx.errors import DataError, IndexOutOfRange, ParameterError
from flowmx.ops.arrays import dgl
from flowmx.ops.registry.operators import Array, Run
from flowmx.ops.sparse.content import INDEX, Csr, row_numbers
from flowmx.ops.sparse.dispatch import AnyContent, Call, SparseKernel, sparse_kernel
from flowmx.ops.sparse.slicing import row_range, select_elements, take_rows

_log = logging.getLogger("flowmx.graphs")


def _expect(call: Call, matrices: int = 1) -> None:
    """Check that the first inputs are csr and the others dense.

    Raises:
        ParameterError: an input has another storage type.
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
        raise IndexOutOfRange(f"{name}: vertex {vertices[wrong][0]} is out of range, expected 0 to {count - 1}")


# -- sampling ----------------------------------------------------------------------------------------------


@sparse_kernel("_contrib_dgl_csr_neighbor_uniform_sample", "_contrib_dgl_csr_neighbor_non_uniform_sample")
def _sample(call: Call) -> SparseKernel:
    _expect(call)
    op = cast("dgl._Sampling", call.op)

    def compute(run: Run, graph: Csr, *arrays: Array) -> list[AnyContent]:
        probabilities = arrays[0] if op.seeds_start == 2 else None
        if probabilities is not None and not (probabilities >= 0).all():
            raise DataError(
                f"{op.name}: probability has {probabilities[~(probabilities >= 0)][0]}, expected no negative numbers"
            )
        subgraphs = [
            _Sampler(op, run.random, graph, probabilities).sample(seeds) for seeds in arrays[op.seeds_start - 1 :]
        ]
        return [output for outputs in zip(*subgraphs, strict=True) for output in outputs]

    other_stypes = ("default",) * (op.count - 1) + ("csr",) * op.count + ("default",) * (op.seeds_start * op.count)
    return SparseKernel("default", compute, other_stypes=other_stypes)


class _Sampler:
    """Samples subgraphs hop by hop.

    Args:
        op: the operator, with the limits of a subgraph.
        random: the generator to draw neighbors with.
        graph: the graph.
        probabilities: the probability of each vertex; None for equal probabilities.
    """

    def __init__(self, op: dgl._Sampling, random: np.random.Generator, graph: Csr, probabilities: Array | None) -> None:
        self._op, self._random, self._graph, self._probabilities = op, random, graph, probabilities

    def sample(self, seeds: Array) -> list[AnyContent]:
        """Return a subgraph around seeds: vertices, edges, probabilities (if there are any) and hops."""
        op, limit = self._op, self._op.max_num_vertices
        _expect_vertices(op.name, seeds, len(self._graph.indptr) - 1)
        visited = _VisitedVertices(len(self._graph.indptr) - 1)
        frontier = seeds[visited.new(seeds)]
        frontiers, counts, drawn_places, size, is_truncated = [frontier], [], [], len(frontier), False
        for _ in range(op.num_hops):
            remaining = limit - size
            is_truncated = is_truncated or (remaining <= 0 < len(frontier))
            if remaining <= 0 or not len(frontier):
                break
            edges, places = self._draw_edges(frontier)
            neighbors = self._graph.indices[places]
            new = visited.new(neighbors)
            if len(new) >= remaining:
                # The subgraph is full: drop the edges of the vertices after the one that filled it.
                new = new[:remaining]
                last = np.searchsorted(np.cumsum(edges), new[-1], "right")
                is_truncated = bool(last + 1 < len(edges))
                edges[last + 1 :] = 0
                places = places[: edges.sum()]
            frontier = neighbors[new]
            size += len(frontier)
            frontiers.append(frontier)
            counts.append(edges)
            drawn_places.append(places)
        if is_truncated:
            _log.warning(
                "%s: the subgraph reached max_num_vertices=%d, so neighbors of some vertices were not sampled: "
                "pass fewer seeds, or a smaller num_neighbor, or a larger max_num_vertices",
                op.name,
                limit,
            )
        return self._result(frontiers, counts, drawn_places)

    def _draw_edges(self, frontier: Array) -> tuple[Array, Array]:
        """Return the number of sampled edges of each vertex, and their positions in the graph, ascending by vertex."""
        begins = self._graph.indptr[frontier]
        degrees = self._graph.indptr[frontier + 1] - begins
        limit = self._op.num_neighbor
        large = np.flatnonzero(degrees > limit)
        if not len(large):
            return degrees, _ranges(begins, degrees)
        draw = self._draw_uniformly if self._probabilities is None else self._draw_by_probability
        drawn_counts, drawn_places = draw(begins[large], degrees[large])
        counts = degrees.copy()
        counts[large] = drawn_counts
        places = np.empty(counts.sum(), INDEX)
        is_large = np.zeros(len(frontier), bool)
        is_large[large] = True
        belongs_to_large = np.repeat(is_large, counts)
        places[belongs_to_large] = drawn_places
        is_small = ~is_large
        places[~belongs_to_large] = _ranges(begins[is_small], degrees[is_small])
        return counts, places

    def _draw_uniformly(self, begins: Array, degrees: Array) -> tuple[Any, Array]:
        """Draw edges of vertices that have more than ``num_neighbor`` edges; return the same as :meth:`_draw_edges`."""
        limit = self._op.num_neighbor
        edges = np.empty((len(begins), limit), INDEX)
        by_sorting = degrees <= _SORT_LIMIT * limit
        for rows, draw in ((by_sorting, _draw_by_sorting), (~by_sorting, _draw_with_rejection)):
            if rows.any():
                edges[rows] = draw(self._random, degrees[rows], limit)
        edges += begins[:, None]
        return limit, edges.ravel()

    def _draw_by_probability(self, begins: Array, degrees: Array) -> tuple[Array, Array]:
        """Draw edges by probability without replacement: the first ones to arrive at exponential times."""
        assert self._probabilities is not None
        places = _ranges(begins, degrees)
        rates = self._probabilities[self._graph.indices[places]].astype(np.float64)
        possible = np.flatnonzero(rates)
        places, rates = places[possible], rates[possible]
        numbers = np.arange(len(begins), dtype=np.min_scalar_type(len(begins)))  # narrow integers sort faster
        owners = np.repeat(numbers, degrees)[possible]
        times = self._random.standard_exponential(len(places)) / rates
        order = np.argsort(times)
        order = order[np.argsort(owners[order], kind="stable")]
        available = np.bincount(owners, minlength=len(begins))
        counts = np.minimum(available, self._op.num_neighbor)
        is_first = np.zeros(len(places), bool)
        is_first[order[_ranges(np.cumsum(available) - available, counts)]] = True
        return counts, places[is_first]

    def _result(self, frontiers: list[Array], counts: list[Array], drawn_places: list[Array]) -> list[AnyContent]:
        """Return the subgraph of the vertices of each hop, from the counts and the positions of their edges."""
        limit, graph = self._op.max_num_vertices, self._graph
        vertices = np.concatenate(frontiers)
        order, size = np.argsort(vertices), len(vertices)
        vertices = vertices[order]
        edges = np.zeros(size, INDEX)
        expanded = sum(map(len, counts))
        edges[:expanded] = np.concatenate([*counts, edges[:0]])
        begins = np.cumsum(edges) - edges
        edges = edges[order]
        places = np.concatenate([*drawn_places, edges[:0]])[_ranges(begins[order], edges)]
        padded_vertices, hops, indptr = np.zeros(limit + 1, INDEX), np.zeros(limit, INDEX), np.zeros(limit + 1, INDEX)
        padded_vertices[:size] = vertices
        padded_vertices[limit] = size
        hops[:size] = np.repeat(np.arange(len(frontiers)), [len(frontier) for frontier in frontiers])[order]
        np.cumsum(edges, out=indptr[1 : size + 1])
        indptr[size + 1 :] = indptr[size]
        outputs: list[AnyContent] = [padded_vertices, Csr(graph.data[places], graph.indices[places], indptr)]
        if self._probabilities is not None:
            probabilities = np.zeros(limit, self._probabilities.dtype)
            probabilities[:size] = self._probabilities[vertices]
            outputs.append(probabilities)
        return [*outputs, hops]


class _VisitedVertices:
    """The vertices of a subgraph; memory for other vertices is never written, so it is not committed."""

    def __init__(self, count: int) -> None:
        self._is_visited = np.zeros(count, bool)
        self._place = np.empty(count, INDEX)

    def new(self, vertices: Array) -> Array:
        """Return the positions of first occurrences of unvisited vertices, ascending, and mark them as visited."""
        places: Array = np.flatnonzero(~self._is_visited[vertices])
        unseen = vertices[places]
        self._place[unseen[::-1]] = places[::-1]  # the first occurrence is written last
        places = places[self._place[unseen] == places]
        self._is_visited[vertices[places]] = True
        return places


_SORT_LIMIT = 2
"""Up to this multiple of ``num_neighbor`` edges, shuffle all edges; with more, redraw repeated ones."""


def _ranges(begins: Array, counts: Array) -> Array:
    """Return concatenated ranges of numbers."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ranges: Array = np.arange(total) + np.repeat(begins - (ends - counts), counts)
    return ranges


def _draw_by_sorting(random: np.random.Generator, degrees: Array, count: int) -> Array:
    """Return, for each row, distinct numbers below its degree, ascending: the first ones of a random order."""
    columns = np.arange(degrees.max())
    keys = random.random((len(degrees), len(columns)))
    keys[columns >= degrees[:, None]] = 2.0  # after all others
    numbers: Array = np.argpartition(keys, count - 1, axis=1)[:, :count]
    numbers.sort(axis=1)
    return numbers


def _draw_with_rejection(random: np.random.Generator, degrees: Array, count: int) -> Array:
    """Return the same as :func:`_draw_by_sorting`, by drawing random numbers and redrawing repeated ones."""
    numbers = (random.random((len(degrees), count)) * degrees[:, None]).astype(INDEX)
    numbers.sort(axis=1)
    rows = np.arange(len(numbers))
    while len(rows):
        part = numbers[rows]
        is_repeated = np.zeros(part.shape, bool)
        is_repeated[:, 1:] = part[:, 1:] == part[:, :-1]
        has_repeated = is_repeated.any(axis=1)
        rows, part, is_repeated = rows[has_repeated], part[has_repeated], is_repeated[has_repeated]
        part[is_repeated] = (
            random.random(int(is_repeated.sum())) * np.repeat(degrees[rows], is_repeated.sum(axis=1))
        ).astype(INDEX)
        part.sort(axis=1)
        numbers[rows] = part
    return numbers


# -- induced subgraphs -------------------------------------------------------------------------------------


@sparse_kernel("_contrib_dgl_subgraph")
def _subgraph(call: Call) -> SparseKernel:
    _expect(call)
    op = cast("dgl.Subgraph", call.op)

    def compute(run: Run, graph: Csr, *vectors: Array) -> list[AnyContent]:
        return _number_edges([_induced_subgraph(graph, vertices) for vertices in vectors], op.return_mapping)

    return SparseKernel("csr", compute, other_stypes=("csr",) * (len(op.outputs()) - 1))


def _induced_subgraph(graph: Csr, vertices: Array) -> Csr:
    """Return the subgraph of ascending vertices, numbered by position."""
    if (vertices[1:] < vertices[:-1]).any():
        raise DataError("_contrib_dgl_subgraph: the vertices are not ascending; sort them")
    _expect_vertices("_contrib_dgl_subgraph", vertices, len(graph.indptr) - 1)
    return _restrict_columns(take_rows(graph, vertices), vertices)


def _restrict_columns(graph: Csr, vertices: Array) -> Csr:
    """Return a graph with only the columns of ascending vertices, numbered by position."""
    if not len(vertices):
        return select_elements(graph, np.zeros(len(graph.indices), bool), graph.indices[:0])
    index = np.searchsorted(vertices, graph.indices, "right") - 1
    inside = vertices[index.clip(0)] == graph.indices
    return select_elements(graph, inside, index[inside])


def _number_edges(graphs: list[Csr], with_elements: bool) -> list[AnyContent]:
    """Return graphs with their edges numbered from 0, followed by the original ones if `with_elements` is set."""
    numbered: list[AnyContent] = [
        graph._replace(data=np.arange(len(graph.data)).astype(graph.data.dtype)) for graph in graphs
    ]
    return [*numbered, *graphs] if with_elements else numbered


@sparse_kernel("_contrib_dgl_graph_compact")
def _compact(call: Call) -> SparseKernel:
    op = cast("dgl.GraphCompact", call.op)
    _expect(call, op.count)

    def compute(run: Run, *arrays: AnyContent) -> list[AnyContent]:
        matrices, vectors = cast("tuple[Csr, ...]", arrays[: op.count]), cast("tuple[Array, ...]", arrays[op.count :])
        graphs = [_compact_graph(*args) for args in zip(matrices, vectors, op.graph_sizes, strict=True)]
        return _number_edges(graphs, op.return_mapping)

    return SparseKernel("csr", compute, other_stypes=("csr",) * (len(op.outputs()) - 1))


def _compact_graph(graph: Csr, vertices: Array, size: int) -> Csr:
    if vertices[-1] != size:
        raise DataError(
            f"_contrib_dgl_graph_compact: graph_sizes has {size}, but the vertices end with {vertices[-1]}, expected "
            "the number of sampled vertices in both"
        )
    sampled, rows = vertices[:size], row_range(graph, 0, size)
    order = np.argsort(sampled, kind="stable")
    compact = _restrict_columns(rows, sampled[order])
    if len(compact.data) != len(rows.data):
        unknown = np.setdiff1d(rows.indices, sampled)[0]
        raise DataError(
            f"_contrib_dgl_graph_compact: there is an edge to vertex {unknown}, which was not sampled because of "
            "max_num_vertices; sample with a larger max_num_vertices"
        )
    return compact._replace(indices=order[compact.indices])


# -- edges -------------------------------------------------------------------------------------------------


@sparse_kernel("_contrib_edge_id")
def _edge_id(call: Call) -> SparseKernel:
    _expect(call)
    count = call.shapes[0][0]

    def compute(run: Run, graph: Csr, u: Array, v: Array) -> AnyContent:
        begins = u.astype(INDEX)
        _expect_vertices("_contrib_edge_id", begins, count)
        candidates = take_rows(graph, begins)
        owners = row_numbers(candidates)
        # In reverse, so that the first occurrence is written last.
        matches = np.flatnonzero(candidates.indices == v.astype(INDEX)[owners])[::-1]
        ids = np.full(len(u), -1, graph.data.dtype)
        ids[owners[matches]] = candidates.data[matches]
        return ids

    return SparseKernel("default", compute)


@sparse_kernel("_contrib_dgl_adjacency")
def _adjacency(call: Call) -> SparseKernel:
    _expect(call)
    return SparseKernel("csr", lambda run, x: x._replace(data=np.ones(len(x.data), np.float32)))
