"""DGL's operators on graphs: csr matrices whose element (u, v) is the number of the edge from u to v.

They have no dense form, so all that they compute stands in ``ops/sparse/graphs.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.errors import ShapeError, TypeInferenceError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.operators import Operator, Shape, ShapeOrNone, described, family, operator, option, required
from flowmx.ops.registry.traits import Precision

_INT64: DType = np.dtype(np.int64)
_EDGES = "(n, n), int64; csr, its elements the numbers of edges"


class _OnGraphs(Operator, sparse=True, no_gradient=True, precision=Precision.WIDEST):
    """Base of them."""

    def expect_graph(self, shape: ShapeOrNone, name: str) -> None:
        """Raise where a shape is not that of a graph."""
        if shape is not None and (len(shape) != 2 or shape[0] != shape[1]):
            raise ShapeError(f"{self.name}: {name} has shape {shape}, expected as many columns as rows")

    def expect_vector(self, shape: ShapeOrNone, name: str) -> None:
        """Raise where a shape has more axes than one."""
        if shape is not None and len(shape) != 1:
            raise ShapeError(f"{self.name}: {name} has shape {shape}, expected one axis")

    def expect_int64(self, dtypes: Sequence[DType | None], names: Sequence[str]) -> None:
        """Raise where a dtype is another one."""
        for dtype, name in zip(dtypes, names, strict=True):
            if dtype not in (None, _INT64):
                raise TypeInferenceError(
                    f"{self.name}: {name} has dtype {name_of(dtype)}, expected int64; cast it with astype"
                )


@family
class _Sampling(_OnGraphs, uses_random=True):
    """Base of the samplers.

    Attributes:
        before: the number of inputs before the seeds.
    """

    variadic = "num_args"
    before = 1
    num_args: int = required("Number of inputs.", low=2)
    num_hops: int = option(1, "Number of hops: how far from the seeds vertices are sampled.", low=0)
    num_neighbor: int = option(2, "Number of neighbors sampled of each vertex.", low=0)
    max_num_vertices: int = option(100, "Maximum number of vertices of a subgraph.", low=1)

    @property
    def count(self) -> int:
        """The number of subgraphs."""
        return self.num_args - self.before

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{at}" for at in range((2 + self.before) * self.count))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        self.expect_graph(shapes[0], "the graph")
        for name, shape in zip(self.inputs()[1:], shapes[1:], strict=True):
            self.expect_vector(shape, name)
        most = self.max_num_vertices
        for shape in shapes[self.before :]:
            if shape is not None and shape[0] > most:
                raise ShapeError(f"{self.name}: {shape[0]} seeds were given, expected at most max_num_vertices={most}")
        graph = shapes[0]
        matrix: ShapeOrNone = None if graph is None else (most, graph[1])
        kinds: list[ShapeOrNone] = [(most + 1,), matrix, *[(most,)] * self.before]
        return shapes, [kind for kind in kinds for _ in range(self.count)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        names = ("the graph", *[f"seed vector {at}" for at in range(self.count)])
        self.expect_int64([dtypes[0], *dtypes[self.before :]], names)
        kinds = [_INT64, _INT64, *dtypes[1 : self.before], _INT64]
        return dtypes, [kind for kind in kinds for _ in range(self.count)]


_SEEDS = "; then any number of seed vectors, (k,), int64, each for a subgraph"


@operator("_contrib_dgl_csr_neighbor_uniform_sample")
class UniformSample(_Sampling):
    """Subgraphs around seeds: of each vertex some neighbors are sampled, each as likely, and of these again."""

    input_docs = described(data=f"the graph, {_EDGES}{_SEEDS}")
    output_doc = (
        "For each seed vector the sampled vertices, (max_num_vertices + 1,), int64, ascending, their number last; "
        "then for each the sampled edges, (max_num_vertices, n), csr, a row for each vertex; then for each the hop at "
        "which each vertex was sampled, (max_num_vertices,), int64"
    )


@operator("_contrib_dgl_csr_neighbor_non_uniform_sample")
class NonUniformSample(_Sampling):
    """Subgraphs around seeds: of each vertex some neighbors are sampled by their probabilities, and of these again."""

    before = 2
    input_docs = described(
        data=f"the graph, {_EDGES}; probabilities of vertices, (n,), float, which need not add up to 1{_SEEDS}"
    )
    output_doc = (
        "For each seed vector the sampled vertices, (max_num_vertices + 1,), int64, ascending, their number last; "
        "then for each the sampled edges, (max_num_vertices, n), csr, a row for each vertex; then for each the "
        "probabilities of its vertices, (max_num_vertices,); then for each the hop at which each vertex was sampled, "
        "(max_num_vertices,), int64"
    )
    num_args: int = required("Number of inputs.", low=3)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        graph, chances = shapes[:2]
        if graph is not None and chances is not None and chances != graph[:1]:
            raise ShapeError(f"{self.name}: probability has shape {chances}, expected {graph[:1]}, one a vertex")
        return super().infer_shape(shapes)


@operator("_contrib_dgl_subgraph")
class Subgraph(_OnGraphs):
    """The subgraphs of given vertices, with all edges between these."""

    variadic = "num_args"
    input_docs = described(
        data="the graph, (n, n), any dtype; csr; then any number of vectors of vertices, (k,), int64, ascending"
    )
    output_doc = (
        "For each vector a csr matrix (k, k) of the graph's dtype whose elements count its edges from 0; with "
        "return_mapping then for each one with the graph's elements"
    )
    num_args: int = required("Number of inputs.", low=2)
    return_mapping: bool = required("True: also give the elements of the graph itself.")

    @property
    def count(self) -> int:
        """The number of subgraphs."""
        return self.num_args - 1

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{at}" for at in range(self.count * (1 + self.return_mapping)))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        self.expect_graph(shapes[0], "the graph")
        for name, shape in zip(self.inputs()[1:], shapes[1:], strict=True):
            self.expect_vector(shape, name)
        made: list[ShapeOrNone] = [None if shape is None else (shape[0], shape[0]) for shape in shapes[1:]]
        return shapes, made * (1 + self.return_mapping)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        self.expect_int64(dtypes[1:], [f"vertex vector {at}" for at in range(self.count)])
        return dtypes, [dtypes[0]] * len(self.outputs())


@operator("_contrib_edge_id")
class EdgeId(_OnGraphs):
    """The elements (u, v) of a graph, which are the numbers of edges; -1 where there is none."""

    arguments = ("data", "u", "v")
    input_docs = described(
        data="(n, m), any dtype; csr, its elements the numbers of edges",
        u="(k,), int or float; the vertices where edges begin",
        v="(k,), int or float; those where they end",
    )
    output_doc = "(k,), the dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, u, v = shapes
        if data is not None and len(data) != 2:
            raise ShapeError(f"{self.name}: data has shape {data}, expected two axes")
        self.expect_vector(u, "u")
        self.expect_vector(v, "v")
        if u is not None and v is not None and u != v:
            raise ShapeError(f"{self.name}: u has shape {u} and v {v}, expected equal lengths")
        known: Shape | None = v if u is None else u
        return [data, known, known], [known]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]


@operator("_contrib_dgl_adjacency")
class Adjacency(_OnGraphs):
    """The adjacency matrix of a graph: 1 for each of its edges."""

    input_docs = described(data="(n, m), int64; csr, its elements the numbers of edges")
    output_doc = "The shape of data, float32; csr"

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        self.expect_int64(dtypes, ["data"])
        return dtypes, [FLOAT32]


@operator("_contrib_dgl_graph_compact")
class GraphCompact(_OnGraphs):
    """Sampled subgraphs without the rows and columns of vertices that were not sampled."""

    variadic = "num_args"
    input_docs = described(
        data="sampled graphs, (max_num_vertices, n), int64; csr; then the sampled vertices of each, "
        "(max_num_vertices + 1,), int64, their number last"
    )
    output_doc = (
        "For each graph a csr matrix (size, size), int64, whose elements count its edges from 0; with return_mapping "
        "then for each one with its elements as they were"
    )
    num_args: int = required("Number of inputs.", low=2)
    return_mapping: bool = required("True: also give the elements as they were.")
    graph_sizes: Shape = required("Number of vertices in each graph.", low=0)

    @property
    def count(self) -> int:
        """The number of graphs."""
        return len(self.graph_sizes)

    def __post_init__(self) -> None:
        if self.num_args != 2 * self.count:
            raise ShapeError(
                f"{self.name}: {self.num_args} inputs and {self.count} graph_sizes were given, expected for each size "
                "a graph and its vertices"
            )

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{at}" for at in range(self.count * (1 + self.return_mapping)))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        for at, size in enumerate(self.graph_sizes):
            graph, vertices = shapes[at], shapes[at + self.count]
            if graph is not None and (len(graph) != 2 or min(graph) < size):
                raise ShapeError(f"{self.name}: graph {at} has shape {graph}, expected two axes of at least {size}")
            self.expect_vector(vertices, f"vertex vector {at}")
            if graph is not None and vertices not in (None, (graph[0] + 1,)):
                raise ShapeError(
                    f"{self.name}: vertex vector {at} has shape {vertices}, expected {(graph[0] + 1,)}: a vertex for "
                    "each row, and their number"
                )
        made: list[ShapeOrNone] = [(size, size) for size in self.graph_sizes]
        return shapes, made * (1 + self.return_mapping)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        self.expect_int64(dtypes, [f"input {at}" for at in range(self.num_args)])
        return dtypes, [_INT64] * len(self.outputs())
