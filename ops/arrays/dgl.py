"""DGL's operators on graphs: csr matrices whose element (u, v) is the number of the edge from u to v.

They have no dense form: ``ops/sparse/dgl.py`` computes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.errors import ShapeError, TypeInferenceError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.operators import Operator, Shape, ShapeOrNone, describe, family, operator, option, required
from flowmx.ops.registry.traits import Precision

_INT64: DType = np.dtype(np.int64)
_EDGES = "(n, n), int64; csr, its elements the numbers of edges"


class _GraphOperator(Operator, sparse=True, no_gradient=True, precision=Precision.WIDEST):
    """Base of the graph operators."""

    def expect_graph(self, shape: ShapeOrNone, name: str) -> None:
        """Raise a ShapeError unless a shape is that of a graph."""
        if shape is not None and (len(shape) != 2 or shape[0] != shape[1]):
            raise ShapeError(f"{self.name}: {name} has shape {shape}, expected a square matrix")

    def expect_vector(self, shape: ShapeOrNone, name: str) -> None:
        """Raise a ShapeError unless a shape has one axis."""
        if shape is not None and len(shape) != 1:
            raise ShapeError(f"{self.name}: {name} has shape {shape}, expected one axis")

    def expect_int64(self, dtypes: Sequence[DType | None], names: Sequence[str]) -> None:
        """Raise a TypeInferenceError unless all dtypes are int64."""
        for dtype, name in zip(dtypes, names, strict=True):
            if dtype not in (None, _INT64):
                raise TypeInferenceError(
                    f"{self.name}: {name} has dtype {name_of(dtype)}, expected int64; cast it with astype"
                )


@family
class _Sampling(_GraphOperator, uses_random=True):
    """Base of the samplers.

    Attributes:
        seeds_start: the position of the first seeds among the inputs.
    """

    variadic = "num_args"
    seeds_start = 1
    num_args: int = required("Number of inputs.", low=2)
    num_hops: int = option(1, "Number of hops from the seeds to sample.", low=0)
    num_neighbor: int = option(2, "Number of neighbors to sample for each vertex.", low=0)
    max_num_vertices: int = option(100, "Maximum number of vertices in a subgraph.", low=1)

    @property
    def count(self) -> int:
        """The number of subgraphs."""
        return self.num_args - self.seeds_start

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{index}" for index in range((2 + self.seeds_start) * self.count))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        self.expect_graph(shapes[0], "the graph")
        for name, shape in zip(self.inputs()[1:], shapes[1:], strict=True):
            self.expect_vector(shape, name)
        limit = self.max_num_vertices
        for shape in shapes[self.seeds_start :]:
            if shape is not None and shape[0] > limit:
                raise ShapeError(f"{self.name}: {shape[0]} seeds, expected at most max_num_vertices={limit}")
        graph = shapes[0]
        matrix: ShapeOrNone = None if graph is None else (limit, graph[1])
        outputs: list[ShapeOrNone] = [(limit + 1,), matrix, *[(limit,)] * self.seeds_start]
        return shapes, [output for output in outputs for _ in range(self.count)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        names = ("the graph", *[f"seed vector {index}" for index in range(self.count)])
        self.expect_int64([dtypes[0], *dtypes[self.seeds_start :]], names)
        outputs = [_INT64, _INT64, *dtypes[1 : self.seeds_start], _INT64]
        return dtypes, [output for output in outputs for _ in range(self.count)]


_SEEDS = "; then any number of seed vectors, (k,), int64, one for each subgraph"


@operator("_contrib_dgl_csr_neighbor_uniform_sample")
class UniformSample(_Sampling):
    """Subgraphs around seeds: sample neighbors of each vertex uniformly, hop by hop."""

    input_docs = describe(data=f"the graph, {_EDGES}{_SEEDS}")
    output_doc = (
        "For each seed vector the sampled vertices, (max_num_vertices + 1,), int64, ascending, then the number of "
        "vertices; then for each vector the sampled edges, (max_num_vertices, n), csr, a row for each vertex; "
        "then for each vector the hop at which each vertex was sampled, (max_num_vertices,), int64"
    )


@operator("_contrib_dgl_csr_neighbor_non_uniform_sample")
class NonUniformSample(_Sampling):
    """Subgraphs around seeds: sample neighbors of each vertex by their probabilities, hop by hop."""

    seeds_start = 2
    input_docs = describe(
        data=f"the graph, {_EDGES}; probabilities of vertices, (n,), float, which need not sum to 1{_SEEDS}"
    )
    output_doc = (
        "For each seed vector the sampled vertices, (max_num_vertices + 1,), int64, ascending, then the number of "
        "vertices; then for each vector the sampled edges, (max_num_vertices, n), csr, a row for each vertex; "
        "then for each vector the probabilities of its vertices, (max_num_vertices,); "
        "then for each vector the hop at which each vertex was sampled, (max_num_vertices,), int64"
    )
    num_args: int = required("Number of inputs.", low=3)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        graph, probabilities = shapes[:2]
        if graph is not None and probabilities is not None and probabilities != graph[:1]:
            raise ShapeError(f"{self.name}: probability has shape {probabilities}, expected {graph[:1]}")
        return super().infer_shape(shapes)


@operator("_contrib_dgl_subgraph")
class Subgraph(_GraphOperator):
    """The subgraphs induced by vectors of vertices: all edges between the vertices of a vector."""

    variadic = "num_args"
    input_docs = describe(
        data="the graph, (n, n), any dtype; csr; then any number of vectors of vertices, (k,), int64, ascending"
    )
    output_doc = (
        "For each vector a csr matrix (k, k) of the graph's dtype whose elements number its edges from 0; with "
        "return_mapping also, for each vector, a matrix with the graph's elements"
    )
    num_args: int = required("Number of inputs.", low=2)
    return_mapping: bool = required("Also return the elements of the graph itself.")

    @property
    def count(self) -> int:
        """The number of subgraphs."""
        return self.num_args - 1

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{index}" for index in range(self.count * (1 + self.return_mapping)))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        self.expect_graph(shapes[0], "the graph")
        for name, shape in zip(self.inputs()[1:], shapes[1:], strict=True):
            self.expect_vector(shape, name)
        subgraphs: list[ShapeOrNone] = [None if shape is None else (shape[0], shape[0]) for shape in shapes[1:]]
        return shapes, subgraphs * (1 + self.return_mapping)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        self.expect_int64(dtypes[1:], [f"vertex vector {index}" for index in range(self.count)])
        return dtypes, [dtypes[0]] * len(self.outputs())


@operator("_contrib_edge_id")
class EdgeId(_GraphOperator):
    """The edge numbers at the elements (u, v) of a graph; -1 where there is no edge."""

    arguments = ("data", "u", "v")
    input_docs = describe(
        data="(n, m), any dtype; csr, its elements the numbers of edges",
        u="(k,), int or float; the vertices where edges begin",
        v="(k,), int or float; the vertices where edges end",
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
        vertices: Shape | None = v if u is None else u
        return [data, vertices, vertices], [vertices]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]


@operator("_contrib_dgl_adjacency")
class Adjacency(_GraphOperator):
    """The adjacency matrix of a graph: 1 for each of its edges."""

    input_docs = describe(data="(n, m), int64; csr, its elements the numbers of edges")
    output_doc = "The shape of data, float32; csr"

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        self.expect_int64(dtypes, ["data"])
        return dtypes, [FLOAT32]


@operator("_contrib_dgl_graph_compact")
class GraphCompact(_GraphOperator):
    """Sampled subgraphs without the rows and columns of vertices that were not sampled."""

    variadic = "num_args"
    input_docs = describe(
        data="sampled graphs, (max_num_vertices, n), int64; csr; then the sampled vertices of each, "
        "(max_num_vertices + 1,), int64, then the number of vertices"
    )
    output_doc = (
        "For each graph a csr matrix (size, size), int64, whose elements number its edges from 0; with return_mapping "
        "also, for each graph, a matrix with the original elements"
    )
    num_args: int = required("Number of inputs.", low=2)
    return_mapping: bool = required("Also return the original elements.")
    graph_sizes: Shape = required("Number of vertices in each graph.", low=0)

    @property
    def count(self) -> int:
        """The number of graphs."""
        return len(self.graph_sizes)

    def __post_init__(self) -> None:
        if self.num_args != 2 * self.count:
            raise ShapeError(
                f"{self.name}: {self.num_args} inputs and {self.count} graph_sizes, expected a graph and its vertices "
                "for each size"
            )

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{index}" for index in range(self.count * (1 + self.return_mapping)))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        for index, size in enumerate(self.graph_sizes):
            graph, vertices = shapes[index], shapes[index + self.count]
            if graph is not None and (len(graph) != 2 or min(graph) < size):
                raise ShapeError(f"{self.name}: graph {index} has shape {graph}, expected two axes of at least {size}")
            self.expect_vector(vertices, f"vertex vector {index}")
            if graph is not None and vertices not in (None, (graph[0] + 1,)):
                raise ShapeError(
                    f"{self.name}: vertex vector {index} has shape {vertices}, expected {(graph[0] + 1,)}: a vertex "
                    "for each row, then the number of vertices"
                )
        matrices: list[ShapeOrNone] = [(size, size) for size in self.graph_sizes]
        return shapes, matrices * (1 + self.return_mapping)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        self.expect_int64(dtypes, [f"input {index}" for index in range(self.num_args)])
        return dtypes, [_INT64] * len(self.outputs())
