"""Operators on stored rows and elements. Dense arrays, as in symbols, count their nonzero elements as stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.ops.arrays.indexing import positions
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.arrays.scatter import add_rows
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    ShapeOrNone,
    describe,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors

_INT64 = np.dtype(np.int64)


@operator("_sparse_retain")
class Retain(Operator):
    """The rows of ``data`` in ``indices``; the other rows are zero."""

    arguments = ("data", "indices")
    input_docs = describe(
        data="any shape, any dtype; row_sparse, except in symbols",
        indices="(n,), int or float; row numbers",
    )
    output_doc = "The shape, dtype and storage type of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[0]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, out = inputs[0], outputs[0]
        index = positions(run.xp, inputs[1], len(data), "clip", self.name)
        out[...] = 0
        out[index] = data[index]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_retain", heads[0], inputs[1]), None]


@operator("_backward_retain")
class BackwardRetain(Retain, hidden=True, sparse=True):
    """The gradient of _sparse_retain: the head's rows in ``indices``."""


@operator("_contrib_getnnz")
class Getnnz(Operator, no_gradient=True):
    """The number of stored elements of a csr matrix, or of each of its rows; of a dense one, of nonzero elements."""

    input_docs = describe(data="(rows, columns), any dtype; csr")
    output_doc = "(1,), or (rows,) with axis 1; int64"
    axis: int | None = option(None, "1 to count each row; None for the whole matrix.", 0, 1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        return shapes, [None if shape is None else (1,) if self.axis is None else (shape[1 - self.axis],)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [_INT64]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.count_nonzero(inputs[0], axis=self.axis)


@operator("_backward_embedding")
class BackwardEmbedding(Operator, hidden=True, sparse=True):
    """The gradient of Embedding's weight as stored rows: the rows looked up, each the sum of its heads."""

    arguments = ("head", "data")
    input_dim: int = required("Number of rows.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        head = shapes[0]
        return shapes, [None if head is None else (self.input_dim, head[-1])]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, out = inputs[0], outputs[0]
        index = positions(run.xp, inputs[1], self.input_dim, "clip", self.name).ravel()
        out[...] = 0
        add_rows(run.xp, out, index, head.reshape(index.size, -1))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("take", heads[0], inputs[1]), None]
