"""DGL's operators on graphs as csr matrices, compared with plain Python."""

import collections
import itertools
import logging
import math

import numpy as np
import pytest

import flowmx as mx

N = 30
CONTRIB = mx.nd.contrib


def random_graph(seed=0, share=0.2):
    """Return a random graph as a dict from (u, v) to the edge number, and as a csr matrix."""
    places = np.argwhere(np.random.default_rng(seed).random((N, N)) < share)
    edges = {(int(u), int(v)): 100 + 3 * index for index, (u, v) in enumerate(places)}
    parts = list(edges.values()), places[:, 1], np.searchsorted(places[:, 0], np.arange(N + 1))
    return edges, mx.nd.sparse.csr_matrix(parts, shape=(N, N), dtype="int64")


def vector(*numbers):
    return mx.nd.array(list(numbers), dtype="int64")


def edges_of(matrix, rows=None, columns=None):
    """Return the stored elements of a csr matrix by position, with vertices renamed."""
    data, indices, indptr = (part.asnumpy() for part in (matrix.data, matrix.indices, matrix.indptr))
    actual = {}
    for row in range(len(indptr) - 1):
        for index in range(indptr[row], indptr[row + 1]):
            place = (
                int(rows[row]) if rows is not None else row,
                int(columns[indices[index]] if columns is not None else indices[index]),
            )
            assert place not in actual
            actual[place] = int(data[index])
    return actual


def hops_from(edges, seeds, limit):
    """Return the distance of each vertex up to a number of hops."""
    actual, front = dict.fromkeys(seeds, 0), set(seeds)
    for hop in range(1, limit + 1):
        front = {v for u, v in edges if u in front} - set(actual)
        actual.update(dict.fromkeys(front, hop))
    return actual


@pytest.mark.parametrize("chances", [False, True])
@pytest.mark.parametrize(("neighbors", "hops"), [(2, 1), (3, 2), (N, 2)])
def test_samples_are_subgraphs(chances, neighbors, hops):
    edges, graph = random_graph()
    chance = np.linspace(0.1, 2, N, dtype=np.float32)
    seeds = [[4, 0, 7], [29]]
    inputs = [graph, *([mx.nd.array(chance)] if chances else []), *[vector(*item) for item in seeds]]
    name = "dgl_csr_neighbor_non_uniform_sample" if chances else "dgl_csr_neighbor_uniform_sample"
    actual = getattr(CONTRIB, name)(*inputs, num_hops=hops, num_neighbor=neighbors, max_num_vertices=N + 2)
    assert len(actual) == (8 if chances else 6)
    for index, start in enumerate(seeds):
        vertices, matrix, *more, layers = actual[index::2]
        vertices, layers = vertices.asnumpy(), layers.asnumpy()
        count = vertices[-1]
        sampled_vertices = vertices[:count]
        assert matrix.stype == "csr"
        assert matrix.shape == (N + 2, N)
        matrix.check_format(full_check=True)
        assert (np.diff(sampled_vertices) > 0).all()
        assert set(start) == set(sampled_vertices[layers[:count] == 0])
        sampled = edges_of(matrix, rows=[*sampled_vertices, -1, -1][: N + 2] + [-1] * N)
        assert sampled.items() <= edges.items()
        assert {v for _, v in sampled} <= set(sampled_vertices)
        # All neighbors if there are few, else num_neighbor; none for vertices at the last hop.
        degrees = collections.Counter(u for u, _ in edges)
        counts = collections.Counter(u for u, _ in sampled)
        for vertex, layer in zip(sampled_vertices, layers, strict=False):
            assert counts[vertex] == (min(degrees[vertex], neighbors) if layer < hops else 0)
        assert hops_from(sampled, start, hops) == dict(zip(sampled_vertices, layers, strict=False))
        if neighbors == N:
            assert hops_from(edges, start, hops) == dict(zip(sampled_vertices, layers, strict=False))
        if chances:
            np.testing.assert_array_equal(more[0].asnumpy()[:count], chance[sampled_vertices])
        compact, full = CONTRIB.dgl_graph_compact(matrix, actual[index], graph_sizes=count, return_mapping=True)
        assert compact.shape == (count, count)
        assert edges_of(full, sampled_vertices, sampled_vertices) == sampled
        assert sorted(edges_of(compact).values()) == [*range(len(sampled))]


def test_neighbors_are_drawn_by_probability():
    star = mx.nd.sparse.csr_matrix(([1, 2, 3, 4], [1, 2, 3, 4], [0, 4, 4, 4, 4, 4]), shape=(5, 5), dtype="int64")
    chances, seeds, times = [9, 1, 3, 0, 4], vector(0), 800

    def drawn(name, *inputs):
        actual = collections.Counter()
        for _ in range(times):
            edges = getattr(CONTRIB, name)(star, *inputs, seeds, num_neighbor=2, max_num_vertices=5)[1]
            actual[tuple(edges.indices.asnumpy())] += 1
        return actual

    pairs = drawn("dgl_csr_neighbor_uniform_sample")
    assert len(pairs) == 6
    assert max(abs(count - times / 6) for count in pairs.values()) < 5 * (times / 6) ** 0.5
    pairs = drawn("dgl_csr_neighbor_non_uniform_sample", mx.nd.array(chances))
    weights = {1: 1, 2: 3, 4: 4}
    for a, b in [(1, 2), (1, 4), (2, 4)]:  # one by one, without replacement
        p, q = weights[a] / 8, weights[b] / 8
        expected = times * (p * q / (1 - p) + q * p / (1 - q))
        assert abs(pairs.pop((a, b)) - expected) < 5 * expected**0.5
    assert not pairs


def drawn_sets(degree, neighbors, chances=None, rows=6000):
    """Return the count of each set of neighbors, for vertices of equal degree sampled in one call."""
    count = rows + degree
    parts = (
        np.arange(rows * degree),
        np.tile(np.arange(rows, count), rows),
        np.arange(count + 1).clip(max=rows) * degree,
    )
    graph = mx.nd.sparse.csr_matrix(parts, shape=(count, count), dtype="int64")
    kind = "uniform" if chances is None else "non_uniform"
    inputs = [] if chances is None else [mx.nd.array(np.concatenate([np.ones(rows), chances]))]
    call = getattr(CONTRIB, f"dgl_csr_neighbor_{kind}_sample")
    seeds = np.random.default_rng(1).permutation(rows)  # the vertices of a hop are not expanded in order
    edges = call(graph, *inputs, vector(*seeds), num_neighbor=neighbors, max_num_vertices=count + 1)[1]
    assert edges.indptr.asnumpy()[rows] == rows * neighbors
    samples = edges.indices.asnumpy().reshape(rows, neighbors) - rows
    assert (edges.data.asnumpy().reshape(rows, neighbors) == np.arange(rows)[:, None] * degree + samples).all()
    assert (np.diff(samples, axis=1) > 0).all()
    return collections.Counter(map(tuple, samples.tolist()))


@pytest.mark.parametrize(("degree", "neighbors"), [(5, 3), (8, 2), (9, 2), (14, 3), (40, 2)])
def test_sets_of_neighbors_are_equally_likely(degree, neighbors):
    actual = drawn_sets(degree, neighbors)
    sets = math.comb(degree, neighbors)
    expected = sum(actual.values()) / sets
    chi_squared = sum((item - expected) ** 2 for item in actual.values()) / expected + (sets - len(actual)) * expected
    assert chi_squared < sets - 1 + 5 * (2 * (sets - 1)) ** 0.5


def test_sets_of_neighbors_by_their_probabilities():
    chances = np.array([4, 0, 1, 3, 0.5, 1e-9, 2])
    actual = drawn_sets(7, 2, chances)
    share = chances / chances.sum()
    total, chi_squared, sets = sum(actual.values()), 0.0, 0
    for a, b in itertools.combinations(range(7), 2):
        # One by one, without replacement.
        expected = total * share[a] * share[b] * (1 / (1 - share[a]) + 1 / (1 - share[b]))
        if expected < 1:
            assert actual[a, b] <= 1
        else:
            chi_squared += (actual[a, b] - expected) ** 2 / expected
            sets += 1
    assert sets == 10
    assert chi_squared < sets - 1 + 5 * (2 * (sets - 1)) ** 0.5


def breadth_first(edges, seeds, hops, limit):
    """Return vertices around seeds with their hops, up to a limit, and the edges of the expanded vertices."""
    actual, asked = dict.fromkeys(seeds, 0), {}
    queue = list(actual)
    for vertex in queue:
        if len(queue) >= limit or actual[vertex] >= hops:
            break
        asked |= {(u, v): edges[u, v] for u, v in sorted(edges) if u == vertex}
        for v in sorted(v for u, v in edges if u == vertex):
            if v not in actual and len(queue) < limit:
                actual[v] = actual[vertex] + 1
                queue.append(v)
    return actual, asked


@pytest.mark.parametrize("chances", [False, True])
@pytest.mark.parametrize("limit", [3, 4, 7, 11, 17, 18, 25, N])
@pytest.mark.parametrize("hops", [0, 1, 2, 5])
def test_a_subgraph_grows_until_it_is_full(limit, hops, chances):
    edges, graph = random_graph(share=0.07)
    seeds = [17, 3, 17, 8]
    name = "dgl_csr_neighbor_non_uniform_sample" if chances else "dgl_csr_neighbor_uniform_sample"
    inputs = [mx.nd.ones(N)] if chances else []
    actual = getattr(CONTRIB, name)(
        graph, *inputs, vector(*seeds), num_hops=hops, num_neighbor=N, max_num_vertices=max(limit, len(seeds))
    )
    expected, asked = breadth_first(edges, seeds, hops, max(limit, len(seeds)))
    vertices, layers = actual[0].asnumpy(), actual[-1].asnumpy()
    count = vertices[-1]
    assert dict(zip(vertices[:count].tolist(), layers.tolist(), strict=False)) == expected
    assert edges_of(actual[1], rows=[*vertices[:count], *[-1] * N]) == asked


def test_samples_follow_the_seed():
    def sampled():
        mx.random.seed(7)
        return CONTRIB.dgl_csr_neighbor_uniform_sample(random_graph()[1], vector(1, 2), num_hops=2, max_num_vertices=N)[
            1
        ]

    assert edges_of(sampled()) == edges_of(sampled())


def test_a_full_sample_logs_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "flowmx.graphs"):
        actual = CONTRIB.dgl_csr_neighbor_uniform_sample(
            random_graph()[1], vector(0, 1), num_hops=2, max_num_vertices=4
        )
        assert actual[0].asnumpy()[-1] == 4
    assert "max_num_vertices=4" in caplog.text


@pytest.mark.parametrize("vertices", [[0, 3, 4, 17, 29], [5], [], [*range(N)]])
def test_the_subgraph_of_vertices(vertices):
    edges, graph = random_graph()
    inside = {(u, v): number for (u, v), number in edges.items() if {u, v} <= set(vertices)}
    counted, full = CONTRIB.dgl_subgraph(graph, vector(*vertices), return_mapping=True)
    assert edges_of(full, vertices, vertices) == inside
    assert edges_of(counted, vertices, vertices) == {place: index for index, place in enumerate(inside)}
    assert edges_of(CONTRIB.dgl_subgraph(graph, vector(*vertices), return_mapping=False)) == edges_of(counted)


def test_edges_by_their_vertices():
    edges, graph = random_graph()
    pairs = np.random.default_rng(1).integers(0, N, (2, 200))
    actual = CONTRIB.edge_id(graph.astype("float32"), mx.nd.array(pairs[0]), mx.nd.array(pairs[1]))
    assert actual.stype == "default"
    assert actual.asnumpy().tolist() == [edges.get((int(u), int(v)), -1) for u, v in pairs.T]
    ones = CONTRIB.dgl_adjacency(graph)
    assert ones.dtype == np.float32
    assert edges_of(ones) == dict.fromkeys(edges, 1)


def test_graphs_in_symbols():
    _, graph = random_graph()
    x, v = mx.sym.Variable("x", stype="csr"), mx.sym.Variable("v")
    pair = mx.sym.contrib.dgl_subgraph(x, v, return_mapping=True)
    bound = mx.sym.Group([pair[0], mx.sym.contrib.dgl_adjacency(pair[1])]).bind(
        mx.cpu(), {"x": graph, "v": vector(1, 2, 9, 12)}, grad_req="null"
    )
    counted, ones = bound.forward()
    assert (counted.stype, ones.stype) == ("csr", "csr")
    assert set(edges_of(counted)) == set(edges_of(ones))


GRAPH = random_graph()[1]
CUT = mx.nd.sparse.csr_matrix(([1], [9], [0, 1, 1]), shape=(2, 10), dtype="int64")
SAMPLE = CONTRIB.dgl_csr_neighbor_uniform_sample


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: SAMPLE(GRAPH.tostype("default"), vector(0)), "a graph is a csr matrix"),
        (lambda: SAMPLE(GRAPH, mx.nd.array([0])), "seed vector 0 has dtype float32, expected int64"),
        (lambda: SAMPLE(GRAPH, vector(0, 1, 2), max_num_vertices=2), "at most max_num_vertices=2"),
        (lambda: SAMPLE(GRAPH, vector(N))[0].asnumpy(), f"vertex {N} is out of range, expected 0 to {N - 1}"),
        (lambda: SAMPLE(GRAPH[:3], vector(0)), "expected a square matrix"),
        (
            lambda: CONTRIB.dgl_csr_neighbor_non_uniform_sample(GRAPH, mx.nd.full((N,), -1), vector(0))[0].asnumpy(),
            "expected no negative number",
        ),
        (
            lambda: CONTRIB.dgl_csr_neighbor_non_uniform_sample(GRAPH, mx.nd.ones((4,)), vector(0)),
            "probability has shape",
        ),
        (lambda: CONTRIB.dgl_subgraph(GRAPH, vector(3, 1), return_mapping=False).asnumpy(), "ascending order"),
        (lambda: CONTRIB.dgl_subgraph(GRAPH, vector(3)), "return_mapping"),  # type: ignore[call-arg]
        (lambda: CONTRIB.edge_id(GRAPH, vector(-1), vector(0)).asnumpy(), "no vertex -1"),
        (lambda: CONTRIB.edge_id(GRAPH, vector(1, 2), vector(0)), "equal lengths"),
        (lambda: CONTRIB.dgl_adjacency(GRAPH.astype("float32")), "expected int64"),
        (
            lambda: CONTRIB.dgl_graph_compact(CUT, vector(0, 1, 2), graph_sizes=2, return_mapping=False).asnumpy(),
            "an edge to vertex 9",
        ),
        (
            lambda: CONTRIB.dgl_graph_compact(CUT, vector(0, 9, 1), graph_sizes=2, return_mapping=False).asnumpy(),
            "expected the number of sampled vertices in both",
        ),
        (
            lambda: CONTRIB.dgl_graph_compact(CUT, vector(0, 1, 2), graph_sizes=(2, 2), return_mapping=False),
            "a graph and its vertices",
        ),
    ],
)  # fmt: skip
def test_refuses(call, says):
    with pytest.raises((ValueError, TypeError, IndexError), match=says):
        call()
