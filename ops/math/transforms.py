"""Linear transforms of vectors (Fourier, count sketch) and the Khatri-Rao product."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowmx.errors import ShapeError
from flowmx.ops.arrays.indexing import positions
from flowmx.ops.arrays.linear import Inferred, InferredTypes, Linear, linear
from flowmx.ops.arrays.scatter import add_rows
from flowmx.ops.arrays.shape_arithmetic import length_product
from flowmx.ops.math.reduce import widen
from flowmx.ops.nn.common import expect_rank
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    ShapeOrNone,
    describe,
    family,
    merge,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision

# -- Fourier -----------------------------------------------------------------------------------------------
# A complex vector is stored as (re, im, re, im, ...).


@family
class _Fourier(Operator, heavy=True):
    compute_size: int = option(128, "Ignored.", low=1)


@operator("_contrib_fft")
class FFT(_Fourier, precision=Precision.FLOAT32, input_named=True):
    """The discrete Fourier transform along the last axis: real (…, d) to complex (…, 2d), as (re, im) pairs."""

    input_docs = describe(data="(..., d), float")
    output_doc = "(..., 2·d), the dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        expect_rank(self, "data", data, 1)
        return shapes, [None if data is None else (*data[:-1], length_product(data[-1], 2))]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        spectrum = run.xp.fft.fft(widen(inputs[0]), axis=-1)
        outputs[0][..., ::2], outputs[0][..., 1::2] = spectrum.real, spectrum.imag

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_contrib_ifft", heads[0])]


@operator("_contrib_ifft")
class IFFT(_Fourier, precision=Precision.GIVEN, input_named=True):
    """The real part of the inverse transform along the last axis, times d: complex (…, 2d) to real (…, d)."""

    input_docs = describe(data="(..., 2·d), float")
    output_doc = "(..., d), the dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        expect_rank(self, "data", data, 1)
        if data is None or data[-1] == -1:
            return shapes, [data]
        if data[-1] % 2:
            raise ShapeError(f"{self.name}: data has shape {data}, expected an even length: pairs of re and im")
        return shapes, [(*data[:-1], data[-1] // 2)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x = widen(inputs[0])
        signal = run.xp.fft.ifft(x[..., ::2] + 1j * x[..., 1::2], axis=-1).real
        outputs[0][...] = signal * signal.shape[-1]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_contrib_fft", heads[0])]


# -- count sketch ------------------------------------------------------------------------------------------


@linear("_contrib_count_sketch")
class CountSketch(Linear, precision=Precision.FLOAT32):
    """Each element of the last axis, multiplied by ``s``, added at position ``h``: (…, d) becomes (…, out_dim)."""

    arguments = ("data", "h", "s")
    input_docs = describe(
        data="(..., d), float",
        h="(1, d), int or float; positions from 0 to out_dim - 1",
        s="(1, d), int or float; 1 or -1",
    )
    output_doc = "(..., out_dim), the dtype of data"
    out_dim: int = required("Length of the sketch.", low=1)
    processing_batch_size: int = option(32, "Ignored.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, *vectors = shapes
        expect_rank(self, "data", data, 2)
        if data is None:
            return shapes, [None]
        expected = (1, data[-1])
        for name, shape in zip(("h", "s"), vectors, strict=True):
            if merge(shape, expected) is False and merge(shape, data[-1:]) is False:
                raise ShapeError(f"{self.name}: {name} has shape {shape}, expected {expected}")
        return [data, *(expected if shape is None else shape for shape in vectors)], [(*data[:-1], self.out_dim)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, h, s = inputs
        places = positions(run.xp, h.reshape(-1), self.out_dim, "raise", self.name)
        rows = run.xp.zeros((self.out_dim, math.prod(data.shape[:-1])), widen(outputs[0]).dtype)
        add_rows(run.xp, rows, places, (data * s.reshape(-1)).reshape(-1, data.shape[-1]).T)
        outputs[0][...] = rows.T.reshape(outputs[0].shape)

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        h, s = others
        out[...] = head[..., positions(run.xp, h.reshape(-1), self.out_dim, "raise", self.name)] * s.reshape(-1)


# -- products of columns -----------------------------------------------------------------------------------


@operator("khatri_rao")
class KhatriRao(Operator, precision=Precision.FLOAT32):
    """The column-wise Kronecker product: matrices (mᵢ, n) give (Πmᵢ, n)."""

    variadic = "num_args"
    input_docs = describe(data="matrices (mᵢ, n) of the same dtype")
    output_doc = "(Πmᵢ, n), the dtype of the inputs"
    num_args: int = required("Number of inputs.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        columns = -1
        for position, shape in enumerate(shapes):
            expect_rank(self, f"arg{position}", shape, 2, 2)
            if shape is not None and shape[1] != -1:
                if columns not in (-1, shape[1]):
                    raise ShapeError(f"{self.name}: input {position} has shape {shape}, expected {columns} columns")
                columns = shape[1]
        rows = [-1 if shape is None else shape[0] for shape in shapes]
        return [(count, columns) for count in rows], [(length_product(*rows), columns)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        product = inputs[0]
        for matrix in inputs[1:]:
            product = (product[:, None] * matrix).reshape(-1, matrix.shape[1])
        outputs[0][...] = product

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [
            F.op("_backward_khatri_rao", heads[0], *inputs, num_args=self.num_args + 1, position=position)
            for position in range(self.num_args)
        ]


@operator("_backward_khatri_rao")
class BackwardKhatriRao(Operator, hidden=True):
    """The gradient of khatri_rao for one of its inputs, from the head and all inputs."""

    variadic = "num_args"
    num_args: int = required("Number of inputs, the head first.", low=2)
    position: int = required("The index of the input.", low=0)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[self.position + 1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        matrices = inputs[1:]
        columns = matrices[0].shape[1]
        gradient = widen(inputs[0]).reshape(*(len(matrix) for matrix in matrices), columns)
        # Multiply by the other matrices and sum over their axes, last axis first: earlier axes keep their positions.
        for axis in reversed(range(len(matrices))):
            if axis != self.position:
                factor = matrices[axis].reshape(len(matrices[axis]), *(1,) * (gradient.ndim - axis - 2), columns)
                gradient = (gradient * factor).sum(axis=axis)
        outputs[0][...] = gradient
